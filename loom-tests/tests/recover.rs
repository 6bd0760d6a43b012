//! Recovery: what a dead session owned comes back once, and its successor at the same index is left alone.
//!
//! D1, D2 and D4 of `src/recover.rs`; attaching takes part in it (`src/session/attach.rs`).

#![cfg(all(maru_loom, not(maru_shuttle)))]

use maru::layout::word::{LeaseKind, SessionState, SlotState};
use maru::model::{Region, Session, Size, Stop, key};
use maru_loom_tests::{Edge, Here, Model, Role, Seen, all, both, claim};

/// Session 0 dies and has a successor; 1 and 2 recover; 3 looks afterwards.
const SIZE: Size = Size { slots: 1, sessions: 4, buckets: 1, rows: 0, cells: 0 };

/// A region whose session 0 died holding slot 0 as `stop` says.
fn after_death(stop: Stop) -> Region {
    let region = Region::new(SIZE);
    let doomed = region.settled(0);
    if stop == Stop::Retiring {
        assert!(doomed.store(&key(1), 1));
    }
    doomed.stop_at(stop, 0, &key(1));
    doomed.die();
    region
}

/// The dead session's successor: attaches and claims the slot if it is free.
fn succeed(region: &Region) -> (Option<Session>, &'static str) {
    let Some(next) = region.attach(0) else { return (None, "shut out") };
    let word = region.words()[0];
    claim!(word.owner().index() != Some(0), "attached, and its predecessor still owns {word:?}");
    if !word.is(SlotState::Free) {
        return (Some(next), "attached");
    }
    next.stop_at(Stop::Claiming, 0, &key(2));
    (Some(next), "claimed")
}

/// What holds when all is over: the predecessor's life of the slot has ended, once, and the successor has what it had.
fn settled(region: &Region, next: Option<&Session>, claimed: bool) {
    let last = region.settled(3);
    last.reclaim();
    let word = region.words()[0];
    claim!(word.generation() == 2, "generation 1 ended once, and the word is {word:?}");
    if let Some(next) = next {
        claim!(next.check().is_ok(), "the successor was declared {:?}", region.session_word(0));
    } else {
        claim!(
            region.session_word(0).is(SessionState::Free),
            "recovered, and the entry is {:?}",
            region.session_word(0)
        );
    }
    if claimed {
        claim!(word.is(SlotState::Claiming) && word.owner().index() == Some(0), "the successor's slot became {word:?}");
    } else {
        claim!(word.is(SlotState::Free), "recovered, and the word is {word:?}");
    }
}

/// Two recover at once.
fn twice(seen: &Seen, here: Here, stop: Stop) {
    let region = after_death(stop);
    let (one, two) = (region.settled(1), region.settled(2));
    let (one, two) = both(here, move || one.recover(), move || two.recover());
    claim!(one.1 + two.1 <= 1, "one slot came back {} times", one.1 + two.1);
    settled(&region, None, false);
    // Sessions and slots, by each.
    seen.reached(format!("{one:?} {two:?}"));
}

macro_rules! each_stop {
    ($name:ident, $what:literal, $bound:expr, $here:expr, $run:ident) => {
        const $name: [Model; 4] = [
            Model { name: concat!($what, ", claiming"), bound: $bound, run: |seen| $run(seen, $here, Stop::Claiming) },
            Model { name: concat!($what, ", pending"), bound: $bound, run: |seen| $run(seen, $here, Stop::Pending) },
            Model { name: concat!($what, ", writing"), bound: $bound, run: |seen| $run(seen, $here, Stop::Writing) },
            Model { name: concat!($what, ", retiring"), bound: $bound, run: |seen| $run(seen, $here, Stop::Retiring) },
        ];
    };
}

each_stop!(TWICE, "recover: twice", Some(3), Here::First, twice);

#[test]
fn two_recoverers_free_a_slot_once() {
    for model in TWICE {
        model.holds(&[
            "(0, 0) (1, 0)",
            "(0, 0) (1, 1)",
            "(1, 0) (0, 0)",
            "(1, 0) (1, 1)",
            "(1, 1) (0, 0)",
            "(1, 1) (1, 0)",
        ]);
    }
}

