//! Damaged images: 2,000 mutants of a region with stored blocks. Nothing makes the tool panic, hang, take a signal or
//! eat memory; JSON stays JSON; and whatever the format's own list calls damage is called damage here.

mod common;

use common::{Random, Scratch, inspect};
use maru_inspect::{Severity, Verdict, inspect_bytes};
use maru_layout::geometry::Geometry;
use maru_layout::image::Image;
use maru_layout::object::ObjectKey;
use maru_layout::superblock::{SectionKind, Superblock};
use maru_layout::word::{IndexEntry, Owner, SlotState, SlotWord};
use serde_json::Value;

fn geometry(bytes: &[u8]) -> Geometry {
    Geometry::of(&Superblock::read(bytes).expect("a page"), bytes.len() as u64, false).expect("sound")
}

fn put(bytes: &mut [u8], at: u64, value: u64) {
    bytes[at as usize..at as usize + 8].copy_from_slice(&value.to_le_bytes());
}

/// One mutation of one of six kinds.
fn mutant(sound: &[u8], geometry: &Geometry, random: &mut Random) -> (Vec<u8>, &'static str) {
    let mut bytes = sound.to_vec();
    let header = geometry.header_bytes;
    let kind = match random.below(6) {
        0 => {
            for _ in 0..=random.below(16) {
                let at = random.below(header) as usize;
                bytes[at] ^= 1 << random.below(8);
            }
            "flipped bits before the payload"
        }
        1 => {
            for _ in 0..=random.below(8) {
                let (records, buckets) =
                    (geometry.offset(SectionKind::Records), geometry.offset(SectionKind::AccessBytes));
                let at = records + random.below(buckets - records);
                bytes[at as usize] = random.next() as u8;
            }
            "bytes in records and buckets"
        }
        2 => {
            let page = random.below(sound.len() as u64 / 4096) as usize * 4096;
            bytes[page..page + 4096].fill(0);
            "a zeroed page"
        }
        3 => {
            let from = random.below(sound.len() as u64) as usize;
            bytes[from..].iter_mut().for_each(|byte| *byte = random.next() as u8);
            "a random tail"
        }
        4 => {
            // A count or offset of the superblock, sealed again so that the field itself is looked at.
            let at = [80, 88, 96, 100, 104, 108, 112, 116, 120, 124, 128, 132, 512 + random.below(96) * 8];
            let at = at[random.below(at.len() as u64) as usize];
            put(&mut bytes, at, 1 << 40 | random.below(3));
            if random.below(2) == 0 {
                let sealed = Superblock::read(&bytes).expect("a page").sealed();
                put(&mut bytes, 4088, sealed.checksum);
            }
            "a count of 2^40"
        }
        _ => {
            // Entries, marks, lease marks and cells that point at each other and beyond.
            let buckets = geometry.offset(SectionKind::Buckets);
            let areas = geometry.offset(SectionKind::SessionAreas);
            for _ in 0..8 {
                let entry =
                    IndexEntry::new(random.below(u64::from(geometry.slot_count) * 2) as u32, random.below(4), 3);
                let entry = if random.below(2) == 0 { entry.in_second() } else { entry };
                put(&mut bytes, buckets + random.below(u64::from(geometry.bucket_count) * 8) * 8, entry.0);
                put(&mut bytes, areas + random.below(512) * 8, random.next());
            }
            "loops in the index"
        }
    };
    (bytes, kind)
}

fn check_lines(text: &str, context: &str) -> Value {
    let lines: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{context}: {error}: {line}")))
        .collect();
    let last = lines.last().unwrap_or_else(|| panic!("{context}: no line")).clone();
    assert_eq!(last["kind"], "summary", "{context}");
    last
}

