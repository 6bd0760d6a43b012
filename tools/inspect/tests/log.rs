//! `log`: what sessions remember, whole, torn and impossible.

mod common;

use std::sync::atomic::{AtomicBool, Ordering};

use common::{Doomed, Random, Scratch, inspect, namespace, object, payload, store};
use maru::{Batch, OpenOptions, Region, Reserve, ReserveOptions, Role, Wish};
use maru_inspect::log::Filter;
use maru_inspect::source::Bytes;
use maru_inspect::{Report, Request, Verb};
use maru_layout::geometry::Geometry;
use maru_layout::superblock::{SectionKind, Superblock};
use maru_layout::table::{FlightRecord, SessionAreaHead};
use serde_json::Value;

/// This test binary again: stores twice, then dies in the middle of a third.
#[test]
fn child_of_log() {
    let Some(path) = std::env::var_os("MARU_INSPECT_CHILD") else { return };
    let region = Region::open(OpenOptions::path(path)).expect("opened");
    let session = region.session("second engine", Role::Worker).expect("attach");
    let ns = session.namespace(&namespace("log")).expect("namespace");
    store(&session, &object(ns, 1), &payload(1, 100));
    store(&session, &object(ns, 1), &payload(1, 100));
    let Reserve::Granted(half) = session.reserve(&object(ns, 2), 4096, ReserveOptions::default()).expect("reserve")
    else {
        panic!("the region is empty")
    };
    println!("\nholding");
    std::thread::sleep(std::time::Duration::from_secs(60));
    drop(half);
}

fn words(record: &Value) -> (String, String) {
    (record["operation"].as_str().expect("text").to_owned(), record["outcome"].as_str().expect("text").to_owned())
}

#[test]
fn the_dead_and_their_predecessors_are_remembered() {
    let scratch = Scratch::new();
    let region = scratch.region("log", Wish::of_slots(1 << 20, 4096));
    let path = scratch.path("log");
    let path = path.to_str().expect("UTF-8");
    let said = inspect(&["log", path, "--json"]);
    assert_eq!((said.code, said.of_kind("record").len()), (0, 0), "{}", said.text);
    assert!(inspect(&["log", path]).text.contains("nothing is remembered"));

    // Entry 0 has a first holder, which closes.
    let first = region.session("first engine", Role::Worker).expect("attach");
    let ns = first.namespace(&namespace("log")).expect("namespace");
    assert!(first.acquire(&[object(ns, 9)], Batch::Each).expect("acquire")[0].is_err());
    first.close().map_err(|(held, _)| held).expect("closed");
    let mut child = Doomed::start("child_of_log", path.as_ref());
    // And somebody else is there too.
    let other = region.session("bystander", Role::Tool).expect("attach");
    child.kill();

    let said = inspect(&["log", path, "--json"]);
    assert_eq!((said.code, said.codes()), (0, vec![]), "{}", said.text);
    let records = said.of_kind("record");
    let of = |session: u32| records.iter().filter(move |record| record["session"] == session).collect::<Vec<_>>();
    let told: Vec<_> = of(0).iter().map(|record| words(record)).collect();
    let wanted = [
        ("attach", "done"),
        ("register", "done"),
        ("acquire", "miss"),
        ("close", "done"),
        ("attach", "done"),
        ("register", "done"),
        ("reserve", "done"),
        ("commit", "done"),
        ("reserve", "present"),
        ("reserve", "done"),
    ];
    assert_eq!(told, wanted.map(|(operation, outcome)| (operation.to_owned(), outcome.to_owned())));
    let (before, after) = (of(0)[2], of(0)[7]);
    assert_eq!((&before["epoch"], &before["engine"], &before["liveness"]), (&Value::Null, &Value::Null, &Value::Null));
    assert_eq!(
        (&after["epoch"], &after["engine"], &after["liveness"]),
        (&2.into(), &"second engine".into(), &"dead".into())
    );
    assert_eq!((&after["slot"], &after["whole"]), (&of(0)[6]["slot"], &true.into()));
    assert!(after["generation"].as_u64().is_some_and(|generation| generation > 0), "{after}");
    assert!(after["prefix"].as_str().is_some_and(|prefix| prefix.starts_with("0100000000000000")), "{after}");
    assert_eq!((&of(1)[0]["engine"], &of(1)[0]["liveness"]), (&"bystander".into(), &"alive".into()));
    let times: Vec<u64> = records.iter().map(|record| record["time_ns"].as_u64().expect("a time")).collect();
    assert!(times.is_sorted(), "{times:?}");

    let last = inspect(&["log", path, "--json", "--last", "1"]).of_kind("record");
    assert_eq!((last.len(), &last[0]["session"]), (1, &1.into()), "the bystander came last");
    assert_eq!(inspect(&["log", path, "--json", "--session", "0"]).of_kind("record").len(), 10);
    let text = inspect(&["log", path]).text;
    assert!(
        text.contains("second engine (dead)") && text.contains("(earlier holder)") && text.contains("0:2"),
        "{text}"
    );
    let said = inspect(&["log", path, "--session", "99"]);
    assert!(said.code == 2 && said.text.contains("entries 0 to"), "{}", said.text);
    drop(other);
}

