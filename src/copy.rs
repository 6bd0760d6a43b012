//! Copies between private memory and payload that other processes can reach.
//!
//! To the compiler, payload bytes are memory that somebody else may be changing: a copy whose lease has lapsed races
//! with the next writer, and is thrown away by the check that follows it. Private bytes may be changing too: they come
//! from other languages, whose threads know no borrows. An ordinary `memcpy` of such bytes would be a data race in the
//! language even when its result is never used, so the copies here are made of instructions that the compiler does not
//! look into (x86-64) or of relaxed atomic loads and stores (elsewhere and under Miri).
//!
//! * K1: every byte of a copy is loaded once, and what is stored and what is hashed is that one loaded value. So the
//!   checksum is that of the bytes that landed, however the source changes meanwhile.
//! * K2: no byte outside the two ranges is loaded or stored.
//! * K3: streaming stores are fenced before the copy returns. Whoever publishes the bytes afterwards, by any store,
//!   publishes bytes that are there.
//!
//! Streaming (non-temporal) stores do not read the line that they overwrite, and leave the caches to others. They are
//! right for payload, which is read next by another process and much later, and for buffers that a device copies on
//! next. Plain stores are right for what this processor reads next, and for copies that are over before streaming pays.
//! No kernel uses `rep movsb`: where the target lies 8 to 24 bytes behind the source modulo 4096, as a large buffer from
//! `malloc` does, it falls to a third of its speed on some processors.

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod fold;
mod words;
#[cfg(all(target_arch = "x86_64", not(miri)))]
mod x86;

use maru_layout::object::PayloadCrc;

/// Shorter copies are stored plainly: they gain little from streaming, and lose what the cache has of the target.
const STREAM_FROM_BYTES: usize = 4096;
/// A cache line, where streaming begins and ends.
#[cfg(all(target_arch = "x86_64", not(miri)))]
const LINE_BYTES: usize = 64;
/// What goes through a private buffer at once, where no kernel hashes what it has in its registers.
const PIECE_BYTES: usize = 4096;

/// How the target is stored to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stores {
    /// Into the cache.
    Plain,
    /// Past the cache.
    Streaming,
}

/// Instructions that a copy is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kernel {
    /// Relaxed atomic words: every processor, and Miri.
    #[cfg_attr(all(target_arch = "x86_64", not(miri), not(test)), expect(dead_code, reason = "x86-64 has better"))]
    Words,
    /// 16-byte vectors; hashed piece by piece through a private buffer.
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    Sse2,
    /// 16-byte vectors; hashed in registers by carry-less multiplication.
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    Clmul,
    /// 32-byte vectors; hashed as [`Kernel::Clmul`].
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    Avx2,
    /// 64-byte vectors; hashed in registers by carry-less multiplication of four lanes at once.
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    Avx512,
}

impl Kernel {
    /// All of this build, slowest first.
    #[cfg(test)]
    pub(crate) const ALL: &[Self] = &[
        Self::Words,
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        Self::Sse2,
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        Self::Clmul,
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        Self::Avx2,
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        Self::Avx512,
    ];

    /// Whether this processor has the instructions.
    #[cfg(any(test, all(target_arch = "x86_64", not(miri))))]
    pub(crate) fn is_here(self) -> bool {
        match self {
            Self::Words => true,
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            Self::Sse2 => true,
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            Self::Clmul => is_x86_feature_detected!("pclmulqdq"),
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            Self::Avx2 => is_x86_feature_detected!("avx2") && Self::Clmul.is_here(),
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            Self::Avx512 => is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("vpclmulqdq"),
        }
    }

    /// The best of this processor. Asks the processor once; later calls look at what it answered.
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    fn best() -> Self {
        [Self::Avx512, Self::Avx2, Self::Clmul].into_iter().find(|kernel| kernel.is_here()).unwrap_or(Self::Sse2)
    }

    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    fn best() -> Self {
        Self::Words
    }

    /// The one to copy with.
    fn chosen() -> Self {
        #[cfg(test)]
        if let Some(forced) = forced::get() {
            return forced;
        }
        Self::best()
    }
}

