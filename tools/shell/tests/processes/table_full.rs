//! A table of participants that fills with the dead.
//!
//! * Symptom: each crash leaves an entry behind; after enough of them nobody can attach until everything is stopped. Or
//!   the one too many is let in, or throws somebody out. Or looking at the region takes an entry of its own.
//! * Cause: entries are given back by a clean exit alone, or found dead by a time-out or a process that nobody runs.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use maru_inspect::Verb;
use serde_json::json;

use crate::accounts::{look, of_kind, settled};
use crate::driver::{Random, Scratch, Shell, seed};

const LIMIT: usize = 8;

fn region(scratch: &Scratch) -> std::path::PathBuf {
    scratch.format("region", &["--size", "1M", "--slot-bytes", "4K", "--sessions", "8"])
}

fn joined(path: &Path) -> (Shell, u64, u64) {
    let mut shell = Shell::at(path);
    let joined = shell.join();
    (shell, joined["index"].as_u64().expect("an index"), joined["epoch"].as_u64().expect("an epoch"))
}

/// The table is full: one more is told so by name and number, and nobody notices.
fn one_more_is_refused(path: &Path, shells: &mut [(Shell, u64, u64)]) -> Shell {
    let before: Vec<_> =
        shells.iter_mut().map(|(shell, ..)| shell.ok(json!({ "op": "heartbeat" }))["beat"].clone()).collect();
    let mut one_more = Shell::at(path);
    for _ in 0..3 {
        let text = one_more.refused(json!({ "op": "session" }), "participants_full");
        assert!(text.contains("participants full (8): 8 live, 0 of other hosts or unknown"), "{text}");
    }
    for ((shell, index, _), before) in shells.iter_mut().zip(before) {
        let after = shell.ok(json!({ "op": "heartbeat" }))["beat"].as_u64();
        assert_eq!(after, before.as_u64().map(|beat| beat + 1));
        let stored = shell.store(format!("of {index}"), 100, *index);
        assert!(["stored", "present"].contains(&stored.as_str()), "{stored}");
        assert!(shell.holds(format!("of {index}"), 100, *index));
    }
    one_more
}

/// Eight attach, five are killed with leases and reservations in their hands, five attach; the ninth is refused until one
/// leaves.
#[test]
fn entries_of_the_killed_are_there_for_who_attaches_next() {
    let scratch = Scratch::new();
    let path = region(&scratch);
    let mut shells: Vec<_> = (0..LIMIT).map(|_| joined(&path)).collect();
    let indexes: BTreeSet<u64> = shells.iter().map(|(_, index, _)| *index).collect();
    assert_eq!(indexes.len(), LIMIT);
    drop(one_more_is_refused(&path, &mut shells));
    for (shell, index, _) in &mut shells[..5] {
        shell.acquire(format!("of {index}"));
        shell.ok(json!({ "op": "reserve", "key": format!("half of {index}"), "len": 100 }));
    }
    let killed: BTreeSet<u64> = shells
        .drain(..5)
        .map(|(shell, index, _)| {
            shell.kill();
            index
        })
        .collect();
    let newest = shells.iter().map(|(.., epoch)| *epoch).max().expect("some live");
    for _ in 0..5 {
        shells.push(joined(&path));
    }
    assert_eq!(shells[3..].iter().map(|(_, index, _)| *index).collect::<BTreeSet<_>>(), killed);
    assert!(shells[3..].iter().all(|(.., epoch)| *epoch > newest), "newer than everybody before");
    let mut one_more = one_more_is_refused(&path, &mut shells);
    // Nothing of the killed is left: neither what they wrote nor what they read.
    let slots = settled(&mut shells[0].0, &path);
    assert_eq!((&slots["writing"], &slots["ready"]), (&json!(0), &json!(LIMIT)));
    for index in killed {
        assert_eq!(shells[0].0.retire(format!("of {index}")), "retired");
    }
    shells.remove(1).0.quit();
    one_more.join();
    shells.remove(1).0.kill();
    joined(&path);
}

/// A hundred processes that are killed as soon as they have attached, or while they do, leave a table with room; two looks
/// of the inspector beside each of them take no entry.
#[test]
fn a_crash_loop_and_an_inspector_use_up_nothing() {
    let mut random = Random(seed());
    let scratch = Scratch::new();
    let path = region(&scratch);
    let mut shells: Vec<_> = (0..LIMIT - 1).map(|_| joined(&path)).collect();
    let (mut newest, mut looks) = (0, 0);
    for round in 0..100 {
        let mut dying = Shell::at(&path);
        if round % 2 == 0 {
            let epoch = dying.join()["epoch"].as_u64().expect("an epoch");
            assert!(epoch > newest, "round {round}");
            newest = epoch;
        } else {
            dying.send(&json!({ "op": "session" }));
            std::thread::sleep(Duration::from_micros(random.next() % 4000));
        }
        for verb in [Verb::Sessions, Verb::Stat] {
            let lines = look(&path, verb.clone());
            let summary = of_kind(&lines, "summary").next().expect("a summary");
            assert_ne!(summary["verdict"], "damaged", "{lines:#?}");
            if verb == Verb::Sessions {
                let alive = of_kind(&lines, "session").filter(|session| session["liveness"] == "alive").count();
                assert!(alive == LIMIT || round % 2 == 1 && alive == LIMIT - 1, "round {round}: {lines:#?}");
            }
            looks += 1;
        }
        dying.kill();
    }
    assert_eq!(looks, 200);
    shells.push(joined(&path));
    drop(one_more_is_refused(&path, &mut shells));
    assert_eq!(look(&path, Verb::Sessions).iter().filter(|line| line["liveness"] == "alive").count(), LIMIT);
    settled(&mut shells[0].0, &path);
}

/// Twelve that want the last four entries at the same moment: four get them, eight are told, nobody gets two or shares one.
#[test]
fn a_rush_on_the_last_entries_has_as_many_winners_as_there_are() {
    let scratch = Scratch::new();
    let path = region(&scratch);
    let mut residents: Vec<_> = (0..4).map(|_| joined(&path)).collect();
    let mut rush: Vec<_> = (0..12).map(|_| Shell::at(&path)).collect();
    for round in 0..10 {
        for shell in &mut rush {
            shell.ok(json!({ "op": "open" }));
        }
        for shell in &mut rush {
            shell.send(&json!({ "op": "session" }));
        }
        let mut taken: BTreeSet<_> = residents.iter().map(|(_, index, _)| *index).collect();
        let mut winners = Vec::new();
        for (at, shell) in rush.iter_mut().enumerate() {
            let answer = shell.answer();
            match answer["index"].as_u64() {
                Some(index) => {
                    assert!(taken.insert(index), "round {round}: {answer} is somebody's");
                    winners.push(at);
                }
                None => assert_eq!(answer["code"], "participants_full", "round {round}: {answer}"),
            }
        }
        assert_eq!(winners.len(), 4, "round {round}");
        for at in winners {
            // Half leave, half are killed.
            if at % 2 == 0 {
                rush[at].ok(json!({ "op": "close" }));
            } else {
                std::mem::replace(&mut rush[at], Shell::at(&path)).kill();
            }
        }
    }
    settled(&mut residents[0].0, &path);
}
