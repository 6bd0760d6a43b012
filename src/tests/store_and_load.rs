//! One store, one load, and the answers around them.

use super::{Scratch, keeping, namespace, object, payload, store};
use crate::{Batch, Commit, Probe, Release, Reserve, ReserveOptions, Retire, Role, Verify, Why, Wish, WriteError};

#[test]
fn what_one_session_stores_another_loads() {
    let scratch = Scratch::new();
    let region = scratch.region(Wish::of_slots(4 << 20, 4096));
    let writer = region.session("a", Role::Worker).expect("attach");
    let reader = region.session("b", Role::Worker).expect("attach");
    assert_ne!(writer.index(), reader.index());
    assert!(reader.epoch() > writer.epoch());
    let ns = writer.namespace(&namespace("t")).expect("namespace");
    assert_eq!(reader.namespace(&namespace("t")).expect("namespace"), ns);
    for number in 0..500 {
        let object = object(ns, number);
        assert_eq!(reader.probe(&object).expect("probe"), Probe::Miss(Why::Absent));
        let bytes = payload(number, 1 + number as usize * 8 % 4096);
        assert_eq!(store(&writer, &object, &bytes), "stored");
        assert_eq!(reader.probe(&object).expect("probe"), Probe::Hit { len: bytes.len() as u32 });
        assert_eq!(store(&reader, &object, &bytes), "present");
        let leases = reader.acquire(&[object], Batch::Each).expect("acquire");
        assert_eq!(leases[0].as_ref().expect("hit").read(Verify::Always).expect("read"), bytes);
    }
    let usage = region.usage();
    assert_eq!(usage.slots[4], 500);
    assert_eq!(usage.slots.iter().sum::<u32>(), usage.capacity_slots);
    assert_eq!(reader.leases(), 0);
    for number in 0..500 {
        assert_eq!(reader.retire(&object(ns, number)).expect("retire"), Retire::Retired);
        assert_eq!(reader.probe(&object(ns, number)).expect("probe"), Probe::Miss(Why::Absent));
    }
    assert_eq!(region.usage().slots[0], usage.capacity_slots);
    writer.close().expect("nothing held");
    reader.close().expect("nothing held");
}

#[test]
fn a_full_region_refuses_and_keeps_its_hits() {
    let scratch = Scratch::new();
    let region = scratch.region(Wish::of_slots(4 << 20, 4096));
    let session = region.session_with("a", Role::Worker, keeping()).expect("attach");
    let ns = session.namespace(&namespace("t")).expect("namespace");
    let slots = u64::from(region.geometry().slot_count);
    let (mut stored, mut refused) = (0, 0);
    for number in 0..slots + 100 {
        match store(&session, &object(ns, number), &payload(number, 4096)) {
            "stored" => stored += 1,
            "no_space" => refused += 1,
            other => panic!("{other}"),
        }
    }
    assert_eq!((stored, refused), (slots, 100));
    for number in 0..slots {
        assert!(session.probe(&object(ns, number)).expect("probe").is_hit(), "{number}");
    }
    let all: Vec<_> = (0..slots + 100).map(|number| object(ns, number)).collect();
    assert_eq!(session.probe_prefix(&all).expect("probe") as u64, slots);
}

#[test]
fn pieces_in_any_order_make_the_same_block() {
    let scratch = Scratch::new();
    let region = scratch.region(Wish::of_slots(1 << 20, 4096));
    let session = region.session("a", Role::Worker).expect("attach");
    let ns = session.namespace(&namespace("t")).expect("namespace");
    let bytes = payload(7, 4096);
    let Reserve::Granted(mut reservation) =
        session.reserve(&object(ns, 7), 4096, ReserveOptions::default()).expect("reserve")
    else {
        panic!("not granted")
    };
    reservation.write_at(2048, &bytes[2048..]).expect("write");
    assert_eq!(reservation.commit().expect("commit"), Commit::Incomplete { written: 2048, len: 4096 });
    reservation.write_at(1000, &bytes[1000..3000]).expect("write");
    reservation.write_at(0, &bytes[..1000]).expect("write");
    assert!(matches!(reservation.write_at(4095, &[0, 0]), Err(WriteError::OutOfBounds { .. })));
    assert_eq!(reservation.commit().expect("commit"), Commit::Stored);
    assert_eq!(reservation.commit().expect("commit"), Commit::AlreadyStored);
    let token = reservation.token();
    drop(reservation);
    assert_eq!(session.resolve(&token).expect("resolve"), Commit::AlreadyStored);
    let leases = session.acquire(&[object(ns, 7)], Batch::AllOrNothing).expect("acquire");
    let lease = leases.into_iter().next().expect("one").expect("hit");
    assert_eq!(lease.view().expect("view").to_vec().expect("read"), bytes);
    let handle = lease.into_handle();
    assert_eq!(session.retire(&object(ns, 7)).expect("retire"), Retire::Draining);
    assert_eq!(session.release(handle).expect("release"), Release::Released);
    assert_eq!(session.release(handle).expect("release"), Release::NotHeld);
    assert_eq!(session.reclaim().expect("reclaim").freed_slots, 1);
    assert_eq!(session.resolve(&token).expect("resolve"), Commit::GenerationGone);
    assert_eq!(region.usage().allocated_bytes, 0);
}

#[test]
fn blocks_of_an_ended_namespace_become_space_again() {
    let scratch = Scratch::new();
    let region = scratch.region(Wish::of_slots(1 << 20, 4096));
    let session = region.session_with("a", Role::Worker, keeping()).expect("attach");
    let [old, other] = ["old", "other"].map(|tag| session.namespace(&namespace(tag)).expect("namespace"));
    let slots = u64::from(region.geometry().slot_count);
    assert_eq!(store(&session, &object(other, 0), &payload(0, 100)), "stored");
    for number in 1..slots {
        assert_eq!(store(&session, &object(old, number), &payload(number, 100)), "stored");
    }
    assert_eq!(store(&session, &object(other, slots), &payload(slots, 100)), "no_space");
    let leases = session.acquire(&[object(old, 1)], Batch::Each).expect("acquire");
    let handle = leases.into_iter().next().expect("one").expect("hit").into_handle();
    assert!(session.invalidate(old).expect("invalidate"));
    // Nobody has the old id to retire them by: whoever needs the space does.
    let report = session.reclaim().expect("reclaim");
    assert_eq!((report.freed_slots, report.draining_slots), (slots as u32 - 2, 1), "one is being read");
    assert_eq!(region.usage().slots[0], slots as u32 - 2);
    assert!(session.probe(&object(other, 0)).expect("probe").is_hit());
    assert_eq!(session.release(handle).expect("release"), Release::Released);
    assert_eq!(session.reclaim().expect("reclaim").freed_slots, 1);
    let new = session.namespace(&namespace("old")).expect("namespace");
    for number in 1..slots {
        assert_eq!(store(&session, &object(new, number), &payload(number, 100)), "stored", "{number}");
    }
    assert!(session.probe(&object(other, 0)).expect("probe").is_hit());
    assert!(session.probe(&object(new, 1)).expect("probe").is_hit());
}
