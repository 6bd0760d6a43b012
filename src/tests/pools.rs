//! Stores of pools: orders, spill, replicas, scopes, budgets. Pools that fail: `pools_that_fail.rs`.

use super::{Scratch, namespace, payload};
use crate::{
    Batch, BlockId, Budget, BuildError, Evict, Format, Ineligible, LoadError, OpenOptions, Pool, PoolState, Reason,
    Region, Replicas, Role, Scope, SessionOptions, Store, StoreError, StoreNamespace, StoreOptions, StoreProbe,
    StoreReserve, Verify, Why, Wish,
};

pub(super) const SLOT: u64 = 4096;

/// Refuses when full, so that the next pool has its turn.
pub(super) fn keep() -> SessionOptions {
    SessionOptions { evict: Evict::Never, ..SessionOptions::default() }
}

/// A region of so many bytes in 4 KiB slots, opened as a pool of the same name.
pub(super) fn pool_of(scratch: &Scratch, name: &str, wish: Wish) -> Pool {
    let options = OpenOptions::path(scratch.path(name)).format(Format::IfAbsent).wish(wish);
    Pool::open(name, options, |region| region.session_with(name, Role::Worker, keep())).expect("a pool in memory")
}

pub(super) fn pool(scratch: &Scratch, name: &str) -> Pool {
    pool_of(scratch, name, Wish::of_slots(1 << 20, SLOT))
}

pub(super) fn two(scratch: &Scratch, write: [&str; 2], read: [&str; 2]) -> (Store, StoreNamespace) {
    let builder = Store::builder().pool(pool(scratch, "cpu")).pool(pool(scratch, "cxl"));
    let store = builder.write_order(write).read_order(read).build().expect("two pools");
    let ns = store.namespace(&namespace("t")).expect("registered");
    (store, ns)
}

pub(super) fn block(number: u64) -> BlockId {
    let mut prefix = [0; 32];
    prefix[..8].copy_from_slice(&number.to_le_bytes());
    BlockId::new(prefix)
}

/// Stores the block of a number; the pool that it went to, or what was answered.
pub(super) fn put(store: &Store, ns: &StoreNamespace, number: u64, replicas: Replicas) -> String {
    let options = StoreOptions { replicas, ..StoreOptions::default() };
    match store.reserve(ns, &block(number), SLOT, options).expect("a store in order") {
        StoreReserve::Granted(mut slot) => {
            slot.write_at(0, &payload(number, SLOT as usize)).expect("within the slot");
            assert_eq!(slot.commit().expect("commit").code(), "stored");
            slot.pool().to_owned()
        }
        other => other.code().to_owned(),
    }
}

/// Reads a block, which has to be the one stored; the pool that it came from.
pub(super) fn get(store: &Store, ns: &StoreNamespace, number: u64) -> String {
    let lease = store.acquire(ns, &[block(number)], Batch::Each).expect("acquire").remove(0);
    let mut lease = lease.expect("a hit");
    assert_eq!(lease.read(Verify::Always).expect("read"), payload(number, SLOT as usize));
    lease.pool().to_owned()
}

pub(super) fn slots(store: &Store, name: &str) -> u64 {
    store.pool(name).expect("a pool").region().geometry().slot_count.into()
}

pub(super) fn state(store: &Store, name: &str) -> PoolState {
    store.health().into_iter().find(|health| health.name == name).expect("a pool").state
}

