//! Tests of the library through its public calls, several sessions in one process. What needs several processes
//! is in `tools/shell/tests`; what needs every interleaving is in `loom-tests`.

mod admission;
mod budgets;
mod cases;
mod eviction;
mod farewell;
mod faults;
mod grants;
mod guard;
mod parts;
mod pools;
mod pools_that_fail;
mod store_and_load;

use std::path::PathBuf;

use crate::{
    Evict, Format, Namespace, NamespaceId, ObjectId, OpenOptions, Region, Reserve, ReserveOptions, Session,
    SessionOptions, Wish,
};

/// A path in memory that is removed when the test ends.
pub(crate) struct Scratch {
    directory: tempfile::TempDir,
}

impl Scratch {
    pub(crate) fn new() -> Self {
        Self { directory: tempfile::tempdir_in("/dev/shm").expect("/dev/shm is there and writable") }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub(crate) fn region(&self, wish: Wish) -> Region {
        let options = OpenOptions::path(self.path("region")).format(Format::IfAbsent).wish(wish);
        Region::open(options).expect("a region in memory")
    }
}

/// Options of a session that refuses where there is no room.
pub(crate) fn keeping() -> SessionOptions {
    SessionOptions { evict: Evict::Never, ..SessionOptions::default() }
}

pub(crate) fn namespace(tag: &str) -> Namespace {
    Namespace::new()
        .tenant(tag)
        .model("m")
        .revision("1")
        .adapter("none")
        .dtype("bf16")
        .quantization("none")
        .geometry("layers=2")
        .storage_format("test-1")
        .block_tokens(16)
        .parallel("tp=1")
        .hash_algorithm("sha256")
        .hash_seed("0")
}

pub(crate) fn object(namespace: NamespaceId, number: u64) -> ObjectId {
    let mut prefix = [0; 32];
    prefix[..8].copy_from_slice(&number.to_le_bytes());
    ObjectId::new(namespace, prefix)
}

/// Bytes in which each eight name the key, so that one foreign byte shows.
pub(crate) fn payload(number: u64, len: usize) -> Vec<u8> {
    (0..len).map(|at| (number.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (at % 8 * 8)) as u8 ^ (at / 8) as u8).collect()
}

pub(crate) fn store(session: &Session, object: &ObjectId, bytes: &[u8]) -> &'static str {
    match session.reserve(object, bytes.len() as u64, ReserveOptions::default()).expect("a session in order") {
        Reserve::Granted(mut reservation) => {
            reservation.write_at(0, bytes).expect("within the slot");
            reservation.commit().expect("a session in order").code()
        }
        Reserve::Refused(why) => why.code(),
        other => other.code(),
    }
}
