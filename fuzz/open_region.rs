//! Arbitrary bytes as a region.
//!
//! An input names a golden image, a list of edits and a list of calls. Edits hit single bytes as well as whole fields
//! of chosen records, and can make checksums right again afterwards, so that damage gets past the first check. The
//! result is judged three ways: as plain bytes ([`Image`]), by readers that join nothing, and by sessions.
//!
//! What must hold, whatever the bytes are:
//!
//! * no call panics, hangs or raises a signal;
//! * plain reading and opening agree on whether the superblock can be believed;
//! * bytes that come back as a success are those that were stored under the id. An input may forge a checksum; so where
//!   the bytes differ, their checksum is computed anew and has to be the one in the record;
//! * reading stores nothing, and no call touches the file before or behind its partition;
//! * the bytes of usage add up, and a probe never promises more bytes than a slot has.
//!
//! ```text
//! byte 0   image (or 7: the rest of the input is the file)
//! byte 1   flags: superblock sealed anew, partition inside a larger file, short file, more ways to open
//! byte 2   number of edits
//! ...      edits, each a kind, a place and a value
//! ...      calls, one byte each; none = one of each
//! ```

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use arbitrary::Unstructured;
use maru::{
    Batch, Format, LoadError, Mode, NamespaceId, ObjectId, OpenError, OpenOptions, Probe, ReadError, Region, Reserve,
    ReserveOptions, Role, Session, Token, Usage, Verify, Writer,
};
use maru_layout::image::{Image, entry_names, namespace_text};
use maru_layout::object::{PayloadCrc, seal};
use maru_layout::record::SlotRecord;
use maru_layout::superblock::{SectionKind, Superblock};
use maru_layout::word::{
    ChoreWord, FormatWord, IndexEntry, LeaseCell, LeaseKind, Owner, SessionState, SessionWord, SlotState, SlotWord,
};
use maru_layout::{PAGE_BYTES, RECORD_BYTES, SESSION_AREA_HEAD_BYTES};

use crate::golden::{self, Block};
use crate::{content, memory_file, namespace, options_for};

/// The byte 0 that says: no image, the rest of the input is the file.
pub const RAW: u8 = 7;
/// Flag: superblock and copy get right checksums after the edits.
pub const SEAL: u8 = 1;
/// Flag: the region is a partition inside a larger file.
pub const PARTITION: u8 = 2;
/// Flag: the file is cut.
pub const CUT: u8 = 4;

/// Flag: opened without payload, too.
pub const HEADER_ONLY: u8 = 8;
/// Flag: made anew in its place, too (see [`FORMATS`]).
pub const MAKE: u8 = 16;
/// Flag: what is made anew has a name (else it is made in place).
pub const NAMED: u8 = 32;
/// Ways to make a region where one may be, chosen by bits 6 and 7 of the flags.
pub const FORMATS: [Format; 4] = [Format::IfAbsent, Format::Force, Format::Replace, Format::IfAbsent];

/// Longest that one call may take. A registration may wait five seconds for another one, by its own rules.
const HANG: Duration = Duration::from_secs(5);
const REGISTRATION_WAIT: Duration = Duration::from_secs(6);
const MOST_EDITS: u8 = 48;
const MOST_CALLS: usize = 24;
const GUARD: u64 = 4 * PAGE_BYTES;
const GUARD_BYTE: u8 = 0xA5;

/// Runs one input.
///
/// # Panics
/// When a promise is broken.
pub fn run(input: &[u8]) {
    let mut source = Unstructured::new(input);
    let Ok([image, flags, edits]) = source.arbitrary::<[u8; 3]>() else { return };
    let bytes = if image == RAW {
        rest(&mut source).to_vec()
    } else {
        let golden = &golden::images()[usize::from(image) % golden::images().len()];
        let mut draft = golden.bytes.clone();
        let geometry = Image::read(&golden.bytes).expect("golden images are sound").geometry().clone();
        for _ in 0..edits % MOST_EDITS {
            if edit(&mut source, &mut draft, &geometry).is_err() {
                break;
            }
        }
        if flags & SEAL != 0 {
            reseal(&mut draft);
        }
        if flags & CUT != 0 {
            draft.truncate(source.int_in_range(0..=draft.len()).unwrap_or(0));
        }
        draft
    };
    let calls = rest(&mut source);
    let calls = if calls.is_empty() { &ALL_CALLS[..] } else { &calls[..calls.len().min(MOST_CALLS)] };
    judge(&bytes, flags, calls);
}

