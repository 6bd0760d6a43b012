//! The flight recorder of one session area, as a reader of a live region finds it.
//!
//! The owner of the area raises `recorder_next`, fills the record, and stores its number last; threads that share a
//! session do so at once. Nothing is decided by these bytes, so they are advice about the past and are treated as such.
//!
//! * F1: number `n` lies in row `(n - 1) % 16`. The number that a row should have follows from `recorder_next`.
//! * F2: a record is whole when two looks find the same number in its row, and a third finds that `recorder_next` has not
//!   come round to that row since: the first look shows that the record was finished before the second began to copy.
//! * F3: a row whose number is an older one stands still in the middle of a record: its writer died or sleeps there.
//!   What it holds is a mix of two records, shown as such and not believed.
//! * F4: a number that the row cannot have, an operation or outcome that no version writes, a slot or generation out of
//!   bounds: impossible, and said so, field by field.

use maru_layout::table::{FlightRecord, Operation, RecordOutcome, SessionAreaHead};
use maru_layout::word::MAX_GENERATION;

use crate::image::Image;
use crate::source::ReadError;

/// Rows of the ring.
const ROWS: u64 = 16;
/// Looks at an area whose owner is busy in it.
const LOOKS: u32 = 3;

/// Why a record is not believed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Flaw {
    /// Its writer stands, or died, in the middle of it.
    Torn {
        /// Number found.
        found: u64,
        /// Number wanted.
        wanted: u64,
    },
    /// No writer writes this.
    Impossible {
        /// Field.
        field: &'static str,
        /// Value found.
        found: u64,
        /// Value wanted.
        wanted: String,
    },
}

impl core::fmt::Display for Flaw {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Torn { found, wanted } => {
                write!(f, "torn: record {wanted} was begun over record {found} and never finished")
            }
            Self::Impossible { field, found, wanted } => write!(f, "{field} is {found}, wanted {wanted}"),
        }
    }
}

/// One row of the ring.
#[derive(Debug, Clone, Copy)]
pub struct Row {
    /// Row.
    pub row: u64,
    /// What is there.
    pub record: FlightRecord,
}

/// What a session area remembers.
#[derive(Debug, Default)]
pub struct Flight {
    /// Whole and possible records, by number.
    pub records: Vec<FlightRecord>,
    /// Rows that are not believed, and why.
    pub flaws: Vec<(Row, Flaw)>,
    /// Records that were written over while they were read.
    pub moving: u64,
}

/// Number that row `row` should have when `next` records were written; 0 = none yet.
fn wanted_number(row: u64, next: u64) -> u64 {
    match next.checked_sub(1) {
        Some(last) if last >= row => last - (last - row) % ROWS + 1,
        _ => 0,
    }
}

impl Flight {
    /// Reads the ring of a session area; the index is below `session_count`.
    ///
    /// # Errors
    /// The area cannot be read.
    pub fn of(image: &Image<'_>, session: u32) -> Result<Self, ReadError> {
        let mut flight = Self::default();
        for _ in 0..LOOKS {
            let (first, second) = (image.area(session)?, image.area(session)?);
            let next = image.area(session)?.recorder_next;
            flight.flaws.clear();
            flight.moving = 0;
            flight.take(&first, &second, next, image.geometry().slot_count);
            if flight.moving == 0 {
                break;
            }
        }
        flight.records.sort_by_key(|record| record.sequence);
        flight.records.dedup_by_key(|record| record.sequence);
        Ok(flight)
    }

