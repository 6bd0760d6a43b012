//! Atomic views of the shared tables.
//!
//! Each type here has the size, alignment and offsets of its plain twin in `maru-layout` (asserted at
//! the end of the file) and consists of atomics only, so a reference to one may exist while any other
//! process stores to the same bytes. Only `region/tables.rs` makes such references from mapped bytes; a
//! model builds the same types on the heap.
//!
//! The slot has a file of its own: [`crate::slot`].

use maru_layout::BUCKET_WAYS;
use maru_layout::table::{Counter, SessionEntry};
#[cfg(not(maru_loom))]
use maru_layout::word::SessionState;
use maru_layout::word::{FormatWord, RowState, SessionWord};

use crate::sync::{AsideU64, AtomicU64, Ordering, edge};

#[cfg(not(target_endian = "little"))]
compile_error!("a region is little endian, and these views read it in place");

/// `N` zeroed words; what a heap-built table starts as.
#[cfg(maru_loom)]
pub(crate) fn zeroed<const N: usize>() -> [AtomicU64; N] {
    core::array::from_fn(|_| AtomicU64::new(0))
}

/// Entries of a bucket; in a model few, so that full buckets are within reach.
pub(crate) const WAYS: usize = if cfg!(maru_loom) { 2 } else { BUCKET_WAYS };
/// Words of a session entry that only people read; none in a model.
const SESSION_FACTS: usize = if cfg!(maru_loom) { 0 } else { 30 };
/// Words between a namespace row's generation and its text; in a model the text's length and the budget.
const ROW_FACTS: usize = if cfg!(maru_loom) { 3 } else { 10 };
/// Where the budget stands among them.
const ROW_BUDGET: usize = if cfg!(maru_loom) { 1 } else { 6 };
/// Words of a namespace's text; a model's has eight bytes.
const ROW_TEXT: usize = if cfg!(maru_loom) { 1 } else { 116 };

/// Slot classes, each with a clock.
const CLOCKS: usize = maru_layout::MAX_CLASSES;

/// Stores `bytes` into `words`, eight at a time, zero-padded.
pub(crate) fn store_bytes(words: &[AtomicU64], bytes: &[u8]) {
    let mut chunks = bytes.chunks(8);
    for word in words {
        let mut eight = [0; 8];
        if let Some(chunk) = chunks.next() {
            eight[..chunk.len()].copy_from_slice(chunk);
        }
        // ORDERING: Relaxed: filled while only the owner may read; the state word that follows publishes it.
        word.store(u64::from_le_bytes(eight), Ordering::Relaxed);
    }
}

/// Copies `words` out as bytes.
pub(crate) fn load_bytes(words: &[AtomicU64], bytes: &mut [u8]) {
    for (word, chunk) in words.iter().zip(bytes.chunks_mut(8)) {
        // ORDERING: Relaxed: the reader checked the state word with Acquire before, and checks again after.
        chunk.copy_from_slice(&word.load(Ordering::Relaxed).to_le_bytes()[..chunk.len()]);
    }
}

/// Control page.
#[repr(C, align(64))]
pub(crate) struct Control {
    pub(crate) format: AtomicU64,
    pub(crate) reserved0: [AsideU64; 7],
    pub(crate) namespace_chore: AtomicU64,
    pub(crate) reserved1: [AsideU64; 7],
    pub(crate) leader_chore: AtomicU64,
    pub(crate) reserved2: [AsideU64; 7],
    pub(crate) clocks: [Clock; CLOCKS],
}

/// The eviction clock of a slot class. Hints: they order and decide nothing, so models do not explore them.
#[repr(C)]
pub(crate) struct Clock {
    pub(crate) stores: AsideU64,
    pub(crate) hand: AsideU64,
    pub(crate) horizon: AsideU64,
    pub(crate) earliest: AsideU64,
}

impl Control {
    /// The format word.
    pub(crate) fn format(&self) -> FormatWord {
        // ORDERING: Acquire, pairs with the formatter's Release store of `Ready`: tables behind it are complete.
        FormatWord(self.format.load(Ordering::Acquire))
    }
}

/// Session table entry.
#[repr(C, align(64))]
pub(crate) struct SessionLines {
    pub(crate) word: AtomicU64,
    pub(crate) heartbeat: AsideU64,
    pub(crate) facts: [AtomicU64; SESSION_FACTS],
}

impl SessionLines {
    /// The session word.
    pub(crate) fn word(&self) -> SessionWord {
        // ORDERING: Acquire, pairs with the Release of `Live`: identity and emptied cells are visible.
        SessionWord(self.word.load(Ordering::Acquire))
    }

    /// Moves the word from `from` to `to`; false when it is not `from` any more.
    pub(crate) fn swap(&self, from: SessionWord, to: SessionWord) -> bool {
        // ORDERING: AcqRel: Release publishes what the mover did before (filled entry, swept slots); Acquire
        // lets the mover rely on what the last mover did. The value is what serialises movers.
        let success = edge!(Live if to.is(maru_layout::word::SessionState::Live), Ordering::AcqRel);
        self.word.compare_exchange(from.0, to.0, success, Ordering::Acquire).is_ok()
    }

    /// Heartbeats so far.
    #[cfg(not(maru_loom))]
    pub(crate) fn beats(&self) -> u64 {
        // ORDERING: Relaxed: a number that is watched for change.
        self.heartbeat.load(Ordering::Relaxed)
    }

