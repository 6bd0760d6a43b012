//! Watches the accounts of the region while others work in it, and are killed in it.
//!
//! * A1: the budget's tokens: no more are spent than there are. That is what `maru-inspect namespaces` shows.
//! * A2: the slots themselves, which know nothing of tokens: a slot that two passes over the records found in the same
//!   life, and held by the namespace, was held at the moment between them. Of those there are never more than the budget.
//!   One pass would not do: a block may move from a slot that was counted to one that comes later.
//! * A3: free and allocated slots are all slots, and every slot word is one that a version writes.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use maru::{Budget, NamespaceId, Reader, Region, Role};
use maru_layout::word::{SlotState, SlotWord};

use crate::histogram::Histogram;
use crate::look;
use crate::plan::Plan;

/// Between two samples. They are to come at least every 10 ms, and take some milliseconds each.
const REST: Duration = Duration::from_millis(1);

/// A namespace and the slots it may hold.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limit {
    pub(crate) id: NamespaceId,
    pub(crate) slots: u32,
}

/// Registers the replay's namespace with the plan's budget, before anybody else registers it without.
pub(crate) fn limit(plan: &Plan, region: &Region) -> Result<Option<Limit>> {
    let Some(slots) = plan.budget else { return Ok(None) };
    let session = region.session(&format!("{}-budget", plan.engine_prefix), Role::Tool)?;
    let id = session.namespace_with_budget(&plan.kind.namespace(), Budget::Slots(slots))?;
    session.close().map_err(|(held, _)| held)?;
    Ok(Some(Limit { id, slots }))
}

/// What was seen.
#[derive(Debug, Default)]
pub(crate) struct Watched {
    /// Looks.
    pub(crate) samples: u64,
    /// Most tokens that were spent (A1).
    pub(crate) most_spent: u32,
    /// Most slots that were held at one moment (A2).
    pub(crate) most_held: u32,
    /// Looks that found more than the budget.
    pub(crate) exceeded: u64,
    /// Looks in which the slots did not add up (A3).
    pub(crate) unbalanced: u64,
    /// Times from one look to the next.
    pub(crate) gaps: Histogram,
}

/// The watching thread.
pub(crate) struct Watch {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Result<Watched>>,
}

impl Watch {
    /// Begins to watch.
    pub(crate) fn start(path: &Path, region: &Region, limit: Option<Limit>) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (path, reader, stopped) = (path.to_owned(), region.reader(), stop.clone());
        let thread = std::thread::spawn(move || watch(path, &reader, limit, &stopped));
        Self { stop, thread }
    }

    /// Ends it, and says what was seen.
    pub(crate) fn stop(self) -> Result<Watched> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().map_err(|_| anyhow!("the watching thread panicked"))?
    }
}

fn watch(path: PathBuf, reader: &Reader, limit: Option<Limit>, stop: &AtomicBool) -> Result<Watched> {
    let mut watched = Watched::default();
    let mut slots = Slots { path, first: Vec::new(), second: Vec::new() };
    let mut last = Instant::now();
    while !stop.load(Ordering::Relaxed) {
        if let Some(limit) = limit {
            let spent = reader.namespace_usage(&limit.id)?.spent_tokens;
            let held = slots.held_at_once(&limit.id)?;
            watched.take(spent, held, limit.slots);
        }
        let usage = reader.usage()?;
        let sum: u32 = usage.slots.iter().sum();
        if sum != usage.capacity_slots || usage.damaged_slots != 0 {
            watched.unbalanced += 1;
            eprintln!("slots {:?} and {} damaged are not {}", usage.slots, usage.damaged_slots, usage.capacity_slots);
        }
        if watched.samples > 0 {
            watched.gaps.record(last.elapsed().as_nanos() as u64);
        }
        last = Instant::now();
        watched.samples += 1;
        std::thread::sleep(REST);
    }
    Ok(watched)
}

impl Watched {
    fn take(&mut self, spent: u32, held: u32, budget: u32) {
        self.most_spent = self.most_spent.max(spent);
        self.most_held = self.most_held.max(held);
        if spent > budget || held > budget {
            self.exceeded += 1;
            eprintln!("budget {budget}: {spent} tokens spent, {held} slots held");
        }
    }
}

/// Two passes over the records.
struct Slots {
    path: PathBuf,
    first: Vec<u64>,
    second: Vec<u64>,
}

impl Slots {
    /// Slots that the namespace held at the moment between the passes (A2).
    fn held_at_once(&mut self, id: &NamespaceId) -> Result<u32> {
        let source = look::source(&self.path)?;
        let image = look::image(&source)?;
        for pass in [&mut self.first, &mut self.second] {
            pass.clear();
            let passed = image.for_each_record(|_, record| {
                let word = SlotWord(record.identity.word);
                let state = word.state().filter(|state| !matches!(state, SlotState::Free | SlotState::Claiming));
                let held = state.is_some() && record.identity.namespace == id.digest();
                // One more than the generation: zero is nobody.
                pass.push(if held { word.generation() + 1 } else { 0 });
                Ok(())
            });
            passed.map_err(|error| anyhow!("the slots' records: {error}"))?;
        }
        Ok(in_both(&self.first, &self.second))
    }
}

fn in_both(first: &[u64], second: &[u64]) -> u32 {
    first.iter().zip(second).filter(|(before, after)| **before != 0 && before == after).count() as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_moves_between_two_passes_is_not_counted_twice() {
        // The second slot was freed and the third one taken: one pass over both moments would find three.
        assert_eq!(in_both(&[5, 7, 0, 9], &[5, 0, 3, 9]), 2);
        // Another life of the same slot.
        assert_eq!(in_both(&[5], &[6]), 0);
    }

    #[test]
    fn more_than_the_budget_is_counted_whichever_account_shows_it() {
        let mut watched = Watched::default();
        watched.take(4, 3, 4);
        assert_eq!((watched.exceeded, watched.most_spent, watched.most_held), (0, 4, 3));
        watched.take(5, 3, 4);
        watched.take(4, 5, 4);
        assert_eq!((watched.exceeded, watched.most_spent, watched.most_held), (2, 5, 5));
    }
}
