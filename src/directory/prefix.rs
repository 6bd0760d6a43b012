//! Answering for the keys of a whole request at once.
//!
//! One key costs two dependent misses, bucket and identity line. A request has a hundred keys and knows them all:
//! so all buckets are asked for first, then all identity lines, and only then is anything compared. The cost is
//! what the memory can have under way, not the sum of the misses.

use maru_layout::object::{Home, ObjectKey};
use maru_layout::word::IndexEntry;

use crate::Why;
use crate::directory::Sighting;
use crate::engine::Engine;
use crate::regime::Regime;
use crate::slot::{IdentityWords, length_of};
use crate::sync::Ordering;

/// Keys under way at once: more than any processor has misses outstanding, few enough for the stack.
const WINDOW: usize = if cfg!(maru_loom) { 2 } else { 64 };

impl<R: Regime> Engine<R> {
    /// Looks for each key. Answers keep the order.
    pub(crate) fn find_many(&self, keys: &[ObjectKey]) -> Vec<Result<Sighting, Why>> {
        let mut answers = Vec::with_capacity(keys.len());
        for window in keys.chunks(WINDOW) {
            self.find_window(window, |answer| {
                answers.push(answer);
                true
            });
        }
        answers
    }

    /// The number of leading keys that are ready, and the length of each through `each`.
    pub(crate) fn leading_run(&self, keys: impl Iterator<Item = ObjectKey>, mut each: impl FnMut(u32)) -> usize {
        let mut run = 0;
        let mut keys = keys.peekable();
        while keys.peek().is_some() {
            let mut window = [const { None }; WINDOW];
            let mut filled = 0;
            for (place, key) in window.iter_mut().zip(keys.by_ref()) {
                *place = Some(key);
                filled += 1;
            }
            let mut broken = false;
            self.find_window_of(window.iter().flatten().copied(), filled, |answer| {
                match answer {
                    Ok(sighting) => {
                        run += 1;
                        each(length_of(&sighting.identity));
                    }
                    Err(_) => broken = true,
                }
                !broken
            });
            if broken {
                break;
            }
        }
        run
    }

    fn find_window(&self, keys: &[ObjectKey], visit: impl FnMut(Result<Sighting, Why>) -> bool) {
        self.find_window_of(keys.iter().copied(), keys.len(), visit);
    }

    /// Three passes over at most [`WINDOW`] keys; `visit` returns whether to go on.
    fn find_window_of(
        &self,
        keys: impl Iterator<Item = ObjectKey>,
        count: usize,
        mut visit: impl FnMut(Result<Sighting, Why>) -> bool,
    ) {
        let mut wanted: [(Home, IdentityWords); WINDOW] = [(Home { first: 0, tag: 0 }, [0; 7]); WINDOW];
        for (wanted, key) in wanted.iter_mut().zip(keys) {
            *wanted = self.place_and_identity(&key);
            self.tables.prefetch_bucket(wanted.0.first);
        }
        let wanted = &wanted[..count];
        for (home, _) in wanted {
            for cell in &self.tables.bucket(home.first).entries {
                // ORDERING: Relaxed: only decides what to fetch; the look below loads again.
                let entry = IndexEntry(cell.load(Ordering::Relaxed));
                if !entry.is_empty() && entry.tag() == home.tag {
                    self.tables.prefetch_slot(entry.slot());
                }
            }
        }
        for (home, identity) in wanted {
            if !visit(self.find_ready(home, identity)) {
                return;
            }
        }
    }
}
