//! Looking for an object in its two buckets.

use core::ops::ControlFlow;

use maru_layout::object::{Home, other_bucket};
use maru_layout::table::Counter;
use maru_layout::word::{IndexEntry, SlotState, SlotWord, short_generation};

use crate::engine::Engine;
use crate::regime::Regime;
#[cfg(not(maru_loom))]
use crate::slot::Slot;
use crate::slot::{IdentityWords, same_object};
use crate::sync::Ordering;
use crate::view::BucketLine;

/// A slot that holds the object looked for, at the moment it was looked at.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sighting {
    pub(crate) slot: u32,
    pub(crate) word: SlotWord,
    pub(crate) identity: IdentityWords,
}

impl<R: Regime> Engine<R> {
    /// Visits the slots that hold the object of `wanted`, in bucket order, until `visit` breaks.
    ///
    /// `thorough` looks at both buckets whatever the mark says: what a twin scan needs, whose correctness must
    /// not lean on a counter.
    #[inline]
    pub(crate) fn scan(
        &self,
        home: Home,
        wanted: &IdentityWords,
        thorough: bool,
        mut visit: impl FnMut(Sighting) -> ControlFlow<()>,
    ) {
        let first = self.tables.bucket(home.first);
        if self.scan_bucket(first, home.tag, wanted, &mut visit).is_break() {
            return;
        }
        // ORDERING: Acquire, and after the Acquire loads of the entries (I3): an entry that left this bucket was
        // first counted here ([mark]: fetch_add before the copy, copy before the removal that we saw).
        if !thorough && first.mark.load(Ordering::Acquire) == 0 {
            return;
        }
        let geometry = self.tables.geometry();
        let second = other_bucket(home.first, home.tag, geometry.hash_seed, geometry.bucket_count);
        if second != home.first {
            let _ = self.scan_bucket(self.tables.bucket(second), home.tag, wanted, &mut visit);
        }
    }

    #[inline]
    fn scan_bucket(
        &self,
        bucket: &BucketLine,
        tag: u16,
        wanted: &IdentityWords,
        visit: &mut impl FnMut(Sighting) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        for cell in &bucket.entries {
            // ORDERING: Acquire, reader's end of [entry]: the slot's `Pending` and its identity are visible.
            let entry = IndexEntry(cell.load(Ordering::Acquire));
            if entry.is_empty() || entry.tag() != tag {
                continue;
            }
            if let Some(sighting) = self.sight(entry, wanted) {
                visit(sighting)?;
            }
        }
        ControlFlow::Continue(())
    }

    /// Whether `entry` leads to a slot that holds the object of `wanted` right now.
    #[inline]
    pub(crate) fn sight(&self, entry: IndexEntry, wanted: &IdentityWords) -> Option<Sighting> {
        let Some(slot) = self.tables.slot_checked(entry.slot()) else {
            self.damage();
            return None;
        };
        let (word, identity) = slot.read_identity()?;
        let same_life = short_generation(word.generation()) == entry.short_generation();
        (same_life && same_object(&identity, wanted)).then_some(Sighting { slot: entry.slot(), word, identity })
    }

    /// Whether an entry of these buckets leads to a slot that held the object of `wanted` until its bytes were found
    /// damaged: such an entry stays until its way is needed, for this answer alone. Asked after a miss whose buckets did
    /// not say "nothing".
    #[cold]
    #[inline(never)]
    #[cfg(not(maru_loom))]
    pub(crate) fn was_damaged(&self, home: Home, wanted: &IdentityWords) -> bool {
        let geometry = self.tables.geometry();
        let second = other_bucket(home.first, home.tag, geometry.hash_seed, geometry.bucket_count);
        let in_bucket = |bucket: u32| {
            self.tables.bucket(bucket).entries.iter().any(|cell| {
                // ORDERING: Acquire, as in `scan_bucket`.
                let entry = IndexEntry(cell.load(Ordering::Acquire));
                let alike = !entry.is_empty() && entry.tag() == home.tag;
                let slot = if alike { self.tables.slot_checked(entry.slot()) } else { None };
                slot.and_then(Slot::read_damaged).is_some_and(|(word, identity)| {
                    short_generation(word.generation()) == entry.short_generation() && same_object(&identity, wanted)
                })
            })
        };
        // ORDERING: Relaxed: a reason, and no answer on which a hit rests.
        let more = self.tables.bucket(home.first).mark.load(Ordering::Relaxed) != 0;
        in_bucket(home.first) || more && in_bucket(second)
    }

    /// A model tells only hits from misses.
    #[cfg(maru_loom)]
    pub(crate) fn was_damaged(&self, _: Home, _: &IdentityWords) -> bool {
        false
    }

    /// Whether `entry` can be thrown away: its slot has moved on, or nobody can ever look anything up there.
    pub(crate) fn is_stale(&self, entry: IndexEntry) -> bool {
        let Some(slot) = self.tables.slot_checked(entry.slot()) else {
            self.damage();
            return true;
        };
        let word = slot.word();
        short_generation(word.generation()) != entry.short_generation()
            || matches!(word.state(), None | Some(SlotState::Free | SlotState::Quarantined))
    }

    /// Counts something in the region that no version writes.
    #[cold]
    pub(crate) fn damage(&self) {
        self.count(Counter::Damage, 1);
    }
}
