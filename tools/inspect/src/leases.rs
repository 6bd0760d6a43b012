//! `leases`: which session protects which life of which slot.
//!
//! A cell does not say when it was taken; a watcher sees movement by the sequence (`--watch`).

use std::io;

use maru_layout::word::{LeaseCell, SessionState, SessionWord, SlotState, short_generation};
use serde::Serialize;

use crate::image::Image;
use crate::life::{Life, Lives};
use crate::out::{Line, Out, Table, Tone, grouped, hex, plain, toned};
use crate::source::ReadError;

/// One lease cell.
#[derive(Serialize)]
pub struct LeaseLine {
    /// Session index.
    pub session: u32,
    /// Its state.
    pub session_state: String,
    /// Whether its holder lives.
    pub liveness: Option<Life>,
    /// Whether a retirer counts the cell: the session is live or fenced.
    pub counts: bool,
    /// Cell index.
    pub cell: u32,
    /// Kind of lease; `none` for a cell that is not zero and names no kind.
    pub lease: &'static str,
    /// Sequence.
    pub sequence: u8,
    /// Slot.
    pub slot: u32,
    /// Generation, short form.
    pub short_generation: u64,
    /// `current`: the slot still has that life; `stale`: it has moved on; `beyond`: there is no such slot.
    #[serde(rename = "match")]
    pub matches: &'static str,
    /// State of the slot.
    pub slot_state: Option<&'static str>,
    /// First bytes of the object's prefix digest, hex.
    pub prefix: Option<String>,
    /// Not recorded by this format.
    pub age_ms: Option<u64>,
}

impl LeaseLine {
    fn of(
        image: &Image<'_>,
        session: (u32, String, Option<Life>, bool),
        cell: u32,
        found: LeaseCell,
    ) -> Result<Self, ReadError> {
        let (session, session_state, liveness, counts) = session;
        let mut line = Self {
            session,
            session_state,
            liveness,
            counts,
            cell,
            lease: found.kind().map_or("none", maru_layout::word::LeaseKind::name),
            sequence: found.sequence(),
            slot: found.slot(),
            short_generation: found.short_generation(),
            matches: "beyond",
            slot_state: None,
            prefix: None,
            age_ms: None,
        };
        if found.slot() < image.geometry().slot_count {
            let record = image.record(found.slot())?;
            let word = maru_layout::word::SlotWord(record.identity.word);
            let current = short_generation(word.generation()) == found.short_generation();
            let held = current && matches!(word.state(), Some(SlotState::Ready | SlotState::Retiring));
            line.matches = if held { "current" } else { "stale" };
            line.slot_state = Some(word.state().map_or("damaged", SlotState::name));
            line.prefix = held.then(|| hex(&record.identity.prefix[..8]));
        }
        Ok(line)
    }

    fn cells(&self) -> Vec<(String, Tone)> {
        let tone = match self.matches {
            "current" => Tone::Good,
            "stale" => Tone::Warn,
            _ => Tone::Bad,
        };
        vec![
            plain(self.session),
            plain(format!("{}, {}", self.session_state, self.liveness.map_or("-", Life::name))),
            plain(self.cell),
            plain(self.lease),
            plain(self.sequence),
            plain(grouped(self.slot)),
            plain(format!("..{}", self.short_generation)),
            toned(tone, self.matches),
            plain(self.slot_state.unwrap_or("-")),
            plain(self.prefix.as_deref().unwrap_or("-")),
        ]
    }
}

/// Shows every cell that is not empty.
///
/// # Errors
/// Outer: the reader of the output has gone. Inner: a table cannot be read.
pub fn show(image: &Image<'_>, out: &mut Out) -> io::Result<Result<(), ReadError>> {
    let lives = Lives::of(image);
    let mut table = Table::new(&[
        ">session",
        "holder",
        ">cell",
        "kind",
        ">seq",
        ">slot",
        ">generation",
        "match",
        "slot is",
        "object",
    ]);
    let (mut shown, mut void) = (0u64, 0u64);
    let end = (|| -> Result<io::Result<()>, ReadError> {
        for session in 0..image.geometry().session_count {
            let entry = image.session(session)?;
            let word = SessionWord(entry.word);
            let counts = matches!(word.state(), Some(SessionState::Live | SessionState::Fenced) | None);
            let state = word.state().map_or_else(|| "damaged".to_owned(), |state| state.name().to_owned());
            let life = lives.holder(session, &entry);
            let mut written = Ok(());
            image.for_each_cell(session, |cell, found| {
                let line = LeaseLine::of(image, (session, state.clone(), life, counts), cell, found)?;
                if counts {
                    shown += 1
                } else {
                    void += 1
                }
                // People see a bounded number of rows; programs see all.
                if counts && shown <= ROWS && !out.is_json() {
                    table.row(line.cells());
                }
                if written.is_ok() {
                    written = out.object(&Line::Lease(line));
                }
                Ok(())
            })?;
            if written.is_err() {
                return Ok(written);
            }
        }
        Ok(Ok(()))
    })();
    out.head("leases")?;
    if table.is_empty() {
        out.line("  none")?;
    } else {
        table.print(out)?;
    }
    if shown > ROWS {
        out.line(format!("  … and {} more (--json lists all)", shown - ROWS))?;
    }
    if void > 0 {
        out.line(format!("  {void} cells of sessions that have ended are void"))?;
    }
    match end {
        Ok(written) => written.map(|()| Ok(())),
        Err(error) => Ok(Err(error)),
    }
}

/// Rows that people see.
const ROWS: u64 = 1000;
