//! Lengths and sizes at their edges.
//!
//! * Symptom: a length comes back rounded; zero is accepted and breaks later; a size that is no multiple fails late; a
//!   character device is taken for an empty file and formatted.
//! * Cause: slots are filled to their size; checks come after the first store; "size 0" is read as "nothing there".

use serde_json::json;

use crate::driver::{Scratch, Shell, hash};

#[test]
fn lengths_come_back_exactly_and_neighbours_stay_whole() {
    let scratch = Scratch::new();
    for slot in [64_u64, 4096, 116_992] {
        let path = scratch.format(&format!("slots-{slot}"), &["--size", "4M", "--slot-bytes", &slot.to_string()]);
        let (mut writer, mut reader) = (Shell::at(&path), Shell::at(&path));
        writer.join();
        reader.join();
        let mut lengths = vec![1, 63, 64, 65, 4095, 4096, 4097, slot - 1, slot];
        lengths.retain(|length| *length <= slot);
        // Full slots on both sides of each.
        for (at, length) in lengths.iter().enumerate() {
            assert_eq!(writer.store(format!("before {at}"), slot, at as u64), "stored");
            assert_eq!(writer.store(format!("odd {at}"), *length, 1000 + at as u64), "stored");
            assert_eq!(writer.store(format!("after {at}"), slot, 2000 + at as u64), "stored");
        }
        for (at, length) in lengths.iter().enumerate() {
            assert_eq!(reader.ok(json!({ "op": "probe", "key": format!("odd {at}") }))["len"], *length);
            assert!(reader.holds(format!("before {at}"), slot, at as u64), "{slot}, {length}");
            assert!(reader.holds(format!("odd {at}"), *length, 1000 + at as u64), "{slot}, {length}");
            assert!(reader.holds(format!("after {at}"), slot, 2000 + at as u64), "{slot}, {length}");
        }
        let before = reader.slots();
        let none = writer.ok(json!({ "op": "store", "key": "none", "len": 0, "seed": 0 }));
        assert_eq!((&none["outcome"], &none["why"]), (&json!("refused"), &json!("empty")), "{none}");
        assert!(none["text"].as_str().expect("a text").contains("0 bytes asked for, wanted at least 1"), "{none}");
        for length in [slot + 1, slot * 2, 1 << 31, (1 << 32) + 1, u64::MAX] {
            let large = writer.ok(json!({ "op": "reserve", "key": "large", "len": length }));
            assert_eq!((&large["outcome"], &large["why"]), (&json!("refused"), &json!("too_large")), "{large}");
            let text = large["text"].as_str().expect("a text");
            assert!(text.contains(&length.to_string()) && text.contains(&slot.to_string()), "{text}");
        }
        assert_eq!(reader.slots(), before);
        // The same key with another length is not the same block.
        let other = writer.ok(json!({ "op": "store", "key": "odd 0", "len": 2, "seed": 1000 }));
        assert_eq!(other["why"], "length_mismatch", "{other}");
        assert!(reader.holds("odd 0", lengths[0], 1000));
    }
}

