//! What the benches share: a filled region, and keys that are in it or are not.
//!
//! One bench file answers one question. Ours and the peers run in the same process and the same run, because absolute
//! numbers on a shared machine mean little; `README.md` says how to read them.

pub mod contest;
pub mod document;
pub mod peers;

use maru::{
    Format, Namespace, NamespaceId, ObjectId, OpenOptions, Region, Reserve, ReserveOptions, Role, Session, Wish,
};

/// A region in memory, full of small blocks.
pub struct Filled {
    /// The session that filled it.
    pub session: Session,
    /// The namespace of its blocks.
    pub namespace: NamespaceId,
    /// Blocks in it.
    pub blocks: u64,
    region: Region,
    directory: tempfile::TempDir,
}

impl Filled {
    /// Makes a region and stores this many blocks of 64 bytes.
    ///
    /// # Panics
    /// When there is no memory for it.
    #[must_use]
    pub fn new(blocks: u32) -> Self {
        Self::of(blocks + blocks / 16 + 64, blocks)
    }

    /// As [`Filled::new`], with at least this many slots.
    ///
    /// # Panics
    /// When there is no memory for it.
    #[must_use]
    pub fn of(slots: u32, blocks: u32) -> Self {
        let directory = tempfile::tempdir_in("/dev/shm").expect("/dev/shm");
        let size = maru::layout::geometry::FormatSpec::for_slots(slots, 64).expect("a sound wish").length_bytes;
        let options = OpenOptions::path(directory.path().join("region")).format(Format::IfAbsent);
        let region = Region::open(options.wish(Wish::of_slots(size, 64))).expect("a region in memory");
        let session = region.session("bench", Role::Tool).expect("attach");
        let namespace = session.namespace(&namespace()).expect("namespace");
        let mut filled = Self { session, namespace, blocks: 0, region, directory };
        filled.grow(blocks.into());
        filled
    }

    /// Stores further blocks of 64 bytes, until there are so many.
    ///
    /// # Panics
    /// When there is no room for one.
    pub fn grow(&mut self, blocks: u64) {
        for number in self.blocks..blocks {
            let object = ObjectId::new(self.namespace, prefix(number));
            match self.session.reserve(&object, 64, ReserveOptions::default()).expect("a session in order") {
                Reserve::Granted(mut slot) => {
                    slot.write_at(0, &[number as u8; 64]).expect("fits");
                    slot.commit().expect("stored");
                }
                other => panic!("block {number}: {other:?}"),
            }
        }
        self.blocks = self.blocks.max(blocks);
    }

    /// A request of `keys` blocks that are in the region, in an order without pattern.
    #[must_use]
    pub fn present(&self, keys: usize, turn: u64) -> Vec<ObjectId> {
        self.request(keys, turn, 0)
    }

    /// A request of `keys` blocks that are not.
    #[must_use]
    pub fn absent(&self, keys: usize, turn: u64) -> Vec<ObjectId> {
        self.request(keys, turn, 1 << 40)
    }

    /// The first `keys` blocks of the region.
    #[must_use]
    pub fn first_present(&self, keys: usize) -> Vec<ObjectId> {
        self.numbered(0..keys as u64)
    }

    /// The same number of blocks that are not in it, all different.
    #[must_use]
    pub fn first_absent(&self, keys: usize) -> Vec<ObjectId> {
        self.numbered(1 << 40..(1 << 40) + keys as u64)
    }

    fn numbered(&self, numbers: core::ops::Range<u64>) -> Vec<ObjectId> {
        numbers.map(|number| ObjectId::new(self.namespace, prefix(number))).collect()
    }

    fn request(&self, keys: usize, turn: u64, offset: u64) -> Vec<ObjectId> {
        (0..keys as u64)
            .map(|at| mix(turn * 1_000_003 + at) % self.blocks + offset)
            .map(|number| ObjectId::new(self.namespace, prefix(number)))
            .collect()
    }

    /// Where a peer may put its files: removed with the region.
    #[must_use]
    pub fn scratch(&self) -> &std::path::Path {
        self.directory.path()
    }

    /// The region.
    #[must_use]
    pub fn region(&self) -> &Region {
        &self.region
    }
}

/// Blocks in the table: `MARU_BENCH_BLOCKS`, or 256K.
#[must_use]
pub fn blocks() -> u32 {
    contest::number_from("MARU_BENCH_BLOCKS", 1 << 18) as u32
}

/// The prefix digest of block `number`: 32 bytes, all of them different from block to block.
#[must_use]
pub fn prefix(number: u64) -> [u8; 32] {
    let mut bytes = [0; 32];
    for (at, chunk) in bytes.chunks_mut(8).enumerate() {
        chunk.copy_from_slice(&mix(number ^ ((at as u64) << 56)).to_le_bytes());
    }
    bytes
}

/// A permutation of 64 bits without pattern.
#[must_use]
pub fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

/// The namespace of all benches.
#[must_use]
pub fn namespace() -> Namespace {
    Namespace::new()
        .tenant("bench")
        .model("bench")
        .revision("1")
        .adapter("none")
        .dtype("none")
        .quantization("none")
        .geometry("64 bytes")
        .storage_format("bench-1")
        .block_tokens(16)
        .parallel("tp=1")
        .hash_algorithm("mix")
        .hash_seed("0")
}
