//! Handles in a forked child.
//!
//! * Symptom: a worker that a server forks dies of a segmentation fault, or frees what its parent reads; the parent's lock
//!   lives on in a child after the parent is dead.
//! * Cause: handles are plain addresses to the child; destructors run in both; descriptors and locks are inherited.

use serde_json::json;

use crate::driver::{Scratch, Shell};

#[test]
fn a_forked_child_is_told_and_touches_nothing() {
    let scratch = Scratch::new();
    let path = scratch.format("region", &["--size", "1M", "--slot-bytes", "4K", "--stalled-writer-ms", "600000"]);
    for arguments in [&[][..], &["--fault-handler"]] {
        let (mut parent, mut other) = (Shell::with(&path, arguments), Shell::at(&path));
        let index = parent.join()["index"].clone();
        other.join();
        assert_eq!(parent.store("k", 4096, 1), "stored");
        parent.ok(json!({ "op": "acquire", "key": "k" }));
        parent.ok(json!({ "op": "reserve", "key": "half", "len": 4096 }));
        let before = std::fs::read(&path).expect("file");
        for _ in 0..3 {
            let forked = parent.ok(json!({ "op": "fork", "key": "k" }));
            assert_eq!(forked["exit"], json!({ "code": 0 }), "{forked}");
            let child = forked["child"].as_object().expect("a report");
            assert_eq!(child["dropped"], "ok", "everything went out of scope in the child");
            for call in [
                "heartbeat",
                "usage",
                "reclaim",
                "fence",
                "region_session",
                "reader_usage",
                "probe",
                "probe_prefix",
                "reserve",
                "acquire",
                "retire",
                "invalidate",
                "reader_probe",
                "reader_read",
                "load",
                "view",
                "release",
                "resolve",
                "write",
                "expose",
                "commit",
            ] {
                assert_eq!(child[call], "foreign_process", "{call}: {forked}");
            }
        }
        assert!(before == std::fs::read(&path).expect("file"), "not a byte was stored by a child");
        // The parent is who it was: alive to others, protected, able to finish.
        let sessions = other.ok(json!({ "op": "sessions" }));
        let at = index.as_u64().expect("an index") as usize;
        assert_eq!(sessions["items"][at]["liveness"], "alive", "{sessions}");
        other.ok(json!({ "op": "reclaim" }));
        assert_eq!(other.ok(json!({ "op": "probe", "key": "half" }))["miss"], "not_ready");
        assert_eq!(parent.ok(json!({ "op": "load", "lease": "l0", "seed": 1 }))["matches"], true);
        parent.ok(json!({ "op": "write", "reservation": "r0", "seed": 2 }));
        assert_eq!(parent.ok(json!({ "op": "commit", "reservation": "r0" }))["outcome"], "stored");
        assert!(other.holds("half", 4096, 2));
        assert_eq!(other.ok(json!({ "op": "retire", "key": "k" }))["outcome"], "draining", "its lease counts");
        parent.kill();
        // No child keeps its lock: it is dead, and its lease with it.
        assert_eq!(other.ok(json!({ "op": "reclaim" }))["freed_slots"], 1);
        other.ok(json!({ "op": "retire", "key": "half" }));
        assert_eq!(other.slots()["ready"], 0);
    }
}
