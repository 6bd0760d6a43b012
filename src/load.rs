//! Loading: find, protect, copy, check.
//!
//! A load is right when the bytes it returns are those committed under exactly that id. Three checks carry that,
//! and each would be enough on its own against most faults: the whole id is compared in the record; the word is
//! looked at again after the copy (generation, state), and so are the own session word and the namespace's
//! generation; and the checksum covers id, generation, length and payload.
//!
//! A block whose bytes do not match is quarantined by whoever noticed, counted, and answered as a miss with a
//! reason: the memory under it may be bad.

use core::ops::ControlFlow;

use maru_layout::object::{Home, ObjectKey, PayloadCrc};
use maru_layout::table::Counter;
use maru_layout::word::{LeaseKind, Owner, SlotState};

use crate::directory::Sighting;
use crate::engine::Engine;
use crate::lease::{Acquired, Held};
use crate::regime::Regime;
use crate::slot::{IdentityWords, identity_words, length_of};
use crate::step::step;
use crate::{LoadError, ObjectId, Why};

/// Who reads a buffer next, after a block has been copied into it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ReadFor {
    /// This processor: the bytes are left in its cache.
    #[default]
    Cpu,
    /// A device, or nobody soon: the bytes go straight to memory. A buffer that is not in the cache is filled up to twice as
    /// fast so, and the cache keeps what it has; reading the bytes right afterwards is slower.
    Device,
}

impl<R: Regime> Engine<R> {
    /// Where the index looks for a key, and what a record of it looks like.
    pub(crate) fn place_and_identity(&self, key: &ObjectKey) -> (Home, IdentityWords) {
        let geometry = self.tables.geometry();
        (key.home(geometry.hash_seed, geometry.bucket_count), identity_words(key, 0))
    }

    /// The ready replica of an object, or why there is none.
    pub(crate) fn find_ready(&self, home: &Home, identity: &IdentityWords) -> Result<Sighting, Why> {
        let mut answer = Err(Why::Absent);
        self.scan(*home, identity, false, |sighting| match sighting.word.state() {
            Some(SlotState::Ready) => {
                answer = Ok(sighting);
                ControlFlow::Break(())
            }
            Some(SlotState::Pending | SlotState::Writing) => {
                answer = Err(Why::NotReady);
                ControlFlow::Continue(())
            }
            _ => ControlFlow::Continue(()),
        });
        match answer {
            Err(Why::Absent) if self.was_damaged(*home, identity) => Err(Why::Quarantined),
            answer => answer,
        }
    }

    /// Payload bytes of a sighting. A record's length is a byte of the region: never more than the slot has.
    #[cfg(not(maru_loom))]
    pub(crate) fn bounded_length(&self, sighting: &Sighting) -> u32 {
        let named = length_of(&sighting.identity);
        let slot_bytes = self.tables.geometry().payload_of(sighting.slot).map_or(0, |(_, bytes)| bytes);
        if u64::from(named) > slot_bytes {
            self.damage();
            return slot_bytes as u32;
        }
        named
    }

    /// Finds and protects each object, with one fence for the whole batch. Answers keep the order.
    pub(crate) fn acquire_each(&self, objects: &[ObjectId], kind: LeaseKind, answers: &mut Vec<Acquired>) {
        answers.clear();
        answers.reserve(objects.len());
        self.find_each(objects, |_, found| {
            answers.push(found.map(|sighting| (Held::sought(&sighting), length_of(&sighting.identity))));
            ControlFlow::Continue(())
        });
        let hits = self.protect_each(answers, kind);
        self.count(Counter::Acquired, objects.len() as u64);
        self.count(Counter::AcquireHits, hits);
    }

    /// Copies a protected block out and checks it. `buffer` is as long as the block.
    pub(crate) fn copy_out(
        &self,
        held: &Held,
        key: &ObjectKey,
        buffer: &mut [u8],
        verify: bool,
    ) -> Result<(), LoadError> {
        self.copy_out_for(held, key, buffer, verify, ReadFor::Cpu)
    }

    /// [`Self::copy_out`], for whoever reads the buffer next.
    pub(crate) fn copy_out_for(
        &self,
        held: &Held,
        key: &ObjectKey,
        buffer: &mut [u8],
        verify: bool,
        read_for: ReadFor,
    ) -> Result<(), LoadError> {
        let copied = self.copy_and_check(held, key, buffer, verify, read_for);
        if copied.is_err() {
            // Bytes that do not count are nobody's to look at.
            bytemuck::fill_zeroes(buffer);
        }
        copied
    }

    fn copy_and_check(
        &self,
        held: &Held,
        key: &ObjectKey,
        buffer: &mut [u8],
        verify: bool,
        read_for: ReadFor,
    ) -> Result<(), LoadError> {
        let payload = self.tables.payload(held.slot).ok_or(LoadError::Call(crate::CallError::NoPayload))?;
        // A record's length is a byte of the region: never read past the slot, whatever it says.
        if buffer.len() > payload.capacity() {
            self.damage();
            return Err(LoadError::Damaged { slot: held.slot });
        }
        let generation = held.word.generation();
        // Of the bytes that landed, not of those in the slot now.
        let mut crc = verify.then(|| PayloadCrc::new(key, generation, buffer.len() as u32));
        payload.read_for(0, buffer, read_for, crc.as_mut());
        self.check_after_copy(held)?;
        self.check_body(held, crc.map(PayloadCrc::finish))?;
        self.count(Counter::Loaded, 1);
        self.count(Counter::LoadedBytes, buffer.len() as u64);
        Ok(())
    }

    fn check_after_copy(&self, held: &Held) -> Result<(), LoadError> {
        if !self.still_held(held) {
            self.count(Counter::Expired, 1);
            return Err(LoadError::Expired);
        }
        Ok(self.check_session()?)
    }

    /// The body counts only if its generation is the word's; its checksum must match when one was computed.
    fn check_body(&self, held: &Held, crc: Option<u32>) -> Result<(), LoadError> {
        let body = self.tables.slot(held.slot).read_body();
        let right = body.generation == held.word.generation() && crc.is_none_or(|crc| body.checksum as u32 == crc);
        if right {
            return Ok(());
        }
        // The body may have been overwritten by the next life while it was read: then the lease had lapsed.
        if !self.still_held(held) {
            self.count(Counter::Expired, 1);
            return Err(LoadError::Expired);
        }
        self.quarantine_damaged(held);
        Err(LoadError::Damaged { slot: held.slot })
    }

    #[cold]
    fn quarantine_damaged(&self, held: &Held) {
        self.count(Counter::ChecksumMismatch, 1);
        if self.me.is_observer() {
            return;
        }
        step!(LoadQuarantine);
        // Lost: it is retiring or gone already, and nobody finds it any more.
        let quarantined = held.word.to(SlotState::Quarantined, Owner::NOBODY);
        let _ = self.tables.slot(held.slot).swap(held.word, quarantined);
    }
}
