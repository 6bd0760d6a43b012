//! The command line: how regions are opened unless a line says otherwise.

use std::path::PathBuf;

use clap::{Parser, ValueEnum};
use maru_layout::superblock::Hosts;

const VERSION: &str = if maru::step::enabled() {
    concat!(env!("CARGO_PKG_VERSION"), " (steps: on)")
} else {
    concat!(env!("CARGO_PKG_VERSION"), " (steps: off)")
};

/// Drives a Maru region: reads one JSON object a line, answers one JSON object a line.
#[derive(Debug, Clone, Parser)]
#[command(name = "maru-shell", version = VERSION, after_long_help = crate::ops::help())]
pub(crate) struct Args {
    /// File or device-dax device that holds the region.
    #[arg(long, value_name = "PATH")]
    pub(crate) region: Option<PathBuf>,
    /// The device that CXL_DAX_DEVICE (and CXL_DAX_SIZE) names.
    #[arg(long, conflicts_with_all = ["region", "fd"])]
    pub(crate) env: bool,
    /// An inherited descriptor, such as a memfd.
    #[arg(long, value_name = "N", conflicts_with = "region")]
    pub(crate) fd: Option<u32>,
    /// First byte of the partition (sizes take K, M, G: powers of 1024).
    #[arg(long, value_name = "BYTES", value_parser = size, default_value = "0")]
    pub(crate) offset: u64,
    /// Bytes of the partition; to the end of the backing unless said.
    #[arg(long, value_name = "BYTES", value_parser = size)]
    pub(crate) length: Option<u64>,
    /// How much is mapped.
    #[arg(long, value_enum, default_value = "full")]
    pub(crate) mode: ModeArg,
    /// Whether the region may be made.
    #[arg(long, value_enum, default_value = "never")]
    pub(crate) format: FormatArg,
    /// Bytes of a new region.
    #[arg(long, value_name = "BYTES", value_parser = size)]
    pub(crate) size: Option<u64>,
    /// Bytes of a slot of a new region.
    #[arg(long, value_name = "BYTES", value_parser = size)]
    pub(crate) slot_bytes: Option<u64>,
    /// Slots of a new region; as many as fit unless said.
    #[arg(long, value_name = "N")]
    pub(crate) slots: Option<u32>,
    /// Alignment of a new region.
    #[arg(long, value_name = "BYTES", value_parser = size)]
    pub(crate) align: Option<u64>,
    /// Session entries of a new region.
    #[arg(long, value_name = "N")]
    pub(crate) sessions: Option<u32>,
    /// Namespace rows of a new region.
    #[arg(long, value_name = "N")]
    pub(crate) namespaces: Option<u32>,
    /// Hosts of a new region.
    #[arg(long, value_enum)]
    pub(crate) hosts: Option<HostsArg>,
    /// Time limit of copy leases of a new region, milliseconds.
    #[arg(long, value_name = "MS")]
    pub(crate) copy_lease_ms: Option<u32>,
    /// When a motionless writer of a new region may be put aside, milliseconds.
    #[arg(long, value_name = "MS")]
    pub(crate) stalled_writer_ms: Option<u32>,
    /// How long this process waits for somebody else's formatting, milliseconds.
    #[arg(long, value_name = "MS")]
    pub(crate) attach_wait_ms: Option<u32>,
    /// The file that life locks are held on; the region's own unless said.
    #[arg(long, value_name = "PATH")]
    pub(crate) lock_file: Option<PathBuf>,
    /// Configuration, a JSON object: stored when the region is made, compared field by field when it is attached to.
    #[arg(long, value_name = "JSON")]
    pub(crate) config: Option<String>,
    /// Engine name of sessions.
    #[arg(long, value_name = "NAME", default_value = "maru-shell")]
    pub(crate) engine: String,
    /// Role of sessions.
    #[arg(long, value_enum, default_value = "tool")]
    pub(crate) role: RoleArg,
    /// Turn a fault in mapped memory into an answer instead of a signal.
    #[arg(long)]
    pub(crate) fault_handler: bool,
}

/// See [`maru::Mode`].
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum ModeArg {
    /// Everything.
    Full,
    /// The tables alone.
    HeaderOnly,
    /// Everything, never stored to.
    ReadOnly,
}

impl From<ModeArg> for maru::Mode {
    fn from(mode: ModeArg) -> Self {
        match mode {
            ModeArg::Full => Self::Full,
            ModeArg::HeaderOnly => Self::HeaderOnly,
            ModeArg::ReadOnly => Self::ReadOnly,
        }
    }
}

/// See [`maru::Format`].
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum FormatArg {
    /// Attach only.
    Never,
    /// Make one where nothing is.
    IfAbsent,
    /// Make a new one unless somebody uses the old one.
    Force,
    /// Make a new one in any case (files only).
    Replace,
}

impl From<FormatArg> for maru::Format {
    fn from(format: FormatArg) -> Self {
        match format {
            FormatArg::Never => Self::Never,
            FormatArg::IfAbsent => Self::IfAbsent,
            FormatArg::Force => Self::Force,
            FormatArg::Replace => Self::Replace,
        }
    }
}

/// See [`Hosts`].
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum HostsArg {
    /// One host maps it.
    One,
    /// Many hosts may map it.
    Many,
}

impl From<HostsArg> for Hosts {
    fn from(hosts: HostsArg) -> Self {
        match hosts {
            HostsArg::One => Self::One,
            HostsArg::Many => Self::Many,
        }
    }
}

/// See [`maru::Role`].
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum RoleArg {
    /// Stores and loads.
    Worker,
    /// Only asks.
    Scheduler,
    /// Fences, recovers, matches tasks.
    Coordinator,
    /// A tool or a test.
    Tool,
}

impl From<RoleArg> for maru::Role {
    fn from(role: RoleArg) -> Self {
        match role {
            RoleArg::Worker => Self::Worker,
            RoleArg::Scheduler => Self::Scheduler,
            RoleArg::Coordinator => Self::Coordinator,
            RoleArg::Tool => Self::Tool,
        }
    }
}

/// Bytes, with an optional K, M or G (powers of 1024; a following `i` or `iB` is fine too).
pub(crate) fn size(text: &str) -> Result<u64, String> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().map_err(|_| format!("found {text:?}, wanted a number of bytes such as 8M"))?;
    let shift = match unit.trim_end_matches("iB").trim_end_matches('i') {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        _ => return Err(format!("found unit {unit:?}, wanted K, M or G")),
    };
    number.checked_mul(1 << shift).ok_or_else(|| format!("{text} does not fit in 64 bits"))
}
