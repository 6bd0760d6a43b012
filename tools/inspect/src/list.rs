//! The bare command: every region of this host, one line each.
//!
//! Looked at: `/dev/shm`, the colon-separated folders and files in `MARU_REGIONS`, two levels deep, and the device in
//! `CXL_DAX_DEVICE`. A file is a candidate if its first eight bytes are a region's; nothing else is opened further. A
//! damaged superblock makes the verdict "damaged"; what lies below it is for `verify`.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

use maru::Backing;
use maru_layout::MAGIC;

use crate::findings::{Finding, Report, Severity, Verdict};
use crate::image::{self, Opening};
use crate::life::{Life, Lives};
use crate::out::{Line, Out, Table, Tone, grouped, hex, human, plain, safe, toned};
use crate::run::unread_summary;
use crate::source::{Part, Source};
use crate::stat;
use crate::tally::Tally;

/// Environment variable with further folders and files.
const VARIABLE: &str = "MARU_REGIONS";
/// Files looked at.
const FILES: usize = 20_000;
/// Folders below folders.
const DEPTH: usize = 2;

/// Lists the regions of this host.
///
/// # Errors
/// The reader of the output has gone.
pub fn run(json: bool) -> io::Result<Verdict> {
    let mut places = vec![PathBuf::from("/dev/shm")];
    if let Some(more) = std::env::var_os(VARIABLE) {
        places.extend(std::env::split_paths(&more).filter(|path| !path.as_os_str().is_empty()));
    }
    if let Some(device) = std::env::var_os(maru::os::backing::ENV_DEVICE).filter(|value| !value.is_empty()) {
        places.push(device.into());
    }
    let mut out = Out::stdout(json);
    let report = list(&places, &mut out)?;
    out.flush()?;
    Ok(report.verdict)
}

fn list(places: &[PathBuf], out: &mut Out) -> io::Result<Report> {
    let mut report = Report::new();
    let mut files = BTreeSet::new();
    for place in places {
        gather(place, DEPTH, &mut files);
    }
    let mut table = Table::new(&["region", "id", ">size", ">slots in use", "sessions", "state"]);
    let mut first = None;
    for path in &files {
        let Ok(part) = Part::open(&Backing::Path(path.clone()), 0, None) else { continue };
        let mut magic = [0; 8];
        if part.read_at(0, &mut magic).is_err() || magic != MAGIC {
            continue;
        }
        row(path, &part, &mut table, &mut report, out)?;
        first.get_or_insert(path);
    }
    let shown: Vec<String> = places.iter().map(|place| safe(place.display().to_string().as_bytes())).collect();
    match first {
        None => {
            out.line(format!("no regions in {}", shown.join(", ")))?;
            out.line(format!("further folders: {VARIABLE}=/path/one:/path/two maru-inspect"))?;
            out.line("next: maru-inspect --help")?;
        }
        Some(path) => {
            table.print(out)?;
            out.line("")?;
            out.line(format!("next: maru-inspect stat {}", safe(path.display().to_string().as_bytes())))?;
        }
    }
    out.object(&Line::Summary(Box::new(unread_summary(None, None, &report))))?;
    Ok(report)
}

/// Regular files and character devices below a place.
fn gather(place: &Path, depth: usize, files: &mut BTreeSet<PathBuf>) {
    let Ok(metadata) = std::fs::metadata(place) else { return };
    if !metadata.is_dir() {
        // What it is, is judged when it is opened.
        if files.len() < FILES {
            files.insert(place.to_path_buf());
        }
        return;
    }
    if depth == 0 {
        return;
    }
    let Ok(entries) = std::fs::read_dir(place) else { return };
    for entry in entries.flatten() {
        let is_link = entry.file_type().is_ok_and(|kind| kind.is_symlink());
        if !is_link {
            gather(&entry.path(), depth - 1, files);
        }
    }
}

fn row(path: &Path, part: &Part, table: &mut Table, report: &mut Report, out: &mut Out) -> io::Result<()> {
    let shown = safe(path.display().to_string().as_bytes());
    let mut broken = |severity: Severity, code: &'static str, reason: String| -> io::Result<()> {
        let tone = if severity == Severity::Damage { Tone::Bad } else { Tone::Warn };
        let state = toned(tone, safe(reason.as_bytes()));
        table.row(vec![plain(&shown), plain("-"), plain(human(part.size_bytes())), plain("-"), plain("-"), state]);
        let finding = Finding::new(severity, code, path.display().to_string(), "", "", reason);
        out.object(&Line::Finding(&finding))?;
        report.add(finding);
        Ok(())
    };
    let (image, problems, from_copy) = match image::open(part, false) {
        Opening::Region { image, problems, from_copy } => (image, problems, from_copy),
        Opening::Damaged { reason, .. } => return broken(Severity::Damage, "superblock", reason),
        Opening::Unreadable { reason, .. } => return broken(Severity::Info, "unreadable", reason),
    };
    for problem in problems.iter().cloned() {
        out.object(&Line::Finding(&problem))?;
        report.add(problem);
    }
    let line = stat::region_line(&image, from_copy);
    let tally = Tally::of(&image);
    let lives = Lives::of(&image);
    let (mut alive, mut others) = (0, 0);
    for session in 0..image.geometry().session_count {
        let Ok(entry) = image.session(session) else { break };
        match lives.holder(session, &entry) {
            Some(Life::Alive) => alive += 1,
            Some(_) => others += 1,
            None => {}
        }
    }
    let state = match problems.first() {
        Some(problem) => toned(Tone::Bad, safe(problem.text.as_bytes())),
        None if line.format_state == "ready" => toned(Tone::Good, "ready"),
        None => toned(Tone::Warn, &line.format_state),
    };
    let (used, all) = (tally.usage.slots.held(), u64::from(tally.usage.capacity_slots));
    table.row(vec![
        plain(shown),
        plain(&hex(&image.geometry().region_id)[..8]),
        plain(human(image.geometry().length_bytes)),
        plain(format!("{} of {}", grouped(used), grouped(all))),
        plain(if others == 0 { format!("{alive} alive") } else { format!("{alive} alive, {others} not") }),
        state,
    ]);
    out.object(&Line::Region(Box::new(line)))?;
    out.object(&Line::Usage(tally.usage))
}