#[test]
fn names_and_orders_are_checked() {
    let scratch = Scratch::new();
    let build = |write: &[&str], read: &[&str]| {
        let builder = Store::builder().pool(pool(&scratch, "cpu")).pool(pool(&scratch, "cxl"));
        builder.write_order(write.iter().copied()).read_order(read.iter().copied()).build().expect_err("refused")
    };
    let error = build(&["cpu", "cxl"], &["cpu", "ssd"]);
    assert!(matches!(&error, BuildError::UnknownPool { order: "read", name, .. } if name == "ssd"), "{error}");
    assert!(error.to_string().contains("cpu, cxl"), "{error}");
    let error = build(&["cpu", "cxl", "cpu"], &["cpu"]);
    assert!(matches!(&error, BuildError::Repeated { order: "write", name } if name == "cpu"), "{error}");
    assert!(matches!(build(&[], &["cpu", "cxl"]), BuildError::EmptyOrder { order: "write", .. }));
    assert!(matches!(build(&["cpu", "cxl"], &[]), BuildError::EmptyOrder { order: "read", .. }));
    assert!(matches!(build(&["cpu"], &["cpu"]), BuildError::Unused { name } if name == "cxl"));
    assert!(matches!(Store::builder().build(), Err(BuildError::EmptyOrder { .. })));
    let same = Store::builder().pool(pool(&scratch, "cpu")).pool(pool(&scratch, "cpu")).build();
    assert!(matches!(same, Err(BuildError::SameName { name }) if name == "cpu"));
    // One region under two names, by two paths.
    let region = pool(&scratch, "cpu").region().id();
    std::os::unix::fs::symlink(scratch.path("cpu"), scratch.path("alias")).expect("link");
    let error =
        Store::builder().pool(pool(&scratch, "cpu")).pool(pool(&scratch, "alias")).build().expect_err("refused");
    assert_eq!(
        error,
        BuildError::SameRegion { first: "cpu".into(), second: "alias".into(), region_id: u128::from_be_bytes(region) }
    );
    let named = |name: &str| {
        let options = OpenOptions::path(scratch.path("cpu"));
        Pool::open(name, options, |region| region.session("e", Role::Worker)).err().map(|error| error.to_string())
    };
    assert!(named("").expect("refused").contains("0 bytes"));
    assert!(named("a\nb").expect("refused").contains("control"));
    assert!(named(&"x".repeat(65)).expect("refused").contains("65 bytes"));
}

#[test]
fn stores_follow_one_order_and_reads_the_other() {
    for (write, read) in [
        (["cpu", "cxl"], ["cpu", "cxl"]),
        (["cpu", "cxl"], ["cxl", "cpu"]),
        (["cxl", "cpu"], ["cpu", "cxl"]),
        (["cxl", "cpu"], ["cxl", "cpu"]),
    ] {
        let scratch = Scratch::new();
        let (store, ns) = two(&scratch, write, read);
        assert!(store.write_order().eq(write) && store.read_order().eq(read));
        let capacity = slots(&store, write[0]);
        for number in 0..capacity {
            assert_eq!(put(&store, &ns, number, Replicas::One), write[0], "{number}");
        }
        assert_eq!(put(&store, &ns, capacity, Replicas::One), write[1], "the first is full");
        assert_eq!(get(&store, &ns, 0), write[0], "the only replica");
        // A replica in each: the read order decides.
        assert_eq!(put(&store, &ns, 0, Replicas::Another), write[1]);
        assert_eq!(get(&store, &ns, 0), read[0]);
        match store.probe(&ns, &block(0)).expect("probe") {
            StoreProbe::Hit { len, pool } => assert_eq!((u64::from(len), pool.as_str()), (SLOT, read[0])),
            miss => panic!("{miss:?}"),
        }
    }
}

#[test]
fn a_prefix_split_over_two_pools_restores_exactly() {
    let scratch = Scratch::new();
    let (store, ns) = two(&scratch, ["cpu", "cxl"], ["cxl", "cpu"]);
    let (cpu, cxl) = (slots(&store, "cpu"), slots(&store, "cxl"));
    let total = cpu + cxl - 10;
    let mut by_pool = std::collections::BTreeMap::new();
    for number in 0..total {
        *by_pool.entry(put(&store, &ns, number, Replicas::One)).or_insert(0) += 1;
    }
    assert_eq!(by_pool, [("cpu".to_owned(), cpu), ("cxl".to_owned(), cxl - 10)].into());
    let request: Vec<BlockId> = (0..total + 5).map(block).collect();
    assert_eq!(store.probe_prefix(&ns, &request).expect("probe") as u64, total);
    assert_eq!(store.probe_prefix(&ns, &[]).expect("probe"), 0);
    let leases = store.acquire(&ns, &request[..total as usize], Batch::AllOrNothing).expect("acquire");
    for (number, lease) in (0..total).zip(leases) {
        let mut lease = lease.expect("a hit");
        assert_eq!(lease.pool(), if number < cpu { "cpu" } else { "cxl" });
        assert_eq!(lease.read(Verify::Always).expect("read"), payload(number, SLOT as usize), "{number}");
    }
    // A hole in one pool is filled by the other, and a hole in both ends the run.
    assert_eq!(store.retire(&ns, &block(100)).expect("retire").len(), 2);
    assert_eq!(store.probe_prefix(&ns, &request).expect("probe"), 100);
    let missing = store.acquire(&ns, &request[..200], Batch::AllOrNothing).expect("acquire");
    for (at, answer) in missing.iter().enumerate() {
        let miss = answer.as_ref().expect_err("one is missing");
        assert_eq!(miss.why, if at == 100 { Why::Absent } else { Why::PartnerMissing });
    }
    assert!(store.pools().all(|pool| pool.session().leases() == 0), "nothing is held");
    assert_eq!(put(&store, &ns, 100, Replicas::One), "cpu");
    assert_eq!(store.probe_prefix(&ns, &request).expect("probe") as u64, total);
}

