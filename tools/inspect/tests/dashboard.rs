//! The dashboard and the alert rules ask for what is really emitted: each metric of each query, with the labels that the
//! query names, has samples in a scrape.

mod common;

use std::collections::{BTreeMap, BTreeSet};

use common::{Scratch, inspect, namespace, object, payload, store};
use maru::{Budget, Role, Wish};
use serde_json::Value;
use yaml_rust2::YamlLoader;

type Labels = BTreeMap<String, String>;

/// Samples of a scrape: name and labels.
fn samples() -> Vec<(String, Labels)> {
    let scratch = Scratch::new();
    let region = scratch.region("kv", Wish::of_slots(1 << 20, 4096));
    let session = region.session("s", Role::Worker).expect("attach");
    let ns = session.namespace_with_budget(&namespace("t"), Budget::Slots(4)).expect("namespace");
    store(&session, &object(ns, 1), &payload(1, 100));
    let said = inspect(&["metrics", scratch.path("kv").to_str().expect("UTF-8"), "--json"]);
    assert_eq!(said.code, 0, "{}", said.errors);
    let text = |value: &Value| value.as_str().expect("text").to_owned();
    said.of_kind("metric")
        .iter()
        .map(|line| {
            let labels = line["labels"].as_object().expect("labels");
            (text(&line["name"]), labels.iter().map(|(name, value)| (name.clone(), text(value))).collect())
        })
        .collect()
}

#[derive(Debug, PartialEq, Eq)]
struct Selector {
    name: String,
    matchers: Vec<(String, String, String)>,
}

fn is_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte == b':'
}

/// Selectors of a query: names that begin with `maru_`, and what stands in the braces after them.
fn selectors(query: &str) -> Vec<Selector> {
    let bytes = query.as_bytes();
    let (mut at, mut found) = (0, Vec::new());
    while at < bytes.len() {
        if bytes[at] == b'"' {
            at += 1 + query[at + 1..].find('"').expect("a closing quote") + 1;
            continue;
        }
        if !is_name(bytes[at]) {
            at += 1;
            continue;
        }
        let end = at + bytes[at..].iter().take_while(|byte| is_name(**byte)).count();
        let name = query[at..end].to_owned();
        at = end;
        if !name.starts_with("maru_") {
            continue;
        }
        let mut matchers = Vec::new();
        if let Some(inside) = query[at..].strip_prefix('{') {
            let close = inside.find('}').expect("a closing brace");
            for matcher in inside[..close].split(',').map(str::trim).filter(|matcher| !matcher.is_empty()) {
                let split = matcher.find(['=', '!']).expect("an operator");
                let (label, rest) = matcher.split_at(split);
                let operator: String = rest.chars().take_while(|letter| *letter != '"').collect();
                let value = rest[operator.len()..].trim_matches('"').to_owned();
                matchers.push((label.to_owned(), operator, value));
            }
            at += close + 2;
        }
        found.push(Selector { name, matchers });
    }
    found
}

/// What is wrong with a query, if anything.
fn dead(query: &str, samples: &[(String, Labels)]) -> Option<String> {
    let selectors = selectors(query);
    if selectors.is_empty() {
        return Some("asks for nothing of Maru's".to_owned());
    }
    for selector in &selectors {
        let mut left: Vec<&Labels> =
            samples.iter().filter(|(name, _)| *name == selector.name).map(|(_, labels)| labels).collect();
        if left.is_empty() {
            return Some(format!("{} is not emitted", selector.name));
        }
        for (label, operator, value) in &selector.matchers {
            if value.starts_with('$') {
                left.retain(|labels| labels.contains_key(label));
            } else if operator == "=~" {
                // Each alternative has to be there.
                for one in value.split('|') {
                    if !left.iter().any(|labels| labels.get(label).is_some_and(|found| found == one)) {
                        return Some(format!("{}: no sample has {label}={one:?}", selector.name));
                    }
                }
                left.retain(|labels| labels.get(label).is_some_and(|found| value.split('|').any(|one| one == found)));
            } else {
                let wanted = operator == "=";
                assert!(wanted || operator == "!=", "{operator}");
                left.retain(|labels| labels.get(label).is_some_and(|found| (found == value) == wanted));
            }
            if left.is_empty() {
                return Some(format!("{}: no sample has {label}{operator}{value:?}", selector.name));
            }
        }
    }
    // Labels that are grouped by have to be labels of something in the query.
    let known: BTreeSet<&str> = samples
        .iter()
        .filter(|(name, _)| selectors.iter().any(|selector| selector.name == *name))
        .flat_map(|(_, labels)| labels.keys().map(String::as_str))
        .collect();
    for word in ["by (", "on (", "group_left ("] {
        for part in query.split(word).skip(1) {
            let inside = part.split(')').next().expect("a part");
            for label in inside.split(',').map(str::trim) {
                if !known.contains(label) {
                    return Some(format!("{word}{label}): no such label"));
                }
            }
        }
    }
    None
}

