//! Seeded random operation lists through the target.

use maru_fuzz::{Dice, ops_vs_model};

/// Answers that seeds and a thousand random lists must have led to; without them the model was not asked.
const WANTED: &[&str] = &[
    "already_stored",
    "being_written",
    "crash of a writer",
    "draining",
    "empty",
    "ended and retired",
    "fenced",
    "generation_gone",
    "granted",
    "incomplete",
    "invalidated",
    "length_mismatch",
    "namespaces full",
    "no_space",
    "not held",
    "participants full",
    "partner missing",
    "present",
    "read",
    "read expired",
    "read invalidated",
    "read with a wrong buffer",
    "reclaimed",
    "released",
    "retired",
    "still held",
    "stored",
    "superseded",
    "too_large",
    "unknown",
    "view",
    "evicted",
    "bucket_busy",
];

#[test]
fn random_operations() {
    for (name, input) in maru_fuzz::kept("ops_vs_model") {
        maru_fuzz::shown(&name, &input, ops_vs_model::run);
    }
    let seed = std::env::var("MARU_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
    let rounds = std::env::var("MARU_ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(1500);
    for round in 0..rounds {
        let mut dice = Dice(seed + round);
        let input = dice.input(1200);
        maru_fuzz::shown(&format!("MARU_SEED={} MARU_ROUNDS=1", seed + round), &input, ops_vs_model::run);
    }
    let reached = ops_vs_model::answers_reached();
    let missing: Vec<_> = WANTED.iter().filter(|answer| !reached.contains(**answer)).collect();
    assert!(rounds < 1000 || missing.is_empty(), "never seen: {missing:?}");
}
