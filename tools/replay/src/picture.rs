//! The picture: how much was found, and how fast it was moved, over time. One SVG, no script, no font of its own.
//!
//! Two panels over one axis of seconds. Above: hits of all references, in each short span and over all so far. Below:
//! bytes loaded and stored in a second, stacked, so that the outline is what was moved.

use std::fmt::Write;

use crate::plan::{Plan, shown};
use crate::region::human_bytes;
use crate::report::grouped;
use crate::run::Replayed;
use crate::timeline::Span;

const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 600.0;
const LEFT: f64 = 76.0;
const RIGHT: f64 = 28.0;
const UPPER: Panel = Panel { top: 112.0, height: 176.0 };
const LOWER: Panel = Panel { top: 346.0, height: 176.0 };
/// Points of a line.
const SPANS: usize = 64;

const INK: &str = "#1f2933";
const FAINT: &str = "#616e7c";
const GRID: &str = "#e4e7eb";
const HITS: &str = "#0b69a3";
const HITS_SO_FAR: &str = "#f0833a";
const LOADED: &str = "#2f9e82";
const STORED: &str = "#8552c9";

/// A part of the picture with an axis of its own.
struct Panel {
    top: f64,
    height: f64,
}

impl Panel {
    fn bottom(&self) -> f64 {
        self.top + self.height
    }

    /// From a share of the axis to a place.
    fn y(&self, share: f64) -> f64 {
        self.bottom() - self.height * share.clamp(0.0, 1.0)
    }
}

/// Marks from zero in steps that people count in: at most `most` of them, the last at or above `max`.
fn marks(max: f64, most: usize) -> Vec<f64> {
    let max = if max.is_finite() && max > 0.0 { max } else { 1.0 };
    let rough = max / most as f64;
    let magnitude = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 2.5, 5.0, 10.0].map(|unit| unit * magnitude).into_iter().find(|step| *step >= rough * 0.999);
    let step = step.unwrap_or(magnitude * 10.0);
    (0..=(max / step - 1e-9).ceil() as usize).map(|at| at as f64 * step).collect()
}

/// As few decimals as tell the marks apart.
fn labels(marks: &[f64]) -> Vec<String> {
    let step = marks.get(1).copied().unwrap_or(1.0);
    let decimals = (0..6usize)
        .find(|decimals| {
            let scaled = step * 10f64.powi(*decimals as i32);
            (scaled - scaled.round()).abs() < 1e-6
        })
        .unwrap_or(6);
    marks.iter().map(|mark| format!("{mark:.decimals$}")).collect()
}

/// The text of the picture.
pub(crate) fn svg(plan: &Plan, replayed: &Replayed) -> String {
    let spans = replayed.timeline.spans(SPANS);
    let seconds = replayed.timeline.seconds().max(1e-3);
    let x = |at: f64| LEFT + (WIDTH - LEFT - RIGHT) * (at / seconds).clamp(0.0, 1.0);

    let mut svg = String::new();
    open(&mut svg, plan, replayed);

    // Time is marked under both panels; the last mark may lie beyond the end and is left out.
    let times = marks(seconds, 10);
    let time_labels = labels(&times);
    for (time, label) in times.iter().zip(&time_labels).filter(|(time, _)| **time <= seconds * 1.0001) {
        for panel in [&UPPER, &LOWER] {
            line(&mut svg, x(*time), panel.top, x(*time), panel.bottom(), GRID);
            text(&mut svg, x(*time), panel.bottom() + 17.0, "middle", FAINT, label);
        }
    }
    text(&mut svg, x(seconds / 2.0), LOWER.bottom() + 38.0, "middle", INK, "seconds since the first request");

    panel_axis(&mut svg, &UPPER, &[0.0, 25.0, 50.0, 75.0, 100.0], "hits, % of references");
    let in_span = points(&spans, |span| Some((x(span.until), UPPER.y(span.hit_ratio?))));
    let so_far = points(&spans, |span| Some((x(span.until), UPPER.y(span.hit_ratio_so_far))));
    polyline(&mut svg, &in_span, HITS, 1.6);
    polyline(&mut svg, &so_far, HITS_SO_FAR, 2.4);
    legend(&mut svg, &UPPER, &[(HITS, "in each span"), (HITS_SO_FAR, "so far")]);

    let fastest = spans.iter().map(|span| span.load_rate + span.store_rate).fold(0.0, f64::max) / 1e9;
    let rates = marks(fastest, 4);
    let top = rates.last().copied().unwrap_or(1.0) * 1e9;
    panel_axis(&mut svg, &LOWER, &rates, "moved, GB/s");
    let stored: Vec<_> = spans.iter().map(|span| (x(span.until), LOWER.y(span.store_rate / top))).collect();
    let both: Vec<_> =
        spans.iter().map(|span| (x(span.until), LOWER.y((span.load_rate + span.store_rate) / top))).collect();
    let floor: Vec<_> = spans.iter().map(|span| (x(span.until), LOWER.bottom())).collect();
    area(&mut svg, &both, &stored, LOADED, x(0.0));
    area(&mut svg, &stored, &floor, STORED, x(0.0));
    legend(&mut svg, &LOWER, &[(LOADED, "loaded"), (STORED, "stored")]);

    svg.push_str("</svg>\n");
    svg
}

