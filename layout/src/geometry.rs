//! From a wish to offsets, and from a superblock to offsets that can be trusted.
//!
//! [`FormatSpec::plan`] turns "this many bytes, slots of that size" into a complete superblock.
//! [`Geometry::of`] turns a superblock that passed its check into the few numbers that address
//! arithmetic needs; only that struct is used afterwards, so bytes that change under us later can no
//! longer move a pointer.

use bytemuck::Zeroable;
use thiserror::Error;

use crate::farewell::farewell_count;
use crate::superblock::{
    Hosts, Regime, Section, SectionKind, Shard, SlotClass, Superblock, SuperblockError, feature_ignorable,
    feature_read, feature_write,
};
use crate::{
    ATTACH_WAIT_MS, BUCKET_MEAN, BYTE_ORDER_MARK, COPY_LEASE_MS, FORMAT_VERSION, LINE_BYTES, Limits, MAGIC,
    MAX_CLASSES, MAX_CONFIG_BYTES, MAX_SESSIONS, MAX_SLOTS, MIN_SESSION_AREA_BYTES, PAGE_BYTES,
    SESSION_AREA_HEAD_BYTES, SLOT_GRANULE_BYTES, STALLED_WRITER_MS,
};

/// The KV geometry of a model, from which a slot size follows.
///
/// ```
/// use maru_layout::geometry::KvGeometry;
/// // Qwen2.5-7B, bf16: 28 layers, 4 KV heads of 128, 256 tokens a block
/// let kv = KvGeometry { layers: 28, kv_heads: 4, head_dim: 128, element_bytes: 2, tokens_per_block: 256, planes: 2 };
/// assert_eq!(kv.block_bytes(), Some(256 * 56 * 1024));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvGeometry {
    /// Layers held in one block.
    pub layers: u32,
    /// KV heads of this rank (1 for a latent cache).
    pub kv_heads: u32,
    /// Elements of one head of one token (for a latent cache: the latent and rope dimensions in sum).
    pub head_dim: u32,
    /// Bytes of one element.
    pub element_bytes: u32,
    /// Tokens of one block.
    pub tokens_per_block: u32,
    /// 2 for keys and values, 1 for a latent cache.
    pub planes: u32,
}

impl KvGeometry {
    /// Bytes of one block; `None` when a field is zero or the product overflows.
    #[must_use]
    pub fn block_bytes(&self) -> Option<u64> {
        [self.layers, self.kv_heads, self.head_dim, self.element_bytes, self.tokens_per_block, self.planes]
            .into_iter()
            .try_fold(1u64, |product, factor| product.checked_mul(factor.into()))
            .filter(|bytes| *bytes > 0)
    }

    /// The slot size for one block: its bytes rounded up to a multiple of 64.
    #[must_use]
    pub fn slot_bytes(&self) -> Option<u64> {
        self.block_bytes()?.checked_next_multiple_of(SLOT_GRANULE_BYTES)
    }
}

/// One slot class that a formatter wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClassSpec {
    /// Bytes of a slot; a multiple of 64.
    pub slot_bytes: u64,
    /// Number of slots; `None` = an equal share of the payload bytes left by the classes that say.
    pub slots: Option<u32>,
}

/// What a formatter wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FormatSpec {
    /// Length of the region, bytes.
    pub length_bytes: u64,
    /// Alignment of length and payload, bytes: a power of two from 4096.
    pub align_bytes: u64,
    /// Slot classes, one to eight.
    pub classes: Vec<ClassSpec>,
    /// What the region needs from its memory.
    pub regime: Regime,
    /// How many hosts map it.
    pub hosts: Hosts,
    /// Session entries; `None` = by region size, at most 64.
    pub sessions: Option<u32>,
    /// Bytes of a session area; `None` = by region size.
    pub session_area_bytes: Option<u32>,
    /// Namespace rows; `None` = by region size.
    pub namespaces: Option<u32>,
    /// Budget tokens; `None` = twice the slots.
    pub tokens: Option<u32>,
    /// Copy lease, milliseconds.
    pub copy_lease_ms: u32,
    /// Stalled writer, milliseconds.
    pub stalled_writer_ms: u32,
    /// Attach wait, milliseconds.
    pub attach_wait_ms: u32,
    /// The writer's configuration as JSON text.
    pub config: String,
}

