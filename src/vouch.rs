//! What the kernel of this host cannot prove, and somebody else vouches for by name.
//!
//! A host that was switched off, a process behind a descriptor that outlived it, a device that has drained: no lock of
//! this host says so. An operator, or a coordinator with a pidfd in its hand, does. What is vouched for is then brought
//! home by the same protocol as what is proven (`recover.rs`).
//!
//! * V1: nothing of this boot of this host can be vouched dead as "a host": its own kernel is asked.
//! * V2: a vouch is about holders of session words that were read before: the word goes to `Dead` only from a word of
//!   that holder (D4), so whoever attached meanwhile is not touched.
//! * V3: a host that died with dirty lines may have left commits whose bytes never arrived. After its recovery the
//!   blocks that its sessions stored are read once and compared with their checksums; what does not match is
//!   quarantined, as on any load.

use maru_layout::object::ObjectKey;
use maru_layout::table::SessionEntry;
use maru_layout::word::{LeaseKind, Owner, SessionState, SessionWord, SlotState};

use crate::directory::Sighting;
use crate::engine::Engine;
use crate::regime::Regime;
use crate::slot::Slot;
use crate::{HostName, HostRecovery, LoadError};

/// A session that was recovered, as records remember their storer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Storer {
    pub(crate) index: u16,
    pub(crate) epoch: u32,
}

impl<R: Regime> Engine<R> {
    /// Recovers every session of a host that is vouched dead. `here` is the boot id of this host (V1).
    pub(crate) fn recover_host(&self, name: &HostName, here: &[u8; 16]) -> (HostRecovery, Vec<Storer>) {
        let holders: Vec<(u32, SessionWord, SessionEntry)> = (0..self.tables.geometry().session_count)
            .filter_map(|index| self.tables.session(index).holder().map(|(word, facts)| (index, word, facts)))
            .collect();
        let filled = |word: &SessionWord| matches!(word.state(), Some(SessionState::Live | SessionState::Fenced));
        // An entry that is not filled in names its host by the tag alone, which entries that are filled in explain.
        let tags: Vec<u32> = holders
            .iter()
            .filter(|(_, word, facts)| filled(word) && facts.boot_id != *here && name.names(facts, word.host_tag()))
            .map(|(_, word, _)| word.host_tag())
            .collect();
        let mut report = HostRecovery::default();
        let mut storers = Vec::new();
        for (index, word, facts) in holders {
            let named = if filled(&word) {
                name.names(&facts, word.host_tag())
            } else {
                tags.contains(&word.host_tag()) || *name == HostName::Tag(word.host_tag())
            };
            if !named || index == self.me.index {
                continue;
            }
            if filled(&word) && facts.boot_id == *here {
                report.here += 1;
                continue;
            }
            if let Some(freed) = self.recover_session(index, word) {
                report.sessions += 1;
                report.slots += freed;
                storers.push(Storer { index: index as u16, epoch: word.epoch() });
            }
        }
        (report, storers)
    }

    /// Recovers session `index` of that epoch, whose process is vouched dead. `None`: there is no such session (any
    /// more), or it is this one.
    pub(crate) fn recover_vouched(&self, index: u32, epoch: u32) -> Option<u32> {
        if index >= self.tables.geometry().session_count || index == self.me.index {
            return None;
        }
        let word = self.tables.session(index).word();
        let there = word.epoch() == epoch && !matches!(word.state(), None | Some(SessionState::Free));
        there.then(|| self.recover_session(index, word)).flatten()
    }

    /// Frees the slots that devices of dead sessions were writing to; somebody vouches that these have drained.
    pub(crate) fn free_device_slots(&self) -> u32 {
        let mut freed = 0;
        for slot in 0..self.tables.geometry().slot_count {
            let record = self.tables.slot(slot);
            let word = record.word();
            let left = word.is(SlotState::Quarantined) && word.device_writer() && word.owner() == Owner::NOBODY;
            if !left {
                continue;
            }
            freed += u32::from(self.free_shut(slot, word));
        }
        freed
    }

    /// Reads the blocks that `storers` left and compares them with their checksums (V3). Returns how many were read and
    /// how many did not match.
    pub(crate) fn scrub(&self, storers: &[Storer], tell: &mut dyn FnMut(u64, u64)) -> (u32, u32) {
        let (mut checked, mut damaged) = (0, 0);
        let mut buffer = Vec::new();
        let slots = self.tables.geometry().slot_count;
        for slot in 0..slots {
            tell(u64::from(slot) + 1, slots.into());
            let record = self.tables.slot(slot);
            let Some((word, identity)) = record.read_identity().filter(|(word, _)| word.is(SlotState::Ready)) else {
                continue;
            };
            let body = record.read_body();
            let storer = Storer { index: body.storer_index, epoch: body.storer_epoch };
            let whole = body.generation == word.generation();
            // A body that belongs to another life never arrived, whoever stored it: of a dead host, or it is damage.
            if whole && !storers.contains(&storer) {
                continue;
            }
            let sighting = Sighting { slot, word, identity };
            let Some(Ok(held)) = self.protect(&[Some(sighting)], LeaseKind::Copy).pop() else { continue };
            buffer.resize(self.bounded_length(&sighting) as usize, 0);
            let key = ObjectKey::of_record(&Slot::plain_identity(&identity));
            checked += 1;
            let copied = self.copy_out(&held, &key, &mut buffer, true);
            damaged += u32::from(matches!(copied, Err(LoadError::Damaged { .. })));
            self.release_held(held.slot, word.generation(), held.cell, held.sequence);
        }
        (checked, damaged)
    }
}
