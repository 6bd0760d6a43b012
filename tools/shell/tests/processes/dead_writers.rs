//! Writers that die or stop, and the accounts afterwards.
//!
//! * Symptom: a writer dies between reserve and commit and its key can never be stored again, its space never used again;
//!   a lookup waits for a writer that does not come back; a late commit replaces what others have stored meanwhile; counts
//!   drift with every crash, wrap below zero and refuse valid work.
//! * Cause: a reservation ends by its owner alone; accounts are counters beside the truth, moved in a second step.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::accounts::settled;
use crate::driver::{BOUND, ROUNDING, Random, Scratch, Shell, rounds, seed};

/// A writer is killed when half of the payload is there: lookups miss before and after, and whoever wants to store the key
/// does, within the bound, and nobody else has to help. The same for a writer that had taken all the space there is.
#[test]
fn a_writer_that_dies_half_way_gives_back_key_and_space() {
    let scratch = Scratch::new();
    // Nothing here can be the work of a time limit.
    let args = ["--size", "1M", "--slot-bytes", "16K", "--slots", "32", "--stalled-writer-ms", "3600000"];
    let path = scratch.format("region", &args);
    let mut other = Shell::at(&path);
    other.join();
    for (round, reserved) in [1, 5, 32].into_iter().enumerate() {
        let key = |number: u64| format!("{round}-{number}");
        let mut writer = Shell::at(&path);
        writer.join();
        for number in 0..reserved {
            let granted = writer.ok(json!({ "op": "reserve", "key": key(number), "len": 16_000 }));
            let half = json!({ "op": "write", "reservation": granted["reservation"], "seed": 666, "len": 8_000 });
            writer.ok(half);
        }
        assert_eq!(other.ok(json!({ "op": "get", "key": key(0) }))["miss"], "not_ready");
        assert_eq!(other.store(key(0), 16_000, 1), "being_written");
        writer.kill();
        let dead = Instant::now();
        let load = other.ok(json!({ "op": "get", "key": key(0) }));
        assert_eq!(load["hit"], false, "half a block is no block: {load}");
        for number in 0..reserved {
            assert_eq!(other.store(key(number), 16_000, number), "stored");
        }
        assert!(dead.elapsed() < BOUND, "{:?}", dead.elapsed());
        for number in 0..reserved {
            assert!(other.holds(key(number), 16_000, number));
            assert_eq!(other.retire(key(number)), "retired");
        }
        assert_eq!(settled(&mut other, &path)["free"], 32);
    }
}

/// A slot that a device was writing stays aside when its process dies, since nobody knows what the device does; the key is
/// free at once all the same.
#[test]
fn a_dead_writer_by_device_gives_back_the_key_and_not_the_space() {
    let scratch = Scratch::new();
    let path = scratch.format("region", &["--size", "1M", "--slot-bytes", "16K", "--slots", "32"]);
    let (mut writer, mut other) = (Shell::at(&path), Shell::at(&path));
    writer.join();
    other.join();
    let granted = writer.ok(json!({ "op": "reserve", "key": "k", "len": 16_000, "writer": "device" }));
    writer.kill();
    let dead = Instant::now();
    assert_eq!(other.store("k", 16_000, 1), "stored");
    assert!(dead.elapsed() < BOUND, "{:?}", dead.elapsed());
    let mut taken = Vec::new();
    for key in 0..31 {
        let answer = other.ok(json!({ "op": "reserve", "key": key, "len": 100 }));
        taken.push(answer["slot"].clone());
    }
    assert!(!taken.contains(&granted["slot"]), "a slot that a device may still write was given out");
    let slots = other.slots();
    assert_eq!((&slots["quarantined"], &slots["free"]), (&json!(1), &json!(0)));
}

/// How a writer comes to stand still in the midst of a store.
#[derive(Clone, Copy, Debug)]
enum Still {
    /// Stopped between two lines: half of it is written.
    BetweenCalls,
    /// Stopped in `write`, before the first byte.
    InWrite,
    /// Stopped in `commit`, one store before it counts.
    InCommit,
}

