//! A limit for many, taken by many.

use std::time::{Duration, Instant};

use super::Scratch;
use crate::sync::process::{AtomicU64, Ordering};
use crate::{GrantError, HostGrants, MAX_GRANT_UNITS};

const GIB: u64 = 1 << 30;

#[track_caller]
fn refused(answer: Result<crate::Grant<'_>, GrantError>) -> (u64, u64, u64) {
    match answer {
        Err(GrantError::Refused { need_bytes, have_bytes, limit_bytes }) => (need_bytes, have_bytes, limit_bytes),
        other => panic!("{other:?}"),
    }
}

#[test]
fn four_fill_the_host_and_the_fifth_is_told_need_and_have() {
    let scratch = Scratch::new();
    let open = || HostGrants::open(&scratch.path("grants"), 32 * GIB, GIB).expect("opened");
    let pools: Vec<HostGrants> = (0..5).map(|_| open()).collect();
    let mut grants: Vec<_> = pools[..4].iter().map(|host| host.take(8 * GIB).expect("granted")).collect();
    assert!(grants.iter().all(|grant| grant.bytes() == 8 * GIB));
    assert_eq!(refused(pools[4].take(8 * GIB)), (8 * GIB, 0, 32 * GIB));
    assert_eq!(
        pools[4].take(8 * GIB).expect_err("refused").to_string(),
        "refused: 8589934592 bytes needed, 0 of 34359738368 free"
    );
    drop(grants.pop());
    assert_eq!(refused(pools[4].take(9 * GIB)), (9 * GIB, 8 * GIB, 32 * GIB));
    let usage = pools[0].usage().expect("usage");
    assert_eq!((usage.granted_bytes, usage.free_bytes), (24 * GIB, 8 * GIB), "a refused grant left nothing behind");
    let last = pools[4].take(8 * GIB - 5).expect("granted");
    assert_eq!(last.bytes(), 8 * GIB, "whole units");
    assert_eq!(pools[0].usage().expect("usage").free_bytes, 0);
    drop((last, grants));
    assert_eq!(pools[0].usage().expect("usage").free_bytes, 32 * GIB);
    assert_eq!(pools[0].take(32 * GIB).expect("all of it").bytes(), 32 * GIB);
}

#[test]
fn limits_at_their_edges() {
    let scratch = Scratch::new();
    let open = |name: &str, limit, unit| HostGrants::open(&scratch.path(name), limit, unit);
    let none = open("none", 0, GIB).expect("a limit of nothing");
    assert_eq!(refused(none.take(1)), (GIB, 0, 0));
    assert_eq!(none.usage().expect("usage").free_bytes, 0);
    let less = open("less", GIB - 1, GIB).expect("less than a unit");
    assert_eq!(refused(less.take(1)), (GIB, 0, 0));
    let one = open("one", GIB + 5, GIB).expect("one unit");
    assert!(matches!(one.take(0), Err(GrantError::Empty)));
    assert_eq!(refused(one.take(GIB + 1)), (2 * GIB, GIB, GIB));
    for _ in 0..3 {
        let grant = one.take(1).expect("granted");
        assert_eq!(refused(one.take(1)), (GIB, 0, GIB));
        drop(grant);
    }
    let (need, have, limit) = refused(one.take(u64::MAX));
    assert!(need >= u64::MAX - GIB && have == GIB && limit == GIB);
    assert!(matches!(open("unit", 5, 0), Err(GrantError::Field { field: "unit_bytes", found: 0, .. })));
    let error = open("many", MAX_GRANT_UNITS + 1, 1).expect_err("too many");
    assert!(error.to_string().contains("4096, wanted at most 4095"), "{error}");
    let many = open("most", MAX_GRANT_UNITS, 1).expect("the most");
    let all = many.take(MAX_GRANT_UNITS).expect("every one of them");
    assert_eq!(refused(many.take(1)), (1, 0, MAX_GRANT_UNITS));
    drop(all);
    assert_eq!(many.usage().expect("usage").free_bytes, MAX_GRANT_UNITS);
}

