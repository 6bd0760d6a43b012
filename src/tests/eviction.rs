//! A full region makes room: for whom, at whose cost, and how quickly it says no.

use std::time::{Duration, Instant};

use maru_layout::word::{Owner, SlotState};

use super::{Scratch, keeping, namespace, object, payload, store};
use crate::{
    Batch, Evict, LeaseHandle, NamespaceId, ObjectId, Pin, Region, Release, Reserve, ReserveOptions, Retire, Role,
    Session, SessionOptions, Verify, Why, Wish,
};

const BLOCK: usize = 4096;

fn scene(scratch: &Scratch) -> (Region, Session, NamespaceId, u64) {
    let region = scratch.region(Wish::of_slots(1 << 20, BLOCK as u64));
    let session = region.session("a", Role::Worker).expect("attach");
    let ns = session.namespace(&namespace("t")).expect("namespace");
    let slots = u64::from(region.geometry().slot_count);
    (region, session, ns, slots)
}

/// Stores blocks, each of which finds room.
fn fill(session: &Session, ns: NamespaceId, numbers: core::ops::Range<u64>) {
    for number in numbers {
        assert_eq!(store(session, &object(ns, number), &payload(number, BLOCK)), "stored", "{number}");
    }
}

fn hit(session: &Session, ns: NamespaceId, number: u64) -> bool {
    session.probe(&object(ns, number)).expect("probe").is_hit()
}

fn lease(session: &Session, ns: NamespaceId, number: u64) -> LeaseHandle {
    let lease = session.acquire(&[object(ns, number)], Batch::Each).expect("acquire").pop().expect("one");
    lease.expect("hit").into_handle()
}

/// Symptom: a cache that is full is of no use any more. Every store finds room, what was stored last hits, and the
/// accounts are whole.
#[test]
fn a_full_region_makes_room_for_whoever_stores() {
    let scratch = Scratch::new();
    let (region, session, ns, slots) = scene(&scratch);
    for number in 0..4 * slots {
        assert_eq!(store(&session, &object(ns, number), &payload(number, BLOCK)), "stored", "{number}");
        assert!(hit(&session, ns, number), "{number}: success is what a later call can see");
    }
    let usage = region.usage();
    assert_eq!(usage.slots.iter().sum::<u32>(), usage.capacity_slots);
    assert!(usage.slots[4] > usage.capacity_slots / 2, "victims go in batches, not the whole cache: {:?}", usage.slots);
    let evicted = session.counters().into_iter().find(|(counter, _)| counter.name() == "evicted").expect("counted").1;
    assert_eq!(evicted + u64::from(usage.slots[4]), 4 * slots);
}

/// B12: symptom: leased blocks are evicted, or a store spins for ever. All leased is a quick "no", and costs nobody a hit.
#[test]
fn leased_blocks_stay_and_all_leased_is_a_refusal() {
    let scratch = Scratch::new();
    let (region, session, ns, slots) = scene(&scratch);
    fill(&session, ns, 0..slots);
    let held: Vec<_> = (0..slots).map(|number| lease(&session, ns, number)).collect();
    for number in slots..slots + 20 {
        assert_eq!(store(&session, &object(ns, number), &payload(number, BLOCK)), "no_space");
    }
    assert!((0..slots).all(|number| hit(&session, ns, number)), "a refused store costs no hit");
    assert_eq!(region.usage().slots[4], slots as u32);
    // One is let go: exactly that one can make room.
    assert_eq!(session.release(held[7]).expect("release"), Release::Released);
    assert_eq!(store(&session, &object(ns, slots), &payload(slots, BLOCK)), "stored");
    assert!(!hit(&session, ns, 7));
    assert!((0..slots).filter(|number| *number != 7).all(|number| hit(&session, ns, number)));
    for handle in held.iter().enumerate().filter(|(at, _)| *at != 7).map(|(_, handle)| *handle) {
        assert_eq!(session.release(handle).expect("release"), Release::Released);
    }
}

