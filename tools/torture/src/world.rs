//! The small region that every case is played in, and what its blocks must hold.

use std::os::fd::{BorrowedFd, RawFd};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use anyhow::{Context, Result};
use maru::layout::geometry::Geometry;
use maru::layout::object::{ObjectKey, Place as IndexPlace};
use maru::{
    AttachError, Budget, ClassSpec, Evict, Format, Namespace, NamespaceError, NamespaceId, ObjectId, OpenOptions,
    Region, Reserve, ReserveOptions, Role, Session, SessionOptions, Wish,
};

/// Bytes of a region.
pub(crate) const REGION_BYTES: u64 = 192 << 10;
/// Bytes of the region of a soak.
pub(crate) const SOAK_BYTES: u64 = 512 << 10;
/// Where the region under test starts when a neighbour lies before it in the same file.
pub(crate) const PARTITION_OFFSET: u64 = REGION_BYTES;

/// What a region lies in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lies {
    /// A file of its own.
    File,
    /// The second half of a file whose first half is another region.
    Partition,
    /// A memfd, inherited as a descriptor.
    Memfd,
}

/// The numbers of a region.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) slots: u32,
    pub(crate) slot_bytes: u32,
    pub(crate) sessions: u32,
    pub(crate) namespaces: u32,
    /// Long, so that nothing but recovery can help, unless a scenario is about the time limit itself.
    pub(crate) stalled_ms: u32,
    pub(crate) lies: Lies,
    pub(crate) bytes: u64,
    /// Whether sessions make room where there is none.
    pub(crate) evicts: bool,
    /// Slots that the namespace may hold.
    pub(crate) budget: Option<u32>,
}

impl Shape {
    pub(crate) const USUAL: Self = Self {
        slots: 24,
        slot_bytes: 256,
        sessions: 6,
        namespaces: 4,
        stalled_ms: 600_000,
        lies: Lies::File,
        bytes: REGION_BYTES,
        evicts: false,
        budget: None,
    };
}

/// Where a region is, for all processes of a case.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    pub(crate) path: PathBuf,
    pub(crate) offset: u64,
    pub(crate) memfd: Option<RawFd>,
    pub(crate) shape: Shape,
}

impl Place {
    pub(crate) fn options(&self, format: Format) -> Result<OpenOptions> {
        let options = match self.memfd {
            None => OpenOptions::path(&self.path),
            Some(fd) => {
                // SAFETY: the runner keeps the memfd open for the whole case, and forked children inherit it.
                let fd = unsafe { BorrowedFd::borrow_raw(fd) };
                OpenOptions::descriptor(fd.try_clone_to_owned().context("duplicate the memfd")?)
            }
        };
        let class = ClassSpec { slot_bytes: self.shape.slot_bytes.into(), slots: Some(self.shape.slots) };
        let mut options = options.format(format).wish(Wish {
            size_bytes: Some(self.shape.bytes),
            classes: vec![class],
            sessions: Some(self.shape.sessions),
            namespaces: Some(self.shape.namespaces),
            stalled_writer_ms: self.shape.stalled_ms,
            copy_lease_ms: 600_000,
            attach_wait_ms: 5_000,
            name: "torture".to_owned(),
            ..Wish::default()
        });
        options.huge_pages = false;
        if self.offset != 0 {
            options = options.partition(self.offset, Some(self.shape.bytes));
        }
        Ok(options)
    }

    pub(crate) fn open(&self, format: Format) -> Result<Region> {
        Ok(Region::open(self.options(format)?)?)
    }

    /// A participant, as all of the case are.
    pub(crate) fn session(&self, region: &Region, engine: &str, role: Role) -> Result<Session, AttachError> {
        let evict = if self.shape.evicts { Evict::WhenFull } else { Evict::Never };
        region.session_with(engine, role, SessionOptions { evict, ..SessionOptions::default() })
    }

    /// The same place for somebody who refuses where there is no room.
    pub(crate) fn keeping(&self) -> Self {
        Self { shape: Shape { evicts: false, ..self.shape }, ..self.clone() }
    }

    /// The namespace of a case, registered.
    pub(crate) fn main_namespace(&self, session: &Session) -> Result<NamespaceId, NamespaceError> {
        match self.shape.budget {
            None => session.namespace(&namespace(MAIN)),
            Some(slots) => session.namespace_with_budget(&namespace(MAIN), Budget::Slots(slots)),
        }
    }

    /// The region's bytes as they are.
    pub(crate) fn bytes(&self) -> Result<Vec<u8>> {
        let path = match self.memfd {
            None => self.path.clone(),
            Some(fd) => PathBuf::from(format!("/proc/self/fd/{fd}")),
        };
        let file = std::fs::File::open(&path).with_context(|| format!("open {}", path.display()))?;
        let mut bytes = vec![0; self.shape.bytes as usize];
        file.read_exact_at(&mut bytes, self.offset).context("read the region")?;
        Ok(bytes)
    }

    /// Changes one byte behind everybody's back.
    pub(crate) fn flip_byte(&self, at: u64) -> Result<()> {
        let file = std::fs::OpenOptions::new().read(true).write(true).open(&self.path).context("open the region")?;
        let mut byte = [0];
        file.read_exact_at(&mut byte, self.offset + at).context("read a byte")?;
        file.write_all_at(&[byte[0] ^ 0x40], self.offset + at).context("flip a byte")
    }
}

