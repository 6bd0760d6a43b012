//! Slot words, the records of ready slots, owners, and the bitmap.

use maru_layout::object::record_is_sealed;
use maru_layout::record::{BodyLine, SlotRecord};
use maru_layout::word::{MAX_GENERATION, SessionState, SlotState, SlotWord};

use super::{Examiner, Judged, Look, Notes, Spot, Stop, Suspects, read};
use crate::findings::Severity::{Damage, Info, Leftover};
use crate::life::Life;
use crate::source::ReadError;

/// Slots of a bitmap word.
const WORD: u32 = 64;

/// Walks all records, and the bitmap beside them.
pub(super) fn pass(suspects: &mut Suspects<'_, '_>) -> Result<(), Stop> {
    let examiner = suspects.examiner;
    let slots = examiner.image.geometry().slot_count;
    let mut taken = 0u64;
    let mut stopped = Ok(());
    let walked = examiner.image.for_each_record(|slot, record| {
        if stopped.is_err() {
            return Ok(());
        }
        let look = examiner.judge_slot(slot, &record)?;
        suspects.add(Spot::Slot(slot), &look);
        taken |= u64::from(!SlotWord(record.identity.word).is(SlotState::Free)) << (slot % WORD);
        if slot % WORD == WORD - 1 || slot + 1 == slots {
            if examiner.image.bitmap_word(slot / WORD)? != taken {
                suspects.spots.push(Spot::Bitmap(slot / WORD));
            }
            taken = 0;
        }
        stopped = suspects.settle_many();
        Ok(())
    });
    stopped?;
    read(walked)
}

