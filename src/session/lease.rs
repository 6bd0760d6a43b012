//! The reader's end of a load.

use core::marker::PhantomData;

use maru_layout::word::LeaseKind;

use super::{Session, on};
use crate::lease::Held;
use crate::{CallError, LeaseHandle, LoadError, ObjectId, ReadFor, Verify};

/// Protection of one block, from [`Session::acquire`] to its drop.
pub struct Lease<'s> {
    session: &'s Session,
    held: Held,
    object: ObjectId,
    len: u32,
    /// Given away as a handle: drop does not release.
    detached: bool,
}

impl<'s> Lease<'s> {
    pub(super) fn new(session: &'s Session, held: Held, object: ObjectId, len: u32) -> Self {
        // A record's length is a byte of the region: never more than the slot has.
        let slot_bytes = session.inner.geometry().payload_of(held.slot).map_or(0, |(_, bytes)| bytes);
        let len = u64::from(len).min(slot_bytes) as u32;
        Self { session, held, object, len, detached: false }
    }

    /// Payload bytes.
    #[must_use]
    pub fn len(&self) -> u32 {
        self.len
    }

    /// Whether the block has no bytes; never, unless its record is damaged.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The object.
    #[must_use]
    pub fn object(&self) -> &ObjectId {
        &self.object
    }

    /// Slot and generation of the replica.
    #[must_use]
    pub fn replica(&self) -> (u32, u64) {
        (self.held.slot, self.held.word.generation())
    }

    /// Copies the block out. After the copy, slot generation, session and namespace are checked again, and the
    /// checksum as `verify` says; on any error the buffer's content is not the block.
    ///
    /// # Errors
    /// [`LoadError::Expired`] when the lease lapsed meanwhile, [`LoadError::Damaged`] when the bytes are not those that
    /// were stored, [`LoadError::Length`] when the buffer is not exactly [`Lease::len`] bytes long.
    pub fn read_into(&self, buffer: &mut [u8], verify: Verify) -> Result<(), LoadError> {
        self.read_into_for(buffer, verify, ReadFor::Cpu)
    }

    /// As [`Lease::read_into`], for whoever reads the buffer next: bytes that a device copies on go past the caches.
    ///
    /// # Errors
    /// As [`Lease::read_into`].
    pub fn read_into_for(&self, buffer: &mut [u8], verify: Verify, read_for: ReadFor) -> Result<(), LoadError> {
        let read = self.read_checked(buffer, verify, read_for);
        if read.is_err() {
            // Bytes that do not count are nobody's to look at.
            bytemuck::fill_zeroes(buffer);
        }
        read
    }

    fn read_checked(&self, buffer: &mut [u8], verify: Verify, read_for: ReadFor) -> Result<(), LoadError> {
        self.session.check_bytes()?;
        if buffer.len() != self.len as usize {
            return Err(LoadError::Length { buffer_bytes: buffer.len(), block_bytes: self.len });
        }
        let verify = match verify {
            Verify::Always => true,
            Verify::Sampled(one_in) => self.session.sample(one_in),
            Verify::Never => false,
        };
        let session = self.session;
        session.inner.invalidate_payload(self.held.slot, self.len);
        let key = self.object.key();
        let copied = on!(session.dispatch, e => e.copy_out_for(&self.held, &key, buffer, verify, read_for));
        if session.inner.tables.mapping().is_lost() {
            return Err(CallError::Lost.into());
        }
        copied?;
        if !on!(session.dispatch, e => e.check_namespace(&self.object.namespace))? {
            return Err(LoadError::Invalidated);
        }
        session.check()?;
        Ok(())
    }

    /// Copies the block into a new vector.
    ///
    /// # Errors
    /// As [`Lease::read_into`].
    pub fn read(&self, verify: Verify) -> Result<Vec<u8>, LoadError> {
        let mut bytes = vec![0; self.len as usize];
        self.read_into(&mut bytes, verify)?;
        Ok(bytes)
    }

    /// Turns the lease into one that never lapses and shows the bytes in place.
    ///
    /// # Errors
    /// [`LoadError::Expired`] when the block has begun to retire.
    pub fn view(&self) -> Result<View<'_>, LoadError> {
        self.session.check_bytes()?;
        let session = self.session;
        if !on!(session.dispatch, e => e.strengthen(&self.held, LeaseKind::View)) {
            return Err(LoadError::Expired);
        }
        let payload = session.inner.tables.payload(self.held.slot).ok_or(CallError::NoPayload)?;
        // Made before the checks: dropping it ends the view.
        let view = View { start: payload.as_ptr(), len: self.len as usize, lease: self, _bytes: PhantomData };
        if !on!(session.dispatch, e => e.check_namespace(&self.object.namespace))? {
            return Err(LoadError::Invalidated);
        }
        session.check()?;
        Ok(view)
    }

    /// The plain name of this lease, for [`Session::release`].
    #[must_use]
    pub fn handle(&self) -> LeaseHandle {
        LeaseHandle {
            session: self.session.me.id,
            cell: self.held.cell,
            slot: self.held.slot,
            generation: self.held.word.generation(),
            sequence: self.held.sequence,
        }
    }

    /// Gives the lease away as its handle; it ends by [`Session::release`] or with this process.
    #[must_use]
    pub fn into_handle(mut self) -> LeaseHandle {
        self.detached = true;
        self.handle()
    }
}

impl Drop for Lease<'_> {
    fn drop(&mut self) {
        if !self.detached {
            self.session.release_quietly(&self.held);
        }
    }
}

impl core::fmt::Debug for Lease<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Lease(slot {}, gen {}, {} bytes)", self.held.slot, self.held.word.generation(), self.len)
    }
}

/// A block's bytes in place, under a lease that never lapses.
///
/// There is no `&[u8]`: a participant that breaks the rules could change the bytes under it. Copy out, or take the
/// pointer and say `unsafe` yourself. Using the pointer in a forked child is fatal: the mapping is not inherited.
pub struct View<'l> {
    start: *const u8,
    len: usize,
    lease: &'l Lease<'l>,
    _bytes: PhantomData<&'l [u8]>,
}

impl Drop for View<'_> {
    fn drop(&mut self) {
        let session = self.lease.session;
        if !session.inner.tag.is_foreign() {
            on!(session.dispatch, e => e.end_view(&self.lease.held));
        }
    }
}

impl View<'_> {
    /// First byte.
    #[must_use]
    pub fn as_ptr(&self) -> *const u8 {
        self.start
    }

    /// Bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Copies the bytes out, verified.
    ///
    /// # Errors
    /// As [`Lease::read_into`].
    pub fn to_vec(&self) -> Result<Vec<u8>, LoadError> {
        self.lease.read(Verify::Always)
    }

    /// The bytes themselves.
    ///
    /// # Safety
    /// No process may store to this slot while the slice lives. Participants that keep the protocol do not; the region
    /// is as trustworthy as the programs that map it.
    #[must_use]
    pub unsafe fn as_slice(&self) -> &[u8] {
        // SAFETY: the slot's bytes are mapped while the lease (and so the session) is borrowed; that nobody stores to them
        // is the caller's promise.
        unsafe { core::slice::from_raw_parts(self.start, self.len) }
    }
}
