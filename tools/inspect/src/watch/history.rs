//! Looks and what lies between them.

use std::collections::VecDeque;
use std::time::Instant;

use maru_layout::table::Counter;

use crate::census::{Census, Look, refusals};
use crate::findings::Verdict;

/// Rates kept: more than any terminal has columns.
const KEPT: usize = 512;

/// What grew between two looks, per second.
#[derive(Debug, Clone, Copy)]
pub struct Rates {
    /// Seconds between the looks.
    pub seconds: f64,
    /// Growth, by the numbers of [`Counter`].
    growth: [u64; 64],
}

impl Rates {
    /// A counter per second.
    #[must_use]
    pub fn of(&self, counter: Counter) -> f64 {
        self.growth[counter as usize] as f64 / self.seconds.max(1e-9)
    }

    /// All refusals per second.
    #[must_use]
    pub fn refused(&self) -> f64 {
        refusals().map(|(counter, _)| self.of(counter)).sum()
    }

    /// Keys found of keys probed; `None` where nobody probed.
    #[must_use]
    pub fn planned(&self) -> Option<f64> {
        self.ratio(Counter::ProbeHits, Counter::Probed)
    }

    /// Blocks acquired of blocks asked for; `None` where none was.
    #[must_use]
    pub fn real(&self) -> Option<f64> {
        self.ratio(Counter::AcquireHits, Counter::Acquired)
    }

    fn ratio(&self, hits: Counter, asked: Counter) -> Option<f64> {
        let (hits, asked) = (self.growth[hits as usize], self.growth[asked as usize]);
        (asked > 0).then(|| hits as f64 / asked as f64)
    }
}

/// What has been seen so far.
#[derive(Debug, Default)]
pub struct History {
    latest: Option<(Box<Census>, Instant)>,
    unread: Option<(String, Verdict)>,
    rates: VecDeque<Rates>,
    /// What happened between looks that the numbers do not say.
    notice: Option<String>,
}

impl History {
    /// Nothing yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a look.
    pub fn add(&mut self, look: Look, at: Instant) {
        let census = match look {
            Look::Unread { reason, verdict } => {
                self.unread = Some((reason, verdict));
                return;
            }
            Look::Seen(census) => census,
        };
        self.unread = None;
        match self.latest.take() {
            Some((before, then)) if census.same_region(&before) => {
                let mut growth = [0; 64];
                for counter in Counter::ALL {
                    growth[*counter as usize] = census.growth(&before, *counter);
                }
                if self.rates.len() >= KEPT {
                    self.rates.pop_front();
                }
                self.rates.push_back(Rates { seconds: (at - then).as_secs_f64(), growth });
            }
            Some((before, _)) => {
                self.rates.clear();
                self.notice = Some(format!("another region lies here now; region {} is gone", &before.region_id[..8]));
            }
            None => {}
        }
        self.latest = Some((census, at));
    }

    /// The latest look at a region, and whether it is out of date because the last look could not read one.
    #[must_use]
    pub fn latest(&self) -> Option<&Census> {
        self.latest.as_ref().map(|(census, _)| census.as_ref())
    }

    /// Why the last look found no region.
    #[must_use]
    pub fn unread(&self) -> Option<&str> {
        self.unread.as_ref().map(|(reason, _)| reason.as_str())
    }

    /// What happened that the numbers do not say.
    #[must_use]
    pub fn notice(&self) -> Option<&str> {
        self.notice.as_deref()
    }

    /// The latest rates.
    #[must_use]
    pub fn now(&self) -> Option<&Rates> {
        self.rates.back()
    }

    /// The last rates, the oldest first, at most `most` of them.
    pub fn last(&self, most: usize) -> impl Iterator<Item = &Rates> {
        self.rates.iter().skip(self.rates.len().saturating_sub(most))
    }

    /// Of the last look.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        match (&self.unread, &self.latest) {
            (Some((_, verdict)), _) => *verdict,
            (None, Some((census, _))) => census.verdict,
            (None, None) => Verdict::Unreadable,
        }
    }
}

/// Hits of all that was ever asked for; `None` where nothing was.
#[must_use]
pub fn overall(census: &Census, hits: Counter, asked: Counter) -> Option<f64> {
    let (hits, asked) = (census.total(hits), census.total(asked));
    (asked > 0).then(|| hits as f64 / asked as f64)
}
