//! FORMAT.md against the crate.
//!
//! Every number in the tables of FORMAT.md is compared with what the compiler says: offsets, sizes, types
//! and alignments of records with `offset_of!` and friends, bit ranges with what the packed words do to
//! single bits, constants and state numbers by name, bounds by trying both sides of them. A field that a
//! record has and its table lacks is an error, and so is a record, a word or a constant that this test does not list
//! (the lists below destructure the structs, so that a new field does not compile until it is here).

use std::collections::BTreeMap;
use std::mem::{align_of, offset_of, size_of, size_of_val};

use bytemuck::Zeroable;
use maru_layout::farewell::{Cause, FarewellWord};
use maru_layout::geometry::{ClassSpec, FormatSpec, Stamp};
use maru_layout::object::{ObjectKey, PayloadCrc, seal};
use maru_layout::record::{BodyLine, IdentityLine, SlotRecord};
use maru_layout::superblock::{
    Section, SectionKind, Shard, SlotClass, Superblock, SuperblockError, feature_ignorable, feature_read, feature_write,
};
use maru_layout::table::{
    Bucket, ControlPage, Counter, FlightRecord, NamespaceRow, PoolEntry, Role, SessionAreaHead, SessionEntry,
};
use maru_layout::word::{
    ChoreWord, FormatState, FormatWord, IndexEntry, LeaseCell, LeaseKind, Owner, RowState, SessionState, SessionWord,
    SlotState, SlotWord, TokenWord,
};
use sha2::{Digest, Sha256};

const FORMAT: &str = include_str!("../FORMAT.md");
const WORD_SOURCE: &str = concat!(include_str!("../src/word.rs"), include_str!("../src/farewell.rs"));

// ---------------------------------------------------------------- reading the document

struct Table {
    /// The last line of prose before the table.
    title: String,
    header: Vec<String>,
    rows: Vec<Vec<String>>,
}

/// Cells lose their backticks: `` `a` `` is `a`.
fn cells(line: &str) -> Vec<String> {
    let inner = line.trim().trim_matches('|');
    inner.split('|').map(|cell| cell.replace('`', "").trim().to_owned()).collect()
}

fn tables() -> Vec<Table> {
    let lines: Vec<&str> = FORMAT.lines().collect();
    let (mut found, mut title, mut at) = (Vec::new(), String::new(), 0);
    while at < lines.len() {
        if lines[at].starts_with('|') {
            let rows: Vec<&str> = lines[at..].iter().copied().take_while(|line| line.starts_with('|')).collect();
            assert!(rows.len() > 2 && rows[1].starts_with("| ---"), "FORMAT.md:{}: not a table", at + 1);
            let header = cells(rows[0]);
            let body: Vec<Vec<String>> = rows[2..].iter().map(|row| cells(row)).collect();
            for row in &body {
                assert_eq!(row.len(), header.len(), "FORMAT.md, table {title:?}: row {row:?}");
            }
            found.push(Table { title: title.clone(), header, rows: body });
            at += rows.len();
            continue;
        }
        if lines[at].starts_with("Struct ") || lines[at].starts_with("Word ") || lines[at].starts_with("Values ") {
            title = lines[at].to_owned();
        }
        at += 1;
    }
    found
}

/// The one table with these column heads.
fn table_headed(header: &[&str]) -> Table {
    let mut all: Vec<Table> = tables().into_iter().filter(|table| table.header == header).collect();
    assert_eq!(all.len(), 1, "tables headed {header:?}");
    all.remove(0)
}

/// The tables whose title starts with `kind`, by the name in backticks after it, with the rest of the title.
fn titled(kind: &str, first_column: &str) -> BTreeMap<String, (String, Table)> {
    let mut found = BTreeMap::new();
    for table in tables().into_iter().filter(|table| table.title.starts_with(kind) && table.header[0] == first_column) {
        let mut parts = table.title.split('`');
        let (name, rest) = (parts.nth(1).expect("name").to_owned(), parts.collect::<String>());
        assert!(found.insert(name.clone(), (rest, table)).is_none(), "two tables for {name}");
    }
    found
}

fn number(text: &str) -> u64 {
    let parsed = text.strip_prefix("0x").map_or_else(|| text.parse(), |hex| u64::from_str_radix(hex, 16));
    parsed.unwrap_or_else(|_| panic!("{text:?} is not a number"))
}

// ---------------------------------------------------------------- records

