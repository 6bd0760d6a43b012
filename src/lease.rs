//! Leases: a reader's protection of one life of one slot.
//!
//! A lease is one word in the *reader's own* session area. Taking one stores to no line that another session
//! stores to; that is what makes a prompt that everybody reads as cheap as a private one.
//!
//! * L1: mark before cell: a cell that holds something lies below the lease mark of its area.
//! * L2: cell, SeqCst fence, second look at the word (\[lease]). A retirer shuts the word, SeqCst fence, reads marks
//!   and cells. Whoever's fence is later sees the other: the reader finds the word shut, or the retirer the cell.
//! * L3: only the session stores to its area. Voiding the leases of a dead session is done by its session word
//!   alone; the next owner of the entry zeroes the cells before it goes `Live`.
//! * L4: handles are released by number, never by key: the book (book.rs) is private to the process and knows which
//!   handle the cell belongs to, so a second, stale, foreign or made-up handle finds nothing.
//! * L5: a *copy* lease may lapse: a retirer that has watched a copy cell unchanged for the region's limit, by its
//!   own clock, may ignore it, because the reader checks the word again after its copy and then says "expired".
//!   *View* and *device* leases never lapse. Changing a copy lease into a view is therefore a new lease (L2).

mod book;

use core::ops::ControlFlow;

use maru_layout::table::Counter;
use maru_layout::word::{LeaseCell, LeaseKind, SessionState, SlotState, SlotWord};

use self::book::Kept;
pub(crate) use self::book::LeaseBook;
use crate::directory::Sighting;
use crate::engine::{Engine, Watched};
use crate::evict::VISITED;
use crate::regime::Regime;
use crate::step::step;
use crate::sync::{Ordering, edge};
use crate::{Release, Why};

/// A protected replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Held {
    pub(crate) slot: u32,
    /// The word that was protected: `Ready`.
    pub(crate) word: SlotWord,
    pub(crate) cell: u32,
    pub(crate) sequence: u64,
}

impl Held {
    /// A replica that is to be protected: no cell yet.
    pub(crate) fn sought(sighting: &Sighting) -> Self {
        Self { slot: sighting.slot, word: sighting.word, cell: u32::MAX, sequence: 0 }
    }
}

/// Answer of a batch for one object: what protects it, and its length.
pub(crate) type Acquired = Result<(Held, u32), Why>;

/// Who protects a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Leased {
    Nobody,
    /// A session's cell.
    By {
        session: u32,
    },
}

impl<R: Regime> Engine<R> {
    /// Protects each of `wanted` or says why not, with one fence for all. Answers keep the order.
    pub(crate) fn protect(&self, wanted: &[Option<Sighting>], kind: LeaseKind) -> Vec<Result<Held, Why>> {
        let sought = |sighting: &Option<Sighting>| sighting.as_ref().map(|it| (Held::sought(it), 0)).ok_or(Why::Absent);
        let mut answers: Vec<Acquired> = wanted.iter().map(sought).collect();
        self.protect_each(&mut answers, kind);
        answers.into_iter().map(|answer| answer.map(|(held, _)| held)).collect()
    }

    /// Protects what is sought, with one fence for all, and puts the reason in the place of what could not be protected.
    /// Returns how many are.
    pub(crate) fn protect_each(&self, answers: &mut [Acquired], kind: LeaseKind) -> u64 {
        let mut dealer = self.book.dealer();
        let area = self.tables.area(self.me.index);
        let mut full = 0;
        let mut mark = dealer.mark;
        for answer in answers.iter_mut() {
            if let Ok((held, _)) = answer
                && !self.book.take(&mut dealer, held, &mut mark)
            {
                *answer = Err(Why::LeasesFull);
                full += 1;
            }
        }
        if mark != dealer.mark {
            step!(LeaseMark);
            // ORDERING: Relaxed: before the cells in program order and before the fence (L1, L2); only I store it.
            area.lease_mark.store(mark.into(), Ordering::Relaxed);
            dealer.mark = mark;
        }
        for (held, _) in answers.iter().flatten() {
            let cell = LeaseCell::new(kind, held.sequence as u8, held.slot, held.word.generation());
            step!(LeaseCell);
            // ORDERING: Release: a mark raised above is visible to whoever sees the cell (L1). The rest is the fence's.
            self.tables.cell(self.me.index, held.cell).store(cell.0, Ordering::Release);
        }
        step!(LeaseFence);
        // ORDERING: SeqCst fence, [lease]; pairs with the fence between shutting and scanning in retire.rs. Weaker:
        // the retirer misses the cell while I miss `Retiring`; loom-tests/tests/lease.rs.
        edge!(fence ReaderFence, Ordering::SeqCst);
        let mut protected = 0;
        for answer in answers {
            if let Ok((held, _)) = answer {
                if self.tables.slot(held.slot).still(held.word) {
                    self.visit(held.slot);
                    protected += 1;
                } else {
                    self.empty_cell(held.cell);
                    *answer = Err(Why::Vanished);
                }
            }
        }
        self.count(Counter::LeasesFull, full);
        protected
    }

    /// Empties a cell that the book says somebody is leaving, or that is not handed out yet.
    #[inline]
    fn empty_cell(&self, cell: u32) {
        step!(LeaseRelease);
        // ORDERING: Release: my reads of the slot happen before the cell is seen empty, and so before the slot is
        // freed and written again ([free]).
        self.tables.cell(self.me.index, cell).store(LeaseCell::EMPTY.0, Ordering::Release);
        self.book.put_back(cell);
    }

