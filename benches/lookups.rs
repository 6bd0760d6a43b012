//! How long does it take to know how much of a request is there, and to protect it?
//!
//! A request has 128 keys (32K tokens at 256 a block), chosen without pattern among all blocks, so each key is a cold
//! line or two. The same question as in `lookup.rs`, with all candidates in turns ([`maru_bench::contest`]): what to
//! quote are the ratios of this one.

use std::cell::Cell;
use std::hint::black_box;

use maru::{Batch, ObjectId};
use maru_bench::contest::{Contest, Outcome};
use maru_bench::peers::{Bare, Lmdb};
use maru_bench::{Filled, blocks};

const KEYS: usize = 128;
const TURNS: u64 = 512;

/// Requests in a circle.
struct Requests {
    all: Vec<Vec<ObjectId>>,
    next: Cell<usize>,
}

impl Requests {
    fn new(make: impl Fn(u64) -> Vec<ObjectId>) -> Self {
        Self { all: (0..TURNS).map(make).collect(), next: Cell::new(0) }
    }

    fn next(&self) -> &[ObjectId] {
        let at = self.next.get();
        self.next.set((at + 1) % self.all.len());
        &self.all[at]
    }
}

fn digests(request: &[ObjectId]) -> impl Iterator<Item = &[u8; 32]> + Clone {
    request.iter().map(|object| &object.prefix)
}

fn main() {
    let filled = Filled::new(blocks());
    let session = &filled.session;
    let (bare, lmdb) = (Bare::new(&filled), Lmdb::new(&filled));
    let hits = Requests::new(|turn| filled.present(KEYS, turn));
    let misses = Requests::new(|turn| filled.absent(KEYS, turn));
    // The first reading of a block marks it as visited; from then on a reader stores only in its own area.
    for request in &hits.all {
        drop(session.acquire(request, Batch::Each).expect("acquire"));
    }
    let contest = |question: &str| {
        let pages = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/shmem_enabled").unwrap_or_default();
        Contest::new(&format!("{question}-{}", filled.blocks))
            .unit("128 keys")
            .fact("blocks", filled.blocks)
            .fact("shmem_enabled", pages.trim())
    };
    let probe_prefix = || assert_eq!(session.probe_prefix(hits.next()).expect("probe"), KEYS);
    contest("lookup-hits")
        .entry("maru probe_prefix", probe_prefix)
        .entry("maru probe_batch", || {
            assert!(session.probe_batch(hits.next()).expect("probe").iter().all(maru::Probe::is_hit));
        })
        .entry("bare table", || assert!(digests(hits.next()).all(|digest| black_box(bare.has(digest)))))
        .entry("bare table, lines asked for ahead", || assert_eq!(bare.count_ahead(digests(hits.next())), KEYS))
        .entry("LMDB, one transaction", || assert_eq!(lmdb.count(digests(hits.next())), KEYS))
        .run();
    contest("lookup-misses")
        .entry("maru probe_batch", || {
            assert!(!session.probe_batch(misses.next()).expect("probe").iter().any(maru::Probe::is_hit));
        })
        .entry("bare table", || assert!(!digests(misses.next()).any(|digest| black_box(bare.has(digest)))))
        .entry("bare table, lines asked for ahead", || assert_eq!(bare.count_ahead(digests(misses.next())), 0))
        .entry("LMDB, one transaction", || assert_eq!(lmdb.count(digests(misses.next())), 0))
        .run();
    let leases: Outcome = contest("lookup-leases")
        .entry("maru probe_prefix", probe_prefix)
        .entry("maru acquire, drop", || {
            let leases = session.acquire(hits.next(), Batch::Each).expect("acquire");
            assert!(leases.iter().all(Result::is_ok));
        })
        .entry("maru acquire, release_batch", || {
            let leases = session.acquire(hits.next(), Batch::Each).expect("acquire");
            let handles: Vec<_> = leases.into_iter().map(|lease| lease.expect("hit").into_handle()).collect();
            assert_eq!(session.release_batch(&handles).expect("release").len(), KEYS);
        })
        .run();
    assert_eq!(session.leases(), 0);
    println!("{}", serde_json::to_string(&leases.entries.iter().map(|row| &row.ns).collect::<Vec<_>>()).expect("json"));
}
