//! One key stored by many at once.
//!
//! * Symptom: two copies of one block take the space of two; the loser's space is never seen again; both writers are told
//!   that they stored it.
//! * Cause: "is it there?" and "take a slot for it" are two steps that others can come between.

use std::collections::BTreeMap;

use maru_layout::image::Image;
use serde_json::{Value, json};

use crate::driver::{Scratch, Shell, seed};

#[test]
fn eight_processes_that_store_the_same_keys_make_one_replica_each() {
    const PROCESSES: usize = 8;
    const ROUNDS: u64 = 1000;
    const KEYS: u64 = 8;
    let seed = seed();
    let scratch = Scratch::new();
    let path = scratch.format("region", &["--size", "16M", "--slot-bytes", "1K"]);
    let mut shells: Vec<_> = (0..PROCESSES).map(|_| Shell::at(&path)).collect();
    for shell in &mut shells {
        shell.join();
    }
    let (mut outcomes, mut mixed_rounds): (BTreeMap<String, u64>, u64) = Default::default();
    for round in 0..ROUNDS {
        // Every process stores all keys of the round, each beginning elsewhere, so that they meet on each key.
        for (index, shell) in shells.iter_mut().enumerate() {
            let keys: Vec<Value> = (0..KEYS)
                .map(|at| {
                    let key = round * KEYS + (at + index as u64 / 2) % KEYS;
                    json!({ "key": format!("{seed}-{key}"), "len": 1 + key % 1024, "seed": key })
                })
                .collect();
            shell.send(&json!({ "op": "store", "keys": keys }));
        }
        let mut winners: BTreeMap<u64, u64> = BTreeMap::new();
        let mut winning_processes = 0;
        for (index, shell) in shells.iter_mut().enumerate() {
            let answer = shell.answer();
            assert_eq!(answer["ok"], true, "{answer}");
            let mut won = false;
            for (at, item) in answer["items"].as_array().expect("a list").iter().enumerate() {
                let key = round * KEYS + (at as u64 + index as u64 / 2) % KEYS;
                let outcome = item["outcome"].as_str().expect("a word");
                assert!(
                    ["stored", "present", "being_written", "contended"].contains(&outcome),
                    "round {round}, key {key}: {item}"
                );
                *outcomes.entry(outcome.to_owned()).or_default() += 1;
                if outcome == "stored" {
                    won = true;
                    *winners.entry(key).or_default() += 1;
                }
            }
            winning_processes += u64::from(won);
        }
        for key in round * KEYS..(round + 1) * KEYS {
            assert_eq!(winners.get(&key), Some(&1), "round {round}, key {key}: one and only one stored it");
        }
        mixed_rounds += u64::from(winning_processes > 1);
    }
    eprintln!("{outcomes:?}, {mixed_rounds} rounds with several winners");
    // If one process won every round there was no race to speak of.
    assert!(mixed_rounds > 0 && outcomes.get("present") > Some(&0), "{outcomes:?}");

    let stored = ROUNDS * KEYS;
    let slots = shells[0].slots();
    assert_eq!(slots["ready"], stored);
    let usage = shells[0].ok(json!({ "op": "usage" }));
    assert_eq!(slots["free"].as_u64().map(|free| free + stored), usage["capacity_slots"].as_u64(), "{usage}");
    // The same from the bytes of the region, by slot.
    let bytes = std::fs::read(&path).expect("file");
    let image = Image::read(&bytes).expect("a region");
    let mut replicas: BTreeMap<[u8; 32], u32> = BTreeMap::new();
    for replica in image.ready_replicas() {
        assert!(replica.record_ok && replica.payload_ok && image.is_indexed(&replica), "{replica:?}");
        *replicas.entry(replica.key.prefix).or_default() += 1;
    }
    assert_eq!(replicas.len() as u64, stored);
    assert!(replicas.values().all(|count| *count == 1));
    for key in (0..stored).step_by(37) {
        let shell = &mut shells[key as usize % PROCESSES];
        assert!(shell.holds(format!("{seed}-{key}"), 1 + key % 1024, key), "{key}");
    }
    for shell in shells {
        shell.quit();
    }
}
