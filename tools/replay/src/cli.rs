//! The command line: flags, what they mean, examples.

use std::path::PathBuf;

use clap::Parser;

/// Where the region of a run without `--region` lies.
pub(crate) const DEFAULT_REGION: &str = "/dev/shm/maru-try";

const ABOUT: &str = "Replay LLM prompts against a shared KV-cache region, and check every byte";

const LONG_ABOUT: &str = "\
Replays LLM prompts against a shared KV-cache region with real processes, and checks every byte.

A prompt is a list of blocks, each named by everything before it. For every prompt a worker process asks the region
how many leading blocks are there (probe_prefix), copies those out and compares them byte for byte with what they
must be, then stores the blocks that were missing. There is no server: the processes share one file in memory, and
nothing else.

Without --trace the prompts come from a seeded chat workload: a few system prompts that many conversations share,
and turns that each extend their conversation, up to 128 blocks (32K tokens at 256 a block). Two workers serve it,
and a scheduler process that maps no payload asks along with them. Block contents follow from block names, so the
right answer is always known.";

const EXAMPLES: &str = "\
Examples:
  maru-replay
      Two workers and a scheduler on a fresh region, table, picture, and the same lookup against LMDB.
  maru-replay --trace conversation_trace.jsonl
      One worker, strictly one request after another: the hit ratio is exactly that of an endless cache.
  maru-replay --trace conversation_trace.jsonl --workers 4 --json
      Four workers take requests from one queue; the last line of stdout is one JSON object.
  maru-replay --trace conversation_trace.jsonl --slots 50000
      A region that is too small: see how many stores are refused, and that no hit is ever wrong.
  maru-replay --trace conversation_trace.jsonl --workers 4 --slots 18279 --budget 16000 --kill-every 1 --seconds 20 --repeat 9
      Kill a worker about every second, start it again, and watch that the budget is never exceeded meanwhile.
  maru-replay --story
      After the chat: a worker is killed in mid-store and another goes on, and a byte is flipped and never returned.
  maru-replay --region /dev/shm/kv --keep
      Join a region that is there, and leave what it holds in place: run it twice for a warm start.

A line of a trace: {\"timestamp\": 0, \"input_length\": 1000, \"output_length\": 20, \"hash_ids\": [0, 1]}
  hash_ids has one number per 512-token block; equal numbers mean an equal prompt up to and with that block.

Exit status: 0 every byte was right, and every account; 1 wrong bytes, a wrong account, a worker died that nobody
killed, or the run could not be made; 2 usage.";

/// What `--version` says.
fn version() -> &'static str {
    if maru::step::enabled() {
        concat!(env!("CARGO_PKG_VERSION"), "\nsteps: on")
    } else {
        concat!(env!("CARGO_PKG_VERSION"), "\nsteps: off")
    }
}

/// The command line.
#[derive(Debug, Parser)]
#[command(name = "maru-replay", version = version(), about = ABOUT, long_about = LONG_ABOUT, after_help = EXAMPLES)]
#[command(args_override_self = true)]
pub(crate) struct Cli {
    /// Replay this file, one JSON object a line, in its order
    #[arg(long, value_name = "FILE")]
    pub(crate) trace: Option<PathBuf>,

    /// Worker processes [default: 2, with --trace 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=256))]
    pub(crate) workers: Option<u32>,

    /// Bytes of a block; K and M are understood [default: 64K, with --trace 4K]
    #[arg(long, value_name = "B", value_parser = block_bytes)]
    pub(crate) block_bytes: Option<u64>,

    /// Slots of a fresh region [default: distinct blocks and 1/16 more]
    #[arg(long, value_name = "S", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) slots: Option<u32>,

    /// Seed of the chat workload
    #[arg(long, value_name = "K", default_value_t = 42)]
    pub(crate) seed: u64,

    /// The region: a path in memory, such as under /dev/shm
    #[arg(long, value_name = "PATH", default_value = DEFAULT_REGION)]
    pub(crate) region: PathBuf,

    /// Join the region at --region if it is there, instead of making a fresh one
    #[arg(long)]
    pub(crate) keep: bool,

