//! The index: what was committed is found, whatever moves around it, and marks are never too low.
//!
//! I1 to I5 of `src/directory/mod.rs`, in a world of two buckets with two ways each.

#![cfg(all(maru_loom, not(maru_shuttle)))]

use maru::layout::object::Place;
use maru::layout::word::IndexEntry;
use maru::model::{Region, Settle, Size, Stop, keys};
use maru_loom_tests::{Edge, Here, Model, Seen, both, claim};

const SIZE: Size = Size { slots: 4, sessions: 3, buckets: 2, rows: 0, cells: 0 };

/// First bucket 0, second bucket 1.
fn near(place: Place) -> bool {
    place.first == 0 && place.second == 1
}

/// Bucket 0 is the only one.
fn stuck(place: Place) -> bool {
    place.first == 0 && place.second == 0
}

/// I2: as many entries lie in bucket 1 for want of room in bucket 0 as its mark says, or fewer.
fn mark_is_high_enough(region: &Region) {
    let second = |entry: &IndexEntry| !entry.is_empty() && entry.is_second();
    let there = region.entries().iter().filter(|(bucket, entry)| *bucket == 1 && second(entry)).count() as u64;
    claim!(region.mark(0) >= there, "mark {}, and {there} entries in the second bucket", region.mark(0));
}

/// A resident is moved to its other bucket, to make room, while somebody looks for it.
fn moved(seen: &Seen, here: Here) {
    let region = Region::new(SIZE);
    let (keeper, mover, reader) = (region.settled(0), region.settled(1), region.settled(2));
    let resident = keys(2, 1, near)[0];
    let others = keys(2, 2, stuck);
    assert!(keeper.store(&resident, 1));
    keeper.stop_at(Stop::Pending, 1, &others[0]);
    let claimed = mover.stop_at(Stop::Claiming, 2, &others[1]);
    let make_room =
        move || claim!(matches!(mover.settle(&claimed), Settle::Won(_)), "there is room in the other bucket");
    let inside = region.clone();
    let look = move || {
        let before = inside.mark(0);
        let found = reader.probe(&resident);
        claim!(found.is_ok(), "committed, moved, and then {found:?}");
        before
    };
    let (_, before) = both(here, make_room, look);
    mark_is_high_enough(&region);
    claim!(region.mark(0) == 1, "moved once, and the mark is {}", region.mark(0));
    seen.reached(if before == 0 { "found from before the move" } else { "found from after the move began" });
}

const MOVED: [Model; 2] = [
    Model { name: "index: moved, reader spawned", bound: None, run: |seen| moved(seen, Here::First) },
    Model { name: "index: moved, mover spawned", bound: None, run: |seen| moved(seen, Here::Second) },
];

#[test]
fn a_moved_entry_is_found_in_one_of_its_buckets() {
    for model in MOVED {
        model.holds(&["found from before the move", "found from after the move began"]);
        model.fails_without(Edge::Moved);
    }
}

/// A claim goes into the second bucket and is killed there, next to a block that is found by the same mark.
fn marked(seen: &Seen, here: Here) {
    let region = Region::new(SIZE);
    let (keeper, claimant, killer) = (region.settled(0), region.settled(1), region.settled(2));
    let residents = keys(2, 2, stuck);
    let crowded = keys(2, 2, near);
    keeper.stop_at(Stop::Pending, 0, &residents[0]);
    keeper.stop_at(Stop::Pending, 1, &residents[1]);
    assert!(keeper.store(&crowded[0], 1));
    assert_eq!(region.mark(0), 1, "the block lies in the second bucket");
    let claimed = claimant.stop_at(Stop::Claiming, 3, &crowded[1]);
    let insert = move || matches!(claimant.settle(&claimed), Settle::Won(_));
    let kill = move || {
        let killed = killer.kill(3);
        let found = killer.probe(&crowded[0]);
        claim!(found.is_ok(), "committed, and then {found:?} for want of a mark");
        killed
    };
    let (won, killed) = both(here, insert, kill);
    claim!(won != killed, "won {won}, killed {killed}");
    mark_is_high_enough(&region);
    seen.reached(if killed { "killed" } else { "won" });
}

const MARKED: [Model; 2] = [
    Model { name: "index: mark, killer spawned", bound: Some(4), run: |seen| marked(seen, Here::First) },
    Model { name: "index: mark, claimant spawned", bound: Some(4), run: |seen| marked(seen, Here::Second) },
];

#[test]
fn marks_are_never_too_low() {
    for model in MARKED {
        model.holds(&["killed", "won"]);
        model.fails_without(Edge::MarkFirst);
    }
}
