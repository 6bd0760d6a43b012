//! Several regions in one file; configurations.
//!
//! * Symptom: one region's bytes show up in another, or formatting one destroys its neighbour; engines with different
//!   element types read each other's blocks.
//! * Cause: offsets count from the file instead of the partition; a file is replaced as a whole; a configuration is
//!   compared as one blob, or never.

use std::path::{Path, PathBuf};

use serde_json::json;

use crate::driver::{Scratch, Shell};

const HALF: usize = 4 << 20;
const LOW: [&str; 4] = ["--offset", "0", "--length", "4M"];
const HIGH: [&str; 4] = ["--offset", "4M", "--length", "4M"];

fn sized(scratch: &Scratch) -> PathBuf {
    let path = scratch.path("both");
    std::fs::File::create(&path).expect("file").set_len(2 * HALF as u64).expect("size");
    path
}

fn shell(path: &Path, partition: &[&str], format: &str) -> Shell {
    let mut args = partition.to_vec();
    args.extend(["--slot-bytes", "4K", "--format", format]);
    Shell::with(path, &args)
}

#[test]
fn two_partitions_of_a_file_know_nothing_of_each_other() {
    for order in [[LOW, HIGH], [HIGH, LOW]] {
        let scratch = Scratch::new();
        let path = sized(&scratch);
        let mut first = shell(&path, &order[0], "if-absent");
        let opened = first.ok(json!({ "op": "open" }));
        assert_eq!((&opened["outcome"], &opened["length"]), (&json!("formatted"), &json!(HALF)));
        first.join();
        for key in 0..100 {
            assert_eq!(first.store(key, 4096, key), "stored");
        }
        let mut second = shell(&path, &order[1], "if-absent");
        let other = second.ok(json!({ "op": "open" }));
        assert_eq!((&other["outcome"], &other["length"]), (&json!("formatted"), &json!(HALF)));
        assert_ne!(other["region_id"], opened["region_id"]);
        assert_eq!(other["inode"], opened["inode"], "one file");
        assert_eq!(path.metadata().expect("file").len(), 2 * HALF as u64, "as long as it was");
        first.ok(json!({ "op": "heartbeat" }));
        second.join();
        let snapshot = |low: bool| {
            let bytes = std::fs::read(&path).expect("file");
            if low { bytes[..HALF].to_vec() } else { bytes[HALF..].to_vec() }
        };
        let first_is_low = order[0] == LOW;
        let before = snapshot(first_is_low);
        for key in 0..200 {
            assert!(!second.probe(key) || key < 100, "{key}");
            assert_eq!(second.store(key, 4000, key + 1000), "stored");
        }
        for key in 0..50 {
            second.ok(json!({ "op": "retire", "key": key }));
        }
        second.ok(json!({ "op": "invalidate" }));
        second.quit();
        assert!(before == snapshot(first_is_low), "not a byte of the first partition moved");
        for key in 0..200 {
            assert_eq!(first.holds(key, 4096, key), key < 100, "{key}");
        }
        // Both are there for whoever comes later.
        for (partition, id) in [(order[0], &opened["region_id"]), (order[1], &other["region_id"])] {
            let mut later = shell(&path, &partition, "never");
            assert_eq!(&later.ok(json!({ "op": "open" }))["region_id"], id);
        }
    }
}

#[test]
fn partitions_that_overlap_are_refused() {
    let scratch = Scratch::new();
    let path = sized(&scratch);
    let mut high = shell(&path, &HIGH, "if-absent");
    high.join();
    assert_eq!(high.store("k", 4096, 7), "stored");
    let before = std::fs::read(&path).expect("file");
    for partition in [["--offset", "2M", "--length", "4M"], ["--offset", "0", "--length", "6M"]] {
        for format in ["if-absent", "force"] {
            let text = shell(&path, &partition, format).refused(json!({ "op": "open" }), "overlap");
            assert!(text.contains("overlaps the region at 4194304+4194304"), "{text}");
        }
    }
    // The whole file, as a region of its own, would lie over the partition as well.
    for format in ["if-absent", "force", "replace"] {
        let answer = shell(&path, &["--size", "8M"], format).ask(json!({ "op": "open" }));
        assert_eq!(answer["code"], "overlap", "{format}: {answer}");
    }
    // Inside of it.
    let answer = shell(&path, &["--offset", "5M", "--length", "1M"], "if-absent").ask(json!({ "op": "open" }));
    assert_eq!(answer["code"], "overlap", "{answer}");
    assert!(std::fs::read(&path).expect("file") == before, "refused means unchanged");
    high.ok(json!({ "op": "heartbeat" }));
    assert!(high.holds("k", 4096, 7));
}

#[test]
fn a_forced_partition_leaves_its_neighbour_alone() {
    let scratch = Scratch::new();
    let path = sized(&scratch);
    let mut high = shell(&path, &HIGH, "if-absent");
    high.join();
    assert_eq!(high.store("k", 4096, 7), "stored");
    let mut low = shell(&path, &LOW, "if-absent");
    let first = low.ok(json!({ "op": "open" }))["region_id"].clone();
    low.quit();
    for format in ["force", "replace"] {
        let mut low = shell(&path, &LOW, format);
        let again = low.ok(json!({ "op": "open" }));
        assert_eq!(again["outcome"], "formatted", "{format}");
        assert_ne!(again["region_id"], first, "{format}");
        low.quit();
        high.ok(json!({ "op": "heartbeat" }));
        assert!(high.holds("k", 4096, 7), "{format}");
    }
}

#[test]
fn a_configuration_that_differs_is_named_by_its_field() {
    let scratch = Scratch::new();
    let config = r#"{"dtype":"bf16","kv":{"heads":4}}"#;
    let path = scratch.format("region", &["--size", "1M", "--slot-bytes", "4K", "--config", config]);
    for (yours, said) in [
        (json!({ "dtype": "fp8", "kv": { "heads": 4 } }), "dtype: region bf16, yours fp8"),
        (json!({ "dtype": "bf16", "kv": { "heads": 8 } }), "kv.heads: region 4, yours 8"),
        (json!({ "dtype": "bf16" }), "kv: region {\"heads\":4}, yours absent"),
        (json!({ "dtype": "bf16", "kv": { "heads": 4 }, "x": 1 }), "x: region absent, yours 1"),
    ] {
        for mode in ["full", "header-only", "read-only"] {
            let text = Shell::at(&path).refused(json!({ "op": "open", "mode": mode, "config": yours }), "config");
            assert!(text.contains(said), "{text}");
        }
    }
    let text = Shell::at(&path).refused(json!({ "op": "open", "config": "[1]" }), "bad_config");
    assert!(text.contains("found an array"), "{text}");
    let mut same = Shell::at(&path);
    same.ok(json!({ "op": "open", "config": { "kv": { "heads": 4 }, "dtype": "bf16" } }));
    same.ok(json!({ "op": "open" }));
}
