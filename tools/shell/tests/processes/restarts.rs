//! An engine that is back before anybody noticed that it was gone.
//!
//! * Symptom: a client that restarts at once is refused or ignored until its old self has timed out; or it is taken for
//!   its old self, whose late calls then count; or everything that the old self stored is thrown away with it.
//! * Cause: a participant is its name, and its name lives as long as a time limit says.

use std::time::Instant;

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::accounts::{session_entry, settled};
use crate::driver::{Scratch, Shell};

const ARGS: [&str; 4] = ["--size", "1M", "--slot-bytes", "4K"];
const ENGINE: [&str; 2] = ["--engine", "engine-a"];

/// What a session had when it ended.
struct Old {
    index: Value,
    epoch: u64,
    handle: Value,
    token: Value,
}

/// Stores ten keys, protects one and reserves another.
fn life(shell: &mut Shell) -> Old {
    let joined = shell.join();
    for key in 0..10 {
        assert_eq!(shell.store(key, 4000, key), "stored");
    }
    let (_, handle) = shell.acquire(3);
    let reserved = shell.ok(json!({ "op": "reserve", "key": "open", "len": 4000 }));
    shell.ok(json!({ "op": "write", "reservation": "r0", "seed": 77 }));
    let epoch = joined["epoch"].as_u64().expect("an epoch");
    Old { index: joined["index"].clone(), epoch, handle, token: reserved["token"].clone() }
}

/// What the old epoch held a name for is not held and not there, whoever says it, and saying it changes nothing.
fn the_old_names_mean_nothing(shell: &mut Shell, old: &Old) {
    let (slots, held) = (shell.slots(), shell.ok(json!({ "op": "held" })));
    assert_eq!(shell.ok(json!({ "op": "release", "handle": old.handle }))["outcome"], "not_held");
    assert_eq!(
        shell.ok(json!({ "op": "release", "handles": [old.handle, old.handle] }))["items"],
        json!(["not_held", "not_held"])
    );
    assert_eq!(shell.ok(json!({ "op": "resolve", "token": old.token }))["outcome"], "generation_gone");
    assert_eq!((shell.slots(), shell.ok(json!({ "op": "held" }))), (slots, held));
}

/// A session is killed with a lease and an open reservation; the same engine is back within a moment. Nothing waits for
/// the old one's time to run out, and all that it had committed is a hit.
#[test]
fn an_engine_that_is_back_at_once_is_newer_than_its_old_self() {
    let scratch = Scratch::new();
    // So long that nothing here can be the work of a time limit.
    let path = scratch
        .format("region", &[&ARGS[..], &["--copy-lease-ms", "3600000", "--stalled-writer-ms", "3600000"]].concat());
    let mut witness = Shell::at(&path);
    witness.join();
    let mut shell = Shell::with(&path, &ENGINE);
    let mut old = life(&mut shell);
    for round in 0..10 {
        shell.kill();
        let killed = Instant::now();
        shell = Shell::with(&path, &ENGINE);
        let joined = shell.join();
        let back = killed.elapsed();
        assert!(joined["epoch"].as_u64() > Some(old.epoch), "round {round}: {joined} after {}", old.epoch);
        let entry = session_entry(&path, joined["index"].as_u64().expect("an index"));
        assert_eq!(&entry.engine[..8], b"engine-a");
        for key in 0..10 {
            assert!(shell.holds(key, 4000, key), "round {round}, key {key}: stored before, so there");
        }
        for shell in [&mut shell, &mut witness] {
            the_old_names_mean_nothing(shell, &old);
        }
        // Lease and reservation have ended with their epoch.
        assert_eq!(shell.store("open", 4000, 5), "stored", "round {round}");
        assert_eq!(witness.retire(3), "retired", "round {round}");
        the_old_names_mean_nothing(&mut shell, &old);
        assert!(witness.holds("open", 4000, 5), "the late commit of an old token is not this one's");
        let slots = settled(&mut witness, &path);
        assert_eq!((&slots["ready"], &slots["writing"], &slots["retiring"]), (&json!(10), &json!(0), &json!(0)));
        if round == 0 {
            eprintln!("back after {back:?}");
        }
        for key in (0..10).map(Value::from).chain(["open".into()]) {
            witness.retire(key);
        }
        shell.ok(json!({ "op": "close" }));
        old = life(&mut shell);
    }
}