/// A writer stands still between reserve and commit. Lookups answer at once all the time; the key is the writer's until
/// the bound has passed, and then anybody's; its late commit is told so, and what the other stored is as it was.
#[test]
fn a_writer_that_stands_still_loses_its_key_after_the_bound_and_is_told() {
    const STALLED: Duration = Duration::from_millis(600);
    let scratch = Scratch::new();
    for how in [Still::BetweenCalls, Still::InWrite, Still::InCommit] {
        let args = ["--size", "1M", "--slot-bytes", "16K", "--stalled-writer-ms", "600"];
        let path = scratch.format(&format!("{how:?}"), &args);
        let mut writer = match how {
            Still::BetweenCalls => Shell::at(&path),
            Still::InWrite => Shell::at_step(&path, "store.payload:stop", &[]),
            Still::InCommit => Shell::at_step(&path, "store.ready:stop", &[]),
        };
        let (mut reader, mut other) = (Shell::at(&path), Shell::at(&path));
        for shell in [&mut writer, &mut reader, &mut other] {
            shell.join();
        }
        let mine = writer.ok(json!({ "op": "reserve", "key": "k", "len": 16_000 }))["slot"].clone();
        let write = json!({ "op": "write", "reservation": "r0", "seed": 666 });
        let commit = json!({ "op": "commit", "reservation": "r0" });
        match how {
            Still::BetweenCalls => {
                writer.ok(json!({ "op": "write", "reservation": "r0", "seed": 666, "len": 8_000 }));
                writer.signal(Signal::SIGSTOP);
            }
            Still::InWrite => writer.send(&write),
            Still::InCommit => {
                writer.ok(write.clone());
                writer.send(&commit);
            }
        }
        writer.wait_stopped();

        let since = Instant::now();
        let (mut lookups, mut refusals) = (0, 0);
        let stored_after = loop {
            let asked = Instant::now();
            let answers =
                [json!({ "op": "probe", "key": "k" }), json!({ "op": "get", "key": "k" })].map(|line| reader.ok(line));
            for answer in answers {
                assert_eq!(
                    (&answer["hit"], &answer["miss"]),
                    (&json!(false), &json!("not_ready")),
                    "{how:?}: {answer}"
                );
            }
            // None of them waits for the writer: that would be as long as the writer stands still.
            assert!(asked.elapsed() < STALLED, "{how:?}: a lookup took {:?}", asked.elapsed());
            lookups += 1;
            match other.store("k", 16_000, 5).as_str() {
                "being_written" => refusals += 1,
                "stored" => break since.elapsed(),
                other => panic!("{how:?}: {other}"),
            }
            assert!(since.elapsed() < 2 * STALLED + BOUND, "{how:?}: the key is never free again");
            std::thread::sleep(Duration::from_millis(10));
        };
        assert!(stored_after + ROUNDING >= STALLED, "{how:?}: taken after {stored_after:?}, the bound is {STALLED:?}");
        assert!(lookups > 3 && refusals > 3, "{how:?}: {lookups} lookups, {refusals} refusals");
        assert!(reader.holds("k", 16_000, 5));
        let aside = other.slots();
        assert_eq!(
            (&aside["quarantined"], &aside["ready"]),
            (&json!(1), &json!(1)),
            "{how:?}: the slot is still written"
        );

        writer.signal(Signal::SIGCONT);
        match how {
            Still::BetweenCalls => {
                writer.refused(write, "superseded");
                writer.ok(json!({ "op": "heartbeat" }));
                // What is not whole cannot count; that it is not this writer's any more comes with the giving back.
                writer.ok(json!({ "op": "abort", "reservation": "r0" }));
            }
            Still::InWrite => {
                // The bytes go where only this writer writes.
                assert_eq!(writer.answer()["ok"], true);
                assert_eq!(writer.ok(commit)["outcome"], "superseded");
            }
            Still::InCommit => assert_eq!(writer.answer()["outcome"], "superseded"),
        }
        for shell in [&mut writer, &mut reader, &mut other] {
            assert!(shell.holds("k", 16_000, 5), "{how:?}");
        }
        let theirs = other.acquire("k").0;
        assert_eq!(other.ok(json!({ "op": "load", "lease": theirs, "seed": 5 }))["matches"], true);
        let slots = settled(&mut other, &path);
        assert_eq!((&slots["quarantined"], &slots["ready"]), (&json!(0), &json!(1)), "{how:?}: {mine} came back");
    }
}

