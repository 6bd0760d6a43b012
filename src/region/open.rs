//! Opening: attach to what is there, or get it formatted and attach then.
//!
//! Attaching believes nothing. The superblock is read with an ordinary read (a file that is being cut cannot raise a
//! signal there), checked field by field, and turned into a private geometry; only then is anything mapped. Any
//! number of processes may open at once on nothing: one formats, the others find its region (`format.rs`).

use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytemuck::Zeroable;
use maru_layout::PAGE_BYTES;
use maru_layout::geometry::Geometry;
use maru_layout::superblock::{Hosts, Regime, Superblock, SuperblockError};
use maru_layout::word::{FormatState, FormatWord};

use super::config;
use super::format::{self, Formatted};
use super::options::{Format, Mode, OpenOptions, Stage};
use super::tables::Tables;
use crate::os::fill::{self, Reserved};
use crate::os::fork::ProcessTag;
use crate::os::identity::HostIdentity;
use crate::os::map::Mapping;
use crate::os::{Backing, BackingError, BackingFile, BackingKind, Partition};
use crate::session::liveness::{HostWorld, Liveness};
use crate::session::{Reader, Session, SessionInfo, SessionOptions};
use crate::sync::process::{AtomicBool, Ordering};
use crate::{AttachError, HostName, HostRecovery, OpenError, Role, Usage, VouchError};

/// Whether an open made the region or found it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// This call formatted it.
    Formatted,
    /// It was there.
    Attached,
}

/// A mapped region.
///
/// Cheap to clone; sessions and readers keep the mapping alive. See the crate's front page for an example.
#[derive(Clone)]
pub struct Region {
    inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) backing: BackingFile,
    /// Where life locks lie, if not on the backing.
    lock_file: Option<BackingFile>,
    pub(crate) offset: u64,
    pub(crate) superblock: Superblock,
    pub(crate) tables: Tables,
    pub(crate) mode: Mode,
    pub(crate) tag: ProcessTag,
    pub(crate) host: HostIdentity,
    /// The path names another region now (found by a heartbeat).
    pub(crate) replaced: AtomicBool,
    outcome: Outcome,
    reserved: Option<Reserved>,
}

impl Inner {
    pub(crate) fn geometry(&self) -> &Geometry {
        self.tables.geometry()
    }

    /// A view of who lives here, through an open file of its own.
    pub(crate) fn world(&self) -> Result<HostWorld, BackingError> {
        let device = self.backing.kind() == BackingKind::DeviceDax;
        HostWorld::new(self.tables.clone(), self.locks(), self.offset, self.host, device)
    }

    /// What life locks lie on.
    pub(crate) fn locks(&self) -> &BackingFile {
        self.lock_file.as_ref().unwrap_or(&self.backing)
    }
}

/// Somebody else is making a region there all the time.
fn changing(place: String, waited_ms: u64) -> OpenError {
    OpenError::FormatIncomplete { place, waited_ms, state: "another process is formatting it".to_owned() }
}

/// The file that life locks lie on, where it is not the backing; made if it is missing.
pub(super) fn open_lock_file(options: &OpenOptions) -> Result<Option<BackingFile>, OpenError> {
    let Some(path) = &options.lock_file else { return Ok(None) };
    let opened = std::fs::OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path);
    opened.map_err(|source| BackingError::Io { action: "open the lock file", path: path.clone(), source })?;
    Ok(Some(BackingFile::open(&Backing::Path(path.clone()), true)?))
}

/// How errors call the region at `offset` of a backing.
pub(super) fn place(backing: &BackingFile, offset: u64) -> String {
    let path = backing.shown_path();
    if offset == 0 { path.display().to_string() } else { format!("{} at offset {offset}", path.display()) }
}