/// One recovers while the successor attaches, which recovers too.
fn successor(seen: &Seen, here: Here, stop: Stop) {
    let region = after_death(stop);
    let (one, inside) = (region.settled(1), region.clone());
    let (recovered, (next, outcome)) = both(here, move || one.recover().0, move || succeed(&inside));
    settled(&region, next.as_ref(), outcome == "claimed");
    seen.reached(format!("{recovered} recovered, {outcome}"));
}

each_stop!(SUCCESSOR, "recover: successor spawned", Some(3), Here::First, successor);
each_stop!(SUCCESSOR_HERE, "recover: successor here", Some(3), Here::Second, successor);

#[test]
fn a_late_recoverer_leaves_the_successor_alone() {
    for model in SUCCESSOR.into_iter().chain(SUCCESSOR_HERE) {
        if model.name.ends_with("retiring") {
            // The other one has let go of the slot's name and is about to free it.
            model.holds(&[
                "0 recovered, attached",
                "0 recovered, claimed",
                "1 recovered, attached",
                "1 recovered, claimed",
            ]);
        } else {
            model.holds(&["0 recovered, claimed", "1 recovered, claimed"]);
        }
        model.fails_without(Edge::StillDead);
    }
    // In the other arrangement it is the last thing found.
    for model in SUCCESSOR_HERE {
        model.fails_without(Edge::WordBeforeProof);
    }
}

/// Both at once, with the successor.
fn three(seen: &Seen, here: usize) {
    let region = after_death(Stop::Claiming);
    let (one, two, inside) = (region.settled(1), region.settled(2), region.clone());
    let roles: Vec<Role<(Option<Session>, &'static str)>> = vec![
        Box::new(move || succeed(&inside)),
        Box::new(move || (None, if one.recover().0 == 1 { "recovered" } else { "too late" })),
        Box::new(move || (None, if two.recover().0 == 1 { "recovered" } else { "too late" })),
    ];
    let answers = all(here, roles);
    let next = answers.iter().find_map(|(next, _)| next.as_ref());
    settled(&region, next, answers.iter().any(|(_, outcome)| *outcome == "claimed"));
    let mut outcomes: Vec<_> = answers.iter().map(|(_, outcome)| *outcome).collect();
    outcomes.sort_unstable();
    seen.reached(outcomes.join(", "));
}

const THREE: [Model; 2] = [
    Model { name: "recover: two and a successor, here", bound: Some(2), run: |seen| three(seen, 0) },
    Model { name: "recover: two and a successor, spawned", bound: Some(2), run: |seen| three(seen, 1) },
];

#[test]
fn two_late_recoverers_leave_the_successor_alone() {
    for model in THREE {
        model.holds(&["claimed, recovered, recovered", "claimed, recovered, too late", "claimed, too late, too late"]);
        model.fails_without(Edge::StillDead);
        model.fails_without(Edge::WordBeforeProof);
    }
}

/// A dead session's lease is void as soon as its word says so, and no later than its recovery.
fn lease_of_the_dead(seen: &Seen, here: Here) {
    let region = Region::new(Size { cells: 1, ..SIZE });
    let (doomed, one, two) = (region.settled(0), region.settled(1), region.settled(2));
    assert!(one.store(&key(1), 1));
    doomed.acquire(&key(1), LeaseKind::View).expect("there");
    doomed.die();
    let (retired, _) = both(here, move || format!("{:?}", one.retire(&key(1))), move || two.recover());
    settled(&region, None, false);
    seen.reached(retired);
}

const LEASE: [Model; 2] = [
    Model {
        name: "recover: lease, recoverer spawned",
        bound: Some(3),
        run: |seen| lease_of_the_dead(seen, Here::First),
    },
    Model {
        name: "recover: lease, retirer spawned",
        bound: Some(3),
        run: |seen| lease_of_the_dead(seen, Here::Second),
    },
];

#[test]
fn leases_of_the_dead_are_void() {
    for model in LEASE {
        model.holds(&["Draining", "Retired"]);
        model.fails_without(Edge::SessionDecides);
    }
}