#[test]
fn a_prefix_that_changes_pools_at_every_block_is_one_run() {
    let scratch = Scratch::new();
    let (store, ns) = two(&scratch, ["cpu", "cxl"], ["cpu", "cxl"]);
    let (odd, even) = (["cpu"], ["cxl"]);
    for number in 0..300 {
        let order = if number % 2 == 0 { even } else { odd };
        let one = Store::builder().pool(pool(&scratch, order[0])).build().expect("one pool");
        let ns = one.namespace(&namespace("t")).expect("registered");
        assert_eq!(put(&one, &ns, number, Replicas::One), order[0]);
    }
    for length in [1, 2, 63, 64, 65, 128, 299, 300, 310] {
        let request: Vec<BlockId> = (0..length).map(block).collect();
        assert_eq!(store.probe_prefix(&ns, &request).expect("probe") as u64, length.min(300), "{length}");
    }
}

#[test]
fn full_pools_skip_the_store_and_keep_their_hits() {
    let scratch = Scratch::new();
    let (store, ns) = two(&scratch, ["cpu", "cxl"], ["cpu", "cxl"]);
    let capacity = slots(&store, "cpu") + slots(&store, "cxl");
    let leases = store.acquire(&ns, &[], Batch::Each).expect("nothing asked");
    assert!(leases.is_empty());
    let (mut stored, mut refused) = (0, 0);
    for number in 0..capacity + 50 {
        let answer = put(&store, &ns, number, Replicas::One);
        let hit = store.probe(&ns, &block(number)).expect("probe").is_hit();
        match answer.as_str() {
            "cpu" | "cxl" => stored += 1,
            "refused" => refused += 1,
            other => panic!("{other}"),
        }
        assert_eq!(hit, answer != "refused", "success is what a look right after sees: {number}");
    }
    assert_eq!((stored, refused), (capacity, 50));
    let all: Vec<BlockId> = (0..capacity + 50).map(block).collect();
    assert_eq!(store.probe_prefix(&ns, &all).expect("probe") as u64, capacity, "no hit was spent");
    let reasons = |number, len| match store.reserve(&ns, &block(number), len, StoreOptions::default()) {
        Ok(StoreReserve::Refused(reasons)) => reasons,
        other => panic!("{other:?}"),
    };
    let full = reasons(capacity, SLOT);
    assert_eq!(full.iter().map(|said| &*said.pool).collect::<Vec<_>>(), ["cpu", "cxl"]);
    assert!(full.iter().all(|said| said.reason == Reason::Why(Why::NoSpace)), "{full:?}");
    // Too large for each; empty and of another length would be so anywhere.
    assert!(reasons(capacity, 2 << 20).iter().all(|said| said.reason.code() == "too_large"));
    assert_eq!(reasons(capacity, 0)[0].reason, Reason::Why(Why::Empty));
    let other_length = Reason::Why(Why::LengthMismatch { present_bytes: SLOT as u32, asked_bytes: 5 });
    assert_eq!(reasons(0, 5)[0].reason, other_length);
    // With every block leased the answer is the same, and the leases hold.
    let leases = store.acquire(&ns, &all[..capacity as usize], Batch::AllOrNothing).expect("acquire");
    assert_eq!(put(&store, &ns, capacity, Replicas::One), "refused");
    for (number, lease) in (0..).zip(leases) {
        assert_eq!(lease.expect("a hit").read(Verify::Always).expect("read"), payload(number, SLOT as usize));
    }
}