impl FormatSpec {
    /// A region of this length with slots of this size, defaults for everything else.
    #[must_use]
    pub fn new(length_bytes: u64, slot_bytes: u64) -> Self {
        Self {
            length_bytes,
            align_bytes: PAGE_BYTES,
            classes: vec![ClassSpec { slot_bytes, slots: None }],
            regime: Regime::Coherent,
            hosts: Hosts::One,
            sessions: None,
            session_area_bytes: None,
            namespaces: None,
            tokens: None,
            copy_lease_ms: COPY_LEASE_MS.default,
            stalled_writer_ms: STALLED_WRITER_MS.default,
            attach_wait_ms: ATTACH_WAIT_MS.default,
            config: "{}".to_owned(),
        }
    }

    /// The smallest region (a multiple of `align_bytes`) that holds this many slots of this size, with
    /// defaults for everything else.
    ///
    /// # Errors
    /// As [`FormatSpec::plan`].
    pub fn for_slots(slots: u32, slot_bytes: u64) -> Result<Self, SpecError> {
        let class = ClassSpec { slot_bytes, slots: Some(slots) };
        let wish = |length_bytes| Self { classes: vec![class], ..Self::new(length_bytes, slot_bytes) };
        let payload = u64::from(slots).checked_mul(slot_bytes).ok_or_else(|| too_small(u64::MAX, 0))?;
        let mut low =
            payload.checked_next_multiple_of(PAGE_BYTES).ok_or_else(|| too_small(u64::MAX, 0))?.max(PAGE_BYTES);
        let mut high = low
            .checked_add(u64::from(slots) * 256 + (64 << 20))
            .and_then(|bytes| bytes.checked_next_multiple_of(PAGE_BYTES))
            .ok_or_else(|| too_small(u64::MAX, 0))?;
        wish(high).plan(&Stamp::default())?;
        while low < high {
            let middle = (low + (high - low) / 2) / PAGE_BYTES * PAGE_BYTES;
            if wish(middle).plan(&Stamp::default()).is_ok() { high = middle } else { low = middle + PAGE_BYTES }
        }
        Ok(wish(high))
    }
}

/// What makes one formatting different from the next: ids, seeds and times.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stamp {
    /// Random region id.
    pub region_id: [u8; 16],
    /// Incarnation.
    pub incarnation: u64,
    /// Seed of key hashes.
    pub hash_seed: u64,
    /// Wall-clock time, nanoseconds since 1970.
    pub formatted_ns: u64,
    /// Formatting host.
    pub formatter_host: [u8; 16],
}

/// Why a wish cannot be formatted. Names the field, the value found and the value wanted.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SpecError {
    /// A value outside its bounds.
    #[error("{field} is {found}, wanted {wanted}")]
    Field {
        /// Which value.
        field: String,
        /// Value found.
        found: u64,
        /// Bound in words.
        wanted: String,
    },
    /// Tables and one slot do not fit.
    #[error("region too small: tables and slots need {need_bytes} bytes, length is {have_bytes}")]
    TooSmall {
        /// Bytes needed.
        need_bytes: u64,
        /// Bytes given.
        have_bytes: u64,
    },
}

fn too_small(need_bytes: u64, have_bytes: u64) -> SpecError {
    SpecError::TooSmall { need_bytes, have_bytes }
}

fn wrong(field: impl Into<String>, found: u64, wanted: impl Into<String>) -> SpecError {
    SpecError::Field { field: field.into(), found, wanted: wanted.into() }
}

