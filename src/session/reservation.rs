//! The writer's end of a store.

use maru_layout::object::PayloadCrc;
use maru_layout::record::BodyLine;
use maru_layout::table::{Operation, RecordOutcome};
use maru_layout::word::{SlotState, SlotWord};

use super::{Session, on};
use crate::step::step;
use crate::store::Claim;
use crate::sync::process;
use crate::{CallError, Commit, NamespaceId, ReadFor, ReserveOptions, Token, Why, WriteError, Writer};

/// Answer of [`Session::reserve`].
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "lives for one match; a box would be an allocation for every store")]
pub enum Reserve<'s> {
    /// A slot to write.
    Granted(Reservation<'s>),
    /// The object is ready already.
    Present,
    /// Somebody is writing it.
    BeingWritten,
    /// No, and why. Nothing that was there is lost by it.
    Refused(Why),
    /// Lost too many rounds to others that want the same object; try again.
    Contended,
}

impl<'s> Reserve<'s> {
    /// The reservation, if granted.
    #[must_use]
    pub fn granted(self) -> Option<Reservation<'s>> {
        match self {
            Self::Granted(reservation) => Some(reservation),
            _ => None,
        }
    }

    /// A short word for JSON.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::Granted(_) => "granted",
            Self::Present => "present",
            Self::BeingWritten => "being_written",
            Self::Refused(_) => "refused",
            Self::Contended => "contended",
        }
    }
}

/// A slot that this session writes. Dropping it gives it back, as [`Reservation::abort`] does, except that a slot
/// written by a device is quarantined: only the caller knows whether the device is done.
pub struct Reservation<'s> {
    session: &'s Session,
    claim: Claim,
    namespace: NamespaceId,
    options: ReserveOptions,
    written: Written,
    ended: Option<Commit>,
}

/// Bytes read at once for the checksum of a slot that somebody else wrote.
const PIECE_BYTES: usize = 8192;

/// Which bytes have been written, and the checksums of those that landed.
struct Written {
    /// Disjoint, sorted, not touching.
    ranges: Vec<Range>,
    /// The checksum's beginning: what it covers before the payload.
    head: PayloadCrc,
    /// The pointer was given away: whatever is in the slot at commit counts.
    exposed: bool,
}

/// Bytes that have been written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Range {
    start: u32,
    end: u32,
    /// Of these bytes, behind the head where they begin at 0. Unknown where a piece overlapped a part of another one.
    crc: Option<PayloadCrc>,
}

impl Written {
    fn new(head: PayloadCrc) -> Self {
        Self { ranges: Vec::new(), head, exposed: false }
    }

    fn covers(&self, len: u32) -> bool {
        self.exposed || matches!(self.ranges[..], [Range { start: 0, end, .. }] if end == len)
    }

    fn bytes(&self) -> u32 {
        self.ranges.iter().map(|range| range.end - range.start).sum()
    }

    /// The checksum of all bytes, if each of them was written once.
    fn crc(&self, len: u32) -> Option<PayloadCrc> {
        match self.ranges[..] {
            [Range { start: 0, end, crc }] if end == len && !self.exposed => crc,
            _ => None,
        }
    }

    /// Where the checksum of a piece at `start` begins: after the head, or anew.
    fn begin(&self, start: u32) -> PayloadCrc {
        if start == 0 { self.head } else { PayloadCrc::of_part() }
    }

    /// Takes the range that ends at `start` and goes on from there, if its checksum is known.
    fn go_on(&mut self, start: u32) -> Option<(u32, PayloadCrc)> {
        let at = self.ranges.partition_point(|range| range.end < start);
        let before = self.ranges.get(at).filter(|range| range.end == start)?;
        let found = (before.start, before.crc?);
        self.ranges.remove(at);
        Some(found)
    }

    /// Notes that `start..end` has been written, with that checksum behind what [`Self::begin`] said.
    fn add(&mut self, start: u32, end: u32, crc: PayloadCrc) {
        if start == end {
            return;
        }
        let at = self.ranges.partition_point(|range| range.end < start);
        let (mut whole, mut after) = (Range { start, end, crc: Some(crc) }, at);
        while let Some(range) = self.ranges.get(after).filter(|range| range.start <= end) {
            whole = whole.with(range);
            after += 1;
        }
        self.ranges.splice(at..after, [whole]);
    }
}

