//! Two readers of the format agree on a thousand random regions.
//!
//! `reader/maru_reader.py` was written from FORMAT.md alone. Here a thousand images are built from plain records:
//! random geometries, slots in all states, sound and broken checksums, stale and impossible index entries, sessions,
//! namespace rows, and superblocks with a field changed (half of them with a checksum that was made right again, so
//! that the bounds have to catch it). Both readers judge each image; every fact and every verdict has to be the same.
//!
//! A failure prints the seed; `MARU_SEED=<seed>` replays it. Without python3 the test says so and passes, unless
//! `MARU_NEED_PYTHON` is set.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use bytemuck::Zeroable;
use maru_layout::geometry::{ClassSpec, FormatSpec, Geometry, Stamp};
use maru_layout::image::{Image, entry_names, namespace_text};
use maru_layout::object::{ObjectKey, PayloadCrc, seal};
use maru_layout::record::{BodyLine, IdentityLine, SlotRecord};
use maru_layout::superblock::{Hosts, Regime, SectionKind, Superblock, SuperblockError};
use maru_layout::table::{Bucket, ControlPage, NamespaceRow, SessionEntry};
use maru_layout::word::{
    FormatState, FormatWord, IndexEntry, MAX_GENERATION, Owner, RowState, SessionState, SessionWord, SlotState,
    SlotWord, claimable,
};
use maru_layout::{BUCKET_WAYS, PAGE_BYTES};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

const IMAGES: usize = 1000;
const BATCH: usize = 100;

/// SplitMix64: small, and the same everywhere.
struct Dice {
    state: u64,
    /// Nothing is damaged on purpose.
    clean: bool,
}

impl Dice {
    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number below `n`.
    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    /// True `percent` times of a hundred.
    fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// Like `chance`, for what damages; rolls the same dice where nothing may be damaged.
    fn harm(&mut self, percent: u64) -> bool {
        self.chance(percent) && !self.clean
    }

    fn bytes<const N: usize>(&mut self) -> [u8; N] {
        std::array::from_fn(|_| self.next() as u8)
    }
}

// ---------------------------------------------------------------- building images

fn random_superblock(dice: &mut Dice) -> Superblock {
    loop {
        let mut spec = FormatSpec::new((16 + dice.below(241)) * PAGE_BYTES, 64);
        if dice.chance(20) {
            spec.align_bytes = PAGE_BYTES << dice.below(5);
            spec.length_bytes = spec.length_bytes.next_multiple_of(spec.align_bytes);
        }
        let mut size = 0;
        spec.classes = (0..1 + dice.below(3))
            .map(|_| {
                size += 64 * (1 + dice.below(64));
                ClassSpec { slot_bytes: size, slots: dice.chance(40).then_some(1 + dice.below(60) as u32) }
            })
            .collect();
        spec.regime = [Regime::Coherent, Regime::CoherentHeader, Regime::Incoherent][dice.below(3) as usize];
        spec.hosts = [Hosts::One, Hosts::Many][dice.below(2) as usize];
        spec.sessions = Some(1 + dice.below(8) as u32);
        spec.namespaces = Some(1 + dice.below(6) as u32);
        spec.tokens = dice.chance(30).then(|| dice.below(100) as u32);
        spec.config = json!({"pool": dice.next(), "name": "größe"}).to_string();
        let stamp = Stamp {
            region_id: dice.bytes(),
            incarnation: dice.next(),
            hash_seed: dice.next(),
            formatted_ns: dice.next(),
            formatter_host: dice.bytes(),
        };
        if let Ok(superblock) = spec.plan(&stamp) {
            return superblock;
        }
    }
}

/// The tables of a region as plain records, before they are bytes.
struct Tables {
    control: ControlPage,
    records: Vec<SlotRecord>,
    buckets: Vec<Bucket>,
    sessions: Vec<SessionEntry>,
    lease_marks: Vec<u64>,
    namespaces: Vec<NamespaceRow>,
    payloads: Vec<(u32, Vec<u8>)>,
}