    fn take(&mut self, first: &SessionAreaHead, second: &SessionAreaHead, next: u64, slots: u32) {
        for ((row, before), record) in (0..).zip(&first.recorder).zip(&second.recorder) {
            let wanted = wanted_number(row, next);
            let number = record.sequence;
            let still = bytemuck::bytes_of(before) == bytemuck::bytes_of(record);
            let flaw = if number == wanted && before.sequence == number {
                if number == 0 && bytemuck::bytes_of(record).iter().all(|byte| *byte == 0) {
                    continue;
                }
                impossible(record, slots)
            } else if number > next || (number > 0 && (number - 1) % ROWS != row) {
                let wanted = if wanted == 0 { "0".to_owned() } else { format!("{wanted}, or one of 16, 32, … less") };
                Some(Flaw::Impossible { field: "sequence", found: number, wanted })
            } else {
                Some(Flaw::Torn { found: number, wanted })
            };
            match flaw {
                None => self.records.push(*record),
                // F2: what moves between two looks is somebody at work.
                Some(_) if !still => self.moving += 1,
                Some(flaw) => self.flaws.push((Row { row, record: *record }, flaw)),
            }
        }
    }

    /// Number of the record with which the last holder of the entry began, if it is still remembered.
    #[must_use]
    pub fn last_attach(&self) -> Option<&FlightRecord> {
        self.records.iter().rev().find(|record| record.operation == Operation::Attach as u32)
    }
}

/// The first field that no writer writes.
fn impossible(record: &FlightRecord, slots: u32) -> Option<Flaw> {
    let flaw = |field, found, wanted: &str| Some(Flaw::Impossible { field, found, wanted: wanted.to_owned() });
    if record.sequence == 0 {
        return flaw("sequence", 0, "a number over bytes that are not zero");
    }
    if Operation::from_bits(record.operation).is_none() {
        return flaw("operation", record.operation.into(), &format!("1 to {}", Operation::ALL.len()));
    }
    if RecordOutcome::from_bits(record.outcome).is_none() {
        return flaw("outcome", record.outcome.into(), &format!("1 to {}", RecordOutcome::ALL.len()));
    }
    if record.slot > slots.into() {
        return flaw("slot", record.slot, &format!("at most {slots} (0 = none)"));
    }
    if record.generation > MAX_GENERATION {
        return flaw("generation", record.generation, "at most 44 bits");
    }
    if record.time_ns == 0 {
        return flaw("time_ns", 0, "a time");
    }
    None
}

/// Name of an operation number.
#[must_use]
pub fn operation_name(bits: u32) -> String {
    Operation::from_bits(bits).map_or_else(|| format!("unknown({bits})"), |operation| operation.name().to_owned())
}

/// Name of an outcome number.
#[must_use]
pub fn outcome_name(bits: u32) -> String {
    RecordOutcome::from_bits(bits).map_or_else(|| format!("unknown({bits})"), |outcome| outcome.name().to_owned())
}

#[cfg(test)]
mod tests {
    use bytemuck::Zeroable;

    use super::*;

    fn record(sequence: u64) -> FlightRecord {
        FlightRecord { sequence, time_ns: 1, operation: 5, outcome: 1, ..FlightRecord::zeroed() }
    }

    /// A region whose first session area is written while it is read: each look finds the next of these heads.
    struct Turning {
        bytes: Vec<u8>,
        area: u64,
        heads: Vec<SessionAreaHead>,
        looks: std::cell::Cell<usize>,
    }

    impl crate::source::Source for Turning {
        fn size_bytes(&self) -> u64 {
            self.bytes.len() as u64
        }

        fn may_change(&self) -> bool {
            true
        }

        fn read_at(&self, offset: u64, target: &mut [u8]) -> Result<(), ReadError> {
            if offset == self.area && target.len() == size_of::<SessionAreaHead>() {
                let look = self.looks.replace(self.looks.get() + 1);
                target.copy_from_slice(bytemuck::bytes_of(&self.heads[look.min(self.heads.len() - 1)]));
                return Ok(());
            }
            crate::source::Bytes::new(&self.bytes).read_at(offset, target)
        }
    }

