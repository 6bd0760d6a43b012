//! A contest: the candidates for one question, measured in turns.
//!
//! A shared machine changes its speed from second to second, so two numbers measured one after the other cannot be
//! compared. Here each round gives every candidate one short sample, each round in another order; whatever slows the
//! machine down slows all of a round. A ratio is the median of the rounds' ratios, and is what to quote.
//!
//! ```no_run
//! use maru_bench::contest::Contest;
//! let (a, b) = (vec![1u8; 4096], vec![2u8; 4096]);
//! let result = Contest::new("sum-of-a-page")
//!     .entry("bytes", || assert_eq!(a.iter().map(|byte| u64::from(*byte)).sum::<u64>(), 4096))
//!     .entry("other bytes", || assert_eq!(b.iter().map(|byte| u64::from(*byte)).sum::<u64>(), 8192))
//!     .run();
//! println!("{:.2} times", result.ratio("bytes", "other bytes").expect("both took part").median);
//! ```

use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// Candidates for one question.
pub struct Contest<'a> {
    question: String,
    unit: String,
    bytes: Option<u64>,
    rounds: usize,
    sample: Duration,
    facts: Vec<(String, serde_json::Value)>,
    entries: Vec<Entry<'a>>,
}

struct Entry<'a> {
    name: String,
    turn: Box<dyn FnMut() + 'a>,
}

/// What a contest measured. `target/bench/<question>.json` holds one.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Outcome {
    /// Name of the question, and of the file.
    pub question: String,
    /// What one turn is, for people: "128 keys".
    pub unit: String,
    /// Payload bytes that one turn moves, where that says something.
    pub bytes: Option<u64>,
    /// What the numbers depend on: sizes, fill, kind of memory.
    pub facts: serde_json::Map<String, serde_json::Value>,
    /// The candidates in the order in which they were entered.
    pub entries: Vec<Row>,
}

/// One candidate's results.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Row {
    /// Its name.
    pub name: String,
    /// Wall clock of one turn, nanoseconds.
    pub ns: Spread,
    /// Mean of each round, nanoseconds a turn. Rounds of two candidates with the same number lie side by side in time.
    pub rounds_ns: Vec<f64>,
}

/// Where a number lay over the rounds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// Half of the rounds were below.
    pub median: f64,
    /// Least.
    pub min: f64,
    /// A tenth of the rounds were below.
    pub tenth: f64,
    /// A tenth of the rounds were above.
    pub ninetieth: f64,
    /// Most.
    pub max: f64,
}

impl Spread {
    /// Of these numbers.
    ///
    /// # Panics
    /// When there are none.
    #[must_use]
    pub fn of(mut numbers: Vec<f64>) -> Self {
        assert!(!numbers.is_empty(), "a spread of something");
        numbers.sort_by(f64::total_cmp);
        let last = numbers.len() - 1;
        let at = |part: f64| numbers[(last as f64 * part).round() as usize];
        Self { median: at(0.5), min: numbers[0], tenth: at(0.1), ninetieth: at(0.9), max: numbers[last] }
    }
}

impl Outcome {
    /// The time of `name` in times of `other`'s, round by round; `None` where one of them took no part.
    #[must_use]
    pub fn ratio(&self, name: &str, other: &str) -> Option<Spread> {
        let row = |name: &str| self.entries.iter().find(|row| row.name == name);
        let (a, b) = (row(name)?, row(other)?);
        Some(Spread::of(a.rounds_ns.iter().zip(&b.rounds_ns).map(|(a, b)| a / b).collect()))
    }

    /// Prints the table to stderr: times, and how each compares with the first.
    pub fn print(&self) {
        eprintln!("\n{} ({})", self.question, self.unit);
        for (name, fact) in &self.facts {
            eprintln!("  {name}: {fact}");
        }
        let first = &self.entries[0].name;
        for row in &self.entries {
            let Spread { median, min, ninetieth, .. } = row.ns;
            let rate = self.bytes.map_or(String::new(), |bytes| format!("  {:7.2} GB/s", bytes as f64 / median));
            let ratio = self.ratio(first, &row.name).expect("both are rows");
            eprintln!(
                "  {:<34} {median:>12.1} ns [{min:.1}-{ninetieth:.1}]{rate}  {first} / it = {:.3} [{:.3}-{:.3}]",
                row.name, ratio.median, ratio.tenth, ratio.ninetieth
            );
        }
    }

    /// Writes `target/bench/<question>.json` and says where.
    ///
    /// # Panics
    /// When it cannot be written.
    pub fn write(&self) {
        let folder = folder();
        std::fs::create_dir_all(&folder).expect("a folder for results");
        let path = folder.join(format!("{}.json", self.question));
        std::fs::write(&path, serde_json::to_vec_pretty(self).expect("plain data")).expect("a file for results");
        eprintln!("  -> target/bench/{}.json", self.question);
    }
}

/// Where results go: `target/bench`, or `MARU_BENCH_OUT`.
#[must_use]
pub fn folder() -> PathBuf {
    std::env::var_os("MARU_BENCH_OUT")
        .map_or_else(|| concat!(env!("CARGO_MANIFEST_DIR"), "/../target/bench").into(), PathBuf::from)
}

impl<'a> Contest<'a> {
    /// A contest on this question: a short name of letters, digits and dashes, since it names the file.
    ///
    /// # Panics
    /// When it is none.
    #[must_use]
    pub fn new(question: &str) -> Self {
        let plain = |char: char| char.is_ascii_alphanumeric() || "-_.".contains(char);
        assert!(!question.is_empty() && question.chars().all(plain), "{question:?} names a file");
        Self {
            question: question.to_owned(),
            unit: "a turn".to_owned(),
            bytes: None,
            rounds: number_from("MARU_BENCH_ROUNDS", 101),
            sample: Duration::from_micros(number_from("MARU_BENCH_SAMPLE_US", 1000) as u64),
            facts: Vec::new(),
            entries: Vec::new(),
        }
    }

