//! Making a region.
//!
//! * Z1: the format word is stored last, with everything else before it; whoever reads "ready" finds a whole region.
//! * Z2: a *file* is built under no name, gets real pages, is filled in, and is then linked into place. A half-made file
//!   never has the name; a formatter that dies leaves nothing; of several, one links and the others find its file.
//! * Z3: a *device* (and whatever else has to be filled in place: a memfd, a partition of a file) is claimed in its
//!   format word, with the formatter's host in the claim, while the formatter holds a lock on a byte of its own. The claim
//!   is taken over only when that host's kernel says that the lock is free.
//! * Z4: nothing is rewritten in place that somebody may be using. A file that is made anew gets a new inode and takes
//!   the name of exactly the inode that was judged; users of the old one find its format word `Replaced`. A device with a
//!   participant who lives, or of whom nothing can be known, is refused.

use std::path::Path;

use bytemuck::Zeroable;
use maru_layout::geometry::{Geometry, SpecError, Stamp};
use maru_layout::superblock::{Hosts, SectionKind, Superblock};
use maru_layout::table::{ControlPage, PoolEntry, SessionEntry};
use maru_layout::word::{FormatState, FormatWord, SessionState, SessionWord};
use maru_layout::{FORMATTER_LOCK_BYTE, MAX_SESSIONS, PAGE_BYTES};

use super::open::{Look, check_regime, look, open_lock_file, path_of, place, read_page, read_page_bytes};
use super::options::{Format, Medium, OpenOptions, Scope, Stage};
use crate::OpenError;
use crate::os::create::{AsideFile, LinkOutcome, ReplaceOutcome};
use crate::os::fill;
use crate::os::identity::{HostIdentity, random_bytes, wall_ns};
use crate::os::lock::{LifeLock, LockAsker};
use crate::os::map::Mapping;
use crate::os::{BackingError, BackingFile, BackingKind, Partition};
use crate::session::liveness::host_tag;
use crate::step::step;
use crate::sync::{AtomicU64, Ordering, fence};

/// Where the region ended up.
pub(super) enum Formatted {
    /// This call made it.
    Here(BackingFile),
    /// Somebody else's is (or will be) there: look again.
    Elsewhere,
}

/// Makes a region in a new file (Z2).
pub(super) fn create_file(options: &mut OpenOptions, path: &Path) -> Result<Formatted, OpenError> {
    match build_aside(options, path, None)?.link()? {
        LinkOutcome::Linked(backing) => Ok(Formatted::Here(backing)),
        LinkOutcome::Exists => Ok(Formatted::Elsewhere),
    }
}

/// Makes a region in place of whatever is there, unless somebody uses it (Z4).
pub(super) fn replace(options: &mut OpenOptions, old: BackingFile) -> Result<Formatted, OpenError> {
    let offset = options.partition.offset;
    let lock_file = open_lock_file(options)?;
    let users = Users::of(&old, lock_file.as_ref().unwrap_or(&old), offset, false)?;
    let in_place = must_fill_in_place(options, &old);
    if users.live > 0 && (in_place || options.format != Format::Replace) {
        return Err(OpenError::InUse { place: place(&old, offset), live: users.live, first: users.first });
    }
    if in_place {
        return fill_in_place(options, old, true);
    }
    replace_file(options, old, users.incarnation.wrapping_add(1))
}

/// Makes a region where nothing is: in place, or for a named file by replacing exactly that empty file.
pub(super) fn fill_blank(options: &mut OpenOptions, blank: BackingFile) -> Result<Formatted, OpenError> {
    if must_fill_in_place(options, &blank) {
        fill_in_place(options, blank, false)
    } else {
        replace_file(options, blank, 0)
    }
}

