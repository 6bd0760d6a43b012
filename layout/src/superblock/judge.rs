//! Judging a superblock: an exercise in distrust.
//!
//! [`Superblock::check`] goes field by field in an order that gives the most useful answer first: magic, byte order,
//! version, feature words, then each number with its bounds, then the tables, and the checksum last, because "align_bytes is
//! 3" tells an operator more than "checksum wrong". Nothing below the superblock is looked at before it has passed.

use bytemuck::Zeroable;
use thiserror::Error;

use super::{Hosts, Regime, Section, SectionKind, Shard, SlotClass, Superblock, feature_read, feature_write};
use crate::{
    ATTACH_WAIT_MS, BYTE_ORDER_MARK, COPY_LEASE_MS, FORMAT_VERSION, LINE_BYTES, MAGIC, MAX_CLASSES, MAX_CONFIG_BYTES,
    MAX_SECTIONS, MAX_SESSIONS, MAX_SLOTS, OLDEST_READABLE_VERSION, PAGE_BYTES, SLOT_GRANULE_BYTES, STALLED_WRITER_MS,
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

impl Superblock {
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
