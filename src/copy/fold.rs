//! Copies that hash what they hold in their registers.
//!
//! A CRC is the remainder of the message, read as a polynomial over GF(2), by the CRC's own. A remainder does not change
//! when bytes far ahead are folded into bytes far behind: 128 bits times `x^distance`, reduced, are added to the 128 bits
//! that lie so far behind. That takes two carry-less multiplications for 16 bytes, while the very same registers are
//! stored: no byte is read twice (K1), and the copy waits for memory anyway.
//!
//! The loops ask for the source 2 KiB ahead: the multiplications fill the processor's window, so that it sees less far
//! ahead by itself than a bare copy does (a quarter of the speed from cold memory). Asking faults nowhere and loads nothing
//! (K2 holds). Plain stores ask for the lines of the target, too, 1 KiB ahead, to own them: for the same reason the
//! processor would begin to fetch them too late. From and to cold memory that is a fifth faster, and a tenth where all of
//! it is in the second-level cache.
//!
//! A loop keeps as many bytes as one turn moves. They are what is left of the message at the end, and are hashed the
//! ordinary way.

use core::arch::asm;

use maru_layout::object::PayloadCrc;

/// Bytes of one turn of four 128-bit lanes.
pub(super) const FOUR_BYTES: usize = 64;
/// Bytes of one turn of sixteen 128-bit lanes.
pub(super) const SIXTEEN_BYTES: usize = 256;

/// `x^power` modulo the polynomial of CRC-32, the coefficient of `x^0` in the highest bit, times two: with bits in that
/// order, a carry-less product comes out one place too low.
const fn power_of_x(power: u32) -> u64 {
    const POLYNOMIAL: u32 = 0xedb8_8320;
    let mut remainder = 1_u32 << 31;
    let mut done = 0;
    while done < power {
        let overflow = remainder & 1;
        remainder >>= 1;
        if overflow == 1 {
            remainder ^= POLYNOMIAL;
        }
        done += 1;
    }
    (remainder as u64) << 1
}

/// What the two halves of a lane are multiplied with to fold it `bytes` further: the low half holds the higher powers.
const fn distance(bytes: usize) -> [u64; 2] {
    let bits = bytes as u32 * 8;
    [power_of_x(bits + 32), power_of_x(bits - 32)]
}

static FOUR: [u64; 2] = distance(FOUR_BYTES);
static SIXTEEN: [u64; 2] = distance(SIXTEEN_BYTES);

/// The state of a checksum is the remainder so far, added to the first four bytes that follow; this is that addition
/// undone, the value with which a hasher starts at the state zero.
const STATE_ZERO: u32 = !0;

fn of_rest(rest: &[u8]) -> PayloadCrc {
    let mut crc = PayloadCrc::resumed(STATE_ZERO);
    crc.update(rest);
    crc
}

