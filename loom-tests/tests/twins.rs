//! Twins: of all who store the same object at the same time, one gets to write it.
//!
//! The edges \[pending], \[entry] and \[twin] of `src/slot.rs`; invariants W1 to W3 of `src/store.rs`.

#![cfg(all(maru_loom, not(maru_shuttle)))]

use maru::layout::object::ObjectKey;
use maru::layout::word::SlotState;
use maru::model::{Claim, Region, Reserve, Session, Settle, Size, Stop, key, keys};
use maru_loom_tests::{Edge, Here, Model, Role, Seen, all, both, claim};

const SIZE: Size = Size { slots: 2, sessions: 3, buckets: 1, rows: 0, cells: 0 };

/// One round of a claimant whose slot is claimed: what became of it, and the slot if it may write.
fn settle(session: &Session, claimed: &Claim) -> (&'static str, Option<u32>) {
    match session.settle(claimed) {
        Settle::Won(claim) => ("won", Some(claim.slot())),
        Settle::Lost => ("lost", None),
        Settle::Killed => ("killed", None),
    }
}

/// A whole reservation, with its second tries.
fn reserve(session: &Session, key: &ObjectKey) -> (&'static str, Option<u32>) {
    match session.reserve(key) {
        Reserve::Granted(claim) => ("won", Some(claim.slot())),
        Reserve::Present => ("present", None),
        Reserve::BeingWritten => ("lost", None),
        Reserve::Refused(why) => (why.code(), None),
        Reserve::Contended => ("contended", None),
    }
}

/// The end of every model here: at most one may write, everybody can see that, and the others hold no slot.
/// `standing` slots belong to sessions that never moved.
fn at_most_one(region: &Region, key: &ObjectKey, answers: &[(&str, Option<u32>)], standing: usize) {
    let winners: Vec<u32> = answers.iter().filter_map(|(_, slot)| *slot).collect();
    claim!(winners.len() <= 1, "slots {winners:?} may both be written");
    let words = region.words();
    let held: Vec<_> = words.iter().filter(|word| !word.is(SlotState::Free)).collect();
    claim!(held.len() == winners.len() + standing, "{} may write, held are {held:?}", winners.len());
    if let [winner] = winners[..] {
        claim!(
            words[winner as usize].is(SlotState::Writing),
            "it may write, and the word is {:?}",
            words[winner as usize]
        );
        let asker = region.settled(region.sessions() - 1);
        claim!(reserve(&asker, key).0 == "lost", "nobody can see that it is being written");
    }
}

fn two(seen: &Seen, here: Here) {
    let region = Region::new(SIZE);
    let (low, high) = (region.settled(0), region.settled(1));
    let wanted = key(1);
    let claims = [low.stop_at(Stop::Claiming, 0, &wanted), high.stop_at(Stop::Claiming, 1, &wanted)];
    let (low, high) = both(here, move || settle(&low, &claims[0]), move || settle(&high, &claims[1]));
    at_most_one(&region, &wanted, &[low, high], 0);
    seen.reached(format!("low {}, high {}", low.0, high.0));
}

const TWO: [Model; 2] = [
    Model { name: "twins: two, high spawned", bound: Some(3), run: |seen| two(seen, Here::First) },
    Model { name: "twins: two, low spawned", bound: Some(3), run: |seen| two(seen, Here::Second) },
];

#[test]
fn of_two_claims_one_is_written() {
    for model in TWO {
        model.holds(&[
            // Each lost its patience with the other; a reservation tries again.
            "low killed, high killed",
            "low killed, high won",
            "low lost, high won",
            "low won, high killed",
            "low won, high lost",
        ]);
        model.fails_without(Edge::TwinScan);
    }
}

/// The two put their entries into different buckets: the first one frees a place in the key's first bucket, and the
/// second one may not have seen that yet. Nothing but the fences makes one of them see the other.
fn apart(seen: &Seen, here: Here) {
    let region = Region::new(Size { slots: 4, sessions: 4, buckets: 2, ..SIZE });
    let (low, high, neighbour) = (region.settled(0), region.settled(1), region.settled(2));
    let near = keys(2, 3, |place| place.first == 0 && place.second == 1);
    let wanted = near[2];
    neighbour.stop_at(Stop::Pending, 2, &near[0]);
    let in_the_way = low.stop_at(Stop::Pending, 3, &near[1]);
    let claims = [low.stop_at(Stop::Claiming, 0, &wanted), high.stop_at(Stop::Claiming, 1, &wanted)];
    let low = move || {
        assert!(low.abort(&in_the_way));
        settle(&low, &claims[0])
    };
    let (low, high) = both(here, low, move || settle(&high, &claims[1]));
    at_most_one(&region, &wanted, &[low, high], 1);
    if region.entries().iter().any(|(bucket, entry)| *bucket == 1 && !entry.is_empty()) {
        seen.reached("entries apart");
    }
    seen.reached(format!("low {}, high {}", low.0, high.0));
}

