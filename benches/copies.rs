//! How fast do bytes get into the store and out of it, always with their checksum?
//!
//! Beside ours: LMDB put and get without any checksum, into memory with the same 2 MiB pages; and the bare copies, `memcpy`
//! of the C library and a loop of non-temporal stores, between the same places. "Hot" is one private buffer used again and
//! again, "cold" a ring of 256 MiB. A store is a whole one: reserve, evict an old block, write, commit; a load is acquire,
//! copy, verify, release. Sums over two processes are measured with real ones: this program starts itself.
//!
//! `MARU_BENCH_PART` = `store`, `load`, `writers` or `readers` runs one part alone.

use std::cell::RefCell;
use std::hint::black_box;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use heed::types::Bytes;
use heed::{CommitOrAbort, Database, Env, EnvFlags, EnvOpenOptions, WithoutTls};
use maru::os::fill::reserve;
use maru::os::map::Mapping;
use maru::os::{Backing, BackingFile};
use maru::{
    Batch, Commit, Format, NamespaceId, ObjectId, OpenOptions, ReadFor, Region, Reserve, ReserveOptions, Role, Session,
    Verify, Wish,
};
use maru_bench::contest::{Contest, Outcome};
use maru_bench::{mix, namespace, prefix};

const SIZES: [usize; 3] = [64 << 10, 448 << 10, 1 << 20];
/// Bytes of blocks in each place that is copied to or from.
const PLACE_BYTES: usize = 256 << 20;
/// Blocks that a process stores or loads when it is told to go.
const GO_BLOCKS: usize = 128;
/// Many short samples: on a shared machine, most of them meet nobody.
const ROUNDS: usize = 151;
const SAMPLE: Duration = Duration::from_micros(500);

fn main() {
    let words: Vec<String> = std::env::args().collect();
    if let Some(at) = words.iter().position(|word| word == "--child") {
        return child(&words[at + 1..]);
    }
    let part = std::env::var("MARU_BENCH_PART").unwrap_or_default();
    let wants = |name: &str| part.is_empty() || part == name;
    for bytes in SIZES {
        if wants("store") || wants("load") {
            one_process(bytes, wants("store"), wants("load"));
        }
    }
    if wants("writers") {
        two_writers(448 << 10);
    }
    if wants("readers") {
        two_readers(448 << 10);
    }
}

/// A session on a region with room for all blocks of one place, and a little more.
struct Maru {
    session: Session,
    namespace: NamespaceId,
}

impl Maru {
    fn open(path: &Path, bytes: usize) -> Self {
        let wish = Wish::of_slots((PLACE_BYTES + (32 << 20)) as u64, bytes as u64);
        let region = Region::open(OpenOptions::path(path).format(Format::IfAbsent).wish(wish)).expect("a region");
        region.prefault(&mut |_, _| {}).expect("pages");
        let session = region.session("bench", Role::Worker).expect("attach");
        let namespace = session.namespace(&namespace()).expect("namespace");
        Self { session, namespace }
    }

    fn store(&self, number: u64, bytes: &[u8]) {
        let object = ObjectId::new(self.namespace, prefix(number));
        match self.session.reserve(&object, bytes.len() as u64, ReserveOptions::default()).expect("in order") {
            Reserve::Granted(mut slot) => {
                slot.write_at(0, bytes).expect("fits");
                assert_eq!(slot.commit().expect("in order"), Commit::Stored);
            }
            other => panic!("block {number}: {other:?}"),
        }
    }

    fn load(&self, number: u64, buffer: &mut [u8], read_for: ReadFor) {
        let object = ObjectId::new(self.namespace, prefix(number));
        let leases = self.session.acquire(&[object], Batch::Each).expect("in order");
        leases[0].as_ref().expect("there").read_into_for(buffer, Verify::Always, read_for).expect("whole");
    }
}

/// LMDB on the same file system, without waiting for a disk, with 2 MiB pages.
struct Lmdb {
    env: &'static Env<WithoutTls>,
    table: Database<'static, Bytes, Bytes>,
}

impl Lmdb {
    const MAP_BYTES: usize = 2 * PLACE_BYTES;

