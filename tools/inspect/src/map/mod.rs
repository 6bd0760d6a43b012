//! `map`: every slot in one picture.
//!
//! A cell is one slot, or a run of as many slots as it takes to fit 2,048 cells; the legend says which. A run shows
//! what most of its slots are, except that damage is never outvoted: one damaged slot marks its cell.
//!
//! What a cell says in each view: `state`, the state; `age`, how much older its youngest block is than the region's
//! youngest (wall clocks of those who committed, for people); `namespace`, a letter for the namespace that most of its
//! ready blocks are of; `depth`, the mean depth of its ready blocks in their prefix chains, a power of two.

mod svg;

use std::collections::HashMap;
use std::io;
use std::path::PathBuf;

use maru_layout::image::namespace_text;
use maru_layout::word::{RowState, SlotState, SlotWord};
use serde::Serialize;

use crate::image::Image;
use crate::metrics::file;
use crate::namespaces::{digest_of, fields_of};
use crate::out::{Line, Out, Tone, date, grouped, safe};
use crate::source::ReadError;

/// Cells of a row in the terminal.
const COLUMNS: u32 = 64;
/// Cells at most.
const CELLS: u32 = COLUMNS * 32;
/// Namespaces with letters of their own.
const LETTERS: &[u8] = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
/// Rows of the namespace table that are looked at.
const ROWS: u32 = 1 << 14;

/// What a cell says.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum By {
    /// State of the slot.
    #[default]
    State,
    /// Age of the block.
    Age,
    /// Namespace of the block.
    Namespace,
    /// Depth of the block in its prefix chain.
    Depth,
}

impl By {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::State => "state",
            Self::Age => "age",
            Self::Namespace => "namespace",
            Self::Depth => "depth",
        }
    }
}

/// What to draw, and where.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Wish {
    /// What a cell says.
    pub by: By,
    /// Also draw it into this file.
    pub svg: Option<PathBuf>,
}

/// What a cell shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Mark {
    pub(crate) glyph: char,
    /// Of the 256 colours of terminals.
    pub(crate) ansi: u8,
    /// For pictures.
    pub(crate) rgb: &'static str,
}

/// One line of the legend.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub(crate) mark: Mark,
    pub(crate) meaning: String,
    /// Slots for `state` and `namespace`, cells for the others.
    pub(crate) count: u64,
}

/// A row of the picture, for JSON.
#[derive(Serialize)]
pub struct MapLine {
    /// View.
    pub by: &'static str,
    /// First slot of the row.
    pub first_slot: u32,
    /// Slots of a cell.
    pub slots_per_cell: u32,
    /// One character a cell; `legend` lines say what it means.
    pub cells: String,
}

/// A line of the legend, for JSON.
#[derive(Serialize)]
pub struct LegendLine {
    /// Character.
    pub glyph: char,
    /// What it means.
    pub meaning: String,
    /// How often.
    pub count: u64,
    /// Of what: `slots` or `cells`.
    pub of: &'static str,
}

/// The picture.
pub(crate) struct Picture {
    pub(crate) by: By,
    pub(crate) per_cell: u32,
    pub(crate) slot_count: u32,
    pub(crate) cells: Vec<Mark>,
    pub(crate) legend: Vec<Entry>,
    pub(crate) title: String,
    /// Below the legend.
    pub(crate) note: String,
}

const fn mark(glyph: char, ansi: u8, rgb: &'static str) -> Mark {
    Mark { glyph, ansi, rgb }
}

const FREE: Mark = mark('.', 240, "#eeeeee");
const BUSY: Mark = mark('+', 220, "#f0c000");
const DAMAGED: Mark = mark('!', 196, "#c00000");
const OTHER: Mark = mark('?', 245, "#999999");

/// States, in the order of [`crate::tally::States::each`]. Colours that people who see fewer of them tell apart, too.
const STATES: [Mark; 8] = [
    FREE,
    mark('c', 229, "#ffe9a0"),
    mark('p', 222, "#ffd050"),
    mark('w', 214, "#e69f00"),
    mark('#', 33, "#0072b2"),
    mark('~', 51, "#56b4e9"),
    mark('x', 201, "#cc79a7"),
    DAMAGED,
];