/// A region image as input: opened as it is.
///
/// # Panics
/// When a promise is broken.
pub fn run_image(bytes: &[u8]) {
    for flags in [0, PARTITION | HEADER_ONLY, MAKE, MAKE | 1 << 6, MAKE | NAMED | 1 << 6, MAKE | NAMED | 2 << 6] {
        judge(bytes, flags, &ALL_CALLS);
    }
}

fn rest<'a>(source: &mut Unstructured<'a>) -> &'a [u8] {
    source.bytes(source.len()).unwrap_or_default()
}

// ---------------------------------------------------------------- edits

/// A value: given, or derived from what is there.
fn value(source: &mut Unstructured<'_>, old: u64) -> arbitrary::Result<u64> {
    Ok(match source.arbitrary::<u8>()? % 12 {
        0 => 0,
        1 => u64::MAX,
        2 => old.wrapping_add(1),
        3 => old.wrapping_sub(1),
        4 => old ^ 1 << (source.arbitrary::<u8>()? % 64),
        5 => u64::from(source.arbitrary::<u8>()?),
        6 => u64::from(source.arbitrary::<u32>()?),
        7 => old & !0xFFFF_FFFF | u64::from(source.arbitrary::<u32>()?),
        8 => old & 0xFFFF_FFFF | u64::from(source.arbitrary::<u32>()?) << 32,
        9 => u64::MAX >> (source.arbitrary::<u8>()? % 64),
        10 => old.rotate_left(32),
        _ => source.arbitrary()?,
    })
}

