//! Maru's policy: a clock whose access bytes say when a block is due.
//!
//! Only data that a region has: slots in index order, one byte for each, one hand, one count of stores.
//!
//! * S1: time is counted in stores: an *epoch* is `slots / LIFETIME` of them. A block that nobody reads is due
//!   [`LIFETIME`] epochs after it was stored, so after as many stores as there are slots.
//! * S2: a byte is [`VISITED`], which readers set and only if it is clear, and seven bits of the epoch when due, modulo
//!   128, which the hand and the storer write. A reader of a visited block stores nothing.
//! * S3: the hand gives a visited block a new due epoch and clears the mark; it evicts a block whose due epoch is not
//!   after its *horizon*; it leaves all others. A whole pass moves the horizon on by one, or to the earliest due epoch
//!   that the pass saw. So blocks go in the order of their last visit, up to an epoch or two, without a queue.
//! * S4: no due epoch is further than [`FURTHEST`] after the horizon, so seven bits are enough.
//! * S5: batches are small beside the cache: a free slot that waits is a block that was lost too early.
//! * S6: a *tail*, stored by a request that had found at least [`TAIL_RUN`] blocks, is due [`TAIL_SOONER`] epochs
//!   sooner: what follows a shared prefix is mostly private to its request.

use std::collections::VecDeque;

use crate::replay::Cache;
use crate::trace::Block;

/// Set by a reader, cleared by the hand.
const VISITED: u8 = 0x80;
const DUE: u8 = 0x7F;

/// Epochs that an unread block stays, and epochs in which as many blocks are stored as there are slots.
pub(crate) const LIFETIME: u8 = 40;
/// The furthest that a due epoch may be after the horizon.
pub(crate) const FURTHEST: u8 = 63;
/// Epochs by which a tail is due sooner.
pub(crate) const TAIL_SOONER: u8 = 15;
/// Blocks that a request must have found so that what it stores is a tail.
pub(crate) const TAIL_RUN: usize = 2;
/// Epochs by which a block that was read is due later than one that was not.
pub(crate) const VISITED_LATER: u8 = 0;
/// The most victims of one sweep.
pub(crate) const BATCH_MOST: usize = 16;
/// A sweep takes one slot of so many, if that is fewer.
const BATCH_SHARE: usize = 512;

const EMPTY: Block = Block::MAX;

/// What may be varied, to show what each part is worth.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Settings {
    pub(crate) lifetime: u8,
    pub(crate) tail_sooner: u8,
    pub(crate) visited_later: u8,
    pub(crate) batch_most: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self { lifetime: LIFETIME, tail_sooner: TAIL_SOONER, visited_later: VISITED_LATER, batch_most: BATCH_MOST }
    }
}

/// Slots of a region, as far as eviction sees them.
pub(crate) struct Slots {
    settings: Settings,
    blocks: Vec<Block>,
    access: Vec<u8>,
    /// Stands for the index: the slot of a block.
    slot_of: Vec<Option<usize>>,
    /// Free slots in the order in which the bitmap's cursor meets them.
    free: VecDeque<usize>,
    stores: u64,
    hand: usize,
    horizon: u64,
    earliest: u64,
    is_tail: bool,
    looked_at: u64,
}

impl Slots {
    /// Empty slots for a trace with so many blocks.
    pub(crate) fn new(capacity: usize, distinct: usize, settings: Settings) -> Self {
        assert!(settings.lifetime + settings.visited_later <= FURTHEST && settings.tail_sooner < settings.lifetime);
        Self {
            settings,
            blocks: vec![EMPTY; capacity],
            access: vec![0; capacity],
            slot_of: vec![None; distinct],
            free: (0..capacity).collect(),
            stores: 0,
            hand: 0,
            // Nothing can be due earlier.
            horizon: u64::from(settings.lifetime - settings.tail_sooner) - 1,
            earliest: u64::MAX,
            is_tail: false,
            looked_at: 0,
        }
    }

    /// Bytes that the hand looked at for each store.
    #[cfg(test)]
    pub(crate) fn looked_at_per_store(&self) -> f64 {
        self.looked_at as f64 / self.stores.max(1) as f64
    }

    /// The byte of a block that is due so many epochs from now (S4).
    fn byte_due_in(&self, epochs: u8) -> u8 {
        let now = self.stores * u64::from(self.settings.lifetime) / self.blocks.len() as u64;
        let due = (now + u64::from(epochs)).min(self.horizon + u64::from(FURTHEST));
        (due % 128) as u8
    }

    /// How far after the horizon a due epoch is; zero or less means due. Seven bits, signed.
    fn after_horizon(&self, byte: u8) -> i8 {
        let distance = (byte & DUE).wrapping_sub((self.horizon % 128) as u8) & DUE;
        ((distance << 1) as i8) >> 1
    }

    fn sweep(&mut self) {
        let mut victims = 0;
        let wanted = (self.blocks.len() / BATCH_SHARE).clamp(1, self.settings.batch_most);
        while victims < wanted {
            if self.hand == self.blocks.len() {
                self.hand = 0;
                let earliest = std::mem::replace(&mut self.earliest, u64::MAX);
                self.horizon = if earliest == u64::MAX { self.horizon + 1 } else { earliest.max(self.horizon + 1) };
            }
            let slot = self.hand;
            self.hand += 1;
            self.looked_at += 1;
            let block = self.blocks[slot];
            if block == EMPTY {
                continue;
            }
            if self.access[slot] & VISITED != 0 {
                self.access[slot] = self.byte_due_in(self.settings.lifetime + self.settings.visited_later);
            }
            match self.after_horizon(self.access[slot]) {
                later @ 1.. => self.earliest = self.earliest.min(self.horizon + later as u64),
                _ => {
                    self.blocks[slot] = EMPTY;
                    self.slot_of[block as usize] = None;
                    self.free.push_back(slot);
                    victims += 1;
                }
            }
        }
    }
}

impl Cache for Slots {
    fn contains(&self, block: Block) -> bool {
        self.slot_of[block as usize].is_some()
    }

    fn begin(&mut self, _request: usize, run: usize) {
        self.is_tail = run >= TAIL_RUN;
    }

    fn hit(&mut self, block: Block, _depth: u32) {
        if let Some(slot) = self.slot_of[block as usize] {
            self.access[slot] |= VISITED;
        }
    }

    fn store(&mut self, block: Block, _depth: u32) {
        if self.free.is_empty() {
            self.sweep();
        }
        let Some(slot) = self.free.pop_front() else { return };
        let sooner = if self.is_tail { self.settings.tail_sooner } else { 0 };
        self.blocks[slot] = block;
        self.access[slot] = self.byte_due_in(self.settings.lifetime - sooner);
        self.slot_of[block as usize] = Some(slot);
        self.stores += 1;
    }
}
