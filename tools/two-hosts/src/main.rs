//! Two guests, each with its own kernel, on one device-dax device.
//!
//! Everything that Maru says about hosts is tried where it is meant: two kernels with process ids, boot ids and clocks
//! of their own map the same `/dev/dax0.0` through the kernel's own driver. The README says what this shows and what it
//! cannot show.

mod guest;
mod initramfs;
mod points;
mod prepare;
mod report;
mod slice;

use std::path::PathBuf;
use std::process::ExitCode;
use std::thread;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use anyhow::Context;
use clap::Parser;
use serde_json::json;

use guest::{Guest, Memory};
use prepare::Missing;
use report::Report;
use slice::Slice;

const HELP: &str = "\
Examples:
  maru-two-hosts                     everything, in about three minutes
  maru-two-hosts --only death        one point (device, race, exchange, identity, death; comeback needs death)
  maru-two-hosts --json | tail -n 1  the result as one JSON object

What it needs: an x86-64 Linux, qemu-system-x86_64 and ndctl (installed by apt if this runs as root), a Debian kernel
package (downloaded and unpacked, not installed), 1.5 GiB of memory. No KVM, no CXL hardware, no root after that.
What it makes lies in target/two-hosts; consoles of the guests in target/two-hosts/logs.

Exit codes: 0 all claims held, 1 one did not, 77 skipped because something is missing (named on standard error).";

/// Boots two guests on one device-dax device and tries what Maru says about hosts.
#[derive(Parser)]
#[command(name = "maru-two-hosts", version, after_help = HELP)]
struct Args {
    /// The last line of standard output is one JSON object
    #[arg(long)]
    json: bool,
    /// Only get everything together: packages, kernel, programs
    #[arg(long)]
    prepare: bool,
    /// Only these points
    #[arg(long, value_name = "POINT", value_delimiter = ',')]
    only: Vec<points::Point>,
    /// Request trace whose first requests are exchanged; without it, the one in MARU_TRACES, or made-up requests
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Requests of the trace
    #[arg(long, value_name = "N", default_value = "64")]
    requests: usize,
    /// Rounds of the format race
    #[arg(long, value_name = "N", default_value = "10")]
    rounds: u32,
    /// How the emulator runs its guests: tcg, or kvm where nested virtualisation works
    #[arg(long, default_value = "tcg")]
    accel: String,
    /// Folder with boot/vmlinuz-* and lib/modules/* instead of a downloaded kernel package
    #[arg(long, value_name = "FOLDER", env = "MARU_TWO_HOSTS_KERNEL")]
    kernel_tree: Option<PathBuf>,
    /// Where to keep kernel, initramfs and logs
    #[arg(long, value_name = "FOLDER", default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/two-hosts"))]
    folder: PathBuf,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let start = Instant::now();
    let mut report = Report::default();
    let ended = run(&args, &mut report);
    let (verdict, code) = match &ended {
        Ok(()) if args.prepare => ("prepared", 0),
        Ok(()) if report.failed() == 0 && report.rows() > 0 => ("ok", 0),
        Ok(()) => ("failed", 1),
        Err(error) => match error.downcast_ref::<Missing>() {
            Some(missing) => {
                eprintln!("SKIPPED: two hosts on one device: {missing}");
                ("skipped", 77)
            }
            None => {
                eprintln!("maru-two-hosts: {error:#}");
                ("failed", 1)
            }
        },
    };
    let seconds = start.elapsed().as_secs_f64();
    report.print();
    println!("{verdict}: {} claims, {} failed, {seconds:.0} s", report.rows(), report.failed());
    if args.json {
        let error = ended.err().map(|error| format!("{error:#}"));
        let object = json!({
            "verdict": verdict, "claims": report.rows(), "failed": report.failed(), "seconds": seconds, "error": error,
            "rows": report.json(),
        });
        println!("{object}");
    }
    ExitCode::from(code)
}

/// How far the guests' clocks are from this machine's.
const DAYS_A: i64 = -9;
const DAYS_B: i64 = 5;

fn run(args: &Args, report: &mut Report) -> anyhow::Result<()> {
    let boot = prepare::prepare(&args.folder, args.kernel_tree.as_deref())?;
    if args.prepare {
        return Ok(());
    }
    let logs = args.folder.join("logs");
    std::fs::create_dir_all(&logs)?;
    let slice = Slice::new(Slice::find(args.trace.clone()).as_deref(), args.requests)?;
    let memory = Memory::new()?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).context("the clock")?.as_secs() as i64;
    let start = |name, days: i64| Guest::start(name, &boot, &memory, &args.accel, now + days * 86_400, &logs);
    eprintln!("booting two guests");
    let booting = Instant::now();
    let (a, b) = (start("A", DAYS_A)?, start("B", DAYS_B)?);
    thread::scope(|scope| {
        let other = scope.spawn(|| b.booted());
        a.booted().and(other.join().expect("no panic"))
    })?;
    // One of them makes the namespace; the other finds it.
    let facts = [a.find_device(true)?, b.find_device(false)?];
    eprintln!("both have the device after {:.0} s", booting.elapsed().as_secs_f64());
    let restart = || start("A", DAYS_A);
    let world = points::World { memory: &memory, slice: &slice, facts, rounds: args.rounds, restart: &restart };
    points::run(&world, a, &b, &args.only, report);
    Ok(())
}
