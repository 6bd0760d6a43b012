//! Reads what the benches left in `target/bench`, holds it against the targets, and writes tables and pictures.
//!
//! A target is a ratio of two candidates of one contest, round by round; the table gives its median and the tenth and
//! ninetieth percent of the rounds. A target that is missed is shown as missed.
//!
//! | file | does |
//! | --- | --- |
//! | `targets.rs` | which ratio of which contest is to be above or below what |
//! | `tables.rs` | tables of them, and of all times |
//! | `picture.rs` | bars and curves |

mod picture;
mod tables;
mod targets;

use std::path::Path;
use std::process::ExitCode;

use maru_bench::contest::{Outcome, folder};
use maru_bench::document;

const HELP: &str = "\
maru-report: tables and pictures of what the benches measured

  maru-report            print the tables
  maru-report --write    also put them into benches/README.md, and draw benches/*.svg
  maru-report --json     print one JSON object as the last line

It reads target/bench/*.json (or $MARU_BENCH_OUT); `./tools/bench` runs the benches that write them.";

fn outcomes() -> Result<Vec<Outcome>, String> {
    let folder = folder();
    let tell = |path: &Path, error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    let entries =
        std::fs::read_dir(&folder).map_err(|error| format!("{}; run ./tools/bench first", tell(&folder, &error)))?;
    let mut paths: Vec<_> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    paths.retain(|path| path.extension().is_some_and(|end| end == "json"));
    paths.sort();
    let read = |path: &std::path::PathBuf| {
        let bytes = std::fs::read(path).map_err(|error| tell(path, &error))?;
        let outcome: Outcome = serde_json::from_slice(&bytes).map_err(|error| tell(path, &error))?;
        if outcome.entries.is_empty() || outcome.entries.iter().any(|row| row.rounds_ns.is_empty()) {
            return Err(tell(path, &"entries: found none or one without rounds, wanted at least one of each"));
        }
        Ok(outcome)
    };
    paths.iter().map(read).collect()
}

fn run(write: bool, json: bool) -> Result<(), String> {
    let outcomes = outcomes()?;
    let judged = targets::judge(&outcomes);
    let table = tables::markdown(&judged, &outcomes);
    println!("{table}");
    if write {
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        document::write_between(&here.join("README.md"), "speed", &table)?;
        for (name, svg) in picture::all(&outcomes) {
            let path = here.join(name);
            std::fs::write(&path, svg).map_err(|error| format!("{}: {error}", path.display()))?;
            eprintln!("written: {}", path.display());
        }
    }
    if json {
        println!("{}", tables::json(&judged, &outcomes));
    }
    Ok(())
}

fn main() -> ExitCode {
    let (mut write, mut json) = (false, false);
    for word in std::env::args().skip(1) {
        match word.as_str() {
            "--write" => write = true,
            "--json" => json = true,
            "--help" | "-h" => {
                println!("{HELP}");
                return ExitCode::SUCCESS;
            }
            other => {
                eprintln!("maru-report: unknown word {other:?}; see --help");
                return ExitCode::from(2);
            }
        }
    }
    match run(write, json) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("maru-report: {error}");
            ExitCode::FAILURE
        }
    }
}
