//! Leading: the leader word goes from one that has ended to one that lives, and stays with nobody else.
//!
//! C1 to C3 of `src/leader.rs`.

#![cfg(all(maru_loom, not(maru_shuttle)))]

use maru::layout::word::SessionState;
use maru::model::{Region, Session, Size};
use maru::{CallError, Lead};
use maru_loom_tests::{Edge, Here, Model, Seen, both, claim};

/// Session 0 leads and ends; 1 and 2 would lead.
const SIZE: Size = Size { slots: 1, sessions: 3, buckets: 1, rows: 0, cells: 0 };

fn leading(region: &Region) -> Session {
    let leader = region.settled(0);
    assert_eq!(leader.lead(), Ok(Lead::Leading), "nobody else is there");
    leader
}

fn word_of(answer: &Result<Lead, CallError>) -> &'static str {
    match answer {
        Ok(Lead::Leading) => "leads",
        Ok(Lead::Follows { .. }) => "follows",
        Err(_) => "fenced",
    }
}

/// Two candidates after a leader that is gone as `end` says.
fn candidates(seen: &Seen, here: Here, end: fn(&Region, &Session, Session) -> Option<Session>) {
    let region = Region::new(SIZE);
    let leader = leading(&region);
    let (one, two) = (region.settled(1), region.settled(2));
    let _zombie = end(&region, &one, leader);
    let ask = |session: Session| move || session.lead();
    let (first, second) = both(here, ask(one), ask(two));
    let leads = [&first, &second].into_iter().filter(|answer| **answer == Ok(Lead::Leading)).count();
    claim!(leads == 1, "of two candidates {leads} lead: {first:?}, {second:?}");
    let index = if first == Ok(Lead::Leading) { 1 } else { 2 };
    let follower = if index == 1 { &second } else { &first };
    claim!(*follower == Ok(Lead::Follows { index, epoch: 1 }), "{index} leads, and the other one says {follower:?}");
    claim!(region.leader().owner().index() == Some(index), "{index} leads, and the word is {:?}", region.leader());
    seen.reached(format!("{}, {}", word_of(&first), word_of(&second)));
}

fn dies(_: &Region, _: &Session, leader: Session) -> Option<Session> {
    leader.die();
    None
}

fn stays_fenced(_: &Region, fencer: &Session, leader: Session) -> Option<Session> {
    assert!(fencer.fence(0, leader.live().epoch()));
    Some(leader)
}

const DEAD: Model = Model {
    name: "leader: two candidates after a dead one",
    bound: Some(3),
    run: |seen| candidates(seen, Here::First, dies),
};
const FENCED: Model = Model {
    name: "leader: two candidates after a fenced one",
    bound: None,
    run: |seen| candidates(seen, Here::First, stays_fenced),
};

#[test]
fn one_of_two_candidates_leads() {
    DEAD.holds(&["follows, leads", "leads, follows"]);
    FENCED.holds(&["follows, leads", "leads, follows"]);
    FENCED.fails_without(Edge::LeaderLives);
}

/// A candidate is shut out while it takes the word; whoever shut it out leads, or finds the word free to take.
fn shut_out(seen: &Seen, here: Here) {
    let region = Region::new(SIZE);
    let (candidate, fencer) = (region.settled(1), region.settled(2));
    let epoch = candidate.live().epoch();
    let (answer, (fencer, first)) = both(
        here,
        move || candidate.lead(),
        move || {
            claim!(fencer.fence(1, epoch), "session 1 was live");
            let answer = fencer.lead();
            (fencer, answer)
        },
    );
    claim!(region.session_word(1).is(SessionState::Fenced), "fenced, and the word is {:?}", region.session_word(1));
    // C1: a swap that was under way when it was fenced may still come after; the next look takes the word away.
    claim!(fencer.lead() == Ok(Lead::Leading), "the other one is fenced, and the word is {:?}", region.leader());
    seen.reached(format!("candidate {}, fencer {}", word_of(&answer), word_of(&first)));
}

const SHUT_OUT: [Model; 2] = [
    Model { name: "leader: shut out, fencer spawned", bound: None, run: |seen| shut_out(seen, Here::First) },
    Model { name: "leader: shut out, candidate spawned", bound: None, run: |seen| shut_out(seen, Here::Second) },
];

#[test]
fn a_candidate_that_is_shut_out_does_not_keep_the_word() {
    for model in SHUT_OUT {
        model.holds(&[
            "candidate fenced, fencer leads",
            "candidate follows, fencer leads",
            "candidate leads, fencer leads",
        ]);
        model.fails_without(Edge::LeaderLives);
    }
}