macro_rules! four {
    ($($(#[$doc:meta])* $name:ident: $store:literal $(, own $own:literal)?;)*) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        /// `target` must be valid for writes and `source` for reads of `turns` times [`FOUR_BYTES`], and they must not
        /// overlap; `turns` is above zero; the processor has PCLMULQDQ; for streaming, `target` is on a line.
        pub(super) unsafe fn $name(target: *mut u8, source: *const u8, turns: usize, crc: u32) -> PayloadCrc {
            let mut rest = [0_u8; FOUR_BYTES];
            // SAFETY: loads and stores lie within the caller's ranges, `FOUR` and `rest`; all registers that calls may
            // change are declared.
            unsafe {
                asm!(
                    "movdqu xmm12, xmmword ptr [rdx]",
                    "movd xmm8, eax",
                    "movdqu xmm0, xmmword ptr [rsi]",
                    "movdqu xmm1, xmmword ptr [rsi + 16]",
                    "movdqu xmm2, xmmword ptr [rsi + 32]",
                    "movdqu xmm3, xmmword ptr [rsi + 48]",
                    concat!($store, " xmmword ptr [rdi], xmm0"),
                    concat!($store, " xmmword ptr [rdi + 16], xmm1"),
                    concat!($store, " xmmword ptr [rdi + 32], xmm2"),
                    concat!($store, " xmmword ptr [rdi + 48], xmm3"),
                    "pxor xmm0, xmm8",
                    "jmp 3f",
                    "2:",
                    "prefetcht0 [rsi + 2048]",
                    $(concat!($own, " [rdi + 1024]"),)?
                    "movdqu xmm4, xmmword ptr [rsi]",
                    "movdqu xmm5, xmmword ptr [rsi + 16]",
                    "movdqu xmm6, xmmword ptr [rsi + 32]",
                    "movdqu xmm7, xmmword ptr [rsi + 48]",
                    concat!($store, " xmmword ptr [rdi], xmm4"),
                    concat!($store, " xmmword ptr [rdi + 16], xmm5"),
                    concat!($store, " xmmword ptr [rdi + 32], xmm6"),
                    concat!($store, " xmmword ptr [rdi + 48], xmm7"),
                    "movdqa xmm8, xmm0",
                    "movdqa xmm9, xmm1",
                    "movdqa xmm10, xmm2",
                    "movdqa xmm11, xmm3",
                    "pclmulqdq xmm0, xmm12, 0x00",
                    "pclmulqdq xmm1, xmm12, 0x00",
                    "pclmulqdq xmm2, xmm12, 0x00",
                    "pclmulqdq xmm3, xmm12, 0x00",
                    "pclmulqdq xmm8, xmm12, 0x11",
                    "pclmulqdq xmm9, xmm12, 0x11",
                    "pclmulqdq xmm10, xmm12, 0x11",
                    "pclmulqdq xmm11, xmm12, 0x11",
                    "pxor xmm0, xmm4",
                    "pxor xmm1, xmm5",
                    "pxor xmm2, xmm6",
                    "pxor xmm3, xmm7",
                    "pxor xmm0, xmm8",
                    "pxor xmm1, xmm9",
                    "pxor xmm2, xmm10",
                    "pxor xmm3, xmm11",
                    "3:",
                    "add rsi, 64",
                    "add rdi, 64",
                    "dec rcx",
                    "jnz 2b",
                    "movdqu xmmword ptr [r8], xmm0",
                    "movdqu xmmword ptr [r8 + 16], xmm1",
                    "movdqu xmmword ptr [r8 + 32], xmm2",
                    "movdqu xmmword ptr [r8 + 48], xmm3",
                    inout("rdi") target => _,
                    inout("rsi") source => _,
                    inout("rcx") turns => _,
                    in("rdx") FOUR.as_ptr(),
                    in("r8") rest.as_mut_ptr(),
                    in("eax") !crc,
                    clobber_abi("sysv64"),
                    options(nostack)
                );
            }
            of_rest(&rest)
        }
    )*};
}

four! {
    /// Four lanes, plain stores.
    four_plain: "movdqu", own "prefetchw";
    /// Four lanes, streaming stores.
    four_streaming: "movntdq";
}

macro_rules! sixteen {
    ($($(#[$doc:meta])* $name:ident: $store:literal $(, own $own:literal)?;)*) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        /// `target` must be valid for writes and `source` for reads of `turns` times [`SIXTEEN_BYTES`], and they must
        /// not overlap; `turns` is above zero; the processor has AVX512F and VPCLMULQDQ; for streaming, `target` is on a
        /// line.
        pub(super) unsafe fn $name(target: *mut u8, source: *const u8, turns: usize, crc: u32) -> PayloadCrc {
            let mut rest = [0_u8; SIXTEEN_BYTES];
            // SAFETY: loads and stores lie within the caller's ranges, `SIXTEEN` and `rest`; all registers that calls may
            // change are declared.
            unsafe {
                asm!(
                    "vbroadcasti32x4 zmm12, xmmword ptr [rdx]",
                    "vmovd xmm8, eax",
                    "vmovdqu64 zmm0, zmmword ptr [rsi]",
                    "vmovdqu64 zmm1, zmmword ptr [rsi + 64]",
                    "vmovdqu64 zmm2, zmmword ptr [rsi + 128]",
                    "vmovdqu64 zmm3, zmmword ptr [rsi + 192]",
                    concat!($store, " zmmword ptr [rdi], zmm0"),
                    concat!($store, " zmmword ptr [rdi + 64], zmm1"),
                    concat!($store, " zmmword ptr [rdi + 128], zmm2"),
                    concat!($store, " zmmword ptr [rdi + 192], zmm3"),
                    "vpxorq zmm0, zmm0, zmm8",
                    "jmp 3f",
                    "2:",
                    "prefetcht0 [rsi + 2048]",
                    "prefetcht0 [rsi + 2112]",
                    "prefetcht0 [rsi + 2176]",
                    "prefetcht0 [rsi + 2240]",
                    $(
                        concat!($own, " [rdi + 1024]"),
                        concat!($own, " [rdi + 1088]"),
                        concat!($own, " [rdi + 1152]"),
                        concat!($own, " [rdi + 1216]"),
                    )?
                    "vmovdqu64 zmm4, zmmword ptr [rsi]",
                    "vmovdqu64 zmm5, zmmword ptr [rsi + 64]",
                    "vmovdqu64 zmm6, zmmword ptr [rsi + 128]",
                    "vmovdqu64 zmm7, zmmword ptr [rsi + 192]",
                    concat!($store, " zmmword ptr [rdi], zmm4"),
                    concat!($store, " zmmword ptr [rdi + 64], zmm5"),
                    concat!($store, " zmmword ptr [rdi + 128], zmm6"),
                    concat!($store, " zmmword ptr [rdi + 192], zmm7"),
                    "vpclmulqdq zmm8, zmm0, zmm12, 0x00",
                    "vpclmulqdq zmm9, zmm1, zmm12, 0x00",
                    "vpclmulqdq zmm10, zmm2, zmm12, 0x00",
                    "vpclmulqdq zmm11, zmm3, zmm12, 0x00",
                    "vpclmulqdq zmm0, zmm0, zmm12, 0x11",
                    "vpclmulqdq zmm1, zmm1, zmm12, 0x11",
                    "vpclmulqdq zmm2, zmm2, zmm12, 0x11",
                    "vpclmulqdq zmm3, zmm3, zmm12, 0x11",
                    "vpternlogq zmm0, zmm8, zmm4, 0x96",
                    "vpternlogq zmm1, zmm9, zmm5, 0x96",
                    "vpternlogq zmm2, zmm10, zmm6, 0x96",
                    "vpternlogq zmm3, zmm11, zmm7, 0x96",
                    "3:",
                    "add rsi, 256",
                    "add rdi, 256",
                    "dec rcx",
                    "jnz 2b",
                    "vmovdqu64 zmmword ptr [r8], zmm0",
                    "vmovdqu64 zmmword ptr [r8 + 64], zmm1",
                    "vmovdqu64 zmmword ptr [r8 + 128], zmm2",
                    "vmovdqu64 zmmword ptr [r8 + 192], zmm3",
                    "vzeroupper",
                    inout("rdi") target => _,
                    inout("rsi") source => _,
                    inout("rcx") turns => _,
                    in("rdx") SIXTEEN.as_ptr(),
                    in("r8") rest.as_mut_ptr(),
                    in("eax") !crc,
                    clobber_abi("sysv64"),
                    options(nostack)
                );
            }
            of_rest(&rest)
        }
    )*};
}

sixteen! {
    /// Sixteen lanes, plain stores.
    sixteen_plain: "vmovdqu64", own "prefetchw";
    /// Sixteen lanes, streaming stores.
    sixteen_streaming: "vmovntdq";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn powers_are_those_that_everybody_publishes() {
        // Folding by 512 bits, as in Intel's paper and in Linux.
        assert_eq!(FOUR, [0x1_5444_2bd4, 0x1_c6e4_1596]);
    }
}
