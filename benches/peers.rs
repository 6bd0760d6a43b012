//! What Maru's lookups are measured against.

use heed::types::Bytes;
use heed::{CommitOrAbort, Database, Env, EnvFlags, EnvOpenOptions, WithoutTls};
use memmap2::MmapMut;

use crate::{Filled, mix, prefix};

/// The least that a table in shared memory can do: one 64-byte line a key at the place that its digest names, open
/// addressing, half full. No identity beyond the digest, no states, no second writer.
///
/// It lies in a file of the same file system as the region, so that both have the same kind of pages.
pub struct Bare {
    map: MmapMut,
    mask: usize,
}

type Line = [u64; 8];

impl Bare {
    /// A table that knows every block of `filled`.
    ///
    /// # Panics
    /// When there is no memory for it.
    #[must_use]
    pub fn new(filled: &Filled) -> Self {
        let lines = (filled.blocks as usize * 2).next_power_of_two();
        let file = tempfile::tempfile_in(filled.scratch()).expect("a file");
        file.set_len((lines * size_of::<Line>()) as u64).expect("memory");
        // SAFETY: a file without a name: nobody else maps or changes it.
        let map = unsafe { MmapMut::map_mut(&file) }.expect("a mapping");
        let mut bare = Self { map, mask: lines - 1 };
        for number in 0..filled.blocks {
            let digest = prefix(number);
            let mut at = bare.place(&digest);
            while bare.lines()[at][7] != 0 {
                at = (at + 1) & bare.mask;
            }
            let mask = bare.mask;
            bytemuck::cast_slice_mut::<u8, Line>(&mut bare.map)[at & mask] = line(&digest);
        }
        bare
    }

    fn lines(&self) -> &[Line] {
        bytemuck::cast_slice(&self.map)
    }

    fn place(&self, digest: &[u8; 32]) -> usize {
        mix(u64::from_le_bytes(*digest.first_chunk().expect("8 of 32 bytes"))) as usize & self.mask
    }

    /// Whether the table knows this digest.
    #[must_use]
    #[inline]
    pub fn has(&self, digest: &[u8; 32]) -> bool {
        let (lines, wanted) = (self.lines(), line(digest));
        let mut at = self.place(digest);
        loop {
            let line = &lines[at];
            if line[7] == 0 {
                return false;
            }
            if *line == wanted {
                return true;
            }
            at = (at + 1) & self.mask;
        }
    }
}

impl Bare {
    /// How many of these digests are there, with all their lines asked for before the first is looked at: the limit of
    /// what a request of independent keys can cost.
    pub fn count_ahead<'d>(&self, digests: impl Iterator<Item = &'d [u8; 32]> + Clone) -> usize {
        for digest in digests.clone() {
            prefetch(&self.lines()[self.place(digest)]);
        }
        digests.filter(|digest| self.has(digest)).count()
    }
}

#[inline]
fn prefetch(line: &Line) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch never faults and changes nothing but caches.
    unsafe {
        core::arch::x86_64::_mm_prefetch::<{ core::arch::x86_64::_MM_HINT_T0 }>(line.as_ptr().cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = line;
}

#[inline]
fn line(digest: &[u8; 32]) -> Line {
    let word = |at: usize| u64::from_le_bytes(digest[at * 8..at * 8 + 8].try_into().expect("eight bytes"));
    [word(0), word(1), word(2), word(3), 0, 0, 0, 1]
}

/// LMDB in the same file system, without waiting for a disk: the fastest store with a process boundary known to us.
pub struct Lmdb {
    env: &'static Env<WithoutTls>,
    table: Database<'static, Bytes, Bytes>,
}

impl Lmdb {
    /// A table with a value of 64 bytes for every block of `filled`.
    ///
    /// # Panics
    /// When LMDB refuses.
    #[must_use]
    pub fn new(filled: &Filled) -> Self {
        let path = filled.scratch().join("lmdb");
        std::fs::create_dir(&path).expect("a directory");
        let mut options = EnvOpenOptions::new().read_txn_without_tls();
        options.map_size(8 << 30);
        // SAFETY: no other process opens this new environment; losing it in a crash is fine.
        unsafe { options.flags(EnvFlags::NO_SYNC | EnvFlags::WRITE_MAP) };
        // SAFETY: the files in this new folder are touched by this environment only.
        let opened = unsafe { options.open(&path) }.expect("LMDB");
        // A table borrows its environment; this one is there as long as the process.
        let env: &'static Env<WithoutTls> = Box::leak(Box::new(opened));
        let write = env.write_txn().expect("transaction");
        let created = env.create_databases_and_commit(write, |opener, write| {
            opener.create_database(write, None).map(CommitOrAbort::<_, ()>::Commit)
        });
        let CommitOrAbort::Commit(table) = created.expect("database") else { unreachable!("nobody aborts") };
        let table: Database<'static, Bytes, Bytes> = table;
        let mut write = env.write_txn().expect("transaction");
        for number in 0..filled.blocks {
            table.put(&mut write, &prefix(number), &[number as u8; 64]).expect("put");
        }
        write.commit().expect("commit");
        Self { env, table }
    }

    /// How many of these digests are there, in one transaction.
    ///
    /// # Panics
    /// When LMDB refuses.
    pub fn count<'d>(&self, digests: impl Iterator<Item = &'d [u8; 32]>) -> usize {
        let read = self.env.read_txn().expect("transaction");
        digests.filter(|digest| self.table.get(&read, *digest).expect("get").is_some()).count()
    }
}