/// Whether the formatter behind a claim is proven dead: this process can see its lock, and the lock is free.
pub(super) fn claimant_is_dead(
    options: &OpenOptions,
    backing: &BackingFile,
    word: FormatWord,
) -> Result<bool, OpenError> {
    let lock_file = open_lock_file(options)?;
    let locks = lock_file.as_ref().unwrap_or(backing);
    if !word.claimed_by_host(host_tag(&HostIdentity::current()?, locks)?) {
        return Ok(false);
    }
    Ok(!LockAsker::new(locks)?.ask(options.partition.offset + FORMATTER_LOCK_BYTE)?.is_held())
}

/// Devices, descriptors and parts of a backing are filled in place; a whole named file gets a new inode.
fn must_fill_in_place(options: &OpenOptions, backing: &BackingFile) -> bool {
    !backing.kind().is_file() || options.partition != Partition::default() || path_of(&options.backing).is_none()
}

fn replace_file(options: &mut OpenOptions, old: BackingFile, incarnation: u64) -> Result<Formatted, OpenError> {
    let Some(path) = path_of(&options.backing) else { return Ok(Formatted::Elsewhere) };
    let size = old.size_now()?;
    // The whole file goes; a region in another part of it must not go along.
    refuse_overlap(&old, 0, size, PAGE_BYTES, &place(&old, 0))?;
    let aside = build_aside(options, &path, Some((size, incarnation)))?;
    // Users of the old one are told first: whoever dies between the two leaves a region that says "replaced", and the
    // next opener finishes the replacement.
    let marked = mark_replaced(&old)?;
    match aside.replace(old.dev_ino()) {
        Ok(ReplaceOutcome::Replaced(backing)) => Ok(Formatted::Here(backing)),
        Ok(ReplaceOutcome::Changed) => Ok(Formatted::Elsewhere),
        Err(error) => {
            // It keeps its name, so it goes on.
            if let Some((mapping, word)) = marked {
                step!(FormatReplaced);
                format_word(&mapping).store(word, Ordering::Release);
            }
            Err(error.into())
        }
    }
}

/// Tells the users of a file that it loses its name. Returns what is needed to take that back; `None` where there was no
/// region.
fn mark_replaced(old: &BackingFile) -> Result<Option<(Mapping, u64)>, OpenError> {
    if old.size_now()? < 2 * PAGE_BYTES || read_page(old, 0)?.magic != maru_layout::MAGIC {
        return Ok(None);
    }
    let mapping = Mapping::of(old, 0..(2 * PAGE_BYTES).max(old.align_bytes()), true)?;
    step!(FormatReplaced);
    // ORDERING: AcqRel: a participant that sees this word stores nothing that belongs to a later region; the word it had
    // is kept for the case that the file keeps its name.
    let word = format_word(&mapping).swap(FormatWord::new(FormatState::Replaced, 0).0, Ordering::AcqRel);
    Ok(Some((mapping, word)))
}

fn build_aside(options: &mut OpenOptions, path: &Path, old: Option<(u64, u64)>) -> Result<AsideFile, OpenError> {
    let offset = options.partition.offset;
    let here = path.display().to_string();
    let old_size = old.map(|(size, _)| size).filter(|size| *size > 0);
    let length = options
        .wish
        .size_bytes
        .or(options.partition.length)
        .or(old_size.map(|size| size.saturating_sub(offset)))
        .ok_or_else(|| OpenError::SizeMissing { place: here.clone() })?;
    let total = offset.checked_add(length).ok_or(BackingError::OutOfBounds { offset, length, size_bytes: u64::MAX })?;
    // A wish that cannot be had fails before anything is made.
    plan(options, length, options.wish.align_bytes.unwrap_or(PAGE_BYTES), false, 0, &here)?;
    let aside = AsideFile::create(path, total)?;
    let align = options.wish.align_bytes.unwrap_or(PAGE_BYTES).max(aside.backing().align_bytes());
    if !offset.is_multiple_of(align) {
        return Err(BackingError::Misaligned { what: "partition offset", value: offset, multiple: align }.into());
    }
    let superblock = plan(options, length, align, false, old.map_or(0, |(_, incarnation)| incarnation), &here)?;
    let geometry = Geometry::of(&superblock, length, true)
        .map_err(|source| OpenError::Superblock { place: here.clone(), source })?;
    check_regime(&geometry, aside.backing(), &here)?;
    let huge = options.huge_pages;
    let reserved = aside.reserve_pages(0..total, huge, &mut |done, total| options.tell(Stage::Reserve, done, total))?;
    options.reserved = Some(reserved);
    aside.set_mode(options.file_mode)?;
    let mapping = Mapping::of(aside.backing(), offset..total, true)?;
    write_tables(&mapping, &superblock, &pool_of(options, false), None);
    step!(FormatReady);
    // Nobody else sees the file yet; the word needs no claim.
    format_word(&mapping).store(FormatWord::ready(&superblock.region_id).0, Ordering::Release);
    if superblock.hosts == Hosts::Many as u8 {
        write_back(&mapping, PAGE_BYTES, 8);
    }
    step!(FormatLink);
    Ok(aside)
}

