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
//! | `kill.rs` | which worker dies, and when |
//! | `queue.rs` | one queue of requests, many processes |
//! | `protocol.rs` | what children are told and what they say |
//! | `worker.rs` | one engine's life |
//! | `scheduler.rs` | one scheduler's life |
//! | `run.rs` | the parent: start, deal, listen, notice deaths |
//! | `tally.rs`, `histogram.rs`, `timeline.rs` | counting |
//! | `watch.rs` | accounts, all the time |
//! | `audit.rs` | accounts, at the end |
//! | `look.rs` | as `maru-inspect` looks |
//! | `story/` | a kill in mid-store and a flipped byte, to watch |
//! | `progress.rs` | what is shown meanwhile |
//! | `rival.rs` | the same lookup against LMDB |
//! | `report.rs`, `picture.rs` | what is shown in the end |

mod audit;
mod cli;
mod histogram;
mod kill;
mod look;
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
mod story;
mod tally;
mod timeline;
mod trace;
mod watch;
mod worker;
mod workload;

use std::io::Write;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Parser;

use crate::cli::Cli;
use crate::plan::Plan;
use crate::protocol::{ChildKind, ChildOrder};
use crate::report::Outcome;
use crate::watch::Watch;

fn main() -> ExitCode {
    let outcome = match ChildOrder::from_command_line() {
        Some(Ok((ChildKind::Worker, order))) => worker::main(&order).map(|()| true),
        Some(Ok((ChildKind::Scheduler, order))) => scheduler::main(&order).map(|()| true),
        Some(Ok((ChildKind::Victim, order))) => story::child::victim(&order).map(|()| true),
        Some(Ok((ChildKind::Survivor, order))) => story::child::survivor(&order).map(|()| true),
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
    let limit = watch::limit(&plan, &region)?;
    let watched = plan.kill_every.is_some() || limit.is_some();
    let watch = watched.then(|| Watch::start(&plan.region, &region, limit));
    let replayed = run::run(&plan);
    let watched = watch.map(Watch::stop).transpose()?;
    let replayed = replayed?;
    let audit = watched.is_some().then(|| audit::audit(&plan, &region, limit, &replayed)).transpose()?;
    let picture = plan.picture.clone();
    std::fs::write(&picture, picture::svg(&plan, &replayed))
        .with_context(|| format!("picture {}", picture.display()))?;
    let rival = if plan.rival { rival::measure(&plan, &region, &replayed.endless.order)? } else { None };
    let outcome = Outcome { plan: &plan, region: &region, replayed: &replayed, rival, watched, audit };
    if cli.json {
        eprintln!("picture: {}", picture.display());
        let story = plan.story.then(|| story::tell(&plan, &region, &mut |line| eprintln!("{line}"))).transpose()?;
        print(&report::json(&outcome, story)?);
    } else {
        print(&report::table(&outcome));
        if plan.story {
            story::tell(&plan, &region, &mut |line| print(&format!("{line}\n")))?;
        }
        print(&report::next(&plan, &region));
    }
    if let Some(problem) = outcome.problem() {
        eprintln!("error: {problem}");
        return Ok(false);
    }
    Ok(true)
}

/// To standard output. A reader that has gone away is no reason to fail a run that is over.
fn print(text: &str) {
    let mut stdout = std::io::stdout().lock();
    let _ = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush());
}
