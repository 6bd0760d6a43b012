//! Arguments.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::{Parser, ValueEnum};

use crate::tell::Tell;
use crate::turn::{self, Plan};
use crate::watch::{Place, Watch};

const ABOUT: &str = "Notices dead sessions of Maru regions on this host at once, and brings their leftovers home. \
                     Without it, whoever is blocked by a dead session does the same.";

const HELP: &str = "\
Examples:
  maru-coordinator --region /dev/shm/kv                 watch one region until told to stop
  maru-coordinator --region /dev/shm/kv --once          recover what is dead now, and leave
  maru-coordinator --region /dev/dax0.0@2097152+1073741824   a partition: PATH@OFFSET+LENGTH, in bytes
  maru-coordinator --status                             what the running one knows

A region that is not there yet is waited for. Sessions may announce themselves at the socket (the library's
`Session::announce`); those that do not are found by their life locks all the same, every --interval-ms.

Who is proven dead is recovered. Who only falls silent is left alone, unless --fence-silent says after how many seconds
without a heartbeat to shut it out; that frees nothing, it hides and refuses.

Exit codes: 0 stopped in order, 2 could not work.";

/// Notices dead sessions at once.
#[derive(Parser, Debug)]
#[command(name = "maru-coordinator", about = ABOUT, after_help = HELP, version)]
struct Cli {
    /// A region: file or device-dax node, optionally @OFFSET+LENGTH (bytes). Several may be given
    #[arg(long = "region", value_name = "PATH[@OFFSET+LENGTH]")]
    regions: Vec<Place>,
    /// Companion file that holds the life locks of a device-dax node which several containers open
    #[arg(long, value_name = "PATH")]
    lock_file: Option<PathBuf>,
    /// Where to listen [default: MARU_COORDINATOR, or maru/coordinator.sock under XDG_RUNTIME_DIR or /run]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Recover what is dead now, report, and leave; no socket
    #[arg(long)]
    once: bool,
    /// Ask the coordinator that runs what it knows, and print its JSON line
    #[arg(long, conflicts_with = "once")]
    status: bool,
    /// How often life locks are asked
    #[arg(long, value_name = "MS", default_value = "20", value_parser = clap::value_parser!(u64).range(1..=10_000))]
    interval_ms: u64,
    /// As the leader, fence sessions without a heartbeat for so long, by this process's clock
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    fence_silent: Option<u64>,
    /// How a peer's process is known
    #[arg(long, value_enum, default_value = "auto")]
    peer: PeerProof,
    /// One JSON object a line on stdout
    #[arg(long)]
    json: bool,
}

/// How the process at the other end of a connection is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum PeerProof {
    /// The kernel's pidfd of the peer (Linux 6.5), else the challenge
    Auto,
    /// A pidfd opened by number, and a challenge answered by that process afterwards
    Challenge,
}

pub(crate) fn run() -> Result<()> {
    let cli = Cli::parse();
    let socket = cli.socket.clone().unwrap_or_else(maru::coordinator_socket);
    if cli.status {
        return status(&socket);
    }
    ensure!(!cli.regions.is_empty(), "no region: say --region PATH (see --help)");
    let tell = Tell::new(cli.json);
    let watches = cli
        .regions
        .into_iter()
        .map(|place| Watch::new(place, cli.lock_file.clone(), cli.fence_silent.map(Duration::from_secs)))
        .collect();
    if cli.once {
        return turn::once(watches, &tell);
    }
    turn::run(Plan { watches, socket, interval: Duration::from_millis(cli.interval_ms), peer: cli.peer }, &tell)
}

fn status(socket: &Path) -> Result<()> {
    let mut stream =
        UnixStream::connect(socket).with_context(|| format!("no coordinator answers at {}", socket.display()))?;
    stream.set_read_timeout(Some(Duration::from_secs(2)))?;
    stream.write_all(b"status\n")?;
    let mut line = String::new();
    std::io::Read::take(BufReader::new(stream), 1 << 20).read_line(&mut line).context("read its answer")?;
    print!("{line}");
    Ok(())
}