/// Time alone takes nothing: a writer that stands still for much longer than the bound commits what it wrote, if nobody
/// wanted its key meanwhile, whatever else is stored beside it.
#[test]
fn a_writer_whose_key_nobody_wants_may_stand_still_for_long() {
    let scratch = Scratch::new();
    let path = scratch.format("region", &["--size", "1M", "--slot-bytes", "16K", "--stalled-writer-ms", "50"]);
    let (mut writer, mut other) = (Shell::at(&path), Shell::at(&path));
    writer.join();
    other.join();
    writer.ok(json!({ "op": "reserve", "key": "k", "len": 16_000 }));
    writer.ok(json!({ "op": "write", "reservation": "r0", "seed": 1 }));
    writer.signal(Signal::SIGSTOP);
    writer.wait_stopped();
    let free = other.slots()["free"].as_u64().expect("a count");
    for key in 0..free + 2 {
        let stored = other.store(key, 16_000, key);
        assert!(
            if key < free { stored == "stored" } else { ["stored", "no_space"].contains(&stored.as_str()) },
            "{stored}"
        );
        std::thread::sleep(Duration::from_millis(5));
        other.ok(json!({ "op": "reclaim" }));
    }
    writer.signal(Signal::SIGCONT);
    assert_eq!(writer.ok(json!({ "op": "commit", "reservation": "r0" }))["outcome"], "stored");
    assert!(other.holds("k", 16_000, 1));
}

const SLOTS: u64 = 64;
const KEYS: u64 = 96;
const WORKERS: usize = 4;

fn length(key: u64) -> u64 {
    1 + key * 331 % (32 << 10)
}

/// One line of a worker's work. A worker leaves and joins again now and then, which gives back what it has left open.
fn work(random: &mut Random, lines: &mut Vec<Value>) {
    let key = random.next() % KEYS;
    match random.next() % 20 {
        0..8 => lines.push(json!({ "op": "store", "key": key, "len": length(key), "seed": key })),
        8..13 => lines.push(json!({ "op": "get", "key": key, "seed": key, "id": key })),
        13..16 => lines.push(json!({ "op": "retire", "key": key })),
        16..18 => lines.push(json!({ "op": "acquire", "key": key })),
        18 => lines.push(json!({ "op": "reserve", "key": key, "len": length(key) })),
        _ => {
            lines.push(json!({ "op": "close", "drop": true }));
            lines.push(json!({ "op": "session" }));
            lines.push(json!({ "op": "namespace", "example": true }));
        }
    }
}

/// What came of a line, in one word; anything that may not be fails the test.
fn judge(line: &Value, answer: &Value) -> String {
    assert_eq!(answer["ok"], true, "{line} -> {answer}");
    if let Some(key) = answer["id"].as_u64().filter(|_| answer["hit"] == true) {
        assert_eq!((&answer["matches"], &answer["len"]), (&json!(true), &json!(length(key))), "{line} -> {answer}");
    }
    let word = match answer.get("why").or(answer.get("outcome")) {
        Some(word) => word.as_str().expect("a word"),
        None if answer["hit"] == true => "hit",
        None => "",
    };
    let known = [
        "stored",
        "present",
        "being_written",
        "contended",
        "no_space",
        "bucket_busy",
        "granted",
        "retired",
        "draining",
        "gone",
        "hit",
        "",
    ];
    assert!(known.contains(&word), "{line} -> {answer}");
    format!("{} {word}", line["op"].as_str().expect("an op"))
}

