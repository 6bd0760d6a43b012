//! What had been counted when: enough points for a picture, never more than fit in memory.

use crate::tally::Tally;

/// When there are so many samples, every second one goes.
const LIMIT: usize = 1024;

/// Sums over all workers at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Sample {
    /// Since the first request was dealt.
    pub(crate) seconds: f64,
    /// Blocks asked for.
    pub(crate) references: u64,
    /// Of which hits.
    pub(crate) hits: u64,
    /// Bytes loaded.
    pub(crate) loaded_bytes: u64,
    /// Bytes stored.
    pub(crate) stored_bytes: u64,
}

/// What happened between two moments.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Span {
    /// The later moment.
    pub(crate) until: f64,
    /// Hits of all references in between; `None` without references.
    pub(crate) hit_ratio: Option<f64>,
    /// Hits of all references so far.
    pub(crate) hit_ratio_so_far: f64,
    /// Bytes loaded in a second.
    pub(crate) load_rate: f64,
    /// Bytes stored in a second.
    pub(crate) store_rate: f64,
}

/// Samples in order of time, the first at zero.
#[derive(Debug, Clone)]
pub(crate) struct Timeline {
    samples: Vec<Sample>,
    /// Seconds between two samples that are kept.
    gap: f64,
}

impl Default for Timeline {
    fn default() -> Self {
        Self { samples: vec![Sample::default()], gap: 0.005 }
    }
}

impl Timeline {
    /// Adds what is known now; samples that come too fast replace each other.
    pub(crate) fn push(&mut self, seconds: f64, tally: &Tally) {
        let sample = Sample {
            seconds,
            references: tally.references,
            hits: tally.hits,
            loaded_bytes: tally.loaded_bytes,
            stored_bytes: tally.stored_bytes,
        };
        if let [.., before, last] = self.samples.as_mut_slice()
            && last.seconds - before.seconds < self.gap
        {
            *last = sample;
            return;
        }
        self.samples.push(sample);
        if self.samples.len() > LIMIT {
            let mut index = 0;
            self.samples.retain(|_| {
                index += 1;
                index % 2 == 1
            });
            self.gap *= 2.0;
        }
    }

    /// Seconds from first to last.
    pub(crate) fn seconds(&self) -> f64 {
        self.samples.last().map_or(0.0, |sample| sample.seconds)
    }

    /// What happened, in at most `count` spans of about equal length. A span ends with a sample: nothing is made up in
    /// between.
    pub(crate) fn spans(&self, count: usize) -> Vec<Span> {
        let step = self.seconds() / count as f64;
        let mut spans = Vec::new();
        let mut from = self.samples[0];
        for (at, sample) in self.samples.iter().enumerate().skip(1) {
            let seconds = sample.seconds - from.seconds;
            let last = at + 1 == self.samples.len();
            if seconds <= 0.0 || (seconds < step && !last) {
                continue;
            }
            let references = sample.references.saturating_sub(from.references);
            let ratio = |hits: u64, of: u64| hits as f64 / of as f64;
            spans.push(Span {
                until: sample.seconds,
                hit_ratio: (references > 0).then(|| ratio(sample.hits.saturating_sub(from.hits), references)),
                hit_ratio_so_far: if sample.references > 0 { ratio(sample.hits, sample.references) } else { 0.0 },
                load_rate: sample.loaded_bytes.saturating_sub(from.loaded_bytes) as f64 / seconds,
                store_rate: sample.stored_bytes.saturating_sub(from.stored_bytes) as f64 / seconds,
            });
            from = *sample;
        }
        // The rest after the last whole span may be too short to mean anything.
        if let [.., before, last] = spans.as_slice()
            && last.until - before.until < step / 2.0
        {
            spans.pop();
        }
        spans
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_tell_what_happened_in_between() {
        let mut timeline = Timeline::default();
        for second in 1..=10 {
            let hits = if second <= 5 { 0 } else { (second - 5) * 10 };
            let tally = Tally { references: second * 10, hits, loaded_bytes: hits * 100, ..Tally::default() };
            timeline.push(second as f64, &tally);
        }
        let spans = timeline.spans(5);
        assert_eq!(spans.len(), 5);
        assert_eq!(spans[0].hit_ratio, Some(0.0));
        assert_eq!(spans[4].hit_ratio, Some(1.0));
        assert_eq!(spans[4].hit_ratio_so_far, 0.5);
        assert_eq!(spans[4].load_rate, 1000.0);
        assert!(Timeline::default().spans(5).is_empty());
    }

    #[test]
    fn samples_are_thinned_out_and_the_last_one_stays() {
        let mut timeline = Timeline::default();
        for at in 1..=100_000u64 {
            timeline.push(at as f64 * 0.02, &Tally { references: at, ..Tally::default() });
        }
        assert!(timeline.samples.len() <= LIMIT);
        assert_eq!(timeline.samples.last().map(|sample| sample.references), Some(100_000));
        assert!(timeline.samples.is_sorted_by(|a, b| a.seconds < b.seconds));
    }
}