const APART: [Model; 2] = [
    Model { name: "twins: apart, high spawned", bound: Some(3), run: |seen| apart(seen, Here::First) },
    Model { name: "twins: apart, low spawned", bound: Some(3), run: |seen| apart(seen, Here::Second) },
];

#[test]
fn twins_in_different_buckets_see_each_other() {
    for model in APART {
        model.holds(&[
            "entries apart",
            "low killed, high killed",
            "low killed, high won",
            "low lost, high won",
            "low won, high killed",
            "low won, high lost",
        ]);
        model.fails_without(Edge::TwinFence);
    }
}

/// A lower claim stands still, or its process is gone; two higher ones get past it, and one of them writes.
fn standing(seen: &Seen, here: Here, dead: bool) {
    let region = Region::new(Size { slots: 3, sessions: 4, buckets: 2, ..SIZE });
    let (still, low, high) = (region.settled(0), region.settled(1), region.settled(2));
    let wanted = keys(2, 1, |place| place.first != place.second)[0];
    still.stop_at(Stop::Pending, 0, &wanted);
    let claims = [low.stop_at(Stop::Claiming, 1, &wanted), high.stop_at(Stop::Claiming, 2, &wanted)];
    if dead {
        still.die();
    }
    let (low, high) = both(here, move || settle(&low, &claims[0]), move || settle(&high, &claims[1]));
    let left = usize::from(!region.words()[0].is(SlotState::Free));
    at_most_one(&region, &wanted, &[low, high], left);
    claim!(left == 0 || low.1.is_none() && high.1.is_none(), "written beside a claim that may go on");
    seen.reached(format!("low {}, high {}", low.0, high.0));
}

const STILL: [Model; 2] = [
    Model { name: "twins: third still, high spawned", bound: Some(2), run: |seen| standing(seen, Here::First, false) },
    Model { name: "twins: third still, low spawned", bound: Some(2), run: |seen| standing(seen, Here::Second, false) },
];
const DEAD: [Model; 2] = [
    Model { name: "twins: third dead, high spawned", bound: Some(2), run: |seen| standing(seen, Here::First, true) },
    Model { name: "twins: third dead, low spawned", bound: Some(2), run: |seen| standing(seen, Here::Second, true) },
];

#[test]
fn claims_get_past_one_that_stands_still() {
    let [high_spawned, low_spawned] = STILL;
    let both = [
        "low killed, high killed",
        "low killed, high won",
        "low lost, high killed",
        "low lost, high won",
        "low won, high killed",
        "low won, high lost",
    ];
    high_spawned.holds(&both);
    low_spawned.holds(&[&both[..], &["low killed, high lost"]].concat());
    high_spawned.fails_without(Edge::TwinScan);
    low_spawned.fails_without(Edge::TwinScan);
}

#[test]
fn claims_get_past_one_that_is_dead() {
    for model in DEAD {
        model.holds(&[
            "low killed, high killed",
            "low killed, high won",
            "low lost, high won",
            "low won, high killed",
            "low won, high lost",
        ]);
        model.fails_without(Edge::TwinScan);
    }
}

fn three(seen: &Seen, here: usize) {
    let region = Region::new(Size { slots: 3, sessions: 4, buckets: 2, ..SIZE });
    let wanted = keys(2, 1, |place| place.first != place.second)[0];
    let roles = (0..3).map(|index| {
        let session = region.settled(index);
        let claimed = session.stop_at(Stop::Claiming, index, &wanted);
        Box::new(move || settle(&session, &claimed)) as Role<_>
    });
    let mut answers = all(here, roles.collect());
    at_most_one(&region, &wanted, &answers, 0);
    answers.sort_unstable();
    seen.reached(answers.iter().map(|(answer, _)| *answer).collect::<Vec<_>>().join(", "));
}

const THREE: [Model; 2] = [
    Model { name: "twins: three, lowest here", bound: Some(1), run: |seen| three(seen, 0) },
    Model { name: "twins: three, highest here", bound: Some(1), run: |seen| three(seen, 2) },
];

#[test]
fn of_three_claims_one_is_written() {
    for model in THREE {
        model.holds(&["killed, killed, killed", "killed, lost, won", "lost, lost, won"]);
        model.fails_without(Edge::TwinScan);
    }
}

/// Whole reservations: the look before the claim, the search for a slot, the second try.
fn whole(seen: &Seen, here: Here) {
    let region = Region::new(SIZE);
    let (first, second) = (region.settled(0), region.settled(1));
    let wanted = key(1);
    let (first, second) = both(here, move || reserve(&first, &wanted), move || reserve(&second, &wanted));
    at_most_one(&region, &wanted, &[first, second], 0);
    seen.reached(format!("first {}, second {}", first.0, second.0));
}

const WHOLE: Model = Model { name: "twins: whole reservations", bound: Some(2), run: |seen| whole(seen, Here::First) };

#[test]
fn of_two_reservations_one_is_granted() {
    WHOLE.holds(&["first contended, second contended", "first lost, second won", "first won, second lost"]);
    WHOLE.fails_without(Edge::TwinScan);
}