/// Sizes of the tables before the payload, for a number of slots.
struct Plan {
    sections: Vec<Section>,
    header_bytes: u64,
}

impl FormatSpec {
    /// The superblock of this wish.
    ///
    /// # Errors
    /// Names the first value that cannot be had.
    pub fn plan(&self, stamp: &Stamp) -> Result<Superblock, SpecError> {
        self.check()?;
        let mut superblock = self.blank(stamp);
        let room = |slots: &[u32]| self.sections(&superblock, slots);

        let fits = |payload_bytes: u64| -> Option<(Vec<u32>, Plan)> {
            let slots = self.class_slots(payload_bytes)?;
            let plan = room(&slots)?;
            let end = plan.header_bytes.checked_add(self.payload_bytes(&slots)?)?.checked_add(PAGE_BYTES)?;
            (end <= self.length_bytes).then_some((slots, plan))
        };
        // The largest payload, in pages, whose tables still fit before it.
        let least = self
            .classes
            .iter()
            .try_fold(0u64, |sum, class| {
                class.slot_bytes.checked_mul(class.slots.unwrap_or(1).into()).and_then(|bytes| sum.checked_add(bytes))
            })
            .map(|bytes| bytes / PAGE_BYTES)
            .ok_or_else(|| too_small(u64::MAX, self.length_bytes))?;
        let (mut low, mut high) = (least, self.length_bytes / PAGE_BYTES);
        if let Some(slots) = self.classes.iter().map(|class| class.slots).collect::<Option<Vec<_>>>() {
            // All classes say how many: there is nothing to maximise.
            let plan = room(&slots).ok_or_else(|| too_small(u64::MAX, self.length_bytes))?;
            let need = self
                .payload_bytes(&slots)
                .and_then(|bytes| plan.header_bytes.checked_add(bytes)?.checked_add(PAGE_BYTES))
                .ok_or_else(|| too_small(u64::MAX, self.length_bytes))?;
            if need > self.length_bytes {
                return Err(too_small(need, self.length_bytes));
            }
            self.fill(&mut superblock, &slots, plan);
            return Ok(superblock.sealed());
        }
        while low < high {
            let middle = low + (high - low).div_ceil(2);
            if fits(middle * PAGE_BYTES).is_some() { low = middle } else { high = middle - 1 }
        }
        // One page more may still fit where `low` is the floor; slots need not be whole pages.
        let Some((slots, plan)) = fits((low + 1) * PAGE_BYTES).or_else(|| fits(low * PAGE_BYTES)) else {
            let least: Vec<u32> = self.classes.iter().map(|class| class.slots.unwrap_or(1)).collect();
            let need = room(&least)
                .and_then(|plan| plan.header_bytes.checked_add(self.payload_bytes(&least)?)?.checked_add(PAGE_BYTES))
                .unwrap_or(u64::MAX);
            return Err(too_small(need, self.length_bytes));
        };
        self.fill(&mut superblock, &slots, plan);
        Ok(superblock.sealed())
    }