    /// Requests of the chat workload
    #[arg(long, value_name = "N", conflicts_with = "trace", default_value_t = 2400,
          value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    pub(crate) requests: u64,

    /// Deal no more requests after this many seconds [default: 10, with --trace no limit]
    #[arg(long, value_name = "T", value_parser = seconds)]
    pub(crate) seconds: Option<f64>,

    /// Deal all requests this many times over
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub(crate) repeat: u64,

    /// Kill -9 one worker process about every this many seconds, at a random moment, and start it again
    #[arg(long, value_name = "T", value_parser = seconds)]
    pub(crate) kill_every: Option<f64>,

    /// Slots that the blocks of the replay may hold, watched all the time; more are never held
    #[arg(long, value_name = "SLOTS", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) budget: Option<u32>,

    /// Afterwards, kill a worker in mid-store and flip a byte of a stored block, and show what becomes of it
    #[arg(long)]
    pub(crate) story: bool,

    /// Start of the names by which the processes join the region
    #[arg(long, value_name = "NAME", default_value = "replay")]
    pub(crate) engine_prefix: String,

    /// Last line of stdout: one JSON object instead of the table
    #[arg(long)]
    pub(crate) json: bool,

    /// Where the picture goes [default: REGION.svg]
    #[arg(long, value_name = "FILE")]
    pub(crate) picture: Option<PathBuf>,

    /// Leave out the comparison with LMDB
    #[arg(long)]
    pub(crate) no_rival: bool,
}

fn block_bytes(text: &str) -> Result<u64, String> {
    let upper = text.trim().to_ascii_uppercase();
    let digits = upper.trim_end_matches("IB").trim_end_matches('B');
    let (digits, unit) = match digits.as_bytes().last() {
        Some(b'K') => (&digits[..digits.len() - 1], 1 << 10),
        Some(b'M') => (&digits[..digits.len() - 1], 1 << 20),
        _ => (digits, 1),
    };
    digits
        .parse::<u64>()
        .ok()
        .and_then(|number| number.checked_mul(unit))
        .filter(|bytes| (1..=1 << 30).contains(bytes))
        .ok_or_else(|| "wanted a number of bytes from 1 to 1024M, such as 4096, 64K or 1M".to_owned())
}

fn seconds(text: &str) -> Result<f64, String> {
    text.parse::<f64>()
        .ok()
        .filter(|seconds| *seconds > 0.0 && *seconds <= 86_400.0)
        .ok_or_else(|| "wanted a number of seconds above 0, at most 86400".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_flags_are_consistent_and_the_help_teaches() {
        Cli::command().debug_assert();
        let help = Cli::command().render_long_help().to_string();
        for word in ["--trace conversation_trace.jsonl", "hash_ids", "Exit status", "probe_prefix"] {
            assert!(help.contains(word), "{word}");
        }
        assert!(version().contains("steps: o"));
    }

    #[test]
    fn sizes_are_read_with_units_and_bounded() {
        assert_eq!(block_bytes("4096"), Ok(4096));
        assert_eq!(block_bytes("64k"), Ok(65536));
        assert_eq!(block_bytes("64KiB"), Ok(65536));
        assert_eq!(block_bytes("1M"), Ok(1 << 20));
        for wrong in ["", "0", "-1", "K", "2G", "1025M", "99999999999999999999", "18446744073709551615M"] {
            assert!(block_bytes(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn flags_of_the_other_source_are_refused() {
        assert!(Cli::try_parse_from(["maru-replay", "--trace", "t", "--requests", "3"]).is_err());
        assert!(Cli::try_parse_from(["maru-replay", "--workers", "0"]).is_err());
        assert!(Cli::try_parse_from(["maru-replay", "--budget", "0"]).is_err());
        assert!(Cli::try_parse_from(["maru-replay", "--kill-every", "0"]).is_err());
        assert!(Cli::try_parse_from(["maru-replay", "--trace", "t", "--seconds", "3", "--repeat", "9"]).is_ok());
        assert!(Cli::try_parse_from(["maru-replay", "--region", "/dev/shm/x", "--keep"]).is_ok());
    }
}
