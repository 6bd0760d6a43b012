//! What was to be reached.

use maru_bench::contest::{Outcome, Spread};

/// Which way a ratio is to go.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Wanted {
    /// Not above.
    Most(f64),
    /// Not below.
    Least(f64),
    /// Shown for comparison only.
    Shown,
}

/// One ratio of two candidates' times.
pub(crate) struct Target {
    contest: String,
    over: &'static str,
    /// The faster one of these is what counts.
    under: &'static [&'static str],
    pub(crate) wanted: Wanted,
    /// In words.
    pub(crate) text: String,
}

/// A target and what was measured; nothing where the contest was not held.
pub(crate) struct Judged {
    pub(crate) target: Target,
    pub(crate) found: Option<Spread>,
}

impl Judged {
    /// Whether it was reached; nothing to say where nothing was measured or nothing is wanted.
    pub(crate) fn reached(&self) -> Option<bool> {
        let found = self.found?.median;
        match self.target.wanted {
            Wanted::Most(most) => Some(found <= most),
            Wanted::Least(least) => Some(found >= least),
            Wanted::Shown => None,
        }
    }
}

const PLAIN: &[&str] = &["memcpy", "non-temporal"];

fn targets(outcomes: &[Outcome]) -> Vec<Target> {
    let mut all = Vec::new();
    let mut add = |contest: &str, over, under, wanted, text: &str| {
        all.push(Target { contest: contest.to_owned(), over, under, wanted, text: text.to_owned() });
    };
    // These are named after the number of blocks.
    let named = |start: &str| {
        let found = outcomes.iter().find(|outcome| outcome.question.starts_with(start));
        found.map_or_else(|| start.to_owned(), |outcome| outcome.question.clone())
    };
    let (hits, misses, leases) = (named("lookup-hits"), named("lookup-misses"), named("lookup-leases"));
    const PROBE: &str = "maru probe_prefix";
    add(&hits, PROBE, &["bare table"], Wanted::Most(2.0), "probe, all hits: of a bare table of 64-byte lines");
    add(&hits, PROBE, &["bare table, lines asked for ahead"], Wanted::Shown, "… of the same with prefetch");
    add(&hits, "LMDB, one transaction", &[PROBE], Wanted::Least(2.5), "LMDB, all hits: of the probe");
    add(&misses, "maru probe_batch", &["bare table"], Wanted::Most(1.2), "probe, all misses: of a bare table");
    add(&misses, "LMDB, one transaction", &["maru probe_batch"], Wanted::Least(2.5), "LMDB, all misses: of the probe");
    add(&leases, "maru acquire, drop", &[PROBE], Wanted::Most(3.0), "acquire and release: of the probe");
    add("directories", "Redis, one pipeline", &[PROBE], Wanted::Least(15.0), "Redis: of the probe, 16,384 blocks");
    add("directories", "papaya, in one process", &[PROBE], Wanted::Shown, "papaya: of the probe");
    add("directories", "DashMap, in one process", &[PROBE], Wanted::Shown, "DashMap: of the probe");
    add("directories-few", "iceoryx2 blackboard", &[PROBE], Wanted::Shown, "blackboard: of the probe, 192 blocks");
    for size in ["448k", "1024k"] {
        for source in ["hot", "cold"] {
            let contest = format!("store-{size}-{source}");
            let text = |what: &str| format!("{what}: of Maru's store, {size} {source}");
            add(&contest, "LMDB put", &["maru"], Wanted::Least(1.3), &text("LMDB put"));
            add(&contest, "=plain", &["maru"], Wanted::Least(0.9), &text("best plain copy"));
        }
        for source in ["hot", "cold"] {
            let contest = format!("load-{size}-{source}");
            const OURS: &[&str] = &["maru, for the CPU", "maru, for a device"];
            let text = |what: &str, whose: &str| format!("{what}: of Maru's load {whose}, {size} {source}");
            add(&contest, "LMDB get", &OURS[..1], Wanted::Least(1.0), &text("LMDB get, unchecked", "for the CPU"));
            add(&contest, "memcpy", &OURS[..1], Wanted::Least(0.9), &text("memcpy", "for the CPU"));
            add(&contest, "=plain", OURS, Wanted::Least(0.9), &text("best plain copy", "(the faster)"));
        }
    }
    add("two-writers-448k", "LMDB", &["maru"], Wanted::Least(3.0), "LMDB, two writing processes: of Maru's");
    add(
        "two-readers-448k",
        "the same blocks",
        &["different blocks"],
        Wanted::Most(1.05),
        "two readers, same blocks: of different ones",
    );
    add(
        FILL.0,
        "hits",
        &["bare table"],
        Wanted::Most(1.3),
        "probe hits at 90 % fill: of 10 %, both by way of the bare table",
    );
    all
}

