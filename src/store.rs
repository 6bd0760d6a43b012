//! Storing: reserve, publish, give back.
//!
//! A store moves one slot from `Free` to `Ready` in five stores of its word, each of which may be the last
//! thing its process ever does:
//!
//! 1. *Claim* (`store/claim.rs`). `Free → Claiming` with the owner's name in the same compare-and-swap: no claim without a
//!    name.
//! 2. *Record.* Identity and full generation are filled in; `Claiming → Pending`.
//! 3. *Settle.* The index entry is inserted, a full fence, then both buckets are scanned for twins. A twin that
//!    is `Writing` or `Ready` has won. Between two `Pending`s the lower slot wins by killing the higher one
//!    (nothing is written there yet, so a kill loses nothing); the higher one waits a bounded number of looks
//!    and then kills the lower one, which has stood still or died. Whoever scans clean goes to `Writing`.
//! 4. *Payload.* Written in place, in any order.
//! 5. *Publish.* Barrier, checksum, `Writing → Ready`; then the entry is looked for once more, because a cleaner
//!    that fell asleep before removing an entry of 2^26 lives ago may have removed ours.
//!
//! Invariants:
//!
//! * W1: at most one slot of a pool is `Writing` or `Ready` for an object that was settled here. Of two twins,
//!   the one whose fence comes later in the total order of SeqCst fences sees the other's entry (\[twin]).
//! * W2: a `Retiring` slot with an owner may go back to `Ready`, so it counts as undecided; owner 0 does not.
//! * W3: every path out of here that is not `Ready` leaves the slot `Free` at a later generation, `Quarantined`,
//!   or owned by a session whose death gives it back.
//! * W4: only the owner stores to the payload, and only between 3 and 5. A writer that was set `Quarantined` may
//!   go on storing (it does not know yet); nobody else uses the space until it gives it back or is proven dead.

pub(crate) mod claim;

use core::ops::ControlFlow;

use maru_layout::object::{ObjectKey, Place, seal};
use maru_layout::record::BodyLine;
use maru_layout::table::Counter;
use maru_layout::word::{IndexEntry, Owner, SlotState, SlotWord};

use crate::budget::{Purse, Unspent};
use crate::directory::Sighting;
use crate::engine::{Engine, Watched};
use crate::regime::Regime;
use crate::slot::{IdentityWords, identity_words, length_of};
use crate::step::step;
use crate::sync::{Backoff, Ordering, edge, process};
use crate::{Commit, Why};

/// Rounds of claim and settle before the answer is "contended".
///
/// In a model two, and one look of patience: what they do once more they do in the same way.
const ROUNDS: u32 = if cfg!(maru_loom) { 2 } else { 8 };
/// Looks that a higher twin gives a lower one before it kills it.
const PATIENCE: u32 = if cfg!(maru_loom) { 1 } else { 64 };
/// Age at which a whole look is repeated, milliseconds.
const FULL_LOOK_MS: u64 = 100;

/// A slot in `Writing` that belongs to this session.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Claim {
    pub(crate) slot: u32,
    pub(crate) word: SlotWord,
    pub(crate) key: ObjectKey,
    pub(crate) place: Place,
    pub(crate) identity: IdentityWords,
    /// Index of the budget token spent on it, plus one; 0 = none.
    pub(crate) token: u32,
}

impl Claim {
    pub(crate) fn len(&self) -> u32 {
        length_of(&self.identity)
    }

    fn entry(&self) -> IndexEntry {
        IndexEntry::new(self.slot, self.word.generation(), self.place.tag)
    }
}

/// Why a store was not granted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NotGranted {
    Present,
    BeingWritten,
    Refused(Why),
    Contended,
}

/// On what terms a slot is wanted.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Terms {
    /// A device writes.
    pub(crate) device: bool,
    /// The namespace's budget, if it has one.
    pub(crate) purse: Option<Purse>,
    /// Whether blocks may go for it.
    pub(crate) evict: bool,
}

/// What stands in the way of a store.
enum Twin {
    Nobody,
    /// Undecided: look again.
    Wait,
    Lost(NotGranted),
}