/// Another session's lease counts as one's own.
#[test]
fn a_foreign_reader_keeps_its_block() {
    let scratch = Scratch::new();
    let (region, session, ns, slots) = scene(&scratch);
    let reader = region.session("reader", Role::Worker).expect("attach");
    assert_eq!(store(&session, &object(ns, 0), &payload(0, BLOCK)), "stored");
    let mut leases = reader.acquire(&[object(ns, 0)], Batch::Each).expect("acquire");
    let lease = leases.pop().expect("one").expect("hit");
    fill(&session, ns, 1..3 * slots);
    assert_eq!(lease.read(Verify::Always).expect("read"), payload(0, BLOCK));
    drop(lease);
    for number in 3 * slots..5 * slots {
        assert_eq!(store(&session, &object(ns, number), &payload(number, BLOCK)), "stored");
    }
    assert!(!hit(&session, ns, 0));
}

/// Heads that many requests share outlive what single requests put behind them, though they are older.
#[test]
fn what_stands_behind_a_shared_prefix_goes_before_it() {
    let scratch = Scratch::new();
    let (_region, session, ns, slots) = scene(&scratch);
    let put = |number: u64, after_hits: u32| {
        let options = ReserveOptions { depth: after_hits, after_hits, ..ReserveOptions::default() };
        match session.reserve(&object(ns, number), BLOCK as u64, options).expect("reserve") {
            Reserve::Granted(mut reservation) => {
                reservation.write_at(0, &payload(number, BLOCK)).expect("write");
                reservation.commit().expect("commit");
            }
            other => panic!("{number}: {other:?}"),
        }
    };
    let half = slots / 2;
    (0..half).for_each(|number| {
        put(number, 0);
        put(half + number, 4);
    });
    // A third of the room is wanted for something else.
    (0..slots / 3).for_each(|number| put(1_000_000 + number, 0));
    let kept = |range: std::ops::Range<u64>| range.filter(|number| hit(&session, ns, *number)).count();
    let (heads, tails) = (kept(0..half), kept(half..2 * half));
    assert!(heads > tails + half as usize / 4, "{heads} of {half} heads and {tails} of {half} tails are left");
}

/// What was read since the hand came by stays longer than what was not.
#[test]
fn what_is_read_outlives_what_is_not() {
    let scratch = Scratch::new();
    let (_region, session, ns, slots) = scene(&scratch);
    fill(&session, ns, 0..slots);
    let hot = slots / 4;
    for turn in 0..3 * slots {
        // The first quarter is read again and again.
        let handle = (turn % 8 == 0).then(|| {
            let all: Vec<_> = (0..hot).map(|number| object(ns, number)).collect();
            session.acquire(&all, Batch::Each).expect("acquire")
        });
        drop(handle);
        assert_eq!(store(&session, &object(ns, slots + turn), &payload(turn, BLOCK)), "stored");
    }
    let left = (0..hot).filter(|number| hit(&session, ns, *number)).count() as u64;
    assert_eq!(left, hot, "of {hot} blocks that are read all the time {left} are left");
}

/// A session that keeps what is there skips the new block; another one of the same region may evict.
#[test]
fn a_session_that_keeps_refuses() {
    let scratch = Scratch::new();
    let (region, session, ns, slots) = scene(&scratch);
    let keeper = region.session_with("keeper", Role::Worker, keeping()).expect("attach");
    for number in 0..slots {
        assert_eq!(store(&keeper, &object(ns, number), &payload(number, BLOCK)), "stored");
    }
    assert_eq!(store(&keeper, &object(ns, slots), &payload(slots, BLOCK)), "no_space");
    assert!((0..slots).all(|number| hit(&keeper, ns, number)));
    assert_eq!(store(&session, &object(ns, slots), &payload(slots, BLOCK)), "stored");
}

