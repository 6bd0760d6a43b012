//! `verify`: everything against everything, beside live writers.
//!
//! Two passes share one definition of "wrong". The first walks every table once, in chunks, and judges what it has just
//! read: places that look wrong become *suspects*. Suspects are then looked at again on their own, up to a bounded number
//! of times with small pauses, by the same judgement:
//!
//! * V1: a suspect that looks right once is dropped. It was being changed while it was read.
//! * V2: a suspect counts when several looks in a row, with pauses between them, gave exactly the same finding.
//! * V3: a look reads the words that its judgement rests on again at its end; if one has moved, the look says nothing.
//! * V4: what never stood still and never looked right is *busy*: no finding, and the verdict is at most "busy".
//! * V5: suspects are settled in batches, so that neither memory nor time grows with the damage.
//!
//! What counts as damage follows one rule: bytes that no correct writer leaves behind, at whichever of its stores it
//! dies. Everything that a death does leave is a leftover, with the name of whoever brings it home.
//!
//! | file | judges |
//! | --- | --- |
//! | `tables` | format word, copy, chores, pool, sessions, lease areas, namespaces |
//! | `slots` | slot words, records, owners, bitmap |
//! | `index` | entries, marks, whether each ready slot is found, twins |
//! | `payload` | the payload half of the checksums |

mod index;
mod payload;
mod slots;
mod tables;

use std::io;
use std::thread::sleep;
use std::time::Duration;

use crate::findings::{Finding, Report, Severity};
use crate::image::Image;
use crate::life::Lives;
use crate::out::{Out, grouped};
use crate::run::Printer;
use crate::source::ReadError;

/// A place that can be judged on its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Spot {
    Format,
    Copy,
    Pool,
    Chore(u8),
    Row(u32),
    Twin { row: u32, earlier: u32 },
    Session(u32),
    Area(u32),
    Slot(u32),
    Bitmap(u32),
    Bucket(u32),
    Mark(u32),
    Payload(u32),
}

/// What a look at a spot gave.
#[derive(Debug, PartialEq, Eq)]
enum Look {
    /// This is what is wrong; nothing, if it is empty.
    Findings(Vec<Finding>),
    /// The words moved while they were looked at.
    Moving,
}

type Judged = Result<Look, ReadError>;

/// Pauses before the second, third and fourth look, milliseconds: longer than a writer on a crowded processor stands
/// between two stores of one operation.
const PAUSES_MS: [u64; 3] = [2, 10, 30];
/// Looks at most.
const LOOKS: usize = 12;
/// Pause between looks beyond the first four.
const LATE_PAUSE_MS: u64 = 5;
/// Suspects settled at once.
const BATCH: usize = 1 << 14;

/// What the judgements need.
struct Examiner<'a> {
    image: &'a Image<'a>,
    lives: Lives,
}

/// Suspects, settled whenever there are many.
struct Suspects<'a, 'o> {
    examiner: &'a Examiner<'a>,
    spots: Vec<Spot>,
    printer: &'o mut Printer,
    report: &'o mut Report,
    out: &'o mut Out,
}

/// A read error of the region, or a broken output.
enum Stop {
    Read(ReadError),
    Output(io::Error),
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Self {
        Self::Output(error)
    }
}

/// Verifies a region.
///
/// # Errors
/// The reader of the output has gone.
pub(crate) fn run(
    image: &Image<'_>,
    payload: bool,
    progress: bool,
    printer: &mut Printer,
    report: &mut Report,
    out: &mut Out,
) -> io::Result<()> {
    let examiner = Examiner { image, lives: Lives::of(image) };
    let mut suspects = Suspects { examiner: &examiner, spots: Vec::new(), printer, report, out };
    // A part of the region that cannot be read is one finding; the other tables are still judged.
    let walked = tables::pass(&mut suspects);
    suspects.note(walked)?;
    let walked = slots::pass(&mut suspects);
    suspects.note(walked)?;
    let walked = index::pass(&mut suspects);
    suspects.note(walked)?;
    if payload {
        let walked = payload::pass(&mut suspects, progress);
        suspects.note(walked)?;
    }
    let settled = suspects.settle();
    suspects.note(settled)?;
    Ok(())
}

/// What a verdict rests on, for people.
///
/// # Errors
/// The reader of the output has gone.
pub(crate) fn show_extent(image: &Image<'_>, payload: bool, out: &mut Out) -> io::Result<()> {
    let geometry = image.geometry();
    out.line("")?;
    out.line(format!(
        "checked superblock and copy, {} slots, {} buckets, {} sessions, {} namespace rows{}",
        grouped(geometry.slot_count),
        grouped(geometry.bucket_count),
        grouped(geometry.session_count),
        grouped(geometry.namespace_count),
        if payload { ", payload of ready slots" } else { "; payload not read (--payload reads it)" },
    ))
}

