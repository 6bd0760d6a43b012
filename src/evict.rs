//! Eviction: making room for a store, by whoever stores.
//!
//! **Which block.** A clock with due epochs (`benches/README.md` compares it with its peers on request traces). An epoch
//! is a fortieth of a class's slots, counted in stores. The access byte of a slot says in which epoch its block is due:
//! [`LIFETIME`] epochs after it was stored, or after a hand found it read. A hand, shared by all sessions, passes over the
//! slots, renews what was read, and evicts what is due at its *horizon*; a whole pass moves the horizon on to the earliest
//! due epoch that it saw. So blocks go in the order of their last use, to within two epochs, without a queue, and a reader
//! of a block that is marked stores nothing. Blocks behind a shared prefix (`ReserveOptions::after_hits`) are due sooner:
//! few requests but their own come back for them. Hand, horizon and bytes are hints: they choose, and nothing rests on
//! them.
//!
//! **How.** Victims are retired in batches: one fence and one scan of the lease cells for all of them (`evict_batch`). The
//! steps of each victim are those of `retire.rs`; X1 and X2 hold for a batch as for one.
//!
//! * E1: a victim is `Ready`, and nobody's lease protects it; it is checked once before it is shut, so that reverts are
//!   rare, and once after, so that it is true.
//! * E2: of the victims of a batch the deeper ones go first: a child is unreachable without its parent, so an evictor that
//!   dies in the middle strands nothing.
//! * E3: reading marks a block, only when it is not marked; looking (`probe`) marks nothing.
//! * E4: bounded: a store looks at [`LOOK`] slots at most. If none of them is due, the one that is due first goes; only
//!   where all of them are leased or being written the answer is "no". The next store goes on from there. There is no spin.

mod readers;

use std::collections::HashMap;

use maru_layout::farewell::Cause;
use maru_layout::superblock::SlotClass;
use maru_layout::table::Counter;
use maru_layout::word::{Owner, SlotState, SlotWord, TokenWord};

use self::readers::{Readers, SlotSet};
use crate::budget::{Purse, Unspent};
use crate::engine::{Engine, Eviction};
use crate::regime::Regime;
use crate::step::step;
use crate::store::claim::class_mask;
use crate::sync::{Ordering, edge, process};
use crate::view::Clock;

/// Bit of an access byte that readers set.
pub(crate) const VISITED: u8 = 0x80;
/// Bits of an access byte that say when the block is due.
const DUE: u8 = 0x7F;
/// Epochs that an unread block stays, and epochs in which as many blocks are stored as there are slots. Measured, like
/// the next three.
const LIFETIME: u64 = 40;
/// The furthest that a due epoch may be after the horizon, so that seven bits are enough.
const FURTHEST: u64 = 63;
/// Epochs by which a block behind a shared prefix is due sooner.
const TAIL_SOONER: u64 = 15;
/// Blocks that a request must have found so that what it stores counts as one.
pub(crate) const TAIL_RUN: u32 = 2;
/// Where the horizon of a new region stands: nothing is due during the first fill.
const FIRST_HORIZON: u64 = LIFETIME - TAIL_SOONER - 1;
/// Slots that one search for victims looks at.
const LOOK: u32 = 4096;
/// Batches of which nothing could be evicted, before nothing is tried any more at slots whose readers are not known.
const FAILURES: u32 = 4;
/// Slots that a hand passes at one go.
const LOOK_AHEAD: u32 = 256;
/// Victims of one batch.
const BATCH: usize = 16;
/// A sweep takes one slot of so many, if that is fewer: a free slot that waits is a block that was lost too early.
const BATCH_SHARE: u32 = 512;
/// Tokens of a namespace at its budget that are compared before one of their blocks goes.
const SAMPLE: u32 = 64;
/// Claims between two looks at the watermarks.
const CLAIMS_A_LOOK: u64 = 64;
/// Batches that one look may evict: twice what came in since the last one.
const BATCHES_A_LOOK: u32 = 8;

