//! The superblock: 4 KiB, written once, that describe everything else. Whether one is believed is in `judge.rs`.

mod judge;

use bytemuck::{Pod, Zeroable};

pub use self::judge::SuperblockError;
use crate::farewell::farewell_count;
use crate::{MAX_CLASSES, MAX_CONFIG_BYTES, MAX_SECTIONS, MAX_SHARDS, PAGE_BYTES};

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
    /// [`MAGIC`](crate::MAGIC).
    pub magic: [u8; 8],
    /// [`FORMAT_VERSION`](crate::FORMAT_VERSION) of the writer.
    pub format_version: u32,
    /// [`BYTE_ORDER_MARK`](crate::BYTE_ORDER_MARK).
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
    /// [`LINE_BYTES`](crate::LINE_BYTES).
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
}
