//! What the tests share: a directory in memory, the program in it, its last line.
#![allow(dead_code, reason = "each test program uses its part")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

/// Keys of the JSON object of every run.
pub(crate) const KEYS: [&str; 24] = [
    "budget",
    "budget_exceeded",
    "bytes_moved",
    "hit_ratio",
    "hits",
    "killed_requests",
    "kills",
    "lookup_ns",
    "most_spent",
    "recovered",
    "references",
    "refused",
    "region",
    "region_id",
    "requests",
    "rival",
    "sample_gap_us",
    "samples",
    "seconds",
    "seed",
    "slots",
    "stores",
    "workers",
    "wrong_bytes",
];

/// A directory in memory.
pub(crate) struct Scratch {
    pub(crate) directory: tempfile::TempDir,
}

impl Scratch {
    pub(crate) fn new() -> Self {
        Self { directory: tempfile::tempdir_in("/dev/shm").expect("/dev/shm is there and writable") }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub(crate) fn trace(&self, requests: &[Vec<u64>]) -> PathBuf {
        let line = |(at, ids): (usize, &Vec<u64>)| {
            let tokens = ids.len() * 512;
            format!(
                "{{\"timestamp\": {at}, \"input_length\": {tokens}, \"output_length\": 1, \"hash_ids\": {ids:?}}}\n"
            )
        };
        let text: String = requests.iter().enumerate().map(line).collect();
        let path = self.path("trace.jsonl");
        std::fs::write(&path, text).expect("write");
        path
    }

    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_maru-replay"));
        command.arg("--region").arg(self.path("region"));
        command
    }

    /// Runs with `--json` and reads the object; panics unless all went well.
    pub(crate) fn json(&self, trace: &Path, flags: &[&str]) -> Value {
        let output = self.command().arg("--json").arg("--trace").arg(trace).args(flags).output().expect("started");
        assert!(output.status.success(), "{}: {}", output.status, stderr(&output));
        json(&output)
    }
}

pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

pub(crate) fn json(output: &Output) -> Value {
    let text = String::from_utf8_lossy(&output.stdout);
    let value: Value = serde_json::from_str(text.lines().last().expect("a last line")).expect("JSON");
    let object = value.as_object().expect("an object");
    for key in KEYS {
        assert!(object.contains_key(key), "{key} in {value}");
    }
    let others = object.keys().filter(|key| !KEYS.contains(&key.as_str())).count();
    assert_eq!(others, if object.contains_key("killed_in") { 3 } else { 0 }, "{value}");
    value
}

pub(crate) fn number(value: &Value, key: &str) -> u64 {
    value[key].as_u64().unwrap_or_else(|| panic!("{key} of {value}"))
}

/// The folder of the public traces, or a word that there is none.
pub(crate) fn traces() -> Option<PathBuf> {
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/traces");
    let directory = std::env::var_os("MARU_TRACES").map_or(beside, PathBuf::from);
    let found = directory.join("conversation_trace.jsonl").exists();
    if !found {
        eprintln!("SKIPPED: no conversation_trace.jsonl in {}; name its directory in MARU_TRACES", directory.display());
    }
    found.then_some(directory)
}