/// Four workers store, load, retire, hold and leave; in every round one of them is killed at a random moment and replaced.
/// The accounts are exact all the while and at the end, when all 64 slots can be filled again.
#[test]
fn accounts_are_exact_over_hundreds_of_deaths() {
    let mut random = Random(seed());
    let scratch = Scratch::new();
    let args = ["--size", "4M", "--slot-bytes", "32K", "--slots", "64", "--sessions", "8"];
    let path = scratch.format("region", &args);
    let mut witness = Shell::at(&path);
    let region = witness.ok(json!({ "op": "open" }));
    assert_eq!((&region["slots"], &region["length"]), (&json!(SLOTS), &json!(4 << 20)));
    witness.join();
    let worker = || {
        let mut shell = Shell::at(&path);
        shell.join();
        shell
    };
    let mut workers: Vec<Shell> = (0..WORKERS).map(|_| worker()).collect();
    let mut seen: BTreeMap<String, u64> = BTreeMap::new();
    for round in 0..rounds(500) {
        let batches: Vec<Vec<Value>> = (0..WORKERS)
            .map(|_| {
                let mut lines = Vec::new();
                while lines.len() < 12 {
                    work(&mut random, &mut lines);
                }
                lines
            })
            .collect();
        let text = |lines: &[Value]| lines.iter().map(Value::to_string).collect::<Vec<_>>().join("\n");
        for (shell, lines) in workers.iter_mut().zip(&batches) {
            shell.send_text(&text(lines));
        }
        let victim = random.next() as usize % WORKERS;
        std::thread::sleep(Duration::from_micros(random.next() % 3000));
        std::mem::replace(&mut workers[victim], worker()).kill();
        for (at, lines) in batches.iter().enumerate().filter(|(at, _)| *at != victim) {
            for line in lines {
                let answer = workers[at].answer();
                *seen.entry(judge(line, &answer)).or_default() += 1;
            }
        }
        // The sum is the capacity at every look, and nothing is more than there is.
        let usage = witness.ok(json!({ "op": "usage" }));
        witness.slots();
        let capacity = usage["capacity_bytes"].as_u64().expect("bytes");
        for (name, count) in usage.as_object().expect("accounts").iter().filter(|(name, _)| name.ends_with("_bytes")) {
            let most = if name == "reserved_bytes" { 4 << 20 } else { capacity };
            assert!(count.as_u64().expect("bytes") <= most, "round {round}: {name} is {count} of {most}");
        }
    }
    eprintln!("{seen:?}");
    for word in ["store stored", "store present", "get hit", "retire retired", "retire draining", "reserve granted"] {
        assert!(seen.contains_key(word), "{word}: {seen:?}");
    }
    for (at, shell) in workers.into_iter().enumerate() {
        if at % 2 == 0 { shell.quit() } else { shell.kill() }
    }
    witness.ok(json!({ "op": "reclaim" }));
    let slots = settled(&mut witness, &path);
    for state in ["claiming", "pending", "writing", "retiring", "quarantined"] {
        assert_eq!(slots[state], 0, "{slots}");
    }
    let stored = (0..KEYS).filter(|key| witness.holds(*key, length(*key), *key)).count();
    assert_eq!(slots["ready"], stored, "what is counted is what is found");
    for key in 0..KEYS {
        witness.retire(key);
    }
    assert_eq!(witness.slots()["free"], SLOTS);
    for key in 0..SLOTS {
        assert_eq!(witness.store(format!("last {key}"), 32 << 10, key), "stored", "all slots fill again");
    }
    assert!((0..SLOTS).all(|key| witness.holds(format!("last {key}"), 32 << 10, key)));
    assert_eq!(settled(&mut witness, &path)["ready"], SLOTS);
}
