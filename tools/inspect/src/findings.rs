//! What was found, how bad it is, and the verdict that follows.
//!
//! Severities:
//!
//! * `damage`: bytes that no correct writer leaves behind, whenever it dies. One is enough for the verdict "damaged".
//! * `leftover`: what a death, a stall or a fence left behind and somebody will bring home; the text says who.
//! * `info`: a hint that is off, a reserved byte that is not zero. Costs a look, loses nothing. Counted by code.
//!
//! | code | severity | says |
//! | --- | --- | --- |
//! | `superblock` | damage | the first field of the superblock that cannot be believed |
//! | `superblock_field` | damage | a field in which superblock and copy differ |
//! | `too_short` | damage | the backing is shorter than the region |
//! | `cut` | damage | a table reaches beyond the end of the backing |
//! | `read` | damage | the kernel could not give some bytes |
//! | `format_word` | damage | neither ready with this region's id nor replaced |
//! | `namespace_row`, `namespace_text`, `namespace_twin` | damage | unknown state; text, UTF-8 or digest; two rows of one text |
//! | `session_word` | damage | unknown state |
//! | `lease_mark`, `lease_cell` | damage | beyond the area; a slot that is not there |
//! | `slot_word`, `slot_owner` | damage | unknown state or spare bits; an owner that cannot be |
//! | `slot_length`, `slot_generation`, `slot_record`, `slot_payload` | damage | a ready slot whose record or payload is wrong |
//! | `namespace_budget`, `budget_token` | damage | tokens beyond the section; a block that its namespace's budget does not know |
//! | `duplicate` | damage | two findable ready slots of one object |
//! | `index_entry` | damage | a slot that is not there, or short generation 0 |
//! | `mark_low` | damage | fewer counted than there are: such entries are not found |
//! | `dead_session`, `dead_owner`, `ownerless`, `quarantined`, `unindexed`, `chore`, `namespace_adding`, `formatting` | leftover | see the text |
//! | `replaced`, `grown`, `unreadable` (in lists), `stale_entry`, `misplaced_entry`, `mark_high`, `bitmap`, `padding`, `session_facts`, `lease_sequence`, `pool` | info | see the text |
//! | `flight_torn`, `flight_record` | info | a remembered operation that was never finished, or that no version writes |

use serde::Serialize;

use crate::image::Image;
use crate::source::ReadError;

/// How bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Costs a look, loses nothing.
    Info,
    /// Left behind by a death or a stall; somebody brings it home.
    Leftover,
    /// No correct writer leaves it behind.
    Damage,
}

impl Severity {
    /// The word in tables and JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Info => "info",
            Self::Leftover => "leftover",
            Self::Damage => "damage",
        }
    }
}

/// One thing that was found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// How bad.
    pub severity: Severity,
    /// Which kind; see the table of this module.
    pub code: &'static str,
    /// Place: `slot 17`, `bucket 3 entry 2`, `superblock.align_bytes`.
    #[serde(rename = "where")]
    pub place: String,
    /// What is there.
    pub found: String,
    /// What should be.
    pub wanted: String,
    /// One sentence for people.
    pub text: String,
    /// Places with the same finding; `place` is the first of them.
    pub count: u64,
}

impl Finding {
    /// A finding at one place.
    #[must_use]
    pub fn new(
        severity: Severity,
        code: &'static str,
        place: impl Into<String>,
        found: impl Into<String>,
        wanted: impl Into<String>,
        text: impl Into<String>,
    ) -> Self {
        let (place, found, wanted, text) = (place.into(), found.into(), wanted.into(), text.into());
        Self { severity, code, place, found, wanted, text, count: 1 }
    }

    /// What could not be read of a region.
    #[must_use]
    pub fn of_read_error(error: &ReadError, image: &Image<'_>) -> Self {
        match error {
            ReadError::Cut { offset, need, have } => Self::new(
                Severity::Damage,
                "cut",
                image.section_at(*offset),
                format!("the backing ends at {have}"),
                format!("bytes up to {need}"),
                format!(
                    "the {} reach beyond the end of the backing; what lies before it is shown",
                    image.section_at(*offset)
                ),
            ),
            ReadError::Io { offset, problem } => Self::new(
                Severity::Damage,
                "read",
                image.section_at(*offset),
                problem.clone(),
                "bytes",
                format!("{} cannot be read at {offset}: {problem}", image.section_at(*offset)),
            ),
        }
    }
}

/// What can be said of the region in one word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// Nothing is damaged.
    Sound,
    /// Something is.
    Damaged,
    /// Words kept changing while they looked wrong: look again.
    Busy,
    /// Not a region of a version that this build reads, or no bytes to be had.
    Unreadable,
}

impl Verdict {
    /// The word in tables and JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sound => "sound",
            Self::Damaged => "damaged",
            Self::Busy => "busy",
            Self::Unreadable => "unreadable",
        }
    }

    /// The process's exit code.
    #[must_use]
    pub const fn exit_code(self) -> u8 {
        match self {
            Self::Sound => 0,
            Self::Damaged => 1,
            Self::Unreadable => 2,
            Self::Busy => 3,
        }
    }
}

/// Findings a [`Report`] keeps; the counts go on.
const KEPT: usize = 1000;

/// The outcome of one look at a region.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// In one word.
    pub verdict: Verdict,
    /// Why it could not be read.
    pub reason: Option<String>,
    /// Number of damages.
    pub damage: u64,
    /// Number of leftovers.
    pub leftover: u64,
    /// Number of hints that are off.
    pub info: u64,
    /// Places that kept changing while they looked wrong.
    pub busy: u64,
    /// The first thousand findings; infos once a code.
    pub findings: Vec<Finding>,
    /// JSON lines, where they were asked for.
    pub lines: String,
}

impl Report {
    pub(crate) fn new() -> Self {
        Self {
            verdict: Verdict::Sound,
            reason: None,
            damage: 0,
            leftover: 0,
            info: 0,
            busy: 0,
            findings: Vec::new(),
            lines: String::new(),
        }
    }

    pub(crate) fn unreadable(reason: String) -> Self {
        Self { verdict: Verdict::Unreadable, reason: Some(reason), ..Self::new() }
    }

    /// Counts a finding and keeps it while there is room.
    pub(crate) fn add(&mut self, finding: Finding) {
        match finding.severity {
            Severity::Damage => {
                self.damage += finding.count;
                self.verdict = Verdict::Damaged;
            }
            Severity::Leftover => self.leftover += finding.count,
            Severity::Info => {
                self.info += finding.count;
                let same = |known: &&mut Finding| known.severity == Severity::Info && known.code == finding.code;
                if let Some(known) = self.findings.iter_mut().find(same) {
                    known.count += finding.count;
                    return;
                }
            }
        }
        if self.findings.len() < KEPT || finding.severity == Severity::Info {
            self.findings.push(finding);
        }
    }

    /// Counts a place that kept changing while it looked wrong.
    pub(crate) fn add_busy(&mut self, places: u64) {
        self.busy += places;
        if places > 0 && self.verdict == Verdict::Sound {
            self.verdict = Verdict::Busy;
        }
    }

    /// Findings of all severities.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.damage + self.leftover + self.info
    }
}
