//! One slot: its word, its record, and the edges that make them safe to read.
//!
//! The word is the only truth. Everything else in the record belongs to whoever the word says, and is
//! believed only when the word said so before *and* after it was read.
//!
//! # States
//!
//! ```text
//!         claim             record          twins settled         commit
//!  Free ─────────▶ Claiming ──────▶ Pending ────────────▶ Writing ──────▶ Ready
//!   ▲                 │                │ killed by a twin    │              │ retire
//!   │                 ▼                ▼                     ▼              ▼
//!   └──────────── owner gone ◀──── gives back ◀──── abort, superseded    Retiring
//!   └───────────────────────────────── no lease left ◀──────────────────────┘
//!
//!  Quarantined: space that somebody not proven gone may still write, damaged content, used-up generations
//! ```
//!
//! Every arrow into `Free` raises the generation, so a (slot, generation) pair names one life of the slot.
//!
//! # Edges
//!
//! | edge | writer | reader | carries | model |
//! | --- | --- | --- | --- | --- |
//! | \[claim] | CAS `Free→Claiming`, then `fence(Release)` | `read_identity`: fields, `fence(Acquire)`, word | "fields are changing" before the fields change | `publish` |
//! | \[pending] | CAS `Claiming→Pending` Release | word Acquire | object id, length, full generation | `twins` |
//! | \[entry] | CAS of the index entry Release | entry Acquire | the word's `Pending` | `twins` |
//! | \[twin] | entry, `fence(SeqCst)`, scan | the same, by a twin | one of two twins sees the other | `twins` |
//! | \[publish] | CAS `Writing→Ready` Release | word Acquire | payload, checksum, body | `publish` |
//! | \[lease] | cell, `fence(SeqCst)`, word | CAS `Ready→Retiring`, `fence(SeqCst)`, cells | reader sees `Retiring` or retirer sees the cell | `lease` |
//! | \[free] | CAS `→Free` AcqRel | next claim's CAS Acquire | the old readers are gone | `lease` |

use maru_layout::object::ObjectKey;
use maru_layout::record::{BodyLine, IdentityLine};
#[cfg(not(maru_loom))]
use maru_layout::word::{MAX_GENERATION, Owner};
use maru_layout::word::{SlotState, SlotWord};

use crate::sync::{AtomicU64, Ordering, edge};

/// Atomic view of a slot record.
#[repr(C, align(128))]
pub(crate) struct Slot {
    word: AtomicU64,
    /// prefix (4 words), namespace (2), shard/part/length (1).
    identity: [AtomicU64; KEPT.len()],
    /// generation, checksum, then the rest of the body line.
    body: [AtomicU64; BODY_WORDS],
}

/// Which identity words a slot keeps.
#[cfg(not(maru_loom))]
const KEPT: [usize; 7] = [0, 1, 2, 3, 4, 5, 6];
/// In a model, two that can disagree: its keys differ in their first eight bytes, its lengths in the last.
#[cfg(maru_loom)]
const KEPT: [usize; 2] = [0, 6];
/// Words of the body line; in a model generation and checksum.
const BODY_WORDS: usize = if cfg!(maru_loom) { 2 } else { 8 };

#[cfg(not(maru_loom))]
const _: () = {
    use core::mem::{offset_of, size_of};
    assert!(size_of::<Slot>() == size_of::<maru_layout::record::SlotRecord>());
    assert!(offset_of!(Slot, identity) == offset_of!(IdentityLine, prefix));
    assert!(offset_of!(Slot, body) == size_of::<IdentityLine>());
};

/// Identity fields as words: what is compared on a lookup.
pub(crate) type IdentityWords = [u64; 7];

/// The words that a record of `key` with `length` has.
pub(crate) fn identity_words(key: &ObjectKey, length: u32) -> IdentityWords {
    let line = IdentityLine {
        word: 0,
        prefix: key.prefix,
        namespace: key.namespace,
        shard: key.shard,
        part: key.part,
        length,
    };
    let words: [u64; 8] = bytemuck::cast(line);
    [words[1], words[2], words[3], words[4], words[5], words[6], words[7]]
}

/// The length in identity words.
pub(crate) fn length_of(words: &IdentityWords) -> u32 {
    (words[6] >> 32) as u32
}

/// Whether two identities name the same object, whatever its length.
pub(crate) fn same_object(left: &IdentityWords, right: &IdentityWords) -> bool {
    let differ = (left[6] ^ right[6]) << 32;
    (0..6).fold(differ, |differ, at| differ | (left[at] ^ right[at])) == 0
}

impl Slot {
    /// An all-zero slot: `Free`, never used.
    #[cfg(maru_loom)]
    pub(crate) fn blank() -> Self {
        Self { word: AtomicU64::new(0), identity: crate::view::zeroed(), body: crate::view::zeroed() }
    }

    /// The word now.
    pub(crate) fn word(&self) -> SlotWord {
        // ORDERING: Acquire, reader's end of [pending] and [publish]. Relaxed: identity or payload of an earlier
        // life under a new word; loom-tests/tests/publish.rs.
        SlotWord(self.word.load(Ordering::Acquire))
    }

