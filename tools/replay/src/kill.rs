//! When to kill which worker: what an OOM killer does to engines, again and again.
//!
//! * K1: the next kill comes after half to one and a half of the interval, by the seed; and then up to some milliseconds
//!   later, so that it falls wherever the victim happens to be and not where the parent has just heard from somebody.
//! * K2: workers take turns. One that has not joined yet, or has said "done", is passed over.

use std::time::{Duration, Instant};

use crate::workload::Random;

/// Up to so much later than due (K1).
const BLUR_US: usize = 3000;

/// Chooses moments and victims.
#[derive(Debug)]
pub(crate) struct Killer {
    every: Duration,
    random: Random,
    next: Instant,
    turn: u32,
}

impl Killer {
    /// The first kill comes after one interval, more or less.
    pub(crate) fn new(every_seconds: f64, seed: u64) -> Self {
        let every = Duration::from_secs_f64(every_seconds);
        let mut killer = Self { every, random: Random(seed), next: Instant::now(), turn: 0 };
        killer.rearm();
        killer
    }

    fn rearm(&mut self) {
        let share = 0.5 + self.random.below(1 << 20) as f64 / (1 << 20) as f64;
        self.next = Instant::now() + self.every.mul_f64(share);
    }

    /// How long until the next kill is due.
    pub(crate) fn left(&self) -> Duration {
        self.next.saturating_duration_since(Instant::now())
    }

    /// If one is due: the number of the worker whose turn it is, of those that can be killed.
    pub(crate) fn victim(&mut self, candidates: &[u32], workers: u32) -> Option<u32> {
        if !self.left().is_zero() {
            return None;
        }
        self.rearm();
        let victim = candidates.iter().copied().min_by_key(|number| (number + workers - self.turn) % workers)?;
        self.turn = (victim + 1) % workers;
        std::thread::sleep(Duration::from_micros(self.random.below(BLUR_US) as u64));
        Some(victim)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_take_turns_and_the_absent_are_passed_over() {
        let mut killer = Killer::new(1e-9, 7);
        let mut victim = |candidates: &[u32]| {
            std::thread::sleep(Duration::from_micros(1));
            killer.victim(candidates, 4)
        };
        let turns: Vec<_> = (0..6).map(|_| victim(&[0, 1, 2, 3])).collect();
        assert_eq!(turns, [Some(0), Some(1), Some(2), Some(3), Some(0), Some(1)]);
        assert_eq!((victim(&[0, 1]), victim(&[0, 1]), victim(&[3]), victim(&[])), (Some(0), Some(1), Some(3), None));
    }

    #[test]
    fn moments_are_around_the_interval() {
        let mut killer = Killer::new(1000.0, 3);
        let mut moments = Vec::new();
        for _ in 0..100 {
            killer.rearm();
            moments.push(killer.left().as_secs());
        }
        assert!(moments.iter().all(|seconds| (499..1500).contains(seconds)), "{moments:?}");
        assert!(moments.iter().any(|seconds| *seconds < 700) && moments.iter().any(|seconds| *seconds > 1300));
        assert_eq!(killer.victim(&[0], 1), None, "it is not due");
    }
}
