//! What a caller wants of a region.

use std::os::fd::OwnedFd;
use std::path::PathBuf;

use maru_layout::geometry::{ClassSpec, FormatSpec};
use maru_layout::superblock::{Hosts, Regime};
use maru_layout::{ATTACH_WAIT_MS, COPY_LEASE_MS, STALLED_WRITER_MS};

use crate::os::fill::Reserved;
use crate::os::{Backing, Partition};

/// How much of a region is mapped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// Everything, for storing and loading.
    #[default]
    Full,
    /// The tables alone: what a scheduler without a device uses. Payload is never mapped.
    HeaderOnly,
    /// Everything, never stored to; takes no session entry.
    ReadOnly,
}

/// Whether a region may be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Format {
    /// Attach only.
    #[default]
    Never,
    /// Make one where nothing is; attach where one is. Any number of processes may do so at once.
    IfAbsent,
    /// Make a new one in any case, unless somebody uses the old one.
    Force,
    /// Make a new one even if somebody uses the old one: users of the old one are told "region replaced". Files
    /// only; a device is never rewritten under a user.
    Replace,
}

/// Medium of a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum Medium {
    /// Ordinary memory.
    #[default]
    Cpu = 1,
    /// CXL memory.
    Cxl = 2,
    /// A disk.
    Ssd = 3,
}

/// Who can reach a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum Scope {
    /// One process.
    Process = 1,
    /// The processes of one host.
    #[default]
    Host = 2,
    /// The hosts of one sharing domain.
    Domain = 3,
}

/// What a new region should be like. Ignored when one is attached to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wish {
    /// Bytes of the region; `None` = the partition's length, or the backing's size.
    pub size_bytes: Option<u64>,
    /// Alignment of length and payload; `None` = the backing's (4 KiB for files, 2 MiB for most devices).
    pub align_bytes: Option<u64>,
    /// Slot classes in growing order of size.
    pub classes: Vec<ClassSpec>,
    /// Regime; coherent unless said.
    pub regime: Regime,
    /// Hosts; `None` = many for device-dax, one for everything else.
    pub hosts: Option<Hosts>,
    /// Session entries; `None` = by size, at most 64.
    pub sessions: Option<u32>,
    /// Bytes of a session area; `None` = by size.
    pub session_area_bytes: Option<u32>,
    /// Namespace rows; `None` = by size.
    pub namespaces: Option<u32>,
    /// Budget tokens; `None` = twice the slots.
    pub tokens: Option<u32>,
    /// Copy lease, milliseconds.
    pub copy_lease_ms: u32,
    /// Stalled writer, milliseconds.
    pub stalled_writer_ms: u32,
    /// Attach wait, milliseconds.
    pub attach_wait_ms: u32,
    /// Medium of the pool; `None` = cxl for device-dax, cpu for everything else.
    pub medium: Option<Medium>,
    /// Scope of the pool; `None` = domain for device-dax, host for everything else.
    pub scope: Option<Scope>,
    /// Name of the pool, for people.
    pub name: String,
}

impl Default for Wish {
    fn default() -> Self {
        Self {
            size_bytes: None,
            align_bytes: None,
            classes: vec![ClassSpec { slot_bytes: 64 << 10, slots: None }],
            regime: Regime::Coherent,
            hosts: None,
            sessions: None,
            session_area_bytes: None,
            namespaces: None,
            tokens: None,
            copy_lease_ms: COPY_LEASE_MS.default,
            stalled_writer_ms: STALLED_WRITER_MS.default,
            attach_wait_ms: ATTACH_WAIT_MS.default,
            medium: None,
            scope: None,
            name: String::new(),
        }
    }
}

impl Wish {
    /// One class of slots of this size, filling `size_bytes`.
    #[must_use]
    pub fn of_slots(size_bytes: u64, slot_bytes: u64) -> Self {
        Self { size_bytes: Some(size_bytes), classes: vec![ClassSpec { slot_bytes, slots: None }], ..Self::default() }
    }

    pub(crate) fn spec(&self, length_bytes: u64, align_bytes: u64, device: bool, config: &str) -> FormatSpec {
        FormatSpec {
            length_bytes,
            align_bytes,
            classes: self.classes.clone(),
            regime: self.regime,
            hosts: self.hosts.unwrap_or(if device { Hosts::Many } else { Hosts::One }),
            sessions: self.sessions,
            session_area_bytes: self.session_area_bytes,
            namespaces: self.namespaces,
            tokens: self.tokens,
            copy_lease_ms: self.copy_lease_ms,
            stalled_writer_ms: self.stalled_writer_ms,
            attach_wait_ms: self.attach_wait_ms,
            config: config.to_owned(),
        }
    }
}

