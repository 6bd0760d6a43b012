//! Death and fencing: what others do for, and to, a session that does not act any more.
//!
//! Proof is the kernel's (`session/liveness.rs`): the life lock on the session's byte is free. A time-out, a
//! silent heartbeat or a closed socket prove nothing. With proof:
//!
//! 1. session word `→ Dead(epoch)`: voids every lease of the session at once;
//! 2. a **full** sweep of all slot words with that owner; it may be the second one, after a fence;
//! 3. chores held under that name are given back;
//! 4. session word `→ Free(epoch)`: the next owner attaches with the next epoch.
//!
//! * D1: each step of the sweep reads the slot word, *then* checks that the session word still is `Dead(epoch)`,
//!   *then* swaps the slot word. A recoverer that slept through steps 3 and 4 finds the session word moved on, so
//!   it never touches a slot of the next owner; two recoverers at once and a recovery cut short are the same case.
//! * D2: `Claiming`, `Pending` and `Writing` by CPU are freed: whoever could store there is gone. `Writing` by a
//!   device stays `Quarantined` until somebody vouches for the device. `Retiring` is freed after a lease scan,
//!   never reverted.
//! * D3: a fence without proof quarantines instead of freeing, and leaves leases counting.
//! * D4: proof is about the holder of a session word that was read before the kernel was asked, and the word goes
//!   to `Dead` only from a word of that holder, which its epoch names: whoever attached in between is not touched, and
//!   a fence in between saves nobody.

use maru_layout::farewell::Cause;
use maru_layout::table::Counter;
use maru_layout::word::{ChoreWord, IndexEntry, Owner, SessionState, SessionWord, SlotState, SlotWord};

use crate::engine::Engine;
use crate::regime::Regime;
use crate::step::step;
use crate::sync::{AtomicU64, Ordering, edge};

/// How often one slot word of a dead owner can be found moved by others before it is home: `Claiming`, `Pending` or
/// `Writing`, then `Quarantined` by a fencer; or `Retiring`, then owner 0. And how often its session word can be:
/// `Attaching`, `Live`, `Fenced`.
const TURNS: u32 = 4;

impl<R: Regime> Engine<R> {
    /// Whether the session that owns `word` is proven dead.
    pub(crate) fn owner_is_dead(&self, word: SlotWord) -> bool {
        word.owner().index().is_some_and(|index| self.proof_of_death(index).is_some())
    }

    /// Recovers the session that owns `word`, if it is proven dead; false when it is not.
    pub(crate) fn recover_owner(&self, word: SlotWord) -> bool {
        word.owner().index().is_some_and(|index| self.recover_if_dead(index))
    }

    /// Recovers session `index` if it is proven dead; false when it is not.
    pub(crate) fn recover_if_dead(&self, index: u32) -> bool {
        let Some(dead) = self.proof_of_death(index) else { return false };
        self.recover_session(index, dead);
        true
    }

    /// The session word whose holder is proven dead: read *before* the kernel is asked, so that the proof is about
    /// that holder and not about a later one (D4).
    fn proof_of_death(&self, index: u32) -> Option<SessionWord> {
        if index >= self.tables.geometry().session_count || index == self.me.index {
            return None;
        }
        let word = self.tables.session(index).word();
        let idle = matches!(word.state(), Some(SessionState::Free) | None);
        let dead = !idle && self.world.proven_dead(index);
        let word = if edge!(WordBeforeProof) { word } else { self.tables.session(index).word() };
        dead.then_some(word)
    }

    /// Recovers every session that is proven dead. Returns sessions and slots.
    pub(crate) fn recover_all_dead(&self) -> (u32, u32) {
        let (mut sessions, mut slots) = (0, 0);
        for index in 0..self.tables.geometry().session_count {
            if let Some(dead) = self.proof_of_death(index)
                && let Some(freed) = self.recover_session(index, dead)
            {
                sessions += 1;
                slots += freed;
            }
        }
        (sessions, slots)
    }

    /// Recovers the session whose holder under `seen` is proven dead; `None` when somebody else finished it.
    pub(crate) fn recover_session(&self, index: u32, seen: SessionWord) -> Option<u32> {
        let entry = self.tables.session(index);
        let dead = seen.to(SessionState::Dead);
        let mut word = seen;
        for _ in 0..TURNS {
            if word == dead {
                break;
            }
            step!(RecoverDead);
            if entry.swap(word, dead) {
                word = dead;
                break;
            }
            // Lost: the same holder was fenced, or somebody else declared it; or recovered it altogether (D4).
            word = entry.word();
            if word.epoch() != seen.epoch() || matches!(word.state(), None | Some(SessionState::Free)) {
                return None;
            }
        }
        if word != dead {
            return None;
        }
        let freed = self.sweep_dead(index, dead)?;
        self.give_back_chores(index, dead.epoch());
        step!(RecoverFree);
        if entry.swap(dead, dead.to(SessionState::Free)) {
            self.count(Counter::Recovered, 1);
            self.count(Counter::RecoveredSlots, freed.into());
        }
        Some(freed)
    }

