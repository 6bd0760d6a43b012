//! The command line.

use anyhow::{Context, Result, bail};
use clap::{Args, Parser, Subcommand};

use crate::scenario::Set;
use crate::steps::Step;

/// What `--version` says.
fn version() -> &'static str {
    if crate::steps::enabled() {
        concat!(env!("CARGO_PKG_VERSION"), "\nsteps: on")
    } else {
        concat!(env!("CARGO_PKG_VERSION"), "\nsteps: off")
    }
}

const ABOUT: &str = "Kill real processes at every step of every Maru operation, and check what is left";

const LONG_ABOUT: &str = "\
Kills real processes at every numbered step of every Maru operation, and checks what is left.

A case is one operation, one step, and one answer to the question who else is there. A victim process is forked; it
dies by SIGKILL exactly at that step (or is stopped there, fenced, and woken later). Then: whoever wanted what it held
must get it within a second, every committed block must be there byte for byte, nothing may be leaked or counted
wrong, and every slot, session entry and namespace row must be usable again.";

const EXAMPLES: &str = "\
Examples:
  maru-torture sweep
      Every operation × step × set of survivors.
  maru-torture sweep --operation retire --step retire.free --survivors blocked
      Some cases; a violation prints such a line, which plays it again.
  maru-torture sweep --share 1/4 --seed 20250101 --json
      A quarter of all cases, dealt out by the seed; the last line of stdout is one JSON object.
  maru-torture soak --seconds 60 --workers 4
      Random operations under pressure, random deaths, exact accounts.
  maru-torture format
      The formatting operations alone.

Exit status: 0 nothing was wrong; 1 a violation, or a step that nothing hit; 2 usage, or built without steps.";

/// The command line.
#[derive(Debug, Parser)]
#[command(name = "maru-torture", version = version(), about = ABOUT, long_about = LONG_ABOUT, after_help = EXAMPLES)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// End a process at every step of every operation
    Sweep(SweepArgs),
    /// End a formatter at every step
    Format(SweepArgs),
    /// Random operations and random deaths for a while
    Soak(SoakArgs),
}

/// Which cases.
#[derive(Debug, Args)]
pub(crate) struct SweepArgs {
    /// Order of the cases, and which of them make a share
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,

    /// Play the K-th of N shares of the cases
    #[arg(long, value_name = "K/N")]
    share: Option<String>,

    /// Only this operation
    #[arg(long, value_name = "NAME")]
    pub(crate) operation: Option<String>,

    /// Only this step, or only its NTH hit
    #[arg(long, value_name = "NAME[:NTH]")]
    step: Option<String>,

    /// Only these survivors: none, idle, blocked, reading, fenced (the victim is stopped and fenced, not killed)
    #[arg(long, value_name = "SET", value_delimiter = ',')]
    survivors: Vec<String>,

    /// Hits of one step, within one operation, that are each a case
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub(crate) nth_cap: u64,

    /// Processes that play cases
    #[arg(long, value_name = "N", default_value_t = 2)]
    pub(crate) jobs: u32,

    /// A process of a case that is silent for so long counts as hung (at least 6)
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    pub(crate) seconds_per_case: u64,

    /// Begin no more cases after this many seconds
    #[arg(long, value_name = "SECONDS")]
    pub(crate) seconds: Option<u64>,

    /// Name the operations and stop
    #[arg(long)]
    pub(crate) list: bool,

    /// Print one JSON object as the last line of stdout, everything else on stderr
    #[arg(long)]
    pub(crate) json: bool,
}

impl SweepArgs {
    pub(crate) fn step(&self) -> Result<(Option<Step>, Option<u64>)> {
        let Some(text) = &self.step else { return Ok((None, None)) };
        let (name, nth) = match text.split_once(':') {
            None => (text.as_str(), None),
            Some((name, nth)) => (name, Some(nth.parse().with_context(|| format!("--step {text}: the number"))?)),
        };
        match Step::named(name) {
            Some(step) => Ok((Some(step), nth)),
            None => bail!("--step {name}: there is no such step, for example store.ready"),
        }
    }

    pub(crate) fn sets(&self) -> Result<Vec<Set>> {
        if self.survivors.is_empty() {
            return Ok(Set::ALL.to_vec());
        }
        self.survivors
            .iter()
            .map(|name| {
                Set::named(name)
                    .with_context(|| format!("--survivors {name}: wanted none, idle, blocked, reading or fenced"))
            })
            .collect()
    }

    /// Which share, of how many.
    pub(crate) fn share(&self) -> Result<(usize, usize)> {
        let Some(text) = &self.share else { return Ok((1, 1)) };
        let parts = text.split_once('/').map(|(k, n)| (k.parse::<usize>(), n.parse::<usize>()));
        match parts {
            Some((Ok(k), Ok(n))) if k >= 1 && k <= n => Ok((k, n)),
            _ => bail!("--share {text}: wanted K/N with K from 1 to N, for example 1/4"),
        }
    }
}

/// How long, how many.
#[derive(Debug, Args)]
pub(crate) struct SoakArgs {
    /// How long
    #[arg(long, value_name = "N", default_value_t = 30)]
    pub(crate) seconds: u64,

    /// Of the operations and the deaths
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,

    /// Worker processes
    #[arg(long, value_name = "N", default_value_t = 4)]
    pub(crate) workers: u32,

    /// Print one JSON object as the last line of stdout, everything else on stderr
    #[arg(long)]
    pub(crate) json: bool,
}
