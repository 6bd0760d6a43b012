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

use core::ops::ControlFlow;
use std::collections::HashMap;

use maru_layout::superblock::SlotClass;
use maru_layout::table::Counter;
use maru_layout::word::{LeaseCell, Owner, SlotState, SlotWord, TokenWord};

use crate::budget::{Purse, Unspent};
use crate::engine::{Engine, Eviction};
use crate::regime::Regime;
use crate::step::step;
use crate::store::class_mask;
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
    due_in: i64,
    depth: u32,
}

#[cfg(maru_loom)]
impl Victim {
    /// One that a model has chosen.
    pub(crate) fn of(slot: u32, word: SlotWord) -> Self {
        Self { slot, word, due_in: 0, depth: 0 }
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

/// Some of a region's slots, a bit each: filled from a million cells in a millisecond or two.
struct SlotSet(Vec<u64>);

impl SlotSet {
    fn of(slots: u32) -> Self {
        Self(vec![0; slots.div_ceil(64) as usize])
    }

    /// Slots of lease cells are bytes of the region: one that is none is left out.
    fn insert(&mut self, slot: u32) {
        if let Some(word) = self.0.get_mut(slot as usize / 64) {
            *word |= 1 << (slot % 64);
        }
    }

    fn contains(&self, slot: u32) -> bool {
        self.0.get(slot as usize / 64).is_some_and(|word| word & (1 << (slot % 64)) != 0)
    }
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
        // Twice around is enough: the first time what was read is renewed, and the horizon moves.
        let mut left = LOOK.min(class.slot_count.saturating_mul(2).max(BATCH as u32));
        let mut later: Vec<Victim> = Vec::with_capacity(BATCH);
        let mut read: Option<SlotSet> = None;
        let mut learnt = Learnt::default();
        while left > 0 {
            // `None`: a slot came free, or was free, on the way.
            let Some(mut due) = self.sweep(class_index, class, any, &mut left, &mut later, &mut learnt) else {
                return true;
            };
            if let Some(read) = &read {
                // They come last: their reader may be dead.
                let (unlikely, likely) = due.into_iter().partition(|victim| read.contains(victim.slot));
                later.extend::<Vec<Victim>>(unlikely);
                due = likely;
            }
            if due.is_empty() {
                continue;
            }
            if self.evict_batch(&mut due) > 0 {
                return true;
            }
            later.append(&mut due);
            // All of a batch were leased: many are, so from here on they are known beforehand.
            read.get_or_insert_with(|| self.slots_being_read(|_, _, _| true));
        }
        // Nothing is due within reach: what would be next goes.
        self.evict_first(later)
    }

    /// Evicts the one of `victims` that is due first and that nobody reads; false where all are read.
    fn evict_first(&self, mut victims: Vec<Victim>) -> bool {
        // A small class is passed more than once; the later look counts.
        victims.reverse();
        victims.sort_by_key(|victim| victim.slot);
        victims.dedup_by_key(|victim| victim.slot);
        victims.sort_by_key(|victim| (victim.due_in, core::cmp::Reverse(victim.depth)));
        // One look over the cells for all of them: where everything is leased, it is the only one.
        let leased = self.leased_of(victims.iter().map(|victim| (victim.slot, victim.word)));
        let mut unread: Vec<Victim> =
            victims.into_iter().zip(leased).filter(|(_, leased)| !leased).map(|(victim, _)| victim).collect();
        unread.chunks_mut(1).any(|victim| self.evict_batch(victim) > 0)
    }

    /// Moves the hand over slots of `class` until it has passed some that are due, and returns those; `later` gathers
    /// those that are not. `None`, where `any` room will do, as soon as it meets a free slot, or frees one that was no block.
    fn sweep(
        &self,
        class_index: usize,
        class: &SlotClass,
        any: bool,
        left: &mut u32,
        later: &mut Vec<Victim>,
        learnt: &mut Learnt,
    ) -> Option<Vec<Victim>> {
        let clock = &self.tables.control().clocks[class_index];
        let stride = (class.slot_count / BATCH_SHARE).clamp(1, BATCH as u32);
        let mut due = Vec::with_capacity(BATCH);
        while *left > 0 && due.is_empty() {
            *left = left.saturating_sub(stride);
            step!(EvictHand);
            // ORDERING: Relaxed, all of a clock's words: hints.
            let slots = u64::from(class.slot_count);
            let from = clock.hand.fetch_add(stride.into(), Ordering::Relaxed) % slots;
            if from + u64::from(stride) >= slots {
                self.end_pass(clock);
            }
            let horizon = horizon_of(clock);
            let mut room = false;
            for at in from..from + u64::from(stride) {
                match self.look_at(clock, class, class.first_slot + (at % slots) as u32, horizon, learnt) {
                    Found::Room => room = true,
                    Found::Block(victim) if victim.due_in <= 0 => due.push(victim),
                    Found::Block(victim) => later.push(victim),
                    Found::Nothing => {}
                }
            }
            if room && any {
                return None;
            }
        }
        Some(due)
    }

    /// What stands at a slot, after renewing it if it was read.
    fn look_at(&self, clock: &Clock, class: &SlotClass, slot: u32, horizon: u64, learnt: &mut Learnt) -> Found {
        let byte = self.tables.access(slot);
        // ORDERING: Relaxed, all of a byte: advice.
        let mut value = byte.load(Ordering::Relaxed);
        if value & VISITED != 0 {
            value = due_byte(epoch(clock, class) + LIFETIME, horizon);
            step!(EvictRenew);
            byte.store(value, Ordering::Relaxed);
        }
        // Seven bits, as a number from -64 to 63.
        let due_in = i64::from(((value & DUE).wrapping_sub((horizon % 128) as u8) << 1) as i8 >> 1);
        if due_in > 0 {
            let seen = horizon + due_in as u64 + 1;
            let earliest = clock.earliest.load(Ordering::Relaxed);
            if earliest == 0 || earliest > seen {
                step!(EvictHorizon);
                clock.earliest.store(seen, Ordering::Relaxed);
            }
        }
        let record = self.tables.slot(slot);
        let word = record.word();
        if word.is(SlotState::Ready) {
            return Found::Block(Victim { slot, word, due_in, depth: record.depth_hint() });
        }
        if self.bring_home(slot, word, learnt) { Found::Room } else { Found::Nothing }
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
        let classes = &self.tables.geometry().classes;
        let Some(index) = classes.iter().position(|class| slot.wrapping_sub(class.first_slot) < class.slot_count)
        else {
            return;
        };
        let clock = &self.tables.control().clocks[index];
        let now = epoch(clock, &classes[index]);
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
            found.sort_by_key(|(_, victim)| (victim.due_in, core::cmp::Reverse(victim.depth)));
            let leased = self.leased_of(found.iter().map(|(_, victim)| (victim.slot, victim.word)));
            for ((unspent, victim), _) in found.into_iter().zip(leased).filter(|(_, leased)| !leased) {
                if self.evict_batch(&mut [victim]) > 0 {
                    return Some(unspent);
                }
            }
        }
        None
    }

