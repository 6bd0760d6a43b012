//! The same look-up in LMDB, on this machine, in this run.
//!
//! LMDB is the nearest thing to ask for: embedded, shared between processes by a mapped file, no server. It gets the
//! same memory (a temporary directory beside the region), the same keys, and the settings that suit it: no syncing, a
//! writable map, values of eight bytes that lie beside their keys, keys written in order, one read transaction for all
//! gets of a request.
//!
//! * V1: a look-up is 128 keys of one prompt that are all there; each round takes others, and both sides take the same.
//! * V2: rounds alternate and so does who comes first, so that neither has the better cache or the quieter moment.
//! * V3: medians are compared. Every answer is checked: each side must find all keys.

use std::time::Instant;

use anyhow::{Context, Result, ensure};
use heed::types::Bytes;
use heed::{CommitOrAbort, Database, EnvFlags, EnvOpenOptions};
use maru::{ObjectId, Region, Role};

use crate::payload::digest_of;
use crate::plan::Plan;

/// Keys of a look-up: a prompt of 32K tokens at 256 a block.
const KEYS: usize = 128;
const ROUNDS: usize = 1001;
/// Keys that the rival holds at most: beyond, filling it would take longer than the replay.
const MAX_KEYS: usize = 1 << 20;

/// Medians of both.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Rival {
    /// Keys of a look-up.
    pub(crate) keys: usize,
    /// Keys that both hold.
    pub(crate) held: usize,
    /// The region's time.
    pub(crate) ours_ns: u64,
    /// LMDB's time.
    pub(crate) rival_ns: u64,
}

/// Measures both. `None` when the region holds none of the blocks.
pub(crate) fn measure(plan: &Plan, region: &Region, ids: &[u64]) -> Result<Option<Rival>> {
    let session = region.session(&format!("{}-lookup", plan.engine_prefix), Role::Tool)?;
    let namespace = session.namespace(&plan.kind.namespace())?;
    let object = |id: &u64| ObjectId::new(namespace, digest_of(*id));
    let mut objects: Vec<ObjectId> = ids.iter().take(MAX_KEYS).map(object).collect();
    let there = session.probe_batch(&objects)?;
    let mut there = there.iter().map(maru::Probe::is_hit);
    objects.retain(|_| there.next() == Some(true));
    if objects.is_empty() {
        return Ok(None);
    }
    let keys = KEYS.min(objects.len());

    let beside = plan.region.parent().filter(|parent| !parent.as_os_str().is_empty());
    let directory = match beside.filter(|parent| !parent.starts_with("/dev") || parent.starts_with("/dev/shm")) {
        Some(parent) => tempfile::Builder::new().prefix(".maru-replay-lmdb-").tempdir_in(parent),
        None => tempfile::tempdir_in("/dev/shm"),
    }
    .context("a directory for LMDB")?;
    let mut options = EnvOpenOptions::new();
    options.map_size((objects.len() * 256).next_multiple_of(1 << 20) + (16 << 20));
    // SAFETY: the flags drop durability and protection against stray writes of this process, which this throw-away
    // file does not need; no other process opens it.
    unsafe { options.flags(EnvFlags::NO_SYNC | EnvFlags::WRITE_MAP) };
    // SAFETY: the directory is new and this process's own, so nobody changes or cuts the mapped file.
    let environment = unsafe { options.open(directory.path()) }.context("LMDB")?;
    let writing = environment.write_txn().context("LMDB")?;
    let database: Database<Bytes, Bytes> = environment
        .create_databases_and_commit(writing, |opener, writing| {
            opener.create_database(writing, None).map(CommitOrAbort::<_, ()>::Commit)
        })
        .context("LMDB")?
        .unwrap_commit();
    let mut writing = environment.write_txn().context("LMDB")?;
    let mut sorted: Vec<[u8; 32]> = objects.iter().map(|object| object.prefix).collect();
    sorted.sort_unstable();
    for (number, key) in sorted.iter().enumerate() {
        database.put(&mut writing, key, &(number as u64).to_le_bytes()).context("LMDB")?;
    }
    writing.commit().context("LMDB")?;

    let ours = |wanted: &[ObjectId]| -> Result<u64> {
        let start = Instant::now();
        let run = session.probe_prefix(wanted)?;
        let ns = start.elapsed().as_nanos() as u64;
        ensure!(run == wanted.len(), "the region found {run} of {} blocks that are there", wanted.len());
        Ok(ns)
    };
    let theirs = |wanted: &[ObjectId]| -> Result<u64> {
        let start = Instant::now();
        let reading = environment.read_txn()?;
        let mut found = 0;
        for object in wanted {
            found += usize::from(database.get(&reading, &object.prefix)?.is_some());
        }
        drop(reading);
        let ns = start.elapsed().as_nanos() as u64;
        ensure!(found == wanted.len(), "LMDB found {found} of {} keys", wanted.len());
        Ok(ns)
    };
    let (mut our_times, mut their_times) = (Vec::with_capacity(ROUNDS), Vec::with_capacity(ROUNDS));
    let starts = objects.len() - keys + 1;
    for round in 0..ROUNDS {
        // Strides of a prime reach all parts of the keys in an order that no prefetcher guesses.
        let start = (round * 7_919_777) % starts;
        let wanted = &objects[start..start + keys];
        if round % 2 == 0 {
            our_times.push(ours(wanted)?);
            their_times.push(theirs(wanted)?);
        } else {
            their_times.push(theirs(wanted)?);
            our_times.push(ours(wanted)?);
        }
    }
    session.close().map_err(|(held, _)| held)?;
    Ok(Some(Rival { keys, held: objects.len(), ours_ns: median(our_times), rival_ns: median(their_times) }))
}

fn median(mut times: Vec<u64>) -> u64 {
    let middle = times.len() / 2;
    *times.select_nth_unstable(middle).1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(median(vec![3, 1, 100]), 3);
        assert_eq!(median(vec![5]), 5);
    }
}
