//! `verify --payload`: the payload half of the checksums of ready slots.
//!
//! Bytes are read in pieces and never kept. Afterwards the slot word is read again: if it has moved, the slot was
//! replaced under the reader, which says nothing about its bytes.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use maru_layout::object::{ObjectKey, PayloadCrc, record_is_sealed};
use maru_layout::word::{SlotState, SlotWord};

use super::{Examiner, Judged, Look, Notes, Spot, Stop, Suspects, read};
use crate::findings::Severity::Damage;

const PIECE_BYTES: usize = 1 << 20;

/// Walks the payload of all ready slots.
pub(super) fn pass(suspects: &mut Suspects<'_, '_>, progress: bool) -> Result<(), Stop> {
    let examiner = suspects.examiner;
    let bar = if progress && std::io::stderr().is_terminal() { bar_over(examiner) } else { ProgressBar::hidden() };
    let mut stopped = Ok(());
    let walked = examiner.image.for_each_record(|slot, record| {
        if stopped.is_err() || !SlotWord(record.identity.word).is(SlotState::Ready) {
            return Ok(());
        }
        let look = examiner.judge_payload(slot, &mut |bytes| bar.inc(bytes))?;
        suspects.add(Spot::Payload(slot), &look);
        stopped = suspects.settle_many();
        Ok(())
    });
    bar.finish_and_clear();
    stopped?;
    read(walked)
}

fn bar_over(examiner: &Examiner<'_>) -> ProgressBar {
    let bar = ProgressBar::new(crate::tally::Tally::of(examiner.image).usage.ready_bytes);
    if let Ok(style) = ProgressStyle::with_template("  payload {bar:40} {bytes}/{total_bytes} {bytes_per_sec} {eta}") {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}

impl Examiner<'_> {
    pub(super) fn judge_payload(&self, slot: u32, progress: &mut dyn FnMut(u64)) -> Judged {
        let record = self.image.record(slot)?;
        let (identity, body) = (record.identity, record.body);
        let word = SlotWord(identity.word);
        let mut notes = Notes::default();
        let Some((offset, size)) = self.image.geometry().payload_of(slot) else { return notes.done() };
        // A record that is damaged itself is told by the walk over the records.
        let believed = word.is(SlotState::Ready)
            && body.generation == word.generation()
            && u64::from(identity.length) <= size
            && record_is_sealed(&identity, &body);
        if !believed {
            return notes.done();
        }
        let mut crc = PayloadCrc::new(&ObjectKey::of_record(&identity), word.generation(), identity.length);
        let mut buffer = vec![0; PIECE_BYTES.min(identity.length as usize)];
        let mut done = 0;
        while done < u64::from(identity.length) {
            let piece = &mut buffer[..PIECE_BYTES.min((u64::from(identity.length) - done) as usize)];
            self.image.source().read_at(offset + done, piece)?;
            crc.update(piece);
            done += piece.len() as u64;
            progress(piece.len() as u64);
        }
        let computed = crc.finish();
        if computed != body.checksum as u32 {
            if self.image.slot_word(slot)? != word {
                return Ok(Look::Moving);
            }
            let place = format!("slot {slot}");
            let (found, wanted) = (format!("{computed:#010x}"), format!("{:#010x}", body.checksum as u32));
            let text =
                format!("{place}: payload of {} bytes gives CRC {found}, its record says {wanted}", identity.length);
            notes.add(Damage, "slot_payload", place, found, wanted, text);
        }
        notes.done()
    }
}
