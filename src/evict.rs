//! Eviction: making room for a store, by whoever stores.
//!
//! Victims are chosen by a hand that each session moves over the slots (`victims`), and retired in batches: one fence and
//! one scan of the lease cells for all of them (`evict_batch`). The steps of each victim are those of `retire.rs`; X1 and
//! X2 hold for a batch as for one.
//!
//! * E1: a victim is `Ready`, and nobody's lease protects it; it is checked once before it is shut, so that reverts are
//!   rare, and once after, so that it is true.
//! * E2: deeper blocks of a prefix before their parents: a child is unreachable without its parent, so a parent that goes
//!   first strands what is behind it.
//! * E3: reading marks a block by its access byte, only when that is clear; the hand clears it, and evicts what it finds
//!   clear. Looking (`probe`) marks nothing.
//! * E4: bounded: a store looks at [`LOOK`] slots at most before it is refused, and the next one goes on from there. There
//!   is no spin: where everything is leased, the answer comes as fast as where everything is free.

use core::ops::ControlFlow;

use maru_layout::superblock::SlotClass;
use maru_layout::table::Counter;
use maru_layout::word::{Owner, SlotState, SlotWord};

use crate::budget::Purse;
use crate::engine::{Engine, Eviction};
use crate::regime::Regime;
use crate::step::step;
use crate::store::class_mask;
use crate::sync::{Ordering, edge, process};

/// Slots that one search for victims looks at.
const LOOK: u32 = 4096;
/// Victims of one batch.
const BATCH: usize = 16;
/// Unvisited blocks that are compared before the deepest of them goes.
const WINDOW: usize = 32;

/// Claims between two looks at the watermarks.
const CLAIMS_A_LOOK: u64 = 64;
/// Batches that one look may evict: twice what came in since the last one.
const BATCHES_A_LOOK: u32 = 8;

/// A block that may go.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Victim {
    pub(crate) slot: u32,
    pub(crate) word: SlotWord,
    depth: u32,
}

impl<R: Regime> Engine<R> {
    /// Frees slots of `class`, if anything of it can be evicted; whether there may be room now.
    pub(crate) fn make_room(&self, class_index: usize, class: &SlotClass) -> bool {
        let mut left = LOOK;
        while left > 0 {
            // `None`: a slot came free, or was free, on the way.
            let Some(victims) = self.victims(class_index, class, &mut left) else { return true };
            if victims.is_empty() {
                return false;
            }
            if self.evict_batch(&victims) > 0 {
                return true;
            }
        }
        false
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
            if free >= share(high) || !self.make_room(index, class) {
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

    /// Frees one slot of a namespace, by walking its tokens (T4); whether a token may be unspent now.
    pub(crate) fn make_room_within(&self, purse: Purse) -> bool {
        let mut window: Vec<Victim> = Vec::with_capacity(WINDOW);
        let mut passed = Vec::new();
        self.walk(purse, |_, token| -> Option<()> {
            let (slot, _) = token.names()?;
            let record = self.tables.slot_checked(slot)?;
            let word = record.word();
            if !word.is(SlotState::Ready) || !token.is_of(slot, word.generation()) {
                return None;
            }
            let victim = Victim { slot, word, depth: record.depth_hint() };
            if self.second_chance(slot) {
                passed.push(victim);
                return None;
            }
            window.push(victim);
            (window.len() == WINDOW).then_some(())
        });
        // Where everything was read since the hand last came by, it is marked no more, and the deepest of it goes.
        for mut victims in [window, passed] {
            victims.sort_by_key(|victim| core::cmp::Reverse(victim.depth));
            if victims.iter().any(|victim| self.evict_batch(core::slice::from_ref(victim)) > 0) {
                return true;
            }
        }
        false
    }

    /// Moves the hand over slots of `class` until it has a window of blocks that nobody read since it last came by;
    /// returns the deepest of them. `None` as soon as it meets a free slot, or frees one that was no block.
    fn victims(&self, class_index: usize, class: &SlotClass, left: &mut u32) -> Option<Vec<Victim>> {
        let hand = &self.evict_hands[class_index];
        let mut at = hand.load(process::Ordering::Relaxed) as u32 % class.slot_count;
        let mut window: Vec<Victim> = Vec::with_capacity(WINDOW);
        let mut passed = Vec::new();
        let mut found_free = false;
        while *left > 0 && window.len() < WINDOW && !found_free {
            *left -= 1;
            let slot = class.first_slot + at;
            at = (at + 1) % class.slot_count;
            let record = self.tables.slot(slot);
            let word = record.word();
            if !word.is(SlotState::Ready) {
                found_free |= self.bring_home(slot, word);
                continue;
            }
            let victim = Victim { slot, word, depth: record.depth_hint() };
            if !self.second_chance(slot) {
                window.push(victim);
            } else if passed.len() < WINDOW {
                passed.push(victim);
            }
        }
        hand.store(u64::from(at), process::Ordering::Relaxed);
        if found_free {
            return None;
        }
        if window.is_empty() {
            // Everything was read since the hand last came by; it is marked no more.
            window = passed;
        }
        window.sort_by_key(|victim| core::cmp::Reverse(victim.depth));
        window.truncate(BATCH);
        Some(window)
    }

    /// What the hand does with a slot that is no block: drained ones are freed, what the dead held comes home, and a free
    /// slot whose bit a death left set gets it cleared. Whether the slot is free now, for the bitmap, too.
    fn bring_home(&self, slot: u32, word: SlotWord) -> bool {
        match word.state() {
            Some(SlotState::Free) => {
                // ORDERING: Relaxed: a hint.
                let hidden = self.tables.bitmap(slot / 64).load(Ordering::Relaxed) & (1 << (slot % 64)) != 0;
                if hidden {
                    self.clear_bit(slot);
                }
                true
            }
            Some(SlotState::Retiring) if word.owner() == Owner::NOBODY => self.free_drained(slot, word),
            Some(_) => self.recover_owner(word),
            None => false,
        }
    }

    /// Whether the block was read since the hand last came by; it is marked no more.
    fn second_chance(&self, slot: u32) -> bool {
        let byte = self.tables.access(slot);
        // ORDERING: Relaxed, both: advice.
        let read = byte.load(Ordering::Relaxed) != 0;
        if read {
            step!(EvictUnmark);
            byte.store(0, Ordering::Relaxed);
        }
        read
    }

    /// Evicts those of `victims` that nobody reads. Returns how many slots are free by it.
    pub(crate) fn evict_batch(&self, victims: &[Victim]) -> u32 {
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

    /// Which of these lives a session that is not proven dead protects, by one look over all cells. Who is found dead is
    /// recovered on the way, which voids its leases.
    fn leased_of(&self, lives: impl Iterator<Item = (u32, SlotWord)>) -> Vec<bool> {
        let lives: Vec<(u32, SlotWord)> = lives.collect();
        let mut leased = vec![false; lives.len()];
        let mut dead = None;
        self.visit_leases(|session, index, cell| {
            for (at, (slot, word)) in lives.iter().enumerate() {
                if leased[at] || !cell.protects(*slot, word.generation()) || dead == Some(session) {
                    continue;
                }
                if self.has_lapsed(session, index, cell) {
                    continue;
                }
                if self.recover_if_dead(session) {
                    dead = Some(session);
                } else {
                    leased[at] = true;
                }
            }
            ControlFlow::Continue(())
        });
        leased
    }
}
