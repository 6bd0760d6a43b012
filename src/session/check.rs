//! Whether a call can be tried: whose process this is, whether the region is still the one that was opened, and whether
//! what was read came from memory that is still there.

use maru_layout::word::FormatWord;

use crate::CallError;
use crate::os::BackingKind;
use crate::region::Inner;
use crate::sync::process;

/// Refuses calls on a region that is not this process's, is lost, or has been replaced.
pub(crate) fn check_region(inner: &Inner) -> Result<(), CallError> {
    if inner.tag.is_foreign() {
        return Err(CallError::ForeignProcess);
    }
    let replaced = inner.replaced.load(process::Ordering::Relaxed)
        || inner.tables.control().format() != FormatWord::ready(&inner.geometry().region_id);
    // After the look: a format word that faulted away reads as zero, and is not another region's.
    not_lost(inner)?;
    if replaced {
        return Err(CallError::Replaced);
    }
    Ok(())
}

/// Refuses what was read from memory that has faulted away: zeros that nobody stored. Asked after reading, because the
/// read itself may be what finds out.
pub(crate) fn not_lost(inner: &Inner) -> Result<(), CallError> {
    if inner.tables.mapping().is_lost() { Err(CallError::Lost) } else { Ok(()) }
}

/// Whether the backing still has the bytes that are mapped. Files only: a device does not shrink.
pub(crate) fn check_size(inner: &Inner) -> Result<(), CallError> {
    if inner.backing.kind() == BackingKind::DeviceDax {
        return Ok(());
    }
    let mapped_bytes = inner.offset + inner.geometry().length_bytes;
    match inner.backing.size_now() {
        Ok(now_bytes) if now_bytes < mapped_bytes => Err(CallError::Resized { mapped_bytes, now_bytes }),
        _ => Ok(()),
    }
}
