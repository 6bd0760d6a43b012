//! What a cache without end would answer, request after request.
//!
//! The leading run of a request is the number of its first blocks that were part of an earlier request; a block that
//! is known beyond the first unknown one counts for nothing, because an engine cannot use it. Afterwards all blocks
//! of the request are known.

use std::collections::HashSet;

/// Known blocks, in the order in which they were first seen, and what was counted on the way.
#[derive(Debug, Default)]
pub(crate) struct EndlessCache {
    known: HashSet<u64>,
    /// Ids in the order of their first use.
    pub(crate) order: Vec<u64>,
    /// Requests seen.
    pub(crate) requests: u64,
    /// Blocks asked for.
    pub(crate) references: u64,
    /// Of which in leading runs.
    pub(crate) hits: u64,
}

impl EndlessCache {
    /// Takes a request and answers with its leading run.
    pub(crate) fn serve(&mut self, ids: &[u64]) -> usize {
        let run = ids.iter().take_while(|id| self.known.contains(id)).count();
        for id in &ids[run..] {
            if self.known.insert(*id) {
                self.order.push(*id);
            }
        }
        self.requests += 1;
        self.references += ids.len() as u64;
        self.hits += run as u64;
        run
    }

    /// Different blocks seen.
    pub(crate) fn distinct(&self) -> u64 {
        self.order.len() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_leading_runs_count() {
        let mut cache = EndlessCache::default();
        for (ids, run) in [
            (&[0, 1, 2][..], 0),
            (&[0, 1, 2, 3], 3),
            (&[9, 1, 2], 0),    // known blocks behind a hole
            (&[0, 1, 7, 2], 2), // a hole in the middle
            (&[], 0),
            (&[9, 1, 2], 3),
            (&[5, 5, 5], 0), // equal ids in one request are one block
            (&[5, 5, 6], 2),
        ] {
            assert_eq!(cache.serve(ids), run, "{ids:?}");
        }
        assert_eq!((cache.requests, cache.references, cache.hits), (8, 23, 10));
        assert_eq!(cache.order, [0, 1, 2, 3, 9, 7, 5, 6]);
        assert_eq!(cache.distinct(), 8);
    }
}