/// Stage of a long open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Real pages are being reserved for a new file.
    Reserve,
    /// Tables of a device are being zeroed.
    Zero,
    /// Pages are being made present.
    Prefault,
}

/// Told of progress while a region is opened: stage, bytes done, bytes in all.
pub type Progress = Box<dyn FnMut(Stage, u64, u64) + Send>;

/// How to open a region. See [`crate::Region::open`].
pub struct OpenOptions {
    /// What the region lies in.
    pub backing: Backing,
    /// Which part of it.
    pub partition: Partition,
    /// How much is mapped.
    pub mode: Mode,
    /// Whether it may be made.
    pub format: Format,
    /// The writer's configuration, a JSON object. Stored when a region is made; compared field by field when one is
    /// attached to. `None` compares nothing.
    pub config: Option<String>,
    /// Whether all pages are made present before `open` returns.
    pub prefault: bool,
    /// Whether the pages of a new file should be huge ones where they can be had.
    pub huge_pages: bool,
    /// Permission bits of a new file.
    pub file_mode: u32,
    /// The file that life locks are held on; `None` = the backing itself. For a device that containers reach through
    /// device nodes of their own: each node is another inode, so their locks do not meet. Name one file, on a mount that
    /// all of them share; it is created if it is missing. Sessions whose locks lie on another inode are never judged dead.
    pub lock_file: Option<PathBuf>,
    /// What a new region is like.
    pub wish: Wish,
    /// Told of progress.
    pub progress: Option<Progress>,
    /// What pages a new region got; for [`crate::Region::reserved`].
    pub(crate) reserved: Option<Reserved>,
}

impl OpenOptions {
    /// The region in this backing: whole, mapped in full, attached to and never made.
    #[must_use]
    pub fn new(backing: Backing) -> Self {
        Self {
            backing,
            partition: Partition::default(),
            mode: Mode::default(),
            format: Format::default(),
            config: None,
            prefault: false,
            huge_pages: true,
            file_mode: 0o660,
            lock_file: None,
            wish: Wish::default(),
            progress: None,
            reserved: None,
        }
    }

    /// The region in this file or device.
    #[must_use]
    pub fn path(path: impl Into<PathBuf>) -> Self {
        Self::new(Backing::Path(path.into()))
    }

    /// The region in what this descriptor names, such as a received memfd.
    #[must_use]
    pub fn descriptor(descriptor: OwnedFd) -> Self {
        Self::new(Backing::Fd(descriptor))
    }

    /// The region in the device that `CXL_DAX_DEVICE` names (and `CXL_DAX_SIZE` confirms): how a claim hands
    /// composed memory to a pod.
    #[must_use]
    pub fn environment() -> Self {
        Self::new(Backing::Env)
    }

    /// A part of the backing.
    #[must_use]
    pub fn partition(mut self, offset: u64, length: Option<u64>) -> Self {
        self.partition = Partition { offset, length };
        self
    }

    /// How much is mapped.
    #[must_use]
    pub fn mode(mut self, mode: Mode) -> Self {
        self.mode = mode;
        self
    }

    /// Whether it may be made.
    #[must_use]
    pub fn format(mut self, format: Format) -> Self {
        self.format = format;
        self
    }

    /// The writer's configuration, a JSON object.
    #[must_use]
    pub fn config(mut self, json: impl Into<String>) -> Self {
        self.config = Some(json.into());
        self
    }

    /// What a new region is like.
    #[must_use]
    pub fn wish(mut self, wish: Wish) -> Self {
        self.wish = wish;
        self
    }

    /// Whether all pages are made present before `open` returns.
    #[must_use]
    pub fn prefault(mut self, prefault: bool) -> Self {
        self.prefault = prefault;
        self
    }

    /// The file that life locks are held on; see [`OpenOptions::lock_file`].
    #[must_use]
    pub fn lock_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.lock_file = Some(path.into());
        self
    }

    /// Told of progress.
    #[must_use]
    pub fn progress(mut self, progress: Progress) -> Self {
        self.progress = Some(progress);
        self
    }

    pub(crate) fn tell(&mut self, stage: Stage, done: u64, total: u64) {
        if let Some(progress) = &mut self.progress {
            progress(stage, done, total);
        }
    }
}
