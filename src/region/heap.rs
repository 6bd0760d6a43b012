//! Tables on the heap, for models: the same types and methods as `tables.rs`, with the model checker's atomics.
//!
//! The world is shrunk, the logic is not: a model chooses how many slots, buckets and sessions there are
//! (usually two to four), and the protocol code above does not know the difference.

use std::sync::Arc;

use maru_layout::geometry::{ClassSpec, FormatSpec, Geometry, Stamp};
use maru_layout::object::PayloadCrc;

use crate::ReadFor;
use crate::slot::Slot;
use crate::sync::{AsideU64, AtomicU8, AtomicU64, Ordering};
use crate::view::{AreaHead, BucketLine, Clock, Control, RowLines, SessionLines, zeroed};

/// Payload words a slot has in a model.
pub(crate) const PAYLOAD_WORDS: usize = 2;

/// A region's tables, as the checker's atomics.
#[derive(Clone)]
pub(crate) struct Tables {
    inner: Arc<Inner>,
}

struct Inner {
    geometry: Geometry,
    control: Control,
    slots: Vec<Slot>,
    buckets: Vec<BucketLine>,
    bitmap: Vec<AtomicU64>,
    access: Vec<AtomicU8>,
    sessions: Vec<SessionLines>,
    areas: Vec<(AreaHead, Vec<AtomicU64>)>,
    tokens: Vec<AtomicU64>,
    rows: Vec<RowLines>,
    payload: Vec<[AtomicU64; PAYLOAD_WORDS]>,
}

/// Budget tokens of a model.
const TOKENS: u32 = 2;

/// How large a model's world is: as small as its question allows.
#[derive(Debug, Clone, Copy)]
pub struct Size {
    /// Slots.
    pub slots: u32,
    /// Session entries.
    pub sessions: u32,
    /// Index buckets.
    pub buckets: u32,
    /// Namespace rows.
    pub rows: u32,
    /// Lease cells of a session.
    pub cells: u32,
}

impl Tables {
    /// A blank region with these tables.
    pub(crate) fn new(size: Size) -> Self {
        let mut spec = FormatSpec::new(1 << 20, 64);
        spec.classes = vec![ClassSpec { slot_bytes: 64, slots: Some(size.slots) }];
        spec.sessions = Some(size.sessions);
        let superblock = spec.plan(&Stamp::default()).expect("a model's wish is sound");
        let mut geometry = Geometry::of(&superblock, 1 << 20, true).expect("a planned superblock is sound");
        // What a formatter would make larger than a model can explore.
        geometry.bucket_count = size.buckets;
        geometry.namespace_count = size.rows;
        geometry.lease_cells = size.cells;
        geometry.token_count = TOKENS;
        let inner = Inner {
            control: Control {
                format: AtomicU64::new(2),
                reserved0: aside(),
                namespace_chore: AtomicU64::new(0),
                reserved1: aside(),
                leader_chore: AtomicU64::new(0),
                reserved2: aside(),
                clocks: core::array::from_fn(|_| Clock {
                    stores: AsideU64::new(0),
                    hand: AsideU64::new(0),
                    horizon: AsideU64::new(0),
                    earliest: AsideU64::new(0),
                }),
            },
            slots: (0..size.slots).map(|_| Slot::blank()).collect(),
            buckets: (0..size.buckets).map(|_| BucketLine { entries: zeroed(), mark: AtomicU64::new(0) }).collect(),
            bitmap: (0..size.slots.div_ceil(64)).map(|_| AtomicU64::new(0)).collect(),
            access: (0..size.slots).map(|_| AtomicU8::new(0)).collect(),
            sessions: (0..size.sessions)
                .map(|_| SessionLines { word: AtomicU64::new(0), heartbeat: AsideU64::new(0), facts: zeroed() })
                .collect(),
            areas: (0..size.sessions)
                .map(|_| (blank_area(), (0..size.cells).map(|_| AtomicU64::new(0)).collect()))
                .collect(),
            rows: (0..size.rows)
                .map(|_| RowLines {
                    state: AtomicU64::new(0),
                    generation: AtomicU64::new(0),
                    facts: zeroed(),
                    text: zeroed(),
                })
                .collect(),
            tokens: (0..TOKENS).map(|_| AtomicU64::new(0)).collect(),
            payload: (0..size.slots).map(|_| zeroed()).collect(),
            geometry,
        };
        Self { inner: Arc::new(inner) }
    }

