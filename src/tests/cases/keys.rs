//! Keys that are nearly alike, and keys that want the same place.
//!
//! * Symptom: two inputs share one entry, and the wrong block is served; a stored key is never found again; removing one
//!   key hides another; a search in a full table does not end.
//! * Cause: a key is cut, or only its hash is kept; a key value is reserved to mean "empty"; lookups stop at a gap; nothing
//!   bounds the probing.

use std::collections::HashMap;

use super::{Random, acquire, load};
use crate::tests::{Scratch, namespace, payload, store};
use crate::{NamespaceId, ObjectId, Probe, Region, Retire, Role, Session, Why, Wish};

const LEN: usize = 100;

struct Stage {
    region: Region,
    session: Session,
    ns: NamespaceId,
    _scratch: Scratch,
}

fn stage(size_bytes: u64) -> Stage {
    let scratch = Scratch::new();
    let region = scratch.region(Wish::of_slots(size_bytes, 128));
    let session = region.session("keys", Role::Worker).expect("attach");
    let ns = session.namespace(&namespace("keys")).expect("namespace");
    Stage { region, session, ns, _scratch: scratch }
}

impl Stage {
    fn place(&self, object: &ObjectId) -> (u32, u32, u16) {
        let geometry = self.region.geometry();
        let place = object.key().place(geometry.hash_seed, geometry.bucket_count);
        (place.first, place.second, place.tag)
    }

    /// `count` keys that share first bucket and tag, and so the second bucket too: the worst that keys can do.
    fn crowd(&self, count: usize, random: &mut Random) -> Vec<ObjectId> {
        let mut crowds: HashMap<(u32, u16), Vec<ObjectId>> = HashMap::new();
        loop {
            let object = ObjectId::new(self.ns, random.prefix());
            let (first, second, tag) = self.place(&object);
            let crowd = crowds.entry((first, tag)).or_default();
            crowd.push(object);
            if first != second && crowd.len() == count {
                return crowd.clone();
            }
        }
    }

    /// `count` keys whose first choice is one bucket, whatever their tags.
    fn neighbours(&self, count: usize, random: &mut Random) -> Vec<ObjectId> {
        let mut found = Vec::new();
        while found.len() < count {
            let object = ObjectId::new(self.ns, random.prefix());
            if self.place(&object).0 == 1 {
                found.push(object);
            }
        }
        found
    }

    fn all_slots_are_accounted_for(&self, ready: usize) {
        let usage = self.region.usage();
        assert_eq!(usage.slots[4] as usize, ready, "{usage:?}");
        assert_eq!(usage.slots[0] as usize + ready, usage.capacity_slots as usize, "{usage:?}");
    }
}

#[test]
fn keys_that_differ_in_one_bit_are_different_keys() {
    let mut random = Random::new();
    let stage = stage(1 << 20);
    let base = random.prefix();
    let mut keys = vec![base, [0; 32], [0xFF; 32]];
    for bit in 0..256 {
        let mut key = base;
        key[bit / 8] ^= 1 << (bit % 8);
        keys.push(key);
    }
    // Alike in the first 8, the last 8, the first 16 bytes.
    for same in [0..8, 24..32, 0..16] {
        let mut key = random.prefix();
        key[same.clone()].copy_from_slice(&base[same]);
        keys.push(key);
    }
    let objects: Vec<_> = keys.iter().map(|key| ObjectId::new(stage.ns, *key)).collect();
    for (number, object) in objects.iter().enumerate() {
        assert_eq!(stage.session.probe(object).expect("probe"), Probe::Miss(Why::Absent), "{number}");
        assert_eq!(store(&stage.session, object, &payload(number as u64, LEN)), "stored", "{number}");
    }
    for (number, object) in objects.iter().enumerate() {
        assert_eq!(load(&stage.session, object), Ok(payload(number as u64, LEN)), "{number}");
    }
    // Shard and part are part of the name.
    let other = |shard, part| ObjectId { shard, part, ..objects[0] };
    for (shard, part) in [(1, 0), (0, 1), (1, 1), (u16::MAX, u16::MAX)] {
        assert_eq!(load(&stage.session, &other(shard, part)), Err(Why::Absent));
        let number = 1000 + u64::from(shard) + 2 * u64::from(part);
        assert_eq!(store(&stage.session, &other(shard, part), &payload(number, LEN)), "stored");
        assert_eq!(load(&stage.session, &other(shard, part)), Ok(payload(number, LEN)));
    }
    // Every second one goes; the others stay.
    for object in objects.iter().step_by(2) {
        assert_eq!(stage.session.retire(object).expect("retire"), Retire::Retired);
    }
    for (number, object) in objects.iter().enumerate() {
        let expected = if number % 2 == 0 { Err(Why::Absent) } else { Ok(payload(number as u64, LEN)) };
        assert_eq!(load(&stage.session, object), expected, "{number}");
    }
}

