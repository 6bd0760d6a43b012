//! The read path stores to no line that another session reads or writes.
//!
//! Every page of the mapping except the session's own area is made read-only, then blocks that were read before are
//! probed, acquired, copied and released. A store anywhere else ends the test with a signal.

use super::{Scratch, namespace, object, payload, store};
use crate::region::Inner;
use crate::{Batch, Role, Session, Verify, Wish};

/// Makes everything but the session's own area read-only, or all of it writable again.
fn protect(inner: &Inner, session: &Session, read_only: bool) {
    let mapping = inner.tables.mapping();
    let area_bytes = inner.geometry().session_area_bytes as usize;
    let area = core::ptr::from_ref(inner.tables.area(session.index())) as usize - mapping.as_ptr() as usize;
    assert_eq!(area % 4096, 0, "session areas start on pages");
    let flags = if read_only { libc::PROT_READ } else { libc::PROT_READ | libc::PROT_WRITE };
    for range in [0..area, area + area_bytes..mapping.len()] {
        // SAFETY: the range lies inside the mapping.
        let start = unsafe { mapping.as_ptr().add(range.start) };
        // SAFETY: a page range of this test's own mapping; only its protection changes.
        let changed = unsafe { libc::mprotect(start.cast(), range.len(), flags) };
        assert_eq!(changed, 0, "{}", std::io::Error::last_os_error());
    }
}

#[test]
fn reading_what_was_read_before_stores_only_in_the_readers_own_area() {
    let scratch = Scratch::new();
    let region = scratch.region(Wish::of_slots(4 << 20, 4096));
    let session = region.session("reader", Role::Worker).expect("attach");
    let ns = session.namespace(&namespace("t")).expect("namespace");
    let objects: Vec<_> = (0..100).map(|number| object(ns, number)).collect();
    for (number, object) in (0u64..).zip(&objects) {
        assert_eq!(store(&session, object, &payload(number, 4096)), "stored");
    }
    // The first reading sets the access bytes.
    drop(session.acquire(&objects, Batch::AllOrNothing).expect("acquire"));

    let absent: Vec<_> = (1 << 40..(1 << 40) + 100).map(|number| object(ns, number)).collect();

    protect(region.inner(), &session, true);
    assert!(session.probe(&objects[0]).expect("probe").is_hit());
    assert!(!session.probe(&absent[0]).expect("probe").is_hit());
    assert_eq!(session.probe_prefix(&objects).expect("probe"), objects.len());
    assert_eq!(session.probe_prefix(&absent).expect("probe"), 0);
    assert!(session.probe_batch(&objects).expect("probe").iter().all(crate::Probe::is_hit));
    assert!(!session.probe_batch(&absent).expect("probe").iter().any(crate::Probe::is_hit));
    for _ in 0..2 {
        let leases = session.acquire(&objects, Batch::AllOrNothing).expect("acquire");
        for (number, lease) in (0u64..).zip(leases) {
            let lease = lease.expect("hit");
            assert_eq!(lease.read(Verify::Always).expect("read"), payload(number, 4096));
            match number % 3 {
                0 => assert_eq!(lease.view().expect("view").len(), 4096),
                1 => {
                    let handle = lease.into_handle();
                    assert_eq!(session.release(handle).expect("release"), crate::Release::Released);
                    assert_eq!(session.release(handle).expect("release"), crate::Release::NotHeld);
                }
                _ => assert_eq!(session.release_batch(&[lease.into_handle()]).expect("release").len(), 1),
            }
        }
    }
    let misses = session.acquire(&absent, Batch::Each).expect("acquire");
    assert!(misses.iter().all(|miss| matches!(miss, Err(crate::Why::Absent))));
    drop(misses);
    // A batch with a hole gives back what it had.
    let holed = [objects[0], absent[0], objects[1]];
    assert!(session.acquire(&holed, Batch::AllOrNothing).expect("acquire").iter().all(Result::is_err));
    assert_eq!(session.leases(), 0);
    protect(region.inner(), &session, false);
    session.close().expect("nothing held");
}
