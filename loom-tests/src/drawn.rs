//! Long runs of many threads, drawn from seeds: shuttle's models.
//!
//! Execution *n* of a model has seed *first + n*, and everything in it follows from that seed: the manner in which
//! threads are switched, the switches, and what the model itself draws ([`pick`]). So one number replays one execution:
//!
//! ```text
//! MARU_SHUTTLE_SEED=N MARU_SHUTTLE_ITERATIONS=1 ./tools/ci/models.sh --test coordinators
//! ```

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use shuttle::rand::Rng;
use shuttle::scheduler::{Schedule, Scheduler, Task, TaskId};
use shuttle::{Config, FailurePersistence, MaxSteps, Runner};

use crate::{Edge, Seen, message, quietly};

/// Decisions that one execution may take: many times what any has, so that an endless loop ends.
const MAX_STEPS: usize = 100_000;
const STACK_BYTES: usize = 256 << 10;

/// A number below `below`, drawn with the schedule.
#[must_use]
pub fn pick(below: u32) -> u32 {
    shuttle::rand::thread_rng().gen_range(0..below)
}

/// True once in `n` times, drawn with the schedule.
#[must_use]
pub fn one_in(n: u32) -> bool {
    pick(n) == 0
}

/// One arrangement of threads, and how many executions of it are drawn.
#[derive(Clone, Copy)]
pub struct Model {
    /// Protocol and arrangement, for the printed line.
    pub name: &'static str,
    /// Executions, unless `MARU_SHUTTLE_ITERATIONS` says otherwise.
    pub iterations: u64,
    /// Scheduling decisions of a usual execution: among so many the changes of priority are spread.
    pub steps: u64,
    /// Runs once per execution.
    pub run: fn(&Seen),
}

/// How far a model has got. Outside of what shuttle explores.
#[derive(Debug, Default)]
struct Progress {
    seed: AtomicU64,
    longest: AtomicU64,
}

impl Model {
    /// Explores, and compares the outcomes reached with `expected`, exactly.
    ///
    /// # Panics
    /// A claim is broken, or other outcomes were reached.
    pub fn holds(&self, expected: &[&str]) {
        let first = from_environment("MARU_SHUTTLE_SEED").unwrap_or(0);
        let iterations = from_environment("MARU_SHUTTLE_ITERATIONS").unwrap_or(self.iterations);
        let started = Instant::now();
        let (seen, progress, result) = self.explore(None, first, iterations);
        let (seed, longest) = (progress.seed.load(Ordering::Relaxed), progress.longest.load(Ordering::Relaxed));
        let seconds = started.elapsed().as_secs_f64();
        println!("{:<32} seeds {first} to {seed}, at most {longest} steps, {seconds:.1} s", self.name);
        if let Err(message) = result {
            panic!("{}: {message}\n    replay: MARU_SHUTTLE_SEED={seed} MARU_SHUTTLE_ITERATIONS=1", self.name);
        }
        let expected: BTreeSet<String> = expected.iter().map(ToString::to_string).collect();
        let new: Vec<_> = seen.difference(&expected).collect();
        assert!(new.is_empty(), "{}: outcomes that are not written down: {new:?}", self.name);
        if iterations >= self.iterations {
            let missing: Vec<_> = expected.difference(&seen).collect();
            assert!(missing.is_empty(), "{}: outcomes not reached: {missing:?}", self.name);
        } else {
            println!("    too few for all outcomes: {} of {}", seen.len(), expected.len());
        }
    }

    /// Explores the executions of the index without `edge`, and wants a claim to break.
    ///
    /// # Panics
    /// All claims held, or something else went wrong first.
    pub fn fails_without(&self, edge: Edge) {
        let (_, progress, result) = self.explore(Some(edge), 0, self.iterations);
        let seed = progress.seed.load(Ordering::Relaxed);
        println!("{:<32} {:>6} executions until {edge:?} was missed", self.name, seed + 1);
        match result {
            Ok(()) => panic!("{}: nothing broke without {edge:?} in {} executions", self.name, self.iterations),
            Err(message) if message.starts_with("claim broken") => println!("    {message}"),
            Err(message) => panic!("{}: without {edge:?}: {message} (seed {seed})", self.name),
        }
    }