/// Between the watermarks there is always room; marks out of order are refused by name.
#[test]
fn watermarks_keep_slots_free_and_are_checked() {
    let scratch = Scratch::new();
    let (region, ..) = scene(&scratch);
    let with = |low, high| {
        let options = SessionOptions { evict: Evict::Watermarks { low, high }, ..SessionOptions::default() };
        region.session_with("w", Role::Worker, options).map_err(|error| error.to_string())
    };
    for (low, high, field) in
        [(0.3, 0.2, "evict.high"), (-0.1, 0.2, "evict.low"), (0.6, 0.7, "evict.low"), (0.1, f64::NAN, "evict.high")]
    {
        let said = with(low, high).expect_err("refused");
        assert!(said.contains(field), "{low} {high}: {said}");
    }
    let session = with(0.2, 0.3).expect("in order");
    let ns = session.namespace(&namespace("t")).expect("namespace");
    let slots = region.geometry().slot_count;
    fill(&session, ns, 0..4 * u64::from(slots));
    // Looked at once in 64 claims.
    let free = region.usage().slots[0];
    assert!(free + 64 >= slots / 5, "{free} of {slots} slots are free");
}

/// B10 and pins: under four times the pressure the pinned block stays; over the number is refused; time ends it.
#[test]
fn a_pinned_block_stays_for_its_time() {
    let scratch = Scratch::new();
    let region = scratch.region(Wish::of_slots(1 << 20, BLOCK as u64));
    let options = SessionOptions { most_pins: 2, ..SessionOptions::default() };
    let session = region.session_with("a", Role::Worker, options).expect("attach");
    let ns = session.namespace(&namespace("t")).expect("namespace");
    let slots = u64::from(region.geometry().slot_count);
    fill(&session, ns, 0..3);
    let all: Vec<_> = (0..3).map(|number| object(ns, number)).collect();
    let lifetime = Duration::from_secs(3600);
    let pins = session.pin(&all, lifetime).expect("pin");
    assert!(matches!(pins[..], [Pin::Pinned(_), Pin::Pinned(_), Pin::Refused(Why::SessionLimit)]), "{pins:?}");
    assert_eq!(session.pin(&[object(ns, 99)], lifetime).expect("pin"), [Pin::Refused(Why::SessionLimit)]);
    fill(&session, ns, 100..100 + 4 * slots);
    assert_eq!([hit(&session, ns, 0), hit(&session, ns, 1), hit(&session, ns, 2)], [true, true, false]);
    let Pin::Pinned(first) = pins[0] else { panic!("pinned") };
    assert_eq!(session.unpin(first).expect("unpin"), Release::Released);
    assert_eq!(session.unpin(first).expect("unpin"), Release::NotHeld);
    assert_eq!(session.pinned(), 1);
    // The other one by its time.
    let brief = session.pin(&[object(ns, 0)], Duration::from_millis(1)).expect("pin");
    assert!(matches!(brief[..], [Pin::Pinned(_)]), "{brief:?}");
    std::thread::sleep(Duration::from_millis(5));
    session.heartbeat().expect("heartbeat");
    assert_eq!((session.pinned(), session.leases()), (1, 1));
    session.close().expect("pins do not hold a session");
    assert_eq!(region.usage().slots.iter().sum::<u32>(), slots as u32);
}

/// A bound of the session's own: one more reservation is refused with its reason.
#[test]
fn open_reservations_can_be_bounded() {
    let scratch = Scratch::new();
    let region = scratch.region(Wish::of_slots(1 << 20, BLOCK as u64));
    let options = SessionOptions { most_reservations: Some(2), ..SessionOptions::default() };
    let session = region.session_with("a", Role::Worker, options).expect("attach");
    let ns = session.namespace(&namespace("t")).expect("namespace");
    let reserve = |number| session.reserve(&object(ns, number), 64, ReserveOptions::default()).expect("reserve");
    let first = reserve(1).granted().expect("granted");
    let _second = reserve(2).granted().expect("granted");
    assert!(matches!(reserve(3), Reserve::Refused(Why::SessionLimit)));
    first.abort().expect("abort");
    assert!(reserve(3).granted().is_some());
}