/// A block that may go.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Victim {
    pub(crate) slot: u32,
    pub(crate) word: SlotWord,
    /// Epochs from the horizon to when it is due.
    due_in: i8,
    depth: u32,
    /// Whether somebody reads it, once that was looked at.
    read: bool,
}

#[cfg(maru_loom)]
impl Victim {
    /// One that a model has chosen.
    pub(crate) fn of(slot: u32, word: SlotWord) -> Self {
        Self { slot, word, due_in: 0, depth: 0, read: false }
    }
}

/// A slot that a hand passed before what is there is due: only its access byte was looked at.
#[derive(Debug, Clone, Copy)]
struct Passed {
    slot: u32,
    /// Epochs from the horizon to when it is due.
    due_in: i8,
}

impl From<Victim> for Passed {
    fn from(victim: Victim) -> Self {
        Self { slot: victim.slot, due_in: victim.due_in }
    }
}

/// What a search for room has learnt of others, so that it learns it once: their slots come in thousands.
#[derive(Default)]
struct Learnt {
    /// Sessions that were not proven dead when asked.
    alive: Vec<u32>,
    /// Slots that leases protect which have not lapsed, once a drained one was found held.
    held: Option<SlotSet>,
}

/// What a hand finds at a slot.
enum Found {
    /// A block.
    Block(Victim),
    /// A slot that is free, or has just become so.
    Room,
    /// Neither.
    Nothing,
}

impl<R: Regime> Engine<R> {
    /// Frees slots of `class`, if anything of it can be evicted; whether there may be room now. `any` room will do: also a
    /// slot that was free before.
    pub(crate) fn make_room(&self, class_index: usize, class: &SlotClass, any: bool) -> bool {
        let in_vain = self.all_read.load(process::Ordering::Relaxed);
        let found = self.search(class_index, class, any, in_vain);
        if found == in_vain {
            self.all_read.store(!found, process::Ordering::Relaxed);
        }
        found
    }

    /// One search. Where the one before found everything read, this one looks who reads before it tries.
    fn search(&self, class_index: usize, class: &SlotClass, any: bool, in_vain: bool) -> bool {
        // Twice around is enough: the first time what was read is renewed, and the horizon moves.
        let mut left = LOOK.min(class.slot_count.saturating_mul(2).max(BATCH as u32));
        let (mut due, mut later) = (Vec::with_capacity(BATCH), Vec::with_capacity(LOOK_AHEAD as usize));
        let (mut learnt, mut failed) = (Learnt::default(), 0);
        let mut readers = in_vain.then(|| self.readers(class_index, class, left));
        while left > 0 {
            if self.sweep(class_index, class, &mut left, &mut due, &mut later, &mut learnt) && any {
                return true;
            }
            if let Some(readers) = &readers {
                // They come last: their reader may be dead. Where nobody looked, a few are tried.
                due.retain(|victim| {
                    let likely = !readers.seen(victim.slot).unwrap_or(failed > FAILURES);
                    if !likely {
                        later.push(Passed::from(*victim));
                    }
                    likely
                });
            }
            if due.is_empty() {
                continue;
            }
            if self.evict_batch(&mut due) > 0 {
                return true;
            }
            later.extend(due.drain(..).map(Passed::from));
            failed += 1;
            // All of a batch were leased: many are, so from here on they are known beforehand.
            readers.get_or_insert_with(|| self.readers(class_index, class, left));
        }
        // Nothing is due within reach: what would be next goes.
        self.evict_first(later, any, readers.as_ref(), &mut learnt)
    }

