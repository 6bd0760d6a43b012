//! Arguments, help and exit codes.

mod help;
mod seeing;

use std::io::{self, ErrorKind};
use std::path::PathBuf;
use std::process::ExitCode;
use std::thread::sleep;
use std::time::Duration;

use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use maru::{Backing, HostName};

use crate::dump::{Filter, HexPrefix, StateWish};
use crate::findings::{Report, Verdict};
use crate::operate::{self, Wish};
use crate::out::{Line, Out};
use crate::run::{Request, Verb, inspect, unread_summary, verdict_line};
use crate::source::Part;
use crate::{list, log, metrics, watch};

use help::{FENCE_HELP, LOG_HELP, RECOVER_HELP, SESSIONS_HELP};

const ABOUT: &str = "Looks into Maru regions without joining them: live, dead, foreign, cut or damaged ones; in files, \
                     device-dax nodes and copies. Looking reads only, holds no lock, takes no entry. The two verbs that \
                     act, fence and recover, look too unless --yes is given.";

const HELP: &str = "\
Examples:
  maru-inspect                                 all regions of this host, one line each
  maru-inspect stat /dev/shm/kv                what it is and how full
  maru-inspect sessions /dev/shm/kv --watch 1s who is attached, alive or dead, refreshed
  maru-inspect leases /dev/shm/kv              who protects what
  maru-inspect log /dev/shm/kv --last 20       what everybody did last, the dead included
  maru-inspect namespaces /dev/shm/kv          what is stored under which name
  maru-inspect dump /dev/shm/kv --state ready --key 3fa2
  maru-inspect watch /dev/shm/kv               a screen: how full, hits, evictions, who is there
  maru-inspect map /dev/shm/kv --by age        every slot in one picture
  maru-inspect why /dev/shm/kv 3fa2            why that block is a miss, or a hit
  maru-inspect metrics /dev/shm/kv             numbers for Prometheus; --listen 127.0.0.1:9190
  maru-inspect verify /dev/shm/kv              invariants; safe beside live writers
  maru-inspect verify kv.copy --payload        also every payload checksum
  maru-inspect stat /dev/dax0.0 --offset 2GiB  a partition of a device
  maru-inspect verify /dev/shm/kv --json | jq 'select(.kind == \"finding\")'
  maru-inspect recover /dev/shm/kv             what this host's dead left behind; --yes brings it home
  maru-inspect fence /dev/shm/kv --session 3   what shutting session 3 out would change; --yes does it

Without PATH the verbs look at the device that CXL_DAX_DEVICE names.
The bare command lists /dev/shm and the colon-separated folders in MARU_REGIONS.

Exit codes: 0 sound, 1 damaged, 2 cannot be read, 3 busy (inconclusive: look again).
Of fence and recover: 0 done or nothing to do, 1 damaged, 2 cannot, 3 busy.
JSON: one object a line with `kind` region, usage, slot, session, lease, namespace, record, finding, map, legend, why,
strip, sample, metric; of fence and recover plan and change; the last line is `summary`.";

