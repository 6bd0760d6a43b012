//! The superblock's judgement, and typed reads below it.
//!
//! [`open`] has three answers: a region, a region that is looked at although its superblock is damaged, or a reason.
//!
//! * What cannot be understood is not read on: blank, foreign, another byte order, an unknown version, unknown features.
//!   (With `--from-copy`, the copy at the end may stand in for a first page that is not a superblock at all.)
//! * A superblock that fails a later check is explained field by field against the copy at the end. If the copy is
//!   sound, and lies where it says that it lies, the rest is shown through it.
//! * A backing that is shorter than the region: the superblock is checked against its own length, and reads end where the
//!   backing does.

use maru_layout::farewell::FarewellWord;
use maru_layout::geometry::Geometry;
use maru_layout::record::SlotRecord;
use maru_layout::superblock::{SectionKind, Superblock, SuperblockError};
use maru_layout::table::{Bucket, ControlPage, NamespaceRow, PoolEntry, SessionAreaHead, SessionEntry};
use maru_layout::word::{FormatState, FormatWord, LeaseCell, SessionWord, SlotWord, TokenWord};
use maru_layout::{BUCKET_BYTES, PAGE_BYTES, RECORD_BYTES, SESSION_AREA_HEAD_BYTES};

use crate::findings::{Finding, Severity};
use crate::source::{ReadError, Source};

/// Records, buckets and rows are walked in chunks of about this many bytes.
const CHUNK_BYTES: usize = 1 << 20;

/// A region whose numbers can be trusted.
pub struct Image<'a> {
    source: &'a dyn Source,
    superblock: Superblock,
    geometry: Geometry,
}

/// Answer of [`open`].
pub enum Opening<'a> {
    /// A region, and what is wrong with its superblock.
    Region {
        /// The region.
        image: Box<Image<'a>>,
        /// Damage of superblock and copy.
        problems: Vec<Finding>,
        /// The superblock in use is the copy.
        from_copy: bool,
    },
    /// Nothing below the superblock can be looked at, but it is a region, and damaged.
    Damaged {
        /// What is wrong.
        problems: Vec<Finding>,
        /// In one sentence.
        reason: String,
    },
    /// Not a region that this build reads.
    Unreadable {
        /// In one sentence.
        reason: String,
        /// The format version found, where there is one.
        format_version: Option<u32>,
    },
}

/// Judges the superblock.
pub fn open<'a>(source: &'a dyn Source, from_copy: bool) -> Opening<'a> {
    let have = source.size_bytes();
    let mut page = [0; PAGE_BYTES as usize];
    if have < PAGE_BYTES {
        let error = SuperblockError::TooShort { need_bytes: PAGE_BYTES, have_bytes: have };
        return Opening::Unreadable { reason: error.to_string(), format_version: None };
    }
    if let Err(error) = source.read_at(0, &mut page) {
        return Opening::Unreadable { reason: error.to_string(), format_version: None };
    }
    let superblock: Superblock = bytemuck::pod_read_unaligned(&page);
    if let Err(error) = superblock.check_kind(false) {
        return not_understood(source, &superblock, &error, from_copy);
    }
    match Geometry::of(&superblock, have, false) {
        Ok(geometry) => {
            Opening::Region { image: Image::new(source, superblock, geometry), problems: vec![], from_copy: false }
        }
        Err(SuperblockError::TooShort { need_bytes, have_bytes }) => {
            too_short(source, superblock, SuperblockError::TooShort { need_bytes, have_bytes })
        }
        Err(error) => explain(source, &superblock, &error),
    }
}