fn random_tables(dice: &mut Dice, geometry: &Geometry) -> Tables {
    let mut tables = Tables {
        control: ControlPage::zeroed(),
        records: vec![SlotRecord::zeroed(); geometry.slot_count as usize],
        buckets: vec![Bucket::zeroed(); geometry.bucket_count as usize],
        sessions: vec![SessionEntry::zeroed(); geometry.session_count as usize],
        lease_marks: vec![0; geometry.session_count as usize],
        namespaces: vec![NamespaceRow::zeroed(); geometry.namespace_count as usize],
        payloads: Vec::new(),
    };
    tables.control.format = match dice.below(20) {
        _ if dice.clean => FormatWord::ready(&geometry.region_id).0,
        0 => FormatWord::new(FormatState::Replaced, 0).0,
        1 => FormatWord::new(FormatState::Formatting, dice.next()).0,
        2 => dice.next(),
        3 => 0,
        4 => FormatWord::ready(&dice.bytes()).0,
        _ => FormatWord::ready(&geometry.region_id).0,
    };
    for _ in 0..1 + dice.below(300) {
        let slot = dice.below(geometry.slot_count.into()) as u32;
        random_slot(dice, geometry, &mut tables, slot);
    }
    for _ in 0..dice.below(40) {
        // Stale and impossible entries, and marks, that nobody asked for.
        let bucket = &mut tables.buckets[dice.below(geometry.bucket_count.into()) as usize];
        bucket.mark = dice.below(3);
        bucket.entries[dice.below(BUCKET_WAYS as u64) as usize] = match dice.below(10) + 3 * u64::from(dice.clean) {
            0 => dice.next(),
            1 => IndexEntry::new(geometry.slot_count, dice.next() >> 20, 5).0,
            2 => IndexEntry::new(0, 1 << 26, 5).0,
            _ => {
                IndexEntry::new(
                    dice.below(geometry.slot_count.into()) as u32,
                    claimable(dice.below(1 << 30)),
                    dice.below(512) as u16,
                )
                .0
            }
        };
    }
    for (entry, mark) in tables.sessions.iter_mut().zip(&mut tables.lease_marks) {
        let state = SessionState::from_bits(dice.below(5)).expect("one of five");
        entry.word =
            if dice.harm(3) { dice.next() } else { SessionWord::new(state, dice.next() as u32, dice.next() as u32).0 };
        entry.pid = dice.next() as u32;
        let name = ["vllm", "sglang", "größer", ""][dice.below(4) as usize];
        entry.engine[..name.len()].copy_from_slice(name.as_bytes());
        if dice.chance(3) {
            entry.engine[0] = 0xFF;
        }
        let cells = u64::from(geometry.lease_cells);
        *mark = if dice.harm(3) { cells + dice.below(2) } else { dice.below(cells) };
    }
    for row in &mut tables.namespaces {
        random_namespace(dice, row);
    }
    tables
}

fn random_slot(dice: &mut Dice, geometry: &Geometry, tables: &mut Tables, slot: u32) {
    let state = if dice.chance(60) { SlotState::Ready } else { SlotState::ALL[dice.below(7) as usize] };
    let owner = match state {
        SlotState::Free | SlotState::Ready => Owner::NOBODY,
        _ if dice.harm(3) => Owner(dice.below(4096) as u16),
        _ => Owner::session(dice.below(geometry.session_count.into()) as u32),
    };
    let generation = if dice.chance(5) { MAX_GENERATION } else { claimable(dice.below(1 << 40)) };
    let (_, size) = geometry.payload_of(slot).expect("a slot of this region");
    let length = if dice.harm(3) { size as u32 + dice.below(2) as u32 } else { dice.below(size + 1) as u32 };
    let payload: Vec<u8> = (0..length).map(|_| dice.next() as u8).collect();
    let identity = IdentityLine {
        word: SlotWord::new(state, owner, generation).with_device_writer(dice.chance(10)).0,
        prefix: dice.bytes(),
        namespace: dice.bytes(),
        shard: dice.next() as u16,
        part: dice.next() as u16,
        length,
    };
    let mut body = BodyLine {
        generation,
        committed_ns: dice.next(),
        parent_hint: dice.next(),
        storer_id: dice.next(),
        depth: dice.next() as u32,
        storer_index: dice.next() as u16,
        ..BodyLine::zeroed()
    };
    let key = ObjectKey::of_record(&identity);
    let mut crc = PayloadCrc::new(&key, generation, length);
    crc.update(&payload);
    body.checksum = seal(&identity, &body, crc.finish());
    let mut record = SlotRecord { identity, body };
    match dice.below(100) {
        _ if dice.clean => {}
        0 | 1 => record.body.checksum ^= 1 << dice.below(64),
        2 => record.body.generation ^= 1 << dice.below(44),
        3 => record.body.depth ^= 1,
        4 => record.identity.length = record.identity.length.wrapping_add(1),
        5 => record.identity.word = dice.next(),
        6 => record.identity.word ^= 1 << dice.below(64),
        7 => record.identity.prefix[dice.below(32) as usize] ^= 0x80,
        _ => {}
    }
    tables.records[slot as usize] = record;
    tables.payloads.retain(|(other, _)| *other != slot);
    tables.payloads.push((slot, payload));
    if dice.chance(90) {
        let place = key.place(geometry.hash_seed, geometry.bucket_count);
        let entry = IndexEntry::new(slot, generation, place.tag);
        let second = dice.chance(10);
        let (bucket, entry) = if second { (place.second, entry.in_second()) } else { (place.first, entry) };
        let row = &mut tables.buckets[bucket as usize].entries;
        if let Some(way) = row.iter().position(|entry| *entry == 0) {
            row[way] = entry.0;
            tables.buckets[place.first as usize].mark += u64::from(second);
        }
    }
}

