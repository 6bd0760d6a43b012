//! Every order: loom's models.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use crate::{Edge, Seen, message, quietly};

/// Loads and stores that one execution may make: more than any of these models has, so that an endless loop ends.
const MAX_BRANCHES: usize = 20_000;

/// One arrangement of threads, and how far it is explored.
#[derive(Clone, Copy)]
pub struct Model {
    /// Protocol and arrangement, for the printed line.
    pub name: &'static str,
    /// Preemptions per execution; `None` explores all.
    pub bound: Option<usize>,
    /// Runs once per execution.
    pub run: fn(&Seen),
}

impl Model {
    /// Explores, and compares the outcomes reached with `expected`, exactly.
    ///
    /// # Panics
    /// A claim is broken, or other outcomes were reached.
    pub fn holds(&self, expected: &[&str]) {
        let started = Instant::now();
        let (seen, executions, result) = self.explore(None);
        println!("{:<48} {:>9} executions {:>6.1} s", self.name, executions, started.elapsed().as_secs_f64());
        if let Err(message) = result {
            panic!("{}: {message} (after {executions} executions)", self.name);
        }
        let expected: BTreeSet<String> = expected.iter().map(ToString::to_string).collect();
        if deeper().is_some() {
            // Further than the bound, more may be possible than was written down.
            let missing: Vec<_> = expected.difference(&seen).collect();
            assert!(missing.is_empty(), "{}: outcomes not reached: {missing:?}", self.name);
        } else {
            assert_eq!(seen, expected, "{}: outcomes reached, and outcomes that must be", self.name);
        }
    }

    /// Explores without `edge`, and wants a claim to break.
    ///
    /// # Panics
    /// All claims held, or something else went wrong first.
    pub fn fails_without(&self, edge: Edge) {
        let (_, executions, result) = self.explore(Some(edge));
        println!("{:<48} {executions:>9} executions until {edge:?} was missed", self.name);
        match result {
            Ok(()) => panic!("{}: nothing broke without {edge:?} in {executions} executions", self.name),
            Err(message) if message.starts_with("claim broken") => println!("    {message}"),
            Err(message) => panic!("{}: without {edge:?}: {message}", self.name),
        }
    }

    fn explore(&self, without: Option<Edge>) -> (BTreeSet<String>, u64, Result<(), String>) {
        let seen = Seen::default();
        let executions = Arc::new(AtomicU64::new(0));
        let (run, inner, count) = (self.run, seen.clone(), Arc::clone(&executions));
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = deeper().or(self.bound);
        builder.max_branches = MAX_BRANCHES;
        let explored = AssertUnwindSafe(|| {
            builder.check(move || {
                count.fetch_add(1, Ordering::Relaxed);
                run(&inner);
            });
        });
        let result = quietly(without, || catch_unwind(explored));
        (seen.outcomes(), executions.load(Ordering::Relaxed), result.map_err(message))
    }
}

/// `MARU_BOUND` in the environment: every model is explored with that bound instead of its own.
fn deeper() -> Option<usize> {
    std::env::var("MARU_BOUND").ok().map(|text| text.parse().expect("MARU_BOUND is a number of preemptions"))
}

/// Which of two roles runs on the model's own thread; the other one is spawned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Here {
    /// The first.
    First,
    /// The second.
    Second,
}

/// Runs two roles at the same time; their results in their order.
pub fn both<A: 'static, B: 'static>(
    here: Here,
    first: impl FnOnce() -> A + 'static,
    second: impl FnOnce() -> B + 'static,
) -> (A, B) {
    match here {
        Here::First => {
            let spawned = loom::thread::spawn(second);
            let first = first();
            (first, joined(spawned))
        }
        Here::Second => {
            let spawned = loom::thread::spawn(first);
            let second = second();
            (joined(spawned), second)
        }
    }
}

/// What one of several threads does.
pub type Role<T> = Box<dyn FnOnce() -> T>;

/// Runs the roles at the same time, the one at `here` on the model's own thread; their results in their order.
pub fn all<T: 'static>(here: usize, mut roles: Vec<Role<T>>) -> Vec<T> {
    let mine = roles.remove(here);
    let spawned: Vec<_> = roles.into_iter().map(loom::thread::spawn).collect();
    let mine = mine();
    let mut answers: Vec<T> = spawned.into_iter().map(joined).collect();
    answers.insert(here, mine);
    answers
}

fn joined<T>(thread: loom::thread::JoinHandle<T>) -> T {
    thread.join().expect("a thread of a model ends, or the whole execution does")
}