/// Looks into Maru regions.
#[derive(Parser, Debug)]
#[command(name = "maru-inspect", about = ABOUT, after_help = HELP)]
struct Cli {
    /// JSON, one object a line
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    verb: Option<Command>,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Every slot: word, identity, body
    Dump {
        #[command(flatten)]
        target: Target,
        /// Only slots in this state (free, claiming, pending, writing, ready, retiring, quarantined, damaged)
        #[arg(long, value_parser = parse_state)]
        state: Option<StateWish>,
        /// Only this slot
        #[arg(long)]
        slot: Option<u32>,
        /// Only objects whose prefix digest starts with these hex digits
        #[arg(long, value_name = "HEX", value_parser = parse_key)]
        key: Option<HexPrefix>,
    },
    /// Identity, geometry, layout and usage
    Stat {
        #[command(flatten)]
        target: Target,
        #[command(flatten)]
        watch: Watch,
    },
    /// All invariants, recounted from the slot words; beside live writers
    Verify {
        #[command(flatten)]
        target: Target,
        /// Also check the payload of every ready slot against its checksum
        #[arg(long)]
        payload: bool,
        /// Print every finding, not only the first ten of each code
        #[arg(long)]
        all: bool,
    },
    /// Who is attached, whether they live, what they hold and do
    #[command(after_help = SESSIONS_HELP)]
    Sessions {
        #[command(flatten)]
        target: Target,
        #[command(flatten)]
        watch: Watch,
    },
    /// Which session protects which object
    Leases {
        #[command(flatten)]
        target: Target,
        #[command(flatten)]
        watch: Watch,
    },
    /// Registered namespaces and what is stored in each
    Namespaces {
        #[command(flatten)]
        target: Target,
    },
    /// The last operations of every session, the dead included, by time
    #[command(after_help = LOG_HELP)]
    Log {
        #[command(flatten)]
        target: Target,
        /// Only the entry with this index
        #[arg(long, value_name = "N")]
        session: Option<u32>,
        /// Only the last so many
        #[arg(long, value_name = "N")]
        last: Option<usize>,
        #[command(flatten)]
        watch: Watch,
    },
    #[command(flatten)]
    Seeing(seeing::Command),
    /// Shut a session out without proof that it is gone (dry run without --yes)
    #[command(after_help = FENCE_HELP)]
    Fence {
        #[command(flatten)]
        place: Place,
        #[command(flatten)]
        whom: Fenced,
        #[command(flatten)]
        act: Act,
    },
    /// Bring home what the dead left behind (dry run without --yes)
    #[command(after_help = RECOVER_HELP)]
    Recover {
        #[command(flatten)]
        place: Place,
        #[command(flatten)]
        whom: Recovered,
        #[command(flatten)]
        act: Act,
    },
}

/// Whom to fence: exactly one.
#[derive(Args, Debug, Clone)]
#[group(required = true, multiple = false)]
struct Fenced {
    /// This session, without proof; with the epoch it cannot be a later one
    #[arg(long, value_name = "N[:EPOCH]", value_parser = parse_session)]
    session: Option<(u32, Option<u32>)>,
    /// Every session of this host, which you vouch is gone (boot id, host id or tag:HEX)
    #[arg(long, value_name = "HOST")]
    host_dead: Option<HostName>,
}

/// What to vouch for: at most one.
#[derive(Args, Debug, Clone)]
#[group(multiple = false)]
struct Recovered {
    /// This host is gone (boot id, host id or tag:HEX)
    #[arg(long, value_name = "HOST")]
    host_dead: Option<HostName>,
    /// The process of this session is gone
    #[arg(long, value_name = "N:EPOCH", value_parser = parse_session_and_epoch)]
    session_dead: Option<(u32, u32)>,
    /// Devices that dead sessions had told to write here have drained
    #[arg(long)]
    devices_drained: bool,
}

#[derive(Args, Debug, Clone)]
struct Act {
    /// Do it; without this, only say what would change
    #[arg(long)]
    yes: bool,
    /// File that the sessions hold their life locks on, where that is not the region itself
    #[arg(long, value_name = "PATH")]
    lock_file: Option<PathBuf>,
}

/// Which region.
#[derive(Args, Debug, Clone)]
struct Place {
    /// File or device-dax node; without it, what CXL_DAX_DEVICE names
    path: Option<PathBuf>,
    /// Where the region starts (bytes, or with K, M, G, T; also Ki, KiB: all powers of 1024)
    #[arg(long, value_name = "BYTES", default_value = "0", value_parser = parse_bytes)]
    offset: u64,
    /// Length of the partition; to the end of the backing unless said
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    length: Option<u64>,
}

#[derive(Args, Debug, Clone)]
struct Target {
    #[command(flatten)]
    place: Place,
    /// Where the first page is no superblock at all, look through the copy at the end
    #[arg(long)]
    from_copy: bool,
}

#[derive(Args, Debug, Clone, Copy)]
struct Watch {
    /// Look again after this time, until interrupted (500ms, 1s, 2m)
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    watch: Option<Duration>,
    /// Look this often, then end
    #[arg(long, value_name = "N", requires = "watch")]
    times: Option<u64>,
}

fn parse_state(text: &str) -> Result<StateWish, String> {
    StateWish::named(text)
        .ok_or_else(|| "wanted free, claiming, pending, writing, ready, retiring, quarantined or damaged".to_owned())
}

fn parse_key(text: &str) -> Result<HexPrefix, String> {
    HexPrefix::parse(text).ok_or_else(|| "wanted 1 to 64 hex digits".to_owned())
}

