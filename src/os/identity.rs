//! Who and where this process is, random bytes, and the clocks.
//!
//! None of this proves that somebody is dead; only the life lock does ([`super::lock`]). It tells
//! people, and logs, who wrote a word, and lets a record be compared with its writer:
//!
//! * I1: `boot_id` is the kernel's own and the same in every container of one boot; "same host,
//!   same boot" is judged by it alone;
//! * I2: `host_id` comes from `/etc/machine-id`, which an image may carry to many hosts, so it is a
//!   label for people and never a proof;
//! * I3: a pid means something only together with `pid_ns`, and a start time only together with
//!   the same time namespace: identities are compared whole, for equality, never ordered;
//! * I4: [`monotonic_ns`] is compared within one process only (time namespaces shift it),
//!   [`wall_ns`] is for display.

use std::fs;
use std::hash::{BuildHasher, Hasher};
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use sha2::{Digest, Sha256};

use super::BackingError;

/// Host and boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HostIdentity {
    /// `/etc/machine-id`, or a digest of the boot id where there is none (I2).
    pub host_id: [u8; 16],
    /// `/proc/sys/kernel/random/boot_id` (I1).
    pub boot_id: [u8; 16],
}

impl HostIdentity {
    /// Reads the identity of this host.
    ///
    /// # Errors
    /// [`BackingError::NotFound`] or [`BackingError::Io`] when `/proc` is not mounted or its boot
    /// id is no UUID.
    pub fn current() -> Result<Self, BackingError> {
        Self::read(Path::new("/etc/machine-id"), Path::new("/proc/sys/kernel/random/boot_id"))
    }

    pub(crate) fn read(machine_id: &Path, boot_id: &Path) -> Result<Self, BackingError> {
        let boot_text =
            fs::read_to_string(boot_id).map_err(|error| BackingError::io("read the boot id", boot_id, error))?;
        let boot_id = parse_hex_id(&boot_text).ok_or_else(|| BackingError::Io {
            action: "read the boot id",
            path: boot_id.to_path_buf(),
            source: std::io::Error::other(format!("{boot_text:?} is not a UUID")),
        })?;
        let host_id = fs::read_to_string(machine_id)
            .ok()
            .and_then(|text| parse_hex_id(&text))
            .unwrap_or_else(|| host_id_from_boot_id(boot_id));
        Ok(Self { host_id, boot_id })
    }

    /// Whether both were read under one and the same running kernel (I1).
    #[must_use]
    pub fn same_boot(&self, other: &Self) -> bool {
        self.boot_id == other.boot_id
    }
}

/// One process, as far as it can be told from the outside (I3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ProcessIdentity {
    /// Host and boot.
    pub host: HostIdentity,
    /// Process id in its own pid namespace.
    pub pid: u32,
    /// Start time in clock ticks since boot (`/proc/self/stat`, field 22).
    pub start_time_ticks: u64,
    /// Inode of `/proc/self/ns/pid`.
    pub pid_ns: u64,
}

impl ProcessIdentity {
    /// Reads the identity of the calling process.
    ///
    /// # Errors
    /// As [`HostIdentity::current`]; also [`BackingError::Io`] when `/proc/self/stat` is not as
    /// `proc_pid_stat(5)` describes it.
    pub fn current() -> Result<Self, BackingError> {
        let stat_path = Path::new("/proc/self/stat");
        let stat = fs::read(stat_path).map_err(|error| BackingError::io("read the start time", stat_path, error))?;
        let start_time_ticks = start_time_of(&stat).ok_or_else(|| BackingError::Io {
            action: "read the start time",
            path: stat_path.to_path_buf(),
            source: std::io::Error::other("field 22 is missing or no number"),
        })?;
        let ns_path = Path::new("/proc/self/ns/pid");
        let pid_ns =
            fs::metadata(ns_path).map_err(|error| BackingError::io("read the pid namespace", ns_path, error))?.ino();
        Ok(Self { host: HostIdentity::current()?, pid: std::process::id(), start_time_ticks, pid_ns })
    }
}

/// Field 22 of a `stat` line. The second field is the program's name in parentheses and may hold
/// anything, parentheses and line feeds too, so counting starts behind the last `)`.
pub(crate) fn start_time_of(stat: &[u8]) -> Option<u64> {
    let behind_name = stat.iter().rposition(|&byte| byte == b')')? + 1;
    let text = str::from_utf8(stat.get(behind_name..)?).ok()?;
    // The first word behind the name is field 3.
    text.split_ascii_whitespace().nth(22 - 3)?.parse().ok()
}

/// 32 hexadecimal digits, dashes allowed, not all zero.
pub(crate) fn parse_hex_id(text: &str) -> Option<[u8; 16]> {
    let mut id = [0_u8; 16];
    let mut digits = 0;
    for character in text.trim().chars().filter(|&c| c != '-') {
        let value = character.to_digit(16)? as u8;
        let byte = id.get_mut(digits / 2)?;
        *byte = *byte << 4 | value;
        digits += 1;
    }
    (digits == 32 && id != [0; 16]).then_some(id)
}

fn host_id_from_boot_id(boot_id: [u8; 16]) -> [u8; 16] {
    let digest = Sha256::new().chain_update(b"maru host id from boot id").chain_update(boot_id).finalize();
    let mut id = [0; 16];
    id.copy_from_slice(&digest[..16]);
    id
}

/// Bytes from the kernel's generator.
///
/// Never fails: where `getrandom` is filtered away, `/dev/urandom` serves, and where even that is
/// missing, the hash keys that the standard library itself depends on.
#[must_use]
pub fn random_bytes<const N: usize>() -> [u8; N] {
    let mut bytes = [0_u8; N];
    let mut filled = 0;
    while filled < N {
        let rest = &mut bytes[filled..];
        // SAFETY: pointer and length are those of one exclusive slice; the kernel writes at most
        // that many bytes.
        let got = unsafe { libc::getrandom(rest.as_mut_ptr().cast(), rest.len(), 0) };
        if got > 0 {
            filled += got as usize;
        } else if std::io::Error::last_os_error().raw_os_error() != Some(libc::EINTR) {
            fill_without_getrandom(rest);
            break;
        }
    }
    bytes
}

#[cold]
fn fill_without_getrandom(bytes: &mut [u8]) {
    let read = fs::File::open("/dev/urandom").and_then(|mut file| file.read_exact(bytes));
    if read.is_err() {
        for chunk in bytes.chunks_mut(8) {
            let mut hasher = std::collections::hash_map::RandomState::new().build_hasher();
            hasher.write_u64(wall_ns());
            hasher.write_u32(std::process::id());
            let word = hasher.finish().to_le_bytes();
            chunk.copy_from_slice(&word[..chunk.len()]);
        }
    }
}

/// Nanoseconds of the monotonic clock (I4).
#[must_use]
pub fn monotonic_ns() -> u64 {
    clock_ns(libc::CLOCK_MONOTONIC)
}

/// Nanoseconds since 1970 by the wall clock, 0 before that (I4).
#[must_use]
pub fn wall_ns() -> u64 {
    clock_ns(libc::CLOCK_REALTIME)
}

fn clock_ns(clock: libc::clockid_t) -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a local that outlives the call. Both clocks always exist, so the
    // answer needs no check; were it to fail, `now` stays 0.
    unsafe { libc::clock_gettime(clock, &mut now) };
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    let nanoseconds = u64::try_from(now.tv_nsec).unwrap_or(0);
    seconds.saturating_mul(1_000_000_000).saturating_add(nanoseconds)
}
