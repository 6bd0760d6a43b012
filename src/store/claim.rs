//! Step 1 of a store: a free slot, claimed.
//!
//! The bitmap tells where to look, and may be wrong both ways: a set bit where somebody died before clearing it, a clear
//! one where a claim was made this moment. The slot word decides. A search begins where the last one of this process
//! ended, or where this process freed a slot last.
//!
//! * C1: a claim carries its owner's name in the same compare-and-swap.
//! * C2: free space comes before a block: a store that may evict does so only after it has looked through the bitmap in
//!   vain, itself or within the same millisecond.
//! * C3: "no space" is said only after a look through all of the bitmap, or through slot words, which mends it.

use maru_layout::superblock::SlotClass;
use maru_layout::word::{SlotState, SlotWord};

use super::{FULL_LOOK_MS, Terms};
use crate::engine::Engine;
use crate::regime::Regime;
use crate::step::step;
use crate::sync::{Ordering, process};

/// Slots that may be freed for a store and taken by others before it says "no space".
const EVICT_ROUNDS: u32 = if cfg!(maru_loom) { 2 } else { 64 };
/// Words of a class's bitmap that a short look passes over.
const BITMAP_LOOK: u32 = 64;
/// Slot words looked at before "no space" is said, unless the last whole look is old.
const SCAN_SLOTS: u32 = 4096;

impl<R: Regime> Engine<R> {
    /// A free slot, after making room for it if need be.
    pub(super) fn claim_or_evict(&self, length: u32, terms: Terms) -> Option<(u32, SlotWord)> {
        let device = terms.device;
        if !terms.evict {
            return self.claim_free(length, device);
        }
        let geometry = self.tables.geometry();
        let fitting = || geometry.classes.iter().enumerate().filter(|(_, class)| class.slot_bytes >= u64::from(length));
        for (index, class) in fitting() {
            if let Some(claimed) = self.claim_before_evicting(index, class, device) {
                self.keep_watermarks(index, class);
                return Some(claimed);
            }
        }
        // The hand that looks for victims also brings home what the dead left and bits that a death forgot, so there is no
        // look through all words before it.
        for (index, class) in fitting() {
            // Others store, too: a slot that was freed here may be taken by one of them.
            for _ in 0..EVICT_ROUNDS {
                if !self.make_room(index, class, true) {
                    break;
                }
                // What was freed is where the cursor stands now, unless others free and take at the same time.
                for words in [BITMAP_LOOK, u32::MAX] {
                    if let Some(claimed) = self.claim_by_bitmap(index, class, device, words) {
                        return Some(claimed);
                    }
                }
            }
        }
        fitting().find_map(|(index, class)| self.claim_by_bitmap(index, class, device, u32::MAX))
    }

    /// Step 1: a free slot of the smallest class with one, claimed by this session.
    fn claim_free(&self, length: u32, device: bool) -> Option<(u32, SlotWord)> {
        let geometry = self.tables.geometry();
        for (index, class) in geometry.classes.iter().enumerate() {
            if class.slot_bytes >= u64::from(length)
                && let Some(claimed) = self.claim_in(index, class, device)
            {
                return Some(claimed);
            }
        }
        None
    }

    fn claim_in(&self, class_index: usize, class: &SlotClass, device: bool) -> Option<(u32, SlotWord)> {
        let start = self.cursors[class_index].load(process::Ordering::Relaxed) as u32 % class.slot_count;
        self.claim_by_bitmap(class_index, class, device, u32::MAX)
            .or_else(|| self.claim_by_words(class_index, class, start, device))
    }

    /// A slot that the bitmap calls free, among the slots of `most_words` of its words from the cursor on, going round.
    fn claim_by_bitmap(
        &self,
        class_index: usize,
        class: &SlotClass,
        device: bool,
        most_words: u32,
    ) -> Option<(u32, SlotWord)> {
        let cursor = &self.cursors[class_index];
        let start = cursor.load(process::Ordering::Relaxed) as u32 % class.slot_count;
        let first_word = class.first_slot / 64;
        let words = (class.first_slot + class.slot_count - 1) / 64 - first_word + 1;
        let start_word = (class.first_slot + start) / 64 - first_word;
        for step in 0..words.min(most_words) {
            let word = first_word + (start_word + step) % words;
            // ORDERING: Relaxed: a hint; the slot word decides.
            let mut free = !self.tables.bitmap(word).load(Ordering::Relaxed) & class_mask(class, word);
            while free != 0 {
                let slot = word * 64 + free.trailing_zeros();
                free &= free - 1;
                if let Some(claimed) = self.try_claim(slot, device) {
                    cursor.store((slot - class.first_slot + 1) as usize, process::Ordering::Relaxed);
                    return Some((slot, claimed));
                }
            }
        }
        None
    }

