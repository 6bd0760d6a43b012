//! Who reads what a search for room passes: one look over all lease cells, where there may be a million.
//!
//! All of it is advice. Whatever a search concludes from it, a victim is checked once more before it is shut and once
//! after (E1).

use core::ops::ControlFlow;
use std::collections::HashMap;

use maru_layout::superblock::SlotClass;
use maru_layout::word::LeaseCell;

use super::Victim;
use crate::engine::Engine;
use crate::regime::Regime;
use crate::sync::Ordering;

/// No cell.
const NOBODY: (u32, u32) = (u32::MAX, 0);

/// Some of a region's slots, a bit each: filled from a million cells in less than a millisecond.
pub(super) struct SlotSet(Vec<u64>);

impl SlotSet {
    fn of(slots: u32) -> Self {
        Self(vec![0; slots.div_ceil(64) as usize])
    }

    /// Slots of lease cells are bytes of the region: one that is none is left out.
    fn insert(&mut self, slot: u32) {
        if let Some(word) = self.0.get_mut(slot as usize / 64) {
            *word |= 1 << (slot % 64);
        }
    }

    pub(super) fn contains(&self, slot: u32) -> bool {
        self.0.get(slot as usize / 64).is_some_and(|word| word & (1 << (slot % 64)) != 0)
    }
}

/// One reader of each slot that a hand comes to next, if it has any.
pub(super) struct Readers {
    window: Window,
    /// Session and cell, by place in the window.
    cells: Vec<(u32, u32)>,
}

impl Readers {
    /// Whether somebody was seen reading a slot; `None` where nobody looked.
    pub(super) fn seen(&self, slot: u32) -> Option<bool> {
        Some(self.cells[self.window.place(slot)?] != NOBODY)
    }
}

/// A run of slots: all of a class, or from its hand on. It ends with the class, since one comparison for each of a million
/// cells is half of two; what comes after the turn is not known.
#[derive(Clone, Copy)]
struct Window {
    first: u32,
    length: u32,
}

impl Window {
    fn of(class: &SlotClass, hand: u64, length: u32) -> Self {
        if length >= class.slot_count {
            return Self { first: class.first_slot, length: class.slot_count };
        }
        let at = (hand % u64::from(class.slot_count)) as u32;
        Self { first: class.first_slot + at, length: length.min(class.slot_count - at) }
    }

    #[inline(always)]
    fn place(&self, slot: u32) -> Option<usize> {
        let at = slot.wrapping_sub(self.first);
        (at < self.length).then_some(at as usize)
    }
}

impl<R: Regime> Engine<R> {
    /// Who reads the `looks` slots of `class` that its hand comes to next.
    pub(super) fn readers(&self, class_index: usize, class: &SlotClass, looks: u32) -> Readers {
        // ORDERING: Relaxed: a hint. Where others move the hand, too, part of what comes next lies outside.
        let hand = self.tables.control().clocks[class_index].hand.load(Ordering::Relaxed);
        let window = Window::of(class, hand, looks);
        let mut cells = vec![NOBODY; window.length as usize];
        let mut unread = window.length;
        self.visit_leases(|session, index, cell| {
            if let Some(place) = window.place(cell.slot()) {
                unread -= u32::from(cells[place] == NOBODY);
                cells[place] = (session, index);
                if unread == 0 {
                    return ControlFlow::Break(());
                }
            }
            ControlFlow::Continue(())
        });
        Readers { window, cells }
    }

    /// Whether the reader that was seen at a victim protects it still, and is not proven dead. `dead` remembers who is.
    pub(super) fn is_read(&self, readers: &Readers, victim: &Victim, dead: &mut HashMap<u32, bool>) -> bool {
        let Some(place) = readers.window.place(victim.slot) else { return false };
        let (session, index) = readers.cells[place];
        if (session, index) == NOBODY {
            return false;
        }
        // ORDERING: Acquire, as in `visit_leases`.
        let cell = LeaseCell(self.tables.cell(session, index).load(Ordering::Acquire));
        cell.protects(victim.slot, victim.word.generation())
            && !self.has_lapsed(session, index, cell)
            && !*dead.entry(session).or_insert_with(|| self.recover_if_dead(session))
    }

    /// Slots that leases which `count` protect, of whatever life, by one look over all cells.
    pub(super) fn slots_being_read(&self, count: impl Fn(u32, u32, LeaseCell) -> bool) -> SlotSet {
        let mut slots = SlotSet::of(self.tables.geometry().slot_count);
        self.visit_leases(|session, index, cell| {
            if count(session, index, cell) {
                slots.insert(cell.slot());
            }
            ControlFlow::Continue(())
        });
        slots
    }
    /// Finds out which of the victims a session that is not proven dead protects, by one look over all cells. Who is found
    /// dead is recovered on the way, which voids its leases. The victims come out in the order of their slots.
    pub(super) fn look_for_readers(&self, victims: &mut [Victim]) {
        victims.sort_by_key(|victim| victim.slot);
        let (Some(first), Some(last)) = (victims.first(), victims.last()) else { return };
        // Victims lie close together, and cells may be a million: most are passed over without a search.
        let reach = first.slot..=last.slot;
        victims.iter_mut().for_each(|victim| victim.read = false);
        let mut unknown = victims.len();
        // Cells come session by session: the kernel is asked once for each.
        let mut judged = None;
        self.visit_leases(|session, index, cell| {
            if !reach.contains(&cell.slot()) {
                return ControlFlow::Continue(());
            }
            // A slot may come twice, in two of its lives, where it was looked at twice.
            let begin = victims.partition_point(|victim| victim.slot < cell.slot());
            for victim in victims[begin..].iter_mut().take_while(|victim| victim.slot == cell.slot()) {
                let counts = !victim.read && cell.protects(victim.slot, victim.word.generation());
                if !counts || judged == Some((session, true)) || self.has_lapsed(session, index, cell) {
                    continue;
                }
                if judged.is_none_or(|(of, _)| of != session) {
                    judged = Some((session, self.recover_if_dead(session)));
                }
                if judged == Some((session, false)) {
                    victim.read = true;
                    unknown -= 1;
                }
            }
            if unknown == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
    }
}
