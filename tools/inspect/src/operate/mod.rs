//! `fence` and `recover`: what operators do to sessions that this host's kernel does not bring home by itself.
//!
//! Everything here is a dry run first: the plan comes out of the region's bytes, read as every other verb reads them
//! (`plan.rs`). Only `--yes` joins the region as a session of role tool, acts through the library, leaves, and compares
//! what is there now with the plan (`act.rs`).
//!
//! * O1: without `--yes` nothing is mapped writable, no entry taken, no byte stored.
//! * O2: a plan names sessions with their epochs, so that the command it ends with cannot meet a later holder.
//! * O3: nothing is planned through a damaged superblock, and nothing in a region that is not ready.
//! * O4: what is printed as changed was read back, not assumed.
//! * O5: who is known to run is not recovered on anybody's word. Fence it, or end it first.

mod act;
mod lines;
mod plan;

use std::io;
use std::path::PathBuf;

use maru::HostName;
use maru::os::BackingFile;
use maru::{Backing, VouchError};
use maru_layout::word::{FormatState, FormatWord};

pub use self::lines::{ChangeLine, HostLine, KeyLine, OutcomeLine, PlanLine};

use self::lines::show_outcome;
use self::plan::Plan;
use crate::hint::Place;
use crate::image::{self, Image, Opening};
use crate::out::{Line, Out, hex};
use crate::run::path_of;
use crate::source::{Part, ReadError, Source};
use crate::stat;

/// What the operator asks for, and so vouches for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wish {
    /// Shut a session out, without proof that it is gone.
    Fence {
        /// Index of its entry.
        index: u32,
        /// Its epoch; the present holder's unless said.
        epoch: Option<u32>,
    },
    /// Recover what the kernel of this host proves dead. Nobody vouches.
    Proven,
    /// Recover every session of a host that is gone.
    HostDead(HostName),
    /// Recover one session, whose process is gone.
    SessionDead {
        /// Index of its entry.
        index: u32,
        /// Its epoch.
        epoch: u32,
    },
    /// Free what devices of dead sessions were writing to: they have drained.
    DevicesDrained,
}

impl Wish {
    const fn verb(self) -> &'static str {
        match self {
            Self::Fence { .. } => "fence",
            _ => "recover",
        }
    }
}

/// One command line.
#[derive(Debug)]
pub struct Errand {
    /// Where the region lies.
    pub path: Option<PathBuf>,
    /// Where it starts in there.
    pub offset: u64,
    /// Length of the partition.
    pub length: Option<u64>,
    /// File that life locks are held on.
    pub lock_file: Option<PathBuf>,
    /// What to do.
    pub wish: Wish,
    /// Do it, instead of saying what would change.
    pub yes: bool,
}

impl Errand {
    fn backing(&self) -> Backing {
        self.path.clone().map_or(Backing::Env, Backing::Path)
    }
}

/// How it ended, in one word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// A dry run that would change something.
    Planned,
    /// Done.
    Done,
    /// There is nothing to do.
    NothingToDo,
    /// Done, and the scrub found blocks that did not match; or the region itself is damaged and nothing was done.
    Damaged,
    /// Refused; nothing was changed.
    Cannot,
    /// Somebody was in the way; look again.
    Busy,
}

impl Outcome {
    /// The process's exit code.
    #[must_use]
    pub const fn exit_code(self) -> u8 {
        match self {
            Self::Planned | Self::Done | Self::NothingToDo => 0,
            Self::Damaged => 1,
            Self::Cannot => 2,
            Self::Busy => 3,
        }
    }

    /// For people.
    #[must_use]
    pub const fn words(self) -> &'static str {
        match self {
            Self::Planned => "dry run, nothing was changed",
            Self::Done => "done",
            Self::NothingToDo => "nothing to do",
            Self::Damaged => "damaged",
            Self::Cannot => "cannot",
            Self::Busy => "busy",
        }
    }
}

/// Why nothing was done.
#[derive(Debug)]
pub(crate) struct Refusal {
    outcome: Outcome,
    reason: String,
    hosts: Vec<HostLine>,
}

impl Refusal {
    fn new(outcome: Outcome, reason: impl ToString) -> Self {
        Self { outcome, reason: reason.to_string(), hosts: Vec::new() }
    }