fn parse_session(text: &str) -> Result<(u32, Option<u32>), String> {
    let wanted = || "wanted an index, or index:epoch, as `maru-inspect sessions` shows them".to_owned();
    let (index, epoch) = text.split_once(':').map_or((text, None), |(index, epoch)| (index, Some(epoch)));
    let index = index.parse().map_err(|_| wanted())?;
    let epoch = epoch.map(|epoch| epoch.parse().map_err(|_| wanted())).transpose()?;
    Ok((index, epoch))
}

fn parse_session_and_epoch(text: &str) -> Result<(u32, u32), String> {
    match parse_session(text)? {
        (index, Some(epoch)) => Ok((index, epoch)),
        (index, None) => Err(format!("wanted the epoch too, as in {index}:7: the entry may be another's by now")),
    }
}

/// A number, and the unit behind it in upper case.
fn number_and_unit(text: &str) -> Result<(u64, String), String> {
    let text = text.trim();
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let number = number.parse().map_err(|_| "wanted a number that fits in 64 bits".to_owned())?;
    Ok((number, unit.trim().to_ascii_uppercase()))
}

fn parse_bytes(text: &str) -> Result<u64, String> {
    let (number, unit) = number_and_unit(text)?;
    let shift = match unit.as_str() {
        "" | "B" => 0,
        "K" | "KI" | "KIB" => 10,
        "M" | "MI" | "MIB" => 20,
        "G" | "GI" | "GIB" => 30,
        "T" | "TI" | "TIB" => 40,
        _ => return Err("unknown unit, wanted K, M, G or T (powers of 1024; also Ki, KiB)".to_owned()),
    };
    number.checked_mul(1 << shift).ok_or_else(|| "does not fit in 64 bits".to_owned())
}

fn parse_time(text: &str) -> Result<Duration, String> {
    let (number, unit) = number_and_unit(text)?;
    let milliseconds = match unit.as_str() {
        "MS" => Some(number),
        "" | "S" => number.checked_mul(1000),
        "M" => number.checked_mul(60_000),
        _ => return Err("unknown unit, wanted ms, s or m".to_owned()),
    };
    milliseconds.map(Duration::from_millis).ok_or_else(|| "does not fit".to_owned())
}

/// What one command line asks for.
enum Errand {
    Look(Box<Look>),
    Act(operate::Errand),
    Watch(watch::Wish),
    Metrics(metrics::Wish),
    /// The command line asks for what cannot be read.
    Refused(String),
}

/// A look at a region, once or again and again.
struct Look {
    target: Target,
    request: Request,
    watch: Option<Watch>,
}

impl Command {
    fn errand(self) -> Errand {
        let act = |place: Place, act: Act, wish| {
            let Place { path, offset, length } = place;
            Errand::Act(operate::Errand { path, offset, length, lock_file: act.lock_file, wish, yes: act.yes })
        };
        let (target, verb, watch, all) = match self {
            Self::Fence { place, whom, act: how } => {
                let wish = match (whom.session, whom.host_dead) {
                    (_, Some(host)) => Wish::HostDead(host),
                    (Some((index, epoch)), None) => Wish::Fence { index, epoch },
                    (None, None) => unreachable!("one of the group is required"),
                };
                return act(place, how, wish);
            }
            Self::Recover { place, whom, act: how } => {
                let wish = match (whom.host_dead, whom.session_dead) {
                    (Some(host), _) => Wish::HostDead(host),
                    (None, Some((index, epoch))) => Wish::SessionDead { index, epoch },
                    (None, None) if whom.devices_drained => Wish::DevicesDrained,
                    (None, None) => Wish::Proven,
                };
                return act(place, how, wish);
            }
            Self::Seeing(command) => return command.errand(),
            Self::Log { target, session, last, watch } => {
                (target, Verb::Log(log::Filter { session, last }), Some(watch), true)
            }
            Self::Dump { target, state, slot, key } => (target, Verb::Dump(Filter { state, slot, key }), None, true),
            Self::Stat { target, watch } => (target, Verb::Stat, Some(watch), false),
            Self::Verify { target, payload, all } => (target, Verb::Verify { payload }, None, all),
            Self::Sessions { target, watch } => (target, Verb::Sessions, Some(watch), false),
            Self::Leases { target, watch } => (target, Verb::Leases, Some(watch), false),
            Self::Namespaces { target } => (target, Verb::Namespaces, None, false),
        };
        let request = Request { verb, from_copy: target.from_copy, all, progress: true };
        Errand::Look(Box::new(Look { target, request, watch }))
    }
}

