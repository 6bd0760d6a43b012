//! From bytes to references: the only place where a mapped byte becomes a `&` to anything.
//!
//! Invariants, cited by the SAFETY comments:
//!
//! * R1: every offset handed out lies inside the mapping. It comes from a [`Geometry`], which is a private
//!   copy of numbers that passed the superblock's check; bytes of the region that change later cannot move it.
//! * R2: the mapping starts on a page, sections start on lines or pages, strides are multiples of the views'
//!   alignment, so every view is aligned.
//! * R3: the mapping is alive as long as these tables: they hold it.
//! * R4: the views consist of atomics (or are raw pointers), so that any process may store to the bytes
//!   behind a `&` at any time.
//! * R5: a read-only mapping is never stored to: only [`crate::Session`] stores, and none is made on one.

use std::sync::Arc;

use maru_layout::geometry::Geometry;
use maru_layout::object::PayloadCrc;
use maru_layout::superblock::SectionKind;
use maru_layout::{BUCKET_BYTES, RECORD_BYTES, SESSION_AREA_HEAD_BYTES};

use crate::ReadFor;
use crate::copy;
use crate::os::map::Mapping;
use crate::slot::Slot;
use crate::sync::{AtomicU8, AtomicU64};
use crate::view::{AreaHead, BucketLine, Control, RowLines, SessionLines};

/// A region's tables, as atomics.
#[derive(Clone)]
pub(crate) struct Tables {
    mapping: Arc<Mapping>,
    geometry: Arc<Geometry>,
    bases: Bases,
}

/// First byte of each table, so that an access is one multiply-add.
#[derive(Clone, Copy)]
struct Bases {
    control: *mut u8,
    namespaces: *mut u8,
    sessions: *mut u8,
    areas: *mut u8,
    bitmap: *mut u8,
    records: *mut u8,
    buckets: *mut u8,
    access: *mut u8,
    tokens: *mut u8,
    farewells: *mut u8,
    /// Null when the payload is not mapped.
    payload_origin: *mut u8,
}

// SAFETY: the pointers lead into `mapping`, which is shared memory made for being stored to by many threads
// (R4), and which lives as long as the value (R3). Nothing here is tied to a thread.
unsafe impl Send for Tables {}
// SAFETY: as above; all methods take `&self` and hand out atomics or raw pointers.
unsafe impl Sync for Tables {}

impl Tables {
    /// Tables over a mapping that starts at the region's first byte.
    ///
    /// # Panics
    /// When the mapping is shorter than the geometry's header; the caller mapped it by that geometry.
    pub(crate) fn new(mapping: Arc<Mapping>, geometry: Arc<Geometry>) -> Self {
        let mapped = mapping.len() as u64;
        assert!(mapped >= geometry.header_bytes, "the header is mapped");
        let base = |kind| {
            let offset = geometry.offset(kind) as usize;
            debug_assert!(offset as u64 <= geometry.header_bytes);
            // SAFETY: a table's offset is at most `header_bytes`, and that many bytes are mapped (R1).
            unsafe { mapping.as_ptr().add(offset) }
        };
        let bases = Bases {
            control: base(SectionKind::Control),
            namespaces: base(SectionKind::Namespaces),
            sessions: base(SectionKind::Sessions),
            areas: base(SectionKind::SessionAreas),
            bitmap: base(SectionKind::Bitmap),
            records: base(SectionKind::Records),
            buckets: base(SectionKind::Buckets),
            access: base(SectionKind::AccessBytes),
            tokens: base(SectionKind::Tokens),
            farewells: base(SectionKind::Farewells),
            payload_origin: if mapped >= geometry.length_bytes { mapping.as_ptr() } else { core::ptr::null_mut() },
        };
        Self { mapping, geometry, bases }
    }

    /// The numbers behind the tables.
    pub(crate) fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// The mapping.
    pub(crate) fn mapping(&self) -> &Arc<Mapping> {
        &self.mapping
    }

    /// The element of type `T` at `index` of the table at `base`.
    ///
    /// # Safety
    /// `base` is the base of a table with elements of `stride` bytes that hold a `T`, and `index` is below its
    /// count.
    #[inline(always)]
    unsafe fn at<T>(&self, base: *mut u8, stride: usize, index: usize) -> &T {
        // SAFETY: inside the table by the caller's promise, and so inside the mapping (R1).
        let place = unsafe { base.add(index * stride) };
        // SAFETY: mapped (R1), aligned (R2), alive as long as `self` (R3), and `T` is made of atomics (R4).
        unsafe { &*place.cast::<T>() }
    }

