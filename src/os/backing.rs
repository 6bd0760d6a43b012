//! Which bytes: naming a backing, opening it, and judging what it is.
//!
//! The order is judge first, open second. The path is opened with `O_PATH`, which runs no driver
//! and wakes no FIFO; what `fstat` says about that descriptor decides; only then is the same inode
//! opened for use through `/proc/self/fd/N`. So no kind of file can make the open hang, and the
//! file that was judged is the file that is used, whatever happens to the name in between.
//!
//! * K1: only regular files and device-dax devices are ever opened for use.
//! * K2: a size is what the kernel says about *this* inode: `fstat` for files, sysfs for device-dax
//!   (whose `fstat` says 0). A device without a known size is refused, never taken for empty.
//! * K3: `dev` and `ino` (for devices: the device number) are those of the open file for its whole
//!   life, so [`BackingFile::path_still_names_this`] can tell that a name was taken over.

use std::env;
use std::ffi::OsString;
use std::fs::{self, File, Metadata, OpenOptions};
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::sys::statfs::fstatfs;

use super::space::file_number;
use super::{BackingError, page_bytes};

/// Environment variable that names the device of [`Backing::Env`].
pub const ENV_DEVICE: &str = "CXL_DAX_DEVICE";
/// Environment variable that says how large that device is; optional, checked when it is there.
pub const ENV_SIZE: &str = "CXL_DAX_SIZE";

/// What a region is to lie in.
#[derive(Debug)]
pub enum Backing {
    /// What the environment hands over: a path in `CXL_DAX_DEVICE` and, optionally, its size in
    /// `CXL_DAX_SIZE` (a number of bytes, or with `K`, `M`, `G`, `T`, also as `Ki` or `KiB`; all
    /// are powers of 1024), which has to equal the size that the kernel reports.
    Env,
    /// A file or a device-dax device.
    Path(PathBuf),
    /// An open descriptor, for example a memfd that another process sent. It is opened anew, never
    /// used itself.
    Fd(OwnedFd),
}

/// A part of a backing, so that independent regions can share one device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Partition {
    /// Where the part starts, in bytes.
    pub offset: u64,
    /// How long it is, in bytes; `None` means to the end of the backing.
    pub length: Option<u64>,
}

impl Partition {
    /// The bytes that this part is, within a backing of `size_bytes` whose mappings start and end
    /// at multiples of `align_bytes`.
    ///
    /// # Errors
    /// [`BackingError::Misaligned`], [`BackingError::ZeroLength`] or
    /// [`BackingError::OutOfBounds`].
    pub fn resolve(&self, size_bytes: u64, align_bytes: u64) -> Result<Range<u64>, BackingError> {
        let multiple = align_bytes.max(1);
        let out = |length| BackingError::OutOfBounds { offset: self.offset, length, size_bytes };
        if !self.offset.is_multiple_of(multiple) {
            return Err(BackingError::Misaligned { what: "partition offset", value: self.offset, multiple });
        }
        let rest = size_bytes.checked_sub(self.offset).ok_or_else(|| out(self.length.unwrap_or(0)))?;
        let length = self.length.unwrap_or(rest);
        if length == 0 {
            return Err(BackingError::ZeroLength { what: "partition length" });
        }
        if length > rest {
            return Err(out(length));
        }
        if !length.is_multiple_of(multiple) {
            return Err(BackingError::Misaligned { what: "partition length", value: length, multiple });
        }
        Ok(self.offset..self.offset + length)
    }
}

/// What a backing turned out to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BackingKind {
    /// A file on tmpfs (`/dev/shm`).
    Tmpfs,
    /// A file on hugetlbfs.
    Hugetlbfs {
        /// Size of its pages.
        page_bytes: u64,
    },
    /// A file on famfs: fabric memory with a file system that several hosts mount.
    Famfs,
    /// A file on any other file system. Shared within one host, by the page cache.
    OrdinaryFile,
    /// A memfd: a tmpfs file without a name.
    Memfd,
    /// A device-dax device, `/dev/daxX.Y`.
    DeviceDax,
}

impl BackingKind {
    /// Whether other hosts *can* see the bytes. Whether they do is a matter of the fabric; the
    /// other kinds never are.
    #[must_use]
    pub fn shared_between_hosts(self) -> bool {
        matches!(self, Self::DeviceDax | Self::Famfs)
    }

    /// Whether stores reach the medium only by `msync`. Memory and devices never call it.
    #[must_use]
    pub fn needs_msync(self) -> bool {
        matches!(self, Self::OrdinaryFile)
    }

    /// Whether it is a file, with the life of a file (made, linked, replaced), not a device.
    #[must_use]
    pub fn is_file(self) -> bool {
        !matches!(self, Self::DeviceDax)
    }

