//! The index against the slots: entries, marks, and whether each ready slot is found.
//!
//! Whether a bucket's mark is right needs a count over all other buckets. The count is kept in a window of buckets at a
//! time (two bytes each), so that memory stays bounded; an ordinary region needs one window.

use maru_layout::object::{ObjectKey, other_bucket};
use maru_layout::record::SlotRecord;
use maru_layout::table::Bucket;
use maru_layout::word::{IndexEntry, SlotState, SlotWord, TAG_BITS, short_generation};

use super::{Examiner, Judged, Look, Notes, Spot, Stop, Suspects, read};
use crate::findings::Severity::{Damage, Info, Leftover};
use crate::source::ReadError;

/// Buckets whose entries elsewhere are counted in one walk.
const WINDOW: u32 = 1 << 23;

/// Walks all buckets.
pub(super) fn pass(suspects: &mut Suspects<'_, '_>) -> Result<(), Stop> {
    let examiner = suspects.examiner;
    let geometry = examiner.image.geometry();
    let (seed, buckets) = (geometry.hash_seed, geometry.bucket_count);
    let mut start = 0;
    while start < buckets {
        let end = start.saturating_add(WINDOW).min(buckets);
        let mut counts = vec![0u16; (end - start) as usize];
        let mut stopped = Ok(());
        let walked = examiner.image.for_each_bucket(|index, bucket| {
            if stopped.is_err() {
                return Ok(());
            }
            for entry in seconds(&bucket) {
                let home = other_bucket(index, entry.tag(), seed, buckets);
                if home != index && (start..end).contains(&home) {
                    let count = &mut counts[(home - start) as usize];
                    *count = count.saturating_add(1);
                }
            }
            if start == 0 {
                let look = examiner.judge_bucket(index, &bucket)?;
                suspects.add(Spot::Bucket(index), &look);
                stopped = suspects.settle_many();
            }
            Ok(())
        });
        stopped?;
        // A count over a part of the buckets says nothing about marks.
        read(walked)?;
        let mut stopped = Ok(());
        let walked = examiner.image.for_each_bucket(|index, bucket| {
            if stopped.is_ok()
                && (start..end).contains(&index)
                && bucket.mark != u64::from(counts[(index - start) as usize])
            {
                suspects.spots.push(Spot::Mark(index));
                stopped = suspects.settle_many();
            }
            Ok(())
        });
        stopped?;
        read(walked)?;
        start = end;
    }
    Ok(())
}

/// Entries that lie here as second choices.
fn seconds(bucket: &Bucket) -> impl Iterator<Item = IndexEntry> + '_ {
    bucket.entries.iter().map(|entry| IndexEntry(*entry)).filter(|entry| !entry.is_empty() && entry.is_second())
}

