//! Putting entries in, making room for them, and taking them out.

use maru_layout::object::{Place, other_bucket};
use maru_layout::word::{IndexEntry, SlotState};

use crate::engine::Engine;
use crate::regime::Regime;
use crate::step::step;
use crate::sync::{Backoff, Ordering, edge};

/// Both buckets are full of entries that nobody may remove.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BucketBusy;

/// Attempts before a full pair of buckets is called busy: each frees a place that another session may take.
const ROUNDS: usize = 8;

impl<R: Regime> Engine<R> {
    /// Puts `entry` (without the second mark) where its key's lookups find it.
    ///
    /// # Errors
    /// Both buckets are full of live entries that cannot be moved; the caller may evict one and try again.
    pub(crate) fn insert_entry(&self, place: &Place, entry: IndexEntry) -> Result<(), BucketBusy> {
        for _ in 0..ROUNDS {
            if self.insert_into(place.first, entry) {
                return Ok(());
            }
            if place.second != place.first && self.insert_second(place.first, place.second, entry) {
                return Ok(());
            }
            if !self.move_one_out(place.first) && !self.move_one_out(place.second) {
                return Err(BucketBusy);
            }
        }
        Err(BucketBusy)
    }

    /// Puts `entry` into `second`, counted by `first`'s mark (I2).
    fn insert_second(&self, first: u32, second: u32, entry: IndexEntry) -> bool {
        step!(IndexMarkRaise);
        // ORDERING: AcqRel: before the entry's Release below, so that whoever sees the entry's absence from `first`
        // after a move, or comes after the commit, finds the mark raised (I3).
        let raise = || {
            self.tables.bucket(first).mark.fetch_add(1, Ordering::AcqRel);
            R::write_back(self.tables.bucket(first));
        };
        if edge!(MarkFirst) {
            raise();
        }
        if self.insert_into(second, entry.in_second()) {
            if !edge!(MarkFirst) {
                raise();
            }
            return true;
        }
        self.lower_mark(first);
        false
    }

    /// Puts `entry` into an empty or stale way of `bucket`; false when there is none.
    fn insert_into(&self, bucket: u32, entry: IndexEntry) -> bool {
        let line = self.tables.bucket(bucket);
        for cell in &line.entries {
            let found = IndexEntry(cell.load(Ordering::Acquire));
            if !found.is_empty() && !self.is_stale(found) {
                continue;
            }
            if entry.is_second() {
                step!(IndexInsertSecond);
            } else {
                step!(IndexInsertFirst);
            }
            // ORDERING: AcqRel: Release is the writer's end of [entry]. A lost race moves on to the next way.
            if cell.compare_exchange(found.0, entry.0, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                // Before the slot can become ready: a host that dies afterwards must not take the entry along.
                R::write_back(line);
                self.settle_mark_of(bucket, found);
                return true;
            }
        }
        false
    }

    /// Makes room in `bucket` by moving one resident, for which it is the first choice, to its second (I5).
    fn move_one_out(&self, bucket: u32) -> bool {
        let line = self.tables.bucket(bucket);
        for cell in &line.entries {
            let resident = IndexEntry(cell.load(Ordering::Acquire));
            if resident.is_empty() || resident.is_second() {
                continue;
            }
            let geometry = self.tables.geometry();
            let other = other_bucket(bucket, resident.tag(), geometry.hash_seed, geometry.bucket_count);
            if other == bucket || !self.insert_second(bucket, other, resident) {
                continue;
            }
            step!(IndexRemove);
            // ORDERING: AcqRel: the copy above happens before the removal, so a reader that misses it here has the
            // raised mark and the copy. If somebody removed it meanwhile, the copy is stale and goes in time.
            let _ = cell.compare_exchange(resident.0, 0, edge!(Moved, Ordering::AcqRel), Ordering::Relaxed);
            return true;
        }
        false
    }

