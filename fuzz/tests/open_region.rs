//! Golden images, saved findings and seeded random inputs through the target.

use maru_fuzz::{Dice, golden, open_region};

#[test]
fn golden_images_as_they_are() {
    for golden in golden::images() {
        open_region::run_image(&golden.bytes);
    }
}

#[test]
fn random_edits_and_calls() {
    let seed = std::env::var("MARU_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
    let rounds = std::env::var("MARU_ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(2000);
    for round in 0..rounds {
        let mut dice = Dice(seed + round);
        let mut input = dice.input(200);
        input.splice(0..0, [dice.below(6) as u8, dice.next() as u8 & 3, dice.next() as u8]);
        maru_fuzz::shown(&format!("MARU_SEED={} MARU_ROUNDS=1", seed + round), &input, open_region::run);
    }
}

#[test]
fn any_bytes_as_a_file() {
    let mut dice = Dice(7);
    for _ in 0..300 {
        let mut input = dice.input(20_000);
        input.splice(0..0, [open_region::RAW, dice.next() as u8, 0]);
        open_region::run(&input);
    }
}

#[test]
fn seeds_and_findings() {
    let kept = maru_fuzz::kept("open_region");
    assert!(!kept.is_empty(), "seeds are part of the package");
    for (name, input) in kept {
        maru_fuzz::shown(&name, &input, open_region::run);
    }
}
