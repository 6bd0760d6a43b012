//! The shell itself.
//!
//! * Symptom: a driver's mistake ends the process, or is taken for something else that was meant.
//! * Cause: lines are trusted; unknown names and wrong types are dropped in silence.

use std::process::Command;

use serde_json::{Value, json};

use crate::driver::{Random, Scratch, Shell, seed, with_steps};

#[test]
fn whatever_is_wrong_with_a_line_is_said_and_the_next_one_works() {
    let scratch = Scratch::new();
    let path = scratch.format("region", &["--size", "1M", "--slot-bytes", "4K"]);
    let mut shell = Shell::at(&path);
    shell.refused(json!({ "op": "probe", "key": 1 }), "not_open");
    shell.refused(json!({ "op": "usage" }), "not_open");
    shell.join();
    for (line, code, said) in [
        ("", "", ""),
        ("{", "bad_json", "not JSON"),
        ("[]", "bad_json", "an array"),
        ("7", "bad_json", "a number"),
        ("{}", "missing_field", "\"op\" is missing"),
        (r#"{"op":null}"#, "bad_field", "null"),
        (r#"{"op":"fly"}"#, "unknown_op", "wanted one of open, session"),
        (r#"{"op":"probe"}"#, "missing_field", "\"key\" is missing"),
        (r#"{"op":"probe","key":null}"#, "missing_field", "\"key\""),
        (r#"{"op":"probe","key":1.5}"#, "bad_field", "1.5"),
        (r#"{"op":"probe","key":-1}"#, "bad_field", "-1"),
        (r#"{"op":"probe","key":[1]}"#, "bad_field", "an array"),
        (r#"{"op":"probe","keys":7}"#, "bad_field", "wanted a list"),
        (r#"{"op":"probe","keys":[[]]}"#, "bad_field", "an array"),
        (r#"{"op":"probe","keys":[{}]}"#, "missing_field", "keys[].key"),
        (r#"{"op":"probe","keys":[{"key":1,"kee":2}]}"#, "bad_field", "kee"),
        (r#"{"op":"probe","key":1,"keys":[1]}"#, "bad_field", "both"),
        (r#"{"op":"probe","key":1,"shard":65536}"#, "bad_field", "65536"),
        (r#"{"op":"probe","key":1,"namespace":"n9"}"#, "bad_field", "\"n9\""),
        (r#"{"op":"probe","key":1,"namespace":9}"#, "bad_field", "a number"),
        (r#"{"op":"probe","key":1,"lenght":9}"#, "unknown_field", "lenght"),
        (r#"{"op":"store","key":1}"#, "missing_field", "\"len\""),
        (r#"{"op":"store","key":1,"len":9}"#, "missing_field", "\"seed\""),
        (r#"{"op":"store","key":1,"len":"9","seed":1}"#, "bad_field", "a string"),
        (r#"{"op":"store","key":1,"hex":"abc"}"#, "bad_field", "hexadecimal"),
        (r#"{"op":"store","key":1,"hex":"\u00e4\u00e4"}"#, "bad_field", "hexadecimal"),
        (r#"{"op":"store","key":1,"len":18446744073709551615,"seed":1}"#, "too_large", "2^32"),
        (r#"{"op":"reserve","key":1,"len":1,"writer":"gpu"}"#, "bad_field", "cpu or device"),
        (r#"{"op":"write","reservation":"r7","seed":1}"#, "unknown_name", "r7"),
        (r#"{"op":"commit"}"#, "missing_field", "reservation"),
        (r#"{"op":"resolve","token":"12"}"#, "bad_field", "56 hexadecimal digits"),
        (r#"{"op":"release","handle":"zz"}"#, "bad_field", "64 hexadecimal digits"),
        (r#"{"op":"release"}"#, "missing_field", "lease"),
        (r#"{"op":"release","lease":"l0"}"#, "unknown_name", "l0"),
        (r#"{"op":"load","lease":"l0"}"#, "unknown_name", "l0"),
        (r#"{"op":"acquire","key":1,"kind":"view"}"#, "bad_field", "copy or device"),
        (r#"{"op":"acquire","key":1,"all_or_nothing":1}"#, "bad_field", "true or false"),
        (r#"{"op":"get","key":1,"verify":"maybe"}"#, "bad_field", "always, never"),
        (r#"{"op":"namespace"}"#, "missing_field", "tenant"),
        (r#"{"op":"namespace","example":true,"dtype":""}"#, "bad_field", "dtype"),
        (r#"{"op":"namespace","example":true,"dtype":[]}"#, "bad_field", "dtype"),
        (r#"{"op":"namespace","example":true,"block_tokens":0}"#, "bad_field", "block_tokens"),
        (r#"{"op":"fence","index":1}"#, "missing_field", "epoch"),
        (r#"{"op":"session"}"#, "session_open", "close"),
        (r#"{"op":"sleep_ms"}"#, "missing_field", "ms"),
    ] {
        if line.is_empty() {
            // An empty line is no line.
            shell.send_text("");
            continue;
        }
        shell.send_text(line);
        let answer = shell.answer();
        assert_eq!((&answer["ok"], &answer["code"]), (&json!(false), &json!(code)), "{line} -> {answer}");
        assert!(answer["error"].as_str().expect("a text").contains(said), "{line} -> {answer}");
    }
    // The id comes back whatever happens.
    for id in [json!(1), json!("x"), json!({ "a": [null] })] {
        assert_eq!(shell.ask(json!({ "op": "probe", "key": 1, "id": id }))["id"], id);
        assert_eq!(shell.ask(json!({ "op": "prob", "id": id }))["id"], id);
    }
    assert_eq!(shell.slots()["ready"], 0);
    shell.ok(json!({ "op": "close" }));
    shell.refused(json!({ "op": "close" }), "no_session");
    shell.ok(json!({ "op": "session" }));
    shell.quit();
}

#[test]
fn random_lines_are_answered_and_kill_nothing() {
    let mut random = Random(seed());
    let scratch = Scratch::new();
    let path = scratch.format("region", &["--size", "1M", "--slot-bytes", "4K"]);
    let mut shell = Shell::at(&path);
    shell.join();
    let ops = [
        "namespace",
        "store",
        "get",
        "probe",
        "probe_prefix",
        "reserve",
        "write",
        "commit",
        "abort",
        "resolve",
        "acquire",
        "load",
        "view",
        "detach",
        "release",
        "retire",
        "invalidate",
        "reclaim",
        "heartbeat",
        "fence",
        "usage",
        "counters",
        "sessions",
        "region",
        "maps",
        "held",
    ];
    let fields = [
        "key",
        "keys",
        "namespace",
        "shard",
        "part",
        "len",
        "seed",
        "hex",
        "offset",
        "depth",
        "parent",
        "writer",
        "verify",
        "reservation",
        "lease",
        "token",
        "handle",
        "handles",
        "kind",
        "all_or_nothing",
        "index",
        "epoch",
        "example",
    ];
    let (mut ok, mut refused) = (0, 0);
    for _ in 0..3000 {
        let mut line = json!({ "op": ops[random.next() as usize % ops.len()] });
        for _ in 0..random.next() % 5 {
            let value = match random.next() % 12 {
                0 => Value::Null,
                1 => json!(random.next()),
                2 => json!(random.next() % 5000),
                3 => json!(-1),
                4 => json!(random.hex(28)),
                5 => json!(random.hex(32)),
                6 => json!(format!("r{}", random.next() % 4)),
                7 => json!(format!("l{}", random.next() % 4)),
                8 => json!("n0"),
                9 => json!([random.next() % 4, "x", { "key": 1 }]),
                10 => json!(true),
                _ => json!(random.next() % 4),
            };
            line[fields[random.next() as usize % fields.len()]] = value;
        }
        let answer = shell.ask(line);
        match answer["ok"].as_bool() {
            Some(true) => ok += 1,
            Some(false) => {
                refused += 1;
                assert!(answer["code"].is_string() && answer["error"].is_string(), "{answer}");
            }
            None => panic!("{answer}"),
        }
    }
    assert!(ok > 100 && refused > 100, "{ok} done, {refused} refused");
    shell.slots();
    shell.quit();
}

#[test]
fn help_teaches_every_operation_and_version_says_whether_it_can_be_stopped() {
    let output = |program: &std::path::Path, argument: &str| {
        let output = Command::new(program).arg(argument).output().expect("starts");
        assert!(output.status.success());
        String::from_utf8(output.stdout).expect("text")
    };
    let plain = env!("CARGO_BIN_EXE_maru-shell").as_ref();
    let help = output(plain, "--help");
    for said in ["TWO PROCESSES", "OPERATIONS", "probe_prefix", "SHA-256", "0x9E3779B97F4A7C15", "MARU_STEP"] {
        assert!(help.contains(said), "{said}");
    }
    let steps = if maru::step::enabled() { "steps: on" } else { "steps: off" };
    assert!(output(plain, "--version").contains(steps));
    assert!(output(with_steps(), "--version").contains("steps: on"));
}
