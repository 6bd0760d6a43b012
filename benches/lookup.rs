//! How long does it take to know how much of a request is there?
//!
//! A request has 128 keys (32K tokens at 256 a block), chosen without pattern among all blocks, so each key is a cold
//! line or two. Beside ours: the least that any table in memory can do (one 64-byte line a key, no identity beyond it),
//! and LMDB, the fastest store with a process boundary that we know of.

#![allow(missing_docs, reason = "criterion's macros make items without documentation")]

use std::hint::black_box;
use std::time::Duration;

use criterion::{Criterion, criterion_group, criterion_main};
use heed::types::Bytes;
use heed::{CommitOrAbort, Database, EnvFlags, EnvOpenOptions};
use maru::ObjectId;
use maru_bench::{Filled, mix, prefix};

const KEYS: usize = 128;
const TURNS: u64 = 512;

/// The bare table: one line a key at the place its digest names, open addressing within it.
struct Bare {
    lines: Vec<[u64; 8]>,
}

impl Bare {
    fn new(blocks: u64) -> Self {
        let mut bare = Self { lines: vec![[0; 8]; (blocks as usize * 2).next_power_of_two()] };
        for number in 0..blocks {
            let digest = prefix(number);
            let mut at = bare.place(&digest);
            while bare.lines[at][7] != 0 {
                at = (at + 1) & (bare.lines.len() - 1);
            }
            bare.lines[at] = Self::line(&digest);
        }
        bare
    }

    fn line(digest: &[u8; 32]) -> [u64; 8] {
        let word = |at: usize| u64::from_le_bytes(digest[at * 8..at * 8 + 8].try_into().expect("eight bytes"));
        [word(0), word(1), word(2), word(3), 0, 0, 0, 1]
    }

    fn place(&self, digest: &[u8; 32]) -> usize {
        mix(u64::from_le_bytes(digest[..8].try_into().expect("eight bytes"))) as usize & (self.lines.len() - 1)
    }

    fn has(&self, digest: &[u8; 32]) -> bool {
        let wanted = Self::line(digest);
        let mut at = self.place(digest);
        loop {
            let line = &self.lines[at];
            if line[7] == 0 {
                return false;
            }
            if *line == wanted {
                return true;
            }
            at = (at + 1) & (self.lines.len() - 1);
        }
    }
}

/// Blocks in the table: `MARU_BENCH_BLOCKS`, or 256K.
fn blocks() -> u32 {
    std::env::var("MARU_BENCH_BLOCKS").ok().and_then(|text| text.parse().ok()).unwrap_or(1 << 18)
}

fn lookup(criterion: &mut Criterion) {
    let filled = Filled::new(blocks());
    let requests: Vec<Vec<ObjectId>> = (0..TURNS).map(|turn| filled.present(KEYS, turn)).collect();
    let misses: Vec<Vec<ObjectId>> = (0..TURNS).map(|turn| filled.absent(KEYS, turn)).collect();

    let path = filled.scratch().join("lmdb");
    std::fs::create_dir(&path).expect("a directory");
    let mut options = EnvOpenOptions::new();
    options.map_size(4 << 30);
    // SAFETY: no other process opens this new environment; losing it in a crash is fine.
    unsafe { options.flags(EnvFlags::NO_SYNC | EnvFlags::WRITE_MAP) };
    // SAFETY: the files in this new folder are touched by this environment only.
    let lmdb = unsafe { options.open(&path) }.expect("LMDB");
    let write = lmdb.write_txn().expect("transaction");
    let created = lmdb.create_databases_and_commit(write, |opener, write| {
        opener.create_database(write, None).map(CommitOrAbort::<_, ()>::Commit)
    });
    let CommitOrAbort::Commit(table) = created.expect("database") else { unreachable!("nobody aborts") };
    let table: Database<Bytes, Bytes> = table;
    let mut write = lmdb.write_txn().expect("transaction");
    for number in 0..filled.blocks {
        table.put(&mut write, &prefix(number), &[number as u8; 64]).expect("put");
    }
    write.commit().expect("commit");
    let bare = Bare::new(filled.blocks);

    let mut group = criterion.benchmark_group(format!("128 keys of {}", filled.blocks));
    group.warm_up_time(Duration::from_millis(500)).measurement_time(Duration::from_secs(2)).sample_size(20);
    let mut turn = 0;
    let mut next = || {
        turn = (turn + 1) % TURNS as usize;
        turn
    };
    group.bench_function("hits: maru probe_prefix", |bench| {
        bench.iter(|| assert_eq!(filled.session.probe_prefix(&requests[next()]).expect("probe"), KEYS));
    });
    group.bench_function("hits: bare table", |bench| {
        bench.iter(|| assert!(requests[next()].iter().all(|object| black_box(bare.has(&object.prefix)))));
    });
    group.bench_function("hits: LMDB, one transaction", |bench| {
        bench.iter(|| {
            let read = lmdb.read_txn().expect("transaction");
            let found = requests[next()].iter().all(|object| table.get(&read, &object.prefix).expect("get").is_some());
            assert!(found);
        });
    });
    group.bench_function("misses: maru probe_batch", |bench| {
        bench.iter(|| {
            let probes = filled.session.probe_batch(&misses[next()]).expect("probe");
            assert!(probes.iter().all(|probe| !probe.is_hit()));
        });
    });
    group.bench_function("misses: bare table", |bench| {
        bench.iter(|| assert!(misses[next()].iter().all(|object| !black_box(bare.has(&object.prefix)))));
    });
    group.bench_function("leases: maru acquire and release", |bench| {
        bench.iter(|| {
            let leases = filled.session.acquire(&requests[next()], maru::Batch::Each).expect("acquire");
            assert!(leases.iter().all(Result::is_ok));
        });
    });
    group.finish();
}

criterion_group!(benches, lookup);
criterion_main!(benches);
