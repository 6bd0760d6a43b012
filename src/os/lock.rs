//! The life lock: one byte of a file, locked exactly as long as its process lives.
//!
//! An open-file-description lock belongs to the open file, and a mapping keeps its open file. So a
//! session opens the file anew, locks its byte, maps one page through that same open file, and
//! closes the descriptor: from then on only the mapping holds the lock. The mapping cannot leak to
//! anybody (`MADV_DONTFORK`), `exec` and every kind of death remove it, and `/proc` shows the lock
//! to all pid namespaces alike. Nobody can forge a death, and nobody has to be watched.
//!
//! * L1: the open file is this lock's alone: made by [`LifeLock::take`], never handed out, so
//!   nothing else can unlock the byte or lengthen its life.
//! * L2: from opening to closing, fork is held off; a child in between would inherit the
//!   descriptor, and the lock would live on with the child.
//! * L3: asking uses another open file which never locks. Several locks of one process are as
//!   visible to it as anybody's; a process judges its own sessions by its own memory, not here.
//! * L4: "held" is believed only where the file system keeps such locks. overlayfs maps the file
//!   below and lets the upper open file go, lock and all. `take` finds out with a byte that nobody
//!   else uses *before* it relies on it, so the session's byte is never let go in between. Where it
//!   does not hold, the descriptor stays open and is closed in children by a fork handler.
//! * L5: locks do not touch the file's bytes, and may lie beyond its end.

use std::fs::File;
use std::mem::ManuallyDrop;
use std::os::fd::AsFd;
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};

use super::backing::BackingFile;
use super::fork::{CloseInChild, ForkHold, ProcessTag, hold_off_fork};
use super::identity::random_bytes;
use super::map::map_shared;
use super::{BackingError, BackingKind, page_bytes};

/// A taken life lock. Dropping it gives the byte back.
#[derive(Debug)]
pub struct LifeLock {
    byte: u64,
    tag: ProcessTag,
    /// Held for its `Drop` alone.
    _page: LockPage,
    /// Kept open only where the mapping does not keep the lock (L4).
    kept: Option<KeptDescriptor>,
}

/// The mapping that keeps the open file alive. Its bytes are never touched: `PROT_NONE`.
#[derive(Debug)]
struct LockPage {
    start: *mut u8,
    length: usize,
    tag: ProcessTag,
}

// SAFETY: the address is only ever given to `munmap`, once, by `Drop`, which any thread may do.
unsafe impl Send for LockPage {}
// SAFETY: no method with `&self` exists that uses the address.
unsafe impl Sync for LockPage {}

impl LockPage {
    fn map(file: &File, length_bytes: u64, held: &ForkHold) -> Result<Self, BackingError> {
        let length = usize::try_from(length_bytes).map_err(|_| BackingError::OutOfBounds {
            offset: 0,
            length: length_bytes,
            size_bytes: usize::MAX as u64,
        })?;
        let start = map_shared(file, 0, length, libc::PROT_NONE, length_bytes, held)?;
        Ok(Self { start, length, tag: ProcessTag::current() })
    }
}

impl Drop for LockPage {
    fn drop(&mut self) {
        if self.tag.is_foreign() {
            return; // Not mapped in a child; the address may be somebody else's there.
        }
        // SAFETY: the range was mapped by `map`, is this value's alone, and was never handed out.
        unsafe { libc::munmap(self.start.cast(), self.length) };
    }
}

/// A descriptor that has to stay open, and that no child may keep.
#[derive(Debug)]
struct KeptDescriptor {
    /// `None` when all places are taken: then a child keeps the lock until it executes or ends.
    order: Option<CloseInChild>,
    file: ManuallyDrop<File>,
    tag: ProcessTag,
}

impl Drop for KeptDescriptor {
    fn drop(&mut self) {
        let no_handler_closed_it = self.order.is_none();
        if self.tag.is_foreign() && !no_handler_closed_it {
            return; // The fork handler closed it; the number may be another file's by now.
        }
        let _held = hold_off_fork();
        self.order = None;
        // SAFETY: dropped once, here, and not used afterwards.
        unsafe { ManuallyDrop::drop(&mut self.file) };
    }
}

/// What asking for a byte gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Held {
    /// Somebody holds it, so somebody lives.
    Yes {
        /// The holder's pid, if the kernel knows one. It does not for life locks; it does for a
        /// classical `fcntl` lock of some other program.
        pid: Option<i32>,
    },
    /// Nobody holds it. If a session once did, it is dead.
    No,
}

impl Held {
    /// Whether it is [`Held::Yes`].
    #[must_use]
    pub fn is_held(self) -> bool {
        matches!(self, Self::Yes { .. })
    }
}

