//! The whole region, after a death: every word, every block, every account, every place that can be used again.
//!
//! Two looks of different kinds: the bytes, read as a file by the layout crate alone; and the library's calls in a
//! fresh session. Each complaint is one line.

use std::collections::HashSet;

use anyhow::{Context, Result};
use maru::layout::image::Image;
use maru::layout::object::{ObjectKey, other_bucket};
use maru::layout::word::{RowState, SessionState, SessionWord, SlotState};
use maru::{AttachError, Batch, Format, NamespaceError, Probe, Retire, Role, Verify, Why};

use crate::actor::Joined;
use crate::scenario::Allowed;
use crate::stage::{Fate, Stage, neighbour_is_whole};
use crate::world::{Keys, Place, Stored, content, namespace, store};

/// What any moment must show, right after a death and before anybody recovers: no word that no version writes, no
/// ready block with wrong bytes, marks that are not too low, one ready slot per object.
pub(crate) fn at_once(place: &Place, spoiled: usize) -> Result<Vec<String>> {
    let bytes = place.bytes()?;
    let image = Image::read(&bytes).context("the superblock")?;
    let mut found: Vec<String> = image
        .damage()
        .into_iter()
        .filter(|damage| !(spoiled > 0 && matches!(damage, maru::layout::image::Damage::Record { .. })))
        .map(|damage| format!("bytes: {damage}"))
        .collect();
    let geometry = image.geometry();
    let (states, strange) = image.state_counts();
    if states.iter().sum::<u32>() + strange != geometry.slot_count || strange != 0 {
        found.push(format!("bytes: states {states:?} and {strange} strange words do not make {}", geometry.slot_count));
    }
    let mut keys: HashSet<ObjectKey> = HashSet::new();
    for replica in image.ready_replicas() {
        if !keys.insert(replica.key) {
            found.push(format!("bytes: two ready slots hold {:02x?}", &replica.key.prefix[..8]));
        }
        if !image.is_indexed(&replica) {
            found.push(format!("bytes: ready slot {} is not in the index", replica.slot));
        }
    }
    let mut counted = vec![0u64; geometry.bucket_count as usize];
    for (bucket, _, entry) in image.entries().filter(|(_, _, entry)| entry.is_second()) {
        let first = other_bucket(bucket, entry.tag(), geometry.hash_seed, geometry.bucket_count);
        counted[first as usize] += 1;
    }
    for (bucket, line) in image.buckets() {
        if line.mark < counted[bucket as usize] {
            found.push(format!(
                "bytes: bucket {bucket} has mark {} and {} entries elsewhere",
                line.mark, counted[bucket as usize]
            ));
        }
    }
    Ok(found)
}

/// Everything, once all others have left or died and been recovered.
pub(crate) fn whole(stage: &Stage, allowed: Allowed) -> Result<Vec<String>> {
    let mut found = Vec::new();
    let region = stage.place.open(Format::Never).context("open for the check")?;
    let joined = Joined::of(&stage.place.keeping(), region, "checker").context("attach for the check")?;
    joined.session.reclaim()?;
    let second = joined.session.reclaim()?;
    if second.recovered_sessions + second.recovered_slots + second.freed_slots + second.draining_slots > 0 {
        found.push(format!("a second reclaim still finds work: {second:?}"));
    }
    accounts(&joined, allowed, &mut found)?;
    if let Some(budget) = stage.place.shape.budget {
        within_budget(&joined, budget, &mut found)?;
    }
    tables(&stage.place, &joined, &mut found)?;
    blocks(stage, &joined, allowed, &mut found)?;
    let damaged = stage.model.fates.values().filter(|fate| **fate == Fate::Damaged).count();
    found.extend(at_once(&stage.place, damaged)?);
    reuse(stage, &joined, allowed, &mut found)?;
    rows(&joined, stage, &mut found)?;
    entries(stage, &joined, &mut found)?;
    if joined.session.leases() != 0 {
        found.push(format!("the checker holds {} leases", joined.session.leases()));
    }
    joined.session.close().map_err(|(held, _)| held)?;
    if let Some(neighbour) = &stage.neighbour
        && let Err(error) = neighbour_is_whole(neighbour)
    {
        found.push(format!("neighbour: {error:#}"));
    }
    let litter = stage.litter()?;
    if !litter.is_empty() {
        found.push(format!("files left behind: {litter:?}"));
    }
    Ok(found)
}

