//! Visibility barriers, by regime.
//!
//! A region says what it needs from its memory; the session chooses one of these types once, at open,
//! and every protocol is generic over it. The places where a barrier belongs are calls in the protocol
//! text (`R::write_back…`), whatever the regime, so that a new regime is a new type here and not a
//! rewrite there.
//!
//! | type | regime | what the calls do |
//! | --- | --- | --- |
//! | [`OneHost`] | coherent, one host | nothing: no instruction at all |
//! | [`ManyHosts`] | coherent, many hosts | write lines back, so that a host that dies takes no published line along |
//!
//! `coherent-header` and `incoherent` are refused by name at open until they exist.

/// The barriers of a regime. Order matters at each place; `layout/FORMAT.md` lists them.
pub(crate) trait Regime: Copy + Default + Send + Sync + 'static {
    /// Writes the cache lines of `what` back to memory and waits until that is done.
    fn write_back<T>(what: &T);

    /// Writes the cache lines of a byte range back to memory and waits until that is done.
    ///
    /// # Safety
    /// The range must be mapped.
    unsafe fn write_back_range(start: *const u8, length: usize);
}

/// Coherent, one host: no barrier anywhere.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct OneHost;

impl Regime for OneHost {
    #[inline(always)]
    fn write_back<T>(_: &T) {}

    #[inline(always)]
    unsafe fn write_back_range(_: *const u8, _: usize) {}
}

/// Coherent, many hosts: what is published must have left the caches of its host.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ManyHosts;

#[cfg(not(maru_loom))]
impl Regime for ManyHosts {
    fn write_back<T>(what: &T) {
        let start = core::ptr::from_ref(what).cast::<u8>();
        // SAFETY: the range is the referenced value, which is mapped as long as the reference lives.
        unsafe { Self::write_back_range(start, size_of::<T>()) }
    }

    unsafe fn write_back_range(start: *const u8, length: usize) {
        let first = start as usize & !63;
        let end = start as usize + length;
        for line in (first..end).step_by(64) {
            // SAFETY: `line` holds a byte of the caller's mapped range (lines do not span pages).
            unsafe { write_back_line(line as *const u8) }
        }
        store_fence();
    }
}

#[cfg(maru_loom)]
impl Regime for ManyHosts {
    fn write_back<T>(_: &T) {}
    unsafe fn write_back_range(_: *const u8, _: usize) {}
}

/// # Safety
/// `line` must be mapped.
#[cfg(all(target_arch = "x86_64", not(maru_loom)))]
unsafe fn write_back_line(line: *const u8) {
    // CLFLUSH is in every x86-64; unlike CLWB it also drops the line, which costs the next reader of this
    // host a miss and nothing else. It is ordered with stores to the line by the architecture.
    // SAFETY: the caller keeps the line mapped; flushing has no other effect on the program.
    unsafe { core::arch::x86_64::_mm_clflush(line) }
}

#[cfg(all(target_arch = "x86_64", not(maru_loom)))]
fn store_fence() {
    // SAFETY: SSE is part of x86-64; MFENCE touches no memory.
    unsafe { core::arch::x86_64::_mm_mfence() }
}

/// # Safety
/// `line` must be mapped.
#[cfg(all(target_arch = "aarch64", not(maru_loom)))]
unsafe fn write_back_line(line: *const u8) {
    // SAFETY: DC CVAC on a mapped address cleans one line and changes nothing else.
    unsafe { core::arch::asm!("dc cvac, {}", in(reg) line, options(nostack, preserves_flags)) }
}

#[cfg(all(target_arch = "aarch64", not(maru_loom)))]
fn store_fence() {
    // SAFETY: DSB SY waits for earlier cache maintenance and touches no register or memory.
    unsafe { core::arch::asm!("dsb sy", options(nostack, preserves_flags)) }
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!("Maru needs x86-64 or AArch64: the write-back of a cache line is architecture-specific");
