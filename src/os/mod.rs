//! What Maru asks of the operating system, and nothing about the format.
//!
//! The rest of the crate sees bytes; this folder decides where they come from, who still lives,
//! and what happens when the ground moves. From the outside in:
//!
//! | file | answers |
//! | --- | --- |
//! | [`error`] | one error type, each variant with what was found and what was wanted |
//! | [`backing`] | which file or device is it, how large, how aligned, shared between hosts or not |
//! | [`space`] | is there room, *before* anything is touched |
//! | [`fill`] | real pages ahead of the first touch, huge ones where the kernel has them |
//! | [`create`] | files are built under no name, then linked whole or not at all |
//! | [`map`] | the mapping: never inherited over fork, huge where it can be, filled ahead of time |
//! | [`fork`] | am I still the process that made this handle; nobody forks while a lock file is open |
//! | [`lock`] | a byte lock that lives exactly as long as its process: the proof of death |
//! | [`fault`] | opt-in: a file that lost its pages costs the pool, not the process |
//! | [`identity`] | host, boot, process; random bytes; the clocks |
//!
//! Invariants that hold for the whole folder:
//!
//! * O1: nothing that was found on disk, in `/proc`, in `/sys` or in the environment makes a call
//!   panic or hang; it becomes a [`BackingError`].
//! * O2: descriptors are opened with `O_CLOEXEC`; descriptors that carry a lock are open only while
//!   forking is held off, or are closed in the child before it runs.
//! * O3: shared mappings carry `MADV_DONTFORK`, so no address of theirs means anything in a child,
//!   and no destructor here touches such an address in a child.
//! * O4: only this folder calls the kernel.

pub mod backing;
pub mod create;
pub mod error;
pub mod fault;
pub mod fill;
pub mod fork;
pub mod identity;
pub mod lock;
pub mod map;
pub mod space;

#[cfg(test)]
mod tests;

pub use backing::{Backing, BackingFile, BackingKind, Partition};
pub use error::BackingError;

/// Two mebibytes: the huge page of x86-64 and of 4 KiB-page arm64, and the step in which pages
/// are reserved, collapsed and filled.
pub const HUGE_PAGE_BYTES: u64 = 2 << 20;

/// Size of an ordinary page of this host, in bytes.
#[must_use]
pub fn page_bytes() -> u64 {
    match nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE) {
        Ok(Some(bytes)) if bytes > 0 => bytes as u64,
        _ => 4096,
    }
}
