//! Errors, one family per operation.
//!
//! A miss is not an error, and neither is losing a race: those are outcomes ([`crate::Why`],
//! [`crate::Commit`], …). What stands here means that the call could not be tried, or that the region is not
//! what it was. Every message names the field, the value found and the value wanted.

#[cfg(not(maru_loom))]
use maru_layout::geometry::SpecError;
#[cfg(not(maru_loom))]
use maru_layout::superblock::SuperblockError;
use thiserror::Error;

#[cfg(not(maru_loom))]
use crate::os::BackingError;

/// Why a region could not be opened.
#[cfg(not(maru_loom))]
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The backing itself: path, device, space, alignment.
    #[error(transparent)]
    Backing(#[from] BackingError),
    /// The superblock was not believed.
    #[error("{place}: {source}")]
    Superblock {
        /// Which region.
        place: String,
        /// What was wrong.
        source: SuperblockError,
    },
    /// The wish for a new region cannot be had.
    #[error("cannot format {place}: {source}")]
    Spec {
        /// Which region.
        place: String,
        /// What was wrong.
        source: SpecError,
    },
    /// A read-only open cannot make a region.
    #[error("mode is read-only and format is force or replace; wanted mode full, or format never")]
    ReadOnlyFormat,
    /// A new region's size is not said anywhere.
    #[error("cannot format {place}: size_bytes is missing (wish.size_bytes or partition.length)")]
    SizeMissing {
        /// Which region.
        place: String,
    },
    /// Nothing is formatted here and the options do not allow formatting.
    #[error("{place} is not formatted (format = never)")]
    NotFormatted {
        /// Which region.
        place: String,
    },
    /// Somebody began to format and has not finished.
    #[error("{place}: format incomplete after {waited_ms} ms ({state})")]
    FormatIncomplete {
        /// Which region.
        place: String,
        /// How long this call waited.
        waited_ms: u64,
        /// The format word found.
        state: String,
    },
    /// The region carries no valid magic but is not blank either; formatting it would destroy something.
    #[error("{place} holds something that is not a Maru region; only format = force writes over it ({found})")]
    NotBlank {
        /// Which region.
        place: String,
        /// What was found.
        found: String,
    },
    /// The format asked for needs a replacement, and live participants use the region.
    #[error(
        "{place} is in use by {live} live session(s), the first is {first}; format = replace overrides where the backing is a file"
    )]
    InUse {
        /// Which region.
        place: String,
        /// Live sessions.
        live: u32,
        /// One of them.
        first: String,
    },
    /// The region was written with another configuration.
    #[error("{place}: config.{field}: region {region}, yours {yours}")]
    Config {
        /// Which region.
        place: String,
        /// The first field that differs, as a dotted path.
        field: String,
        /// The region's value.
        region: String,
        /// The caller's value.
        yours: String,
    },
    /// The caller's configuration is not a JSON object.
    #[error("config: {problem}, wanted a JSON object")]
    BadConfig {
        /// What is wrong.
        problem: String,
    },
    /// The regime is known and not built yet.
    #[error(
        "{place}: regime {regime} (hosts: {hosts}) is not supported by this build, which knows: coherent (hosts: one, many)"
    )]
    Regime {
        /// Which region.
        place: String,
        /// Regime found.
        regime: &'static str,
        /// Hosts found.
        hosts: &'static str,
    },
    /// A region for many hosts in something that is not memory.
    #[error(
        "{place}: hosts: many on {backing}, which is not shared memory; wanted device-dax, or a file system that lies in memory"
    )]
    NotShared {
        /// Which region.
        place: String,
        /// Backing kind.
        backing: &'static str,
    },
    /// The partition of a device overlaps another region.
    #[error("{place}: partition {offset}+{length} overlaps the region at {other_offset}+{other_length}")]
    Overlap {
        /// Which device.
        place: String,
        /// Offset asked for.
        offset: u64,
        /// Length asked for.
        length: u64,
        /// Offset of the region there.
        other_offset: u64,
        /// Length of the region there.
        other_length: u64,
    },
    /// The region is not the one named any more.
    #[error("{place} has been replaced by another region")]
    Replaced {
        /// Which region.
        place: String,
    },
}

