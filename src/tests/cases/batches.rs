//! Many answers at once, handles that are made up.
//!
//! * Symptom: answers slip by one place; what an all-or-nothing request could not have stays protected for ever; a second
//!   or a made-up release ends somebody else's protection.
//! * Cause: misses are skipped in one list and not in the other; the early exit forgets what it held; leases are counted
//!   instead of named.

use super::Random;
use crate::tests::{Scratch, namespace, object, payload, store};
use crate::{Batch, LeaseHandle, Probe, Release, Reserve, ReserveOptions, Retire, Role, Token, Verify, Why, Wish};

const ITEMS: u64 = 512;

#[test]
fn a_batch_of_512_has_every_answer_in_its_place() {
    let mut random = Random::new();
    let scratch = Scratch::new();
    let wish = Wish { session_area_bytes: Some(16 << 10), ..Wish::of_slots(4 << 20, 1024) };
    let region = scratch.region(wish);
    let session = region.session("a", Role::Worker).expect("attach");
    let other = region.session("b", Role::Worker).expect("attach");
    let ns = session.namespace(&namespace("t")).expect("namespace");
    let gone = session.namespace(&namespace("gone")).expect("namespace");
    // What each place of the batch is.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    enum Kind {
        Stored,
        Absent,
        Writing,
        Retired,
        Invalidated,
    }
    let kinds: Vec<Kind> = (0..ITEMS)
        .map(|_| match random.next() % 8 {
            0..4 => Kind::Stored,
            4 => Kind::Absent,
            5 => Kind::Writing,
            6 => Kind::Retired,
            _ => Kind::Invalidated,
        })
        .collect();
    let len = |number: u64| 1 + number as usize % 1024;
    let mut writing = Vec::new();
    let objects: Vec<_> = (0..ITEMS)
        .map(|number| {
            let kind = kinds[number as usize];
            let object = object(if kind == Kind::Invalidated { gone } else { ns }, number);
            match kind {
                Kind::Absent => {}
                Kind::Writing => {
                    let reserved = other.reserve(&object, len(number) as u64, ReserveOptions::default());
                    let Reserve::Granted(reservation) = reserved.expect("reserve") else { panic!("{number}") };
                    writing.push(reservation);
                }
                _ => assert_eq!(store(&other, &object, &payload(number, len(number))), "stored"),
            }
            if kind == Kind::Retired {
                assert_eq!(other.retire(&object).expect("retire"), Retire::Retired);
            }
            object
        })
        .collect();
    assert!(other.invalidate(gone).expect("invalidate"));

    let expected = |number: usize| match kinds[number] {
        Kind::Stored => Ok(len(number as u64) as u32),
        Kind::Absent | Kind::Retired => Err(Why::Absent),
        Kind::Writing => Err(Why::NotReady),
        Kind::Invalidated => Err(Why::Invalidated),
    };
    for (number, probe) in session.probe_batch(&objects).expect("batch").into_iter().enumerate() {
        let answer = match probe {
            Probe::Hit { len } => Ok(len),
            Probe::Miss(why) => Err(why),
        };
        assert_eq!(answer, expected(number), "{number}: {:?}", kinds[number]);
    }
    let leases = session.acquire(&objects, Batch::Each).expect("batch");
    assert_eq!(leases.len(), objects.len());
    for (number, lease) in leases.iter().enumerate() {
        let answer = lease.as_ref().map(crate::Lease::len).map_err(|why| *why);
        assert_eq!(answer, expected(number), "{number}: {:?}", kinds[number]);
        if let Ok(lease) = lease {
            assert_eq!(*lease.object(), objects[number]);
            let bytes = lease.read(Verify::Always).expect("read");
            assert!(bytes == payload(number as u64, len(number as u64)), "{number}");
        }
    }
    let stored = kinds.iter().filter(|kind| **kind == Kind::Stored).count();
    assert_eq!(session.leases() as usize, stored);
    drop(leases);
    assert_eq!(session.leases(), 0);

    // All or nothing: with one missing, each that was there says that a partner is missing, and nothing stays held.
    let leases = session.acquire(&objects, Batch::AllOrNothing).expect("batch");
    for (number, lease) in leases.iter().enumerate() {
        let wanted = expected(number).err().unwrap_or(Why::PartnerMissing);
        assert_eq!(lease.as_ref().map(crate::Lease::len).map_err(|why| *why), Err(wanted), "{number}");
    }
    assert_eq!(session.leases(), 0, "nothing stays held");
    let present: Vec<_> =
        objects.iter().zip(&kinds).filter(|(_, kind)| **kind == Kind::Stored).map(|(object, _)| *object).collect();
    let leases = session.acquire(&present, Batch::AllOrNothing).expect("batch");
    assert!(leases.iter().all(Result::is_ok));
    assert_eq!(session.leases() as usize, present.len());
    drop(leases);
    // So all of them can go at once.
    for (at, retired) in other.retire_batch(&present).expect("batch").into_iter().enumerate() {
        assert_eq!(retired, Retire::Retired, "{at}");
    }
    // The run of leading keys ends at the first that is not ready.
    let run = kinds.iter().take_while(|kind| **kind == Kind::Stored).count();
    assert!(run < objects.len());
    drop(writing);
    let usage = region.usage();
    assert_eq!(usage.slots.iter().sum::<u32>(), usage.capacity_slots);
    assert_eq!(usage.slots[3] + usage.slots[2] + usage.slots[1], 0, "{usage:?}");
}

