//! The real program with real processes, on traces whose answers are known.
//!
//! Each test has a directory in memory of its own. Full traces are read from the directory that `MARU_TRACES` names, or
//! from `shared/traces` beside the checkout; where there is neither, those tests say that they were skipped.

mod common;

use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};

use maru::layout::image::Image;
use maru::{Mode, Namespace, ObjectId, OpenOptions, Region, Reserve, ReserveOptions, Role};
use serde_json::Value;
use sha2::{Digest, Sha256};

use common::{Scratch, json, number, stderr, traces};

/// Requests whose leading runs are 0, 3, 0, 2, 0, 3 and 4: 12 of 21 references, 6 distinct blocks.
fn small() -> (Vec<Vec<u64>>, u64, u64, u64) {
    let requests =
        vec![vec![0, 1, 2], vec![0, 1, 2, 3], vec![9, 1, 2], vec![0, 1, 7, 2], vec![], vec![9, 1, 2], vec![0, 1, 2, 3]];
    (requests, 21, 12, 6)
}

#[test]
fn one_worker_gives_exactly_the_known_ratio() {
    let scratch = Scratch::new();
    let (requests, references, hits, distinct) = small();
    let found = scratch.json(&scratch.trace(&requests), &[]);
    assert_eq!(number(&found, "requests"), requests.len() as u64);
    assert_eq!(number(&found, "references"), references);
    assert_eq!(number(&found, "hits"), hits);
    assert_eq!(found["hit_ratio"].as_f64().expect("a number"), hits as f64 / references as f64);
    assert_eq!(number(&found, "stores"), distinct);
    assert_eq!(number(&found, "slots"), distinct + 1);
    assert_eq!(number(&found, "bytes_moved"), (hits + distinct) * 4096);
    assert_eq!((number(&found, "refused"), number(&found, "wrong_bytes"), number(&found, "workers")), (0, 0, 1));
    assert!(found["lookup_ns"]["p99"].as_u64() >= found["lookup_ns"]["p50"].as_u64());
    assert_eq!(found["region_id"].as_str().expect("hex").len(), 32);
    assert_eq!(found["rival"]["name"], "lmdb");
    assert!(number(&found["rival"], "ours_ns") > 0 && number(&found["rival"], "rival_ns") > 0);
    let left: Vec<_> = std::fs::read_dir(scratch.directory.path())
        .expect("the directory")
        .map(|entry| entry.expect("an entry").file_name().into_string().expect("a plain name"))
        .collect();
    assert_eq!(left.len(), 3, "region, picture and trace, and nothing of the rival: {left:?}");
}

#[test]
fn several_workers_lose_no_block_and_return_no_wrong_byte() {
    let scratch = Scratch::new();
    // Everybody wants the same blocks at the same time, and each has a few of its own.
    let requests: Vec<Vec<u64>> =
        (0..400u64).map(|at| (at / 40 * 10..at / 40 * 10 + 20).chain(1000 + at..1003 + at).collect()).collect();
    let mut distinct: Vec<u64> = requests.iter().flatten().copied().collect();
    distinct.sort_unstable();
    distinct.dedup();
    let trace = scratch.trace(&requests);
    for workers in ["1", "2", "4"] {
        let found = scratch.json(&trace, &["--workers", workers, "--block-bytes", "1000", "--no-rival"]);
        assert_eq!(number(&found, "references"), 400 * 23);
        assert_eq!(number(&found, "stores"), distinct.len() as u64, "{workers} workers");
        assert_eq!((number(&found, "refused"), number(&found, "wrong_bytes")), (0, 0));
        assert_eq!(found["rival"], Value::Null);
        let region = Region::open(OpenOptions::path(scratch.path("region"))).expect("the region is still there");
        let usage = region.usage();
        assert_eq!(u64::from(usage.slots[4]), distinct.len() as u64);
        assert_eq!(usage.slots.iter().sum::<u32>(), usage.capacity_slots);
    }
}

#[test]
fn a_region_that_is_too_small_refuses_and_is_never_wrong() {
    let scratch = Scratch::new();
    let requests: Vec<Vec<u64>> = (0..50).map(|at| (at * 4..at * 4 + 8).collect()).collect();
    let found = scratch.json(&scratch.trace(&requests), &["--slots", "50", "--workers", "2", "--no-rival"]);
    assert_eq!((number(&found, "slots"), number(&found, "wrong_bytes")), (50, 0));
    assert!(number(&found, "stores") >= 50 && number(&found, "references") == 400);
}

