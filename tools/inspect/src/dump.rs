//! `dump`: slot by slot, as the bytes say.

use std::io;

use maru_layout::object::record_is_sealed;
use maru_layout::record::SlotRecord;
use maru_layout::word::{SlotState, SlotWord};
use serde::Serialize;

use crate::image::Image;
use crate::out::{Line, Out, Stream, Tone, date, grouped, hex, plain, toned};
use crate::source::ReadError;

/// Which slots.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filter {
    /// In this state; "damaged" are those of none.
    pub state: Option<StateWish>,
    /// This one.
    pub slot: Option<u32>,
    /// Whose prefix digest starts with these bytes; a last half byte as its four bits.
    pub key: Option<HexPrefix>,
}

/// A state, or none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StateWish {
    /// This state.
    Is(SlotState),
    /// A word of no known state.
    Damaged,
}

impl StateWish {
    /// The state of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        if name == "damaged" {
            return Some(Self::Damaged);
        }
        SlotState::ALL.into_iter().find(|state| state.name() == name).map(Self::Is)
    }
}

/// The first hex digits of a digest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HexPrefix(String);

impl HexPrefix {
    /// Hex digits, at most 64.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let sound = !text.is_empty() && text.len() <= 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        sound.then(|| Self(text.to_ascii_lowercase()))
    }

    pub(crate) fn starts(&self, digest: &[u8; 32]) -> bool {
        hex(digest).starts_with(&self.0)
    }

    /// The digits.
    #[must_use]
    pub fn digits(&self) -> &str {
        &self.0
    }

    /// The digest, where all 64 digits are there.
    #[must_use]
    pub fn whole(&self) -> Option<[u8; 32]> {
        let digits = self.0.as_bytes();
        let mut digest = [0; 32];
        for (byte, pair) in digest.iter_mut().zip(digits.chunks_exact(2)) {
            *byte = u8::from_str_radix(core::str::from_utf8(pair).ok()?, 16).ok()?;
        }
        (digits.len() == 64).then_some(digest)
    }
}

impl Filter {
    fn wants(&self, record: &SlotRecord) -> bool {
        let state = SlotWord(record.identity.word).state();
        let state_ok = match self.state {
            None => true,
            Some(StateWish::Is(wanted)) => state == Some(wanted),
            Some(StateWish::Damaged) => state.is_none(),
        };
        // A free slot's identity means nothing.
        let key_ok =
            self.key.as_ref().is_none_or(|key| state != Some(SlotState::Free) && key.starts(&record.identity.prefix));
        state_ok && key_ok
    }
}

/// One slot.
#[derive(Serialize)]
pub struct SlotLine {
    /// Index.
    pub slot: u32,
    /// The word as it is.
    pub word: String,
    /// State.
    pub state: &'static str,
    /// Session index of the owner.
    pub owner: Option<u32>,
    /// A device writes.
    pub device: bool,
    /// Generation.
    pub generation: u64,
    /// Bytes of the slot.
    pub slot_bytes: u64,
    /// First payload byte.
    pub payload_offset_bytes: u64,
    /// Prefix digest.
    pub prefix: String,
    /// Namespace digest.
    pub namespace: String,
    /// Shard.
    pub shard: u16,
    /// Part.
    pub part: u16,
    /// Payload bytes.
    pub length: u32,
    /// Second line of the record.
    pub body: BodyPart,
}

/// The body line.
#[derive(Serialize)]
pub struct BodyPart {
    /// Its generation equals the word's.
    pub counts: bool,
    /// The record's half of the checksum is right.
    pub sealed: bool,
    /// Generation it belongs to.
    pub generation: u64,
    /// Both halves.
    pub checksum: String,
    /// Wall clock of the commit.
    pub committed_ns: u64,
    /// First bytes of the parent's digest.
    pub parent_hint: String,
    /// Low half of the storer's id.
    pub storer_id: String,
    /// Session index of the storer.
    pub storer_index: u16,
    /// Epoch of the storer.
    pub storer_epoch: u32,
    /// Budget token.
    pub budget_token: Option<u32>,
    /// Depth in blocks.
    pub depth: u32,
    /// Namespace row, a hint.
    pub namespace_row: u32,
    /// `cpu` or `device`.
    pub writer_kind: &'static str,
}