    /// The control page.
    #[inline]
    pub(crate) fn control(&self) -> &Control {
        // SAFETY: the control section holds one control page.
        unsafe { self.at(self.bases.control, 0, 0) }
    }

    /// A slot. Indices from the region itself go through [`Tables::slot_checked`].
    #[inline]
    pub(crate) fn slot(&self, index: u32) -> &Slot {
        assert!(index < self.geometry.slot_count, "slot index within the region");
        // SAFETY: the records section holds `slot_count` records, and the index is below that.
        unsafe { self.at(self.bases.records, RECORD_BYTES as usize, index as usize) }
    }

    /// A slot named by bytes of the region; `None` when there is no such slot.
    #[inline]
    pub(crate) fn slot_checked(&self, index: u32) -> Option<&Slot> {
        (index < self.geometry.slot_count).then(|| self.slot(index))
    }

    /// An index bucket.
    #[inline]
    pub(crate) fn bucket(&self, index: u32) -> &BucketLine {
        assert!(index < self.geometry.bucket_count, "bucket index within the region");
        // SAFETY: the buckets section holds `bucket_count` buckets, and the index is below that.
        unsafe { self.at(self.bases.buckets, BUCKET_BYTES as usize, index as usize) }
    }

    /// A word of the slot bitmap.
    #[inline]
    pub(crate) fn bitmap(&self, word: u32) -> &AtomicU64 {
        assert!(word < self.geometry.slot_count.div_ceil(64), "bitmap word within the region");
        // SAFETY: the bitmap section holds one word for every 64 slots, and the index is below that.
        unsafe { self.at(self.bases.bitmap, 8, word as usize) }
    }

    /// The access byte of a slot, first lane.
    #[inline]
    pub(crate) fn access(&self, slot: u32) -> &AtomicU8 {
        assert!(slot < self.geometry.slot_count, "slot index within the region");
        // SAFETY: the section holds at least one byte a slot, and the index is below the slot count.
        unsafe { self.at(self.bases.access, 1, slot as usize) }
    }

    /// A budget token.
    #[inline]
    pub(crate) fn token(&self, index: u32) -> &AtomicU64 {
        assert!(index < self.geometry.token_count, "token index within the region");
        // SAFETY: the section holds `token_count` words, and the index is below that.
        unsafe { self.at(self.bases.tokens, 8, index as usize) }
    }

    /// What was said of blocks that are gone.
    #[inline]
    pub(crate) fn farewell(&self, index: u32) -> &AtomicU64 {
        assert!(index < self.geometry.farewell_count, "farewell within the region");
        // SAFETY: the section holds `farewell_count` words, and the index is below that.
        unsafe { self.at(self.bases.farewells, 8, index as usize) }
    }

    /// A session entry.
    #[inline]
    pub(crate) fn session(&self, index: u32) -> &SessionLines {
        assert!(index < self.geometry.session_count, "session index within the region");
        // SAFETY: the section holds `session_count` entries, and the index is below that.
        unsafe { self.at(self.bases.sessions, size_of::<SessionLines>(), index as usize) }
    }

    /// The head of a session's area.
    #[inline]
    pub(crate) fn area(&self, session: u32) -> &AreaHead {
        assert!(session < self.geometry.session_count, "session index within the region");
        // SAFETY: the section holds `session_count` areas of at least a head each.
        unsafe { self.at(self.bases.areas, self.geometry.session_area_bytes as usize, session as usize) }
    }

    /// A lease cell of a session.
    #[inline]
    pub(crate) fn cell(&self, session: u32, cell: u32) -> &AtomicU64 {
        assert!(session < self.geometry.session_count, "session index within the region");
        assert!(cell < self.geometry.lease_cells, "lease cell within the area");
        let byte = session as usize * self.geometry.session_area_bytes as usize
            + SESSION_AREA_HEAD_BYTES as usize
            + cell as usize * 8;
        // SAFETY: the cell lies behind the head inside the session's area, both indices being in bounds.
        unsafe { self.at(self.bases.areas, 1, byte) }
    }

    /// The first `count` lease cells of a session's area.
    #[inline]
    pub(crate) fn cells(&self, session: u32, count: u32) -> &[AtomicU64] {
        if count == 0 {
            return &[];
        }
        assert!(session < self.geometry.session_count, "session index within the region");
        assert!(count <= self.geometry.lease_cells, "lease cells within the area");
        let byte = session as usize * self.geometry.session_area_bytes as usize + SESSION_AREA_HEAD_BYTES as usize;
        // The cells lie one behind the other behind the head, inside the session's area, which lies in the section
        // (both numbers being in bounds), and that in the mapping; they are aligned, as the head is, and atomics.
        let first = self.bases.areas.wrapping_add(byte).cast();
        // SAFETY: by the above; mapped as long as `self` (R3).
        unsafe { core::slice::from_raw_parts(first, count as usize) }
    }