    fn check(&self) -> Result<(), SpecError> {
        if !self.align_bytes.is_power_of_two() || !(PAGE_BYTES..=1 << 30).contains(&self.align_bytes) {
            return Err(wrong("align_bytes", self.align_bytes, "a power of two from 4096 to 1 GiB"));
        }
        if self.length_bytes == 0 || !self.length_bytes.is_multiple_of(self.align_bytes) {
            return Err(wrong(
                "length_bytes",
                self.length_bytes,
                format!("a positive multiple of align_bytes ({})", self.align_bytes),
            ));
        }
        if self.length_bytes > 1 << 48 {
            return Err(wrong("length_bytes", self.length_bytes, "at most 256 TiB"));
        }
        if self.classes.is_empty() || self.classes.len() > MAX_CLASSES {
            return Err(wrong("slot classes", self.classes.len() as u64, format!("1 to {MAX_CLASSES}")));
        }
        for (index, class) in self.classes.iter().enumerate() {
            let size = class.slot_bytes;
            if size == 0 || !size.is_multiple_of(SLOT_GRANULE_BYTES) || size > u64::from(u32::MAX) {
                return Err(wrong(
                    format!("classes[{index}].slot_bytes"),
                    size,
                    format!("a positive multiple of {SLOT_GRANULE_BYTES} below 4 GiB"),
                ));
            }
            if class.slots == Some(0) {
                return Err(wrong(format!("classes[{index}].slots"), 0, "at least 1"));
            }
            if self.classes[..index].iter().any(|before| before.slot_bytes >= size) {
                return Err(wrong(format!("classes[{index}].slot_bytes"), size, "classes in growing order of size"));
            }
        }
        let limits = |name: &str, value: u32, limits: Limits| {
            if limits.contains(value) {
                Ok(())
            } else {
                Err(wrong(name, value.into(), format!("from {} to {}", limits.min, limits.max)))
            }
        };
        limits("copy_lease_ms", self.copy_lease_ms, COPY_LEASE_MS)?;
        limits("stalled_writer_ms", self.stalled_writer_ms, STALLED_WRITER_MS)?;
        limits("attach_wait_ms", self.attach_wait_ms, ATTACH_WAIT_MS)?;
        if let Some(sessions) = self.sessions.filter(|n| !(1..=MAX_SESSIONS).contains(n)) {
            return Err(wrong("sessions", sessions.into(), format!("from 1 to {MAX_SESSIONS}")));
        }
        if let Some(rows) = self.namespaces.filter(|n| !(1..=1 << 20).contains(n)) {
            return Err(wrong("namespaces", rows.into(), "from 1 to 1048576"));
        }
        if let Some(tokens) = self.tokens.filter(|n| *n > 1 << 31) {
            return Err(wrong("tokens", tokens.into(), "at most 2^31"));
        }
        if let Some(area) = self.session_area_bytes {
            let area = u64::from(area);
            if !(MIN_SESSION_AREA_BYTES..=1 << 24).contains(&area) || !area.is_multiple_of(PAGE_BYTES) {
                return Err(wrong("session_area_bytes", area, "a multiple of 4096, from 4096 to 16 MiB"));
            }
        }
        if self.config.len() > MAX_CONFIG_BYTES {
            return Err(wrong("config", self.config.len() as u64, format!("at most {MAX_CONFIG_BYTES} bytes of JSON")));
        }
        Ok(())
    }

    /// Everything that does not depend on the number of slots. Tables scale with the region, so that a
    /// small one does not spend itself on session areas.
    fn blank(&self, stamp: &Stamp) -> Superblock {
        let length = self.length_bytes;
        let by_size = |unit: u64, min: u64, max: u64| (length / unit).clamp(min, max) as u32;
        let mut superblock = Superblock::zeroed();
        superblock.magic = MAGIC;
        superblock.format_version = FORMAT_VERSION;
        superblock.byte_order = BYTE_ORDER_MARK;
        superblock.features_read = feature_read::KNOWN;
        superblock.features_write = feature_write::KNOWN;
        superblock.features_ignorable = feature_ignorable::WRITTEN;
        superblock.region_id = stamp.region_id;
        superblock.incarnation = stamp.incarnation;
        superblock.regime = self.regime as u8;
        superblock.hosts = self.hosts as u8;
        superblock.page_bytes = PAGE_BYTES as u32;
        superblock.line_bytes = LINE_BYTES as u32;
        superblock.align_bytes = self.align_bytes as u32;
        superblock.length_bytes = length;
        superblock.session_count = self.sessions.unwrap_or_else(|| by_size(64 << 10, 4, 64));
        superblock.session_area_bytes =
            self.session_area_bytes.unwrap_or(if length >= 128 << 20 { 8192 } else { MIN_SESSION_AREA_BYTES as u32 });
        superblock.namespace_count = self.namespaces.unwrap_or_else(|| by_size(256 << 10, 4, 128));
        superblock.access_lanes = 1;
        superblock.class_count = self.classes.len() as u32;
        superblock.shard_count = 1;
        superblock.section_count = SectionKind::ALL.len() as u32;
        superblock.copy_lease_ms = self.copy_lease_ms;
        superblock.stalled_writer_ms = self.stalled_writer_ms;
        superblock.attach_wait_ms = self.attach_wait_ms;
        superblock.config_bytes = self.config.len() as u32;
        superblock.config[..self.config.len()].copy_from_slice(self.config.as_bytes());
        superblock.hash_seed = stamp.hash_seed;
        superblock.formatted_ns = stamp.formatted_ns;
        superblock.formatter_host = stamp.formatter_host;
        superblock
    }

