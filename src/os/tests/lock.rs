//! The lock lives as long as its process, no longer, and everybody can see it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::{child, descriptors_of, eventually, in_fork, mounted, part, shm_folder, sleep_forever, start_until_ready};
use crate::os::lock::{Held, LifeLock, LockAsker, held};
use crate::os::{Backing, BackingError, BackingFile};

const HERE: &str = module_path!();

fn open(path: &Path) -> BackingFile {
    BackingFile::open(&Backing::Path(path.into()), true).expect("open")
}

fn region(folder: &Path) -> PathBuf {
    let path = folder.join("region");
    fs::write(&path, vec![0; 8192]).expect("write");
    path
}

fn take(backing: &BackingFile, byte: u64) -> LifeLock {
    LifeLock::take(backing, byte).expect("take").expect("free")
}

fn is_held(asker: &LockAsker, byte: u64) -> bool {
    asker.ask(byte).expect("ask").is_held()
}

/// Takes byte 5 and lives on.
#[test]
fn child_holds() {
    let Some(path) = part() else { return };
    let _lock = take(&open(&path), 5);
    println!("READY");
    sleep_forever();
}

#[test]
fn a_holder_is_seen_until_it_is_killed() {
    let folder = shm_folder();
    let path = region(folder.path());
    let backing = open(&path);
    let asker = LockAsker::new(&backing).expect("asker");
    assert!(!is_held(&asker, 5));
    let mut holder = start_until_ready(child(&format!("{HERE}::child_holds"), &path));
    assert_eq!(asker.ask(5).expect("ask"), Held::Yes { pid: None });
    assert!(!is_held(&asker, 4) && !is_held(&asker, 6));
    assert!(LifeLock::take(&backing, 5).expect("take").is_none());
    drop(take(&backing, 6));
    holder.kill();
    assert!(!is_held(&asker, 5), "a reaped process holds nothing");
    drop(take(&backing, 5));
}

#[test]
fn other_pid_namespaces_see_it_too() {
    let folder = shm_folder();
    let path = region(folder.path());
    let asker = LockAsker::new(&open(&path)).expect("asker");
    let inner = child(&format!("{HERE}::child_holds"), &path);
    let mut outer = Command::new("unshare");
    outer.args(["--pid", "--fork", "--kill-child"]).arg(inner.get_program()).args(inner.get_args());
    outer.env("MARU_OS_TEST_PART", &path);
    let works = Command::new("unshare").args(["--pid", "--fork", "true"]).status();
    if !works.is_ok_and(|status| status.success()) {
        eprintln!("SKIPPED: cannot make a pid namespace");
        return;
    }
    let mut holder = start_until_ready(outer);
    assert!(is_held(&asker, 5));
    holder.kill();
    eventually("the inner process is gone", || !is_held(&asker, 5));
}

/// Takes byte 5, forks a child that lives on, and says the child's pid.
#[test]
fn child_holds_and_forks() {
    let Some(path) = part() else { return };
    let lock = take(&open(&path), 5);
    // SAFETY: the child only sleeps, then is killed.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        // The inherited handle is let go in the child, which must change nothing.
        let foreign = lock.is_foreign();
        drop(lock);
        assert!(foreign);
        sleep_forever();
    }
    println!("READY {pid}");
    sleep_forever();
}

fn the_forked_child_holds_nothing(path: &Path) {
    let asker = LockAsker::new(&open(path)).expect("asker");
    let command = child(&format!("{HERE}::child_holds_and_forks"), path);
    let mut holder = start_until_ready(command);
    let grandchild = Pid::from_raw(holder.said.parse().expect("a pid"));
    assert!(is_held(&asker, 5));
    std::thread::sleep(std::time::Duration::from_millis(50));
    assert!(is_held(&asker, 5), "the child let go of nothing");
    holder.kill();
    let free = !is_held(&asker, 5);
    let lives = kill(grandchild, None).is_ok();
    kill(grandchild, Signal::SIGKILL).expect("kill");
    assert!(lives, "the test means nothing unless the child outlived its parent");
    assert!(free, "the forked child still holds the lock");
}

#[test]
fn a_forked_child_does_not_prolong_the_lock() {
    let folder = shm_folder();
    the_forked_child_holds_nothing(&region(folder.path()));
}