struct Layout {
    name: &'static str,
    size: usize,
    align: usize,
    fields: Vec<(&'static str, usize, usize, String)>,
}

/// `[u8; 16]` and paths, as the document writes them.
fn type_of<T>(_: &T) -> String {
    let full = std::any::type_name::<T>();
    let short = full.rsplit("::").next().expect("a name").trim_start_matches('[');
    match full.contains(';') {
        true => short.trim_end_matches(']').replace("; ", "[") + "]",
        false => short.to_owned(),
    }
}

macro_rules! layout {
    ($ty:ident { $($field:ident),* $(,)? }) => {{
        let sample = $ty::zeroed();
        let $ty { $($field: _),* } = sample; // a field missing here does not compile
        Layout {
            name: stringify!($ty),
            size: size_of::<$ty>(),
            align: align_of::<$ty>(),
            fields: vec![$((stringify!($field), offset_of!($ty, $field), size_of_val(&sample.$field), type_of(&sample.$field))),*],
        }
    }};
}

fn layouts() -> Vec<Layout> {
    vec![
        layout!(Superblock {
            magic,
            format_version,
            byte_order,
            features_read,
            features_write,
            features_ignorable,
            region_id,
            incarnation,
            regime,
            hosts,
            reserved0,
            page_bytes,
            line_bytes,
            align_bytes,
            length_bytes,
            header_bytes,
            slot_count,
            bucket_count,
            session_count,
            session_area_bytes,
            namespace_count,
            token_count,
            task_count,
            advert_count,
            access_lanes,
            class_count,
            shard_count,
            section_count,
            copy_lease_ms,
            stalled_writer_ms,
            attach_wait_ms,
            config_bytes,
            hash_seed,
            formatted_ns,
            formatter_host,
            reserved1,
            sections,
            classes,
            shards,
            config,
            reserved2,
            checksum,
        }),
        layout!(Section { kind, stride_bytes, offset_bytes, length_bytes, count }),
        layout!(SlotClass { slot_bytes, payload_offset_bytes, first_slot, slot_count, reserved }),
        layout!(Shard { first_slot, slot_count, first_bucket, bucket_count, rank, writing_host, reserved }),
        layout!(ControlPage {
            format,
            reserved0,
            namespace_chore,
            reserved1,
            leader_chore,
            reserved2,
            clocks,
            reserved3,
        }),
        layout!(PoolEntry { id, medium, tier, scope, reserved0, name, reserved1 }),
        layout!(SlotRecord { identity, body }),
        layout!(IdentityLine { word, prefix, namespace, shard, part, length }),
        layout!(BodyLine {
            generation,
            checksum,
            committed_ns,
            parent_hint,
            storer_id,
            budget_token,
            depth,
            namespace_row,
            storer_epoch,
            storer_index,
            writer_kind,
            reserved,
        }),
        layout!(Bucket { entries, mark }),
        layout!(SessionAreaHead {
            lease_mark,
            reserved0,
            recorder_next,
            current_step,
            current_slot,
            reserved1,
            counters,
            recorder,
            reserved2,
        }),
        layout!(FlightRecord { sequence, time_ns, operation, outcome, slot, generation, prefix }),
        layout!(SessionEntry {
            word,
            heartbeat,
            id,
            host_id,
            boot_id,
            pid,
            role,
            host_index,
            start_time_ticks,
            pid_ns,
            attached_ns,
            reserved0,
            engine,
            reserved1,
        }),
        layout!(NamespaceRow {
            state,
            generation,
            text_bytes,
            reserved0,
            created_ns,
            text_digest,
            budget_slots,
            first_token,
            reserved1,
            text,
        }),
    ]
}

#[test]
fn every_record_is_told_field_by_field() {
    let mut told = titled("Struct ", "offset");
    for layout in layouts() {
        let name = layout.name;
        let (rest, table) = told.remove(name).unwrap_or_else(|| panic!("FORMAT.md has no table for {name}"));
        assert_eq!(rest, format!(", {} bytes, aligned to {}.", layout.size, layout.align), "{name}");
        assert_eq!(table.header, ["offset", "size", "field", "type", "meaning", "written"], "{name}");
        let rows: Vec<_> = table
            .rows
            .iter()
            .map(|row| (row[2].as_str(), number(&row[0]) as usize, number(&row[1]) as usize, row[3].clone()))
            .collect();
        assert_eq!(rows, layout.fields, "{name}: FORMAT.md (left) against the crate (right)");
        let end = layout.fields.iter().fold(0, |end, (field, offset, size, _)| {
            assert_eq!(*offset, end, "{name}.{field}: implicit padding before it");
            offset + size
        });
        assert_eq!(end, layout.size, "{name}: implicit padding at its end");
        assert!(table.rows.iter().all(|row| !row[4].is_empty() && !row[5].is_empty()), "{name}: a cell is empty");
    }
    assert!(told.is_empty(), "FORMAT.md tells of records that the crate has not: {:?}", told.keys());
}

#[test]
fn this_test_knows_every_record_and_word_of_the_crate() {
    let sources =
        [include_str!("../src/record.rs"), include_str!("../src/superblock.rs"), include_str!("../src/table.rs")];
    let names = |source: &str, with: &str| -> Vec<String> {
        let mut found = Vec::new();
        let mut armed = false;
        for line in source.lines() {
            armed |= line.starts_with("#[repr(") && line.contains(with);
            if let Some(rest) = line.strip_prefix("pub struct ") {
                if std::mem::take(&mut armed) {
                    found.push(rest.split([' ', '(']).next().expect("name").to_owned());
                }
            } else if line.starts_with("pub enum ") {
                armed = false;
            }
        }
        found
    };
    let mut records: Vec<String> = sources.iter().flat_map(|source| names(source, "C")).collect();
    let mut known: Vec<String> = layouts().iter().map(|layout| layout.name.to_owned()).collect();
    records.sort();
    known.sort();
    assert_eq!(records, known);
    let mut words = names(WORD_SOURCE, "transparent");
    words.retain(|word| word != "Owner");
    words.sort();
    assert_eq!(words, titled("Word ", "bits").into_keys().collect::<Vec<_>>());
}

// ---------------------------------------------------------------- words

type Bits = (u32, u32, String);

fn bit_rows(table: &Table) -> Vec<Bits> {
    assert_eq!(table.header, ["bits", "width", "field", "meaning"], "{}", table.title);
    let mut end = 0;
    let rows = table.rows.iter().map(|row| {
        let (from, to) = row[0].split_once("..").expect("a range");
        let (from, to) = (number(from) as u32, number(to) as u32);
        assert_eq!(from, end, "{}: bits are told in order, without gaps", table.title);
        assert_eq!(number(&row[1]) as u32, to - from, "{}: width of {}", table.title, row[2]);
        end = to;
        (from, to, row[2].clone())
    });
    let rows: Vec<Bits> = rows.collect();
    assert_eq!(end, 64, "{}", table.title);
    rows
}

/// The bit ranges in the doc comment of a word.
fn source_bits(word: &str) -> Vec<(u32, u32)> {
    let head = WORD_SOURCE.split(&format!("pub struct {word}(")).next().expect("the word");
    let block = head.rsplit("/// ```text\n").next().expect("its bits");
    block
        .lines()
        .filter_map(|line| line.strip_prefix("/// bit"))
        .map(|line| {
            let range = line.trim_start_matches('s').split_whitespace().next().expect("a range");
            match range.split_once("..") {
                Some((from, to)) => (number(from) as u32, number(to) as u32),
                None => (number(range) as u32, number(range) as u32 + 1),
            }
        })
        .collect()
}

/// Which single bits of `base` change what `get` returns.
fn moved_by(base: u64, get: &dyn Fn(u64) -> u64) -> u64 {
    (0..64).filter(|bit| get(base ^ (1 << bit)) != get(base)).fold(0, |mask, bit| mask | 1 << bit)
}

fn range_mask(from: u32, to: u32) -> u64 {
    (from..to).fold(0, |mask, bit| mask | 1 << bit)
}

#[test]
fn every_bit_of_every_word_is_where_the_document_says() {
    let opt = |value: Option<u64>| value.unwrap_or(u64::MAX);
    // Word, a value to start from, and what each named field decodes to. A field named `state` may also be moved
    // by bits told as `zero`: both make the word one that no version wrote.
    type Getter<'a> = (&'static str, Box<dyn Fn(u64) -> u64 + 'a>);
    let words: Vec<(&str, u64, Vec<Getter>)> = vec![
        (
            "SlotWord",
            SlotWord::new(SlotState::Ready, Owner(5), 77).0,
            vec![
                ("state", Box::new(|w| opt(SlotWord(w).state().map(|s| s as u64)))),
                ("device", Box::new(|w| SlotWord(w).device_writer().into())),
                ("owner", Box::new(|w| SlotWord(w).owner().0.into())),
                ("generation", Box::new(|w| SlotWord(w).generation())),
            ],
        ),
        (
            "SessionWord",
            SessionWord::new(SessionState::Dead, 8, 9).0,
            vec![
                ("state", Box::new(|w| opt(SessionWord(w).state().map(|s| s as u64)))),
                ("host", Box::new(|w| SessionWord(w).host_tag().into())),
                ("epoch", Box::new(|w| SessionWord(w).epoch().into())),
            ],
        ),
        (
            "FormatWord",
            FormatWord::new(FormatState::Ready, 9).0,
            vec![
                ("state", Box::new(|w| opt(FormatWord(w).state().map(|s| s as u64)))),
                ("claim", Box::new(|w| FormatWord(w).claim())),
            ],
        ),
        (
            "LeaseCell",
            LeaseCell::new(LeaseKind::View, 3, 4, 5).0,
            vec![
                ("kind", Box::new(|w| opt(LeaseCell(w).kind().map(|k| k as u64)))),
                ("sequence", Box::new(|w| LeaseCell(w).sequence().into())),
                ("generation", Box::new(|w| LeaseCell(w).short_generation())),
                ("slot", Box::new(|w| LeaseCell(w).slot().into())),
            ],
        ),
        (
            "TokenWord",
            TokenWord::new(4, 5).0,
            vec![
                ("generation", Box::new(|w| TokenWord(w).names().map_or(0, |(_, generation)| generation))),
                ("slot", Box::new(|w| TokenWord(w).names().map_or(0, |(slot, _)| slot.into()))),
            ],
        ),
        (
            "IndexEntry",
            IndexEntry::new(4, 5, 6).0,
            vec![
                ("tag", Box::new(|w| IndexEntry(w).tag().into())),
                ("second", Box::new(|w| IndexEntry(w).is_second().into())),
                ("generation", Box::new(|w| IndexEntry(w).short_generation())),
                ("slot", Box::new(|w| IndexEntry(w).slot().into())),
            ],
        ),
        (
            "FarewellWord",
            FarewellWord::new(4, Cause::Retired, Owner(5), 6).0,
            vec![
                ("cause", Box::new(|w| FarewellWord(w).cause().map_or(0, |cause| cause as u64))),
                ("who", Box::new(|w| FarewellWord(w).who().0.into())),
                ("second", Box::new(|w| FarewellWord(w).second().into())),
                ("tag", Box::new(|w| FarewellWord(w).tag().into())),
            ],
        ),
        (
            "ChoreWord",
            ChoreWord::held(Owner(4), 5).0,
            vec![
                ("owner", Box::new(|w| ChoreWord(w).owner().0.into())),
                ("epoch", Box::new(|w| ChoreWord(w).epoch().into())),
            ],
        ),
    ];
    let mut told = titled("Word ", "bits");
    for (word, base, getters) in words {
        let (_, table) = told.remove(word).unwrap_or_else(|| panic!("FORMAT.md has no bits for {word}"));
        let rows = bit_rows(&table);
        let ranges: Vec<_> = rows.iter().map(|(from, to, _)| (*from, *to)).collect();
        assert_eq!(ranges, source_bits(word), "{word}: FORMAT.md (left) against its doc comment (right)");
        let zero = rows.iter().filter(|row| row.2 == "zero").fold(0, |mask, row| mask | range_mask(row.0, row.1));
        let fields: Vec<_> = rows.iter().filter(|row| row.2 != "zero").collect();
        let names: Vec<_> = fields.iter().map(|row| row.2.as_str()).collect();
        assert_eq!(names, getters.iter().map(|(name, _)| *name).collect::<Vec<_>>(), "{word}");
        for ((from, to, field), (_, get)) in fields.into_iter().zip(&getters) {
            let ignore = if field == "state" { zero } else { 0 };
            let moved = moved_by(base, get.as_ref());
            assert_eq!(moved & !ignore, range_mask(*from, *to), "{word}.{field}");
        }
    }
    assert!(told.is_empty(), "unknown words in FORMAT.md: {:?}", told.keys());
}

#[test]
fn numbered_values_have_the_numbers_and_names_of_the_crate() {
    let format_name = |bits: u64| FormatWord(bits).state().map(|state| format!("{state:?}").to_lowercase());
    let lease_name = |bits: u64| LeaseCell(bits).kind().map(|kind| kind.name().to_owned());
    type Decode = Box<dyn Fn(u64) -> Option<String>>;
    let named: Vec<(&str, u64, Decode)> = vec![
        ("SlotState", 15, Box::new(|n| SlotState::from_bits(n).map(|s| s.name().to_owned()))),
        ("SessionState", 15, Box::new(|n| SessionState::from_bits(n).map(|s| s.name().to_owned()))),
        ("FormatState", 255, Box::new(format_name)),
        ("LeaseKind", 3, Box::new(lease_name)),
        ("Cause", 1000, Box::new(|n| Cause::from_bits(n).map(|cause| cause.name().to_owned()))),
        ("RowState", 1000, Box::new(|n| RowState::from_bits(n).map(|s| s.name().to_owned()))),
        ("Role", 1000, Box::new(|n| Role::from_bits(n as u16).map(|s| s.name().to_owned()))),
    ];
    let mut told = titled("Values ", "value");
    for (name, most, decode) in named {
        let (_, table) = told.remove(name).unwrap_or_else(|| panic!("FORMAT.md has no values of {name}"));
        let rows: Vec<_> = table.rows.iter().map(|row| (number(&row[0]), row[1].clone())).collect();
        let real: Vec<_> = (0..=most).filter_map(|n| Some((n, decode(n)?))).collect();
        assert_eq!(rows, real, "{name}");
    }
    assert!(told.is_empty(), "{:?}", told.keys());

    let counters = table_headed(&["counter", "name", "counts"]);
    let rows: Vec<_> = counters.rows.iter().map(|row| (number(&row[0]), row[1].as_str())).collect();
    let real: Vec<_> = Counter::ALL.iter().map(|counter| (*counter as u64, counter.name())).collect();
    assert_eq!(rows, real);
}

#[test]
fn slot_and_session_lives_name_known_states() {
    let lives: Vec<Table> =
        tables().into_iter().filter(|table| table.header.first().is_some_and(|h| h == "from")).collect();
    assert_eq!(lives.len(), 2);
    let slot: Vec<&str> = SlotState::ALL.iter().map(|state| state.name()).collect();
    let session: Vec<&str> = (0..5).filter_map(SessionState::from_bits).map(SessionState::name).collect();
    for (table, known) in lives.iter().zip([slot, session]) {
        let mut seen = std::collections::BTreeSet::new();
        for row in &table.rows {
            for state in row[0].split(", ").chain([row[1].as_str()]) {
                assert!(known.contains(&state.to_lowercase().as_str()), "{state:?}");
                seen.insert(state.to_lowercase());
            }
        }
        assert_eq!(seen.len(), known.len(), "a state is never reached or left");
    }
    for row in &lives[0].rows {
        if row[1] == "Free" {
            assert!(row[3].contains("g + 1"), "the generation moves on every way to Free: {row:?}");
        }
    }
}

// ---------------------------------------------------------------- constants, sections, bounds

#[test]
fn constants_and_features_have_the_values_of_the_crate() {
    macro_rules! constants { ($($path:path),* $(,)?) => { vec![$((stringify!($path).rsplit(' ').next().expect("name").rsplit("::").next().expect("name"), $path as u64)),*] } }
    let real = constants![
        maru_layout::FORMAT_VERSION,
        maru_layout::OLDEST_READABLE_VERSION,
        maru_layout::BYTE_ORDER_MARK,
        maru_layout::PAGE_BYTES,
        maru_layout::LINE_BYTES,
        maru_layout::RECORD_BYTES,
        maru_layout::BUCKET_BYTES,
        maru_layout::BUCKET_WAYS,
        maru_layout::BUCKET_MEAN,
        maru_layout::MAX_SLOTS,
        maru_layout::MAX_SESSIONS,
        maru_layout::SLOT_GRANULE_BYTES,
        maru_layout::MAX_CLASSES,
        maru_layout::MAX_SHARDS,
        maru_layout::MAX_SECTIONS,
        maru_layout::MAX_CONFIG_BYTES,
        maru_layout::FORMATTER_LOCK_BYTE,
        maru_layout::SESSION_AREA_HEAD_BYTES,
        maru_layout::MIN_SESSION_AREA_BYTES,
        maru_layout::object::OBJECT_ID_BYTES,
        maru_layout::word::GENERATION_BITS,
        maru_layout::word::SHORT_GENERATION_BITS,
        maru_layout::word::MAX_GENERATION,
        maru_layout::word::SLOT_BITS,
        maru_layout::word::TAG_BITS,
        maru_layout::farewell::FAREWELL_SLOTS,
        maru_layout::farewell::FAREWELL_TAG_BITS,
        maru_layout::farewell::FAREWELL_LAST_SECOND,
    ];
    let told = table_headed(&["constant", "value", "meaning"]);
    let rows: Vec<_> = told.rows.iter().map(|row| (row[0].as_str(), number(&row[1]))).collect();
    assert_eq!(rows, real);
    for line in include_str!("../src/lib.rs").lines() {
        let Some((name, kind)) = line.strip_prefix("pub const ").and_then(|rest| rest.split_once(": ")) else {
            continue;
        };
        let elsewhere = line.contains(" fn ") || name == "MAGIC" || kind.starts_with("Limits");
        assert!(elsewhere || rows.iter().any(|row| row.0 == name), "{name} is not in the table of constants");
    }
    let magic: Vec<String> = maru_layout::MAGIC.iter().map(|byte| format!("{byte:02x}")).collect();
    assert!(FORMAT.contains(&format!("`{}`", magic.join(" "))));
    let mark: Vec<String> =
        maru_layout::BYTE_ORDER_MARK.to_le_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    assert!(FORMAT.contains(&format!("bytes `{}`", mark.join(" "))));

    let features = table_headed(&["group", "feature", "value", "meaning"]);
    let rows: Vec<_> = features.rows.iter().map(|row| (row[0].as_str(), row[1].as_str(), number(&row[2]))).collect();
    assert_eq!(
        rows,
        [
            ("features_read", "TWO_CHOICE_INDEX", feature_read::TWO_CHOICE_INDEX),
            ("features_write", "LIFE_LOCKS", feature_write::LIFE_LOCKS),
            ("features_ignorable", "ACCESS_BYTES", feature_ignorable::ACCESS_BYTES),
            ("features_ignorable", "FLIGHT_RECORDER", feature_ignorable::FLIGHT_RECORDER),
            ("features_ignorable", "FAREWELLS", feature_ignorable::FAREWELLS),
        ]
    );
    let all = |group| rows.iter().filter(|row| row.0 == group).fold(0, |mask, row| mask | row.2);
    assert_eq!(all("features_read"), feature_read::KNOWN);
    assert_eq!(all("features_write"), feature_write::KNOWN);
    assert_eq!(all("features_ignorable"), feature_ignorable::WRITTEN);
}

fn planned() -> Superblock {
    let mut spec = FormatSpec::new(8 << 20, 4096);
    spec.align_bytes = 65536;
    spec.classes = vec![ClassSpec { slot_bytes: 4096, slots: None }, ClassSpec { slot_bytes: 8192, slots: None }];
    spec.plan(&Stamp::default()).expect("plan")
}

#[test]
fn sections_have_the_strides_counts_and_alignments_of_the_crate() {
    let table = table_headed(&["kind", "section", "stride", "count", "aligned to", "holds"]);
    let mut probe = Superblock::zeroed();
    (probe.slot_count, probe.bucket_count, probe.session_count, probe.session_area_bytes) = (1009, 503, 13, 8192);
    (probe.namespace_count, probe.token_count, probe.task_count, probe.advert_count, probe.access_lanes) =
        (7, 2003, 3, 5, 2);
    let value = |text: &str| match text {
        "slot_count" => 1009,
        "bucket_count" => 503,
        "session_count" => 13,
        "session_area_bytes" => 8192,
        "namespace_count" => 7,
        "token_count" => 2003,
        "task_count" => 3,
        "advert_count" => 5,
        "slot_count * access_lanes" => 2018,
        "ceil(slot_count / 64)" => 16,
        "ceil(slot_count / 2)" => 505,
        other => number(other),
    };
    assert_eq!(table.rows.len(), SectionKind::ALL.len());
    for (row, kind) in table.rows.iter().zip(SectionKind::ALL) {
        assert_eq!((number(&row[0]), row[1].as_str()), (kind as u64, kind.name()));
        assert_eq!((value(&row[2]), value(&row[3])), probe.expected_section(kind), "{}", kind.name());
        // Half a step off the alignment has to be refused, in words that name the alignment.
        let mut moved = planned();
        let align = if row[4] == "align_bytes" { u64::from(moved.align_bytes) } else { number(&row[4]) };
        moved.sections[kind as usize - 1].offset_bytes += align / 2;
        if kind == SectionKind::Payload {
            moved.classes[0].payload_offset_bytes += align / 2;
            moved.classes[1].payload_offset_bytes += align / 2;
        }
        match moved.sealed().check(8 << 20, true) {
            Err(SuperblockError::Field { field, wanted, .. }) => {
                assert_eq!(field, format!("sections[{}].offset_bytes", kind.name()));
                assert!(wanted.starts_with(&format!("a multiple of {align} ")), "{}: {wanted}", kind.name());
            }
            other => panic!("{}: {other:?}", kind.name()),
        }
    }
    assert!(FORMAT.contains(&format!("sections used: {} in this format", SectionKind::ALL.len())));
}

#[test]
fn bounds_are_where_the_document_says() {
    let table = table_headed(&["bounded field", "least", "most"]);
    let names: Vec<_> = table.rows.iter().map(|row| row[0].as_str()).collect();
    for name in &names {
        assert!(planned().scalar_fields().iter().any(|(field, _)| field == name), "{name}");
    }
    // Whether the check refuses this very value of this very field because of its bounds.
    let refused = |name: &str, value: u64| -> bool {
        let Ok(value) = u32::try_from(value) else { return true };
        let mut superblock = planned();
        let place = match name {
            "slot_count" => &mut superblock.slot_count,
            "bucket_count" => &mut superblock.bucket_count,
            "session_count" => &mut superblock.session_count,
            "namespace_count" => &mut superblock.namespace_count,
            "token_count" => &mut superblock.token_count,
            "task_count" => &mut superblock.task_count,
            "advert_count" => &mut superblock.advert_count,
            "access_lanes" => &mut superblock.access_lanes,
            "class_count" => &mut superblock.class_count,
            "shard_count" => &mut superblock.shard_count,
            "section_count" => &mut superblock.section_count,
            "copy_lease_ms" => &mut superblock.copy_lease_ms,
            "stalled_writer_ms" => &mut superblock.stalled_writer_ms,
            "attach_wait_ms" => &mut superblock.attach_wait_ms,
            "config_bytes" => &mut superblock.config_bytes,
            "session_area_bytes" => &mut superblock.session_area_bytes,
            other => panic!("{other} is not known to this test"),
        };
        *place = value;
        match superblock.sealed().check(8 << 20, true) {
            Err(SuperblockError::Field { field, found, wanted }) => {
                field == name
                    && found == u64::from(value)
                    && (wanted.starts_with("from ") || wanted.starts_with("a multiple of 4096, "))
            }
            _ => false,
        }
    };
    for row in &table.rows {
        let (name, least, most) = (row[0].as_str(), number(&row[1]), number(&row[2]));
        let step = if name == "session_area_bytes" { 4096 } else { 1 };
        assert!(!refused(name, least) && !refused(name, most), "{name}: its own bounds are refused");
        assert!(least == 0 || refused(name, least - step), "{name}: {least} is not the least");
        assert!(refused(name, most + step), "{name}: {most} is not the most");
    }
    // And no bounded field is left out: each that the check names in its list of bounds is in the table.
    let source = include_str!("../src/superblock/judge.rs");
    let list =
        source.split("for (name, found, min, max) in [").nth(1).expect("the list").split("] {").next().expect("end");
    let listed: Vec<&str> = list.split('"').skip(1).step_by(2).collect();
    assert!(
        names.contains(&"session_area_bytes") && listed.len() > 10 && listed.iter().all(|name| names.contains(name)),
        "{listed:?}"
    );
}

// ---------------------------------------------------------------- worked examples

fn fenced(language: &str) -> &'static str {
    let start = FORMAT.split(&format!("```{language}\n")).nth(1).expect("a block");
    start.split("```").next().expect("its end").trim_end_matches('\n')
}