    fn open(path: &Path, make: bool) -> Self {
        let mut options = EnvOpenOptions::new().read_txn_without_tls();
        options.map_size(Self::MAP_BYTES);
        // SAFETY: losing the environment in a crash is fine.
        unsafe { options.flags(EnvFlags::NO_SYNC | EnvFlags::WRITE_MAP) };
        // SAFETY: only LMDB's own processes touch the files in this folder.
        let opened = unsafe { options.open(path) }.expect("LMDB");
        // A table borrows its environment; this one is there as long as the process.
        let env: &'static Env<WithoutTls> = Box::leak(Box::new(opened));
        if make {
            // The same kind of pages that our region has.
            let file = BackingFile::open(&Backing::Path(path.join("data.mdb")), true).expect("data.mdb");
            let size = file.size_bytes();
            let pages = reserve(&file, 0..size, true, 1, &mut |_, _| {}).expect("room");
            eprintln!("LMDB's file: {size} bytes, {pages:?}");
        }
        let write = env.write_txn().expect("transaction");
        let created = env.create_databases_and_commit(write, |opener, write| {
            opener.create_database(write, None).map(CommitOrAbort::<_, ()>::Commit)
        });
        let CommitOrAbort::Commit(table) = created.expect("database") else { unreachable!("nobody aborts") };
        let table: Database<'static, Bytes, Bytes> = table;
        Self { env, table }
    }

    fn put(&self, number: u64, bytes: &[u8]) {
        let mut write = self.env.write_txn().expect("transaction");
        self.table.put(&mut write, &prefix(number), bytes).expect("put");
        write.commit().expect("commit");
    }

    fn get(&self, number: u64, buffer: &mut [u8]) {
        let read = self.env.read_txn().expect("transaction");
        buffer.copy_from_slice(self.table.get(&read, &prefix(number)).expect("get").expect("there"));
    }
}

/// A bare place with the pages that a region has.
struct Bare {
    mapping: Mapping,
}

impl Bare {
    fn new(folder: &Path, name: &str) -> Self {
        let path = folder.join(name);
        let file = std::fs::File::options().read(true).write(true).create_new(true).open(&path).expect("a file");
        file.set_len(PLACE_BYTES as u64).expect("a size");
        let backing = BackingFile::open(&Backing::Path(path), true).expect("the file");
        reserve(&backing, 0..PLACE_BYTES as u64, true, 1, &mut |_, _| {}).expect("room");
        let mapping = Mapping::of(&backing, 0..PLACE_BYTES as u64, true).expect("map");
        mapping.prefault(0..PLACE_BYTES, true, 1, &mut |_, _| {}).expect("pages");
        Self { mapping }
    }

    fn block(&self, bytes: usize, number: u64) -> *mut u8 {
        let at = number as usize % (PLACE_BYTES / bytes) * bytes;
        self.mapping.as_ptr().wrapping_add(at)
    }

    /// The same as a slice, of a place that nobody else knows.
    #[expect(clippy::mut_from_ref, reason = "one slice lives at a time, and the place is this process's")]
    fn slice(&self, bytes: usize, number: u64) -> &mut [u8] {
        // SAFETY: inside the mapping, initialised by the kernel, and used by one caller at a time.
        unsafe { core::slice::from_raw_parts_mut(self.block(bytes, number), bytes) }
    }
}

/// The C library's.
fn memcpy(target: *mut u8, source: *const u8, bytes: usize) {
    // SAFETY: both blocks are mapped, as long, and lie in different places.
    unsafe { core::ptr::copy_nonoverlapping(source, target, bytes) }
    black_box(target);
}

/// Non-temporal stores, as wide as there are.
fn streamed(target: *mut u8, source: *const u8, bytes: usize) {
    #[cfg(target_arch = "x86_64")]
    {
        use core::arch::x86_64::*;

        #[target_feature(enable = "avx512f")]
        unsafe fn wide(target: *mut u8, source: *const u8, bytes: usize) {
            for at in (0..bytes).step_by(64) {
                // SAFETY: the caller's blocks; `bytes` is a multiple of 64.
                let line = unsafe { _mm512_loadu_si512(source.wrapping_add(at).cast()) };
                // SAFETY: as above; blocks lie on lines.
                unsafe { _mm512_stream_si512(target.wrapping_add(at).cast(), line) };
            }
            _mm_sfence();
        }

        #[target_feature(enable = "avx2")]
        unsafe fn narrow(target: *mut u8, source: *const u8, bytes: usize) {
            for at in (0..bytes).step_by(32) {
                // SAFETY: the caller's blocks; `bytes` is a multiple of 32.
                let half = unsafe { _mm256_loadu_si256(source.wrapping_add(at).cast()) };
                // SAFETY: as above; blocks lie on lines.
                unsafe { _mm256_stream_si256(target.wrapping_add(at).cast(), half) };
            }
            _mm_sfence();
        }

        if is_x86_feature_detected!("avx512f") {
            // SAFETY: the processor has it; both blocks are mapped, as long, and lie in different places on lines.
            return unsafe { wide(target, source, bytes) };
        }
        if is_x86_feature_detected!("avx2") {
            // SAFETY: as above.
            return unsafe { narrow(target, source, bytes) };
        }
    }
    memcpy(target, source, bytes);
}

