//! `maru-policies`: which blocks to evict, decided by two real request traces.
//!
//! Every policy is asked for the leading run of each request, is told of the hits, and is given the blocks that were
//! missing; the run lengths are added up. No payload, no region and no threads: what is compared is the choice of the
//! victim alone. The result is a table between two marks of `README.md` and a picture, so nobody types numbers.
//!
//! | file | does |
//! | --- | --- |
//! | `trace.rs` | requests from a JSONL file, blocks as small numbers |
//! | `replay.rs` | the question that all policies are asked, and the metric |
//! | `optimum.rs` | the offline optimum (Belady) |
//! | `peers.rs` | policies of other crates |
//! | `slots.rs` | Maru's policy, with the data that a region has and no other |
//! | `clock.rs` | simpler policies over the same slots, which lost |
//! | `admission.rs` | the library's admission hook in front of Maru's policy |
//! | `contest.rs` | who competes, at which sizes |
//! | `table.rs`, `picture.rs` | what is shown |

mod admission;
mod clock;
mod contest;
mod optimum;
mod peers;
mod picture;
mod replay;
mod slots;
mod table;
#[cfg(test)]
mod tests;
mod trace;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use contest::Contest;

const HELP: &str = "\
Compares eviction policies on request traces: how many leading blocks of each request are still there.

Usage: maru-policies [--write] [--json] [--traces DIR]

  --write        put the table into benches/README.md (between its marks) and draw benches/policies.svg
  --json         the last line of stdout is one JSON object with every number
  --traces DIR   folder of conversation_trace.jsonl and synthetic_trace.jsonl
                 [default: $MARU_TRACES, else ../shared/traces beside the checkout]
  --help         this text

Each request is looked up, then its missing blocks are stored, one request after another. The cache holds 2, 5, 10,
20 or 40 % of the distinct blocks of the trace. The answer is the same in every run: nothing depends on time, threads
or hash seeds. Takes about half a minute in a release build.

Exit status: 0 done; 1 a trace is missing or wrong, or a file could not be written; 2 usage.";

struct Options {
    write: bool,
    json: bool,
    traces: PathBuf,
}

fn options(mut words: impl Iterator<Item = String>) -> Result<Option<Options>, String> {
    let mut options = Options { write: false, json: false, traces: trace::default_folder() };
    while let Some(word) = words.next() {
        match word.as_str() {
            "--write" => options.write = true,
            "--json" => options.json = true,
            "--traces" => options.traces = words.next().ok_or("--traces wants a folder")?.into(),
            "--help" | "-h" => return Ok(None),
            other => return Err(format!("unknown word {other:?}; see --help")),
        }
    }
    Ok(Some(options))
}

fn run(options: &Options) -> Result<(), String> {
    let traces = trace::NAMES.map(|name| trace::Trace::read(&options.traces, name));
    let [conversation, synthetic] = traces;
    let traces = [conversation?, synthetic?];
    let mut contest = Contest::hold(&traces, |name| eprintln!("{name}"));
    let admitted = admission::measure(&traces, |name| eprintln!("admission: {name}"))?;
    contest.enter_admitted(&admitted);
    let table = table::markdown(&contest, &admitted);
    println!("{table}");
    if options.write {
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        maru_bench::document::write_between(&here.join("README.md"), "policies", &table)?;
        let picture = here.join("policies.svg");
        std::fs::write(&picture, picture::svg(&contest)).map_err(|error| format!("{}: {error}", picture.display()))?;
        eprintln!("written: README.md and policies.svg in {}", here.display());
    }
    if options.json {
        println!("{}", table::json(&contest, &admitted));
    }
    Ok(())
}

fn main() -> ExitCode {
    match options(std::env::args().skip(1)) {
        Ok(None) => println!("{HELP}"),
        Ok(Some(options)) => {
            if let Err(error) = run(&options) {
                eprintln!("maru-policies: {error}");
                return ExitCode::FAILURE;
            }
        }
        Err(error) => {
            eprintln!("maru-policies: {error}");
            return ExitCode::from(2);
        }
    }
    ExitCode::SUCCESS
}