/// Steps 1 to 4 of the format's judgement refused: stop, unless the copy is asked for.
fn not_understood<'a>(
    source: &'a dyn Source,
    superblock: &Superblock,
    error: &SuperblockError,
    from_copy: bool,
) -> Opening<'a> {
    let mut reason = error.to_string();
    let format_version = match error {
        SuperblockError::Version { found } => Some(*found),
        SuperblockError::Feature { .. } => Some(superblock.format_version),
        _ => None,
    };
    if matches!(error, SuperblockError::Blank) && formatting_under_way(source) {
        "format incomplete: somebody is formatting, or died while formatting".clone_into(&mut reason);
    }
    if !matches!(error, SuperblockError::Blank | SuperblockError::Magic { .. }) {
        return Opening::Unreadable { reason, format_version };
    }
    let Some((copy, geometry)) = sound_copy(source, superblock) else {
        return Opening::Unreadable { reason, format_version };
    };
    if !from_copy {
        reason.push_str("; the copy of a superblock at the end is sound (--from-copy looks through it)");
        return Opening::Unreadable { reason, format_version };
    }
    let first = Finding::new(
        Severity::Damage,
        "superblock",
        "superblock.magic",
        format!("{:02x?}", superblock.magic),
        format!("{:02x?}", maru_layout::MAGIC),
        format!("{error}; the rest is shown through the copy at the end"),
    );
    Opening::Region { image: Image::new(source, copy, geometry), problems: vec![first], from_copy: true }
}

fn formatting_under_way(source: &dyn Source) -> bool {
    let mut word = [0; 8];
    source.read_at(PAGE_BYTES, &mut word).is_ok()
        && FormatWord(u64::from_le_bytes(word)).state() == Some(FormatState::Formatting)
}

fn too_short<'a>(source: &'a dyn Source, superblock: Superblock, error: SuperblockError) -> Opening<'a> {
    let SuperblockError::TooShort { need_bytes, have_bytes } = error else {
        return explain(source, &superblock, &error);
    };
    let short = Finding::new(
        Severity::Damage,
        "too_short",
        "superblock.length_bytes",
        format!("{have_bytes} bytes"),
        format!("{need_bytes} bytes"),
        error.to_string(),
    );
    // Judged by its own length, every other field still has to be right, the checksum included.
    match Geometry::of(&superblock, superblock.length_bytes, false) {
        Ok(geometry) => {
            Opening::Region { image: Image::new(source, superblock, geometry), problems: vec![short], from_copy: false }
        }
        Err(also) => match explain(source, &superblock, &also) {
            Opening::Region { image, mut problems, from_copy } => {
                problems.insert(0, short);
                Opening::Region { image, problems, from_copy }
            }
            Opening::Damaged { mut problems, .. } => {
                problems.insert(0, short);
                Opening::Damaged { problems, reason: error.to_string() }
            }
            other => other,
        },
    }
}

/// Names what is wrong with a superblock of this format, against its copy.
fn explain<'a>(source: &'a dyn Source, superblock: &Superblock, error: &SuperblockError) -> Opening<'a> {
    let (place, found, wanted) = match error {
        SuperblockError::Field { field, found, wanted } => (field.clone(), found.to_string(), wanted.clone()),
        SuperblockError::Checksum { stored, computed, .. } => {
            ("checksum".to_owned(), format!("{stored:#010x}"), format!("{computed:#010x}"))
        }
        other => ("superblock".to_owned(), other.to_string(), "a superblock".to_owned()),
    };
    let place = format!("superblock.{place}");
    let mut problems = vec![Finding::new(Severity::Damage, "superblock", place, found, wanted, error.to_string())];
    match sound_copy(source, superblock) {
        Some((copy, geometry)) => {
            problems.extend(differences(superblock, &copy));
            Opening::Region { image: Image::new(source, copy, geometry), problems, from_copy: true }
        }
        None => {
            let reason = format!("{error}; no sound copy at the end, so nothing below the superblock is believed");
            Opening::Damaged { problems, reason }
        }
    }
}

