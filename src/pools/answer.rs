//! What pools say, with their names: a refused store and a miss are one answer per pool.

use core::fmt;
use std::sync::Arc;

use super::Ineligible;
use crate::{CallError, Why};

/// Why one pool did not do what was asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// An answer of the pool's session: no space, absent, …
    Why(Why),
    /// Others want the same object, in this pool.
    Contended,
    /// The object is in this pool already (or is being written there), and another replica was asked for.
    HasReplica,
    /// This process may not use the pool, so it was not asked.
    Ineligible(Ineligible),
    /// The namespace could not be registered in this pool; [`super::StoreNamespace::left_out`] says why.
    NoNamespace,
    /// The pool could not be asked.
    Failed(CallError),
}

impl Reason {
    /// A short word for JSON and metrics.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Why(why) => why.code(),
            Self::Contended => "contended",
            Self::HasReplica => "has_replica",
            Self::Ineligible(Ineligible::PrivateToAnotherProcess) => "private",
            Self::Ineligible(Ineligible::OtherHost) => "other_host",
            Self::NoNamespace => "no_namespace",
            Self::Failed(_) => "failed",
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Why(why) => why.fmt(f),
            Self::Contended => f.write_str("others want the same object"),
            Self::HasReplica => f.write_str("has a replica already"),
            Self::Ineligible(ineligible) => ineligible.fmt(f),
            Self::NoNamespace => f.write_str("the namespace is not registered there"),
            Self::Failed(error) => error.fmt(f),
        }
    }
}

/// What one pool said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolAnswer {
    /// Name of the pool.
    pub pool: Arc<str>,
    /// What it said.
    pub reason: Reason,
}

impl fmt::Display for PoolAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.pool, self.reason)
    }
}

/// A block that no pool granted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreMiss {
    /// The most telling reason: the first that is not "absent"; [`Why::PartnerMissing`] where others of a batch were.
    pub why: Why,
    /// Each pool's, in the read order. Empty for [`Why::PartnerMissing`].
    pub pools: Vec<PoolAnswer>,
}

impl StoreMiss {
    pub(super) fn of(pools: Vec<PoolAnswer>) -> Self {
        let telling = |answer: &PoolAnswer| match answer.reason {
            Reason::Why(Why::Absent) => None,
            Reason::Why(why) => Some(why),
            _ => None,
        };
        Self { why: pools.iter().find_map(telling).unwrap_or(Why::Absent), pools }
    }

    pub(crate) fn partner() -> Self {
        Self { why: Why::PartnerMissing, pools: Vec::new() }
    }
}

/// Why a call on a store could not be tried in any pool.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The store belongs to the process that this one was forked from.
    #[error("store of another process: sessions do not survive a fork, open the pools again")]
    ForeignProcess,
    /// The namespace was made by another store.
    #[error("namespace of another store; register it in this one")]
    ForeignNamespace,
    /// No pool of the order could be asked. Not a miss: nothing is known.
    #[error("no pool of the {order} order can be used: {}", list(pools))]
    NoPool {
        /// Which order, "read" or "write".
        order: &'static str,
        /// Each pool and what is wrong with it.
        pools: Vec<PoolAnswer>,
    },
    /// The namespace could not be registered in any pool.
    #[error("the namespace could not be registered in any pool; in {pool}: {source}")]
    Namespace {
        /// The first pool that refused it; "(none)" where no pool can be used.
        pool: String,
        /// Why.
        source: crate::NamespaceError,
    },
}

fn list(pools: &[PoolAnswer]) -> String {
    pools.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}