impl Range {
    /// This range, written after `old`, which it touches or overlaps.
    fn with(self, old: &Self) -> Self {
        let joined = |left: &Self, right: &Self| {
            let mut crc = left.crc?;
            crc.append(right.crc?, u64::from(right.end - right.start));
            Some(crc)
        };
        let crc = if self.start <= old.start && old.end <= self.end {
            self.crc
        } else if old.end == self.start {
            joined(old, &self)
        } else if self.end == old.start {
            joined(&self, old)
        } else {
            None
        };
        Self { start: self.start.min(old.start), end: self.end.max(old.end), crc }
    }
}

impl<'s> Reservation<'s> {
    pub(super) fn new(session: &'s Session, claim: Claim, namespace: NamespaceId, options: ReserveOptions) -> Self {
        let written = Written::new(PayloadCrc::new(&claim.key, claim.word.generation(), claim.len()));
        on!(session.dispatch, e => e.begin(Operation::Write, Some(claim.slot)));
        Self { session, claim, namespace, options, written, ended: None }
    }

    /// Bytes reserved.
    #[must_use]
    pub fn len(&self) -> u32 {
        self.claim.len()
    }

    /// Never: a reservation has at least one byte.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Slot reserved.
    #[must_use]
    pub fn slot(&self) -> u32 {
        self.claim.slot
    }

    /// Names this reservation, so that its outcome can be asked for later.
    #[must_use]
    pub fn token(&self) -> Token {
        Token {
            region: self.session.inner.geometry().region_id,
            slot: self.claim.slot,
            generation: self.claim.word.generation(),
        }
    }

    /// Whether the slot still is this reservation's.
    fn is_mine(&self) -> bool {
        self.session.inner.tables.slot(self.claim.slot).word() == self.claim.word
    }

    /// Writes a piece. Pieces may come in any order; their checksum is computed on the way, of the bytes that land. Pieces
    /// that overlap a part of an earlier one cost `commit` a look at the whole slot.
    ///
    /// # Errors
    /// Beyond the reserved length; the slot was taken away; the call cannot be tried.
    pub fn write_at(&mut self, offset: u32, bytes: &[u8]) -> Result<(), WriteError> {
        // SAFETY: a slice is as long as it says, and lies in private memory.
        unsafe { self.write_from(offset, bytes.as_ptr(), bytes.len()) }
    }

    /// [`Reservation::write_at`] for memory that other threads may be storing to, such as another language's buffer: what
    /// lands is what the checksum covers, each byte as it was at some moment of the call.
    ///
    /// # Safety
    /// `length` bytes must be readable at `source` during the call, none of them in this reservation's slot.
    ///
    /// # Errors
    /// As [`Reservation::write_at`].
    pub unsafe fn write_from(&mut self, offset: u32, source: *const u8, length: usize) -> Result<(), WriteError> {
        if self.ended.is_some() {
            return Err(WriteError::Ended);
        }
        let len = self.len();
        let end = u64::from(offset).saturating_add(length as u64);
        if end > u64::from(len) {
            return Err(WriteError::OutOfBounds { offset, bytes: length, len });
        }
        self.session.check()?;
        if !self.is_mine() {
            self.session.check()?;
            return Err(WriteError::Superseded);
        }
        let session = self.session;
        let payload = session.inner.tables.payload(self.claim.slot).ok_or(CallError::NoPayload)?;
        step!(StorePayload);
        let (start, mut crc) = self.written.go_on(offset).unwrap_or_else(|| (offset, self.written.begin(offset)));
        // SAFETY: `source` is readable for `length` bytes by the caller's promise.
        unsafe { payload.write_from(offset as usize, source, length, &mut crc) }
        self.written.add(start, end as u32, crc);
        if session.inner.tables.mapping().is_lost() {
            return Err(CallError::Lost.into());
        }
        Ok(())
    }

