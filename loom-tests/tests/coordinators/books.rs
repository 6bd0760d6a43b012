//! What really happened, outside of what is explored: who lived, how each life ended, and what was written where.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use maru_loom_tests::{Seen, claim};

/// One life of a session: index and epoch.
pub(crate) type Name = (u32, u32);

/// How a life ended, or ended for the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Fenced,
    Died,
    Closed,
    Vouched,
}

/// What was written in one life of a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Block {
    pub(crate) key: u64,
    pub(crate) value: u64,
}

#[derive(Default)]
pub(crate) struct Books {
    /// By slot and generation, before the first byte is written.
    blocks: BTreeMap<(u32, u64), Block>,
    values: u64,
    /// Somebody has begun to fence this life.
    pub(crate) asked: BTreeSet<Name>,
    /// The call that ended it has returned.
    pub(crate) ended: BTreeMap<Name, End>,
    pub(crate) leaders: Vec<Name>,
    pub(crate) highest_epoch: u32,
    /// Somebody's clock has moved past the bound of stalled writers.
    pub(crate) impatient: bool,
    /// The process on the other host has stopped for ever, without proof.
    pub(crate) vanished: Option<Name>,
    pub(crate) vouched: bool,
}

impl Books {
    /// A value of its own for a slot that was granted.
    pub(crate) fn write(&mut self, slot: u32, generation: u64, key: u64) -> u64 {
        self.values += 1;
        let block = Block { key, value: self.values };
        let before = self.blocks.insert((slot, generation), block);
        claim!(before.is_none(), "slot {slot} was granted twice in generation {generation}");
        self.values
    }

    pub(crate) fn block(&self, slot: u32, generation: u64) -> Block {
        let block = self.blocks.get(&(slot, generation)).copied();
        claim!(block.is_some(), "slot {slot} is ready in generation {generation}, which nobody wrote");
        block.expect("just looked")
    }

    /// A life ended; what came first stays, but for a fence, which others can follow.
    pub(crate) fn end(&mut self, name: Name, end: End) {
        let known = self.ended.entry(name).or_insert(end);
        if *known == End::Fenced {
            *known = end;
        }
    }
}

/// The books of one execution. Never held across something that is explored.
#[derive(Default)]
pub(crate) struct Ledger {
    books: Mutex<Books>,
    seen: Seen,
}

impl Ledger {
    pub(crate) fn new(seen: &Seen) -> Self {
        Self { books: Mutex::default(), seen: seen.clone() }
    }

    pub(crate) fn open(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn reached(&self, outcome: &str) {
        self.seen.reached(outcome);
    }
}
