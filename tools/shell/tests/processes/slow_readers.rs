//! A slot that is used again under a slow reader.
//!
//! * Symptom: a read takes longer than its lease lasts; meanwhile the slot is given to another block, and the reader
//!   returns that one's bytes, or a mixture, and reports success.
//! * Cause: protection ends by the clock and nobody looks again after the copy; or the look is at the key, which may be
//!   there anew.

use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::accounts::settled;
use crate::driver::{Random, Scratch, Shell, rounds, seed};

const SLOTS: u64 = 16;
const LEN: u64 = 64 << 10;
const LIMIT: Duration = Duration::from_millis(20);
const ARGS: [&str; 8] = ["--size", "2M", "--slot-bytes", "64K", "--slots", "16", "--copy-lease-ms", "20"];

/// A reader that is stopped now and then, and somebody who wants the space.
struct World {
    random: Random,
    reader: Shell,
    other: Shell,
    /// Rounds in which the reader was stopped in the midst of its reads.
    in_the_midst: u32,
}

impl World {
    fn new(path: &std::path::Path, seed: u64) -> Self {
        let (mut reader, mut other) = (Shell::at(path), Shell::at(path));
        reader.join();
        other.join();
        Self { random: Random(seed), reader, other, in_the_midst: 0 }
    }

    /// Stops the reader a random moment after it was sent `line` about a lease of the block `number`, and retires the block.
    /// Returns once the limit has passed by far.
    fn stop_in(&mut self, number: u64, mut line: Value) -> Value {
        let key = format!("k{number}");
        assert_eq!(self.other.store(key.clone(), LEN, number), "stored");
        let (lease, _) = self.reader.acquire(key.clone());
        line["lease"] = lease.clone();
        line["seed"] = number.into();
        self.reader.send(&line);
        std::thread::sleep(Duration::from_micros(200 + self.random.next() % 1500));
        self.reader.signal(Signal::SIGSTOP);
        self.reader.wait_stopped();
        assert_eq!(self.other.retire(key), "draining");
        std::thread::sleep(3 * LIMIT / 2);
        lease
    }

    /// Uses every slot that can be had without anybody's loss, and asks for one more.
    fn fill(&mut self, number: u64) {
        let free = self.other.slots()["free"].as_u64().expect("a count");
        for at in 0..free {
            assert_eq!(self.other.store(format!("{number}-{at}"), LEN, 1_000 * number + at), "stored");
        }
        assert_eq!(self.other.slots()["ready"], free);
        one_more(&mut self.other, format!("{number}-{SLOTS}"));
    }

    fn clear(&mut self, number: u64, lease: &Value) {
        self.reader.ok(json!({ "op": "release", "lease": lease }));
        for at in 0..=SLOTS {
            self.other.retire(format!("{number}-{at}"));
        }
        self.other.ok(json!({ "op": "reclaim" }));
        assert_eq!(self.other.slots()["free"], SLOTS);
    }

    /// A copying reader: its lease has lapsed and its slot is another block's when it goes on, or becomes so while it does.
    fn copying(&mut self, number: u64) {
        let verify = if number.is_multiple_of(2) { "always" } else { "never" };
        let lease = self.stop_in(number, json!({ "op": "load", "verify": verify, "times": 1_000_000 }));
        let report = self.other.ok(json!({ "op": "reclaim" }));
        assert_eq!(report["freed_slots"], 1, "a copy lease lapses: {report}");
        if number % 4 < 2 {
            // Sixteen of sixteen: its slot is another's now.
            self.fill(number);
            self.reader.signal(Signal::SIGCONT);
        } else {
            for at in 0..SLOTS {
                let line =
                    json!({ "op": "store", "key": format!("{number}-{at}"), "len": LEN, "seed": 1_000 * number + at });
                self.other.send(&line);
            }
            std::thread::sleep(Duration::from_micros(self.random.next() % 800));
            self.reader.signal(Signal::SIGCONT);
            for _ in 0..SLOTS {
                assert_eq!(self.other.answer()["outcome"], "stored");
            }
        }
        let read = self.reader.answer();
        assert_eq!(
            (&read["other"], &read["ended"]),
            (&json!(0), &json!("expired")),
            "round {number}, {verify}: {read}"
        );
        self.in_the_midst += u32::from(read["exact"] != 0);
        // And no later read gets the new block by the old lease.
        self.reader.refused(json!({ "op": "load", "lease": lease, "verify": verify }), "expired");
        self.reader.refused(json!({ "op": "view", "lease": lease }), "expired");
        self.reader.holds(format!("{number}-0"), LEN, 1_000 * number);
        self.clear(number, &lease);
    }

