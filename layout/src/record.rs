//! A slot's record: two lines that say what the slot holds.
//!
//! The *identity line* holds the slot word and the object's identity; the *body line* holds what
//! belongs to this one replica. The body counts only if its generation equals the word's: a body
//! that a dead or slow writer left behind speaks of another replica.

use bytemuck::{Pod, Zeroable};

/// First line of a record. Written by the slot's owner while `Claiming`; the word by compare-and-swap.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(C, align(64))]
pub struct IdentityLine {
    /// [`crate::word::SlotWord`].
    pub word: u64,
    /// Digest of the token prefix through this block; compared in full.
    pub prefix: [u8; 32],
    /// Digest of namespace text and namespace generation.
    pub namespace: [u8; 16],
    /// Shard (rank) of the object.
    pub shard: u16,
    /// Part (layer group) of the object.
    pub part: u16,
    /// Payload bytes.
    pub length: u32,
}

/// Second line of a record. Written by the slot's owner up to `commit`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(C, align(64))]
pub struct BodyLine {
    /// Full generation this body belongs to.
    pub generation: u64,
    /// Low half: CRC-32 of object id, generation, length and payload. High half: CRC-32 of this record.
    pub checksum: u64,
    /// Wall-clock time of the commit, nanoseconds since 1970. For people; nothing is decided by it.
    pub committed_ns: u64,
    /// First eight bytes of the parent block's prefix digest, little endian; 0 = none.
    pub parent_hint: u64,
    /// Low half of the storing session's random id.
    pub storer_id: u64,
    /// Index of the budget token spent on this slot, plus one; 0 = no budget.
    pub budget_token: u32,
    /// Depth of the block in its prefix chain, in blocks.
    pub depth: u32,
    /// Row of the namespace table.
    pub namespace_row: u32,
    /// Epoch of the storing session.
    pub storer_epoch: u32,
    /// Index of the storing session.
    pub storer_index: u16,
    /// 0 = CPU, 1 = device.
    pub writer_kind: u8,
    /// Zero.
    pub reserved: [u8; 5],
}

/// A whole record, as readers of images see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct SlotRecord {
    /// First line.
    pub identity: IdentityLine,
    /// Second line.
    pub body: BodyLine,
}

const _: () = {
    assert!(size_of::<IdentityLine>() == 64);
    assert!(size_of::<BodyLine>() == 64);
    assert!(size_of::<SlotRecord>() == crate::RECORD_BYTES as usize);
};
