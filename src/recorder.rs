//! The flight recorder: what a session did last, in its own lines, readable after `kill -9`.
//!
//! Sixteen records and one word for what is under way. Only the session stores here, so it costs no other session a
//! line; the records are advice for people, and nothing is ever decided by them.

use maru_layout::table::{FlightRecord, Operation, RecordOutcome};
use maru_layout::word::SlotWord;

use crate::engine::Engine;
use crate::os::identity::wall_ns;
use crate::regime::Regime;
use crate::sync::Ordering;
use crate::view::{AreaHead, store_bytes};

/// Records of the ring.
const RECORDS: u64 = 16;

impl AreaHead {
    /// Remembers an operation. Threads that share a session get records of their own by the counter.
    fn remember(&self, record: &FlightRecord) {
        let next = self.recorder_next.fetch_add(1, Ordering::Relaxed);
        let at = (next % RECORDS) as usize * 8;
        let words = &self.recorder[at..at + 8];
        store_bytes(&words[1..], &bytemuck::bytes_of(record)[8..]);
        // ORDERING: Release, last: a reader that finds the number finds the record, unless it was overwritten since.
        words[0].store(next.wrapping_add(1), Ordering::Release);
    }
}

impl<R: Regime> Engine<R> {
    /// Says what is under way, and with which slot.
    pub(crate) fn begin(&self, operation: Operation, slot: Option<u32>) {
        if self.me.is_observer() {
            return;
        }
        let area = self.tables.area(self.me.index);
        // ORDERING: Relaxed: for people.
        area.current_slot.store(slot.map_or(0, |slot| u64::from(slot) + 1), Ordering::Relaxed);
        area.current_step.store((operation as u64) << 32, Ordering::Relaxed);
    }

    /// Remembers how an operation ended; nothing is under way any more.
    pub(crate) fn ended(
        &self,
        operation: Operation,
        outcome: RecordOutcome,
        replica: Option<(u32, SlotWord)>,
        prefix: &[u8; 32],
    ) {
        if self.me.is_observer() {
            return;
        }
        let area = self.tables.area(self.me.index);
        area.remember(&FlightRecord {
            sequence: 0,
            time_ns: wall_ns(),
            operation: operation as u32,
            outcome: outcome as u32,
            slot: replica.map_or(0, |(slot, _)| u64::from(slot) + 1),
            generation: replica.map_or(0, |(_, word)| word.generation()),
            prefix: *prefix.first_chunk().expect("24 of 32 bytes"),
        });
        area.current_step.store(0, Ordering::Relaxed);
    }
}
