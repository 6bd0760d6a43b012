//! The tables around the slots: format word, copy, chores, pool, sessions, lease areas, namespaces.

use std::collections::HashMap;

use maru_layout::FORMATTER_LOCK_BYTE;
use maru_layout::image::namespace_text;
use maru_layout::table::{NamespaceRow, Role, SessionEntry};
use maru_layout::word::{ChoreWord, FormatState, FormatWord, RowState, SessionState, SessionWord};
use sha2::{Digest, Sha256};

use super::{Examiner, Judged, Look, Notes, Spot, Stop, Suspects, read};
use crate::findings::Severity::{Damage, Info, Leftover};
use crate::life::Life;
use crate::out::{hex, until_zero};

/// Texts remembered to find two rows of one text; rows beyond are compared with these only.
const TEXTS: usize = 1 << 18;
/// Epochs above this come from damage, not from attaching.
const MAX_EPOCH: u32 = 1 << 31;

const CHORES: [&str; 2] = ["namespace_chore", "leader_chore"];

/// Walks the tables.
pub(super) fn pass(suspects: &mut Suspects<'_, '_>) -> Result<(), Stop> {
    let examiner = suspects.examiner;
    let geometry = examiner.image.geometry();
    let sessions = (0..geometry.session_count).flat_map(|session| [Spot::Session(session), Spot::Area(session)]);
    let spots = [Spot::Format, Spot::Copy, Spot::Pool, Spot::Chore(0), Spot::Chore(1)];
    // The copy lies at the other end: where the backing is cut, it is missing and the rest is not.
    let mut missing = None;
    for spot in spots.into_iter().chain(sessions) {
        match examiner.judge(spot) {
            Ok(look) => suspects.add(spot, &look),
            Err(error) => {
                missing.get_or_insert(error);
            }
        }
    }
    let mut texts: HashMap<[u8; 16], u32> = HashMap::new();
    let walked = examiner.image.for_each_row(|index, row| {
        let look = examiner.judge_row(index, &row)?;
        suspects.add(Spot::Row(index), &look);
        if RowState::from_bits(row.state) == Some(RowState::Ready)
            && let Some(text) = namespace_text(&row)
        {
            let mut short = [0; 16];
            short.copy_from_slice(&Sha256::digest(text.as_bytes())[..16]);
            match texts.get(&short) {
                Some(earlier) => suspects.spots.push(Spot::Twin { row: index, earlier: *earlier }),
                None if texts.len() < TEXTS => {
                    texts.insert(short, index);
                }
                None => {}
            }
        }
        Ok(())
    });
    read(walked)?;
    missing.map_or(Ok(()), |error| Err(Stop::Read(error)))
}

