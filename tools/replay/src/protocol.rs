//! What the parent tells its children and what they tell it.
//!
//! A child is this program once more, with its part as the first argument, its order (JSON) as the second, the region's
//! path as the third, and the queue as standard input. It answers on standard output with one JSON object a line.

use std::ffi::OsString;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};
use maru::Namespace;
use serde::{Deserialize, Serialize};

use crate::histogram::Histogram;
use crate::tally::Tally;

/// A child's part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ChildKind {
    /// Loads and stores.
    Worker,
    /// Only asks.
    Scheduler,
    /// Is killed in the middle of a store.
    Victim,
    /// Wants the block that the victim was storing.
    Survivor,
}

impl ChildKind {
    const ALL: [Self; 4] = [Self::Worker, Self::Scheduler, Self::Victim, Self::Survivor];

    /// The first argument.
    pub(crate) fn argument(self) -> &'static str {
        match self {
            Self::Worker => "__worker",
            Self::Scheduler => "__scheduler",
            Self::Victim => "__victim",
            Self::Survivor => "__survivor",
        }
    }
}

/// What makes the blocks of two runs interchangeable.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Kind {
    /// Where the requests come from: "trace" or "chat".
    pub(crate) source: String,
    /// Tokens of a block.
    pub(crate) block_tokens: u32,
    /// Bytes of a block.
    pub(crate) block_bytes: u64,
}

impl Kind {
    /// The namespace under which the blocks are stored.
    pub(crate) fn namespace(&self) -> Namespace {
        Namespace::new()
            .tenant("maru-replay")
            .model(&self.source)
            .revision("1")
            .adapter("none")
            .dtype("uint8")
            .quantization("none")
            .geometry(format!("block_bytes={}", self.block_bytes))
            .storage_format("maru-replay-1")
            .block_tokens(self.block_tokens)
            .parallel("tp=1,pp=1")
            .hash_algorithm("sha256")
            .hash_seed("0")
    }
}

/// A child's order.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct ChildOrder {
    /// Name under which to join.
    pub(crate) engine: String,
    /// What the blocks are.
    pub(crate) kind: Kind,
    /// Whether it says how far it is after each request, because it may be its last.
    pub(crate) says_all: bool,
    /// The block that the story is about.
    pub(crate) block: Option<u64>,
    /// The region; travels beside the JSON, since a path need not be text.
    #[serde(skip)]
    pub(crate) region: PathBuf,
}

impl ChildOrder {
    /// This process's order, if it was started as a child.
    pub(crate) fn from_command_line() -> Option<Result<(ChildKind, Self)>> {
        let mut arguments = std::env::args_os().skip(1);
        let part = arguments.next()?;
        let kind = ChildKind::ALL.into_iter().find(|kind| part == kind.argument())?;
        Some(Self::parse(arguments.next(), arguments.next()).map(|order| (kind, order)))
    }

    fn parse(order: Option<OsString>, region: Option<OsString>) -> Result<Self> {
        let order = order.context("a child without an order")?;
        let order: Self = serde_json::from_slice(order.as_encoded_bytes()).context("a child's order")?;
        Ok(Self { region: region.context("a child without a region")?.into(), ..order })
    }
}

/// What a child says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub(crate) enum Message {
    /// It has joined the region and waits for requests.
    Ready {
        /// Index of its session.
        session: u32,
        /// Epoch of its session.
        epoch: u32,
    },
    /// It has got this far.
    Progress(Tally),
    /// It has done all it was given, and has left the region.
    Done {
        /// What it counted.
        tally: Tally,
        /// How long each look-up of a whole request took.
        lookups: Histogram,
    },
}

impl Message {
    /// Says it. An error means that the parent is gone.
    pub(crate) fn say(&self) -> Result<()> {
        say(self)
    }
}

/// Says one line to the parent, in one piece.
pub(crate) fn say(message: &impl Serialize) -> Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    let mut stdout = io::stdout().lock();
    stdout.write_all(&line).and_then(|()| stdout.flush()).context("the parent has gone away")
}

/// This program as a child with that part and that order, ready to be given its ends and started.
pub(crate) fn command(kind: ChildKind, order: &ChildOrder) -> Result<Command> {
    let mut command = Command::new(std::env::current_exe().context("this program's own path")?);
    command.arg(kind.argument()).arg(serde_json::to_string(order)?).arg(&order.region);
    Ok(command)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_survive_the_wire() {
        let mut lookups = Histogram::default();
        lookups.record(1000);
        let tally = Tally { requests: 3, ..Tally::default() };
        for message in [
            Message::Ready { session: 7, epoch: 2 },
            Message::Progress(tally.clone()),
            Message::Done { tally, lookups },
        ] {
            let text = serde_json::to_string(&message).expect("plain data");
            assert!(!text.contains('\n'));
            assert_eq!(serde_json::from_str::<Message>(&text).expect("what was written"), message);
        }
    }

    #[test]
    fn kinds_of_blocks_have_their_own_namespaces() {
        let kind = Kind { source: "chat".to_owned(), block_tokens: 256, block_bytes: 4096 };
        let text = |kind: &Kind| kind.namespace().text().expect("complete");
        assert_ne!(text(&kind), text(&Kind { block_bytes: 8192, ..kind.clone() }));
        assert_ne!(text(&kind), text(&Kind { source: "trace".to_owned(), ..kind.clone() }));
    }
}