impl<'a> Suspects<'a, '_> {
    /// Adds a place whose first judgement was not "right".
    fn add(&mut self, spot: Spot, look: &Look) {
        if *look != Look::Findings(Vec::new()) {
            self.spots.push(spot);
        }
    }

    /// Settles if there are many.
    fn settle_many(&mut self) -> Result<(), Stop> {
        if self.spots.len() >= BATCH { self.settle() } else { Ok(()) }
    }

    /// Turns the end of a walk that could not read on into a finding.
    fn note(&mut self, walked: Result<(), Stop>) -> io::Result<()> {
        match walked {
            Ok(()) => Ok(()),
            Err(Stop::Output(error)) => Err(error),
            Err(Stop::Read(error)) => self.note_read_error(&error),
        }
    }

    fn note_read_error(&mut self, error: &ReadError) -> io::Result<()> {
        let finding = Finding::of_read_error(error, self.examiner.image);
        if self.report.findings.contains(&finding) {
            return Ok(());
        }
        self.printer.add(finding, self.report, self.out)
    }

    /// Looks at all suspects until each is right, settled or given up (V1, V2, V4).
    fn settle(&mut self) -> Result<(), Stop> {
        struct Open {
            spot: Spot,
            last: Option<Vec<Finding>>,
            same: usize,
        }
        let live = self.examiner.image.source().may_change();
        let needed = if live { PAUSES_MS.len() } else { 0 };
        let mut open: Vec<Open> =
            std::mem::take(&mut self.spots).into_iter().map(|spot| Open { spot, last: None, same: 0 }).collect();
        let mut read_error = None;
        for look in 0..LOOKS {
            if open.is_empty() {
                break;
            }
            if live && look > 0 {
                sleep(Duration::from_millis(PAUSES_MS.get(look - 1).copied().unwrap_or(LATE_PAUSE_MS)));
            }
            let mut still = Vec::with_capacity(open.len());
            for mut suspect in open {
                match self.examiner.judge(suspect.spot) {
                    Ok(Look::Findings(findings)) if findings.is_empty() => continue,
                    Ok(Look::Findings(findings)) => {
                        let same = suspect.last.as_ref() == Some(&findings);
                        suspect.same = if same { suspect.same + 1 } else { 0 };
                        suspect.last = Some(findings);
                        if suspect.same < needed {
                            still.push(suspect);
                            continue;
                        }
                        for finding in suspect.last.into_iter().flatten() {
                            self.printer.add(finding, self.report, self.out)?;
                        }
                    }
                    Ok(Look::Moving) => {
                        suspect.same = 0;
                        still.push(suspect);
                    }
                    Err(error) => read_error = Some(error),
                }
            }
            open = still;
        }
        // A hint that keeps changing is a hint in use. Only what would matter makes the verdict inconclusive.
        let busy = open.iter().filter(|suspect| {
            suspect.last.as_ref().is_none_or(|last| last.iter().any(|finding| finding.severity != Severity::Info))
        });
        self.report.add_busy(busy.count() as u64);
        read_error.map_or(Ok(()), |error| Err(Stop::Read(error)))
    }
}

impl Examiner<'_> {
    /// Judges a place from fresh bytes.
    fn judge(&self, spot: Spot) -> Judged {
        match spot {
            Spot::Format => self.judge_format(),
            Spot::Copy => self.judge_copy(),
            Spot::Pool => self.judge_pool(),
            Spot::Chore(chore) => self.judge_chore(chore),
            Spot::Row(row) => self.judge_row(row, &self.image.row(row)?),
            Spot::Twin { row, earlier } => self.judge_twin_rows(row, earlier),
            Spot::Session(session) => self.judge_session(session),
            Spot::Area(session) => self.judge_area(session),
            Spot::Slot(slot) => self.judge_slot(slot, &self.image.record(slot)?),
            Spot::Bitmap(word) => self.judge_bitmap(word),
            Spot::Bucket(bucket) => self.judge_bucket(bucket, &self.image.bucket(bucket)?),
            Spot::Mark(bucket) => self.judge_mark(bucket),
            Spot::Payload(slot) => self.judge_payload(slot, &mut |_| {}),
        }
    }
}

/// Findings of a place under judgement.
#[derive(Default)]
struct Notes {
    findings: Vec<Finding>,
}

impl Notes {
    fn add(
        &mut self,
        severity: Severity,
        code: &'static str,
        place: impl Into<String>,
        found: impl Into<String>,
        wanted: impl Into<String>,
        text: impl Into<String>,
    ) {
        self.findings.push(Finding::new(severity, code, place, found, wanted, text));
    }

    /// Notes reserved bytes that are not zero.
    fn padding(&mut self, place: &str, bytes: &[u8]) {
        if let Some(at) = bytes.iter().position(|byte| *byte != 0) {
            let found = format!("{:#04x} at {at}", bytes[at]);
            self.add(Severity::Info, "padding", place, found, "zero", format!("{place}: a reserved byte is not zero"));
        }
    }

    fn done(self) -> Judged {
        Ok(Look::Findings(self.findings))
    }
}

/// Lets a judgement use `?` on reads inside a pass.
fn read<T>(result: Result<T, ReadError>) -> Result<T, Stop> {
    result.map_err(Stop::Read)
}
