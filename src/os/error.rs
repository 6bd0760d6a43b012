//! The errors of the operating-system layer.
//!
//! One enum serves the folder, because its callers (`format`, `attach`, `close`) pass through all
//! of it in one call. Two rules:
//!
//! * E1: a variant names the thing, the value found and the value wanted, so that the text alone
//!   lets an operator act;
//! * E2: what the caller must tell apart (absent, wrong kind, no room, held by another, unknown)
//!   is a variant; all else is [`BackingError::Io`] with the action in words.

use std::io;
use std::path::{Path, PathBuf};

/// Why a backing could not be found, opened, made, mapped or locked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BackingError {
    /// Nothing is there under that path.
    #[error("{}: no such file or device", path.display())]
    NotFound {
        /// The path that was asked for.
        path: PathBuf,
    },

    /// The path names a directory.
    #[error("{}: is a directory, wanted a file or a device-dax device", path.display())]
    IsDirectory {
        /// The path that was asked for.
        path: PathBuf,
    },

    /// The path names something that can hold no region: a FIFO, a socket, a block device, or a
    /// character device which is not device-dax and so has no known size (`/dev/zero`).
    #[error("{}: is a {found}, wanted a regular file or a device-dax device", path.display())]
    WrongFileType {
        /// The path that was asked for.
        path: PathBuf,
        /// What it is.
        found: &'static str,
    },

    /// A device-dax device whose size or alignment the kernel does not tell.
    #[error("{}: size of the device is unknown: {attribute} {problem}", path.display())]
    UnknownSize {
        /// The device.
        path: PathBuf,
        /// The sysfs attribute that was read.
        attribute: PathBuf,
        /// What was wrong with it.
        problem: String,
    },

    /// There is no room for the pages that were asked for. Nothing was left behind.
    #[error("{}: no space: need {need_bytes} B, available {available_bytes} B ({limit})", place.display())]
    NoSpace {
        /// Bytes that were asked for.
        need_bytes: u64,
        /// Bytes that could be had, as the kernel counts them.
        available_bytes: u64,
        /// Where the pages should have lain.
        place: PathBuf,
        /// Whose limit it is: the file system, free memory, the memory cgroup, huge pages.
        limit: &'static str,
    },

    /// `RLIMIT_FSIZE` is below the size of the file, so writing it would raise `SIGXFSZ`.
    #[error("{}: file size {need_bytes} B is over this process's RLIMIT_FSIZE of {limit_bytes} B (ulimit -f)", path.display())]
    FileSizeLimit {
        /// The file.
        path: PathBuf,
        /// Size that was asked for, in bytes.
        need_bytes: u64,
        /// The limit, in bytes.
        limit_bytes: u64,
    },

    /// A number has to be a multiple of another one.
    #[error("{what} is {value}, wanted a multiple of {multiple}")]
    Misaligned {
        /// What the number is.
        what: &'static str,
        /// The number.
        value: u64,
        /// What it has to be a multiple of.
        multiple: u64,
    },

    /// A length of zero where something has to be.
    #[error("{what} is 0, wanted at least 1")]
    ZeroLength {
        /// What is empty.
        what: &'static str,
    },

    /// A range reaches over the end of what it lies in.
    #[error("range of {length} B at offset {offset} is outside of {size_bytes} B")]
    OutOfBounds {
        /// Start of the range, in bytes.
        offset: u64,
        /// Length of the range, in bytes.
        length: u64,
        /// Size of the whole, in bytes.
        size_bytes: u64,
    },

    /// [`Backing::Env`](super::Backing::Env) was asked for, and the variable is not there.
    #[error("no backing was named and the environment variable {variable} is not set")]
    EnvMissing {
        /// The variable.
        variable: &'static str,
    },

    /// A variable of the environment cannot be read as what it should be.
    #[error("environment variable {variable}: cannot read {value:?}: {problem}")]
    EnvUnreadable {
        /// The variable.
        variable: &'static str,
        /// Its text.
        value: String,
        /// What is wrong with it.
        problem: &'static str,
    },

    /// The size that the environment promises is not the size of the device.
    #[error("environment variable {variable} says {value:?} ({value_bytes} B), the kernel says {sysfs_bytes} B")]
    EnvDisagrees {
        /// The variable.
        variable: &'static str,
        /// Its text.
        value: String,
        /// Its text as a number of bytes.
        value_bytes: u64,
        /// Size of the device (sysfs) or of the file (fstat), in bytes.
        sysfs_bytes: u64,
    },

    /// The file system does not keep byte locks for the life of a mapping, or has none at all.
    #[error("{}: byte locks do not hold here ({problem}); put the lock file on tmpfs", path.display())]
    LockUnsupported {
        /// The file that was to be locked.
        path: PathBuf,
        /// What was seen.
        problem: String,
    },

    /// The backing has no name in a directory, and the action needs one.
    #[error("cannot {action}: the backing has no path")]
    Unnamed {
        /// What was tried.
        action: &'static str,
    },

    /// Pages of a mapping could not be had: the file is shorter than the mapping, or its memory
    /// is full. Touching them would raise `SIGBUS`.
    #[error("pages at {offset}..+{length} of the mapping are not to be had: the file is shorter or its memory is full")]
    PagesUnavailable {
        /// Offset in the mapping, in bytes.
        offset: u64,
        /// Length of the step that failed, in bytes.
        length: u64,
    },

    /// Every place of a fixed table is taken.
    #[error("{what}: all {limit} places are taken")]
    TableFull {
        /// Which table.
        what: &'static str,
        /// Places that it has.
        limit: usize,
    },

    /// The kernel refused for lack of rights (or a seal of a memfd).
    #[error("{}: permission denied to {action}", path.display())]
    PermissionDenied {
        /// What was tried.
        action: &'static str,
        /// On which file.
        path: PathBuf,
    },

    /// Any other refusal of the kernel.
    #[error("{}: cannot {action}: {source}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// On which file.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
}

impl BackingError {
    /// Sorts an answer of the kernel by [E2](self).
    pub(crate) fn io(action: &'static str, path: &Path, source: impl Into<io::Error>) -> Self {
        let source = source.into();
        let path = path.to_path_buf();
        match source.raw_os_error() {
            Some(libc::ENOENT) => Self::NotFound { path },
            Some(libc::EISDIR) => Self::IsDirectory { path },
            Some(libc::EACCES | libc::EPERM | libc::EROFS) => Self::PermissionDenied { action, path },
            _ => Self::Io { action, path, source },
        }
    }

    /// The same for the answer that `errno` holds now.
    pub(crate) fn last_os(action: &'static str, path: &Path) -> Self {
        Self::io(action, path, io::Error::last_os_error())
    }
}
