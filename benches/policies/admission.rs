//! What the library's admission hook costs and saves, in front of Maru's policy: hits kept, blocks not written.

use std::ops::Range;

use maru::{Admission, Admitter, Format, Namespace, NamespaceId, ObjectId, OpenOptions, Region, Role, Wish};

use crate::contest::{PERCENT, capacity};
use crate::replay::replay_admitting;
use crate::slots::{Settings, Slots};
use crate::trace::{Block, Trace};

/// Blocks that second sight remembers.
const REMEMBER: usize = 1 << 18;
/// Blocks that one request may store.
const CAP: usize = 64;

/// A rule by name.
#[derive(Clone, Copy)]
pub(crate) struct Rule {
    pub(crate) name: &'static str,
    admission: fn(usize) -> Admission,
    cap: Option<usize>,
}

/// The rule that Maru's row of the first table has in front.
pub(crate) const MEASURED_NAME: &str = "**measured**";

const SECOND: fn(usize) -> Admission = |_| Admission::SecondSight { remember: REMEMBER };
const MEASURED: fn(usize) -> Admission = |blocks| Admission::Measured { remember: REMEMBER, cache_blocks: blocks };

/// All rules, in the order of the table.
pub(crate) const RULES: [Rule; 5] = [
    Rule { name: "every block", admission: |_| Admission::All, cap: None },
    Rule { name: "at most 64 of a request", admission: |_| Admission::All, cap: Some(CAP) },
    Rule { name: "on second sight", admission: SECOND, cap: None },
    Rule { name: MEASURED_NAME, admission: MEASURED, cap: None },
    Rule { name: "second sight, at most 64", admission: SECOND, cap: Some(CAP) },
];

/// Hits and stores of a rule: by trace, then by size.
pub(crate) struct Admitted {
    pub(crate) name: &'static str,
    pub(crate) counts: Vec<Vec<(usize, usize)>>,
}

/// Plays all rules.
pub(crate) fn measure(traces: &[Trace], turn: impl Fn(&str)) -> Result<Vec<Admitted>, String> {
    let namespace = namespace()?;
    RULES
        .iter()
        .map(|rule| {
            turn(rule.name);
            let of_trace =
                |trace: &Trace| PERCENT.iter().map(|percent| play(rule, trace, *percent, namespace)).collect();
            let counts = traces.iter().map(of_trace).collect::<Result<_, String>>()?;
            Ok(Admitted { name: rule.name, counts })
        })
        .collect()
}

fn play(rule: &Rule, trace: &Trace, percent: usize, namespace: NamespaceId) -> Result<(usize, usize), String> {
    let admitter =
        Admitter::new((rule.admission)(capacity(trace, percent)), rule.cap).map_err(|error| error.to_string())?;
    let mut cache = Slots::new(capacity(trace, percent), trace.distinct, Settings::default());
    let mut admit = |blocks: &[Block], missing: Range<usize>| {
        let ids: Vec<ObjectId> = blocks.iter().map(|block| object(namespace, *block)).collect();
        admitter.admit(&ids, missing)
    };
    Ok(replay_admitting(trace, &mut cache, &mut admit))
}

fn object(namespace: NamespaceId, block: Block) -> ObjectId {
    let mut prefix = [0; 32];
    prefix[..8].copy_from_slice(&u64::from(block).to_le_bytes());
    ObjectId::new(namespace, prefix)
}

/// Object ids belong to a namespace, and a namespace to a region: a small one in memory.
fn namespace() -> Result<NamespaceId, String> {
    let tell = |error: &dyn std::fmt::Display| format!("a region for object ids: {error}");
    let folder = tempfile::tempdir().map_err(|error| tell(&error))?;
    let options =
        OpenOptions::path(folder.path().join("ids")).format(Format::IfAbsent).wish(Wish::of_slots(1 << 20, 4096));
    let region = Region::open(options).map_err(|error| tell(&error))?;
    let session = region.session("policies", Role::Tool).map_err(|error| tell(&error))?;
    let namespace = Namespace::new()
        .tenant("bench")
        .model("trace")
        .revision("1")
        .adapter("none")
        .dtype("none")
        .quantization("none")
        .geometry("none")
        .storage_format("none")
        .block_tokens(512)
        .parallel("none")
        .hash_algorithm("trace")
        .hash_seed("0");
    session.namespace(&namespace).map_err(|error| tell(&error))
}
