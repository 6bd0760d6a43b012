//! What a region knows of keys, in one pass over the records and one over the flight recorders.
//!
//! * S1: a record counts for the life that its body is of: the slot's present one, or for a free slot the one that ended
//!   last. Anything else is what an earlier writer left, and says nothing.
//! * S2: of each key a bounded number of sightings is kept; those of slots in use first.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use maru_layout::object::record_is_sealed;
use maru_layout::record::SlotRecord;
use maru_layout::word::{SlotState, SlotWord};

use super::Question;
use crate::dump::HexPrefix;
use crate::image::Image;
use crate::log::{RecordLine, remembered};
use crate::out::hex;
use crate::source::ReadError;

/// Objects of which something is said, where a key has fewer than 64 digits.
const OBJECTS: usize = 16;
/// Shards and parts remembered.
const SHAPES: usize = 64;
/// Sightings kept of one object (S2).
const SIGHTINGS: usize = 8;

/// A slot that holds, or held, a key.
#[derive(Debug, Clone, Copy)]
pub struct Sighting {
    /// Slot.
    pub slot: u32,
    /// Word.
    pub word: SlotWord,
    /// Record.
    pub record: SlotRecord,
    /// Whether it was ever committed in this life.
    pub sealed: bool,
}

impl Sighting {
    fn of(slot: u32, record: SlotRecord) -> Option<Self> {
        let word = SlotWord(record.identity.word);
        let life = match word.state()? {
            SlotState::Free => word.generation().checked_sub(1)?,
            _ => word.generation(),
        };
        (record.body.generation == life).then(|| Self {
            slot,
            word,
            record,
            sealed: record_is_sealed(&record.identity, &record.body),
        })
    }

    /// Whether the slot is in use.
    #[must_use]
    pub fn in_use(&self) -> bool {
        !self.word.is(SlotState::Free)
    }
}

/// One object asked for, and what is known of it.
#[derive(Debug, Clone, Default)]
pub struct Found {
    /// Its digits; fewer than 64 where nothing is known of more.
    pub key: String,
    /// Shard and part.
    pub shape: Option<(u16, u16)>,
    /// Slots.
    pub sightings: Vec<Sighting>,
    /// Remembered operations that name it, the oldest first.
    pub events: Vec<RecordLine>,
}

/// Everything that was asked for.
#[derive(Debug, Default)]
pub struct Sights {
    /// For a strip, in the order of its keys; else by key, shard, part.
    pub found: Vec<Found>,
    /// Objects beyond the first sixteen.
    pub left_out: usize,
    /// Shards and parts of the objects in this region, (0, 0) always; those asked for, where any are.
    pub shapes: Vec<(u16, u16)>,
    /// Why the pass over the records ended early.
    pub end: Option<ReadError>,
}

type Name = ([u8; 32], u16, u16);

/// Looks for every key.
///
/// # Errors
/// The flight recorders cannot be read.
pub fn gather(image: &Image<'_>, question: &Question) -> Result<Sights, ReadError> {
    let whole: HashMap<[u8; 32], ()> =
        question.keys.iter().filter_map(HexPrefix::whole).map(|digest| (digest, ())).collect();
    let parts: Vec<&HexPrefix> = question.keys.iter().filter(|key| key.whole().is_none()).collect();
    let wants = |digest: &[u8; 32]| whole.contains_key(digest) || parts.iter().any(|key| key.starts(digest));
    let (mut by_name, mut left_out) = (BTreeMap::<Name, Vec<Sighting>>::new(), 0);
    let most = if question.strip { usize::MAX } else { OBJECTS.max(question.keys.len()) };
    let mut shapes = BTreeSet::from([(question.shard.unwrap_or(0), question.part.unwrap_or(0))]);
    let end = image
        .for_each_record(|slot, record| {
            let identity = &record.identity;
            let shape_ok = question.shard.is_none_or(|shard| shard == identity.shard)
                && question.part.is_none_or(|part| part == identity.part);
            if shape_ok && shapes.len() < SHAPES {
                shapes.insert((identity.shard, identity.part));
            }
            if !shape_ok || !wants(&identity.prefix) {
                return Ok(());
            }
            let Some(sighting) = Sighting::of(slot, record) else { return Ok(()) };
            let name = (identity.prefix, identity.shard, identity.part);
            if by_name.len() >= most && !by_name.contains_key(&name) {
                left_out += 1;
                return Ok(());
            }
            let sightings = by_name.entry(name).or_default();
            if sightings.len() < SIGHTINGS {
                sightings.push(sighting);
            } else if sighting.in_use()
                && let Some(old) = sightings.iter_mut().find(|old| !old.in_use())
            {
                *old = sighting;
            }
            Ok(())
        })
        .err();
    let mut events = HashMap::<String, Vec<RecordLine>>::new();
    for record in remembered(image)? {
        if let Some(prefix) = record.prefix.clone() {
            events.entry(prefix).or_default().push(record);
        }
    }
    let mut sights = Sights { found: Vec::new(), left_out, shapes: shapes.into_iter().collect(), end };

    for key in &question.keys {
        let before = sights.found.len();
        match key.whole() {
            Some(digest) => {
                let names = by_name.range((digest, 0, 0)..=(digest, u16::MAX, u16::MAX));
                sights.found.extend(names.map(|(name, sightings)| found(name, sightings)));
            }
            None => {
                let names = by_name.iter().filter(|((digest, ..), _)| key.starts(digest));
                sights.found.extend(names.map(|(name, sightings)| found(name, sightings)));
                // Of what no slot holds, a flight recorder may know more digits.
                let mut further: Vec<&String> =
                    events.keys().filter(|prefix| prefix.starts_with(key.digits())).collect();
                further.retain(|prefix| !sights.found[before..].iter().any(|found| found.key.starts_with(*prefix)));
                further.sort();
                let room = OBJECTS.saturating_sub(sights.found.len() - before);
                sights.left_out += further.len().saturating_sub(room);
                let further = further.into_iter().take(room);
                sights.found.extend(further.map(|prefix| Found { key: prefix.clone(), ..Found::default() }));
            }
        }
        if sights.found.len() == before {
            // Nothing in any slot.
            sights.found.push(Found { key: key.digits().to_owned(), ..Found::default() });
        }
        for found in &mut sights.found[before..] {
            found.events = named(&events, &found.key);
        }
        // One answer a block.
        if question.strip {
            sights.found.truncate(before + 1);
        }
    }
    Ok(sights)
}

fn found((digest, shard, part): &Name, sightings: &[Sighting]) -> Found {
    Found { key: hex(digest), shape: Some((*shard, *part)), sightings: sightings.to_vec(), events: Vec::new() }
}

/// Records remember the first 24 bytes of a digest.
fn named(events: &HashMap<String, Vec<RecordLine>>, digits: &str) -> Vec<RecordLine> {
    match digits.get(..48) {
        Some(first) => events.get(first).cloned().unwrap_or_default(),
        None => {
            let mut all: Vec<RecordLine> = events
                .iter()
                .filter(|(prefix, _)| prefix.starts_with(digits))
                .flat_map(|(_, all)| all.clone())
                .collect();
            all.sort_by_key(|event| event.time_ns);
            all
        }
    }
}
