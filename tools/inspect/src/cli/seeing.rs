//! The verbs for seeing a region at work: `watch`, `metrics`, `map`, `why`.

use std::io::Read as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Subcommand};

use super::{Errand, Look, Place, Target, parse_key, parse_time};
use crate::census::Site;
use crate::dump::HexPrefix;
use crate::run::{Request, Verb};
use crate::{map, metrics, watch, why};

const WATCH_HELP: &str = "\
At a terminal, a screen: slots by state as a bar; hits, loads, stores, evictions and refusals per second with what they
were before; sessions, leases, and the fullest namespaces with their budgets. Keys: q quit, s sort sessions, / filter
them, p freeze, ? help. Into a pipe, or with --plain, a line for each look; with --json an object.

Rates are differences of the counters that sessions keep in their own lines, over this tool's clock. Planned hits
are keys found of keys probed, real ones blocks acquired of blocks asked for. Watching reads only, and goes on when the region is replaced, cut or damaged: it says so.

Examples:
  maru-inspect watch /dev/shm/kv
  maru-inspect top /dev/shm/kv --interval 250ms
  maru-inspect watch /dev/shm/kv --count 60 | tee watched.txt
  maru-inspect watch /dev/shm/kv --json | jq 'select(.kind == \"sample\") | {time_ns, hit_ratio, refusals}'

Exit codes, of the last look: 0 sound, 1 damaged, 2 cannot be read.";

const METRICS_HELP: &str = "\
Prints the numbers of one look in the text format of Prometheus; --json prints an object a sample.

--listen ADDR   answers GET /metrics there, looking anew for each scrape. On the loopback interface only, unless
                --listen-anywhere: whoever reaches the port sees names of tenants and models.
--out FILE      writes a file and renames it into place, for the textfile collector of node_exporter; with --watch 15s
                again and again.

Label values come from closed lists (states, roles, kinds, reasons, rows of the namespace table), never from requests
or objects. Each sample has a label `region`: the name of the file, or --name.
Slots of all states add up to the capacity at every scrape. Counters are sums over the session table, never zeroed.
A dashboard and alert rules are in tools/grafana.

Examples:
  maru-inspect metrics /dev/shm/kv
  maru-inspect metrics /dev/shm/kv --listen 127.0.0.1:9190
  maru-inspect metrics /dev/shm/kv --out /var/lib/node_exporter/maru.prom --watch 15s
  maru-inspect metrics /dev/shm/kv | grep maru_refused_total

Exit codes: 0 sound, 1 damaged, 2 cannot be read (the text then says maru_up 0), or cannot listen or write.";

const MAP_HELP: &str = "\
One character is one slot, or a run of slots where there are more than 2,048: then what most of them are, but a damaged
one always shows. Letters everywhere, colours at a terminal; the legend is below.

--by state      . free  c claiming  p pending  w writing  # ready  ~ retiring  x quarantined  ! damaged
--by age        how much older than the region's youngest block, by the clocks of those who committed: 0 under a
                second to 9 four weeks and more
--by namespace  a letter for each row of the namespace table; ? for blocks of a namespace that was invalidated
--by depth      depth in the prefix chain, a digit for each power of two

Examples:
  maru-inspect map /dev/shm/kv
  maru-inspect map /dev/shm/kv --by age --svg age.svg
  maru-inspect map /dev/shm/kv --by namespace --json | jq -r 'select(.kind == \"map\") | .cells'

Exit codes: 0 sound, 1 damaged (the rest is drawn), 2 cannot be read, or the file cannot be written.";

