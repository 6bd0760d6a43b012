//! Retiring: from `Ready` to `Free`, past every reader.
//!
//! 1. Scan the lease cells first: where somebody reads, shutting the door would only be undone.
//! 2. `Ready → Retiring`, owned by *this call*. New readers fail from here on.
//! 3. SeqCst fence, then read session words and marks *now*, then the cells (\[lease]).
//! 4. Nobody: `Retiring → Free`. Somebody: an eviction puts it back to `Ready`; a retire on request leaves it
//!    `Retiring` with owner 0, and anyone frees it after the last lease.
//!
//! * X1: only the call that shut a word reverts it, or frees it while its name is in the word. A recoverer frees,
//!   never reverts. Owner 0: anyone frees, nobody reverts. Whoever is blocked by a call that stands still for the bound
//!   of stalled writers, or by a fenced one, sets owner 0; so does who wants the block retired, at once.
//! * X2: the slot is freed only after a scan that began after the word was shut found no lease.
//!
//! Whoever takes a block away says so first, in the farewell table: a hint for `maru-inspect why`, on which nothing rests.
//! A death between the two leaves the farewell of a block that is still there, and whoever asks looks at the slots first.

use core::ops::ControlFlow;
use std::collections::HashMap;

use maru_layout::farewell::{Cause, FarewellPlace};
#[cfg(not(maru_loom))]
use maru_layout::farewell::{FarewellWord, farewell_second};
#[cfg(not(maru_loom))]
use maru_layout::object::record_is_sealed;
use maru_layout::object::{ObjectKey, Place};
use maru_layout::table::Counter;
use maru_layout::word::{IndexEntry, Owner, SlotState, SlotWord, short_generation};

use crate::engine::Engine;
use crate::lease::Leased;
use crate::regime::Regime;
use crate::slot::{Slot, identity_words};
use crate::step::step;
use crate::sync::{Ordering, edge};
use crate::{ReclaimReport, Retire};

/// Looks that a retire takes at an object that is being evicted and put back under it.
const RETIRE_LOOKS: u32 = if cfg!(maru_loom) { 2 } else { 16 };

impl<R: Regime> Engine<R> {
    /// Retires the object of `key`. What an evictor has shut is not gone yet, since it may put it back (X1): the decision is
    /// taken from it, and the block drains.
    pub(crate) fn retire_object(&self, key: &ObjectKey) -> Retire {
        let geometry = self.tables.geometry();
        let home = key.home(geometry.hash_seed, geometry.bucket_count);
        let identity = identity_words(key, 0);
        for _ in 0..RETIRE_LOOKS {
            let mut found = None;
            self.scan(home, &identity, false, |sighting| match sighting.word.state() {
                Some(SlotState::Ready) => {
                    found = Some(sighting);
                    ControlFlow::Break(())
                }
                Some(SlotState::Retiring) if sighting.word.owner() != Owner::NOBODY => {
                    found = Some(sighting);
                    ControlFlow::Continue(())
                }
                _ => ControlFlow::Continue(()),
            });
            let Some(sighting) = found else { return Retire::Gone };
            let retired = if sighting.word.is(SlotState::Ready) {
                self.retire_ready(sighting.slot, sighting.word, Cause::Retired)
            } else {
                self.retire_shut(sighting.slot, sighting.word)
            };
            // `Gone`: it moved on under me, maybe to where it can be found again.
            if retired != Retire::Gone {
                return retired;
            }
        }
        Retire::Gone
    }

    /// Takes the decision over a block that somebody else has shut.
    fn retire_shut(&self, slot: u32, shut: SlotWord) -> Retire {
        self.say_farewell(slot, shut, Cause::Retired);
        self.look_here(slot);
        let drained = shut.to(SlotState::Retiring, Owner::NOBODY);
        step!(RetireDrain);
        if self.tables.slot(slot).swap(shut, drained).is_err() {
            return Retire::Gone;
        }
        self.count(Counter::Retired, 1);
        if self.free_drained(slot, drained) { Retire::Retired } else { Retire::Draining }
    }