    /// Marks the access byte, only when it is not marked: a block that was read before costs its next reader no store.
    #[inline]
    fn visit(&self, slot: u32) {
        let byte = self.tables.access(slot);
        // ORDERING: Relaxed, both: advice for eviction.
        if byte.load(Ordering::Relaxed) & VISITED == 0 {
            step!(LeaseVisited);
            byte.fetch_or(VISITED, Ordering::Relaxed);
        }
    }

    /// Turns a copy lease into one that never lapses. False when the slot has begun to retire (then a retirer may
    /// already have ignored the copy lease), or when the lease was released by its handle.
    pub(crate) fn strengthen(&self, held: &Held, kind: LeaseKind) -> bool {
        let mut dealer = self.book.dealer();
        // From here on it cannot be released.
        let Some(views) = self.book.begin_view(&mut dealer, held) else { return false };
        let cell = LeaseCell::new(kind, held.sequence as u8, held.slot, held.word.generation());
        step!(LeaseCell);
        self.tables.cell(self.me.index, held.cell).store(cell.0, Ordering::Release);
        step!(LeaseFence);
        // ORDERING: SeqCst fence, [lease], as in `protect`: this is a new lease (L5).
        edge!(fence ReaderFence, Ordering::SeqCst);
        let protected = self.tables.slot(held.slot).still(held.word);
        if !protected {
            if views == 0 {
                // It stays what it was: a copy lease, which may lapse.
                let cell = LeaseCell::new(LeaseKind::Copy, held.sequence as u8, held.slot, held.word.generation());
                step!(LeaseCell);
                self.tables.cell(self.me.index, held.cell).store(cell.0, Ordering::Release);
            }
            self.book.end_view(&mut dealer, held);
        }
        protected
    }

    /// Ends one view.
    pub(crate) fn end_view(&self, held: &Held) {
        self.book.end_view(&mut self.book.dealer(), held);
    }

    /// Releases what `held` names, if this session holds exactly that (L4).
    #[inline]
    pub(crate) fn release_held(&self, slot: u32, generation: u64, cell: u32, sequence: u64) -> Release {
        match self.book.leave(slot, generation, cell, sequence) {
            Ok(()) => {
                self.empty_cell(cell);
                Release::Released
            }
            Err(Kept::NotHeld) => Release::NotHeld,
            Err(Kept::Viewed) => Release::Viewed,
        }
    }

    /// Whether the content protected by `held` was there all the time up to now: the word still names that life,
    /// and is one in which nobody writes.
    pub(crate) fn still_held(&self, held: &Held) -> bool {
        // ORDERING: Acquire fence: the copy before this call is done before the word is looked at again. Bytes of a
        // later life make that life's word visible ([claim] seen through the payload).
        edge!(fence LookAfterCopy, Ordering::Acquire);
        let word = self.tables.slot(held.slot).word();
        word.generation() == held.word.generation()
            && matches!(word.state(), Some(SlotState::Ready | SlotState::Retiring))
    }

    /// Who protects this life of the slot. To be asked after the word was shut and a SeqCst fence.
    pub(crate) fn leased(&self, slot: u32, generation: u64) -> Leased {
        let mut answer = Leased::Nobody;
        self.visit_leases(|session, index, cell| {
            if cell.protects(slot, generation) && !self.has_lapsed(session, index, cell) {
                answer = Leased::By { session };
                return ControlFlow::Break(());
            }
            ControlFlow::Continue(())
        });
        answer
    }

    /// Visits the cells in use of every session whose leases count, until `visit` breaks. To be called after the words in
    /// question were shut and a SeqCst fence (L2).
    #[inline]
    pub(crate) fn visit_leases(&self, mut visit: impl FnMut(u32, u32, LeaseCell) -> ControlFlow<()>) {
        let geometry = self.tables.geometry();
        for session in 0..geometry.session_count {
            let word = self.tables.session(session).word();
            // L3: `Dead` voids, `Attaching` has not begun, `Free` has nothing. Damage counts as a holder.
            let void = matches!(word.state(), Some(SessionState::Free | SessionState::Attaching | SessionState::Dead));
            if void && edge!(SessionDecides) {
                continue;
            }
            // ORDERING: Relaxed: after the caller's SeqCst fence (L2).
            let mark = self.tables.area(session).lease_mark.load(Ordering::Relaxed);
            let mark = u32::try_from(mark).map_or(geometry.lease_cells, |mark| mark.min(geometry.lease_cells));
            for (index, cell) in (0..).zip(self.tables.cells(session, mark)) {
                // ORDERING: Acquire, pairs with the Release that emptied the cell: the reader's loads are done.
                let cell = LeaseCell(cell.load(Ordering::Acquire));
                if cell.kind().is_some() && visit(session, index, cell).is_break() {
                    return;
                }
            }
        }
    }

    /// Whether a copy lease has stood for the region's limit by this process's clock (L5).
    pub(crate) fn has_lapsed(&self, session: u32, index: u32, cell: LeaseCell) -> bool {
        let limit = u64::from(self.tables.geometry().copy_lease_ms);
        cell.kind() == Some(LeaseKind::Copy) && self.unchanged_ms(Watched::Cell(session, index), cell.0) >= limit
    }
}