    /// A free slot, so that no block has to go. In a full region of a million slots each store would pass over all sixteen
    /// thousand words for it: after a whole look in vain, only those at the cursor are looked at for a millisecond, where
    /// stands what this process freed.
    fn claim_before_evicting(&self, index: usize, class: &SlotClass, device: bool) -> Option<(u32, SlotWord)> {
        let near = self.claim_by_bitmap(index, class, device, BITMAP_LOOK);
        let (in_vain, now) = (&self.bitmap_in_vain_ms[index], self.world.now_ms() + 1);
        if near.is_some() || in_vain.load(process::Ordering::Relaxed) == now {
            return near;
        }
        let found = self.claim_by_bitmap(index, class, device, u32::MAX);
        if found.is_none() {
            in_vain.store(now, process::Ordering::Relaxed);
        }
        found
    }

    /// The bitmap says "full". It may be wrong where somebody died between freeing a slot and saying so: look at
    /// slot words, at most [`SCAN_SLOTS`] of them unless the last whole look is over [`FULL_LOOK_MS`] old.
    #[cold]
    fn claim_by_words(
        &self,
        class_index: usize,
        class: &SlotClass,
        start: u32,
        device: bool,
    ) -> Option<(u32, SlotWord)> {
        let stamp = &self.full_look_ms[class_index];
        let last = stamp.load(process::Ordering::Relaxed);
        let whole = last == 0 || (self.world.now_ms() + 1).saturating_sub(last) > FULL_LOOK_MS;
        if whole {
            self.recover_all_dead();
            #[cfg(not(maru_loom))]
            self.retire_ended_in(class.first_slot..class.first_slot + class.slot_count);
            self.free_drained_in(class.first_slot..class.first_slot + class.slot_count);
        }
        let looks = if whole { class.slot_count } else { class.slot_count.min(SCAN_SLOTS) };
        for step in 0..looks {
            let slot = class.first_slot + (start + step) % class.slot_count;
            if let Some(claimed) = self.try_claim(slot, device) {
                return Some((slot, claimed));
            }
        }
        if whole {
            stamp.store(self.world.now_ms() + 1, process::Ordering::Relaxed);
        }
        // The next short look goes on where this one ended.
        self.cursors[class_index].store(((start + looks) % class.slot_count) as usize, process::Ordering::Relaxed);
        None
    }

    fn try_claim(&self, slot: u32, device: bool) -> Option<SlotWord> {
        let record = self.tables.slot(slot);
        let free = record.word();
        let Some(claiming) = free.claimed_by(self.me.owner, device) else {
            self.set_bit(slot);
            // Freed since I looked: its owner's clearing may have come before my setting.
            if record.word().is(SlotState::Free) {
                self.clear_bit(slot);
            }
            return None;
        };
        step!(StoreClaim);
        record.swap(free, claiming).ok()?;
        self.set_bit(slot);
        Some(claiming)
    }

    fn set_bit(&self, slot: u32) {
        let word = self.tables.bitmap(slot / 64);
        let bit = 1u64 << (slot % 64);
        if word.load(Ordering::Relaxed) & bit == 0 {
            step!(StoreBitmap);
            // ORDERING: Relaxed: a hint.
            word.fetch_or(bit, Ordering::Relaxed);
        }
    }

    pub(crate) fn clear_bit(&self, slot: u32) {
        step!(FreeBitmap);
        // ORDERING: Relaxed: a hint. Lost by a death right here, it is found by `claim_by_words`.
        self.tables.bitmap(slot / 64).fetch_and(!(1u64 << (slot % 64)), Ordering::Relaxed);
        self.look_from(slot);
    }

    /// The next search for a free slot of this class begins here.
    pub(crate) fn look_from(&self, slot: u32) {
        let geometry = self.tables.geometry();
        if let Some(index) = geometry.class_index_of(slot) {
            let place = slot - geometry.classes[index].first_slot;
            self.cursors[index].store(place as usize, process::Ordering::Relaxed);
        }
    }
}

/// Bits of bitmap word `word` that belong to slots of `class`.
pub(crate) fn class_mask(class: &SlotClass, word: u32) -> u64 {
    let first = u64::from(word) * 64;
    let start = u64::from(class.first_slot).saturating_sub(first).min(64);
    let end = (u64::from(class.first_slot) + u64::from(class.slot_count)).saturating_sub(first).min(64);
    let below = |n: u64| if n >= 64 { u64::MAX } else { (1 << n) - 1 };
    below(end) & !below(start)
}