fn edit(
    source: &mut Unstructured<'_>,
    bytes: &mut [u8],
    geometry: &maru_layout::geometry::Geometry,
) -> arbitrary::Result<()> {
    let index = |source: &mut Unstructured<'_>, count: u32| Ok(u32::from(source.arbitrary::<u8>()?) % count.max(1));
    let base = |kind| geometry.offset(kind);
    let slot_of = |source: &mut Unstructured<'_>| index(source, geometry.slot_count + 1);
    let session_of = |source: &mut Unstructured<'_>| index(source, geometry.session_count);
    let kind = source.arbitrary::<u8>()?;
    let (at, word) = match kind % 10 {
        // Any byte of the file.
        0 => {
            let at = source.arbitrary::<u32>()? as usize % bytes.len();
            bytes[at] = source.arbitrary()?;
            return Ok(());
        }
        // Any word of the superblock.
        1 => {
            let at = u64::from(source.arbitrary::<u16>()? % 512) * 8;
            (at, value(source, word_at(bytes, at))?)
        }
        // Any word of a section.
        2 => {
            let kind = SectionKind::ALL[source.arbitrary::<u8>()? as usize % SectionKind::ALL.len()];
            let at = (base(kind) + u64::from(source.arbitrary::<u16>()?) * 8) % (bytes.len() as u64 - 8);
            (at, value(source, word_at(bytes, at))?)
        }
        // A slot word, field by field.
        3 => {
            let at = base(SectionKind::Records) + u64::from(index(source, geometry.slot_count)?) * RECORD_BYTES;
            let state = SlotState::ALL[source.arbitrary::<u8>()? as usize % 7];
            let owner = Owner(source.arbitrary::<u16>()? % 4096);
            let generation = value(source, SlotWord(word_at(bytes, at)).generation())?;
            (at, SlotWord::new(state, owner, generation).with_device_writer(kind & 0x80 != 0).0)
        }
        // A word of a record.
        4 => {
            let at = base(SectionKind::Records)
                + u64::from(index(source, geometry.slot_count)?) * RECORD_BYTES
                + u64::from(source.arbitrary::<u8>()? % 16) * 8;
            (at, value(source, word_at(bytes, at))?)
        }
        // A record with its checksum made right again.
        5 => {
            let slot = index(source, geometry.slot_count)?;
            seal_record(bytes, geometry, slot);
            return Ok(());
        }
        // An index entry or mark.
        6 => {
            let at = base(SectionKind::Buckets)
                + u64::from(index(source, geometry.bucket_count)?) * 64
                + u64::from(source.arbitrary::<u8>()? % 8) * 8;
            let old = word_at(bytes, at);
            let word = match source.arbitrary::<bool>()? {
                true => value(source, old)?,
                false => {
                    let generation = value(source, IndexEntry(old).short_generation())?;
                    IndexEntry::new(slot_of(source)?, generation, IndexEntry(old).tag()).0
                }
            };
            (at, word)
        }
        // A session word.
        7 => {
            let at = base(SectionKind::Sessions) + u64::from(session_of(source)?) * 256;
            let state = SessionState::from_bits(u64::from(source.arbitrary::<u8>()? % 5)).expect("one of five");
            let epoch = value(source, u64::from(SessionWord(word_at(bytes, at)).epoch()))?;
            (at, SessionWord::new(state, source.arbitrary()?, epoch as u32).0)
        }
        // A lease mark or cell.
        8 => {
            let area = base(SectionKind::SessionAreas) + u64::from(session_of(source)?) * geometry.session_area_bytes;
            match source.arbitrary::<u8>()? {
                0 => (area, value(source, word_at(bytes, area))?),
                cell => {
                    let lease =
                        LeaseCell::new(LeaseKind::View, cell, slot_of(source)?, source.arbitrary::<u8>()?.into());
                    (area + SESSION_AREA_HEAD_BYTES + u64::from(cell) % 64 * 8, lease.0)
                }
            }
        }
        // A chore, the format word, or a line copied over another one.
        _ => {
            let control = base(SectionKind::Control);
            match source.arbitrary::<u8>()? % 4 {
                0 => (
                    control + 64,
                    ChoreWord::held(Owner(source.arbitrary::<u16>()? % 8), source.arbitrary::<u8>()?.into()).0,
                ),
                1 => (control + 64, value(source, word_at(bytes, control + 64))?),
                2 => (control, value(source, FormatWord::ready(&geometry.region_id).0)?),
                _ => {
                    let lines = (bytes.len() / 64) as u32;
                    let (from, to) = (source.arbitrary::<u32>()? % lines, source.arbitrary::<u32>()? % lines);
                    let from = from as usize * 64;
                    bytes.copy_within(from..from + 64, to as usize * 64);
                    return Ok(());
                }
            }
        }
    };
    bytes[at as usize..][..8].copy_from_slice(&word.to_le_bytes());
    Ok(())
}

fn word_at(bytes: &[u8], at: u64) -> u64 {
    u64::from_le_bytes(bytes[at as usize..][..8].try_into().expect("eight bytes"))
}

fn reseal(bytes: &mut [u8]) {
    let page = PAGE_BYTES as usize;
    let sealed = Superblock::read(bytes).expect("a page").sealed();
    bytes[..page].copy_from_slice(bytemuck::bytes_of(&sealed));
    let copy = bytes.len() - page;
    bytes[copy..].copy_from_slice(bytemuck::bytes_of(&sealed));
}