    /// Name for people and logs.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Tmpfs => "tmpfs",
            Self::Hugetlbfs { .. } => "hugetlbfs",
            Self::Famfs => "famfs",
            Self::OrdinaryFile => "ordinary file",
            Self::Memfd => "memfd",
            Self::DeviceDax => "device-dax",
        }
    }
}

/// Where the environment and sysfs are looked up; tests put their own here.
#[derive(Clone, Copy)]
pub struct Surroundings<'a> {
    /// Looks up an environment variable.
    pub env: &'a dyn Fn(&str) -> Option<OsString>,
    /// The folder that holds `dev/char`, normally `/sys`.
    pub sysfs_root: &'a Path,
}

impl Default for Surroundings<'_> {
    fn default() -> Self {
        Self { env: &|name| env::var_os(name), sysfs_root: Path::new("/sys") }
    }
}

/// An open backing, judged.
#[derive(Debug)]
pub struct BackingFile {
    file: File,
    kind: BackingKind,
    size_bytes: u64,
    align_bytes: u64,
    path: Option<PathBuf>,
    dev: u64,
    ino: u64,
    /// Folder of the device in sysfs; files have none.
    sysfs: Option<PathBuf>,
}

impl BackingFile {
    /// Opens a backing for reading, or for reading and writing.
    ///
    /// # Errors
    /// [`BackingError::NotFound`], [`BackingError::IsDirectory`], [`BackingError::WrongFileType`],
    /// [`BackingError::UnknownSize`], the three `Env…` variants, [`BackingError::PermissionDenied`]
    /// or [`BackingError::Io`].
    pub fn open(backing: &Backing, writable: bool) -> Result<Self, BackingError> {
        Self::open_in(backing, writable, Surroundings::default())
    }

