//! How long does it take to know how much of a request is there?
//!
//! A request has 128 keys (32K tokens at 256 a block), chosen without pattern among all blocks, so each key is a cold
//! line or two. Beside ours: the least that any table in memory can do (one 64-byte line a key, no identity beyond it),
//! and LMDB, the fastest store with a process boundary that we know of.

#![allow(missing_docs, reason = "criterion's macros make items without documentation")]

use std::hint::black_box;
use std::time::Duration;

use criterion::{Criterion, criterion_group, criterion_main};
use maru::ObjectId;
use maru_bench::peers::{Bare, Lmdb};
use maru_bench::{Filled, blocks};

const KEYS: usize = 128;
const TURNS: u64 = 512;

fn lookup(criterion: &mut Criterion) {
    let filled = Filled::new(blocks());
    let requests: Vec<Vec<ObjectId>> = (0..TURNS).map(|turn| filled.present(KEYS, turn)).collect();
    let misses: Vec<Vec<ObjectId>> = (0..TURNS).map(|turn| filled.absent(KEYS, turn)).collect();

    let (bare, lmdb) = (Bare::new(&filled), Lmdb::new(&filled));

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
            assert_eq!(lmdb.count(requests[next()].iter().map(|object| &object.prefix)), KEYS);
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