    /// Retires the block of a slot whose word is (or was) `ready`.
    fn retire_ready(&self, slot: u32, ready: SlotWord, cause: Cause) -> Retire {
        let Some(shut) = self.shut(slot, ready) else { return Retire::Gone };
        self.count(Counter::Retired, 1);
        if !self.leased_by_the_living(slot, shut.generation()) && self.free_ready(slot, shut, cause) {
            return Retire::Retired;
        }
        // Nobody reverts what drains (X1): who shut it, and when, is known now.
        self.say_farewell(slot, shut, cause);
        self.look_here(slot);
        step!(RetireDrain);
        // X1: from here on anyone may free it. A failed swap: somebody took the decision from me, to the same end.
        let _ = self.tables.slot(slot).swap(shut, shut.to(SlotState::Retiring, Owner::NOBODY));
        Retire::Draining
    }

    /// Retires the blocks of a range whose namespace generation has ended (N3 in `namespace.rs`). Nobody can find them
    /// any more, and whoever ended the generation may have died, or lost the race with their commit. Returns how many
    /// slots are free by it; the others drain.
    #[cfg(not(maru_loom))]
    pub(crate) fn retire_ended_in(&self, slots: core::ops::Range<u32>) -> u32 {
        // A row that was never invalidated is at generation 1, and so is every block of it: usually there is no work.
        let rows = self.tables.geometry().namespace_count;
        if (0..rows).all(|row| self.tables.row(row).generation() <= 1) {
            return 0;
        }
        let (mut freed, mut digests) = (0, HashMap::new());
        for slot in slots {
            if let Some(ended) = self.ended_block(slot, &mut digests) {
                freed += u32::from(self.retire_ready(slot, ended, Cause::Invalidated) == Retire::Retired);
            }
        }
        freed
    }

    /// The word of a ready slot whose block belongs to an ended generation. `digests` remembers those of rows.
    #[cfg(not(maru_loom))]
    fn ended_block(&self, slot: u32, digests: &mut HashMap<(u32, u64), [u8; 16]>) -> Option<SlotWord> {
        let record = self.tables.slot(slot);
        let (word, identity) = record.read_identity()?;
        let body = record.read_body();
        let lines = (body.namespace_row < self.tables.geometry().namespace_count)
            .then(|| self.tables.row(body.namespace_row))
            .filter(|_| word.is(SlotState::Ready) && body.generation == word.generation())?;
        // ORDERING: the Acquire load inside comes after the block was read, and generations only grow: a digest of
        // another generation is one of an earlier generation, never of one that began meanwhile.
        let generation = lines.generation();
        let current = match digests.get(&(body.namespace_row, generation)) {
            Some(digest) => *digest,
            None => {
                let digest = crate::namespace::digest_of(&crate::namespace::row_text(lines)?, generation);
                digests.insert((body.namespace_row, generation), digest);
                digest
            }
        };
        let identity = Slot::plain_identity(&identity);
        // A record that is not sealed names no row that could be believed.
        (identity.namespace != current && record_is_sealed(&identity, &body)).then_some(word)
    }

    /// Whether a session that is not proven dead protects the slot; a dead one is recovered, which voids its leases.
    pub(crate) fn leased_by_the_living(&self, slot: u32, generation: u64) -> bool {
        for _ in 0..self.tables.geometry().session_count {
            match self.leased(slot, generation) {
                Leased::Nobody => return false,
                Leased::By { session } if self.recover_if_dead(session) => {}
                Leased::By { .. } => return true,
            }
        }
        true
    }

