//! Both hosts serve the requests of one trace at once, each every other one: what the other has stored is read, what
//! nobody has is stored. Every byte that is read is compared.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

use serde_json::{Value, json};

use super::World;
use crate::guest::{DEVICE, Guest, Shell, Start};
use crate::report::Report;
use crate::slice::{Slice, asked, item, length};

const POINT: &str = "exchange";

/// Blocks of one line.
const BATCH: usize = 24;

/// What one host did.
#[derive(Default)]
struct Served {
    /// Blocks of the other host that it read byte-exact while both were at work.
    foreign: u32,
    /// Reads that were not byte-exact, and stores that were refused.
    wrong: Vec<String>,
}

/// Blocks that a host has stored, for the other one to read.
type Told = Mutex<Vec<u64>>;

pub(super) fn run(world: &World<'_>, a: &Guest, b: &Guest, report: &mut Report) -> anyhow::Result<()> {
    world.fresh(a, None, 16)?;
    let (one, two) = (a.worker("engine-a")?, b.worker("engine-b")?);
    let (told_a, told_b) = (Told::default(), Told::default());
    let (served_a, served_b) = thread::scope(|scope| {
        let other = scope.spawn(|| serve(&two, world.slice, 1, &told_b, &told_a));
        anyhow::Ok((serve(&one, world.slice, 0, &told_a, &told_b)?, other.join().expect("no panic")?))
    })?;
    let wrong: Vec<&String> = served_a.wrong.iter().chain(&served_b.wrong).collect();
    let (stored_a, stored_b) = (locked(&told_a).clone(), locked(&told_b).clone());
    let found = format!("{}: A stored {} blocks, B {}; {wrong:?}", world.slice.from, stored_a.len(), stored_b.len());
    let both = !stored_a.is_empty() && !stored_b.is_empty();
    report.check(POINT, "both hosts store at once", wrong.is_empty() && both, found);
    let (into_a, into_b) = (served_a.foreign, served_b.foreign);
    let found = format!("A read {into_a} of B's, B read {into_b} of A's, between stores of its own");
    report.check(POINT, "each reads what the other has just stored, byte-exact", into_a > 0 && into_b > 0, found);

    let blocks: Vec<u64> = world.slice.blocks().into_iter().collect();
    let bytes: u64 = blocks.iter().map(|block| length(*block)).sum();
    for (shell, host, foreign) in [(&one, "A", &stored_b), (&two, "B", &stored_a)] {
        let mut exact = 0;
        for batch in blocks.chunks(BATCH) {
            exact += read(shell, batch)?.iter().filter(|read| read["matches"] == true).count();
        }
        let found = format!("{exact} of {} blocks, {} of them the other's, {bytes} B", blocks.len(), foreign.len());
        let claim = format!("{host} reads every block of the slice byte-exact");
        report.check(POINT, &claim, exact == blocks.len(), found);
    }
    one.quit()?;
    two.quit()?;
    header_only(world, b, report)
}

fn locked(told: &Told) -> MutexGuard<'_, Vec<u64>> {
    told.lock().unwrap_or_else(PoisonError::into_inner)
}

fn read(shell: &Shell<'_>, blocks: &[u64]) -> anyhow::Result<Vec<Value>> {
    let keys: Vec<Value> = blocks.iter().map(|block| asked(*block)).collect();
    let answer = shell.good(json!({ "op": "get", "keys": keys }))?;
    Ok(answer["items"].as_array().cloned().unwrap_or_default())
}

/// Every other request, from number `first` on: loads what is there, stores what is not; then loads some of what the
/// other host has stored meanwhile.
fn serve(shell: &Shell<'_>, slice: &Slice, first: usize, mine: &Told, others: &Told) -> anyhow::Result<Served> {
    let mut served = Served::default();
    let exact = |block: u64, read: &Value| read["matches"] == true && read["len"] == length(block);
    let mut looked_at = 0;
    for blocks in slice.requests.iter().skip(first).step_by(2) {
        let run = shell.good(json!({ "op": "probe_prefix", "keys": blocks }))?["run"].as_u64().unwrap_or(0) as usize;
        let (there, absent) = blocks.split_at(run.min(blocks.len()));
        for (block, read) in there.iter().zip(read(shell, there)?) {
            if !exact(*block, &read) {
                served.wrong.push(format!("block {block}: {read}"));
            }
        }
        let items: Vec<Value> = absent.iter().map(|block| item(*block)).collect();
        let answer = shell.good(json!({ "op": "store", "keys": items }))?;
        for (block, put) in absent.iter().zip(answer["items"].as_array().into_iter().flatten()) {
            match put["outcome"].as_str() {
                Some("stored") => locked(mine).push(*block),
                // The other host has it, or is at it.
                Some("present" | "being_written" | "contended") => {}
                _ => served.wrong.push(format!("block {block}: {put}")),
            }
        }
        let news: Vec<u64> = locked(others)[looked_at..].iter().copied().take(BATCH).collect();
        looked_at += news.len();
        for (block, read) in news.iter().zip(read(shell, &news)?) {
            if exact(*block, &read) {
                served.foreign += 1;
            } else {
                served.wrong.push(format!("block {block} of the other host: {read}"));
            }
        }
    }
    Ok(served)
}

/// A scheduler without the payload.
fn header_only(world: &World<'_>, guest: &Guest, report: &mut Report) -> anyhow::Result<()> {
    let shell = guest.shell(&["--region", DEVICE, "--mode", "header-only", "--role", "scheduler"], Start::default())?;
    let opened = shell.ask(json!({ "op": "open" }))?;
    if opened["ok"] != true {
        report.check(POINT, "header-only attach answers lookups", false, opened.to_string());
        return shell.quit();
    }
    let mapped = |answer: &Value| -> u64 {
        answer["items"].as_array().into_iter().flatten().filter_map(|range| range["bytes"].as_u64()).max().unwrap_or(0)
    };
    let bytes = mapped(&shell.good(json!({ "op": "maps" }))?);
    shell.good(json!({ "op": "session" }))?;
    shell.good(json!({ "op": "namespace", "example": true }))?;
    let mut whole = 0;
    for blocks in &world.slice.requests {
        whole += usize::from(shell.good(json!({ "op": "probe_prefix", "keys": blocks }))?["run"] == blocks.len());
    }
    let absent = shell.good(json!({ "op": "probe", "key": "nobody stores this" }))?["hit"] == false;
    let found =
        format!("{whole} of {} requests whole; {bytes} of {} B mapped", world.slice.requests.len(), opened["length"]);
    let less = bytes > 0 && opened["length"].as_u64().is_some_and(|length| bytes < length);
    report.check(
        POINT,
        "header-only attach answers lookups",
        whole == world.slice.requests.len() && absent && less,
        found,
    );
    let refused = shell.ask(json!({ "op": "get", "key": world.slice.requests[0][0] }))?;
    report.check(POINT, "and refuses to load", refused["code"] == "no_payload", refused["error"].to_string());
    shell.quit()
}