impl<R: Regime> Engine<R> {
    /// Reserves a slot for `key`, or says why not. The caller has checked session and namespace.
    pub(crate) fn reserve_slot(&self, key: &ObjectKey, len: u64, terms: Terms) -> Result<Claim, NotGranted> {
        let outcome = self.reserve_rounds(key, len, terms);
        // A session that could make room, asked for free space only: the caller asks on, and nothing has been refused yet.
        let asked_ahead = self.eviction.on && !terms.evict;
        if asked_ahead && matches!(outcome, Err(NotGranted::Refused(Why::NoSpace | Why::OverBudget | Why::BucketBusy)))
        {
            return outcome;
        }
        self.count(Counter::Reserved, 1);
        let Err(lost) = outcome else { return outcome };
        let counter = match lost {
            NotGranted::Present => Counter::Present,
            NotGranted::BeingWritten => Counter::BeingWritten,
            NotGranted::Contended => Counter::Contended,
            NotGranted::Refused(Why::NoSpace) => Counter::NoSpace,
            NotGranted::Refused(Why::TooLarge { .. } | Why::Empty) => Counter::TooLarge,
            NotGranted::Refused(Why::BucketBusy) => Counter::BucketBusy,
            NotGranted::Refused(Why::OverBudget) => Counter::OverBudget,
            NotGranted::Refused(_) => Counter::LengthMismatch,
        };
        self.count(counter, 1);
        outcome
    }

    fn reserve_rounds(&self, key: &ObjectKey, len: u64, terms: Terms) -> Result<Claim, NotGranted> {
        let geometry = self.tables.geometry();
        if len == 0 {
            return Err(NotGranted::Refused(Why::Empty));
        }
        let max_bytes = geometry.max_payload_bytes();
        let Some(length) = u32::try_from(len).ok().filter(|_| len <= max_bytes) else {
            return Err(NotGranted::Refused(Why::TooLarge { bytes: len, max_bytes }));
        };
        let place = key.place(geometry.hash_seed, geometry.bucket_count);
        let identity = identity_words(key, length);
        let backoff = Backoff::new();
        for _ in 0..ROUNDS {
            // A look before claiming: most refusals cost two lines and no store.
            match self.look_for_twin(&place, &identity, None, false) {
                Twin::Lost(lost) => return Err(lost),
                Twin::Nobody | Twin::Wait => {}
            }
            // The budget first: at its end the namespace makes room from its own, and the slot that comes free is taken next.
            let unspent = terms.purse.map(|purse| self.token_or_room(purse, terms.evict)).transpose()?;
            let Some((slot, claiming)) = self.claim_or_evict(length, terms) else {
                return Err(NotGranted::Refused(Why::NoSpace));
            };
            let token = match (terms.purse, unspent) {
                (Some(purse), Some(unspent)) => self.pay(purse, unspent, slot, claiming, terms.evict)?,
                _ => 0,
            };
            let claim = Claim { token, ..self.fill_claim(slot, claiming, key, place, identity)? };
            match self.settle(claim) {
                Settled::Won(claim) => return Ok(claim),
                Settled::Lost(lost) => return Err(lost),
                Settled::Killed => {
                    // A fenced session begins nothing anew; the caller asks again and says so.
                    if self.check_session().is_err() {
                        return Err(NotGranted::Contended);
                    }
                    backoff.snooze();
                }
            }
        }
        Err(NotGranted::Contended)
    }

    /// Steps 2 and the entry of 3: from `Claiming` to an indexed `Pending`.
    pub(crate) fn fill_claim(
        &self,
        slot: u32,
        claiming: SlotWord,
        key: &ObjectKey,
        place: Place,
        identity: IdentityWords,
    ) -> Result<Claim, NotGranted> {
        let record = self.tables.slot(slot);
        step!(StoreRecord);
        record.fill_identity(&identity, claiming.generation());
        let pending = claiming.to(SlotState::Pending, self.me.owner);
        step!(StorePending);
        if record.swap(claiming, pending).is_err() {
            // Only proof of my death, or a fence, ends a `Claiming` that is mine. The word is its author's now.
            return Err(NotGranted::Contended);
        }
        let claim = Claim { slot, word: pending, key: *key, place, identity, token: 0 };
        match self.insert_making_room(&claim) {
            Ok(()) => Ok(claim),
            Err(lost) => {
                self.give_back(&claim);
                Err(lost)
            }
        }
    }