#[test]
fn a_pool_with_larger_slots_takes_what_the_first_cannot() {
    let scratch = Scratch::new();
    let store = Store::builder()
        .pool(pool(&scratch, "cpu"))
        .pool(pool_of(&scratch, "cxl", Wish::of_slots(1 << 20, 64 << 10)))
        .build()
        .expect("two pools");
    let ns = store.namespace(&namespace("t")).expect("registered");
    let slot = store.reserve(&ns, &block(1), 10_000, StoreOptions::default()).expect("reserve");
    assert_eq!(slot.granted().expect("granted").pool(), "cxl");
}

#[test]
fn replicas_are_judged_per_pool() {
    let scratch = Scratch::new();
    let (store, ns) = two(&scratch, ["cpu", "cxl"], ["cpu", "cxl"]);
    assert_eq!(put(&store, &ns, 1, Replicas::One), "cpu");
    assert_eq!(put(&store, &ns, 1, Replicas::One), "present");
    assert_eq!(put(&store, &ns, 1, Replicas::Another), "cxl");
    assert_eq!(put(&store, &ns, 1, Replicas::Another), "refused");
    // Present in the second pool is present, whatever room the first has.
    assert_eq!(put(&store, &ns, 2, Replicas::Another), "cpu");
    assert_eq!(put(&store, &ns, 2, Replicas::Another), "cxl");
    let cpu = store.pool("cpu").expect("a pool").session();
    let id = cpu.namespace(&namespace("t")).expect("registered");
    cpu.retire(&super::object(id, 2)).expect("retire");
    match store.reserve(&ns, &block(2), SLOT, StoreOptions::default()).expect("reserve") {
        StoreReserve::Present { pool } => assert_eq!(pool, "cxl"),
        other => panic!("{other:?}"),
    }
    // Being written: the store's answer, or a reason to go on where another replica is wanted.
    let writing = store.reserve(&ns, &block(3), SLOT, StoreOptions::default()).expect("reserve").granted();
    assert_eq!(writing.as_ref().expect("granted").pool(), "cpu");
    assert_eq!(put(&store, &ns, 3, Replicas::One), "being_written");
    assert_eq!(put(&store, &ns, 3, Replicas::Another), "cxl");
    assert!(writing.expect("granted").abort().expect("abort"));
    let (cpu, cxl) = (store.usage().expect("usage")[0].clone(), store.usage().expect("usage")[1].clone());
    let ready = |usage: &crate::PoolUsage| usage.usage.as_ref().expect("counted").slots[4];
    assert_eq!((ready(&cpu), ready(&cxl)), (1, 3));
}

#[test]
fn another_process_private_pool_is_never_asked() {
    let scratch = Scratch::new();
    let private = || Wish { scope: Some(Scope::Process), ..Wish::of_slots(1 << 20, SLOT) };
    // Formatted outside of `Pool::open`: as any other process would have left it.
    let theirs = OpenOptions::path(scratch.path("theirs")).format(Format::IfAbsent).wish(private());
    let region = Region::open(theirs).expect("formatted");
    let owner = region.session("owner", Role::Worker).expect("attach");
    let id = owner.namespace(&namespace("t")).expect("registered");
    assert_eq!(super::store(&owner, &super::object(id, 1), &payload(1, SLOT as usize)), "stored");
    let before = region.usage();

    let store = Store::builder()
        .pool(pool_of(&scratch, "theirs", private()))
        .pool(pool_of(&scratch, "mine", private()))
        .build()
        .expect("two pools");
    let barred = PoolState::Ineligible(Ineligible::PrivateToAnotherProcess);
    assert_eq!((state(&store, "theirs"), state(&store, "mine")), (barred, PoolState::InUse));
    let ns = store.namespace(&namespace("t")).expect("registered");
    assert!(ns.left_out().is_empty());
    // First in both orders, with the block, and not asked.
    assert!(!store.probe(&ns, &block(1)).expect("probe").is_hit());
    assert_eq!(store.probe_prefix(&ns, &[block(1)]).expect("probe"), 0);
    assert_eq!(put(&store, &ns, 1, Replicas::One), "mine");
    assert_eq!(get(&store, &ns, 1), "mine");
    let miss = store.acquire(&ns, &[block(2)], Batch::Each).expect("acquire").remove(0).expect_err("a miss");
    assert_eq!(miss.pools[0].reason.code(), "private");
    assert_eq!(store.heartbeat().expect("heartbeat"), 1);
    assert!(store.invalidate(&ns).expect("invalidate").failed.is_empty());
    assert_eq!(region.usage(), before, "nothing was stored or ended there");
    assert!(owner.probe(&super::object(id, 1)).expect("probe").is_hit());

    // My own, by a second handle.
    let again = Store::builder().pool(pool_of(&scratch, "mine", private())).build().expect("one pool");
    assert_eq!(state(&again, "mine"), PoolState::InUse);
    // Host and domain are for everybody on this host.
    for scope in [Scope::Host, Scope::Domain] {
        let name = format!("{scope:?}");
        let wish = Wish { scope: Some(scope), ..Wish::of_slots(1 << 20, SLOT) };
        drop(Region::open(OpenOptions::path(scratch.path(&name)).format(Format::IfAbsent).wish(wish)).expect("made"));
        assert_eq!((pool(&scratch, &name).ineligible(), pool(&scratch, &name).scope()), (None, scope));
    }
}