    /// The writer was in the middle of record 17 during the second look: the old number over new bytes. Only the third
    /// look, at the count, shows it.
    #[test]
    fn a_record_written_over_between_two_looks_is_not_believed() {
        let directory = tempfile::tempdir().expect("a directory");
        let options = maru::OpenOptions::path(directory.path().join("r"));
        let wish = maru::Wish::of_slots(1 << 20, 4096);
        drop(maru::Region::open(options.format(maru::Format::IfAbsent).wish(wish)).expect("a region"));
        let bytes = std::fs::read(directory.path().join("r")).expect("read");
        let mut before = SessionAreaHead::zeroed();
        (1..=16).for_each(|number| before.recorder[number as usize - 1] = record(number));
        before.recorder_next = 16;
        let mut during = before;
        during.recorder_next = 17;
        during.recorder[0] = FlightRecord { sequence: 1, operation: 9, ..record(17) };
        let mut after = during;
        after.recorder[0].sequence = 17;
        let superblock = maru_layout::superblock::Superblock::read(&bytes).expect("a page");
        let geometry = maru_layout::geometry::Geometry::of(&superblock, bytes.len() as u64, false).expect("sound");
        let area = geometry.offset(maru_layout::superblock::SectionKind::SessionAreas);
        let heads = vec![before, during, during, after];
        let source = Turning { bytes, area, heads, looks: 0.into() };
        let crate::image::Opening::Region { image, .. } = crate::image::open(&source, false) else {
            panic!("a region")
        };
        let flight = Flight::of(&image, 0).expect("read");
        let numbers: Vec<u64> = flight.records.iter().map(|record| record.sequence).collect();
        assert_eq!((numbers, flight.flaws.len(), flight.moving), ((2..=17).collect(), 0, 0));
        assert_eq!(flight.records.last().map(|record| record.operation), Some(9));
    }

    #[test]
    fn rows_have_the_numbers_that_next_gives_them() {
        assert_eq!((0..16).map(|row| wanted_number(row, 0)).max(), Some(0));
        assert_eq!((0..3).map(|row| wanted_number(row, 2)).collect::<Vec<_>>(), [1, 2, 0]);
        assert_eq!((wanted_number(0, 17), wanted_number(1, 17), wanted_number(15, 17)), (17, 2, 16));
        assert_eq!((0..16).map(|row| wanted_number(row, u64::MAX)).max(), Some(u64::MAX));
    }

    #[test]
    fn overwritten_while_read_torn_and_impossible_are_three_things() {
        let mut first = SessionAreaHead::zeroed();
        for number in 1..=16 {
            first.recorder[number as usize - 1] = record(number);
        }
        let flight_of = |second: &SessionAreaHead, next| {
            let mut flight = Flight::default();
            flight.take(&first, second, next, 10);
            flight
        };
        let all = flight_of(&first, 16);
        assert_eq!((all.records.len(), all.flaws.len(), all.moving), (16, 0, 0));
        // Record 17 was begun: row 0 stands still with an old number.
        let torn = flight_of(&first, 17);
        assert_eq!((torn.records.len(), torn.moving), (15, 0));
        assert_eq!(torn.flaws[0].1, Flaw::Torn { found: 1, wanted: 17 });
        // The same, but its bytes moved between the looks.
        let mut second = first;
        second.recorder[0].prefix[0] = 1;
        assert_eq!((flight_of(&second, 17).flaws.len(), flight_of(&second, 17).moving), (0, 1));
        // Finished between the looks: the second copy may still be of the first record's bytes.
        second.recorder[0] = record(17);
        assert_eq!(flight_of(&second, 17).moving, 1);
        for (change, field) in [
            ((|r| r.operation = 14) as fn(&mut FlightRecord), "operation"),
            (|r| r.outcome = 0, "outcome"),
            (|r| r.slot = 11, "slot"),
            (|r| r.generation = 1 << 44, "generation"),
            (|r| r.time_ns = 0, "time_ns"),
            (|r| r.sequence = 33, "sequence"),
            (|r| r.sequence = 2, "sequence"),
        ] {
            let mut bad = first;
            change(&mut bad.recorder[0]);
            let mut flight = Flight::default();
            flight.take(&bad, &bad, 16, 10);
            assert!(matches!(&flight.flaws[0].1, Flaw::Impossible { field: f, .. } if *f == field), "{field}");
        }
    }
}