    /// Evicts the one of `passed` that is due first and that nobody reads; false where all are read. `any` room will do.
    fn evict_first(&self, mut passed: Vec<Passed>, any: bool, readers: Option<&Readers>, learnt: &mut Learnt) -> bool {
        // A small class is passed more than once; the later look counts.
        passed.reverse();
        passed.sort_by_key(|passed| passed.slot);
        passed.dedup_by_key(|passed| passed.slot);
        let (mut victims, mut dead) = (Vec::with_capacity(passed.len()), HashMap::new());
        for Passed { slot, due_in } in passed {
            match self.look_at(slot, due_in, learnt) {
                Found::Room if any => return true,
                Found::Block(victim) if !readers.is_some_and(|readers| self.is_read(readers, &victim, &mut dead)) => {
                    victims.push(victim);
                }
                _ => {}
            }
        }
        // One look over the cells for all of them: where everything is leased, it is the only one.
        self.look_for_readers(&mut victims);
        victims.retain(|victim| !victim.read);
        victims.sort_by_key(|victim| (victim.due_in, core::cmp::Reverse(victim.depth)));
        victims.chunks_mut(1).any(|victim| self.evict_batch(victim) > 0)
    }

    /// Moves the hand over slots of `class` until it has passed some that are due, which are in `due` then; `later` gathers
    /// those that are not. Whether it met a free slot, or freed one that was no block.
    fn sweep(
        &self,
        class_index: usize,
        class: &SlotClass,
        left: &mut u32,
        due: &mut Vec<Victim>,
        later: &mut Vec<Passed>,
        learnt: &mut Learnt,
    ) -> bool {
        let clock = &self.tables.control().clocks[class_index];
        let stride = (class.slot_count / BATCH_SHARE).clamp(1, BATCH as u32);
        let mut room = false;
        due.clear();
        while *left > 0 && due.is_empty() && !room {
            // ORDERING: Relaxed, all of a clock's words: hints.
            let hand = clock.hand.load(Ordering::Relaxed);
            let from = (hand % u64::from(class.slot_count)) as u32;
            let before = later.len();
            let (passed, come) = self.pass(clock, class, from, stride, (*left).min(LOOK_AHEAD), later);
            *left = left.saturating_sub(passed);
            step!(EvictHand);
            let next = hand.wrapping_add(passed.into());
            if clock.hand.compare_exchange(hand, next, Ordering::Relaxed, Ordering::Relaxed).is_err() {
                // Somebody else has taken these slots: what was due there is theirs.
                later.truncate(before);
                continue;
            }
            if from + passed >= class.slot_count {
                self.end_pass(clock);
            }
            for Passed { slot, due_in } in come.into_iter().flatten() {
                match self.look_at(slot, due_in, learnt) {
                    Found::Room => room = true,
                    Found::Block(victim) => due.push(victim),
                    Found::Nothing => {}
                }
            }
        }
        room
    }

    /// Looks at the access bytes of the slots of `class` that follow `from`, to the end of the class at most: until some are
    /// due, then on to a whole number of strides; no further than `most`, or a stride. Returns how many it passed, and those
    /// that are due; the others go to `later`. The records of most slots stay out of the cache by it.
    fn pass(
        &self,
        clock: &Clock,
        class: &SlotClass,
        from: u32,
        stride: u32,
        most: u32,
        later: &mut Vec<Passed>,
    ) -> (u32, [Option<Passed>; BATCH]) {
        let horizon = horizon_of(clock);
        let most = most.max(stride).min(class.slot_count - from);
        let (mut come, mut found) = ([None; BATCH], 0);
        let (mut passed, mut soonest) = (0, i8::MAX);
        while passed < most && !(found > 0 && passed % stride == 0) {
            let slot = class.first_slot + from + passed;
            let due_in = self.due_in(clock, class, slot, horizon);
            passed += 1;
            if due_in > 0 {
                soonest = soonest.min(due_in);
                later.push(Passed { slot, due_in });
            } else {
                come[found] = Some(Passed { slot, due_in });
                found += 1;
            }
        }
        if soonest < i8::MAX {
            self.note_due(clock, horizon, soonest);
        }
        (passed, come)
    }

    /// Epochs from the horizon to when a slot is due, after renewing it if it was read.
    #[inline]
    fn due_in(&self, clock: &Clock, class: &SlotClass, slot: u32, horizon: u64) -> i8 {
        let byte = self.tables.access(slot);
        // ORDERING: Relaxed, all of a byte: advice.
        let mut value = byte.load(Ordering::Relaxed);
        if value & VISITED != 0 {
            value = due_byte(epoch(clock, class) + LIFETIME, horizon);
            step!(EvictRenew);
            byte.store(value, Ordering::Relaxed);
        }
        distance(value, horizon)
    }

