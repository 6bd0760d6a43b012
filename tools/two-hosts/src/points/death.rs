//! Guest A is switched off in the middle of storing, with leases in its hands. B goes on; what A had stays where it is
//! until somebody vouches that A is gone, and is all there again afterwards.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::bail;
use serde_json::{Value, json};

use super::{LONGER, World, fill, inspected, slots, states};
use crate::guest::{DEVICE, Guest, Shell};
use crate::report::Report;
use crate::slice::SLOT_BYTES;

const POINT: &str = "death";
const SLOTS: u32 = 1_024;
/// Blocks that A stored in peace.
const OLD: std::ops::Range<u64> = 1..41;
/// Blocks that A is storing when the power goes.
const HURRIED: std::ops::Range<u64> = 10_000..10_400;
const BATCH: u64 = 20;

/// What A leaves behind, for its return.
pub(super) struct Left {
    pub(super) region_id: Value,
    pub(super) boot_id: Value,
    pub(super) epochs: Vec<u64>,
    /// Blocks that A had stored, and that B still finds at the end.
    pub(super) blocks: Vec<u64>,
}

pub(super) fn run(world: &World<'_>, a: Guest, b: &Guest, report: &mut Report) -> anyhow::Result<Left> {
    let region_id = world.fresh(b, Some(SLOTS), 16)?["region_id"].clone();
    let boot_id = a.facts()?["boot_id"].clone();
    let watcher = b.worker("engine-b")?;
    let other = b.worker("engine-b2")?;
    let (epochs, stored) = leave_in_the_middle(a, &watcher, &other, report)?;
    listed(b, report)?;
    quarantined(&watcher, report)?;
    vouched(b, &watcher, boot_id.as_str().unwrap_or_default(), report)?;
    let usage = watcher.good(json!({ "op": "usage" }))?;
    let verified = b.run(&["/bin/maru-inspect", "verify", "--payload", DEVICE])?;
    let last = verified.stdout.lines().last().unwrap_or_default().trim().to_owned();
    let whole = verified.exit == 0 && slots(&usage, "ready") == u64::from(SLOTS);
    report.check(POINT, "maru-inspect verify --payload in B", whole, format!("exit {}: {last}", verified.exit));
    let mut blocks = Vec::new();
    for block in OLD.skip(3).chain(stored) {
        if watcher.good(json!({ "op": "probe", "key": block }))?["hit"] == true {
            blocks.push(block);
        }
    }
    watcher.quit()?;
    other.quit()?;
    Ok(Left { region_id, boot_id, epochs, blocks })
}

fn block(key: u64, len: u64) -> Value {
    json!({ "key": key, "seed": key, "len": len })
}

/// Returns the epochs of A's sessions, and the hurried blocks that were whole.
fn leave_in_the_middle(
    a: Guest,
    watcher: &Shell<'_>,
    other: &Shell<'_>,
    report: &mut Report,
) -> anyhow::Result<(Vec<u64>, Vec<u64>)> {
    let holder = a.worker("engine-a")?;
    let storer = a.worker("engine-a2")?;
    let epochs = [&holder, &storer].map(|shell| shell.good(json!({ "op": "counters" })).map(drop));
    epochs.into_iter().collect::<anyhow::Result<()>>()?;
    let epochs: Vec<u64> = inspected(&a, &["sessions", DEVICE], "session")?
        .iter()
        .filter(|entry| entry["engine"].as_str().is_some_and(|engine| engine.starts_with("engine-a")))
        .filter_map(|entry| entry["epoch"].as_u64())
        .collect();
    for keys in OLD.collect::<Vec<_>>().chunks(BATCH as usize) {
        let items: Vec<Value> = keys.iter().map(|key| block(*key, 30_000 + key)).collect();
        holder.good(json!({ "op": "store", "keys": items }))?;
    }
    // A lease of each kind, and a reservation of each.
    let lease = |key: u64, kind: &str| -> anyhow::Result<Value> {
        Ok(holder.good(json!({ "op": "acquire", "key": key, "kind": kind }))?["items"][0]["lease"].clone())
    };
    lease(1, "copy")?;
    holder.good(json!({ "op": "view", "lease": lease(2, "copy")?, "seed": 2 }))?;
    lease(3, "device")?;
    for (key, writer) in [("half written", "cpu"), ("half sent", "device")] {
        let reserved = holder.good(json!({ "op": "reserve", "key": key, "len": 60_000, "writer": writer }))?;
        holder.good(json!({ "op": "write", "reservation": reserved["reservation"], "seed": 1, "len": 30_000 }))?;
    }

    // B stores and loads across the whole of it.
    let (longest, turns, stored) = thread::scope(|scope| {
        let going = scope.spawn(|| go_on(other, Duration::from_secs(4)));
        for first in HURRIED.step_by(BATCH as usize) {
            let items: Vec<Value> = (first..first + BATCH).map(|key| block(key, SLOT_BYTES - key % 64)).collect();
            storer.send(&json!({ "op": "store", "keys": items }))?;
        }
        let started = Instant::now();
        while watcher.good(json!({ "op": "probe", "key": HURRIED.start + 2 * BATCH + 7 }))?["hit"] != true {
            if started.elapsed() > Duration::from_secs(30) {
                bail!("guest A stores nothing");
            }
        }
        a.power_off();
        let keys: Vec<u64> = HURRIED.collect();
        let mut stored = Vec::new();
        for batch in keys.chunks(60) {
            let answer = watcher.good(json!({ "op": "get", "keys": batch.iter().map(|key| json!({ "key": key, "seed": key })).collect::<Vec<_>>() }))?;
            for (key, read) in batch.iter().zip(answer["items"].as_array().into_iter().flatten()) {
                match (read["hit"] == true, read["matches"] == true) {
                    (true, true) => stored.push(*key),
                    (true, false) => bail!("block {key} of A is not what A stored: {read}"),
                    _ => {}
                }
            }
        }
        let (longest, turns) = going.join().expect("no panic")?;
        anyhow::Ok((longest, turns, stored))
    })?;
    let middle = !stored.is_empty() && stored.len() < HURRIED.count();
    let found = format!("{} of {} blocks whole, each byte-exact for B", stored.len(), HURRIED.count());
    report.check(POINT, "A is switched off in the middle of storing", middle, found);
    let found = format!("{turns} stores and loads across it, the longest {} ms", longest.as_millis());
    report.check(POINT, "B goes on", turns > 10 && longest < Duration::from_secs(10), found);
    Ok((epochs, stored))
}

