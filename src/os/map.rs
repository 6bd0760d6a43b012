//! The mapping of a backing: the only place where addresses of shared bytes are made.
//!
//! * M1: the address range belongs to the `Mapping` from `new` until it is dropped, and is handed
//!   out as a raw pointer only: other processes write there, so no reference to plain bytes exists.
//! * M2: `MADV_DONTFORK` is set before the mapping is known to anybody, with fork held off. In a
//!   child the range is not there, perhaps somebody else's; [`ProcessTag`] tells, and `Drop` and
//!   every method leave it alone.
//! * M3: where the range is large enough, addresses and file offsets are equal modulo 2 MiB (or the
//!   alignment of the device, if that is larger), since otherwise no huge page can ever be mapped.
//! * M4: the range is registered with the fault handler ([`super::fault`]) while it lives.

use std::fs::File;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd};
use std::path::PathBuf;
use std::ptr;

use super::backing::{BackingFile, huge_page_of, proc_path};
use super::fault::{self, FaultSlot};
use super::fill;
use super::fork::{ForkHold, ProcessTag, hold_off_fork};
use super::{BackingError, BackingKind, HUGE_PAGE_BYTES, page_bytes};

/// A shared mapping of a part of a file or device.
#[derive(Debug)]
pub struct Mapping {
    start: *mut u8,
    length: usize,
    writable: bool,
    tag: ProcessTag,
    fault: Option<FaultSlot>,
}

