//! Keys that were never stored.
//!
//! * Symptom: a lookup hits although nobody stored the key, and foreign bytes are served.
//! * Cause: tags or hashes are believed where the whole key has to be compared; one in some millions agrees.

use super::Random;
use crate::tests::{Scratch, namespace, payload, store};
use crate::{ObjectId, Role, Wish};

#[test]
fn ten_million_keys_that_were_never_stored_all_miss() {
    const PROBES: u64 = 10_000_000;
    const THREADS: u64 = 2;
    const BATCH: usize = 1000;
    let mut random = Random::new();
    let scratch = Scratch::new();
    let region = scratch.region(Wish::of_slots(4 << 20, 64));
    let session = region.session("stores", Role::Worker).expect("attach");
    let ns = session.namespace(&namespace("misses")).expect("namespace");
    let slots = u64::from(region.geometry().slot_count);
    // Full, or as full as crowded buckets allow.
    let mut stored = Vec::new();
    while region.usage().slots[0] > 0 && (stored.len() as u64) < 2 * slots {
        let object = ObjectId::new(ns, random.prefix());
        let outcome = store(&session, &object, &payload(stored.len() as u64, 64));
        assert_eq!(outcome, "stored");
        stored.push(object);
        if stored.len() as u64 == slots {
            break;
        }
    }
    let ready = region.usage().slots[4];
    assert!(u64::from(ready) * 100 > slots * 95, "{ready} of {slots} slots are in use");
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (mut random, session, stored) = (Random(random.0 ^ (thread + 1)), &session, &stored);
            scope.spawn(move || {
                let mut left = PROBES / THREADS;
                let mut batch = Vec::with_capacity(BATCH);
                while left > 0 {
                    batch.clear();
                    for _ in 0..BATCH.min(left as usize) {
                        let number = random.next();
                        let prefix = if number.is_multiple_of(2) {
                            random.prefix()
                        } else {
                            // A stored key with one bit changed: as near as a wrong key can be.
                            let mut prefix = stored[number as usize % stored.len()].prefix;
                            let bit = random.next() as usize % 256;
                            prefix[bit / 8] ^= 1 << (bit % 8);
                            prefix
                        };
                        batch.push(ObjectId::new(ns, prefix));
                    }
                    let probes = session.probe_batch(&batch).expect("probe");
                    assert!(!probes.iter().any(crate::Probe::is_hit), "{batch:?}");
                    left -= batch.len() as u64;
                }
            });
        }
    });
    // The probes do hit where there is something.
    let hits = session.probe_batch(&stored).expect("probe").iter().filter(|probe| probe.is_hit()).count();
    assert_eq!(hits as u32, ready);
}
