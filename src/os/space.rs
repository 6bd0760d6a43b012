//! Is there room? Asked before a byte is touched.
//!
//! A sparse file that is larger than its mount kills whoever touches it first; a tmpfs file larger
//! than free memory gets somebody killed by the kernel. So the question is put to every limit that
//! applies, and the smallest answer counts:
//!
//! * the file system's free blocks (`statvfs`), unless it has no limit (tmpfs with `size=0`);
//! * for file systems in memory: `MemAvailable`, because swap is no place for a KV cache, and what
//!   the memory cgroups from here up to the root still allow;
//! * for hugetlbfs: free huge pages of that size which are not promised to somebody.
//!
//! Sp1: an answer that cannot be read is no limit (the later `fallocate` still refuses). Sp2: an
//! answer is a snapshot; whoever fills much asks again on the way.

use std::fs;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use nix::sys::statvfs::fstatvfs;

use super::{BackingError, BackingKind};

/// Room in bytes, and whose limit that is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Bytes that could be had now.
    pub available_bytes: u64,
    /// The limit that gave the smallest answer.
    pub limit: &'static str,
}

impl Room {
    const NO_LIMIT: Self = Self { available_bytes: u64::MAX, limit: "no limit known" };

    fn and(self, available_bytes: Option<u64>, limit: &'static str) -> Self {
        match available_bytes {
            Some(bytes) if bytes < self.available_bytes => Self { available_bytes: bytes, limit },
            _ => self,
        }
    }
}

/// The room for new pages of a file of this kind on the mount where `file` (or a directory) lies.
#[must_use]
pub fn room_at(file: impl AsFd, kind: BackingKind) -> Room {
    let room = Room::NO_LIMIT;
    match kind {
        BackingKind::DeviceDax => room,
        BackingKind::Hugetlbfs { page_bytes } => room.and(free_huge_bytes(page_bytes), "free huge pages"),
        BackingKind::Tmpfs | BackingKind::Memfd => room
            .and(free_file_system_bytes(file), "file system")
            .and(available_memory_bytes(), "MemAvailable")
            .and(cgroup_room_bytes(Path::new("/proc/self/cgroup"), Path::new("/sys/fs/cgroup")), "memory cgroup"),
        BackingKind::Famfs | BackingKind::OrdinaryFile => room.and(free_file_system_bytes(file), "file system"),
    }
}

/// Refuses what cannot fit. `need_bytes` counts pages that do not exist yet.
///
/// # Errors
/// [`BackingError::NoSpace`] with both numbers and the limit.
pub fn require_room(file: impl AsFd, kind: BackingKind, need_bytes: u64, place: &Path) -> Result<(), BackingError> {
    let room = room_at(file, kind);
    if need_bytes > room.available_bytes {
        return Err(no_space(need_bytes, room, place));
    }
    Ok(())
}

/// The error for a shortage that the kernel reported although [`require_room`] had passed.
pub(crate) fn no_space(need_bytes: u64, room: Room, place: &Path) -> BackingError {
    BackingError::NoSpace {
        need_bytes,
        available_bytes: room.available_bytes,
        place: place.to_path_buf(),
        limit: room.limit,
    }
}

/// Refuses a file size over `RLIMIT_FSIZE`, which would be answered with a deadly `SIGXFSZ`.
///
/// # Errors
/// [`BackingError::FileSizeLimit`].
pub fn require_file_size(size_bytes: u64, path: &Path) -> Result<(), BackingError> {
    let mut limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: the pointer is to a local that outlives the call; on failure the local stays as it
    // is, which means no limit (Sp1).
    unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &mut limit) };
    if limit.rlim_cur != libc::RLIM_INFINITY && size_bytes > limit.rlim_cur {
        return Err(BackingError::FileSizeLimit {
            path: path.to_path_buf(),
            need_bytes: size_bytes,
            limit_bytes: limit.rlim_cur,
        });
    }
    Ok(())
}

fn free_file_system_bytes(file: impl AsFd) -> Option<u64> {
    let stat = fstatvfs(file).ok()?;
    // tmpfs without a limit reports no blocks at all.
    (stat.blocks() > 0).then(|| stat.blocks_available().saturating_mul(stat.fragment_size()))
}

fn available_memory_bytes() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    keyed_number(&text, "MemAvailable:").map(|kib| kib.saturating_mul(1024))
}

fn free_huge_bytes(page_bytes: u64) -> Option<u64> {
    let folder = PathBuf::from(format!("/sys/kernel/mm/hugepages/hugepages-{}kB", page_bytes / 1024));
    let free = file_number(&folder.join("free_hugepages"))?;
    let surplus = file_number(&folder.join("nr_overcommit_hugepages"))
        .unwrap_or(0)
        .saturating_sub(file_number(&folder.join("surplus_hugepages")).unwrap_or(0));
    let promised = file_number(&folder.join("resv_hugepages")).unwrap_or(0);
    let usable = free.saturating_add(surplus).saturating_sub(promised);
    Some(usable.saturating_mul(page_bytes))
}

/// What the strictest memory cgroup (version 2) on the way up to the root still allows. Clean file
/// pages count as room, since the kernel drops them before it kills.
pub(crate) fn cgroup_room_bytes(membership: &Path, mount: &Path) -> Option<u64> {
    let text = fs::read_to_string(membership).ok()?;
    let own = text.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let mut folder = mount.join(own);
    let mut room: Option<u64> = None;
    loop {
        if let Some(max) = file_number(&folder.join("memory.max")) {
            let used = file_number(&folder.join("memory.current")).unwrap_or(0);
            let stat = fs::read_to_string(folder.join("memory.stat")).unwrap_or_default();
            let droppable = ["inactive_file", "active_file"]
                .iter()
                .filter_map(|key| keyed_number(&stat, key))
                .fold(0_u64, u64::saturating_add);
            let here = max.saturating_sub(used.saturating_sub(droppable));
            room = Some(room.map_or(here, |so_far| so_far.min(here)));
        }
        if folder == mount || !folder.pop() || !folder.starts_with(mount) {
            return room;
        }
    }
}

/// The first number behind `key`, which has to be the first word of its line.
fn keyed_number(text: &str, key: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        let mut words = line.split_ascii_whitespace();
        (words.next() == Some(key)).then(|| words.next())??.parse().ok()
    })
}

/// The number in a small file, if it is one ("max" is none).
pub(crate) fn file_number(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}