/// Claims, fills and publishes a region in place (Z3).
fn fill_in_place(options: &mut OpenOptions, backing: BackingFile, force: bool) -> Result<Formatted, OpenError> {
    let offset = options.partition.offset;
    let here = place(&backing, offset);
    let size = backing.size_now()?;
    let rest = size.checked_sub(offset).ok_or(BackingError::OutOfBounds { offset, length: 0, size_bytes: size })?;
    let length = options.partition.length.or(options.wish.size_bytes).unwrap_or(rest);
    if length > rest {
        return Err(BackingError::OutOfBounds { offset, length, size_bytes: size }.into());
    }
    let device = backing.kind() == BackingKind::DeviceDax;
    let align = options.wish.align_bytes.unwrap_or(PAGE_BYTES).max(backing.align_bytes());
    if !offset.is_multiple_of(align) {
        return Err(BackingError::Misaligned { what: "partition offset", value: offset, multiple: align }.into());
    }
    let lock_file = open_lock_file(options)?;
    let locks = lock_file.as_ref().unwrap_or(&backing);
    let Some(_lock) = LifeLock::take(locks, offset + FORMATTER_LOCK_BYTE)? else {
        return Ok(Formatted::Elsewhere);
    };
    if !force && !matches!(look(&backing, options.partition)?, Look::Blank | Look::Unfinished(_)) {
        return Ok(Formatted::Elsewhere);
    }
    refuse_overlap(&backing, offset, length, align, &here)?;
    let incarnation = read_page(&backing, offset)
        .map_or(0, |old| if old.magic == maru_layout::MAGIC { old.incarnation.wrapping_add(1) } else { 0 });
    let superblock = plan(options, length, align, device, incarnation, &here)?;
    let geometry = Geometry::of(&superblock, length, true)
        .map_err(|source| OpenError::Superblock { place: here.clone(), source })?;
    check_regime(&geometry, &backing, &here)?;
    let mapping = Mapping::of(&backing, offset..offset + length, true)?;
    // Real pages now: a shortage is an error here and not a signal later.
    match backing.kind() {
        BackingKind::DeviceDax => {}
        BackingKind::Tmpfs | BackingKind::Memfd => {
            let (range, huge) = (offset..offset + length, options.huge_pages);
            let tell = &mut |done, total| options.tell(Stage::Reserve, done, total);
            options.reserved = Some(fill::reserve(&backing, range, huge, fill::threads(), tell)?);
        }
        BackingKind::Hugetlbfs { .. } | BackingKind::Famfs | BackingKind::OrdinaryFile => {
            let tell = &mut |done, total| options.tell(Stage::Reserve, done, total);
            mapping.prefault(0..mapping.len(), true, fill::threads(), tell)?;
        }
    }
    let tag = host_tag(&HostIdentity::current()?, locks)?;
    let word = format_word(&mapping);
    let found = FormatWord(word.load(Ordering::Acquire));
    if found.state() == Some(FormatState::Formatting) && !found.claimed_by_host(tag) {
        // Another host's claim: only its own kernel knows whether that formatter lives. Not even force takes it.
        return Ok(Formatted::Elsewhere);
    }
    if !force && !matches!(found.state(), Some(FormatState::Blank | FormatState::Formatting)) {
        // Another host, which this host's lock does not hold off, has finished since the look above.
        return Ok(Formatted::Elsewhere);
    }
    let claim = FormatWord::formatting(tag, u32::from_le_bytes(random_bytes()));
    step!(FormatClaim);
    // ORDERING: SeqCst: of formatters on several hosts, one gets the word. A session takes its lock and entry and then
    // looks at this word once more; the look at locks and entries below comes after the claim. One of us sees the other.
    if word.compare_exchange(found.0, claim.0, Ordering::SeqCst, Ordering::Acquire).is_err() {
        return Ok(Formatted::Elsewhere);
    }
    let users = Users::of(&backing, locks, offset, true)?;
    if users.live > 0 {
        // Nothing has been overwritten yet: give the word back as it was.
        step!(FormatClaim);
        let _ = word.compare_exchange(claim.0, found.0, Ordering::AcqRel, Ordering::Relaxed);
        return Err(OpenError::InUse { place: here, live: users.live, first: users.first });
    }
    let pool = pool_of(options, device);
    write_tables(&mapping, &superblock, &pool, Some(&mut |done, total| options.tell(Stage::Zero, done, total)));
    step!(FormatReady);
    // ORDERING: AcqRel: all bytes before it are visible before the word says so (Z1); from the claim, so that a formatter
    // that lost it (which needs an operator to vouch wrongly) does not publish.
    if word
        .compare_exchange(claim.0, FormatWord::ready(&superblock.region_id).0, Ordering::AcqRel, Ordering::Relaxed)
        .is_err()
    {
        return Ok(Formatted::Elsewhere);
    }
    if superblock.hosts == Hosts::Many as u8 {
        write_back(&mapping, PAGE_BYTES, 8);
    }
    Ok(Formatted::Here(backing))
}