impl Examiner<'_> {
    pub(super) fn judge_bucket(&self, index: u32, bucket: &Bucket) -> Judged {
        let geometry = self.image.geometry();
        let mut notes = Notes::default();
        let mut moved = false;
        for (way, entry) in bucket.entries.iter().map(|entry| IndexEntry(*entry)).enumerate() {
            if entry.is_empty() {
                continue;
            }
            let place = format!("bucket {index} entry {way}");
            if entry.slot() >= geometry.slot_count || entry.short_generation() == 0 {
                let wanted = format!("a slot below {} and a generation", geometry.slot_count);
                let text = format!("{place}: {entry:?}; readers skip it");
                notes.add(Damage, "index_entry", place, format!("{entry:?}"), wanted, text);
                continue;
            }
            let record = self.image.record(entry.slot())?;
            let word = SlotWord(record.identity.word);
            let moved_on = short_generation(word.generation()) != entry.short_generation();
            if moved_on || matches!(word.state(), None | Some(SlotState::Free | SlotState::Quarantined)) {
                let text = "index entries whose slot has moved on: replaced by whoever needs the place";
                notes.add(Info, "stale_entry", place, format!("{entry:?}"), format!("{word:?}"), text);
                continue;
            }
            let filled = matches!(
                word.state(),
                Some(SlotState::Pending | SlotState::Writing | SlotState::Ready | SlotState::Retiring)
            );
            if !filled {
                continue;
            }
            let key = ObjectKey::of_record(&record.identity);
            let home = key.place(geometry.hash_seed, geometry.bucket_count);
            let belongs =
                entry.tag() == home.tag && if entry.is_second() { index == home.second } else { index == home.first };
            if !belongs && home.first != home.second {
                if self.image.slot_word(entry.slot())? != word {
                    moved = true;
                    continue;
                }
                let wanted = format!("bucket {} or {}, tag {:#05x}", home.first, home.second, home.tag);
                let text = "index entries that lie where their object is not looked for";
                notes.add(Info, "misplaced_entry", place, format!("{entry:?}"), wanted, text);
            }
        }
        if !notes.findings.is_empty() && self.image.bucket(index)?.entries != bucket.entries {
            return Ok(Look::Moving);
        }
        if moved && notes.findings.is_empty() { Ok(Look::Moving) } else { notes.done() }
    }

    /// Whether lookups find a ready slot, and no other one under the same name.
    pub(super) fn judge_findable(&self, slot: u32, record: &SlotRecord) -> Judged {
        let geometry = self.image.geometry();
        let word = SlotWord(record.identity.word);
        let key = ObjectKey::of_record(&record.identity);
        let home = key.place(geometry.hash_seed, geometry.bucket_count);
        let wanted = IndexEntry::new(slot, word.generation(), home.tag);
        // In this order: entries move from the first bucket to the second, never back.
        let first = self.image.bucket(home.first)?;
        let second = if home.second == home.first { first } else { self.image.bucket(home.second)? };
        let same = |bucket: &Bucket| {
            bucket.entries.iter().map(|entry| IndexEntry(*entry)).find(|entry| wanted.same_replica(*entry))
        };
        // A second choice that its first bucket does not count is found by the walk over the marks; one that does not say
        // that it is a second choice is found by nobody.
        let found = same(&first).is_some() || same(&second).is_some_and(|entry| entry.is_second() || first.mark > 0);
        let mut notes = Notes::default();
        let place = format!("slot {slot}");
        let mut twins = Vec::new();
        for entry in first.entries.iter().chain(&second.entries).map(|entry| IndexEntry(*entry)) {
            let other = entry.slot();
            let candidate =
                !entry.is_empty() && entry.tag() == home.tag && other != slot && other < geometry.slot_count;
            if candidate && !twins.contains(&other) && self.is_twin(entry, &key)? {
                twins.push(other);
            }
        }
        if !found {
            let twin = twins.first().map_or_else(String::new, |twin| format!("; slot {twin} is found instead"));
            let text = format!(
                "{place}: ready and in neither bucket {} nor {}, so nobody finds it{twin}; evicted like any other",
                home.first, home.second
            );
            notes.add(Leftover, "unindexed", place, "no entry", format!("{wanted:?}"), text);
            return notes.done();
        }
        // Each pair is told once, by its higher slot.
        for twin in twins.into_iter().filter(|twin| *twin < slot) {
            let text =
                format!("{place} and slot {twin} are both ready for object {}", crate::out::hex(&key.prefix[..8]));
            notes.add(Damage, "duplicate", &place, format!("slot {twin}"), "one ready slot an object", text);
        }
        notes.done()
    }

    /// Whether an entry leads to a ready slot of this object, which stands still while it is read.
    fn is_twin(&self, entry: IndexEntry, key: &ObjectKey) -> Result<bool, ReadError> {
        let record = self.image.record(entry.slot())?;
        let word = SlotWord(record.identity.word);
        let same = word.is(SlotState::Ready)
            && short_generation(word.generation()) == entry.short_generation()
            && record.body.generation == word.generation()
            && ObjectKey::of_record(&record.identity) == *key;
        Ok(same && self.image.slot_word(entry.slot())? == word)
    }

    /// A mark against the entries that lie elsewhere for its sake. The entries are read before and after the mark: those
    /// that stood still were there when it was read, and it has to count them all.
    pub(super) fn judge_mark(&self, index: u32) -> Judged {
        let geometry = self.image.geometry();
        let (seed, buckets) = (geometry.hash_seed, geometry.bucket_count);
        let mut homes: Vec<u32> = (0..1u16 << TAG_BITS).map(|tag| other_bucket(index, tag, seed, buckets)).collect();
        homes.sort_unstable();
        homes.dedup();
        let look = || -> Result<Vec<(u32, usize, u64)>, ReadError> {
            let mut there = Vec::new();
            for home in homes.iter().copied().filter(|home| *home != index) {
                let bucket = self.image.bucket(home)?;
                for (way, entry) in bucket.entries.iter().map(|entry| IndexEntry(*entry)).enumerate() {
                    let counted = !entry.is_empty() && entry.is_second();
                    if counted && other_bucket(home, entry.tag(), seed, buckets) == index {
                        there.push((home, way, entry.0));
                    }
                }
            }
            Ok(there)
        };
        let before = look()?;
        let mark = self.image.bucket(index)?.mark;
        let after = look()?;
        let steady = before.iter().filter(|entry| after.contains(entry)).count() as u64;
        let most = before.len().max(after.len()) as u64;
        let mut notes = Notes::default();
        let place = format!("bucket {index}.mark");
        if mark < steady {
            let text =
                format!("{place} is {mark}, but {steady} entries lie elsewhere for its sake: lookups may miss them");
            notes.add(Damage, "mark_low", place, mark.to_string(), format!("at least {steady}"), text);
        } else if mark > most {
            let text = "marks that count more than there is: lookups read one line more";
            notes.add(Info, "mark_high", place, mark.to_string(), most.to_string(), text);
        }
        notes.done()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_home_of_a_second_choice_is_found_from_bucket_and_tag() {
        let key = ObjectKey { namespace: [1; 16], prefix: [2; 32], shard: 3, part: 4 };
        let place = key.place(7, 1000);
        assert_eq!(other_bucket(place.second, place.tag, 7, 1000), place.first);
    }
}
