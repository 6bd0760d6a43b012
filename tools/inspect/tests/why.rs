//! `why`: each cause produced on purpose through the library, and named.

mod common;

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

use common::{Doomed, Said, Scratch, inspect, namespace, object, payload, store};
use maru::{
    Batch, Budget, Evict, Format, Namespace, ObjectId, OpenOptions, Region, Reserve, ReserveOptions, Role, Session,
    SessionOptions, Verify, Wish, Writer,
};
use maru_layout::image::Image;
use maru_layout::superblock::SectionKind;
use serde_json::Value;

fn key(object: &ObjectId) -> String {
    object.prefix.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn ask(path: &Path, object: &ObjectId, rest: &[&str]) -> Value {
    let mut arguments = vec!["why".to_owned(), path.display().to_string(), key(object), "--json".to_owned()];
    arguments.extend(rest.iter().map(|word| (*word).to_owned()));
    let said = inspect(&arguments);
    let mut answers = said.of_kind("why");
    assert_eq!((said.code, answers.len()), (0, 1), "{}{}", said.text, said.errors);
    said.summary();
    // For people too, with the same cause.
    arguments.retain(|word| word != "--json");
    let told = inspect(&arguments);
    let answer = answers.remove(0);
    let code = answer["code"].as_str().expect("a code");
    let (word, reason) = (if answer["hit"] == true { "hit" } else { "miss" }, &answer["reason"]);
    let wanted = reason.as_str().map_or(format!("{word}: {code}"), |reason| format!("{word}: {code} ({reason})"));
    assert!(told.text.lines().any(|line| line.trim() == wanted), "wanted {wanted:?} in {}", told.text);
    answer
}

fn code(answer: &Value) -> (&str, bool) {
    (answer["code"].as_str().expect("a code"), answer["hit"].as_bool().expect("hit"))
}

fn attached(scratch: &Scratch, size: u64) -> (Region, Session) {
    let region = scratch.region("why", Wish::of_slots(size, 4096));
    let session = region.session("storer", Role::Worker).expect("attach");
    (region, session)
}

#[test]
fn ready_never_stored_and_retired() {
    let scratch = Scratch::new();
    let (region, session) = attached(&scratch, 1 << 20);
    let path = scratch.path("why");
    let ns = session.namespace(&namespace("t")).expect("namespace");
    store(&session, &object(ns, 1), &payload(1, 100));
    let lease = session.acquire(&[object(ns, 1)], Batch::Each).expect("acquire");
    let answer = ask(&path, &object(ns, 1), &[]);
    assert_eq!(code(&answer), ("ready", true), "{answer}");
    assert_eq!((answer["who"]["engine"].as_str(), answer["who"]["holder"].as_str()), (Some("storer"), Some("alive")));
    assert_eq!((answer["length"].as_u64(), answer["leases"][0]["lease"].as_str()), (Some(100), Some("copy")));
    drop(lease);
    assert_eq!(ask(&path, &object(ns, 1), &[])["leases"].as_array().map(Vec::len), Some(0));

    let answer = ask(&path, &object(ns, 99), &[]);
    assert_eq!(code(&answer), ("never_stored", false), "{answer}");
    assert!(answer["text"].as_str().is_some_and(|text| text.contains("bounded")), "{answer}");

    session.retire(&object(ns, 1)).expect("retire");
    let answer = ask(&path, &object(ns, 1), &[]);
    assert_eq!(code(&answer), ("retired", false), "{answer}");
    assert_eq!(answer["who"]["engine"], "storer");

    // A few digits will do; all objects that begin so are answered.
    store(&session, &object(ns, 2), &payload(1, 100));
    let said = inspect(&["why", path.to_str().expect("UTF-8"), "0", "--json"]);
    let codes: Vec<Value> = said.of_kind("why").iter().map(|line| line["code"].clone()).collect();
    // The first one's slot has another life now: only the flight recorder knows of it.
    assert_eq!(codes, ["ready", "retired"], "{}", said.text);
    drop((session, region));
}

#[test]
fn being_written_given_up_and_draining() {
    let scratch = Scratch::new();
    let (_region, session) = attached(&scratch, 1 << 20);
    let path = scratch.path("why");
    let ns = session.namespace(&namespace("t")).expect("namespace");
    let Reserve::Granted(half) = session.reserve(&object(ns, 1), 4096, ReserveOptions::default()).expect("reserve")
    else {
        panic!("the region is empty")
    };
    let answer = ask(&path, &object(ns, 1), &[]);
    assert_eq!(code(&answer), ("being_written", false), "{answer}");
    assert_eq!(answer["who"]["engine"], "storer");
    assert!(answer["unmoved_ms"].as_u64().is_some_and(|ms| (200..5000).contains(&ms)), "{answer}");
    half.abort().expect("abort");
    let answer = ask(&path, &object(ns, 1), &[]);
    assert_eq!(code(&answer), ("given_up", false), "{answer}");
    assert!(answer["text"].as_str().is_some_and(|text| text.contains("abort done")), "{answer}");

    store(&session, &object(ns, 2), &payload(2, 100));
    let lease = session.acquire(&[object(ns, 2)], Batch::Each).expect("acquire");
    session.retire(&object(ns, 2)).expect("retire");
    let answer = ask(&path, &object(ns, 2), &[]);
    assert_eq!(code(&answer), ("draining", false), "{answer}");
    assert_eq!(answer["leases"].as_array().map(Vec::len), Some(1), "{answer}");
    drop(lease);
}

#[test]
fn invalidated_and_freed_since() {
    let scratch = Scratch::new();
    let (region, session) = attached(&scratch, 1 << 20);
    let path = scratch.path("why");
    let ns = session.namespace(&namespace("t")).expect("namespace");
    store(&session, &object(ns, 1), &payload(1, 100));
    session.invalidate(ns).expect("invalidate");
    let again = session.namespace(&namespace("t")).expect("namespace");
    session.invalidate(again).expect("invalidate");
    let answer = ask(&path, &object(ns, 1), &[]);
    assert_eq!(code(&answer), ("invalidated", false), "{answer}");
    let generations = (answer["namespace_generation"].as_u64(), answer["current_generation"].as_u64());
    assert_eq!((generations, answer["namespace_row"].as_u64()), ((Some(1), Some(3)), Some(0)), "{answer}");
    // Brought home, the slot still says what it held.
    session.reclaim().expect("reclaim");
    let answer = ask(&path, &object(ns, 1), &[]);
    assert_eq!(code(&answer), ("invalidated", false), "{answer}");
    assert!(answer["text"].as_str().is_some_and(|text| text.contains("freed since")), "{answer}");
    drop((session, region));
}

#[test]
fn other_namespace_field_by_field() {
    let scratch = Scratch::new();
    let (region, session) = attached(&scratch, 1 << 20);
    let path = scratch.path("why");
    let one = session.namespace(&namespace("t")).expect("namespace");
    let differs: Namespace = namespace("t").dtype("fp8").hash_seed("7");
    let two = session.namespace(&differs).expect("namespace");
    store(&session, &object(one, 1), &payload(1, 100));
    assert_eq!(code(&ask(&path, &object(one, 1), &[])), ("ready", true), "any namespace will do");
    assert_eq!(code(&ask(&path, &object(one, 1), &["--namespace-row", "0"])), ("ready", true));
    let row = two.row().to_string();
    let answer = ask(&path, &object(one, 1), &["--namespace-row", &row]);
    assert_eq!(code(&answer), ("other_namespace", false), "{answer}");
    let fields: Vec<(&str, &str, &str)> = answer["differs"]
        .as_array()
        .expect("fields")
        .iter()
        .map(|field| {
            let text = |name: &str| field[name].as_str().expect("text");
            (text("field"), text("asked"), text("there"))
        })
        .collect();
    assert_eq!(fields, [("dtype", "fp8", "bf16"), ("hash_seed", "7", "0")]);
    // Rows that are not there are refused, not answered.
    let wrong = |row: &str| inspect(&["why", path.to_str().expect("UTF-8"), "00", "--namespace-row", row]);
    assert!(wrong("2").text.contains("row 2 is not registered") && wrong("2").code == 2, "{}", wrong("2").text);
    assert!(wrong("99999999").text.contains("has rows 0 to") && wrong("99999999").code == 2);
    drop((session, region));
}

/// This test binary again: has reserved a block with a device as its writer, and one of its own.
#[test]
fn child_of_why() {
    let Some(path) = std::env::var_os("MARU_INSPECT_CHILD") else { return };
    let region = Region::open(OpenOptions::path(path)).expect("opened");
    let session = region.session("doomed", Role::Worker).expect("attach");
    let ns = session.namespace(&namespace("t")).expect("namespace");
    let device = ReserveOptions { writer: Writer::Device, ..ReserveOptions::default() };
    let held = (
        session.reserve(&object(ns, 1), 4096, device).expect("reserve"),
        session.reserve(&object(ns, 2), 4096, ReserveOptions::default()).expect("reserve"),
    );
    println!("\nholding");
    std::thread::sleep(Duration::from_secs(60));
    drop(held);
}

#[test]
fn quarantined_for_each_reason() {
    let scratch = Scratch::new();
    let (region, session) = attached(&scratch, 1 << 20);
    let path = scratch.path("why");
    let ns = session.namespace(&namespace("t")).expect("namespace");
    // Bytes that are not what was committed.
    store(&session, &object(ns, 9), &payload(9, 1000));
    let bytes = std::fs::read(&path).expect("read");
    let image = Image::read(&bytes).expect("sound");
    let replica = image.ready_replicas().next().expect("stored");
    let at = image.geometry().payload_of(replica.slot).expect("there").0;
    let file = std::fs::OpenOptions::new().write(true).open(&path).expect("opened");
    file.write_all_at(&[!bytes[at as usize]], at).expect("written");
    let lease = session.acquire(&[object(ns, 9)], Batch::Each).expect("acquire").remove(0).expect("a hit");
    assert!(lease.read_into(&mut [0; 1000], Verify::Always).is_err());
    drop(lease);
    let answer = ask(&path, &object(ns, 9), &[]);
    assert_eq!((code(&answer).0, answer["reason"].as_str()), ("quarantined", Some("damaged")), "{answer}");

    let mut child = Doomed::start("child_of_why", &path);
    let doomed = 1u32;
    assert_eq!(code(&ask(&path, &object(ns, 2), &[])).0, "being_written");
    let fenced =
        inspect(&["fence", path.to_str().expect("UTF-8"), "--session", &doomed.to_string(), "--yes", "--json"]);
    assert_eq!(fenced.code, 0, "{}", fenced.text);
    let answer = ask(&path, &object(ns, 2), &[]);
    assert_eq!((code(&answer).0, answer["reason"].as_str()), ("quarantined", Some("owner_fenced")), "{answer}");
    assert_eq!((answer["who"]["engine"].as_str(), answer["who"]["holder"].as_str()), (Some("doomed"), Some("alive")));
    child.kill();
    let answer = ask(&path, &object(ns, 2), &[]);
    assert_eq!((code(&answer).0, answer["reason"].as_str()), ("quarantined", Some("owner_dead")), "{answer}");
    session.reclaim().expect("reclaim");
    let answer = ask(&path, &object(ns, 1), &[]);
    assert_eq!((code(&answer).0, answer["reason"].as_str()), ("quarantined", Some("device")), "{answer}");
    // Its processor's one came home with the proof.
    assert_eq!(code(&ask(&path, &object(ns, 2), &[])).0, "given_up");
    drop((session, region));
}

#[test]
fn a_stalled_writer_loses_its_key() {
    let scratch = Scratch::new();
    let wish = Wish { stalled_writer_ms: 20, ..Wish::of_slots(1 << 20, 4096) };
    let options = OpenOptions::path(scratch.path("why")).format(Format::IfAbsent).wish(wish);
    let region = Region::open(options).expect("a region");
    let path = scratch.path("why");
    let session = region.session("slow", Role::Worker).expect("attach");
    let quick = region.session("quick", Role::Worker).expect("attach");
    let ns = session.namespace(&namespace("t")).expect("namespace");
    let Reserve::Granted(slow) = session.reserve(&object(ns, 1), 64, ReserveOptions::default()).expect("reserve")
    else {
        panic!("the region is empty")
    };
    // Watched for long enough by somebody who wants the key.
    let stored = (0..200).any(|_| {
        std::thread::sleep(Duration::from_millis(5));
        store(&quick, &object(ns, 1), &payload(1, 64)) == "stored"
    });
    assert!(stored, "nobody took the key");
    let answer = ask(&path, &object(ns, 1), &[]);
    assert_eq!(code(&answer), ("ready", true), "{answer}");
    assert!(answer["also"][0]["text"].as_str().is_some_and(|text| text.contains("quarantined")), "{answer}");
    quick.retire(&object(ns, 1)).expect("retire");
    let answer = ask(&path, &object(ns, 1), &[]);
    assert_eq!((code(&answer).0, answer["reason"].as_str()), ("quarantined", Some("stalled_writer")), "{answer}");
    assert_eq!(answer["who"]["engine"], "slow");
    drop(slow);
}

#[test]
fn evicted_and_refused() {
    let scratch = Scratch::new();
    let region = scratch.region("why", Wish::of_slots(1 << 20, 4096));
    let path = scratch.path("why");
    let session = region.session("storer", Role::Worker).expect("attach");
    let ns = session.namespace_with_budget(&namespace("t"), Budget::Slots(2)).expect("namespace");
    for number in 1..=3 {
        assert_eq!(store(&session, &object(ns, number), &payload(number, 100)), "stored");
    }
    let missing = (1..=3).find(|number| !session.probe(&object(ns, *number)).expect("probe").is_hit()).expect("one");
    let answer = ask(&path, &object(ns, missing), &[]);
    assert_eq!(code(&answer), ("evicted", false), "{answer}");
    // The farewell table says who it was.
    assert_eq!(answer["who"]["engine"], "storer", "{answer}");
    let text = answer["text"].as_str().expect("text");
    assert!(text.contains("evicted to make room") && text.contains("by session 0:1 storer"), "{answer}");

    // Nothing may go: the store is refused, and remembered.
    let strict = SessionOptions { evict: Evict::Never, ..SessionOptions::default() };
    let strict = region.session_with("strict", Role::Worker, strict).expect("attach");
    let refused = object(ns, 50);
    let held = session.acquire(&[object(ns, 1), object(ns, 2), object(ns, 3)], Batch::Each).expect("acquire");
    let Reserve::Refused(why) = strict.reserve(&refused, 100, ReserveOptions::default()).expect("reserve") else {
        panic!("over its budget")
    };
    assert_eq!(why.code(), "over_budget");
    let answer = ask(&path, &refused, &[]);
    assert_eq!(code(&answer), ("refused", false), "{answer}");
    assert_eq!(answer["who"]["engine"], "strict");
    assert!(answer["text"].as_str().is_some_and(|text| text.contains("1 over_budget")), "{answer}");
    drop(held);
}

/// An entry is taken out of the index behind everybody's back.
#[test]
fn a_block_that_no_entry_leads_to() {
    let scratch = Scratch::new();
    let (region, session) = attached(&scratch, 1 << 20);
    let path = scratch.path("why");
    let ns = session.namespace(&namespace("t")).expect("namespace");
    store(&session, &object(ns, 1), &payload(1, 100));
    let bytes = std::fs::read(&path).expect("read");
    let image = Image::read(&bytes).expect("sound");
    let geometry = image.geometry();
    let replica = image.ready_replicas().next().expect("stored");
    let place = replica.key.place(geometry.hash_seed, geometry.bucket_count);
    let at = geometry.offset(SectionKind::Buckets) + u64::from(place.first) * 64;
    let file = std::fs::OpenOptions::new().write(true).open(&path).expect("opened");
    file.write_all_at(&[0; 56], at).expect("written");
    let answer = ask(&path, &object(ns, 1), &[]);
    assert_eq!(code(&answer), ("not_indexed", false), "{answer}");
    drop((session, region));
}

fn strip_of(path: &Path, keys: &Path, rest: &[&str]) -> (Said, Value) {
    let mut arguments =
        vec!["why", path.to_str().expect("UTF-8"), "--prefixes", keys.to_str().expect("UTF-8"), "--json"];
    arguments.extend(rest);
    let said = inspect(&arguments);
    let strip = said.of_kind("strip").first().cloned().unwrap_or_else(|| panic!("{}{}", said.text, said.errors));
    (said, strip)
}

#[test]
fn a_prefix_block_by_block() {
    let scratch = Scratch::new();
    let (region, session) = attached(&scratch, 1 << 20);
    let path = scratch.path("why");
    let ns = session.namespace(&namespace("t")).expect("namespace");
    for number in (1..=70).filter(|number| *number != 66) {
        store(&session, &object(ns, number), &payload(number, 100));
    }
    session.retire(&object(ns, 69)).expect("retire");
    let keys: String = (1..=72).map(|number| format!("{}\n", key(&object(ns, number)))).collect();
    let file = scratch.file("keys", keys.as_bytes());
    let (said, strip) = strip_of(&path, &file, &[]);
    let picture = format!("{}x::.:..", "#".repeat(65));
    assert_eq!((said.code, strip["strip"].as_str()), (0, Some(picture.as_str())), "{strip}");
    assert_eq!((strip["leading_run"].as_u64(), strip["first_missing"].as_u64()), (Some(65), Some(65)));
    assert_eq!((strip["stranded"].as_u64(), strip["code"].as_str()), (Some(3), Some("never_stored")));
    assert_eq!(strip["key"], key(&object(ns, 66)));
    // The same that the library says.
    let objects: Vec<_> = (1..=72).map(|number| object(ns, number)).collect();
    assert_eq!(session.probe_prefix(&objects).expect("probe"), 65);
    let told = inspect(&["why", path.to_str().expect("UTF-8"), "--prefixes", file.to_str().expect("UTF-8")]);
    assert!(told.text.contains("leading run: 65 of 72 blocks"), "{}", told.text);
    assert!(told.text.contains("first missing: block 65") && told.text.contains("miss: never_stored"), "{}", told.text);
    assert!(!told.text.contains('\x1b'), "colours only at a terminal");
    // All there.
    let file =
        scratch.file("keys", keys.lines().take(3).map(|line| format!("{line}\n")).collect::<String>().as_bytes());
    let (_, strip) = strip_of(&path, &file, &[]);
    assert_eq!((strip["strip"].as_str(), strip["first_missing"].as_u64()), (Some("###"), None));
    // What is no list of keys is refused by name.
    let file = scratch.file("keys", b"xyz\n");
    let said = inspect(&["why", path.to_str().expect("UTF-8"), "--prefixes", file.to_str().expect("UTF-8")]);
    assert!(said.code == 2 && said.errors.contains("line 1: wanted 64 hex digits"), "{}", said.errors);
    drop((session, region));
}