    /// Whether `entry`, or its twin in the second bucket, is where lookups find it.
    pub(crate) fn has_entry(&self, place: &Place, entry: IndexEntry) -> bool {
        let holds = |bucket: u32, entry: IndexEntry| {
            // ORDERING: Relaxed: my own insertion, or somebody's removal of it; the value is all that is asked.
            self.tables.bucket(bucket).entries.iter().any(|cell| cell.load(Ordering::Relaxed) == entry.0)
        };
        holds(place.first, entry) || holds(place.second, entry.in_second())
    }

    /// Removes `entry` wherever it lies. Called when its slot has moved on; what is missed goes in time (I4).
    pub(crate) fn remove_entry(&self, place: &Place, entry: IndexEntry) {
        for (bucket, entry) in [(place.first, entry), (place.second, entry.in_second())] {
            for cell in &self.tables.bucket(bucket).entries {
                if cell.load(Ordering::Relaxed) == entry.0 {
                    step!(IndexRemove);
                    // ORDERING: AcqRel: as in `insert_into`; exact bits, so nothing newer is removed.
                    if cell.compare_exchange(entry.0, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                        self.settle_mark_of(bucket, entry);
                    }
                }
            }
        }
    }

    /// After this session's compare-and-swap took `removed` out of `bucket`: if it was there as a second choice,
    /// its first bucket counts one less.
    fn settle_mark_of(&self, bucket: u32, removed: IndexEntry) {
        if removed.is_second() {
            let geometry = self.tables.geometry();
            self.lower_mark(other_bucket(bucket, removed.tag(), geometry.hash_seed, geometry.bucket_count));
        }
    }

    fn lower_mark(&self, bucket: u32) {
        let mark = &self.tables.bucket(bucket).mark;
        let backoff = Backoff::new();
        let mut count = mark.load(Ordering::Relaxed);
        for _ in 0..64 {
            // A mark of zero here is damage (I2); leave it, readers only ever lose a shortcut.
            if count == 0 {
                return;
            }
            step!(IndexMarkLower);
            // ORDERING: AcqRel: after the removal that it accounts for.
            match mark.compare_exchange(count, count - 1, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return,
                Err(found) => count = found,
            }
            backoff.snooze();
        }
        // Too high by one, which I2 allows.
    }

    /// Puts `entry` in the place of exactly `resident`; false when something else lies there by now.
    pub(crate) fn take_place(
        &self,
        place: &Place,
        bucket: u32,
        way: usize,
        resident: IndexEntry,
        entry: IndexEntry,
    ) -> bool {
        let second = bucket != place.first;
        if second {
            step!(IndexMarkRaise);
            // ORDERING: AcqRel: as in `insert_second` (I2).
            self.tables.bucket(place.first).mark.fetch_add(1, Ordering::AcqRel);
            R::write_back(self.tables.bucket(place.first));
        }
        let entry = if second { entry.in_second() } else { entry };
        let line = self.tables.bucket(bucket);
        step!(IndexTakePlace);
        // ORDERING: AcqRel: Release is the writer's end of [entry].
        if line.entries[way].compare_exchange(resident.0, entry.0, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            R::write_back(line);
            self.settle_mark_of(bucket, resident);
            return true;
        }
        if second {
            self.lower_mark(place.first);
        }
        false
    }

    /// The ready residents of a key's two buckets, with bucket and way: whom to evict when both are full.
    pub(crate) fn ready_residents(&self, place: &Place) -> Vec<(u32, usize, IndexEntry)> {
        let mut residents = Vec::new();
        let buckets = if place.second == place.first { &[place.first][..] } else { &[place.first, place.second] };
        for bucket in buckets.iter().copied() {
            for (way, cell) in self.tables.bucket(bucket).entries.iter().enumerate() {
                let entry = IndexEntry(cell.load(Ordering::Acquire));
                let ready = !entry.is_empty()
                    && !self.is_stale(entry)
                    && self.tables.slot_checked(entry.slot()).is_some_and(|slot| slot.word().is(SlotState::Ready));
                if ready {
                    residents.push((bucket, way, entry));
                }
            }
        }
        residents
    }
}
