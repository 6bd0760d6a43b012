//! Files that are shorter or longer than their region.
//!
//! * Symptom: a process dies of a bus error, or an empty file is taken for a new region.
//! * Cause: the size in the header is believed and mapped although the file ends earlier; or the file is cut while it is
//!   mapped and nobody asks for its size again.

use std::fs::OpenOptions;

use serde_json::json;

use crate::driver::{Scratch, Shell, hash};

const FULL: u64 = 8 << 20;

#[test]
fn a_file_that_was_cut_is_refused_with_both_numbers() {
    let scratch = Scratch::new();
    let whole = scratch.format("whole", &["--size", "8M", "--slot-bytes", "64K"]);
    let mut writer = Shell::at(&whole);
    writer.join();
    for key in 0..4 {
        assert_eq!(writer.store(key, 64 << 10, key), "stored");
    }
    writer.quit();
    let header: u64 = {
        let mut shell = Shell::at(&whole);
        shell.ok(json!({ "op": "open" }))["header"].as_u64().expect("bytes")
    };
    for have in [0, 1, 63, 4095, 4096, header, 4 << 20, FULL - 1] {
        let cut = scratch.path(&format!("cut-{have}"));
        std::fs::copy(&whole, &cut).expect("room");
        OpenOptions::new().write(true).open(&cut).expect("file").set_len(have).expect("cut");
        let before = hash(&cut);
        // Below a page there is no header to say more.
        let need = if have < 4096 { 4096 } else { FULL };
        for mode in ["full", "read-only", "header-only"] {
            let mut shell = Shell::with(&cut, &["--mode", mode]);
            let text = shell.refused(json!({ "op": "open" }), "too_short");
            let wanted = format!("region shorter than its header says (need {need} bytes, have {have})");
            assert!(text.contains(&wanted), "{mode}, {have}: {text}");
            shell.refused(json!({ "op": "session" }), "too_short");
        }
        if have > 0 {
            // Something is there; "if absent" does not make it new either.
            let answer = Shell::at(&cut).ask(json!({ "op": "open", "format": "if-absent", "size": "8M" }));
            assert_eq!(answer["ok"], false, "{have}: {answer}");
        }
        assert_eq!((hash(&cut), cut.metadata().expect("file").len()), (before, have));
    }
}

#[test]
fn a_file_that_was_grown_opens_at_the_size_in_its_header() {
    let scratch = Scratch::new();
    let path = scratch.format("region", &["--size", "8M", "--slot-bytes", "64K"]);
    let mut writer = Shell::at(&path);
    writer.join();
    assert_eq!(writer.store("k", 64 << 10, 1), "stored");
    OpenOptions::new().write(true).open(&path).expect("file").set_len(12 << 20).expect("grown");
    let mut reader = Shell::at(&path);
    assert_eq!(reader.ok(json!({ "op": "open" }))["length"], FULL);
    reader.join();
    assert!(reader.holds("k", 64 << 10, 1));
    assert!(writer.holds("k", 64 << 10, 1));
}

#[test]
fn a_file_cut_under_two_processes_is_told_and_kills_neither() {
    let scratch = Scratch::new();
    let path = scratch.format("region", &["--size", "8M", "--slot-bytes", "64K"]);
    let mut shells: Vec<_> = (0..2).map(|_| Shell::with(&path, &["--fault-handler"])).collect();
    for shell in &mut shells {
        shell.join();
    }
    let slots = shells[0].slots()["free"].as_u64().expect("a count");
    assert!(slots > 100, "low and high slots: {slots}");
    for key in 0..slots - 4 {
        assert_eq!(shells[0].store(key, 64 << 10, key), "stored");
    }
    let (low, high) = (0, slots - 5);
    for shell in &mut shells {
        shell.ok(json!({ "op": "acquire", "keys": [low, high] }));
        shell.ok(json!({ "op": "reserve", "key": format!("r{}", shell.pid()), "len": 10 }));
    }
    let file = OpenOptions::new().write(true).open(&path).expect("file");
    file.set_len(4 << 20).expect("cut");
    for shell in &mut shells {
        for key in [low, high] {
            // A lookup makes no system call; what it says about the header is still true.
            assert!(shell.probe(key), "the header is there");
            let text = shell.refused(json!({ "op": "get", "key": key }), "resized");
            assert!(text.contains("region changed size: mapped 8388608 bytes, the backing has 4194304"), "{text}");
        }
        for lease in ["l0", "l1"] {
            shell.refused(json!({ "op": "load", "lease": lease }), "resized");
            shell.refused(json!({ "op": "view", "lease": lease }), "resized");
        }
        shell.refused(json!({ "op": "store", "key": "new", "len": 9, "seed": 9 }), "resized");
        shell.refused(json!({ "op": "heartbeat" }), "resized");
        // A write goes into a slot that was looked at when it was reserved; it may be the one that meets the hole. What
        // a commit says then is that nobody knows.
        let write = shell.ask(json!({ "op": "write", "reservation": "r0", "seed": 1 }));
        assert!(["lost", "resized"].contains(&write["code"].as_str().expect("a code")), "{write}");
        let commit = shell.ask(json!({ "op": "commit", "reservation": "r0" }));
        let word = commit["code"].as_str().or(commit["outcome"].as_str()).expect("a word");
        assert!(["lost", "resized", "unknown"].contains(&word), "{commit}");
    }
    // Now also the tables, down to pages that every call looks at.
    for left in [8192, 4096, 0] {
        file.set_len(left).expect("cut");
        for shell in &mut shells {
            for op in ["probe", "get", "retire"] {
                let answer = shell.ask(json!({ "op": op, "key": low }));
                assert_eq!(answer["ok"], false, "{left} bytes left, {op}: {answer}");
                let code = answer["code"].as_str().expect("a code");
                assert!(["lost", "resized"].contains(&code), "{left} bytes left, {op}: {answer}");
            }
            let answer = shell.ask(json!({ "op": "probe_prefix", "keys": [low, high] }));
            assert_eq!(answer["code"], "lost", "{left} bytes left: {answer}");
            let answer = shell.ask(json!({ "op": "usage" }));
            assert_eq!(answer["code"], "lost", "{left} bytes left: {answer}");
        }
    }
    for shell in shells {
        shell.quit();
    }
}