const DASHBOARD: &str = include_str!("../../grafana/maru.json");
const ALERTS: &str = include_str!("../../grafana/alerts.yml");

#[test]
fn no_panel_is_dead() {
    let samples = samples();
    let dashboard: Value = serde_json::from_str(DASHBOARD).expect("JSON");
    let (mut queries, mut names) = (0, BTreeSet::new());
    for panel in dashboard["panels"].as_array().expect("panels") {
        let title = panel["title"].as_str().expect("a title");
        let targets = panel["targets"].as_array().cloned().unwrap_or_default();
        assert!(panel["type"] == "row" || !targets.is_empty(), "{title} asks for nothing");
        for target in targets {
            let query = target["expr"].as_str().expect("a query");
            assert_eq!(dead(query, &samples), None, "{title}: {query}");
            let legend = target["legendFormat"].as_str().expect("a legend");
            for label in legend.split("{{").skip(1).map(|part| part.split("}}").next().expect("a part")) {
                let found = selectors(query).iter().any(|selector| {
                    samples.iter().any(|(name, labels)| *name == selector.name && labels.contains_key(label))
                });
                assert!(found, "{title}: {legend} names a label that {query} has not");
            }
            names.extend(selectors(query).into_iter().map(|selector| selector.name));
            queries += 1;
        }
    }
    for variable in dashboard["templating"]["list"].as_array().expect("variables") {
        if let Some(query) = variable["definition"].as_str() {
            assert_eq!(dead(query, &samples), None, "{query}");
        }
    }
    println!("{queries} queries of {} metrics", names.len());
    assert!(queries > 30 && names.len() > 25);
    // No two panels lie over each other.
    let mut places = BTreeSet::new();
    for panel in dashboard["panels"].as_array().expect("panels") {
        let number = |name: &str| panel["gridPos"][name].as_u64().expect("a number");
        for x in number("x")..number("x") + number("w") {
            for y in number("y")..number("y") + number("h") {
                assert!(x < 24 && places.insert((x, y)), "{}: {x}, {y} is taken", panel["title"]);
            }
        }
    }
}

#[test]
fn every_alert_can_fire() {
    let samples = samples();
    let rules = YamlLoader::load_from_str(ALERTS).expect("YAML");
    let mut names = BTreeSet::new();
    for group in rules[0]["groups"].as_vec().expect("groups") {
        for rule in group["rules"].as_vec().expect("rules") {
            let (name, query) = (rule["alert"].as_str().expect("a name"), rule["expr"].as_str().expect("a query"));
            assert_eq!(dead(query, &samples), None, "{name}: {query}");
            assert!(names.insert(name.to_owned()), "{name} twice");
            assert!(matches!(rule["labels"]["severity"].as_str(), Some("critical" | "warning")), "{name}");
            for text in ["summary", "description"] {
                assert!(rule["annotations"][text].as_str().is_some_and(|text| text.len() > 20), "{name}: {text}");
            }
        }
    }
    println!("{} rules", names.len());
    assert!(names.len() >= 8);
}

/// The test itself notices what it is for.
#[test]
fn a_dead_query_is_noticed() {
    let samples = samples();
    for (query, wanted) in [
        ("rate(maru_hits_total[5m])", Some("maru_hits_total is not emitted")),
        ("maru_slots{state=\"redy\"}", Some("no sample has state=\"redy\"")),
        ("maru_refused_total{reason=~\"no_space|full\"}", Some("reason=\"full\"")),
        ("maru_up{zone=\"$zone\"}", Some("zone")),
        ("sum by (engine) (maru_sessions)", Some("engine")),
        ("up", Some("nothing of Maru's")),
        ("sum by (state) (maru_slots{region=~\"$region\",state!=\"free\"}) / 2", None),
    ] {
        match (dead(query, &samples), wanted) {
            (None, None) => {}
            (Some(found), Some(wanted)) if found.contains(wanted) => {}
            (found, wanted) => panic!("{query}: {found:?}, wanted {wanted:?}"),
        }
    }
}
