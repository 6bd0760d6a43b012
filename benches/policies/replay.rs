//! The question that every policy is asked.
//!
//! * M1: a request is looked up as a whole: its *leading run* is what is there before the first block that is not.
//! * M2: the blocks of the run count as visited, and no others: nobody reads a block behind a hole.
//! * M3: then the missing blocks are stored in the order of the prompt; one that is there is not stored again.
//! * M4: the metric is the sum of the runs over all references.

use std::ops::Range;

use crate::trace::{Block, Trace};

/// Something that holds blocks, and has to forget some.
pub(crate) trait Cache {
    /// Whether the block is there; changes nothing.
    fn contains(&self, block: Block) -> bool;

    /// A request begins whose first `run` blocks are there.
    fn begin(&mut self, _request: usize, _run: usize) {}

    /// The block at this depth of the prompt is read.
    fn hit(&mut self, block: Block, depth: u32);

    /// The block was missing and is stored now, or refused.
    fn store(&mut self, block: Block, depth: u32);

    /// The request is over.
    fn end(&mut self, _blocks: &[Block]) {}
}

/// Blocks found in leading runs.
pub(crate) fn replay(trace: &Trace, cache: &mut dyn Cache) -> usize {
    replay_admitting(trace, cache, &mut |_, missing| missing).0
}

/// Says which of a request's missing blocks are stored.
pub(crate) type Admit<'a> = &'a mut dyn FnMut(&[Block], Range<usize>) -> Range<usize>;

/// Blocks found in leading runs, and blocks stored, where `admit` has a say.
pub(crate) fn replay_admitting(trace: &Trace, cache: &mut dyn Cache, admit: Admit<'_>) -> (usize, usize) {
    let (mut found, mut stored) = (0, 0);
    for (number, blocks) in trace.requests.iter().enumerate() {
        let run = blocks.iter().take_while(|block| cache.contains(**block)).count();
        found += run;
        let admitted = admit(blocks, run..blocks.len());
        cache.begin(number, run);
        for (depth, block) in blocks.iter().enumerate() {
            if depth < run {
                cache.hit(*block, depth as u32);
            } else if admitted.contains(&depth) && !cache.contains(*block) {
                cache.store(*block, depth as u32);
                stored += 1;
            }
        }
        cache.end(blocks);
    }
    (found, stored)
}
