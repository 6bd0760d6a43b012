//! Tables.

use std::fmt::Write as _;

use maru_bench::contest::{Outcome, Spread};
use serde_json::{Value, json};

use crate::targets::{Judged, Wanted};

fn time(ns: f64) -> String {
    match ns {
        ns if ns < 1e3 => format!("{ns:.0} ns"),
        ns if ns < 1e6 => format!("{:.2} µs", ns / 1e3),
        ns => format!("{:.2} ms", ns / 1e6),
    }
}

fn ratio(spread: &Spread) -> String {
    format!("{:.2} [{:.2}–{:.2}]", spread.median, spread.tenth, spread.ninetieth)
}

fn wanted(wanted: Wanted) -> String {
    match wanted {
        Wanted::Most(most) => format!("≤ {most}"),
        Wanted::Least(least) => format!("≥ {least}"),
        Wanted::Shown => String::new(),
    }
}

pub(crate) fn markdown(judged: &[Judged], outcomes: &[Outcome]) -> String {
    let mut text = String::from(
        "Ratios of times in one run: median of the rounds, and in brackets the tenth and ninetieth percent of them.\n\n\
         | what | ratio | wanted | |\n| --- | ---: | ---: | --- |\n",
    );
    for judged in judged {
        let found = judged.found.as_ref().map_or("not measured".to_owned(), ratio);
        let verdict = match judged.reached() {
            Some(true) => "reached",
            Some(false) => "**missed**",
            None => "",
        };
        let _ = writeln!(text, "| {} | {found} | {} | {verdict} |", judged.target.text, wanted(judged.target.wanted));
    }
    text.push_str("\nTimes, medians; GB/s where bytes move:\n\n| contest | candidate | time | tenth – ninetieth | GB/s |\n| --- | --- | ---: | ---: | ---: |\n");
    for outcome in outcomes {
        for row in &outcome.entries {
            let rate = outcome.bytes.map_or(String::new(), |bytes| format!("{:.1}", bytes as f64 / row.ns.median));
            let _ = writeln!(
                text,
                "| {} | {} | {} | {} – {} | {rate} |",
                outcome.question,
                row.name,
                time(row.ns.median),
                time(row.ns.tenth),
                time(row.ns.ninetieth)
            );
        }
    }
    text
}

pub(crate) fn json(judged: &[Judged], outcomes: &[Outcome]) -> Value {
    let spread =
        |spread: &Spread| json!({ "median": spread.median, "tenth": spread.tenth, "ninetieth": spread.ninetieth });
    let targets: Vec<Value> = judged
        .iter()
        .map(|judged| {
            json!({ "what": judged.target.text, "wanted": wanted(judged.target.wanted), "reached": judged.reached(),
                    "ratio": judged.found.as_ref().map(spread) })
        })
        .collect();
    let times: Vec<Value> = outcomes
        .iter()
        .flat_map(|outcome| outcome.entries.iter().map(move |row| (outcome, row)))
        .map(|(outcome, row)| {
            json!({ "contest": outcome.question, "candidate": row.name, "ns": spread(&row.ns), "bytes": outcome.bytes })
        })
        .collect();
    json!({ "targets": targets, "times": times })
}