/// A namespace by its tag.
pub(crate) fn namespace(tag: &str) -> Namespace {
    Namespace::new()
        .tenant(tag)
        .model("torture")
        .revision("1")
        .adapter("none")
        .dtype("bf16")
        .quantization("none")
        .geometry("layers=2")
        .storage_format("torture-1")
        .block_tokens(16)
        .parallel("tp=1")
        .hash_algorithm("sha256")
        .hash_seed("0")
}

/// The namespace that all blocks lie in, unless a scenario is about namespaces.
pub(crate) const MAIN: &str = "main";

fn prefix(number: u64) -> [u8; 32] {
    let mut prefix = [0; 32];
    prefix[..8].copy_from_slice(&number.to_le_bytes());
    prefix[24..].copy_from_slice(&number.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes());
    prefix
}

/// The object with this number.
pub(crate) fn object(namespace: NamespaceId, number: u64) -> ObjectId {
    ObjectId::new(namespace, prefix(number))
}

/// Length of the block with this number: from one byte to the whole slot.
pub(crate) fn length(number: u64, slot_bytes: u32) -> usize {
    1 + (number.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 17) as usize % slot_bytes as usize
}

/// What the block with this number holds: every eight bytes name the number and their place, so that one foreign
/// byte shows.
pub(crate) fn content(number: u64, slot_bytes: u32) -> Vec<u8> {
    (0..length(number, slot_bytes))
        .map(|at| (number.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (at % 8 * 8)) as u8 ^ (at / 8) as u8 ^ 0x5A)
        .collect()
}

/// Where a number's block is indexed.
pub(crate) fn place_of(geometry: &Geometry, namespace: &NamespaceId, number: u64) -> IndexPlace {
    ObjectKey { namespace: namespace.digest(), prefix: prefix(number), shard: 0, part: 0 }
        .place(geometry.hash_seed, geometry.bucket_count)
}

/// Numbers chosen by where the index puts them. Every process finds the same ones: they follow from the region.
#[derive(Debug, Clone)]
pub(crate) struct Keys {
    /// What the victim stores.
    pub(crate) k: u64,
    /// What else it stores.
    pub(crate) k2: u64,
    /// Blocks that were committed before anything happened.
    pub(crate) base: Vec<u64>,
    /// First bucket 0, second bucket 1: eight of them, one more than a bucket has room for.
    pub(crate) pair: Vec<u64>,
    /// First bucket 1, second bucket 0.
    pub(crate) back: Vec<u64>,
    /// First bucket 0, second bucket elsewhere.
    pub(crate) out: Vec<u64>,
    /// First bucket 1, second bucket elsewhere.
    pub(crate) out_of_one: Vec<u64>,
}

impl Keys {
    pub(crate) fn of(geometry: &Geometry, namespace: &NamespaceId) -> Self {
        let some = |from: u64, count: usize, fits: &dyn Fn(IndexPlace) -> bool| -> Vec<u64> {
            (from..).filter(|number| fits(place_of(geometry, namespace, *number))).take(count).collect()
        };
        let apart = |place: IndexPlace| place.first > 1 && place.second > 1;
        let k = some(1, 2, &apart);
        Self {
            k: k[0],
            k2: k[1],
            base: some(1_000, 4, &apart),
            pair: some(10_000, 8, &|place| place.first == 0 && place.second == 1),
            back: some(20_000, 7, &|place| place.first == 1 && place.second == 0),
            out: some(30_000, 7, &|place| place.first == 0 && place.second > 1),
            out_of_one: some(40_000, 7, &|place| place.first == 1 && place.second > 1),
        }
    }

    /// `count` numbers from `from` on, dealt out evenly over the buckets from `lowest` on, so that none overflows.
    pub(crate) fn even(geometry: &Geometry, namespace: &NamespaceId, from: u64, count: u32, lowest: u32) -> Vec<u64> {
        let buckets = geometry.bucket_count - lowest;
        let mut number = from;
        (0..count)
            .map(|at| {
                while place_of(geometry, namespace, number).first != lowest + at % buckets {
                    number += 1;
                }
                number += 1;
                number - 1
            })
            .collect()
    }
}

/// What became of a try to store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Stored {
    /// It is there (by us or by somebody else).
    Yes,
    /// Not now, and why.
    NotNow(&'static str),
}

/// Reserves, writes and commits one block.
pub(crate) fn store(session: &Session, namespace: NamespaceId, number: u64, slot_bytes: u32) -> Result<Stored> {
    let bytes = content(number, slot_bytes);
    let reserved = session.reserve(&object(namespace, number), bytes.len() as u64, ReserveOptions::default())?;
    Ok(match reserved {
        Reserve::Granted(mut reservation) => {
            reservation.write_at(0, &bytes)?;
            match reservation.commit()? {
                maru::Commit::Stored | maru::Commit::AlreadyStored => Stored::Yes,
                other => Stored::NotNow(other.code()),
            }
        }
        Reserve::Present => Stored::Yes,
        Reserve::Refused(why) => Stored::NotNow(why.code()),
        other => Stored::NotNow(other.code()),
    })
}
