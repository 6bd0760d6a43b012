//! The accounts of a region, counted twice: by the library's `usage`, and by `maru-inspect` from the bytes.

use std::path::Path;

use maru::Backing;
use maru_inspect::out::Out;
use maru_inspect::source::Part;
use maru_inspect::{Request, Verb, inspect};
use maru_layout::image::Image;
use maru_layout::table::SessionEntry;
use serde_json::Value;

use crate::driver::Shell;

/// What `maru-inspect` says about a region that may be in use: its JSON lines.
pub(crate) fn look(path: &Path, verb: Verb) -> Vec<Value> {
    let part = Part::open(&Backing::Path(path.to_owned()), 0, None).expect("a region");
    let mut out = Out::memory(true);
    inspect(&part, &Request { verb, ..Request::default() }, &mut out).expect("memory takes every line");
    out.into_text().lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

/// The lines of one kind.
pub(crate) fn of_kind<'v>(lines: &'v [Value], kind: &'v str) -> impl Iterator<Item = &'v Value> {
    lines.iter().filter(move |line| line["kind"] == kind)
}

/// Everything in a region where nothing moves has to be sound, and both counts have to agree (rule G5). Returns the slots
/// by state.
#[track_caller]
pub(crate) fn settled(shell: &mut Shell, path: &Path) -> Value {
    let slots = shell.slots();
    let usage = shell.ok(serde_json::json!({ "op": "usage" }));
    let stat = look(path, Verb::Stat);
    let recount = of_kind(&stat, "usage").next().expect("accounts");
    for (name, found) in usage.as_object().expect("accounts") {
        match recount.get(name) {
            Some(Value::Object(states)) => {
                for (state, count) in states {
                    assert!(state == "damaged" || found[state] == *count, "{state}: {found} is not {recount}");
                }
            }
            Some(count) => assert_eq!(found, count, "{name}: {usage} is not {recount}"),
            None => assert!(["ok", "damaged_slots"].contains(&name.as_str()), "{name} has nobody to compare with"),
        }
    }
    let verdict = look(path, Verb::Verify { payload: true });
    let summary = of_kind(&verdict, "summary").next().expect("a summary");
    assert_eq!((&summary["verdict"], &summary["damage"]), (&"sound".into(), &0.into()), "{verdict:#?}");
    slots
}

/// What an entry of the session table says.
pub(crate) fn session_entry(path: &Path, index: u64) -> SessionEntry {
    let bytes = std::fs::read(path).expect("file");
    Image::read(&bytes).expect("a region").session(index as u32).expect("an entry")
}

/// Lease cells that hold something, of all sessions whose leases count.
pub(crate) fn lease_cells(path: &Path) -> usize {
    let bytes = std::fs::read(path).expect("file");
    let image = Image::read(&bytes).expect("a region");
    image
        .sessions()
        .filter(|(_, entry)| {
            let state = maru_layout::word::SessionWord(entry.word).state().expect("a state");
            matches!(state, maru_layout::word::SessionState::Live | maru_layout::word::SessionState::Fenced)
        })
        .map(|(index, _)| image.leases(index).count())
        .sum()
}