impl Region {
    /// Opens a region, and makes it first if the options say so.
    ///
    /// ```no_run
    /// use maru::{Format, OpenOptions, Region, Wish};
    /// let options = OpenOptions::path("/dev/shm/kv").format(Format::IfAbsent).wish(Wish::of_slots(1 << 30, 448 << 10));
    /// let region = Region::open(options)?;
    /// # Ok::<(), maru::OpenError>(())
    /// ```
    ///
    /// # Errors
    /// Each names what was found and what was wanted; see [`OpenError`]. A refused open leaves the bytes of the
    /// region as they were.
    pub fn open(mut options: OpenOptions) -> Result<Self, OpenError> {
        if let Some(text) = &options.config {
            config::parse(text).map_err(|problem| OpenError::BadConfig { problem })?;
        }
        let writable = options.mode != Mode::ReadOnly;
        if !writable {
            // Looking changes nothing.
            match options.format {
                Format::Never | Format::IfAbsent => options.format = Format::Never,
                Format::Force | Format::Replace => return Err(OpenError::ReadOnlyFormat),
            }
        }
        let fresh = matches!(options.format, Format::Force | Format::Replace);
        let deadline = Deadline::new(options.wish.attach_wait_ms);
        loop {
            let backing = match BackingFile::open(&options.backing, writable) {
                Ok(backing) => backing,
                Err(BackingError::NotFound { path }) if options.format != Format::Never => {
                    match format::create_file(&mut options, &path)? {
                        Formatted::Here(backing) => return Self::attach(backing, &mut options, Outcome::Formatted),
                        Formatted::Elsewhere => {
                            deadline.wait_or(|waited_ms| changing(path.display().to_string(), waited_ms))?;
                            continue;
                        }
                    }
                }
                Err(error) => return Err(error.into()),
            };
            if options.partition != Partition::default() {
                // Offset and length must suit the backing; where a new file is still to be sized, the formatter says so.
                options.partition.resolve(backing.size_now()?, backing.align_bytes().max(PAGE_BYTES))?;
            }
            let here = place(&backing, options.partition.offset);
            let formatted = if fresh {
                format::replace(&mut options, backing)?
            } else {
                match look(&backing, options.partition)? {
                    Look::Ready => match Self::attach(backing, &mut options, Outcome::Attached) {
                        // Forced anew since the look.
                        Err(OpenError::FormatIncomplete { place, state, .. }) => {
                            deadline.wait_or(|waited_ms| OpenError::FormatIncomplete { place, waited_ms, state })?;
                            continue;
                        }
                        attached => return attached,
                    },
                    // Attaching says field by field what is wrong.
                    Look::Foreign(_) | Look::Blank if options.format == Format::Never => {
                        return Self::attach(backing, &mut options, Outcome::Attached);
                    }
                    Look::Foreign(found) => {
                        // Where the bytes are another region's, that is the better answer.
                        format::refuse_regions_in(&backing, options.partition, &here)?;
                        return Err(OpenError::NotBlank { place: here, found });
                    }
                    Look::Blank => format::fill_blank(&mut options, backing)?,
                    Look::Unfinished(word) => {
                        let taken =
                            options.format != Format::Never && format::claimant_is_dead(&options, &backing, word)?;
                        if taken {
                            format::fill_blank(&mut options, backing)?
                        } else {
                            let state = format!("{word:?}");
                            deadline.wait_or(|waited_ms| OpenError::FormatIncomplete {
                                place: here.clone(),
                                waited_ms,
                                state,
                            })?;
                            continue;
                        }
                    }
                    // Somebody is about to give the name to another region, or died before it could: finish that.
                    Look::Replaced if options.format != Format::Never => format::fill_blank(&mut options, backing)?,
                    Look::Replaced => {
                        deadline.wait_or(|_| OpenError::Replaced { place: here.clone() })?;
                        continue;
                    }
                }
            };
            match formatted {
                Formatted::Here(backing) => return Self::attach(backing, &mut options, Outcome::Formatted),
                Formatted::Elsewhere => deadline.wait_or(|waited_ms| changing(here, waited_ms))?,
            }
        }
    }

