//! How long do other directories take for the same question: which of 128 keys are there?
//!
//! papaya and DashMap live in one process and are what a directory costs without sharing it; LMDB, iceoryx2's blackboard and
//! Redis are shared between processes. A blackboard's keys are fixed when it is made, and looked for one after the other,
//! so it is compared over the few keys that it can hold. Redis is started on a socket of its own where `redis-server` is
//! installed, and asked for all keys in one pipeline; without it, its row is missing and this says so.
//!
//! `cargo bench -p maru-bench --features peers --bench directories`.

#![allow(missing_docs, reason = "a bench is a program")]

use std::cell::{Cell, RefCell};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use iceoryx2::prelude::*;
use maru::ObjectId;
use maru_bench::contest::Contest;
use maru_bench::peers::{Bare, Lmdb};
use maru_bench::{Filled, prefix};

const KEYS: usize = 128;
const TURNS: u64 = 64;
const BLOCKS: u32 = 1 << 14;
/// About as many as a blackboard takes without being slow to make.
const FEW: u32 = 192;

type Digest = [u8; 32];

struct Requests {
    all: Vec<Vec<ObjectId>>,
    next: Cell<usize>,
}

impl Requests {
    fn of(filled: &Filled) -> Self {
        Self { all: (0..TURNS).map(|turn| filled.present(KEYS, turn)).collect(), next: Cell::new(0) }
    }

    fn next(&self) -> &[ObjectId] {
        let at = self.next.get();
        self.next.set((at + 1) % self.all.len());
        &self.all[at]
    }

    fn digests(&self) -> impl Iterator<Item = &Digest> + Clone {
        self.next().iter().map(|object| &object.prefix)
    }
}

/// A server of our own, gone with this value.
struct Redis {
    server: Child,
    connection: UnixStream,
    answers: Vec<u8>,
    question: Vec<u8>,
}

impl Redis {
    fn start(folder: &Path, blocks: u64) -> Option<Self> {
        let socket = folder.join("redis.sock");
        let started = Command::new("redis-server")
            .args(["--port", "0", "--save", "", "--appendonly", "no", "--unixsocket"])
            .arg(&socket)
            .stdout(Stdio::null())
            .spawn();
        let Ok(server) = started else {
            eprintln!("SKIPPED: Redis: redis-server is not installed");
            return None;
        };
        let until = Instant::now() + Duration::from_secs(10);
        let connection = loop {
            match UnixStream::connect(&socket) {
                Ok(connection) => break connection,
                Err(error) if Instant::now() > until => panic!("redis-server does not listen: {error}"),
                Err(_) => std::thread::sleep(Duration::from_millis(20)),
            }
        };
        let mut redis = Self { server, connection, answers: Vec::new(), question: Vec::new() };
        for number in 0..blocks {
            redis.ask(&[b"SET", &prefix(number), &[number as u8; 64]]);
            redis.settle(b"+OK\r\n", 1);
        }
        Some(redis)
    }

    /// Adds a command to the pipeline, in the server's protocol.
    fn ask(&mut self, words: &[&[u8]]) {
        let _ = write!(self.question, "*{}\r\n", words.len());
        for word in words {
            let _ = write!(self.question, "${}\r\n", word.len());
            self.question.extend_from_slice(word);
            self.question.extend_from_slice(b"\r\n");
        }
    }

    /// Sends the pipeline; `count` equal answers are wanted.
    fn settle(&mut self, answer: &[u8], count: usize) {
        self.connection.write_all(&self.question).expect("the server reads");
        self.question.clear();
        self.answers.resize(answer.len() * count, 0);
        self.connection.read_exact(&mut self.answers).expect("the server answers");
        assert!(self.answers.chunks(answer.len()).all(|found| found == answer), "every key is there");
    }

    fn has_all<'d>(&mut self, digests: impl Iterator<Item = &'d Digest>) {
        let mut count = 0;
        for digest in digests {
            self.ask(&[b"EXISTS", digest]);
            count += 1;
        }
        self.settle(b":1\r\n", count);
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

fn all_of_them() {
    let filled = Filled::new(BLOCKS);
    let requests = Requests::of(&filled);
    let (bare, lmdb) = (Bare::new(&filled), Lmdb::new(&filled));
    let papaya: papaya::HashMap<Digest, [u8; 64]> = papaya::HashMap::new();
    let dashmap: dashmap::DashMap<Digest, [u8; 64]> = dashmap::DashMap::new();
    for number in 0..filled.blocks {
        papaya.pin().insert(prefix(number), [number as u8; 64]);
        dashmap.insert(prefix(number), [number as u8; 64]);
    }
    let redis = Redis::start(filled.scratch(), filled.blocks).map(RefCell::new);
    let mut contest = Contest::new("directories")
        .unit("128 keys, all there")
        .fact("blocks", filled.blocks)
        .entry("maru probe_prefix", || assert_eq!(filled.session.probe_prefix(requests.next()).expect("probe"), KEYS))
        .entry("bare table", || assert!(requests.digests().all(|digest| bare.has(digest))))
        .entry("papaya, in one process", || {
            let map = papaya.pin();
            assert!(requests.digests().all(|digest| map.contains_key(digest)));
        })
        .entry("DashMap, in one process", || assert!(requests.digests().all(|digest| dashmap.contains_key(digest))))
        .entry("LMDB, one transaction", || assert_eq!(lmdb.count(requests.digests()), KEYS));
    if let Some(redis) = &redis {
        contest = contest.entry("Redis, one pipeline", || redis.borrow_mut().has_all(requests.digests()));
    }
    contest.run();
}

fn a_few() {
    let filled = Filled::new(FEW);
    let requests = Requests::of(&filled);
    let node = NodeBuilder::new().create::<ipc::Service>().expect("a node");
    let name = format!("maru-bench-{}", std::process::id());
    let mut creator = node.service_builder(&name.as_str().try_into().expect("a name")).blackboard_creator::<Digest>();
    for number in 0..filled.blocks {
        creator = creator.add::<u64>(prefix(number), number);
    }
    let blackboard = creator.create().expect("a blackboard");
    let reader = blackboard.reader_builder().create().expect("a reader");
    Contest::new("directories-few")
        .unit("128 keys, all there")
        .fact("blocks", filled.blocks)
        .entry("maru probe_prefix", || assert_eq!(filled.session.probe_prefix(requests.next()).expect("probe"), KEYS))
        .entry("iceoryx2 blackboard", || {
            assert!(requests.digests().all(|digest| reader.entry::<u64>(digest).is_ok()));
        })
        .run();
}

fn main() {
    all_of_them();
    a_few();
}