/// Blocks in an order without pattern.
struct Order(u64);

impl Order {
    fn next(&mut self) -> u64 {
        self.0 += 1;
        mix(self.0)
    }
}

fn show(outcome: &Outcome, ours: &str, others: &[&str]) {
    for other in others {
        if let Some(ratio) = outcome.ratio(other, ours) {
            eprintln!("  {ours} is {:.2} [{:.2}-{:.2}] x {other}", ratio.median, ratio.tenth, ratio.ninetieth);
        }
    }
}

fn one_process(bytes: usize, store: bool, load: bool) {
    let folder = tempfile::tempdir_in("/dev/shm").expect("/dev/shm");
    let maru = Maru::open(&folder.path().join("region"), bytes);
    std::fs::create_dir(folder.path().join("lmdb")).expect("a folder");
    let lmdb = Lmdb::open(&folder.path().join("lmdb"), true);
    let (bare, ring) = (Bare::new(folder.path(), "bare"), Bare::new(folder.path(), "ring"));
    let blocks = (PLACE_BYTES / bytes) as u64;
    // LMDB keeps free pages for the transaction after next; three quarters of the place are its blocks.
    let in_lmdb = blocks * 3 / 4;
    for number in 0..blocks {
        let block = ring.slice(bytes, number);
        block.iter_mut().enumerate().for_each(|(at, byte)| *byte = (at as u64 ^ number) as u8);
        maru.store(number, block);
        lmdb.put(number % in_lmdb, block);
        memcpy(bare.block(bytes, number), block.as_ptr(), bytes);
    }
    let kib = bytes >> 10;
    for heat in ["hot", "cold"] {
        let order = RefCell::new(Order(1 << 32));
        // A buffer of ours that is the same each time, or another one each time.
        let private = |turn: u64| ring.slice(bytes, if heat == "hot" { 0 } else { turn });
        let draw = || order.borrow_mut().next();
        if load {
            let outcome = Contest::new(&format!("load-{kib}k-{heat}"))
                .unit(&format!("{kib} KiB, {heat} target"))
                .bytes(bytes as u64)
                .rounds(ROUNDS)
                .sample(SAMPLE)
                .entry("maru, for the CPU", || maru.load(draw() % blocks, private(draw()), ReadFor::Cpu))
                .entry("maru, for a device", || maru.load(draw() % blocks, private(draw()), ReadFor::Device))
                .entry("LMDB get", || lmdb.get(draw() % in_lmdb, private(draw())))
                .entry("memcpy", || memcpy(private(draw()).as_mut_ptr(), bare.block(bytes, draw()), bytes))
                .entry("non-temporal", || streamed(private(draw()).as_mut_ptr(), bare.block(bytes, draw()), bytes))
                .run();
            show(&outcome, "maru, for the CPU", &["LMDB get", "memcpy", "non-temporal"]);
            show(&outcome, "maru, for a device", &["LMDB get", "memcpy", "non-temporal"]);
        }
    }
    for heat in ["hot", "cold"] {
        let order = RefCell::new(Order(1 << 33));
        let next = RefCell::new(if heat == "hot" { 1 << 40 } else { 1_u64 << 41 });
        let private = |turn: u64| ring.slice(bytes, if heat == "hot" { 0 } else { turn });
        let draw = || order.borrow_mut().next();
        let fresh = || {
            *next.borrow_mut() += 1;
            *next.borrow()
        };
        if store {
            let outcome = Contest::new(&format!("store-{kib}k-{heat}"))
                .unit(&format!("{kib} KiB, {heat} source"))
                .bytes(bytes as u64)
                .rounds(ROUNDS)
                .sample(SAMPLE)
                .entry("maru", || maru.store(fresh(), private(draw())))
                .entry("LMDB put", || lmdb.put(draw() % in_lmdb, private(draw())))
                .entry("memcpy", || memcpy(bare.block(bytes, draw()), private(draw()).as_ptr(), bytes))
                .entry("non-temporal", || streamed(bare.block(bytes, draw()), private(draw()).as_ptr(), bytes))
                .run();
            show(&outcome, "maru", &["LMDB put", "memcpy", "non-temporal"]);
        }
    }
}

/// Two processes of this program that wait for the word.
struct Pair {
    processes: Vec<(Child, ChildStdin, BufReader<ChildStdout>)>,
}

