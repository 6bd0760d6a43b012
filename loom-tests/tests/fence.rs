//! Shutting out without proof of death: a zombie may write on, and nobody else is given what it writes to.
//!
//! D3 of `src/recover.rs`, W4 of `src/store.rs`, and the stalled writer of the same file.

#![cfg(all(maru_loom, not(maru_shuttle)))]

use maru::Commit;
use maru::layout::STALLED_WRITER_MS;
use maru::layout::word::{LeaseKind, SessionState, SlotState};
use maru::model::{Claim, Region, Reserve, Session, Size, Stop, key};
use maru_loom_tests::{Edge, Here, Model, Seen, both, claim};

const SIZE: Size = Size { slots: 1, sessions: 3, buckets: 1, rows: 0, cells: 1 };

/// Writes and commits, whatever others think of this session.
fn write_on(zombie: &Session, claim: &Claim) -> Commit {
    zombie.write(claim, 1);
    zombie.publish(claim, 1)
}

/// A store of another object; whatever it is given stays as it wrote it.
fn store_other(region: &Region, thief: &Session) -> &'static str {
    match thief.reserve(&key(2)) {
        Reserve::Granted(granted) => {
            thief.write(&granted, 2);
            claim!(thief.publish(&granted, 2) == Commit::Stored, "granted, and then {:?}", region.words()[0]);
            "granted"
        }
        Reserve::Refused(why) => why.code(),
        other => panic!("claim broken: {other:?} of an object that nobody else stores"),
    }
}

/// The zombie writes on while it is shut out and somebody else needs its slot; then it leaves, or is proven dead.
fn zombie(seen: &Seen, here: Here, leaves: bool) {
    let region = Region::new(SIZE);
    let (zombie, fencer) = (region.settled(0), region.settled(1));
    let granted = zombie.stop_at(Stop::Writing, 0, &key(1));
    let epoch = zombie.live().epoch();
    let inside = region.clone();
    let go_on = move || {
        let commit = write_on(&zombie, &granted);
        if leaves {
            zombie.close();
        } else {
            zombie.die();
        }
        commit
    };
    let shut_out = move || {
        let fenced = fencer.fence(0, epoch);
        let other = store_other(&inside, &fencer);
        (fencer, fenced, other)
    };
    let (commit, (fencer, fenced, other)) = both(here, go_on, shut_out);
    fencer.reclaim();
    claim!(region.session_word(0).is(SessionState::Free), "gone, and the entry is {:?}", region.session_word(0));
    if other == "granted" {
        let reader = region.settled(2);
        let lease = reader.acquire(&key(2), LeaseKind::View).expect("stored, and nobody retires it");
        let found = reader.look(&lease);
        claim!(found == [2; 2], "the zombie wrote into another's block: {found:?}");
    }
    let word = region.words()[0];
    match commit {
        Commit::Stored => claim!(word.is(SlotState::Ready) && other != "granted", "stored, and then {word:?}, {other}"),
        Commit::Fenced => claim!(fenced, "answered fenced, and was not"),
        other => claim!(false, "a zombie's commit answered {other:?}"),
    }
    if commit == Commit::Fenced {
        claim!(other == "granted" || word.is(SlotState::Free), "given back, and the word is {word:?}");
    }
    seen.reached(format!("{}, fence {fenced}, other {other}", commit.code()));
}

const LEAVES: [Model; 2] = [
    Model { name: "fence: zombie leaves, fencer spawned", bound: Some(4), run: |seen| zombie(seen, Here::First, true) },
    Model {
        name: "fence: zombie leaves, zombie spawned",
        bound: Some(4),
        run: |seen| zombie(seen, Here::Second, true),
    },
];
const DIES: [Model; 2] = [
    Model { name: "fence: zombie dies, fencer spawned", bound: None, run: |seen| zombie(seen, Here::First, false) },
    Model { name: "fence: zombie dies, zombie spawned", bound: None, run: |seen| zombie(seen, Here::Second, false) },
];

#[test]
fn a_fenced_zombie_keeps_its_slot_until_it_leaves() {
    for model in LEAVES {
        model.holds(&[
            "fenced, fence true, other granted",
            "fenced, fence true, other no_space",
            "stored, fence true, other no_space",
            "stored, fence false, other no_space",
        ]);
        model.fails_without(Edge::Quarantine);
    }
}

#[test]
fn a_fenced_zombie_keeps_its_slot_until_it_is_proven_dead() {
    for model in DIES {
        model.holds(&[
            "fenced, fence true, other granted",
            "fenced, fence true, other no_space",
            "stored, fence true, other no_space",
        ]);
        model.fails_without(Edge::Quarantine);
    }
}