    fn explore(
        &self,
        without: Option<Edge>,
        first: u64,
        iterations: u64,
    ) -> (BTreeSet<String>, Arc<Progress>, Result<(), String>) {
        let (seen, progress) = (Seen::default(), Arc::<Progress>::default());
        let scheduler = Drawn::new(first, iterations, self.steps, &progress);
        let mut config = Config::new();
        config.stack_size = STACK_BYTES;
        config.failure_persistence = FailurePersistence::None;
        config.max_steps = MaxSteps::FailAfter(MAX_STEPS);
        config.silence_warnings = true;
        let (run, inner) = (self.run, seen.clone());
        // The first run of all puts shuttle's panic hook in place; ours then silences it.
        Runner::new(Drawn::new(0, 1, 1, &Arc::default()), config.clone()).run(|| {});
        let explored = AssertUnwindSafe(|| Runner::new(scheduler, config).run(move || run(&inner)));
        let result = quietly(without, || catch_unwind(explored));
        (seen.outcomes(), progress, result.map(|_| ()).map_err(message))
    }
}

fn from_environment(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name} is a number, and not {text:?}")))
}

/// SplitMix64.
#[derive(Debug, Clone, Copy)]
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}

/// Changes of rank in one execution are fewer than this.
const MOST_CHANGES: u64 = 8;

/// How the threads of one execution are switched.
#[derive(Debug, Clone)]
enum Manner {
    /// Any thread at each step.
    Any,
    /// The running one goes on, but for one in so many steps.
    Sticky(u64),
    /// Probabilistic concurrency testing: the thread of the highest rank runs; at these steps it becomes the lowest.
    Ranks(Vec<u64>),
}

/// Draws a manner per execution, and then its switches.
#[derive(Debug)]
struct Drawn {
    next: u64,
    end: u64,
    steps: u64,
    progress: Arc<Progress>,
    manner: Manner,
    dice: Dice,
    data: Dice,
    step: u64,
    /// By task; a lower number is a higher rank.
    ranks: Vec<u64>,
    lowest: u64,
}

impl Drawn {
    fn new(first: u64, iterations: u64, steps: u64, progress: &Arc<Progress>) -> Self {
        Self {
            next: first,
            end: first + iterations,
            steps,
            progress: Arc::clone(progress),
            manner: Manner::Any,
            dice: Dice(0),
            data: Dice(0),
            step: 0,
            ranks: Vec::new(),
            lowest: 0,
        }
    }
}

impl Scheduler for Drawn {
    fn new_execution(&mut self) -> Option<Schedule> {
        self.progress.longest.fetch_max(self.step, Ordering::Relaxed);
        if self.next == self.end {
            return None;
        }
        let seed = self.next;
        self.next += 1;
        self.progress.seed.store(seed, Ordering::Relaxed);
        self.dice = Dice(seed);
        self.data = Dice(self.dice.next());
        self.step = 0;
        self.ranks.clear();
        self.lowest = u64::MAX / 2;
        self.manner = match self.dice.below(4) {
            0 => Manner::Any,
            1 => Manner::Sticky(1 << self.dice.below(7)),
            _ => {
                let changes = self.dice.below(MOST_CHANGES);
                Manner::Ranks((0..changes).map(|_| 1 + self.dice.below(self.steps)).collect())
            }
        };
        Some(Schedule::new(seed))
    }

    fn next_task(&mut self, runnable: &[&Task], current: Option<TaskId>, is_yielding: bool) -> Option<TaskId> {
        if let [only] = runnable {
            return Some(only.id());
        }
        self.step += 1;
        let here = current.filter(|current| !is_yielding && runnable.iter().any(|task| task.id() == *current));
        match &self.manner {
            Manner::Sticky(steps) => {
                let steps = *steps;
                if let Some(here) = here.filter(|_| self.dice.below(steps) != 0) {
                    return Some(here);
                }
            }
            Manner::Ranks(changes) => {
                let falls = is_yielding || changes.contains(&self.step);
                let most = runnable.iter().map(|task| usize::from(task.id())).max()?;
                while self.ranks.len() <= most {
                    let rank = self.dice.below(1 << 32);
                    self.ranks.push(rank);
                }
                if let Some(current) = current.filter(|_| falls) {
                    self.lowest += 1;
                    self.ranks[usize::from(current)] = self.lowest;
                }
                return runnable.iter().map(|task| task.id()).min_by_key(|task| self.ranks[usize::from(*task)]);
            }
            Manner::Any => {}
        }
        Some(runnable[self.dice.below(runnable.len() as u64) as usize].id())
    }

    fn next_u64(&mut self) -> u64 {
        self.data.next()
    }
}