/// The old self is not dead but hangs: its successor attaches beside it, an operator shuts it out, and when it wakes each
/// of its calls says so and changes nothing.
#[test]
fn an_old_self_that_hangs_is_shut_out_and_told_when_it_wakes() {
    let scratch = Scratch::new();
    let path = scratch.format("region", &ARGS);
    let mut hanging = Shell::with(&path, &ENGINE);
    let old = life(&mut hanging);
    hanging.signal(Signal::SIGSTOP);
    hanging.wait_stopped();
    let mut new = Shell::with(&path, &ENGINE);
    let joined = new.join();
    assert!(joined["epoch"].as_u64() > Some(old.epoch) && joined["index"] != old.index, "{joined}");
    // Not shut out yet: it is alive, and what it holds is its own.
    new.ok(json!({ "op": "reclaim" }));
    assert_eq!(new.store("open", 4000, 5), "being_written");
    // A fence by a wrong epoch is of nobody.
    for epoch in [old.epoch + 1, old.epoch.wrapping_sub(1), 0] {
        assert_eq!(new.ok(json!({ "op": "fence", "index": old.index, "epoch": epoch }))["fenced"], false);
    }
    assert_eq!(new.ok(json!({ "op": "fence", "index": old.index, "epoch": old.epoch }))["fenced"], true);
    assert_eq!(new.store("open", 4000, 5), "stored", "the key is free, the slot is not");
    assert_eq!(new.retire(3), "draining", "a lease of the living counts, shut out or not");
    let before = new.slots();
    hanging.signal(Signal::SIGCONT);
    hanging.refused(json!({ "op": "store", "key": "late", "len": 10, "seed": 1 }), "fenced");
    hanging.refused(json!({ "op": "acquire", "key": 4 }), "fenced");
    hanging.refused(json!({ "op": "load", "lease": "l0" }), "fenced");
    hanging.refused(json!({ "op": "retire", "key": 4 }), "fenced");
    hanging.refused(json!({ "op": "write", "reservation": "r0", "seed": 78 }), "fenced");
    assert_eq!(hanging.ok(json!({ "op": "commit", "reservation": "r0" }))["outcome"], "fenced");
    assert_eq!(new.slots(), before, "it changed nothing");
    assert!(new.holds("open", 4000, 5));
    assert_eq!(
        hanging.ok(json!({ "op": "release", "handle": old.handle }))["outcome"],
        "released",
        "its own to give back"
    );
    assert_eq!(new.ok(json!({ "op": "reclaim" }))["freed_slots"], 1);
    hanging.ok(json!({ "op": "close", "drop": true }));
    let slots = settled(&mut new, &path);
    assert_eq!((&slots["ready"], &slots["quarantined"]), (&json!(10), &json!(0)));
    // And then it may come back as itself, newer than everybody.
    let again = hanging.join();
    assert!(again["epoch"].as_u64() > joined["epoch"].as_u64(), "{again}");
}

/// Epochs grow over everything that happens to the table: other entries, orderly ends, kills, a region that is empty for a
/// while.
#[test]
fn epochs_only_grow() {
    let scratch = Scratch::new();
    let path = scratch.format("region", &[&ARGS[..], &["--sessions", "3"]].concat());
    let mut newest = 0;
    let mut live: Vec<Shell> = Vec::new();
    for round in 0..40 {
        let mut shell = Shell::at(&path);
        let epoch = shell.join()["epoch"].as_u64().expect("an epoch");
        assert!(epoch > newest, "round {round}: {epoch} after {newest}");
        newest = epoch;
        live.push(shell);
        if live.len() == 3 {
            // By turns the oldest, the youngest, or all of them; by turns in order and killed.
            let gone: Vec<Shell> = match round % 3 {
                0 => vec![live.remove(0)],
                1 => live.pop().into_iter().collect(),
                _ => std::mem::take(&mut live),
            };
            for (at, shell) in gone.into_iter().enumerate() {
                if (round + at) % 2 == 0 { shell.kill() } else { shell.quit() }
            }
        }
    }
}