    fn attach(backing: BackingFile, options: &mut OpenOptions, outcome: Outcome) -> Result<Self, OpenError> {
        let offset = options.partition.offset;
        let writable = options.mode != Mode::ReadOnly;
        let here = place(&backing, offset);
        let whole = backing.size_now()?;
        let Some(rest) = whole.checked_sub(offset) else {
            return Err(BackingError::OutOfBounds { offset, length: PAGE_BYTES, size_bytes: whole }.into());
        };
        let have = options.partition.length.map_or(rest, |length| length.min(rest));
        if have < PAGE_BYTES {
            let source = SuperblockError::TooShort { need_bytes: PAGE_BYTES, have_bytes: have };
            return Err(OpenError::Superblock { place: here, source });
        }
        let superblock = read_page(&backing, offset)?;
        if superblock.magic == [0; 8] {
            return Err(OpenError::NotFormatted { place: here });
        }
        let geometry = Geometry::of(&superblock, have, writable).map_err(|source| OpenError::Superblock {
            place: here.clone(),
            source: name_differences(source, &superblock, &backing, offset),
        })?;
        check_config(options.config.as_deref(), &geometry.config, &here)?;
        check_regime(&geometry, &backing, &here)?;
        let mapped = if options.mode == Mode::HeaderOnly { geometry.header_bytes } else { geometry.length_bytes };
        let mapping = Mapping::of(&backing, offset..offset + mapped, writable)?;
        if options.prefault {
            let range = 0..mapping.len();
            mapping.prefault(range, writable, fill::threads(), &mut |done, total| {
                options.tell(Stage::Prefault, done, total)
            })?;
        }
        let tables = Tables::new(Arc::new(mapping), Arc::new(geometry));
        let word = tables.control().format();
        if word != FormatWord::ready(&tables.geometry().region_id) {
            let replaced = matches!(word.state(), Some(FormatState::Ready | FormatState::Replaced));
            return Err(if replaced {
                OpenError::Replaced { place: here }
            } else {
                OpenError::FormatIncomplete { place: here, waited_ms: 0, state: format!("{word:?}") }
            });
        }
        let inner = Inner {
            host: HostIdentity::current()?,
            lock_file: if writable { open_lock_file(options)? } else { None },
            backing,
            offset,
            superblock,
            tables,
            mode: options.mode,
            tag: ProcessTag::current(),
            replaced: AtomicBool::new(false),
            outcome,
            reserved: options.reserved.take().filter(|_| outcome == Outcome::Formatted),
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Joins the region as a participant.
    ///
    /// # Errors
    /// [`AttachError::Full`] when every entry belongs to somebody who lives or cannot be judged;
    /// [`AttachError::ReadOnly`] on a read-only region.
    pub fn session(&self, engine: &str, role: Role) -> Result<Session, AttachError> {
        self.session_with(engine, role, SessionOptions::default())
    }

    /// Joins the region as a participant with limits of its own.
    ///
    /// # Errors
    /// As [`Region::session`]; [`AttachError::Options`] names an option that cannot be.
    pub fn session_with(&self, engine: &str, role: Role, options: SessionOptions) -> Result<Session, AttachError> {
        Session::attach(&self.inner, engine, role, options)
    }

    /// Looks without joining: takes no entry, stores nothing, and works in every mode.
    #[must_use]
    pub fn reader(&self) -> Reader {
        Reader::new(&self.inner)
    }

    /// What the handle shares with its sessions; for tests that look under the façade.
    #[cfg(test)]
    pub(crate) fn inner(&self) -> &Inner {
        &self.inner
    }

    /// Whether this call made the region or found it.
    #[must_use]
    pub fn outcome(&self) -> Outcome {
        self.inner.outcome
    }

    /// What pages this call reserved for the region; `None` if it found one, or where the backing is made of pages
    /// already. Where huge pages were refused, [`Reserved::huge_refused`] says why.
    #[must_use]
    pub fn reserved(&self) -> Option<Reserved> {
        self.inner.reserved
    }

    /// The region's random id.
    #[must_use]
    pub fn id(&self) -> [u8; 16] {
        self.inner.geometry().region_id
    }

    /// The region's numbers.
    #[must_use]
    pub fn geometry(&self) -> &Geometry {
        self.inner.geometry()
    }

    /// The superblock as read at open.
    #[must_use]
    pub fn superblock(&self) -> &Superblock {
        &self.inner.superblock
    }

    /// What it lies in.
    #[must_use]
    pub fn backing(&self) -> BackingKind {
        self.inner.backing.kind()
    }

    /// How much is mapped.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.inner.mode
    }

    /// Makes pages present, so that first touches cost nothing later; stores nothing. Bytes done and in all go to
    /// `progress`.
    ///
    /// # Errors
    /// The kernel could not make a page present.
    pub fn prefault(&self, progress: &mut dyn FnMut(u64, u64)) -> Result<(), BackingError> {
        let mapping = self.inner.tables.mapping();
        mapping.prefault(0..mapping.len(), self.inner.mode != Mode::ReadOnly, fill::threads(), progress)
    }

    /// Whether the mapping's memory has faulted away (only with the fault handler installed).
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.inner.tables.mapping().is_lost()
    }