    /// [`Self::open`] with another environment and another sysfs.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_in(backing: &Backing, writable: bool, around: Surroundings<'_>) -> Result<Self, BackingError> {
        match backing {
            Backing::Path(path) => Self::open_path(path, writable, around),
            Backing::Fd(descriptor) => Self::judge(descriptor.as_fd(), None, writable, around),
            Backing::Env => {
                let path = (around.env)(ENV_DEVICE)
                    .filter(|value| !value.is_empty())
                    .ok_or(BackingError::EnvMissing { variable: ENV_DEVICE })?;
                let opened = Self::open_path(Path::new(&path), writable, around)?;
                if let Some(value) = (around.env)(ENV_SIZE).filter(|value| !value.is_empty()) {
                    require_env_size(&value, opened.size_bytes)?;
                }
                Ok(opened)
            }
        }
    }

    fn open_path(path: &Path, writable: bool, around: Surroundings<'_>) -> Result<Self, BackingError> {
        // A relative name is bound to today's working directory, so that a later look at the path
        // asks for the same one.
        let path = std::path::absolute(path).map_err(|error| BackingError::io("resolve", path, error))?;
        let looked_at = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_PATH)
            .open(&path)
            .map_err(|error| BackingError::io("open", &path, error))?;
        Self::judge(looked_at.as_fd(), Some(path), writable, around)
    }

    /// Judges an inode that is held open somehow, then opens it for use (K1).
    fn judge(
        looked_at: BorrowedFd<'_>,
        path: Option<PathBuf>,
        writable: bool,
        around: Surroundings<'_>,
    ) -> Result<Self, BackingError> {
        let shown = path.clone().unwrap_or_else(|| proc_path(looked_at));
        let metadata = metadata_of(looked_at, &shown)?;
        let wrong = |found| BackingError::WrongFileType { path: shown.clone(), found };
        let file_type = metadata.file_type();
        if file_type.is_dir() {
            return Err(BackingError::IsDirectory { path: shown });
        } else if file_type.is_fifo() {
            return Err(wrong("FIFO"));
        } else if file_type.is_socket() {
            return Err(wrong("socket"));
        } else if file_type.is_block_device() {
            return Err(wrong("block device"));
        } else if file_type.is_char_device() {
            let sysfs = dax_folder(around.sysfs_root, metadata.rdev())
                .ok_or_else(|| wrong("character device of unknown size (not device-dax)"))?;
            let size_bytes = device_number(&shown, &sysfs.join("size"))?;
            let align_bytes = device_number(&shown, &sysfs.join("align"))?;
            if !align_bytes.is_power_of_two() {
                return Err(BackingError::UnknownSize {
                    path: shown,
                    attribute: sysfs.join("align"),
                    problem: format!("holds {align_bytes}, wanted a power of two"),
                });
            }
            let file = open_again(looked_at, writable, &shown)?;
            return Ok(Self {
                file,
                kind: BackingKind::DeviceDax,
                size_bytes,
                align_bytes: align_bytes.max(page_bytes()),
                path,
                dev: 0,
                ino: metadata.rdev(),
                sysfs: Some(sysfs),
            });
        } else if !file_type.is_file() {
            return Err(wrong("file of unknown type"));
        }
        let file = open_again(looked_at, writable, &shown)?;
        Self::from_file(file, path)
    }

    /// Wraps a regular file that is open for use already.
    pub(crate) fn from_file(file: File, path: Option<PathBuf>) -> Result<Self, BackingError> {
        let shown = path.clone().unwrap_or_else(|| proc_path(file.as_fd()));
        let metadata = file.metadata().map_err(|error| BackingError::io("stat", &shown, error))?;
        let kind = kind_of_file(&file, &metadata, &shown)?;
        let align_bytes = match kind {
            BackingKind::Hugetlbfs { page_bytes } => page_bytes,
            _ => page_bytes(),
        };
        Ok(Self {
            size_bytes: metadata.size(),
            dev: metadata.dev(),
            ino: metadata.ino(),
            file,
            kind,
            align_bytes,
            path,
            sysfs: None,
        })
    }

    /// The open file.
    #[must_use]
    pub fn file(&self) -> &File {
        &self.file
    }

    /// What it is.
    #[must_use]
    pub fn kind(&self) -> BackingKind {
        self.kind
    }

    /// Its size in bytes when it was opened. See [`Self::size_now`].
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Mappings start and end at multiples of this, in bytes.
    #[must_use]
    pub fn align_bytes(&self) -> u64 {
        self.align_bytes
    }

    /// The absolute path it was opened by; a descriptor has none.
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// Device number of its file system; 0 for device-dax.
    #[must_use]
    pub fn dev(&self) -> u64 {
        self.dev
    }

    /// Inode number; for device-dax the device number, which is the device's name within this boot
    /// whichever node was opened.
    #[must_use]
    pub fn ino(&self) -> u64 {
        self.ino
    }

    /// Both numbers that name the inode, as [`AsideFile::replace`](super::create::AsideFile::replace)
    /// takes them.
    #[must_use]
    pub fn dev_ino(&self) -> (u64, u64) {
        (self.dev, self.ino)
    }

    /// The path, or what `/proc` calls the descriptor: for messages.
    #[must_use]
    pub fn shown_path(&self) -> PathBuf {
        self.path.clone().unwrap_or_else(|| proc_path(self.file.as_fd()))
    }

    /// Opens the same inode again: a new open file description, with locks of its own.
    ///
    /// # Errors
    /// [`BackingError::PermissionDenied`], or [`BackingError::NotFound`] where `/proc` is not
    /// mounted.
    pub fn reopen(&self, writable: bool) -> Result<File, BackingError> {
        open_again(self.file.as_fd(), writable, &self.shown_path())
    }

    /// Its size in bytes now. A file may have been cut or grown by anybody.
    ///
    /// # Errors
    /// [`BackingError::Io`]; for a device [`BackingError::UnknownSize`] once it is gone.
    pub fn size_now(&self) -> Result<u64, BackingError> {
        match &self.sysfs {
            Some(folder) => device_number(&self.shown_path(), &folder.join("size")),
            // fstat, not the library's statx: asked once a batch, and a third of the price.
            None => match nix::sys::stat::fstat(&self.file) {
                Ok(found) => Ok(u64::try_from(found.st_size).unwrap_or(0)),
                Err(error) => Err(BackingError::io("stat", &self.shown_path(), error)),
            },
        }
    }

    /// Whether the path still names this inode (or, for a device node, this device).
    ///
    /// False once the path is gone or names another one. A path that cannot be looked at for
    /// another reason (rights taken away) is *not* taken for replaced, and a backing without a path
    /// cannot be replaced.
    #[must_use]
    pub fn path_still_names_this(&self) -> bool {
        let Some(path) = &self.path else { return true };
        match fs::metadata(path) {
            Ok(found) if self.sysfs.is_some() => found.file_type().is_char_device() && found.rdev() == self.ino,
            Ok(found) => (found.dev(), found.ino()) == self.dev_ino(),
            Err(error) => !matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENOTDIR)),
        }
    }
}

/// A descriptor's name in `/proc`, which opens the same inode whatever its path says.
pub(crate) fn proc_path(descriptor: BorrowedFd<'_>) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", descriptor.as_raw_fd()))
}

fn open_again(descriptor: BorrowedFd<'_>, writable: bool, shown: &Path) -> Result<File, BackingError> {
    // O_NONBLOCK means nothing to the two kinds that come here; it is a second guard for K1.
    OpenOptions::new()
        .read(true)
        .write(writable)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(proc_path(descriptor))
        .map_err(|error| BackingError::io("open", shown, error))
}

