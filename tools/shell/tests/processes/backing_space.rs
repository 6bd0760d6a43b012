//! No room, wrong places, restarts.
//!
//! * Symptom: a sparse file larger than its mount kills the process at first touch; a region left by a dead engine makes
//!   each restart fail or eats more space; a file on a disk is offered as shared between hosts.
//! * Cause: sizes are set without real pages; "exists" is an error instead of an attach; nobody asks what file system it is.

use serde_json::json;

use crate::driver::{Scratch, Shell, Tmpfs, hash};

#[test]
fn a_mount_without_room_refuses_with_both_numbers_and_keeps_nothing() {
    for (mount, filler, size) in [("1m", 0, "8M"), ("8m", 5 << 20, "6M")] {
        let Some(tmpfs) = Tmpfs::new(mount) else { return };
        if filler > 0 {
            std::fs::write(tmpfs.path("filler"), vec![1; filler]).expect("room for the filler");
        }
        let (names, used) = (tmpfs.names(), tmpfs.used_bytes());
        let path = tmpfs.path("region");
        let mut shell = Shell::with(&path, &["--size", size, "--slot-bytes", "64K", "--format", "if-absent"]);
        let text = shell.refused(json!({ "op": "open" }), "no_space");
        assert!(text.contains("no space: need ") && text.contains("available "), "{text}");
        shell.refused(json!({ "op": "open", "format": "never" }), "not_found");
        drop(shell);
        assert_eq!((tmpfs.names(), tmpfs.used_bytes()), (names, used), "nothing half-made is left");
    }
}

#[test]
fn a_partition_in_a_sparse_file_finds_the_shortage_before_a_signal_does() {
    let Some(tmpfs) = Tmpfs::new("4m") else { return };
    let path = tmpfs.path("region");
    std::fs::File::create(&path).expect("file").set_len(16 << 20).expect("sparse");
    let mut shell = Shell::with(&path, &["--offset", "4M", "--length", "8M", "--slot-bytes", "64K"]);
    let answer = shell.ask(json!({ "op": "open", "format": "if-absent" }));
    assert_eq!(answer["ok"], false, "{answer}");
    assert!(["no_space", "pages_unavailable"].contains(&answer["code"].as_str().expect("a code")), "{answer}");
    // And it is not half a region now.
    shell.refused(json!({ "op": "open", "format": "never" }), "not_formatted");
    shell.quit();
}

#[test]
fn a_killed_process_that_is_started_again_adopts_its_region() {
    let Some(tmpfs) = Tmpfs::new("8m") else { return };
    let path = tmpfs.path("region");
    let args = ["--size", "6M", "--slot-bytes", "64K", "--format", "if-absent"];
    let (mut first, mut used) = (None, 0);
    for run in 0..6 {
        let mut shell = Shell::with(&path, &args);
        let opened = shell.ok(json!({ "op": "open" }));
        let joined = shell.join();
        if run == 0 {
            assert_eq!(opened["outcome"], "formatted");
            first = Some(opened["region_id"].clone());
            used = tmpfs.used_bytes();
        } else {
            assert_eq!(opened["outcome"], "attached");
            assert!(shell.holds(run - 1, 60_000, run - 1), "what the dead one stored");
        }
        assert_eq!(first.as_ref(), Some(&opened["region_id"]));
        assert!(joined["epoch"].as_u64() > Some(run), "newer than its dead selves: {joined}");
        assert_eq!(shell.store(run, 60_000, run), "stored");
        shell.ok(json!({ "op": "reserve", "key": format!("half {run}"), "len": 9 }));
        shell.ok(json!({ "op": "acquire", "key": run }));
        shell.kill();
        assert_eq!(tmpfs.used_bytes(), used, "run {run}");
    }
    let mut last = Shell::with(&path, &args);
    last.join();
    last.ok(json!({ "op": "reclaim" }));
    let slots = last.slots();
    assert_eq!((&slots["ready"], &slots["writing"], &slots["claiming"]), (&json!(6), &json!(0), &json!(0)));
    for key in 0..6 {
        assert_eq!(last.ok(json!({ "op": "retire", "key": key }))["outcome"], "retired", "a dead one's lease is void");
    }
}

#[test]
fn a_directory_is_refused_and_a_disk_is_for_one_host() {
    let scratch = Scratch::on_disk();
    let folder = scratch.path("folder");
    std::fs::create_dir(&folder).expect("folder");
    for format in ["never", "if-absent", "force", "replace"] {
        let text = Shell::at(&folder).refused(json!({ "op": "open", "format": format, "size": "1M" }), "is_directory");
        assert!(text.contains("directory"), "{text}");
    }
    let path = scratch.path("region");
    let args = ["--size", "1M", "--slot-bytes", "4K", "--format", "if-absent"];
    let mut many = Shell::with(&path, &args);
    let text = many.refused(json!({ "op": "open", "hosts": "many" }), "not_shared");
    assert!(text.contains("hosts: many on ordinary file"), "{text}");
    assert_eq!(scratch.names(), ["folder"], "nothing is left of it");
    let mut one = Shell::with(&path, &args);
    let opened = one.ok(json!({ "op": "open" }));
    if opened["backing"] != "ordinary file" {
        eprintln!("SKIPPED: the build folder lies in memory ({}), so no disk was tried", opened["backing"]);
        return;
    }
    assert_eq!(opened["hosts"], "one");
    let mut other = Shell::with(&path, &args);
    one.join();
    other.join();
    assert_eq!(one.store("k", 4096, 1), "stored");
    assert!(other.holds("k", 4096, 1));
    assert_eq!(other.ok(json!({ "op": "retire", "key": "k" }))["outcome"], "retired");
    assert!(!one.probe("k"));
    // A header that says "many hosts" on a disk is refused too, unchanged.
    let memory = Scratch::new();
    let many = memory.format("many", &["--size", "1M", "--slot-bytes", "4K", "--hosts", "many"]);
    let copy = scratch.path("copy");
    std::fs::copy(&many, &copy).expect("room");
    let before = hash(&copy);
    Shell::at(&copy).refused(json!({ "op": "open" }), "not_shared");
    assert_eq!(hash(&copy), before);
}
