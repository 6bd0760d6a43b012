//! The life of a region's file: made aside, then linked whole, or never seen.
//!
//! * C1: until [`AsideFile::link`] or [`AsideFile::replace`] succeeds, no name leads to the file
//!   (where the file system has `O_TMPFILE`), so nobody can attach to a half-made region, and a
//!   crash leaves nothing. Elsewhere it has a random name beside the path, which is removed again.
//! * C2: real pages are reserved before the link. What cannot fit is refused before a page is
//!   touched, and a shortage on the way leaves nothing behind once the value is dropped.
//! * C3: linking never overwrites: of several builders one links, the others learn `Exists` and
//!   attach to the winner's file.
//! * C4: replacing exchanges two names in one step and *then* looks at what came out; only the inode
//!   that was judged loses its name. Nobody ever removes a file whose inode is not the one it judged.
//!   Replacers take turns (a `flock` on the directory, for the moment of the exchange), so that only
//!   a stranger can make an exchange meet the wrong file, and then it is exchanged back.
//! * C5: the directory is held open, so all steps work in the same one, whatever its path does.

use std::ffi::{OsStr, OsString};
use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::ops::Range;
use std::os::fd::AsFd;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags, OFlag, RenameFlags, openat, renameat2};
use nix::sys::stat::{Mode, fstatat};
use nix::unistd::{UnlinkatFlags, linkat, unlinkat};

use super::backing::proc_path;
use super::fill::{self, Reserved};
use super::fork::ProcessTag;
use super::identity::random_bytes;
use super::space::{require_file_size, require_room};
use super::{BackingError, BackingFile, BackingKind};

/// Rights of a new file: its owner's. See [`AsideFile::set_mode`].
pub const DEFAULT_MODE: u32 = 0o600;

/// A file being made, under no name yet.
#[derive(Debug)]
pub struct AsideFile {
    backing: BackingFile,
    directory: File,
    name: OsString,
    /// The name it has meanwhile, where there is no `O_TMPFILE`. Removed on drop.
    temporary: Option<OsString>,
    tag: ProcessTag,
}

/// How [`AsideFile::link`] ended.
#[derive(Debug)]
pub enum LinkOutcome {
    /// The path names this file now.
    Linked(BackingFile),
    /// Somebody else's file was there first. Ours is gone; attach to theirs.
    Exists,
}

/// How [`AsideFile::replace`] ended.
#[derive(Debug)]
pub enum ReplaceOutcome {
    /// The path names the new file, the judged one has lost its name.
    Replaced(BackingFile),
    /// The path names neither: another file (or none) was found, and put back. Ours is gone.
    Changed,
}

impl AsideFile {
    /// Makes a file of `size_bytes` (all holes yet) that is to become `path`.
    ///
    /// # Errors
    /// [`BackingError::ZeroLength`]; [`BackingError::Misaligned`] on hugetlbfs;
    /// [`BackingError::FileSizeLimit`]; [`BackingError::NoSpace`] when it can never fit;
    /// [`BackingError::NotFound`] when the directory is missing; [`BackingError::IsDirectory`];
    /// [`BackingError::PermissionDenied`]; [`BackingError::Io`].
    pub fn create(path: &Path, size_bytes: u64) -> Result<Self, BackingError> {
        Self::create_by(path, size_bytes, true)
    }