/// Copies `source` to shared memory.
///
/// # Safety
/// `target` must be valid for writes of `source.len()` bytes in a mapping that outlives the call, and must
/// not overlap `source`.
pub(crate) unsafe fn to_shared(target: *mut u8, source: &[u8]) {
    // SAFETY: the caller's promise for `target`; `source` is a live slice.
    unsafe { copy(target, source.as_ptr(), source.len(), Stores::Plain) }
}

/// Copies shared memory to `target`.
///
/// # Safety
/// `source` must be valid for reads of `target.len()` bytes in a mapping that outlives the call, and must
/// not overlap `target`.
pub(crate) unsafe fn from_shared(target: &mut [u8], source: *const u8) {
    // SAFETY: the caller's promise for `source`; `target` is an exclusive live slice.
    unsafe { copy(target.as_mut_ptr(), source, target.len(), Stores::Plain) }
}

/// Copies.
///
/// # Safety
/// `target` must be valid for writes and `source` for reads of `length` bytes, and they must not overlap. Others may
/// load and store there meanwhile.
pub(crate) unsafe fn copy(target: *mut u8, source: *const u8, length: usize, stores: Stores) {
    // SAFETY: the caller's promise.
    unsafe { copy_by(Kernel::chosen(), target, source, length, stores_for(length, stores)) }
}

/// Copies, and adds the bytes that landed to `crc` (K1).
///
/// # Safety
/// As [`copy`].
pub(crate) unsafe fn copy_hashed(
    target: *mut u8,
    source: *const u8,
    length: usize,
    stores: Stores,
    crc: &mut PayloadCrc,
) {
    // SAFETY: the caller's promise.
    unsafe { copy_hashed_by(Kernel::chosen(), target, source, length, stores_for(length, stores), crc) }
}

/// A copy in parts: what lies before the first whole line of the target, whole turns of a loop, the rest.
#[cfg(all(target_arch = "x86_64", not(miri)))]
fn parts(target: *mut u8, length: usize, stores: Stores, turn_bytes: usize) -> (usize, usize) {
    let head = match stores {
        Stores::Plain => 0,
        Stores::Streaming => target.addr().wrapping_neg() % LINE_BYTES,
    };
    // A copy that ends before the line does is all head, and then nothing is left for turns.
    let head = head.min(length);
    (head, (length - head) / turn_bytes)
}

fn stores_for(length: usize, wanted: Stores) -> Stores {
    if length < STREAM_FROM_BYTES { Stores::Plain } else { wanted }
}

/// # Safety
/// As [`copy`]; the processor has the kernel's instructions.
unsafe fn copy_by(kernel: Kernel, target: *mut u8, source: *const u8, length: usize, stores: Stores) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        let turns = match (kernel, stores) {
            // SAFETY: the caller's promise.
            (Kernel::Words, _) => return unsafe { words::copy(target, source, length) },
            (Kernel::Sse2 | Kernel::Clmul, Stores::Plain) => x86::sse2_plain,
            (Kernel::Sse2 | Kernel::Clmul, Stores::Streaming) => x86::sse2_streaming,
            (Kernel::Avx2, Stores::Plain) => x86::avx2_plain,
            (Kernel::Avx2, Stores::Streaming) => x86::avx2_streaming,
            (Kernel::Avx512, Stores::Plain) => x86::avx512_plain,
            (Kernel::Avx512, Stores::Streaming) => x86::avx512_streaming,
        };
        let (head, count) = parts(target, length, stores, x86::TURN_BYTES);
        // SAFETY: `head` is at most `length`.
        unsafe { x86::few(target, source, head) }
        let (at, bytes) = (head, count * x86::TURN_BYTES);
        if count > 0 {
            // SAFETY: `at + bytes` is at most `length`; a streaming target is on a line there; `count` is above zero.
            unsafe { turns(target.wrapping_add(at), source.wrapping_add(at), count) }
        }
        let at = at + bytes;
        // SAFETY: what is left of `length`.
        unsafe { x86::few(target.wrapping_add(at), source.wrapping_add(at), length - at) }
        if stores == Stores::Streaming {
            x86::fence();
        }
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    {
        let (Kernel::Words, _) = (kernel, stores);
        // SAFETY: the caller's promise.
        unsafe { words::copy(target, source, length) }
    }
}

