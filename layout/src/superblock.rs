//! The superblock: 4 KiB, written once, that describe everything else.
//!
//! Reading one is an exercise in distrust. [`Superblock::check`] goes field by field in an order that
//! gives the most useful answer first: magic, byte order, version, feature words, then each number with
//! its bounds, then the tables, and the checksum last, because "align_bytes is 3" tells an operator more
//! than "checksum wrong". Nothing below the superblock is looked at before it has passed.

use bytemuck::{Pod, Zeroable};
use thiserror::Error;

use crate::farewell::farewell_count;
use crate::{
    ATTACH_WAIT_MS, BYTE_ORDER_MARK, COPY_LEASE_MS, FORMAT_VERSION, LINE_BYTES, MAGIC, MAX_CLASSES, MAX_CONFIG_BYTES,
    MAX_SECTIONS, MAX_SESSIONS, MAX_SHARDS, MAX_SLOTS, OLDEST_READABLE_VERSION, PAGE_BYTES, SLOT_GRANULE_BYTES,
    STALLED_WRITER_MS,
};

/// Feature bits that a reader must know.
pub mod feature_read {
    /// Seven-way buckets with counted second choices.
    pub const TWO_CHOICE_INDEX: u64 = 1;
    /// All bits that this crate knows.
    pub const KNOWN: u64 = TWO_CHOICE_INDEX;
}

/// Feature bits that a writer must know.
pub mod feature_write {
    /// Sessions hold their life lock on byte `partition offset + index`.
    pub const LIFE_LOCKS: u64 = 1;
    /// All bits that this crate knows.
    pub const KNOWN: u64 = LIFE_LOCKS;
}

/// Feature bits that anyone may ignore.
pub mod feature_ignorable {
    /// One access byte per slot and lane, set by readers when clear.
    pub const ACCESS_BYTES: u64 = 1;
    /// Session areas hold a flight recorder.
    pub const FLIGHT_RECORDER: u64 = 2;
    /// Whoever frees the slot of a block leaves a word about it.
    pub const FAREWELLS: u64 = 4;
    /// All bits that this crate writes.
    pub const WRITTEN: u64 = ACCESS_BYTES | FLIGHT_RECORDER | FAREWELLS;
}

/// What a section holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum SectionKind {
    /// [`crate::table::ControlPage`].
    Control = 1,
    /// [`crate::table::NamespaceRow`]s.
    Namespaces = 2,
    /// [`crate::table::PoolEntry`].
    Pools = 3,
    /// [`crate::table::SessionEntry`]s.
    Sessions = 4,
    /// Session areas: [`crate::table::SessionAreaHead`] and lease cells.
    SessionAreas = 5,
    /// One bit a slot, in `u64` words: 1 = probably not free. A hint.
    Bitmap = 6,
    /// [`crate::record::SlotRecord`]s.
    Records = 7,
    /// [`crate::table::Bucket`]s.
    Buckets = 8,
    /// Access bytes, lane by lane.
    AccessBytes = 9,
    /// Budget tokens, `u64` each.
    Tokens = 10,
    /// Replication tasks.
    Tasks = 11,
    /// Adverts of private copies.
    Adverts = 12,
    /// [`crate::farewell::FarewellWord`]s. Hints.
    Farewells = 13,
    /// Slot payloads, class by class.
    Payload = 14,
    /// The copy of the superblock.
    Copy = 15,
}

impl SectionKind {
    /// All kinds in their order in a region.
    pub const ALL: [Self; 15] = [
        Self::Control,
        Self::Namespaces,
        Self::Pools,
        Self::Sessions,
        Self::SessionAreas,
        Self::Bitmap,
        Self::Records,
        Self::Buckets,
        Self::AccessBytes,
        Self::Tokens,
        Self::Tasks,
        Self::Adverts,
        Self::Farewells,
        Self::Payload,
        Self::Copy,
    ];

