//! `maru-torture`: any participant may die at any step. This program kills them there.
//!
//! | file | does |
//! | --- | --- |
//! | `cli.rs` | the command line |
//! | `child.rs` | child processes that can be talked to, stopped, killed and waited for |
//! | `world.rs` | the small region of a case, its keys and what its blocks must hold |
//! | `stage.rs` | the parent's side of a case: what is known about each block |
//! | `actor.rs` | a process of a case: joins, arms its step, acts, says what it knows |
//! | `scenario.rs` | what is played, by whom, and what must go on afterwards |
//! | `case.rs` | one case from beginning to end |
//! | `check.rs` | the whole region, after a death |
//! | `sweep.rs` | all cases, in parallel, and the report |
//! | `soak.rs` | random operations and random deaths |

mod actor;
mod case;
mod check;
mod child;
mod cli;
mod random;
mod scenario;
mod soak;
mod stage;
mod steps;
mod sweep;
mod world;

use std::process::ExitCode;

use clap::Parser;

use crate::cli::{Cli, Command};

const HOW_TO_BUILD: &str = "\
maru-torture was built without steps, so there is nowhere to stop. Build it alone, in a folder of its own:
    cargo build -p maru-torture --features steps --target-dir target/steps";

fn main() -> ExitCode {
    let cli = Cli::parse();
    if !steps::enabled() {
        eprintln!("{HOW_TO_BUILD}");
        return ExitCode::from(2);
    }
    let clean = match &cli.command {
        Command::Sweep(args) => sweep::run(args, false),
        Command::Format(args) => sweep::run(args, true),
        Command::Soak(args) => soak::run(args),
    };
    match clean {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::from(2)
        }
    }
}
