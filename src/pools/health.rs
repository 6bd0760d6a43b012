//! What became of each pool. Errors that end a session's use of its region are remembered, and the pool is not asked again;
//! others are shown and the pool is asked the next time.

use std::sync::{Mutex, PoisonError};

use super::{Ineligible, Member, Pool, PoolAnswer, Reason};
use crate::sync::process;
use crate::{CallError, Medium, Scope};

/// Whether a pool takes part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PoolState {
    /// It is asked.
    InUse,
    /// This process may not use it.
    Ineligible(Ineligible),
    /// Its session or region has come to an end for this process; open the pool again in a new store.
    Out(CallError),
}

/// A pool as [`super::Store::health`] shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolHealth {
    /// Its name.
    pub name: String,
    /// Its medium.
    pub medium: Medium,
    /// Who can reach it.
    pub scope: Scope,
    /// Id of its region.
    pub region_id: [u8; 16],
    /// Whether it takes part.
    pub state: PoolState,
    /// Calls that it could not answer, so far.
    pub errors: u64,
    /// The last of their errors.
    pub last_error: Option<CallError>,
}

/// What a store remembers of a pool. Only used in the process that made the store: a lock taken by another thread at the
/// moment of a fork is not met in the child.
#[derive(Debug, Default)]
pub(super) struct Memory {
    out: process::AtomicBool,
    errors: process::AtomicU64,
    last: Mutex<Option<CallError>>,
}

impl Memory {
    /// Remembers an error, and whether the pool is out by it.
    pub(super) fn note(&self, error: CallError) {
        self.errors.fetch_add(1, process::Ordering::Relaxed);
        let ends = matches!(
            error,
            CallError::Fenced { .. } | CallError::Replaced | CallError::Resized { .. } | CallError::Lost
        );
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        // Once out, the error that ended it is the one to show.
        if !self.out.load(process::Ordering::Relaxed) {
            *last = Some(error);
        }
        if ends {
            self.out.store(true, process::Ordering::Relaxed);
        }
    }

    fn last(&self) -> Option<CallError> {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Member {
    pub(super) fn new(pool: Pool) -> Self {
        Self { pool, health: Memory::default() }
    }

    /// Why this pool is not asked at all; `None` when it is.
    pub(super) fn shut(&self) -> Option<Reason> {
        if let Some(ineligible) = self.pool.ineligible() {
            return Some(Reason::Ineligible(ineligible));
        }
        if self.health.out.load(process::Ordering::Relaxed) {
            return self.health.last().map(Reason::Failed);
        }
        None
    }

    /// Calls the pool unless it is shut, and remembers its errors.
    pub(super) fn ask<'s, T>(&'s self, call: impl FnOnce(&'s Pool) -> Result<T, CallError>) -> Result<T, Reason> {
        if let Some(shut) = self.shut() {
            return Err(shut);
        }
        call(&self.pool).map_err(|error| {
            self.health.note(error);
            Reason::Failed(error)
        })
    }

    /// This pool's name beside its answer.
    pub(super) fn says(&self, reason: Reason) -> PoolAnswer {
        PoolAnswer { pool: self.pool.shared_name(), reason }
    }

    /// `foreign`: asked in a forked child, where the memory of the parent may be locked.
    pub(super) fn health(&self, foreign: bool) -> PoolHealth {
        let last_error = if foreign { Some(CallError::ForeignProcess) } else { self.health.last() };
        let state = match (self.pool.ineligible(), last_error) {
            (Some(ineligible), _) => PoolState::Ineligible(ineligible),
            (None, Some(error)) if foreign || self.health.out.load(process::Ordering::Relaxed) => PoolState::Out(error),
            (None, _) => PoolState::InUse,
        };
        PoolHealth {
            name: self.pool.name().to_owned(),
            medium: self.pool.medium(),
            scope: self.pool.scope(),
            region_id: self.pool.region().id(),
            state,
            errors: self.health.errors.load(process::Ordering::Relaxed),
            last_error,
        }
    }
}