    /// The kind with this number.
    #[must_use]
    pub fn from_bits(bits: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| *kind as u32 == bits)
    }

    /// The name used in errors, tables and JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Control => "control",
            Self::Namespaces => "namespaces",
            Self::Pools => "pools",
            Self::Sessions => "sessions",
            Self::SessionAreas => "session_areas",
            Self::Bitmap => "bitmap",
            Self::Records => "records",
            Self::Buckets => "buckets",
            Self::AccessBytes => "access_bytes",
            Self::Tokens => "tokens",
            Self::Tasks => "tasks",
            Self::Adverts => "adverts",
            Self::Farewells => "farewells",
            Self::Payload => "payload",
            Self::Copy => "copy",
        }
    }
}

/// One row of the section table. Offsets count from the start of the region (the partition).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Section {
    /// [`SectionKind`]; 0 = unused row.
    pub kind: u32,
    /// Bytes from one element to the next; 0 for `payload`, whose classes have strides of their own.
    pub stride_bytes: u32,
    /// First byte.
    pub offset_bytes: u64,
    /// Bytes, `count * stride` rounded up to lines.
    pub length_bytes: u64,
    /// Elements.
    pub count: u64,
}

/// Slots of one size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct SlotClass {
    /// Bytes of a slot.
    pub slot_bytes: u64,
    /// First payload byte of the class.
    pub payload_offset_bytes: u64,
    /// Index of its first slot.
    pub first_slot: u32,
    /// Slots.
    pub slot_count: u32,
    /// Zero.
    pub reserved: u64,
}

/// A part of slots and index with one writing host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Shard {
    /// First slot.
    pub first_slot: u32,
    /// Slots.
    pub slot_count: u32,
    /// First bucket.
    pub first_bucket: u32,
    /// Buckets.
    pub bucket_count: u32,
    /// Rank of the shard.
    pub rank: u16,
    /// The one host that writes here in an incoherent region; 0xFFFF = any.
    pub writing_host: u16,
    /// Zero.
    pub reserved: [u8; 12],
}

/// What the region needs from the memory it lies in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Regime {
    /// Everything is coherent between all that map it.
    Coherent = 1,
    /// The header is coherent between hosts, the payload is not.
    CoherentHeader = 2,
    /// Nothing is coherent between hosts.
    Incoherent = 3,
}

impl Regime {
    /// The regime with this number.
    #[must_use]
    pub const fn from_bits(bits: u8) -> Option<Self> {
        Some(match bits {
            1 => Self::Coherent,
            2 => Self::CoherentHeader,
            3 => Self::Incoherent,
            _ => return None,
        })
    }

    /// The name used in errors, tables and JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Coherent => "coherent",
            Self::CoherentHeader => "coherent-header",
            Self::Incoherent => "incoherent",
        }
    }
}

/// How many hosts map the region.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Hosts {
    /// One.
    One = 1,
    /// Several; a host may die with dirty cache lines.
    Many = 2,
}

impl Hosts {
    /// The value with this number.
    #[must_use]
    pub const fn from_bits(bits: u8) -> Option<Self> {
        Some(match bits {
            1 => Self::One,
            2 => Self::Many,
            _ => return None,
        })
    }

    /// The name used in errors, tables and JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::One => "one",
            Self::Many => "many",
        }
    }
}

