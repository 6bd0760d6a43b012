//! Copies between private memory and payload that other processes can reach.
//!
//! To the compiler, payload bytes are memory that somebody else may be changing: a copy whose lease has
//! lapsed races with the next writer, and is thrown away by the check that follows it. An ordinary
//! `memcpy` of such bytes would be a data race in the language even when its result is never used, so the
//! copies here are made of instructions that the compiler does not look into (x86-64) or of relaxed
//! atomic loads and stores (elsewhere and under Miri).

/// Copies `source` to shared memory.
///
/// # Safety
/// `target` must be valid for writes of `source.len()` bytes in a mapping that outlives the call, and must
/// not overlap `source`.
pub(crate) unsafe fn to_shared(target: *mut u8, source: &[u8]) {
    // SAFETY: the caller's promise for `target`; `source` is a live slice.
    unsafe { raw(target, source.as_ptr(), source.len()) }
}

/// Copies shared memory to `target`.
///
/// # Safety
/// `source` must be valid for reads of `target.len()` bytes in a mapping that outlives the call, and must
/// not overlap `target`.
pub(crate) unsafe fn from_shared(target: &mut [u8], source: *const u8) {
    // SAFETY: the caller's promise for `source`; `target` is an exclusive live slice.
    unsafe { raw(target.as_mut_ptr(), source, target.len()) }
}

/// # Safety
/// Both ranges valid, not overlapping.
#[cfg(all(target_arch = "x86_64", not(miri)))]
unsafe fn raw(target: *mut u8, source: *const u8, length: usize) {
    // SAFETY: REP MOVSB copies `length` bytes between the caller's valid ranges; the direction flag is clear by
    // the ABI, and the clobbered registers are declared.
    unsafe {
        core::arch::asm!(
            "rep movsb",
            inout("rcx") length => _,
            inout("rdi") target => _,
            inout("rsi") source => _,
            options(nostack, preserves_flags)
        );
    }
}

/// # Safety
/// Both ranges valid, not overlapping.
#[cfg(not(all(target_arch = "x86_64", not(miri))))]
unsafe fn raw(target: *mut u8, source: *const u8, length: usize) {
    use crate::sync::{AtomicU8, Ordering};
    for at in 0..length {
        // SAFETY: `at < length`, inside the caller's source range; a byte is aligned for AtomicU8.
        let from = unsafe { AtomicU8::from_ptr(source.cast_mut().add(at)) };
        // SAFETY: as above for the target range.
        let to = unsafe { AtomicU8::from_ptr(target.add(at)) };
        to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}
