//! The book of leases: which cells of the own area are in use, and by which handle. Private to the process.
//!
//! Dealing out cells is behind a lock, once a batch. Giving one back is not, because every lease is dropped by itself:
//! the entry of its cell says who holds it, and whoever swaps that to "leaving" empties the cell and is the last to
//! touch it until the entry says "free".
//!
//! None of this is explored by models (a model's session belongs to one thread); the orderings below are between
//! threads of one process that share a session.

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::{Acquired, Held};
use crate::sync::process::{self, AtomicBool, AtomicU64};

/// What the book says about every cell.
pub(crate) struct LeaseBook {
    entries: Box<[Entry]>,
    /// Some cell was given back since the dealer last looked.
    returned: AtomicBool,
    dealer: Mutex<Dealer>,
}

/// What only one thread at a time does: dealing out cells, and changing what kind of lease a cell holds.
#[derive(Default)]
pub(crate) struct Dealer {
    /// Cells ever used; mirrors the area's mark.
    pub(super) mark: u32,
    free: Vec<u32>,
    sequence: u64,
    /// Room for the answers of a batch, lent to one caller at a time.
    room: Vec<Acquired>,
}

#[derive(Default)]
struct Entry {
    /// `FREE`, `LEAVING`, or the holder's sequence and how many views of it live.
    state: AtomicU64,
    word: AtomicU64,
    slot: AtomicU64,
}

const FREE: u64 = 0;
const LEAVING: u64 = 1;
const VIEW_BITS: u32 = 16;
const VIEWS: u64 = (1 << VIEW_BITS) - 1;
/// Answers that a session keeps room for: 160 KiB.
const MOST_ROOM: usize = 4096;
/// Sequences are never 0, so that no holder looks like `FREE` or `LEAVING`.
const MAX_SEQUENCE: u64 = (1 << (64 - VIEW_BITS)) - 1;

/// Why a lease cannot be given back.
pub(super) enum Kept {
    NotHeld,
    Viewed,
}

impl LeaseBook {
    pub(crate) fn new(cells: u32) -> Self {
        let entries = (0..cells).map(|_| Entry::default()).collect();
        Self { entries, returned: AtomicBool::new(false), dealer: Mutex::default() }
    }

    pub(crate) fn dealer(&self) -> MutexGuard<'_, Dealer> {
        self.dealer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Room for the answers of a batch: what an earlier one left, where nobody else has it.
    pub(crate) fn lend_room(&self) -> Vec<Acquired> {
        core::mem::take(&mut self.dealer().room)
    }

    /// Takes the room back, if it is not that of a batch far larger than is usual.
    pub(crate) fn return_room(&self, room: Vec<Acquired>) {
        if room.capacity() <= MOST_ROOM {
            self.dealer().room = room;
        }
    }

    /// Leases held now.
    pub(crate) fn held_count(&self) -> u32 {
        let mark = self.dealer().mark as usize;
        // ORDERING: Relaxed: a number; who wants an exact one has no other thread at work.
        self.entries[..mark].iter().filter(|entry| entry.state.load(process::Ordering::Relaxed) > LEAVING).count()
            as u32
    }

    /// Finds a cell for a lease and writes it down. False when every cell is in use.
    #[inline]
    pub(super) fn take(&self, dealer: &mut Dealer, held: &mut Held, mark: &mut u32) -> bool {
        if dealer.free.is_empty() {
            self.gather(dealer, *mark);
        }
        held.cell = match dealer.free.pop() {
            Some(cell) => cell,
            None if (*mark as usize) < self.entries.len() => {
                *mark += 1;
                *mark - 1
            }
            None => return false,
        };
        dealer.sequence = dealer.sequence % MAX_SEQUENCE + 1;
        held.sequence = dealer.sequence;
        let entry = &self.entries[held.cell as usize];
        entry.word.store(held.word.0, process::Ordering::Relaxed);
        entry.slot.store(held.slot.into(), process::Ordering::Relaxed);
        // ORDERING: Release: a thread that gets the handle and finds this sequence finds slot and word.
        entry.state.store(held.sequence << VIEW_BITS, process::Ordering::Release);
        true
    }

    /// Collects the cells that were given back; the lowest is dealt out first, so that the mark stays low.
    fn gather(&self, dealer: &mut Dealer, mark: u32) {
        // ORDERING: Acquire, pairs with `put_back`: what was freed before the flag was set is seen free. What is freed from here
        // on sets the flag again.
        if self.returned.swap(false, process::Ordering::Acquire) {
            // ORDERING: Acquire, pairs with `put_back`: the cell was emptied before the dealer's next holder fills it.
            let free = |cell: &u32| self.entries[*cell as usize].state.load(process::Ordering::Acquire) == FREE;
            dealer.free.extend((0..mark).rev().filter(free));
        }
    }

