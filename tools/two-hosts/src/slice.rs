//! The first requests of a trace: which blocks they name, and what bytes a block has.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

use anyhow::Context;
use serde_json::{Value, json};

/// Blocks looked at of a request, so that a line to a guest stays short.
const BLOCKS: usize = 24;

/// Some requests, each a list of blocks.
pub(crate) struct Slice {
    pub(crate) from: String,
    pub(crate) requests: Vec<Vec<u64>>,
}

impl Slice {
    /// The head of a trace, or where there is none, requests of the same shape.
    pub(crate) fn new(trace: Option<&Path>, requests: usize) -> anyhow::Result<Self> {
        let Some(path) = trace else { return Ok(Self::made_up(requests)) };
        let mut list = Vec::new();
        let file = File::open(path).with_context(|| format!("open {}", path.display()))?;
        for line in BufReader::new(file).lines().take(requests) {
            let request: Value = serde_json::from_str(&line?).with_context(|| format!("read {}", path.display()))?;
            let blocks = request["hash_ids"].as_array().into_iter().flatten().filter_map(Value::as_u64);
            list.push(blocks.take(BLOCKS).collect());
        }
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        Ok(Self { from: format!("{name}, first {}", list.len()), requests: list })
    }

    /// Four system prompts; each request continues one of them, or an earlier request.
    fn made_up(requests: usize) -> Self {
        let mut fresh = 0..;
        let mut take = |n: usize| -> Vec<u64> { fresh.by_ref().take(n).collect() };
        let mut heads: Vec<Vec<u64>> = (0..4).map(|n| take(3 + n)).collect();
        let mut list = Vec::new();
        for request in 0..requests {
            let at = request * 7 % heads.len();
            let mut blocks = heads[at].clone();
            blocks.extend(take(1 + request % 9));
            blocks.truncate(BLOCKS);
            if request % 3 == 0 {
                heads.push(blocks.clone());
            }
            list.push(blocks);
        }
        Self { from: format!("{requests} made-up requests (no trace at hand)"), requests: list }
    }

    /// Where the public traces are, if they are.
    pub(crate) fn find(named: Option<PathBuf>) -> Option<PathBuf> {
        let folder = std::env::var_os("MARU_TRACES")
            .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/traces"), PathBuf::from);
        named.or_else(|| Some(folder.join("conversation_trace.jsonl")).filter(|path| path.is_file()))
    }

    /// Every block, once.
    pub(crate) fn blocks(&self) -> BTreeSet<u64> {
        self.requests.iter().flatten().copied().collect()
    }
}

/// Bytes of a block: of all lengths up to a slot's.
pub(crate) fn length(block: u64) -> u64 {
    1 + block.wrapping_mul(7_919) % SLOT_BYTES
}

/// Bytes of a slot.
pub(crate) const SLOT_BYTES: u64 = 64 << 10;

/// A block as a line of `maru-shell` names it, with the bytes that it has to have.
pub(crate) fn item(block: u64) -> Value {
    json!({ "key": block, "seed": seed(block), "len": length(block) })
}

/// The same without a length, for loading.
pub(crate) fn asked(block: u64) -> Value {
    json!({ "key": block, "seed": seed(block) })
}

fn seed(block: u64) -> u64 {
    block.wrapping_mul(0x9E37_79B9) + 1
}

/// How many answers say so, by the word in `field`.
pub(crate) fn tally(answer: &Value, field: &str) -> BTreeMap<String, u64> {
    let mut counted = BTreeMap::new();
    for item in answer["items"].as_array().into_iter().flatten() {
        let word = item[field].as_str().map_or_else(|| item[field].to_string(), str::to_owned);
        *counted.entry(word).or_insert(0) += 1;
    }
    counted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_without_a_trace_share_prefixes() {
        let slice = Slice::made_up(48);
        let named: usize = slice.requests.iter().map(Vec::len).sum();
        assert_eq!(slice.requests.len(), 48);
        assert!(slice.blocks().len() * 3 < named * 2, "{} of {named} are distinct", slice.blocks().len());
        assert!(slice.requests.iter().all(|request| !request.is_empty() && request.len() <= BLOCKS));
    }
}