/// Stores, loads and retires for a while. Returns the longest turn and how many there were.
fn go_on(shell: &Shell<'_>, time: Duration) -> anyhow::Result<(Duration, u32)> {
    let (start, mut longest, mut turns) = (Instant::now(), Duration::ZERO, 0);
    while start.elapsed() < time {
        let turn = Instant::now();
        let key = format!("going-{turns}");
        let stored = shell.outcome(json!({ "op": "store", "key": key, "seed": turns, "len": 50_000 }))?;
        let read = shell.good(json!({ "op": "get", "key": key, "seed": turns }))?;
        let retired = shell.outcome(json!({ "op": "retire", "key": key }))?;
        if stored != "stored" || read["matches"] != true || retired != "retired" {
            bail!("turn {turns} of B: {stored}, {read}, {retired}");
        }
        longest = longest.max(turn.elapsed());
        turns += 1;
    }
    Ok((longest, turns))
}

/// `maru-inspect` in B shows whose leftovers they are.
fn listed(b: &Guest, report: &mut Report) -> anyhow::Result<()> {
    let entries = inspected(b, &["sessions", DEVICE], "session")?;
    let of_a: Vec<&Value> = entries
        .iter()
        .filter(|entry| {
            entry["state"] == "live" && entry["engine"].as_str().is_some_and(|engine| engine.starts_with("engine-a"))
        })
        .collect();
    let unknown = of_a.len() == 2 && of_a.iter().all(|entry| entry["liveness"] == "unknown");
    let leases = inspected(b, &["leases", DEVICE], "lease")?;
    let index = of_a.first().map_or(Value::Null, |entry| entry["session"].clone());
    let mut kinds: Vec<&str> = leases
        .iter()
        .filter(|lease| lease["session"] == index && lease["counts"] == true)
        .filter_map(|lease| lease["lease"].as_str())
        .collect();
    kinds.sort_unstable();
    let found = format!("{} sessions, leases {kinds:?}", of_a.len());
    report.check(
        POINT,
        "maru-inspect in B lists A's sessions (unknown) and leases",
        unknown && kinds == ["copy", "device", "view"],
        found,
    );
    Ok(())
}

