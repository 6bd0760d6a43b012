//! KV-cache blocks of LLM engines, shared between processes through memory that describes itself.
//!
//! A [`Region`] is one mapped byte range: a file in `/dev/shm`, a memfd, a CXL device. Any number of processes open
//! it; the first one formats it, the others find it. A [`Session`] is one participant. It stores blocks
//! ([`Session::reserve`], [`Reservation::write_at`], [`Reservation::commit`]) and finds and reads those of others
//! ([`Session::probe_prefix`], [`Session::acquire`], [`Lease::read_into`]). There is no server: everything that the
//! participants need to agree on is atomics in the range, laid out as `layout/FORMAT.md` says.
//!
//! The README has a complete first example, what is guaranteed, and the architecture.
//!
//! # Words
//!
//! | word | meaning |
//! | --- | --- |
//! | region | one mapped byte range that describes itself |
//! | slot | fixed-size payload place; a region may have several classes of sizes |
//! | object | namespace digest, prefix digest, shard, part; who stored it is never part of it |
//! | namespace | all that makes two blocks of equal tokens interchangeable |
//! | replica | one physical copy: slot and generation |
//! | session | one participant: index, epoch, life lock |
//! | lease | a reader's protection of one replica |
#![warn(missing_docs)]
// Under the model there is no façade, and some of what it calls has no other caller.
#![cfg_attr(maru_loom, allow(dead_code))]

#[cfg(not(maru_loom))]
mod admission;
/// The protocol of attaching needs neither kernel nor files.
#[cfg(maru_loom)]
#[path = "session/attach.rs"]
mod attach;
mod budget;
#[cfg(not(maru_loom))]
mod copy;
mod directory;
mod engine;
mod error;
mod evict;
#[cfg(not(maru_loom))]
mod grants;
mod leader;
mod lease;
mod load;
#[cfg(maru_loom)]
#[doc(hidden)]
pub mod model;
mod namespace;
#[cfg(not(maru_loom))]
pub mod os;
#[cfg(not(maru_loom))]
mod parts;
#[cfg(not(maru_loom))]
mod pools;
#[cfg(not(maru_loom))]
mod recorder;
mod recover;
mod regime;
mod region;
mod retire;
#[cfg(not(maru_loom))]
mod session;
mod slot;
pub mod step;
mod store;
pub mod sync;
#[cfg(all(test, not(maru_loom)))]
mod tests;
mod types;
mod view;
#[cfg(not(maru_loom))]
mod vouch;

#[cfg(not(maru_loom))]
pub use admission::{Admission, AdmissionError, Admitter};
#[cfg(not(maru_loom))]
pub use error::{AttachError, OpenError};
pub use error::{CallError, LoadError, NamespaceError, StillHeld, VouchError, WriteError};
#[cfg(not(maru_loom))]
pub use grants::{Grant, GrantError, GrantUsage, HostGrants, MAX_GRANT_UNITS};
pub use load::ReadFor;
pub use maru_layout as layout;
pub use maru_layout::geometry::{ClassSpec, KvGeometry};
pub use maru_layout::table::Role;
pub use namespace::Namespace;
#[cfg(not(maru_loom))]
pub use os::{Backing, BackingError, BackingKind, Partition};
#[cfg(not(maru_loom))]
pub use parts::{Parts, PartsError};
#[cfg(not(maru_loom))]
pub use pools::{
    BlockId, BuildError, Ineligible, Pool, PoolAnswer, PoolError, PoolHealth, PoolState, PoolUsage, Reason, Replicas,
    Store, StoreBuilder, StoreError, StoreInvalidation, StoreLease, StoreMiss, StoreNamespace, StoreOptions,
    StoreProbe, StoreReservation, StoreReserve,
};
#[cfg(not(maru_loom))]
pub use region::{Format, Medium, Mode, OpenOptions, Outcome, Progress, Region, Scope, Stage, Wish};
#[cfg(not(maru_loom))]
pub use session::{
    AnnounceError, Evict, Lease, Liveness, Pin, ReadError, Reader, Reservation, Reserve, Session, SessionInfo,
    SessionOptions, View, coordinator_socket, host_tag,
};
pub use types::{
    Batch, Budget, Commit, HostName, HostRecovery, Lead, LeaseHandle, Limits, NamespaceId, NamespaceUsage,
    NotAHostName, ObjectId, Probe, ReclaimReport, Release, ReserveOptions, Retire, Token, Usage, Verify, Why, Writer,
};

#[cfg(not(maru_loom))]
pub(crate) use os::identity::wall_ns;
/// A model has no clock.
#[cfg(maru_loom)]
pub(crate) fn wall_ns() -> u64 {
    0
}

/// The README's example, compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct Readme;
