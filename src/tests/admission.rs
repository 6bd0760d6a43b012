//! What is let in, and what is remembered for it.

use super::{Scratch, namespace, object};
use crate::{Admission, Admitter, ObjectId, Role, Wish};

fn objects(numbers: std::ops::Range<u64>) -> Vec<ObjectId> {
    let scratch = Scratch::new();
    let region = scratch.region(Wish::of_slots(1 << 20, 4096));
    let session = region.session("a", Role::Worker).expect("attach");
    let ns = session.namespace(&namespace("t")).expect("namespace");
    numbers.map(|number| object(ns, number)).collect()
}

#[test]
fn all_lets_every_missing_block_in_up_to_the_cap() {
    let request = objects(0..20);
    let all = Admitter::new(Admission::All, None).expect("a rule");
    assert_eq!((all.admit(&request, 5..20), all.memory_bytes()), (5..20, 0));
    let some = Admitter::new(Admission::All, Some(3)).expect("a rule");
    assert_eq!(some.admit(&request, 5..20), 5..8);
    assert_eq!(some.admit(&request, 18..20), 18..20);
    assert_eq!(Admitter::new(Admission::All, Some(0)).expect("a rule").admit(&request, 5..20), 5..5);
    // Ranges that lie outside are cut, not believed.
    assert_eq!(all.admit(&request, 19..usize::MAX), 19..20);
    assert_eq!(all.admit(&request, 30..40), 20..20);
    let (from, to) = (7, 3);
    assert_eq!(all.admit(&request, from..to), 7..7);
    assert_eq!(all.admit(&[], 0..1), 0..0);
}

#[test]
fn second_sight_lets_in_what_an_earlier_request_named() {
    let objects = objects(0..40);
    let second = Admitter::new(Admission::SecondSight { remember: 1 << 12 }, None).expect("a rule");
    assert_eq!(second.admit(&objects[..10], 0..10), 0..0, "never seen");
    assert_eq!(second.admit(&objects[..10], 2..10), 2..10, "seen once before");
    // A longer request: its known part, and the tail when it comes again.
    assert_eq!(second.admit(&objects[..20], 0..20), 0..10);
    assert_eq!(second.admit(&objects[..20], 0..20), 0..20);
    // Hits count as sights: what is evicted later has been seen.
    assert_eq!(second.admit(&objects[20..30], 10..10), 10..10);
    assert_eq!(second.admit(&objects[20..30], 0..10), 0..10);
    // A block without its parents is of no use: the run ends at the first that is new.
    let mixed: Vec<_> = [&objects[..3], &objects[35..36], &objects[3..6]].concat();
    assert_eq!(second.admit(&mixed, 0..7), 0..3);
    // Once per request, however often the request names it.
    let twice = [objects[39], objects[39]];
    assert_eq!(second.admit(&twice, 0..2), 0..0);
    assert_eq!(second.admit(&twice, 0..2), 0..2);
    let capped = Admitter::new(Admission::SecondSight { remember: 64 }, Some(4)).expect("a rule");
    assert_eq!(capped.admit(&objects[..10], 0..10), 0..0);
    assert_eq!(capped.admit(&objects[..10], 1..10), 1..5);
}

#[test]
fn memory_is_bounded_and_the_last_seen_stay() {
    let objects = objects(0..20_000);
    let rule = Admission::SecondSight { remember: 1000 };
    let (one, other) = (Admitter::new(rule, None).expect("a rule"), Admitter::new(rule, None).expect("a rule"));
    assert_eq!(one.memory_bytes(), 4 * 1000);
    let hot = &objects[..4];
    for request in objects[4..].chunks(50) {
        let request: Vec<_> = hot.iter().chain(request).copied().collect();
        // The same requests give the same answers.
        assert_eq!(one.admit(&request, 0..request.len()), other.admit(&request, 0..request.len()));
    }
    assert_eq!(one.memory_bytes(), 4 * 1000, "not a byte more");
    assert_eq!(one.admit(hot, 0..4), 0..4, "seen in every request");
    let known = |range: std::ops::Range<usize>| {
        let fresh = range.clone().filter(|at| !one.admit(&objects[*at..=*at], 0..1).is_empty()).count();
        fresh * 100 / range.len()
    };
    assert!(known(19_700..20_000) > 90, "lately seen");
    assert!(known(100..5_000) < 2, "long ago");
}

/// Blocks that come again, each after `others` new ones: in a cache that is smaller than the distance only second sight keeps
/// them; in one that is larger both do, and second sight is late.
fn traffic(objects: &[ObjectId], admitter: &Admitter) -> Vec<bool> {
    let (hot, cold) = objects.split_at(400);
    let mut says = Vec::new();
    for (round, fresh) in cold.chunks(40).enumerate() {
        let again = &hot[round * 20 % 400..][..20];
        let request: Vec<_> = again.iter().chain(fresh).copied().collect();
        let _ = admitter.admit(&request, 0..request.len());
        says.push(admitter.on_second_sight().expect("a rule with sights"));
    }
    says
}

#[test]
fn measured_admission_takes_second_sight_where_it_finds_more_and_only_there() {
    // Every hot block comes again after 20 requests: 1,200 blocks later, of which 800 never come again.
    let objects = objects(0..40_400);
    let rule = |cache_blocks| Admission::Measured { remember: 1 << 16, cache_blocks };
    let small = Admitter::new(rule(800), None).expect("a rule");
    let says = traffic(&objects, &small);
    assert!(!says[0], "before anything is measured every block is let in");
    assert_eq!(says.last(), Some(&true), "in a cache of 800 the hot ones are gone before they come again");
    // Such blocks as it saw once are let in now, new ones are not.
    assert_eq!(small.admit(&objects[..10], 0..10), 0..10);

    // Requests that come again once, soon: letting them in on their second sight is too late.
    let large = Admitter::new(rule(20_000), None).expect("a rule");
    for request in objects.chunks(50).flat_map(|request| [request, request]) {
        let _ = large.admit(request, 0..request.len());
    }
    assert_eq!(large.on_second_sight(), Some(false));
    // And the say comes back when the traffic turns.
    for request in objects.chunks(50).flat_map(|request| [request, request]) {
        let _ = small.admit(request, 0..request.len());
    }
    assert_eq!(small.on_second_sight(), Some(false));
}

#[test]
fn a_memory_of_nothing_or_of_everything_is_refused() {
    for remember in [0, (1 << 28) + 1, usize::MAX] {
        let error = Admitter::new(Admission::SecondSight { remember }, None).expect_err("out of bounds");
        assert_eq!((error.field, error.found), ("remember", remember));
        assert!(error.to_string().contains("wanted 1 to 268435456"), "{error}");
    }
    let rule = Admission::Measured { remember: 8, cache_blocks: 0 };
    let error = Admitter::new(rule, None).expect_err("no cache");
    assert_eq!(error.to_string(), "cache_blocks is 0, wanted 1 to 4294967295");
    let most =
        Admitter::new(Admission::Measured { remember: 8, cache_blocks: u32::MAX as usize }, None).expect("a rule");
    assert!(most.memory_bytes() <= 32 + 2 * 4 * 8200, "the shadows are a sample");
    let least = Admitter::new(Admission::SecondSight { remember: 1 }, None).expect("a rule");
    assert_eq!(least.memory_bytes(), 32, "one set");
}