    /// Evicts the ready resident behind an index entry; false when it is read, gone or not ready. `take` is called once
    /// nobody can read it any more and before it is freed: what it is evicted for. If that fails, it stays.
    pub(crate) fn evict(&self, entry: IndexEntry, take: impl FnOnce() -> bool) -> bool {
        let Some(slot) = self.tables.slot_checked(entry.slot()) else { return false };
        let word = slot.word();
        if !word.is(SlotState::Ready) || short_generation(word.generation()) != entry.short_generation() {
            return false;
        }
        // Scanned before shutting, so that reverts are rare.
        if self.leased_by_the_living(entry.slot(), word.generation()) {
            return false;
        }
        let Some(shut) = self.shut(entry.slot(), word) else { return false };
        let unread = !edge!(ScanAfterShut) || self.leased(entry.slot(), shut.generation()) == Leased::Nobody;
        if unread && take() {
            // Lost: somebody took the decision from me because I stood still; then the slot drains without me.
            self.free_ready(entry.slot(), shut, Cause::Displaced);
            self.count(Counter::Evicted, 1);
            return true;
        }
        step!(RetireRevert);
        let _ = slot.swap(shut, shut.to(SlotState::Ready, Owner::NOBODY));
        false
    }

    /// `Ready → Retiring` under my name, then the fence.
    fn shut(&self, slot: u32, ready: SlotWord) -> Option<SlotWord> {
        let shut = ready.to(SlotState::Retiring, self.me.owner);
        step!(RetireShut);
        self.tables.slot(slot).swap(ready, shut).ok()?;
        R::write_back(self.tables.slot(slot));
        step!(RetireFence);
        // ORDERING: SeqCst fence, [lease]; pairs with the one in lease.rs. Weaker: I miss a cell while its reader
        // misses `Retiring`, and the slot is re-used under it; loom-tests/tests/lease.rs.
        edge!(fence RetirerFence, Ordering::SeqCst);
        Some(shut)
    }

    /// The farewell of a block, then `Retiring → Free`.
    pub(crate) fn free_ready(&self, slot: u32, shut: SlotWord, cause: Cause) -> bool {
        let places = self.places_of(slot, shut);
        if let Some((_, farewell)) = places {
            self.say(slot, farewell, cause);
        }
        self.free_at(slot, shut, places.map(|(place, _)| place))
    }

    /// Says why the block of this life of a slot goes, who takes it away and when.
    #[cfg(not(maru_loom))]
    pub(crate) fn say_farewell(&self, slot: u32, life: SlotWord, cause: Cause) {
        if let Some((_, farewell)) = self.places_of(slot, life) {
            self.say(slot, farewell, cause);
        }
    }

    #[cfg(not(maru_loom))]
    fn say(&self, slot: u32, place: FarewellPlace, cause: Cause) {
        let cell = self.tables.farewell(place.index);
        let second = |time_ns| farewell_second(self.tables.geometry().formatted_ns, time_ns);
        if matches!(cause, Cause::Drained | Cause::Recovered) {
            // Whoever shut it may have said so already, and knows better why.
            // ORDERING: Relaxed, as the store below.
            let said = FarewellWord(cell.load(Ordering::Relaxed));
            let since = second(self.tables.slot(slot).read_body().committed_ns);
            let knew_better = said.cause().is_some_and(|cause| cause != Cause::Unfinished);
            if knew_better && said.may_be_of(place.tag) && said.second() >= since {
                return;
            }
        }
        let word = FarewellWord::new(place.tag, cause, self.me.owner, second(crate::wall_ns()));
        step!(Farewell);
        // ORDERING: Relaxed: a hint, one whole word. It orders nothing and decides nothing; another key's farewell may
        // overwrite it at any time, and a death of this host may lose it.
        cell.store(word.0, Ordering::Relaxed);
    }

    /// A model has nobody who would ask, and does not look for the place.
    #[cfg(maru_loom)]
    pub(crate) fn say_farewell(&self, _: u32, _: SlotWord, _: Cause) {}

    #[cfg(maru_loom)]
    fn say(&self, _: u32, _: FarewellPlace, _: Cause) {}

    /// `Retiring → Free`, then entry and bitmap.
    pub(crate) fn free_shut(&self, slot: u32, shut: SlotWord) -> bool {
        self.free_at(slot, shut, self.place_of(self.tables.slot(slot)))
    }

    /// The same, of a block with this place. The identity must be read before the word moves.
    fn free_at(&self, slot: u32, shut: SlotWord, place: Option<Place>) -> bool {
        self.look_here(slot);
        step!(RetireFree);
        if self.tables.slot(slot).swap(shut, shut.freed()).is_err() {
            return false;
        }
        if let Some(place) = place {
            self.remove_entry(&place, IndexEntry::new(slot, shut.generation(), place.tag));
        }
        self.clear_bit(slot);
        true
    }