#[test]
fn a_lease_table_that_is_full_says_so_in_the_right_places() {
    let scratch = Scratch::new();
    let region = scratch.region(Wish::of_slots(4 << 20, 1024));
    let session = region.session("a", Role::Worker).expect("attach");
    let ns = session.namespace(&namespace("t")).expect("namespace");
    let cells = u64::from(region.geometry().lease_cells);
    for number in 0..cells + 10 {
        assert_eq!(store(&session, &object(ns, number), &payload(number, 64)), "stored");
    }
    let all: Vec<_> = (0..cells + 10).map(|number| object(ns, number)).collect();
    let leases = session.acquire(&all, Batch::Each).expect("batch");
    for (number, lease) in leases.iter().enumerate() {
        match lease {
            Ok(lease) => {
                assert!((number as u64) < cells);
                assert!(lease.read(Verify::Always).expect("read") == payload(number as u64, 64));
            }
            Err(why) => assert_eq!((*why, number as u64 >= cells), (Why::LeasesFull, true), "{number}"),
        }
    }
    assert_eq!(u64::from(session.leases()), cells);
    // All or nothing with no cell left: nothing new is held, nothing old is lost.
    let refused = session.acquire(&all[..2], Batch::AllOrNothing).expect("batch");
    assert!(refused.iter().all(Result::is_err));
    assert_eq!(u64::from(session.leases()), cells);
    drop(leases);
    let again = session.acquire(&all[10..], Batch::AllOrNothing).expect("batch");
    assert!(again.iter().all(Result::is_ok));
}

#[test]
fn made_up_handles_and_tokens_change_nothing() {
    let mut random = Random::new();
    let scratch = Scratch::new();
    let region = scratch.region(Wish::of_slots(1 << 20, 1024));
    let session = region.session("a", Role::Worker).expect("attach");
    let other = region.session("b", Role::Worker).expect("attach");
    let ns = session.namespace(&namespace("t")).expect("namespace");
    for number in 0..20 {
        assert_eq!(store(&session, &object(ns, number), &payload(number, 64)), "stored");
    }
    let all: Vec<_> = (0..20).map(|number| object(ns, number)).collect();
    let leases = session.acquire(&all, Batch::AllOrNothing).expect("batch");
    let handles: Vec<LeaseHandle> = leases.iter().map(|lease| lease.as_ref().expect("hit").handle()).collect();
    let before = region.usage();
    for handle in &handles {
        assert_eq!(other.release(*handle).expect("release"), Release::NotHeld, "another session's");
    }
    for _ in 0..20_000 {
        let mut bytes = handles[random.next() as usize % handles.len()].to_bytes();
        // One to four bytes of a good handle, anywhere.
        for _ in 0..1 + random.next() % 4 {
            bytes[random.next() as usize % bytes.len()] ^= (random.next() | 1) as u8;
        }
        let forged = LeaseHandle::from_bytes(&bytes);
        if !handles.contains(&forged) {
            assert_eq!(session.release(forged).expect("release"), Release::NotHeld, "{forged:?}");
        }
        let mut bytes = [0; Token::BYTES];
        bytes[..16].copy_from_slice(&region.id());
        bytes[16..20].copy_from_slice(&((random.next() % 2000) as u32).to_le_bytes());
        bytes[20..].copy_from_slice(&(random.next() % 8).to_le_bytes());
        session.resolve(&Token::from_bytes(&bytes)).expect("any token has an answer");
    }
    assert_eq!(session.leases(), 20);
    assert_eq!(region.usage(), before);
    for object in &all {
        assert_eq!(other.retire(object).expect("retire"), Retire::Draining, "still protected");
    }
    for handle in &handles {
        assert_eq!(session.release(*handle).expect("release"), Release::Released);
        assert_eq!(session.release(*handle).expect("release"), Release::NotHeld);
    }
    drop(leases);
    assert_eq!(session.leases(), 0, "never below");
    assert_eq!(other.reclaim().expect("reclaim").freed_slots, 20);
}
