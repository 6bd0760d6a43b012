//! Leases that nobody gives back, and releases that nobody owes.
//!
//! * Symptom: blocks that were looked up and never fetched stay pinned until nothing can be evicted; a second release
//!   takes a stranger's protection away; the process that pinned is dead and its pins live on.
//! * Cause: a pin is a count on the block, with nothing that says whose it is.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::accounts::{lease_cells, settled};
use crate::driver::{BOUND, ROUNDING, Random, Scratch, Shell, seed};

const LEN: u64 = 16_000;

/// Stores new blocks, and makes room by retiring the oldest of its own where the library makes none by itself.
struct Pressure {
    stored: VecDeque<u64>,
    next: u64,
}

impl Pressure {
    fn new() -> Self {
        Self { stored: VecDeque::new(), next: 1_000_000 }
    }

    fn store(&mut self, shell: &mut Shell, blocks: u64) {
        for key in self.next..self.next + blocks {
            let mut word = shell.store(key, LEN, key);
            if word == "no_space" {
                let oldest = self.stored.pop_front().expect("something to retire");
                shell.retire(oldest);
                word = shell.store(key, LEN, key);
            }
            assert_eq!(word, "stored", "{key}");
            self.stored.push_back(key);
        }
        self.next += blocks;
    }
}

fn release(shell: &mut Shell, handle: &Value) -> Value {
    shell.ok(json!({ "op": "release", "handle": handle }))["outcome"].clone()
}

/// Two readers protect one block; the first releases twice, others release in its name and in the second one's, and with
/// what they made up. All the while others store twice what fits. The block stays as long as the second reader's lease,
/// and goes with it.
#[test]
fn a_block_stays_under_pressure_as_long_as_the_one_lease_that_is_left() {
    let mut random = Random(seed());
    let scratch = Scratch::new();
    let path = scratch.format("region", &["--size", "1M", "--slot-bytes", "16K", "--slots", "16"]);
    let mut shells: Vec<_> = (0..3).map(|_| Shell::at(&path)).collect();
    for shell in &mut shells {
        shell.join();
    }
    let [r1, r2, other] = &mut shells[..] else { unreachable!() };
    assert_eq!(other.store("k", LEN, 1), "stored");
    let (_, first) = r1.acquire("k");
    let (lease, second) = r2.acquire("k");
    assert_eq!(lease_cells(&path), 2);
    assert_eq!(release(r1, &first), "released");
    let mut made_up = Vec::new();
    for _ in 0..50 {
        made_up.push(Value::from(random.hex(32)));
    }
    let mut pressure = Pressure::new();
    for turn in 0..4 {
        for shell in [&mut *r1, &mut *other] {
            for handle in [&first, &second].into_iter().chain(&made_up) {
                assert_eq!(release(shell, handle), "not_held", "turn {turn}: {handle}");
            }
        }
        assert_eq!(release(r2, &first), "not_held", "turn {turn}");
        assert_eq!(lease_cells(&path), 1, "turn {turn}");
        pressure.store(other, 8);
        assert!(other.holds("k", LEN, 1), "turn {turn}: it is leased, so it is there");
        let load = r2.ok(json!({ "op": "load", "lease": lease, "seed": 1 }));
        assert_eq!(load["matches"], true, "turn {turn}: {load}");
    }
    // Retired under its last lease: found by nobody any more, and still not given to others.
    assert_eq!(other.retire("k"), "draining");
    pressure.store(other, 32);
    assert!(!other.probe("k"));
    assert_eq!(r2.ok(json!({ "op": "load", "lease": lease, "seed": 1 }))["matches"], true);
    // A release after that counts, once, and frees the block for whoever comes next, without anybody's help.
    assert_eq!(other.slots()["retiring"], 1);
    assert_eq!(release(r2, &second), "released");
    for shell in [&mut *r1, &mut *r2, &mut *other] {
        assert_eq!(release(shell, &second), "not_held");
    }
    let since = Instant::now();
    while other.store("next", LEN, 2) == "no_space" {
        // "No space" is remembered for a moment; within the bound it is looked at anew.
        assert!(since.elapsed() < BOUND, "the last lease has ended, the slot has not come back");
        std::thread::sleep(Duration::from_millis(5));
    }
    pressure.store(other, 32);
    other.ok(json!({ "op": "reclaim" }));
    assert_eq!(settled(other, &path)["retiring"], 0);
    assert_eq!(lease_cells(&path), 0);
}

/// Sixty-four slots, fifty of them stored and protected by one process that will never release.
fn fifty(path: &std::path::Path) -> (Shell, Shell, Vec<Value>) {
    let (mut holder, mut other) = (Shell::at(path), Shell::at(path));
    holder.join();
    other.join();
    let keys: Vec<u64> = (0..50).collect();
    for key in &keys {
        assert_eq!(other.store(*key, LEN, *key), "stored");
    }
    let items = holder.ok(json!({ "op": "acquire", "keys": keys }))["items"].clone();
    let items = items.as_array().expect("a list").clone();
    assert!(items.len() == 50 && items.iter().all(|item| item["lease"].is_string()), "{items:?}");
    assert_eq!((holder.ok(json!({ "op": "held" }))["leases"].clone(), lease_cells(path)), (json!(50), 50));
    (holder, other, items)
}