fn example_text() -> String {
    let after = FORMAT.split("### 11.3").nth(1).expect("section 11.3");
    let block = after.split("```text\n").nth(1).expect("a block").split("```").next().expect("its end");
    block.to_owned()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn namespace_digest(text: &str, generation: u64) -> [u8; 16] {
    let digest = Sha256::new().chain_update(text).chain_update(generation.to_le_bytes()).finalize();
    digest[..16].try_into().expect("16 bytes")
}

fn example_record() -> SlotRecord {
    let payload = b"Hello, region";
    let identity = IdentityLine {
        word: SlotWord::new(SlotState::Ready, Owner::NOBODY, 3).0,
        prefix: std::array::from_fn(|index| index as u8),
        namespace: namespace_digest(&example_text(), 2),
        shard: 1,
        part: 2,
        length: payload.len() as u32,
    };
    let mut body = BodyLine {
        generation: 3,
        committed_ns: 1_700_000_000_000_000_000,
        parent_hint: 0,
        storer_id: 0x1122_3344_5566_7788,
        depth: 4,
        storer_epoch: 6,
        storer_index: 1,
        ..BodyLine::zeroed()
    };
    let mut crc = PayloadCrc::new(&ObjectKey::of_record(&identity), 3, identity.length);
    crc.update(payload);
    body.checksum = seal(&identity, &body, crc.finish());
    SlotRecord { identity, body }
}

#[test]
fn worked_examples_are_what_the_crate_computes() {
    let record = example_record();
    let dump: Vec<String> = bytemuck::bytes_of(&record)
        .chunks(16)
        .enumerate()
        .map(|(row, chunk)| {
            format!("{:02x}  {}", row * 16, chunk.iter().map(|b| format!("{b:02x}")).collect::<Vec<_>>().join(" "))
        })
        .collect();
    assert_eq!(fenced("hex"), dump.join("\n"));
    let key = ObjectKey::of_record(&record.identity);
    let place = key.place(7, 1000);
    let farewell = key.farewell(7, 505);
    let text = example_text();
    let entry = IndexEntry::new(5, 3, place.tag);
    let id: [u8; 16] = std::array::from_fn(|index| index as u8);
    let real = [
        ("format word: ready, region id 00 01 02 to 0f", format!("0x{:016x}", FormatWord::ready(&id).0)),
        (
            "format word: formatting, host tag 0x0abcdef, random 0x12345678",
            format!("0x{:016x}", FormatWord::formatting(0xab_cdef, 0x1234_5678).0),
        ),
        ("payload CRC", format!("0x{:08x}", record.body.checksum as u32)),
        ("record CRC", format!("0x{:08x}", record.body.checksum >> 32)),
        ("checksum", format!("0x{:016x}", record.body.checksum)),
        ("tag", place.tag.to_string()),
        ("first bucket", place.first.to_string()),
        ("second bucket", place.second.to_string()),
        ("index entry, first bucket", format!("0x{:016x}", entry.0)),
        ("index entry, second bucket", format!("0x{:016x}", entry.in_second().0)),
        ("lease cell: view, sequence 9", format!("0x{:016x}", LeaseCell::new(LeaseKind::View, 9, 5, 3).0)),
        ("farewell, of 505 words", farewell.index.to_string()),
        ("farewell tag", farewell.tag.to_string()),
        (
            "farewell: evicted by session 1, 90 seconds after the formatting",
            format!("0x{:016x}", FarewellWord::new(farewell.tag, Cause::Evicted, Owner::session(1), 90).0),
        ),
        ("text bytes", text.len().to_string()),
        ("text digest", hex(&Sha256::digest(&text))),
        ("namespace digest, generation 2", hex(&key.namespace)),
    ];
    let told: Vec<(String, String)> = tables()
        .into_iter()
        .filter(|table| table.header == ["example", "value"])
        .flat_map(|table| table.rows.into_iter().map(|row| (row[0].clone(), row[1].clone())))
        .collect();
    let real: Vec<(String, String)> = real.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
    assert_eq!(told, real);
    let fields: Vec<&str> = text.lines().map(|line| line.split('=').next().expect("field")).collect();
    assert_eq!(fields, fenced("fields").lines().collect::<Vec<_>>());
    assert_eq!(crc32fast::hash(b"123456789"), 0xCBF4_3926);
}

#[test]
fn the_crc_tables_add_up_to_what_is_covered() {
    let covered: Vec<Table> = tables().into_iter().filter(|table| table.header == ["bytes", "what"]).collect();
    let sums: Vec<u64> =
        covered.iter().map(|table| table.rows.iter().filter_map(|row| row[0].parse::<u64>().ok()).sum()).collect();
    assert_eq!(sums, [maru_layout::object::OBJECT_ID_BYTES as u64 + 12, 56 + 8 + 48 + 4]);
    assert_eq!(covered[0].rows.last().map(|row| row[0].as_str()), Some("length"));
    // The same, by hand and byte for byte.
    let record = example_record();
    let bytes = bytemuck::bytes_of(&record);
    let mut payload = crc32fast::Hasher::new();
    for part in [
        &bytes[40..56],
        &bytes[8..40],
        &bytes[56..58],
        &bytes[58..60],
        &bytes[64..72],
        &bytes[60..64],
        b"Hello, region",
    ] {
        payload.update(part);
    }
    let payload = payload.finalize();
    let mut own = crc32fast::Hasher::new();
    for part in [&bytes[8..64], &bytes[64..72], &bytes[80..128], &payload.to_le_bytes()] {
        own.update(part);
    }
    assert_eq!(record.body.checksum, u64::from(own.finalize()) << 32 | u64::from(payload));
}