    /// A namespace row.
    #[inline]
    pub(crate) fn row(&self, index: u32) -> &RowLines {
        assert!(index < self.geometry.namespace_count, "namespace row within the region");
        // SAFETY: the section holds `namespace_count` rows, and the index is below that.
        unsafe { self.at(self.bases.namespaces, size_of::<RowLines>(), index as usize) }
    }

    /// The payload of a slot; `None` when the payload is not mapped (header-only).
    #[inline]
    pub(crate) fn payload(&self, slot: u32) -> Option<Payload<'_>> {
        if self.bases.payload_origin.is_null() {
            return None;
        }
        let (offset, capacity) = self.geometry.payload_of(slot)?;
        // SAFETY: the whole region is mapped (the origin is not null) and a slot's payload lies inside it (R1).
        let start = unsafe { self.bases.payload_origin.add(offset as usize) };
        Some(Payload { start, capacity: capacity as usize, _tables: core::marker::PhantomData })
    }

    /// Tells the processor that bucket `index` will be read.
    #[inline]
    pub(crate) fn prefetch_bucket(&self, index: u32) {
        prefetch(core::ptr::from_ref(self.bucket(index)).cast());
    }

    /// Tells the processor that the identity line of slot `index` will be read.
    #[inline]
    pub(crate) fn prefetch_slot(&self, index: u32) {
        if let Some(slot) = self.slot_checked(index) {
            prefetch(core::ptr::from_ref(slot).cast());
        }
    }
}

#[inline(always)]
fn prefetch(line: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a prefetch never faults and changes nothing but caches.
    unsafe {
        core::arch::x86_64::_mm_prefetch::<{ core::arch::x86_64::_MM_HINT_T0 }>(line.cast());
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = line;
}

/// A slot's bytes.
#[derive(Clone, Copy)]
pub(crate) struct Payload<'t> {
    start: *mut u8,
    capacity: usize,
    _tables: core::marker::PhantomData<&'t Tables>,
}

// SAFETY: the pointer leads into a shared mapping that outlives `'t` (R3); copies through it are made of
// instructions that tolerate other writers (see `copy`).
unsafe impl Send for Payload<'_> {}
// SAFETY: as above.
unsafe impl Sync for Payload<'_> {}

impl Payload<'_> {
    /// First byte.
    pub(crate) fn as_ptr(&self) -> *mut u8 {
        self.start
    }

    /// Copies `length` bytes to `offset`, past the caches, and adds those that landed to `crc`. When it returns, any store
    /// of this thread may publish them.
    ///
    /// # Safety
    /// `source` must be valid for reads of `length` bytes outside of this slot. They may change meanwhile.
    ///
    /// # Panics
    /// When they do not fit; callers check against the reserved length.
    pub(crate) unsafe fn write_from(&self, offset: usize, source: *const u8, length: usize, crc: &mut PayloadCrc) {
        assert!(offset.checked_add(length).is_some_and(|end| end <= self.capacity), "write within the slot");
        // SAFETY: `offset` is within the slot, which is within the mapping (R1).
        let target = unsafe { self.start.add(offset) };
        // SAFETY: the slot has `length` bytes from there on; `source` has as many, by the caller's promise.
        unsafe { copy::copy_hashed(target, source, length, copy::Stores::Streaming, crc) }
    }

    /// Copies from `offset` into `bytes`, and adds those that landed to `crc`, if one is wanted.
    ///
    /// # Panics
    /// When that reaches beyond the slot; callers check against the record's clamped length.
    pub(crate) fn read_for(&self, offset: usize, bytes: &mut [u8], read_for: ReadFor, crc: Option<&mut PayloadCrc>) {
        assert!(offset.checked_add(bytes.len()).is_some_and(|end| end <= self.capacity), "read within the slot");
        // SAFETY: `offset` is within the slot, which is within the mapping (R1).
        let source = unsafe { self.start.add(offset) };
        let stores = match read_for {
            ReadFor::Cpu => copy::Stores::Plain,
            ReadFor::Device => copy::Stores::Streaming,
        };
        let (target, length) = (bytes.as_mut_ptr(), bytes.len());
        match crc {
            // SAFETY: the slot has `length` bytes from there on; a private slice does not overlap shared memory.
            Some(crc) => unsafe { copy::copy_hashed(target, source, length, stores, crc) },
            // SAFETY: as above.
            None => unsafe { copy::copy(target, source, length, stores) },
        }
    }

    /// Bytes of the slot.
    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }
}
