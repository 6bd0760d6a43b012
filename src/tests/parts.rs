//! Blocks of several parts.

use super::{Scratch, namespace, object, payload, store};
use crate::{
    Batch, BlockId, Format, ObjectId, OpenOptions, Parts, Pool, Replicas, Role, Store, StoreOptions, Verify, Why, Wish,
};

fn part_bytes(number: u64, object: &ObjectId) -> Vec<u8> {
    payload(number << 32 | u64::from(object.shard) << 16 | u64::from(object.part), 512)
}

#[test]
fn a_block_is_a_hit_when_every_part_is_ready() {
    let scratch = Scratch::new();
    // A lease for each part of each block.
    let region = scratch.region(Wish { session_area_bytes: Some(32 << 10), ..Wish::of_slots(4 << 20, 512) });
    let session = region.session("a", Role::Worker).expect("attach");
    let ns = session.namespace(&namespace("t")).expect("namespace");
    let parts = Parts::new(4, 3).expect("a split");
    let blocks: Vec<ObjectId> = (0..100).map(|number| object(ns, number)).collect();
    let mut named = std::collections::HashSet::new();
    for (number, block) in (0..).zip(&blocks) {
        for part in parts.of(*block) {
            assert!(named.insert(part), "{part:?}");
            assert_eq!(store(&session, &part, &part_bytes(number, &part)), "stored");
        }
    }
    assert_eq!(named.len(), 1200);
    let prefix = |count: usize| session.probe_prefix_parts(&blocks[..count], parts).expect("probe");
    for count in [0, 1, 5, 6, 7, 99, 100] {
        assert_eq!(prefix(count), count);
    }
    // A split that has more parts than were stored is no hit; one that has fewer is.
    let longer = Parts::new(4, 4).expect("a split");
    assert_eq!(session.probe_prefix_parts(&blocks, longer).expect("probe"), 0);
    assert_eq!(session.probe_prefix_parts(&blocks, Parts::WHOLE).expect("probe"), 100);
    // The shortest part decides, and the first hole ends the run, whichever part it is in.
    for (hole, shard, part) in [(80, 3, 2), (40, 0, 0), (20, 1, 2), (60, 2, 1)] {
        assert_eq!(session.retire(&ObjectId { shard, part, ..blocks[hole] }).expect("retire"), crate::Retire::Retired);
    }
    assert_eq!(prefix(100), 20);
    let answers = session.acquire_parts(&blocks, parts, Batch::Each).expect("acquire");
    assert_eq!(session.leases(), 96 * 12, "all parts of whole blocks, none of the others");
    for (number, answer) in (0..).zip(answers) {
        match answer {
            Ok(leases) => {
                for (lease, part) in leases.iter().zip(parts.of(blocks[number as usize])) {
                    assert_eq!(lease.object(), &part);
                    assert_eq!(lease.read(Verify::Always).expect("read"), part_bytes(number, &part));
                }
            }
            Err(why) => assert!(why == Why::Absent && [20, 40, 60, 80].contains(&number), "{number}: {why}"),
        }
    }
    assert_eq!(session.leases(), 0);
    let answers = session.acquire_parts(&blocks[..21], parts, Batch::AllOrNothing).expect("acquire");
    assert_eq!(answers.iter().filter(|answer| matches!(answer, Err(Why::PartnerMissing))).count(), 20);
    assert!(matches!(answers[20], Err(Why::Absent)));
    assert_eq!(session.leases(), 0, "nothing is held of what is not whole");
    let answers = session.acquire_parts(&blocks[..20], parts, Batch::AllOrNothing).expect("acquire");
    assert!(answers.iter().all(|answer| answer.as_ref().is_ok_and(|leases| leases.len() == 12)));
}

#[test]
fn ranks_in_different_pools_make_whole_blocks() {
    let scratch = Scratch::new();
    let pool = |name: &str| {
        let options = OpenOptions::path(scratch.path(name)).format(Format::IfAbsent);
        let options = options.wish(Wish::of_slots(1 << 20, 4096));
        Pool::open(name, options, |region| region.session(name, Role::Worker)).expect("a pool")
    };
    let parts = Parts::new(2, 1).expect("a split");
    let both = Store::builder().pool(pool("cpu")).pool(pool("cxl")).build().expect("two pools");
    let ns = both.namespace(&namespace("t")).expect("registered");
    let blocks: Vec<BlockId> = (0..50u8).map(|number| BlockId::new([number; 32])).collect();
    let put = |names: [&str; 2], block: &BlockId| {
        let order = Store::builder().pool(pool(names[0])).pool(pool(names[1])).build().expect("two pools");
        let ns = order.namespace(&namespace("t")).expect("registered");
        let options = StoreOptions { replicas: Replicas::One, ..StoreOptions::default() };
        let mut slot = order.reserve(&ns, block, 64, options).expect("reserve").granted().expect("granted");
        assert_eq!(slot.pool(), names[0]);
        slot.write_at(0, &[block.prefix[0] ^ block.shard as u8; 64]).expect("write");
        slot.commit().expect("commit");
    };
    for block in &blocks[..40] {
        for part in parts.of_block(*block) {
            put(if part.shard == 0 { ["cpu", "cxl"] } else { ["cxl", "cpu"] }, &part);
        }
    }
    put(["cpu", "cxl"], &blocks[40]); // one rank alone
    assert_eq!(both.probe_prefix_parts(&ns, &blocks, parts).expect("probe"), 40);
    assert_eq!(both.probe_prefix(&ns, &blocks).expect("probe"), 41);
    for (at, block) in both.acquire_parts(&ns, &blocks, parts, Batch::Each).expect("acquire").into_iter().enumerate() {
        match block {
            Ok(leases) => {
                assert!(at < 40);
                for (shard, (mut lease, pool)) in leases.into_iter().zip(["cpu", "cxl"]).enumerate() {
                    assert_eq!(lease.pool(), pool);
                    assert_eq!(lease.read(Verify::Always).expect("read"), [at as u8 ^ shard as u8; 64]);
                }
            }
            Err(miss) => assert!(at >= 40 && miss.why == Why::Absent, "{at}: {miss:?}"),
        }
    }
    let all = both.acquire_parts(&ns, &blocks[..41], parts, Batch::AllOrNothing).expect("acquire");
    assert!(all.iter().all(Result::is_err));
    assert!(both.pools().all(|pool| pool.session().leases() == 0));
    let other = Store::builder().pool(pool("cpu")).build().expect("one pool");
    assert!(other.probe_prefix_parts(&ns, &blocks, parts).is_err(), "a namespace of another store");
}