    /// [`Self::create`], with or without trying `O_TMPFILE`.
    pub(crate) fn create_by(path: &Path, size_bytes: u64, unnamed: bool) -> Result<Self, BackingError> {
        if size_bytes == 0 {
            return Err(BackingError::ZeroLength { what: "file size" });
        }
        let path = behind_symlinks(path)?;
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(BackingError::IsDirectory { path });
        };
        if path.is_dir() {
            return Err(BackingError::IsDirectory { path });
        }
        require_file_size(size_bytes, &path)?;
        let directory = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_DIRECTORY)
            .open(parent)
            .map_err(|error| BackingError::io("open the directory", parent, error))?;
        let (file, temporary) = make_file(&directory, name, &path, unnamed)?;
        let backing = BackingFile::from_file(file, Some(path.clone())).inspect_err(|_| {
            if let Some(name) = &temporary {
                let _ = unlinkat(&directory, name.as_os_str(), UnlinkatFlags::NoRemoveDir);
            }
        })?;
        let mut aside = Self { backing, directory, name: name.to_owned(), temporary, tag: ProcessTag::current() };
        let kind = aside.backing.kind();
        if let BackingKind::Hugetlbfs { page_bytes } = kind
            && !size_bytes.is_multiple_of(page_bytes)
        {
            return Err(BackingError::Misaligned { what: "file size", value: size_bytes, multiple: page_bytes });
        }
        require_room(&aside.directory, kind, size_bytes, &path)?;
        aside.file().set_len(size_bytes).map_err(|error| BackingError::io("set the size", &path, error))?;
        // Read the size back rather than believe it.
        let file = aside.file().try_clone();
        let file = file.map_err(|error| BackingError::io("duplicate", &path, error))?;
        aside.backing = BackingFile::from_file(file, Some(path))?;
        Ok(aside)
    }

    /// The file, for mapping and writing before it is linked.
    #[must_use]
    pub fn backing(&self) -> &BackingFile {
        &self.backing
    }

    fn file(&self) -> &File {
        self.backing.file()
    }

    fn path(&self) -> &Path {
        self.backing.path().unwrap_or(Path::new("(unnamed)"))
    }

    /// Sets the rights of the file, before others can open it.
    ///
    /// # Errors
    /// [`BackingError::Io`].
    pub fn set_mode(&self, mode: u32) -> Result<(), BackingError> {
        self.file()
            .set_permissions(PermissionsExt::from_mode(mode))
            .map_err(|error| BackingError::io("set the mode", self.path(), error))
    }

    /// Gives a range of the file real pages, huge ones if `huge` and if the kernel has them.
    /// `progress` is told the bytes done and the bytes in all. A later mapping of huge pages faults once
    /// per 2 MiB and not once per 4 KiB. Bytes that were written stay. See [`fill`].
    ///
    /// # Errors
    /// [`BackingError::NoSpace`], after which the value is best dropped;
    /// [`BackingError::OutOfBounds`]; [`BackingError::Io`].
    pub fn reserve_pages(
        &self,
        range: Range<u64>,
        huge: bool,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Reserved, BackingError> {
        fill::reserve(&self.backing, range, huge, fill::threads(), progress)
    }

    /// Gives the file its name, if nobody took it.
    ///
    /// # Errors
    /// [`BackingError::PermissionDenied`] or [`BackingError::Io`]; the file is gone then.
    pub fn link(mut self) -> Result<LinkOutcome, BackingError> {
        self.store_durably()?;
        let name = self.name.clone();
        match self.link_as(&name) {
            Ok(()) => {}
            Err(Errno::EEXIST) => return Ok(LinkOutcome::Exists),
            Err(error) => return Err(BackingError::io("link", self.path(), error)),
        }
        self.remove_temporary();
        self.store_name_durably();
        Ok(LinkOutcome::Linked(self.reopened()?))
    }

    /// Puts the file in the place of the one that `judged` names (device and inode number).
    ///
    /// # Errors
    /// [`BackingError::Io`] where the file system cannot exchange names; when another program keeps
    /// the directory locked for 2 seconds; or when the file that was met could not be put back
    /// because the path changed yet again: it then lies under the temporary name that the error
    /// names, unharmed.
    pub fn replace(self, judged: (u64, u64)) -> Result<ReplaceOutcome, BackingError> {
        self.replace_after(judged, || {})
    }

    /// [`Self::replace`], with a moment between the last look and the exchange for tests to use.
    pub(crate) fn replace_after(
        mut self,
        judged: (u64, u64),
        moment: impl FnOnce(),
    ) -> Result<ReplaceOutcome, BackingError> {
        self.store_durably()?;
        let _turn = Turn::take(&self.directory, self.path())?;
        if self.inode_at(&self.name) != Some(judged) {
            return Ok(ReplaceOutcome::Changed);
        }
        if self.temporary.is_none() {
            let beside = temporary_name(&self.name);
            self.link_as(&beside).map_err(|error| BackingError::io("link", self.path(), error))?;
            self.temporary = Some(beside);
        }
        let beside = self.temporary.clone().unwrap_or_default();
        moment();
        match self.exchange(&beside) {
            Ok(()) => {}
            Err(Errno::ENOENT) => return Ok(ReplaceOutcome::Changed),
            Err(error) => return Err(BackingError::io("exchange names with", self.path(), error)),
        }
        if self.inode_at(&beside) == Some(judged) {
            // C4: the judged inode, under a name that only this call knows.
            self.temporary = None;
            unlinkat(&self.directory, beside.as_os_str(), UnlinkatFlags::NoRemoveDir)
                .map_err(|error| BackingError::io("remove the replaced file of", self.path(), error))?;
            self.store_name_durably();
            return Ok(ReplaceOutcome::Replaced(self.reopened()?));
        }
        // Somebody was quicker: give the path back to what we met there.
        let put_back = self.exchange(&beside);
        if put_back.is_ok() && self.inode_at(&beside) == Some(self.backing.dev_ino()) {
            return Ok(ReplaceOutcome::Changed); // Drop removes ours.
        }
        // And quicker again. Drop removes the temporary name only if it is ours; it is not.
        Err(BackingError::Io {
            action: "put back the file that was met; it is kept here",
            path: self.path().with_file_name(beside),
            source: put_back.err().map_or_else(|| io::Error::other("the path changed twice"), Into::into),
        })
    }

    fn exchange(&self, beside: &OsStr) -> nix::Result<()> {
        renameat2(&self.directory, beside, &self.directory, self.name.as_os_str(), RenameFlags::RENAME_EXCHANGE)
    }

    fn link_as(&self, name: &OsStr) -> nix::Result<()> {
        let Some(temporary) = &self.temporary else {
            let source = proc_path(self.file().as_fd());
            return linkat(AT_FDCWD, &source, &self.directory, name, AtFlags::AT_SYMLINK_FOLLOW);
        };
        match linkat(&self.directory, temporary.as_os_str(), &self.directory, name, AtFlags::empty()) {
            // No hard links here: a rename that does not overwrite does the same. The temporary
            // name is gone then, and `remove_temporary` finds nothing.
            Err(Errno::EPERM | Errno::EOPNOTSUPP | Errno::ENOSYS) => {
                renameat2(&self.directory, temporary.as_os_str(), &self.directory, name, RenameFlags::RENAME_NOREPLACE)
            }
            answer => answer,
        }
    }

    fn inode_at(&self, name: &OsStr) -> Option<(u64, u64)> {
        let stat = fstatat(&self.directory, name, AtFlags::AT_SYMLINK_NOFOLLOW).ok()?;
        Some((stat.st_dev, stat.st_ino))
    }

    /// A handle that outlives the aside file.
    fn reopened(&self) -> Result<BackingFile, BackingError> {
        let path = self.path();
        let file = self.file().try_clone();
        let file = file.map_err(|error| BackingError::io("duplicate", path, error))?;
        BackingFile::from_file(file, Some(path.to_path_buf()))
    }

    /// On a medium that outlives the power, bytes come before the name.
    fn store_durably(&self) -> Result<(), BackingError> {
        if self.backing.kind().needs_msync() {
            let synced = self.file().sync_all();
            synced.map_err(|error| BackingError::io("sync", self.path(), error))?;
        }
        Ok(())
    }

    fn store_name_durably(&self) {
        if self.backing.kind().needs_msync() {
            // The link is done and seen; that it may be lost with the power is all this can mean.
            let _ = self.directory.sync_all();
        }
    }

    fn remove_temporary(&mut self) {
        if let Some(name) = self.temporary.take()
            && self.inode_at(&name) == Some(self.backing.dev_ino())
        {
            // Nobody else knows the random name, so what was looked at is what is removed.
            let _ = unlinkat(&self.directory, name.as_os_str(), UnlinkatFlags::NoRemoveDir);
        }
    }
}