// SAFETY: the type holds an address, not a borrow; the range stays mapped until `Drop` (M1), which
// any thread may run. What lies there is shared with other processes anyway, and whoever reads or
// writes it does so through raw pointers or atomics and argues for itself.
unsafe impl Send for Mapping {}
// SAFETY: as above; no method with `&self` changes the fields, and the kernel calls they make may be
// made from several threads at once.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `length` bytes of `file` from `offset` on, shared.
    ///
    /// # Errors
    /// [`BackingError::ZeroLength`]; [`BackingError::Misaligned`] when `offset` is no multiple of
    /// the page; [`BackingError::OutOfBounds`] when the numbers do not fit an address;
    /// [`BackingError::PermissionDenied`] or [`BackingError::Io`]. The file may be shorter than the
    /// mapping: callers compare with its size first.
    pub fn new(file: &File, offset: u64, length: usize, writable: bool) -> Result<Self, BackingError> {
        let align_bytes = match huge_page_of(file) {
            Some(bytes) => require_whole_pages(length as u64, bytes)?,
            None => page_bytes(),
        };
        Self::aligned(file, offset, length, writable, align_bytes, &hold_off_fork())
    }

    /// Maps a range of a judged backing: the range has to keep to its alignment and to lie within
    /// its size of now; device-dax is advised as randomly read.
    ///
    /// # Errors
    /// As [`Mapping::new`].
    pub fn of(backing: &BackingFile, range: Range<u64>, writable: bool) -> Result<Self, BackingError> {
        let align_bytes = backing.align_bytes();
        let size_bytes = backing.size_now()?;
        let out = BackingError::OutOfBounds {
            offset: range.start,
            length: range.end.saturating_sub(range.start),
            size_bytes,
        };
        if range.end < range.start || range.end > size_bytes {
            return Err(out);
        }
        let whole_pages = matches!(backing.kind(), BackingKind::DeviceDax | BackingKind::Hugetlbfs { .. });
        let length = range.end - range.start;
        if whole_pages {
            require_whole_pages(length, align_bytes)?;
        }
        let length = usize::try_from(length).map_err(|_| out)?;
        let held = hold_off_fork();
        let mapping = Self::aligned(backing.file(), range.start, length, writable, align_bytes, &held)?;
        if backing.kind() == BackingKind::DeviceDax {
            mapping.advise_random();
        }
        Ok(mapping)
    }

    fn aligned(
        file: &File,
        offset: u64,
        length: usize,
        writable: bool,
        align_bytes: u64,
        held: &ForkHold,
    ) -> Result<Self, BackingError> {
        if length == 0 {
            return Err(BackingError::ZeroLength { what: "length of the mapping" });
        }
        let multiple = align_bytes.max(page_bytes());
        if !offset.is_multiple_of(multiple) {
            return Err(BackingError::Misaligned { what: "offset of the mapping", value: offset, multiple });
        }
        let protection = if writable { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_READ };
        let start = map_shared(file, offset, length, protection, multiple, held)?;
        // From here on `Drop` unmaps.
        let mut mapping = Self { start, length, writable, tag: ProcessTag::current(), fault: None };
        // SAFETY: the range is this mapping's alone (M1), and its users know that it may turn to
        // zeros (`is_lost`); `Drop` gives the slot back before it unmaps.
        let watched = unsafe { fault::register(start, mapping.mapped_length(), writable) };
        mapping.fault = match watched {
            Ok(slot) => Some(slot),
            // Somebody asked for protection, so going without is not an answer.
            Err(error) if fault::is_installed() => return Err(error),
            Err(_) => None,
        };
        Ok(mapping)
    }

    /// First byte.
    #[inline]
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        self.start
    }

    /// Length in bytes, as asked for.
    #[inline]
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a mapping is never empty")]
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether bytes may be stored to.
    #[must_use]
    pub fn is_writable(&self) -> bool {
        self.writable
    }

    /// Whether the fault handler replaced the bytes by zeros.
    #[inline]
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.fault.as_ref().is_some_and(FaultSlot::is_lost)
    }

    /// Whether this handle was inherited over a fork; nothing is mapped here then.
    #[inline]
    #[must_use]
    pub fn is_foreign(&self) -> bool {
        self.tag.is_foreign()
    }

    /// Tells the kernel that reads are random: no read-around.
    pub fn advise_random(&self) {
        // Advice only; a refusal changes nothing.
        let _ = self.advise(0, self.mapped_length(), libc::MADV_RANDOM);
    }

    /// Makes the pages of a range present, with up to `threads` threads, in steps of at most
    /// 64 MiB. `progress` is told the bytes done and the bytes in all, on the calling thread.
    ///
    /// With `write`, pages come in as written to: holes get real memory, and later stores fault no
    /// more.
    ///
    /// # Errors
    /// [`BackingError::OutOfBounds`]; [`BackingError::PagesUnavailable`] where touching would have
    /// raised `SIGBUS`; [`BackingError::Io`] otherwise (`EINVAL` on kernels before 5.14).
    pub fn prefault(
        &self,
        range: Range<usize>,
        write: bool,
        threads: usize,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<(), BackingError> {
        let range = self.page_range(range)?;
        let advice = if write { libc::MADV_POPULATE_WRITE } else { libc::MADV_POPULATE_READ };
        let populate =
            |piece: Range<u64>| self.populate(piece.start as usize, (piece.end - piece.start) as usize, advice);
        fill::in_steps(range.start as u64..range.end as u64, fill::STEP_BYTES, threads, &populate, progress)
    }

    fn populate(&self, offset: usize, length: usize, advice: i32) -> Result<(), BackingError> {
        loop {
            let Err(error) = self.advise(offset, length, advice) else {
                return Ok(());
            };
            match error.raw_os_error() {
                Some(libc::EINTR | libc::EAGAIN) => {}
                Some(libc::EFAULT) => {
                    return Err(BackingError::PagesUnavailable { offset: offset as u64, length: length as u64 });
                }
                _ => return Err(BackingError::io("fill pages", &shown(), error)),
            }
        }
    }

    /// Tries to turn a range into huge pages, 2 MiB at a time. Answers the bytes that are huge now;
    /// pages that cannot be are left as they are.
    pub fn try_huge(&self, range: Range<usize>) -> u64 {
        let huge = HUGE_PAGE_BYTES as usize;
        let end = range.end.min(self.length);
        if range.start >= end {
            return 0;
        }
        let mut offset = range.start + self.start.addr().wrapping_add(range.start).wrapping_neg() % huge;
        let mut collapsed = 0;
        while let Some(after) = offset.checked_add(huge).filter(|&after| after <= end) {
            if self.collapse(offset..after).is_ok() {
                collapsed += HUGE_PAGE_BYTES;
            }
            offset = after;
        }
        collapsed
    }

    /// Asks for huge pages in a range of whole ones. `Ok` only if all of them are huge now.
    pub(super) fn collapse(&self, range: Range<usize>) -> std::io::Result<()> {
        if range.start > range.end || range.end > self.length {
            return Err(std::io::ErrorKind::InvalidInput.into());
        }
        self.advise(range.start, range.len(), libc::MADV_COLLAPSE)
    }

    /// Writes a range through to the medium and waits. For [`BackingKind::needs_msync`] only.
    ///
    /// # Errors
    /// [`BackingError::OutOfBounds`], [`BackingError::Io`].
    pub fn msync(&self, range: Range<usize>) -> Result<(), BackingError> {
        self.sync(range, libc::MS_SYNC)
    }

    /// As [`Self::msync`], and asks that other mappings of the file see the bytes.
    ///
    /// # Errors
    /// As [`Self::msync`].
    pub fn msync_invalidate(&self, range: Range<usize>) -> Result<(), BackingError> {
        self.sync(range, libc::MS_SYNC | libc::MS_INVALIDATE)
    }

    fn sync(&self, range: Range<usize>, flags: i32) -> Result<(), BackingError> {
        let range = self.page_range(range)?;
        if range.is_empty() || self.tag.is_foreign() {
            return Ok(());
        }
        let start = self.start.wrapping_add(range.start);
        // SAFETY: the range was clamped to this mapping (`page_range`), which is ours (M1, M2).
        let failed = unsafe { libc::msync(start.cast(), range.len(), flags) };
        if failed != 0 {
            return Err(BackingError::last_os("msync", &shown()));
        }
        Ok(())
    }

    /// Widens a range to whole pages after checking that it lies inside.
    fn page_range(&self, range: Range<usize>) -> Result<Range<usize>, BackingError> {
        if range.start > range.end || range.end > self.length {
            return Err(BackingError::OutOfBounds {
                offset: range.start as u64,
                length: range.end.saturating_sub(range.start) as u64,
                size_bytes: self.length as u64,
            });
        }
        let page = page_bytes() as usize;
        Ok(range.start / page * page..range.end.next_multiple_of(page))
    }

    /// The length as the kernel mapped it.
    fn mapped_length(&self) -> usize {
        self.length.next_multiple_of(page_bytes() as usize)
    }

    /// `offset` and `length` lie within `mapped_length`.
    fn advise(&self, offset: usize, length: usize, advice: i32) -> std::io::Result<()> {
        if length == 0 || self.tag.is_foreign() {
            return Ok(());
        }
        let start = self.start.wrapping_add(offset);
        // SAFETY: callers keep the range within this mapping, which is ours (M1, M2); none of the
        // advice used here (RANDOM, POPULATE_*, COLLAPSE) changes what the bytes are.
        let failed = unsafe { libc::madvise(start.cast(), length, advice) };
        if failed != 0 {
            return Err(std::io::Error::last_os_error());
        }
        Ok(())
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.tag.is_foreign() {
            return; // M2: nothing of ours is mapped there in this process.
        }
        drop(self.fault.take());
        // SAFETY: the range was mapped by `aligned`, is this value's alone (M1), and is not used
        // after this; the process is the one that mapped it (M2).
        unsafe { libc::munmap(self.start.cast(), self.mapped_length()) };
    }
}