    /// Says that this lease is leaving its cell, if the handle is exactly the holder's and nobody views it (L4). Of several
    /// threads with the same handle one succeeds, and then has to empty the cell and call [`LeaseBook::put_back`].
    #[inline]
    pub(super) fn leave(&self, slot: u32, generation: u64, cell: u32, sequence: u64) -> Result<(), Kept> {
        let Some(entry) = self.entries.get(cell as usize) else { return Err(Kept::NotHeld) };
        // ORDERING: Acquire, pairs with `take`.
        let state = entry.state.load(process::Ordering::Acquire);
        let word = maru_layout::word::SlotWord(entry.word.load(process::Ordering::Relaxed));
        let same = entry.slot.load(process::Ordering::Relaxed) == u64::from(slot) && word.generation() == generation;
        if state <= LEAVING || state >> VIEW_BITS != sequence || !same {
            return Err(Kept::NotHeld);
        }
        if state & VIEWS != 0 {
            return Err(Kept::Viewed);
        }
        // ORDERING: Acquire: after what other threads did under this lease before they let go of it.
        match entry.state.compare_exchange(state, LEAVING, process::Ordering::Acquire, process::Ordering::Relaxed) {
            Ok(_) => Ok(()),
            Err(found) if found >> VIEW_BITS == sequence => Err(Kept::Viewed),
            Err(_) => Err(Kept::NotHeld),
        }
    }

    /// The cell is empty; the dealer may deal it out again.
    #[inline]
    pub(super) fn put_back(&self, cell: u32) {
        // ORDERING: Release: after the store that emptied the cell.
        self.entries[cell as usize].state.store(FREE, process::Ordering::Release);
        // ORDERING: Release, pairs with `gather`.
        self.returned.store(true, process::Ordering::Release);
    }

    /// Counts one more view of `held`, which keeps it from leaving; how many there were, or `None` where it is not held
    /// any more. The dealer's lock keeps other views from coming and going.
    pub(super) fn begin_view(&self, _dealer: &mut Dealer, held: &Held) -> Option<u64> {
        let state = &self.entries.get(held.cell as usize)?.state;
        let view = |state: u64| (state >> VIEW_BITS == held.sequence && state & VIEWS < VIEWS).then(|| state + 1);
        // ORDERING: Relaxed: the caller is told by the very lease; the count alone decides who may leave.
        state
            .fetch_update(process::Ordering::Relaxed, process::Ordering::Relaxed, view)
            .ok()
            .map(|before| before & VIEWS)
    }

    /// Counts one view less.
    pub(super) fn end_view(&self, _dealer: &mut Dealer, held: &Held) {
        let Some(entry) = self.entries.get(held.cell as usize) else { return };
        let view = |state: u64| (state >> VIEW_BITS == held.sequence && state & VIEWS > 0).then(|| state - 1);
        // ORDERING: Release: what was read in place is read before the lease can leave.
        let _ = entry.state.fetch_update(process::Ordering::Release, process::Ordering::Relaxed, view);
    }
}

#[cfg(all(test, not(maru_loom)))]
mod tests {
    use maru_layout::word::{Owner, SlotState, SlotWord};

    use super::*;

    /// Deals out a cell for a lease of this slot.
    fn deal(book: &LeaseBook, slot: u32) -> Option<Held> {
        let word = SlotWord::new(SlotState::Ready, Owner::NOBODY, 7);
        let mut held = Held { slot, word, cell: u32::MAX, sequence: 0 };
        let mut dealer = book.dealer();
        let mut mark = dealer.mark;
        let dealt = book.take(&mut dealer, &mut held, &mut mark);
        dealer.mark = mark;
        dealt.then_some(held)
    }

    fn leave(book: &LeaseBook, held: &Held) -> Result<(), Kept> {
        book.leave(held.slot, held.word.generation(), held.cell, held.sequence)
    }

    #[test]
    fn a_cell_is_dealt_to_one_holder_at_a_time_and_left_by_one_handle() {
        const CELLS: u32 = 6;
        let book = LeaseBook::new(CELLS);
        let in_use: Vec<AtomicBool> = (0..CELLS).map(|_| AtomicBool::new(false)).collect();
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (book, in_use) = (&book, &in_use);
                scope.spawn(move || {
                    for _ in 0..20_000 {
                        let holds: Vec<Held> = (0..2).filter_map(|at| deal(book, thread * 2 + at)).collect();
                        for held in &holds {
                            assert!(!in_use[held.cell as usize].swap(true, process::Ordering::AcqRel), "dealt twice");
                        }
                        for held in &holds {
                            assert!(matches!(leave(book, &Held { slot: 99, ..*held }), Err(Kept::NotHeld)));
                            // A handle leaves once.
                            let left = std::array::from_fn::<bool, 2, _>(|_| match leave(book, held) {
                                Ok(()) => {
                                    in_use[held.cell as usize].store(false, process::Ordering::Release);
                                    book.put_back(held.cell);
                                    true
                                }
                                Err(_) => false,
                            });
                            assert_eq!(left, [true, false]);
                        }
                    }
                });
            }
        });
        assert_eq!(book.held_count(), 0);
        assert!(book.dealer().mark <= CELLS);
        // Eight are asked for at a time where there are six; none is lost over that.
        assert_eq!((0..CELLS + 1).filter_map(|slot| deal(&book, slot)).count(), CELLS as usize);
    }

    #[test]
    fn a_view_keeps_its_lease_from_leaving() {
        let book = LeaseBook::new(2);
        let held = deal(&book, 5).expect("a cell");
        assert_eq!(book.begin_view(&mut book.dealer(), &held), Some(0));
        assert_eq!(book.begin_view(&mut book.dealer(), &held), Some(1));
        book.end_view(&mut book.dealer(), &held);
        assert!(matches!(leave(&book, &held), Err(Kept::Viewed)));
        book.end_view(&mut book.dealer(), &held);
        assert!(leave(&book, &held).is_ok());
        assert_eq!(book.begin_view(&mut book.dealer(), &held), None, "it is leaving");
        book.put_back(held.cell);
        assert!(matches!(leave(&book, &held), Err(Kept::NotHeld)));
    }
}
