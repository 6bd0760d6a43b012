//! Stores of pools in which a replica or a whole pool fails: the others go on.

use std::os::unix::fs::FileExt;

use super::pools::{SLOT, block, get, pool, pool_of, put, state, two};
use super::{Scratch, namespace, payload};
use crate::{
    Batch, BlockId, CallError, Format, LoadError, OpenOptions, PoolState, Reason, Region, Replicas, Role, Store,
    StoreError, Verify, Why, Wish,
};

#[test]
fn a_damaged_replica_falls_to_the_other_pools() {
    let scratch = Scratch::new();
    let (store, ns) = two(&scratch, ["cpu", "cxl"], ["cpu", "cxl"]);
    for number in [1, 2] {
        assert_eq!(put(&store, &ns, number, Replicas::One), "cpu");
    }
    assert_eq!(put(&store, &ns, 1, Replicas::Another), "cxl");
    let damage = |number: u64| {
        let lease = store.acquire(&ns, &[block(number)], Batch::Each).expect("acquire").remove(0).expect("a hit");
        assert_eq!(lease.pool(), "cpu");
        let (offset, _) =
            store.pool("cpu").expect("a pool").region().geometry().payload_of(lease.replica().0).expect("a slot");
        let file = std::fs::OpenOptions::new().write(true).open(scratch.path("cpu")).expect("open");
        file.write_all_at(&[0xA5; 64], offset + 1000).expect("write");
        lease
    };
    let mut lease = damage(1);
    assert_eq!(lease.read(Verify::Always).expect("the other replica"), payload(1, SLOT as usize));
    assert_eq!(lease.pool(), "cxl");
    drop(lease);
    assert_eq!(get(&store, &ns, 1), "cxl", "the damaged one is quarantined");
    let mut lease = damage(2);
    assert!(matches!(lease.read(Verify::Always), Err(LoadError::Damaged { .. })), "there is no other");
    drop(lease);
    assert!(!store.probe(&ns, &block(2)).expect("probe").is_hit());
    assert!(store.pools().all(|pool| pool.session().leases() == 0));
}

