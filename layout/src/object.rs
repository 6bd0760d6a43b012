//! Object ids, where the index looks for them, and what their checksums cover.

use xxhash_rust::xxh3::{xxh3_64_with_seed, xxh3_128_with_seed};

use crate::record::{BodyLine, IdentityLine};
use crate::word::TAG_BITS;

/// Bytes of an object id as hashed and checksummed.
pub const OBJECT_ID_BYTES: usize = 52;

/// What is stored under one name, whoever stored it: namespace digest, prefix digest, shard, part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectKey {
    /// Digest of namespace text and generation.
    pub namespace: [u8; 16],
    /// Digest of the token prefix through this block.
    pub prefix: [u8; 32],
    /// Shard (rank).
    pub shard: u16,
    /// Part (layer group).
    pub part: u16,
}

impl ObjectKey {
    /// Canonical bytes: namespace, prefix, shard, part; little endian.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; OBJECT_ID_BYTES] {
        let mut bytes = [0; OBJECT_ID_BYTES];
        bytes[..16].copy_from_slice(&self.namespace);
        bytes[16..48].copy_from_slice(&self.prefix);
        bytes[48..50].copy_from_slice(&self.shard.to_le_bytes());
        bytes[50..52].copy_from_slice(&self.part.to_le_bytes());
        bytes
    }

    /// The identity that a record claims.
    #[must_use]
    pub fn of_record(line: &IdentityLine) -> Self {
        Self { namespace: line.namespace, prefix: line.prefix, shard: line.shard, part: line.part }
    }

    /// Where the index looks, in a region with this seed and this many buckets.
    #[must_use]
    pub fn place(&self, seed: u64, buckets: u32) -> Place {
        let Home { first, tag } = self.home(seed, buckets);
        Place { first, second: other_bucket(first, tag, seed, buckets), tag }
    }

    /// The first of those places: all that a lookup needs as long as the bucket's mark is zero.
    #[must_use]
    pub fn home(&self, seed: u64, buckets: u32) -> Home {
        let hash = xxh3_128_with_seed(&self.to_bytes(), seed);
        let tag = ((hash >> 64) as u64 & ((1 << TAG_BITS) - 1)) as u16;
        Home { first: scale(hash as u64, buckets), tag }
    }
}

/// The first bucket of a key, and its tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Home {
    /// Bucket looked at first.
    pub first: u32,
    /// Nine bits of the hash kept in the entry.
    pub tag: u16,
}

/// The two buckets of a key, and its tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Bucket looked at first.
    pub first: u32,
    /// Bucket used when the first is full.
    pub second: u32,
    /// Nine bits of the hash kept in the entry.
    pub tag: u16,
}

impl Place {
    /// Where lookups begin.
    #[must_use]
    pub fn home(&self) -> Home {
        Home { first: self.first, tag: self.tag }
    }
}

/// The other bucket of an entry with this tag. Its own inverse, so that whoever removes an entry from a
/// second bucket finds the first one (whose mark counts it) without knowing the key.
#[must_use]
pub fn other_bucket(bucket: u32, tag: u16, seed: u64, buckets: u32) -> u32 {
    // (offset - bucket) modulo the number of buckets, both below it.
    let offset = scale(xxh3_64_with_seed(&tag.to_le_bytes(), seed), buckets);
    let bucket = if bucket < buckets { bucket } else { bucket % buckets };
    if offset >= bucket { offset - bucket } else { offset + (buckets - bucket) }
}

/// Maps a uniform 64-bit number to `0..n` by multiplication.
fn scale(hash: u64, n: u32) -> u32 {
    ((u128::from(hash) * u128::from(n)) >> 64) as u32
}

/// A running payload checksum.
///
/// The CRC covers object id, generation and length before the payload, so that bytes which are right
/// for another object, another life of the slot or another length do not pass.
#[derive(Debug, Clone)]
pub struct PayloadCrc {
    hasher: crc32fast::Hasher,
}

impl PayloadCrc {
    /// Starts a checksum for one replica.
    #[must_use]
    pub fn new(key: &ObjectKey, generation: u64, length: u32) -> Self {
        let mut hasher = crc32fast::Hasher::new();
        let mut head = [0; OBJECT_ID_BYTES + 12];
        head[..OBJECT_ID_BYTES].copy_from_slice(&key.to_bytes());
        head[OBJECT_ID_BYTES..OBJECT_ID_BYTES + 8].copy_from_slice(&generation.to_le_bytes());
        head[OBJECT_ID_BYTES + 8..].copy_from_slice(&length.to_le_bytes());
        hasher.update(&head);
        Self { hasher }
    }

    /// Adds the next payload bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        self.hasher.update(bytes);
    }

    /// The low half of [`BodyLine::checksum`].
    #[must_use]
    pub fn finish(self) -> u32 {
        self.hasher.finalize()
    }
}

/// The value of [`BodyLine::checksum`] for this record: `payload_crc` below, and above it the CRC-32 of
/// identity line (without word), body line (without checksum) and `payload_crc`.
#[must_use]
pub fn seal(identity: &IdentityLine, body: &BodyLine, payload_crc: u32) -> u64 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&bytemuck::bytes_of(identity)[8..]);
    hasher.update(&bytemuck::bytes_of(body)[..8]);
    hasher.update(&bytemuck::bytes_of(body)[16..]);
    hasher.update(&payload_crc.to_le_bytes());
    (u64::from(hasher.finalize()) << 32) | u64::from(payload_crc)
}

/// Whether a record's own half of its checksum is right.
#[must_use]
pub fn record_is_sealed(identity: &IdentityLine, body: &BodyLine) -> bool {
    seal(identity, body, body.checksum as u32) == body.checksum
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_other_bucket_of_the_other_bucket_is_the_first(bucket in 0u32..5000, tag in 0u16..512, seed: u64) {
            let there = other_bucket(bucket, tag, seed, 5000);
            prop_assert!(there < 5000);
            prop_assert_eq!(other_bucket(there, tag, seed, 5000), bucket);
        }

        #[test]
        fn places_stay_inside(ns: [u8; 16], prefix: [u8; 32], seed: u64, buckets in 1u32..1000) {
            let place = ObjectKey { namespace: ns, prefix, shard: 0, part: 0 }.place(seed, buckets);
            prop_assert!(place.first < buckets && place.second < buckets && place.tag < 512);
        }
    }
}
