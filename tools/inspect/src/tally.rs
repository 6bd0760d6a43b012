//! One pass over the slot words: the accounts.
//!
//! The slot word is the only truth about space, so every number here is a sum over words as they were read. A live
//! region moves meanwhile; each word counts once, at the moment it was read.

use std::collections::HashMap;

use maru_layout::object::ObjectKey;
use maru_layout::word::{SlotState, SlotWord};
use serde::Serialize;

use crate::findings::{Finding, Severity};
use crate::image::Image;

/// Namespace digests that are counted one by one; objects of others are counted together.
const DIGESTS: usize = 1 << 16;

/// Slots by state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct States {
    /// Nobody's.
    pub free: u64,
    /// Being claimed.
    pub claiming: u64,
    /// Competing with twins.
    pub pending: u64,
    /// Being written.
    pub writing: u64,
    /// Published.
    pub ready: u64,
    /// Waiting for readers.
    pub retiring: u64,
    /// Set aside.
    pub quarantined: u64,
    /// Word is none that a version writes.
    pub damaged: u64,
}

impl States {
    pub(crate) fn of(&mut self, state: Option<SlotState>) -> &mut u64 {
        match state {
            Some(SlotState::Free) => &mut self.free,
            Some(SlotState::Claiming) => &mut self.claiming,
            Some(SlotState::Pending) => &mut self.pending,
            Some(SlotState::Writing) => &mut self.writing,
            Some(SlotState::Ready) => &mut self.ready,
            Some(SlotState::Retiring) => &mut self.retiring,
            Some(SlotState::Quarantined) => &mut self.quarantined,
            None => &mut self.damaged,
        }
    }

    /// Names and numbers, in the order of the states.
    #[must_use]
    pub fn each(&self) -> [(&'static str, u64); 8] {
        [
            ("free", self.free),
            ("claiming", self.claiming),
            ("pending", self.pending),
            ("writing", self.writing),
            ("ready", self.ready),
            ("retiring", self.retiring),
            ("quarantined", self.quarantined),
            ("damaged", self.damaged),
        ]
    }

    /// All but the free ones.
    #[must_use]
    pub fn held(&self) -> u64 {
        self.each().iter().skip(1).map(|(_, slots)| slots).sum()
    }
}

/// Byte accounts, with the names of the library's `usage`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct UsageLine {
    /// All slots.
    pub capacity_bytes: u64,
    /// The region: tables and alignment included.
    pub reserved_bytes: u64,
    /// Slots that are not free.
    pub allocated_bytes: u64,
    /// Payload bytes of ready objects.
    pub ready_bytes: u64,
    /// Slots of ready objects.
    pub ready_allocated_bytes: u64,
    /// Slots that wait for their last reader.
    pub retiring_bytes: u64,
    /// Slots that nobody may use.
    pub quarantined_bytes: u64,
    /// Slots claimed and not yet committed.
    pub writing_bytes: u64,
    /// Bytes registered with a device; none in this format.
    pub pinned_bytes: u64,
    /// Slots.
    pub capacity_slots: u32,
    /// Slots by state.
    pub slots: States,
}

/// Objects of one namespace digest.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Objects {
    /// Ready objects.
    pub objects: u64,
    /// Their payload bytes.
    pub bytes: u64,
}

/// What one pass gives.
#[derive(Debug, Default)]
pub struct Tally {
    /// Accounts.
    pub usage: UsageLine,
    /// By session index: slots that name it as owner.
    pub owned: Vec<States>,
    /// By namespace digest: ready objects.
    pub by_namespace: HashMap<[u8; 16], Objects>,
    /// Ready objects of further digests.
    pub others: Objects,
    /// Why the pass ended early.
    pub cut: Option<Finding>,
}

impl Tally {
    /// Counts.
    #[must_use]
    pub fn of(image: &Image<'_>) -> Self {
        let geometry = image.geometry();
        let mut tally = Self {
            usage: UsageLine {
                capacity_bytes: geometry.capacity_bytes(),
                reserved_bytes: geometry.length_bytes,
                capacity_slots: geometry.slot_count,
                ..UsageLine::default()
            },
            owned: vec![States::default(); geometry.session_count as usize],
            ..Self::default()
        };
        let read = image.for_each_record(|slot, record| {
            let word = SlotWord(record.identity.word);
            let state = word.state();
            let slot_bytes = geometry.class_of(slot).map_or(0, |class| class.slot_bytes);
            let usage = &mut tally.usage;
            *usage.slots.of(state) += 1;
            if state != Some(SlotState::Free) {
                usage.allocated_bytes += slot_bytes;
            }
            let length = u64::from(record.identity.length).min(slot_bytes);
            match state {
                Some(SlotState::Ready) => {
                    usage.ready_allocated_bytes += slot_bytes;
                    usage.ready_bytes += length;
                }
                Some(SlotState::Retiring) => usage.retiring_bytes += slot_bytes,
                Some(SlotState::Quarantined) => usage.quarantined_bytes += slot_bytes,
                Some(SlotState::Claiming | SlotState::Pending | SlotState::Writing) => {
                    usage.writing_bytes += slot_bytes;
                }
                Some(SlotState::Free) | None => {}
            }
            if let Some(owned) = word.owner().index().and_then(|index| tally.owned.get_mut(index as usize)) {
                *owned.of(state) += 1;
            }
            if state == Some(SlotState::Ready) {
                let digest = ObjectKey::of_record(&record.identity).namespace;
                let known = tally.by_namespace.len() < DIGESTS || tally.by_namespace.contains_key(&digest);
                let objects = if known { tally.by_namespace.entry(digest).or_default() } else { &mut tally.others };
                objects.objects += 1;
                objects.bytes += length;
            }
            Ok(())
        });
        tally.cut = read.err().map(|error| Finding::of_read_error(&error, image));
        if tally.usage.slots.damaged > 0 {
            // The verb that lists them is `verify`; here they are one finding.
            let damaged = tally.usage.slots.damaged;
            let mut finding = Finding::new(
                Severity::Damage,
                "slot_word",
                "records",
                format!("{damaged} words of no known state"),
                "a state",
                format!("{damaged} slot words are none that any version writes; `verify` lists them"),
            );
            finding.count = damaged;
            tally.cut.get_or_insert(finding);
        }
        tally
    }
}
