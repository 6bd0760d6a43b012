//! Accounts: sums over slot words, so that there is nothing that could drift.

use std::collections::HashSet;

use maru_layout::word::SlotState;

use super::Tables;
use crate::namespace::{digest_of, row_text};
use crate::slot::Slot;
use crate::{NamespaceUsage, Usage};

/// Generations of a namespace whose stores may still be under way.
const RECENT: u64 = 8;

/// Recounts all slot words: the only truth about space, and so never out of step with it.
pub(crate) fn usage(tables: &Tables) -> Usage {
    let geometry = tables.geometry();
    let mut usage = Usage {
        capacity_bytes: geometry.capacity_bytes(),
        reserved_bytes: geometry.length_bytes,
        capacity_slots: geometry.slot_count,
        ..Usage::default()
    };
    for class in &geometry.classes {
        for slot in class.first_slot..class.first_slot + class.slot_count {
            let record = tables.slot(slot);
            let Some(state) = record.word().state() else {
                usage.damaged_slots += 1;
                usage.allocated_bytes += class.slot_bytes;
                continue;
            };
            usage.slots[state as usize] += 1;
            if state != SlotState::Free {
                usage.allocated_bytes += class.slot_bytes;
            }
            match state {
                SlotState::Free => {}
                SlotState::Ready => {
                    usage.ready_allocated_bytes += class.slot_bytes;
                    let length = record.read_identity().map_or(0, |(_, identity)| crate::slot::length_of(&identity));
                    usage.ready_bytes += u64::from(length).min(class.slot_bytes);
                }
                SlotState::Retiring => usage.retiring_bytes += class.slot_bytes,
                SlotState::Quarantined => usage.quarantined_bytes += class.slot_bytes,
                SlotState::Claiming | SlotState::Pending | SlotState::Writing => {
                    usage.writing_bytes += class.slot_bytes;
                }
            }
        }
    }
    usage
}

/// Recounts the slots of one namespace, whatever generation their blocks are of.
pub(crate) fn namespace_usage(tables: &Tables, row: u32) -> NamespaceUsage {
    let lines = tables.row(row);
    let generation = lines.generation();
    let mut usage = NamespaceUsage { budget_slots: lines.budget().0.checked_sub(1), ..NamespaceUsage::default() };
    let Some(text) = row_text(lines) else { return usage };
    // A slot in the making has no body yet, and says its namespace by the digest alone.
    let recent: HashSet<[u8; 16]> =
        (generation.saturating_sub(RECENT)..=generation).map(|generation| digest_of(&text, generation)).collect();
    for slot in 0..tables.geometry().slot_count {
        let record = tables.slot(slot);
        let Some((word, identity)) = record.read_identity() else { continue };
        let Some(state) = word.state().filter(|state| !matches!(state, SlotState::Free | SlotState::Claiming)) else {
            continue;
        };
        let body = record.read_body();
        let committed = matches!(state, SlotState::Ready | SlotState::Retiring);
        let by_body = committed && body.generation == word.generation() && body.namespace_row == row;
        let identity = Slot::plain_identity(&identity);
        if by_body || recent.contains(&identity.namespace) {
            let slot_bytes = tables.geometry().payload_of(slot).map_or(0, |(_, bytes)| bytes);
            usage.slots[state as usize] += 1;
            usage.allocated_bytes += slot_bytes;
            if state == SlotState::Ready {
                usage.ready_bytes += u64::from(identity.length).min(slot_bytes);
            }
        }
    }
    usage
}
