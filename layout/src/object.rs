//! Object ids, where the index looks for them, and what their checksums cover.

use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::farewell::{FAREWELL_TAG_BITS, FarewellPlace};
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
    #[inline]
    pub fn home(&self, seed: u64, buckets: u32) -> Home {
        Homes::new(&self.namespace, seed, buckets).home(&self.prefix, self.shard, self.part)
    }

    /// Where the farewell of this key is said, in a region with this seed and a table of so many words: by bits of the
    /// hash that choose neither buckets nor tag.
    #[must_use]
    pub fn farewell(&self, seed: u64, words: u32) -> FarewellPlace {
        self.place_and_farewell(seed, 1, words).1
    }

    /// [`Self::place`] and [`Self::farewell`] at once: the key is hashed once.
    #[must_use]
    pub fn place_and_farewell(&self, seed: u64, buckets: u32, words: u32) -> (Place, FarewellPlace) {
        let (low, high) = Homes::new(&self.namespace, seed, buckets).hash(&self.prefix, self.shard, self.part);
        let Home { first, tag } = Home::of(low, high, buckets);
        let place = Place { first, second: other_bucket(first, tag, seed, buckets), tag };
        let bits = high >> TAG_BITS & ((1 << FAREWELL_TAG_BITS) - 1);
        (place, FarewellPlace { index: scale(high, words), tag: bits as u32 })
    }
}

/// Where the index looks for the keys of one namespace.
///
/// The hash of section 7.1, XXH3-128 of an object id, as it comes out for exactly 52 bytes: a quarter of the work is the
/// same for all keys of a namespace and done once, and nothing is put together in memory only to be read again at other
/// offsets. The tests compare it with the whole algorithm.
#[derive(Debug, Clone, Copy)]
pub struct Homes {
    /// Of prefix bytes 0 to 15 and 4 to 19, then of the last 16 bytes of the id: secret plus and minus the seed.
    keys: [u64; 6],
    /// What the namespace's bytes add to the one half, and change in the other.
    namespace: (u64, u64),
    /// What length and seed add at the end.
    ending: u64,
    buckets: u32,
}

/// Bytes 0 to 63 of XXH3's secret, as little-endian words.
const SECRET: [u64; 8] = [
    0xbe4b_a423_396c_feb8,
    0x1cad_21f7_2c81_017c,
    0xdb97_9083_e96d_d4de,
    0x1f67_b3b7_a4a4_4072,
    0x78e5_c0cc_4ee6_79cb,
    0x2172_ffcc_7dd0_5a82,
    0x8e24_43f7_7446_08b8,
    0x4c26_3a81_e690_35e0,
];
/// XXH64's first, second and fourth prime.
const PRIMES: [u64; 3] = [0x9e37_79b1_85eb_ca87, 0xc2b2_ae3d_27d4_eb4f, 0x85eb_ca77_c2b2_ae63];

impl Homes {
    /// For keys of this namespace, in a region with this seed and this many buckets.
    #[must_use]
    #[inline]
    pub fn new(namespace: &[u8; 16], seed: u64, buckets: u32) -> Self {
        let pair = |at: usize| [SECRET[at].wrapping_add(seed), SECRET[at + 1].wrapping_sub(seed)];
        let ([a, b], [c, d], [e, f]) = (pair(4), pair(6), pair(2));
        let (low, high) = halves(namespace);
        let [g, h] = pair(0);
        Self {
            keys: [a, b, c, d, e, f],
            namespace: (folded(low ^ g, high ^ h), low.wrapping_add(high)),
            ending: (OBJECT_ID_BYTES as u64).wrapping_sub(seed).wrapping_mul(PRIMES[1]),
            buckets,
        }
    }

    /// Where the index looks for this key.
    #[must_use]
    #[inline]
    pub fn home(&self, prefix: &[u8; 32], shard: u16, part: u16) -> Home {
        let (low, high) = self.hash(prefix, shard, part);
        Home::of(low, high, self.buckets)
    }

    /// Both halves of the hash of this key, the low one first.
    #[inline(always)]
    fn hash(&self, prefix: &[u8; 32], shard: u16, part: u16) -> (u64, u64) {
        let (first, second) = prefix.split_at(16);
        let (p0, p1) = halves(first.first_chunk().expect("16 of 32 bytes"));
        let (p2, p3) = halves(second.first_chunk().expect("16 of 32 bytes"));
        let tail = u64::from(shard) | (u64::from(part) << 16);
        // The id's bytes 20 to 35 and 36 to 51: those of the prefix from 4 and from 20, and the tail.
        let (q0, q1) = ((p0 >> 32) | (p1 << 32), (p1 >> 32) | (p2 << 32));
        let (r0, r1) = ((p2 >> 32) | (p3 << 32), (p3 >> 32) | (tail << 32));
        let [a, b, c, d, e, f] = self.keys;
        let mut low = (OBJECT_ID_BYTES as u64).wrapping_mul(PRIMES[0]).wrapping_add(folded(p0 ^ a, p1 ^ b));
        low ^= q0.wrapping_add(q1);
        let mut high = folded(q0 ^ c, q1 ^ d) ^ p0.wrapping_add(p1);
        low = low.wrapping_add(self.namespace.0) ^ r0.wrapping_add(r1);
        high = high.wrapping_add(folded(r0 ^ e, r1 ^ f)) ^ self.namespace.1;
        let place = avalanche(low.wrapping_add(high));
        let rest = low.wrapping_mul(PRIMES[0]).wrapping_add(high.wrapping_mul(PRIMES[2])).wrapping_add(self.ending);
        (place, avalanche(rest).wrapping_neg())
    }
}