impl Examiner<'_> {
    pub(super) fn judge_slot(&self, slot: u32, record: &SlotRecord) -> Judged {
        let word = SlotWord(record.identity.word);
        let mut notes = Notes::default();
        let place = format!("slot {slot}");
        let Some(state) = word.state() else {
            let text = format!("{place}: word is {word:?}; nobody touches the slot any more");
            notes.add(Damage, "slot_word", place, format!("{:#018x}", word.0), "a known state", text);
            return notes.done();
        };
        let (must, may) = match state {
            SlotState::Claiming | SlotState::Pending | SlotState::Writing => (true, true),
            SlotState::Retiring | SlotState::Quarantined => (false, true),
            SlotState::Free | SlotState::Ready => (false, false),
        };
        let sessions = self.image.geometry().session_count;
        match word.owner().index() {
            Some(owner) if owner >= sessions => {
                let text = format!("{place}: {word:?}, but there are {sessions} sessions");
                notes.add(Damage, "slot_owner", place, format!("session {owner}"), format!("below {sessions}"), text);
                return notes.done();
            }
            Some(owner) if !may => {
                let text = format!("{place}: {word:?}; a {} slot has no owner", state.name());
                notes.add(Damage, "slot_owner", place, format!("session {owner}"), "nobody", text);
                return notes.done();
            }
            None if must => {
                let text = format!("{place}: {word:?}; a {} slot has an owner", state.name());
                notes.add(Damage, "slot_owner", place, "nobody", "a session", text);
                return notes.done();
            }
            _ => {}
        }
        if state == SlotState::Ready {
            return self.judge_ready(slot, record);
        }
        if let Some(owner) = word.owner().index() {
            let Some((holder, life)) = self.lives.steady(self.image, owner)? else { return Ok(Look::Moving) };
            let (code, why) = match (holder.state(), life) {
                (Some(SessionState::Free | SessionState::Attaching), _) => (
                    "ownerless",
                    format!("session {owner} has ended; given back when entry {owner} is next closed or recovered"),
                ),
                (Some(_), Some(Life::Dead)) => (
                    "dead_owner",
                    if word.device_writer() && state != SlotState::Retiring {
                        format!(
                            "session {owner} is dead and a device was writing; set aside until its drain is vouched for"
                        )
                    } else {
                        format!(
                            "session {owner} is dead; freed by the next session that attaches there, finds no free slot, \
                             or calls reclaim"
                        )
                    },
                ),
                _ => ("", String::new()),
            };
            if !code.is_empty() {
                let text = format!("{place} ({word:?}): {why}");
                notes.add(Leftover, code, &place, format!("{word:?}"), "a live owner", text);
            }
        }
        if state == SlotState::Quarantined && notes.findings.is_empty() {
            let why = match (word.owner().index(), word.device_writer()) {
                (Some(owner), _) => {
                    format!("session {owner} stalled or is fenced; freed when it gives up or is proven dead")
                }
                (None, true) => {
                    "its device may still write; freed when somebody vouches that it has drained".to_owned()
                }
                (None, false) if word.generation() >= MAX_GENERATION => {
                    "its generations are used up; stays so until the region is formatted anew".to_owned()
                }
                (None, false) => "its content was damaged; stays so until the region is formatted anew".to_owned(),
            };
            let text = format!("{place}: quarantined: {why}");
            notes.add(Leftover, "quarantined", &place, format!("{word:?}"), "a usable slot", text);
        }
        if !notes.findings.is_empty() && self.image.slot_word(slot)? != word {
            return Ok(Look::Moving);
        }
        notes.done()
    }

    /// A block of a namespace with a budget has a token of that budget, and the token names it.
    fn judge_token(
        &self,
        slot: u32,
        word: SlotWord,
        body: &BodyLine,
        place: &str,
        notes: &mut Notes,
    ) -> Result<(), ReadError> {
        let geometry = self.image.geometry();
        if body.generation != word.generation() || body.namespace_row >= geometry.namespace_count {
            return Ok(());
        }
        let row = self.image.row(body.namespace_row)?;
        let Some(budget) = row.budget_slots.checked_sub(1) else { return Ok(()) };
        let range = u64::from(row.first_token)..u64::from(row.first_token).saturating_add(budget);
        let token = body.budget_token.checked_sub(1).filter(|token| range.contains(&u64::from(*token)));
        let found = match token {
            None => "no token of its namespace's budget".to_owned(),
            Some(token) if token >= geometry.token_count => return Ok(()),
            Some(token) => match self.image.token(token)? {
                named if named.is_of(slot, word.generation()) => return Ok(()),
                named => format!("token {token}, which is {named:?}"),
            },
        };
        let text = format!("{place}: {found}: its namespace holds more than its budget");
        notes.add(Damage, "budget_token", place, found, "a token that names it", text);
        Ok(())
    }

    fn judge_ready(&self, slot: u32, record: &SlotRecord) -> Judged {
        let SlotRecord { identity, body } = record;
        let word = SlotWord(identity.word);
        let mut notes = Notes::default();
        let place = format!("slot {slot}");
        let size = self.image.geometry().payload_of(slot).map_or(0, |(_, size)| size);
        if word.device_writer() {
            let text = format!("{place}: {word:?}; a ready slot has no writer");
            notes.add(Damage, "slot_owner", &place, "device bit", "no writer", text);
        }
        self.judge_token(slot, word, body, &place, &mut notes)?;
        if identity.length == 0 || u64::from(identity.length) > size {
            let (found, wanted) = (identity.length.to_string(), format!("1 to {size}"));
            let text = format!("{place}: ready with a length of {found} bytes, wanted {wanted}");
            notes.add(Damage, "slot_length", &place, found, wanted, text);
        }
        if body.generation != word.generation() {
            let (found, wanted) = (body.generation.to_string(), word.generation().to_string());
            let text =
                format!("{place}: the body is of generation {found}, the word says {wanted}: it is not believed");
            notes.add(Damage, "slot_generation", &place, found, wanted, text);
        } else if !record_is_sealed(identity, body) {
            let found = format!("{:#018x}", body.checksum);
            let text = format!("{place}: the record does not match its checksum {found}");
            notes.add(Damage, "slot_record", &place, found, "the record's CRC in the high half", text);
        }
        if notes.findings.is_empty() {
            notes.padding(&format!("{place} body"), &body.reserved);
            // Who cannot be believed is not looked for.
            match self.judge_findable(slot, record)? {
                Look::Findings(more) => notes.findings.extend(more),
                Look::Moving => return Ok(Look::Moving),
            }
        }
        if !notes.findings.is_empty() && self.image.slot_word(slot)? != word {
            return Ok(Look::Moving);
        }
        notes.done()
    }

    /// Both ways a bit can be off cost a look: a free slot that seems taken is found by a walk over the words, a taken one
    /// that seems free is tried and left.
    pub(super) fn judge_bitmap(&self, word: u32) -> Judged {
        let slots = self.image.geometry().slot_count;
        let first = word * WORD;
        let mut taken = 0u64;
        for slot in first..slots.min(first.saturating_add(WORD)) {
            taken |= u64::from(!self.image.slot_word(slot)?.is(SlotState::Free)) << (slot - first);
        }
        let bits = self.image.bitmap_word(word)?;
        let mut notes = Notes::default();
        let off = bits ^ taken;
        if off != 0 {
            let slot = first + off.trailing_zeros();
            let text = "bitmap bits that disagree with their slot word: hints, put right by whoever meets them";
            notes.add(Info, "bitmap", format!("slot {slot}"), format!("{bits:#018x}"), format!("{taken:#018x}"), text);
            notes.findings[0].count = off.count_ones().into();
        }
        notes.done()
    }
}
