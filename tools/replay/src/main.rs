//! `maru-replay`: prompts in, bytes compared, one picture and one table out.
//!
//! The parent makes a region, starts worker processes and deals requests to them; each worker asks the region for the
//! leading run of a request, copies and checks what is there, and stores what is not. Without `--trace` the requests
//! come from a seeded chat workload and a scheduler process asks along with the workers, through a mapping that holds
//! no payload.
//!
//! | file | does |
//! | --- | --- |
//! | `cli.rs` | flags, help, examples |
//! | `plan.rs` | from flags to numbers: how many blocks, slots, workers |
//! | `trace.rs` | requests from a JSONL file |
//! | `workload.rs` | requests from a seed |
//! | `model.rs` | what an endless cache would answer |
//! | `region.rs` | makes or joins the region |
//! | `payload.rs` | from block id to digest and bytes, and back to wrong bytes |
//! | `queue.rs` | one queue of requests, many processes |
//! | `protocol.rs` | what children are told and what they say |
//! | `worker.rs` | one engine's life |
//! | `scheduler.rs` | one scheduler's life |
//! | `run.rs` | the parent: start, deal, listen, notice deaths |
//! | `tally.rs`, `histogram.rs`, `timeline.rs` | counting |
//! | `progress.rs` | what is shown meanwhile |
//! | `rival.rs` | the same lookup against LMDB |
//! | `report.rs`, `picture.rs` | what is shown in the end |

mod cli;
mod histogram;
mod model;
mod payload;
mod picture;
mod plan;
mod progress;
mod protocol;
mod queue;
mod region;
mod report;
mod rival;
mod run;
mod scheduler;
mod tally;
mod timeline;
mod trace;
mod worker;
mod workload;

use std::io::Write;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Parser;

use crate::cli::Cli;
use crate::plan::Plan;
use crate::protocol::{ChildKind, ChildOrder};

fn main() -> ExitCode {
    let outcome = match ChildOrder::from_command_line() {
        Some(Ok((ChildKind::Worker, order))) => worker::main(&order).map(|()| true),
        Some(Ok((ChildKind::Scheduler, order))) => scheduler::main(&order).map(|()| true),
        Some(Err(error)) => Err(error),
        None => replay(&Cli::parse()),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// The parent's part. `false`: it ran to its end, and what it found is not right.
fn replay(cli: &Cli) -> Result<bool> {
    let plan = Plan::of(cli)?;
    let region = region::for_plan(&plan)?;
    let replayed = run::run(&plan)?;
    let picture = plan.picture.clone();
    std::fs::write(&picture, picture::svg(&plan, &replayed))
        .with_context(|| format!("picture {}", picture.display()))?;
    let rival = if plan.rival { rival::measure(&plan, &region, &replayed.endless.order)? } else { None };
    let text = if cli.json {
        eprintln!("picture: {}", picture.display());
        report::json(&plan, &region, &replayed, rival.as_ref())?
    } else {
        report::table(&plan, &region, &replayed, rival.as_ref())
    };
    // One write: a reader that has gone away is no reason to fail a run that is over.
    let _ = std::io::stdout().write_all(text.as_bytes());
    if let Some(problem) = report::problem(&replayed.tally) {
        eprintln!("error: {problem}");
        return Ok(false);
    }
    Ok(true)
}