    /// The full sweep; `None` when the session word moved on, which means that another recoverer finished.
    fn sweep_dead(&self, index: u32, dead: SessionWord) -> Option<u32> {
        let owner = Owner::session(index);
        let entry = self.tables.session(index);
        let mut freed = 0;
        for slot in 0..self.tables.geometry().slot_count {
            // Again while the word still is the dead owner's: a fencer or a retirer that came before the proof may
            // move it once more under us. States only move forward, so this ends.
            for _ in 0..TURNS {
                let word = self.tables.slot(slot).word();
                if word.owner() != owner {
                    break;
                }
                // D1: after the slot word was read, before it is swapped.
                if edge!(StillDead) && entry.word() != dead {
                    return None;
                }
                freed += u32::from(self.recover_slot(slot, word));
            }
        }
        // Nothing of this owner can appear any more: it is dead, and its index is not given out before `Free`.
        (entry.word() == dead).then_some(freed)
    }

    /// Brings one slot of a dead owner home (D2).
    fn recover_slot(&self, slot: u32, word: SlotWord) -> bool {
        let record = self.tables.slot(slot);
        let quarantined = word.to(SlotState::Quarantined, Owner::NOBODY);
        match word.state() {
            Some(SlotState::Retiring) => {
                let drained = word.to(SlotState::Retiring, Owner::NOBODY);
                step!(RecoverSlot);
                record.swap(word, drained).is_ok() && self.free_drained_as(slot, drained, Cause::Recovered)
            }
            Some(SlotState::Writing | SlotState::Quarantined) if word.device_writer() => {
                step!(RecoverSlot);
                let _ = record.swap(word, quarantined);
                false
            }
            Some(SlotState::Claiming | SlotState::Pending | SlotState::Writing | SlotState::Quarantined) => {
                let place = self.place_of(record);
                self.say_farewell(slot, word, Cause::Unfinished);
                step!(RecoverSlot);
                if record.swap(word, word.freed()).is_err() {
                    return false;
                }
                if let Some(place) = place {
                    self.remove_entry(&place, IndexEntry::new(slot, word.generation(), place.tag));
                }
                self.clear_bit(slot);
                true
            }
            _ => false,
        }
    }

    /// Gives back everything that this session still owns, before it closes: it knows that it writes nowhere.
    pub(crate) fn sweep_own(&self) {
        for slot in 0..self.tables.geometry().slot_count {
            for _ in 0..TURNS {
                let word = self.tables.slot(slot).word();
                if word.owner() != self.me.owner {
                    break;
                }
                self.recover_slot(slot, word);
            }
        }
        self.give_back_chores(self.me.index, self.me.live.epoch());
    }

    /// Gives back region-wide chores that the dead session held.
    fn give_back_chores(&self, index: u32, epoch: u32) {
        let held = ChoreWord::held(Owner::session(index), epoch);
        let control = self.tables.control();
        for chore in [&control.namespace_chore, &control.leader_chore] {
            // ORDERING: Relaxed: a hint; the swap decides.
            if chore.load(Ordering::Relaxed) == held.0 {
                step!(RecoverChore);
                // ORDERING: AcqRel: as the holder's own Release.
                let _ = chore.compare_exchange(held.0, ChoreWord::FREE.0, Ordering::AcqRel, Ordering::Relaxed);
            }
        }
    }

    /// Gets a chore out of the hands of a holder that is proven dead, or that no longer exists under the name in the
    /// word (its recoverer died between the sweep and this, or the word is damaged).
    pub(crate) fn recover_chore_holder(&self, chore: &AtomicU64, holder: ChoreWord) {
        let count = self.tables.geometry().session_count;
        let Some(index) = holder.owner().index().filter(|index| *index < count) else {
            self.damage();
            step!(RecoverChore);
            let _ = chore.compare_exchange(holder.0, ChoreWord::FREE.0, Ordering::AcqRel, Ordering::Relaxed);
            return;
        };
        let word = self.tables.session(index).word();
        if word.epoch() != holder.epoch() || matches!(word.state(), None | Some(SessionState::Free)) {
            step!(RecoverChore);
            let _ = chore.compare_exchange(holder.0, ChoreWord::FREE.0, Ordering::AcqRel, Ordering::Relaxed);
        } else if let Some(dead) = self.proof_of_death(index) {
            self.recover_session(index, dead);
        }
    }

    /// Shuts a session out without proof of death (D3). False when it was not live at that epoch.
    pub(crate) fn fence_session(&self, index: u32, epoch: u32) -> bool {
        let entry = self.tables.session(index);
        let live = entry.word();
        let fenced = live.to(SessionState::Fenced);
        if live.epoch() != epoch || !matches!(live.state(), Some(SessionState::Live | SessionState::Fenced)) {
            return false;
        }
        step!(FenceSession);
        if !entry.swap(live, fenced) && entry.word() != fenced {
            return false;
        }
        let owner = Owner::session(index);
        for slot in 0..self.tables.geometry().slot_count {
            let word = self.tables.slot(slot).word();
            if word.owner() != owner {
                continue;
            }
            let shut = match word.state() {
                // Its call cannot revert it any more, and whoever needs the space frees it.
                Some(SlotState::Retiring) => word.to(SlotState::Retiring, Owner::NOBODY),
                Some(SlotState::Writing) if edge!(Quarantine) => word.to(SlotState::Quarantined, owner),
                // Nothing is written there yet, not even by a device.
                Some(SlotState::Claiming | SlotState::Pending) if edge!(Quarantine) => {
                    word.to(SlotState::Quarantined, owner).with_device_writer(false)
                }
                Some(SlotState::Claiming | SlotState::Pending | SlotState::Writing) => word.freed(),
                _ => continue,
            };
            if entry.word() != fenced {
                return false;
            }
            step!(FenceSlot);
            let _ = self.tables.slot(slot).swap(word, shut);
        }
        true
    }
}