#[test]
fn a_namespace_ends_in_every_pool_and_belongs_to_one_store() {
    let scratch = Scratch::new();
    let (store, ns) = two(&scratch, ["cpu", "cxl"], ["cpu", "cxl"]);
    let other = store.namespace(&namespace("other")).expect("registered");
    for number in 0..4 {
        put(&store, &ns, number, Replicas::Another);
        put(&store, &ns, number, Replicas::Another);
    }
    assert_eq!(put(&store, &other, 1, Replicas::One), "cpu");
    let share = |ns: &StoreNamespace| {
        let usage = store.namespace_usage(ns).expect("usage");
        usage.into_iter().map(|pool| pool.usage.expect("counted")).collect::<Vec<_>>()
    };
    let counted = share(&ns);
    assert_eq!(counted.iter().map(|usage| usage.slots[4]).collect::<Vec<_>>(), [4, 4]);
    assert!(counted.iter().all(|usage| usage.ready_bytes == 4 * SLOT && usage.allocated_bytes == 4 * SLOT));
    assert_eq!(share(&other).iter().map(|usage| usage.slots[4]).collect::<Vec<_>>(), [1, 0]);
    let mut held = store.acquire(&ns, &[block(0)], Batch::Each).expect("acquire").remove(0).expect("a hit");
    let ended = store.invalidate(&ns).expect("invalidate");
    assert_eq!((ended.ended, ended.failed.len()), (vec!["cpu".to_owned(), "cxl".to_owned()], 0));
    assert_eq!(store.invalidate(&ns).expect("invalidate").before, ["cpu", "cxl"]);
    assert!(matches!(held.read(Verify::Always), Err(LoadError::Invalidated)), "no old byte");
    drop(held);
    assert_eq!(store.probe_prefix(&ns, &[block(0)]).expect("probe"), 0);
    match store.reserve(&ns, &block(9), SLOT, StoreOptions::default()).expect("reserve") {
        StoreReserve::Refused(reasons) => assert_eq!(reasons[0].reason, Reason::Why(Why::Invalidated)),
        answer => panic!("{answer:?}"),
    }
    let anew = store.namespace(&namespace("t")).expect("registered");
    assert_eq!(anew.digest(), ns.digest());
    assert_eq!(store.probe_prefix(&anew, &[block(0)]).expect("probe"), 0);
    assert_eq!(put(&store, &anew, 0, Replicas::One), "cpu");
    assert!(store.probe(&other, &block(1)).expect("probe").is_hit());

    let stranger = Store::builder().pool(pool(&scratch, "cpu")).build().expect("one pool");
    let error = stranger.probe(&ns, &block(0)).expect_err("another store's");
    assert_eq!(error, StoreError::ForeignNamespace);
    let missing = store.namespace(&crate::Namespace::new()).expect_err("no field said");
    assert!(missing.to_string().contains("tenant"), "{missing}");
}