/// The superblock for this wish.
fn plan(
    options: &OpenOptions,
    length: u64,
    align: u64,
    device: bool,
    incarnation: u64,
    here: &str,
) -> Result<Superblock, OpenError> {
    let config = options.config.as_deref().unwrap_or("{}");
    let stamp = Stamp {
        region_id: random_bytes(),
        incarnation,
        hash_seed: u64::from_le_bytes(random_bytes()),
        formatted_ns: wall_ns(),
        formatter_host: HostIdentity::current()?.host_id,
    };
    options
        .wish
        .spec(length, align, device, config)
        .plan(&stamp)
        .map_err(|source: SpecError| OpenError::Spec { place: here.to_owned(), source })
}

fn pool_of(options: &OpenOptions, device: bool) -> PoolEntry {
    let mut pool = PoolEntry::zeroed();
    pool.id = random_bytes();
    pool.medium = options.wish.medium.unwrap_or(if device { Medium::Cxl } else { Medium::Cpu }) as u8;
    pool.tier = 1;
    pool.scope = options.wish.scope.unwrap_or(if device { Scope::Domain } else { Scope::Host }) as u8;
    let name = options.wish.name.as_bytes();
    let mut end = name.len().min(pool.name.len());
    while !options.wish.name.is_char_boundary(end) {
        end -= 1;
    }
    pool.name[..end].copy_from_slice(&name[..end]);
    pool
}

/// Told of bytes done and bytes in all.
type Zeroed<'a> = &'a mut dyn FnMut(u64, u64);