#[test]
fn sizes_that_cannot_be_had_are_refused_with_the_number_wanted() {
    let scratch = Scratch::new();
    let path = scratch.path("region");
    let mut shell = Shell::with(&path, &["--format", "if-absent"]);
    for (wish, code, said) in [
        (json!({ "size": 0 }), "spec", vec!["length_bytes is 0", "multiple of align_bytes (4096)"]),
        (json!({ "size": 1 }), "spec", vec!["length_bytes is 1", "multiple of align_bytes (4096)"]),
        (json!({ "size": 4096 }), "spec", vec!["too small", "4096"]),
        (
            json!({ "size": (10 << 20) + 4096, "align": "2M" }),
            "spec",
            vec!["length_bytes is 10489856", "multiple of align_bytes (2097152)"],
        ),
        (
            json!({ "size": "4M", "offset": "1M", "align": "2M" }),
            "misaligned",
            vec!["offset is 1048576", "multiple of 2097152"],
        ),
        (json!({ "size": "4M", "offset": 100 }), "misaligned", vec!["offset", "100", "multiple of 4096"]),
        (json!({ "size": "4M", "slot_bytes": 0 }), "spec", vec!["slot_bytes is 0", "multiple of 64"]),
        (json!({ "size": "4M", "slot_bytes": 1 }), "spec", vec!["slot_bytes is 1", "multiple of 64"]),
        (json!({ "size": "4M", "slot_bytes": 3 }), "spec", vec!["slot_bytes is 3", "multiple of 64"]),
        (json!({ "size": "4M", "slots": 0 }), "spec", vec!["slots is 0", "at least 1"]),
        (json!({ "size": "4M", "align": 3000 }), "spec", vec!["align_bytes is 3000", "power of two"]),
        (json!({ "size": "4M", "sessions": 0 }), "spec", vec!["sessions is 0", "1 to 4095"]),
        (json!({ "size": "4M", "sessions": 4096 }), "spec", vec!["sessions is 4096", "1 to 4095"]),
        (json!({ "size": u64::MAX }), "spec", vec!["length_bytes is 18446744073709551615"]),
        (json!({}), "size_missing", vec!["size_bytes"]),
    ] {
        let mut line = json!({ "op": "open", "slot_bytes": 4096 });
        line.as_object_mut().expect("an object").extend(wish.as_object().expect("an object").clone());
        let text = shell.refused(line, code);
        for said in said {
            assert!(text.contains(said), "{wish}: {text:?} says {said:?}");
        }
        assert!(scratch.names().is_empty(), "{wish}: {:?}", scratch.names());
    }
    shell.ok(json!({ "op": "open", "size": "4M", "slot_bytes": 116_992 }));
    shell.quit();

    // The same in a file that is there, where a region would be made in place.
    let file = scratch.path("file");
    std::fs::File::create(&file).expect("file").set_len(8 << 20).expect("size");
    let before = hash(&file);
    let mut shell = Shell::with(&file, &["--format", "if-absent", "--slot-bytes", "4K"]);
    for (wish, code, said) in [
        (json!({ "offset": "4M", "length": "8M" }), "out_of_bounds", vec!["4194304", "8388608"]),
        (json!({ "offset": "16M" }), "out_of_bounds", vec!["16777216", "8388608"]),
        (json!({ "offset": "1M", "align": "2M" }), "misaligned", vec!["1048576", "2097152"]),
        (
            json!({ "offset": "4M", "length": (1 << 20) + 1 }),
            "misaligned",
            vec!["length is 1048577", "multiple of 4096"],
        ),
        (json!({ "offset": u64::MAX - 4095, "length": 4096 }), "out_of_bounds", vec!["18446744073709547520"]),
        (json!({ "offset": 4096, "length": u64::MAX - 4095 }), "out_of_bounds", vec!["18446744073709547520"]),
    ] {
        let mut line = json!({ "op": "open" });
        line.as_object_mut().expect("an object").extend(wish.as_object().expect("an object").clone());
        let text = shell.refused(line, code);
        for said in said {
            assert!(text.contains(said), "{wish}: {text:?} says {said:?}");
        }
        assert_eq!((hash(&file), file.metadata().expect("file").len()), (before.clone(), 8 << 20), "{wish}");
    }
    shell.quit();
}

#[test]
fn devices_of_unknown_size_are_refused_and_not_taken_for_empty() {
    for device in ["/dev/zero", "/dev/null"] {
        for format in ["never", "if-absent", "force", "replace"] {
            for mode in ["full", "header-only", "read-only"] {
                if mode == "read-only" && ["force", "replace"].contains(&format) {
                    continue; // Refused for what it is, whatever the path.
                }
                let mut shell = Shell::with(device.as_ref(), &["--format", format, "--mode", mode, "--size", "4M"]);
                let text = shell.refused(json!({ "op": "open" }), "wrong_file_type");
                assert!(text.contains("character device of unknown size"), "{device}, {format}, {mode}: {text}");
                shell.quit();
            }
        }
    }
}