#[test]
fn a_kept_region_is_warm_and_a_fresh_one_is_not() {
    let scratch = Scratch::new();
    let (requests, references, hits, distinct) = small();
    let trace = scratch.trace(&requests);
    let first = scratch.json(&trace, &["--keep", "--no-rival"]);
    assert_eq!(number(&first, "hits"), hits, "nothing was there to keep");
    let second = scratch.json(&trace, &["--keep", "--no-rival", "--workers", "2"]);
    assert_eq!((number(&second, "hits"), number(&second, "stores")), (references, 0));
    assert_eq!(first["region_id"], second["region_id"]);
    let third = scratch.json(&trace, &["--no-rival"]);
    assert_eq!((number(&third, "hits"), number(&third, "stores")), (hits, distinct));
    assert_ne!(first["region_id"], third["region_id"]);
}

#[test]
fn wrong_bytes_are_seen_counted_and_fail_the_run() {
    let scratch = Scratch::new();
    let trace = scratch.trace(&[vec![1, 2]]);
    scratch.json(&trace, &["--slots", "16", "--no-rival"]);
    // Under the name of block 3, bytes that are not its own, with a checksum that fits them.
    let region = Region::open(OpenOptions::path(scratch.path("region"))).expect("open");
    let session = region.session("saboteur", Role::Tool).expect("attach");
    let namespace = Namespace::new()
        .tenant("maru-replay")
        .model("trace")
        .revision("1")
        .adapter("none")
        .dtype("uint8")
        .quantization("none")
        .geometry("block_bytes=4096")
        .storage_format("maru-replay-1")
        .block_tokens(512)
        .parallel("tp=1,pp=1")
        .hash_algorithm("sha256")
        .hash_seed("0");
    let namespace = session.namespace(&namespace).expect("namespace");
    let digest = Sha256::new().chain_update(b"maru-replay block 1").chain_update(3u64.to_le_bytes()).finalize();
    let object = ObjectId::new(namespace, digest.into());
    let Reserve::Granted(mut reservation) = session.reserve(&object, 4096, ReserveOptions::default()).expect("reserve")
    else {
        panic!("not granted")
    };
    reservation.write_at(0, &[0x55; 4096]).expect("write");
    reservation.commit().expect("commit");
    drop(reservation);
    session.close().expect("nothing held");
    drop(region);
    let trace = scratch.trace(&[vec![1, 2, 4], vec![3]]);
    let output = scratch.command().args(["--json", "--keep", "--trace"]).arg(&trace).output().expect("started");
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    let found = json(&output);
    assert!((4000..=4096).contains(&number(&found, "wrong_bytes")), "{found}");
    assert_eq!(number(&found, "hits"), 3);
}

#[test]
fn a_damaged_block_is_a_miss_that_is_told() {
    let scratch = Scratch::new();
    let trace = scratch.trace(&[vec![1, 2, 3]]);
    scratch.json(&trace, &["--slots", "16", "--no-rival"]);
    let region = Region::open(OpenOptions::path(scratch.path("region")).mode(Mode::ReadOnly)).expect("open");
    let payload = region.geometry().classes[0].payload_offset_bytes;
    drop(region);
    let file = std::fs::OpenOptions::new().read(true).write(true).open(scratch.path("region")).expect("open");
    for slot in 0..16 {
        use std::os::unix::fs::FileExt;
        let mut byte = [0];
        file.read_exact_at(&mut byte, payload + slot * 4096 + 99).expect("read");
        file.write_all_at(&[byte[0] ^ 1], payload + slot * 4096 + 99).expect("write");
    }
    let output = scratch.command().args(["--json", "--keep", "--trace"]).arg(&trace).output().expect("started");
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("checksum mismatch"), "{}", stderr(&output));
    let found = json(&output);
    assert_eq!((number(&found, "wrong_bytes"), number(&found, "hits")), (0, 0));
}

