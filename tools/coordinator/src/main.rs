//! `maru-coordinator`: one small program per host.
//!
//! Stores and loads need no coordinator: whoever is blocked by a dead session recovers it. What a coordinator adds is
//! that nobody has to be blocked first. It asks the life locks of the sessions many times a second, hears of the deaths
//! of announced processes from their pidfds, and recovers what is proven dead.
//!
//! It has no state of its own: everything that it knows is in the regions, or is asked of the kernel again. Kill it,
//! start it, nothing changes.
//!
//! | file | does |
//! | --- | --- |
//! | `cli.rs` | arguments |
//! | `watch.rs` | one region: who died, who leads, who has fallen silent |
//! | `peer.rs` | which process is at the other end of a connection, and whether it is the one a session entry names |
//! | `hall.rs` | the socket: connections, their lines, their pidfds |
//! | `turn.rs` | the loop, signals, notices to the service manager |
//! | `tell.rs` | what is said about it all: text on stderr, or JSON on stdout |

mod cli;
mod hall;
mod peer;
mod tell;
mod turn;
mod watch;

use std::process::ExitCode;

fn main() -> ExitCode {
    match cli::run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("maru-coordinator: {error:#}");
            ExitCode::from(2)
        }
    }
}
