//! Looks into the region as `maru-inspect` does: from its bytes, without joining it.

use std::path::Path;

use anyhow::{Context, Result, anyhow, bail};
use maru::Backing;
use maru_inspect::flight::operation_name;
use maru_inspect::image::{Image, Opening, open};
use maru_inspect::out::Out;
use maru_inspect::source::Part;
use maru_inspect::{Report, Request, Verb};

/// The bytes of the region at a path.
pub(crate) fn source(path: &Path) -> Result<Part> {
    Part::open(&Backing::Path(path.to_owned()), 0, None).with_context(|| format!("region {}", path.display()))
}

/// The region in those bytes.
pub(crate) fn image(source: &Part) -> Result<Box<Image<'_>>> {
    match open(source, false) {
        Opening::Region { image, .. } => Ok(image),
        Opening::Damaged { reason, .. } | Opening::Unreadable { reason, .. } => {
            bail!("the region's superblock: {reason}")
        }
    }
}

/// What `maru-inspect verify --payload` finds.
pub(crate) fn verify(path: &Path) -> Result<Report> {
    let request = Request { verb: Verb::Verify { payload: true }, ..Request::default() };
    maru_inspect::inspect(&source(path)?, &request, &mut Out::memory(true)).context("verify")
}

/// The operation that a session is in the middle of by its flight record, and the slot of it.
pub(crate) fn under_way(path: &Path, session: u32) -> Result<Option<(String, Option<u64>)>> {
    let source = source(path)?;
    let head = image(&source)?.area(session);
    let head = head.map_err(|error| anyhow!("flight record of session {session}: {error}"))?;
    let operation = || operation_name((head.current_step >> 32) as u32);
    Ok((head.current_step != 0).then(|| (operation(), head.current_slot.checked_sub(1))))
}