impl Drop for AsideFile {
    fn drop(&mut self) {
        if !self.tag.is_foreign() {
            self.remove_temporary();
        }
    }
}

/// The right to exchange names in a directory (C4). Held for a few system calls.
struct Turn {
    directory: File,
}

impl Turn {
    const ATTEMPTS: u32 = 400;
    const PAUSE: Duration = Duration::from_millis(5);

    fn take(directory: &File, path: &Path) -> Result<Self, BackingError> {
        let duplicate = directory.try_clone();
        let directory = duplicate.map_err(|error| BackingError::io("duplicate", path, error))?;
        for _ in 0..Self::ATTEMPTS {
            match directory.try_lock() {
                Ok(()) => return Ok(Self { directory }),
                // Without such locks there are no turns, only the exchange back.
                Err(TryLockError::Error(_)) => return Ok(Self { directory }),
                Err(TryLockError::WouldBlock) => std::thread::sleep(Self::PAUSE),
            }
        }
        Err(BackingError::Io {
            action: "lock the directory; another program holds it for",
            path: path.to_path_buf(),
            source: io::ErrorKind::TimedOut.into(),
        })
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        // Said aloud, because a forked child may hold a copy of the descriptor.
        let _ = self.directory.unlock();
    }
}

/// A file under no name, or under a random one where the file system cannot do that.
fn make_file(
    directory: &File,
    name: &OsStr,
    path: &Path,
    unnamed: bool,
) -> Result<(File, Option<OsString>), BackingError> {
    let mode = Mode::from_bits_truncate(DEFAULT_MODE);
    let flags = OFlag::O_RDWR | OFlag::O_CLOEXEC;
    if unnamed {
        match openat(directory, ".", flags | OFlag::O_TMPFILE, mode) {
            Ok(descriptor) => return Ok((descriptor.into(), None)),
            Err(Errno::EOPNOTSUPP | Errno::EISDIR | Errno::EINVAL | Errno::ENOENT) => {}
            Err(error) => return Err(create_error(error, path)),
        }
    }
    let temporary = temporary_name(name);
    let flags = flags | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW;
    match openat(directory, temporary.as_os_str(), flags, mode) {
        Ok(descriptor) => Ok((descriptor.into(), Some(temporary))),
        Err(error) => Err(create_error(error, path)),
    }
}

fn create_error(error: Errno, path: &Path) -> BackingError {
    BackingError::io("create a file beside", path, error)
}

/// Hidden, recognisable, and not to be guessed. Names longer than a directory takes are cut.
fn temporary_name(name: &OsStr) -> OsString {
    let number = u128::from_ne_bytes(random_bytes());
    let head: String = name.to_string_lossy().chars().take(48).collect();
    format!(".{head}.maru-{number:032x}").into()
}

/// The absolute path with symbolic links of its last part followed, so that a link to a file yet to
/// be made leads to where attaching will look.
fn behind_symlinks(path: &Path) -> Result<PathBuf, BackingError> {
    let resolve = |error| BackingError::io("resolve", path, error);
    let mut at = std::path::absolute(path).map_err(resolve)?;
    for _ in 0..40 {
        match at.read_link() {
            Ok(target) => at = at.parent().unwrap_or(Path::new("/")).join(target),
            Err(_) => return Ok(at),
        }
    }
    Err(resolve(io::Error::from_raw_os_error(libc::ELOOP)))
}