/// The copy at the end, if it passes every check and says that it lies where it lies. It is looked for at the end of the
/// backing and where the damaged page says; neither place is believed, only the page found there.
fn sound_copy(source: &dyn Source, damaged: &Superblock) -> Option<(Superblock, Geometry)> {
    let have = source.size_bytes();
    [have, damaged.length_bytes].into_iter().find_map(|end| {
        let offset = end.checked_sub(PAGE_BYTES).filter(|offset| *offset >= PAGE_BYTES)?;
        let mut page = [0; PAGE_BYTES as usize];
        source.read_at(offset, &mut page).ok()?;
        let copy: Superblock = bytemuck::pod_read_unaligned(&page);
        let geometry = Geometry::of(&copy, have, false).ok()?;
        (copy.length_bytes == end).then_some((copy, geometry))
    })
}

/// One finding a field in which superblock and copy differ, with both values.
pub fn differences(superblock: &Superblock, copy: &Superblock) -> Vec<Finding> {
    let finding = |name: &str, found: String, wanted: String| {
        let text = format!("{name} is {found}, the copy at the end says {wanted}");
        Finding::new(Severity::Damage, "superblock_field", format!("superblock.{name}"), found, wanted, text)
    };
    let mut findings = Vec::new();
    for ((name, mine), (_, theirs)) in superblock.scalar_fields().into_iter().zip(copy.scalar_fields()) {
        if mine != theirs {
            findings.push(finding(name, mine.to_string(), theirs.to_string()));
        }
    }
    let rows = superblock.sections.iter().zip(&copy.sections).enumerate();
    for (index, (mine, theirs)) in rows.filter(|(_, (mine, theirs))| mine != theirs) {
        findings.push(finding(&format!("sections[{index}]"), format!("{mine:?}"), format!("{theirs:?}")));
    }
    let rows = superblock.classes.iter().zip(&copy.classes).enumerate();
    for (index, (mine, theirs)) in rows.filter(|(_, (mine, theirs))| mine != theirs) {
        findings.push(finding(&format!("classes[{index}]"), format!("{mine:?}"), format!("{theirs:?}")));
    }
    let rows = superblock.shards.iter().zip(&copy.shards).enumerate();
    for (index, (mine, theirs)) in rows.filter(|(_, (mine, theirs))| mine != theirs) {
        findings.push(finding(&format!("shards[{index}]"), format!("{mine:?}"), format!("{theirs:?}")));
    }
    for (name, mine, theirs) in [
        ("region_id", &superblock.region_id[..], &copy.region_id[..]),
        ("formatter_host", &superblock.formatter_host, &copy.formatter_host),
    ] {
        if mine != theirs {
            findings.push(finding(name, crate::out::hex(mine), crate::out::hex(theirs)));
        }
    }
    for (name, mine, theirs) in [
        ("magic", &superblock.magic[..], &copy.magic[..]),
        ("reserved0", &superblock.reserved0, &copy.reserved0),
        ("reserved1", &superblock.reserved1, &copy.reserved1),
        ("config", &superblock.config, &copy.config),
        ("reserved2", &superblock.reserved2, &copy.reserved2),
        ("checksum", &superblock.checksum.to_le_bytes(), &copy.checksum.to_le_bytes()),
    ] {
        if let Some(at) = mine.iter().zip(theirs).position(|(mine, theirs)| mine != theirs) {
            findings.push(finding(
                &format!("{name}[{at}]"),
                format!("{:#04x}", mine[at]),
                format!("{:#04x}", theirs[at]),
            ));
        }
    }
    findings
}

impl<'a> Image<'a> {
    fn new(source: &'a dyn Source, superblock: Superblock, geometry: Geometry) -> Box<Self> {
        Box::new(Self { source, superblock, geometry })
    }

