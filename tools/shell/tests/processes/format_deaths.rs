//! Formatters that stop or die at a step.
//!
//! * Symptom: a half-made region is attached to; a name or a claim stays behind, and every later start fails or waits for
//!   ever.
//! * Cause: the name or the ready word comes before the content; a claim does not say whose it is.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::json;

use crate::driver::{Scratch, Shell, hash};

const FILE: [&str; 6] = ["--size", "2M", "--slot-bytes", "4K", "--format", "if-absent"];
const IN_PLACE: [&str; 8] = ["--offset", "2M", "--length", "2M", "--slot-bytes", "4K", "--format", "if-absent"];
/// Rule G1.
const BOUND: Duration = Duration::from_secs(5);

/// Opens, works, and takes no longer than the bound.
fn formats_and_works(shell: &mut Shell, when: &str) {
    let start = Instant::now();
    let opened = shell.ok(json!({ "op": "open" }));
    assert!(start.elapsed() < BOUND, "{when}: {:?}", start.elapsed());
    assert_eq!(opened["outcome"], "formatted", "{when}");
    shell.join();
    assert_eq!(shell.store(when, 4096, 1), "stored", "{when}");
    assert!(shell.holds(when, 4096, 1), "{when}");
    assert_eq!(shell.slots()["ready"], 1, "{when}");
}

#[test]
fn a_file_whose_maker_died_was_never_there() {
    let scratch = Scratch::new();
    for step in ["format.copy", "format.pool", "format.superblock", "format.ready", "format.link"] {
        let path = scratch.path("region");
        let mut dying = Shell::at_step(&path, &format!("{step}:kill"), &FILE);
        dying.send(&json!({ "op": "open" }));
        assert!(dying.wait_end().code().is_none(), "{step} was reached");
        assert!(scratch.names().is_empty(), "{step}: {:?}", scratch.names());
        Shell::at(&path).refused(json!({ "op": "open" }), "not_found");
        let mut next = Shell::with(&path, &FILE);
        formats_and_works(&mut next, step);
        assert_eq!(scratch.names(), ["region"], "{step}");
        std::fs::remove_file(&path).expect("file");
    }
}

#[test]
fn a_place_whose_formatter_died_is_taken_over() {
    let scratch = Scratch::new();
    for step in ["format.claim", "format.copy", "format.tables", "format.pool", "format.superblock", "format.ready"] {
        let path = scratch.path(step);
        let file = std::fs::File::create(&path).expect("file");
        file.set_len(4 << 20).expect("size");
        let mut dying = Shell::at_step(&path, &format!("{step}:kill"), &IN_PLACE);
        dying.send(&json!({ "op": "open" }));
        assert!(dying.wait_end().code().is_none(), "{step} was reached");
        let before = hash(&path);
        // A plain attach neither believes it nor finishes it, and does not wait longer than it is told.
        let start = Instant::now();
        let mut looking = Shell::with(&path, &["--offset", "2M", "--attach-wait-ms", "200"]);
        let answer = looking.ask(json!({ "op": "open" }));
        assert!(["not_formatted", "format_incomplete"].contains(&answer["code"].as_str().unwrap_or("")), "{answer}");
        assert!(start.elapsed() < BOUND, "{step}: {:?}", start.elapsed());
        assert_eq!(hash(&path), before, "{step}");
        // Two at once: one formats, the other attaches.
        let mut next = Shell::with(&path, &IN_PLACE);
        let mut beside = Shell::with(&path, &IN_PLACE);
        beside.send(&json!({ "op": "open" }));
        let start = Instant::now();
        let opened = next.ok(json!({ "op": "open" }));
        let also = beside.answer();
        assert!(start.elapsed() < BOUND, "{step}: {:?}", start.elapsed());
        assert_eq!(opened["region_id"], also["region_id"], "{step}: {opened} {also}");
        let outcomes = [opened["outcome"].as_str(), also["outcome"].as_str()];
        assert_eq!(outcomes.iter().filter(|outcome| **outcome == Some("formatted")).count(), 1, "{step}");
        next.join();
        beside.join();
        assert_eq!(next.store(step, 4096, 1), "stored", "{step}");
        assert!(beside.holds(step, 4096, 1), "{step}");
    }
}