    /// A reader in place: while its view lives its slot is nobody else's, whatever the limit of copy leases.
    fn viewing(&mut self, number: u64) {
        const LOOKS: u64 = 300;
        let lease = self.stop_in(number, json!({ "op": "view", "times": LOOKS }));
        self.other.ok(json!({ "op": "reclaim" }));
        let kept = self.other.slots()["retiring"] == 1;
        self.fill(number);
        assert_eq!(self.other.slots()["retiring"], u64::from(kept));
        self.reader.signal(Signal::SIGCONT);
        let read = self.reader.answer();
        if read["ok"] == true {
            // The view was made before the reader was stopped.
            assert_eq!((&read["exact"], &read["other"]), (&json!(LOOKS), &json!(0)), "round {number}: {read}");
            assert!(kept, "round {number}: the slot was freed under a view");
            self.in_the_midst += 1;
        } else {
            assert_eq!(read["code"], "expired", "round {number}: {read}");
        }
        self.clear(number, &lease);
    }
}

/// A store for which there is no free slot: refused, or at the cost of a block that nobody reads.
fn one_more(shell: &mut Shell, key: String) {
    let stored = shell.store(key, LEN, 0);
    assert!(["stored", "no_space"].contains(&stored.as_str()), "{stored}");
}

/// Readers stopped at random moments for longer than their lease lasts, while their slot is filled with another block:
/// each copy that counted is the block's, and the first that is not ends with "expired"; each view is the block's to its
/// end. With checksums and without.
#[test]
fn a_slow_reader_gets_its_own_block_or_is_told() {
    let rounds = rounds(60);
    let seed = seed();
    let scratch = Scratch::new();
    let scratch = &scratch;
    let worlds: Vec<u32> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|number| {
                scope.spawn(move || {
                    let path = scratch.format(&format!("region-{number}"), &ARGS);
                    let mut world = World::new(&path, seed.wrapping_add(number));
                    for round in 0..rounds {
                        if number < 2 { world.copying(round) } else { world.viewing(round) }
                    }
                    settled(&mut world.other, &path);
                    world.in_the_midst
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("no round failed")).collect()
    });
    eprintln!("of {rounds} rounds each, stopped in the midst of reading: {worlds:?}");
    assert!(worlds.iter().all(|in_the_midst| u64::from(*in_the_midst) > rounds / 10), "{worlds:?}");
}

/// The slot of a view comes back by proof that its session is dead and by nothing less: not by time, not when the session
/// is shut out. A copy lease of a session that was shut out lapses as any.
#[test]
fn the_slot_under_a_view_comes_back_when_its_session_is_dead() {
    let scratch = Scratch::new();
    let path = scratch.format("region", &ARGS);
    let (mut reader, mut other) = (Shell::at(&path), Shell::at(&path));
    let joined = reader.join();
    other.join();
    for key in ["viewed", "copied"] {
        assert_eq!(other.store(key, LEN, 1), "stored");
    }
    let (viewed, _) = reader.acquire("viewed");
    reader.acquire("copied");
    // The first look ends at once and tells that the view works; then one that takes longer than this test.
    assert_eq!(reader.ok(json!({ "op": "view", "lease": viewed, "seed": 1, "times": 1 }))["exact"], 1);
    reader.send(&json!({ "op": "view", "lease": viewed, "seed": 1, "times": u64::MAX }));
    std::thread::sleep(Duration::from_millis(20));
    reader.signal(Signal::SIGSTOP);
    reader.wait_stopped();
    assert_eq!((other.retire("viewed"), other.retire("copied")), ("draining".into(), "draining".into()));
    let fence = json!({ "op": "fence", "index": joined["index"], "epoch": joined["epoch"] });
    assert_eq!(other.ok(fence)["fenced"], true);
    std::thread::sleep(3 * LIMIT);
    for _ in 0..3 {
        other.ok(json!({ "op": "reclaim" }));
        std::thread::sleep(LIMIT);
    }
    for key in 0..SLOTS - 1 {
        assert_eq!(other.store(key, LEN, key), "stored");
    }
    one_more(&mut other, "one more".to_owned());
    assert_eq!(other.slots()["retiring"], 1, "the viewed one");
    reader.signal(Signal::SIGCONT);
    std::thread::sleep(LIMIT);
    other.ok(json!({ "op": "reclaim" }));
    assert_eq!(other.slots()["retiring"], 1, "awake again, and still looking");
    reader.kill();
    assert_eq!(other.ok(json!({ "op": "reclaim" }))["freed_slots"], 1);
    assert_eq!(other.store("new", LEN, 2), "stored");
    assert!(other.holds("new", LEN, 2));
    assert_eq!(settled(&mut other, &path)["retiring"], 0);
}
