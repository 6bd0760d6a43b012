//! KV-cache blocks of LLM engines, shared between processes through memory that describes itself.
//!
//! (front page: see README)

#[cfg(not(maru_loom))]
mod copy;
mod directory;
mod engine;
mod error;
mod lease;
mod load;
mod namespace;
#[cfg(not(maru_loom))]
pub mod os;
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
pub use error::{AttachError, OpenError};
pub use error::{CallError, LoadError, NamespaceError, StillHeld, WriteError};
pub use maru_layout as layout;
pub use maru_layout::geometry::{ClassSpec, KvGeometry};
pub use maru_layout::table::Role;
pub use namespace::Namespace;
#[cfg(not(maru_loom))]
pub use os::{Backing, BackingError, BackingKind, Partition};
#[cfg(not(maru_loom))]
pub use region::{Format, Medium, Mode, OpenOptions, Outcome, Progress, Region, Scope, Stage, Wish};
#[cfg(not(maru_loom))]
pub use session::{Lease, Liveness, ReadError, Reader, Reservation, Reserve, Session, View};
pub use types::{
    Batch, Commit, LeaseHandle, Limits, NamespaceId, ObjectId, Probe, ReclaimReport, Release, ReserveOptions, Retire,
    Token, Usage, Verify, Why, Writer,
};

#[cfg(not(maru_loom))]
pub(crate) use os::identity::wall_ns;
/// A model has no clock.
#[cfg(maru_loom)]
pub(crate) fn wall_ns() -> u64 {
    0
}
