//! `log`: the remembered operations of all sessions, the dead ones too, in one order of time.
//!
//! The times are wall clocks of the machines that wrote them: good for reading, never compared for a decision. Records
//! of one session keep the order of their numbers even where its clock was set back.
//!
//! An entry of the session table is used again and again, and its ring with it. Records from the last `attach` on belong
//! to its last holder, whose epoch and engine the entry still says; older ones belong to holders that nobody remembers.

use std::io;

use maru_layout::table::{FlightRecord, Operation};
use maru_layout::word::{SessionState, SessionWord};
use serde::Serialize;

use crate::findings::{Finding, Report, Severity, Verdict};
use crate::flight::{Flaw, Flight, operation_name, outcome_name};
use crate::image::Image;
use crate::life::{Life, Lives};
use crate::out::{Line, Out, Table, Tone, date, grouped, hex, plain, safe, toned, until_zero};
use crate::run::Printer;
use crate::source::ReadError;

/// Which records.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filter {
    /// Only this entry of the session table.
    pub session: Option<u32>,
    /// Only so many, the latest.
    pub last: Option<usize>,
}

/// One remembered operation.
#[derive(Debug, Clone, Serialize)]
pub struct RecordLine {
    /// Wall clock at its end.
    pub time_ns: u64,
    /// Entry of the session table.
    pub session: u32,
    /// Epoch of the session; null where the entry has been used again since.
    pub epoch: Option<u32>,
    /// Engine name, likewise.
    pub engine: Option<String>,
    /// Whether that session lives; null where nobody knows whose record it is, or where it has closed.
    pub liveness: Option<Life>,
    /// Number of the record in its ring.
    pub sequence: u64,
    /// Operation.
    pub operation: String,
    /// Outcome.
    pub outcome: String,
    /// Slot.
    pub slot: Option<u64>,
    /// Generation of the slot.
    pub generation: Option<u64>,
    /// First 24 bytes of the prefix digest, hex.
    pub prefix: Option<String>,
    /// Whether it is believed.
    pub whole: bool,
    /// Why not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// Who used an entry last.
struct Holder {
    epoch: u32,
    engine: String,
    life: Option<Life>,
    /// Number of the first record that is its own.
    from: u64,
}

impl RecordLine {
    fn of(session: u32, record: &FlightRecord, holder: &Holder) -> Self {
        let own = record.sequence >= holder.from;
        let slot = record.slot.checked_sub(1);
        Self {
            time_ns: record.time_ns,
            session,
            epoch: own.then_some(holder.epoch),
            engine: own.then(|| holder.engine.clone()),
            liveness: holder.life.filter(|_| own),
            sequence: record.sequence,
            operation: operation_name(record.operation),
            outcome: outcome_name(record.outcome),
            slot,
            generation: slot.map(|_| record.generation),
            prefix: (record.prefix != [0; 24]).then(|| hex(&record.prefix)),
            whole: true,
            problem: None,
        }
    }