fn accounts(joined: &Joined, allowed: Allowed, found: &mut Vec<String>) -> Result<()> {
    let usage = joined.session.usage()?;
    let capacity = usage.capacity_slots;
    if usage.slots.iter().sum::<u32>() != capacity || usage.damaged_slots != 0 {
        found.push(format!("usage does not add up to {capacity}: {:?}", usage.slots));
    }
    let free = u64::from(usage.slots[SlotState::Free as usize]) * u64::from(joined.slot_bytes);
    if free + usage.allocated_bytes != usage.capacity_bytes {
        found.push(format!("free {free} + allocated {} is not {}", usage.allocated_bytes, usage.capacity_bytes));
    }
    for state in [SlotState::Claiming, SlotState::Pending, SlotState::Writing, SlotState::Retiring] {
        let count = usage.slots[state as usize];
        if count > 0 {
            found.push(format!("{count} slot(s) left in {}", state.name()));
        }
    }
    let quarantined = usage.slots[SlotState::Quarantined as usize];
    if quarantined > allowed.quarantined {
        found.push(format!("{quarantined} slot(s) quarantined, {} allowed", allowed.quarantined));
    }
    Ok(())
}

/// Each slot of the namespace has its token, and there are no more of them than the budget has.
fn within_budget(joined: &Joined, budget: u32, found: &mut Vec<String>) -> Result<()> {
    let usage = joined.session.namespace_usage(&joined.id)?;
    let held: u32 = usage.slots.iter().sum();
    if usage.budget_slots != Some(budget.into()) || held > budget || usage.spent_tokens != held {
        found.push(format!("budget {budget}: {held} slots held, {} tokens spent: {usage:?}", usage.spent_tokens));
    }
    Ok(())
}

fn tables(place: &Place, joined: &Joined, found: &mut Vec<String>) -> Result<()> {
    let bytes = place.bytes()?;
    let image = Image::read(&bytes).context("the superblock")?;
    for (index, entry) in image.sessions() {
        let word = SessionWord(entry.word);
        let expected = if index == joined.session.index() { SessionState::Live } else { SessionState::Free };
        if !word.is(expected) {
            found.push(format!("session entry {index} is {word:?}, wanted {}", expected.name()));
        }
    }
    if let Some(control) = image.control()
        && (control.namespace_chore != 0 || control.leader_chore != 0)
    {
        found.push(format!("a chore is still held: {:#x} {:#x}", control.namespace_chore, control.leader_chore));
    }
    Ok(())
}

/// Every block whose fate is known, byte for byte.
fn blocks(stage: &Stage, joined: &Joined, allowed: Allowed, found: &mut Vec<String>) -> Result<()> {
    let mut evicted = 0;
    for (number, fate) in &stage.model.fates {
        let object = stage.object(joined.id, *number);
        let probe = joined.session.probe(&object)?;
        let lease = joined.session.acquire(&[object], Batch::Each)?.pop().context("one answer")?;
        let (hit, why) = match lease {
            Ok(lease) => {
                if !probe.is_hit() {
                    found.push(format!("block {number}: probe says {probe:?} and acquire finds it"));
                }
                match lease.read(Verify::Always) {
                    Ok(bytes) if bytes == content(*number, joined.slot_bytes) => (true, Why::Absent),
                    Ok(_) => {
                        found.push(format!("block {number}: WRONG BYTES"));
                        continue;
                    }
                    Err(_) if *fate == Fate::Damaged => (false, Why::Damaged),
                    Err(error) => {
                        found.push(format!("block {number}: {error}"));
                        continue;
                    }
                }
            }
            Err(why) => {
                if let Probe::Hit { len } = probe {
                    found.push(format!("block {number}: probe hits ({len} bytes) and acquire says {why}"));
                }
                (false, why)
            }
        };
        match fate {
            Fate::Must if !hit => found.push(format!("block {number} was committed and is lost: {why}")),
            Fate::Gone if hit => found.push(format!("block {number} was retired and is there")),
            Fate::Evictable if !hit => evicted += 1,
            _ => {}
        }
    }
    if evicted > allowed.evicted {
        found.push(format!("{evicted} blocks were evicted, {} allowed", allowed.evicted));
    }
    Ok(())
}

