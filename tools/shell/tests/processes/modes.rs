//! Header-only and read-only.
//!
//! * Symptom: a scheduler on a small machine cannot ask because the whole payload is mapped; an inspector changes what it
//!   inspects.
//! * Cause: there is one way to map; looking takes a table entry or sets a byte.

use std::process::Command;

use serde_json::json;

use crate::driver::{Scratch, Shell, hash};

#[test]
fn header_only_never_maps_payload_and_fits_below_its_size() {
    let scratch = Scratch::new();
    let path = scratch.format("region", &["--size", "256M", "--slot-bytes", "64K"]);
    let mut writer = Shell::at(&path);
    writer.join();
    for key in 0..100 {
        assert_eq!(writer.store(key, 60_000, key), "stored");
    }
    // 128 MiB of addresses, below the payload: the whole cannot be mapped, the header can.
    let limited = |mode: &str| {
        let mut command = Command::new("sh");
        command.args(["-c", "ulimit -v 131072 && exec \"$0\" \"$@\""]).arg(env!("CARGO_BIN_EXE_maru-shell"));
        command.arg("--region").arg(&path).args(["--mode", mode, "--role", "scheduler"]);
        Shell::spawn(command)
    };
    let answer = limited("full").ask(json!({ "op": "open" }));
    assert_eq!(answer["ok"], false, "the limit binds: {answer}");
    let mut scheduler = limited("header-only");
    let header = scheduler.ok(json!({ "op": "open" }))["header"].as_u64().expect("bytes");
    scheduler.join();
    for key in 0..100 {
        assert!(scheduler.probe(key), "{key}");
    }
    assert!(!scheduler.probe(100));
    let keys: Vec<u64> = (0..150).collect();
    assert_eq!(scheduler.ok(json!({ "op": "probe_prefix", "keys": keys }))["run"], 100);
    for line in [
        json!({ "op": "get", "key": 1 }),
        json!({ "op": "acquire", "key": 1 }),
        json!({ "op": "store", "key": "new", "len": 1, "seed": 1 }),
        json!({ "op": "reserve", "key": "new", "len": 1 }),
    ] {
        let text = scheduler.refused(line, "no_payload");
        assert!(text.contains("header-only"), "{text}");
    }
    let maps = scheduler.ok(json!({ "op": "maps" }));
    let items = maps["items"].as_array().expect("a list");
    assert!(!items.is_empty());
    for range in items {
        let end = range["offset"].as_u64().expect("bytes") + range["bytes"].as_u64().expect("bytes");
        assert!(end <= header, "{range} reaches into the payload at {header}");
    }
    // The same question to a full one, so that the check above is known to see payload.
    let full = writer.ok(json!({ "op": "maps" }));
    let widest = full["items"].as_array().expect("a list").iter().map(|range| range["bytes"].as_u64()).max();
    assert_eq!(widest, Some(Some(256 << 20)));
    // What it may do: retire, which touches the tables alone.
    assert_eq!(scheduler.ok(json!({ "op": "retire", "key": 5 }))["outcome"], "retired");
    assert!(!writer.probe(5));
    scheduler.quit();
}

#[test]
fn read_only_changes_nothing_and_joins_nothing() {
    let scratch = Scratch::new();
    let path = scratch.format("region", &["--size", "2M", "--slot-bytes", "4K"]);
    let mut writer = Shell::at(&path);
    writer.join();
    for key in 0..50 {
        assert_eq!(writer.store(key, 3000, key), "stored");
    }
    let before = hash(&path);
    let mut reader = Shell::with(&path, &["--mode", "read-only"]);
    reader.ok(json!({ "op": "open" }));
    let text = reader.refused(json!({ "op": "session" }), "read_only");
    assert!(text.contains("read-only"), "{text}");
    reader.refused(json!({ "op": "namespace", "example": true, "tenant": "nobody" }), "absent");
    reader.ok(json!({ "op": "namespace", "example": true }));
    for key in 0..60 {
        assert_eq!(reader.probe(key), key < 50);
        assert_eq!(reader.holds(key, 3000, key), key < 50);
    }
    let keys: Vec<u64> = (0..60).collect();
    assert_eq!(reader.ok(json!({ "op": "probe_prefix", "keys": keys }))["run"], 50);
    assert_eq!(reader.slots()["ready"], 50);
    let sessions = reader.ok(json!({ "op": "sessions" }));
    let alive = sessions["items"].as_array().expect("a list").iter().filter(|item| item["liveness"] == "alive").count();
    assert_eq!(alive, 1, "the writer and nobody else: {sessions}");
    for range in reader.ok(json!({ "op": "maps" }))["items"].as_array().expect("a list") {
        assert!(range["permissions"].as_str().expect("text").starts_with("r-"), "{range}");
    }
    reader.refused(json!({ "op": "store", "key": 1, "len": 1, "seed": 1 }), "no_session");
    reader.quit();
    assert_eq!(hash(&path), before);
    // Not even where it is told to format.
    for format in ["if-absent", "force", "replace"] {
        let mut shell = Shell::with(&path, &["--mode", "read-only", "--format", format, "--size", "2M"]);
        if format == "if-absent" {
            assert_eq!(shell.ok(json!({ "op": "open" }))["outcome"], "attached");
        } else {
            let text = shell.refused(json!({ "op": "open" }), "read_only");
            assert!(text.contains("read-only"), "{text}");
        }
        drop(shell);
        assert_eq!(hash(&path), before, "{format}");
    }
    writer.ok(json!({ "op": "heartbeat" }));
    let missing = scratch.path("missing");
    for format in ["never", "if-absent", "force", "replace"] {
        let answer = Shell::with(&missing, &["--mode", "read-only", "--format", format, "--size", "2M"])
            .ask(json!({ "op": "open" }));
        assert_eq!(answer["ok"], false, "{format}: {answer}");
        assert!(!missing.exists(), "{format}");
    }
}
