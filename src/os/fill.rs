//! First touch, paid ahead of time and in large pages.
//!
//! A 4 KiB page that is touched for the first time costs a fault of its own, and costs every process that maps it later
//! another one. A file in memory can have 2 MiB pages without a mount option and without rights: one small page is made in
//! each 2 MiB, `MADV_COLLAPSE` turns what is there into a huge page (it refuses a range with nothing in it), and what was
//! refused gets small pages after all.
//!
//! * F1: pages are allocated by `fallocate`, never by touching, so a shortage is an error and not a signal.
//! * F2: room is looked at before each step, not only once: others fill the same memory meanwhile.
//! * F3: the work is cut into steps that threads take from one counter. Small ranges are one thread's: starting another
//!   costs more. A thread that cannot be had is one less.
//! * F4: the kernel waits for all processors once in each collapse, so a step is collapsed in one call; it is looked at
//!   piece by piece only when that call says that not all of it came out huge.

use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::Mutex;

use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, fallocate};

use super::map::Mapping;
use super::space::{no_space, require_room, room_at};
use super::{BackingError, BackingFile, BackingKind, HUGE_PAGE_BYTES};
use crate::sync::process::{AtomicBool, AtomicU64, Ordering};

/// Largest piece that one thread fills in one call; progress is told after each.
pub(super) const STEP_BYTES: u64 = 64 << 20;
/// More threads than this only wait for each other in the kernel.
const MAX_THREADS: usize = 64;
/// After so many refusals in a row, huge pages are not asked for any more.
const PATIENCE: u64 = 8;

/// What was reserved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reserved {
    /// Bytes that have real pages now.
    pub total_bytes: u64,
    /// How many of them lie in huge pages that were asked for piece by piece. Zero where huge pages are the backing's own.
    pub huge_bytes: u64,
    /// The kernel's last answer (`errno`) where it refused a huge page: `EINVAL` from kernels before 6.1 and from file
    /// systems that cannot do it. Those bytes have small pages.
    pub huge_refused: Option<i32>,
}

/// Threads for work that only waits for memory.
#[must_use]
pub(crate) fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Does `work` on all steps of a range of `u64`s, with up to `threads` threads. `progress` is told the bytes done and the
/// bytes in all, on the calling thread. The first failure stops the rest.
pub(super) fn in_steps(
    range: Range<u64>,
    step_bytes: u64,
    threads: usize,
    work: &(dyn Fn(Range<u64>) -> Result<(), BackingError> + Sync),
    progress: &mut dyn FnMut(u64, u64),
) -> Result<(), BackingError> {
    let total = range.end - range.start;
    // Steps end at multiples of their size, so that the first may be shorter.
    let first = range.start / step_bytes;
    let steps = range.end.div_ceil(step_bytes) - first;
    let next = AtomicU64::new(0);
    let done = AtomicU64::new(0);
    let stop = AtomicBool::new(false);
    let failure = Mutex::new(None);
    // Takes the next step; false when none is left.
    let one_step = || -> bool {
        // ORDERING: Relaxed here and below: the counters carry no data, and joining the threads orders the rest.
        let step = next.fetch_add(1, Ordering::Relaxed);
        if step >= steps || stop.load(Ordering::Relaxed) {
            return false;
        }
        let start = (first + step) * step_bytes;
        let piece = start.max(range.start)..start.saturating_add(step_bytes).min(range.end);
        let bytes = piece.end - piece.start;
        match work(piece) {
            Ok(()) => {
                done.fetch_add(bytes, Ordering::Relaxed);
                true
            }
            Err(error) => {
                stop.store(true, Ordering::Relaxed);
                if let Ok(mut first) = failure.lock() {
                    first.get_or_insert(error);
                }
                false
            }
        }
    };
    let others = (threads.clamp(1, MAX_THREADS) as u64).min(steps.max(1)) - 1;
    std::thread::scope(|scope| {
        for _ in 0..others {
            let _ = std::thread::Builder::new().name("maru-fill".into()).spawn_scoped(scope, || while one_step() {});
        }
        while one_step() {
            progress(done.load(Ordering::Relaxed), total);
        }
    });
    if let Some(error) = failure.into_inner().unwrap_or_default() {
        return Err(error);
    }
    progress(total, total);
    Ok(())
}

