//! Who competes, and the results.

use crate::admission::{Admitted, MEASURED_NAME};
use crate::clock::Clock;
use crate::optimum::Optimum;
use crate::peers::{ClockPro, Lru, OfFoyer};
use crate::replay::{Cache, replay};
use crate::slots::{Settings, Slots};
use crate::trace::Trace;

/// Sizes of the cache, in percent of the distinct blocks.
pub(crate) const PERCENT: [usize; 5] = [2, 5, 10, 20, 40];

/// What a row is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Knows the future.
    Bound,
    /// Of another crate, or common knowledge.
    Peer,
    /// Maru's.
    Ours,
    /// Over Maru's slots, not chosen.
    Variant,
}

type Make = Box<dyn Fn(usize, &Trace) -> Box<dyn Cache>>;

/// A policy by name.
pub(crate) struct Entrant {
    pub(crate) name: &'static str,
    pub(crate) whose: &'static str,
    pub(crate) kind: Kind,
    make: Make,
}

impl Entrant {
    /// A cache of so many slots for a trace.
    pub(crate) fn make(&self, capacity: usize, trace: &Trace) -> Box<dyn Cache> {
        (self.make)(capacity, trace)
    }
}

/// The strict LRU that the goal names.
pub(crate) const LRU: &str = "LRU";

/// All entrants, in the order of the table.
pub(crate) fn entrants() -> Vec<Entrant> {
    let mut all = Vec::new();
    let mut add = |name, whose, kind, make: Make| all.push(Entrant { name, whose, kind, make });
    add("optimum (Belady)", "own", Kind::Bound, Box::new(|size, trace| Box::new(Optimum::new(size, trace))));
    add("FIFO", "foyer-memory", Kind::Peer, Box::new(|size, _| Box::new(OfFoyer::fifo(size))));
    add(LRU, "lru", Kind::Peer, Box::new(|size, _| Box::new(Lru::new(size))));
    add("LRU, deepest first", "lru", Kind::Peer, Box::new(|size, _| Box::new(Lru::deepest_first(size))));
    add("SIEVE", "foyer-memory", Kind::Peer, Box::new(|size, _| Box::new(OfFoyer::sieve(size))));
    add("S3-FIFO", "foyer-memory", Kind::Peer, Box::new(|size, _| Box::new(OfFoyer::s3_fifo(size))));
    add("W-TinyLFU", "foyer-memory", Kind::Peer, Box::new(|size, _| Box::new(OfFoyer::w_tiny_lfu(size))));
    add("Clock-PRO", "quick_cache", Kind::Peer, Box::new(|size, _| Box::new(ClockPro::new(size))));

    let ours = Settings::default();
    let slots = |settings: Settings| -> Make {
        Box::new(move |size, trace| Box::new(Slots::new(size, trace.distinct, settings)))
    };
    let clock = |chances, window, batch| -> Make {
        Box::new(move |size, trace| Box::new(Clock::new(size, trace.distinct, chances, window, batch)))
    };
    add("**Maru: due clock**", "own", Kind::Ours, slots(ours));
    add("due clock, tails as the rest", "own", Kind::Variant, slots(Settings { tail_sooner: 0, ..ours }));
    add("due clock, 16 epochs", "own", Kind::Variant, slots(Settings { lifetime: 16, tail_sooner: 6, ..ours }));
    add("due clock, one victim a sweep", "own", Kind::Variant, slots(Settings { batch_most: 1, ..ours }));
    add("due clock, visited stay 1/16 longer", "own", Kind::Variant, slots(Settings { visited_later: 2, ..ours }));
    add("clock", "own", Kind::Variant, clock(0, 8, 8));
    add("clock, one more chance", "own", Kind::Variant, clock(1, 8, 8));
    add("clock, deepest 8 of 16", "own", Kind::Variant, clock(0, 16, 8));
    add("clock, deepest 8 of 64", "own", Kind::Variant, clock(0, 64, 8));
    all
}

/// One trace's side of the contest.
pub(crate) struct Side {
    pub(crate) name: String,
    pub(crate) distinct: usize,
    pub(crate) references: usize,
    /// Hits when nothing is ever forgotten.
    pub(crate) endless: usize,
}

/// A policy's hits: by trace, then by size.
pub(crate) struct Row {
    pub(crate) name: &'static str,
    pub(crate) whose: &'static str,
    pub(crate) kind: Kind,
    pub(crate) hits: Vec<Vec<usize>>,
}

/// All results.
pub(crate) struct Contest {
    pub(crate) sides: Vec<Side>,
    pub(crate) rows: Vec<Row>,
}

/// Slots of a cache.
pub(crate) fn capacity(trace: &Trace, percent: usize) -> usize {
    (trace.distinct * percent / 100).max(1)
}

impl Contest {
    /// Every entrant, every trace, every size; says whose turn it is.
    pub(crate) fn hold(traces: &[Trace], turn: impl Fn(&str)) -> Self {
        let sides = traces.iter().map(|trace| Side {
            name: trace.name.clone(),
            distinct: trace.distinct,
            references: trace.references,
            endless: replay(trace, &mut Lru::new(trace.distinct)),
        });
        let sides = sides.collect();
        let rows = entrants().into_iter().map(|entrant| {
            turn(entrant.name);
            let on =
                |trace: &Trace, percent: &usize| replay(trace, &mut *entrant.make(capacity(trace, *percent), trace));
            let hits = traces.iter().map(|trace| PERCENT.iter().map(|percent| on(trace, percent)).collect()).collect();
            Row { name: entrant.name, whose: entrant.whose, kind: entrant.kind, hits }
        });
        Self { rows: rows.collect(), sides }
    }

    /// Enters Maru's policy behind the rule that measures what to let in, after the policy alone.
    pub(crate) fn enter_admitted(&mut self, admitted: &[Admitted]) {
        let (Some(rule), Some(alone)) = (
            admitted.iter().find(|rule| rule.name == MEASURED_NAME),
            self.rows.iter().position(|row| row.kind == Kind::Ours),
        ) else {
            return;
        };
        let hits = rule.counts.iter().map(|sizes| sizes.iter().map(|(hits, _)| *hits).collect()).collect();
        let row = Row { name: "**Maru: measured admission**", whose: "own", kind: Kind::Ours, hits };
        self.rows.insert(alone + 1, row);
    }

    /// Hits of all references, in percent.
    pub(crate) fn ratio(&self, row: &Row, side: usize, size: usize) -> f64 {
        row.hits[side][size] as f64 * 100.0 / self.sides[side].references as f64
    }

    /// The row of that name.
    pub(crate) fn row(&self, is: impl Fn(&Row) -> bool) -> Option<&Row> {
        self.rows.iter().find(|row| is(row))
    }

    /// The most hits of a policy that neither is ours nor knows the future.
    pub(crate) fn best_peer(&self, side: usize, size: usize) -> Option<&Row> {
        let peers = self.rows.iter().filter(|row| row.kind == Kind::Peer);
        peers.max_by_key(|row| row.hits[side][size])
    }
}