/// Writes copy, tables and superblock; the format word is the caller's (Z1). `zero` is given where the bytes may be old.
fn write_tables(mapping: &Mapping, superblock: &Superblock, pool: &PoolEntry, zero: Option<Zeroed<'_>>) {
    let offset_of = |kind| superblock.section(kind).map_or(0, |row| row.offset_bytes);
    step!(FormatCopy);
    put(mapping, offset_of(SectionKind::Copy), bytemuck::bytes_of(superblock));
    let many = superblock.hosts == Hosts::Many as u8;
    if many {
        write_back(mapping, offset_of(SectionKind::Copy), PAGE_BYTES);
    }
    if let Some(told) = zero {
        step!(FormatTables);
        let zeros = vec![0u8; 1 << 20];
        // Everything between control word and payload; the word itself holds the claim.
        let mut at = PAGE_BYTES + 8;
        while at < superblock.header_bytes {
            let piece = (superblock.header_bytes - at).min(zeros.len() as u64);
            put(mapping, at, &zeros[..piece as usize]);
            at += piece;
            told(at, superblock.header_bytes);
        }
    }
    step!(FormatPool);
    put(mapping, offset_of(SectionKind::Pools), bytemuck::bytes_of(pool));
    step!(FormatSuperblock);
    put(mapping, 0, bytemuck::bytes_of(superblock));
    if many {
        write_back(mapping, 0, superblock.header_bytes);
    }
    // ORDERING: SeqCst fence: the bytes above were written by instructions that the compiler does not see into; the
    // caller's store of the format word comes after them (Z1).
    step!(FormatFence);
    fence(Ordering::SeqCst);
}

/// Writes a range back from this host's caches: what is published must not die with the host.
fn write_back(mapping: &Mapping, offset: u64, length: u64) {
    assert!(offset + length <= mapping.len() as u64, "a planned section lies inside the mapping");
    // SAFETY: `offset` is inside the mapping, as just checked.
    let start = unsafe { mapping.as_ptr().add(offset as usize) };
    // SAFETY: so is the whole range.
    unsafe { <crate::regime::ManyHosts as crate::regime::Regime>::write_back_range(start, length as usize) }
}

/// Copies bytes to an offset of a region being made.
fn put(mapping: &Mapping, offset: u64, bytes: &[u8]) {
    let end = offset + bytes.len() as u64;
    assert!(end <= mapping.len() as u64, "a planned section lies inside the mapping");
    // SAFETY: `offset` is inside the mapping, as just checked.
    let target = unsafe { mapping.as_ptr().add(offset as usize) };
    // SAFETY: so is the end; the source is private memory.
    unsafe { crate::copy::to_shared(target, bytes) }
}

/// The format word of a mapped region.
fn format_word(mapping: &Mapping) -> &AtomicU64 {
    assert!(mapping.len() as u64 >= 2 * PAGE_BYTES, "superblock and control page are mapped");
    // SAFETY: the control page is the second page of the mapping.
    let place = unsafe { mapping.as_ptr().add(PAGE_BYTES as usize + core::mem::offset_of!(ControlPage, format)) };
    // SAFETY: mapped as long as the mapping is borrowed, aligned to a page, and only ever touched atomically.
    unsafe { &*place.cast::<AtomicU64>() }
}

/// Who uses a place that is to be formatted anew.
struct Users {
    live: u32,
    first: String,
    incarnation: u64,
}