fn open(svg: &mut String, plan: &Plan, replayed: &Replayed) {
    let tally = &replayed.tally;
    let source = match &plan.source {
        crate::plan::Source::Trace(path) => {
            path.file_name().map_or_else(|| shown(&plan.source), |name| name.to_string_lossy().into_owned())
        }
        crate::plan::Source::Chat { .. } => shown(&plan.source),
    };
    let _ = writeln!(
        svg,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" width=\"{WIDTH}\" height=\"{HEIGHT}\" \
         font-family=\"DejaVu Sans, Verdana, Helvetica, Arial, sans-serif\" font-size=\"13\">"
    );
    let _ = writeln!(svg, "<rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"#ffffff\"/>");
    let _ = writeln!(
        svg,
        "<text x=\"{LEFT}\" y=\"40\" font-size=\"20\" font-weight=\"bold\" fill=\"{INK}\">{}</text>",
        escaped(&format!("{:.2} % of the blocks were already there", tally.hit_ratio() * 100.0))
    );
    let workers = if plan.workers == 1 { "1 worker".to_owned() } else { format!("{} workers", plan.workers) };
    let subtitle = format!(
        "{source}: {} requests, {} references to blocks of {} KiB, {workers}, {:.2} s",
        grouped(tally.requests),
        grouped(tally.references),
        (plan.kind.block_bytes as f64 / 1024.0 * 100.0).round() / 100.0,
        replayed.seconds
    );
    text(svg, LEFT, 62.0, "start", FAINT, &subtitle);
    let rate = tally.bytes_moved() as f64 / 1e9 / replayed.seconds.max(1e-9);
    let moved = format!(
        "{} moved at {rate:.2} GB/s, {} stores refused, {} wrong bytes",
        human_bytes(tally.bytes_moved()),
        grouped(tally.refused_total()),
        grouped(tally.wrong_bytes)
    );
    text(svg, LEFT, 81.0, "start", FAINT, &moved);
}

/// Marks, grid lines and title of a vertical axis that ends at the last mark.
fn panel_axis(svg: &mut String, panel: &Panel, marks: &[f64], title: &str) {
    let top = marks.last().copied().unwrap_or(1.0);
    for (mark, label) in marks.iter().zip(labels(marks)) {
        let y = panel.y(mark / top);
        let colour = if *mark == 0.0 { FAINT } else { GRID };
        line(svg, LEFT, y, WIDTH - RIGHT, y, colour);
        text(svg, LEFT - 9.0, y + 4.5, "end", FAINT, &label);
    }
    let middle = panel.top + panel.height / 2.0;
    let _ = writeln!(
        svg,
        "<text transform=\"translate(22 {middle:.1}) rotate(-90)\" text-anchor=\"middle\" fill=\"{INK}\">{}</text>",
        escaped(title)
    );
}

/// Above the panel, at its right end.
fn legend(svg: &mut String, panel: &Panel, entries: &[(&str, &str)]) {
    let mut right = WIDTH - RIGHT;
    for (colour, name) in entries.iter().rev() {
        // A letter is about so wide in any of the fonts; what is too much is blank space.
        let left = right - name.chars().count() as f64 * 7.4 - 22.0;
        text(svg, left + 22.0, panel.top - 9.0, "start", INK, name);
        let _ = writeln!(
            svg,
            "<rect x=\"{left:.1}\" y=\"{:.1}\" width=\"16\" height=\"8\" rx=\"2\" fill=\"{colour}\"/>",
            panel.top - 17.5
        );
        right = left - 18.0;
    }
}

fn points(spans: &[Span], place: impl Fn(&Span) -> Option<(f64, f64)>) -> Vec<(f64, f64)> {
    spans.iter().filter_map(place).collect()
}

fn path_of(points: &[(f64, f64)]) -> String {
    points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect::<Vec<_>>().join(" ")
}

fn polyline(svg: &mut String, points: &[(f64, f64)], colour: &str, width: f64) {
    match points {
        [] => {}
        [(x, y)] => {
            let _ = writeln!(svg, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{colour}\"/>");
        }
        _ => {
            let _ = writeln!(
                svg,
                "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"{width}\" \
                 stroke-linejoin=\"round\" stroke-linecap=\"round\"/>",
                path_of(points)
            );
        }
    }
}

/// Between an upper and a lower line, from the left edge on: the first span began at zero.
fn area(svg: &mut String, upper: &[(f64, f64)], lower: &[(f64, f64)], colour: &str, left: f64) {
    let (Some(first_upper), Some(first_lower)) = (upper.first(), lower.first()) else { return };
    let mut outline = vec![(left, first_upper.1)];
    outline.extend(upper);
    outline.extend(lower.iter().rev());
    outline.push((left, first_lower.1));
    let _ = writeln!(svg, "<polygon points=\"{}\" fill=\"{colour}\" fill-opacity=\"0.85\"/>", path_of(&outline));
}

fn line(svg: &mut String, x1: f64, y1: f64, x2: f64, y2: f64, colour: &str) {
    let _ = writeln!(svg, "<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" stroke=\"{colour}\"/>");
}

fn text(svg: &mut String, x: f64, y: f64, anchor: &str, colour: &str, content: &str) {
    let _ = writeln!(
        svg,
        "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" fill=\"{colour}\">{}</text>",
        escaped(content)
    );
}

/// For XML; what it cannot hold becomes a space.
fn escaped(text: &str) -> String {
    let mut escaped = String::new();
    for char in text.chars() {
        match char {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            char if char.is_control() => escaped.push(' '),
            char => escaped.push(char),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_round_and_reach_the_top() {
        assert_eq!(marks(3.7, 4), [0.0, 1.0, 2.0, 3.0, 4.0]);
        assert_eq!(labels(&marks(0.9, 4)), ["0.00", "0.25", "0.50", "0.75", "1.00"]);
        assert_eq!(labels(&marks(42.0, 10)), ["0", "5", "10", "15", "20", "25", "30", "35", "40", "45"]);
        for max in [0.0, 1e-9, 0.013, 1.0, 7.7, 99.0, 1e6, f64::NAN, f64::INFINITY] {
            let marks = marks(max, 10);
            assert!((2..=11).contains(&marks.len()), "{max}: {marks:?}");
            assert!(!max.is_finite() || *marks.last().expect("some") >= max * 0.999, "{max}: {marks:?}");
        }
    }

    #[test]
    fn names_cannot_break_the_picture() {
        assert_eq!(escaped("a<b>&\"\u{7}"), "a&lt;b&gt;&amp;&quot; ");
    }
}