    /// Inserts the entry, in the place of one unleased ready resident where both buckets are full. The place changes
    /// hands before the resident is freed, so that no other store can take it and leave this one refused at a hit's cost.
    fn insert_making_room(&self, claim: &Claim) -> Result<(), NotGranted> {
        if self.insert_entry(&claim.place, claim.entry()).is_ok() {
            return Ok(());
        }
        let residents = self.ready_residents(&claim.place);
        // Stored by a twin since the look before the claim: it has won, and is not what makes room for this store.
        for (_, _, resident) in &residents {
            if let Some(twin) = self.sight(*resident, &claim.identity)
                && let Twin::Lost(lost) = self.judge_twin(&claim.place, &twin, &claim.identity, Some(claim.slot), false)
            {
                return Err(lost);
            }
        }
        // Fenced, or killed by a twin, while it stood still: nobody's hit pays for a store that is over.
        let mine = || self.tables.slot(claim.slot).word() == claim.word;
        for (bucket, way, resident) in residents {
            if !mine() {
                // Settling finds out what became of it.
                return Ok(());
            }
            let take = || mine() && self.take_place(&claim.place, bucket, way, resident, claim.entry());
            if self.evict(resident, take) {
                return Ok(());
            }
        }
        Err(NotGranted::Refused(Why::BucketBusy))
    }

    /// Step 3: from an indexed `Pending` to `Writing`, or out.
    pub(crate) fn settle(&self, claim: Claim) -> Settled {
        let record = self.tables.slot(claim.slot);
        let backoff = Backoff::new();
        for look in 0..=2 * PATIENCE {
            step!(StoreTwinFence);
            // ORDERING: SeqCst fence, [twin]: of two twins, the one whose fence is later in the total order sees the
            // other's entry in the scan below. Weaker, both can scan clean; loom-tests/tests/twins.rs.
            edge!(fence TwinFence, Ordering::SeqCst);
            match self.look_for_twin(&claim.place, &claim.identity, Some(claim.slot), look >= PATIENCE) {
                Twin::Lost(lost) => {
                    self.give_back(&claim);
                    return Settled::Lost(lost);
                }
                Twin::Wait => {
                    if record.word() != claim.word {
                        return Settled::Killed;
                    }
                    backoff.snooze();
                }
                Twin::Nobody => {
                    let writing = claim.word.to(SlotState::Writing, self.me.owner);
                    step!(StoreWriting);
                    return match record.swap(claim.word, writing) {
                        Ok(()) => {
                            // The word leaves this host's caches before the first payload byte does.
                            R::write_back(record);
                            Settled::Won(Claim { word: writing, ..claim })
                        }
                        Err(_) => Settled::Killed,
                    };
                }
            }
        }
        self.give_back(&claim);
        Settled::Lost(NotGranted::Contended)
    }

    /// Looks at all other slots of the object. `mine` is this store's own slot once it is indexed; `impatient`
    /// also kills a lower `Pending`.
    fn look_for_twin(&self, place: &Place, identity: &IdentityWords, mine: Option<u32>, impatient: bool) -> Twin {
        let mut verdict = Twin::Nobody;
        self.scan(place.home(), identity, true, |twin| {
            if Some(twin.slot) == mine || !edge!(TwinScan) {
                return ControlFlow::Continue(());
            }
            match self.judge_twin(place, &twin, identity, mine, impatient) {
                Twin::Nobody => ControlFlow::Continue(()),
                Twin::Wait => {
                    verdict = Twin::Wait;
                    ControlFlow::Continue(())
                }
                lost => {
                    verdict = lost;
                    ControlFlow::Break(())
                }
            }
        });
        verdict
    }

