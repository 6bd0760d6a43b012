//! The results as Markdown, put between two marks of a document, and as JSON.

use std::fmt::Write;

use serde_json::{Value, json};

use crate::admission::Admitted;
use crate::contest::{Contest, Kind, LRU, PERCENT, Row};

/// Digits in groups of three.
pub(crate) fn grouped(number: usize) -> String {
    let digits = number.to_string();
    let mut grouped = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

fn head(text: &mut String, contest: &Contest, first: &str) {
    let _ = write!(text, "| {first} |");
    for side in &contest.sides {
        for percent in PERCENT {
            let _ = write!(text, " {} {percent} % |", &side.name[..4.min(side.name.len())]);
        }
    }
    let _ = write!(text, "\n| --- |{}\n", " ---: |".repeat(contest.sides.len() * PERCENT.len()));
}

fn line(text: &mut String, contest: &Contest, title: &str, cell: impl Fn(usize, usize) -> String) {
    let _ = write!(text, "| {title} |");
    for side in 0..contest.sides.len() {
        for size in 0..PERCENT.len() {
            let _ = write!(text, " {} |", cell(side, size));
        }
    }
    text.push('\n');
}

fn of_row(text: &mut String, contest: &Contest, row: &Row) {
    let title = format!("{} ({})", row.name, row.whose);
    line(text, contest, &title, |side, size| format!("{:.2}", contest.ratio(row, side, size)));
}

/// How much more one count is than another, in percent of the other.
fn relative(ours: usize, theirs: usize) -> f64 {
    (ours as f64 / theirs.max(1) as f64 - 1.0) * 100.0
}

/// All tables.
pub(crate) fn markdown(contest: &Contest, admitted: &[Admitted]) -> String {
    let mut text = String::from("Hits in leading runs, % of references; in parentheses the crate.\n\n");
    head(&mut text, contest, "policy");
    for row in contest.rows.iter().filter(|row| row.kind != Kind::Variant) {
        of_row(&mut text, contest, row);
    }
    if let Some(lru) = contest.row(|row| row.name == LRU) {
        for ours in contest.rows.iter().filter(|row| row.kind == Kind::Ours) {
            let name = ours.name.trim_matches('*');
            line(&mut text, contest, &format!("*{name}: against LRU, relative*"), |side, size| {
                format!("{:+.2} %", relative(ours.hits[side][size], lru.hits[side][size]))
            });
            line(&mut text, contest, &format!("*{name}: against the best peer*"), |side, size| {
                let best = contest.best_peer(side, size).map_or(0, |row| row.hits[side][size]);
                format!("{:+.1} %", relative(ours.hits[side][size], best))
            });
        }
    }
    text.push_str("\nVariants over the same slots:\n\n");
    head(&mut text, contest, "policy");
    for row in contest.rows.iter().filter(|row| matches!(row.kind, Kind::Ours | Kind::Variant)) {
        of_row(&mut text, contest, row);
    }
    text.push_str("\nThe admission hook in front of Maru's policy: hits, and after them blocks written, both in % of references:\n\n");
    head(&mut text, contest, "stored is");
    for rule in admitted {
        line(&mut text, contest, rule.name, |side, size| {
            let (hits, stored) = rule.counts[side][size];
            let share = |count: usize| count as f64 * 100.0 / contest.sides[side].references as f64;
            format!("{:.2} / {:.0}", share(hits), share(stored))
        });
    }
    text.push('\n');
    for side in &contest.sides {
        let _ = writeln!(
            text,
            "{}: {} distinct blocks, {} references; an endless cache hits {} ({:.2} %).",
            side.name,
            grouped(side.distinct),
            grouped(side.references),
            grouped(side.endless),
            side.endless as f64 * 100.0 / side.references as f64
        );
    }
    text
}

/// Every count.
pub(crate) fn json(contest: &Contest, admitted: &[Admitted]) -> Value {
    let traces: Vec<Value> = contest
        .sides
        .iter()
        .map(|side| {
            json!({ "name": side.name, "distinct_blocks": side.distinct, "references": side.references,
                    "endless_hits": side.endless })
        })
        .collect();
    let policies: Vec<Value> = contest
        .rows
        .iter()
        .map(|row| json!({ "name": row.name.trim_matches('*'), "crate": row.whose, "hits": row.hits }))
        .collect();
    let admission: Vec<Value> =
        admitted.iter().map(|rule| json!({ "stored": rule.name, "hits_and_stores": rule.counts })).collect();
    json!({ "percent": PERCENT, "traces": traces, "policies": policies, "admission": admission })
}
