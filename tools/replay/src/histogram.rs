//! Times in buckets: 64 to each doubling, so a percentile is right within 1.6 %, in memory that never grows.

use serde::{Deserialize, Serialize};

const PER_DOUBLING_BITS: u32 = 6;
const PER_DOUBLING: u64 = 1 << PER_DOUBLING_BITS;
/// Enough for any `u64`.
const BUCKETS: usize = ((64 - PER_DOUBLING_BITS as usize) + 1) << PER_DOUBLING_BITS;

/// Counted nanoseconds.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Vec<(u32, u64)>", into = "Vec<(u32, u64)>")]
pub(crate) struct Histogram {
    /// By bucket; empty until something is counted.
    counts: Vec<u64>,
}

fn bucket_of(ns: u64) -> usize {
    if ns < PER_DOUBLING {
        return ns as usize;
    }
    let doubling = ns.ilog2() - PER_DOUBLING_BITS;
    ((u64::from(doubling) * PER_DOUBLING) + (ns >> doubling)) as usize
}

/// The middle of a bucket.
fn middle_of(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    if bucket < 2 * PER_DOUBLING {
        return bucket;
    }
    let doubling = bucket / PER_DOUBLING - 1;
    let low = (bucket - doubling * PER_DOUBLING) << doubling;
    low + (1u64 << doubling) / 2
}

impl Histogram {
    /// Counts one.
    pub(crate) fn record(&mut self, ns: u64) {
        self.add(bucket_of(ns), 1);
    }

    fn add(&mut self, bucket: usize, count: u64) {
        if self.counts.is_empty() {
            self.counts.resize(BUCKETS, 0);
        }
        if let Some(counted) = self.counts.get_mut(bucket) {
            *counted += count;
        }
    }

    /// Adds another one's counts.
    pub(crate) fn merge(&mut self, other: &Self) {
        for (bucket, count) in other.counts.iter().enumerate().filter(|(_, count)| **count > 0) {
            self.add(bucket, *count);
        }
    }

    /// How many were counted.
    pub(crate) fn total(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The value below which this share of all lies; 0 when nothing was counted.
    pub(crate) fn percentile(&self, share: f64) -> u64 {
        let rank = ((self.total() as f64 * share).ceil() as u64).max(1);
        let mut seen = 0;
        for (bucket, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= rank {
                return middle_of(bucket);
            }
        }
        0
    }
}

impl From<Vec<(u32, u64)>> for Histogram {
    fn from(pairs: Vec<(u32, u64)>) -> Self {
        let mut histogram = Self::default();
        for (bucket, count) in pairs {
            histogram.add(bucket as usize, count);
        }
        histogram
    }
}

impl From<Histogram> for Vec<(u32, u64)> {
    fn from(histogram: Histogram) -> Self {
        let counts = histogram.counts.into_iter().enumerate();
        counts.filter(|(_, count)| *count > 0).map(|(bucket, count)| (bucket as u32, count)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_narrow_and_in_order() {
        let mut last = 0;
        for ns in (0..100_000).chain([1 << 40, u64::MAX / 2, u64::MAX]) {
            let bucket = bucket_of(ns);
            assert!(bucket >= last && bucket < BUCKETS, "{ns}");
            last = bucket;
            let error = middle_of(bucket).abs_diff(ns) as f64;
            assert!(error <= ns as f64 / 64.0, "{ns} is shown as {}", middle_of(bucket));
        }
    }

    #[test]
    fn percentiles_survive_merging_and_the_wire() {
        let (mut low, mut high) = (Histogram::default(), Histogram::default());
        assert_eq!(low.percentile(0.5), 0);
        for ns in 1..=50 {
            low.record(ns);
            high.record(ns + 50);
        }
        low.merge(&high);
        let text = serde_json::to_string(&low).expect("plain data");
        let back: Histogram = serde_json::from_str(&text).expect("what was written");
        assert_eq!(back, low);
        assert_eq!(
            (back.total(), back.percentile(0.5), back.percentile(0.99), back.percentile(1.0)),
            (100, 50, 99, 100)
        );
    }
}
