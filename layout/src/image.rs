//! A region as plain bytes: what inspectors, fuzzers and format tests read.
//!
//! An [`Image`] is a snapshot (a file, a golden image, a copy of a mapping) whose superblock has passed
//! [`Superblock::check`]. Everything below the superblock is still distrusted: accessors are bounded by
//! the checked geometry, nothing panics on any bytes, and what cannot be right is a [`Damage`], by name.
//! The list of damages is the one in `FORMAT.md`, "What counts as damage", and the second reader
//! (`reader/maru_reader.py`) counts the same ones.

use core::fmt;

use bytemuck::AnyBitPattern;

use crate::farewell::FarewellWord;
use crate::geometry::Geometry;
use crate::object::{ObjectKey, PayloadCrc, record_is_sealed};
use crate::record::SlotRecord;
use crate::superblock::{SectionKind, Superblock, SuperblockError};
use crate::table::{Bucket, ControlPage, NamespaceRow, PoolEntry, SessionAreaHead, SessionEntry};
use crate::word::{
    FormatState, FormatWord, IndexEntry, LeaseCell, RowState, SessionWord, SlotState, SlotWord, short_generation,
};
use crate::{BUCKET_BYTES, PAGE_BYTES, RECORD_BYTES, SESSION_AREA_HEAD_BYTES};

/// The bytes of a region, with a superblock that was checked.
#[derive(Clone)]
pub struct Image<'a> {
    bytes: &'a [u8],
    superblock: Superblock,
    geometry: Geometry,
}

/// What a `Ready` slot holds, and whether its checksums agree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadyReplica {
    /// The slot.
    pub slot: u32,
    /// Generation in the slot word.
    pub generation: u64,
    /// Object id of the record.
    pub key: ObjectKey,
    /// Payload bytes that the record names.
    pub length: u32,
    /// The body belongs to this generation and the record's half of the checksum is right.
    pub record_ok: bool,
    /// The body belongs to this generation, the length fits the slot, and the payload's half is right.
    pub payload_ok: bool,
}

/// Something in an image that no correct writer leaves behind, whenever it dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Damage {
    /// The copy of the superblock differs from the superblock.
    Copy,
    /// The format word is neither the one of a ready region with this id nor `Replaced`.
    Format {
        /// Word found.
        word: FormatWord,
    },
    /// A slot word with an unknown state, an owner that cannot be, or no owner where there must be one.
    SlotWord {
        /// The slot.
        slot: u32,
        /// Word found.
        word: SlotWord,
    },
    /// A `Ready` slot whose record or payload does not match its checksum.
    Record {
        /// The slot.
        slot: u32,
    },
    /// An index entry with a slot that is not there or with short generation 0.
    IndexEntry {
        /// The bucket.
        bucket: u32,
        /// Position in the bucket, 0 to 6.
        way: usize,
        /// Entry found.
        entry: IndexEntry,
    },
    /// A session word with an unknown state.
    SessionWord {
        /// Session index.
        session: u32,
        /// Word found.
        word: SessionWord,
    },
    /// A lease mark beyond the area's cells.
    LeaseMark {
        /// Session index.
        session: u32,
        /// Mark found.
        mark: u64,
    },
    /// A namespace row with an unknown state, or a registered one whose text is too long or not UTF-8.
    /// (That the text matches its digest is for the caller to say: this crate has no SHA-256.)
    Namespace {
        /// The row.
        row: u32,
    },
}