fn random_namespace(dice: &mut Dice, row: &mut NamespaceRow) {
    if dice.chance(30) {
        return;
    }
    let text =
        format!("tenant=tenant{}\nmodel=größe%3D{}\nhash_seed=0", dice.next(), "x".repeat(dice.below(800) as usize));
    row.state = RowState::Ready as u64;
    row.generation = dice.next();
    row.text_bytes = text.len() as u32;
    row.text[..text.len()].copy_from_slice(text.as_bytes());
    row.text_digest = Sha256::digest(&text).into();
    match dice.below(20) {
        _ if dice.clean => {}
        0 => row.state = dice.next(),
        1 => row.state = RowState::Adding as u64,
        2 => row.text[dice.below(text.len() as u64) as usize] = 0xFF,
        3 => row.text_bytes = 929,
        4 => row.text_bytes = dice.next() as u32,
        5 => row.text_digest[3] ^= 1,
        _ => {}
    }
}

fn put(bytes: &mut [u8], offset: u64, what: &[u8]) {
    let offset = offset as usize;
    bytes[offset..offset + what.len()].copy_from_slice(what);
}

fn image_bytes(superblock: &Superblock, geometry: &Geometry, tables: &Tables) -> Vec<u8> {
    let mut bytes = vec![0; geometry.length_bytes as usize];
    put(&mut bytes, 0, bytemuck::bytes_of(superblock));
    put(&mut bytes, geometry.offset(SectionKind::Copy), bytemuck::bytes_of(superblock));
    put(&mut bytes, geometry.offset(SectionKind::Control), bytemuck::bytes_of(&tables.control));
    put(&mut bytes, geometry.offset(SectionKind::Records), bytemuck::cast_slice(&tables.records));
    put(&mut bytes, geometry.offset(SectionKind::Buckets), bytemuck::cast_slice(&tables.buckets));
    put(&mut bytes, geometry.offset(SectionKind::Sessions), bytemuck::cast_slice(&tables.sessions));
    put(&mut bytes, geometry.offset(SectionKind::Namespaces), bytemuck::cast_slice(&tables.namespaces));
    for (session, mark) in tables.lease_marks.iter().enumerate() {
        let area = geometry.offset(SectionKind::SessionAreas) + session as u64 * geometry.session_area_bytes;
        put(&mut bytes, area, &mark.to_le_bytes());
    }
    for (slot, payload) in &tables.payloads {
        // One byte too long is among the damages: its last byte belongs to somebody else.
        let (offset, size) = geometry.payload_of(*slot).expect("a slot of this region");
        put(&mut bytes, offset, &payload[..payload.len().min(size as usize)]);
    }
    bytes
}

/// Changes something in the first page; most changes must be refused, and both readers must say so.
fn damage_superblock(dice: &mut Dice, bytes: &mut Vec<u8>) {
    let page = PAGE_BYTES as usize;
    for _ in 0..1 + dice.below(5) / 4 {
        let byte = match dice.below(8) {
            0 | 1 => dice.below(192),
            2 | 3 => 512 + dice.below(15 * 32),
            4 => 1280 + dice.below(3 * 32),
            5 => 1536 + dice.below(2 * 32),
            6 => 96 + dice.below(64),
            _ => dice.below(PAGE_BYTES),
        } as usize;
        let field = byte & !3..(byte & !3) + 4;
        let value = u32::from_le_bytes(bytes[field.clone()].try_into().expect("four bytes"));
        let value = match dice.below(8) {
            0 => dice.next() as u32,
            1 => 0,
            2 => u32::MAX,
            3 => value ^ 1 << dice.below(32),
            4 => value.wrapping_add(1),
            5 => value.wrapping_sub(1),
            6 => value.wrapping_sub(64 << dice.below(8)),
            _ => value.wrapping_add(64 << dice.below(8)),
        };
        bytes[field].copy_from_slice(&value.to_le_bytes());
    }
    if dice.chance(5) {
        bytes.truncate(page + dice.below((bytes.len() - page) as u64) as usize);
    }
    if dice.chance(90) {
        let sealed = Superblock::read(bytes).expect("a page").sealed();
        bytes[..page].copy_from_slice(bytemuck::bytes_of(&sealed));
    }
}

