//! From flags to numbers. Everything that can be wrong with the input is found here, before a region is touched.

use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};

use crate::cli::Cli;
use crate::model::EndlessCache;
use crate::protocol::Kind;
use crate::trace::{self, Trace};
use crate::workload::{self, Chat};

/// How long a chat is dealt unless the command line says.
const CHAT_SECONDS: f64 = 10.0;

/// Where requests come from.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Source {
    /// A file, in its order.
    Trace(PathBuf),
    /// A seed.
    Chat {
        /// The seed.
        seed: u64,
        /// How many requests.
        requests: u64,
    },
}

/// What to do.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    /// Where requests come from.
    pub(crate) source: Source,
    /// What the blocks are.
    pub(crate) kind: Kind,
    /// Requests in all.
    pub(crate) requests: u64,
    /// How often the source is dealt.
    pub(crate) repeat: u64,
    /// Seconds after which no more are dealt.
    pub(crate) seconds: Option<f64>,
    /// Seconds between two kills.
    pub(crate) kill_every: Option<f64>,
    /// Slots that the namespace may hold.
    pub(crate) budget: Option<u32>,
    /// Whether to tell the story of a kill and a flipped byte.
    pub(crate) story: bool,
    /// Slots of a fresh region.
    pub(crate) slots: u32,
    /// Worker processes.
    pub(crate) workers: u32,
    /// The region's path.
    pub(crate) region: PathBuf,
    /// Whether to join a region that is there.
    pub(crate) keep: bool,
    /// Where the picture goes.
    pub(crate) picture: PathBuf,
    /// Start of engine names.
    pub(crate) engine_prefix: String,
    /// Whether to compare with a rival.
    pub(crate) rival: bool,
    /// The seed as given.
    pub(crate) seed: u64,
}

/// Requests, one after another.
pub(crate) type Requests = Box<dyn Iterator<Item = Result<Vec<u64>>> + Send>;

impl Source {
    /// The requests from the first one on.
    pub(crate) fn requests(&self) -> Result<Requests> {
        Ok(match self {
            Self::Trace(path) => Box::new(Trace::open(path)?),
            Self::Chat { seed, requests } => {
                let count = usize::try_from(*requests).unwrap_or(usize::MAX);
                Box::new(Chat::new(*seed).take(count).map(Ok))
            }
        })
    }
}

impl Plan {
    /// All requests to deal, the source over and over.
    pub(crate) fn requests(&self) -> Result<Requests> {
        let (first, source) = (self.source.requests()?, self.source.clone());
        let more = (1..self.repeat).flat_map(move |_| {
            source.requests().unwrap_or_else(|error| Box::new(std::iter::once(Err(error))) as Requests)
        });
        Ok(Box::new(first.chain(more)))
    }

    /// The plan of a command line. Goes through all requests once, to find what is wrong with them and how many slots
    /// they need.
    pub(crate) fn of(cli: &Cli) -> Result<Self> {
        let source = match &cli.trace {
            Some(path) => Source::Trace(path.clone()),
            None => Source::Chat { seed: cli.seed, requests: cli.requests },
        };
        let traced = matches!(source, Source::Trace(_));
        let mut cache = EndlessCache::default();
        for request in source.requests()? {
            cache.serve(&request?);
        }
        ensure!(cache.requests > 0, "{}: no requests", shown(&source));
        let engine = cli.engine_prefix.as_str();
        ensure!(
            (1..=48).contains(&engine.len()) && !engine.chars().any(char::is_control),
            "--engine-prefix has {} bytes, wanted 1 to 48 without control characters",
            engine.len()
        );
        let device = || std::fs::metadata(&cli.region).is_ok_and(|found| found.file_type().is_char_device());
        ensure!(!cli.story || !device(), "--story flips a byte of a file, and {} is a device", cli.region.display());
        let mut picture = cli.region.clone().into_os_string();
        picture.push(".svg");
        Ok(Self {
            kind: Kind {
                source: if traced { "trace" } else { "chat" }.to_owned(),
                block_tokens: if traced { trace::BLOCK_TOKENS } else { workload::BLOCK_TOKENS },
                block_bytes: cli.block_bytes.unwrap_or(if traced { 4 << 10 } else { 64 << 10 }),
            },
            source,
            requests: cache.requests.saturating_mul(cli.repeat),
            repeat: cli.repeat,
            seconds: cli.seconds.or(if traced { None } else { Some(CHAT_SECONDS) }),
            kill_every: cli.kill_every,
            budget: cli.budget,
            story: cli.story,
            slots: match cli.slots {
                Some(slots) => slots,
                None => default_slots(cache.distinct())?,
            },
            workers: cli.workers.unwrap_or(if traced { 1 } else { 2 }),
            region: cli.region.clone(),
            keep: cli.keep,
            picture: cli.picture.clone().unwrap_or_else(|| Path::new(&picture).to_owned()),
            engine_prefix: cli.engine_prefix.clone(),
            rival: !cli.no_rival,
            seed: cli.seed,
        })
    }
}