impl Users {
    /// Sessions whose life lock is held, and those of which nothing can be known here: of other hosts, or behind a
    /// damaged superblock on a device. `formatting`: the caller holds the formatter's byte itself.
    fn of(backing: &BackingFile, locks: &BackingFile, offset: u64, formatting: bool) -> Result<Self, OpenError> {
        let mut users = Self { live: 0, first: String::new(), incarnation: 0 };
        let asker = LockAsker::new(locks)?;
        let size = backing.size_now()?;
        let readable = offset.checked_add(2 * PAGE_BYTES).is_some_and(|end| end <= size);
        let superblock = if readable { read_page(backing, offset)? } else { Superblock::zeroed() };
        let known = superblock.check(size.saturating_sub(offset), false).is_ok();
        users.incarnation = if known { superblock.incarnation } else { 0 };
        let device = backing.kind() == BackingKind::DeviceDax;
        if !known && device && superblock.magic == maru_layout::MAGIC {
            users.add("a region with a damaged superblock, of whose sessions nothing is known".to_owned());
        }
        let entries = if known { superblock.session_count } else { MAX_SESSIONS };
        let here = host_tag(&HostIdentity::current()?, locks)?;
        for index in 0..entries {
            let held = asker.ask(offset + u64::from(index))?;
            if held.is_held() {
                users.add(format!("session {index} (its life lock is held)"));
            } else if known && (device || superblock.hosts == Hosts::Many as u8) {
                let word = SessionWord(session_entry(backing, offset, &superblock, index)?.word);
                let occupied = !matches!(word.state(), None | Some(SessionState::Free | SessionState::Dead));
                if occupied && word.host_tag() != here {
                    users.add(format!("session {index} of another host, of which nothing is known here"));
                }
            }
        }
        if !formatting && asker.ask(offset + FORMATTER_LOCK_BYTE)?.is_held() {
            users.add("a formatter".to_owned());
        }
        Ok(users)
    }

    fn add(&mut self, who: String) {
        self.live += 1;
        if self.first.is_empty() {
            self.first = who;
        }
    }
}

fn session_entry(
    backing: &BackingFile,
    offset: u64,
    superblock: &Superblock,
    index: u32,
) -> Result<SessionEntry, OpenError> {
    let table = superblock.section(SectionKind::Sessions).map_or(0, |row| row.offset_bytes);
    let at = offset + table + u64::from(index) * size_of::<SessionEntry>() as u64;
    let page = at / PAGE_BYTES * PAGE_BYTES;
    let bytes = read_page_bytes(backing, page)?;
    // Entries are 256 bytes on multiples of 128, so one may straddle two pages.
    let mut both = bytes.to_vec();
    both.extend_from_slice(&read_page_bytes(backing, page + PAGE_BYTES)?);
    let within = (at - page) as usize;
    Ok(bytemuck::pod_read_unaligned(&both[within..within + size_of::<SessionEntry>()]))
}

/// Whether the format word behind a superblock belongs to it: the copy at the end of a region has none.
fn is_complete(backing: &BackingFile, at: u64, superblock: &Superblock) -> Result<bool, OpenError> {
    let control = read_page_bytes(backing, at + PAGE_BYTES)?;
    let word = u64::from_le_bytes(*control.first_chunk().expect("a page"));
    Ok(word == FormatWord::ready(&superblock.region_id).0)
}

/// Refuses a partition in which, or over which, another region of the same backing lies.
pub(super) fn refuse_regions_in(backing: &BackingFile, partition: Partition, here: &str) -> Result<(), OpenError> {
    let rest = backing.size_now()?.saturating_sub(partition.offset);
    let length = partition.length.map_or(rest, |length| length.min(rest));
    refuse_overlap(backing, partition.offset, length, PAGE_BYTES, here)
}

/// Refuses a partition that would lie over a part of another region of the same backing. Regions start at multiples of
/// the alignment, so that is where to look.
fn refuse_overlap(backing: &BackingFile, offset: u64, length: u64, align: u64, here: &str) -> Result<(), OpenError> {
    let size = backing.size_now()?;
    let step = align.max(backing.align_bytes());
    let mut at = 0;
    while at < offset + length && at + 2 * PAGE_BYTES <= size {
        let other = read_page(backing, at)?;
        let complete = other.magic == maru_layout::MAGIC
            && other.check(size - at, false).is_ok()
            && is_complete(backing, at, &other)?;
        // What lies exactly at `offset` is what is to be formatted anew; what it holds is not looked at.
        if complete && at != offset && at + other.length_bytes > offset {
            return Err(OpenError::Overlap {
                place: here.to_owned(),
                offset,
                length,
                other_offset: at,
                other_length: other.length_bytes,
            });
        }
        at += if complete { other.length_bytes.next_multiple_of(step) } else { step };
    }
    Ok(())
}