/// Symptom: a full region of leased blocks is searched for as long as it is large. Counted in looks, not in time: a
/// refusal moves the hand by no more than the bound, and finds the one block that is free to go wherever it stands.
#[test]
fn a_refusal_looks_at_a_bounded_number_of_slots() {
    let scratch = Scratch::new();
    let wish = Wish { sessions: Some(4), session_area_bytes: Some(64 << 10), ..Wish::of_slots(8 << 20, 1024) };
    let region = scratch.region(wish);
    let slots = u64::from(region.geometry().slot_count);
    assert!(slots > 4096, "more than one search looks at: {slots}");
    let session = region.session("a", Role::Worker).expect("attach");
    let ns = session.namespace(&namespace("t")).expect("namespace");
    for number in 0..slots {
        assert_eq!(store(&session, &object(ns, number), &payload(number, 64)), "stored");
    }
    let all: Vec<_> = (0..slots).map(|number| object(ns, number)).collect();
    let leases = session.acquire(&all, Batch::Each).expect("acquire");
    let mut handles: Vec<_> = leases.into_iter().map(|lease| lease.expect("hit").into_handle()).collect();
    let hand = || region.inner().tables.control().clocks[0].hand.load(crate::sync::Ordering::Relaxed);
    let before = hand();
    assert_eq!(store(&session, &object(ns, slots), &payload(slots, 64)), "no_space");
    assert!(hand() - before <= 4096 + 16, "{} slots were looked at", hand() - before);
    assert!((0..slots).all(|number| hit(&session, ns, number)));
    // One that the hand has just passed: the searches go on from one another until one of them comes by.
    session.release(handles.swap_remove(17)).expect("release");
    let stored = (0..=slots / 4096 + 1)
        .filter(|turn| store(&session, &object(ns, slots + turn), &payload(slots + turn, 64)) == "stored")
        .count();
    // What was stored then is not leased, and may make room for the next.
    assert!(stored >= 1);
}

/// All blocks leased by one other reader, and then let go of at once: the refusal is over as soon as the reason is.
#[test]
fn a_refusal_ends_with_its_reason() {
    let scratch = Scratch::new();
    let (region, session, ns, slots) = scene(&scratch);
    fill(&session, ns, 0..slots);
    let reader = region.session("reader", Role::Worker).expect("attach");
    let all: Vec<_> = (0..slots).map(|number| object(ns, number)).collect();
    let leases = reader.acquire(&all, Batch::Each).expect("acquire");
    assert_eq!(store(&session, &object(ns, slots), &payload(slots, BLOCK)), "no_space");
    drop(leases);
    fill(&session, ns, slots..2 * slots);
}

/// Symptom: a full region never gets back the slot of a reader that forgot its copy. Cause: after one drained slot was
/// found held for good, all that are leased were passed over, lapsed ones among them.
#[test]
fn a_lapsed_copy_lease_frees_its_slot_though_others_drain_under_views() {
    let scratch = Scratch::new();
    let region = scratch.region(Wish { copy_lease_ms: 20, ..Wish::of_slots(1 << 20, BLOCK as u64) });
    let session = region.session("a", Role::Worker).expect("attach");
    let ns = session.namespace(&namespace("t")).expect("namespace");
    let slots = u64::from(region.geometry().slot_count);
    fill(&session, ns, 0..slots);
    let forgotten = slots / 2;
    let others: Vec<ObjectId> =
        (0..slots).filter(|number| *number != forgotten).map(|number| object(ns, number)).collect();
    let leases = session.acquire(&others, Batch::Each).expect("acquire");
    let views: Vec<_> = leases.iter().map(|lease| lease.as_ref().expect("a hit").view().expect("a view")).collect();
    let _handle = lease(&session, ns, forgotten);
    for number in 0..slots {
        assert!(matches!(session.retire(&object(ns, number)).expect("retire"), Retire::Draining), "{number}");
    }
    let until = Instant::now() + Duration::from_secs(5);
    while store(&session, &object(ns, slots), &payload(slots, BLOCK)) != "stored" {
        assert!(Instant::now() < until, "the forgotten copy's slot stays");
        std::thread::sleep(Duration::from_millis(5));
    }
    drop(views);
}

/// Symptom: a store evicts a living block while slots that only waited for their last reader stand by, because a hand
/// passes over them by what their access bytes said of the blocks that they held.
#[test]
fn slots_that_have_drained_go_before_any_block() {
    let scratch = Scratch::new();
    let (_region, session, ns, slots) = scene(&scratch);
    fill(&session, ns, 0..slots);
    let gone = slots / 4;
    let held: Vec<_> = (0..gone).map(|number| lease(&session, ns, number)).collect();
    for number in 0..gone {
        assert_eq!(session.retire(&object(ns, number)).expect("retire"), Retire::Draining);
    }
    for handle in held {
        assert_eq!(session.release(handle).expect("release"), Release::Released);
    }
    fill(&session, ns, slots..slots + gone);
    let lost: Vec<_> = (gone..slots + gone).filter(|number| !hit(&session, ns, *number)).collect();
    assert!(lost.is_empty(), "there was room for all; gone are {lost:?}");
}