    /// The block that a token is spent on, if it is ready.
    fn block_of(&self, token: TokenWord, learnt: &mut Learnt) -> Option<Victim> {
        let classes = &self.tables.geometry().classes;
        let (slot, _) = token.names()?;
        let index = classes.iter().position(|class| slot.wrapping_sub(class.first_slot) < class.slot_count)?;
        let clock = &self.tables.control().clocks[index];
        match self.look_at(clock, &classes[index], slot, horizon_of(clock), learnt) {
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
        // E2.
        victims.sort_by_key(|victim| core::cmp::Reverse(victim.depth));
        // E1, before: most leased ones are left alone without having been shut.
        let leased = self.leased_of(victims.iter().map(|victim| (victim.slot, victim.word)));
        let mut shut: Vec<(u32, SlotWord)> = Vec::with_capacity(victims.len());
        for (victim, leased) in victims.iter().zip(leased) {
            if leased {
                continue;
            }
            let word = victim.word.to(SlotState::Retiring, self.me.owner);
            step!(RetireShut);
            if self.tables.slot(victim.slot).swap(victim.word, word).is_ok() {
                R::write_back(self.tables.slot(victim.slot));
                shut.push((victim.slot, word));
            }
        }
        if shut.is_empty() {
            return 0;
        }
        step!(RetireFence);
        // ORDERING: SeqCst fence, [lease], one for all: as in `Engine::shut`.
        edge!(fence RetirerFence, Ordering::SeqCst);
        let leased = if edge!(ScanAfterShut) { self.leased_of(shut.iter().copied()) } else { vec![false; shut.len()] };
        let mut freed = 0;
        for ((slot, word), leased) in shut.into_iter().zip(leased) {
            if leased {
                step!(RetireRevert);
                let _ = self.tables.slot(slot).swap(word, word.to(SlotState::Ready, Owner::NOBODY));
            } else if self.free_shut(slot, word) {
                freed += 1;
            }
        }
        self.count(Counter::Evicted, freed.into());
        freed
    }

    /// Slots that leases which `count` protect, of whatever life, by one look over all cells: advice.
    fn slots_being_read(&self, count: impl Fn(u32, u32, LeaseCell) -> bool) -> SlotSet {
        let mut slots = SlotSet::of(self.tables.geometry().slot_count);
        self.visit_leases(|session, index, cell| {
            if count(session, index, cell) {
                slots.insert(cell.slot());
            }
            ControlFlow::Continue(())
        });
        slots
    }

    /// Which of these lives a session that is not proven dead protects, by one look over all cells. Who is found dead is
    /// recovered on the way, which voids its leases.
    fn leased_of(&self, lives: impl Iterator<Item = (u32, SlotWord)>) -> Vec<bool> {
        let lives: Vec<(u32, SlotWord)> = lives.collect();
        let mut leased = vec![false; lives.len()];
        // A slot may come twice, in two of its lives, where it was looked at twice: only the later one can be leased.
        let lives: HashMap<u32, (usize, SlotWord)> =
            lives.into_iter().enumerate().map(|(at, (slot, word))| (slot, (at, word))).collect();
        // Victims lie close together, and cells may be a million: most are passed over without a search.
        let (low, high) = lives.keys().fold((u32::MAX, 0), |(low, high), slot| (low.min(*slot), high.max(*slot)));
        let mut unknown = lives.len();
        // Cells come session by session: the kernel is asked once for each.
        let mut judged = None;
        self.visit_leases(|session, index, cell| {
            if !(low..=high).contains(&cell.slot()) {
                return ControlFlow::Continue(());
            }
            let Some((at, word)) = lives.get(&cell.slot()) else { return ControlFlow::Continue(()) };
            let counts = !leased[*at] && cell.protects(cell.slot(), word.generation());
            if counts && judged != Some((session, true)) && !self.has_lapsed(session, index, cell) {
                if judged.is_none_or(|(of, _)| of != session) {
                    judged = Some((session, self.recover_if_dead(session)));
                }
                if judged == Some((session, false)) {
                    leased[*at] = true;
                    unknown -= 1;
                }
            }
            if unknown == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        leased
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

/// The access byte of a block that is due then.
fn due_byte(epoch: u64, horizon: u64) -> u8 {
    (epoch.min(horizon + FURTHEST) % 128) as u8
}
