//! A hit that is gone before the load.
//!
//! * Symptom: a hit is reported, the load fails, the hit is never withdrawn, and the request tries again for ever.
//! * Cause: the answer to a lookup is kept although nothing protects it, or a failed load does not make the next lookup a
//!   miss.

use serde_json::json;

use crate::driver::{Scratch, Shell};

#[test]
fn a_block_retired_between_lookup_and_load_is_a_miss_from_then_on() {
    let scratch = Scratch::new();
    let path = scratch.format("region", &["--size", "1M", "--slot-bytes", "4K"]);
    let (mut reader, mut other) = (Shell::at(&path), Shell::at(&path));
    reader.join();
    other.join();
    for round in 0..100 {
        assert_eq!(other.store("k", 4000, round), "stored");
        assert!(reader.probe("k"));
        assert_eq!(other.ok(json!({ "op": "retire", "key": "k" }))["outcome"], "retired");
        // The slot may be another's by now; its bytes are not to be had under the old key.
        assert_eq!(other.store(format!("other {round}"), 4000, 7), "stored");
        let load = reader.ok(json!({ "op": "get", "key": "k", "seed": round }));
        assert_eq!(load["hit"], false, "{load}");
        let miss = load["miss"].as_str().expect("a reason");
        assert!(["absent", "vanished"].contains(&miss), "{load}");
        assert!(!reader.probe("k"));
        assert_eq!(reader.ok(json!({ "op": "probe_prefix", "keys": ["k"] }))["run"], 0);
        assert!(reader.holds(format!("other {round}"), 4000, 7));
        other.ok(json!({ "op": "retire", "key": format!("other {round}") }));
    }
    assert_eq!(reader.ok(json!({ "op": "held" }))["leases"], 0);
    assert_eq!(reader.slots()["ready"], 0);
}

#[test]
fn a_block_retired_under_a_lease_is_read_whole_and_found_by_nobody_else() {
    let scratch = Scratch::new();
    let path = scratch.format("region", &["--size", "1M", "--slot-bytes", "4K"]);
    let (mut reader, mut other) = (Shell::at(&path), Shell::at(&path));
    reader.join();
    other.join();
    for round in 0..100 {
        assert_eq!(other.store("k", 4000, round), "stored");
        let lease = reader.ok(json!({ "op": "acquire", "key": "k" }))["items"][0]["lease"].clone();
        assert_eq!(other.ok(json!({ "op": "retire", "key": "k" }))["outcome"], "draining");
        assert!(!other.probe("k") && !reader.probe("k"));
        let load = reader.ok(json!({ "op": "load", "lease": lease, "seed": round }));
        assert_eq!(load["matches"], true, "{load}");
        assert_eq!(reader.ok(json!({ "op": "release", "lease": lease }))["outcome"], "released");
        assert_eq!(other.ok(json!({ "op": "reclaim" }))["freed_slots"], 1);
    }
    let slots = reader.slots();
    assert_eq!((&slots["ready"], &slots["retiring"]), (&json!(0), &json!(0)));
}