/// Why a session could not be made.
#[cfg(not(maru_loom))]
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum AttachError {
    /// Every entry belongs to a session that lives, or that cannot be proven dead.
    #[error("participants full ({limit}): {live} live, {unknown} of other hosts or unknown")]
    Full {
        /// Entries.
        limit: u32,
        /// Of which proven alive.
        live: u32,
        /// Of which nothing can be known.
        unknown: u32,
    },
    /// The engine name does not fit.
    #[error("engine name has {bytes} bytes, wanted 1 to 64 of UTF-8 without control characters")]
    EngineName {
        /// Bytes found.
        bytes: usize,
    },
    /// A session option that cannot be.
    #[error("session option {field} is {found}, wanted {wanted}")]
    Options {
        /// Field name.
        field: &'static str,
        /// Value found.
        found: String,
        /// Bound in words.
        wanted: &'static str,
    },
    /// The region was opened read-only.
    #[error("the region is open read-only; sessions need mode full or header-only")]
    ReadOnly,
    /// The call cannot be tried.
    #[error(transparent)]
    Call(#[from] CallError),
    /// The life lock cannot be had.
    #[error("life lock: {0}")]
    Lock(#[from] BackingError),
}

/// Why a call on a session could not be tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum CallError {
    /// The session was fenced: another process declared it out of the region.
    #[error("fenced: session {index} (epoch {epoch}) has been shut out")]
    Fenced {
        /// Session index.
        index: u32,
        /// Its epoch.
        epoch: u32,
    },
    /// The handle belongs to the process that this one was forked from.
    #[error("handle of another process: sessions do not survive a fork, open the region again")]
    ForeignProcess,
    /// Another region has taken this one's place; nothing was written.
    #[error("region replaced: this mapping is of the old one, open it again")]
    Replaced,
    /// The backing changed its size under the mapping.
    #[error("region changed size: mapped {mapped_bytes} bytes, the backing has {now_bytes}")]
    Resized {
        /// Bytes when it was opened.
        mapped_bytes: u64,
        /// Bytes now.
        now_bytes: u64,
    },
    /// The memory is gone (reported by the fault handler).
    #[error("region lost: its memory faulted")]
    Lost,
    /// The payload is not mapped.
    #[error("no payload: the region is open header-only")]
    NoPayload,
    /// An id of another region, or made up.
    #[error("namespace id (row {row}) was not registered in this region ({rows} rows); register it here")]
    ForeignNamespace {
        /// Row in the id.
        row: u32,
        /// Rows of the region.
        rows: u32,
    },
}

/// Why a load returned no bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The call cannot be tried.
    #[error(transparent)]
    Call(#[from] CallError),
    /// The lease lapsed and the slot moved on before the copy was done.
    #[error("expired: the lease lapsed during the copy")]
    Expired,
    /// The namespace was invalidated.
    #[error("invalidated")]
    Invalidated,
    /// The bytes did not match their checksum; the slot has been quarantined.
    #[error("damaged: checksum mismatch in slot {slot}")]
    Damaged {
        /// The slot.
        slot: u32,
    },
    /// The buffer has another length than the block.
    #[error("buffer has {buffer_bytes} bytes, the block {block_bytes}")]
    Length {
        /// Bytes of the buffer.
        buffer_bytes: usize,
        /// Bytes of the block.
        block_bytes: u32,
    },
}

/// Why a piece was not written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum WriteError {
    /// The call cannot be tried.
    #[error(transparent)]
    Call(#[from] CallError),
    /// The piece reaches beyond the reserved length.
    #[error("piece {offset}+{bytes} reaches beyond the {len} reserved bytes")]
    OutOfBounds {
        /// Offset of the piece.
        offset: u32,
        /// Its bytes.
        bytes: usize,
        /// Bytes reserved.
        len: u32,
    },
    /// The slot is not this writer's any more.
    #[error("superseded: the slot was taken away")]
    Superseded,
    /// The reservation has been committed or aborted.
    #[error("the reservation has ended")]
    Ended,
}

/// Why a namespace could not be registered.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum NamespaceError {
    /// The call cannot be tried.
    #[error(transparent)]
    Call(#[from] CallError),
    /// A field that must be said was not.
    #[error("namespace field `{field}` is missing; for example {example}")]
    Missing {
        /// Field name.
        field: &'static str,
        /// How to say it.
        example: &'static str,
    },
    /// A field that cannot be used as it is.
    #[error("namespace field `{field}` is {found:?}, wanted {wanted}")]
    Field {
        /// Field name.
        field: &'static str,
        /// Value found.
        found: String,
        /// Bound in words.
        wanted: &'static str,
    },
    /// The canonical text does not fit a row.
    #[error("namespace text has {bytes} bytes, wanted at most {max_bytes}")]
    TooLong {
        /// Bytes found.
        bytes: usize,
        /// Room in a row.
        max_bytes: usize,
    },
    /// All rows are taken.
    #[error("namespace table full ({rows} rows)")]
    Full {
        /// Rows of the region.
        rows: u32,
    },
    /// It is registered with another budget, or without one.
    #[error("namespace budget is {}, asked for {asked} slots; it is given once, when the namespace is registered",
        found.map_or("none".to_owned(), |slots| format!("{slots} slots")))]
    Budget {
        /// Slots asked for.
        asked: u32,
        /// Slots of the registered budget; `None`: it has none.
        found: Option<u64>,
    },
    /// The budgets of a region cannot be more than its tokens.
    #[error(
        "budget of {asked} slots asked for, {left} of the region's {tokens} tokens are left; format with more tokens"
    )]
    Tokens {
        /// Slots asked for.
        asked: u32,
        /// Tokens not dealt out.
        left: u32,
        /// Tokens of the region.
        tokens: u32,
    },
    /// Another session is registering one and does not move.
    #[error("namespace table busy: session {index} has been registering one for {waited_ms} ms")]
    Busy {
        /// That session.
        index: u32,
        /// How long this call waited.
        waited_ms: u64,
    },
}

/// What a session still holds, so that it could not be closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("session {index} still holds {leases} lease(s) and {reservations} reservation(s)")]
pub struct StillHeld {
    /// Session index.
    pub index: u32,
    /// Leases not released.
    pub leases: u32,
    /// Reservations neither committed nor aborted.
    pub reservations: u32,
}

/// Why nothing was recovered on somebody's word.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum VouchError {
    /// The call cannot be tried.
    #[error(transparent)]
    Call(#[from] CallError),
    /// The region was opened read-only.
    #[error("the region is open read-only; recovering stores to it")]
    ReadOnly,
    /// The backing could not be opened for asking its locks.
    #[error("life locks: {0}")]
    Locks(String),
    /// The host named is the one that this call runs on.
    #[error("host {host} is this one, and its kernel knows who lives; vouch for a session instead")]
    ThisHost {
        /// The name.
        host: crate::HostName,
    },
}
