//! Requests from a file, one JSON object a line; `hash_ids` names the blocks of a prompt.
//!
//! Ids are renumbered from zero in the order of their first sight, so that a policy can use plain arrays.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;

/// The traces of the contest: what they are called, and the file.
pub(crate) const NAMES: [&str; 2] = ["conversation", "synthetic"];

/// A block, numbered from zero within its trace.
pub(crate) type Block = u32;

#[derive(Deserialize)]
struct Line {
    hash_ids: Vec<u64>,
}

/// A trace in memory.
pub(crate) struct Trace {
    /// What it is called.
    pub(crate) name: String,
    /// The blocks of each request, in the order of the prompt.
    pub(crate) requests: Vec<Vec<Block>>,
    /// How many blocks there are.
    pub(crate) distinct: usize,
    /// How often any block is asked for.
    pub(crate) references: usize,
}

/// Where the traces lie unless somebody says otherwise.
pub(crate) fn default_folder() -> PathBuf {
    match std::env::var_os("MARU_TRACES") {
        Some(folder) => folder.into(),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/traces"),
    }
}

impl Trace {
    /// Reads `NAME_trace.jsonl`.
    pub(crate) fn read(folder: &Path, name: &str) -> Result<Self, String> {
        let path = folder.join(format!("{name}_trace.jsonl"));
        let text = std::fs::read_to_string(&path).map_err(|error| format!("trace {}: {error}", path.display()))?;
        Self::parse(name, &text).map_err(|error| format!("trace {}: {error}", path.display()))
    }

    fn parse(name: &str, text: &str) -> Result<Self, String> {
        let mut requests = Vec::new();
        for (at, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
            let line: Line = serde_json::from_str(line).map_err(|error| format!("line {}: {error}", at + 1))?;
            requests.push(line.hash_ids);
        }
        Self::of(name, &requests)
    }

    /// A trace of these requests. A prefix tree is wanted: the optimum and the metric rest on it.
    pub(crate) fn of(name: &str, requests: &[Vec<u64>]) -> Result<Self, String> {
        let mut numbers = HashMap::new();
        let mut parents: Vec<Option<Block>> = Vec::new();
        let mut renumbered = Vec::with_capacity(requests.len());
        for (at, ids) in requests.iter().enumerate() {
            let mut parent = None;
            let mut blocks = Vec::with_capacity(ids.len());
            for id in ids {
                let next = parents.len() as Block;
                let block = *numbers.entry(*id).or_insert(next);
                if block == next {
                    parents.push(parent);
                } else if parents[block as usize] != parent {
                    return Err(format!("request {}: field `hash_ids`: block {id} follows two different ones", at + 1));
                }
                parent = Some(block);
                blocks.push(block);
            }
            renumbered.push(blocks);
        }
        let references = renumbered.iter().map(Vec::len).sum();
        if references == 0 {
            return Err("no request in it".to_owned());
        }
        Ok(Self { name: name.to_owned(), requests: renumbered, distinct: parents.len(), references })
    }
}
