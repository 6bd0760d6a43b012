//! Becoming a session: an entry of the table, a lock that proves life, leases of nobody.
//!
//! 1. Take the life lock on the entry's byte. Whoever holds it is the only process that may move the entry forward
//!    from a state that belongs to the dead.
//! 2. If the entry is not free, its last holder is gone (its lock was): recover it.
//! 3. `Free → Attaching` at a higher epoch than any in the table, with the host's tag in the same store.
//! 4. Zero the lease mark and cells of the last owner; they have been void since its word left `Live`.
//! 5. Fill in the identity; `Attaching → Live`.
//!
//! A death anywhere here frees the lock, and the entry belongs to the dead again.

use maru_layout::table::SessionEntry;
use maru_layout::word::{SessionState, SessionWord};

use crate::engine::Engine;
use crate::regime::Regime;
use crate::step::step;
use crate::sync::Ordering;

/// Epochs above this come from damage, not from attaching.
const MAX_EPOCH: u32 = 1 << 31;

impl<R: Regime> Engine<R> {
    /// Steps 2 to 5 for the entry `self.me.index`, whose life lock the caller holds. `None` when the entry was taken
    /// meanwhile or cannot be judged; the caller tries another one.
    ///
    /// `judged` says that the holder under `found`, the word that was looked at with the lock in hand, ran on this host, so
    /// that holding the lock proves its death. Whoever came since is not judged by it.
    pub(crate) fn attach_entry(
        &self,
        host_tag: u32,
        found: SessionWord,
        judged: bool,
        facts: &SessionEntry,
    ) -> Option<SessionWord> {
        let index = self.me.index;
        let entry = self.tables.session(index);
        let mut word = found;
        if !word.is(SessionState::Free) {
            if !judged || word.state().is_none() {
                return None;
            }
            self.recover_session(index, word);
            word = entry.word();
            if !word.is(SessionState::Free) {
                return None;
            }
        }
        let epoch = self.next_epoch(word.epoch())?;
        let attaching = SessionWord::new(SessionState::Attaching, host_tag, epoch);
        step!(AttachClaim);
        if !entry.swap(word, attaching) {
            return None;
        }
        let area = self.tables.area(index);
        step!(AttachZero);
        // ORDERING: Relaxed: cells of a session that is not `Live` are void; the Release of `Live` publishes the zeros.
        area.lease_mark.store(0, Ordering::Relaxed);
        for cell in 0..self.tables.geometry().lease_cells {
            self.tables.cell(index, cell).store(0, Ordering::Relaxed);
        }
        step!(AttachFill);
        entry.heartbeat.store(0, Ordering::Relaxed);
        entry.fill(facts);
        let live = attaching.to(SessionState::Live);
        step!(AttachLive);
        entry.swap(attaching, live).then(|| {
            R::write_back(entry);
            live
        })
    }

    /// An epoch higher than any that a session of this region has had, whichever entry it used: a restarted engine
    /// is newer than its old self at once.
    fn next_epoch(&self, own: u32) -> Option<u32> {
        (0..self.tables.geometry().session_count)
            .map(|index| self.tables.session(index).word().epoch())
            .filter(|epoch| *epoch < MAX_EPOCH)
            .fold(own, u32::max)
            .checked_add(1)
    }
}

impl<R: Regime> Engine<R> {
    /// The way out: everything owned is given back, then the entry.
    pub(crate) fn detach(&self) {
        let entry = self.tables.session(self.me.index);
        self.sweep_own();
        // Fenced meanwhile: its claims are back now, and the entry may go.
        for word in [self.me.live, self.me.live.to(SessionState::Fenced)] {
            step!(CloseFree);
            if entry.swap(word, word.to(SessionState::Free)) {
                return;
            }
        }
    }
}