    /// Recounts all slot words. In a forked child, where nothing is mapped, all zero; [`Session::usage`] says so.
    #[must_use]
    pub fn usage(&self) -> Usage {
        if self.inner.tag.is_foreign() {
            return Usage::default();
        }
        super::usage(&self.inner.tables)
    }

    /// What can be said about the holder of session entry `index`.
    ///
    /// # Errors
    /// The backing could not be opened for asking.
    pub fn liveness(&self, index: u32) -> Result<Liveness, BackingError> {
        if index >= self.inner.geometry().session_count || self.inner.tag.is_foreign() {
            return Ok(Liveness::Unknown);
        }
        Ok(self.inner.world()?.liveness(index))
    }

    /// Recovers every session of a host that is gone, on the caller's word, without joining: for a table that is full of
    /// them. As [`Session::recover_host`], but nothing is read once more.
    ///
    /// # Errors
    /// The name is this host's present boot; the region is open read-only; or the call cannot be tried.
    pub fn recover_host(&self, host: &HostName) -> Result<HostRecovery, VouchError> {
        if self.inner.mode == Mode::ReadOnly {
            return Err(VouchError::ReadOnly);
        }
        crate::session::operator::recover_host_unjoined(&self.inner, host)
    }

    /// Every entry of the session table that somebody has. Nothing in a forked child, where nothing is mapped.
    ///
    /// # Errors
    /// The backing could not be opened for asking.
    pub fn sessions(&self) -> Result<Vec<SessionInfo>, BackingError> {
        if self.inner.tag.is_foreign() {
            return Ok(Vec::new());
        }
        Ok(crate::session::operator::list(&self.inner.tables, &self.inner.world()?, None))
    }
}

/// A bounded wait for somebody else's work.
pub(super) struct Deadline {
    start: Instant,
    limit: Duration,
}

impl Deadline {
    fn new(limit_ms: u32) -> Self {
        Self { start: Instant::now(), limit: Duration::from_millis(limit_ms.into()) }
    }

    /// Sleeps a little, or fails when the time is up.
    pub(super) fn wait_or(&self, error: impl FnOnce(u64) -> OpenError) -> Result<(), OpenError> {
        let waited = self.start.elapsed();
        if waited >= self.limit {
            return Err(error(waited.as_millis() as u64));
        }
        std::thread::sleep(Duration::from_millis(2));
        Ok(())
    }
}

/// What lies at the region's place.
pub(super) enum Look {
    /// A finished region, as far as magic and format word tell.
    Ready,
    /// Nothing.
    Blank,
    /// Somebody's unfinished formatting.
    Unfinished(FormatWord),
    /// A region that has been replaced.
    Replaced,
    /// Something else.
    Foreign(String),
}

/// Looks at magic and format word, until both belong together.
pub(super) fn look(backing: &BackingFile, partition: Partition) -> Result<Look, OpenError> {
    for _ in 0..LOOKS {
        if let Some(found) = look_once(backing, partition)? {
            return Ok(found);
        }
    }
    // A word that never stands still is nobody's formatting, but the caller's deadline is the right answer to it.
    Ok(Look::Unfinished(read_format_word(backing, partition.offset)?))
}