    /// Notes for the end of the pass that something is due so many epochs after the horizon.
    fn note_due(&self, clock: &Clock, horizon: u64, due_in: i8) {
        let seen = horizon + due_in as u64 + 1;
        let earliest = clock.earliest.load(Ordering::Relaxed);
        if earliest == 0 || earliest > seen {
            step!(EvictHorizon);
            clock.earliest.store(seen, Ordering::Relaxed);
        }
    }

    /// What stands at a slot.
    fn look_at(&self, slot: u32, due_in: i8, learnt: &mut Learnt) -> Found {
        let record = self.tables.slot(slot);
        let word = record.word();
        if word.is(SlotState::Ready) {
            return Found::Block(Victim { slot, word, due_in, depth: record.depth_hint(), read: false });
        }
        if self.bring_home(slot, word, learnt) { Found::Room } else { Found::Nothing }
    }

    /// A slot that is no block any more is looked at by every hand that comes by, until it is one again: its last reader may
    /// go, and whoever claims it may die.
    #[cfg(not(maru_loom))]
    pub(crate) fn look_here(&self, slot: u32) {
        let Some((clock, _)) = self.clock_of(slot) else { return };
        let (byte, horizon) = (self.tables.access(slot), horizon_of(clock));
        // ORDERING: Relaxed, both: advice.
        let value = byte.load(Ordering::Relaxed);
        if value & VISITED != 0 || distance(value, horizon) > 0 {
            step!(StoreDue);
            byte.store(due_byte(horizon, horizon), Ordering::Relaxed);
        }
    }

    /// A hint, which a model would explore for nothing.
    #[cfg(maru_loom)]
    pub(crate) fn look_here(&self, _: u32) {}

    /// The clock of a slot's class, and the class.
    fn clock_of(&self, slot: u32) -> Option<(&Clock, &SlotClass)> {
        let geometry = self.tables.geometry();
        let index = geometry.class_index_of(slot)?;
        Some((&self.tables.control().clocks[index], &geometry.classes[index]))
    }

    /// A hand has passed all slots: the horizon moves on.
    fn end_pass(&self, clock: &Clock) {
        let horizon = horizon_of(clock);
        let earliest = clock.earliest.load(Ordering::Relaxed).saturating_sub(1);
        // Never further than the bytes reach, whatever the word holds.
        let next = earliest.clamp(horizon + 1, horizon + FURTHEST);
        step!(EvictHorizon);
        clock.horizon.store(next - FIRST_HORIZON, Ordering::Relaxed);
        clock.earliest.store(0, Ordering::Relaxed);
    }

    /// Says when a block that is about to be ready is due.
    pub(crate) fn set_due(&self, slot: u32, tail: bool) {
        let Some((clock, class)) = self.clock_of(slot) else { return };
        let now = epoch(clock, class);
        let due = now + LIFETIME - if tail { TAIL_SOONER } else { 0 };
        step!(EvictTick);
        clock.stores.fetch_add(1, Ordering::Relaxed);
        let horizon = self.keep_up(clock, now);
        step!(StoreDue);
        self.tables.access(slot).store(due_byte(due, horizon), Ordering::Relaxed);
    }

    /// The horizon, near enough to the present that what is stored now can say when it is due. Where namespaces make room
    /// from their own, no hand passes all slots, and nothing else moves it.
    fn keep_up(&self, clock: &Clock, now: u64) -> u64 {
        let (horizon, least) = (horizon_of(clock), (now + LIFETIME).saturating_sub(FURTHEST));
        if horizon >= least {
            return horizon;
        }
        step!(EvictHorizon);
        clock.horizon.store(least - FIRST_HORIZON, Ordering::Relaxed);
        least
    }

