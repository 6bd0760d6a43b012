//! What pools say, in words and dictionaries, and the loads and stores of many blocks over pools.

use maru::{
    Batch, BlockId, PoolAnswer, Reason, Replicas, ReserveOptions, Store, StoreError, StoreMiss, StoreNamespace,
    StoreOptions, StoreReserve, Verify,
};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::batch;
use crate::errors::{OrRaise, argument, call_code, load_code};
use crate::ids::PyObjectId;

/// Blocks protected at a time by a load of many.
const LOAD_WINDOW: usize = 16;

/// What a load or a store answers when no pool could be asked.
pub(crate) const NO_POOL: &str = "no_pool";

/// The one namespace of all objects of a call, and their blocks. Objects of several namespaces go call by call.
pub(crate) fn blocks(
    py: Python<'_>,
    ids: &[Bound<'_, PyObjectId>],
) -> PyResult<Option<(StoreNamespace, Vec<BlockId>)>> {
    let Some(first) = ids.first() else { return Ok(None) };
    let namespace = first.get().namespace.of_store(py)?;
    for (at, id) in ids.iter().enumerate() {
        if id.get().namespace.of_store(py)?.digest() != namespace.digest() {
            let field = format!("objects[{at}].namespace");
            return Err(argument(py, &field, "another one", "the namespace of objects[0]"));
        }
    }
    Ok(Some((namespace.clone(), ids.iter().map(|id| id.get().block).collect())))
}

pub(crate) fn word(reason: &Reason) -> &'static str {
    match reason {
        Reason::Failed(error) => call_code(error),
        other => other.code(),
    }
}

pub(crate) fn words(answers: &[PoolAnswer]) -> Vec<(String, String)> {
    answers.iter().map(|answer| (answer.pool.to_string(), word(&answer.reason).to_owned())).collect()
}

/// The word for a refused store: the first pool's that says something about space, size or budget.
pub(crate) fn refusal(answers: &[PoolAnswer]) -> &'static str {
    let said = answers.iter().find(|answer| matches!(answer.reason, Reason::Why(_)));
    let otherwise = || answers.iter().find(|answer| matches!(answer.reason, Reason::Contended | Reason::HasReplica));
    said.or_else(otherwise).map_or(NO_POOL, |answer| answer.reason.code())
}

/// A leading run, which is empty where no pool could be asked.
pub(crate) fn run(py: Python<'_>, answer: Result<usize, StoreError>) -> PyResult<usize> {
    match answer {
        Err(StoreError::NoPool { .. }) => Ok(0),
        answer => answer.or_raise(py),
    }
}

pub(crate) fn load_all(
    store: &Store,
    namespace: &StoreNamespace,
    blocks: &[BlockId],
    targets: &mut [&mut [u8]],
    verify: Verify,
) -> Result<Vec<Option<&'static str>>, StoreError> {
    let mut answers = Vec::with_capacity(blocks.len());
    for (blocks, targets) in blocks.chunks(LOAD_WINDOW).zip(targets.chunks_mut(LOAD_WINDOW)) {
        let leases = match store.acquire(namespace, blocks, Batch::Each) {
            Err(StoreError::NoPool { .. }) => {
                answers.extend(blocks.iter().map(|_| Some(NO_POOL)));
                continue;
            }
            leases => leases?,
        };
        for (lease, target) in leases.into_iter().zip(targets) {
            answers.push(match lease {
                Ok(mut lease) => lease.read_into(target, verify).err().map(|error| load_code(&error)),
                Err(StoreMiss { why, .. }) => Some(why.code()),
            });
        }
    }
    Ok(answers)
}

pub(crate) fn store_one(
    store: &Store,
    namespace: &StoreNamespace,
    block: &BlockId,
    bytes: &[u8],
    reserve: ReserveOptions,
) -> Result<&'static str, StoreError> {
    let options = StoreOptions { reserve, replicas: Replicas::One };
    let reserved = store.reserve(namespace, block, bytes.len() as u64, options)?;
    let code = reserved.code();
    Ok(match reserved {
        StoreReserve::Granted(mut reservation) => {
            batch::write_and_commit(&mut reservation, bytes).unwrap_or_else(|error| call_code(&error))
        }
        StoreReserve::Refused(answers) => refusal(&answers),
        _ => code,
    })
}

pub(crate) fn reason_dict<'py>(py: Python<'py>, reason: &Reason) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("why", word(reason))?;
    Ok(dict)
}

pub(crate) fn medium(medium: maru::Medium) -> &'static str {
    match medium {
        maru::Medium::Cpu => "cpu",
        maru::Medium::Cxl => "cxl",
        maru::Medium::Ssd => "ssd",
    }
}

pub(crate) fn scope(scope: maru::Scope) -> &'static str {
    match scope {
        maru::Scope::Process => "process",
        maru::Scope::Host => "host",
        maru::Scope::Domain => "domain",
    }
}