const WHY_HELP: &str = "\
KEY is the digest of a block's token prefix, 64 hex digits or the first few. The answer is the nearest cause:

  ready            a hit: slot, who stored it, when, who leases it
  not_indexed      there, but no index entry leads to it
  being_written    by whom; the slot is looked at twice, so that a writer that stands still shows
  draining         retired; its last reader has not let go
  quarantined      reason: damaged, owner_fenced, owner_dead, stalled_writer, device, generations_used_up
  invalidated      stored under a generation of its namespace that has ended
  other_namespace  ready under another namespace (with --namespace-row); the fields that differ
  refused          a session remembers that storing it was refused
  retired, evicted, recovered, removed
                   was there; when and by whom it was taken away, where that is remembered
  given_up         reserved once and never committed
  never_stored     nothing is remembered of it, or it is forgotten: memory is bounded (each slot's last life, a farewell
                   for two slots, each session's last 16 operations)

A farewell is a word that whoever frees a block's slot leaves in a small table. It needs all 64 digits of KEY, knows whole
seconds, and is another key's with the probability that `doubt` says; then `remembered` is \"farewell\", `gone_cause` says
why (evicted, displaced, retired, invalidated, recovered, drained, unfinished), `gone_ns` when, `who` by whom.

Without --namespace-row any registered namespace will do; `maru-inspect namespaces` lists the rows.

--prefixes FILE  the keys of one request, a line each, in order (- reads standard input; # begins a comment): draws
                 the prefix block by block, and explains the first block that is missing.

Examples:
  maru-inspect why /dev/shm/kv 3fa2
  maru-inspect why /dev/shm/kv 3fa2... --namespace-row 0 --json | jq -r 'select(.kind == \"why\") | .code'
  maru-inspect why /dev/shm/kv --prefixes request.keys

Exit codes: 0 answered, whatever the answer, 1 damaged region (answered from what is left), 2 cannot be read, or the
question cannot be asked.";

#[derive(Subcommand, Debug)]
pub(super) enum Command {
    /// A live screen: how full, hits, evictions, sessions, budgets (lines when piped)
    #[command(visible_alias = "top", after_help = WATCH_HELP)]
    Watch {
        #[command(flatten)]
        place: Place,
        /// Time between looks (500ms, 1s, 2m)
        #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parse_pause)]
        interval: Duration,
        /// Look this often, then end
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
        count: Option<u64>,
        /// Lines even at a terminal
        #[arg(long)]
        plain: bool,
    },
    /// Numbers for Prometheus: printed, served on loopback, or into a file
    #[command(after_help = METRICS_HELP)]
    Metrics {
        #[command(flatten)]
        place: Place,
        /// Answer scrapes at this address and port
        #[arg(long, value_name = "ADDR:PORT")]
        listen: Option<SocketAddr>,
        /// Allow an address that other machines can reach
        #[arg(long, requires = "listen")]
        listen_anywhere: bool,
        /// End after so many connections
        #[arg(long, value_name = "N", requires = "listen", value_parser = clap::value_parser!(u64).range(1..))]
        requests: Option<u64>,
        /// Write this file instead, replacing it as a whole
        #[arg(long, value_name = "FILE", conflicts_with = "listen")]
        out: Option<PathBuf>,
        /// Value of the label `region`; the name of the file unless said
        #[arg(long, value_name = "NAME")]
        name: Option<String>,
        /// Look again after this time
        #[arg(long, value_name = "TIME", value_parser = parse_pause, conflicts_with = "listen")]
        watch: Option<Duration>,
        /// Look this often, then end
        #[arg(long, value_name = "N", requires = "watch")]
        times: Option<u64>,
    },
    /// Every slot in one picture: by state, age, namespace or depth
    #[command(after_help = MAP_HELP)]
    Map {
        #[command(flatten)]
        target: Target,
        /// What a cell says
        #[arg(long, value_enum, default_value_t)]
        by: map::By,
        /// Also draw it into this file
        #[arg(long, value_name = "FILE")]
        svg: Option<PathBuf>,
    },
    /// Why a block is a miss, or a hit
    #[command(after_help = WHY_HELP)]
    Why(Box<WhyArgs>),
}

#[derive(Args, Debug)]
pub(super) struct WhyArgs {
    #[command(flatten)]
    target: Target,
    /// Prefix digest, or its first hex digits
    #[arg(value_parser = parse_key, required_unless_present = "prefixes", conflicts_with = "prefixes")]
    key: Option<HexPrefix>,
    /// Keys of one request, a line each, in order; - for standard input
    #[arg(long, value_name = "FILE")]
    prefixes: Option<PathBuf>,
    /// Namespace asked for, as a row of the table
    #[arg(long, value_name = "N")]
    namespace_row: Option<u32>,
    /// Only this shard (of --prefixes: 0 unless said)
    #[arg(long, value_name = "N")]
    shard: Option<u16>,
    /// Only this part (of --prefixes: 0 unless said)
    #[arg(long, value_name = "N")]
    part: Option<u16>,
}

/// As other times, but never so short that looking is all that the machine does.
fn parse_pause(text: &str) -> Result<Duration, String> {
    match parse_time(text)? {
        pause if pause < Duration::from_millis(50) => Err("wanted 50ms or more".to_owned()),
        pause => Ok(pause),
    }
}

fn site(place: Place) -> Site {
    Site { path: place.path, offset: place.offset, length: place.length }
}

impl Command {
    pub(super) fn errand(self) -> Errand {
        match self {
            Self::Watch { place, interval, count, plain } => {
                Errand::Watch(watch::Wish { site: site(place), interval, count, plain })
            }
            Self::Metrics { listen: Some(address), listen_anywhere: false, .. } if !address.ip().is_loopback() => {
                Errand::Refused(format!(
                    "--listen {address}: not a loopback address; --listen-anywhere allows it, and shows names of tenants \
                     and models to whoever reaches it"
                ))
            }
            Self::Metrics { place, listen, requests, out, name, watch, times, .. } => {
                let times = requests.or(times);
                Errand::Metrics(metrics::Wish { site: site(place), name, listen, out, pause: watch, times })
            }
            Self::Map { target, by, svg } => look(target, Verb::Map(map::Wish { by, svg })),
            Self::Why(asked) => {
                let WhyArgs { target, key, prefixes, namespace_row: row, shard, part } = *asked;
                let Some(path) = prefixes else {
                    let question = why::Question { keys: key.into_iter().collect(), row, shard, part, strip: false };
                    return look(target, Verb::Why(question));
                };
                match keys_of(&path) {
                    Ok(keys) => {
                        let (shard, part) = (shard.or(Some(0)), part.or(Some(0)));
                        look(target, Verb::Why(why::Question { keys, row, shard, part, strip: true }))
                    }
                    Err(reason) => Errand::Refused(format!("{}: {reason}", path.display())),
                }
            }
        }
    }
}

fn look(target: Target, verb: Verb) -> Errand {
    let request = Request { verb, from_copy: target.from_copy, all: false, progress: true };
    Errand::Look(Box::new(Look { target, request, watch: None }))
}

/// Keys of one file, and bytes of it.
const KEYS: usize = 1 << 16;
const FILE_BYTES: u64 = 8 << 20;

fn keys_of(path: &Path) -> Result<Vec<HexPrefix>, String> {
    let mut text = String::new();
    let source: Box<dyn std::io::Read> = if path == Path::new("-") {
        Box::new(std::io::stdin())
    } else {
        Box::new(std::fs::File::open(path).map_err(|error| error.to_string())?)
    };
    source.take(FILE_BYTES + 1).read_to_string(&mut text).map_err(|error| error.to_string())?;
    if text.len() as u64 > FILE_BYTES {
        return Err(format!("more than {FILE_BYTES} bytes"));
    }
    parse_keys(&text)
}

fn parse_keys(text: &str) -> Result<Vec<HexPrefix>, String> {
    let mut keys = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default().trim();
        if line.is_empty() {
            continue;
        }
        let key = HexPrefix::parse(line).filter(|key| key.whole().is_some());
        keys.push(key.ok_or_else(|| format!("line {}: wanted 64 hex digits", number + 1))?);
        if keys.len() > KEYS {
            return Err(format!("more than {KEYS} keys"));
        }
    }
    if keys.is_empty() { Err("no key in it".to_owned()) } else { Ok(keys) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_keys() {
        let key = "ab".repeat(32);
        let keys =
            parse_keys(&format!("# a request\n{key}\n\n  {}  # the second\n", key.to_uppercase())).expect("keys");
        assert_eq!(keys.iter().map(HexPrefix::digits).collect::<Vec<_>>(), [key.as_str(), &key]);
        assert_eq!(parse_keys(&format!("{key}\nabc\n")), Err("line 2: wanted 64 hex digits".to_owned()));
        assert!(parse_keys("").is_err() && parse_keys("# nothing\n").is_err());
        assert!(parse_keys(&format!("{key}\n").repeat(KEYS + 1)).is_err());
    }

    #[test]
    fn pauses() {
        assert_eq!(parse_pause("50ms"), Ok(Duration::from_millis(50)));
        assert!(parse_pause("0").is_err());
    }
}