    /// A plain copy, for judging the holder.
    #[cfg(not(maru_loom))]
    pub(crate) fn read(&self) -> SessionEntry {
        let mut bytes = [0u8; 256];
        bytes[..8].copy_from_slice(&self.word().0.to_le_bytes());
        load_bytes(&self.facts, &mut bytes[16..]);
        bytemuck::pod_read_unaligned(&bytes)
    }

    /// Word and facts of one holder; `None` for an entry that nobody has, or that is changing hands.
    #[cfg(not(maru_loom))]
    pub(crate) fn holder(&self) -> Option<(SessionWord, SessionEntry)> {
        let word = self.word();
        if matches!(word.state(), None | Some(SessionState::Free)) {
            return None;
        }
        let facts = self.read();
        (self.word() == word).then_some((word, facts))
    }

    /// Fills in everything but the words.
    pub(crate) fn fill(&self, entry: &SessionEntry) {
        store_bytes(&self.facts, &bytemuck::bytes_of(entry)[16..]);
    }
}

/// Head of a session area. Only the session itself stores here.
#[repr(C, align(64))]
pub(crate) struct AreaHead {
    pub(crate) lease_mark: AtomicU64,
    pub(crate) reserved0: [AsideU64; 7],
    pub(crate) recorder_next: AsideU64,
    pub(crate) current_step: AsideU64,
    pub(crate) current_slot: AsideU64,
    pub(crate) reserved1: [AsideU64; 5],
    pub(crate) counters: [AsideU64; 64],
    pub(crate) recorder: [AsideU64; 128],
    pub(crate) reserved2: [AsideU64; 48],
}

impl AreaHead {
    /// Counts.
    pub(crate) fn count(&self, counter: Counter, n: u64) {
        if n == 0 {
            return;
        }
        let cell = &self.counters[counter as usize];
        // ORDERING: Relaxed load and store, not fetch_add: only this session stores here; its threads may lose a
        // count to each other, which a statistic may. A counter orders nothing.
        cell.store(cell.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }
}

/// Namespace row.
#[repr(C, align(64))]
pub(crate) struct RowLines {
    pub(crate) state: AtomicU64,
    pub(crate) generation: AtomicU64,
    pub(crate) facts: [AtomicU64; ROW_FACTS],
    pub(crate) text: [AtomicU64; ROW_TEXT],
}

impl RowLines {
    /// The row's state; `None` where it is none of ours.
    pub(crate) fn state(&self) -> Option<RowState> {
        // ORDERING: Acquire, pairs with the Release of `Ready`: text and digest are visible.
        RowState::from_bits(self.state.load(Ordering::Acquire))
    }

    /// Budget in slots plus one (0 = none), and its first token.
    pub(crate) fn budget(&self) -> (u64, u32) {
        // ORDERING: Relaxed: written before the row became `Ready`, which the caller saw with Acquire.
        let word = |at: usize| self.facts.get(at).map_or(0, |word| word.load(Ordering::Relaxed));
        (word(ROW_BUDGET), word(ROW_BUDGET + 1) as u32)
    }

    /// The namespace's generation.
    pub(crate) fn generation(&self) -> u64 {
        // ORDERING: Acquire, pairs with `invalidate`'s SeqCst swap: whoever sees the new generation also
        // sees what was done before it was raised.
        self.generation.load(Ordering::Acquire)
    }
}

/// Index bucket.
#[repr(C, align(64))]
pub(crate) struct BucketLine {
    pub(crate) entries: [AtomicU64; WAYS],
    pub(crate) mark: AtomicU64,
}

#[cfg(not(maru_loom))]
const _: () = {
    use core::mem::{align_of, offset_of, size_of};
    use maru_layout::table;
    assert!(offset_of!(Control, format) == offset_of!(table::ControlPage, format));
    assert!(offset_of!(Control, namespace_chore) == offset_of!(table::ControlPage, namespace_chore));
    assert!(offset_of!(Control, clocks) == offset_of!(table::ControlPage, clocks));
    assert!(size_of::<[Clock; CLOCKS]>() == size_of::<[u64; 4 * CLOCKS]>());
    assert!(offset_of!(Control, leader_chore) == offset_of!(table::ControlPage, leader_chore));
    assert!(size_of::<Control>() <= size_of::<table::ControlPage>());
    assert!(size_of::<SessionLines>() == size_of::<table::SessionEntry>());
    assert!(align_of::<SessionLines>() == align_of::<table::SessionEntry>());
    assert!(offset_of!(SessionLines, heartbeat) == offset_of!(table::SessionEntry, heartbeat));
    assert!(offset_of!(SessionLines, facts) == offset_of!(table::SessionEntry, id));
    assert!(size_of::<AreaHead>() == size_of::<table::SessionAreaHead>());
    assert!(offset_of!(AreaHead, recorder_next) == offset_of!(table::SessionAreaHead, recorder_next));
    assert!(offset_of!(AreaHead, current_step) == offset_of!(table::SessionAreaHead, current_step));
    assert!(offset_of!(AreaHead, counters) == offset_of!(table::SessionAreaHead, counters));
    assert!(offset_of!(AreaHead, recorder) == offset_of!(table::SessionAreaHead, recorder));
    assert!(size_of::<RowLines>() == size_of::<table::NamespaceRow>());
    assert!(offset_of!(RowLines, generation) == offset_of!(table::NamespaceRow, generation));
    assert!(offset_of!(RowLines, facts) == offset_of!(table::NamespaceRow, text_bytes));
    assert!(offset_of!(RowLines, text) == offset_of!(table::NamespaceRow, text));
    assert!(size_of::<BucketLine>() == size_of::<table::Bucket>());
    assert!(offset_of!(BucketLine, mark) == offset_of!(table::Bucket, mark));
};