    /// What one turn is, for people.
    #[must_use]
    pub fn unit(mut self, unit: &str) -> Self {
        unit.clone_into(&mut self.unit);
        self
    }

    /// Payload bytes that one turn moves: the table then shows GB/s.
    #[must_use]
    pub fn bytes(mut self, bytes: u64) -> Self {
        self.bytes = Some(bytes);
        self
    }

    /// Something that the numbers depend on.
    #[must_use]
    pub fn fact(mut self, name: &str, value: impl Into<serde_json::Value>) -> Self {
        self.facts.push((name.to_owned(), value.into()));
        self
    }

    /// Rounds (101, or `MARU_BENCH_ROUNDS`).
    #[must_use]
    pub fn rounds(mut self, rounds: usize) -> Self {
        self.rounds = rounds.max(1);
        self
    }

    /// Least length of one sample (1 ms, or `MARU_BENCH_SAMPLE_US`): as many whole turns as fit. Shorter ones escape more of
    /// what else the machine does, and a turn that takes longer is a sample by itself.
    #[must_use]
    pub fn sample(mut self, sample: Duration) -> Self {
        self.sample = sample;
        self
    }

    /// A candidate; `turn` does the whole operation once and panics if its answer is wrong.
    #[must_use]
    pub fn entry(mut self, name: &str, turn: impl FnMut() + 'a) -> Self {
        assert!(self.entries.iter().all(|entry| entry.name != name), "{name} is entered once");
        self.entries.push(Entry { name: name.to_owned(), turn: Box::new(turn) });
        self
    }

    /// Measures, without printing or writing anything.
    ///
    /// # Panics
    /// When there are no candidates.
    #[must_use]
    pub fn measure(mut self) -> Outcome {
        assert!(!self.entries.is_empty(), "a contest of somebody");
        let turns: Vec<u32> = self.entries.iter_mut().map(|entry| calibrated(entry, self.sample)).collect();
        let mut rounds_ns = vec![Vec::with_capacity(self.rounds); self.entries.len()];
        let mut order: Vec<usize> = (0..self.entries.len()).collect();
        for round in 0..self.rounds {
            // Who comes after whom changes, so that nobody always finds the caches of the same predecessor.
            for at in (1..order.len()).rev() {
                order.swap(at, crate::mix((round * 1_000 + at) as u64) as usize % (at + 1));
            }
            for at in order.iter().copied() {
                // One turn unmeasured: the last candidate's data leaves the nearest caches.
                (self.entries[at].turn)();
                rounds_ns[at].push(sample(&mut self.entries[at], turns[at]).as_nanos() as f64 / f64::from(turns[at]));
            }
        }
        let rows = self.entries.iter().zip(rounds_ns).map(|(entry, rounds_ns)| Row {
            name: entry.name.clone(),
            ns: Spread::of(rounds_ns.clone()),
            rounds_ns,
        });
        let entries = rows.collect();
        Outcome {
            question: self.question,
            unit: self.unit,
            bytes: self.bytes,
            facts: self.facts.into_iter().collect(),
            entries,
        }
    }

    /// Measures, prints the table to stderr and writes the file.
    ///
    /// # Panics
    /// As [`Contest::measure`] and [`Outcome::write`].
    pub fn run(self) -> Outcome {
        let outcome = self.measure();
        outcome.print();
        outcome.write();
        outcome
    }
}

/// Turns that fill a sample; finding out warms the candidate up.
fn calibrated(entry: &mut Entry<'_>, wanted: Duration) -> u32 {
    let mut turns = 1u32;
    loop {
        let took = sample(entry, turns);
        if took >= wanted / 2 || turns >= 1 << 24 {
            let one = took.as_secs_f64() / f64::from(turns);
            return ((wanted.as_secs_f64() / one.max(1e-10)).ceil() as u32).clamp(1, 1 << 26);
        }
        turns *= 2;
    }
}

fn sample(entry: &mut Entry<'_>, turns: u32) -> Duration {
    let start = Instant::now();
    for _ in 0..turns {
        (entry.turn)();
    }
    start.elapsed()
}

/// The number in an environment variable, or another.
#[must_use]
pub fn number_from(variable: &str, otherwise: usize) -> usize {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spin(turns: u64) {
        for at in 0..turns {
            std::hint::black_box(crate::mix(at));
        }
    }

    #[test]
    fn a_candidate_that_does_four_times_the_work_takes_about_four_times_as_long() {
        let outcome = Contest::new("self-test")
            .rounds(9)
            .sample(Duration::from_millis(1))
            .entry("one", || spin(1_000))
            .entry("four", || spin(4_000))
            .measure();
        let ratio = outcome.ratio("four", "one").expect("both took part").median;
        assert!((2.0..8.0).contains(&ratio), "{ratio}");
        assert!(outcome.ratio("four", "nobody").is_none());
        assert!(outcome.entries.iter().all(|row| row.rounds_ns.len() == 9));
    }

    #[test]
    fn a_spread_names_median_and_ends() {
        let spread = Spread::of((0..=100).rev().map(f64::from).collect());
        assert_eq!(spread, Spread { median: 50.0, min: 0.0, tenth: 10.0, ninetieth: 90.0, max: 100.0 });
    }
}
