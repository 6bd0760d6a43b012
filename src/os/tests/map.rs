//! Alignment, filling, huge pages, and what a child must leave alone.

use std::fs::File;

use super::{child, in_fork, part, shm_folder};
use crate::os::backing::{Backing, BackingFile};
use crate::os::map::Mapping;
use crate::os::{BackingError, HUGE_PAGE_BYTES, page_bytes};

const HERE: &str = module_path!();
const HUGE: usize = HUGE_PAGE_BYTES as usize;

fn file(folder: &std::path::Path, size_bytes: u64) -> File {
    let path = folder.join("file");
    let file = File::options().read(true).write(true).create_new(true).open(path).expect("create");
    file.set_len(size_bytes).expect("set_len");
    file
}

#[test]
fn addresses_follow_file_offsets_modulo_two_mebibytes() {
    let folder = shm_folder();
    let file = file(folder.path(), 16 << 20);
    for offset in [0_u64, 4096, 5 << 20, (2 << 20) - 4096] {
        let mapping = Mapping::new(&file, offset, 4 << 20, true).expect("map");
        assert_eq!(mapping.as_ptr().addr() % HUGE, offset as usize % HUGE);
        assert_eq!(mapping.len(), 4 << 20);
        assert!(!mapping.is_lost() && !mapping.is_foreign() && mapping.is_writable());
    }
}

#[test]
fn bad_ranges_are_refused_by_name() {
    let folder = shm_folder();
    let file = file(folder.path(), 1 << 20);
    let new = |offset, length| Mapping::new(&file, offset, length, true).expect_err("refused");
    assert!(matches!(new(0, 0), BackingError::ZeroLength { .. }));
    assert!(matches!(new(1, 4096), BackingError::Misaligned { value: 1, .. }));
    assert!(matches!(new(u64::MAX - 4095, 8192), BackingError::OutOfBounds { .. }));
    assert!(matches!(new(0, usize::MAX), BackingError::OutOfBounds { .. }));
    let path = folder.path().join("file");
    let backing = BackingFile::open(&Backing::Path(path), true).expect("open");
    let of = |range| Mapping::of(&backing, range, true).expect_err("refused");
    assert!(matches!(of(0..(1 << 20) + 1), BackingError::OutOfBounds { .. }));
    #[expect(clippy::reversed_empty_ranges, reason = "the point of the test")]
    let backwards = 8192..4096;
    assert!(matches!(of(backwards), BackingError::OutOfBounds { .. }));
    let mapping = Mapping::of(&backing, 4096..8191, true).expect("an odd length is fine here");
    assert_eq!(mapping.len(), 4095);
    let refused = mapping.prefault(0..4096, true, 1, &mut |_, _| {}).expect_err("beyond");
    assert!(matches!(refused, BackingError::OutOfBounds { .. }));
    assert!(matches!(mapping.msync(0..4096), Err(BackingError::OutOfBounds { .. })));
    mapping.msync(1..4095).expect("msync");
    mapping.msync_invalidate(0..0).expect("msync");
}

#[test]
fn prefault_fills_holes_and_tells_how_far() {
    let folder = shm_folder();
    let size = 150_u64 << 20;
    let file = file(folder.path(), size);
    let mapping = Mapping::new(&file, 0, size as usize, true).expect("map");
    let mut told = Vec::new();
    mapping.prefault(0..size as usize, true, 2, &mut |done, total| told.push((done, total))).expect("prefault");
    assert_eq!(told.last(), Some(&(size, size)));
    assert!(told.is_sorted());
    use std::os::unix::fs::MetadataExt;
    assert_eq!(file.metadata().expect("stat").blocks() * 512, size);
    mapping.prefault(5..5, false, 0, &mut |_, _| {}).expect("nothing to do");
}

#[test]
fn prefault_behind_the_end_is_an_error_and_no_signal() {
    let folder = shm_folder();
    let file = file(folder.path(), 1 << 20);
    let mapping = Mapping::new(&file, 0, 4 << 20, true).expect("map");
    let error = mapping.prefault(0..4 << 20, true, 4, &mut |_, _| {}).expect_err("too short");
    assert!(matches!(error, BackingError::PagesUnavailable { .. }), "{error}");
}

#[test]
fn huge_pages_come_where_they_can() {
    let folder = shm_folder();
    let file = file(folder.path(), 8 << 20);
    let mapping = Mapping::new(&file, 0, 8 << 20, true).expect("map");
    mapping.prefault(0..8 << 20, true, 1, &mut |_, _| {}).expect("prefault");
    let huge = mapping.try_huge(4096..8 << 20);
    assert!(huge.is_multiple_of(HUGE_PAGE_BYTES) && huge <= 6 << 20, "{huge}");
    if huge == 0 {
        eprintln!("SKIPPED: this kernel collapses nothing on /dev/shm");
    }
    assert_eq!(mapping.try_huge(0..4096), 0);
    assert_eq!(mapping.try_huge(usize::MAX..usize::MAX), 0);
}

#[test]
fn a_child_neither_sees_nor_unmaps() {
    let folder = shm_folder();
    let status = child(&format!("{HERE}::child_drops"), folder.path()).status().expect("start");
    assert!(status.success(), "{status}");
}

#[test]
fn child_drops() {
    let Some(folder) = part() else { return };
    let file = file(&folder, 4 << 20);
    let mapping = Mapping::new(&file, 0, 4 << 20, true).expect("map");
    let address = mapping.as_ptr();
    let mut handle = Some(mapping);
    let code = in_fork(|| {
        // Something of the child's own comes to lie at the same address.
        // SAFETY: MAP_FIXED_NOREPLACE replaces nothing; it fails if the parent's mapping is here.
        let own = unsafe {
            libc::mmap(
                address.cast(),
                4 << 20,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE,
                -1,
                0,
            )
        };
        if own.cast() != address {
            return 1;
        }
        // SAFETY: mapped above, the child's own.
        unsafe { address.write_volatile(9) };
        let mapping = handle.take().expect("inherited");
        // Methods leave the range alone as well.
        let foreign = mapping.is_foreign();
        mapping.msync(0..4096).expect("msync");
        drop(mapping);
        // SAFETY: still mapped, or the child dies of SIGSEGV and the test fails.
        let kept = unsafe { address.read_volatile() } == 9;
        i32::from(!(foreign && kept))
    });
    assert_eq!(code, 0);
    drop(handle.take());
    // In the process that mapped it, it is gone now.
    // SAFETY: mincore touches no byte of the range; the vector holds one entry per page.
    let gone = unsafe { libc::mincore(address.cast(), page_bytes() as usize, [0_u8; 1].as_mut_ptr()) };
    assert_eq!(gone, -1);
}