fn seal_record(bytes: &mut [u8], geometry: &maru_layout::geometry::Geometry, slot: u32) {
    let at = (geometry.offset(SectionKind::Records) + u64::from(slot) * RECORD_BYTES) as usize;
    let record: &mut [u8] = &mut bytes[at..at + RECORD_BYTES as usize];
    let mut plain: SlotRecord = bytemuck::pod_read_unaligned(record);
    plain.body.generation = SlotWord(plain.identity.word).generation();
    let key = maru_layout::object::ObjectKey::of_record(&plain.identity);
    let mut crc = PayloadCrc::new(&key, plain.body.generation, plain.identity.length);
    let (offset, size) = geometry.payload_of(slot).expect("a slot of this region");
    let len = u64::from(plain.identity.length).min(size) as usize;
    crc.update(&bytes[offset as usize..][..len]);
    plain.body.checksum = seal(&plain.identity, &plain.body, crc.finish());
    bytes[at..at + RECORD_BYTES as usize].copy_from_slice(bytemuck::bytes_of(&plain));
}

// ---------------------------------------------------------------- judging

/// Ids of the blocks that golden images hold, got from undamaged ones.
fn known() -> &'static [(ObjectId, Block)] {
    static KNOWN: OnceLock<Vec<(ObjectId, Block)>> = OnceLock::new();
    KNOWN.get_or_init(|| {
        let mut known = Vec::new();
        for golden in golden::images() {
            let region = Region::open(options_for(&memory_file(&golden.bytes)).mode(Mode::ReadOnly)).expect("sound");
            let reader = region.reader();
            for block in &golden.ready {
                let id = reader.namespace(&namespace(block.tenant)).expect("complete").expect("registered");
                if id.generation() == block.generation {
                    known.push((object_of(id, block), *block));
                }
            }
        }
        known.dedup_by_key(|(object, _)| *object);
        known
    })
}

fn object_of(namespace: NamespaceId, block: &Block) -> ObjectId {
    ObjectId { shard: block.shard, part: block.part, ..ObjectId::new(namespace, block.prefix()) }
}

/// The file under test.
struct Subject {
    file: File,
    offset: u64,
    len: u64,
}

impl Subject {
    fn new(bytes: &[u8], inside: bool) -> Self {
        let offset = if inside { GUARD } else { 0 };
        let mut whole = vec![GUARD_BYTE; offset as usize];
        whole.extend_from_slice(bytes);
        whole.resize(whole.len() + offset as usize, GUARD_BYTE);
        Self { file: memory_file(&whole), offset, len: bytes.len() as u64 }
    }

    fn open(&self, mode: Mode, format: Format) -> Result<Region, OpenError> {
        let options = options_for(&self.file).mode(mode).format(format);
        let partition = (self.offset > 0).then_some(self.len);
        timed(HANG, || Region::open(options.partition(self.offset, partition)))
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len as usize];
        self.file.read_exact_at(&mut bytes, self.offset).expect("the file is as long as it was");
        bytes
    }

    fn check_guards(&self) {
        let mut guard = [0; GUARD as usize];
        for at in [0, self.offset + self.len] {
            if self.offset > 0 {
                self.file.read_exact_at(&mut guard, at).expect("the file is as long as it was");
                assert!(guard.iter().all(|byte| *byte == GUARD_BYTE), "bytes outside the partition were touched");
            }
        }
    }
}

fn timed<T>(limit: Duration, call: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let answer = call();
    let took = start.elapsed();
    assert!(took < limit, "a call took {took:?}");
    answer
}

fn judge(bytes: &[u8], flags: u8, calls: &[u8]) {
    let readable = judge_image(bytes);
    let subject = Subject::new(bytes, flags & PARTITION != 0);
    read_only(&subject, bytes, readable);
    if flags & HEADER_ONLY != 0
        && let Ok(region) = subject.open(Mode::HeaderOnly, Format::Never)
    {
        header_only(&region);
    }
    if let Ok(region) = subject.open(Mode::Full, Format::Never) {
        join(&subject, &region, calls);
    }
    if flags & MAKE != 0 {
        let format = FORMATS[usize::from(flags >> 6)];
        let made = if flags & NAMED != 0 { make_named(bytes, format) } else { subject.open(Mode::Full, format) };
        if let Ok(region) = made {
            check_usage(&region.usage());
        }
    }
    subject.check_guards();
}