    /// Where the index looks for what a slot says it holds.
    pub(crate) fn place_of(&self, record: &Slot) -> Option<Place> {
        let (_, identity) = record.read_identity()?;
        let key = ObjectKey::of_record(&Slot::plain_identity(&identity));
        let geometry = self.tables.geometry();
        Some(key.place(geometry.hash_seed, geometry.bucket_count))
    }

    /// Where index and farewell table look for what a slot says it holds in this life.
    fn places_of(&self, slot: u32, life: SlotWord) -> Option<(Place, FarewellPlace)> {
        let (word, identity) = self.tables.slot(slot).read_identity()?;
        let key = ObjectKey::of_record(&Slot::plain_identity(&identity));
        let geometry = self.tables.geometry();
        let places = || key.place_and_farewell(geometry.hash_seed, geometry.bucket_count, geometry.farewell_count);
        (word.generation() == life.generation()).then(places)
    }

    /// Frees a slot that drains under owner 0, if its last lease has ended.
    pub(crate) fn free_drained(&self, slot: u32, word: SlotWord) -> bool {
        self.free_drained_as(slot, word, Cause::Drained)
    }

    /// The same, for the cause that is given where nothing was said when it was shut.
    pub(crate) fn free_drained_as(&self, slot: u32, word: SlotWord, cause: Cause) -> bool {
        self.look_here(slot);
        step!(RetireFence);
        // ORDERING: SeqCst fence, [lease]: the word was shut by another call, maybe on another processor, and was
        // read above; the scan below must not be older than that.
        edge!(fence RetirerFence, Ordering::SeqCst);
        let freed = self.leased(slot, word.generation()) == Leased::Nobody && self.free_ready(slot, word, cause);
        self.count(Counter::Reclaimed, freed.into());
        freed
    }

    /// Frees the drained slots of a range: one fence and one look at the lease cells for all of them. Returns how many
    /// were freed and how many are still read.
    pub(crate) fn free_drained_in(&self, slots: core::ops::Range<u32>) -> (u32, u32) {
        let mut drained: HashMap<(u32, u64), (SlotWord, bool)> = slots
            .filter_map(|slot| {
                let word = self.tables.slot(slot).word();
                let drains = word.is(SlotState::Retiring) && word.owner() == Owner::NOBODY;
                drains.then_some(((slot, short_generation(word.generation())), (word, false)))
            })
            .collect();
        if drained.is_empty() {
            return (0, 0);
        }
        step!(RetireFence);
        // ORDERING: SeqCst fence, [lease], as in `free_drained`, for all words read above.
        edge!(fence RetirerFence, Ordering::SeqCst);
        self.visit_leases(|session, index, cell| {
            if let Some((_, read)) = drained.get_mut(&(cell.slot(), cell.short_generation())) {
                *read |= !self.has_lapsed(session, index, cell);
            }
            ControlFlow::Continue(())
        });
        let (mut freed, mut read) = (0, 0);
        for ((slot, _), (word, is_read)) in drained {
            if !is_read && self.free_ready(slot, word, Cause::Drained) { freed += 1 } else { read += 1 }
        }
        self.count(Counter::Reclaimed, freed.into());
        (freed, read)
    }

    /// Recovers dead sessions, and frees every drained slot and those of ended namespaces.
    pub(crate) fn reclaim_all(&self) -> ReclaimReport {
        let slots = 0..self.tables.geometry().slot_count;
        let (recovered_sessions, recovered_slots) = self.recover_all_dead();
        #[cfg(not(maru_loom))]
        let ended = self.retire_ended_in(slots.clone());
        // A model's blocks carry no namespace row.
        #[cfg(maru_loom)]
        let ended = 0;
        let (drained, draining_slots) = self.free_drained_in(slots);
        ReclaimReport { freed_slots: ended + drained, draining_slots, recovered_sessions, recovered_slots }
    }
}