#[test]
fn a_stopped_maker_of_a_file_holds_nobody_up_and_joins_later() {
    let scratch = Scratch::new();
    for step in ["format.copy", "format.superblock", "format.link"] {
        let path = scratch.path("region");
        let mut stopped = Shell::at_step(&path, &format!("{step}:stop"), &FILE);
        stopped.send(&json!({ "op": "open" }));
        stopped.wait_stopped();
        let mut quick = Shell::with(&path, &FILE);
        formats_and_works(&mut quick, step);
        let id = quick.ok(json!({ "op": "region" }))["region_id"].clone();
        stopped.signal(Signal::SIGCONT);
        let late = stopped.answer();
        assert_eq!((&late["outcome"], &late["region_id"]), (&json!("attached"), &id), "{step}: {late}");
        stopped.join();
        assert!(stopped.holds(step, 4096, 1), "{step}");
        assert_eq!(scratch.names(), ["region"], "{step}");
        std::fs::remove_file(&path).expect("file");
    }
}

#[test]
fn a_stopped_formatter_in_place_is_waited_for_and_never_robbed() {
    let scratch = Scratch::new();
    for step in ["format.tables", "format.ready"] {
        let path = scratch.path(step);
        std::fs::File::create(&path).expect("file").set_len(4 << 20).expect("size");
        let mut stopped = Shell::at_step(&path, &format!("{step}:stop"), &IN_PLACE);
        stopped.send(&json!({ "op": "open" }));
        stopped.wait_stopped();
        // Impatient ones are told what is the matter.
        for format in ["if-absent", "never"] {
            let mut args = IN_PLACE.to_vec();
            args.extend(["--attach-wait-ms", "100"]);
            let answer = Shell::with(&path, &args).ask(json!({ "op": "open", "format": format }));
            assert_eq!(answer["code"], "format_incomplete", "{step}, {format}: {answer}");
        }
        for format in ["force", "replace"] {
            Shell::with(&path, &IN_PLACE).refused(json!({ "op": "open", "format": format }), "in_use");
        }
        let mut patient = Shell::with(&path, &IN_PLACE);
        patient.send(&json!({ "op": "open" }));
        std::thread::sleep(Duration::from_secs(2));
        stopped.signal(Signal::SIGCONT);
        let (first, second) = (stopped.answer(), patient.answer());
        assert_eq!((&first["outcome"], &second["outcome"]), (&json!("formatted"), &json!("attached")), "{step}");
        assert_eq!(first["region_id"], second["region_id"], "{step}");
    }
}

#[test]
fn a_replacer_that_dies_before_it_tells_has_replaced_nothing() {
    let scratch = Scratch::new();
    let path = scratch.format("region", &FILE);
    let mut user = Shell::at(&path);
    user.join();
    assert_eq!(user.store("k", 4096, 1), "stored");
    for step in ["format.copy", "format.ready", "format.link", "format.replaced"] {
        let before = hash(&path);
        let mut dying = Shell::at_step(&path, &format!("{step}:kill"), &FILE);
        dying.send(&json!({ "op": "open", "format": "replace" }));
        assert!(dying.wait_end().code().is_none(), "{step} was reached");
        assert_eq!((scratch.names(), hash(&path)), (vec!["region".to_owned()], before), "{step}");
        user.ok(json!({ "op": "heartbeat" }));
        assert!(user.holds("k", 4096, 1), "{step}");
    }
    let mut next = Shell::at(&path);
    next.join();
    assert!(next.holds("k", 4096, 1));
}

#[test]
fn a_session_that_comes_while_a_place_is_formatted_anew_is_not_written_over() {
    let scratch = Scratch::new();
    let path = scratch.path("file");
    std::fs::File::create(&path).expect("file").set_len(4 << 20).expect("size");
    let mut first = Shell::with(&path, &IN_PLACE);
    first.ok(json!({ "op": "open" }));
    let mut early = Shell::with(&path, &IN_PLACE);
    early.ok(json!({ "op": "open" }));
    drop(first);
    // Nobody has joined, so "force" may go on; it stops before it claims the place.
    let mut forcing = Shell::at_step(&path, "format.claim:stop", &IN_PLACE);
    forcing.send(&json!({ "op": "open", "format": "force" }));
    forcing.wait_stopped();
    let joined = early.ask(json!({ "op": "session" }));
    if joined["ok"] == true {
        early.ok(json!({ "op": "namespace", "example": true }));
        assert_eq!(early.store("k", 4096, 1), "stored");
    }
    forcing.signal(Signal::SIGCONT);
    let forced = forcing.answer();
    // One of the two wins; both together would be somebody's blocks under somebody else's tables.
    if joined["ok"] == true {
        assert_eq!((&forced["ok"], &forced["code"]), (&json!(false), &json!("in_use")), "{forced}");
        assert!(early.holds("k", 4096, 1));
        early.ok(json!({ "op": "heartbeat" }));
    } else {
        assert_eq!(joined["code"], "replaced", "{joined}");
        assert_eq!(forced["ok"], true, "{forced}");
    }
}