/// # Safety
/// As [`copy_by`].
unsafe fn copy_hashed_by(
    kernel: Kernel,
    target: *mut u8,
    source: *const u8,
    length: usize,
    stores: Stores,
    crc: &mut PayloadCrc,
) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        type Turns = unsafe fn(*mut u8, *const u8, usize, u32) -> PayloadCrc;
        let fused: Option<(Turns, usize)> = match (kernel, stores) {
            (Kernel::Words | Kernel::Sse2, _) => None,
            (Kernel::Clmul | Kernel::Avx2, Stores::Plain) => Some((fold::four_plain, fold::FOUR_BYTES)),
            (Kernel::Clmul | Kernel::Avx2, Stores::Streaming) => Some((fold::four_streaming, fold::FOUR_BYTES)),
            (Kernel::Avx512, Stores::Plain) => Some((fold::sixteen_plain, fold::SIXTEEN_BYTES)),
            (Kernel::Avx512, Stores::Streaming) => Some((fold::sixteen_streaming, fold::SIXTEEN_BYTES)),
        };
        if let Some((turns, turn_bytes)) = fused {
            let (head, count) = parts(target, length, stores, turn_bytes);
            // SAFETY: `head` is at most `length`.
            unsafe { through_buffer(kernel, target, source, head, Stores::Plain, crc) }
            let (at, bytes) = (head, count * turn_bytes);
            if count > 0 {
                // SAFETY: `at + bytes` is at most `length`; a streaming target is on a line there; `count` is above zero.
                *crc = unsafe { turns(target.wrapping_add(at), source.wrapping_add(at), count, crc.finish()) };
            }
            let at = at + bytes;
            let (target, source) = (target.wrapping_add(at), source.wrapping_add(at));
            // SAFETY: what is left of `length`.
            unsafe { through_buffer(kernel, target, source, length - at, Stores::Plain, crc) }
            if stores == Stores::Streaming {
                x86::fence();
            }
            return;
        }
    }
    // SAFETY: the caller's promise.
    unsafe { through_buffer(kernel, target, source, length, stores, crc) }
}

/// Piece by piece into a private buffer, hashed there, and out again: what is hashed cannot change before it lands.
///
/// # Safety
/// As [`copy_by`].
unsafe fn through_buffer(
    kernel: Kernel,
    target: *mut u8,
    source: *const u8,
    length: usize,
    stores: Stores,
    crc: &mut PayloadCrc,
) {
    #[repr(align(64))]
    struct Buffer([core::mem::MaybeUninit<u8>; PIECE_BYTES]);
    let mut buffer = Buffer([core::mem::MaybeUninit::uninit(); PIECE_BYTES]);
    let mut at = 0;
    while at < length {
        let bytes = PIECE_BYTES.min(length - at);
        let private = buffer.0.as_mut_ptr().cast::<u8>();
        // SAFETY: `at + bytes` is at most `length`, and the buffer is as long as a piece.
        unsafe { copy_by(kernel, private, source.wrapping_add(at), bytes, Stores::Plain) }
        // SAFETY: that many bytes of the buffer have just been stored to, and only this thread reaches them.
        crc.update(unsafe { core::slice::from_raw_parts(private, bytes) });
        // SAFETY: as for the way in.
        unsafe { copy_by(kernel, target.wrapping_add(at), private, bytes, stores) }
        at += bytes;
    }
}

#[cfg(test)]
mod tests;

/// The kernel that a test wants, whatever the processor would choose.
#[cfg(test)]
pub(crate) mod forced {
    use super::Kernel;
    use core::cell::Cell;

    thread_local!(static FORCED: Cell<Option<Kernel>> = const { Cell::new(None) });

    pub(super) fn get() -> Option<Kernel> {
        FORCED.get()
    }

    /// Runs `body` with every copy of this thread made by `kernel`.
    pub(crate) fn with<T>(kernel: Kernel, body: impl FnOnce() -> T) -> T {
        FORCED.set(Some(kernel));
        let result = body();
        FORCED.set(None);
        result
    }
}
