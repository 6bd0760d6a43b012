//! The handler saves what is registered, and nothing else.

use std::fs::File;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::ExitStatus;

use super::{child, in_fork, part, shm_folder};
use crate::os::fault;
use crate::os::map::Mapping;

const HERE: &str = module_path!();

fn run(name: &str) -> ExitStatus {
    let folder = shm_folder();
    child(&format!("{HERE}::{name}"), folder.path()).status().expect("start a copy")
}

fn file(folder: &Path, name: &str, size_bytes: u64) -> File {
    let path = folder.join(name);
    let file = File::options().read(true).write(true).create_new(true).open(path).expect("create");
    file.set_len(size_bytes).expect("set_len");
    file
}

/// Reads one byte of a mapping.
fn byte_at(mapping: &Mapping, offset: usize) -> u8 {
    assert!(offset < mapping.len());
    let byte = mapping.as_ptr().wrapping_add(offset);
    // SAFETY: inside the mapping, which outlives the call; a fault is what these tests provoke.
    unsafe { byte.read_volatile() }
}

fn set_byte(mapping: &Mapping, offset: usize, value: u8) {
    assert!(offset < mapping.len() && mapping.is_writable());
    let byte = mapping.as_ptr().wrapping_add(offset);
    // SAFETY: inside the mapping, which is writable and outlives the call.
    unsafe { byte.write_volatile(value) }
}

const SIZE: u64 = 8 << 20;

#[test]
fn a_cut_file_costs_the_mapping_only() {
    assert!(run("child_cut").success());
}

#[test]
fn child_cut() {
    let Some(folder) = part() else { return };
    let cut = file(&folder, "cut", SIZE);
    let whole = file(&folder, "whole", SIZE);
    // One mapping from before the handler, one from after.
    let lost = Mapping::new(&cut, 0, SIZE as usize, true).expect("map");
    fault::install().expect("install");
    fault::install().expect("install again");
    let lost_read_only = Mapping::new(&cut, 0, SIZE as usize, false).expect("map");
    let kept = Mapping::new(&whole, 0, SIZE as usize, true).expect("map");
    for offset in [0, 4096, SIZE as usize - 1] {
        set_byte(&lost, offset, 7);
        set_byte(&kept, offset, 8);
    }
    cut.set_len(4096).expect("cut");
    assert_eq!(byte_at(&lost, 0), 7);
    assert!(!lost.is_lost());
    assert_eq!(byte_at(&lost, SIZE as usize - 1), 0);
    assert!(lost.is_lost());
    assert_eq!(byte_at(&lost, 0), 0, "the whole range is replaced");
    set_byte(&lost, 1 << 20, 3);
    assert_eq!(byte_at(&lost, 1 << 20), 3, "and goes on being usable");

    assert!(!lost_read_only.is_lost());
    assert_eq!(byte_at(&lost_read_only, 4096), 0);
    assert!(lost_read_only.is_lost());

    assert!(!kept.is_lost());
    assert_eq!(byte_at(&kept, 4096), 8);

    // A new mapping reuses the place and starts unharmed.
    drop(lost);
    let fresh = Mapping::new(&whole, 0, SIZE as usize, true).expect("map");
    assert!(!fresh.is_lost());
}

#[test]
fn faults_elsewhere_stay_fatal() {
    assert_eq!(run("child_elsewhere").signal(), Some(libc::SIGBUS));
    assert_eq!(run("child_sent").signal(), Some(libc::SIGBUS));
}

#[test]
fn child_elsewhere() {
    let Some(folder) = part() else { return };
    no_core_file();
    fault::install().expect("install");
    let cut = file(&folder, "cut", SIZE);
    let watched = Mapping::new(&cut, 0, SIZE as usize, true).expect("map");
    let map = memmap2::MmapOptions::new().map_raw(&cut).expect("map");
    cut.set_len(0).expect("cut");
    assert_eq!(byte_at(&watched, 0), 0);
    // SAFETY: inside the mapping; dies of SIGBUS, as it should.
    unsafe { map.as_mut_ptr().read_volatile() };
}

#[test]
fn child_sent() {
    if part().is_none() {
        return;
    }
    no_core_file();
    fault::install().expect("install");
    // The standard library's own handler takes the first for a fault that will come again.
    for _ in 0..2 {
        // SAFETY: a signal to the own process, which dies of it, as it should.
        unsafe { libc::raise(libc::SIGBUS) };
    }
}

fn no_core_file() {
    let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the pointer is to a local that outlives the call.
    unsafe { libc::setrlimit(libc::RLIMIT_CORE, &none) };
}

#[test]
fn a_childs_faults_are_not_taken_for_the_parents() {
    assert!(run("child_forked").success());
}

#[test]
fn child_forked() {
    let Some(folder) = part() else { return };
    no_core_file();
    fault::install().expect("install");
    let cut = file(&folder, "cut", SIZE);
    let parents = Mapping::new(&cut, 0, SIZE as usize, true).expect("map");
    let address = parents.as_ptr();
    let pid = {
        // SAFETY: as `in_fork`; written out because this child ends by a signal.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            // The child maps a short file of its own where its parent's mapping was.
            // SAFETY: nothing is mapped there in the child (MADV_DONTFORK).
            let own = unsafe {
                libc::mmap(
                    address.cast(),
                    SIZE as usize,
                    libc::PROT_READ,
                    libc::MAP_SHARED | libc::MAP_FIXED_NOREPLACE,
                    std::os::fd::AsRawFd::as_raw_fd(&cut),
                    0,
                )
            };
            cut.set_len(0).expect("cut");
            // SAFETY: mapped above if it worked; dies of SIGBUS, as it should.
            unsafe { own.cast::<u8>().read_volatile() };
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(5) };
        }
        pid
    };
    let status = nix::sys::wait::waitpid(nix::unistd::Pid::from_raw(pid), None).expect("wait");
    assert!(
        matches!(status, nix::sys::wait::WaitStatus::Signaled(_, nix::sys::signal::Signal::SIGBUS, _)),
        "{status:?}"
    );
    // A mapping that the child makes itself is watched.
    let own = in_fork(|| {
        let mine = Mapping::new(&cut, 0, SIZE as usize, false).expect("map");
        let zero = byte_at(&mine, 0) == 0;
        i32::from(!(zero && mine.is_lost()))
    });
    assert_eq!(own, 0);
    assert!(!parents.is_lost());
}

#[test]
fn the_table_has_an_end() {
    assert!(run("child_full").success());
}

#[test]
fn child_full() {
    let Some(folder) = part() else { return };
    let small = file(&folder, "small", 4096);
    let map = || Mapping::new(&small, 0, 4096, true);
    let mut all: Vec<_> = (0..fault::MAX_RANGES).map(|_| map().expect("map")).collect();
    // Without the handler nobody is refused for want of a place.
    all.push(map().expect("map"));
    fault::install().expect("install");
    let refused = map().expect_err("full");
    assert!(refused.to_string().contains("256"), "{refused}");
    all.remove(0);
    all.push(map().expect("a place is free again"));
}