    fn cannot(reason: impl ToString) -> Self {
        Self::new(Outcome::Cannot, reason)
    }

    fn nothing(reason: impl ToString) -> Self {
        Self::new(Outcome::NothingToDo, reason)
    }
}

impl From<ReadError> for Refusal {
    fn from(error: ReadError) -> Self {
        Self::new(Outcome::Damaged, error)
    }
}

impl From<VouchError> for Refusal {
    fn from(error: VouchError) -> Self {
        Self::cannot(error)
    }
}

/// Plans, and acts if that was asked for. Returns the exit code.
///
/// # Errors
/// The reader of the output has gone.
pub fn run(errand: &Errand, json: bool) -> io::Result<u8> {
    let mut out = Out::stdout(json);
    let mut outcome = OutcomeLine::of(errand);
    let refused = match Part::open(&errand.backing(), errand.offset, errand.length) {
        Ok(part) => work(&part, errand, &mut outcome, &mut out)?.err(),
        Err(error) => Some(Refusal::cannot(error)),
    };
    if let Some(refusal) = refused {
        outcome.refuse(refusal);
    }
    show_outcome(&outcome, &mut out)?;
    let code = outcome.exit_code;
    out.object(&Line::Outcome(Box::new(outcome)))?;
    out.flush()?;
    Ok(code)
}

fn work(part: &Part, errand: &Errand, outcome: &mut OutcomeLine, out: &mut Out) -> io::Result<Result<(), Refusal>> {
    let image = match ready_image(part) {
        Ok(image) => image,
        Err(refusal) => return Ok(Err(refusal)),
    };
    outcome.path = path_of(part);
    outcome.region_id = Some(hex(&image.geometry().region_id));
    stat::headline(&image, out)?;
    let locks = match errand.lock_file.as_ref().map(|path| BackingFile::open(&Backing::Path(path.clone()), false)) {
        None => None,
        Some(Ok(locks)) => Some(locks),
        Some(Err(error)) => return Ok(Err(Refusal::cannot(error))),
    };
    let plan = match Plan::of(&image, locks.as_ref().or(part.backing()), errand.wish) {
        Ok(plan) => plan,
        Err(refusal) => return Ok(Err(refusal)),
    };
    outcome.plan(&plan);
    lines::show_plan(&plan, errand, out)?;
    if plan.is_empty() {
        outcome.settle(Outcome::NothingToDo, Some(plan.nothing()));
        return Ok(Ok(()));
    }
    if !errand.yes {
        outcome.settle(Outcome::Planned, None);
        let place = Place::of(part).with_lock_file(errand.lock_file.as_deref());
        outcome.command =
            Some(place.command(errand.wish.verb(), &format!("{} --yes", plan.arguments())).replace("  ", " "));
        return Ok(Ok(()));
    }
    // A watcher of the output sees the plan before anything moves.
    out.flush()?;
    let done = match act::act(errand, &plan) {
        Ok(done) => done,
        Err(refusal) => return Ok(Err(refusal)),
    };
    act::compare(&image, &plan, done, outcome, out)
}

/// The region, if its superblock is sound and its format word says ready.
fn ready_image(source: &dyn Source) -> Result<Box<Image<'_>>, Refusal> {
    let image = match image::open(source, false) {
        Opening::Unreadable { reason, .. } => return Err(Refusal::cannot(reason)),
        Opening::Damaged { reason, .. } => return Err(Refusal::new(Outcome::Damaged, reason)),
        Opening::Region { image, problems, .. } => match problems.first() {
            Some(problem) => return Err(Refusal::new(Outcome::Damaged, &problem.text)),
            None => image,
        },
    };
    let word = FormatWord(image.control()?.format);
    if word == FormatWord::ready(&image.geometry().region_id) {
        return Ok(image);
    }
    Err(match word.state() {
        Some(FormatState::Replaced) => Refusal::cannot("region replaced: its name leads to another one now"),
        Some(FormatState::Blank | FormatState::Formatting) => Refusal::cannot("format incomplete"),
        _ => Refusal::new(Outcome::Damaged, format!("format word is {word:?}, wanted ready with this region's id")),
    })
}