/// How often a format word may move under a look: an honest one moves a few times.
const LOOKS: u32 = 64;

/// One look; `None` when the format word moved meanwhile.
fn look_once(backing: &BackingFile, partition: Partition) -> Result<Option<Look>, OpenError> {
    let offset = partition.offset;
    let whole = backing.size_now()?;
    let size = partition.length.and_then(|length| offset.checked_add(length)).map_or(whole, |end| end.min(whole));
    if size.saturating_sub(offset) < 2 * PAGE_BYTES {
        // Too short for any region: blank if there is not a byte, otherwise something is there.
        return Ok(Some(if size <= offset { Look::Blank } else { Look::Foreign(format!("{} bytes", size - offset)) }));
    }
    let word = read_format_word(backing, offset)?;
    let superblock = read_page(backing, offset)?;
    let found = match (superblock.magic, word.state()) {
        (maru_layout::MAGIC, Some(FormatState::Replaced)) => Look::Replaced,
        (maru_layout::MAGIC, Some(FormatState::Ready)) => Look::Ready,
        (_, Some(FormatState::Formatting)) => Look::Unfinished(word),
        (maru_layout::MAGIC, _) => Look::Ready,
        ([0, 0, 0, 0, 0, 0, 0, 0], Some(FormatState::Blank)) => match first_byte_set(backing, offset, size)? {
            None => Look::Blank,
            Some(at) => Look::Foreign(format!("zero at first, but not at byte {at}")),
        },
        (magic, _) => Look::Foreign(format!("first bytes {magic:02x?}")),
    };
    // A formatter may have come in between: its claim is there before any other byte of its, and its "ready" after all of
    // them. So what was read under one and the same word belongs together; the word moves only a few times.
    Ok((read_format_word(backing, offset)? == word).then_some(found))
}

fn read_format_word(backing: &BackingFile, offset: u64) -> Result<FormatWord, OpenError> {
    let control = read_page_bytes(backing, offset + PAGE_BYTES)?;
    Ok(FormatWord(u64::from_le_bytes(control[..8].try_into().expect("eight bytes"))))
}

/// Where the first byte lies that is not zero, among the first 64 KiB and pages spread over the rest: other formats
/// than ours begin with zeros too (an ISO image has 32 KiB of them).
fn first_byte_set(backing: &BackingFile, offset: u64, size: u64) -> Result<Option<u64>, OpenError> {
    const HEAD_PAGES: u64 = 16;
    const SPREAD: u64 = 256;
    let pages = (size - offset) / PAGE_BYTES;
    let spread = (0..SPREAD).map(|n| n * pages / SPREAD);
    let mut samples: Vec<u64> = (0..HEAD_PAGES.min(pages)).chain(spread).chain([pages - 1]).collect();
    samples.sort_unstable();
    samples.dedup();
    for page in samples {
        let at = offset + page * PAGE_BYTES;
        if let Some(within) = read_page_bytes(backing, at)?.iter().position(|byte| *byte != 0) {
            return Ok(Some(at + within as u64));
        }
    }
    Ok(None)
}

/// A superblock, by an ordinary read where there is one.
pub(super) fn read_page(backing: &BackingFile, offset: u64) -> Result<Superblock, OpenError> {
    let bytes = read_page_bytes(backing, offset)?;
    Ok(Superblock::read(&bytes).unwrap_or_else(|_| Superblock::zeroed()))
}

/// 4 KiB from a backing: files are read, devices (which have no read) are mapped for the moment.
pub(super) fn read_page_bytes(backing: &BackingFile, offset: u64) -> Result<[u8; PAGE_BYTES as usize], OpenError> {
    let mut page = [0; PAGE_BYTES as usize];
    if backing.kind() != BackingKind::DeviceDax && !matches!(backing.kind(), BackingKind::Hugetlbfs { .. }) {
        backing.file().read_exact_at(&mut page, offset).map_err(|source| BackingError::Io {
            action: "read the header",
            path: backing.shown_path(),
            source,
        })?;
        return Ok(page);
    }
    let align = backing.align_bytes();
    let start = offset / align * align;
    let mapping = Mapping::of(backing, start..start + align, false)?;
    let within = (offset - start) as usize;
    // SAFETY: `within` is a page inside the mapped alignment unit.
    let source = unsafe { mapping.as_ptr().add(within) };
    // SAFETY: one page from there on is mapped; the target is private.
    unsafe { crate::copy::from_shared(&mut page, source) };
    Ok(page)
}