impl Pair {
    fn start(what: &str, path: &Path, bytes: usize, first: [u64; 2]) -> Self {
        let own = std::env::current_exe().expect("own path");
        let processes = first.map(|first| {
            let mut child = Command::new(&own)
                .args(["--child", what, path.to_str().expect("a plain path"), &bytes.to_string(), &first.to_string()])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .expect("this program once more");
            let (input, output) = (child.stdin.take().expect("piped"), child.stdout.take().expect("piped"));
            (child, input, BufReader::new(output))
        });
        let mut pair = Self { processes: processes.into() };
        pair.wait();
        pair
    }

    fn wait(&mut self) {
        for (_, _, output) in &mut self.processes {
            let mut line = String::new();
            output.read_line(&mut line).expect("a word");
            assert_eq!(line.trim(), "done", "a process ended early");
        }
    }

    fn go(&mut self) {
        for (_, input, _) in &mut self.processes {
            input.write_all(b"go\n").expect("the process listens");
        }
        self.wait();
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        for (child, ..) in &mut self.processes {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// The other side of a [`Pair`].
fn child(words: &[String]) {
    let [what, path, bytes, first, ..] = words else { panic!("--child WHAT PATH BYTES FIRST") };
    let (path, bytes) = (Path::new(path), bytes.parse::<usize>().expect("a number"));
    let first = first.parse::<u64>().expect("a number");
    let buffer = RefCell::new(vec![first as u8; bytes + 64]);
    let from = buffer.borrow().as_ptr().align_offset(64);
    let mut next = 0_u64;
    let mut work: Box<dyn FnMut()> = match what.as_str() {
        "maru-write" => {
            let maru = Maru::open(path, bytes);
            Box::new(move || {
                for _ in 0..GO_BLOCKS {
                    next += 1;
                    maru.store(first + next, &buffer.borrow()[from..][..bytes]);
                }
            })
        }
        "lmdb-write" => {
            let lmdb = Lmdb::open(path, false);
            Box::new(move || {
                for _ in 0..GO_BLOCKS {
                    next += 1;
                    lmdb.put(first + next % (GO_BLOCKS as u64), &buffer.borrow()[from..][..bytes]);
                }
            })
        }
        "maru-read" => {
            let maru = Maru::open(path, bytes);
            Box::new(move || {
                for number in 0..GO_BLOCKS as u64 {
                    maru.load(first + number, &mut buffer.borrow_mut()[from..][..bytes], ReadFor::Cpu);
                }
            })
        }
        other => panic!("{other}: nobody knows that"),
    };
    work();
    println!("done");
    for line in std::io::stdin().lock().lines() {
        line.expect("a word");
        work();
        println!("done");
    }
}

fn two_writers(bytes: usize) {
    let folder = tempfile::tempdir_in("/dev/shm").expect("/dev/shm");
    let region = folder.path().join("region");
    let maru = Maru::open(&region, bytes);
    let lmdb_path = folder.path().join("lmdb");
    std::fs::create_dir(&lmdb_path).expect("a folder");
    let _made = Lmdb::open(&lmdb_path, true);
    let mut ours = Pair::start("maru-write", &region, bytes, [1 << 40, 1 << 41]);
    let mut theirs = Pair::start("lmdb-write", &lmdb_path, bytes, [0, 1 << 20]);
    let outcome = Contest::new("two-writers-448k")
        .unit("2 processes, 128 blocks of 448 KiB each")
        .bytes((2 * GO_BLOCKS * bytes) as u64)
        .rounds(15)
        .entry("maru", || ours.go())
        .entry("LMDB", || theirs.go())
        .run();
    show(&outcome, "maru", &["LMDB"]);
    drop(maru);
}

fn two_readers(bytes: usize) {
    let folder = tempfile::tempdir_in("/dev/shm").expect("/dev/shm");
    let region = folder.path().join("region");
    let maru = Maru::open(&region, bytes);
    let block = vec![7; bytes];
    for number in 0..2 * GO_BLOCKS as u64 {
        maru.store(number, &block);
    }
    let mut same = Pair::start("maru-read", &region, bytes, [0, 0]);
    let mut different = Pair::start("maru-read", &region, bytes, [0, GO_BLOCKS as u64]);
    let outcome = Contest::new("two-readers-448k")
        .unit("2 processes, 128 blocks of 448 KiB each")
        .bytes((2 * GO_BLOCKS * bytes) as u64)
        .rounds(31)
        .entry("the same blocks", || same.go())
        .entry("different blocks", || different.go())
        .run();
    show(&outcome, "the same blocks", &["different blocks"]);
}