impl Damage {
    /// The name under which JSON and summaries count it.
    #[must_use]
    pub const fn group(&self) -> &'static str {
        match self {
            Self::Copy => "copy",
            Self::Format { .. } => "format",
            Self::SlotWord { .. } => "slot_words",
            Self::Record { .. } => "records",
            Self::IndexEntry { .. } => "index",
            Self::SessionWord { .. } => "sessions",
            Self::LeaseMark { .. } => "leases",
            Self::Namespace { .. } => "namespaces",
        }
    }
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Copy => f.write_str("the copy of the superblock differs from the superblock"),
            Self::Format { word } => {
                write!(f, "format word is {word:?}, wanted ready with this region's id, or replaced")
            }
            Self::SlotWord { slot, word } => write!(f, "slot {slot}: word is {word:?}"),
            Self::Record { slot } => write!(f, "slot {slot} is ready, but its checksum does not match"),
            Self::IndexEntry { bucket, way, entry } => write!(f, "bucket {bucket}, entry {way}: {entry:?}"),
            Self::SessionWord { session, word } => write!(f, "session {session}: word is {word:?}"),
            Self::LeaseMark { session, mark } => {
                write!(f, "session {session}: lease mark is {mark}, more than the area has cells")
            }
            Self::Namespace { row } => write!(f, "namespace row {row}: unknown state, or its text is damaged"),
        }
    }
}

impl<'a> Image<'a> {
    /// Judges the superblock of `bytes`, which start at the region's first byte.
    ///
    /// Where only the checksum is wrong and the copy at the end is sound, the error names the fields that
    /// differ.
    ///
    /// # Errors
    /// As [`Superblock::check`], for a reader.
    pub fn read(bytes: &'a [u8]) -> Result<Self, SuperblockError> {
        let superblock = Superblock::read(bytes)?;
        match Geometry::of(&superblock, bytes.len() as u64, false) {
            Ok(geometry) => Ok(Self { bytes, superblock, geometry }),
            Err(SuperblockError::Checksum { stored, computed, .. }) => {
                let copy = superblock
                    .length_bytes
                    .checked_sub(PAGE_BYTES)
                    .and_then(|offset| pod::<Superblock>(bytes, offset))
                    .filter(|copy| copy.check(bytes.len() as u64, false).is_ok());
                let differs = copy.map(|copy| superblock.differing_fields(&copy)).unwrap_or_default();
                Err(SuperblockError::Checksum { stored, computed, differs })
            }
            Err(other) => Err(other),
        }
    }

    /// The superblock.
    #[must_use]
    pub fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    /// The copy of the superblock, unjudged.
    #[must_use]
    pub fn copy(&self) -> Option<Superblock> {
        self.element(SectionKind::Copy, 0, PAGE_BYTES)
    }

    /// The checked numbers.
    #[must_use]
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// The control page.
    #[must_use]
    pub fn control(&self) -> Option<ControlPage> {
        self.element(SectionKind::Control, 0, PAGE_BYTES)
    }

    /// The pool entry.
    #[must_use]
    pub fn pool(&self) -> Option<PoolEntry> {
        self.element(SectionKind::Pools, 0, size_of::<PoolEntry>() as u64)
    }

    /// The record of a slot; `None` beyond the last.
    #[must_use]
    pub fn record(&self, slot: u32) -> Option<SlotRecord> {
        (slot < self.geometry.slot_count).then(|| self.element(SectionKind::Records, slot, RECORD_BYTES))?
    }

