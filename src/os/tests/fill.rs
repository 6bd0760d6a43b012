//! Pages ahead of time: huge where they can be, said where they cannot, and few faults for whoever comes later.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::{child, part, shm_folder};
use crate::os::backing::{Backing, BackingFile};
use crate::os::fill::{Reserved, reserve};
use crate::os::map::Mapping;
use crate::os::{BackingError, HUGE_PAGE_BYTES};

const HERE: &str = module_path!();

fn holes(folder: &Path, size_bytes: u64) -> BackingFile {
    let path = folder.join("file");
    let file = std::fs::File::options().read(true).write(true).create(true).truncate(true).open(&path).expect("create");
    file.set_len(size_bytes).expect("set_len");
    BackingFile::open(&Backing::Path(path), true).expect("open")
}

fn faults_of_this_thread() -> i64 {
    // SAFETY: all zeros are a valid value, which the call overwrites.
    let mut usage: libc::rusage = unsafe { core::mem::zeroed() };
    // SAFETY: the pointer is to a local that outlives the call.
    assert_eq!(unsafe { libc::getrusage(libc::RUSAGE_THREAD, &mut usage) }, 0);
    usage.ru_minflt
}

/// Stores to every page of a new mapping, and counts the faults.
fn faults_of_a_late_mapping(backing: &BackingFile) -> i64 {
    let mapping = Mapping::of(backing, 0..backing.size_bytes(), true).expect("map");
    let before = faults_of_this_thread();
    for at in (0..mapping.len()).step_by(4096) {
        // SAFETY: inside the mapping, whose pages exist.
        unsafe { mapping.as_ptr().wrapping_add(at).write_volatile(1) };
    }
    faults_of_this_thread() - before
}

#[test]
fn whoever_maps_later_faults_once_per_huge_page() {
    let folder = shm_folder();
    let size = 96_u64 << 20;
    let pages = (size / 4096) as i64;
    let small = holes(folder.path(), size);
    let reserved = reserve(&small, 0..size, false, 2, &mut |_, _| {}).expect("room");
    assert_eq!(reserved, Reserved { total_bytes: size, huge_bytes: 0, huge_refused: None });
    let many = faults_of_a_late_mapping(&small);
    let backing = holes(folder.path(), size);
    let mut told = Vec::new();
    let reserved = reserve(&backing, 0..size, true, 2, &mut |done, total| told.push((done, total))).expect("room");
    assert_eq!(backing.file().metadata().expect("stat").blocks() * 512, size);
    assert!(told.is_sorted() && told.last() == Some(&(size, size)) && told.len() > 16, "{told:?}");
    if reserved.huge_bytes == 0 {
        assert!(reserved.huge_refused.is_some(), "no huge page and no reason");
        eprintln!("SKIPPED: this kernel collapses nothing on /dev/shm: {reserved:?}");
        return;
    }
    let few = faults_of_a_late_mapping(&backing);
    // Generous: a piece that was refused has 512 faults.
    assert!(few < pages / 16 && many > pages / 4, "{few} faults with huge pages, {many} without, {reserved:?}");
}

#[test]
fn a_refusal_is_said_and_small_pages_come_instead() {
    let folder = shm_folder();
    let status = child(&format!("{HERE}::child_is_refused"), folder.path()).status().expect("start");
    assert!(status.success(), "{status}");
}

#[test]
fn child_is_refused() {
    let Some(folder) = part() else { return };
    // SAFETY: changes only whether this process gets huge pages.
    let set = unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, 1, 0, 0, 0) };
    assert_eq!(set, 0);
    let size = 32 << 20;
    let backing = holes(&folder, size);
    let reserved = reserve(&backing, 0..size, true, 1, &mut |_, _| {}).expect("room");
    assert_eq!(reserved, Reserved { total_bytes: size, huge_bytes: 0, huge_refused: Some(libc::EINVAL) });
    assert_eq!(backing.file().metadata().expect("stat").blocks() * 512, size);
}

#[test]
fn a_part_keeps_its_bytes_and_leaves_the_rest_alone() {
    use std::os::unix::fs::FileExt;
    let folder = shm_folder();
    let backing = holes(folder.path(), 12 << 20);
    backing.file().write_all_at(b"kept", (3 << 20) + 77).expect("write");
    let range = (1 << 20) + 4096..(9 << 20) + 8192;
    let reserved = reserve(&backing, range.clone(), true, 1, &mut |_, _| {}).expect("room");
    assert_eq!(reserved.total_bytes, range.end - range.start);
    assert!(reserved.huge_bytes <= 3 * HUGE_PAGE_BYTES, "2..4, 4..6 and 6..8 MiB: {reserved:?}");
    assert_eq!(backing.file().metadata().expect("stat").blocks() * 512, reserved.total_bytes);
    let mut bytes = [0; 4];
    backing.file().read_exact_at(&mut bytes, (3 << 20) + 77).expect("read");
    assert_eq!(&bytes, b"kept");
    let outside = reserve(&backing, 0..(12 << 20) + 1, true, 1, &mut |_, _| {}).expect_err("outside");
    assert!(matches!(outside, BackingError::OutOfBounds { .. }), "{outside}");
    assert_eq!(reserve(&backing, 5..5, true, 1, &mut |_, _| {}).expect("nothing"), Reserved::default());
}