/// Symptom: in a large region, where a store does not look through all of the bitmap each time, blocks are evicted though
/// there is room behind those of another session.
#[test]
fn room_far_away_is_found_before_a_block_goes() {
    let scratch = Scratch::new();
    let region = scratch.region(Wish::of_slots(16 << 20, 64));
    let (one, other) =
        (region.session("one", Role::Worker).expect("attach"), region.session("other", Role::Worker).expect("attach"));
    let ns = one.namespace(&namespace("t")).expect("namespace");
    let slots = u64::from(region.geometry().slot_count);
    assert!(slots > 3 * 4096, "more than a short look: {slots}");
    let lost = |stored: u64| (0..stored).filter(|number| !hit(&one, ns, *number)).count();
    // Each fills from a place of its own, in turns of thousands, until all is full.
    for number in 0..slots {
        let session = if number / 5000 % 2 == 0 { &one } else { &other };
        assert_eq!(store(session, &object(ns, number), &[7; 64]), "stored", "{number}");
    }
    assert_eq!(lost(slots), 0, "there was room for all");
    assert_eq!(region.usage().slots[0], 0, "and now there is none");
}

/// Symptom: `retire` says that a block is gone, and then it is there: an evictor had shut it, met a reader and put it back.
/// Whoever wants it retired takes the decision from the evictor.
#[test]
fn a_retire_is_not_undone_by_an_evictor_that_had_shut_the_block() {
    let scratch = Scratch::new();
    let (region, session, ns, slots) = scene(&scratch);
    let evictor = region.session("evictor", Role::Worker).expect("attach");
    assert_eq!(store(&session, &object(ns, 1), &payload(1, BLOCK)), "stored");
    let word_of = |slot: u64| region.inner().tables.slot(slot as u32);
    let slot = (0..slots).map(word_of).find(|slot| slot.word().is(SlotState::Ready)).expect("the block");
    let ready = slot.word();
    let shut = ready.to(SlotState::Retiring, Owner::session(evictor.index()));
    slot.swap(ready, shut).expect("shut by the evictor");
    assert_eq!(session.retire(&object(ns, 1)).expect("retire"), Retire::Retired);
    slot.swap(shut, shut.to(SlotState::Ready, Owner::NOBODY)).expect_err("the evictor puts nothing back");
    assert!(!hit(&session, ns, 1));
    assert_eq!(region.usage().slots[0], slots as u32, "the slot is free");
}

/// Symptom: a slot that was freed before its block was due, and is being written by somebody who dies, is passed over by the
/// hands of all others for a whole lifetime of blocks.
#[test]
fn a_slot_that_is_no_block_is_due() {
    let scratch = Scratch::new();
    let (region, session, ns, slots) = scene(&scratch);
    fill(&session, ns, 0..slots);
    // Read, so that the bytes are marked besides.
    let held: Vec<_> = (0..slots).map(|number| lease(&session, ns, number)).collect();
    for handle in held {
        assert_eq!(session.release(handle).expect("release"), Release::Released);
    }
    let tables = &region.inner().tables;
    let is_due = |slot: &u64| crate::evict::is_due(tables, *slot as u32);
    assert_eq!((0..slots).filter(is_due).count(), 0, "a block that was read is not due");
    for number in 0..slots {
        assert_eq!(session.retire(&object(ns, number)).expect("retire"), Retire::Retired);
    }
    assert_eq!((0..slots).filter(is_due).count() as u64, slots);
    let reserved = session.reserve(&object(ns, 0), BLOCK as u64, ReserveOptions::default()).expect("reserve").granted();
    assert_eq!((0..slots).filter(is_due).count() as u64, slots, "being written");
    reserved.expect("room").abort().expect("abort");
}