// ---------------------------------------------------------------- what this side says

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn padded_text(bytes: &[u8]) -> String {
    let used = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    String::from_utf8_lossy(&bytes[..used]).into_owned()
}

fn verdict(bytes: &[u8], summary: bool) -> Value {
    let image = match Image::read(bytes) {
        Ok(image) => image,
        Err(
            SuperblockError::Blank
            | SuperblockError::Magic { .. }
            | SuperblockError::ByteOrder { .. }
            | SuperblockError::Version { .. }
            | SuperblockError::Feature { .. },
        ) => return json!({"exit": 2}),
        Err(_) => return json!({"exit": 1}),
    };
    let geometry = image.geometry();

    let mut damage = json!({"copy": 0, "format": 0, "slot_words": 0, "records": 0, "index": 0, "sessions": 0, "leases": 0, "namespaces": 0});
    let mut count = |group: &str| damage[group] = json!(damage[group].as_u64().expect("a known group") + 1);
    for found in image.damage() {
        count(found.group());
    }
    let rows: Vec<_> =
        image.namespaces().filter(|(_, row)| RowState::from_bits(row.state) == Some(RowState::Ready)).collect();
    for (_, row) in &rows {
        if namespace_text(row).is_some_and(|text| *Sha256::digest(text) != row.text_digest) {
            count("namespaces");
        }
    }
    let damaged = damage.as_object().expect("an object").values().any(|count| *count != json!(0));

    let (counts, unknown) = image.state_counts();
    let mut states = json!({"damaged": unknown});
    for (state, count) in SlotState::ALL.iter().zip(counts) {
        states[state.name()] = json!(count);
    }
    let format = match FormatWord(image.control().expect("a control page").format).state() {
        Some(state) => format!("{state:?}").to_lowercase(),
        None => "damaged".to_owned(),
    };
    let entries: Vec<IndexEntry> = image.entries().map(|(.., entry)| entry).collect();
    let names: std::collections::HashSet<u64> = entries.iter().map(|entry| entry.0 >> 10).collect();
    let ready: Vec<(Value, String)> = image
        .ready_replicas()
        .map(|replica| {
            let indexed = names.contains(&(IndexEntry::new(replica.slot, replica.generation, 0).0 >> 10));
            assert_eq!(indexed, entries.iter().any(|entry| entry_names(*entry, replica.slot, replica.generation)));
            assert!(indexed || !image.is_indexed(&replica));
            let ObjectKey { namespace, prefix, shard, part } = replica.key;
            let value = json!({
                "slot": replica.slot, "generation": replica.generation, "namespace": hex(&namespace), "prefix": hex(&prefix),
                "shard": shard, "part": part, "length": replica.length, "payload_crc_ok": replica.payload_ok,
                "record_crc_ok": replica.record_ok, "indexed": indexed,
            });
            let line = format!(
                "{} {} {} {} {shard} {part} {} {} {} {}\n",
                replica.slot,
                replica.generation,
                hex(&namespace),
                hex(&prefix),
                replica.length,
                u8::from(replica.payload_ok),
                u8::from(replica.record_ok),
                u8::from(indexed)
            );
            (value, line)
        })
        .collect();
    let namespaces: Vec<Value> = rows
        .iter()
        .map(|(index, row)| {
            let text = &row.text[..(row.text_bytes as usize).min(row.text.len())];
            json!({"row": index, "generation": row.generation, "text": String::from_utf8_lossy(text)})
        })
        .collect();
    let sessions: Vec<Value> = image
        .sessions()
        .filter(|(_, entry)| !SessionWord(entry.word).is(SessionState::Free))
        .map(|(index, entry)| {
            let word = SessionWord(entry.word);
            json!({
                "index": index, "state": word.state().map_or("damaged", SessionState::name), "epoch": word.epoch(),
                "pid": entry.pid, "engine": padded_text(&entry.engine),
            })
        })
        .collect();

    let mut out = json!({
        "exit": u8::from(damaged), "region": hex(&geometry.region_id), "format": format,
        "slot_count": geometry.slot_count, "bucket_count": geometry.bucket_count, "states": states,
        "index_entries": entries.len(), "damage": damage,
    });
    let more = if summary {
        let mut lines: Vec<&str> = ready.iter().map(|(_, line)| line.as_str()).collect();
        lines.sort_unstable();
        json!({
            "namespaces": namespaces.len(), "sessions": sessions.len(), "ready": lines.len(),
            "ready_sha256": hex(&Sha256::digest(lines.concat())),
        })
    } else {
        let classes: Vec<Value> = geometry
            .classes
            .iter()
            .map(|class| {
                json!({
                    "slot_bytes": class.slot_bytes, "payload_offset_bytes": class.payload_offset_bytes,
                    "first_slot": class.first_slot, "slot_count": class.slot_count,
                })
            })
            .collect();
        let ready: Vec<Value> = ready.into_iter().map(|(value, _)| value).collect();
        json!({"classes": classes, "ready": ready, "namespaces": namespaces, "sessions": sessions})
    };
    let Value::Object(more) = more else { unreachable!("json! of an object") };
    out.as_object_mut().expect("an object").extend(more);
    out
}

