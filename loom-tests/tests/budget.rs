//! Budgets: of all who store under one budget, no more hold a slot than it has.
//!
//! Invariants T1 to T3 of `src/budget.rs`. A budget of one, so that every race is for the last token.

#![cfg(all(maru_loom, not(maru_shuttle)))]

use maru::Why;
use maru::layout::word::SlotState;
use maru::model::{Claim, Region, Reserve, Session, Size, key};
use maru_loom_tests::{Edge, Here, Model, Seen, both, claim};

const SIZE: Size = Size { slots: 2, sessions: 2, buckets: 1, rows: 1, cells: 0 };

fn reserve(session: &Session, number: u64) -> (&'static str, Option<Claim>) {
    match session.reserve_within(&key(number)) {
        Reserve::Granted(claim) => ("granted", Some(claim)),
        Reserve::Refused(Why::OverBudget) => ("over budget", None),
        Reserve::Refused(why) => (why.code(), None),
        Reserve::Present => ("present", None),
        Reserve::BeingWritten => ("being written", None),
        Reserve::Contended => ("contended", None),
    }
}

/// Slots that hold, or are about to hold, a block.
fn held(region: &Region) -> usize {
    region.words().iter().filter(|word| !word.is(SlotState::Free) && !word.is(SlotState::Claiming)).count()
}

/// Two store different blocks at once, and keep what they get.
fn last(seen: &Seen, here: Here) {
    let region = Region::new(SIZE);
    region.give_budget(1);
    let (one, other) = (region.settled(0), region.settled(1));
    let (one, other) = both(here, move || reserve(&one, 1), move || reserve(&other, 2));
    let granted = usize::from(one.1.is_some()) + usize::from(other.1.is_some());
    claim!(granted <= 1, "a budget of one slot was granted {granted} times");
    claim!(held(&region) == granted, "{granted} granted, held are {:?}", region.words());
    claim!(
        region.words().iter().filter(|word| !word.is(SlotState::Free)).count() == granted,
        "a refused store left its claim: {:?}",
        region.words()
    );
    seen.reached(format!("{}, {}", one.0, other.0));
}

#[test]
fn the_last_token_is_spent_once() {
    for model in [
        Model { name: "budget: last, one here", bound: Some(3), run: |seen| last(seen, Here::First) },
        Model { name: "budget: last, other here", bound: Some(3), run: |seen| last(seen, Here::Second) },
    ] {
        model.holds(&["granted, over budget", "over budget, granted"]);
        model.fails_without(Edge::SpendFirst);
    }
}

/// One gives its slot back while the other wants it: the token comes free with the slot, by nobody's hand.
fn handed_on(seen: &Seen, here: Here) {
    let region = Region::new(SIZE);
    region.give_budget(1);
    let (one, other) = (region.settled(0), region.settled(1));
    let (_, first) = reserve(&one, 1);
    let first = first.expect("nobody else is there");
    let watched = region.clone();
    let (aborted, other) = both(
        here,
        move || one.abort(&first),
        move || {
            let answer = reserve(&other, 2);
            // Whatever the other one is doing: a token is spent on at most one slot, and it is this one's now.
            if answer.1.is_some() {
                claim!(held(&watched) == 1, "both hold the one token's slot: {:?}", watched.words());
            }
            answer
        },
    );
    claim!(aborted, "nobody may take a slot that is being written");
    claim!(held(&region) == usize::from(other.1.is_some()), "held are {:?}", region.words());
    seen.reached(other.0);
}

#[test]
fn a_token_comes_free_with_its_slot() {
    for model in [
        Model { name: "budget: handed on, holder here", bound: Some(3), run: |seen| handed_on(seen, Here::First) },
        Model { name: "budget: handed on, other here", bound: Some(3), run: |seen| handed_on(seen, Here::Second) },
    ] {
        model.holds(&["granted", "over budget"]);
        model.fails_without(Edge::SpendFirst);
    }
}