#[test]
fn locks_of_one_process_are_independent_and_leave_no_descriptor() {
    let folder = shm_folder();
    let path = region(folder.path());
    let backing = open(&path);
    let asker = LockAsker::new(&backing).expect("asker");
    let before = descriptors_of(&path);
    let far = 1 << 40;
    let first = take(&backing, 1);
    let second = take(&backing, 2);
    let third = take(&backing, far);
    assert_eq!(descriptors_of(&path), before);
    assert!(!first.keeps_descriptor());
    assert!(is_held(&asker, 1) && is_held(&asker, 2) && is_held(&asker, far));
    assert!(LifeLock::take(&backing, 2).expect("take").is_none(), "not even by its own process");
    drop(backing);
    drop(second);
    assert!(is_held(&asker, 1) && !is_held(&asker, 2) && is_held(&asker, far));
    // Opening and closing the file elsewhere releases nothing, as it would with classical locks.
    drop(fs::File::options().read(true).write(true).open(&path).expect("open"));
    assert!(is_held(&asker, 1));
    drop((first, third));
    assert!(!is_held(&asker, 1) && !is_held(&asker, far));
    assert_eq!(fs::metadata(&path).expect("stat").len(), 8192);
}

#[test]
fn a_memfd_can_be_locked_through_two_descriptors() {
    let memfd = memfd_create(c"region", MFdFlags::MFD_CLOEXEC).expect("memfd");
    let other = memfd.try_clone().expect("dup");
    let ours = BackingFile::open(&Backing::Fd(memfd), true).expect("open");
    let theirs = BackingFile::open(&Backing::Fd(other), true).expect("open");
    let lock = take(&ours, 0);
    assert!(held(&theirs, 0).expect("ask").is_held());
    assert!(LifeLock::take(&theirs, 0).expect("take").is_none());
    drop(lock);
    assert_eq!(held(&theirs, 0).expect("ask"), Held::No);
}

#[test]
fn odd_bytes_and_rights_are_typed_errors() {
    let folder = shm_folder();
    let backing = open(&region(folder.path()));
    for byte in [u64::MAX, i64::MAX as u64] {
        assert!(matches!(held(&backing, byte), Err(BackingError::OutOfBounds { .. })));
        assert!(matches!(LifeLock::take(&backing, byte), Err(BackingError::OutOfBounds { .. })));
    }
    drop(take(&backing, i64::MAX as u64 - 1));
}

/// A file on overlayfs, where a mapping does not keep the lock.
fn overlay() -> Option<(super::Mount, super::Mount)> {
    let below = mounted("tmpfs", "size=8m")?;
    for name in ["lower", "upper", "work"] {
        fs::create_dir(below.path().join(name)).expect("mkdir");
    }
    let at = below.path().display();
    let options = format!("lowerdir={at}/lower,upperdir={at}/upper,workdir={at}/work");
    let above = mounted("overlay", &options)?;
    Some((above, below))
}

#[test]
fn overlayfs_keeps_the_lock_by_a_descriptor() {
    let Some((above, _below)) = overlay() else { return };
    let path = region(above.path());
    let backing = open(&path);
    let lock = take(&backing, 5);
    assert!(lock.keeps_descriptor(), "or the kernel has changed its mind, and L4 can go");
    assert!(held(&backing, 5).expect("ask").is_held());
    let second = take(&backing, 6);
    drop(lock);
    assert!(!held(&backing, 5).expect("ask").is_held());
    assert!(held(&backing, 6).expect("ask").is_held());
    drop(second);
    the_forked_child_holds_nothing(&path);
}

#[test]
fn child_of_overlay_keeps_its_own_descriptors() {
    let Some((above, _below)) = overlay() else { return };
    let path = region(above.path());
    let status = child(&format!("{HERE}::child_reuses_numbers"), &path).status().expect("start");
    assert!(status.success(), "{status}");
}

/// In a child the kept descriptor's number may come to be another file's; dropping the inherited
/// handle must not close it.
#[test]
fn child_reuses_numbers() {
    let Some(path) = part() else { return };
    let backing = open(&path);
    let mut lock = Some(take(&backing, 5));
    let before = descriptors_of(&path);
    let code = in_fork(|| {
        let closed = descriptors_of(&path) == before - 1;
        // Fills the gap that the fork handler left.
        let files: Vec<_> = (0..8).map(|_| fs::File::open("/dev/null").expect("open")).collect();
        drop(lock.take());
        let all_open = files.iter().all(|file| file.metadata().is_ok());
        i32::from(!(closed && all_open))
    });
    assert_eq!(code, 0);
    assert!(held(&backing, 5).expect("ask").is_held());
}
