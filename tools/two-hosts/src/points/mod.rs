//! The points, in the order in which they are tried.

mod comeback;
mod death;
mod device;
mod exchange;
mod identity;
mod race;

use std::time::Duration;

use anyhow::bail;
use clap::ValueEnum;
use serde_json::{Value, json};

use crate::guest::{DEVICE, Guest, Memory, Shell, Start};
use crate::report::Report;
use crate::slice::{SLOT_BYTES, Slice};

/// Time limits of the regions here: short, so that waiting for them is cheap.
const COPY_LEASE_MS: u64 = 1_000;
const STALLED_WRITER_MS: u64 = 1_000;
/// Past both.
const LONGER: Duration = Duration::from_millis(2_500);

/// What can be tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Point {
    /// Size, alignment, partitions and the environment of a character device
    Device,
    /// Both format at once
    Race,
    /// Each reads what the other stores
    Exchange,
    /// Process ids, boot ids and clocks of their own
    Identity,
    /// One is switched off
    Death,
    /// It comes back
    Comeback,
}

/// What all points share.
pub(crate) struct World<'w> {
    pub(crate) memory: &'w Memory,
    pub(crate) slice: &'w Slice,
    /// What each guest says about itself and the device.
    pub(crate) facts: [Value; 2],
    pub(crate) rounds: u32,
    /// Boots guest A once more.
    pub(crate) restart: &'w dyn Fn() -> anyhow::Result<Guest>,
}

/// Tries the points that are asked for; all unless some are named.
pub(crate) fn run(world: &World<'_>, a: Guest, b: &Guest, only: &[Point], report: &mut Report) {
    let asked = |point| only.is_empty() || only.contains(&point);
    for (point, name, tried) in TWO {
        if asked(point) {
            let ended = tried(world, &a, b, report);
            went_through(name, ended, report);
        }
    }
    if asked(Point::Death) || asked(Point::Comeback) {
        let ended = death::run(world, a, b, report);
        let left = went_through("death", ended, report);
        if asked(Point::Comeback)
            && let Some(left) = left
        {
            let ended = comeback::run(world, b, &left, report);
            went_through("comeback", ended, report);
        }
    }
}

/// A point that two running guests are tried at.
type Tried = fn(&World<'_>, &Guest, &Guest, &mut Report) -> anyhow::Result<()>;

const TWO: [(Point, &str, Tried); 4] = [
    (Point::Device, "device", device::run),
    (Point::Race, "race", race::run),
    (Point::Exchange, "exchange", exchange::run),
    (Point::Identity, "identity", identity::run),
];

/// A point that could not be tried to its end has failed; the others are tried all the same.
fn went_through<T>(point: &'static str, ended: anyhow::Result<T>, report: &mut Report) -> Option<T> {
    match ended {
        Ok(value) => Some(value),
        Err(error) => {
            report.check(point, "can be tried to its end", false, format!("{error:#}"));
            None
        }
    }
}

impl World<'_> {
    /// Makes the device blank and lets a guest format all of it. Returns the answer to the opening.
    fn fresh(&self, guest: &Guest, slots: Option<u32>, sessions: u32) -> anyhow::Result<Value> {
        self.memory.wipe()?;
        let shell = guest.shell(&["--region", DEVICE], Start::default())?;
        let opened = shell.good(json!({
            "op": "open", "format": "if-absent", "slot_bytes": SLOT_BYTES, "slots": slots, "sessions": sessions,
            "copy_lease_ms": COPY_LEASE_MS, "stalled_writer_ms": STALLED_WRITER_MS,
        }))?;
        if opened["outcome"] != "formatted" {
            bail!("a blank device was not formatted: {opened}");
        }
        shell.quit()?;
        Ok(opened)
    }
}

/// What `maru-inspect` prints, as the objects of that kind.
fn inspected(guest: &Guest, arguments: &[&str], kind: &str) -> anyhow::Result<Vec<Value>> {
    let ended = guest.run(&[&["/bin/maru-inspect"], arguments, &["--json"]].concat())?;
    let objects = ended.objects();
    if objects.is_empty() {
        bail!("guest {}: maru-inspect {arguments:?}: exit {}: {}", guest.name, ended.exit, ended.stderr);
    }
    Ok(objects.into_iter().filter(|object| object["kind"] == kind).collect())
}

/// Slots in a state.
fn slots(usage: &Value, state: &str) -> u64 {
    usage["slots"][state].as_u64().unwrap_or(u64::MAX)
}

/// Slots by state, the empty ones left out.
fn states(usage: &Value) -> String {
    let all = usage["slots"].as_object().into_iter().flatten();
    let held: Vec<String> =
        all.filter(|(_, count)| **count != 0).map(|(state, count)| format!("{count} {state}")).collect();
    held.join(", ")
}

/// Stores small new blocks, whose keys start with `name`, until no slot is free. Returns how many went in.
fn fill(shell: &Shell<'_>, name: &str) -> anyhow::Result<u64> {
    let mut stored = 0;
    loop {
        let usage = shell.good(json!({ "op": "usage" }))?;
        let free = slots(&usage, "free");
        if free == 0 {
            return Ok(stored);
        }
        // Never more than there is room for: nothing is to make place.
        let keys: Vec<Value> = (stored..stored + free.min(40)).map(|n| format!("{name}-{n}").into()).collect();
        let answer = shell.good(json!({ "op": "store", "keys": keys, "len": 64, "seed": stored }))?;
        for item in answer["items"].as_array().into_iter().flatten() {
            if item["outcome"] != "stored" {
                bail!("{free} slots are free, and a store is answered {item}");
            }
            stored += 1;
        }
    }
}