#[test]
fn a_worker_that_dies_fails_the_run_and_is_named() {
    let scratch = Scratch::new();
    for victim in ["worker 1", "worker 0", "scheduler"] {
        let mut child = scratch
            .command()
            .args(["--requests", "100000", "--seconds", "60", "--slots", "2000", "--block-bytes", "4096"])
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("started");
        let mut lines = BufReader::new(child.stderr.take().expect("piped"));
        let mut line = String::new();
        let pid = loop {
            line.clear();
            assert!(lines.read_line(&mut line).expect("stderr") > 0, "ended before {victim} was there");
            if let Some(rest) = line.strip_prefix(&format!("{victim}: pid ")) {
                break rest.split(',').next().expect("a pid").to_owned();
            }
        };
        assert!(Command::new("kill").args(["-9", &pid]).status().expect("kill").success());
        let mut rest = String::new();
        lines.read_to_string(&mut rest).expect("stderr");
        let status = child.wait().expect("wait");
        assert_eq!(status.code(), Some(1), "{rest}");
        assert!(rest.contains(&format!("{victim} (pid {pid}) died: signal: 9 (SIGKILL)")), "{rest}");
        assert!(rest.contains("error: "), "{rest}");
    }
}

#[test]
fn input_that_is_wrong_is_named_and_touches_no_region() {
    let scratch = Scratch::new();
    let trace = scratch.path("bad.jsonl");
    let good = "{\"timestamp\": 0, \"input_length\": 1, \"output_length\": 1, \"hash_ids\": [0]}\n";
    std::fs::write(&trace, format!("{good}{good}{}", good.replace("[0]", "[0, \"x\"]"))).expect("write");
    for (arguments, words) in [
        (vec!["--trace", trace.to_str().expect("plain")], "bad.jsonl: line 3: field `hash_ids`[1] is \"x\""),
        (vec!["--trace", "/no/such/file"], "trace /no/such/file: No such file or directory"),
        (vec!["--trace", "/dev"], "not a regular file"),
        (vec!["--engine-prefix", ""], "--engine-prefix"),
    ] {
        let output = scratch.command().args(&arguments).output().expect("started");
        assert_eq!(output.status.code(), Some(1));
        assert!(stderr(&output).contains(words), "{}", stderr(&output));
        assert!(!scratch.path("region").exists());
    }
    for arguments in [&["--workers", "0"][..], &["--block-bytes", "none"], &["--slots", "0"], &["--what"]] {
        assert_eq!(scratch.command().args(arguments).output().expect("started").status.code(), Some(2));
    }
}

#[test]
fn what_is_in_use_or_is_no_region_stays() {
    let scratch = Scratch::new();
    let trace = scratch.trace(&[vec![1]]);
    scratch.json(&trace, &["--no-rival"]);
    let region = Region::open(OpenOptions::path(scratch.path("region"))).expect("open");
    let session = region.session("engine-seven", Role::Worker).expect("attach");
    let output = scratch.command().arg("--trace").arg(&trace).output().expect("started");
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("in use by 1 live session(s)"), "{}", stderr(&output));
    session.heartbeat().expect("its region has not been replaced");

    std::fs::write(scratch.path("notes"), "not yours").expect("write");
    let output = Command::new(env!("CARGO_BIN_EXE_maru-replay"))
        .args(["--region".as_ref(), scratch.path("notes").as_os_str()])
        .output()
        .expect("started");
    assert!(stderr(&output).contains("not a Maru region"), "{}", stderr(&output));
    assert_eq!(std::fs::read(scratch.path("notes")).expect("still there"), b"not yours");
}

#[test]
fn without_a_trace_it_chats_and_ends_with_what_to_type_next() {
    let scratch = Scratch::new();
    let output = scratch.command().args(["--requests", "150", "--block-bytes", "4K"]).output().expect("started");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}", stderr(&output));
    for words in ["leading-run hits", "hit ratio", "lookup p50 / p99", "scheduler", "refused: 0, wrong bytes: 0"] {
        assert!(text.contains(words), "{words} in {text}");
    }
    let rival = text.lines().find(|line| line.starts_with("128 keys in ")).expect("the rival's line");
    assert!(rival.contains(" us; LMDB ") && rival.ends_with(" us"), "{rival}");
    let next = format!("maru-inspect watch {}", scratch.path("region").display());
    // By its path where it lies beside the program, by its name where it does not.
    assert!(text.lines().last().is_some_and(|line| line.ends_with(&next)), "{text}");
    assert!(stderr(&output).contains("worker 1: pid ") && stderr(&output).contains("scheduler: pid "));
    let picture = std::fs::read_to_string(scratch.path("region.svg")).expect("the picture");
    for words in ["<svg ", "</svg>", "seconds since", "moved, GB/s", "hits, %", "loaded", "so far", "150 requests"] {
        assert!(picture.contains(words), "{words}");
    }
}