/// The first 4 KiB of a region.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
pub struct Superblock {
    /// [`MAGIC`].
    pub magic: [u8; 8],
    /// [`FORMAT_VERSION`] of the writer.
    pub format_version: u32,
    /// [`BYTE_ORDER_MARK`].
    pub byte_order: u32,
    /// [`feature_read`].
    pub features_read: u64,
    /// [`feature_write`].
    pub features_write: u64,
    /// [`feature_ignorable`].
    pub features_ignorable: u64,
    /// Random id of the region.
    pub region_id: [u8; 16],
    /// Counts formattings of the same place, where the formatter could see the one before.
    pub incarnation: u64,
    /// [`Regime`].
    pub regime: u8,
    /// [`Hosts`].
    pub hosts: u8,
    /// Zero.
    pub reserved0: [u8; 2],
    /// [`PAGE_BYTES`].
    pub page_bytes: u32,
    /// [`LINE_BYTES`].
    pub line_bytes: u32,
    /// Region length and payload offset are multiples of this.
    pub align_bytes: u32,
    /// Length of the region (the partition).
    pub length_bytes: u64,
    /// Bytes before the payload: what a header-only attach maps.
    pub header_bytes: u64,
    /// Slots of all classes.
    pub slot_count: u32,
    /// Index buckets.
    pub bucket_count: u32,
    /// Session entries.
    pub session_count: u32,
    /// Bytes of one session area.
    pub session_area_bytes: u32,
    /// Namespace rows.
    pub namespace_count: u32,
    /// Budget tokens.
    pub token_count: u32,
    /// Replication tasks.
    pub task_count: u32,
    /// Adverts.
    pub advert_count: u32,
    /// Access-byte lanes.
    pub access_lanes: u32,
    /// Slot classes used.
    pub class_count: u32,
    /// Shards used.
    pub shard_count: u32,
    /// Sections used.
    pub section_count: u32,
    /// Time limit of copy leases, milliseconds.
    pub copy_lease_ms: u32,
    /// When a motionless `Writing` may be quarantined, milliseconds.
    pub stalled_writer_ms: u32,
    /// How long an attach waits for somebody else's formatting, milliseconds.
    pub attach_wait_ms: u32,
    /// Bytes of `config`.
    pub config_bytes: u32,
    /// Seed of key hashes.
    pub hash_seed: u64,
    /// Wall-clock time of formatting, nanoseconds since 1970. For people.
    pub formatted_ns: u64,
    /// Host that formatted. For people.
    pub formatter_host: [u8; 16],
    /// Zero.
    pub reserved1: [u8; 320],
    /// Section table.
    pub sections: [Section; MAX_SECTIONS],
    /// Slot classes.
    pub classes: [SlotClass; MAX_CLASSES],
    /// Shard table.
    pub shards: [Shard; MAX_SHARDS],
    /// The writer's configuration, JSON, zero-padded.
    pub config: [u8; MAX_CONFIG_BYTES],
    /// Zero.
    pub reserved2: [u8; 56],
    /// CRC-32 of all bytes before it, in the low half; high half zero.
    pub checksum: u64,
}

const _: () = {
    assert!(size_of::<Superblock>() == PAGE_BYTES as usize);
    assert!(size_of::<Section>() == 32);
    assert!(size_of::<SlotClass>() == 32);
    assert!(size_of::<Shard>() == 32);
    assert!(core::mem::offset_of!(Superblock, sections) == 512);
    assert!(core::mem::offset_of!(Superblock, config) == 2048);
    assert!(core::mem::offset_of!(Superblock, checksum) == 4088);
};

/// Why a superblock was not believed. Each names the field, what was found, and what was wanted.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SuperblockError {
    /// All zero where the magic should be.
    #[error("not formatted: the first page is blank")]
    Blank,
    /// Something else lies here.
    #[error("not a Maru region: magic is {found:02x?}, wanted {MAGIC:02x?}")]
    Magic {
        /// The eight bytes found.
        found: [u8; 8],
    },
    /// Written on a host of the other byte order, or scrambled.
    #[error("byte_order is {found:#010x}, wanted {BYTE_ORDER_MARK:#010x}{}", if found.swap_bytes() == BYTE_ORDER_MARK { " (written on a big-endian host)" } else { "" })]
    ByteOrder {
        /// Value found.
        found: u32,
    },
    /// Written by another format version.
    #[error("format_version is {found}, this build reads {OLDEST_READABLE_VERSION} to {FORMAT_VERSION}")]
    Version {
        /// Value found.
        found: u32,
    },
    /// Needs something this build does not know.
    #[error("{group} has unknown bits {unknown:#x} (found {found:#x}, this build knows {known:#x})")]
    Feature {
        /// `features_read` or `features_write`.
        group: &'static str,
        /// Value found.
        found: u64,
        /// Bits known.
        known: u64,
        /// Bits not known.
        unknown: u64,
    },
    /// A number outside its bounds.
    #[error("{field} is {found}, wanted {wanted}")]
    Field {
        /// Field name; table rows as `sections[3].offset_bytes`.
        field: String,
        /// Value found.
        found: u64,
        /// Bound in words.
        wanted: String,
    },
    /// The backing is shorter than the region says.
    #[error("region shorter than its header says (need {need_bytes} bytes, have {have_bytes})")]
    TooShort {
        /// What `length_bytes` says.
        need_bytes: u64,
        /// What there is.
        have_bytes: u64,
    },
    /// Everything is within bounds, yet the page is not what was written.
    #[error("superblock checksum is {stored:#010x}, its bytes give {computed:#010x}{}", differing(.differs))]
    Checksum {
        /// Stored value.
        stored: u64,
        /// Value computed.
        computed: u64,
        /// Fields that differ from the copy at the end of the region, where that copy is readable.
        differs: Vec<String>,
    },
}

