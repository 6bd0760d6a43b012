//! Processes of both hosts open a blank device at once, again and again: one region each time.

use std::collections::BTreeSet;
use std::thread;
use std::time::Duration;

use serde_json::json;

use super::World;
use crate::guest::{DEVICE, Guest, Shell, Start};
use crate::report::Report;
use crate::slice::SLOT_BYTES;

const POINT: &str = "race";

pub(super) fn run(world: &World<'_>, a: &Guest, b: &Guest, report: &mut Report) -> anyhow::Result<()> {
    let start = |guest| Guest::shell(guest, &["--region", DEVICE], Start::default());
    let mut shells: Vec<(&str, Shell<'_>)> =
        vec![("A", start(a)?), ("B", start(b)?), ("A", start(a)?), ("B", start(b)?)];
    let open = json!({ "op": "open", "format": "if-absent", "slot_bytes": SLOT_BYTES, "attach_wait_ms": 20_000 });
    let (mut one_region, mut one_formatter, mut at_once) = (0, 0, 0);
    let (mut all, mut first, mut odd) = (BTreeSet::new(), [0, 0], Vec::new());
    for round in 0..world.rounds {
        world.memory.wipe()?;
        for (at, (_, shell)) in shells.iter().enumerate() {
            // Orders take less than this to arrive, and formatting takes longer: every phase of it is met.
            thread::sleep(Duration::from_micros(u64::from(round) * 700 * at.min(1) as u64));
            shell.send(&open)?;
        }
        at_once += u32::from(shells.iter().all(|(_, shell)| !shell.has_spoken()));
        let (mut ids, mut formatters) = (BTreeSet::new(), 0);
        for (host, shell) in &shells {
            let answer = shell.hear()?;
            ids.insert(answer["region_id"].to_string());
            if answer["outcome"] == "formatted" {
                formatters += 1;
                first[usize::from(*host == "B")] += 1;
            }
            if answer["ok"] != true {
                odd.push(format!("round {round}, {host}: {}", answer["error"]));
            }
        }
        one_region += u32::from(ids.len() == 1);
        one_formatter += u32::from(formatters == 1);
        if formatters != 1 {
            odd.push(format!("round {round}: {formatters} formatters"));
        }
        all.extend(ids);
        // Who is asked first changes.
        shells.rotate_left(1);
    }
    let rounds = world.rounds;
    let found = format!("{one_region} of {rounds} rounds, {} regions in all {}", all.len(), odd.join("; "));
    report.check(
        POINT,
        "four processes of two hosts, one region id",
        one_region == rounds && all.len() == rounds as usize,
        found,
    );
    let found = format!("A {} times, B {} times; {at_once} rounds with all four at it", first[0], first[1]);
    report.check(POINT, "one of them formats, the others attach", one_formatter == rounds && at_once > 0, found);

    // The last region works for all four.
    let mut exact = 0;
    for (at, (_, shell)) in shells.iter().enumerate() {
        shell.good(json!({ "op": "session" }))?;
        shell.good(json!({ "op": "namespace", "example": true }))?;
        shell.good(json!({ "op": "store", "key": at, "seed": at, "len": 60_000 }))?;
    }
    for (_, shell) in &shells {
        for at in 0..shells.len() {
            exact += u32::from(shell.good(json!({ "op": "get", "key": at, "seed": at }))?["matches"] == true);
        }
    }
    report.check(POINT, "and the region works for all of them", exact == 16, format!("{exact} of 16 reads byte-exact"));
    shells.into_iter().try_for_each(|(_, shell)| shell.quit())
}
