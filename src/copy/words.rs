//! The portable kernel: relaxed atomic loads and stores, of whole words where both sides agree on where words begin.

use crate::sync::{AtomicU8, AtomicU64, Ordering};

const WORD_BYTES: usize = size_of::<u64>();

/// Copies.
///
/// # Safety
/// `target` must be valid for writes and `source` for reads of `length` bytes, and they must not overlap.
pub(super) unsafe fn copy(target: *mut u8, source: *const u8, length: usize) {
    let agree = target.addr().wrapping_sub(source.addr()).is_multiple_of(WORD_BYTES);
    let head = if agree { (target.addr().wrapping_neg() % WORD_BYTES).min(length) } else { length };
    let words = (length - head) / WORD_BYTES;
    // ORDERING: Relaxed throughout: the bytes decide nothing by themselves; the word that publishes or protects them orders
    // the whole copy.
    let byte = |at: usize| {
        // SAFETY: `at < length`, inside the caller's source range; a byte is aligned for AtomicU8.
        let from = unsafe { AtomicU8::from_ptr(source.cast_mut().wrapping_add(at)) };
        // SAFETY: as above for the target range.
        let to = unsafe { AtomicU8::from_ptr(target.wrapping_add(at)) };
        to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
    };
    (0..head).for_each(byte);
    for word in 0..words {
        let at = head + word * WORD_BYTES;
        // SAFETY: a word from `at` on lies inside the caller's source range, and is aligned, as the target's is.
        let from = unsafe { AtomicU64::from_ptr(source.cast_mut().wrapping_add(at).cast()) };
        // SAFETY: as above for the target range, aligned by the choice of `head`.
        let to = unsafe { AtomicU64::from_ptr(target.wrapping_add(at).cast()) };
        to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
    }
    (head + words * WORD_BYTES..length).for_each(byte);
}
