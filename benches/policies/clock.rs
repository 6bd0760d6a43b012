//! Simpler policies over the same slots. They lost; they are here so that the table shows by how much.
//!
//! A clock: the hand clears visited marks and takes what it finds unvisited. *Chances* lets a block that was visited
//! survive so many further passes. *Window* lets the hand gather more unvisited blocks than it needs and take the
//! deepest of them, leaving the others for its next pass.

use std::cmp::Reverse;
use std::collections::VecDeque;

use crate::replay::Cache;
use crate::trace::Block;

const EMPTY: Block = Block::MAX;

/// A clock over slots.
pub(crate) struct Clock {
    chances: u8,
    window: usize,
    batch: usize,
    blocks: Vec<Block>,
    depths: Vec<u32>,
    visited: Vec<bool>,
    left: Vec<u8>,
    slot_of: Vec<Option<usize>>,
    free: VecDeque<usize>,
    hand: usize,
}

impl Clock {
    /// A window as large as the batch is none.
    pub(crate) fn new(capacity: usize, distinct: usize, chances: u8, window: usize, batch: usize) -> Self {
        Self {
            chances,
            window: window.min(capacity),
            batch: batch.min(capacity),
            blocks: vec![EMPTY; capacity],
            depths: vec![0; capacity],
            visited: vec![false; capacity],
            left: vec![0; capacity],
            slot_of: vec![None; distinct],
            free: (0..capacity).collect(),
            hand: 0,
        }
    }

    fn sweep(&mut self) {
        let mut candidates = Vec::with_capacity(self.window);
        while candidates.len() < self.window {
            let slot = self.hand;
            self.hand = (self.hand + 1) % self.blocks.len();
            if self.blocks[slot] == EMPTY || candidates.contains(&slot) {
                continue;
            }
            if std::mem::take(&mut self.visited[slot]) {
                self.left[slot] = self.chances;
            } else if self.left[slot] > 0 {
                self.left[slot] -= 1;
            } else {
                candidates.push(slot);
            }
        }
        candidates.sort_by_key(|slot| Reverse(self.depths[*slot]));
        for slot in candidates.into_iter().take(self.batch) {
            let block = std::mem::replace(&mut self.blocks[slot], EMPTY);
            self.slot_of[block as usize] = None;
            self.free.push_back(slot);
        }
    }
}

impl Cache for Clock {
    fn contains(&self, block: Block) -> bool {
        self.slot_of[block as usize].is_some()
    }

    fn hit(&mut self, block: Block, _depth: u32) {
        if let Some(slot) = self.slot_of[block as usize] {
            self.visited[slot] = true;
        }
    }

    fn store(&mut self, block: Block, depth: u32) {
        if self.free.is_empty() {
            self.sweep();
        }
        let Some(slot) = self.free.pop_front() else { return };
        self.blocks[slot] = block;
        self.depths[slot] = depth;
        self.visited[slot] = false;
        self.left[slot] = 0;
        self.slot_of[block as usize] = Some(slot);
    }
}
