//! An entry of the session table changes hands: the cells of its former owner say nothing about the new one.
//!
//! L3 of `src/lease.rs`, steps 3 to 5 of `src/session/attach.rs`.

#![cfg(all(maru_loom, not(maru_shuttle)))]

use maru::Retire;
use maru::layout::word::{LeaseKind, SessionState};
use maru::model::{Region, Session, Size, Stop, key};
use maru_loom_tests::{Edge, Here, Model, Seen, both, claim};

const SIZE: Size = Size { slots: 1, sessions: 2, buckets: 1, rows: 0, cells: 1 };

/// A block, and an entry whose last owner died with a lease on it and is recovered: the cell still names the block.
fn left_over() -> (Region, Session) {
    let region = Region::new(SIZE);
    let (former, owner) = (region.settled(0), region.settled(1));
    assert!(owner.store(&key(1), 1));
    former.acquire(&key(1), LeaseKind::View).expect("there");
    former.die();
    assert_eq!(owner.recover().0, 1);
    (region, owner)
}

/// The entry gets a new owner, which reads nothing, while somebody looks for leases.
fn never_counts(seen: &Seen, here: Here) {
    let (region, owner) = left_over();
    let (inside, outside) = (region.clone(), region.clone());
    let scan = move || {
        let entry = outside.session_word(0).state().map_or("damaged", SessionState::name);
        (entry, owner.retire(&key(1)))
    };
    let (next, (entry, retired)) = both(here, move || inside.attach(0), scan);
    claim!(next.is_some(), "nobody else wants the entry");
    claim!(retired == Retire::Retired, "nobody reads, and the answer is {retired:?}");
    let again = next.map(|next| {
        next.close();
        region.attach(0)
    });
    claim!(again.flatten().is_some() && region.session_word(0).is(SessionState::Live), "left, and not to be had again");
    seen.reached(format!("retired, entry {entry}"));
}

const NEVER_COUNTS: [Model; 2] = [
    Model { name: "reuse: scan spawned", bound: None, run: |seen| never_counts(seen, Here::First) },
    Model { name: "reuse: attach spawned", bound: None, run: |seen| never_counts(seen, Here::Second) },
];

#[test]
fn cells_of_the_former_owner_never_count() {
    for model in NEVER_COUNTS {
        model.holds(&["retired, entry attaching", "retired, entry free", "retired, entry live"]);
        model.fails_without(Edge::Live);
        model.fails_without(Edge::SessionDecides);
    }
}

/// The new owner takes a lease at once.
fn never_hides(seen: &Seen, here: Here) {
    let (region, owner) = left_over();
    let inside = region.clone();
    let read = move || {
        let next = inside.attach(0).expect("nobody else wants the entry");
        let Ok(lease) = next.acquire(&key(1), LeaseKind::View) else { return "missed" };
        let found = next.look(&lease);
        claim!(found == [1; 2], "read {found:?} under a lease");
        let word = inside.words()[0];
        claim!(word.generation() == lease.word().generation(), "leased at {:?}, and then {word:?}", lease.word());
        "read"
    };
    let clear = move || {
        let retired = owner.retire(&key(1));
        if retired == Retire::Retired {
            owner.write(&owner.stop_at(Stop::Writing, 0, &key(2)), 2);
        }
        retired
    };
    let (read, retired) = both(here, read, clear);
    seen.reached(format!("{read}, {retired:?}"));
}

const NEVER_HIDES: [Model; 2] = [
    Model { name: "reuse: lease, retirer spawned", bound: Some(3), run: |seen| never_hides(seen, Here::First) },
    Model { name: "reuse: lease, attach spawned", bound: Some(3), run: |seen| never_hides(seen, Here::Second) },
];

#[test]
fn leases_of_the_new_owner_are_seen() {
    for model in NEVER_HIDES {
        model.holds(&["missed, Draining", "missed, Retired", "read, Draining"]);
        model.fails_without(Edge::ReaderFence);
        model.fails_without(Edge::RetirerFence);
    }
}
