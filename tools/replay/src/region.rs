//! Makes the region that the plan wants, or joins the one that is kept.
//!
//! A fresh region replaces an old one at the path, unless somebody uses that (the library refuses then, and says who).
//! A file that is no region is never replaced: it may be somebody's.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use maru::{ClassSpec, Format, Mode, OpenOptions, Outcome, Region, Wish};
use maru_layout::geometry::{FormatSpec, SpecError, Stamp};
use maru_layout::{MAGIC, PAGE_BYTES};

use crate::plan::Plan;

/// Entries beyond one for each worker: the scheduler, this process, and people who come to look.
const SPARE_SESSIONS: u32 = 16;

/// The region of the plan, mapped without its payload: the parent only asks.
pub(crate) fn for_plan(plan: &Plan) -> Result<Region> {
    let there = is_there(&plan.region)?;
    let keep = plan.keep && there;
    let options = OpenOptions::path(&plan.region).mode(Mode::HeaderOnly);
    let region = if keep {
        Region::open(options)?
    } else {
        let config = serde_json::json!({
            "made_by": "maru-replay",
            "source": plan.kind.source,
            "block_bytes": plan.kind.block_bytes,
            "block_tokens": plan.kind.block_tokens,
        });
        let wish = wish(plan)?;
        Region::open(options.format(Format::Force).wish(wish).config(config.to_string()))?
    };
    let geometry = region.geometry();
    ensure!(
        geometry.max_payload_bytes() >= plan.kind.block_bytes,
        "{}: its largest slot has {} bytes, --block-bytes is {}",
        plan.region.display(),
        geometry.max_payload_bytes(),
        plan.kind.block_bytes
    );
    eprintln!(
        "region {}: {}, {} slots, {}",
        plan.region.display(),
        if region.outcome() == Outcome::Formatted { "made" } else { "joined" },
        geometry.slot_count,
        human_bytes(geometry.length_bytes),
    );
    Ok(region)
}

/// Whether a region is at the path; an error if it is something else.
fn is_there(path: &Path) -> Result<bool> {
    let place = || format!("region {}", path.display());
    let mut file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error).with_context(place),
    };
    let kind = file.metadata().with_context(place)?.file_type();
    if kind.is_char_device() {
        // Judged by the library, which claims a device before it writes to it.
        return Ok(true);
    }
    ensure!(kind.is_file(), "{}: not a file", place());
    let mut head = [0; MAGIC.len()];
    match file.read_exact(&mut head) {
        Ok(()) if head == MAGIC => Ok(true),
        Ok(()) if head == [0; MAGIC.len()] => Ok(false),
        Err(error) if error.kind() == ErrorKind::UnexpectedEof && file.metadata().with_context(place)?.len() == 0 => {
            Ok(false)
        }
        Err(error) if error.kind() != ErrorKind::UnexpectedEof => Err(error).with_context(place),
        _ => bail!("{}: holds something that is not a Maru region; remove it, or name another path", place()),
    }
}

/// As small as the slots allow.
fn wish(plan: &Plan) -> Result<Wish> {
    let slot_bytes = plan.kind.block_bytes.next_multiple_of(64);
    let class = ClassSpec { slot_bytes, slots: Some(plan.slots) };
    let sessions = plan.workers + SPARE_SESSIONS;
    let mut wish = Wish { classes: vec![class], sessions: Some(sessions), ..Wish::default() };
    wish.name = "replay".to_owned();
    if std::fs::metadata(&plan.region).is_ok_and(|found| found.file_type().is_char_device()) {
        return Ok(wish);
    }
    // Tables grow with the length in steps, so what is missing is asked for until nothing is.
    let mut length_bytes = PAGE_BYTES;
    loop {
        let spec = FormatSpec {
            classes: vec![class],
            sessions: Some(sessions),
            config: " ".repeat(256),
            ..FormatSpec::new(length_bytes, slot_bytes)
        };
        match spec.plan(&Stamp::default()) {
            Ok(_) => break,
            Err(SpecError::TooSmall { need_bytes, .. }) if need_bytes > length_bytes => {
                length_bytes = need_bytes
                    .checked_next_multiple_of(PAGE_BYTES)
                    .with_context(|| format!("a region of {} slots of {slot_bytes} bytes", plan.slots))?;
            }
            Err(error) => {
                return Err(error).with_context(|| format!("a region of {} slots of {slot_bytes} bytes", plan.slots));
            }
        }
    }
    wish.size_bytes = Some(length_bytes);
    Ok(wish)
}

/// A number of bytes, for people.
pub(crate) fn human_bytes(bytes: u64) -> String {
    let bytes = bytes as f64;
    for (unit, size) in [("GB", 1e9), ("MB", 1e6), ("kB", 1e3)] {
        if bytes >= size {
            return format!("{:.2} {unit}", bytes / size);
        }
    }
    format!("{bytes} B")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_region_is_left_alone() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("notes");
        assert!(!is_there(&path).expect("nothing there"));
        for (content, answer) in
            [(&b""[..], Some(false)), (&[0; 4096], Some(false)), (b"my notes, dear", None), (b"hi", None)]
        {
            std::fs::write(&path, content).expect("write");
            assert_eq!(is_there(&path).ok(), answer, "{content:?}");
        }
        assert!(is_there(directory.path()).is_err());
    }

    #[test]
    fn bytes_are_shown_in_units() {
        assert_eq!(human_bytes(17), "17 B");
        assert_eq!(human_bytes(65_536), "65.54 kB");
        assert_eq!(human_bytes(11_900_000_000), "11.90 GB");
    }
}
