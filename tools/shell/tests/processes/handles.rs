//! Tokens and handles: second, foreign, made up.
//!
//! * Symptom: counts go below zero through a second release; somebody else's release takes my protection away; a guessed
//!   token changes the fate of a block.
//! * Cause: things are released by key, or by a number that anybody can name.

use serde_json::json;

use crate::driver::{Random, Scratch, Shell, seed};

#[test]
fn only_the_holder_releases_and_only_once() {
    let mut random = Random(seed());
    let scratch = Scratch::new();
    let path = scratch.format("region", &["--size", "1M", "--slot-bytes", "4K"]);
    let (mut holder, mut other) = (Shell::at(&path), Shell::at(&path));
    holder.join();
    other.join();
    assert_eq!(other.store("k", 4096, 1), "stored");
    let acquire = |shell: &mut Shell| {
        let items = shell.ok(json!({ "op": "acquire", "key": "k" }))["items"].clone();
        (items[0]["lease"].clone(), items[0]["handle"].as_str().expect("a handle").to_owned())
    };
    let (_, mine) = acquire(&mut holder);
    let (second_lease, second) = acquire(&mut holder);
    let (_, theirs) = acquire(&mut other);
    assert_eq!(holder.ok(json!({ "op": "held" }))["leases"], 2);

    let not_held = |shell: &mut Shell, handle: &str, leases: u64| {
        assert_eq!(shell.ok(json!({ "op": "release", "handle": handle }))["outcome"], "not_held", "{handle}");
        assert_eq!(shell.ok(json!({ "op": "held" }))["leases"], leases, "{handle}");
    };
    not_held(&mut holder, &theirs, 2);
    not_held(&mut other, &mine, 1);
    not_held(&mut other, &second, 1);
    for _ in 0..200 {
        not_held(&mut holder, &random.hex(32), 2);
    }
    // Made up from a good one: each byte wrong in turn, also the session that it names.
    for at in 0..32 {
        let mut forged = mine.clone();
        let digit = if &forged[2 * at..2 * at + 1] == "f" { "0" } else { "f" };
        forged.replace_range(2 * at..2 * at + 1, digit);
        not_held(&mut holder, &forged, 2);
    }
    for bytes in ["00".repeat(32), "ff".repeat(32)] {
        not_held(&mut holder, &bytes, 2);
    }
    // All that changed nothing: the block is still protected, by both.
    assert_eq!(other.ok(json!({ "op": "release", "handle": theirs }))["outcome"], "released");
    assert_eq!(other.ok(json!({ "op": "retire", "key": "k" }))["outcome"], "draining");
    assert_eq!(other.ok(json!({ "op": "reclaim" }))["draining_slots"], 1);
    assert_eq!(holder.ok(json!({ "op": "release", "handle": mine }))["outcome"], "released");
    not_held(&mut holder, &mine, 1);
    assert_eq!(other.ok(json!({ "op": "reclaim" }))["draining_slots"], 1, "one lease is left");
    let loaded = holder.ok(json!({ "op": "load", "lease": second_lease, "seed": 1 }));
    assert_eq!(loaded["matches"], true);
    assert_eq!(holder.ok(json!({ "op": "release", "lease": second_lease }))["outcome"], "released");
    not_held(&mut holder, &second, 0);
    assert_eq!(other.ok(json!({ "op": "reclaim" }))["freed_slots"], 1);
    // After the block is gone and its slot is another's.
    assert_eq!(other.store("next", 4096, 2), "stored");
    not_held(&mut holder, &mine, 0);
    not_held(&mut holder, &second, 0);
    assert!(holder.holds("next", 4096, 2));
    assert_eq!(holder.slots()["ready"], 1);
    // A handle that was given away outlives its name, and keeps the session from closing.
    holder.ok(json!({ "op": "acquire", "key": "next" }));
    let detached = holder.ok(json!({ "op": "detach", "lease": "l2" }))["handle"].clone();
    let text = holder.refused(json!({ "op": "close" }), "still_held");
    assert!(text.contains("1 lease(s)"), "{text}");
    assert_eq!(holder.ok(json!({ "op": "release", "handle": detached }))["outcome"], "released");
    holder.ok(json!({ "op": "close" }));
}

#[test]
fn any_token_gets_an_answer_and_changes_nothing() {
    let mut random = Random(seed());
    let scratch = Scratch::new();
    let path = scratch.format("region", &["--size", "1M", "--slot-bytes", "4K"]);
    let elsewhere = scratch.format("elsewhere", &["--size", "1M", "--slot-bytes", "4K"]);
    let (mut writer, mut asker, mut stranger) = (Shell::at(&path), Shell::at(&path), Shell::at(&elsewhere));
    for shell in [&mut writer, &mut asker, &mut stranger] {
        shell.join();
    }
    let reserved = writer.ok(json!({ "op": "reserve", "key": "k", "len": 100 }));
    let token = reserved["token"].as_str().expect("a token").to_owned();
    let outcome = |shell: &mut Shell, token: &str| {
        shell.ok(json!({ "op": "resolve", "token": token }))["outcome"].as_str().expect("a word").to_owned()
    };
    assert_eq!(outcome(&mut asker, &token), "unknown", "not decided yet");
    assert_eq!(outcome(&mut stranger, &token), "generation_gone", "another region's");
    let before = asker.slots();
    for _ in 0..200 {
        assert_eq!(outcome(&mut asker, &random.hex(28)), "generation_gone");
        // This region, any slot, any generation.
        assert_eq!(outcome(&mut asker, &format!("{}{}", &token[..32], random.hex(12))), "generation_gone");
    }
    for edge in ["00".repeat(12), "ff".repeat(12), format!("{}{}", "ff".repeat(4), "00".repeat(8))] {
        assert_eq!(outcome(&mut asker, &format!("{}{edge}", &token[..32])), "generation_gone");
    }
    assert_eq!(asker.slots(), before);
    writer.ok(json!({ "op": "write", "reservation": "r0", "seed": 5 }));
    assert_eq!(writer.ok(json!({ "op": "commit", "reservation": "r0" }))["outcome"], "stored");
    for shell in [&mut writer, &mut asker] {
        assert_eq!(outcome(shell, &token), "already_stored");
    }
    assert_eq!(writer.ok(json!({ "op": "commit", "reservation": "r0" }))["outcome"], "already_stored");
    assert!(asker.holds("k", 100, 5));
    asker.ok(json!({ "op": "retire", "key": "k" }));
    assert_eq!(outcome(&mut asker, &token), "generation_gone");
    let aborted = writer.ok(json!({ "op": "reserve", "key": "k2", "len": 100 }));
    writer.ok(json!({ "op": "abort", "reservation": "r1" }));
    assert_eq!(outcome(&mut asker, aborted["token"].as_str().expect("a token")), "generation_gone");
}