/// Makes a region where a file with these bytes has the name. A file made anew takes the name of the old one.
fn make_named(bytes: &[u8], format: Format) -> Result<Region, OpenError> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    struct Named(PathBuf);
    impl Drop for Named {
        fn drop(&mut self) {
            let _ = std::fs::remove_file(&self.0);
        }
    }
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let named = Named(PathBuf::from(format!("/dev/shm/maru-fuzz-{}-{number}", std::process::id())));
    std::fs::write(&named.0, bytes).expect("/dev/shm is there and writable");
    let mut options = OpenOptions::path(&named.0).format(format);
    options.huge_pages = false;
    options.wish.attach_wait_ms = 0;
    options.wish.size_bytes = Some(64 << 10);
    options.wish.classes[0].slot_bytes = 1024;
    timed(HANG, || Region::open(options))
}

/// Everything that reads plain bytes. Returns whether the superblock was believed.
fn judge_image(bytes: &[u8]) -> bool {
    let image = match Image::read(bytes) {
        Ok(image) => image,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            return false;
        }
    };
    for damage in image.damage() {
        assert!(!damage.to_string().is_empty() && !damage.group().is_empty());
    }
    let geometry = image.geometry();
    for slot in [0, geometry.slot_count - 1, geometry.slot_count, u32::MAX] {
        let _ = (image.record(slot), image.ready(slot), image.bitmap_hint(slot), image.access_byte(0, slot));
        let _ = (image.payload(slot, 0), image.payload(slot, u32::MAX), image.access_byte(u32::MAX, slot));
        let _ = (geometry.class_of(slot), geometry.payload_of(slot));
    }
    for index in [0, u32::MAX] {
        let _ = (image.bucket(index), image.session(index), image.session_area(index), image.namespace(index));
        let _ = (image.token(index), image.leases(index).count());
    }
    let _ = (image.copy(), image.control(), image.pool(), format!("{image:?}"));
    let (states, unknown) = image.state_counts();
    assert_eq!(states.iter().sum::<u32>() + unknown, geometry.slot_count);
    for replica in image.ready_replicas() {
        let _ = image.is_indexed(&replica);
    }
    for (_, _, entry) in image.entries() {
        let _ = (entry_names(entry, 0, 1), format!("{entry:?}"));
    }
    for (session, entry) in image.sessions() {
        let _ = (format!("{:?}", SessionWord(entry.word)), image.leases(session).count());
    }
    for (_, row) in image.namespaces() {
        let _ = namespace_text(&row);
    }
    true
}

fn read_only(subject: &Subject, bytes: &[u8], readable: bool) {
    let region = match subject.open(Mode::ReadOnly, Format::Never) {
        Ok(region) => region,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            let superblock = matches!(error, OpenError::Superblock { .. } | OpenError::NotFormatted { .. });
            assert!(!(superblock && readable), "plain bytes are believed, opening says: {error}");
            return;
        }
    };
    assert!(readable, "opening believes what plain reading does not");
    let reader = region.reader();
    let mut objects = Vec::new();
    for (object, block) in known() {
        objects.push(*object);
        let probe = reader.probe(object);
        check_probe(&region, &probe);
        match timed(HANG, || reader.read(object)) {
            Ok(read) => check_read(subject, object, block, &read, None),
            Err(ReadError::Miss(_) | ReadError::Load(_)) => {}
            Err(other) => assert!(!other.to_string().is_empty()),
        }
    }
    if let Ok(run) = reader.probe_prefix(&objects) {
        assert!(run <= objects.len());
    }
    for tenant in ["a", "b", "nobody"] {
        if let Ok(Some(id)) = reader.namespace(&namespace(tenant)) {
            assert!(id.row() < region.geometry().namespace_count);
        }
    }
    check_usage(&region.usage());
    let _ = (region.liveness(0), region.liveness(u32::MAX));
    assert!(region.session("x", Role::Tool).is_err());
    assert!(subject.bytes() == bytes, "reading has stored something");
}