fn differing(fields: &[String]) -> String {
    if fields.is_empty() {
        return String::new();
    }
    format!("; against the copy at the end of the region these fields differ: {}", fields.join(", "))
}

fn field(name: impl Into<String>, found: u64, wanted: impl Into<String>) -> SuperblockError {
    SuperblockError::Field { field: name.into(), found, wanted: wanted.into() }
}

macro_rules! named_fields {
    ($($name:ident),* $(,)?) => {
        /// Names and values of the scalar fields, in order.
        #[must_use]
        pub fn scalar_fields(&self) -> Vec<(&'static str, u64)> {
            vec![$((stringify!($name), u64::from(self.$name)),)*]
        }
    };
}

impl Superblock {
    named_fields!(
        format_version,
        byte_order,
        features_read,
        features_write,
        features_ignorable,
        incarnation,
        regime,
        hosts,
        page_bytes,
        line_bytes,
        align_bytes,
        length_bytes,
        header_bytes,
        slot_count,
        bucket_count,
        session_count,
        session_area_bytes,
        namespace_count,
        token_count,
        task_count,
        advert_count,
        access_lanes,
        class_count,
        shard_count,
        section_count,
        copy_lease_ms,
        stalled_writer_ms,
        attach_wait_ms,
        config_bytes,
        hash_seed,
        formatted_ns,
    );

    /// Reads a superblock from bytes.
    ///
    /// # Errors
    /// When fewer than 4 KiB are given.
    pub fn read(bytes: &[u8]) -> Result<Self, SuperblockError> {
        let page = PAGE_BYTES as usize;
        let Some(head) = bytes.get(..page) else {
            return Err(SuperblockError::TooShort { need_bytes: PAGE_BYTES, have_bytes: bytes.len() as u64 });
        };
        Ok(bytemuck::pod_read_unaligned(head))
    }

    /// The checksum that this page should have.
    #[must_use]
    pub fn computed_checksum(&self) -> u64 {
        let bytes = bytemuck::bytes_of(self);
        u64::from(crc32fast::hash(&bytes[..PAGE_BYTES as usize - 8]))
    }

    /// The same superblock with its checksum set.
    #[must_use]
    pub fn sealed(mut self) -> Self {
        self.checksum = self.computed_checksum();
        self
    }

    /// The writer's configuration text.
    #[must_use]
    pub fn config_text(&self) -> &[u8] {
        &self.config[..(self.config_bytes as usize).min(MAX_CONFIG_BYTES)]
    }

    /// The row of this section, if there is one.
    #[must_use]
    pub fn section(&self, kind: SectionKind) -> Option<&Section> {
        self.sections.iter().find(|row| row.kind == kind as u32)
    }