/// Parses the command line and runs it.
#[must_use]
pub fn main() -> ExitCode {
    let steps = if maru::step::enabled() { "on" } else { "off" };
    let version = format!(
        "{}, reads formats {} to {}, steps: {steps}",
        env!("CARGO_PKG_VERSION"),
        maru_layout::OLDEST_READABLE_VERSION,
        maru_layout::FORMAT_VERSION
    );
    let version: &'static str = Box::leak(version.into_boxed_str());
    let parsed = Cli::command().version(version).try_get_matches().and_then(|matches| Cli::from_arg_matches(&matches));
    let cli = match parsed {
        Ok(cli) => cli,
        Err(error) => {
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() { 2 } else { 0 });
        }
    };
    let ended = match cli.verb.map(Command::errand) {
        None => list::run(cli.json).map(Verdict::exit_code),
        Some(Errand::Look(look)) => look_on(&look, cli.json).map(Verdict::exit_code),
        Some(Errand::Act(errand)) => operate::run(&errand, cli.json),
        Some(Errand::Watch(wish)) => watch::run(&wish, cli.json).map(Verdict::exit_code),
        Some(Errand::Metrics(wish)) => metrics::run(&wish, cli.json).map(Verdict::exit_code),
        Some(Errand::Refused(reason)) => {
            eprintln!("maru-inspect: {reason}");
            Ok(Verdict::Unreadable.exit_code())
        }
    };
    match ended {
        Ok(code) => ExitCode::from(code),
        // `maru-inspect dump | head`: whoever read has seen enough.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("maru-inspect: {error}");
            ExitCode::from(2)
        }
    }
}

fn look_on(errand: &Look, json: bool) -> io::Result<Verdict> {
    let Some(Watch { watch: Some(pause), times }) = errand.watch else { return once(errand, json, false) };
    let mut looks = 0;
    loop {
        let verdict = once(errand, json, true)?;
        looks += 1;
        if times.is_some_and(|times| looks >= times) {
            return Ok(verdict);
        }
        sleep(pause);
    }
}

/// Opens anew every time: the path may lead to another region by now.
fn once(errand: &Look, json: bool, again: bool) -> io::Result<Verdict> {
    let mut out = Out::stdout(json);
    if again && out.is_coloured() {
        out.line("\x1b[H\x1b[2J")?;
    } else if again {
        out.line("")?;
    }
    let target = &errand.target.place;
    let backing = target.path.clone().map_or(Backing::Env, Backing::Path);
    let report = match Part::open(&backing, target.offset, target.length) {
        Ok(part) => inspect(&part, &errand.request, &mut out)?,
        Err(error) => {
            let mut reason = error.to_string();
            if target.path.is_none() {
                reason.push_str("; name a PATH, or run `maru-inspect` alone for the regions of this host");
            }
            let report = Report::unreadable(reason);
            let path = target.path.as_ref().map(|path| path.display().to_string());
            out.object(&Line::Summary(Box::new(unread_summary(path, None, &report))))?;
            verdict_line(&report, &mut out)?;
            report
        }
    };
    out.flush()?;
    Ok(report.verdict)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn sessions_by_name() {
        assert_eq!(parse_session("3"), Ok((3, None)));
        assert_eq!(parse_session("3:17"), Ok((3, Some(17))));
        assert_eq!(parse_session_and_epoch("3:17"), Ok((3, 17)));
        for wrong in ["", ":", "3:", ":3", "-1", "3:17:1", "x", "4294967296"] {
            assert!(parse_session(wrong).is_err(), "{wrong}");
        }
        assert!(parse_session_and_epoch("3").is_err());
    }

    #[test]
    fn sizes_and_times() {
        assert_eq!(parse_bytes("4096"), Ok(4096));
        assert_eq!(parse_bytes("2GiB"), Ok(2 << 30));
        assert_eq!(parse_bytes("1 m"), Ok(1 << 20));
        assert!(parse_bytes("1MB").is_err());
        assert!(parse_bytes("99999999999999T").is_err());
        assert_eq!(parse_time("1s"), Ok(Duration::from_secs(1)));
        assert_eq!(parse_time("250ms"), Ok(Duration::from_millis(250)));
        assert!(parse_time("1h").is_err());
    }
}