/// From young or shallow to old or deep.
const LEVELS: [Mark; 10] = [
    mark('0', 226, "#fde725"),
    mark('1', 190, "#b5de2b"),
    mark('2', 118, "#6ece58"),
    mark('3', 84, "#35b779"),
    mark('4', 42, "#1f9e89"),
    mark('5', 37, "#26828e"),
    mark('6', 31, "#31688e"),
    mark('7', 61, "#3e4989"),
    mark('8', 55, "#482878"),
    mark('9', 53, "#440154"),
];

/// Upper ends of the levels of age, in seconds; the last one has none.
const AGES: [(u64, &str); 9] = [
    (1, "under 1 s older than the youngest"),
    (10, "under 10 s"),
    (60, "under 1 min"),
    (600, "under 10 min"),
    (3600, "under 1 h"),
    (6 * 3600, "under 6 h"),
    (24 * 3600, "under 1 day"),
    (7 * 24 * 3600, "under 1 week"),
    (28 * 24 * 3600, "under 4 weeks"),
];

/// Colours of namespaces, used again after eight: the letter tells them apart.
const HUES: [(u8, &str); 8] = [
    (33, "#0072b2"),
    (214, "#e69f00"),
    (36, "#009e73"),
    (175, "#cc79a7"),
    (117, "#56b4e9"),
    (166, "#d55e00"),
    (229, "#f0e442"),
    (99, "#7a5fd0"),
];

/// What is gathered of a run of slots.
#[derive(Debug, Clone, Copy, Default)]
struct Cell {
    states: [u32; 8],
    /// Ready slots whose body belongs to them.
    blocks: u32,
    youngest_ns: u64,
    depth: u64,
    /// Majority vote over namespaces: candidate and lead.
    space: usize,
    lead: u32,
}

/// Namespaces by digest, with a number each.
struct Spaces {
    by_digest: HashMap<[u8; 16], usize>,
    names: Vec<String>,
    slots: Vec<u64>,
}

impl Spaces {
    fn of(image: &Image<'_>) -> Result<Self, ReadError> {
        let mut spaces = Self { by_digest: HashMap::new(), names: Vec::new(), slots: Vec::new() };
        for index in 0..image.geometry().namespace_count.min(ROWS) {
            let row = image.row(index)?;
            let Some(text) = namespace_text(&row).filter(|_| row.state == RowState::Ready as u64) else { continue };
            let fields = fields_of(text);
            let field = |wanted| fields.iter().find(|(name, _)| name == wanted).map_or("", |(_, value)| value);
            spaces.by_digest.insert(digest_of(text.as_bytes(), row.generation), spaces.names.len());
            spaces.names.push(format!(
                "row {index}: {}, {}",
                safe(field("tenant").as_bytes()),
                safe(field("model").as_bytes())
            ));
        }
        // The last one stands for blocks of no current namespace.
        spaces.slots = vec![0; spaces.names.len() + 1];
        Ok(spaces)
    }

    fn number(&self, digest: &[u8; 16]) -> usize {
        self.by_digest.get(digest).copied().unwrap_or(self.names.len())
    }

    fn mark(&self, number: usize) -> Mark {
        if number >= self.names.len() {
            return OTHER;
        }
        let (ansi, rgb) = HUES[number % HUES.len()];
        mark(LETTERS.get(number).map_or('+', |letter| char::from(*letter)), ansi, rgb)
    }
}

impl Picture {
    fn of(image: &Image<'_>, by: By) -> Result<(Self, Result<(), ReadError>), ReadError> {
        let slot_count = image.geometry().slot_count;
        let per_cell = slot_count.div_ceil(CELLS).max(1);
        let mut cells = vec![Cell::default(); slot_count.div_ceil(per_cell) as usize];
        let mut spaces = Spaces::of(image)?;
        let mut seen = 0;
        let read = image.for_each_record(|slot, record| {
            seen = slot + 1;
            let word = SlotWord(record.identity.word);
            let cell = &mut cells[(slot / per_cell) as usize];
            let state = word.state();
            cell.states[state.map_or(7, |state| state as usize)] += 1;
            if state == Some(SlotState::Ready) && record.body.generation == word.generation() {
                cell.blocks += 1;
                cell.youngest_ns = cell.youngest_ns.max(record.body.committed_ns);
                cell.depth += u64::from(record.body.depth);
                let space = spaces.number(&record.identity.namespace);
                spaces.slots[space] += 1;
                match cell.lead {
                    0 => (cell.space, cell.lead) = (space, 1),
                    _ if cell.space == space => cell.lead += 1,
                    _ => cell.lead -= 1,
                }
            }
            Ok(())
        });
        let youngest = cells.iter().map(|cell| cell.youngest_ns).max().unwrap_or(0);
        // What could not be read is not drawn.
        cells.truncate((seen as usize).div_ceil(per_cell as usize));
        let marks: Vec<Mark> = cells.iter().map(|cell| cell.mark(by, youngest, &spaces)).collect();
        let legend = legend(by, &cells, &marks, &spaces);
        let id = crate::out::hex(&image.geometry().region_id[..4]);
        let path = crate::run::path_of(image.source()).unwrap_or_default();
        let note = match by {
            By::Age if youngest > 0 => format!("youngest block: {}", date(youngest)),
            _ => String::new(),
        };
        let title = format!("{} region {id}: slots by {}", safe(path.as_bytes()), by.name()).trim_start().to_owned();
        Ok((Self { by, per_cell, slot_count, cells: marks, legend, title, note }, read))
    }
}