    fn cells(&self) -> Vec<(String, Tone)> {
        let session = match self.epoch {
            Some(epoch) => format!("{}:{epoch}", self.session),
            None => format!("{}:?", self.session),
        };
        let engine = match (&self.engine, self.liveness) {
            (None, _) => toned(Tone::Dim, "(earlier holder)"),
            (Some(engine), Some(Life::Dead)) => toned(Tone::Bad, format!("{} (dead)", safe(engine.as_bytes()))),
            (Some(engine), _) => plain(safe(engine.as_bytes())),
        };
        let outcome = match self.outcome.as_str() {
            _ if !self.whole => toned(Tone::Bad, "not believed"),
            "done" => toned(Tone::Good, "done"),
            "damaged" | "fenced" | "superseded" => toned(Tone::Bad, &self.outcome),
            other => toned(Tone::Warn, other),
        };
        vec![
            plain(moment(self.time_ns)),
            plain(session),
            engine,
            plain(&self.operation),
            outcome,
            plain(self.slot.map_or("-".to_owned(), grouped)),
            plain(self.generation.map_or("-".to_owned(), |generation| generation.to_string())),
            plain(self.prefix.as_deref().map_or("-", |prefix| &prefix[..16])),
        ]
    }
}

/// A wall clock to the microsecond.
pub(crate) fn moment(ns: u64) -> String {
    let day = date(ns);
    let seconds = day.trim_end_matches('Z');
    if ns == 0 { day } else { format!("{seconds}.{:06}Z", ns / 1000 % 1_000_000) }
}

/// Shows what sessions remember.
///
/// # Errors
/// Outer: the reader of the output has gone. Inner: a table cannot be read.
pub fn show(
    image: &Image<'_>,
    filter: &Filter,
    printer: &mut Printer,
    report: &mut Report,
    out: &mut Out,
) -> io::Result<Result<(), ReadError>> {
    let count = image.geometry().session_count;
    let sessions = match filter.session {
        Some(session) if session >= count => {
            report.verdict = Verdict::Unreadable;
            report.reason = Some(format!("session {session}: this region has entries 0 to {}", count - 1));
            return Ok(Ok(()));
        }
        Some(session) => session..session + 1,
        None => 0..count,
    };
    let lives = Lives::of(image);
    let (mut lines, mut moving) = (Vec::new(), 0);
    let mut end = Ok(());
    for session in sessions {
        match gather(image, session, &lives, &mut lines) {
            Ok((findings, busy)) => {
                moving += busy;
                for finding in findings {
                    printer.add(finding, report, out)?;
                }
            }
            Err(error) => {
                end = Err(error);
                break;
            }
        }
    }
    // Stable: records of one session come in the order of their numbers.
    lines.sort_by_key(|(order, _)| *order);
    let left_out = filter.last.map_or(0, |last| lines.len().saturating_sub(last));
    let lines: Vec<RecordLine> = lines.drain(left_out..).map(|(_, line)| line).collect();
    out.head("operations, the oldest first")?;
    if lines.is_empty() {
        out.line("  nothing is remembered")?;
    } else if !out.is_json() {
        lanes(&lines, out)?;
        let mut table =
            Table::new(&["time", "session", "engine", "operation", "outcome", ">slot", ">generation", "key"]);
        lines.iter().for_each(|line| table.row(line.cells()));
        table.print(out)?;
    }
    for line in lines {
        out.object(&Line::Record(Box::new(line)))?;
    }
    if left_out > 0 {
        out.line(format!("  {left_out} earlier ones are left out (--last)"))?;
    }
    if moving > 0 {
        out.line(format!("  {moving} were being written over while they were read: their sessions are busy"))?;
    }
    Ok(end)
}

type Timed = (u64, RecordLine);

/// All records that are believed, the oldest first.
pub(crate) fn remembered(image: &Image<'_>) -> Result<Vec<RecordLine>, ReadError> {
    let (lives, mut lines) = (Lives::of(image), Vec::new());
    for session in 0..image.geometry().session_count {
        gather(image, session, &lives, &mut lines)?;
    }
    lines.sort_by_key(|(order, _)| *order);
    Ok(lines.into_iter().map(|(_, line)| line).filter(|line| line.whole).collect())
}

/// The records of one entry, each with the time that it is sorted by.
fn gather(
    image: &Image<'_>,
    session: u32,
    lives: &Lives,
    lines: &mut Vec<Timed>,
) -> Result<(Vec<Finding>, u64), ReadError> {
    let flight = Flight::of(image, session)?;
    let entry = image.session(session)?;
    let word = SessionWord(entry.word);
    let last_attach = flight.last_attach();
    let newest = flight.records.last().map_or(0, |record| record.time_ns);
    // An entry that is changing hands says nothing of whom the records are; nor does one whose holder has not yet
    // written a record of its own.
    let filled = !matches!(word.state(), Some(SessionState::Attaching));
    let written = last_attach.map_or(newest, |record| record.time_ns) >= entry.attached_ns;
    let from = if filled && written { last_attach.map_or(0, |record| record.sequence) } else { u64::MAX };
    let holder = Holder {
        epoch: word.epoch(),
        engine: String::from_utf8_lossy(until_zero(&entry.engine)).into_owned(),
        life: lives.holder(session, &entry),
        from,
    };
    let mut latest = 0;
    for record in &flight.records {
        latest = record.time_ns.max(latest);
        lines.push((latest, RecordLine::of(session, record, &holder)));
    }
    let mut findings = Vec::new();
    for (row, flaw) in &flight.flaws {
        let place = format!("session {session} record {}", row.row);
        let (code, found, wanted) = match flaw {
            Flaw::Torn { found, wanted } => ("flight_torn", found.to_string(), wanted.to_string()),
            Flaw::Impossible { found, wanted, .. } => ("flight_record", found.to_string(), wanted.clone()),
        };
        let text = format!("{place}: {flaw}");
        findings.push(Finding::new(Severity::Info, code, place, found, wanted, text));
        let mut line = RecordLine::of(session, &row.record, &Holder { from: u64::MAX, ..holder_of_none() });
        line.whole = false;
        line.problem = Some(flaw.to_string());
        lines.push((row.record.time_ns, line));
    }
    Ok((findings, flight.moving))
}

fn holder_of_none() -> Holder {
    Holder { epoch: 0, engine: String::new(), life: None, from: u64::MAX }
}

/// Columns of the picture.
const COLUMNS: usize = 64;
/// Sessions in the picture.
const LANES: usize = 16;

/// One lane a session, time from left to right; a letter where an operation ended.
fn lanes(lines: &[RecordLine], out: &mut Out) -> io::Result<()> {
    let whole: Vec<&RecordLine> = lines.iter().filter(|line| line.whole).collect();
    let (Some(first), Some(last)) =
        (whole.iter().map(|line| line.time_ns).min(), whole.iter().map(|line| line.time_ns).max())
    else {
        return Ok(());
    };
    let mut sessions: Vec<u32> = whole.iter().map(|line| line.session).collect();
    sessions.sort_unstable();
    sessions.dedup();
    let span = (last - first).max(1);
    for session in sessions.iter().take(LANES) {
        let mut lane = vec!['·'; COLUMNS];
        for line in whole.iter().filter(|line| line.session == *session) {
            let at = u128::from(line.time_ns - first) * (COLUMNS as u128 - 1) / u128::from(span);
            lane[at as usize] = letter(&line.operation, &line.outcome);
        }
        out.line(format!("  {session:>4}  {}", lane.into_iter().collect::<String>()))?;
    }
    let (left, right) = (moment(first), moment(last));
    out.line(format!("        {left}{}{right}", " ".repeat(COLUMNS.saturating_sub(left.len() + right.len()))))?;
    out.line(
        "        + attach  - close  r reserve  c commit  b abort  a acquire  l load  t retire  R reclaim  n namespace  \
         f fence  ! went wrong",
    )?;
    out.line("")
}

fn letter(operation: &str, outcome: &str) -> char {
    if matches!(outcome, "damaged" | "fenced" | "superseded" | "expired" | "refused") {
        return '!';
    }
    let all = [
        (Operation::Attach, '+'),
        (Operation::Close, '-'),
        (Operation::Reserve, 'r'),
        (Operation::Write, 'w'),
        (Operation::Commit, 'c'),
        (Operation::Abort, 'b'),
        (Operation::Acquire, 'a'),
        (Operation::Load, 'l'),
        (Operation::Retire, 't'),
        (Operation::Reclaim, 'R'),
        (Operation::Register, 'n'),
        (Operation::Invalidate, 'n'),
        (Operation::Fence, 'f'),
    ];
    all.iter().find(|(known, _)| known.name() == operation).map_or('?', |(_, letter)| *letter)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_have_microseconds() {
        assert_eq!(moment(951_782_400_123_456_789), "2000-02-29 00:00:00.123456Z");
        assert_eq!(moment(0), "-");
        assert!(moment(u64::MAX).ends_with(".709551Z"));
    }

    #[test]
    fn every_operation_has_a_letter() {
        assert!(Operation::ALL.iter().all(|operation| letter(operation.name(), "done") != '?'));
        assert_eq!(letter("commit", "superseded"), '!');
    }
}
