//! Budgets of namespaces: how many slots one of them may hold, exact at every instant, with nothing to repair.
//!
//! A budget of B slots is B *token words* of the region's token section, dealt out when the namespace is registered. A
//! token names a slot and a generation, and is *spent* exactly while that slot is in that life: has that generation, and
//! is not free. So nobody ever gives a token back. Killed, aborted, crashed, evicted, retired: whatever frees the slot
//! moves its generation, and with it the token is free.
//!
//! * T1: a store of a namespace with a budget goes to `Pending` only after it swapped an unspent token for its own slot
//!   and generation. So there is an injection from the namespace's slots in `Pending` and later states to its tokens, and
//!   never more of them than B, whoever stores at once.
//! * T2: an unspent token stays unspent until it is swapped: generations only grow. Of two stores that want one, the swap
//!   decides.
//! * T3: whoever reads a token sees its slot at least as it was claimed (\[token]): the claim comes before the swap that
//!   named it. So "another generation" always means a later one.
//! * T4: a store that finds every token spent evicts from its own namespace, by walking its tokens. As long as the budgets
//!   of a pool add up to no more than its slots of each class, that costs no other namespace a block; where they do not,
//!   or where the slot that came free is of too small a class or is taken by somebody else first, the pool's own eviction
//!   follows.
//!
//! A refusal looks at [`LOOK`] tokens at most, and the next one goes on where it ended.

use maru_layout::word::{SlotState, SlotWord, TokenWord};

use crate::engine::Engine;
use crate::regime::Regime;
use crate::step::step;
use crate::sync::{Ordering, edge, process};

/// Tokens that one search looks at.
const LOOK: u32 = 4096;

/// The tokens of a namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Purse {
    pub(crate) row: u32,
    pub(crate) first: u32,
    pub(crate) count: u32,
}

/// A token as it was looked at: of use when nobody had spent it then.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Unspent {
    pub(crate) index: u32,
    pub(crate) seen: TokenWord,
}

impl<R: Regime> Engine<R> {
    /// The tokens of a registered row; `None` where it has no budget.
    pub(crate) fn purse(&self, row: u32) -> Option<Purse> {
        let (budget, first) = self.tables.row(row).budget();
        let count = budget.checked_sub(1)?;
        let tokens = u64::from(self.tables.geometry().token_count);
        let first = u64::from(first);
        if first.saturating_add(count) > tokens {
            // Bytes of the region: no token is looked at, and so nothing is stored under this name.
            self.damage();
            return Some(Purse { row, first: 0, count: 0 });
        }
        Some(Purse { row, first: first as u32, count: count as u32 })
    }

    /// Whether the slot that a token names is in the life that it names.
    pub(crate) fn is_spent(&self, token: TokenWord) -> bool {
        let Some((slot, _)) = token.names() else { return false };
        let Some(record) = self.tables.slot_checked(slot) else {
            self.damage();
            return true;
        };
        let word = record.word();
        token.is_of(slot, word.generation()) && !word.is(SlotState::Free)
    }

    /// Looks for an unspent token.
    pub(crate) fn find_token(&self, purse: Purse) -> Option<Unspent> {
        self.walk(purse, LOOK, |unspent| (!self.is_spent(unspent.seen)).then_some(unspent))
    }

    /// Visits so many tokens at most, from where the last search ended, until `visit` has an answer.
    pub(crate) fn walk<T>(&self, purse: Purse, most: u32, mut visit: impl FnMut(Unspent) -> Option<T>) -> Option<T> {
        if purse.count == 0 {
            return None;
        }
        let hand = &self.token_hands[purse.row as usize % self.token_hands.len()];
        let start = hand.load(process::Ordering::Relaxed) as u32 % purse.count;
        for step in 0..purse.count.min(most) {
            let at = (start + step) % purse.count;
            let index = purse.first + at;
            // ORDERING: Acquire, reader's end of [token] (T3).
            let seen = TokenWord(self.tables.token(index).load(Ordering::Acquire));
            if let Some(answer) = visit(Unspent { index, seen }) {
                hand.store(u64::from(at) + 1, process::Ordering::Relaxed);
                return Some(answer);
            }
        }
        hand.store(u64::from(start) + u64::from(purse.count.min(most)), process::Ordering::Relaxed);
        None
    }

    /// Spends `unspent` on a slot that this session has claimed; false when somebody else was quicker.
    pub(crate) fn spend(&self, unspent: Unspent, slot: u32, claiming: SlotWord) -> bool {
        let mine = TokenWord::new(slot, claiming.generation());
        if !edge!(SpendFirst) {
            return true;
        }
        step!(BudgetSpend);
        // ORDERING: AcqRel, [token]: Release carries the claim to whoever reads the token (T3); Acquire: the life that the
        // token named before is over for me, too.
        let spent = self
            .tables
            .token(unspent.index)
            .compare_exchange(unspent.seen.0, mine.0, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok();
        if spent {
            R::write_back(self.tables.token(unspent.index));
        }
        spent
    }

    /// Tokens that are spent now.
    #[cfg(not(maru_loom))]
    pub(crate) fn spent_tokens(&self, purse: Purse) -> u32 {
        // ORDERING: Acquire, reader's end of [token] (T3).
        let token = |index: u32| TokenWord(self.tables.token(index).load(Ordering::Acquire));
        (purse.first..purse.first + purse.count).filter(|index| self.is_spent(token(*index))).count() as u32
    }
}