impl Examiner<'_> {
    pub(super) fn judge_format(&self) -> Judged {
        let control = self.image.control()?;
        let word = FormatWord(control.format);
        let wanted = FormatWord::ready(&self.image.geometry().region_id);
        let mut notes = Notes::default();
        let found = format!("{word:?}");
        match word.state() {
            _ if word == wanted => {}
            Some(FormatState::Replaced) => notes.add(
                Info,
                "replaced",
                "control.format",
                found,
                format!("{wanted:?}"),
                "the region has been replaced: its name leads to another one now, and nothing is stored here any more",
            ),
            Some(FormatState::Formatting) if self.lives.byte(FORMATTER_LOCK_BYTE) == Life::Alive => {
                return Ok(Look::Moving);
            }
            Some(FormatState::Formatting) => notes.add(
                Damage,
                "format_word",
                "control.format",
                found,
                format!("{wanted:?}"),
                "formatting has begun and nobody holds the formatter's lock: format it anew",
            ),
            _ => {
                let text = format!("format word is {word:?}, wanted ready with this region's id, or replaced");
                notes.add(Damage, "format_word", "control.format", found, format!("{wanted:?}"), text);
            }
        }
        notes.padding("control.reserved0", &control.reserved0);
        notes.padding("control.reserved1", &control.reserved1);
        notes.padding("control.reserved2", &control.reserved2);
        notes.padding("control.reserved3", &control.reserved3);
        let end = self.image.geometry().length_bytes;
        let have = self.image.source().size_bytes();
        if have > end {
            let text = format!("the backing goes on for {} bytes after the region; nobody uses them", have - end);
            notes.add(Info, "grown", "superblock.length_bytes", end.to_string(), have.to_string(), text);
        }
        notes.done()
    }

    pub(super) fn judge_copy(&self) -> Judged {
        let copy = self.image.copy()?;
        let findings = crate::image::differences(self.image.superblock(), &copy);
        Ok(Look::Findings(findings))
    }

    pub(super) fn judge_pool(&self) -> Judged {
        let pool = self.image.pool()?;
        let mut notes = Notes::default();
        for (name, found, known) in
            [("medium", pool.medium, 1..=3), ("tier", pool.tier, 1..=2), ("scope", pool.scope, 1..=3)]
        {
            if !known.contains(&found) {
                let wanted = format!("{} to {}", known.start(), known.end());
                let text = format!("pool: {name} is {found}, wanted {wanted}");
                notes.add(Info, "pool", format!("pool.{name}"), found.to_string(), wanted, text);
            }
        }
        let name = until_zero(&pool.name);
        if core::str::from_utf8(name).is_err() {
            notes.add(Info, "pool", "pool.name", hex(name), "UTF-8", "pool: the name is not UTF-8");
        }
        notes.padding("pool.name padding", &pool.name[name.len()..]);
        notes.padding("pool.reserved0", &pool.reserved0);
        notes.padding("pool.reserved1", &pool.reserved1);
        notes.done()
    }

    /// A chore whose holder is gone is taken over by whoever needs it next.
    pub(super) fn judge_chore(&self, chore: u8) -> Judged {
        let of = |control: &maru_layout::table::ControlPage| {
            [control.namespace_chore, control.leader_chore][usize::from(chore)]
        };
        let word = ChoreWord(of(&self.image.control()?));
        let name = CHORES[usize::from(chore)];
        let mut notes = Notes::default();
        let Some(index) = word.owner().index() else {
            if word != ChoreWord::FREE {
                let text = format!("{name} names nobody and is not zero; the next session that needs it takes it");
                notes.add(Leftover, "chore", format!("control.{name}"), format!("{:#018x}", word.0), "0", text);
            }
            return notes.done();
        };
        let gone =
            if index >= self.image.geometry().session_count || word != ChoreWord::held(word.owner(), word.epoch()) {
                Some("names no session of this region".to_owned())
            } else {
                match self.lives.steady(self.image, index)? {
                    None => return Ok(Look::Moving),
                    Some((holder, _)) if holder.epoch() != word.epoch() || holder.is(SessionState::Free) => {
                        Some(format!("is held by epoch {} of session {index}, which has ended", word.epoch()))
                    }
                    Some((_, Some(Life::Dead))) => Some(format!("is held by session {index}, which is dead")),
                    Some(_) => None,
                }
            };
        if let Some(gone) = gone {
            if of(&self.image.control()?) != word.0 {
                return Ok(Look::Moving);
            }
            let text = format!("{name} {gone}; the next session that needs it takes it");
            notes.add(Leftover, "chore", format!("control.{name}"), format!("{:#018x}", word.0), "a live holder", text);
        }
        notes.done()
    }

    pub(super) fn judge_row(&self, index: u32, row: &NamespaceRow) -> Judged {
        let mut notes = Notes::default();
        let place = format!("namespace row {index}");
        match RowState::from_bits(row.state) {
            None => {
                let text = format!("{place}: state is {:#x}, wanted free, adding or ready", row.state);
                notes.add(Damage, "namespace_row", &place, format!("{:#x}", row.state), "0, 1 or 2", text);
            }
            Some(RowState::Free) => {}
            Some(RowState::Adding) => {
                let chore = ChoreWord(self.image.control()?.namespace_chore);
                let held = match chore.owner().index().filter(|holder| *holder < self.image.geometry().session_count) {
                    None => false,
                    Some(holder) => match self.lives.steady(self.image, holder)? {
                        None => return Ok(Look::Moving),
                        Some((word, life)) => word.epoch() == chore.epoch() && life != Some(Life::Dead),
                    },
                };
                if !held {
                    let text = format!("{place}: a registration was cut short; the next one uses the row");
                    notes.add(Leftover, "namespace_adding", &place, "adding", "a live registrar", text);
                }
            }
            Some(RowState::Ready) => match namespace_text(row) {
                None => {
                    let found = format!("{} bytes", row.text_bytes);
                    let text = format!("{place}: the text ({found}) is longer than the row or not UTF-8");
                    notes.add(Damage, "namespace_text", &place, found, "UTF-8 of at most 928 bytes", text);
                }
                Some(text) => {
                    let digest = Sha256::digest(text.as_bytes());
                    if digest[..] != row.text_digest {
                        let (found, wanted) = (hex(&row.text_digest), hex(&digest));
                        let text = format!("{place}: text_digest is {found}, the text gives {wanted}");
                        notes.add(Damage, "namespace_text", &place, found, wanted, text);
                    }
                    if row.generation == 0 {
                        let text = format!("{place}: a registered namespace is at generation 0, wanted 1 or more");
                        notes.add(Damage, "namespace_row", &place, "generation 0", "1 or more", text);
                    }
                    if let Some(budget) = row.budget_slots.checked_sub(1) {
                        let (first, tokens) = (u64::from(row.first_token), self.image.geometry().token_count);
                        if first.saturating_add(budget) > tokens.into() {
                            let (found, wanted) = (format!("{first}+{budget}"), format!("within {tokens}"));
                            let text = format!(
                                "{place}: tokens {found} of a budget, wanted {wanted}; nothing is stored there"
                            );
                            notes.add(Damage, "namespace_budget", &place, found, wanted, text);
                        }
                    }
                    notes.padding(&format!("{place} text padding"), &row.text[text.len()..]);
                    notes.padding(&format!("{place} reserved0"), &row.reserved0.to_le_bytes());
                    notes.padding(&format!("{place} reserved1"), &row.reserved1);
                }
            },
        }
        notes.done()
    }

    pub(super) fn judge_twin_rows(&self, row: u32, earlier: u32) -> Judged {
        let (this, that) = (self.image.row(row)?, self.image.row(earlier)?);
        let text_of = |row: &NamespaceRow| match RowState::from_bits(row.state) {
            Some(RowState::Ready) => namespace_text(row).map(str::to_owned),
            _ => None,
        };
        let mut notes = Notes::default();
        if let (Some(this), Some(that)) = (text_of(&this), text_of(&that))
            && this == that
        {
            let place = format!("namespace row {row}");
            let text = format!("{place} holds the text of row {earlier}: engines that ask by either share nothing");
            notes.add(Damage, "namespace_twin", place, format!("the text of row {earlier}"), "one row a text", text);
        }
        notes.done()
    }

    pub(super) fn judge_session(&self, index: u32) -> Judged {
        let entry: SessionEntry = self.image.session(index)?;
        let word = SessionWord(entry.word);
        let mut notes = Notes::default();
        let place = format!("session {index}");
        let Some(state) = word.state() else {
            let text = format!("{place}: word is {word:?}; the entry is not used any more, its leases count");
            notes.add(Damage, "session_word", place, format!("{:#018x}", entry.word), "a known state", text);
            return notes.done();
        };
        if word.epoch() >= MAX_EPOCH {
            let text = format!("{place}: epoch {} is none that attaching gives", word.epoch());
            notes.add(Info, "session_facts", &place, word.epoch().to_string(), format!("below {MAX_EPOCH}"), text);
        }
        notes.padding(&format!("{place} reserved0"), &entry.reserved0);
        notes.padding(&format!("{place} reserved1"), &entry.reserved1);
        if state == SessionState::Free {
            return notes.done();
        }
        let Some((steady, life)) = self.lives.steady(self.image, index)? else { return Ok(Look::Moving) };
        if steady != word {
            return Ok(Look::Moving);
        }
        if life == Some(Life::Dead) {
            let engine = String::from_utf8_lossy(until_zero(&entry.engine)).into_owned();
            let text = format!(
                "{place} ({engine}, pid {}) is dead and its entry says {}; recovered by the next session that attaches \
                 here, finds no free slot, or calls reclaim; `maru-inspect recover` shows what it holds",
                entry.pid,
                state.name()
            );
            notes.add(Leftover, "dead_session", &place, format!("{}, life lock free", state.name()), "a holder", text);
        }
        if matches!(state, SessionState::Live | SessionState::Fenced) {
            if Role::from_bits(entry.role).is_none() {
                let text = format!("{place}: role is {}", entry.role);
                notes.add(Info, "session_facts", &place, entry.role.to_string(), "1 to 4", text);
            }
            if core::str::from_utf8(until_zero(&entry.engine)).is_err() {
                let text = format!("{place}: the engine's name is not UTF-8");
                notes.add(Info, "session_facts", &place, hex(until_zero(&entry.engine)), "UTF-8", text);
            }
        }
        notes.done()
    }

    pub(super) fn judge_area(&self, index: u32) -> Judged {
        let geometry = self.image.geometry();
        let head = self.image.area(index)?;
        let word = self.image.session_word(index)?;
        let mut notes = Notes::default();
        let place = format!("session area {index}");
        if head.lease_mark > geometry.lease_cells.into() {
            let (found, wanted) = (head.lease_mark.to_string(), format!("at most {}", geometry.lease_cells));
            let text = format!("{place}: lease_mark is {found}, wanted {wanted}; all cells are taken for used");
            notes.add(Damage, "lease_mark", format!("{place}.lease_mark"), found, wanted, text);
        }
        // Cells of other sessions are void, and the next owner zeroes them.
        if matches!(word.state(), Some(SessionState::Live | SessionState::Fenced) | None) {
            self.image.for_each_cell(index, |cell, found| {
                let place = format!("{place} cell {cell}");
                if found.kind().is_none() {
                    let text = format!("{place}: not zero and of no kind ({:#018x})", found.0);
                    notes.add(Info, "lease_sequence", place, format!("{:#018x}", found.0), "0 or a lease", text);
                } else if found.slot() >= geometry.slot_count {
                    let text = format!("{place}: {found:?} protects a slot that is not there");
                    let wanted = format!("a slot below {}", geometry.slot_count);
                    notes.add(Damage, "lease_cell", place, format!("{found:?}"), wanted, text);
                }
                Ok(())
            })?;
            if self.image.session_word(index)? != word {
                return Ok(Look::Moving);
            }
        }
        notes.padding(&format!("{place} reserved0"), &head.reserved0);
        notes.padding(&format!("{place} reserved1"), &head.reserved1);
        notes.padding(&format!("{place} reserved2"), &head.reserved2);
        notes.done()
    }
}