    fn judge_twin(
        &self,
        place: &Place,
        twin: &Sighting,
        identity: &IdentityWords,
        mine: Option<u32>,
        impatient: bool,
    ) -> Twin {
        let (present, asked) = (length_of(&twin.identity), length_of(identity));
        match twin.word.state() {
            Some(SlotState::Ready) if present != asked => Twin::Lost(NotGranted::Refused(Why::LengthMismatch {
                present_bytes: present,
                asked_bytes: asked.into(),
            })),
            Some(SlotState::Ready) => Twin::Lost(NotGranted::Present),
            Some(SlotState::Writing) => {
                if self.end_stuck_writer(twin) {
                    Twin::Wait
                } else {
                    Twin::Lost(NotGranted::BeingWritten)
                }
            }
            Some(SlotState::Pending) => match mine {
                // Nothing of mine is indexed yet: the twin decides itself while I claim.
                None => Twin::Nobody,
                Some(mine) if mine < twin.slot || impatient || self.owner_is_dead(twin.word) => {
                    self.kill_twin(place, twin);
                    // Killed, or it moved on by itself: the next look tells.
                    Twin::Wait
                }
                Some(_) => Twin::Wait,
            },
            // W2: its evictor may still put it back.
            Some(SlotState::Retiring) if twin.word.owner() != Owner::NOBODY => {
                self.end_stuck_evictor(twin);
                if mine.is_some() { Twin::Wait } else { Twin::Nobody }
            }
            _ => Twin::Nobody,
        }
    }

    fn kill_twin(&self, place: &Place, twin: &Sighting) {
        step!(StoreKillTwin);
        if self.tables.slot(twin.slot).swap(twin.word, twin.word.freed()).is_ok() {
            self.remove_entry(place, IndexEntry::new(twin.slot, twin.word.generation(), place.tag));
            self.clear_bit(twin.slot);
        }
    }

    /// Ends a `Writing` whose owner is dead (recovery frees it) or has not moved for the published bound
    /// (quarantine frees the key). True when the slot is in nobody's way any more.
    fn end_stuck_writer(&self, twin: &Sighting) -> bool {
        if self.owner_is_dead(twin.word) {
            self.recover_owner(twin.word);
            return true;
        }
        let stalled = u64::from(self.tables.geometry().stalled_writer_ms);
        if self.unchanged_ms(Watched::Slot(twin.slot), twin.word.0) < stalled {
            return false;
        }
        step!(StoreQuarantine);
        let quarantined = twin.word.to(SlotState::Quarantined, twin.word.owner());
        let shut = if edge!(Quarantine) { quarantined } else { twin.word.freed() };
        let done = self.tables.slot(twin.slot).swap(twin.word, shut).is_ok();
        if done {
            self.count(Counter::Quarantined, 1);
        }
        done
    }

    /// Takes the decision from an evictor that is dead or has not moved for the published bound: the slot then drains,
    /// and its late revert or free finds the word changed.
    fn end_stuck_evictor(&self, twin: &Sighting) {
        if self.owner_is_dead(twin.word) {
            self.recover_owner(twin.word);
        } else if self.unchanged_ms(Watched::Slot(twin.slot), twin.word.0)
            >= u64::from(self.tables.geometry().stalled_writer_ms)
        {
            self.look_here(twin.slot);
            step!(RetireDrain);
            let _ = self.tables.slot(twin.slot).swap(twin.word, twin.word.to(SlotState::Retiring, Owner::NOBODY));
        }
    }

    /// An unspent token of the namespace, after making room in it if need be.
    fn token_or_room(&self, purse: Purse, evict: bool) -> Result<Unspent, NotGranted> {
        let found = if evict { self.token_by_eviction(purse) } else { self.find_token(purse) };
        if let Some(unspent) = found {
            return Ok(unspent);
        }
        // A whole look, once in a while: what the dead held, what drained, what an ended generation left, and all tokens.
        let last = self.whole_budget_look_ms.load(process::Ordering::Relaxed);
        let now = self.world.now_ms() + 1;
        if last != 0 && now.saturating_sub(last) <= FULL_LOOK_MS {
            return Err(NotGranted::Refused(Why::OverBudget));
        }
        self.recover_all_dead();
        #[cfg(not(maru_loom))]
        self.retire_ended_in(0..self.tables.geometry().slot_count);
        self.free_drained_in(0..self.tables.geometry().slot_count);
        let found = self.walk(purse, u32::MAX, |unspent| (!self.is_spent(unspent.seen)).then_some(unspent));
        if found.is_none() {
            self.whole_budget_look_ms.store(now, process::Ordering::Relaxed);
        }
        found.ok_or(NotGranted::Refused(Why::OverBudget))
    }

