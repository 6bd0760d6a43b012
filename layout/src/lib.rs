//! The bytes of a Maru region.
//!
//! Everything a region contains is described here once, as plain `repr(C)` records and packed-word
//! newtypes, and told to people in `FORMAT.md` next to this file (a test ties the two together).
//! There are no atomics, no `unsafe` and no I/O in this crate: the library overlays atomic views
//! on the same offsets (`maru`'s `region/` module asserts that they agree), while `maru-inspect`,
//! the fuzzers and the golden-image tests read plain copies.
//!
//! | file | holds |
//! | --- | --- |
//! | [`superblock`] | the 4 KiB that describe the rest, and how to distrust them |
//! | [`geometry`] | from a wish ("1 GiB of 448 KiB slots") to offsets, and from a superblock to trusted offsets |
//! | [`word`] | the packed words: slot, session, format, lease cell, index entry |
//! | [`farewell`] | the packed word of a block that is gone |
//! | [`record`] | a slot's identity line and body line |
//! | [`table`] | control page, session entries and areas, namespace rows, pool entry, bucket |
//! | [`object`] | object ids, key hashes, checksums |
//! | [`image`] | a region as plain bytes: bounded reading, damage by name |
#![forbid(unsafe_code)]

pub mod farewell;
pub mod geometry;
pub mod image;
pub mod object;
pub mod record;
pub mod superblock;
pub mod table;
pub mod word;

/// First eight bytes of a region. The line end and the high bit catch text-mode and 7-bit transfers.
pub const MAGIC: [u8; 8] = *b"\x89MARU\r\n\x1a";
/// The format this crate writes. A number of its own, never the package's version.
pub const FORMAT_VERSION: u32 = 1;
/// The oldest format that this crate can open, read-only.
pub const OLDEST_READABLE_VERSION: u32 = 1;
/// What [`superblock::Superblock::byte_order`] reads as on a host of the region's byte order.
pub const BYTE_ORDER_MARK: u32 = 0x0A0B_0C0D;

/// The unit of superblock, control page and session areas.
pub const PAGE_BYTES: u64 = 4096;
/// The unit of coherence that records are built from.
pub const LINE_BYTES: u64 = 64;
/// Bytes of a slot record: identity line and body line.
pub const RECORD_BYTES: u64 = 128;
/// Bytes of an index bucket: seven entries and a mark word.
pub const BUCKET_BYTES: u64 = 64;
/// Entries of an index bucket.
pub const BUCKET_WAYS: usize = 7;
/// Mean number of entries that the index is sized for, per bucket.
pub const BUCKET_MEAN: u64 = 2;

/// Most slots of a region: a slot index has 28 bits and all ones is never used.
pub const MAX_SLOTS: u64 = (1 << 28) - 1;
/// Most sessions of a region: an owner field has 12 bits and zero means nobody.
pub const MAX_SESSIONS: u32 = 4095;
/// Slot sizes are multiples of this.
pub const SLOT_GRANULE_BYTES: u64 = 64;
/// Most slot classes of a region.
pub const MAX_CLASSES: usize = 8;
/// Most shards of a region in this format.
pub const MAX_SHARDS: usize = 16;
/// Room for sections in the superblock.
pub const MAX_SECTIONS: usize = 24;
/// Room for the writer's configuration in the superblock, bytes of JSON.
pub const MAX_CONFIG_BYTES: usize = 1984;

/// Lock byte, relative to the partition's offset, that a formatter of a device holds. Session
/// entries use the bytes below it.
pub const FORMATTER_LOCK_BYTE: u64 = MAX_SESSIONS as u64;

/// Bytes of the fixed head of a session area; lease cells follow it.
pub const SESSION_AREA_HEAD_BYTES: u64 = 2048;
/// Smallest session area.
pub const MIN_SESSION_AREA_BYTES: u64 = 4096;

/// Default, smallest and largest copy lease, milliseconds.
pub const COPY_LEASE_MS: Limits = Limits { default: 10_000, min: 10, max: 3_600_000 };
/// Default, smallest and largest time after which a motionless `Writing` may be quarantined, milliseconds.
pub const STALLED_WRITER_MS: Limits = Limits { default: 2_000, min: 10, max: 3_600_000 };
/// Default, smallest and largest wait for another process's formatting, milliseconds.
pub const ATTACH_WAIT_MS: Limits = Limits { default: 5_000, min: 0, max: 3_600_000 };

/// A bounded setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Used when nothing is said.
    pub default: u32,
    /// Smallest accepted value.
    pub min: u32,
    /// Largest accepted value.
    pub max: u32,
}

impl Limits {
    /// Whether `value` is accepted.
    #[must_use]
    pub const fn contains(&self, value: u32) -> bool {
        self.min <= value && value <= self.max
    }
}

/// Rounds `value` up to a multiple of `multiple` (a power of two or any positive number); `None` on overflow.
#[must_use]
pub const fn round_up(value: u64, multiple: u64) -> Option<u64> {
    value.checked_next_multiple_of(multiple)
}