fn geometry(bytes: &[u8]) -> Geometry {
    Geometry::of(&Superblock::read(bytes).expect("a page"), bytes.len() as u64, false).expect("sound")
}

/// `log --json` over bytes.
fn log(bytes: &[u8]) -> (Report, Vec<Value>) {
    let source = Bytes::new(bytes);
    let mut out = maru_inspect::out::Out::memory(true);
    let request = Request { verb: Verb::Log(Filter::default()), from_copy: true, ..Request::default() };
    let report = maru_inspect::inspect(&source, &request, &mut out).expect("memory takes every line");
    let text = out.into_text();
    let parse = |line: &str| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
    (report, text.lines().map(parse).collect())
}

#[test]
fn torn_and_impossible_records_are_findings_and_are_not_believed() {
    let scratch = Scratch::new();
    let sound = scratch.stored(1 << 20, 4096, 20);
    let area = geometry(&sound).offset(SectionKind::SessionAreas) as usize;
    let next = area + std::mem::offset_of!(SessionAreaHead, recorder_next);
    let written = u64::from_le_bytes(sound[next..next + 8].try_into().expect("eight bytes"));
    assert!(written > 40, "{written} records: the ring has come round");
    let row = |number: u64| {
        area + std::mem::offset_of!(SessionAreaHead, recorder)
            + ((number - 1) % 16) as usize * size_of::<FlightRecord>()
    };
    let (report, lines) = log(&sound);
    let records = |lines: &[Value]| lines.iter().filter(|line| line["kind"] == "record").cloned().collect::<Vec<_>>();
    assert_eq!((report.total(), records(&lines).len()), (0, 16));

    // A writer that died between raising the number and storing it.
    let mut torn = sound.clone();
    torn[next..next + 8].copy_from_slice(&(written + 1).to_le_bytes());
    let (report, lines) = log(&torn);
    assert_eq!((report.findings[0].code, report.total()), ("flight_torn", 1));
    let flawed: Vec<Value> = records(&lines).into_iter().filter(|record| record["whole"] == false).collect();
    assert_eq!((records(&lines).len(), flawed.len()), (16, 1));
    assert!(flawed[0]["problem"].as_str().is_some_and(|problem| problem.contains("torn")), "{}", flawed[0]);
    assert_eq!(flawed[0]["epoch"], Value::Null);

    // Two records that no version writes.
    let mut wrong = sound.clone();
    let at = row(written) + std::mem::offset_of!(FlightRecord, operation);
    wrong[at..at + 4].copy_from_slice(&77u32.to_le_bytes());
    let at = row(written - 1) + std::mem::offset_of!(FlightRecord, slot);
    wrong[at..at + 8].copy_from_slice(&u64::MAX.to_le_bytes());
    let (report, lines) = log(&wrong);
    assert_eq!((report.findings[0].code, report.total()), ("flight_record", 2));
    let problems: Vec<String> =
        records(&lines).iter().filter_map(|r| r["problem"].as_str().map(str::to_owned)).collect();
    assert!(problems.iter().any(|problem| problem.contains("operation is 77")), "{problems:?}");
    assert!(problems.iter().any(|problem| problem.contains("slot is 18446744073709551615")), "{problems:?}");
}

