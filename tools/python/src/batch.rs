//! Calls on many blocks of one session, made with the interpreter released once for all of them.

use maru::{Batch, BlockId, CallError, LoadError, ObjectId, Reserve, ReserveOptions, Session, Verify, Why, WriteError};
use pyo3::prelude::*;

use crate::args;
use crate::errors::{OrRaise, argument, load_code, write_code};
use crate::ids::{self, PyObjectId, blocks_of};
use crate::lease::verified;
use crate::pinned::Pinned;
use crate::session::reserve_options;

/// Blocks protected at a time: a load of many does not use up the session's lease cells.
const LOAD_WINDOW: usize = 16;

/// Blocks by their prefix digests, one after the other in a buffer.
pub(crate) fn prefixes(
    py: Python<'_>,
    prefixes: &Bound<'_, PyAny>,
    shard: Option<&Bound<'_, PyAny>>,
    part: Option<&Bound<'_, PyAny>>,
) -> PyResult<Vec<BlockId>> {
    let shard = shard.map_or(Ok(0), |shard| args::whole16("shard", shard))?;
    let part = part.map_or(Ok(0), |part| args::whole16("part", part))?;
    let pinned = Pinned::source("prefixes", prefixes)?;
    // SAFETY: copied within this call, with the interpreter held.
    blocks_of(py, unsafe { pinned.as_slice() }, shard, part)
}

/// Refuses lists of different lengths.
pub(crate) fn same_length(py: Python<'_>, field: &str, found: usize, objects: usize) -> PyResult<()> {
    if found == objects {
        return Ok(());
    }
    Err(argument(py, field, &format!("{found} long"), &format!("{objects}, one for each object")))
}

/// Options for each object of a store.
pub(crate) fn store_options(
    py: Python<'_>,
    objects: usize,
    depths: Option<Vec<Bound<'_, PyAny>>>,
    parents: Option<Vec<Option<Bound<'_, PyAny>>>>,
    after_hits: Option<&Bound<'_, PyAny>>,
    writer: Option<&Bound<'_, PyAny>>,
) -> PyResult<Vec<ReserveOptions>> {
    if let Some(depths) = &depths {
        same_length(py, "depths", depths.len(), objects)?;
    }
    if let Some(parents) = &parents {
        same_length(py, "parents", parents.len(), objects)?;
    }
    let one = |at: usize| {
        let depth = depths.as_ref().map(|depths| &depths[at]);
        let parent = parents.as_ref().and_then(|parents| parents[at].as_ref());
        reserve_options(depth, parent, after_hits, writer)
    };
    (0..objects).map(one).collect()
}

/// See `Session.load_into`.
pub(crate) fn load(
    py: Python<'_>,
    session: &Session,
    objects: &[Bound<'_, PyObjectId>],
    buffers: &[Bound<'_, PyAny>],
    verify: Option<&Bound<'_, PyAny>>,
) -> PyResult<Vec<Option<&'static str>>> {
    same_length(py, "buffers", buffers.len(), objects.len())?;
    let objects = ids::objects(py, objects)?;
    let verify = verified(verify)?;
    let pinned = Pinned::targets(buffers)?;
    // SAFETY: used within this call, and held for writing.
    let mut targets: Vec<&mut [u8]> = pinned.iter().map(|pinned| unsafe { pinned.as_mut_slice() }).collect();
    py.detach(|| load_all(session, &objects, &mut targets, verify)).or_raise(py)
}

fn load_all(
    session: &Session,
    objects: &[ObjectId],
    targets: &mut [&mut [u8]],
    verify: Verify,
) -> Result<Vec<Option<&'static str>>, CallError> {
    let mut answers = Vec::with_capacity(objects.len());
    for (objects, targets) in objects.chunks(LOAD_WINDOW).zip(targets.chunks_mut(LOAD_WINDOW)) {
        let leases = session.acquire(objects, Batch::Each)?;
        let mut left_over = Vec::new();
        for ((at, lease), target) in leases.into_iter().enumerate().zip(&mut *targets) {
            answers.push(match lease {
                Ok(lease) => read(&lease, target, verify)?,
                Err(Why::LeasesFull) => {
                    left_over.push((at, answers.len()));
                    Some(Why::LeasesFull.code())
                }
                Err(why) => Some(why.code()),
            });
        }
        // The leases above are released; what found no cell then may find one now.
        for (at, answer) in left_over {
            if let Some(Ok(lease)) = session.acquire(&objects[at..=at], Batch::Each)?.pop() {
                answers[answer] = read(&lease, targets[at], verify)?;
            }
        }
    }
    Ok(answers)
}

/// Errors of the session end the whole call; those of one block are its answer.
fn read(lease: &maru::Lease<'_>, target: &mut [u8], verify: Verify) -> Result<Option<&'static str>, CallError> {
    match lease.read_into(target, verify) {
        Ok(()) => Ok(None),
        Err(LoadError::Call(error)) => Err(error),
        Err(error) => Ok(Some(load_code(&error))),
    }
}

/// See `Session.store_from`.
pub(crate) fn store(
    py: Python<'_>,
    session: &Session,
    objects: &[Bound<'_, PyObjectId>],
    buffers: &[Bound<'_, PyAny>],
    options: &[ReserveOptions],
) -> PyResult<Vec<&'static str>> {
    same_length(py, "buffers", buffers.len(), objects.len())?;
    let objects = ids::objects(py, objects)?;
    let pinned = Pinned::sources(buffers)?;
    // SAFETY: used within this call; a change by another thread costs that block its checksum.
    let sources: Vec<&[u8]> = pinned.iter().map(|pinned| unsafe { pinned.as_slice() }).collect();
    let stored = py.detach(|| -> Result<Vec<&'static str>, CallError> {
        let each = objects.iter().zip(&sources).zip(options);
        each.map(|((object, bytes), options)| match session.reserve(object, bytes.len() as u64, *options)? {
            Reserve::Granted(mut reservation) => write_and_commit(&mut reservation, bytes),
            Reserve::Refused(why) => Ok(why.code()),
            other => Ok(other.code()),
        })
        .collect()
    });
    stored.or_raise(py)
}

/// Fills a reservation and publishes it.
pub(crate) fn write_and_commit(
    reservation: &mut maru::Reservation<'_>,
    bytes: &[u8],
) -> Result<&'static str, CallError> {
    match reservation.write_at(0, bytes) {
        Ok(()) => Ok(reservation.commit()?.code()),
        Err(WriteError::Call(error)) => Err(error),
        Err(error) => Ok(write_code(&error)),
    }
}