    /// A token of the namespace that nobody has spent, or one whose slot was evicted for it (T4).
    pub(crate) fn token_by_eviction(&self, purse: Purse) -> Option<Unspent> {
        let mut left = LOOK.min(purse.count);
        let mut learnt = Learnt::default();
        // Few at a time: the one of them that is due first is about as good as the one of all, and a store at the end of
        // its namespace's budget is no rarity.
        while left > 0 {
            let looks = left.min(SAMPLE);
            left -= looks;
            let mut found: Vec<(Unspent, Victim)> = Vec::with_capacity(SAMPLE as usize);
            let free = self.walk(purse, looks, |unspent| {
                if !self.is_spent(unspent.seen) {
                    return Some(unspent);
                }
                match self.block_of(unspent.seen, &mut learnt) {
                    Some(victim) => found.push((unspent, victim)),
                    // Brought home on the way.
                    None if !self.is_spent(unspent.seen) => return Some(unspent),
                    None => {}
                }
                None
            });
            if free.is_some() {
                return free;
            }
            let mut victims: Vec<Victim> = found.iter().map(|(_, victim)| *victim).collect();
            self.look_for_readers(&mut victims);
            victims.retain(|victim| !victim.read);
            victims.sort_by_key(|victim| (victim.due_in, core::cmp::Reverse(victim.depth)));
            for victim in &mut victims {
                if self.evict_batch(core::slice::from_mut(victim)) > 0 {
                    return found.iter().find(|(_, of)| of.slot == victim.slot).map(|(unspent, _)| *unspent);
                }
            }
        }
        None
    }

    /// The block that a token is spent on, if it is ready.
    fn block_of(&self, token: TokenWord, learnt: &mut Learnt) -> Option<Victim> {
        let (slot, _) = token.names()?;
        let (clock, class) = self.clock_of(slot)?;
        let horizon = horizon_of(clock);
        let due_in = self.due_in(clock, class, slot, horizon);
        if due_in > 0 {
            self.note_due(clock, horizon, due_in);
        }
        match self.look_at(slot, due_in, learnt) {
            Found::Block(victim) if token.is_of(slot, victim.word.generation()) => Some(victim),
            _ => None,
        }
    }

    /// After a claim, once in a while: where fewer of the class's slots are free than the low watermark, evicts until the
    /// high one. Bounded, so that no store pays for all of it.
    pub(crate) fn keep_watermarks(&self, index: usize, class: &SlotClass) {
        let Eviction { on: true, low, high } = self.eviction else { return };
        if low <= 0.0 || !self.claims.fetch_add(1, process::Ordering::Relaxed).is_multiple_of(CLAIMS_A_LOOK) {
            return;
        }
        let share = |part: f64| (part * f64::from(class.slot_count)) as u32;
        let mut free = self.free_by_bitmap(class);
        if free >= share(low) {
            return;
        }
        for _ in 0..BATCHES_A_LOOK {
            if free >= share(high) || !self.make_room(index, class, false) {
                break;
            }
            free = self.free_by_bitmap(class);
        }
    }

    /// Free slots of a class, as the bitmap says: a hint.
    fn free_by_bitmap(&self, class: &SlotClass) -> u32 {
        let words = class.first_slot / 64..=(class.first_slot + class.slot_count - 1) / 64;
        words
            .map(|word| {
                // ORDERING: Relaxed: a hint.
                let free = !self.tables.bitmap(word).load(Ordering::Relaxed) & class_mask(class, word);
                free.count_ones()
            })
            .sum()
    }

