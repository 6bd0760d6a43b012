//! Seeded random inputs through the target.

use maru_fuzz::{Dice, words};

#[test]
fn random_words() {
    let mut dice = Dice(3);
    for _ in 0..20_000 {
        words::run(&dice.input(400));
    }
}

#[test]
fn seeds_and_findings() {
    let kept = maru_fuzz::kept("words");
    assert!(!kept.is_empty(), "seeds are part of the package");
    for (name, input) in kept {
        maru_fuzz::shown(&name, &input, words::run);
    }
}
