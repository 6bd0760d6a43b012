//! A full region, and stores that are refused.
//!
//! * Symptom: stores over the limit answer success, and the data is dropped on arrival; a refused store has already thrown
//!   something away to make room.
//! * Cause: room is promised before it is had; eviction comes before the decision.

use super::{acquire, load};
use crate::tests::{Scratch, keeping, namespace, object, payload, store};
use crate::{Reserve, ReserveOptions, Role, Session, Why, Wish};

const BLOCK: usize = 128 << 10;

/// Which of these keys hit, with exactly their own bytes.
fn hits(session: &Session, ns: crate::NamespaceId, keys: std::ops::Range<u64>) -> Vec<u64> {
    keys.filter(|number| match load(session, &object(ns, *number)) {
        Ok(bytes) => {
            assert!(bytes == payload(*number, BLOCK), "{number}: foreign bytes");
            true
        }
        Err(why) => {
            assert_eq!(why, Why::Absent, "{number}");
            false
        }
    })
    .collect()
}

#[test]
fn stored_is_found_refused_costs_nobody_and_both_add_up() {
    let scratch = Scratch::new();
    let region = scratch.region(Wish::of_slots(4 << 20, BLOCK as u64));
    let session = region.session("a", Role::Worker).expect("attach");
    let ns = session.namespace(&namespace("t")).expect("namespace");
    let slots = u64::from(region.geometry().slot_count);
    let tried = slots + 20;
    let (mut stored, mut refused) = (0, 0);
    let mut leases = Vec::new();
    for number in 0..tried {
        // From the tenth on, everything that came before is being read.
        if number >= 10 {
            leases.extend(acquire(&session, &object(ns, number - 1)).ok());
        }
        if number == 10 {
            leases.extend((0..9).map(|number| acquire(&session, &object(ns, number)).expect("hit")));
        }
        let before = hits(&session, ns, 0..tried);
        match store(&session, &object(ns, number), &payload(number, BLOCK)) {
            "stored" => {
                stored += 1;
                assert!(session.probe(&object(ns, number)).expect("probe").is_hit(), "{number}: stored means found");
                assert!(hits(&session, ns, number..number + 1) == [number]);
            }
            "no_space" | "over_budget" => {
                refused += 1;
                assert_eq!(hits(&session, ns, 0..tried), before, "{number}: a refusal costs nobody");
                assert!(!session.probe(&object(ns, number)).expect("probe").is_hit(), "{number}");
            }
            other => panic!("{number}: {other}"),
        }
        for lease in &leases {
            assert!(session.probe(lease.object()).expect("probe").is_hit(), "{number}: what is read stays");
        }
    }
    assert_eq!(stored + refused, tried);
    assert_eq!((stored, refused), (slots, 20), "all blocks are in use, so nothing could make room");
    let usage = region.usage();
    assert_eq!((usage.slots[4], usage.slots[0]), (usage.capacity_slots, 0));
    // Larger than any slot: no matter how full.
    let large = session.reserve(&object(ns, 9999), 2 << 20, ReserveOptions::default()).expect("reserve");
    assert!(matches!(large, Reserve::Refused(Why::TooLarge { bytes: 0x20_0000, max_bytes: 0x2_0000 })), "{large:?}");
    assert_eq!(hits(&session, ns, 0..tried).len() as u64, slots);
    drop(leases);
    // Whatever was refused works once there is room.
    session.retire(&object(ns, 3)).expect("retire");
    assert_eq!(store(&session, &object(ns, tried - 1), &payload(tried - 1, BLOCK)), "stored");
    assert_eq!(hits(&session, ns, 3..4), [] as [u64; 0]);
}

#[test]
fn a_batch_of_reservations_answers_each_in_its_place() {
    let scratch = Scratch::new();
    let region = scratch.region(Wish::of_slots(4 << 20, BLOCK as u64));
    let session = region.session_with("a", Role::Worker, keeping()).expect("attach");
    let ns = session.namespace(&namespace("t")).expect("namespace");
    let slots = u64::from(region.geometry().slot_count);
    assert_eq!(store(&session, &object(ns, 0), &payload(0, BLOCK)), "stored");
    let mut wanted: Vec<_> =
        (0..slots + 8).map(|number| (object(ns, number), BLOCK as u64, ReserveOptions::default())).collect();
    wanted[5].1 = 0;
    wanted[6].1 = 2 << 20;
    wanted[7] = wanted[1];
    let answers = session.reserve_batch(&wanted).expect("batch");
    assert_eq!(answers.len(), wanted.len());
    let (mut granted, mut refused) = (0, 0);
    let mut last_granted = 0;
    for (at, answer) in answers.into_iter().enumerate() {
        match (at, answer) {
            (0, Reserve::Present) | (5, Reserve::Refused(Why::Empty)) | (6, Reserve::Refused(Why::TooLarge { .. })) => {
            }
            // The same key twice in one batch: the second finds the first at work.
            (7, Reserve::BeingWritten) => {}
            (_, Reserve::Granted(mut reservation)) => {
                granted += 1;
                last_granted = at as u64;
                reservation.write_at(0, &payload(at as u64, BLOCK)).expect("write");
                assert_eq!(reservation.commit().expect("commit"), crate::Commit::Stored);
                assert_eq!(hits(&session, ns, at as u64..at as u64 + 1), [at as u64]);
            }
            (_, Reserve::Refused(Why::NoSpace)) => refused += 1,
            (at, other) => panic!("{at}: {other:?}"),
        }
    }
    assert_eq!(granted, slots - 1, "every slot but that of key 0");
    assert_eq!(granted + refused + 4, slots + 8);
    assert!(last_granted < slots + 8);
    assert_eq!(region.usage().slots[4], region.usage().capacity_slots);
}

#[test]
fn reservations_that_are_dropped_give_their_space_back() {
    let scratch = Scratch::new();
    let region = scratch.region(Wish::of_slots(1 << 20, 4096));
    let session = region.session("a", Role::Worker).expect("attach");
    let ns = session.namespace(&namespace("t")).expect("namespace");
    let slots = u64::from(region.geometry().slot_count);
    for round in 0..20 {
        let wanted: Vec<_> =
            (0..slots).map(|number| (object(ns, number + round), 4096, ReserveOptions::default())).collect();
        let mut answers = session.reserve_batch(&wanted).expect("batch");
        assert!(answers.iter().all(|answer| matches!(answer, Reserve::Granted(_))), "round {round}");
        assert!(matches!(
            session.reserve(&object(ns, 1 << 40), 4096, ReserveOptions::default()).expect("reserve"),
            Reserve::Refused(Why::NoSpace)
        ));
        for answer in answers.drain(..slots as usize / 2) {
            assert!(answer.granted().expect("granted").abort().expect("abort"));
        }
        drop(answers);
        assert_eq!(u64::from(region.usage().slots[0]), slots, "round {round}: {:?}", region.usage());
    }
}