    /// The slot's first byte, for a device or a gather that writes in place. All reserved bytes count as written from
    /// here on, and `commit` reads the slot once for its checksum.
    ///
    /// Writing through the pointer is sound for [`Reservation::len`] bytes until `commit` or `abort`; other processes
    /// do not read or write there meanwhile.
    ///
    /// # Errors
    /// The call cannot be tried.
    pub fn expose(&mut self) -> Result<*mut u8, CallError> {
        self.session.check_bytes()?;
        let payload = self.session.inner.tables.payload(self.claim.slot).ok_or(CallError::NoPayload)?;
        self.written.exposed = true;
        Ok(payload.as_ptr())
    }

    /// Publishes the block: after [`Commit::Stored`] a probe hits, in every process. Called again, it gives the same
    /// answer in the past tense.
    ///
    /// # Errors
    /// The call cannot be tried.
    pub fn commit(&mut self) -> Result<Commit, CallError> {
        match self.ended {
            Some(Commit::Stored) => return Ok(Commit::AlreadyStored),
            Some(ended) => return Ok(ended),
            None => {}
        }
        match self.session.check_bytes() {
            Err(CallError::Fenced { .. }) => return Ok(self.end(Commit::Fenced)),
            Err(CallError::Lost) => return Ok(Commit::Unknown(self.token())),
            other => other?,
        }
        let len = self.len();
        if !self.written.covers(len) {
            return Ok(Commit::Incomplete { written: self.written.bytes(), len });
        }
        let session = self.session;
        if !on!(session.dispatch, e => e.check_namespace(&self.namespace))? {
            on!(session.dispatch, e => e.give_back(&self.claim));
            return Ok(self.end(Commit::Invalidated));
        }
        let crc = self.written.crc(len).unwrap_or_else(|| self.checksum_of_slot()).finish();
        session.inner.sync_payload(self.claim.slot, len);
        let body = BodyLine {
            committed_ns: crate::wall_ns(),
            parent_hint: self
                .options
                .parent
                .map_or(0, |parent| u64::from_le_bytes(parent[..8].try_into().expect("eight bytes"))),
            depth: self.options.depth,
            namespace_row: self.namespace.row(),
            writer_kind: u8::from(self.options.writer == Writer::Device),
            ..bytemuck::Zeroable::zeroed()
        };
        on!(session.dispatch, e => e.begin(Operation::Commit, Some(self.claim.slot)));
        let commit = on!(session.dispatch, e => e.publish(&self.claim, body, crc, self.options.after_hits >= crate::evict::TAIL_RUN));
        session.inner.sync_record(self.claim.slot);
        if session.inner.tables.mapping().is_lost() {
            return Ok(Commit::Unknown(self.token()));
        }
        // Invalidated while it was published: nobody can find it under the old digest once the new one is out, and the
        // caller must not count on it.
        if commit == Commit::Stored && !on!(session.dispatch, e => e.check_namespace(&self.namespace))? {
            on!(session.dispatch, e => e.retire_object(&self.claim.key));
            return Ok(self.end(Commit::Invalidated));
        }
        Ok(self.end(commit))
    }

    /// Reads the slot once: pieces overlapped, or somebody else wrote them.
    fn checksum_of_slot(&self) -> PayloadCrc {
        let mut crc = self.written.head;
        let mut piece = [0u8; PIECE_BYTES];
        if let Some(payload) = self.session.inner.tables.payload(self.claim.slot) {
            let len = self.len() as usize;
            for start in (0..len).step_by(PIECE_BYTES) {
                let piece = &mut piece[..PIECE_BYTES.min(len - start)];
                payload.read_for(start, piece, ReadFor::Cpu, Some(&mut crc));
            }
        }
        crc
    }

    /// Gives the slot back; the caller says that nothing writes there any more. `false`: it had ended or been taken
    /// away before.
    ///
    /// # Errors
    /// The call cannot be tried.
    pub fn abort(mut self) -> Result<bool, CallError> {
        super::check_region(&self.session.inner)?;
        if self.ended.is_some() {
            return Ok(false);
        }
        let given_back = on!(self.session.dispatch, e => e.give_back(&self.claim));
        on!(self.session.dispatch, e => e.count(maru_layout::table::Counter::Aborted, given_back.into()));
        self.end(Commit::GenerationGone);
        Ok(given_back)
    }