    /// Names of the fields in which `self` and `other` differ.
    #[must_use]
    pub fn differing_fields(&self, other: &Self) -> Vec<String> {
        let mut names = Vec::new();
        if self.magic != other.magic {
            names.push("magic".to_owned());
        }
        for ((name, mine), (_, theirs)) in self.scalar_fields().into_iter().zip(other.scalar_fields()) {
            if mine != theirs {
                names.push(format!("{name} (found {mine}, the copy says {theirs})"));
            }
        }
        if self.region_id != other.region_id {
            names.push("region_id".to_owned());
        }
        for (index, (mine, theirs)) in self.sections.iter().zip(&other.sections).enumerate() {
            if mine != theirs {
                names.push(format!("sections[{index}]"));
            }
        }
        for (index, (mine, theirs)) in self.classes.iter().zip(&other.classes).enumerate() {
            if mine != theirs {
                names.push(format!("classes[{index}]"));
            }
        }
        for (index, (mine, theirs)) in self.shards.iter().zip(&other.shards).enumerate() {
            if mine != theirs {
                names.push(format!("shards[{index}]"));
            }
        }
        if self.config != other.config {
            names.push("config".to_owned());
        }
        if names.is_empty() && bytemuck::bytes_of(self) != bytemuck::bytes_of(other) {
            names.push("reserved bytes or checksum".to_owned());
        }
        names
    }

    /// Checks everything that can be checked without looking elsewhere.
    ///
    /// `have_bytes` is the length of the backing from the region's first byte; `writing` says whether the
    /// caller wants to store (then unknown `features_write` bits refuse too).
    ///
    /// # Errors
    /// The first field that cannot be believed; see the module's story for the order.
    pub fn check(&self, have_bytes: u64, writing: bool) -> Result<(), SuperblockError> {
        self.check_kind(writing)?;
        self.check_numbers(have_bytes)?;
        self.check_classes()?;
        self.check_sections()?;
        self.check_shards()?;
        self.check_padding()?;
        let computed = self.computed_checksum();
        if computed != self.checksum {
            return Err(SuperblockError::Checksum { stored: self.checksum, computed, differs: Vec::new() });
        }
        Ok(())
    }

    /// Magic, byte order, version and feature words: whether the rest can be understood at all.
    ///
    /// # Errors
    /// As [`Superblock::check`].
    pub fn check_kind(&self, writing: bool) -> Result<(), SuperblockError> {
        if self.magic == [0; 8] {
            return Err(SuperblockError::Blank);
        }
        if self.magic != MAGIC {
            return Err(SuperblockError::Magic { found: self.magic });
        }
        if self.byte_order != BYTE_ORDER_MARK {
            return Err(SuperblockError::ByteOrder { found: self.byte_order });
        }
        let oldest = if writing { FORMAT_VERSION } else { OLDEST_READABLE_VERSION };
        if !(oldest..=FORMAT_VERSION).contains(&self.format_version) {
            return Err(SuperblockError::Version { found: self.format_version });
        }
        let unknown = self.features_read & !feature_read::KNOWN;
        if unknown != 0 {
            return Err(SuperblockError::Feature {
                group: "features_read",
                found: self.features_read,
                known: feature_read::KNOWN,
                unknown,
            });
        }
        if self.features_read & feature_read::KNOWN != feature_read::KNOWN {
            return Err(field("features_read", self.features_read, format!("at least {:#x}", feature_read::KNOWN)));
        }
        if self.features_write & feature_write::KNOWN != feature_write::KNOWN {
            return Err(field("features_write", self.features_write, format!("at least {:#x}", feature_write::KNOWN)));
        }
        let unknown = self.features_write & !feature_write::KNOWN;
        if writing && unknown != 0 {
            return Err(SuperblockError::Feature {
                group: "features_write",
                found: self.features_write,
                known: feature_write::KNOWN,
                unknown,
            });
        }
        Ok(())
    }

