//! Two kernels: process ids repeat, boot ids do not, and clocks agree on nothing. Neither host judges the other's
//! sessions.

use std::thread;

use serde_json::{Value, json};

use super::{LONGER, World, inspected};
use crate::guest::{DEVICE, Guest, Shell, Start};
use crate::report::Report;

const POINT: &str = "identity";
/// The process id that a worker has on both hosts.
pub(super) const PID: u64 = 3_000;
const SESSIONS: u32 = 8;

pub(super) fn run(world: &World<'_>, a: &Guest, b: &Guest, report: &mut Report) -> anyhow::Result<()> {
    world.fresh(a, None, SESSIONS)?;
    let options = || Start { pid: Some(PID), ..Start::default() };
    let (one, two) = (a.worker_with("engine-a", options())?, b.worker_with("engine-b", options())?);
    let facts = [a.facts()?, b.facts()?];
    let apart = days(&facts[1]) - days(&facts[0]);
    let found = format!("{} and {}", facts[0]["boot_id"], facts[1]["boot_id"]);
    report.check(POINT, "boot ids of their own", facts[0]["boot_id"] != facts[1]["boot_id"], found);
    let found = format!("processes {} and {}, clocks {apart} days apart", one.pid, two.pid);
    report.check(
        POINT,
        "the same process id on both, clocks days apart",
        one.pid == PID && two.pid == PID && apart > 12,
        found,
    );

    for (guest, own, other) in [(a, "engine-a", "engine-b"), (b, "engine-b", "engine-a")] {
        let entries = inspected(guest, &["sessions", DEVICE], "session")?;
        let said = |engine: &str| -> (String, u64) {
            let entry = entries.iter().find(|entry| entry["engine"] == engine && entry["state"] != "free");
            entry.map_or_else(
                || ("missing".to_owned(), 0),
                |entry| (entry["liveness"].as_str().unwrap_or("null").to_owned(), entry["pid"].as_u64().unwrap_or(0)),
            )
        };
        let right = said(own) == ("alive".to_owned(), PID) && said(other) == ("unknown".to_owned(), PID);
        let claim = format!("maru-inspect in {}: its own session lives, the other's is not judged", guest.name);
        report.check(POINT, &claim, right, format!("{:?}, {:?}", said(own), said(other)));
    }
    unhurried(a, &one, &two, report)?;
    full_table(b, &one, report)?;
    own_dead(b, &one, report)?;
    one.quit()?;
    two.quit()
}

fn days(facts: &Value) -> i64 {
    facts["wall_seconds"].as_i64().unwrap_or(0) / 86_400
}

/// A is slower than every time limit, and its clock jumps meanwhile; B does all that it can think of to recover.
fn unhurried(a: &Guest, one: &Shell<'_>, two: &Shell<'_>, report: &mut Report) -> anyhow::Result<()> {
    one.good(json!({ "op": "store", "key": "read", "seed": 1, "len": 40_000 }))?;
    let lease = one.good(json!({ "op": "acquire", "key": "read" }))?["items"][0]["lease"].clone();
    let reservation = one.good(json!({ "op": "reserve", "key": "written", "len": 60_000 }))?["reservation"].clone();
    one.good(json!({ "op": "write", "reservation": reservation, "seed": 2, "len": 30_000 }))?;
    let mut recovered = 0;
    for jump in [400, -400, 0] {
        let now = a.facts()?["wall_seconds"].as_i64().unwrap_or(0);
        a.set_clock(now + jump * 86_400)?;
        thread::sleep(LONGER / 3);
        for op in ["reclaim", "recover_dead"] {
            let answer = two.good(json!({ "op": op }))?;
            let counts = ["recovered_sessions", "recovered_slots", "sessions", "slots"];
            recovered += counts.iter().filter_map(|count| answer[*count].as_u64()).sum::<u64>();
        }
    }
    two.good(json!({ "op": "store", "key": "meanwhile", "seed": 3, "len": 40_000 }))?;
    let read = one.good(json!({ "op": "load", "lease": lease, "seed": 1 }))?["matches"] == true;
    one.good(json!({ "op": "write", "reservation": reservation, "seed": 2 }))?;
    let outcome = one.outcome(json!({ "op": "commit", "reservation": reservation }))?;
    one.good(json!({ "op": "release", "lease": lease }))?;
    let seen = two.good(json!({ "op": "get", "key": "written", "seed": 2 }))?["matches"] == true;
    let found = format!("recovered {recovered}, lease read {read}, commit {outcome:?}, read by B {seen}");
    let right = recovered == 0 && read && outcome == "stored" && seen;
    report.check(POINT, "nothing of a slow A is taken while its clock jumps by 400 days", right, found);
    Ok(())
}

/// B needs one entry more than there are.
fn full_table(b: &Guest, one: &Shell<'_>, report: &mut Report) -> anyhow::Result<()> {
    let mut more = Vec::new();
    for _ in 2..SESSIONS {
        more.push(b.worker("engine-b")?);
    }
    let last = b.shell(&["--region", DEVICE], Start::default())?;
    let refused = last.ask(json!({ "op": "session" }))?;
    let alive = one.outcome(json!({ "op": "store", "key": "still here", "seed": 1, "len": 1 }))? == "stored";
    let found = format!("{} ({} entries)", refused["error"], SESSIONS);
    report.check(POINT, "a full table costs A no entry", refused["code"] == "participants_full" && alive, found);
    last.quit()?;
    more.into_iter().try_for_each(Shell::quit)
}

/// A process of B dies: B's kernel proves it, A's cannot.
fn own_dead(b: &Guest, one: &Shell<'_>, report: &mut Report) -> anyhow::Result<()> {
    let victim = b.worker("engine-b")?;
    let reserved = victim.outcome(json!({ "op": "reserve", "key": "half", "len": 60_000 }))?;
    victim.kill()?;
    let recovered = |shell: &Shell<'_>| -> anyhow::Result<(Value, Value)> {
        let answer = shell.good(json!({ "op": "reclaim" }))?;
        Ok((answer["recovered_sessions"].clone(), answer["recovered_slots"].clone()))
    };
    let from_a = recovered(one)?;
    let shell = b.worker("engine-b")?;
    // Joining may have taken the dead one's entry, and recovered it then.
    let from_b = recovered(&shell)?;
    let again = shell.outcome(json!({ "op": "store", "key": "half", "seed": 9, "len": 60_000 }))?;
    let right = reserved == "granted" && from_a == (json!(0), json!(0)) && again == "stored";
    let found = format!("A recovered {}, B {} or on joining; its key: {again:?}", from_a.0, from_b.0);
    report.check(POINT, "a dead process of B is B's to recover, not A's", right, found);
    shell.quit()
}
