//! Workers are killed and budgets kept, in real runs; every account is right at every look and at the end.

mod common;

use maru::{Budget, Namespace, OpenOptions, Region, Role};

use common::{Scratch, number, stderr};

/// Three blocks that everybody shares, and five of each request's own: more than a small region holds.
fn requests() -> Vec<Vec<u64>> {
    (0..600u64).map(|at| (0..3).chain(100 + at * 2..105 + at * 2).collect()).collect()
}

#[test]
fn workers_are_killed_and_nothing_is_wrong_or_lost() {
    let scratch = Scratch::new();
    let trace = scratch.trace(&requests());
    let flags = ["--workers", "3", "--slots", "300", "--budget", "200", "--block-bytes", "20000", "--no-rival"];
    let kills = ["--kill-every", "0.4", "--seconds", "4", "--repeat", "1000000"];
    let found = scratch.json(&trace, &[&flags[..], &kills].concat());
    let killed = number(&found, "kills");
    assert!(killed >= 3, "{found}");
    assert_eq!(number(&found, "recovered"), killed);
    assert!(number(&found, "killed_requests") <= killed, "{found}");
    assert_eq!((number(&found, "wrong_bytes"), number(&found, "budget_exceeded")), (0, 0));
    assert!(number(&found, "samples") > 20, "{found}");
    // There is more to store than the budget has room for.
    assert_eq!((number(&found, "budget"), number(&found, "most_spent")), (200, 200));
    let region = Region::open(OpenOptions::path(scratch.path("region"))).expect("the region is still there");
    assert!(region.sessions().expect("the kernel answers").is_empty());
    assert_eq!(region.usage().ready_allocated_bytes, region.usage().allocated_bytes);
}

#[test]
fn kills_need_no_budget_and_are_told() {
    let scratch = Scratch::new();
    let trace = scratch.trace(&requests());
    let output = scratch
        .command()
        .args(["--workers", "2", "--slots", "2000", "--no-rival", "--kill-every", "0.3", "--seconds", "2"])
        .args(["--repeat", "1000000", "--trace"])
        .arg(&trace)
        .output()
        .expect("started");
    assert!(output.status.success(), "{}", stderr(&output));
    let text = String::from_utf8_lossy(&output.stdout);
    for words in ["workers killed", "the slots did not add up in 0", "verified with all payload"] {
        assert!(text.contains(words), "{words} in {text}");
    }
    assert!(!text.contains("tokens spent"), "there is no budget: {text}");
    for worker in ["worker 0 (pid ", "worker 1 (pid "] {
        assert!(stderr(&output).contains(worker), "each has its turn: {}", stderr(&output));
    }
}

#[test]
fn a_budget_is_used_up_and_never_exceeded() {
    let scratch = Scratch::new();
    let trace = scratch.trace(&requests());
    let found = scratch.json(&trace, &["--workers", "2", "--slots", "900", "--budget", "64", "--no-rival"]);
    assert_eq!((number(&found, "budget"), number(&found, "most_spent")), (64, 64));
    assert_eq!((number(&found, "budget_exceeded"), number(&found, "kills"), number(&found, "recovered")), (0, 0, 0));
    let region = Region::open(OpenOptions::path(scratch.path("region"))).expect("the region is still there");
    // The region has room for all blocks, the namespace has not.
    assert!((50..=64).contains(&region.usage().slots[4]), "{:?}", region.usage());
}

#[test]
fn without_kills_and_budget_nobody_watches() {
    let scratch = Scratch::new();
    let found = scratch.json(&scratch.trace(&[vec![1]]), &["--no-rival"]);
    assert_eq!((number(&found, "kills"), number(&found, "samples")), (0, 0));
    for key in ["budget", "most_spent", "sample_gap_us"] {
        assert!(found[key].is_null(), "{key} of {found}");
    }
}

#[test]
fn a_budget_that_is_not_the_kept_ones_is_refused_by_name() {
    let scratch = Scratch::new();
    let trace = scratch.trace(&[vec![1, 2]]);
    scratch.json(&trace, &["--slots", "16", "--budget", "4", "--no-rival"]);
    let output = scratch
        .command()
        .args(["--keep", "--budget", "5", "--no-rival", "--trace"])
        .arg(&trace)
        .output()
        .expect("started");
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("budget"), "{}", stderr(&output));
    let again = scratch.json(&trace, &["--keep", "--budget", "4", "--no-rival"]);
    assert_eq!(number(&again, "hits"), 2);
}

#[test]
fn a_repeated_trace_hits_the_second_time() {
    let scratch = Scratch::new();
    let found = scratch.json(&scratch.trace(&[vec![1, 2, 3], vec![4]]), &["--repeat", "5", "--no-rival"]);
    assert_eq!((number(&found, "requests"), number(&found, "references"), number(&found, "hits")), (10, 20, 16));
    // Another namespace of the region is nobody's concern.
    let region = Region::open(OpenOptions::path(scratch.path("region"))).expect("the region is still there");
    let session = region.session("other", Role::Tool).expect("attach");
    assert!(session.namespace_with_budget(&Namespace::new(), Budget::Slots(1)).is_err(), "a name without its fields");
}