/// Gives a range of a file real pages, huge ones if `huge` and if the kernel has them, with up to `threads` threads.
/// `progress` is told the bytes done and the bytes in all. Bytes that were written stay.
///
/// # Errors
/// [`BackingError::NoSpace`]; [`BackingError::OutOfBounds`]; [`BackingError::Io`].
pub fn reserve(
    backing: &BackingFile,
    range: Range<u64>,
    huge: bool,
    threads: usize,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Reserved, BackingError> {
    let size_bytes = backing.size_bytes();
    if range.start > range.end || range.end > size_bytes {
        return Err(BackingError::OutOfBounds {
            offset: range.start,
            length: range.end.saturating_sub(range.start),
            size_bytes,
        });
    }
    let total = range.end - range.start;
    if total == 0 {
        return Ok(Reserved::default());
    }
    let collapsible = huge && matches!(backing.kind(), BackingKind::Tmpfs | BackingKind::Memfd);
    // One mapping for all of it: the kernel collapses what is mapped.
    let mapping = if collapsible { Some(Mapping::of(backing, 0..size_bytes, true)?) } else { None };
    let collapse = mapping.as_ref().map(Collapse::new);
    let unit = HUGE_PAGE_BYTES.max(backing.align_bytes());
    // Each step waits for all processors once (F4): few of them, and yet enough to show how far it is.
    let step_bytes = (total / 16).clamp(unit, STEP_BYTES.max(unit)) / unit * unit;
    let threads = threads.min((total / STEP_BYTES) as usize).max(1);
    let left = AtomicU64::new(total);
    let work = |piece: Range<u64>| -> Result<(), BackingError> {
        let bytes = piece.end - piece.start;
        let missing = size_bytes.saturating_sub(allocated_bytes(backing));
        let need = missing.min(left.load(Ordering::Relaxed));
        require_room(backing.file(), backing.kind(), need, path_of(backing))?;
        if let Some(collapse) = &collapse {
            collapse.make(backing, &piece)?;
        }
        allocate(backing, piece.start, bytes)?;
        left.fetch_sub(bytes, Ordering::Relaxed);
        Ok(())
    };
    in_steps(range, step_bytes, threads, &work, progress)?;
    Ok(Reserved {
        total_bytes: total,
        huge_bytes: collapse.as_ref().map_or(0, |collapse| collapse.huge_bytes.load(Ordering::Relaxed)),
        huge_refused: collapse.and_then(|collapse| match collapse.refused_with.load(Ordering::Relaxed) {
            0 => None,
            errno => Some(errno as i32),
        }),
    })
}

/// Huge pages, asked for by several threads.
struct Collapse<'m> {
    mapping: &'m Mapping,
    huge_bytes: AtomicU64,
    /// In a row.
    refusals: AtomicU64,
    refused_with: AtomicU64,
}

impl<'m> Collapse<'m> {
    fn new(mapping: &'m Mapping) -> Self {
        let number = || AtomicU64::new(0);
        Self { mapping, huge_bytes: number(), refusals: number(), refused_with: number() }
    }

    /// Makes the whole 2 MiB pieces of a range huge, as far as the kernel does.
    fn make(&self, backing: &BackingFile, piece: &Range<u64>) -> Result<(), BackingError> {
        let start = piece.start.next_multiple_of(HUGE_PAGE_BYTES);
        let end = piece.end / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
        if start >= end || self.refusals.load(Ordering::Relaxed) >= PATIENCE {
            return Ok(());
        }
        for at in (start..end).step_by(HUGE_PAGE_BYTES as usize) {
            allocate(backing, at, 4096)?;
        }
        if self.mapping.collapse(start as usize..end as usize).is_ok() {
            self.refusals.store(0, Ordering::Relaxed);
            self.huge_bytes.fetch_add(end - start, Ordering::Relaxed);
            return Ok(());
        }
        for at in (start..end).step_by(HUGE_PAGE_BYTES as usize) {
            match self.mapping.collapse(at as usize..(at + HUGE_PAGE_BYTES) as usize) {
                Ok(()) => {
                    self.refusals.store(0, Ordering::Relaxed);
                    self.huge_bytes.fetch_add(HUGE_PAGE_BYTES, Ordering::Relaxed);
                }
                Err(error) => {
                    let errno = error.raw_os_error().unwrap_or(libc::EIO);
                    self.refused_with.store(errno as u64, Ordering::Relaxed);
                    if self.refusals.fetch_add(1, Ordering::Relaxed) + 1 >= PATIENCE {
                        break;
                    }
                }
            }
        }
        Ok(())
    }
}

fn path_of(backing: &BackingFile) -> &Path {
    backing.path().unwrap_or(Path::new("(unnamed)"))
}

fn allocated_bytes(backing: &BackingFile) -> u64 {
    backing.file().metadata().map_or(0, |metadata| metadata.blocks().saturating_mul(512))
}

fn allocate(backing: &BackingFile, offset: u64, length: u64) -> Result<(), BackingError> {
    loop {
        // Both fit: they lie within a file size that the kernel accepted.
        match fallocate(backing.file(), FallocateFlags::empty(), offset as i64, length as i64) {
            Ok(()) => return Ok(()),
            Err(Errno::EINTR) => {}
            Err(Errno::EOPNOTSUPP) => break,
            Err(Errno::ENOSPC | Errno::EDQUOT | Errno::ENOMEM) => return Err(shortage(backing, length)),
            Err(error) => return Err(BackingError::io("allocate", path_of(backing), error)),
        }
    }
    // A file system without fallocate: write what is there back, holes become blocks.
    let mut buffer = vec![0_u8; 1 << 20];
    let mut at = offset;
    while at < offset + length {
        let piece = (buffer.len() as u64).min(offset + length - at) as usize;
        let written = backing
            .file()
            .read_exact_at(&mut buffer[..piece], at)
            .and_then(|()| backing.file().write_all_at(&buffer[..piece], at));
        match written {
            Ok(()) => at += piece as u64,
            Err(error) if error.kind() == io::ErrorKind::StorageFull => return Err(shortage(backing, length)),
            Err(error) => return Err(BackingError::io("allocate", path_of(backing), error)),
        }
    }
    Ok(())
}

fn shortage(backing: &BackingFile, step_bytes: u64) -> BackingError {
    let missing = backing.size_bytes().saturating_sub(allocated_bytes(backing));
    no_space(missing.max(step_bytes), room_at(backing.file(), backing.kind()), path_of(backing))
}