/// A session that turns as fast as it can is read without a false finding, and what is believed is in its order.
#[test]
fn beside_a_busy_writer_no_record_is_called_impossible() {
    let scratch = Scratch::new();
    let region = scratch.region("busy", Wish::of_slots(1 << 20, 4096));
    let path = scratch.path("busy");
    let path = path.to_str().expect("UTF-8");
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let session = region.session("busy", Role::Worker).expect("attach");
            let ns = session.namespace(&namespace("log")).expect("namespace");
            for number in (1..20).cycle() {
                store(&session, &object(ns, number), &payload(number, 64));
                session.retire(&object(ns, number)).expect("retire");
                if stop.load(Ordering::Relaxed) {
                    break;
                }
            }
        });
        let (mut believed, mut sequences) = (0, std::collections::BTreeSet::new());
        let looks: Vec<_> = (0..40).map(|_| inspect(&["log", path, "--json"])).collect();
        stop.store(true, Ordering::Relaxed);
        for said in looks {
            assert_eq!(said.code, 0, "{}", said.text);
            assert!(!said.codes().contains(&"flight_record".to_owned()), "{}", said.text);
            let records = said.of_kind("record");
            let whole: Vec<_> = records.iter().filter(|record| record["whole"] == true).collect();
            let of =
                |name: &str| whole.iter().map(|record| record[name].as_u64().expect("a number")).collect::<Vec<_>>();
            assert!(of("sequence").is_sorted() && of("time_ns").is_sorted(), "{}", said.text);
            believed += whole.len();
            sequences.extend(of("sequence"));
        }
        println!("{believed} records believed in 40 looks, {} different", sequences.len());
        assert!(sequences.len() > 40, "the writer turned while it was looked at");
    });
}

#[test]
fn two_hundred_mutants() {
    let seed = std::env::var("MARU_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(0x004C_4F47);
    println!("seed {seed} (MARU_SEED)");
    let scratch = Scratch::new();
    let sound = scratch.stored(1 << 20, 4096, 20);
    let geometry = geometry(&sound);
    let (areas, sessions) = (geometry.offset(SectionKind::SessionAreas), geometry.offset(SectionKind::Sessions));
    let (mut flawed, mut whole) = (0, 0);
    for number in 0..200u64 {
        let mut random = Random(seed ^ (number << 32));
        let mut bytes = sound.clone();
        match number % 4 {
            // Anything in the head of the area that has records, and in the entry that it belongs to.
            0 => (0..=random.below(8)).for_each(|_| {
                bytes[(areas + random.below(2048)) as usize] = random.next() as u8;
                bytes[(sessions + random.below(256)) as usize] = random.next() as u8;
            }),
            // Random words where records lie, their numbers and counts among them.
            1 => (0..=random.below(8)).for_each(|_| {
                let word = if random.below(2) == 0 { random.next() } else { random.below(64) };
                let at = (areas + 64 + random.below(200) * 8) as usize;
                bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
            }),
            // Every area at once.
            2 => bytes[areas as usize..(areas + 16 * 1024) as usize].iter_mut().for_each(|b| *b = random.next() as u8),
            // Anything before the payload, the superblock included.
            _ => (0..=random.below(64)).for_each(|_| {
                bytes[random.below(geometry.header_bytes) as usize] ^= 1 << random.below(8);
            }),
        }
        let (report, lines) = log(&bytes);
        assert_eq!(lines.last().expect("a line")["kind"], "summary", "mutant {number} of seed {seed}");
        for line in &lines {
            let believed = line["kind"] == "record" && line["whole"] == true;
            flawed += u32::from(line["kind"] == "record" && !believed);
            whole += u32::from(believed);
            // What is believed is within bounds, whatever the bytes were.
            if believed && let Some(slot) = line["slot"].as_u64() {
                assert!(slot < geometry.slot_count.into(), "mutant {number} of seed {seed}: {line}");
            }
        }
        let doubted = lines.iter().any(|line| line["whole"] == false);
        assert!(report.total() > 0 || !doubted, "mutant {number} of seed {seed}: not believed, and no finding");
        if number % 10 == 0 {
            let path = scratch.file("mutant", &bytes);
            let path = path.to_str().expect("UTF-8");
            for rest in [&["--json"][..], &[], &["--last", "3"]] {
                let said = inspect(&[&["log", path][..], rest].concat());
                assert!(matches!(said.code, 0..=2), "mutant {number} of seed {seed}: {}", said.code);
            }
            // The planners read the same bytes.
            for verb in [&["recover", path, "--json"][..], &["fence", path, "--session", "0", "--json"]] {
                let said = inspect(verb);
                assert_eq!(said.summary()["kind"], "summary", "mutant {number} of seed {seed}");
            }
        }
    }
    println!("{whole} records believed, {flawed} not");
    assert!(flawed > 200 && whole > 200, "the mutants reach the records: {whole} believed, {flawed} not");
}
