//! The region: who owns the mapping, and how one comes to be.
//!
//! | file | does |
//! | --- | --- |
//! | `options.rs` | what a caller wants |
//! | `open.rs` | attach to what is there, or get it formatted and attach then |
//! | `format.rs` | make a region: files aside and then linked, devices under a claim |
//! | `config.rs` | compare the writer's configuration field by field |
//! | `tables.rs` | the only place where mapped bytes become references |
//! | `usage.rs` | accounts, recounted |
//! | `heap.rs` | the same tables for models |

#[cfg(not(maru_loom))]
mod config;
#[cfg(not(maru_loom))]
mod format;
#[cfg(not(maru_loom))]
mod open;
#[cfg(not(maru_loom))]
mod options;

#[cfg(not(maru_loom))]
mod usage;

#[cfg(maru_loom)]
#[path = "heap.rs"]
mod tables;
#[cfg(not(maru_loom))]
mod tables;

#[cfg(not(maru_loom))]
pub(crate) use open::{Inner, note_replaced};
#[cfg(not(maru_loom))]
pub use open::{Outcome, Region};
#[cfg(not(maru_loom))]
pub use options::{Format, Medium, Mode, OpenOptions, Progress, Scope, Stage, Wish};
#[cfg(maru_loom)]
pub use tables::Size;
pub(crate) use tables::Tables;
#[cfg(not(maru_loom))]
pub(crate) use usage::{namespace_usage, usage};