    fn end(&mut self, commit: Commit) -> Commit {
        if self.ended.is_none() {
            let (operation, outcome) = match commit {
                Commit::Stored | Commit::AlreadyStored => (Operation::Commit, RecordOutcome::Done),
                Commit::Superseded => (Operation::Commit, RecordOutcome::Superseded),
                Commit::Fenced => (Operation::Commit, RecordOutcome::Fenced),
                Commit::Invalidated => (Operation::Commit, RecordOutcome::Invalidated),
                Commit::GenerationGone | Commit::Incomplete { .. } | Commit::Unknown(_) => {
                    (Operation::Abort, RecordOutcome::Done)
                }
            };
            let replica = Some((self.claim.slot, self.claim.word));
            on!(self.session.dispatch, e => e.ended(operation, outcome, replica, &self.claim.key.prefix));
            on!(self.session.dispatch, e => e.open_reservations.fetch_sub(1, process::Ordering::Relaxed));
        }
        self.ended = Some(commit);
        commit
    }
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        if self.ended.is_some() || super::check_region(&self.session.inner).is_err() {
            return;
        }
        if self.options.writer == Writer::Device && self.written.exposed {
            let quarantined: SlotWord = self.claim.word.to(SlotState::Quarantined, self.claim.word.owner());
            step!(StoreQuarantine);
            let _ = self.session.inner.tables.slot(self.claim.slot).swap(self.claim.word, quarantined);
        } else {
            on!(self.session.dispatch, e => e.give_back(&self.claim));
        }
        self.end(Commit::GenerationGone);
    }
}

impl core::fmt::Debug for Reservation<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Reservation(slot {}, {:?}, {} bytes)", self.claim.slot, self.claim.word, self.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A slot in miniature: pieces are written to it and noted, as `write_from` does.
    struct Slot {
        bytes: Vec<u8>,
        written: Written,
    }

    impl Slot {
        fn new(len: usize) -> Self {
            let mut head = PayloadCrc::of_part();
            head.update(b"what comes before the payload");
            Self { bytes: vec![0; len], written: Written::new(head) }
        }

        fn write(&mut self, start: usize, end: usize, value: u8) {
            let (first, mut crc) =
                self.written.go_on(start as u32).unwrap_or_else(|| (start as u32, self.written.begin(start as u32)));
            let piece: Vec<u8> = (start..end).map(|at| value ^ (at as u8).wrapping_mul(31)).collect();
            crc.update(&piece);
            self.bytes[start..end].copy_from_slice(&piece);
            self.written.add(first, end as u32, crc);
        }

        fn right(&self) -> PayloadCrc {
            let mut crc = self.written.head;
            crc.update(&self.bytes);
            crc
        }
    }

    #[test]
    fn ranges_merge_in_any_order() {
        let mut slot = Slot::new(12);
        for (at, (start, end)) in [(8, 10), (0, 2), (4, 6), (2, 4), (10, 12), (3, 3), (6, 8)].into_iter().enumerate() {
            assert!(!slot.written.covers(12));
            slot.write(start, end, at as u8);
        }
        assert!(slot.written.covers(12) && !slot.written.covers(13));
        assert_eq!(slot.written.bytes(), 12);
        assert_eq!(slot.written.crc(12), Some(slot.right()), "every byte was written once");
        assert_eq!(slot.written.crc(13), None);
        slot.written.exposed = true;
        assert_eq!(slot.written.crc(12), None);
    }

    #[test]
    fn a_checksum_is_right_or_unknown() {
        let mut number = 1_u64;
        let mut draw = |below: usize| {
            number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (number >> 33) as usize % below
        };
        let (mut known, mut unknown) = (0, 0);
        for _ in 0..2000 {
            let len = 1 + draw(40);
            let mut slot = Slot::new(len);
            while !slot.written.covers(len as u32) {
                let start = draw(len);
                slot.write(start, start + draw(len - start + 1), draw(256) as u8);
            }
            match slot.written.crc(len as u32) {
                Some(crc) => {
                    known += 1;
                    assert_eq!(crc, slot.right());
                }
                None => unknown += 1,
            }
        }
        assert!(known > 50 && unknown > 50, "{known} known, {unknown} unknown");
    }
}
