//! Two formatters, replaced files.
//!
//! * Symptom: two regions share one name; an attacher takes a just created file for a leftover and removes it; somebody
//!   goes on storing into a region that others have replaced.
//! * Cause: a half-made file is visible under its name; files are made anew in place; nobody compares what the path names
//!   with what is mapped.

use std::collections::BTreeSet;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;

use nix::sys::memfd::{MFdFlags, memfd_create};
use serde_json::json;

use crate::driver::{Scratch, Shell, hash};

const PROCESSES: usize = 8;

#[test]
fn eight_processes_that_attach_or_format_end_up_in_one_region() {
    const ROUNDS: usize = 200;
    let scratch = Scratch::new();
    let args = ["--size", "8M", "--slot-bytes", "64K", "--format", "if-absent"];
    let mut shells: Vec<_> = (0..PROCESSES).map(|_| Shell::start(&args)).collect();
    let mut several_attached = 0;
    for round in 0..ROUNDS {
        let path = scratch.path(&format!("region-{round}"));
        for shell in &mut shells {
            shell.send(&json!({ "op": "open", "region": path }));
        }
        let (mut ids, mut inodes, mut formatted) = (BTreeSet::new(), BTreeSet::new(), 0);
        for shell in &mut shells {
            let opened = shell.answer();
            assert_eq!(opened["ok"], true, "round {round}: {opened}");
            ids.insert(opened["region_id"].to_string());
            inodes.insert(opened["inode"].as_u64().expect("mapped"));
            formatted += usize::from(opened["outcome"] == "formatted");
        }
        assert_eq!((ids.len(), formatted), (1, 1), "round {round}: {ids:?}");
        let named = path.metadata().expect("file").ino();
        assert_eq!(inodes.into_iter().collect::<Vec<_>>(), [named], "round {round}");
        several_attached += usize::from(formatted < PROCESSES);
        std::fs::remove_file(&path).expect("one name");
        assert!(scratch.names().is_empty(), "round {round}: {:?}", scratch.names());
    }
    assert_eq!(several_attached, ROUNDS);
}

/// Symptom: of two hosts that format one device at once, both do, and the first one's users hold a region that is gone.
/// Cause: a formatter looks, loads the format word, and swaps what it then found: a finished region of the other host,
/// which its own life lock does not hold off. Two lock files make two processes as strange to each other as two hosts.
#[test]
fn two_formatters_that_do_not_see_each_others_locks_make_one_region() {
    let scratch = Scratch::new();
    let path = scratch.path("device");
    let mut shells: Vec<_> = ["one", "two"]
        .map(|name| {
            let (path, locks) = (path.display().to_string(), scratch.path(name).display().to_string());
            let args =
                ["--region", &path, "--offset", "0", "--length", "8M", "--lock-file", &locks, "--slot-bytes", "64K"];
            Shell::start(&[&args[..], &["--hosts", "many", "--format", "if-absent"][..]].concat())
        })
        .into();
    let mut formatters = BTreeSet::new();
    for round in 0..150u64 {
        // Blank again, as a device is.
        let file = std::fs::File::create(&path).expect("made");
        file.set_len(16 << 20).expect("size");
        let late = (round % 2) as usize;
        shells[1 - late].send(&json!({ "op": "open" }));
        std::thread::sleep(std::time::Duration::from_micros(round % 5 * 700));
        shells[late].send(&json!({ "op": "open" }));
        let answers: Vec<_> = shells.iter_mut().map(Shell::answer).collect();
        assert!(answers.iter().all(|opened| opened["ok"] == true), "round {round}: {answers:?}");
        let formatted: Vec<_> = (0..2).filter(|at| answers[*at]["outcome"] == "formatted").collect();
        assert_eq!(formatted.len(), 1, "round {round}: {answers:?}");
        assert_eq!(answers[0]["region_id"], answers[1]["region_id"], "round {round}");
        formatters.insert(formatted[0]);
    }
    assert_eq!(formatters.len(), 2, "each of them has won a round");
}

#[test]
fn eight_processes_with_one_inherited_memfd_end_up_in_one_region() {
    for round in 0..8 {
        let memfd = memfd_create("maru-race", MFdFlags::empty()).expect("a memfd");
        let memfd = std::fs::File::from(memfd);
        memfd.set_len(4 << 20).expect("size");
        let number = memfd.as_raw_fd().to_string();
        let args = ["--fd", &number, "--slot-bytes", "64K", "--format", "if-absent"];
        let mut shells: Vec<_> = (0..PROCESSES).map(|_| Shell::start(&args)).collect();
        for shell in &mut shells {
            shell.send(&json!({ "op": "open" }));
        }
        let answers: Vec<_> = shells.iter_mut().map(Shell::answer).collect();
        for opened in &answers {
            assert_eq!(opened["ok"], true, "round {round}: {opened}");
            assert_eq!((&opened["backing"], &opened["region_id"]), (&json!("memfd"), &answers[0]["region_id"]));
        }
        assert_eq!(answers.iter().filter(|opened| opened["outcome"] == "formatted").count(), 1, "round {round}");
        // And it is one region in deed: all join it, and what one stores the last one finds.
        for shell in &mut shells {
            shell.join();
        }
        assert_eq!(shells[0].store(round, 5000, round), "stored");
        assert!(shells[PROCESSES - 1].holds(round, 5000, round));
        // Formatting a memfd anew would be in place, under its users.
        for format in ["force", "replace"] {
            let text = Shell::start(&args).refused(json!({ "op": "open", "format": format }), "in_use");
            assert!(text.contains("8 live session"), "{text}");
        }
    }
}

