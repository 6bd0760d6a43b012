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
use crate::lease::Held;
use crate::regime::Regime;
use crate::slot::{IdentityWords, identity_words, length_of};
use crate::step::step;
use crate::{LoadError, Why};

/// Bytes copied between two checksum updates: small enough to be hashed from the first-level cache.
pub(crate) const PIECE_BYTES: usize = 4096;

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
        answer
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

    /// Finds and protects each key, with one fence for the whole batch. Answers keep the order.
    pub(crate) fn acquire_keys(&self, keys: &[ObjectKey], kind: LeaseKind) -> Vec<Result<(Held, u32), Why>> {
        let found: Vec<Result<Sighting, Why>> = self.find_many(keys);
        let wanted: Vec<Option<Sighting>> = found.iter().map(|answer| answer.ok()).collect();
        let held = self.protect(&wanted, kind);
        self.count(Counter::Acquired, keys.len() as u64);
        let answers: Vec<Result<(Held, u32), Why>> = found
            .into_iter()
            .zip(held)
            .map(|(found, held)| {
                let sighting = found?;
                Ok((held?, length_of(&sighting.identity)))
            })
            .collect();
        self.count(Counter::AcquireHits, answers.iter().filter(|answer| answer.is_ok()).count() as u64);
        answers
    }

    /// Copies a protected block out and checks it. `buffer` is as long as the block.
    pub(crate) fn copy_out(
        &self,
        held: &Held,
        key: &ObjectKey,
        buffer: &mut [u8],
        verify: bool,
    ) -> Result<(), LoadError> {
        let copied = self.copy_and_check(held, key, buffer, verify);
        if copied.is_err() {
            // Bytes that do not count are nobody's to look at.
            bytemuck::fill_zeroes(buffer);
        }
        copied
    }

    fn copy_and_check(&self, held: &Held, key: &ObjectKey, buffer: &mut [u8], verify: bool) -> Result<(), LoadError> {
        let payload = self.tables.payload(held.slot).ok_or(LoadError::Call(crate::CallError::NoPayload))?;
        // A record's length is a byte of the region: never read past the slot, whatever it says.
        if buffer.len() > payload.capacity() {
            self.damage();
            return Err(LoadError::Damaged { slot: held.slot });
        }
        let generation = held.word.generation();
        if verify {
            let mut crc = PayloadCrc::new(key, generation, buffer.len() as u32);
            for (index, piece) in buffer.chunks_mut(PIECE_BYTES).enumerate() {
                payload.read(index * PIECE_BYTES, piece);
                // Of the bytes that landed, not of those in the slot.
                crc.update(piece);
            }
            self.check_after_copy(held)?;
            self.check_body(held, Some(crc.finish()))?;
        } else {
            payload.read(0, buffer);
            self.check_after_copy(held)?;
            self.check_body(held, None)?;
        }
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
