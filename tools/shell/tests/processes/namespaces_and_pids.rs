//! Process ids that mean something else to somebody else.
//!
//! * Symptom: a live holder in another container is judged dead and robbed of what it reads and writes; a dead one is
//!   taken for alive because its number belongs to a stranger now; a restarted process takes its dead self's things for
//!   its own, and for ever.
//! * Cause: liveness is asked by process id, which is a number of one pid namespace at one time.

use std::time::Instant;

use serde_json::{Value, json};

use crate::accounts::{session_entry, settled};
use crate::driver::{BOUND, Scratch, Shell};
use crate::unshared::{kill_inner, pid_namespaces, script};

const PID: u32 = 40;
const ARGS: [&str; 6] = ["--size", "1M", "--slot-bytes", "4K", "--stalled-writer-ms", "600000"];

/// Joins, stores `k`, protects it and reserves `half`. Returns the answers to joining and acquiring.
fn holder(shell: &mut Shell) -> (Value, Value) {
    let joined = shell.join();
    assert_eq!(shell.store("k", 4096, 1), "stored");
    let (_, handle) = shell.acquire("k");
    assert_eq!(shell.ok(json!({ "op": "reserve", "key": "half", "len": 4096 }))["outcome"], "granted");
    (joined, handle)
}

/// A process that lives on the dead one's number does not keep its lease and its reservation alive, whichever side of the
/// namespace the recovery runs on.
#[test]
fn a_stranger_with_the_number_of_a_dead_process_keeps_nothing_alive() {
    if !pid_namespaces() {
        return;
    }
    for from_inside in [true, false] {
        let scratch = Scratch::new();
        let path = scratch.format("region", &ARGS);
        let lines = format!("pin {PID}; \"$@\"; pin {PID}; sleep 600 & echo \"{{\\\"stranger\\\":$!}}\"; \"$@\"");
        let mut namespaced = script(&path, &lines, &[]);
        let (joined, _) = holder(&mut namespaced);
        let index = joined["index"].as_u64().expect("an index");
        assert_eq!(session_entry(&path, index).pid, PID, "the number was pinned");
        let mut outside = Shell::at(&path);
        outside.join();
        assert_eq!(outside.liveness(&joined["index"]), "alive");
        assert_eq!(outside.retire("k"), "draining");
        kill_inner(namespaced.pid());
        let dead = Instant::now();
        assert_eq!(namespaced.answer(), json!({ "stranger": PID }), "the number lives again");
        let recoverer = if from_inside { &mut namespaced } else { &mut outside };
        if from_inside {
            // Opened, not joined: joining would take the dead one's entry and recover it on the way.
            recoverer.ok(json!({ "op": "open" }));
        }
        assert_eq!(recoverer.liveness(&joined["index"]), "dead", "from inside: {from_inside}");
        if from_inside {
            recoverer.join();
        }
        assert_eq!(recoverer.store("half", 4096, 2), "stored", "from inside: {from_inside}");
        recoverer.ok(json!({ "op": "reclaim" }));
        assert!(dead.elapsed() < BOUND, "recovered after {:?}", dead.elapsed());
        let slots = settled(recoverer, &path);
        assert_eq!((&slots["ready"], &slots["retiring"], &slots["writing"]), (&json!(1), &json!(0), &json!(0)));
    }
}

/// A holder that lives in another pid namespace is never judged dead: not where its number is nobody's, not where it is a
/// stranger's, not where it is the recoverer's own. Its real death is seen from there at once.
#[test]
fn a_live_holder_in_another_namespace_is_never_judged_dead() {
    if !pid_namespaces() {
        return;
    }
    let scratch = Scratch::new();
    // One entry for the holder, one for who recovers, so that a third has to find both of them alive.
    let path = scratch.format("region", &[&ARGS[..], &["--sessions", "2"]].concat());
    let mut live = script(&path, &format!("pin {PID}; \"$@\""), &[]);
    let joined = live.join();
    let index = joined["index"].as_u64().expect("an index");
    assert_eq!(session_entry(&path, index).pid, PID);
    live.ok(json!({ "op": "reserve", "key": "half", "len": 4096 }));
    let stranger = format!("pin {PID}; sleep 600 & \"$@\"");
    let itself = format!("pin {PID}; \"$@\"");
    for (turn, lines) in ["", "\"$@\"", &stranger, &itself].into_iter().enumerate() {
        let key = format!("k{turn}");
        assert_eq!(live.store(key.clone(), 4096, turn as u64), "stored");
        let (lease, _) = live.acquire(key.clone());
        let mut other = if lines.is_empty() { Shell::at(&path) } else { script(&path, lines, &[]) };
        let entry = other.join()["index"].as_u64().expect("an index");
        let number = session_entry(&path, entry).pid;
        assert_eq!(number == PID, lines == itself, "{lines}: the recoverer is {number}");
        if !lines.is_empty() {
            assert_ne!(session_entry(&path, entry).pid_ns, session_entry(&path, index).pid_ns);
        }
        assert_eq!(other.liveness(&joined["index"]), "alive", "{lines}");
        assert_eq!(other.retire(key.clone()), "draining", "{lines}");
        for _ in 0..3 {
            let report = other.ok(json!({ "op": "reclaim" }));
            let counts = (&report["recovered_sessions"], &report["freed_slots"], &report["draining_slots"]);
            assert_eq!(counts, (&json!(0), &json!(0), &json!(1)), "{lines}");
            assert_eq!(other.store("half", 4096, 9), "being_written", "{lines}");
        }
        let mut third = Shell::at(&path);
        let text = third.refused(json!({ "op": "session" }), "participants_full");
        assert!(text.contains("participants full (2): 2 live, 0 of other hosts or unknown"), "{text}");
        let loaded = live.ok(json!({ "op": "load", "lease": lease, "seed": turn }));
        assert_eq!(loaded["matches"], true, "{lines}: {loaded}");
        live.ok(json!({ "op": "release", "lease": lease }));
        assert_eq!(other.ok(json!({ "op": "reclaim" }))["freed_slots"], 1, "{lines}");
        if lines == itself {
            assert_eq!(live.store("last", 4096, 7), "stored");
            live.acquire("last");
            assert_eq!(other.retire("last"), "draining");
            kill_inner(live.pid());
            let report = other.ok(json!({ "op": "reclaim" }));
            let counts = (&report["recovered_sessions"], &report["recovered_slots"], &report["freed_slots"]);
            assert_eq!(counts, (&json!(1), &json!(1), &json!(1)), "its number is the recoverer's own");
            settled(&mut other, &path);
        }
        other.quit();
    }
}