#[test]
fn an_expired_lease_falls_to_the_other_pool() {
    let scratch = Scratch::new();
    let wish = Wish { copy_lease_ms: 10, ..Wish::of_slots(1 << 20, SLOT) };
    let store =
        Store::builder().pool(pool_of(&scratch, "cpu", wish)).pool(pool(&scratch, "cxl")).build().expect("two pools");
    let ns = store.namespace(&namespace("t")).expect("registered");
    assert_eq!(put(&store, &ns, 1, Replicas::Another), "cpu");
    assert_eq!(put(&store, &ns, 1, Replicas::Another), "cxl");
    let mut lease = store.acquire(&ns, &[block(1)], Batch::Each).expect("acquire").remove(0).expect("a hit");
    let other = store.pool("cpu").expect("a pool").region().session("other", Role::Worker).expect("attach");
    let id = other.namespace(&namespace("t")).expect("registered");
    other.retire(&super::object(id, 1)).expect("retire");
    let start = std::time::Instant::now();
    while other.reclaim().expect("reclaim").freed_slots == 0 {
        assert!(start.elapsed().as_secs() < 10, "the lease never lapses");
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    assert_eq!(lease.read(Verify::Always).expect("the other replica"), payload(1, SLOT as usize));
    assert_eq!(lease.pool(), "cxl");
}

/// A pool that ends in each of the ways that a test can bring about; the other goes on.
#[test]
fn a_pool_that_is_lost_costs_its_own_blocks_only() {
    type End = fn(&Scratch, &Store);
    let end: [(&str, End); 3] = [
        ("replaced", |scratch, _| {
            let options = OpenOptions::path(scratch.path("cpu")).format(Format::Replace);
            drop(Region::open(options.wish(Wish::of_slots(1 << 20, SLOT))).expect("replaced"));
        }),
        ("changed size", |scratch, _| {
            std::fs::OpenOptions::new()
                .write(true)
                .open(scratch.path("cpu"))
                .and_then(|file| file.set_len(512 << 10))
                .expect("cut");
        }),
        ("fenced", |_, store| {
            let pool = store.pool("cpu").expect("a pool");
            let other = pool.region().session("operator", Role::Worker).expect("attach");
            assert!(other.fence(pool.session().index(), pool.session().epoch()).expect("fence"));
        }),
    ];
    for (said, end) in end {
        let scratch = Scratch::new();
        let (store, ns) = two(&scratch, ["cpu", "cxl"], ["cpu", "cxl"]);
        for number in 0..20 {
            assert_eq!(put(&store, &ns, number, Replicas::One), "cpu");
            if number < 10 {
                assert_eq!(put(&store, &ns, number, Replicas::Another), "cxl");
            }
        }
        assert_eq!(store.heartbeat().expect("heartbeat"), 2);
        end(&scratch, &store);
        // The cut leaves the tables, and so what is known; bytes are refused.
        let request: Vec<BlockId> = (0..20).map(block).collect();
        let leases = store.acquire(&ns, &request, Batch::Each).expect("acquire");
        for (number, lease) in (0..).zip(leases) {
            match lease {
                Ok(mut lease) if number < 10 => {
                    assert_eq!(lease.pool(), "cxl", "{said}");
                    assert_eq!(lease.read(Verify::Always).expect("read"), payload(number, SLOT as usize));
                }
                Err(miss) if number >= 10 => {
                    assert!(matches!(miss.pools[0].reason, Reason::Failed(_)), "{miss:?}");
                    assert_eq!(miss.pools[1].reason, Reason::Why(Why::Absent));
                }
                other => panic!("{said}: {number}: {other:?}"),
            }
        }
        match state(&store, "cpu") {
            PoolState::Out(error) => assert!(error.to_string().contains(said), "{error}"),
            other => panic!("{said}: {other:?}"),
        }
        assert_eq!(state(&store, "cxl"), PoolState::InUse);
        assert!(store.health()[0].errors > 0 && store.health()[1].errors == 0);
        assert_eq!(store.probe_prefix(&ns, &request).expect("probe"), 10, "{said}");
        assert_eq!(put(&store, &ns, 15, Replicas::One), "cxl", "{said}: stored again where it can be");
        assert_eq!(store.heartbeat().expect("heartbeat"), 1, "{said}");
        assert!(matches!(store.usage().expect("usage")[1].usage, Ok(usage) if usage.slots[4] == 11));
        let again = store.namespace(&namespace("u")).expect("registered in the other");
        assert_eq!(again.left_out()[0].0, "cpu");
    }
}

#[test]
fn without_any_pool_nothing_is_known_and_that_is_no_miss() {
    let scratch = Scratch::new();
    let store = Store::builder().pool(pool(&scratch, "cpu")).build().expect("one pool");
    let ns = store.namespace(&namespace("t")).expect("registered");
    assert_eq!(put(&store, &ns, 1, Replicas::One), "cpu");
    let pool = store.pool("cpu").expect("a pool");
    let other = pool.region().session("operator", Role::Worker).expect("attach");
    assert!(other.fence(pool.session().index(), pool.session().epoch()).expect("fence"));
    for _ in 0..2 {
        let error = store.probe_prefix(&ns, &[block(1)]).expect_err("nothing is known");
        let StoreError::NoPool { order: "read", pools } = &error else { panic!("{error}") };
        assert!(matches!(pools[0].reason, Reason::Failed(CallError::Fenced { .. })), "{error}");
    }
    assert!(matches!(store.probe(&ns, &block(1)), Err(StoreError::NoPool { .. })));
    assert!(matches!(store.acquire(&ns, &[block(1)], Batch::Each), Err(StoreError::NoPool { .. })));
    assert_eq!(put(&store, &ns, 2, Replicas::One), "refused");
    assert!(store.namespace(&namespace("u")).is_err());
}

/// A store in a forked child: every call says so, and nothing is touched.
#[test]
fn a_forked_child_is_told() {
    let scratch = Scratch::new();
    let (store, ns) = two(&scratch, ["cpu", "cxl"], ["cpu", "cxl"]);
    assert_eq!(put(&store, &ns, 1, Replicas::One), "cpu");
    let mut lease = store.acquire(&ns, &[block(1)], Batch::Each).expect("acquire").remove(0).expect("a hit");
    // SAFETY: the child asks the store, counts and leaves by `_exit`; it takes no lock that another thread may hold.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let told = [
            matches!(store.probe(&ns, &block(1)), Err(StoreError::ForeignProcess)),
            matches!(store.probe_prefix(&ns, &[block(1)]), Err(StoreError::ForeignProcess)),
            matches!(store.acquire(&ns, &[block(1)], Batch::Each), Err(StoreError::ForeignProcess)),
            matches!(store.reserve(&ns, &block(2), SLOT, Default::default()), Err(StoreError::ForeignProcess)),
            matches!(store.heartbeat(), Err(StoreError::ForeignProcess)),
            matches!(store.usage(), Err(StoreError::ForeignProcess)),
            matches!(store.invalidate(&ns), Err(StoreError::ForeignProcess)),
            store.health().iter().all(|health| health.state == PoolState::Out(CallError::ForeignProcess)),
        ];
        drop(lease);
        drop(store);
        let silent = told.iter().filter(|told| !**told).count();
        // SAFETY: ends the child without running what belongs to the parent.
        unsafe { libc::_exit(silent as i32) };
    }
    let mut status = 0;
    // SAFETY: waits for the child made above; the status is this frame's.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "{status:#x}");
    assert_eq!(lease.read(Verify::Always).expect("the parent's lease holds"), payload(1, SLOT as usize));
    assert_eq!(store.heartbeat().expect("heartbeat"), 2);
}
