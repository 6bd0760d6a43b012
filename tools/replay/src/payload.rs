//! From a block's id to its digest and its bytes, so that every answer can be checked.
//!
//! * D1: the digest is SHA-256 of a label and the id: all 32 bytes carry it, as in an engine that hashes prefixes.
//! * D2: the bytes follow from the digest alone. Word `i` (8 bytes, little endian) is `a ^ (a >> 29)` with
//!   `a = base + i * STEP` and `base` the xxh3 of the digest. Bytes of another block, or of another place in the same
//!   block, differ in nearly every byte.
//! * D3: there is nothing to look up: making and comparing words is additions, shifts and xors that a compiler turns
//!   into vector code, so that checking runs at memory speed and does not hide what is measured.

use sha2::{Digest, Sha256};
use xxhash_rust::xxh3::xxh3_64;

const LABEL: &[u8] = b"maru-replay block 1";
/// Odd, with bits in all bytes.
const STEP: u64 = 0x9E37_79B9_7F4A_7C15;

/// The digest under which a block of this id is stored (D1).
pub(crate) fn digest_of(id: u64) -> [u8; 32] {
    Sha256::new().chain_update(LABEL).chain_update(id.to_le_bytes()).finalize().into()
}

/// The bytes of one block (D2).
#[derive(Debug, Clone, Copy)]
pub(crate) struct Payload {
    base: u64,
}

impl Payload {
    /// Of the block with this digest.
    pub(crate) fn of(digest: &[u8; 32]) -> Self {
        Self { base: xxh3_64(digest) }
    }

    #[inline]
    fn word(self, index: u64) -> u64 {
        let a = self.base.wrapping_add(index.wrapping_mul(STEP));
        a ^ (a >> 29)
    }

    /// Writes the bytes.
    pub(crate) fn fill(self, buffer: &mut [u8]) {
        let (words, rest) = buffer.as_chunks_mut::<8>();
        for (index, word) in words.iter_mut().enumerate() {
            *word = self.word(index as u64).to_le_bytes();
        }
        let last = self.word(words.len() as u64).to_le_bytes();
        rest.copy_from_slice(&last[..rest.len()]);
    }

    /// How many bytes are not what they must be.
    pub(crate) fn wrong_bytes(self, buffer: &[u8]) -> u64 {
        let (words, rest) = buffer.as_chunks::<8>();
        let mut difference = 0;
        for (index, word) in words.iter().enumerate() {
            difference |= u64::from_le_bytes(*word) ^ self.word(index as u64);
        }
        let last = self.word(words.len() as u64).to_le_bytes();
        if difference == 0 && *rest == last[..rest.len()] {
            return 0;
        }
        self.count_wrong(buffer)
    }

    #[cold]
    fn count_wrong(self, buffer: &[u8]) -> u64 {
        let mut right = vec![0; buffer.len()];
        self.fill(&mut right);
        buffer.iter().zip(&right).filter(|(found, wanted)| found != wanted).count() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_have_their_own_digests_and_bytes() {
        assert_ne!(digest_of(1), digest_of(2));
        let (mut one, mut two) = ([0; 4096], [0; 4096]);
        Payload::of(&digest_of(1)).fill(&mut one);
        Payload::of(&digest_of(2)).fill(&mut two);
        // Chance alone makes one byte in 256 equal.
        let equal = one.iter().zip(&two).filter(|(a, b)| a == b).count();
        assert!(equal < 64, "{equal} of 4096 bytes are equal");
        let moved = one.iter().zip(&one[8..]).filter(|(a, b)| a == b).count();
        assert!(moved < 400, "{moved} bytes survive a shift by a word");
    }

    #[test]
    fn each_wrong_byte_is_counted_wherever_it_is() {
        let payload = Payload::of(&digest_of(7));
        for length in [0, 1, 7, 8, 9, 63, 64, 4096, 4099] {
            let mut buffer = vec![0; length];
            payload.fill(&mut buffer);
            assert_eq!(payload.wrong_bytes(&buffer), 0);
            for at in [0, length / 2, length.saturating_sub(1)] {
                if let Some(byte) = buffer.get_mut(at) {
                    *byte ^= 0x40;
                    assert_eq!(payload.wrong_bytes(&buffer), 1, "byte {at} of {length}");
                    buffer[at] ^= 0x40;
                }
            }
        }
        assert!(payload.wrong_bytes(&[0; 4096]) > 4000);
        assert!(
            Payload::of(&digest_of(8)).wrong_bytes(&{
                let mut buffer = [0; 64];
                payload.fill(&mut buffer);
                buffer
            }) > 50
        );
    }

    #[test]
    fn the_derivation_is_pinned() {
        // A kept region is read by later builds, so these must not move.
        assert_eq!(digest_of(0)[..4], PINNED_DIGEST);
        let mut buffer = [0; 16];
        Payload::of(&[0; 32]).fill(&mut buffer);
        assert_eq!(buffer, PINNED_BYTES);
    }

    const PINNED_DIGEST: [u8; 4] = [226, 192, 53, 11];
    const PINNED_BYTES: [u8; 16] = [121, 241, 200, 146, 25, 39, 87, 160, 2, 67, 201, 251, 215, 160, 142, 62];
}