#[test]
fn help_teaches_and_version_says_whether_steps_are_in() {
    let run = |flag: &str| {
        let output = Command::new(env!("CARGO_BIN_EXE_maru-replay")).arg(flag).output().expect("started");
        assert!(output.status.success());
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let help = run("--help");
    for words in ["Examples:", "--keep", "hash_ids", "Exit status"] {
        assert!(help.contains(words), "{words}");
    }
    assert!(!help.contains("__worker"));
    // Programs that are timed say that nothing of the tests is in them; an ordinary build has `steps` off.
    let version = run("--version");
    let steps = if cfg!(feature = "steps") || maru::step::enabled() { "steps: on" } else { "steps: off" };
    assert_eq!(version.lines().collect::<Vec<_>>(), [concat!("maru-replay ", env!("CARGO_PKG_VERSION")), steps]);
}

#[test]
fn what_is_stored_says_where_it_belongs() {
    let scratch = Scratch::new();
    // Blocks 1 to 3 found nothing before them; 4 found three.
    let trace = scratch.trace(&[vec![1, 2, 3], vec![1, 2, 3, 4]]);
    scratch.json(&trace, &["--slots", "4000", "--no-rival"]);
    let bytes = std::fs::read(scratch.path("region")).expect("the region");
    let image = Image::read(&bytes).expect("a region");
    let prefix = |block: u64| -> [u8; 32] {
        Sha256::new().chain_update(b"maru-replay block 1").chain_update(block.to_le_bytes()).finalize().into()
    };
    let mut dues = Vec::new();
    for block in 1..=4u64 {
        let replica = image.ready_replicas().find(|replica| replica.key.prefix == prefix(block)).expect("it is there");
        let body = image.record(replica.slot).expect("a record").body;
        assert_eq!(u64::from(body.depth), block - 1);
        let parent = if block == 1 { [0; 8] } else { *prefix(block - 1).first_chunk().expect("eight of 32 bytes") };
        assert_eq!(body.parent_hint, u64::from_le_bytes(parent), "block {block}");
        dues.push(image.access_byte(0, replica.slot).expect("an access byte") & 0x7F);
    }
    // What is found behind a shared prefix is due 15 epochs sooner; the rest of one epoch is due together.
    assert_eq!((dues[0], dues[1], dues[2] - dues[3]), (dues[1], dues[2], 15), "{dues:?}");
}

#[test]
fn at_a_tenth_of_the_blocks_it_finds_more_than_lru() {
    let Some(directory) = traces() else { return };
    let scratch = Scratch::new();
    let flags = ["--block-bytes", "256", "--slots", "18279", "--no-rival"];
    let found = scratch.json(&directory.join("conversation_trace.jsonl"), &flags);
    let ratio = found["hit_ratio"].as_f64().expect("a number");
    // LRU gives 27.84 %, and this policy without `after_hits` 27.83 %.
    assert!((0.2795..0.285).contains(&ratio), "{ratio}");
    assert_eq!((number(&found, "refused"), number(&found, "wrong_bytes")), (0, 0));
}

#[test]
fn full_traces_give_the_published_ratios() {
    let Some(directory) = traces() else { return };
    for (name, requests, references, distinct, percent) in [
        ("conversation_trace.jsonl", 12_031, 288_500, 182_790, "36.64"),
        ("synthetic_trace.jsonl", 3_993, 121_877, 43_924, "63.96"),
    ] {
        for workers in ["1", "2"] {
            let scratch = Scratch::new();
            let found = scratch.json(&directory.join(name), &["--workers", workers, "--no-rival"]);
            assert_eq!(number(&found, "requests"), requests);
            assert_eq!(number(&found, "references"), references);
            assert_eq!(number(&found, "stores"), distinct, "{name}, {workers} workers");
            assert_eq!(number(&found, "slots"), distinct + u64::div_ceil(distinct, 16));
            assert_eq!((number(&found, "refused"), number(&found, "wrong_bytes")), (0, 0));
            let ratio = found["hit_ratio"].as_f64().expect("a number");
            if workers == "1" {
                assert_eq!(format!("{:.2}", ratio * 100.0), percent, "{name}");
                assert_eq!(ratio, number(&found, "hits") as f64 / references as f64);
            } else {
                assert!(ratio > 0.3, "{ratio}");
            }
        }
    }
}