/// A writer has stood still for the published bound; somebody else stores the object, and the writer wakes.
fn stalled(seen: &Seen, here: Here, slots: u32) {
    let region = Region::new(Size { slots, ..SIZE });
    let (slow, quick) = (region.settled(0), region.settled(1));
    let granted = slow.stop_at(Stop::Writing, 0, &key(1));
    assert!(matches!(quick.reserve(&key(1)), Reserve::BeingWritten), "the first look starts the clock");
    quick.wait_ms(STALLED_WRITER_MS.default.into());
    let wake = move || write_on(&slow, &granted);
    let take_over = move || match quick.reserve(&key(1)) {
        Reserve::Granted(granted) => {
            quick.write(&granted, 2);
            claim!(quick.publish(&granted, 2) == Commit::Stored, "granted, and not stored");
            "granted"
        }
        Reserve::Present => "present",
        Reserve::BeingWritten => "being written",
        Reserve::Contended => "contended",
        Reserve::Refused(why) => why.code(),
    };
    let (commit, answer) = both(here, wake, take_over);
    let (slow, quick) = (commit == Commit::Stored, answer == "granted");
    claim!(!(slow && quick), "stored twice");
    claim!(
        slow || quick || answer == "no_space",
        "the slow one {commit:?}, the quick one {answer}, and nothing stored"
    );
    if slow || quick {
        let reader = region.settled(2);
        let lease = reader.acquire(&key(1), LeaseKind::View).expect("stored, and nobody retires it");
        let found = reader.look(&lease);
        claim!(found == [if slow { 1 } else { 2 }; 2], "{found:?} is not what the one that stored has written");
    }
    let words = region.words();
    let held = words.iter().filter(|word| !word.is(SlotState::Free)).count();
    claim!(held == usize::from(slow || quick), "the loser's slot is not back: {words:?}");
    seen.reached(format!("slow {}, quick {answer}", commit.code()));
}

const STALLED: [Model; 2] = [
    Model { name: "fence: stalled writer, quick spawned", bound: Some(4), run: |seen| stalled(seen, Here::First, 2) },
    Model { name: "fence: stalled writer, slow spawned", bound: Some(4), run: |seen| stalled(seen, Here::Second, 2) },
];
const STALLED_FULL: [Model; 2] = [
    Model { name: "fence: stalled, no room, quick spawned", bound: Some(3), run: |seen| stalled(seen, Here::First, 1) },
    Model { name: "fence: stalled, no room, slow spawned", bound: Some(3), run: |seen| stalled(seen, Here::Second, 1) },
];

#[test]
fn a_stalled_writer_is_superseded_or_stores() {
    for model in STALLED {
        model.holds(&[
            "slow stored, quick being written",
            "slow stored, quick present",
            "slow superseded, quick granted",
        ]);
    }
    for model in STALLED_FULL {
        model.holds(&[
            "slow stored, quick being written",
            "slow stored, quick present",
            "slow superseded, quick granted",
            "slow superseded, quick no_space",
        ]);
        model.fails_without(Edge::Quarantine);
    }
}

/// An operator vouches for a process while somebody else fences it: it is recovered all the same.
fn vouched(seen: &Seen, here: Here) {
    let region = Region::new(SIZE);
    let (gone, operator, fencer) = (region.settled(0), region.settled(1), region.settled(2));
    gone.stop_at(Stop::Writing, 0, &key(1));
    let epoch = gone.live().epoch();
    gone.vanish();
    let (recovered, fenced) = both(here, move || operator.vouch(0, epoch), move || fencer.fence(0, epoch));
    let (session, word) = (region.session_word(0), region.words()[0]);
    claim!(recovered == Some(1), "vouched for one with one slot: {recovered:?}, and its word is {session:?}");
    claim!(session.is(SessionState::Free), "recovered, and the entry is {session:?}");
    claim!(word.is(SlotState::Free) && word.generation() == 2, "recovered, and its slot is {word:?}");
    seen.reached(format!("fence {fenced}"));
}

const VOUCHED: [Model; 2] = [
    Model { name: "fence: vouched for, fencer spawned", bound: None, run: |seen| vouched(seen, Here::First) },
    Model { name: "fence: vouched for, operator spawned", bound: None, run: |seen| vouched(seen, Here::Second) },
];

#[test]
fn a_fence_saves_nobody_who_is_vouched_dead() {
    for model in VOUCHED {
        model.holds(&["fence false", "fence true"]);
        model.fails_without(Edge::Quarantine);
    }
}
