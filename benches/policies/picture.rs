//! The picture: one panel a trace, one line a policy, size of the cache from left to right.
//!
//! Sizes stand at equal distances, because each is about twice the one before. The lines of the online policies lie
//! close together, so the numbers at the right end are spread until none hides another.

use std::fmt::Write;

use crate::contest::{Contest, Kind, LRU, PERCENT, Row};
use crate::table::grouped;

const WIDTH: f64 = 1040.0;
const HEIGHT: f64 = 500.0;
const TOP: f64 = 96.0;
const BOTTOM: f64 = 430.0;
const PANEL_WIDTH: f64 = 330.0;
const PANEL_LEFT: [f64; 2] = [64.0, 560.0];
const LABEL_HEIGHT: f64 = 16.0;

const INK: &str = "#1f2933";
const FAINT: &str = "#616e7c";
const GRID: &str = "#e4e7eb";

/// Colour, width and dashes of a policy's line; none for a policy that the picture leaves out.
fn style(row: &Row) -> Option<(&'static str, f64, &'static str)> {
    Some(match (row.kind, row.name) {
        (Kind::Bound, _) => ("#616e7c", 1.8, "5 4"),
        (Kind::Ours, name) if name.contains("admission") => ("#d64545", 3.2, ""),
        (Kind::Ours, _) => ("#d64545", 2.0, "2 3"),
        (Kind::Peer, LRU) => ("#0b69a3", 2.0, ""),
        (Kind::Peer, "FIFO") => ("#9aa5b1", 1.6, ""),
        (Kind::Peer, "SIEVE") => ("#2f9e82", 1.6, ""),
        (Kind::Peer, "S3-FIFO") => ("#f0833a", 1.8, ""),
        (Kind::Peer, "W-TinyLFU") => ("#8552c9", 1.6, ""),
        (Kind::Peer, "Clock-PRO") => ("#b88b1a", 1.6, ""),
        _ => return None,
    })
}

/// Moves places apart until neighbours are at least `gap` from each other, as little as that takes.
fn spread(places: &mut [f64], gap: f64, bottom: f64) {
    let mut order: Vec<usize> = (0..places.len()).collect();
    order.sort_by(|a, b| places[*a].total_cmp(&places[*b]));
    for _ in 0..200 {
        for pair in order.windows(2) {
            let overlap = gap - (places[pair[1]] - places[pair[0]]);
            if overlap > 0.0 {
                places[pair[0]] -= overlap / 2.0;
                places[pair[1]] += overlap / 2.0;
            }
        }
        if let Some(last) = order.last() {
            places[*last] = places[*last].min(bottom);
        }
    }
}

fn text(svg: &mut String, x: f64, y: f64, anchor: &str, fill: &str, content: &str) {
    let _ = writeln!(svg, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" fill=\"{fill}\">{content}</text>");
}

fn line(svg: &mut String, from: (f64, f64), to: (f64, f64), stroke: &str) {
    let ((x1, y1), (x2, y2)) = (from, to);
    let _ = writeln!(svg, "<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" stroke=\"{stroke}\"/>");
}

/// The text of the picture.
pub(crate) fn svg(contest: &Contest) -> String {
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" width=\"{WIDTH}\" \
         height=\"{HEIGHT}\" font-family=\"DejaVu Sans, Verdana, Helvetica, Arial, sans-serif\" font-size=\"13\">\n\
         <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"#ffffff\"/>\n\
         <text x=\"64\" y=\"36\" font-size=\"20\" font-weight=\"bold\" fill=\"{INK}\">What is still there when a \
         prompt comes back</text>\n"
    );
    text(&mut svg, 64.0, 58.0, "start", FAINT, "hits in leading runs, % of references, by size of the cache");
    for (number, (side, left)) in contest.sides.iter().zip(PANEL_LEFT).enumerate() {
        let endless = side.endless as f64 * 100.0 / side.references as f64;
        let top = (endless / 10.0).ceil() * 10.0;
        let x = |size: usize| left + PANEL_WIDTH * size as f64 / (PERCENT.len() - 1) as f64;
        let y = |ratio: f64| BOTTOM - (BOTTOM - TOP) * ratio / top;
        for mark in (0..=top as u32).step_by(10) {
            let at = y(f64::from(mark));
            line(&mut svg, (left, at), (left + PANEL_WIDTH, at), if mark == 0 { FAINT } else { GRID });
            text(&mut svg, left - 8.0, at + 4.5, "end", FAINT, &mark.to_string());
        }
        for (size, percent) in PERCENT.iter().enumerate() {
            line(&mut svg, (x(size), BOTTOM), (x(size), BOTTOM + 5.0), FAINT);
            text(&mut svg, x(size), BOTTOM + 21.0, "middle", FAINT, &format!("{percent} %"));
        }
        let title = format!("{}: cache, % of {} distinct blocks", side.name, grouped(side.distinct));
        text(&mut svg, left + PANEL_WIDTH / 2.0, BOTTOM + 46.0, "middle", INK, &title);

        // Ours is drawn last, over the others.
        let mut shown: Vec<_> = contest.rows.iter().filter_map(|row| Some((row, style(row)?))).collect();
        shown.sort_by_key(|(row, _)| row.kind == Kind::Ours);
        for (row, (colour, width, dashes)) in &shown {
            let points: Vec<String> = (0..PERCENT.len())
                .map(|size| format!("{:.1},{:.1}", x(size), y(contest.ratio(row, number, size))))
                .collect();
            let _ = writeln!(
                svg,
                "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"{width}\" \
                 stroke-dasharray=\"{dashes}\" stroke-linejoin=\"round\"/>",
                points.join(" ")
            );
        }
        let last = PERCENT.len() - 1;
        let ends: Vec<f64> = shown.iter().map(|(row, _)| y(contest.ratio(row, number, last))).collect();
        let mut places = ends.clone();
        spread(&mut places, LABEL_HEIGHT, BOTTOM);
        for (((row, (colour, ..)), end), place) in shown.iter().zip(ends).zip(places) {
            let right = left + PANEL_WIDTH;
            line(&mut svg, (right + 3.0, end), (right + 16.0, place), colour);
            // The table says more than there is room for.
            let name = match row.kind {
                Kind::Bound => "optimum",
                Kind::Ours if row.name.contains("admission") => "Maru",
                Kind::Ours => "Maru, every block",
                Kind::Peer | Kind::Variant => row.name,
            };
            let label = format!("{:.1} {name}", contest.ratio(row, number, last));
            text(&mut svg, right + 20.0, place + 4.5, "start", colour, &label);
        }
    }
    svg.push_str("</svg>\n");
    svg
}