    fn class_slots(&self, payload_bytes: u64) -> Option<Vec<u32>> {
        let said = self.classes.iter().try_fold(0u64, |sum, class| {
            sum.checked_add(class.slot_bytes.checked_mul(class.slots.unwrap_or(0).into())?)
        })?;
        let open = self.classes.iter().filter(|class| class.slots.is_none()).count() as u64;
        let share = payload_bytes.checked_sub(said)?.checked_div(open).unwrap_or(0);
        self.classes
            .iter()
            .map(|class| match class.slots {
                Some(slots) => Some(slots),
                None => u32::try_from((share / class.slot_bytes).min(MAX_SLOTS)).ok().filter(|slots| *slots > 0),
            })
            .collect()
    }

    fn payload_bytes(&self, slots: &[u32]) -> Option<u64> {
        self.classes
            .iter()
            .zip(slots)
            .try_fold(0u64, |sum, (class, slots)| sum.checked_add(class.slot_bytes.checked_mul(u64::from(*slots))?))
    }

    fn sections(&self, superblock: &Superblock, slots: &[u32]) -> Option<Plan> {
        let mut counted = *superblock;
        let total = slots.iter().try_fold(0u64, |sum, slots| sum.checked_add(u64::from(*slots)))?;
        if total == 0 || total > MAX_SLOTS {
            return None;
        }
        counted.slot_count = total as u32;
        counted.bucket_count = bucket_count(total);
        counted.token_count = self.tokens.unwrap_or((total * 2) as u32);
        let mut sections = Vec::with_capacity(SectionKind::ALL.len());
        let mut end = PAGE_BYTES;
        let mut header_bytes = 0;
        for kind in SectionKind::ALL {
            let (stride, count) = counted.expected_section(kind);
            let (offset, length) = match kind {
                SectionKind::Payload => {
                    header_bytes = end.checked_next_multiple_of(self.align_bytes)?;
                    (header_bytes, self.payload_bytes(slots)?)
                }
                SectionKind::Copy => (self.length_bytes - PAGE_BYTES, PAGE_BYTES),
                SectionKind::Control | SectionKind::SessionAreas => {
                    (end.checked_next_multiple_of(PAGE_BYTES)?, stride.checked_mul(count)?)
                }
                _ => (
                    end.checked_next_multiple_of(2 * LINE_BYTES)?,
                    stride.checked_mul(count)?.checked_next_multiple_of(LINE_BYTES)?,
                ),
            };
            sections.push(Section {
                kind: kind as u32,
                stride_bytes: stride as u32,
                offset_bytes: offset,
                length_bytes: length,
                count,
            });
            end = offset.checked_add(length)?;
        }
        Some(Plan { sections, header_bytes })
    }