    /// All slots and their records.
    pub fn records(&self) -> impl Iterator<Item = (u32, SlotRecord)> + '_ {
        (0..self.geometry.slot_count).filter_map(|slot| Some((slot, self.record(slot)?)))
    }

    /// The first `length` payload bytes of a slot; `None` where the slot is not there or smaller.
    #[must_use]
    pub fn payload(&self, slot: u32, length: u32) -> Option<&'a [u8]> {
        let (offset, size) = self.geometry.payload_of(slot)?;
        (u64::from(length) <= size).then(|| window(self.bytes, offset, length.into()))?
    }

    /// What a slot holds if its word says `Ready`.
    #[must_use]
    pub fn ready(&self, slot: u32) -> Option<ReadyReplica> {
        let SlotRecord { identity, body } = self.record(slot)?;
        let word = SlotWord(identity.word);
        if !word.is(SlotState::Ready) {
            return None;
        }
        let key = ObjectKey::of_record(&identity);
        let counts = body.generation == word.generation();
        let payload_ok = counts
            && self.payload(slot, identity.length).is_some_and(|payload| {
                let mut crc = PayloadCrc::new(&key, word.generation(), identity.length);
                crc.update(payload);
                crc.finish() == body.checksum as u32
            });
        Some(ReadyReplica {
            slot,
            generation: word.generation(),
            key,
            length: identity.length,
            record_ok: counts && record_is_sealed(&identity, &body),
            payload_ok,
        })
    }

    /// All `Ready` slots.
    pub fn ready_replicas(&self) -> impl Iterator<Item = ReadyReplica> + '_ {
        (0..self.geometry.slot_count).filter_map(|slot| self.ready(slot))
    }

    /// An index bucket; `None` beyond the last.
    #[must_use]
    pub fn bucket(&self, bucket: u32) -> Option<Bucket> {
        (bucket < self.geometry.bucket_count).then(|| self.element(SectionKind::Buckets, bucket, BUCKET_BYTES))?
    }

    /// All buckets.
    pub fn buckets(&self) -> impl Iterator<Item = (u32, Bucket)> + '_ {
        (0..self.geometry.bucket_count).filter_map(|bucket| Some((bucket, self.bucket(bucket)?)))
    }

    /// All index entries that are not empty: bucket, position, entry.
    pub fn entries(&self) -> impl Iterator<Item = (u32, usize, IndexEntry)> + '_ {
        self.buckets().flat_map(|(bucket, row)| {
            let entries = row.entries.into_iter().map(IndexEntry).enumerate();
            entries.filter(|(_, entry)| !entry.is_empty()).map(move |(way, entry)| (bucket, way, entry))
        })
    }

    /// Whether the index names this slot at this generation, in the two buckets where its key belongs.
    #[must_use]
    pub fn is_indexed(&self, replica: &ReadyReplica) -> bool {
        let place = replica.key.place(self.geometry.hash_seed, self.geometry.bucket_count);
        let wanted = IndexEntry::new(replica.slot, replica.generation, place.tag);
        let holds = |bucket, entry: IndexEntry| {
            self.bucket(bucket).is_some_and(|bucket: Bucket| bucket.entries.contains(&entry.0))
        };
        holds(place.first, wanted) || holds(place.second, wanted.in_second())
    }

    /// A session entry; `None` beyond the last.
    #[must_use]
    pub fn session(&self, session: u32) -> Option<SessionEntry> {
        let stride = size_of::<SessionEntry>() as u64;
        (session < self.geometry.session_count).then(|| self.element(SectionKind::Sessions, session, stride))?
    }

    /// All session entries.
    pub fn sessions(&self) -> impl Iterator<Item = (u32, SessionEntry)> + '_ {
        (0..self.geometry.session_count).filter_map(|session| Some((session, self.session(session)?)))
    }

    /// The head of a session's area.
    #[must_use]
    pub fn session_area(&self, session: u32) -> Option<SessionAreaHead> {
        let stride = self.geometry.session_area_bytes;
        (session < self.geometry.session_count).then(|| self.element(SectionKind::SessionAreas, session, stride))?
    }

    /// The lease cells of a session that are in use: position and cell. The mark is clamped.
    pub fn leases(&self, session: u32) -> impl Iterator<Item = (u32, LeaseCell)> + '_ {
        let mark = self.session_area(session).map_or(0, |head| head.lease_mark);
        let area = self.geometry.offset(SectionKind::SessionAreas)
            + u64::from(session) * self.geometry.session_area_bytes
            + SESSION_AREA_HEAD_BYTES;
        (0..mark.min(self.geometry.lease_cells.into()) as u32)
            .filter_map(move |cell| Some((cell, LeaseCell(pod(self.bytes, area + u64::from(cell) * 8)?))))
            .filter(|(_, cell)| cell.kind().is_some())
    }

    /// A namespace row; `None` beyond the last.
    #[must_use]
    pub fn namespace(&self, row: u32) -> Option<NamespaceRow> {
        let stride = size_of::<NamespaceRow>() as u64;
        (row < self.geometry.namespace_count).then(|| self.element(SectionKind::Namespaces, row, stride))?
    }

    /// All namespace rows.
    pub fn namespaces(&self) -> impl Iterator<Item = (u32, NamespaceRow)> + '_ {
        (0..self.geometry.namespace_count).filter_map(|row| Some((row, self.namespace(row)?)))
    }

    /// A budget token; `None` beyond the last.
    #[must_use]
    pub fn token(&self, token: u32) -> Option<u64> {
        (token < self.geometry.token_count).then(|| self.element(SectionKind::Tokens, token, 8))?
    }

    /// What was said of the block that left last by this place of the table; `None` beyond the last.
    #[must_use]
    pub fn farewell(&self, index: u32) -> Option<FarewellWord> {
        let word = (index < self.geometry.farewell_count).then(|| self.element(SectionKind::Farewells, index, 8))?;
        word.map(FarewellWord)
    }

    /// The bitmap's hint that a slot is not free.
    #[must_use]
    pub fn bitmap_hint(&self, slot: u32) -> Option<bool> {
        if slot >= self.geometry.slot_count {
            return None;
        }
        let word: u64 = self.element(SectionKind::Bitmap, slot / 64, 8)?;
        Some(word >> (slot % 64) & 1 == 1)
    }

    /// The access byte of a slot in a lane.
    #[must_use]
    pub fn access_byte(&self, lane: u32, slot: u32) -> Option<u8> {
        if lane >= self.geometry.access_lanes || slot >= self.geometry.slot_count {
            return None;
        }
        let index = u64::from(lane) * u64::from(self.geometry.slot_count) + u64::from(slot);
        pod(self.bytes, self.geometry.offset(SectionKind::AccessBytes) + index)
    }

    /// Slots in each state, in the order of [`SlotState::ALL`], and slots whose word is none of ours.
    #[must_use]
    pub fn state_counts(&self) -> ([u32; SlotState::ALL.len()], u32) {
        let (mut counts, mut unknown) = ([0; SlotState::ALL.len()], 0);
        for (_, record) in self.records() {
            match SlotWord(record.identity.word).state() {
                Some(state) => counts[state as usize] += 1,
                None => unknown += 1,
            }
        }
        (counts, unknown)
    }

    /// Everything that cannot be right, in the order of the sections. Reads every ready payload.
    #[must_use]
    pub fn damage(&self) -> Vec<Damage> {
        let mut found = Vec::new();
        if self.copy().is_none_or(|copy| bytemuck::bytes_of(&copy) != bytemuck::bytes_of(&self.superblock)) {
            found.push(Damage::Copy);
        }
        let word = FormatWord(self.control().map_or(0, |page| page.format));
        if word != FormatWord::ready(&self.geometry.region_id) && word.state() != Some(FormatState::Replaced) {
            found.push(Damage::Format { word });
        }
        found.extend(self.namespaces().filter(|(_, row)| !row_is_sound(row)).map(|(row, _)| Damage::Namespace { row }));
        for (session, entry) in self.sessions() {
            let word = SessionWord(entry.word);
            if word.state().is_none() {
                found.push(Damage::SessionWord { session, word });
            }
            if let Some(head) = self.session_area(session)
                && head.lease_mark > self.geometry.lease_cells.into()
            {
                found.push(Damage::LeaseMark { session, mark: head.lease_mark });
            }
        }
        for (slot, record) in self.records() {
            let word = SlotWord(record.identity.word);
            if !self.word_is_sound(word) {
                found.push(Damage::SlotWord { slot, word });
            }
            if self.ready(slot).is_some_and(|replica| !replica.record_ok || !replica.payload_ok) {
                found.push(Damage::Record { slot });
            }
        }
        let slots = self.geometry.slot_count;
        found.extend(
            self.entries()
                .filter(|(.., entry)| entry.slot() >= slots || entry.short_generation() == 0)
                .map(|(bucket, way, entry)| Damage::IndexEntry { bucket, way, entry }),
        );
        found
    }

    fn word_is_sound(&self, word: SlotWord) -> bool {
        let Some(state) = word.state() else { return false };
        let named = matches!(state, SlotState::Claiming | SlotState::Pending | SlotState::Writing);
        match word.owner().index() {
            Some(session) => session < self.geometry.session_count,
            None => !named,
        }
    }

    /// Element `index` of a section whose elements lie `stride` apart; bounded by the image.
    fn element<T: AnyBitPattern>(&self, kind: SectionKind, index: u32, stride: u64) -> Option<T> {
        pod(self.bytes, self.geometry.offset(kind).checked_add(u64::from(index).checked_mul(stride)?)?)
    }
}

