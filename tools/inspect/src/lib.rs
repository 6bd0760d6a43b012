//! `maru-inspect`: looks into Maru regions without joining them, and does what operators do to sessions.
//!
//! The region may be live, dead, foreign, cut or damaged; it lies in a file, a device-dax node or a copy. A look takes
//! no entry of any table, stores nothing, holds no lock, and trusts no byte. Two verbs act, `fence` and `recover`, and
//! only with `--yes`: without it they are looks like the others.
//!
//! * I1: bytes are copied out before they are looked at, by `pread` where there is one: a file that is cut in the middle
//!   gives a finding, never a signal ([`source`]).
//! * I2: offsets come from a superblock that passed its check, and from nowhere else ([`image`]).
//! * I3: memory does not grow with the region: tables are walked in chunks.
//! * I4: a live region changes while it is read. What looks wrong is looked at again, and counts only when it stands
//!   still and is still wrong ([`verify`]).
//! * I5: text from a region is shown escaped: a namespace cannot send a control sequence to a terminal ([`out`]).
//! * I6: the payload is read by `verify --payload` and by nothing else.
//!
//! | file | holds |
//! | --- | --- |
//! | [`cli`] | arguments, help, exit codes |
//! | [`source`] | where bytes come from |
//! | [`image`] | superblock and typed reads |
//! | [`life`] | whether the holder of a session entry lives |
//! | [`findings`] | severities, codes, verdicts |
//! | [`out`], [`lines`] | people's tables and JSON lines |
//! | [`tally`] | one pass over the slot words: the accounts |
//! | [`stat`], [`sessions`], [`leases`], [`namespaces`], [`dump`], [`log`], [`verify`] | one verb each |
//! | [`census`] | one look at everything that is counted |
//! | [`watch`], [`metrics`] | the same again and again: for people at a terminal, for Prometheus |
//! | [`map`], [`why`] | every slot in one picture; why a block is a miss |
//! | [`flight`] | the flight recorder, read beside its writer |
//! | [`operate`] | `fence` and `recover`: plan, act, read back |
//! | [`hint`] | command lines to paste |
//! | [`list`] | all regions of this host |
//!
//! For fuzzers and tests: [`inspect_bytes`] runs every verb over plain bytes.

pub mod census;
pub mod cli;
pub mod dump;
pub mod findings;
pub mod flight;
pub mod hint;
pub mod image;
pub mod leases;
pub mod life;
pub mod lines;
pub mod list;
pub mod log;
pub mod map;
pub mod metrics;
pub mod namespaces;
pub mod operate;
pub mod out;
pub mod run;
pub mod sessions;
pub mod source;
pub mod stat;
pub mod tally;
pub mod verify;
pub mod watch;
pub mod why;

pub use findings::{Finding, Report, Severity, Verdict};
pub use run::{Request, Verb, inspect};

/// Runs every verb over the bytes of a region, payload included, and answers what `verify --payload` found.
///
/// Never panics, whatever the bytes. [`Report::lines`] holds the JSON lines of `verify`.
///
/// ```
/// use maru_inspect::{Verdict, inspect_bytes};
/// let report = inspect_bytes(b"not a region");
/// assert_eq!(report.verdict, Verdict::Unreadable);
/// assert!(report.reason.unwrap().contains("need 4096 bytes, have 12"));
/// ```
#[must_use]
pub fn inspect_bytes(bytes: &[u8]) -> Report {
    let source = source::Bytes::new(bytes);
    let (dump, log) = (Verb::Dump(dump::Filter::default()), Verb::Log(log::Filter::default()));
    let mut verbs = vec![Verb::Stat, Verb::Sessions, Verb::Leases, Verb::Namespaces, dump, log];
    verbs.push(Verb::Map(map::Wish { by: map::By::Namespace, svg: None }));
    let keys = dump::HexPrefix::parse("0").into_iter().collect();
    verbs.push(Verb::Why(why::Question { keys, ..why::Question::default() }));
    for verb in verbs {
        for json in [true, false] {
            let mut sink = out::Out::memory(json);
            let request = Request { verb: verb.clone(), from_copy: true, ..Request::default() };
            let _ = inspect(&source, &request, &mut sink);
        }
    }
    let look = census::look(&source);
    for json in [true, false] {
        let families = metrics::families("bytes", &look, std::time::Duration::ZERO);
        let _ = metrics::show(&families, &look, &mut out::Out::memory(json));
        let mut history = watch::history::History::new();
        history.add(look.clone(), std::time::Instant::now());
        let _ = watch::plain::print(&history, 0, &mut out::Out::memory(json));
    }
    let mut lines = out::Out::memory(true);
    let request = Request { verb: Verb::Verify { payload: true }, ..Request::default() };
    match inspect(&source, &request, &mut lines) {
        Ok(mut report) => {
            report.lines = lines.into_text();
            report
        }
        // Memory takes every line.
        Err(error) => Report::unreadable(error.to_string()),
    }
}
