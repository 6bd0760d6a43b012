//! `why`: why a block is a hit or a miss, from what the region remembers.
//!
//! What it remembers is bounded: a slot's record says what the slot holds, or held in its last life; a table has one word
//! for two slots about blocks that went; each session remembers its last 16 operations. So "never stored" is always "or forgotten since", and says so.
//!
//! | file | holds |
//! | --- | --- |
//! | [`sight`] | what is found of the keys asked for, in one pass |
//! | [`cause`] | what follows from it |
//! | `gone` | of objects that were there |
//! | `farewell` | what the farewell table tells of them |
//! | `memory` | what flight records tell |
//! | [`spaces`] | whose a namespace digest is, and in which fields two namespaces differ |
//! | [`strip`] | a whole prefix, as a picture |

pub mod cause;
mod farewell;
mod gone;
mod memory;
pub mod sight;
pub mod spaces;
pub mod strip;

use std::io;

use serde::Serialize;

use crate::dump::HexPrefix;
use crate::findings::{Report, Verdict};
use crate::image::Image;
use crate::log::RecordLine;
use crate::out::{Line, Out, Tone, safe};
use crate::source::ReadError;

use cause::Judge;
use spaces::Difference;

/// What is asked.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Question {
    /// Prefix digests, or the first digits of one.
    pub keys: Vec<HexPrefix>,
    /// Namespace: row of the table. Without it, any current one.
    pub row: Option<u32>,
    /// Only this shard.
    pub shard: Option<u16>,
    /// Only this part.
    pub part: Option<u16>,
    /// The keys are the blocks of one prefix, in order: draw them.
    pub strip: bool,
}

/// Someone who is named in an answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Who {
    /// Entry of the session table.
    pub session: u32,
    /// Epoch.
    pub epoch: u32,
    /// Engine; null where the entry has another holder by now.
    pub engine: Option<String>,
    /// What is known of the holder: `alive`, `dead`, `unknown`, `closed`, `replaced`.
    pub holder: &'static str,
}

impl Who {
    fn words(&self) -> String {
        let engine = self.engine.as_deref().map_or(String::new(), |engine| format!(" {}", safe(engine.as_bytes())));
        format!("session {}:{}{engine} ({})", self.session, self.epoch, self.holder)
    }
}

/// A lease on the block.
#[derive(Debug, Clone, Serialize)]
pub struct Held {
    /// Entry of the session table.
    pub session: u32,
    /// Kind.
    pub lease: &'static str,
}

/// Something else that was found of the key.
#[derive(Debug, Clone, Serialize)]
pub struct Also {
    /// Slot.
    pub slot: u32,
    /// State of the slot.
    pub state: &'static str,
    /// In one sentence.
    pub text: String,
}

/// The answer for one object.
#[derive(Debug, Clone, Serialize)]
pub struct WhyLine {
    /// Prefix digest; the digits asked for where nothing is known of more.
    pub key: String,
    /// Shard; null where nothing is found.
    pub shard: Option<u16>,
    /// Part, likewise.
    pub part: Option<u16>,
    /// Whether a load would find it.
    pub hit: bool,
    /// The cause; see [`cause::CODES`].
    pub code: &'static str,
    /// Why a slot is quarantined; see [`cause::QUARANTINES`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<&'static str>,
    /// In one sentence.
    pub text: String,
    /// Slot that the answer rests on.
    pub slot: Option<u32>,
    /// Generation of the slot.
    pub generation: Option<u64>,
    /// Row of the namespace that it is, or was, stored under.
    pub namespace_row: Option<u32>,
    /// Generation of that namespace.
    pub namespace_generation: Option<u64>,
    /// Generation that the namespace has now.
    pub current_generation: Option<u64>,
    /// Who stored it, is writing it, shut it out, or took it away.
    pub who: Option<Who>,
    /// Wall clock of the commit.
    pub committed_ns: Option<u64>,
    /// Payload bytes.
    pub length: Option<u32>,
    /// Leases on it.
    pub leases: Vec<Held>,
    /// For how long the word of a slot that is being written has not moved, by this tool's clock.
    pub unmoved_ms: Option<u64>,
    /// `farewell` where the answer rests on the farewell table: then it is probable, and no more.
    pub remembered: Option<&'static str>,
    /// Cause that the farewell names: `evicted`, `displaced`, `retired`, `invalidated`, `recovered`, `drained`,
    /// `unfinished` (FORMAT.md, section 7.4).
    pub gone_cause: Option<&'static str>,
    /// Wall clock of the farewell, to the second; null where the word names none that can be.
    pub gone_ns: Option<u64>,
    /// Probability, at most, that the farewell is another key's.
    pub doubt: Option<f64>,
    /// Fields in which the namespace asked for and the one that has the key differ.
    pub differs: Vec<Difference>,
    /// What else was found of the key.
    pub also: Vec<Also>,
    /// Remembered operations that name the key.
    pub events: Vec<RecordLine>,
}