    /// Moves the word from `from` to `to`.
    ///
    /// # Errors
    /// The word found instead.
    pub(crate) fn swap(&self, from: SlotWord, to: SlotWord) -> Result<(), SlotWord> {
        // ORDERING: AcqRel. Release is the writer's end of [pending], [publish] and [free]; Acquire orders the next
        // owner after the last one's stores. Failure Acquire: the caller acts on what it finds.
        let success = edge!(Publish if to.is(SlotState::Ready), Ordering::AcqRel);
        match self.word.compare_exchange(from.0, to.0, success, Ordering::Acquire) {
            Ok(_) => Ok(()),
            Err(found) => Err(SlotWord(found)),
        }
    }

    /// Fills in identity and the body's generation. Only the owner of a `Claiming` word calls this.
    pub(crate) fn fill_identity(&self, words: &IdentityWords, generation: u64) {
        // ORDERING: Release fence, writer's end of [claim]: whoever reads a field stored below and then the word
        // (after its own Acquire fence) sees `Claiming` or later, and so a changed word. Without it a reader can
        // find the old word around new fields.
        edge!(fence ClaimFence, Ordering::Release);
        for (cell, at) in self.identity.iter().zip(KEPT) {
            cell.store(words[at], Ordering::Relaxed);
        }
        self.body[0].store(generation, Ordering::Relaxed);
    }

    /// Identity and word, read as one: the word before and after names the same life of the slot, in a state
    /// in which the fields are complete. `None`: being changed, or free.
    pub(crate) fn read_identity(&self) -> Option<(SlotWord, IdentityWords)> {
        let before = self.word();
        if !has_identity(before) {
            return None;
        }
        let mut words = [0; 7];
        for (cell, at) in self.identity.iter().zip(KEPT) {
            // ORDERING: Relaxed: validated by the second look at the word.
            words[at] = cell.load(Ordering::Relaxed);
        }
        // ORDERING: Acquire fence, reader's end of [claim]: a field of a later life makes the load below see that
        // life's word. Weakened: identity of one object under the word of another; loom-tests/tests/publish.rs.
        edge!(fence IdentityFence, Ordering::Acquire);
        // ORDERING: Acquire, as in `word`: where this finds a newer state than `before` did, [publish] must hold for it.
        let after = SlotWord(self.word.load(Ordering::Acquire));
        // A changed state at the same generation is fine: identity is fixed from `Pending` to the end of the life.
        (after.generation() == before.generation() && has_identity(after)).then_some((after, words))
    }

    /// Identity and word of a block whose bytes were found damaged. Such a slot was `Ready`, and nobody stores there or
    /// moves its word until the region is formatted anew: one look is enough.
    #[cfg(not(maru_loom))]
    pub(crate) fn read_damaged(&self) -> Option<(SlotWord, IdentityWords)> {
        let word = self.word();
        // Without a generation left it was given back in good order.
        let damaged = word == SlotWord::new(SlotState::Quarantined, Owner::NOBODY, word.generation())
            && word.generation() < MAX_GENERATION;
        // ORDERING: Relaxed: after the Acquire load of the word, which comes after [pending] of the same life.
        damaged.then(|| (word, core::array::from_fn(|at| self.identity[at].load(Ordering::Relaxed))))
    }

    /// Whether the word still is `word`, exactly.
    pub(crate) fn still(&self, word: SlotWord) -> bool {
        // ORDERING: Relaxed: callers fence before; see [lease] and the checks after a copy.
        self.word.load(Ordering::Relaxed) == word.0
    }

    /// Stores the body line but for its generation. Only the owner of a `Writing` word calls this.
    pub(crate) fn fill_body(&self, body: &BodyLine) {
        let words: [u64; 8] = bytemuck::cast(*body);
        for (cell, word) in self.body.iter().zip(words).skip(1) {
            // ORDERING: Relaxed: published by [publish].
            cell.store(word, Ordering::Relaxed);
        }
    }

    /// The body line. It counts only if its generation is the word's.
    pub(crate) fn read_body(&self) -> BodyLine {
        let mut words = [0u64; 8];
        for (word, cell) in words.iter_mut().zip(&self.body) {
            // ORDERING: Relaxed: the caller holds a lease or re-checks the word after.
            *word = cell.load(Ordering::Relaxed);
        }
        bytemuck::cast(words)
    }

    /// Depth of the block, as its body says right now: advice, of whatever life.
    pub(crate) fn depth_hint(&self) -> u32 {
        // ORDERING: Relaxed: advice.
        self.body.get(5).map_or(0, |word| (word.load(Ordering::Relaxed) >> 32) as u32)
    }

    /// The body line, for write-back.
    pub(crate) fn body_line(&self) -> &[AtomicU64; BODY_WORDS] {
        &self.body
    }

    /// The identity line as plain bytes, without its word.
    pub(crate) fn plain_identity(words: &IdentityWords) -> IdentityLine {
        let mut all = [0u64; 8];
        all[1..].copy_from_slice(words);
        bytemuck::cast(all)
    }
}

/// States in which the identity fields are complete and belong to the word's generation. A quarantined slot may
/// have been fenced in the middle of filling them, and nobody looks anything up there.
fn has_identity(word: SlotWord) -> bool {
    matches!(word.state(), Some(SlotState::Pending | SlotState::Writing | SlotState::Ready | SlotState::Retiring))
}
