//! One kind of operation, so many times: what `tools/ci/instructions.py` counts instructions and lines of.
//!
//! Run under a simulator with two numbers, the difference is the cost of the operations alone, to the instruction. The
//! line on stdout says where the tables of the region lie in this process and which word is stored to before each
//! operation, so that a trace of memory accesses can be cut into operations and sorted by table.

use std::hint::black_box;
use std::os::unix::fs::MetadataExt;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};

use maru::layout::superblock::{SectionKind, Superblock};
use maru::{
    Batch, Lease, LeaseHandle, ObjectId, Probe, Release, Reservation, Reserve, ReserveOptions, Session, Verify,
};
use maru_bench::Filled;
use serde_json::{Value, json};

/// Blocks in the region: few for their index, so that next to none shares a bucket with another.
const BLOCKS: u32 = 512;
/// Most operations of a run.
const MOST: usize = 64;

const HELP: &str = "\
maru-count OPERATION TIMES: performs one kind of operation, at most 64 times, on a small region in /dev/shm

  probe-hit     probe a block that is there
  probe-miss    probe a block that is not
  probe-prefix  one call for TIMES blocks that are there
  acquire       acquire a block that was read before, and keep it
  release       release a lease by its handle
  acquire-batch one call for TIMES blocks that were read before, kept
  release-batch drop the leases of TIMES blocks
  load          copy a protected block out, with its checksum
  reserve       reserve a slot for a new block
  commit        write and commit a reserved slot
  replace       store a new block where every slot holds one: reserve, evict, write, commit

The last line of stdout is JSON: where the tables lie, and the word that is stored to before each operation.";

/// Stored to before each operation, and after the last.
static MARKER: AtomicU64 = AtomicU64::new(0);

/// Begins operation number `at`.
#[inline(never)]
fn mark(at: u64) {
    MARKER.store(at, Ordering::SeqCst);
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let times = arguments.get(1).and_then(|text| text.parse().ok()).filter(|times| (1..=MOST).contains(times));
    let (Some(operation), Some(times)) = (arguments.first(), times) else {
        eprintln!("{HELP}");
        return ExitCode::from(2);
    };
    let filled = Filled::new(BLOCKS);
    let session = &filled.session;
    let present = filled.first_present(MOST);
    let absent = filled.first_absent(MOST);
    let (reserved, present) = (&absent[..times], &present[..times]);
    // What is common to all runs: every block was read once, so its access byte says so.
    for object in filled.first_present(BLOCKS as usize).chunks(MOST) {
        assert!(session.acquire(object, Batch::Each).expect("acquire").iter().all(Result::is_ok));
    }
    let before = Before::of(session, operation, present, reserved);
    if operation == "replace" {
        // As a region is that has been in use for long: full, and of blocks of every age.
        let slots = session.usage().expect("usage").capacity_bytes / 64;
        for object in filled.first_absent(MOST + 3 * slots as usize).split_off(MOST) {
            replace(session, &object);
        }
    }
    println!("{}", places(&filled));
    if perform(session, operation, present, reserved, before) {
        return ExitCode::SUCCESS;
    }
    eprintln!("{HELP}");
    ExitCode::from(2)
}

/// What an operation needs to be done first, and is not to be measured.
#[derive(Default)]
struct Before<'s> {
    leases: Vec<Lease<'s>>,
    handles: Vec<LeaseHandle>,
    reservations: Vec<Reservation<'s>>,
}

impl<'s> Before<'s> {
    fn of(session: &'s Session, operation: &str, present: &[ObjectId], reserved: &[ObjectId]) -> Self {
        let mut before = Self::default();
        let leases = || session.acquire(present, Batch::Each).expect("acquire").into_iter().map(|it| it.expect("hit"));
        match operation {
            "release" => before.handles = leases().map(Lease::into_handle).collect(),
            "release-batch" | "load" => before.leases = leases().collect(),
            "commit" => before.reservations = reserved.iter().map(|object| reserve(session, object)).collect(),
            _ => {}
        }
        before
    }
}