    fn fill(&self, superblock: &mut Superblock, slots: &[u32], plan: Plan) {
        let total: u32 = slots.iter().sum();
        superblock.slot_count = total;
        superblock.bucket_count = bucket_count(total.into());
        superblock.token_count = self.tokens.unwrap_or(total * 2);
        superblock.header_bytes = plan.header_bytes;
        superblock.sections[..plan.sections.len()].copy_from_slice(&plan.sections);
        let (mut first_slot, mut offset) = (0, plan.header_bytes);
        for (row, (class, slots)) in superblock.classes.iter_mut().zip(self.classes.iter().zip(slots)) {
            *row = SlotClass {
                slot_bytes: class.slot_bytes,
                payload_offset_bytes: offset,
                first_slot,
                slot_count: *slots,
                reserved: 0,
            };
            first_slot += slots;
            offset += class.slot_bytes * u64::from(*slots);
        }
        superblock.shards[0] = Shard {
            first_slot: 0,
            slot_count: total,
            first_bucket: 0,
            bucket_count: superblock.bucket_count,
            rank: 0,
            writing_host: u16::MAX,
            reserved: [0; 12],
        };
    }
}

fn bucket_count(slots: u64) -> u32 {
    slots.div_ceil(BUCKET_MEAN).max(2) as u32
}

/// A region's numbers, believed once and then immutable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Geometry {
    /// Region id.
    pub region_id: [u8; 16],
    /// Incarnation.
    pub incarnation: u64,
    /// Regime.
    pub regime: Regime,
    /// Hosts.
    pub hosts: Hosts,
    /// Region length, bytes.
    pub length_bytes: u64,
    /// Alignment, bytes.
    pub align_bytes: u64,
    /// Bytes before the payload.
    pub header_bytes: u64,
    /// Slots.
    pub slot_count: u32,
    /// Buckets.
    pub bucket_count: u32,
    /// Session entries.
    pub session_count: u32,
    /// Bytes of a session area.
    pub session_area_bytes: u64,
    /// Lease cells of a session area.
    pub lease_cells: u32,
    /// Namespace rows.
    pub namespace_count: u32,
    /// Budget tokens.
    pub token_count: u32,
    /// Access-byte lanes.
    pub access_lanes: u32,
    /// Words about blocks that are gone.
    pub farewell_count: u32,
    /// Wall-clock time of formatting, nanoseconds since 1970.
    pub formatted_ns: u64,
    /// Copy lease, milliseconds.
    pub copy_lease_ms: u32,
    /// Stalled writer, milliseconds.
    pub stalled_writer_ms: u32,
    /// Attach wait, milliseconds.
    pub attach_wait_ms: u32,
    /// Hash seed.
    pub hash_seed: u64,
    /// First byte of each section, by [`SectionKind`] number.
    offsets: [u64; 16],
    /// Slot classes in use.
    pub classes: Vec<SlotClass>,
    /// Configuration text.
    pub config: String,
}

impl Geometry {
    /// The numbers of a superblock, after checking it against the backing's length.
    ///
    /// # Errors
    /// As [`Superblock::check`].
    pub fn of(superblock: &Superblock, have_bytes: u64, writing: bool) -> Result<Self, SuperblockError> {
        superblock.check(have_bytes, writing)?;
        let mut offsets = [0; 16];
        for kind in SectionKind::ALL {
            if let Some(row) = superblock.section(kind) {
                offsets[kind as usize] = row.offset_bytes;
            }
        }
        Ok(Self {
            region_id: superblock.region_id,
            incarnation: superblock.incarnation,
            regime: Regime::from_bits(superblock.regime).unwrap_or(Regime::Incoherent),
            hosts: Hosts::from_bits(superblock.hosts).unwrap_or(Hosts::Many),
            length_bytes: superblock.length_bytes,
            align_bytes: superblock.align_bytes.into(),
            header_bytes: superblock.header_bytes,
            slot_count: superblock.slot_count,
            bucket_count: superblock.bucket_count,
            session_count: superblock.session_count,
            session_area_bytes: superblock.session_area_bytes.into(),
            lease_cells: ((u64::from(superblock.session_area_bytes) - SESSION_AREA_HEAD_BYTES) / 8) as u32,
            namespace_count: superblock.namespace_count,
            token_count: superblock.token_count,
            access_lanes: superblock.access_lanes,
            farewell_count: farewell_count(superblock.slot_count),
            formatted_ns: superblock.formatted_ns,
            copy_lease_ms: superblock.copy_lease_ms,
            stalled_writer_ms: superblock.stalled_writer_ms,
            attach_wait_ms: superblock.attach_wait_ms,
            hash_seed: superblock.hash_seed,
            offsets,
            classes: superblock.classes[..superblock.class_count as usize].to_vec(),
            config: String::from_utf8_lossy(superblock.config_text()).into_owned(),
        })
    }

