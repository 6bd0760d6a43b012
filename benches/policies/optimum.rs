//! The offline optimum: Belady's rule with the right to refuse, which here is exact and not only a bound.
//!
//! After every reference the block whose next use is furthest away goes, and the one just referenced may be it. Each
//! reference to a block follows one to its parent in the same request, so a parent's next use never comes after its
//! child's; with the deeper block first among those of one request, the set that is kept is closed under parents.
//!
//! * O1: no policy has more block hits than this rule (Belady, with bypass and blocks of one size).
//! * O2: no policy has more hits in leading runs than block hits.
//! * O3: in a set closed under parents every block hit is in the leading run, so this rule's two counts are equal.
//!
//! Together: no policy, online or offline, has a higher leading-run hit ratio than this one.

use std::collections::BTreeSet;

use crate::replay::Cache;
use crate::trace::{Block, Trace};

const NEVER: u32 = u32::MAX;

/// Belady's rule.
pub(crate) struct Optimum {
    capacity: usize,
    /// The requests that use a block, last one first.
    uses: Vec<Vec<u32>>,
    /// What is kept: next use, depth, block. The last one goes first.
    kept: BTreeSet<(u32, u32, Block)>,
    place: Vec<Option<(u32, u32)>>,
    request: u32,
}

impl Optimum {
    /// Knows the whole trace.
    pub(crate) fn new(capacity: usize, trace: &Trace) -> Self {
        let mut uses = vec![Vec::new(); trace.distinct];
        for (number, blocks) in trace.requests.iter().enumerate().rev() {
            for block in blocks {
                uses[*block as usize].push(number as u32);
            }
        }
        Self { capacity, uses, kept: BTreeSet::new(), place: vec![None; trace.distinct], request: 0 }
    }

    fn referenced(&mut self, block: Block, depth: u32) {
        let uses = &mut self.uses[block as usize];
        while uses.last().is_some_and(|request| *request <= self.request) {
            uses.pop();
        }
        let next = uses.last().copied().unwrap_or(NEVER);
        if let Some((next, depth)) = self.place[block as usize].replace((next, depth)) {
            self.kept.remove(&(next, depth, block));
        }
        self.kept.insert((next, depth, block));
        if self.kept.len() > self.capacity
            && let Some((_, _, victim)) = self.kept.pop_last()
        {
            self.place[victim as usize] = None;
        }
    }
}

impl Cache for Optimum {
    fn contains(&self, block: Block) -> bool {
        self.place[block as usize].is_some()
    }

    fn begin(&mut self, request: usize, _run: usize) {
        self.request = request as u32;
    }

    fn hit(&mut self, block: Block, depth: u32) {
        self.referenced(block, depth);
    }

    fn store(&mut self, block: Block, depth: u32) {
        self.referenced(block, depth);
    }
}