    fn check_numbers(&self, have_bytes: u64) -> Result<(), SuperblockError> {
        if Regime::from_bits(self.regime).is_none() {
            return Err(field("regime", self.regime.into(), "1 (coherent), 2 (coherent-header) or 3 (incoherent)"));
        }
        if Hosts::from_bits(self.hosts).is_none() {
            return Err(field("hosts", self.hosts.into(), "1 (one) or 2 (many)"));
        }
        if u64::from(self.page_bytes) != PAGE_BYTES {
            return Err(field("page_bytes", self.page_bytes.into(), format!("{PAGE_BYTES}")));
        }
        if u64::from(self.line_bytes) != LINE_BYTES {
            return Err(field("line_bytes", self.line_bytes.into(), format!("{LINE_BYTES}")));
        }
        let align = u64::from(self.align_bytes);
        if !align.is_power_of_two() || !(PAGE_BYTES..=1 << 30).contains(&align) {
            return Err(field("align_bytes", align, "a power of two from 4096 to 1 GiB"));
        }
        if self.length_bytes > have_bytes {
            return Err(SuperblockError::TooShort { need_bytes: self.length_bytes, have_bytes });
        }
        if self.length_bytes == 0 || !self.length_bytes.is_multiple_of(align) {
            return Err(field(
                "length_bytes",
                self.length_bytes,
                format!("a positive multiple of align_bytes ({align})"),
            ));
        }
        if self.header_bytes < 2 * PAGE_BYTES
            || self.header_bytes > self.length_bytes
            || !self.header_bytes.is_multiple_of(align)
        {
            return Err(field(
                "header_bytes",
                self.header_bytes,
                format!("a multiple of align_bytes ({align}), from 8192 to length_bytes ({})", self.length_bytes),
            ));
        }
        for (name, found, min, max) in [
            ("slot_count", u64::from(self.slot_count), 1, MAX_SLOTS),
            ("bucket_count", u64::from(self.bucket_count), 1, MAX_SLOTS),
            ("session_count", self.session_count.into(), 1, MAX_SESSIONS.into()),
            ("namespace_count", self.namespace_count.into(), 1, 1 << 20),
            ("token_count", self.token_count.into(), 0, 1 << 31),
            ("task_count", self.task_count.into(), 0, 1 << 24),
            ("advert_count", self.advert_count.into(), 0, 1 << 24),
            ("access_lanes", self.access_lanes.into(), 1, 64),
            ("class_count", self.class_count.into(), 1, MAX_CLASSES as u64),
            // Several shards need a search over all of them, which no version does yet.
            ("shard_count", self.shard_count.into(), 1, 1),
            ("section_count", self.section_count.into(), SectionKind::ALL.len() as u64, MAX_SECTIONS as u64),
            ("copy_lease_ms", self.copy_lease_ms.into(), COPY_LEASE_MS.min.into(), COPY_LEASE_MS.max.into()),
            (
                "stalled_writer_ms",
                self.stalled_writer_ms.into(),
                STALLED_WRITER_MS.min.into(),
                STALLED_WRITER_MS.max.into(),
            ),
            ("attach_wait_ms", self.attach_wait_ms.into(), ATTACH_WAIT_MS.min.into(), ATTACH_WAIT_MS.max.into()),
            ("config_bytes", self.config_bytes.into(), 0, MAX_CONFIG_BYTES as u64),
        ] {
            if !(min..=max).contains(&found) {
                return Err(field(name, found, format!("from {min} to {max}")));
            }
        }
        let area = u64::from(self.session_area_bytes);
        if !(crate::MIN_SESSION_AREA_BYTES..=1 << 24).contains(&area) || !area.is_multiple_of(PAGE_BYTES) {
            return Err(field("session_area_bytes", area, "a multiple of 4096, from 4096 to 16 MiB"));
        }
        Ok(())
    }

