//! What a worker counts. All numbers only grow, so that any two reports can be compared.

use std::collections::BTreeMap;

use maru::Why;
use serde::{Deserialize, Serialize};

/// Counters of one worker, or of all.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Tally {
    /// Requests served.
    pub(crate) requests: u64,
    /// Blocks that they asked for.
    pub(crate) references: u64,
    /// Blocks of leading runs, loaded and compared.
    pub(crate) hits: u64,
    /// Blocks stored.
    pub(crate) stores: u64,
    /// Stores refused, by reason.
    pub(crate) refused: BTreeMap<String, u64>,
    /// Blocks to store that somebody had stored meanwhile, or that lay beyond a hole.
    pub(crate) present: u64,
    /// Blocks to store that somebody else was storing.
    pub(crate) being_written: u64,
    /// Blocks that could not be stored for losing to others again and again.
    pub(crate) contended: u64,
    /// Stores that ended without being stored.
    pub(crate) lost_stores: u64,
    /// Blocks that a probe had seen and a load did not get.
    pub(crate) lost_loads: u64,
    /// Blocks whose checksum did not match.
    pub(crate) damaged: u64,
    /// Payload bytes loaded.
    pub(crate) loaded_bytes: u64,
    /// Payload bytes stored.
    pub(crate) stored_bytes: u64,
    /// Loaded bytes that are not what they must be.
    pub(crate) wrong_bytes: u64,
}

impl Tally {
    /// Counts a refused store.
    pub(crate) fn refuse(&mut self, why: Why) {
        *self.refused.entry(why.code().to_owned()).or_default() += 1;
    }

    /// Refused stores, whatever the reason.
    pub(crate) fn refused_total(&self) -> u64 {
        self.refused.values().sum()
    }

    /// Payload bytes loaded and stored.
    pub(crate) fn bytes_moved(&self) -> u64 {
        self.loaded_bytes + self.stored_bytes
    }

    /// Hits of all references; 0 when there were none.
    pub(crate) fn hit_ratio(&self) -> f64 {
        if self.references == 0 { 0.0 } else { self.hits as f64 / self.references as f64 }
    }

    /// Adds another one's counts.
    pub(crate) fn add(&mut self, other: &Self) {
        let Self {
            requests,
            references,
            hits,
            stores,
            refused,
            present,
            being_written,
            contended,
            lost_stores,
            lost_loads,
            damaged,
            loaded_bytes,
            stored_bytes,
            wrong_bytes,
        } = other;
        self.requests += requests;
        self.references += references;
        self.hits += hits;
        self.stores += stores;
        for (why, count) in refused {
            *self.refused.entry(why.clone()).or_default() += count;
        }
        self.present += present;
        self.being_written += being_written;
        self.contended += contended;
        self.lost_stores += lost_stores;
        self.lost_loads += lost_loads;
        self.damaged += damaged;
        self.loaded_bytes += loaded_bytes;
        self.stored_bytes += stored_bytes;
        self.wrong_bytes += wrong_bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_keep_reasons_apart() {
        let mut one = Tally { references: 4, hits: 1, ..Tally::default() };
        one.refuse(Why::NoSpace);
        let mut two = Tally { loaded_bytes: 3, stored_bytes: 4, ..Tally::default() };
        two.refuse(Why::NoSpace);
        two.refuse(Why::BucketBusy);
        one.add(&two);
        assert_eq!(one.refused_total(), 3);
        assert_eq!(one.refused["no_space"], 2);
        assert_eq!((one.hit_ratio(), one.bytes_moved()), (0.25, 7));
        assert_eq!(Tally::default().hit_ratio(), 0.0);
    }
}