/// The two little-endian words of 16 bytes.
#[inline]
fn halves(bytes: &[u8; 16]) -> (u64, u64) {
    let both = u128::from_le_bytes(*bytes);
    (both as u64, (both >> 64) as u64)
}

/// Both halves of a product, one over the other.
#[inline]
fn folded(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

/// Spreads every bit over the word.
#[inline]
fn avalanche(mut x: u64) -> u64 {
    x = (x ^ (x >> 37)).wrapping_mul(0x1656_6791_9e37_79f9);
    x ^ (x >> 32)
}

/// The first bucket of a key, and its tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Home {
    /// Bucket looked at first.
    pub first: u32,
    /// Nine bits of the hash kept in the entry.
    pub tag: u16,
}

impl Home {
    /// By the two halves of the hash.
    #[inline(always)]
    fn of(low: u64, high: u64, buckets: u32) -> Self {
        Self { first: scale(low, buckets), tag: (high & ((1 << TAG_BITS) - 1)) as u16 }
    }
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
#[inline]
fn scale(hash: u64, n: u32) -> u32 {
    ((u128::from(hash) * u128::from(n)) >> 64) as u32
}

/// A running payload checksum.
///
/// The CRC covers object id, generation and length before the payload, so that bytes which are right
/// for another object, another life of the slot or another length do not pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PayloadCrc {
    crc: u32,
}

impl PayloadCrc {
    /// Starts a checksum for one replica.
    #[must_use]
    pub fn new(key: &ObjectKey, generation: u64, length: u32) -> Self {
        let mut head = [0; OBJECT_ID_BYTES + 12];
        head[..OBJECT_ID_BYTES].copy_from_slice(&key.to_bytes());
        head[OBJECT_ID_BYTES..OBJECT_ID_BYTES + 8].copy_from_slice(&generation.to_le_bytes());
        head[OBJECT_ID_BYTES + 8..].copy_from_slice(&length.to_le_bytes());
        let mut crc = Self::of_part();
        crc.update(&head);
        crc
    }

    /// Starts the checksum of bytes in the middle of a payload, to be [appended](Self::append) to what lies before them.
    #[must_use]
    pub fn of_part() -> Self {
        Self { crc: 0 }
    }

    /// Takes up a checksum again at the value that [`PayloadCrc::finish`] gave.
    #[must_use]
    pub fn resumed(crc: u32) -> Self {
        Self { crc }
    }

    /// Adds the next payload bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        let mut hasher = crc32fast::Hasher::new_with_initial(self.crc);
        hasher.update(bytes);
        self.crc = hasher.finalize();
    }

    /// Adds the next `bytes` payload bytes, of which `part` is the checksum.
    pub fn append(&mut self, part: Self, bytes: u64) {
        let mut hasher = crc32fast::Hasher::new_with_initial(self.crc);
        hasher.combine(&crc32fast::Hasher::new_with_initial_len(part.crc, bytes));
        self.crc = hasher.finalize();
    }

    /// The low half of [`BodyLine::checksum`].
    #[must_use]
    pub fn finish(self) -> u32 {
        self.crc
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
    use xxhash_rust::xxh3::xxh3_128_with_seed;

    proptest! {
        #[test]
        fn a_home_is_where_the_whole_algorithm_says(
            ns: [u8; 16], prefix: [u8; 32], shard: u16, part: u16, seed: u64, buckets in 1u32..1 << 28,
        ) {
            let key = ObjectKey { namespace: ns, prefix, shard, part };
            let hash = xxh3_128_with_seed(&key.to_bytes(), seed);
            let home = Home { first: scale(hash as u64, buckets), tag: ((hash >> 64) as u64 & 511) as u16 };
            prop_assert_eq!(key.home(seed, buckets), home);
            let high = (hash >> 64) as u64;
            let farewell = FarewellPlace { index: scale(high, buckets), tag: (high >> 9 & 0x3F_FFFF) as u32 };
            prop_assert_eq!(key.farewell(seed, buckets), farewell);
            prop_assert!(farewell.index < buckets);
            prop_assert_eq!(key.place_and_farewell(seed, buckets, buckets), (key.place(seed, buckets), farewell));
        }

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