/// Tag and bucket of an index entry tell almost all keys apart, so a comparison that is cut short goes unnoticed until
/// two keys agree in both. Here they do.
#[test]
fn keys_that_agree_in_bucket_and_tag_are_compared_in_full() {
    let mut random = Random::new();
    let stage = stage(64 << 10);
    let other_ns = stage.session.namespace(&namespace("other")).expect("namespace");
    for part_of_the_name in
        ["bytes 0-7", "bytes 8-15", "bytes 16-23", "bytes 24-31", "byte 31", "shard", "part", "namespace"]
    {
        // Two names that differ in that part alone and lead to the same places with the same tag.
        let (left, right) = loop {
            let left = ObjectId::new(stage.ns, random.prefix());
            let mut right = left;
            let number = random.next().to_le_bytes();
            match part_of_the_name {
                "bytes 0-7" => right.prefix[..8].copy_from_slice(&number),
                "bytes 8-15" => right.prefix[8..16].copy_from_slice(&number),
                "bytes 16-23" => right.prefix[16..24].copy_from_slice(&number),
                "bytes 24-31" => right.prefix[24..].copy_from_slice(&number),
                "byte 31" => right.prefix[31] = right.prefix[31].wrapping_add(1),
                "shard" => right.shard = 1,
                "part" => right.part = 1,
                _ => right.namespace = other_ns,
            }
            if left != right && stage.place(&left) == stage.place(&right) {
                break (left, right);
            }
        };
        assert_eq!(store(&stage.session, &left, &payload(1, LEN)), "stored");
        assert_eq!(load(&stage.session, &right), Err(Why::Absent), "{part_of_the_name}");
        assert_eq!(stage.session.retire(&right).expect("retire"), Retire::Gone, "{part_of_the_name}");
        assert_eq!(stage.session.probe_prefix(&[left, right]).expect("probe"), 1, "{part_of_the_name}");
        assert_eq!(store(&stage.session, &right, &payload(2, LEN)), "stored", "{part_of_the_name}");
        assert_eq!(load(&stage.session, &left), Ok(payload(1, LEN)), "{part_of_the_name}");
        assert_eq!(load(&stage.session, &right), Ok(payload(2, LEN)), "{part_of_the_name}");
        assert_eq!(stage.session.retire(&left).expect("retire"), Retire::Retired);
        assert_eq!(load(&stage.session, &right), Ok(payload(2, LEN)), "{part_of_the_name}");
        assert_eq!(stage.session.retire(&right).expect("retire"), Retire::Retired);
    }
}

#[test]
fn removal_from_the_middle_of_a_crowd_hides_nobody() {
    let mut random = Random::new();
    let stage = stage(64 << 10);
    for round in 0..20 {
        let crowd = stage.crowd(14, &mut random);
        for (number, object) in crowd.iter().enumerate() {
            assert_eq!(
                store(&stage.session, object, &payload(number as u64, LEN)),
                "stored",
                "round {round}, {number}"
            );
        }
        stage.all_slots_are_accounted_for(14);
        // All fourteen places of both buckets are taken; now take away one by one, anywhere.
        let mut left: Vec<usize> = (0..crowd.len()).collect();
        while !left.is_empty() {
            let gone = left.swap_remove(random.next() as usize % left.len());
            assert_eq!(stage.session.retire(&crowd[gone]).expect("retire"), Retire::Retired);
            assert_eq!(stage.session.retire(&crowd[gone]).expect("retire"), Retire::Gone);
            for (number, object) in crowd.iter().enumerate() {
                let expected = if left.contains(&number) { Ok(payload(number as u64, LEN)) } else { Err(Why::Absent) };
                assert_eq!(load(&stage.session, object), expected, "round {round}, {number} after {gone}");
            }
            // One comes back now and then, into whatever gap there is.
            if left.len() > 4 && random.next().is_multiple_of(3) {
                assert_eq!(store(&stage.session, &crowd[gone], &payload(gone as u64, LEN)), "stored");
                left.push(gone);
            }
        }
        stage.all_slots_are_accounted_for(0);
    }
}

