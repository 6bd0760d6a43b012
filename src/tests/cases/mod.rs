//! Cases in one process: what goes wrong in caches like this one, tried on the public calls. Each file opens with the
//! kind of fault that it guards against: how it shows (symptom), and where it comes from (cause).
//!
//! | file | guards |
//! | --- | --- |
//! | `keys.rs` | keys that are nearly alike, and keys that want the same place |
//! | `misses.rs` | keys that were never stored |
//! | `namespaces.rs` | blocks of equal tokens that are not the same |
//! | `capacity.rs` | a full region, and stores that are refused |
//! | `batches.rs` | many answers at once, handles that are made up |

mod batches;
mod capacity;
mod keys;
mod misses;
mod namespaces;

use crate::{Batch, Lease, LoadError, ObjectId, Session, Verify, Why};

/// SplitMix64: numbers that can be had again from their seed.
struct Random(u64);

impl Random {
    /// A seed from the clock, or from MARU_SEED to run a failed test again. Printed, so that it is in the failure's output.
    fn new() -> Self {
        let seed = std::env::var("MARU_SEED").ok().and_then(|text| text.parse().ok());
        let seed = seed.unwrap_or_else(crate::wall_ns);
        eprintln!("MARU_SEED={seed}");
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn prefix(&mut self) -> [u8; 32] {
        let mut prefix = [0; 32];
        for eight in prefix.chunks_mut(8) {
            eight.copy_from_slice(&self.next().to_le_bytes());
        }
        prefix
    }
}

fn acquire<'s>(session: &'s Session, object: &ObjectId) -> Result<Lease<'s>, Why> {
    session.acquire(&[*object], Batch::Each).expect("a session in order").pop().expect("one answer")
}

/// The bytes under a key, or why there are none.
fn load(session: &Session, object: &ObjectId) -> Result<Vec<u8>, Why> {
    match acquire(session, object)?.read(Verify::Always) {
        Ok(bytes) => Ok(bytes),
        Err(LoadError::Expired) => Err(Why::Vanished),
        Err(error) => panic!("{error}"),
    }
}
