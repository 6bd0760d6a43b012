//! Pictures: bars of times, and curves of what size and fill do to a lookup.

use std::fmt::Write as _;

use maru_bench::contest::{Outcome, Row};

const INK: &str = "#1f2933";
const FAINT: &str = "#616e7c";
const OURS: &str = "#d64545";
const THEIRS: &str = "#7b8794";
const LEFT: f64 = 250.0;
const WIDTH: f64 = 900.0;
const BAR: f64 = 20.0;

/// All pictures that there are numbers for, by file name.
pub(crate) fn all(outcomes: &[Outcome]) -> Vec<(&'static str, String)> {
    let of = |start: &str| outcomes.iter().filter(|outcome| outcome.question.starts_with(start)).collect::<Vec<_>>();
    let lookups: Vec<&Outcome> = [of("lookup-"), of("directories")].concat();
    let copies: Vec<&Outcome> = [of("store-"), of("load-")].concat();
    let curves = of("curve-");
    let mut all = Vec::new();
    if !lookups.is_empty() {
        all.push(("lookups.svg", bars("128 keys: time, µs, logarithmic", &lookups, micros, true)));
    }
    if !copies.is_empty() {
        all.push(("copies.svg", bars("one block stored or loaded: GB/s", &copies, rate, false)));
    }
    if !curves.is_empty() {
        all.push(("curves.svg", bars("128 keys by fill and by size: time, µs", &curves, micros, false)));
    }
    all
}

fn micros(_: &Outcome, row: &Row) -> f64 {
    row.ns.median / 1e3
}

fn rate(outcome: &Outcome, row: &Row) -> f64 {
    outcome.bytes.unwrap_or(0) as f64 / row.ns.median
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}

fn text(svg: &mut String, x: f64, y: f64, anchor: &str, colour: &str, words: &str) {
    let words = escaped(words);
    let _ = writeln!(svg, "<text x=\"{x:.0}\" y=\"{y:.0}\" text-anchor=\"{anchor}\" fill=\"{colour}\">{words}</text>");
}

fn bars(title: &str, outcomes: &[&Outcome], value: impl Fn(&Outcome, &Row) -> f64, logarithmic: bool) -> String {
    let values = || outcomes.iter().flat_map(|outcome| outcome.entries.iter().map(|row| value(outcome, row)));
    let (least, most) = values().fold((f64::MAX, f64::MIN), |(least, most), value| (least.min(value), most.max(value)));
    let scale = |value: f64| {
        let part = if logarithmic {
            let (low, high) = ((least / 2.0).max(1e-3).ln(), most.ln());
            (value.max(1e-3).ln() - low) / (high - low).max(1e-9)
        } else {
            value / most.max(1e-9)
        };
        part.clamp(0.0, 1.0) * (WIDTH - LEFT - 80.0)
    };
    let rows: usize = outcomes.iter().map(|outcome| outcome.entries.len()).sum();
    let height = 50.0 + rows as f64 * BAR + outcomes.len() as f64 * 30.0;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height:.0}\" font-family=\"sans-serif\" \
         font-size=\"13\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    text(&mut svg, 12.0, 24.0, "start", INK, title);
    let mut y = 44.0;
    for outcome in outcomes {
        y += 22.0;
        text(&mut svg, 12.0, y, "start", FAINT, &format!("{} ({})", outcome.question, outcome.unit));
        y += 8.0;
        for row in &outcome.entries {
            let value = value(outcome, row);
            let ours = ["maru", "hits", "misses"].iter().any(|start| row.name.starts_with(start));
            let colour = if ours { OURS } else { THEIRS };
            let width = scale(value);
            let _ = writeln!(
                svg,
                "<rect x=\"{LEFT}\" y=\"{:.0}\" width=\"{width:.1}\" height=\"{}\" fill=\"{colour}\"/>",
                y + 2.0,
                BAR - 6.0
            );
            text(&mut svg, LEFT - 8.0, y + 14.0, "end", INK, &row.name);
            text(&mut svg, LEFT + width + 6.0, y + 14.0, "start", INK, &format!("{value:.1}"));
            y += BAR;
        }
    }
    svg.push_str("</svg>\n");
    svg
}