    /// The bytes.
    #[must_use]
    pub fn source(&self) -> &'a dyn Source {
        self.source
    }

    /// The superblock in use.
    #[must_use]
    pub fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    /// The numbers.
    #[must_use]
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Name of the section that a byte lies in.
    #[must_use]
    pub fn section_at(&self, offset: u64) -> &'static str {
        let rows = self.superblock.sections.iter();
        rows.filter(|row| (row.offset_bytes..row.offset_bytes.saturating_add(row.length_bytes)).contains(&offset))
            .find_map(|row| maru_layout::superblock::SectionKind::from_bits(row.kind))
            .map_or("region", SectionKind::name)
    }

    fn pod<T: bytemuck::AnyBitPattern + bytemuck::NoUninit>(&self, offset: u64) -> Result<T, ReadError> {
        let mut value = T::zeroed();
        self.source.read_at(offset, bytemuck::bytes_of_mut(&mut value))?;
        Ok(value)
    }

    fn place(&self, kind: SectionKind, index: u64, stride: u64) -> u64 {
        // Inside the region, which the check has shown to be below 2^64.
        self.geometry.offset(kind) + index * stride
    }

    /// The copy of the superblock, unjudged.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn copy(&self) -> Result<Superblock, ReadError> {
        self.pod(self.geometry.offset(SectionKind::Copy))
    }

    /// The control page.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn control(&self) -> Result<ControlPage, ReadError> {
        self.pod(self.geometry.offset(SectionKind::Control))
    }

    /// The pool entry.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn pool(&self) -> Result<PoolEntry, ReadError> {
        self.pod(self.geometry.offset(SectionKind::Pools))
    }

    /// A slot's record; the index is below `slot_count`.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn record(&self, slot: u32) -> Result<SlotRecord, ReadError> {
        self.pod(self.place(SectionKind::Records, slot.into(), RECORD_BYTES))
    }

    /// A slot's word alone.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn slot_word(&self, slot: u32) -> Result<SlotWord, ReadError> {
        Ok(SlotWord(self.pod(self.place(SectionKind::Records, slot.into(), RECORD_BYTES))?))
    }

    /// An index bucket; the index is below `bucket_count`.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn bucket(&self, bucket: u32) -> Result<Bucket, ReadError> {
        self.pod(self.place(SectionKind::Buckets, bucket.into(), BUCKET_BYTES))
    }

    /// A session entry; the index is below `session_count`.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn session(&self, session: u32) -> Result<SessionEntry, ReadError> {
        self.pod(self.place(SectionKind::Sessions, session.into(), size_of::<SessionEntry>() as u64))
    }

    /// A session's word alone.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn session_word(&self, session: u32) -> Result<SessionWord, ReadError> {
        Ok(SessionWord(self.pod(self.place(
            SectionKind::Sessions,
            session.into(),
            size_of::<SessionEntry>() as u64,
        ))?))
    }

    /// Head of a session area.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn area(&self, session: u32) -> Result<SessionAreaHead, ReadError> {
        self.pod(self.place(SectionKind::SessionAreas, session.into(), self.geometry.session_area_bytes))
    }

    /// Visits a session's lease cells below its (clamped) mark that are not all zero.
    ///
    /// # Errors
    /// They cannot be read.
    pub fn for_each_cell(
        &self,
        session: u32,
        mut visit: impl FnMut(u32, LeaseCell) -> Result<(), ReadError>,
    ) -> Result<(), ReadError> {
        let mark = self.area(session)?.lease_mark.min(self.geometry.lease_cells.into());
        let start = self.place(SectionKind::SessionAreas, session.into(), self.geometry.session_area_bytes)
            + SESSION_AREA_HEAD_BYTES;
        self.for_each_chunk::<u64>(start, mark, 8, |cell, word| match word {
            0 => Ok(()),
            word => visit(cell, LeaseCell(word)),
        })
    }

    /// A namespace row; the index is below `namespace_count`.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn row(&self, row: u32) -> Result<NamespaceRow, ReadError> {
        self.pod(self.place(SectionKind::Namespaces, row.into(), size_of::<NamespaceRow>() as u64))
    }

    /// A budget token.
    ///
    /// # Errors
    /// The bytes cannot be had.
    pub fn token(&self, token: u32) -> Result<TokenWord, ReadError> {
        Ok(TokenWord(self.pod(self.place(SectionKind::Tokens, token.into(), 8))?))
    }

    /// A word of the farewell table; the index is below `farewell_count`.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn farewell(&self, index: u32) -> Result<FarewellWord, ReadError> {
        Ok(FarewellWord(self.pod(self.place(SectionKind::Farewells, index.into(), 8))?))
    }

    /// A bitmap word.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn bitmap_word(&self, word: u32) -> Result<u64, ReadError> {
        self.pod(self.place(SectionKind::Bitmap, word.into(), 8))
    }

    /// Visits all records.
    ///
    /// # Errors
    /// Some cannot be read; those before have been visited.
    pub fn for_each_record(
        &self,
        visit: impl FnMut(u32, SlotRecord) -> Result<(), ReadError>,
    ) -> Result<(), ReadError> {
        let start = self.geometry.offset(SectionKind::Records);
        self.for_each_chunk(start, self.geometry.slot_count.into(), RECORD_BYTES, visit)
    }

    /// Visits all buckets.
    ///
    /// # Errors
    /// Some cannot be read; those before have been visited.
    pub fn for_each_bucket(&self, visit: impl FnMut(u32, Bucket) -> Result<(), ReadError>) -> Result<(), ReadError> {
        let start = self.geometry.offset(SectionKind::Buckets);
        self.for_each_chunk(start, self.geometry.bucket_count.into(), BUCKET_BYTES, visit)
    }

    /// Visits all namespace rows.
    ///
    /// # Errors
    /// Some cannot be read; those before have been visited.
    pub fn for_each_row(&self, visit: impl FnMut(u32, NamespaceRow) -> Result<(), ReadError>) -> Result<(), ReadError> {
        let start = self.geometry.offset(SectionKind::Namespaces);
        self.for_each_chunk(start, self.geometry.namespace_count.into(), size_of::<NamespaceRow>() as u64, visit)
    }

    /// Visits `count` budget tokens from `first` on, all of them below `token_count`.
    ///
    /// # Errors
    /// Some cannot be read; those before have been visited.
    pub fn for_each_token(
        &self,
        first: u32,
        count: u64,
        mut visit: impl FnMut(TokenWord) -> Result<(), ReadError>,
    ) -> Result<(), ReadError> {
        let start = self.place(SectionKind::Tokens, first.into(), 8);
        self.for_each_chunk::<u64>(start, count, 8, |_, word| visit(TokenWord(word)))
    }

    /// Visits `count` elements that lie back to back, in chunks. Counts are below 2^32 everywhere.
    fn for_each_chunk<T: bytemuck::AnyBitPattern>(
        &self,
        start: u64,
        count: u64,
        stride: u64,
        mut visit: impl FnMut(u32, T) -> Result<(), ReadError>,
    ) -> Result<(), ReadError> {
        let per_chunk = (CHUNK_BYTES as u64 / stride).max(1);
        let mut buffer = vec![0; (per_chunk.min(count) * stride) as usize];
        let mut first = 0;
        while first < count {
            let elements = per_chunk.min(count - first);
            let chunk = &mut buffer[..(elements * stride) as usize];
            if let Err(error) = self.source.read_at(start + first * stride, chunk) {
                // Half a chunk may still be there.
                return self.for_each_left(start, first, elements, stride, visit).and(Err(error));
            }
            for (at, bytes) in chunk.chunks_exact(stride as usize).enumerate() {
                visit((first + at as u64) as u32, bytemuck::pod_read_unaligned(bytes))?;
            }
            first += elements;
        }
        Ok(())
    }

    #[cold]
    fn for_each_left<T: bytemuck::AnyBitPattern>(
        &self,
        start: u64,
        first: u64,
        elements: u64,
        stride: u64,
        mut visit: impl FnMut(u32, T) -> Result<(), ReadError>,
    ) -> Result<(), ReadError> {
        let mut element = vec![0; stride as usize];
        for index in first..first + elements {
            self.source.read_at(start + index * stride, &mut element)?;
            visit(index as u32, bytemuck::pod_read_unaligned(&element))?;
        }
        Ok(())
    }
}