    fn check_classes(&self) -> Result<(), SuperblockError> {
        let payload = self.section(SectionKind::Payload);
        let (payload_start, payload_end) =
            payload.map_or((0, 0), |row| (row.offset_bytes, row.offset_bytes.saturating_add(row.length_bytes)));
        let mut next_slot = 0u64;
        let mut next_byte = payload_start;
        for (index, class) in self.classes.iter().enumerate() {
            if index >= self.class_count as usize {
                if *class != SlotClass::zeroed() {
                    return Err(field(format!("classes[{index}]"), class.slot_bytes, "zero: the class is not used"));
                }
                continue;
            }
            let size = class.slot_bytes;
            if size == 0 || !size.is_multiple_of(SLOT_GRANULE_BYTES) || size > u64::from(u32::MAX) {
                return Err(field(
                    format!("classes[{index}].slot_bytes"),
                    size,
                    format!("a positive multiple of {SLOT_GRANULE_BYTES} below 4 GiB"),
                ));
            }
            if class.reserved != 0 {
                return Err(field(format!("classes[{index}].reserved"), class.reserved, "zero"));
            }
            if u64::from(class.first_slot) != next_slot || class.slot_count == 0 {
                return Err(field(
                    format!("classes[{index}].first_slot"),
                    class.first_slot.into(),
                    format!("{next_slot}, and a positive slot_count"),
                ));
            }
            let end = size
                .checked_mul(class.slot_count.into())
                .and_then(|bytes| bytes.checked_add(class.payload_offset_bytes));
            if class.payload_offset_bytes < next_byte
                || !class.payload_offset_bytes.is_multiple_of(LINE_BYTES)
                || end.is_none_or(|end| end > payload_end)
            {
                return Err(field(
                    format!("classes[{index}].payload_offset_bytes"),
                    class.payload_offset_bytes,
                    format!("slots inside the payload section ({next_byte} to {payload_end})"),
                ));
            }
            next_slot += u64::from(class.slot_count);
            next_byte = end.unwrap_or(payload_end);
        }
        if next_slot != u64::from(self.slot_count) {
            return Err(field("slot_count", self.slot_count.into(), format!("{next_slot}, the sum of the classes")));
        }
        Ok(())
    }

    /// What each section must hold: stride and count follow from the scalar fields.
    #[must_use]
    pub fn expected_section(&self, kind: SectionKind) -> (u64, u64) {
        match kind {
            SectionKind::Control | SectionKind::Copy => (PAGE_BYTES, 1),
            SectionKind::Namespaces => (1024, self.namespace_count.into()),
            SectionKind::Pools => (128, 1),
            SectionKind::Sessions => (256, self.session_count.into()),
            SectionKind::SessionAreas => (self.session_area_bytes.into(), self.session_count.into()),
            SectionKind::Bitmap => (8, u64::from(self.slot_count).div_ceil(64)),
            SectionKind::Records => (crate::RECORD_BYTES, self.slot_count.into()),
            SectionKind::Buckets => (crate::BUCKET_BYTES, self.bucket_count.into()),
            SectionKind::AccessBytes => (1, u64::from(self.slot_count) * u64::from(self.access_lanes)),
            SectionKind::Tokens => (8, self.token_count.into()),
            SectionKind::Tasks => (128, self.task_count.into()),
            SectionKind::Adverts => (64, self.advert_count.into()),
            SectionKind::Farewells => (8, farewell_count(self.slot_count).into()),
            SectionKind::Payload => (0, self.slot_count.into()),
        }
    }

