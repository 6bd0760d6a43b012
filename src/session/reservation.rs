//! The writer's end of a store.

use maru_layout::object::PayloadCrc;
use maru_layout::record::BodyLine;
use maru_layout::table::{Operation, RecordOutcome};
use maru_layout::word::{SlotState, SlotWord};

use super::{Session, on};
use crate::load::PIECE_BYTES;
use crate::step::step;
use crate::store::Claim;
use crate::sync::process;
use crate::{CallError, Commit, NamespaceId, ReserveOptions, Token, Why, WriteError, Writer};

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

/// Which bytes have been written, and their checksum as long as they came in order.
struct Written {
    /// Disjoint, sorted, not touching.
    ranges: Vec<(u32, u32)>,
    /// Checksum of `0..hashed`, while every piece began where the last one ended.
    crc: Option<PayloadCrc>,
    hashed: u32,
    /// The pointer was given away: whatever is in the slot at commit counts.
    exposed: bool,
}

impl Written {
    fn covers(&self, len: u32) -> bool {
        self.exposed || self.ranges == [(0, len)]
    }

    fn bytes(&self) -> u32 {
        self.ranges.iter().map(|(start, end)| end - start).sum()
    }

    fn add(&mut self, start: u32, end: u32) {
        if start == end {
            return;
        }
        let at = self.ranges.partition_point(|range| range.1 < start);
        let (mut start, mut end, mut after) = (start, end, at);
        while let Some(range) = self.ranges.get(after).filter(|range| range.0 <= end) {
            start = start.min(range.0);
            end = end.max(range.1);
            after += 1;
        }
        self.ranges.splice(at..after, [(start, end)]);
    }
}

impl<'s> Reservation<'s> {
    pub(super) fn new(session: &'s Session, claim: Claim, namespace: NamespaceId, options: ReserveOptions) -> Self {
        let crc = PayloadCrc::new(&claim.key, claim.word.generation(), claim.len());
        let written = Written { ranges: Vec::new(), crc: Some(crc), hashed: 0, exposed: false };
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

    /// Writes a piece. Pieces may come in any order and overlap; in order from the start is fastest, because the
    /// checksum is computed on the way.
    ///
    /// # Errors
    /// Beyond the reserved length; the slot was taken away; the call cannot be tried.
    pub fn write_at(&mut self, offset: u32, bytes: &[u8]) -> Result<(), WriteError> {
        if self.ended.is_some() {
            return Err(WriteError::Ended);
        }
        let len = self.len();
        let end = u64::from(offset) + bytes.len() as u64;
        if end > u64::from(len) {
            return Err(WriteError::OutOfBounds { offset, bytes: bytes.len(), len });
        }
        self.session.check()?;
        if !self.is_mine() {
            self.session.check()?;
            return Err(WriteError::Superseded);
        }
        let session = self.session;
        let payload = session.inner.tables.payload(self.claim.slot).ok_or(CallError::NoPayload)?;
        step!(StorePayload);
        match self.written.crc.as_mut().filter(|_| offset == self.written.hashed) {
            Some(crc) => {
                for (index, piece) in bytes.chunks(PIECE_BYTES).enumerate() {
                    // The source is an immutable borrow, so the bytes hashed are the bytes copied.
                    crc.update(piece);
                    payload.write(offset as usize + index * PIECE_BYTES, piece);
                }
                self.written.hashed = end as u32;
            }
            None => {
                self.written.crc = None;
                payload.write(offset as usize, bytes);
            }
        }
        self.written.add(offset, end as u32);
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
        self.written.crc = None;
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
        let crc = match self.written.crc.take().filter(|_| self.written.hashed == len) {
            Some(crc) => crc.finish(),
            None => self.checksum_of_slot(),
        };
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

    /// Reads the slot once: pieces came out of order, or somebody else wrote them.
    fn checksum_of_slot(&self) -> u32 {
        let mut crc = PayloadCrc::new(&self.claim.key, self.claim.word.generation(), self.len());
        let mut piece = [0u8; PIECE_BYTES];
        if let Some(payload) = self.session.inner.tables.payload(self.claim.slot) {
            let len = self.len() as usize;
            for start in (0..len).step_by(PIECE_BYTES) {
                let piece = &mut piece[..PIECE_BYTES.min(len - start)];
                payload.read(start, piece);
                crc.update(piece);
            }
        }
        crc.finish()
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

    #[test]
    fn ranges_merge_in_any_order() {
        let mut written = Written { ranges: Vec::new(), crc: None, hashed: 0, exposed: false };
        for (start, end) in [(8, 10), (0, 2), (4, 6), (2, 4), (10, 12), (5, 9), (3, 3)] {
            written.add(start, end);
        }
        assert_eq!(written.ranges, [(0, 12)]);
        assert!(written.covers(12) && !written.covers(13));
        assert_eq!(written.bytes(), 12);
    }
}