fn header_only(region: &Region) {
    let Ok(session) = timed(HANG, || region.session("header", Role::Scheduler)) else { return };
    for (object, _) in known() {
        check_probe(region, &session.probe(object));
        assert!(session.acquire(&[*object], Batch::Each).is_err());
        assert!(session.reserve(object, 1, ReserveOptions::default()).is_err());
    }
    let _ = session.close();
}

fn check_probe(region: &Region, probe: &Result<Probe, maru::CallError>) {
    if let Ok(Probe::Hit { len }) = probe {
        let most = region.geometry().max_payload_bytes();
        assert!(u64::from(*len) <= most, "a probe promises {len} bytes, the largest slot has {most}");
    }
}

fn check_usage(usage: &Usage) {
    let counted = usage.slots.iter().sum::<u32>() + usage.damaged_slots;
    assert_eq!(counted, usage.capacity_slots, "every slot is counted once");
    assert!(usage.allocated_bytes <= usage.capacity_bytes && usage.capacity_bytes <= usage.reserved_bytes);
    assert!(usage.ready_bytes <= usage.ready_allocated_bytes);
    let parts = usage.ready_allocated_bytes + usage.retiring_bytes + usage.writing_bytes + usage.quarantined_bytes;
    assert!(parts <= usage.allocated_bytes);
}

/// Bytes that came back as a success: the block's, or ones whose checksum somebody took the trouble to forge.
fn check_read(subject: &Subject, object: &ObjectId, block: &Block, read: &[u8], replica: Option<(u32, u64)>) {
    if block.content() == read {
        return;
    }
    let bytes = subject.bytes();
    let image = Image::read(&bytes).expect("a region that was opened");
    let key = Block { generation: object.namespace.generation(), ..*block }.key();
    let forged = (0..image.geometry().slot_count).any(|slot| {
        let Some(record) = image.record(slot) else { return false };
        let generation = record.body.generation;
        let mut crc = PayloadCrc::new(&key, generation, read.len() as u32);
        crc.update(read);
        replica.is_none_or(|replica| replica == (slot, generation)) && crc.finish() == record.body.checksum as u32
    });
    assert!(forged, "bytes of {block:?} are neither what was stored nor match any checksum");
}

// ---------------------------------------------------------------- calls

const ALL_CALLS: [u8; 16] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];

fn join(subject: &Subject, region: &Region, calls: &[u8]) {
    let Ok(first) = timed(HANG, || region.session("fuzz", Role::Worker)) else { return };
    let second = timed(HANG, || region.session("other", Role::Worker)).ok();
    let mut registered = None;
    for (at, call) in calls.iter().enumerate() {
        // Two registrations are enough: each may wait for a holder that the bytes made up.
        if call % 16 == 0 && calls[..at].iter().filter(|before| **before % 16 == 0).count() >= 2 {
            continue;
        }
        let session = if call & 0x80 == 0 { &first } else { second.as_ref().unwrap_or(&first) };
        let (object, block) = known()[usize::from(*call >> 4) % known().len()];
        let limit = if call % 16 == 0 { REGISTRATION_WAIT } else { HANG };
        timed(limit, || one_call(subject, region, session, *call % 16, &object, &block, &mut registered));
    }
    check_usage(&region.usage());
    for session in [Some(first), second].into_iter().flatten() {
        if let Err((held, _)) = timed(HANG, || session.close()) {
            panic!("nothing is held: {held}");
        }
    }
}