// ---------------------------------------------------------------- both sides

/// One JSON value a file, from the second reader; `None` when there is no python3.
fn ask_python(files: &[PathBuf], summary: bool) -> Option<Vec<Value>> {
    let reader = Path::new(env!("CARGO_MANIFEST_DIR")).join("reader/maru_reader.py");
    let mut command = Command::new("python3");
    command.arg(reader).args(summary.then_some("--summary")).args(files);
    let output = match command.output() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return None,
        other => other.expect("python3 runs"),
    };
    let code = output.status.code();
    assert!(matches!(code, Some(0..=2)), "{code:?}: {}", String::from_utf8_lossy(&output.stderr));
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    let lines = String::from_utf8(output.stdout).expect("UTF-8");
    let values: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let worst = values.iter().map(|value| value["exit"].as_i64().expect("a verdict")).max();
    assert_eq!(worst, code.map(i64::from), "the exit status is the worst verdict");
    Some(values)
}

fn seed_and_folder(name: &str) -> (u64, PathBuf) {
    let seed = match std::env::var("MARU_SEED") {
        Ok(seed) => seed.parse().expect("MARU_SEED is a number"),
        Err(_) => std::time::UNIX_EPOCH.elapsed().expect("a clock").as_nanos() as u64,
    };
    println!("MARU_SEED={seed}");
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
    fs::create_dir_all(&folder).expect("a folder");
    (seed, folder)
}

/// Asks both readers about these images; what this side says, if both say the same. `None` without python3.
fn agree(seed: u64, images: &[(PathBuf, Vec<u8>)], summary: bool) -> Option<Vec<Value>> {
    let files: Vec<PathBuf> = images.iter().map(|(path, _)| path.clone()).collect();
    let Some(answers) = ask_python(&files, summary) else {
        assert!(std::env::var_os("MARU_NEED_PYTHON").is_none(), "python3 is missing");
        eprintln!("\n*** SKIPPED: python3 is missing, so the second reader of the format did NOT run ***\n");
        return None;
    };
    assert_eq!(answers.len(), images.len());
    let mut said = Vec::with_capacity(images.len());
    for ((path, bytes), mut answer) in images.iter().zip(answers) {
        let expected = verdict(bytes, summary);
        let fields = answer.as_object_mut().expect("an object");
        assert_eq!(fields.remove("file"), Some(json!(path)));
        let error = fields.remove("error");
        if answer != expected {
            panic!(
                "MARU_SEED={seed}, image kept as {}: python says {answer} (error {error:?}), this crate {expected} ({:?})",
                path.display(),
                Image::read(bytes).err()
            );
        }
        said.push(expected);
    }
    Some(said)
}