impl LifeLock {
    /// Takes the lock on one byte; `None` if somebody holds it.
    ///
    /// # Errors
    /// [`BackingError::LockUnsupported`] where byte locks do not work; [`BackingError::OutOfBounds`]
    /// for a byte over `i64::MAX - 1`; [`BackingError::PermissionDenied`] when the file cannot be
    /// opened for writing; [`BackingError::Io`].
    pub fn take(backing: &BackingFile, byte: u64) -> Result<Option<Self>, BackingError> {
        let asker = LockAsker::new(backing)?;
        let held = hold_off_fork();
        let mapping_keeps = mapping_keeps_locks(backing, &asker, &held)?;
        let Some((file, page)) = lock_and_map(backing, byte, &held)? else {
            return Ok(None);
        };
        let kept = if mapping_keeps {
            drop(file);
            None
        } else {
            Some(KeptDescriptor {
                order: CloseInChild::order(file.as_fd(), &held),
                file: ManuallyDrop::new(file),
                tag: ProcessTag::current(),
            })
        };
        let taken = Self { byte, tag: ProcessTag::current(), _page: page, kept };
        if !asker.ask(byte)?.is_held() {
            return Err(BackingError::LockUnsupported {
                path: backing.shown_path(),
                problem: format!("byte {byte} was locked and is seen as free"),
            });
        }
        Ok(Some(taken))
    }

    /// The byte that is locked.
    #[must_use]
    pub fn byte(&self) -> u64 {
        self.byte
    }

    /// Whether a descriptor had to stay open for it (overlayfs).
    #[must_use]
    pub fn keeps_descriptor(&self) -> bool {
        self.kept.is_some()
    }

    /// Whether this handle was inherited over a fork; the lock is the parent's alone then.
    #[must_use]
    pub fn is_foreign(&self) -> bool {
        self.tag.is_foreign()
    }
}

/// L1 and L2: a new open file, its lock, its mapping. `None` if the byte is held by another.
fn lock_and_map(backing: &BackingFile, byte: u64, held: &ForkHold) -> Result<Option<(File, LockPage)>, BackingError> {
    let request = one_byte(libc::F_WRLCK, byte)?;
    let file = backing.reopen(true)?;
    loop {
        match fcntl(&file, FcntlArg::F_OFD_SETLK(&request)) {
            Ok(_) => break,
            Err(Errno::EAGAIN | Errno::EACCES) => return Ok(None),
            Err(Errno::EINTR) => {}
            Err(error) => return Err(lock_error(error, &backing.shown_path())),
        }
    }
    let length_bytes = match backing.kind() {
        BackingKind::DeviceDax | BackingKind::Hugetlbfs { .. } => backing.align_bytes(),
        _ => page_bytes(),
    };
    let page = LockPage::map(&file, length_bytes, held)?;
    Ok(Some((file, page)))
}

/// L4: whether a lock outlives its descriptor here, tried on a byte that nobody else uses.
fn mapping_keeps_locks(backing: &BackingFile, asker: &LockAsker, held: &ForkHold) -> Result<bool, BackingError> {
    // Sessions lock partition offset + index; no backing reaches to 2^61.
    let byte = 1 << 61 | u64::from_le_bytes(random_bytes()) >> 4;
    let Some((file, page)) = lock_and_map(backing, byte, held)? else {
        return Ok(false);
    };
    drop(file);
    let keeps = asker.ask(byte)?.is_held();
    drop(page);
    Ok(keeps)
}

/// Asks for locks through an open file of its own, which never locks (L3).
#[derive(Debug)]
pub struct LockAsker {
    file: File,
}

impl LockAsker {
    /// Opens the backing once more, for asking.
    ///
    /// # Errors
    /// As [`BackingFile::reopen`].
    pub fn new(backing: &BackingFile) -> Result<Self, BackingError> {
        Ok(Self { file: backing.reopen(false)? })
    }

    /// Whether anybody, this process included, holds the byte. One system call.
    ///
    /// # Errors
    /// [`BackingError::LockUnsupported`], [`BackingError::OutOfBounds`] or [`BackingError::Io`]:
    /// "cannot know", which is not "dead".
    pub fn ask(&self, byte: u64) -> Result<Held, BackingError> {
        let mut question = one_byte(libc::F_WRLCK, byte)?;
        fcntl(&self.file, FcntlArg::F_OFD_GETLK(&mut question))
            .map_err(|error| lock_error(error, &super::backing::proc_path(self.file.as_fd())))?;
        Ok(match i32::from(question.l_type) {
            libc::F_UNLCK => Held::No,
            _ => Held::Yes { pid: Some(question.l_pid).filter(|&pid| pid > 0) },
        })
    }
}

/// Asks once. Keep a [`LockAsker`] for asking often.
///
/// # Errors
/// As [`LockAsker::new`] and [`LockAsker::ask`].
pub fn held(backing: &BackingFile, byte: u64) -> Result<Held, BackingError> {
    LockAsker::new(backing)?.ask(byte)
}

fn one_byte(lock_type: i32, byte: u64) -> Result<libc::flock, BackingError> {
    let start = i64::try_from(byte).ok().filter(|&start| start < i64::MAX).ok_or(BackingError::OutOfBounds {
        offset: byte,
        length: 1,
        size_bytes: i64::MAX as u64,
    })?;
    Ok(libc::flock {
        l_type: lock_type as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: start,
        l_len: 1,
        l_pid: 0,
    })
}

fn lock_error(error: Errno, path: &Path) -> BackingError {
    match error {
        Errno::EINVAL | Errno::ENOLCK | Errno::EOPNOTSUPP | Errno::ENOSYS => {
            BackingError::LockUnsupported { path: path.to_path_buf(), problem: error.desc().to_owned() }
        }
        _ => BackingError::io("lock a byte", path, error),
    }
}
