//! x86-64 kernels without a checksum: one loop, in three widths and with two kinds of store.

use core::arch::asm;

/// Bytes of one turn.
pub(super) const TURN_BYTES: usize = 128;

/// Copies a few bytes, in words and then singly.
///
/// # Safety
/// `target` must be valid for writes and `source` for reads of `length` bytes, and they must not overlap.
#[inline]
pub(super) unsafe fn few(target: *mut u8, source: *const u8, length: usize) {
    // SAFETY: every load and store lies below `length` in the caller's ranges; changed registers are declared.
    unsafe {
        asm!(
            "sub {left}, 8",
            "jb 3f",
            "2:",
            "mov {word}, qword ptr [{from}]",
            "mov qword ptr [{to}], {word}",
            "add {from}, 8",
            "add {to}, 8",
            "sub {left}, 8",
            "jae 2b",
            "3:",
            "add {left}, 8",
            "jz 5f",
            "4:",
            "mov {word:l}, byte ptr [{from}]",
            "mov byte ptr [{to}], {word:l}",
            "inc {from}",
            "inc {to}",
            "dec {left}",
            "jnz 4b",
            "5:",
            to = inout(reg) target => _,
            from = inout(reg) source => _,
            left = inout(reg) length => _,
            word = out(reg_abcd) _,
            options(nostack)
        );
    }
}

/// Waits until streaming stores of this thread are as visible as any other store (K3).
#[inline]
pub(super) fn fence() {
    // SAFETY: SFENCE is in every x86-64 and touches no memory.
    unsafe { core::arch::x86_64::_mm_sfence() }
}

macro_rules! turns {
    ($($(#[$doc:meta])* $name:ident: $load:literal, $store:literal, $register:literal, $width:literal, [$($n:literal)*], $last:literal;)*) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        /// `target` must be valid for writes and `source` for reads of `turns` times [`TURN_BYTES`], and they must not
        /// overlap; `turns` is above zero; the processor has the instructions; for streaming, `target` is on a line.
        #[inline]
        pub(super) unsafe fn $name(target: *mut u8, source: *const u8, turns: usize) {
            // SAFETY: loads and stores lie within the caller's ranges; all registers that calls may change are declared.
            unsafe {
                asm!(
                    "2:",
                    $(concat!($load, " ", $register, $n, ", [rsi + ", $n, "*", $width, "]"),)*
                    $(concat!($store, " [rdi + ", $n, "*", $width, "], ", $register, $n),)*
                    "add rsi, 128",
                    "sub rdi, -128",
                    "dec rcx",
                    "jnz 2b",
                    $last,
                    inout("rdi") target => _,
                    inout("rsi") source => _,
                    inout("rcx") turns => _,
                    clobber_abi("sysv64"),
                    options(nostack)
                );
            }
        }
    )*};
}

turns! {
    /// 16-byte vectors, plain stores.
    sse2_plain: "movdqu", "movdqu", "xmm", 16, [0 1 2 3 4 5 6 7], "";
    /// 16-byte vectors, streaming stores.
    sse2_streaming: "movdqu", "movntdq", "xmm", 16, [0 1 2 3 4 5 6 7], "";
    /// 32-byte vectors, plain stores.
    avx2_plain: "vmovdqu", "vmovdqu", "ymm", 32, [0 1 2 3], "vzeroupper";
    /// 32-byte vectors, streaming stores.
    avx2_streaming: "vmovdqu", "vmovntdq", "ymm", 32, [0 1 2 3], "vzeroupper";
    /// 64-byte vectors, plain stores.
    avx512_plain: "vmovdqu64", "vmovdqu64", "zmm", 64, [0 1], "vzeroupper";
    /// 64-byte vectors, streaming stores.
    avx512_streaming: "vmovdqu64", "vmovntdq", "zmm", 64, [0 1], "vzeroupper";
}