impl fmt::Debug for Image<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Image").field("bytes", &self.bytes.len()).field("geometry", &self.geometry).finish()
    }
}

/// The text of a registered row; `None` where its length or its bytes cannot be.
#[must_use]
pub fn namespace_text(row: &NamespaceRow) -> Option<&str> {
    core::str::from_utf8(row.text.get(..row.text_bytes as usize)?).ok()
}

/// Whether an index entry names this slot at this generation (short form; see [`short_generation`]).
#[must_use]
pub fn entry_names(entry: IndexEntry, slot: u32, generation: u64) -> bool {
    !entry.is_empty() && entry.slot() == slot && entry.short_generation() == short_generation(generation)
}

fn row_is_sound(row: &NamespaceRow) -> bool {
    match RowState::from_bits(row.state) {
        Some(RowState::Ready) => namespace_text(row).is_some(),
        Some(_) => true,
        None => false,
    }
}

fn window(bytes: &[u8], offset: u64, length: u64) -> Option<&[u8]> {
    bytes.get(usize::try_from(offset).ok()?..usize::try_from(offset.checked_add(length)?).ok()?)
}

fn pod<T: AnyBitPattern>(bytes: &[u8], offset: u64) -> Option<T> {
    Some(bytemuck::pod_read_unaligned(window(bytes, offset, size_of::<T>() as u64)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::geometry::{FormatSpec, Stamp};
    use proptest::prelude::*;

    fn blank(length: u64) -> Vec<u8> {
        let superblock = FormatSpec::new(length, 4096).plan(&Stamp::default()).expect("plan");
        let mut bytes = vec![0; length as usize];
        let page = PAGE_BYTES as usize;
        bytes[..page].copy_from_slice(bytemuck::bytes_of(&superblock));
        bytes[length as usize - page..].copy_from_slice(bytemuck::bytes_of(&superblock));
        bytes[page..page + 8].copy_from_slice(&FormatWord::ready(&superblock.region_id).0.to_le_bytes());
        bytes
    }

    #[test]
    fn a_fresh_region_has_no_damage() {
        let bytes = blank(256 << 10);
        let image = Image::read(&bytes).expect("sound");
        assert_eq!(image.damage(), []);
        assert_eq!(image.state_counts().0[0], image.geometry().slot_count);
        assert_eq!(image.record(image.geometry().slot_count), None);
        assert_eq!(image.entries().count() + image.ready_replicas().count() + image.leases(0).count(), 0);
        assert_eq!(image.leases(u32::MAX).count(), 0);
    }

    #[test]
    fn a_checksum_error_names_the_fields_that_differ_from_the_copy() {
        let mut bytes = blank(256 << 10);
        bytes[168] ^= 1; // formatted_ns has no bounds of its own
        let error = Image::read(&bytes).expect_err("damaged").to_string();
        assert!(error.contains("formatted_ns (found 1, the copy says 0)"), "{error}");
    }

    proptest! {
        #[test]
        fn any_bytes_below_a_sound_superblock_are_read_without_panic(
            words in proptest::collection::vec((512usize..32768 - 512, any::<u64>()), 0..400),
        ) {
            let mut bytes = blank(256 << 10);
            for (word, value) in words { bytes[word * 8..word * 8 + 8].copy_from_slice(&value.to_le_bytes()); }
            let image = Image::read(&bytes).expect("the superblock was left alone");
            for damage in image.damage() { let _ = (damage.to_string(), damage.group()); }
            for session in 0..image.geometry().session_count { let _ = image.leases(session).count(); }
            let _ = image.ready_replicas().filter(|replica| image.is_indexed(replica)).count();
        }

        #[test]
        fn any_bytes_are_judged_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..9000)) {
            prop_assert!(Image::read(&bytes).is_err());
        }
    }
}