#[test]
fn two_limits_for_one_host_are_refused_with_both() {
    let scratch = Scratch::new();
    let path = scratch.path("grants");
    let host = HostGrants::open(&path, 32 * GIB, GIB).expect("opened");
    let grant = host.take(GIB).expect("granted");
    for (limit, unit, said) in [(16 * GIB, GIB, "limit_bytes"), (32 * GIB, GIB / 2, "unit_bytes")] {
        match HostGrants::open(&path, limit, unit) {
            Err(GrantError::Differs { field, theirs, yours, .. }) => {
                let wanted = if said == "limit_bytes" { (32 * GIB, limit) } else { (GIB, unit) };
                assert_eq!((field.as_str(), theirs, yours), (said, wanted.0.to_string(), wanted.1.to_string()));
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(host.usage().expect("usage").granted_bytes, grant.bytes());
    // A region of something else is not a limit.
    drop(scratch.region(crate::Wish::of_slots(1 << 20, 4096)));
    let error = HostGrants::open(&scratch.path("region"), GIB, GIB).expect_err("no limit");
    assert!(matches!(error, GrantError::Differs { .. }), "{error}");
}

/// Takers that want more together than there is: nobody exceeds, and each gets its turn.
#[test]
fn takers_neither_exceed_nor_stop_each_other() {
    const UNITS: u64 = 8;
    const TAKERS: u64 = 6;
    const ROUNDS: u64 = 15;
    let scratch = Scratch::new();
    let path = scratch.path("grants");
    let (granted, refusals) = (AtomicU64::new(0), AtomicU64::new(0));
    let start = Instant::now();
    std::thread::scope(|scope| {
        for taker in 0..TAKERS {
            let (path, granted, refusals) = (&path, &granted, &refusals);
            scope.spawn(move || {
                let host = HostGrants::open(path, UNITS, 1).expect("opened");
                let mut done = 0;
                while done < ROUNDS {
                    assert!(start.elapsed() < Duration::from_secs(60), "taker {taker} after {done} rounds");
                    let want = 2 + (taker + done) % 4;
                    match host.take(want) {
                        Ok(grant) => {
                            let before = granted.fetch_add(want, Ordering::SeqCst);
                            assert!(before + want <= UNITS, "{before} + {want} units of {UNITS}");
                            std::thread::sleep(Duration::from_micros(300));
                            granted.fetch_sub(want, Ordering::SeqCst);
                            drop(grant);
                            done += 1;
                        }
                        Err(GrantError::Refused { have_bytes, .. }) => {
                            assert!(have_bytes < want, "refused {want} with {have_bytes} free");
                            refusals.fetch_add(1, Ordering::SeqCst);
                            std::thread::sleep(Duration::from_micros(100));
                        }
                        Err(GrantError::Busy { .. }) => {}
                        Err(other) => panic!("{other}"),
                    }
                }
            });
        }
    });
    assert!(refusals.load(Ordering::SeqCst) > 0, "they were never in each other's way");
    let host = HostGrants::open(&path, UNITS, 1).expect("opened");
    assert_eq!(host.usage().expect("usage").free_bytes, UNITS);
    assert_eq!(host.take(UNITS).expect("every unit came back").bytes(), UNITS);
}

/// A turn that is never given back: whoever waits takes it after the bound, and the units still do not exceed.
#[test]
fn a_taker_that_stands_still_is_passed_and_counts() {
    let scratch = Scratch::new();
    let path = scratch.path("grants");
    let (stopped, other) =
        (HostGrants::open(&path, 4, 1).expect("opened"), HostGrants::open(&path, 4, 1).expect("opened"));
    let (turn, first) = stopped.stop_within_take().expect("its turn");
    assert_eq!(other.usage().expect("usage").granted_bytes, 1, "a turn is no grant");
    let start = Instant::now();
    let grant = other.take(2).expect("past the one that stands still");
    assert!(start.elapsed() >= Duration::from_millis(1_900), "not before the bound of stalled writers");
    // It goes on where it stopped: one unit taken, one more to be had, while its turn counts as one.
    let mut units = vec![first];
    units.extend(std::iter::from_fn(|| stopped.unit_within_take().expect("a call")));
    assert!(units.len() as u64 + grant.bytes() <= 4, "{} + {} of 4", units.len(), grant.bytes());
    // Not even a slot for a turn is left: refused at once, and not after waiting for one.
    let start = Instant::now();
    assert_eq!(refused(other.take(1)), (1, 0, 4));
    assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
    drop((turn, units, grant));
    assert_eq!(other.take(4).expect("all came back").bytes(), 4);
}