    pub(crate) fn geometry(&self) -> &Geometry {
        &self.inner.geometry
    }

    pub(crate) fn control(&self) -> &Control {
        &self.inner.control
    }

    pub(crate) fn slot(&self, index: u32) -> &Slot {
        &self.inner.slots[index as usize]
    }

    pub(crate) fn slot_checked(&self, index: u32) -> Option<&Slot> {
        self.inner.slots.get(index as usize)
    }

    pub(crate) fn bucket(&self, index: u32) -> &BucketLine {
        &self.inner.buckets[index as usize]
    }

    pub(crate) fn bitmap(&self, word: u32) -> &AtomicU64 {
        &self.inner.bitmap[word as usize]
    }

    pub(crate) fn access(&self, slot: u32) -> &AtomicU8 {
        &self.inner.access[slot as usize]
    }

    pub(crate) fn token(&self, index: u32) -> &AtomicU64 {
        &self.inner.tokens[index as usize]
    }

    pub(crate) fn session(&self, index: u32) -> &SessionLines {
        &self.inner.sessions[index as usize]
    }

    pub(crate) fn area(&self, session: u32) -> &AreaHead {
        &self.inner.areas[session as usize].0
    }

    pub(crate) fn cell(&self, session: u32, cell: u32) -> &AtomicU64 {
        &self.inner.areas[session as usize].1[cell as usize]
    }

    pub(crate) fn cells(&self, session: u32, count: u32) -> &[AtomicU64] {
        &self.inner.areas[session as usize].1[..count as usize]
    }

    pub(crate) fn row(&self, index: u32) -> &RowLines {
        &self.inner.rows[index as usize]
    }

    pub(crate) fn payload(&self, slot: u32) -> Option<Payload<'_>> {
        Some(Payload { words: &self.inner.payload[slot as usize] })
    }

    pub(crate) fn prefetch_bucket(&self, _: u32) {}

    pub(crate) fn prefetch_slot(&self, _: u32) {}
}

fn blank_area() -> AreaHead {
    AreaHead {
        lease_mark: AtomicU64::new(0),
        reserved0: aside(),
        recorder_next: AsideU64::new(0),
        current_step: AsideU64::new(0),
        current_slot: AsideU64::new(0),
        reserved1: aside(),
        counters: aside(),
        recorder: aside(),
        reserved2: aside(),
    }
}

fn aside<const N: usize>() -> [AsideU64; N] {
    core::array::from_fn(|_| AsideU64::new(0))
}

/// A slot's words.
#[derive(Clone, Copy)]
pub(crate) struct Payload<'t> {
    words: &'t [AtomicU64; PAYLOAD_WORDS],
}

impl Payload<'_> {
    pub(crate) fn as_ptr(&self) -> *mut u8 {
        core::ptr::null_mut()
    }

    /// Whole words only: what a model writes.
    pub(crate) fn write(&self, offset: usize, bytes: &[u8]) {
        for (word, eight) in self.words[offset / 8..].iter().zip(bytes.chunks_exact(8)) {
            word.store(u64::from_le_bytes(eight.try_into().expect("eight bytes")), Ordering::Relaxed);
        }
    }

    pub(crate) fn read(&self, offset: usize, bytes: &mut [u8]) {
        for (word, eight) in self.words[offset / 8..].iter().zip(bytes.chunks_exact_mut(8)) {
            eight.copy_from_slice(&word.load(Ordering::Relaxed).to_le_bytes());
        }
    }

    pub(crate) fn read_for(&self, offset: usize, bytes: &mut [u8], _: ReadFor, crc: Option<&mut PayloadCrc>) {
        self.read(offset, bytes);
        if let Some(crc) = crc {
            crc.update(bytes);
        }
    }

    pub(crate) fn capacity(&self) -> usize {
        PAYLOAD_WORDS * 8
    }
}
