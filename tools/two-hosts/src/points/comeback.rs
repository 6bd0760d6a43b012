//! Guest A boots again on the same device: another boot, a newer epoch, and its old blocks are where they were.

use serde_json::json;

use super::World;
use super::death::Left;
use crate::guest::{DEVICE, Guest, Start};
use crate::report::Report;
use crate::slice::tally;

const POINT: &str = "comeback";

pub(super) fn run(world: &World<'_>, b: &Guest, left: &Left, report: &mut Report) -> anyhow::Result<()> {
    let a = (world.restart)()?;
    a.booted()?;
    let facts = a.find_device(false)?;
    let shell = a.shell(&["--region", DEVICE, "--role", "worker", "--engine", "engine-a"], Start::default())?;
    let opened = shell.good(json!({ "op": "open" }))?;
    let joined = shell.good(json!({ "op": "session" }))?;
    shell.good(json!({ "op": "namespace", "example": true }))?;
    let same = opened["region_id"] == left.region_id && opened["outcome"] == "attached";
    let found = format!("boot {} instead of {}", facts["boot_id"], left.boot_id);
    report.check(POINT, "A boots again and finds the region", same && facts["boot_id"] != left.boot_id, found);
    let newer = joined["epoch"].as_u64().is_some_and(|epoch| left.epochs.iter().all(|old| epoch > *old));
    let found = format!("epoch {} after {:?}", joined["epoch"], left.epochs);
    report.check(POINT, "its session has a newer epoch", newer && left.epochs.len() == 2, found);

    let mut exact = 0;
    for batch in left.blocks.chunks(24) {
        let keys: Vec<_> = batch.iter().map(|key| json!({ "key": key, "seed": key })).collect();
        exact += tally(&shell.good(json!({ "op": "get", "keys": keys }))?, "matches").get("true").copied().unwrap_or(0);
    }
    let found = format!("{exact} of {} byte-exact", left.blocks.len());
    report.check(POINT, "its old blocks still hit", exact > 0 && exact == left.blocks.len() as u64, found);

    let gone = left.blocks.first().copied().unwrap_or_default();
    let retired = shell.outcome(json!({ "op": "retire", "key": gone }))?;
    let stored = shell.outcome(json!({ "op": "store", "key": "back", "seed": 77, "len": 60_000 }))?;
    let reader = b.worker("engine-b")?;
    let read = reader.good(json!({ "op": "get", "key": "back", "seed": 77 }))?["matches"] == true;
    let found = format!("retire {retired:?}, store {stored:?}, read by B {read}");
    report.check(
        POINT,
        "it retires and stores, and B reads that",
        retired == "retired" && stored == "stored" && read,
        found,
    );
    reader.quit()?;
    shell.quit()
}