    /// What the hand does with a slot that is no block: drained ones are freed, what the dead held comes home, and a free
    /// slot whose bit a death left set gets it cleared. Whether the slot is free now, for the bitmap, too.
    fn bring_home(&self, slot: u32, word: SlotWord, learnt: &mut Learnt) -> bool {
        match word.state() {
            Some(SlotState::Free) => {
                // ORDERING: Relaxed: a hint.
                let hidden = self.tables.bitmap(slot / 64).load(Ordering::Relaxed) & (1 << (slot % 64)) != 0;
                if hidden {
                    self.clear_bit(slot);
                }
                self.look_from(slot);
                true
            }
            // Leases of the dead do not keep it: whoever needs the room recovers them, and costs no living block its place.
            Some(SlotState::Retiring) if word.owner() == Owner::NOBODY => {
                if learnt.held.as_ref().is_some_and(|held| held.contains(slot)) {
                    return false;
                }
                if !self.leased_by_the_living(slot, word.generation()) {
                    return self.free_drained(slot, word);
                }
                // Where one is held many may be, and each look passes over all cells.
                if learnt.held.is_none() {
                    self.recover_all_dead();
                    // Also begins to watch every copy lease, so that each of them lapses in its time.
                    learnt.held =
                        Some(self.slots_being_read(|session, index, cell| !self.has_lapsed(session, index, cell)));
                }
                false
            }
            Some(_) => {
                let Some(owner) = word.owner().index() else { return false };
                if learnt.alive.contains(&owner) {
                    return false;
                }
                let dead = self.recover_if_dead(owner);
                if !dead {
                    learnt.alive.push(owner);
                }
                dead
            }
            None => false,
        }
    }

    /// Evicts those of `victims` that nobody reads. Returns how many slots are free by it.
    pub(crate) fn evict_batch(&self, victims: &mut [Victim]) -> u32 {
        // E1, before: most leased ones are left alone without having been shut.
        self.look_for_readers(victims);
        // E2.
        victims.sort_by_key(|victim| core::cmp::Reverse(victim.depth));
        let mut shut: Vec<Victim> = Vec::with_capacity(victims.len());
        for victim in victims.iter().filter(|victim| !victim.read) {
            let word = victim.word.to(SlotState::Retiring, self.me.owner);
            step!(RetireShut);
            if self.tables.slot(victim.slot).swap(victim.word, word).is_ok() {
                R::write_back(self.tables.slot(victim.slot));
                shut.push(Victim { word, ..*victim });
            }
        }
        if shut.is_empty() {
            return 0;
        }
        step!(RetireFence);
        // ORDERING: SeqCst fence, [lease], one for all: as in `Engine::shut`.
        edge!(fence RetirerFence, Ordering::SeqCst);
        if edge!(ScanAfterShut) {
            self.look_for_readers(&mut shut);
        }
        let mut freed = 0;
        for Victim { slot, word, read, .. } in shut {
            if read {
                step!(RetireRevert);
                let _ = self.tables.slot(slot).swap(word, word.to(SlotState::Ready, Owner::NOBODY));
            } else if self.free_ready(slot, word, Cause::Evicted) {
                freed += 1;
            }
        }
        self.count(Counter::Evicted, freed.into());
        freed
    }
}

/// Epoch that a class is in.
fn epoch(clock: &Clock, class: &SlotClass) -> u64 {
    let stores = clock.stores.load(Ordering::Relaxed) % (u64::MAX / LIFETIME);
    stores * LIFETIME / u64::from(class.slot_count.max(1))
}

/// The horizon, kept small enough to count on from.
fn horizon_of(clock: &Clock) -> u64 {
    clock.horizon.load(Ordering::Relaxed) % (u64::MAX / 4) + FIRST_HORIZON
}

/// Epochs from the horizon to when a byte says that its slot is due: seven bits, as a number from -64 to 63.
fn distance(byte: u8, horizon: u64) -> i8 {
    ((byte & DUE).wrapping_sub((horizon % 128) as u8) << 1) as i8 >> 1
}

/// The access byte of a block that is due then.
fn due_byte(epoch: u64, horizon: u64) -> u8 {
    (epoch.min(horizon + FURTHEST) % 128) as u8
}

/// Whether a hand that comes by would look at a slot.
#[cfg(test)]
pub(crate) fn is_due(tables: &crate::region::Tables, slot: u32) -> bool {
    let byte = tables.access(slot).load(Ordering::Relaxed);
    byte & VISITED == 0 && distance(byte, horizon_of(&tables.control().clocks[0])) <= 0
}