    fn check_sections(&self) -> Result<(), SuperblockError> {
        let used = &self.sections[..(self.section_count as usize).min(MAX_SECTIONS)];
        if let Some(index) = self.sections[used.len()..].iter().position(|row| *row != Section::zeroed()) {
            return Err(field(format!("sections[{}].kind", used.len() + index), 1, "zero: the row is not used"));
        }
        let mut end = PAGE_BYTES;
        for (index, row) in used.iter().enumerate() {
            let wanted = SectionKind::ALL.get(index).copied();
            let Some(kind) = SectionKind::from_bits(row.kind).filter(|kind| Some(*kind) == wanted) else {
                return Err(field(
                    format!("sections[{index}].kind"),
                    row.kind.into(),
                    wanted.map_or("no further section".to_owned(), |kind| format!("{} ({})", kind as u32, kind.name())),
                ));
            };
            let (stride, count) = self.expected_section(kind);
            let name = kind.name();
            if u64::from(row.stride_bytes) != stride {
                return Err(field(
                    format!("sections[{name}].stride_bytes"),
                    row.stride_bytes.into(),
                    format!("{stride}"),
                ));
            }
            if row.count != count {
                return Err(field(format!("sections[{name}].count"), row.count, format!("{count}")));
            }
            let need = stride.checked_mul(count);
            if need.is_none_or(|need| row.length_bytes < need) {
                return Err(field(
                    format!("sections[{name}].length_bytes"),
                    row.length_bytes,
                    format!("at least {stride} x {count}"),
                ));
            }
            let alignment = match kind {
                SectionKind::Control | SectionKind::SessionAreas | SectionKind::Copy => PAGE_BYTES,
                SectionKind::Payload => self.align_bytes.into(),
                _ => 2 * LINE_BYTES,
            };
            if row.offset_bytes < end || !row.offset_bytes.is_multiple_of(alignment) {
                return Err(field(
                    format!("sections[{name}].offset_bytes"),
                    row.offset_bytes,
                    format!("a multiple of {alignment} from {end}, where the section before it ends"),
                ));
            }
            end = match row.offset_bytes.checked_add(row.length_bytes) {
                Some(end) if end <= self.length_bytes => end,
                _ => {
                    return Err(field(
                        format!("sections[{name}].length_bytes"),
                        row.length_bytes,
                        format!("an end within the region ({} bytes)", self.length_bytes),
                    ));
                }
            };
            let fixed = match kind {
                SectionKind::Control => Some(PAGE_BYTES),
                SectionKind::Payload => Some(self.header_bytes),
                SectionKind::Copy => Some(self.length_bytes - PAGE_BYTES),
                _ => None,
            };
            if let Some(offset) = fixed.filter(|offset| *offset != row.offset_bytes) {
                return Err(field(format!("sections[{name}].offset_bytes"), row.offset_bytes, format!("{offset}")));
            }
        }
        Ok(())
    }

    fn check_shards(&self) -> Result<(), SuperblockError> {
        let (mut slot, mut bucket) = (0u64, 0u64);
        for (index, shard) in self.shards.iter().enumerate() {
            if index >= self.shard_count as usize {
                if *shard != Shard::zeroed() {
                    return Err(field(
                        format!("shards[{index}]"),
                        shard.slot_count.into(),
                        "zero: the shard is not used",
                    ));
                }
                continue;
            }
            if u64::from(shard.first_slot) != slot || u64::from(shard.first_bucket) != bucket || shard.bucket_count == 0
            {
                return Err(field(
                    format!("shards[{index}].first_slot"),
                    shard.first_slot.into(),
                    format!("{slot}, and first_bucket {bucket}"),
                ));
            }
            if let Some(byte) = shard.reserved.iter().find(|byte| **byte != 0) {
                return Err(field(format!("shards[{index}].reserved"), u64::from(*byte), "zero"));
            }
            slot += u64::from(shard.slot_count);
            bucket += u64::from(shard.bucket_count);
        }
        if slot != u64::from(self.slot_count) {
            return Err(field("shards.slot_count", slot, format!("{} in sum", self.slot_count)));
        }
        if bucket != u64::from(self.bucket_count) {
            return Err(field("shards.bucket_count", bucket, format!("{} in sum", self.bucket_count)));
        }
        Ok(())
    }

    fn check_padding(&self) -> Result<(), SuperblockError> {
        let config_used = (self.config_bytes as usize).min(MAX_CONFIG_BYTES);
        for (name, bytes) in [
            ("reserved0", &self.reserved0[..]),
            ("reserved1", &self.reserved1[..]),
            ("reserved2", &self.reserved2[..]),
            ("config padding", &self.config[config_used..]),
        ] {
            if let Some(byte) = bytes.iter().find(|byte| **byte != 0) {
                return Err(field(name, u64::from(*byte), "zero"));
            }
        }
        if core::str::from_utf8(self.config_text()).is_err() {
            return Err(field("config", self.config_bytes.into(), "UTF-8 text"));
        }
        Ok(())
    }
}