    /// First byte of a section.
    #[must_use]
    pub fn offset(&self, kind: SectionKind) -> u64 {
        self.offsets[kind as usize]
    }

    /// Number of the class that this slot belongs to.
    #[must_use]
    pub fn class_index_of(&self, slot: u32) -> Option<usize> {
        self.classes.iter().position(|class| slot.wrapping_sub(class.first_slot) < class.slot_count)
    }

    /// The class that this slot belongs to.
    #[must_use]
    pub fn class_of(&self, slot: u32) -> Option<&SlotClass> {
        self.class_index_of(slot).map(|index| &self.classes[index])
    }

    /// First payload byte and size of a slot.
    #[must_use]
    pub fn payload_of(&self, slot: u32) -> Option<(u64, u64)> {
        let class = self.class_of(slot)?;
        let offset = class.payload_offset_bytes + u64::from(slot - class.first_slot) * class.slot_bytes;
        Some((offset, class.slot_bytes))
    }

    /// The class that a payload of this length goes to: the smallest that holds it.
    #[must_use]
    pub fn class_for(&self, length: u64) -> Option<&SlotClass> {
        self.classes.iter().find(|class| class.slot_bytes >= length)
    }

    /// Largest payload that can be stored.
    #[must_use]
    pub fn max_payload_bytes(&self) -> u64 {
        self.classes.iter().map(|class| class.slot_bytes).max().unwrap_or(0)
    }

    /// Bytes of all slots.
    #[must_use]
    pub fn capacity_bytes(&self) -> u64 {
        self.classes.iter().map(|class| class.slot_bytes * u64::from(class.slot_count)).sum()
    }