/// The kernel rounds lengths on hugetlbfs and device-dax up by itself, or refuses them late.
fn require_whole_pages(length: u64, multiple: u64) -> Result<u64, BackingError> {
    if !length.is_multiple_of(multiple) {
        return Err(BackingError::Misaligned { what: "length of the mapping", value: length, multiple });
    }
    Ok(multiple)
}

fn shown() -> PathBuf {
    PathBuf::from("(mapping)")
}

/// Maps a file shared, aligned as M3 says, with `MADV_DONTFORK`.
///
/// `length` is above zero; `offset` is a multiple of `align_bytes`, and that of the page; on
/// hugetlbfs both are whole huge pages (the kernel would round a length up, over our place).
pub(crate) fn map_shared(
    file: &File,
    offset: u64,
    length: usize,
    protection: i32,
    align_bytes: u64,
    _held: &ForkHold,
) -> Result<*mut u8, BackingError> {
    let out = || BackingError::OutOfBounds { offset, length: length as u64, size_bytes: i64::MAX as u64 };
    let end = offset.checked_add(length as u64).filter(|&end| end <= i64::MAX as u64);
    end.ok_or_else(out)?;
    let mut alignment = usize::try_from(align_bytes).map_err(|_| out())?;
    if length as u64 >= HUGE_PAGE_BYTES {
        alignment = alignment.max(HUGE_PAGE_BYTES as usize);
    }
    let page = page_bytes() as usize;
    let mapped = length.checked_next_multiple_of(page).ok_or_else(out)?;
    let reserved = mapped.checked_add(alignment).ok_or_else(out)?;
    let failed = |action| BackingError::last_os(action, &proc_path(file.as_fd()));

    // Addresses first: a place large enough to choose an aligned start in.
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new anonymous mapping at an address of the kernel's choice touches nothing that
    // exists.
    let place = unsafe { libc::mmap(ptr::null_mut(), reserved, libc::PROT_NONE, flags, -1, 0) };
    if place == libc::MAP_FAILED {
        return Err(failed("reserve addresses"));
    }
    let phase = (offset % alignment as u64) as usize;
    let before = phase.wrapping_sub(place.addr()) & (alignment - 1);
    let start = place.cast::<u8>().wrapping_add(before);
    let flags = libc::MAP_SHARED | libc::MAP_FIXED | libc::MAP_NORESERVE;
    // SAFETY: [start, start + mapped) lies within the place reserved above, which is ours alone, so
    // MAP_FIXED replaces nothing else.
    let done = unsafe { libc::mmap(start.cast(), mapped, protection, flags, file.as_raw_fd(), offset as i64) };
    if done == libc::MAP_FAILED {
        let error = failed("map");
        // SAFETY: the place reserved above, still ours alone and unused.
        unsafe { libc::munmap(place, reserved) };
        return Err(error);
    }
    // What is left of the place on both sides.
    if before > 0 {
        // SAFETY: the head of our place, in front of the mapping, unused.
        unsafe { libc::munmap(place, before) };
    }
    let behind = reserved - before - mapped;
    if behind > 0 {
        // SAFETY: the tail of our place, behind the mapping, unused.
        unsafe { libc::munmap(start.wrapping_add(mapped).cast(), behind) };
    }
    // SAFETY: the mapping just made, known to nobody else.
    let refused = unsafe { libc::madvise(start.cast(), mapped, libc::MADV_DONTFORK) };
    if refused != 0 {
        let error = failed("keep a mapping from children");
        // SAFETY: the mapping just made, known to nobody else.
        unsafe { libc::munmap(start.cast(), mapped) };
        return Err(error);
    }
    Ok(start)
}