impl Cell {
    fn mark(&self, by: By, youngest: u64, spaces: &Spaces) -> Mark {
        if self.states[7] > 0 {
            return DAMAGED;
        }
        if by == By::State {
            // Of equally many, the one that is less usual.
            let most = (0..7).filter(|at| *at != 0 && *at != 4).chain([4, 0]);
            let at = most.rev().max_by_key(|at| self.states[*at]).unwrap_or(0);
            return STATES[at];
        }
        if self.blocks == 0 {
            return if self.states[0] >= self.states.iter().sum::<u32>().div_ceil(2) { FREE } else { BUSY };
        }
        match by {
            By::State => unreachable!("answered above"),
            By::Age => {
                let seconds = (youngest - self.youngest_ns.min(youngest)) / 1_000_000_000;
                LEVELS[AGES.iter().take_while(|(end, _)| seconds >= *end).count()]
            }
            By::Depth => LEVELS[depth_level(self.depth / u64::from(self.blocks))],
            By::Namespace => spaces.mark(self.space),
        }
    }
}

/// 0, 1, 2 to 3, 4 to 7 and so on.
fn depth_level(depth: u64) -> usize {
    ((64 - depth.leading_zeros()) as usize).min(LEVELS.len() - 1)
}

fn legend(by: By, cells: &[Cell], marks: &[Mark], spaces: &Spaces) -> Vec<Entry> {
    let shown = |mark: Mark| marks.iter().filter(|other| **other == mark).count() as u64;
    let mut legend = Vec::new();
    match by {
        By::State => {
            let names = crate::tally::States::default().each().map(|(name, _)| name);
            for (at, (mark, name)) in STATES.into_iter().zip(names).enumerate() {
                let count = cells.iter().map(|cell| u64::from(cell.states[at])).sum();
                legend.push(Entry { mark, meaning: name.to_owned(), count });
            }
            return legend;
        }
        By::Age => {
            for (at, mark) in LEVELS.into_iter().enumerate() {
                let meaning = AGES.get(at).map_or("4 weeks and more", |(_, text)| *text).to_owned();
                legend.push(Entry { mark, meaning, count: shown(mark) });
            }
        }
        By::Depth => {
            for (at, mark) in LEVELS.into_iter().enumerate() {
                let meaning = match at {
                    0 => "depth 0 (or none said)".to_owned(),
                    1 => "depth 1".to_owned(),
                    9 => "depth 256 and more".to_owned(),
                    _ => format!("depth {} to {}", 1u32 << (at - 1), (1u32 << at) - 1),
                };
                legend.push(Entry { mark, meaning, count: shown(mark) });
            }
        }
        By::Namespace => {
            for (number, name) in spaces.names.iter().enumerate().take(LETTERS.len()) {
                legend.push(Entry { mark: spaces.mark(number), meaning: name.clone(), count: spaces.slots[number] });
            }
            let further: u64 = spaces.slots.iter().take(spaces.names.len()).skip(LETTERS.len()).sum();
            if spaces.names.len() > LETTERS.len() {
                legend.push(Entry {
                    mark: spaces.mark(LETTERS.len()),
                    meaning: "further rows".to_owned(),
                    count: further,
                });
            }
            let ended = spaces.slots[spaces.names.len()];
            let meaning = "of a namespace that has ended, or is not known".to_owned();
            legend.push(Entry { mark: OTHER, meaning, count: ended });
        }
    }
    legend.push(Entry { mark: FREE, meaning: "free".to_owned(), count: shown(FREE) });
    legend.push(Entry { mark: BUSY, meaning: "in use, no ready block".to_owned(), count: shown(BUSY) });
    legend.push(Entry { mark: DAMAGED, meaning: "damaged word".to_owned(), count: shown(DAMAGED) });
    legend
}