fn one_call(
    subject: &Subject,
    region: &Region,
    session: &Session,
    call: u8,
    object: &ObjectId,
    block: &Block,
    registered: &mut Option<NamespaceId>,
) {
    let all: Vec<ObjectId> = known().iter().map(|(object, _)| *object).collect();
    match call {
        0 => *registered = session.namespace(&namespace(["a", "new"][usize::from(registered.is_some())])).ok(),
        1 => all.iter().for_each(|object| check_probe(region, &session.probe(object))),
        2 => {
            assert!(session.probe_prefix(&all).is_ok_and(|run| run <= all.len()) || session.probe_prefix(&all).is_err())
        }
        3 | 4 => {
            let Ok(leases) = session.acquire(&all, if call == 3 { Batch::Each } else { Batch::AllOrNothing }) else {
                return;
            };
            assert_eq!(leases.len(), all.len());
            for (lease, (object, block)) in leases.iter().zip(known()) {
                let Ok(lease) = lease else { continue };
                match lease.read(Verify::Always) {
                    Ok(read) => check_read(subject, object, block, &read, Some(lease.replica())),
                    Err(LoadError::Length { .. }) => panic!("the buffer was made for the lease"),
                    Err(_) => {}
                }
                let _ = lease.read(Verify::Never);
                if let Ok(view) = lease.view() {
                    assert!(view.len() as u64 <= region.geometry().max_payload_bytes());
                    let _ = view.to_vec();
                }
            }
        }
        5 => store(subject, session, object, block),
        6 => {
            // A block that no image has, in a namespace of this region.
            if let Some(id) = *registered {
                let block = Block { tenant: "new", generation: 1, number: 0xF00D, shard: 0, part: 0, len: 48 };
                store(subject, session, &ObjectId::new(id, block.prefix()), &block);
            }
        }
        7 => {
            let _ = session.retire(object);
        }
        8 => {
            let _ = session.reclaim();
        }
        9 => check_usage(&session.usage().unwrap_or_default()),
        10 => {
            let _ = session.heartbeat();
        }
        11 => {
            let mut bytes = [0; Token::BYTES];
            bytes[..16].copy_from_slice(&region.id());
            bytes[16] = block.number as u8;
            bytes[20] = 1;
            let _ = session.resolve(&Token::from_bytes(&bytes));
        }
        12 => {
            let entries = region.geometry().session_count;
            let word = |index: u32| Image::read(&subject.bytes()).ok()?.session(index);
            for index in (0..entries.min(4)).chain([u32::MAX]) {
                let epoch = word(index).map_or(0, |entry| SessionWord(entry.word).epoch());
                let _ = session.fence(index, epoch);
            }
        }
        13 => {
            let _ = session.invalidate(object.namespace);
        }
        14 => {
            let options = ReserveOptions { writer: Writer::Device, ..ReserveOptions::default() };
            for len in [0, 1, 64, region.geometry().max_payload_bytes(), u64::MAX] {
                let object = ObjectId { part: 999, ..*object };
                let _ = session.reserve(&object, len, options);
            }
        }
        _ => {
            let _ = (session.counters(), session.leases(), session.limits(), region.liveness(session.index()));
        }
    }
}

fn store(subject: &Subject, session: &Session, object: &ObjectId, block: &Block) {
    let bytes = content(block.number, block.len as usize);
    let Ok(Reserve::Granted(mut reservation)) = session.reserve(object, bytes.len() as u64, ReserveOptions::default())
    else {
        return;
    };
    let half = bytes.len() / 2;
    let wrote = reservation.write_at(half as u32, &bytes[half..]).and(reservation.write_at(0, &bytes[..half]));
    if wrote.is_err() {
        return;
    }
    if let Ok(maru::Commit::Stored) = reservation.commit() {
        let probe = session.probe(object).expect("a call that worked just now");
        let expected = Probe::Hit { len: bytes.len() as u32 };
        // A forged twin may stand before it in the index, with another length.
        assert!(probe == expected || probe.is_hit(), "stored, and a probe right after says {probe:?}");
        if let Ok(leases) = session.acquire(&[*object], Batch::Each)
            && let Some(Ok(lease)) = leases.first()
            && let Ok(read) = lease.read(Verify::Always)
        {
            check_read(subject, object, block, &read, Some(lease.replica()));
        }
    }
}
