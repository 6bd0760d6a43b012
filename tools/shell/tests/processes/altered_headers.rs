//! Versions, features, byte order, alignment, checksums.
//!
//! * Symptom: a region of another version, byte order or page size fails as a vague internal error, or opens and finds
//!   nothing.
//! * Cause: the header is compared as a whole, or not at all, and geometry comes from the host instead of the header.

use std::path::PathBuf;

use bytemuck::{bytes_of, pod_read_unaligned};
use maru_layout::superblock::Superblock;
use serde_json::json;

use crate::driver::{Scratch, Shell, hash};

const PAGE: usize = 4096;

struct Altered {
    name: &'static str,
    change: fn(&mut Superblock),
    /// Whether the checksum is made right again, as a different writer's would be.
    sealed: bool,
    codes: &'static [&'static str],
    /// All of them are in the message: field, value found, range.
    says: &'static [&'static str],
    read_only_too: bool,
}

const ALTERED: &[Altered] = &[
    Altered {
        name: "version 2",
        change: |sb| sb.format_version += 1,
        sealed: true,
        codes: &["version"],
        says: &["format_version is 2", "1 to 1"],
        read_only_too: true,
    },
    Altered {
        name: "version 0",
        change: |sb| sb.format_version -= 1,
        sealed: false,
        codes: &["version"],
        says: &["format_version is 0", "1 to 1"],
        read_only_too: true,
    },
    Altered {
        name: "unknown read feature",
        change: |sb| sb.features_read |= 1 << 40,
        sealed: true,
        codes: &["feature"],
        says: &["features_read", "0x10000000000", "0x10000000001", "knows 0x1"],
        read_only_too: true,
    },
    Altered {
        name: "unknown write feature",
        change: |sb| sb.features_write |= 1 << 41,
        sealed: true,
        codes: &["feature"],
        says: &["features_write", "0x20000000000", "this build knows 0x"],
        // A reader need not know what writers must.
        read_only_too: false,
    },
    Altered {
        name: "magic reversed",
        change: |sb| sb.magic.reverse(),
        sealed: true,
        codes: &["magic"],
        says: &["magic is [1a, 0a, 0d, 55", "wanted [89, 4d"],
        read_only_too: true,
    },
    Altered {
        name: "integers of the other byte order",
        change: |sb| {
            sb.byte_order = sb.byte_order.swap_bytes();
            sb.format_version = sb.format_version.swap_bytes();
            sb.features_read = sb.features_read.swap_bytes();
            sb.page_bytes = sb.page_bytes.swap_bytes();
            sb.align_bytes = sb.align_bytes.swap_bytes();
            sb.length_bytes = sb.length_bytes.swap_bytes();
            sb.slot_count = sb.slot_count.swap_bytes();
        },
        sealed: true,
        codes: &["byte_order"],
        says: &["byte_order is 0x0d0c0b0a", "wanted 0x0a0b0c0d", "big-endian"],
        read_only_too: true,
    },
    Altered {
        name: "align 16 KiB",
        change: |sb| sb.align_bytes = 16 << 10,
        sealed: false,
        codes: &["field", "checksum"],
        says: &["align_bytes"],
        read_only_too: true,
    },
    Altered {
        name: "align 2 MiB",
        change: |sb| sb.align_bytes = 2 << 20,
        sealed: true,
        codes: &["field"],
        says: &["header_bytes is", "align_bytes", "2097152"],
        read_only_too: true,
    },
    Altered {
        name: "align 3000",
        change: |sb| sb.align_bytes = 3000,
        sealed: true,
        codes: &["field"],
        says: &["align_bytes is 3000", "power of two"],
        read_only_too: true,
    },
    Altered {
        name: "checksum",
        change: |sb| sb.checksum ^= 0x10,
        sealed: false,
        codes: &["checksum"],
        says: &["checksum is 0x", "give 0x"],
        read_only_too: true,
    },
    Altered {
        name: "seed without checksum",
        change: |sb| sb.hash_seed ^= 1,
        sealed: false,
        codes: &["checksum"],
        says: &["checksum is 0x", "hash_seed"],
        read_only_too: true,
    },
    Altered {
        name: "slots beyond the payload",
        change: |sb| sb.slot_count += 1,
        sealed: true,
        codes: &["field"],
        says: &["slot_count"],
        read_only_too: true,
    },
];

fn region_with_keys(scratch: &Scratch, name: &str, args: &[&str]) -> PathBuf {
    let path = scratch.format(name, args);
    let mut writer = Shell::at(&path);
    writer.join();
    for key in 0..16 {
        assert_eq!(writer.store(key, 4096, key), "stored");
    }
    writer.quit();
    path
}

#[test]
fn each_altered_header_is_refused_by_the_field_that_was_altered() {
    let scratch = Scratch::new();
    let good = region_with_keys(&scratch, "good", &["--size", "4M", "--slot-bytes", "4K"]);
    let bytes = std::fs::read(&good).expect("file");
    for case in ALTERED {
        let mut superblock: Superblock = pod_read_unaligned(&bytes[..PAGE]);
        (case.change)(&mut superblock);
        if case.sealed {
            superblock = superblock.sealed();
        }
        let mut altered = bytes.clone();
        altered[..PAGE].copy_from_slice(bytes_of(&superblock));
        let path = scratch.path("altered");
        std::fs::write(&path, &altered).expect("room");
        let before = hash(&path);
        for (mode, format) in
            [("full", "never"), ("header-only", "never"), ("read-only", "never"), ("full", "if-absent")]
        {
            let answer = Shell::at(&path).ask(json!({ "op": "open", "mode": mode, "format": format, "size": "4M" }));
            if mode == "read-only" && !case.read_only_too {
                assert_eq!(answer["ok"], true, "{}: {answer}", case.name);
                continue;
            }
            assert_eq!(answer["ok"], false, "{}, {mode}, {format}: {answer}", case.name);
            if format == "if-absent" && case.codes == ["magic"] {
                // Not a region at all: "if absent" refuses to write over it.
                assert_eq!(answer["code"], "not_blank", "{}: {answer}", case.name);
                continue;
            }
            let code = answer["code"].as_str().expect("a code");
            assert!(case.codes.contains(&code), "{}, {mode}, {format}: {answer}", case.name);
            let text = answer["error"].as_str().expect("a text");
            for said in case.says {
                assert!(text.contains(said), "{}, {mode}: {text:?} says {said:?}", case.name);
            }
        }
        assert_eq!(hash(&path), before, "{}", case.name);
    }
}

#[test]
fn regions_of_other_alignments_open_with_every_key() {
    let scratch = Scratch::new();
    for (align, bytes) in [("64K", 64 << 10), ("2M", 2 << 20)] {
        let args = ["--size", "8M", "--slot-bytes", "4K", "--align", align];
        let path = region_with_keys(&scratch, &format!("align-{align}"), &args);
        for mode in ["full", "read-only"] {
            let mut shell = Shell::with(&path, &["--mode", mode]);
            let opened = shell.ok(json!({ "op": "open" }));
            assert_eq!(opened["align"], bytes, "{opened}");
            assert_eq!(opened["header"].as_u64().expect("bytes") % bytes, 0, "{opened}");
            if mode == "full" {
                shell.ok(json!({ "op": "session" }));
            }
            shell.ok(json!({ "op": "namespace", "example": true }));
            for key in 0..16 {
                assert!(shell.holds(key, 4096, key), "{align}, {mode}: key {key}");
            }
        }
    }
}