/// What a legend's count is of.
pub(crate) fn unit(by: By, entry: &Entry) -> &'static str {
    match by {
        By::State => "slots",
        By::Namespace if ![FREE, BUSY, DAMAGED].contains(&entry.mark) => "slots",
        _ => "cells",
    }
}

/// Draws.
///
/// # Errors
/// Outer: the reader of the output has gone, or the file cannot be written. Inner: a table cannot be read.
pub fn show(image: &Image<'_>, wish: &Wish, out: &mut Out) -> io::Result<Result<(), ReadError>> {
    let (picture, read) = match Picture::of(image, wish.by) {
        Ok(drawn) => drawn,
        Err(error) => return Ok(Err(error)),
    };
    print(&picture, out)?;
    if let Some(path) = &wish.svg {
        file::replace(path, svg::draw(&picture).as_bytes())
            .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))?;
        out.line(format!("  drawn into {}", safe(path.display().to_string().as_bytes())))?;
    }
    Ok(read)
}

fn print(picture: &Picture, out: &mut Out) -> io::Result<()> {
    let per_cell = picture.per_cell;
    out.head(&format!("slots by {}", picture.by.name()))?;
    let what = if per_cell == 1 { "one slot".to_owned() } else { format!("{per_cell} slots, as most of them are") };
    out.line(format!("  a cell is {what}; the number is the first slot of the row"))?;
    out.line("")?;
    for (row, cells) in (0u32..).zip(picture.cells.chunks(COLUMNS as usize)) {
        let first_slot = row * COLUMNS * per_cell;
        let glyphs: String = cells.iter().map(|cell| cell.glyph).collect();
        if out.is_json() {
            let line = MapLine { by: picture.by.name(), first_slot, slots_per_cell: per_cell, cells: glyphs };
            out.object(&Line::Map(line))?;
        } else {
            let text = if out.is_coloured() { coloured(cells) } else { glyphs };
            out.line(format!("  {:>11}  {text}", grouped(first_slot)))?;
        }
    }
    out.line("")?;
    for entry in &picture.legend {
        let of = unit(picture.by, entry);
        if out.is_json() {
            let (glyph, meaning, count) = (entry.mark.glyph, entry.meaning.clone(), entry.count);
            out.object(&Line::Legend(LegendLine { glyph, meaning, count, of }))?;
        } else if entry.count > 0 || picture.by == By::State {
            let glyph = if out.is_coloured() { coloured(&[entry.mark]) } else { entry.mark.glyph.to_string() };
            out.line(format!("  {glyph}  {:>13} {of}  {}", grouped(entry.count), entry.meaning))?;
        }
    }
    if !picture.note.is_empty() {
        let note = out.paint(Tone::Dim, &picture.note);
        out.line(format!("  {note}"))?;
    }
    Ok(())
}

/// The glyphs in their colours; runs of one colour share a sequence.
fn coloured(cells: &[Mark]) -> String {
    let mut text = String::new();
    for run in cells.chunk_by(|one, two| one.ansi == two.ansi) {
        text.push_str(&format!("\x1b[38;5;{}m", run[0].ansi));
        text.extend(run.iter().map(|cell| cell.glyph));
    }
    text.push_str("\x1b[0m");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_shows_what_most_are_and_never_hides_damage() {
        let spaces = Spaces { by_digest: HashMap::new(), names: vec![], slots: vec![0] };
        let glyph = |states: [u32; 8]| Cell { states, ..Cell::default() }.mark(By::State, 0, &spaces).glyph;
        assert_eq!(glyph([3, 0, 0, 0, 4, 0, 0, 0]), '#');
        assert_eq!(glyph([4, 0, 0, 0, 3, 0, 0, 0]), '.');
        assert_eq!(glyph([2, 0, 0, 0, 2, 0, 2, 0]), 'x', "of equally many, the less usual");
        assert_eq!(glyph([9, 0, 0, 0, 9, 0, 0, 1]), '!');
    }

    #[test]
    fn depths_are_powers_of_two() {
        assert_eq!([0, 1, 2, 3, 4, 255, 256, u64::MAX].map(depth_level), [0, 1, 2, 2, 3, 8, 9, 9]);
    }
}