#[test]
fn both_readers_judge_two_thousand_superblocks_alike() {
    let (seed, folder) = seed_and_folder("superblocks");
    let mut dice = Dice { state: !seed, clean: false };
    let mut verdicts = [0u32; 3];
    for _ in 0..2000 / 250 {
        let images: Vec<_> = (0..250)
            .map(|index| {
                let superblock = loop {
                    let superblock = random_superblock(&mut dice);
                    if superblock.length_bytes <= 128 << 10 {
                        break superblock;
                    }
                };
                let mut bytes = vec![0; superblock.length_bytes as usize];
                put(&mut bytes, 0, bytemuck::bytes_of(&superblock));
                put(&mut bytes, PAGE_BYTES, &FormatWord::ready(&superblock.region_id).0.to_le_bytes());
                damage_superblock(&mut dice, &mut bytes);
                if bytes.len() as u64 == superblock.length_bytes {
                    // The copy is made equal, so that only the judgement of the superblock decides.
                    let (head, copy) = (bytes[..PAGE_BYTES as usize].to_vec(), superblock.length_bytes - PAGE_BYTES);
                    put(&mut bytes, copy, &head);
                }
                let path = folder.join(format!("{index:03}.maru"));
                fs::write(&path, &bytes).expect("an image is written");
                (path, bytes)
            })
            .collect();
        for said in agree(seed, &images, true).into_iter().flatten() {
            verdicts[said["exit"].as_u64().expect("a verdict") as usize] += 1;
        }
    }
    fs::remove_dir_all(&folder).expect("cleaned up");
    println!("verdicts {verdicts:?}");
    assert!(verdicts == [0; 3] || verdicts.iter().all(|count| *count > 20), "{verdicts:?}");
}

#[test]
fn both_readers_agree_on_a_thousand_random_regions() {
    let (seed, folder) = seed_and_folder("second-reader");
    let mut dice = Dice { state: seed, clean: false };
    // What was met, so that a test that looks at nothing does not pass.
    let (mut verdicts, mut ready, mut broken, mut unindexed) = ([0u32; 3], 0usize, 0usize, 0usize);
    for batch in 0..IMAGES / BATCH {
        let mut images = Vec::with_capacity(BATCH);
        for index in 0..BATCH {
            dice.clean = dice.chance(25);
            let superblock = random_superblock(&mut dice);
            let geometry = Geometry::of(&superblock, superblock.length_bytes, true).expect("planned");
            let tables = random_tables(&mut dice, &geometry);
            let mut bytes = image_bytes(&superblock, &geometry, &tables);
            if dice.harm(40) {
                damage_superblock(&mut dice, &mut bytes);
            } else {
                let image = Image::read(&bytes).expect("sound");
                assert!(image.records().map(|(_, record)| record).eq(tables.records.iter().copied()));
                assert!(
                    image
                        .buckets()
                        .map(|(_, b)| (b.entries, b.mark))
                        .eq(tables.buckets.iter().map(|b| (b.entries, b.mark)))
                );
            }
            let path = folder.join(format!("{index:03}.maru"));
            fs::write(&path, &bytes).expect("an image is written");
            images.push((path, bytes));
        }
        for summary in [false, true] {
            if summary && batch % 5 != 0 {
                continue;
            }
            let Some(said) = agree(seed, &images, summary) else {
                fs::remove_dir_all(&folder).expect("cleaned up");
                return;
            };
            for expected in said {
                verdicts[expected["exit"].as_u64().expect("a verdict") as usize] += 1;
                for replica in expected["ready"].as_array().into_iter().flatten() {
                    ready += 1;
                    broken += usize::from(replica["payload_crc_ok"] == json!(false));
                    unindexed += usize::from(replica["indexed"] == json!(false));
                }
            }
        }
    }
    fs::remove_dir_all(&folder).expect("cleaned up");
    println!("verdicts {verdicts:?}, {ready} ready slots, {broken} of them broken, {unindexed} not in the index");
    assert!(verdicts[0] > 100 && verdicts[1] > 100 && verdicts[2] > 0, "{verdicts:?}");
    assert!(ready > 10_000 && broken > 100 && unindexed > 100);
}

#[test]
fn a_missing_file_or_a_foreign_one_is_cannot_read() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let files = [here.join("no such region"), here.join("FORMAT.md"), here.join("Cargo.toml")];
    let Some(answers) = ask_python(&files, false) else { return };
    for (answer, error) in answers.iter().zip(["No such file", "not a region", "shorter than a superblock"]) {
        assert_eq!(answer["exit"], 2);
        assert!(answer["error"].as_str().is_some_and(|text| text.contains(error)), "{answer}");
    }
}
