//! Whose a namespace digest is.
//!
//! A digest is a hash of a namespace's text and generation. Which generation an old one was made under is found by trying:
//! those of the row that the record hints at first, then the last few of every row, and never more than 2^18 in all.

use std::collections::HashMap;

use maru_layout::image::namespace_text;
use maru_layout::word::RowState;
use serde::Serialize;

use crate::image::Image;
use crate::namespaces::{digest_of, fields_of};
use crate::out::safe;
use crate::source::ReadError;

/// Rows of the table that are looked at.
const ROWS: u32 = 1 << 14;
/// Generations of the hinted row that are tried, and of every other row.
const HINTED: u64 = 4096;
const OTHERS: u64 = 16;
/// Digests of present and past generations that are tried for a key that no slot names.
const LIKELY: usize = 1024;
/// Digests computed for one question.
const HASHES: u64 = 1 << 18;

/// A field in which two namespaces differ.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// Field of the canonical text.
    pub field: String,
    /// Value of the namespace asked for.
    pub asked: Option<String>,
    /// Value of the one that has the key.
    pub there: Option<String>,
}

/// A registered namespace.
#[derive(Debug, Clone)]
pub struct Space {
    /// Row.
    pub row: u32,
    /// Generation now.
    pub generation: u64,
    text: String,
    digest: [u8; 16],
}

impl Space {
    /// Row and the two fields that people know it by.
    #[must_use]
    pub fn words(&self) -> String {
        let fields = fields_of(&self.text);
        let field = |wanted| fields.iter().find(|(name, _)| name == wanted).map_or("", |(_, value)| value);
        format!("row {} ({}, {})", self.row, safe(field("tenant").as_bytes()), safe(field("model").as_bytes()))
    }
}

/// What a digest says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Whose {
    /// The namespace with this number, as it is now.
    Current(usize),
    /// An earlier generation of it.
    Ended(usize, u64),
    /// Of no registered text, or of a generation too long ago.
    Unknown,
}

/// The namespace table.
#[derive(Debug, Default)]
pub struct Spaces {
    all: Vec<Space>,
    known: HashMap<[u8; 16], Whose>,
    hashes_left: u64,
}

impl Spaces {
    /// Reads it.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn of(image: &Image<'_>) -> Result<Self, ReadError> {
        let mut spaces = Self { hashes_left: HASHES, ..Self::default() };
        for index in 0..image.geometry().namespace_count.min(ROWS) {
            let row = image.row(index)?;
            let Some(text) = namespace_text(&row).filter(|_| row.state == RowState::Ready as u64) else { continue };
            let digest = digest_of(text.as_bytes(), row.generation);
            spaces.known.insert(digest, Whose::Current(spaces.all.len()));
            spaces.all.push(Space { row: index, generation: row.generation, text: text.to_owned(), digest });
        }
        Ok(spaces)
    }

    /// By number.
    #[must_use]
    pub fn get(&self, number: usize) -> &Space {
        &self.all[number]
    }

    /// Number of a row.
    #[must_use]
    pub fn of_row(&self, row: u32) -> Option<usize> {
        self.all.iter().position(|space| space.row == row)
    }

    /// Whose a digest is. The hint is the row that a record names.
    pub fn whose(&mut self, digest: &[u8; 16], hint: Option<u32>) -> Whose {
        if let Some(known) = self.known.get(digest) {
            return *known;
        }
        let hinted = hint.and_then(|row| self.of_row(row));
        let others = (0..self.all.len()).filter(|number| Some(*number) != hinted).map(|number| (number, OTHERS));
        let tries: Vec<_> = hinted.map(|number| (number, HINTED)).into_iter().chain(others).collect();
        let found = tries.into_iter().find_map(|(number, generations)| self.ended(digest, number, generations));
        let whose = found.unwrap_or(Whose::Unknown);
        self.known.insert(*digest, whose);
        whose
    }

    /// Digests that objects of a namespace, or of any, have or had: those of now first, then of the last few generations.
    pub fn likely(&self, asked: Option<usize>) -> Vec<(Whose, [u8; 16])> {
        let numbers = || (0..self.all.len()).filter(|number| asked.is_none_or(|asked| asked == *number));
        let mut likely: Vec<_> = numbers().map(|number| (Whose::Current(number), self.all[number].digest)).collect();
        for number in numbers() {
            let space = &self.all[number];
            let first = space.generation.saturating_sub(OTHERS).max(1);
            for generation in (first..space.generation).rev() {
                if likely.len() >= LIKELY {
                    return likely;
                }
                likely.push((Whose::Ended(number, generation), digest_of(space.text.as_bytes(), generation)));
            }
        }
        likely
    }

    fn ended(&mut self, digest: &[u8; 16], number: usize, generations: u64) -> Option<Whose> {
        let space = &self.all[number];
        let first = space.generation.saturating_sub(generations).max(1);
        for generation in (first..space.generation).rev() {
            self.hashes_left = self.hashes_left.checked_sub(1)?;
            if digest_of(space.text.as_bytes(), generation) == *digest {
                return Some(Whose::Ended(number, generation));
            }
        }
        None
    }

    /// Field by field, in the order of the text asked for.
    #[must_use]
    pub fn differences(&self, asked: usize, there: usize) -> Vec<Difference> {
        let (mine, theirs) = (fields_of(&self.all[asked].text), fields_of(&self.all[there].text));
        let value = |fields: &[(String, String)], wanted: &str| {
            fields.iter().find(|(name, _)| name == wanted).map(|(_, value)| value.clone())
        };
        let mut names: Vec<&String> = mine.iter().map(|(name, _)| name).collect();
        names.extend(theirs.iter().map(|(name, _)| name).filter(|name| value(&mine, name).is_none()));
        names
            .into_iter()
            .map(|name| Difference { field: name.clone(), asked: value(&mine, name), there: value(&theirs, name) })
            .filter(|difference| difference.asked != difference.there)
            .collect()
    }

    /// What objects of a namespace carry now.
    #[must_use]
    pub fn digest(&self, number: usize) -> [u8; 16] {
        self.all[number].digest
    }
}