/// Answers.
///
/// # Errors
/// Outer: the reader of the output has gone. Inner: a table cannot be read.
pub fn show(
    image: &Image<'_>,
    question: &Question,
    report: &mut Report,
    out: &mut Out,
) -> io::Result<Result<(), ReadError>> {
    let rows = image.geometry().namespace_count;
    if let Some(row) = question.row.filter(|row| *row >= rows) {
        report.verdict = Verdict::Unreadable;
        report.reason = Some(format!("namespace row {row}: this region has rows 0 to {}", rows - 1));
        return Ok(Ok(()));
    }
    let sights = match sight::gather(image, question) {
        Ok(sights) => sights,
        Err(error) => return Ok(Err(error)),
    };
    let mut judge = match Judge::new(image, question, &sights.shapes) {
        Ok(judge) => judge,
        Err(error) => return Ok(Err(error)),
    };
    if question.row.is_some() && !judge.row_is_ready() {
        report.verdict = Verdict::Unreadable;
        let row = question.row.unwrap_or_default();
        report.reason = Some(format!("namespace row {row} is not registered; `maru-inspect namespaces` lists them"));
        return Ok(Ok(()));
    }
    if question.strip {
        return strip::show(&mut judge, &sights, out);
    }
    out.head("why")?;
    for found in &sights.found {
        match judge.answer(found, true) {
            Ok(line) => {
                print(&line, out)?;
                out.object(&Line::Why(Box::new(line)))?;
            }
            Err(error) => return Ok(Err(error)),
        }
    }
    if sights.left_out > 0 {
        out.line(format!("  … and {} more objects; give more digits of the key", sights.left_out))?;
    }
    Ok(sights.end.clone().map_or(Ok(()), Err))
}

fn print(line: &WhyLine, out: &mut Out) -> io::Result<()> {
    if out.is_json() {
        return Ok(());
    }
    let object = match (line.shard, line.part) {
        (Some(shard), Some(part)) if (shard, part) != (0, 0) => format!(" shard {shard} part {part}"),
        _ => String::new(),
    };
    let (tone, word) = if line.hit { (Tone::Good, "hit") } else { (Tone::Bad, "miss") };
    let word = out.paint(tone, word);
    let code = match line.reason {
        Some(reason) => format!("{} ({reason})", line.code),
        None => line.code.to_owned(),
    };
    out.line(format!("  {}{object}", line.key))?;
    out.line(format!("  {word}: {code}"))?;
    out.line(format!("    {}", line.text))?;
    if let Some(who) = &line.who {
        out.line(format!("    by {}", who.words()))?;
    }
    for held in &line.leases {
        out.line(format!("    leased: {} lease of session {}", held.lease, held.session))?;
    }
    for difference in &line.differs {
        let asked = difference.asked.as_deref().unwrap_or("(no such field)");
        let there = difference.there.as_deref().unwrap_or("(no such field)");
        let (asked, there) = (safe(asked.as_bytes()), safe(there.as_bytes()));
        out.line(format!("    {:<16} asked for: {asked:<28} there: {there}", safe(difference.field.as_bytes())))?;
    }
    for also in &line.also {
        out.line(format!("    also: {}", also.text))?;
    }
    for event in line.events.iter().rev().take(8) {
        let text = format!("    {}", memory::event_words(event));
        let text = out.paint(Tone::Dim, &text);
        out.line(text)?;
    }
    out.line("")
}