#[test]
fn a_full_pair_of_buckets_makes_room_by_one_or_says_busy() {
    let mut random = Random::new();
    let stage = stage(64 << 10);
    let crowd = stage.crowd(20, &mut random);
    let (first, more) = crowd.split_at(14);
    for (number, object) in first.iter().enumerate() {
        assert_eq!(store(&stage.session, object, &payload(number as u64, LEN)), "stored", "{number}");
    }
    let hits = |objects: &[ObjectId]| objects.iter().filter(|object| load(&stage.session, object).is_ok()).count();
    // One in, one out, and never more than one.
    for (at, object) in more[..3].iter().enumerate() {
        assert_eq!(store(&stage.session, object, &payload(100 + at as u64, LEN)), "stored");
        assert_eq!(load(&stage.session, object), Ok(payload(100 + at as u64, LEN)), "stored means found");
        assert_eq!(hits(&crowd), 14, "after {at}");
        stage.all_slots_are_accounted_for(14);
    }
    // Somebody reads all of them: nobody may go, and the refusal costs nobody.
    let held: Vec<_> = crowd.iter().filter_map(|object| acquire(&stage.session, object).ok()).collect();
    assert_eq!(held.len(), 14);
    for object in &more[3..] {
        assert_eq!(store(&stage.session, object, &payload(7, LEN)), "bucket_busy");
        assert_eq!(load(&stage.session, object), Err(Why::Absent));
        assert_eq!(hits(&crowd), 14);
        stage.all_slots_are_accounted_for(14);
    }
    // One reader leaves: that one's block is what makes room.
    let mut held = held;
    let freed = held.swap_remove(5);
    let gone = *freed.object();
    drop(freed);
    assert_eq!(store(&stage.session, &more[3], &payload(103, LEN)), "stored");
    assert_eq!(load(&stage.session, &gone), Err(Why::Absent));
    for lease in &held {
        assert!(stage.session.probe(lease.object()).expect("probe").is_hit(), "{lease:?}");
    }
    drop(held);
    stage.all_slots_are_accounted_for(14);
    assert_eq!(stage.session.leases(), 0);
}

#[test]
fn keys_with_one_home_bucket_spread_and_are_all_found() {
    let mut random = Random::new();
    let stage = stage(256 << 10);
    let objects = stage.neighbours(64, &mut random);
    let mut stored = Vec::new();
    for (number, object) in objects.iter().enumerate() {
        match store(&stage.session, object, &payload(number as u64, LEN)) {
            "stored" => stored.push(number),
            other => panic!("{number}: {other}"),
        }
        assert_eq!(load(&stage.session, object), Ok(payload(number as u64, LEN)), "{number}: found right after");
    }
    // With 64 keys for one bucket some were evicted to make room, but far from all: most have a second choice.
    let found: Vec<usize> = stored
        .iter()
        .copied()
        .filter(|number| stage.session.probe(&objects[*number]).expect("probe").is_hit())
        .collect();
    assert!(found.len() > 48, "{} of 64", found.len());
    stage.all_slots_are_accounted_for(found.len());
    let (gone, kept) = found.split_at(found.len() / 2);
    for number in gone {
        assert_eq!(stage.session.retire(&objects[*number]).expect("retire"), Retire::Retired);
    }
    for number in kept {
        assert_eq!(load(&stage.session, &objects[*number]), Ok(payload(*number as u64, LEN)), "{number}");
    }
    for number in gone {
        assert_eq!(load(&stage.session, &objects[*number]), Err(Why::Absent), "{number}");
    }
}