/// Case B12 with a budget in each pool: what is stored is seen, what is not says why, and no hit is spent on it.
#[test]
fn budgets_of_pools_are_spent_one_after_the_other() {
    let scratch = Scratch::new();
    let builder = Store::builder().pool(pool(&scratch, "cpu")).pool(pool(&scratch, "cxl"));
    let store = builder.write_order(["cpu", "cxl"]).build().expect("two pools");
    let budget = |name: &str| Budget::Slots(if name == "cpu" { 8 } else { 4 });
    let of_t = namespace("t");
    let ns = store.namespace_with(&of_t, |name, session| session.namespace_with_budget(&of_t, budget(name)));
    let ns = ns.expect("registered");
    let answers: Vec<String> = (0..20).map(|number| put(&store, &ns, number, Replicas::One)).collect();
    let count = |wanted: &str| answers.iter().filter(|answer| *answer == wanted).count();
    assert_eq!((count("cpu"), count("cxl"), count("refused")), (8, 4, 8), "{answers:?}");
    match store.reserve(&ns, &block(20), SLOT, StoreOptions::default()).expect("reserve") {
        StoreReserve::Refused(reasons) => {
            assert!(reasons.iter().all(|said| said.reason == Reason::Why(Why::OverBudget)), "{reasons:?}");
        }
        other => panic!("{other:?}"),
    }
    let held: Vec<u32> =
        store.namespace_usage(&ns).expect("usage").iter().map(|pool| pool.usage.expect("counted").slots[4]).collect();
    assert_eq!(held, [8, 4]);
    let all: Vec<BlockId> = (0..20).map(block).collect();
    assert_eq!(store.probe_prefix(&ns, &all).expect("probe"), 12);
    // Another namespace has room where this one has none.
    let free = store.namespace(&namespace("u")).expect("registered");
    assert_eq!(put(&store, &free, 0, Replicas::One), "cpu");
}

/// Two pools whose sessions evict: the second fills before the first loses a block, then the first makes room; what is
/// leased throughout there goes to the next.
#[test]
fn free_space_of_any_pool_comes_before_eviction_and_eviction_in_the_write_order() {
    let scratch = Scratch::new();
    let evicting = |name: &str| {
        let options =
            OpenOptions::path(scratch.path(name)).format(Format::IfAbsent).wish(Wish::of_slots(1 << 20, SLOT));
        Pool::open(name, options, |region| region.session(name, Role::Worker)).expect("a pool")
    };
    let store = Store::builder().pool(evicting("cpu")).pool(evicting("cxl")).build().expect("two pools");
    let ns = store.namespace(&namespace("t")).expect("registered");
    let (cpu, both) = (slots(&store, "cpu"), slots(&store, "cpu") + slots(&store, "cxl"));
    for number in 0..both {
        assert_eq!(put(&store, &ns, number, Replicas::One), if number < cpu { "cpu" } else { "cxl" }, "block {number}");
    }
    let all: Vec<BlockId> = (0..both).map(block).collect();
    assert_eq!(store.probe_prefix(&ns, &all).expect("probe") as u64, both, "nothing went while there was free space");
    for number in both..both + 20 {
        assert_eq!(put(&store, &ns, number, Replicas::One), "cpu", "block {number}: the first pool makes room");
    }
    assert_eq!(get(&store, &ns, cpu), "cxl", "and the second has lost none");
    for pool in store.pools() {
        let counters = pool.session().counters();
        let refused = counters.iter().find(|(counter, _)| counter.name() == "refused_no_space").expect("counted").1;
        assert_eq!(refused, 0, "{}: nothing was refused, whatever was asked on the way", pool.name());
    }
    // Nothing is evicted for a store that says so, and the refusal names both pools.
    let mut options = StoreOptions::default();
    options.reserve.free_space_only = true;
    let StoreReserve::Refused(reasons) =
        store.reserve(&ns, &block(both + 30), SLOT, options).expect("a store in order")
    else {
        panic!("there is no free space");
    };
    assert!(reasons.iter().all(|answer| matches!(answer.reason, Reason::Why(Why::NoSpace))) && reasons.len() == 2);
    // Everything in the first pool is leased: the second one makes room.
    let held: Vec<BlockId> = (0..both + 20).map(block).collect();
    let leases = store.acquire(&ns, &held, Batch::Each).expect("acquire").into_iter().flatten();
    let leases: Vec<_> = leases.filter(|lease| lease.pool() == "cpu").collect();
    assert_eq!(leases.len() as u64, cpu);
    assert_eq!(put(&store, &ns, both + 20, Replicas::One), "cxl");
}