fn metadata_of(descriptor: BorrowedFd<'_>, shown: &Path) -> Result<Metadata, BackingError> {
    let stat = |error| BackingError::io("stat", shown, error);
    let copy = descriptor.try_clone_to_owned().map_err(stat)?;
    File::from(copy).metadata().map_err(stat)
}

const HUGETLBFS_MAGIC: u64 = 0x9584_58f6;
const TMPFS_MAGIC: u64 = 0x0102_1994;
/// famfs over FUSE, famfs as a file system of its own, and the superblock number of its patches.
const FAMFS_MAGICS: [u64; 3] = [0x87b2_82fd, 0x87b2_82fe, 0x87b2_82ff];

fn kind_of_file(file: &File, metadata: &Metadata, shown: &Path) -> Result<BackingKind, BackingError> {
    let stat = fstatfs(file).map_err(|error| BackingError::io("statfs", shown, error))?;
    let magic = u64::from(stat.filesystem_type().0 as u32);
    Ok(match magic {
        HUGETLBFS_MAGIC => {
            BackingKind::Hugetlbfs { page_bytes: u64::try_from(stat.block_size()).unwrap_or(super::HUGE_PAGE_BYTES) }
        }
        TMPFS_MAGIC if is_memfd(file, metadata) => BackingKind::Memfd,
        TMPFS_MAGIC => BackingKind::Tmpfs,
        _ if FAMFS_MAGICS.contains(&magic) => BackingKind::Famfs,
        _ => BackingKind::OrdinaryFile,
    })
}

/// The page size of the file, if it lies on hugetlbfs.
pub(crate) fn huge_page_of(file: &File) -> Option<u64> {
    match kind_of_file(file, &file.metadata().ok()?, Path::new("")).ok()? {
        BackingKind::Hugetlbfs { page_bytes } => Some(page_bytes),
        _ => None,
    }
}

/// Seals do not tell (every tmpfs file answers `F_GET_SEALS`), the kernel's own name does.
fn is_memfd(file: &File, metadata: &Metadata) -> bool {
    metadata.nlink() == 0
        && fs::read_link(proc_path(file.as_fd()))
            .is_ok_and(|name| name.as_os_str().as_encoded_bytes().starts_with(b"/memfd:"))
}

/// The sysfs folder of a character device, if its subsystem is dax.
fn dax_folder(sysfs_root: &Path, rdev: u64) -> Option<PathBuf> {
    let number = format!("{}:{}", libc::major(rdev), libc::minor(rdev));
    let folder = sysfs_root.join("dev/char").join(number);
    let subsystem = fs::read_link(folder.join("subsystem")).ok()?;
    (subsystem.file_name()? == "dax").then_some(folder)
}

fn device_number(device: &Path, attribute: &Path) -> Result<u64, BackingError> {
    let unknown =
        |problem| BackingError::UnknownSize { path: device.to_path_buf(), attribute: attribute.to_path_buf(), problem };
    match file_number(attribute) {
        Some(0) => Err(unknown("holds 0".into())),
        Some(number) => Ok(number),
        None => Err(unknown("is missing or holds no number".into())),
    }
}

fn require_env_size(value: &OsString, sysfs_bytes: u64) -> Result<(), BackingError> {
    let text = value.to_string_lossy().into_owned();
    let value_bytes = parse_size(&text).map_err(|problem| BackingError::EnvUnreadable {
        variable: ENV_SIZE,
        value: text.clone(),
        problem,
    })?;
    if value_bytes != sysfs_bytes {
        return Err(BackingError::EnvDisagrees { variable: ENV_SIZE, value: text, value_bytes, sysfs_bytes });
    }
    Ok(())
}

/// A number of bytes with an optional binary suffix: `K`, `Ki` and `KiB` are all 1024.
pub(crate) fn parse_size(text: &str) -> Result<u64, &'static str> {
    let text = text.trim();
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, suffix) = text.split_at(digits);
    let number: u64 = match number.parse() {
        Ok(number) => number,
        Err(_) if number.is_empty() => return Err("wanted a number of bytes"),
        Err(_) => return Err("the number does not fit in 64 bits"),
    };
    let shift = match suffix.trim_start().to_ascii_uppercase().as_str() {
        "" | "B" => 0,
        "K" | "KI" | "KIB" => 10,
        "M" | "MI" | "MIB" => 20,
        "G" | "GI" | "GIB" => 30,
        "T" | "TI" | "TIB" => 40,
        "KB" | "MB" | "GB" | "TB" => {
            return Err("KB, MB, GB and TB may mean 1000 or 1024; write Ki, Mi, Gi or Ti");
        }
        _ => return Err("unknown suffix, wanted K, M, G, T or with i or iB"),
    };
    number.checked_mul(1 << shift).ok_or("the number does not fit in 64 bits")
}