/// A process that is restarted on the number of its dead self does not take that one's entry, lease and reservation for
/// its own, neither to keep them nor to use them.
#[test]
fn a_restart_on_the_same_number_is_somebody_else() {
    if !pid_namespaces() {
        return;
    }
    let scratch = Scratch::new();
    let path = scratch.format("region", &[&ARGS[..], &["--sessions", "4"]].concat());
    // The dead one is behind a lower entry that is free again by then, so that its successor does not attach over it.
    let mut first = Shell::at(&path);
    assert_eq!(first.join()["index"], 0);
    let mut process = script(&path, &format!("pin {PID}; \"$@\"; pin {PID}; \"$@\""), &["--engine", "engine"]);
    let (old, handle) = holder(&mut process);
    assert_eq!(old["index"], 1);
    first.quit();
    kill_inner(process.pid());
    let new = process.join();
    assert_eq!(new["index"], 0, "beside the dead one's entry");
    let (before, after) = (session_entry(&path, 1), session_entry(&path, 0));
    assert_eq!((before.pid, before.pid_ns, before.engine), (after.pid, after.pid_ns, after.engine));
    assert_eq!((before.pid, before.boot_id), (PID, after.boot_id), "equal in all that a pid says");
    assert_ne!(before.id, after.id);
    assert!(new["epoch"].as_u64() > old["epoch"].as_u64(), "{new}");
    assert_eq!(process.ok(json!({ "op": "held" })), json!({ "ok": true, "leases": 0, "reservations": 0 }));
    assert_eq!(process.ok(json!({ "op": "release", "handle": handle }))["outcome"], "not_held");
    assert_eq!(process.liveness(&old["index"]), "dead");
    assert_eq!(process.store("half", 4096, 2), "stored", "its dead self writes it no more");
    assert_eq!(process.retire("k"), "retired", "its dead self's lease protects nothing");
    let slots = settled(&mut process, &path);
    assert_eq!((&slots["ready"], &slots["writing"]), (&json!(1), &json!(0)));
}

/// "Cannot know" is not "dead": where locks of two lock files do not meet, nobody recovers anybody, although the holder
/// has died; who shares its lock file does.
#[test]
fn who_cannot_know_frees_nothing() {
    let scratch = Scratch::new();
    let path = scratch.format("region", &[&ARGS[..], &["--hosts", "many", "--sessions", "3"]].concat());
    let (one, two) = (scratch.path("locks-one"), scratch.path("locks-two"));
    for file in [&one, &two] {
        std::fs::write(file, [0; 4096]).expect("file");
    }
    let (one, two) = (one.to_str().expect("text"), two.to_str().expect("text"));
    let mut dying = Shell::with(&path, &["--lock-file", one]);
    let (joined, _) = holder(&mut dying);
    let mut elsewhere = Shell::with(&path, &["--lock-file", two]);
    elsewhere.join();
    assert_eq!(elsewhere.retire("k"), "draining");
    dying.kill();
    for _ in 0..3 {
        assert_eq!(elsewhere.liveness(&joined["index"]), "unknown");
        let report = elsewhere.ok(json!({ "op": "reclaim" }));
        let counts = (&report["recovered_sessions"], &report["freed_slots"], &report["draining_slots"]);
        assert_eq!(counts, (&json!(0), &json!(0), &json!(1)), "{report}");
        assert_eq!(elsewhere.store("half", 4096, 2), "being_written");
    }
    let mut neighbour = Shell::with(&path, &["--lock-file", one]);
    neighbour.join();
    // Its attach may have taken the dead one's entry, which recovers it; either way it is seen and ended from here.
    neighbour.ok(json!({ "op": "reclaim" }));
    assert_eq!(neighbour.store("half", 4096, 2), "stored");
    let slots = settled(&mut elsewhere, &path);
    assert_eq!((&slots["ready"], &slots["retiring"]), (&json!(1), &json!(0)));
}
