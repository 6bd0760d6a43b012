//! The map as a picture: cells of one colour side by side are one rectangle.

use std::fmt::Write as _;

use super::{By, Picture, unit};
use crate::out::grouped;

/// Width of the grid.
const WIDTH: u32 = 768;
/// Room beside and above it.
const MARGIN: u32 = 72;
const TOP: u32 = 64;
/// Height of a line of the legend.
const LINE: u32 = 20;

/// Draws the picture. Cells are square; small regions have fewer and larger ones.
pub(super) fn draw(picture: &Picture) -> String {
    let count = picture.cells.len() as u32;
    let columns = [16, 32, 64].into_iter().find(|columns| count <= columns * columns / 2).unwrap_or(64);
    let side = WIDTH / columns;
    let rows = count.div_ceil(columns).max(1);
    let shown: Vec<_> = picture.legend.iter().filter(|entry| entry.count > 0 || picture.by == By::State).collect();
    let per_column = (shown.len() as u32).div_ceil(2).max(1);
    let grid_end = TOP + rows * side;
    let height = grid_end + 44 + per_column * LINE + 28;
    let width = WIDTH + MARGIN + 24;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\" \
         font-family=\"sans-serif\">\n<rect width=\"{width}\" height=\"{height}\" fill=\"#ffffff\"/>\n"
    );
    let text = |x: u32, y: u32, size: u32, extra: &str, content: &str| {
        format!("<text x=\"{x}\" y=\"{y}\" font-size=\"{size}\" {extra}>{}</text>\n", escaped(content))
    };
    svg.push_str(&text(MARGIN, 28, 16, "font-weight=\"bold\"", &picture.title));
    let cell =
        if picture.per_cell == 1 { "one slot".to_owned() } else { format!("{} slots", grouped(picture.per_cell)) };
    let facts = format!("{} slots; a cell is {cell}. {}", grouped(picture.slot_count), picture.note);
    svg.push_str(&text(MARGIN, 50, 13, "fill=\"#444444\"", facts.trim_end()));
    for row in 0..rows {
        let y = TOP + row * side;
        // Few enough numbers that they do not touch.
        if side >= 14 || row % (14u32.div_ceil(side)) == 0 {
            let first = grouped(row * columns * picture.per_cell);
            svg.push_str(&text(MARGIN - 6, y + side.min(14), 11, "fill=\"#444444\" text-anchor=\"end\"", &first));
        }
        let start = (row * columns) as usize;
        let cells = &picture.cells[start..(start + columns as usize).min(picture.cells.len())];
        let mut x = MARGIN;
        for run in cells.chunk_by(|one, two| one.rgb == two.rgb) {
            let run_width = run.len() as u32 * side;
            let _ = writeln!(
                svg,
                "<rect x=\"{x}\" y=\"{y}\" width=\"{run_width}\" height=\"{side}\" fill=\"{}\"/>",
                run[0].rgb
            );
            x += run_width;
        }
    }
    grid(&mut svg, columns, rows, side, count);
    for (at, entry) in (0u32..).zip(&shown) {
        let (x, y) = (MARGIN + at / per_column * (WIDTH / 2), grid_end + 28 + at % per_column * LINE);
        let _ = writeln!(
            svg,
            "<rect x=\"{x}\" y=\"{y}\" width=\"14\" height=\"14\" fill=\"{}\" stroke=\"#888888\"/>",
            entry.mark.rgb
        );
        let what = format!("{} {}: {}", grouped(entry.count), unit(picture.by, entry), clipped(&entry.meaning));
        svg.push_str(&text(x + 22, y + 12, 13, "", &what));
        if picture.by == By::Namespace {
            let letter = entry.mark.glyph.to_string();
            svg.push_str(&text(x + 7, y + 11, 11, "text-anchor=\"middle\"", &letter));
        }
    }
    svg.push_str("</svg>\n");
    svg
}

/// Thin lines between cells, around those that there are.
fn grid(svg: &mut String, columns: u32, rows: u32, side: u32, count: u32) {
    let mut path = String::new();
    for row in 0..rows {
        let wide = (count - row * columns).min(columns) * side;
        for y in [TOP + row * side, TOP + (row + 1) * side] {
            let _ = write!(path, "M{MARGIN} {y}h{wide}");
        }
    }
    for column in 0..=columns.min(count) {
        // The last row may end early.
        let rest = count % columns;
        let full = count / columns + u32::from(rest > 0 && column <= rest);
        let _ = write!(path, "M{} {TOP}v{}", MARGIN + column * side, full * side);
    }
    let _ = writeln!(
        svg,
        "<path d=\"{path}\" stroke=\"#ffffff\" stroke-opacity=\"0.6\" stroke-width=\"1\" fill=\"none\"/>"
    );
    let _ = writeln!(
        svg,
        "<rect x=\"{MARGIN}\" y=\"{TOP}\" width=\"{}\" height=\"{}\" fill=\"none\" stroke=\"#888888\"/>",
        columns * side,
        rows * side
    );
}

/// Legends are half as wide as the picture.
fn clipped(text: &str) -> String {
    const MOST: usize = 40;
    if text.chars().count() <= MOST {
        return text.to_owned();
    }
    text.chars().take(MOST - 1).chain(['…']).collect()
}

/// Text as XML wants it; control characters, of which it takes few, were escaped before.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    #[test]
    fn text_stays_text() {
        assert_eq!(super::escaped("<a href=\"x\">&"), "&lt;a href=&quot;x&quot;&gt;&amp;");
        assert_eq!(super::clipped(&"x".repeat(50)).chars().count(), 40);
    }
}