fn outcomes(shell: &mut Shell, wanted: &str) {
    let keys: Vec<u64> = (0..50).collect();
    let answer = shell.ok(json!({ "op": "retire", "keys": keys }));
    for item in answer["items"].as_array().expect("a list") {
        assert_eq!(item["outcome"], wanted, "{answer}");
    }
}

/// A reader is killed with fifty leases: each of the fifty blocks can be retired and its space used at once, however long
/// leases may last.
#[test]
fn leases_of_a_killed_process_end_with_it() {
    let scratch = Scratch::new();
    let args = ["--size", "2M", "--slot-bytes", "16K", "--slots", "64", "--copy-lease-ms", "3600000"];
    let path = scratch.format("retired-after", &args);
    let (holder, mut other, _) = fifty(&path);
    holder.kill();
    let dead = Instant::now();
    outcomes(&mut other, "retired");
    assert!(dead.elapsed() < BOUND, "{:?}", dead.elapsed());
    assert_eq!((lease_cells(&path), &settled(&mut other, &path)["free"]), (0, &json!(64)));

    // Retired before: drained by the next who needs the space, who does not have to know.
    let path = scratch.format("retired-before", &args);
    let (holder, mut other, _) = fifty(&path);
    outcomes(&mut other, "draining");
    for key in 100..114 {
        assert_eq!(other.store(key, LEN, key), "stored");
    }
    holder.kill();
    // "No space" is remembered for a moment; within the bound it is looked at anew.
    let dead = Instant::now();
    while other.store(200, LEN, 200) == "no_space" {
        assert!(dead.elapsed() < BOUND, "the dead one's leases count on");
        std::thread::sleep(Duration::from_millis(5));
    }
    for key in 201..250 {
        assert_eq!(other.store(key, LEN, key), "stored");
    }
    assert_eq!((lease_cells(&path), &settled(&mut other, &path)["ready"]), (0, &json!(64)));
}

/// A reader acquires fifty and forgets them: past the limit of copy leases their space is used by whoever needs it. The
/// reader is told at each load, and gives back fifty leases as if nothing had happened. Views and device leases are never
/// forgotten.
#[test]
fn leases_of_an_idle_process_lapse_and_those_that_cannot_do_not() {
    const LIMIT: Duration = Duration::from_millis(300);
    let scratch = Scratch::new();
    let args = ["--size", "2M", "--slot-bytes", "16K", "--slots", "64", "--copy-lease-ms", "300"];
    let path = scratch.format("region", &args);
    let (mut idle, mut other, items) = fifty(&path);
    for key in 50..54 {
        assert_eq!(other.store(key, LEN, key), "stored");
    }
    let device = json!({ "op": "acquire", "keys": [50, 51], "kind": "device" });
    let mut lasting = idle.ok(device)["items"].as_array().expect("a list").clone();
    for key in [52, 53] {
        let item = idle.ok(json!({ "op": "acquire", "key": key }))["items"][0].clone();
        assert_eq!(idle.ok(json!({ "op": "view", "lease": item["lease"], "seed": key }))["matches"], true);
        lasting.push(item);
    }
    let since = Instant::now();
    outcomes(&mut other, "draining");
    for key in 50..54 {
        assert_eq!(other.retire(key), "draining");
    }
    let report = other.ok(json!({ "op": "reclaim" }));
    if since.elapsed() + ROUNDING < LIMIT {
        assert_eq!((&report["freed_slots"], &report["draining_slots"]), (&json!(0), &json!(54)), "within the limit");
    }
    std::thread::sleep(LIMIT + Duration::from_millis(100));
    // The ten that were free, and the fifty.
    for key in 100..160 {
        assert_eq!(other.store(key, LEN, key), "stored");
    }
    assert_eq!(other.slots()["retiring"], 4);
    for item in &items {
        idle.refused(json!({ "op": "load", "lease": item["lease"] }), "expired");
    }
    for (item, key) in lasting.iter().zip(50..) {
        let load = idle.ok(json!({ "op": "load", "lease": item["lease"], "seed": key }));
        assert_eq!(load["matches"], true, "{key}: {load}");
    }
    let handles: Vec<&Value> = items.iter().chain(&lasting).map(|item| &item["handle"]).collect();
    let released = idle.ok(json!({ "op": "release", "handles": handles }));
    assert_eq!(released["items"], json!(vec!["released"; 54]));
    let again = idle.ok(json!({ "op": "release", "handles": handles }));
    assert_eq!(again["items"], json!(vec!["not_held"; 54]));
    assert_eq!((&idle.ok(json!({ "op": "held" }))["leases"], lease_cells(&path)), (&json!(0), 0));
    assert_eq!(other.ok(json!({ "op": "reclaim" }))["freed_slots"], 4);
    assert_eq!(settled(&mut other, &path)["ready"], 60);
    for key in 100..160 {
        assert!(idle.holds(key, LEN, key));
    }
}
