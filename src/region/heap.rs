//! Tables on the heap, for models: the same types and methods as `tables.rs`, with loom's atomics.
//!
//! The world is shrunk, the logic is not: a model chooses how many slots, buckets and sessions there are
//! (usually two to four), and the protocol code above does not know the difference.

use std::sync::Arc;

use maru_layout::BUCKET_WAYS;
use maru_layout::geometry::{ClassSpec, FormatSpec, Geometry, Stamp};

use crate::slot::Slot;
use crate::sync::{AtomicU8, AtomicU64, Ordering};
use crate::view::{AreaHead, BucketLine, Control, RowLines, SessionLines, zeroed};

/// Payload words a slot has in a model.
pub(crate) const PAYLOAD_WORDS: usize = 2;

/// A region's tables, as loom's atomics.
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
    rows: Vec<RowLines>,
    payload: Vec<[AtomicU64; PAYLOAD_WORDS]>,
}

/// Lease cells a session has in a model.
const CELLS: u32 = 2;

impl Tables {
    /// A blank region with these tables.
    pub(crate) fn new(slots: u32, sessions: u32) -> Self {
        let mut spec = FormatSpec::new(1 << 20, 64);
        spec.classes = vec![ClassSpec { slot_bytes: 64, slots: Some(slots) }];
        spec.sessions = Some(sessions);
        spec.namespaces = Some(1);
        let superblock = spec.plan(&Stamp::default()).expect("a model's wish is sound");
        let mut geometry = Geometry::of(&superblock, 1 << 20, true).expect("a planned superblock is sound");
        geometry.lease_cells = CELLS;
        let inner = Inner {
            control: Control {
                format: AtomicU64::new(2),
                reserved0: zeroed(),
                namespace_chore: AtomicU64::new(0),
                reserved1: zeroed(),
                leader_chore: AtomicU64::new(0),
                reserved2: zeroed(),
            },
            slots: (0..slots).map(|_| Slot::blank()).collect(),
            buckets: (0..geometry.bucket_count)
                .map(|_| BucketLine { entries: zeroed::<BUCKET_WAYS>(), mark: AtomicU64::new(0) })
                .collect(),
            bitmap: (0..slots.div_ceil(64)).map(|_| AtomicU64::new(0)).collect(),
            access: (0..slots).map(|_| AtomicU8::new(0)).collect(),
            sessions: (0..sessions)
                .map(|_| SessionLines { word: AtomicU64::new(0), heartbeat: AtomicU64::new(0), facts: zeroed() })
                .collect(),
            areas: (0..sessions).map(|_| (blank_area(), (0..CELLS).map(|_| AtomicU64::new(0)).collect())).collect(),
            rows: (0..1)
                .map(|_| RowLines {
                    state: AtomicU64::new(0),
                    generation: AtomicU64::new(0),
                    facts: zeroed(),
                    text: zeroed(),
                })
                .collect(),
            payload: (0..slots).map(|_| zeroed()).collect(),
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

    pub(crate) fn session(&self, index: u32) -> &SessionLines {
        &self.inner.sessions[index as usize]
    }

    pub(crate) fn area(&self, session: u32) -> &AreaHead {
        &self.inner.areas[session as usize].0
    }

    pub(crate) fn cell(&self, session: u32, cell: u32) -> &AtomicU64 {
        &self.inner.areas[session as usize].1[cell as usize]
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
        reserved0: zeroed(),
        recorder_next: AtomicU64::new(0),
        current_step: AtomicU64::new(0),
        current_slot: AtomicU64::new(0),
        reserved1: zeroed(),
        counters: zeroed(),
        recorder: zeroed(),
        reserved2: zeroed(),
    }
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

    pub(crate) fn capacity(&self) -> usize {
        PAYLOAD_WORDS * 8
    }
}