    /// Bytes spent on everything but slots, per slot.
    #[must_use]
    pub fn metadata_bytes_per_slot(&self) -> f64 {
        (self.length_bytes - self.capacity_bytes()) as f64 / f64::from(self.slot_count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn plan(spec: &FormatSpec) -> Geometry {
        let superblock = spec.plan(&Stamp::default()).expect("plan");
        Geometry::of(&superblock, spec.length_bytes, true).expect("a planned superblock passes its own check")
    }

    #[test]
    fn metadata_of_a_large_region_is_at_most_192_bytes_a_slot() {
        for slot_bytes in [4096, 65536, 448 << 10] {
            let spec = FormatSpec::for_slots(1 << 16, slot_bytes).expect("spec");
            let geometry = plan(&spec);
            assert_eq!(geometry.slot_count, 1 << 16);
            let metadata = (geometry.header_bytes + PAGE_BYTES) as f64 / f64::from(geometry.slot_count);
            assert!(metadata <= 192.0, "{metadata} at {slot_bytes}");
        }
    }

    #[test]
    fn a_4_mib_region_spends_at_most_an_eighth_on_metadata() {
        for slot_bytes in [4096, 16384, 65536] {
            let geometry = plan(&FormatSpec::new(4 << 20, slot_bytes));
            assert!(geometry.header_bytes <= (4 << 20) / 8, "{} at {slot_bytes}", geometry.header_bytes);
        }
    }

    #[test]
    fn five_model_geometries_give_the_tabled_slot_sizes() {
        let kv = |layers, kv_heads, head_dim, element_bytes, tokens_per_block, planes| KvGeometry {
            layers,
            kv_heads,
            head_dim,
            element_bytes,
            tokens_per_block,
            planes,
        };
        for (geometry, bytes, slots_in_1_gib) in [
            (kv(28, 4, 128, 2, 16, 2), 917_504, 1169),  // Qwen2.5-7B bf16, 16 tokens
            (kv(32, 8, 128, 2, 16, 2), 2_097_152, 511), // Llama-3.1-8B bf16, 16 tokens
            (kv(80, 8, 128, 1, 16, 2), 2_621_440, 409), // Llama-3.1-70B fp8, 16 tokens
            (kv(61, 1, 576, 2, 64, 1), 4_497_408, 238), // DeepSeek-V3 latent bf16, 64 tokens
            (kv(8, 4, 64, 2, 128, 2), 1_048_576, 1023), // the small Qwen2 of the CPU tests
        ] {
            assert_eq!(geometry.slot_bytes(), Some(bytes));
            assert_eq!(plan(&FormatSpec::new(1 << 30, bytes)).slot_count, slots_in_1_gib);
        }
        assert_eq!(plan(&FormatSpec::new(64 << 20, 116_992)).classes[0].slot_bytes, 116_992);
        assert_eq!(kv(0, 1, 1, 1, 1, 1).slot_bytes(), None);
        assert_eq!(kv(u32::MAX, u32::MAX, u32::MAX, 1, 1, 1).slot_bytes(), None);
    }

    proptest! {
        #[test]
        fn any_wish_gives_a_sound_region_or_a_named_refusal(
            pages in 0u64..20_000, align in 0u32..24, sizes in proptest::collection::vec(0u64..2000, 0..4), slots in proptest::option::of(0u32..3000),
            sessions in proptest::option::of(0u32..5000), extra in 0u64..2,
        ) {
            let mut spec = FormatSpec::new(pages * 4096 + extra, 64);
            spec.align_bytes = 1 << align;
            spec.classes = sizes.iter().map(|granules| ClassSpec { slot_bytes: granules * 64, slots: None }).collect();
            if let Some(first) = spec.classes.first_mut() { first.slots = slots; }
            spec.sessions = sessions;
            if let Ok(superblock) = spec.plan(&Stamp::default()) {
                let geometry = Geometry::of(&superblock, spec.length_bytes, true).expect("sound");
                let (offset, size) = geometry.payload_of(geometry.slot_count - 1).expect("last slot");
                prop_assert!(offset + size <= spec.length_bytes - 4096);
                prop_assert_eq!(geometry.payload_of(geometry.slot_count), None);
            }
        }

        #[test]
        fn no_damage_to_a_superblock_gets_past_its_check(at in 0usize..4096, bit in 0u8..8) {
            let superblock = FormatSpec::new(4 << 20, 4096).plan(&Stamp::default()).expect("plan");
            let mut bytes = bytemuck::bytes_of(&superblock).to_vec();
            bytes[at] ^= 1 << bit;
            let damaged = Superblock::read(&bytes).expect("whole page");
            prop_assert!(damaged.check(4 << 20, true).is_err());
        }

        #[test]
        fn any_page_is_judged_without_panic(seed: u64, fields in proptest::collection::vec((0usize..512, any::<u64>()), 0..40)) {
            let superblock = FormatSpec::new(4 << 20, 4096).plan(&Stamp { hash_seed: seed, ..Stamp::default() }).expect("plan");
            let mut bytes = bytemuck::bytes_of(&superblock).to_vec();
            for (word, value) in fields { bytes[word * 8..word * 8 + 8].copy_from_slice(&value.to_le_bytes()); }
            let damaged = Superblock::read(&bytes).expect("whole page").sealed();
            if let Ok(geometry) = Geometry::of(&damaged, 4 << 20, true) {
                for slot in 0..geometry.slot_count.min(5000) {
                    let (offset, size) = geometry.payload_of(slot).expect("slot below count");
                    prop_assert!(offset + size <= 4 << 20);
                }
            }
        }
    }
}