/// What the source is called in messages.
pub(crate) fn shown(source: &Source) -> String {
    match source {
        Source::Trace(path) => path.display().to_string(),
        Source::Chat { seed, .. } => format!("chat workload, seed {seed}"),
    }
}

/// Room for every distinct block, and a sixteenth more, rounded up.
fn default_slots(distinct: u64) -> Result<u32> {
    let slots = (distinct + distinct.div_ceil(16)).max(1);
    ensure!(
        slots < 1 << 28,
        "{distinct} distinct blocks need {slots} slots, a region has fewer than 2^28; say --slots"
    );
    Ok(slots as u32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[test]
    fn defaults_depend_on_the_source() {
        let plan = Plan::of(&Cli::parse_from(["maru-replay", "--requests", "10"])).expect("plan");
        assert_eq!((plan.workers, plan.kind.block_bytes, plan.requests), (2, 65536, 10));
        assert_eq!(plan.seconds, Some(10.0));
        assert_eq!(plan.picture, Path::new("/dev/shm/maru-try.svg"));
        assert_eq!(plan.region, Path::new(crate::cli::DEFAULT_REGION));

        let file = tempfile::NamedTempFile::new().expect("a temporary file");
        let line =
            |ids: &str| format!("{{\"timestamp\":0,\"input_length\":1,\"output_length\":1,\"hash_ids\":[{ids}]}}\n");
        std::fs::write(file.path(), [line("0,1"), line("0,2")].concat()).expect("write");
        let path = file.path().to_str().expect("plain name");
        let plan = Plan::of(&Cli::parse_from(["maru-replay", "--trace", path])).expect("plan");
        assert_eq!((plan.workers, plan.kind.block_bytes, plan.slots), (1, 4096, 4));
        assert_eq!((plan.requests, plan.seconds), (2, None));
        let plan = Plan::of(&Cli::parse_from(["maru-replay", "--trace", path, "--repeat", "3"])).expect("plan");
        let dealt: Vec<_> = plan.requests().expect("requests").map(|ids| ids.expect("a request")).collect();
        assert_eq!((plan.requests, plan.slots), (6, 4));
        assert_eq!(dealt, [[0, 1], [0, 2], [0, 1], [0, 2], [0, 1], [0, 2]]);
        std::fs::write(file.path(), "\n").expect("write");
        assert!(Plan::of(&Cli::parse_from(["maru-replay", "--trace", path])).is_err());
    }

    #[test]
    fn slots_are_distinct_blocks_and_a_sixteenth() {
        assert_eq!(default_slots(182_790).expect("fits"), 182_790 + 11_425);
        assert_eq!(default_slots(1).expect("fits"), 2);
        assert_eq!(default_slots(0).expect("fits"), 1);
        assert!(default_slots(1 << 28).is_err());
    }
}