#[test]
fn a_region_in_use_is_not_formatted_anew_unless_that_is_said() {
    let scratch = Scratch::new();
    let path = scratch.format("region", &["--size", "2M", "--slot-bytes", "4K"]);
    let mut user = Shell::at(&path);
    user.join();
    assert_eq!(user.store("k", 4096, 1), "stored");
    user.ok(json!({ "op": "acquire", "key": "k" }));
    user.ok(json!({ "op": "reserve", "key": "half", "len": 100 }));
    let handle = user.ok(json!({ "op": "acquire", "key": "k" }))["items"][0]["handle"].clone();
    let before = hash(&path);
    let mut other = Shell::with(&path, &["--size", "2M", "--slot-bytes", "4K"]);
    let text = other.refused(json!({ "op": "open", "format": "force" }), "in_use");
    assert!(text.contains("1 live session"), "{text}");
    assert_eq!(hash(&path), before);
    assert!(user.holds("k", 4096, 1));

    let replaced = other.ok(json!({ "op": "open", "format": "replace" }));
    assert_eq!((&replaced["outcome"], &replaced["incarnation"]), (&json!("formatted"), &json!(1)));
    other.join();
    assert_eq!(other.store("theirs", 4096, 2), "stored");
    let after = hash(&path);
    for line in [
        json!({ "op": "probe", "key": "k" }),
        json!({ "op": "probe_prefix", "keys": ["k"] }),
        json!({ "op": "get", "key": "k" }),
        json!({ "op": "load", "lease": "l0" }),
        json!({ "op": "view", "lease": "l0" }),
        json!({ "op": "store", "key": "new", "len": 10, "seed": 1 }),
        json!({ "op": "write", "reservation": "r0", "seed": 1 }),
        json!({ "op": "commit", "reservation": "r0" }),
        json!({ "op": "release", "handle": handle }),
        json!({ "op": "retire", "key": "k" }),
        json!({ "op": "reclaim" }),
        json!({ "op": "heartbeat" }),
        json!({ "op": "namespace", "example": true, "tenant": "new" }),
    ] {
        let text = user.refused(line, "replaced");
        assert!(text.contains("region replaced"), "{text}");
    }
    user.quit();
    assert_eq!(hash(&path), after, "not a byte of the new one");
    assert!(other.holds("theirs", 4096, 2));
    assert_eq!(scratch.names(), ["region"]);
    other.quit();
    // Once nobody is there, force does it.
    let mut next = Shell::with(&path, &["--size", "1M", "--slot-bytes", "4K"]);
    let forced = next.ok(json!({ "op": "open", "format": "force" }));
    assert_eq!((&forced["outcome"], &forced["length"]), (&json!("formatted"), &json!(1 << 20)));
}

#[test]
fn a_path_that_was_removed_and_made_again_is_told_by_the_heartbeat() {
    let scratch = Scratch::new();
    let args = ["--size", "1M", "--slot-bytes", "4K", "--format", "if-absent"];
    let path = scratch.format("region", &args);
    let mut old = Shell::with(&path, &args);
    old.join();
    old.ok(json!({ "op": "heartbeat" }));
    std::fs::remove_file(&path).expect("file");
    let mut new = Shell::with(&path, &args);
    assert_eq!(new.ok(json!({ "op": "open" }))["outcome"], "formatted");
    new.join();
    assert_eq!(new.store("k", 4096, 2), "stored");
    let before = hash(&path);
    // Not told yet: the old one goes on among those who have the old file.
    assert_eq!(old.store("k", 4096, 1), "stored");
    assert_eq!(hash(&path), before);
    let text = old.refused(json!({ "op": "heartbeat" }), "replaced");
    assert!(text.contains("region replaced"), "{text}");
    old.refused(json!({ "op": "store", "key": "more", "len": 9, "seed": 9 }), "replaced");
    old.refused(json!({ "op": "probe", "key": "k" }), "replaced");
    old.quit();
    assert_eq!(hash(&path), before);
    assert!(new.holds("k", 4096, 2));
}