/// The contests at two fills, which are held one after the other.
const FILL: (&str, &str) = ("curve-fill-90", "curve-fill-10");

/// Every target with what was measured.
pub(crate) fn judge(outcomes: &[Outcome]) -> Vec<Judged> {
    let found = |target: &Target| {
        let outcome = outcomes.iter().find(|outcome| outcome.question == target.contest)?;
        let fastest = |names: &[&'static str]| {
            let there = names.iter().filter_map(|name| outcome.entries.iter().find(|row| row.name == **name));
            there.min_by(|a, b| a.ns.median.total_cmp(&b.ns.median)).map(|row| row.name.clone())
        };
        let over = if target.over == "=plain" { fastest(PLAIN)? } else { target.over.to_owned() };
        let under = fastest(target.under)?;
        if target.contest != FILL.0 {
            return outcome.ratio(&over, &under);
        }
        // Both contests have the same yardstick in each round.
        let other = outcomes.iter().find(|outcome| outcome.question == FILL.1)?.ratio(&over, &under)?.median;
        let rows = |name: &str| outcome.entries.iter().find(|row| row.name == name);
        let rounds = rows(&over)?.rounds_ns.iter().zip(&rows(&under)?.rounds_ns);
        Some(Spread::of(rounds.map(|(ours, bare)| ours / bare / other).collect()))
    };
    targets(outcomes)
        .into_iter()
        .map(|target| {
            let found = found(&target);
            Judged { target, found }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use maru_bench::contest::Row;

    fn outcome(question: &str, rows: &[(&str, f64)]) -> Outcome {
        let rows = rows.iter().map(|(name, ns)| Row {
            name: (*name).to_owned(),
            ns: Spread::of(vec![*ns; 3]),
            rounds_ns: vec![*ns; 3],
        });
        Outcome {
            question: question.to_owned(),
            unit: String::new(),
            bytes: None,
            facts: serde_json::Map::new(),
            entries: rows.collect(),
        }
    }

    fn of<'j>(judged: &'j [Judged], text: &str) -> &'j Judged {
        judged.iter().find(|judged| judged.target.text == text).expect("a target of that text")
    }

    #[test]
    fn a_target_is_reached_or_missed_on_the_right_side() {
        let slow = [("maru probe_prefix", 30.0), ("bare table", 10.0), ("LMDB, one transaction", 60.0)];
        let judged = judge(&[outcome("lookup-hits-1000", &slow)]);
        let probe = of(&judged, "probe, all hits: of a bare table of 64-byte lines");
        assert_eq!((probe.found.expect("measured").median, probe.reached()), (3.0, Some(false)));
        assert_eq!(of(&judged, "LMDB, all hits: of the probe").reached(), Some(false), "2.0 is less than 2.5");
        assert_eq!(of(&judged, "… of the same with prefetch").reached(), None);
        let redis = of(&judged, "Redis: of the probe, 16,384 blocks");
        assert!(redis.found.is_none() && redis.reached().is_none(), "not measured is not reached");
    }

    #[test]
    fn the_plain_copy_that_counts_is_the_faster_one() {
        let rows = [("maru", 10.0), ("LMDB put", 14.0), ("memcpy", 20.0), ("non-temporal", 9.5)];
        let judged = judge(&[outcome("store-448k-hot", &rows)]);
        let plain = of(&judged, "best plain copy: of Maru's store, 448k hot");
        assert_eq!((plain.found.expect("measured").median, plain.reached()), (0.95, Some(true)));
    }
}