/// When only the checksum is wrong, the copy at the end says which field was changed.
fn name_differences(
    error: SuperblockError,
    superblock: &Superblock,
    backing: &BackingFile,
    offset: u64,
) -> SuperblockError {
    let SuperblockError::Checksum { stored, computed, .. } = error else { return error };
    let differs = superblock
        .length_bytes
        .checked_sub(PAGE_BYTES)
        .and_then(|copy| offset.checked_add(copy))
        .and_then(|at| read_page(backing, at).ok())
        .filter(|copy| copy.check_kind(false).is_ok())
        .map(|copy| superblock.differing_fields(&copy))
        .unwrap_or_default();
    SuperblockError::Checksum { stored, computed, differs }
}

fn check_config(yours: Option<&str>, region: &str, place: &str) -> Result<(), OpenError> {
    let Some(yours) = yours else { return Ok(()) };
    let yours = config::parse(yours).map_err(|problem| OpenError::BadConfig { problem })?;
    let region = config::parse(region).map_err(|problem| OpenError::Config {
        place: place.to_owned(),
        field: "(all)".to_owned(),
        region: problem,
        yours: "a JSON object".to_owned(),
    })?;
    match config::difference(&region, &yours) {
        None => Ok(()),
        Some((field, region, yours)) => Err(OpenError::Config { place: place.to_owned(), field, region, yours }),
    }
}

/// Refuses regimes that are not built, and memory that does not reach as far as the regime says.
pub(super) fn check_regime(geometry: &Geometry, backing: &BackingFile, place: &str) -> Result<(), OpenError> {
    if geometry.regime != Regime::Coherent {
        return Err(OpenError::Regime {
            place: place.to_owned(),
            regime: geometry.regime.name(),
            hosts: geometry.hosts.name(),
        });
    }
    if geometry.hosts == Hosts::Many && backing.kind() == BackingKind::OrdinaryFile {
        return Err(OpenError::NotShared { place: place.to_owned(), backing: backing.kind().name() });
    }
    Ok(())
}

/// Marks a region as found replaced by its name, in this process.
pub(crate) fn note_replaced(inner: &Inner) {
    inner.replaced.store(true, Ordering::Relaxed);
}

/// The path behind options, where there is one.
pub(super) fn path_of(backing: &Backing) -> Option<PathBuf> {
    match backing {
        Backing::Path(path) => Some(path.clone()),
        Backing::Env | Backing::Fd(_) => None,
    }
}

/// Rules of ordinary files (by backing kind only): write back after a write, drop what is cached before a read. Devices and
/// memory-backed files are never told to.
impl Inner {
    pub(crate) fn sync_payload(&self, slot: u32, length: u32) {
        if self.backing.kind().needs_msync()
            && let Some((offset, _)) = self.geometry().payload_of(slot)
        {
            // A failure costs durability over a power loss, which a cache does not promise; the checksum tells.
            let _ = self.tables.mapping().msync(offset as usize..offset as usize + length as usize);
        }
    }

    pub(crate) fn sync_record(&self, slot: u32) {
        if self.backing.kind().needs_msync() {
            let record = self.geometry().offset(maru_layout::superblock::SectionKind::Records)
                + u64::from(slot) * maru_layout::RECORD_BYTES;
            let _ = self.tables.mapping().msync(record as usize..(record + maru_layout::RECORD_BYTES) as usize);
        }
    }

    pub(crate) fn invalidate_payload(&self, slot: u32, length: u32) {
        if self.backing.kind().needs_msync()
            && let Some((offset, _)) = self.geometry().payload_of(slot)
        {
            let _ = self.tables.mapping().msync_invalidate(offset as usize..offset as usize + length as usize);
        }
    }
}