    /// Spends a token on a claimed slot, another one where somebody was quicker. Without one the claim is given back.
    fn pay(
        &self,
        purse: Purse,
        unspent: Unspent,
        slot: u32,
        claiming: SlotWord,
        evict: bool,
    ) -> Result<u32, NotGranted> {
        let mut next = Some(unspent);
        for round in 0..ROUNDS {
            let Some(unspent) = next else { break };
            if self.spend(unspent, slot, claiming) {
                return Ok(unspent.index + 1);
            }
            if round + 1 == ROUNDS {
                break;
            }
            next = if evict { self.token_by_eviction(purse) } else { self.find_token(purse) };
        }
        step!(StoreUnclaim);
        if self.tables.slot(slot).swap(claiming, claiming.freed()).is_ok() {
            self.clear_bit(slot);
        }
        Err(NotGranted::Refused(Why::OverBudget))
    }

    /// Gives this session's slot back, from `Pending`, `Writing` or a `Quarantined` that others made of it. False
    /// when the slot was not this life's any more.
    pub(crate) fn give_back(&self, claim: &Claim) -> bool {
        let record = self.tables.slot(claim.slot);
        let mut word = record.word();
        // At most two turns: `Writing` can become `Quarantined` under us, and nothing follows that but us.
        for _ in 0..3 {
            let mine = word.generation() == claim.word.generation()
                && word.owner() == self.me.owner
                && matches!(word.state(), Some(SlotState::Pending | SlotState::Writing | SlotState::Quarantined));
            if !mine {
                return false;
            }
            step!(StoreGiveBack);
            match record.swap(word, word.freed()) {
                Ok(()) => {
                    self.remove_entry(&claim.place, claim.entry());
                    self.clear_bit(claim.slot);
                    return true;
                }
                Err(found) => word = found,
            }
        }
        false
    }

    /// Step 5: publishes a slot whose payload is written. `body` comes without generation, checksum and storer;
    /// `tail` says that the block stands behind others that were found (`evict.rs`).
    pub(crate) fn publish(&self, claim: &Claim, body: BodyLine, payload_crc: u32, tail: bool) -> Commit {
        let record = self.tables.slot(claim.slot);
        if let Some(payload) = self.tables.payload(claim.slot) {
            // SAFETY: the slot's bytes are mapped as long as the tables live.
            unsafe { R::write_back_range(payload.as_ptr(), claim.len() as usize) };
        }
        let mut body = BodyLine {
            generation: claim.word.generation(),
            budget_token: claim.token,
            storer_id: self.me.id,
            storer_index: self.me.index as u16,
            storer_epoch: self.me.live.epoch(),
            ..body
        };
        body.checksum = seal(&crate::slot::Slot::plain_identity(&claim.identity), &body, payload_crc);
        step!(StoreBody);
        record.fill_body(&body);
        // The body leaves this host's caches before the word that makes it count can.
        R::write_back(record.body_line());
        self.set_due(claim.slot, tail);
        let ready = claim.word.to(SlotState::Ready, Owner::NOBODY).with_device_writer(false);
        step!(StoreReady);
        // [publish]: the Release of this swap carries payload, checksum and body.
        match record.swap(claim.word, ready) {
            Ok(()) => {
                R::write_back(record);
                if !self.has_entry(&claim.place, claim.entry()) {
                    // A cleaner that slept through 2^26 lives of the slot took the entry away. Losing the race for
                    // room now costs the block its findability, never its correctness.
                    let _ = self.insert_entry(&claim.place, claim.entry());
                }
                self.count(Counter::Stored, 1);
                self.count(Counter::StoredBytes, claim.len().into());
                Commit::Stored
            }
            Err(found) => self.publish_failed(claim, found),
        }
    }

    #[cold]
    fn publish_failed(&self, claim: &Claim, found: SlotWord) -> Commit {
        if found.generation() != claim.word.generation() {
            return Commit::GenerationGone;
        }
        match found.state() {
            Some(SlotState::Ready | SlotState::Retiring) => Commit::AlreadyStored,
            Some(SlotState::Quarantined) => {
                self.count(Counter::Superseded, 1);
                if self.check_session().is_err() {
                    // Fenced: what I own is given back when my death is proven or I close.
                    return Commit::Fenced;
                }
                self.give_back(claim);
                Commit::Superseded
            }
            _ => Commit::GenerationGone,
        }
    }
}

/// How a claim ended among its twins.
pub(crate) enum Settled {
    Won(Claim),
    Lost(NotGranted),
    Killed,
}