/// Nothing of A comes back by itself.
fn quarantined(watcher: &Shell<'_>, report: &mut Report) -> anyhow::Result<()> {
    let usage = watcher.good(json!({ "op": "usage" }))?;
    let half = slots(&usage, "claiming") + slots(&usage, "pending") + slots(&usage, "writing");
    let nothing = watcher.good(json!({ "op": "reclaim" }))?;
    let right = half >= 2 && nothing["recovered_sessions"] == 0 && nothing["recovered_slots"] == 0;
    report.check(POINT, "B recovers nothing by itself", right, format!("left over: {}", states(&usage)));

    // The key of a motionless writer is taken from it, and its slot put aside.
    let start = Instant::now();
    let mut answers = Vec::new();
    loop {
        let outcome = watcher.outcome(json!({ "op": "store", "key": "half written", "seed": 5, "len": 60_000 }))?;
        let done = outcome == "stored" || start.elapsed() > Duration::from_secs(20);
        if answers.last() != Some(&outcome) {
            answers.push(outcome);
        }
        if done {
            break;
        }
        thread::sleep(Duration::from_millis(100));
    }
    let usage = watcher.good(json!({ "op": "usage" }))?;
    let right = answers == ["being_written", "stored"] && slots(&usage, "quarantined") >= 1;
    let found = format!("{answers:?} in {:.1} s; {}", start.elapsed().as_secs_f64(), states(&usage));
    report.check(POINT, "a key that A was writing is free again, its slot is not", right, found);

    // Leases of A: a copy lease lapses, the others never do.
    let outcomes: Vec<String> =
        (1..=3).map(|key| watcher.outcome(json!({ "op": "retire", "key": key }))).collect::<anyhow::Result<_>>()?;
    let until = Instant::now() + 2 * LONGER;
    let mut freed = 0;
    while Instant::now() < until {
        freed += watcher.good(json!({ "op": "reclaim" }))?["freed_slots"].as_u64().unwrap_or(0);
        thread::sleep(Duration::from_millis(300));
    }
    let usage = watcher.good(json!({ "op": "usage" }))?;
    let right = outcomes.iter().all(|outcome| outcome == "draining") && freed == 1 && slots(&usage, "retiring") == 2;
    let found = format!("retire: {outcomes:?}; {freed} freed, {} still retiring", slots(&usage, "retiring"));
    report.check(POINT, "A's copy lease lapses, its view and device leases do not", right, found);

    let aside = |usage: &Value| ["writing", "quarantined", "retiring"].map(|state| slots(usage, state));
    let left = aside(&usage);
    let stored = fill(watcher, "before")?;
    // Whoever needs room now has to refuse, or to make others give way; never these.
    for n in 0..40 {
        watcher.good(json!({ "op": "store", "key": format!("pressed-{n}"), "seed": n, "len": 64 }))?;
    }
    let usage = watcher.good(json!({ "op": "usage" }))?;
    let right = stored > 0 && left.iter().sum::<u64>() >= 4 && aside(&usage) == left;
    report.check(POINT, "what A left stays aside when all else is full", right, states(&usage));
    Ok(())
}

/// An operator says that A is gone.
fn vouched(b: &Guest, watcher: &Shell<'_>, host: &str, report: &mut Report) -> anyhow::Result<()> {
    let words = ["fence", DEVICE, "--host-dead", host, "--json"];
    let plan = b.run(&[&["/bin/maru-inspect"], &words[..]].concat())?;
    let usage = watcher.good(json!({ "op": "usage" }))?;
    let planned = plan.objects().pop().unwrap_or_default();
    let right = planned["dry_run"] == true && planned["sessions"] == 2 && slots(&usage, "retiring") == 2;
    let found = format!("{} sessions; ends with {}", planned["sessions"], planned["command"]);
    report.check(POINT, "maru-inspect fence --host-dead says what it would do, and does not", right, found);
    let ended = b.run(&[&["/bin/maru-inspect"], &words[..], &["--yes"]].concat())?;
    let done = ended.objects().pop().unwrap_or_default();
    let right = ended.exit == 0 && done["dry_run"] == false && done["sessions"] == 2 && done["damaged"] == 0;
    let found = format!(
        "exit {}: {} sessions, {} slots freed, {} blocks read again, {} damaged {}",
        ended.exit,
        done["sessions"],
        done["slots_freed"],
        done["scrubbed"],
        done["damaged"],
        ended.stderr.trim()
    );
    report.check(POINT, "maru-inspect fence --host-dead --yes recovers A's sessions", right, found);
    watcher.good(json!({ "op": "reclaim" }))?;
    let usage = watcher.good(json!({ "op": "usage" }))?;
    let only_device = slots(&usage, "quarantined") == 1 && slots(&usage, "retiring") == 0;
    let drained = watcher.good(json!({ "op": "devices_drained" }))?["slots"].clone();
    let found = format!("{}; then {drained} drained", states(&usage));
    report.check(POINT, "all of it returns; a device's slot once that has drained", only_device && drained == 1, found);
    let stored = fill(watcher, "after")?;
    let usage = watcher.good(json!({ "op": "usage" }))?;
    let full = stored > 0 && slots(&usage, "ready") == u64::from(SLOTS);
    report.check(POINT, "all slots fill again", full, format!("{stored} more; {}", states(&usage)));
    Ok(())
}