/// Retires everything, fills every slot, reads all of it, and empties the region again.
fn reuse(stage: &Stage, joined: &Joined, allowed: Allowed, found: &mut Vec<String>) -> Result<()> {
    for number in stage.model.fates.keys() {
        if joined.session.retire(&stage.object(joined.id, *number))? == Retire::Draining {
            found.push(format!("block {number} is leased, and nobody is there"));
        }
    }
    let usage = joined.session.usage()?;
    let quarantined = usage.slots[SlotState::Quarantined as usize];
    let usable = usage.capacity_slots - quarantined.min(allowed.quarantined);
    let free = usage.slots[SlotState::Free as usize];
    if free != usable {
        found.push(format!("{free} slots free after retiring all, wanted {usable}: {:?}", usage.slots));
    }
    let geometry = joined.region.geometry();
    let fill = Keys::even(geometry, &joined.id, 100_000, usage.capacity_slots + 2, 0);
    let mut filled = Vec::new();
    for number in fill {
        match store(&joined.session, joined.id, number, joined.slot_bytes)? {
            Stored::Yes => filled.push(number),
            Stored::NotNow("no_space" | "over_budget") => break,
            Stored::NotNow(why) => {
                found.push(format!("filling stops after {} slots: {why}", filled.len()));
                break;
            }
        }
    }
    let budget = stage.place.shape.budget;
    let wanted = budget.map_or(usable, |budget| budget.min(usable));
    if filled.len() as u32 != wanted {
        found.push(format!("{} slots can be filled, wanted {wanted}", filled.len()));
    }
    if budget.is_some() {
        within_budget(joined, wanted, found)?;
    }
    let bytes = stage.place.bytes()?;
    let image = Image::read(&bytes).context("the superblock")?;
    for slot in 0..if budget.is_none() { usage.capacity_slots } else { 0 } {
        if image.bitmap_hint(slot) == Some(false) {
            found.push(format!("the bitmap calls slot {slot} of a full region free"));
        }
    }
    for number in &filled {
        let object = stage.object(joined.id, *number);
        let lease = joined.session.acquire(&[object], Batch::Each)?.pop().context("one answer")?;
        let right = lease.is_ok_and(|lease| {
            lease.read(Verify::Always).is_ok_and(|bytes| bytes == content(*number, joined.slot_bytes))
        });
        if !right {
            found.push(format!("block {number} of the filling cannot be read back"));
        }
        if joined.session.retire(&object)? != Retire::Retired {
            found.push(format!("block {number} of the filling cannot be retired"));
        }
    }
    let free = joined.session.usage()?.slots[SlotState::Free as usize];
    if free != usable {
        found.push(format!("{free} slots free at the end, wanted {usable}"));
    }
    Ok(())
}

/// Every namespace row can be used, and none is taken twice.
fn rows(joined: &Joined, stage: &Stage, found: &mut Vec<String>) -> Result<()> {
    let total = joined.region.geometry().namespace_count;
    for number in 0..=total {
        match joined.session.namespace(&namespace(&format!("fill {number}"))) {
            Ok(_) => {}
            Err(NamespaceError::Full { .. }) => break,
            Err(error) => found.push(format!("filling the namespace table: {error}")),
        }
    }
    let bytes = stage.place.bytes()?;
    let image = Image::read(&bytes).context("the superblock")?;
    let mut texts = HashSet::new();
    for (row, line) in image.namespaces() {
        if RowState::from_bits(line.state) != Some(RowState::Ready) {
            found.push(format!("namespace row {row} of a full table is in state {}", line.state));
        } else if !texts.insert(line.text.to_vec()) {
            found.push(format!("namespace row {row} repeats another row's text"));
        }
    }
    Ok(())
}

/// Every session entry can be used, at ever higher epochs, and starts without leases.
fn entries(stage: &Stage, joined: &Joined, found: &mut Vec<String>) -> Result<()> {
    let total = joined.region.geometry().session_count;
    let mut sessions = Vec::new();
    let mut last = joined.session.epoch();
    loop {
        match joined.region.session("fill", Role::Worker) {
            Ok(session) => {
                if session.epoch() <= last {
                    found.push(format!("epoch {} after epoch {last}", session.epoch()));
                }
                last = session.epoch();
                sessions.push(session);
            }
            Err(AttachError::Full { .. }) => break,
            Err(error) => {
                found.push(format!("filling the session table: {error}"));
                break;
            }
        }
    }
    if sessions.len() as u32 + 1 != total {
        found.push(format!("{} sessions can attach, wanted {total}", sessions.len() + 1));
    }
    let bytes = stage.place.bytes()?;
    let image = Image::read(&bytes).context("the superblock")?;
    for session in &sessions {
        let leases = image.leases(session.index()).filter(|(_, cell)| cell.kind().is_some()).count();
        if leases > 0 {
            found.push(format!("new session {} begins with {leases} leases", session.index()));
        }
    }
    for session in sessions {
        session.close().map_err(|(held, _)| held)?;
    }
    Ok(())
}