impl SlotLine {
    fn of(image: &Image<'_>, slot: u32, record: &SlotRecord) -> Self {
        let SlotRecord { identity, body } = record;
        let word = SlotWord(identity.word);
        let (payload_offset_bytes, slot_bytes) = image.geometry().payload_of(slot).unwrap_or((0, 0));
        Self {
            slot,
            word: format!("{:#018x}", word.0),
            state: word.state().map_or("damaged", SlotState::name),
            owner: word.owner().index(),
            device: word.device_writer(),
            generation: word.generation(),
            slot_bytes,
            payload_offset_bytes,
            prefix: hex(&identity.prefix),
            namespace: hex(&identity.namespace),
            shard: identity.shard,
            part: identity.part,
            length: identity.length,
            body: BodyPart {
                counts: body.generation == word.generation(),
                sealed: record_is_sealed(identity, body),
                generation: body.generation,
                checksum: format!("{:#018x}", body.checksum),
                committed_ns: body.committed_ns,
                parent_hint: hex(&body.parent_hint.to_le_bytes()),
                storer_id: hex(&body.storer_id.to_le_bytes()),
                storer_index: body.storer_index,
                storer_epoch: body.storer_epoch,
                budget_token: body.budget_token.checked_sub(1),
                depth: body.depth,
                namespace_row: body.namespace_row,
                writer_kind: match body.writer_kind {
                    0 => "cpu",
                    1 => "device",
                    _ => "unknown",
                },
            },
        }
    }

    fn cells(&self) -> Vec<(String, Tone)> {
        let tone = match self.state {
            "ready" => Tone::Good,
            "free" => Tone::Dim,
            "damaged" => Tone::Bad,
            _ => Tone::Warn,
        };
        let named = self.state != "free";
        let or_dash = |text: String| if named { plain(text) } else { plain("-") };
        vec![
            plain(grouped(self.slot)),
            toned(tone, self.state),
            plain(self.owner.map_or_else(|| "-".to_owned(), |owner| owner.to_string())),
            plain(self.generation),
            or_dash(grouped(self.length)),
            or_dash(self.prefix[..16].to_owned()),
            or_dash(self.namespace[..8].to_owned()),
            or_dash(format!("{}/{}", self.shard, self.part)),
            or_dash(self.body.depth.to_string()),
            plain(match (named, self.body.counts, self.body.sealed) {
                (false, ..) => "-",
                (true, false, _) => "older",
                (true, true, false) => "open",
                (true, true, true) => "sealed",
            }),
            or_dash(if self.body.counts && self.body.sealed { date(self.body.committed_ns) } else { "-".to_owned() }),
        ]
    }
}

/// Shows the slots that the filter wants.
///
/// # Errors
/// Outer: the reader of the output has gone. Inner: a table cannot be read.
pub fn show(image: &Image<'_>, filter: &Filter, out: &mut Out) -> io::Result<Result<(), ReadError>> {
    let columns = [
        (">slot", 11),
        ("state", 11),
        (">owner", 5),
        (">generation", 10),
        (">length", 13),
        ("object", 16),
        ("namespace", 9),
        ("shard/part", 10),
        (">depth", 6),
        ("record", 6),
        ("committed", 20),
    ];
    out.line("")?;
    let table = if out.is_json() { None } else { Some(Stream::new(out, &columns)?) };
    let mut written = Ok(());
    let mut shown = 0u64;
    let mut print = |slot: u32, record: SlotRecord| {
        if written.is_ok() && filter.wants(&record) {
            let line = SlotLine::of(image, slot, &record);
            shown += 1;
            written = match &table {
                Some(table) => table.row(out, &line.cells()),
                None => out.object(&Line::Slot(Box::new(line))),
            };
        }
        Ok(())
    };
    let end = match filter.slot {
        None => image.for_each_record(print),
        Some(slot) if slot < image.geometry().slot_count => image.record(slot).and_then(|record| print(slot, record)),
        Some(_) => Ok(()),
    };
    written?;
    if let Some(slot) = filter.slot.filter(|slot| *slot >= image.geometry().slot_count) {
        out.line(format!("  no slot {slot}: there are {}", image.geometry().slot_count))?;
    }
    out.line(format!("  {} of {} slots", grouped(shown), grouped(image.geometry().slot_count)))?;
    Ok(end)
}