#[test]
fn two_thousand_mutants() {
    let seed = std::env::var("MARU_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(0x4D41_5255);
    println!("seed {seed} (MARU_SEED)");
    let scratch = Scratch::new();
    let sound = scratch.stored(1 << 20, 4096, 120);
    let geometry = geometry(&sound);
    assert_eq!(inspect_bytes(&sound).verdict, Verdict::Sound, "{:?}", inspect_bytes(&sound).findings);
    let mut seen = [0; 4];
    for number in 0..2000u64 {
        let mut random = Random(seed ^ (number << 32));
        let (bytes, kind) = mutant(&sound, &geometry, &mut random);
        let context = format!("mutant {number} of seed {seed} ({kind})");
        let report = inspect_bytes(&bytes);
        let summary = check_lines(&report.lines, &context);
        assert_eq!(summary["verdict"], report.verdict.name(), "{context}");
        assert_ne!(report.verdict, Verdict::Busy, "{context}: nothing moves in memory");
        seen[usize::from(report.verdict.exit_code())] += 1;
        // The format's own list, through the other reader.
        match Image::read(&bytes) {
            Ok(image) if image.damage().is_empty() => {}
            Ok(image) => assert_eq!(report.verdict, Verdict::Damaged, "{context}: {:?}", image.damage()),
            Err(error) => assert_ne!(report.verdict, Verdict::Sound, "{context}: {error}"),
        }
        if number % 20 == 0 {
            let path = scratch.file("mutant", &bytes);
            let path = path.to_str().expect("UTF-8");
            for verb in
                [&["verify", "--payload"][..], &["stat"], &["sessions"], &["leases"], &["namespaces"], &["dump"]]
            {
                for json in [true, false] {
                    let mut arguments = verb.to_vec();
                    arguments.push(path);
                    if json {
                        arguments.push("--json");
                    }
                    let said = inspect(&arguments);
                    assert!((0..=2).contains(&said.code), "{context}: {arguments:?}: exit code {}", said.code);
                    if json {
                        check_lines(&said.text, &context);
                    }
                    if verb.contains(&"--payload") {
                        assert_eq!(said.code, i32::from(report.verdict.exit_code()), "{context}");
                    }
                }
            }
        }
    }
    println!("sound {}, damaged {}, unreadable {}", seen[0], seen[1], seen[2]);
    assert!(seen[0] > 0 && seen[1] > 1000 && seen[2] > 0, "the mutants look as if they missed: {seen:?}");
}

/// Each damage that the tool has a name for, made by hand, is found under that name and at its place.
#[test]
fn every_damage_is_found_by_name() {
    let scratch = Scratch::new();
    let sound = scratch.stored(1 << 20, 4096, 120);
    let geometry = geometry(&sound);
    let image = Image::read(&sound).expect("sound");
    let record = |slot: u32| geometry.offset(SectionKind::Records) + u64::from(slot) * 128;
    // Of a key whose two buckets are one, an entry may say either.
    let place = |key: &ObjectKey| key.place(geometry.hash_seed, geometry.bucket_count);
    let ready = image.ready_replicas().find(|replica| place(&replica.key).first != place(&replica.key).second);
    let ready = ready.expect("stored").slot;
    let free =
        (0..geometry.slot_count).find(|slot| image.record(*slot).expect("there").identity.word == 0).expect("free");
    let word = SlotWord(image.record(ready).expect("there").identity.word);
    let (bucket, way, entry) = image.entries().find(|(.., entry)| entry.slot() == ready).expect("indexed");
    let bucket_at = geometry.offset(SectionKind::Buckets) + u64::from(bucket) * 64;
    let control = geometry.offset(SectionKind::Control);
    let sessions = geometry.offset(SectionKind::Sessions);
    let areas = geometry.offset(SectionKind::SessionAreas);
    let rows = geometry.offset(SectionKind::Namespaces);
    let claimed = |owner: u16| SlotWord::new(SlotState::Writing, Owner(owner), 1).0;
    let payload = geometry.payload_of(ready).expect("there").0;
    let bitmap = geometry.offset(SectionKind::Bitmap);
    let lost = EMPTY_WORD;
    let cases: Vec<(&str, Severity, u64, u64)> = vec![
        ("format_word", Severity::Damage, control, 0xFF),
        ("replaced", Severity::Info, control, 3),
        ("padding", Severity::Info, control + 8, 1),
        ("chore", Severity::Leftover, control + 64, 1 | 9 << 32),
        ("namespace_row", Severity::Damage, rows, 7),
        ("namespace_adding", Severity::Leftover, rows, 1),
        ("namespace_text", Severity::Damage, rows + 96, 0x6161_6161_6161_6161),
        ("namespace_text", Severity::Damage, rows + 16, 5000),
        ("session_word", Severity::Damage, sessions, 9),
        ("dead_session", Severity::Leftover, sessions, 4 | 5 << 32),
        ("lease_mark", Severity::Damage, areas, 1 << 40),
        ("slot_word", Severity::Damage, record(free), 9),
        ("slot_owner", Severity::Damage, record(free), claimed(0)),
        ("slot_owner", Severity::Damage, record(free), claimed(4000)),
        ("slot_owner", Severity::Damage, record(ready), word.0 | 1 << 8),
        ("ownerless", Severity::Leftover, record(free), claimed(1)),
        ("quarantined", Severity::Leftover, record(free), SlotWord::new(SlotState::Quarantined, Owner(0), 1).0),
        ("slot_generation", Severity::Damage, record(ready) + 64, 77),
        ("slot_record", Severity::Damage, record(ready) + 8, 77),
        ("slot_length", Severity::Damage, record(ready) + 56, 0),
        ("slot_payload", Severity::Damage, payload, 0x0101_0101_0101_0101),
        ("index_entry", Severity::Damage, bucket_at + way as u64 * 8, IndexEntry::new(1 << 27, 1, 0).0),
        ("unindexed", Severity::Leftover, bucket_at + way as u64 * 8, lost),
        ("mark_low", Severity::Damage, bucket_at + way as u64 * 8, entry.in_second().0),
        ("misplaced_entry", Severity::Info, bucket_at + way as u64 * 8, entry.0 ^ 1),
        ("mark_high", Severity::Info, bucket_at + 56, 3),
        ("bitmap", Severity::Info, bitmap, 0),
        ("stale_entry", Severity::Info, bucket_at + 48, IndexEntry::new(free, 9, 1).0),
        ("superblock", Severity::Damage, 96, 1),
        ("superblock_field", Severity::Damage, 96, 1),
        ("superblock_field", Severity::Damage, sound.len() as u64 - 4096 + 168, 1),
    ];
    for (code, severity, at, value) in cases {
        let mut bytes = sound.clone();
        put(&mut bytes, at, value);
        let report = inspect_bytes(&bytes);
        let found = report.findings.iter().any(|finding| finding.code == code && finding.severity == severity);
        assert!(found, "{code} at {at}: {:#?}", report.findings);
        let damaged = report.findings.iter().any(|finding| finding.severity == Severity::Damage);
        assert_eq!(report.verdict == Verdict::Damaged, damaged, "{code} at {at}");
        if severity != Severity::Damage && code != "misplaced_entry" {
            assert_eq!(report.verdict, Verdict::Sound, "{code} at {at}: {:#?}", report.findings);
        }
    }
}

/// The verbs for seeing: each of 200 mutants through all of them, in both forms; every twentieth through the binary, and on
/// the screen.
#[test]
fn two_hundred_mutants_are_seen() {
    use maru_inspect::{Request, Verb, census, dump, map, metrics, out, source, watch, why};
    let seed = std::env::var("MARU_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(0x5345_454E);
    println!("seed {seed} (MARU_SEED)");
    let scratch = Scratch::new();
    let sound = scratch.stored(1 << 20, 4096, 120);
    let geometry = geometry(&sound);
    let key = |digits: &str| dump::HexPrefix::parse(digits).expect("digits");
    let mut verbs: Vec<Verb> = [map::By::State, map::By::Age, map::By::Namespace, map::By::Depth]
        .map(|by| Verb::Map(map::Wish { by, svg: Some(scratch.path("map.svg")) }))
        .to_vec();
    let whole = "00".repeat(32);
    let strip = why::Question { keys: vec![key(&whole); 70], strip: true, ..why::Question::default() };
    verbs.push(Verb::Why(strip));
    for (digits, row) in [("0", None), ("1", Some(0)), (whole.as_str(), Some(1)), ("f", Some(u32::MAX))] {
        verbs.push(Verb::Why(why::Question { keys: vec![key(digits)], row, ..why::Question::default() }));
    }
    let (mut seen, mut causes) = ([0; 4], std::collections::BTreeSet::new());
    for number in 0..200u64 {
        let (bytes, kind) = mutant(&sound, &geometry, &mut Random(seed ^ (number << 32)));
        let context = format!("mutant {number} of seed {seed} ({kind})");
        let source = source::Bytes::new(&bytes);
        for verb in &verbs {
            for json in [true, false] {
                let request = Request { verb: verb.clone(), from_copy: true, ..Request::default() };
                let mut sink = out::Out::memory(json);
                let report = maru_inspect::inspect(&source, &request, &mut sink).expect("memory takes it");
                seen[usize::from(report.verdict.exit_code())] += 1;
                let text = sink.into_text();
                assert!(!text.contains('\x1b'), "{context}: {verb:?}");
                if json {
                    check_lines(&text, &context);
                    let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
                    causes.extend(lines.filter_map(|line| line["code"].as_str().map(str::to_owned)));
                }
            }
        }
        let look = census::look(&source);
        let families = metrics::families("m", &look, std::time::Duration::ZERO);
        let slots = families.iter().find(|family| family.name == "maru_slots");
        if let (census::Look::Seen(census), Some(slots)) = (&look, slots) {
            let sum: f64 = slots.samples.iter().map(|(_, value)| value).sum();
            assert_eq!(sum, f64::from(census.usage.capacity_slots), "{context}");
        }
        let mut screen = watch::screen::Screen::new(std::time::Duration::from_secs(1), true);
        let start = std::time::Instant::now();
        screen.history.add(census::look(&source::Bytes::new(&sound)), start);
        screen.history.add(look.clone(), start + std::time::Duration::from_secs(1));
        screen.history.add(look, start + std::time::Duration::from_secs(2));
        let backend = ratatui::backend::TestBackend::new(80, 24);
        let mut terminal = ratatui::Terminal::new(backend).expect("a terminal");
        terminal.draw(|frame| watch::draw::draw(frame, &screen)).expect("drawn");
        if number % 20 == 0 {
            let path = scratch.file("mutant", &bytes);
            let path = path.to_str().expect("UTF-8");
            for verb in [
                &["watch", "--count", "2", "--interval", "50ms"][..],
                &["metrics"],
                &["map", "--by", "age"],
                &["why", path, "0"],
                &["why", path, &whole, "--namespace-row", "0"],
            ] {
                let mut arguments = verb.to_vec();
                if !arguments.contains(&path) {
                    arguments.push(path);
                }
                let told = inspect(&arguments);
                assert!((0..=2).contains(&told.code), "{context}: {arguments:?}: exit code {}", told.code);
                arguments.push("--json");
                let said = inspect(&arguments);
                assert_eq!(said.code, told.code, "{context}: {arguments:?}");
                check_lines(&said.text, &context);
            }
        }
    }
    println!("sound {}, damaged {}, unreadable {}; causes and findings {causes:?}", seen[0], seen[1], seen[2]);
    assert!(seen[0] > 0 && seen[1] > 0 && seen[2] > 0, "{seen:?}");
    assert!(causes.contains("ready") && causes.contains("never_stored"), "{causes:?}");
}

/// An index entry that is not there.
const EMPTY_WORD: u64 = 0;

/// Two ready slots of one object, both found.
#[test]
fn twins_are_damage() {
    let scratch = Scratch::new();
    let sound = scratch.stored(1 << 20, 4096, 40);
    let geometry = geometry(&sound);
    let image = Image::read(&sound).expect("sound");
    let one = image.ready_replicas().next().expect("stored");
    let free =
        (0..geometry.slot_count).find(|slot| image.record(*slot).expect("there").identity.word == 0).expect("free");
    let mut bytes = sound.clone();
    let records = geometry.offset(SectionKind::Records) as usize;
    let (from, to) = (records + one.slot as usize * 128, records + free as usize * 128);
    bytes.copy_within(from..from + 128, to);
    let (from, to) = (geometry.payload_of(one.slot).expect("there").0, geometry.payload_of(free).expect("there").0);
    bytes.copy_within(from as usize..from as usize + 4096, to as usize);
    let unfound = inspect_bytes(&bytes);
    assert_eq!(unfound.verdict, Verdict::Sound, "a twin that nobody finds: {:#?}", unfound.findings);
    assert!(
        unfound.findings.iter().any(|finding| finding.code == "unindexed" && finding.text.contains("found instead"))
    );
    let place = one.key.place(geometry.hash_seed, geometry.bucket_count);
    let bucket = image.bucket(place.first).expect("there");
    let way = bucket.entries.iter().position(|entry| *entry == 0).expect("room");
    let at = geometry.offset(SectionKind::Buckets) + u64::from(place.first) * 64 + way as u64 * 8;
    put(&mut bytes, at, IndexEntry::new(free, one.generation, place.tag).0);
    let report = inspect_bytes(&bytes);
    assert_eq!(report.verdict, Verdict::Damaged);
    let duplicates: Vec<_> = report.findings.iter().filter(|finding| finding.code == "duplicate").collect();
    assert_eq!(duplicates.len(), 1, "each pair once: {:#?}", report.findings);
}

/// The bad entry is listed and the rest still shown.
#[test]
fn a_damaged_superblock_is_explained_and_the_rest_is_shown() {
    let scratch = Scratch::new();
    let sound = scratch.stored(1 << 20, 4096, 40);
    for (at, value, field) in [(76u64, 3u32, "align_bytes"), (96, 1 << 30, "slot_count"), (168, 1, "formatted_ns")] {
        let mut bytes = sound.clone();
        bytes[at as usize..at as usize + 4].copy_from_slice(&value.to_le_bytes());
        let path = scratch.file("damaged", &bytes);
        let said =
            inspect(&["dump".as_ref(), path.as_os_str(), "--json".as_ref(), "--state".as_ref(), "ready".as_ref()]);
        assert_eq!(said.code, 1, "{field}");
        assert_eq!(said.of_kind("slot").len(), 40, "{field}");
        let findings = said.of_kind("finding");
        let fields: Vec<&str> = findings.iter().map(|finding| finding["where"].as_str().expect("text")).collect();
        assert!(fields.contains(&format!("superblock.{field}").as_str()), "{fields:?}");
        let said = inspect(&["stat".as_ref(), path.as_os_str()]);
        assert!(said.text.contains("the rest is shown through the copy"), "{}", said.text);
        assert!(
            said.text.contains(&format!("{field} is {}", if at == 168 { String::new() } else { value.to_string() }))
        );
    }
    // Both ends damaged: explained, nothing below it believed.
    let mut bytes = sound.clone();
    bytes[76] = 3;
    let end = bytes.len();
    bytes[end - 4096..].fill(0xAA);
    let path = scratch.file("damaged", &bytes);
    let said = inspect(&["verify".as_ref(), path.as_os_str(), "--json".as_ref()]);
    assert_eq!((said.code, said.summary()["verdict"].as_str()), (1, Some("damaged")));
    assert!(said.codes().contains(&"superblock".to_owned()));
    // The first page is gone: unreadable, but the copy can be asked for.
    let mut bytes = sound;
    bytes[..4096].fill(0);
    let path = scratch.file("damaged", &bytes);
    let said = inspect(&["verify".as_ref(), path.as_os_str()]);
    assert_eq!(said.code, 2);
    assert!(said.text.contains("not formatted") && said.text.contains("--from-copy"), "{}", said.text);
    let said = inspect(&["dump".as_ref(), path.as_os_str(), "--from-copy".as_ref(), "--json".as_ref()]);
    assert_eq!((said.code, said.summary()["slots"]["ready"].as_u64()), (1, Some(40)));
}