fn reserve<'s>(session: &'s Session, object: &ObjectId) -> Reservation<'s> {
    match session.reserve(object, 64, ReserveOptions::default()).expect("a session in order") {
        Reserve::Granted(reservation) => reservation,
        other => panic!("{other:?}"),
    }
}

fn replace(session: &Session, object: &ObjectId) {
    let mut reservation = reserve(session, object);
    reservation.write_at(0, &[7; 64]).expect("fits");
    reservation.commit().expect("stored");
}

/// Performs the operations; false where there is none of that name. What they return is kept: giving it back is another
/// operation. The simulators count between entry and return.
#[inline(never)]
fn perform(session: &Session, operation: &str, present: &[ObjectId], reserved: &[ObjectId], before: Before) -> bool {
    let count = |objects: &[ObjectId], each: &dyn Fn(&ObjectId)| {
        for (at, object) in (1..).zip(objects) {
            mark(at);
            each(object);
        }
    };
    match operation {
        "probe-hit" => count(present, &|object| assert!(session.probe(object).is_ok_and(|probe| probe.is_hit()))),
        "probe-miss" => count(reserved, &|object| {
            assert!(matches!(session.probe(object), Ok(Probe::Miss(_))));
        }),
        "probe-prefix" => {
            mark(1);
            assert_eq!(session.probe_prefix(present).expect("probe"), present.len());
        }
        "acquire" => count(present, &|object| {
            let leases = session.acquire(core::slice::from_ref(object), Batch::Each).expect("acquire");
            assert!(leases.iter().all(Result::is_ok));
            core::mem::forget(leases);
        }),
        "acquire-batch" => {
            mark(1);
            let leases = session.acquire(present, Batch::Each).expect("acquire");
            assert!(leases.iter().all(Result::is_ok));
            core::mem::forget(leases);
        }
        "release" => {
            for (at, handle) in (1..).zip(before.handles) {
                mark(at);
                assert_eq!(session.release(handle).expect("release"), Release::Released);
            }
        }
        "release-batch" => {
            mark(1);
            drop(before.leases);
        }
        "load" => {
            let mut buffer = [0; 64];
            for (at, lease) in (1..).zip(&before.leases) {
                mark(at);
                lease.read_into(&mut buffer, Verify::Always).expect("read");
                black_box(&buffer);
            }
            core::mem::forget(before.leases);
        }
        "reserve" => count(reserved, &|object| core::mem::forget(reserve(session, object))),
        "commit" => {
            for (at, mut reservation) in (1..).zip(before.reservations) {
                mark(at);
                reservation.write_at(0, &[7; 64]).expect("fits");
                reservation.commit().expect("stored");
            }
        }
        "replace" => count(reserved, &|object| replace(session, object)),
        _ => return false,
    }
    mark(0);
    true
}

/// Where the tables of the region lie in this process.
fn places(filled: &Filled) -> Value {
    let path = filled.scratch().join("region");
    let maps = std::fs::read_to_string("/proc/self/maps").expect("/proc");
    // By its inode, since it was made without a name; the session's life lock hangs on a second, closed mapping.
    let inode = std::fs::metadata(&path).expect("the region").ino().to_string();
    let is_it = |line: &&str| line.contains(" rw-s ") && line.split(' ').any(|word| word == inode);
    let line = maps.lines().find(is_it).expect("a mapping of the region");
    let origin = u64::from_str_radix(line.split('-').next().expect("a range"), 16).expect("an address");
    let bytes = std::fs::read(&path).expect("the region");
    let superblock = Superblock::read(&bytes).expect("a superblock");
    let mut sections = serde_json::Map::new();
    for section in &superblock.sections[..superblock.section_count as usize] {
        let Some(kind) = SectionKind::from_bits(section.kind) else { continue };
        let start = origin + section.offset_bytes;
        sections.insert(format!("{kind:?}"), json!([start, start + section.length_bytes]));
    }
    json!({
        "sections": sections,
        "region": [origin, origin + superblock.length_bytes],
        "session": filled.session.index(),
        "session_area_bytes": superblock.session_area_bytes,
        "marker": core::ptr::from_ref(&MARKER) as u64,
    })
}
