//! Opt-in: a mapping whose pages went away costs the pool, not the process.
//!
//! Touching a page of a file that was cut, or of memory that went bad, raises `SIGBUS`. With
//! [`install`] done, a fault inside a registered range puts private zero pages over the whole
//! range, marks it lost, and lets the program go on. Whoever reads then finds zeros and, before
//! believing them, the mark:
//!
//! * Q1: the mark is set before the zeros are mapped, so whoever saw a zero of ours can see the
//!   mark.
//! * Q2: the handler does what a signal handler may: atomic loads and stores, `mmap`, `madvise`,
//!   `sigaction`; it allocates nothing, takes no lock, and leaves `errno` as it was.
//! * Q3: a place in the table is read by a handler only if its word was `LIVE` with the same
//!   generation before and after its fields were read, so no mixture of two ranges is ever used.
//! * Q4: places remember the process that filled them; in a forked child, where the range may be
//!   somebody else's, they count for nothing.
//! * Q5: faults elsewhere go to the handler that was there before; if there was none, the process
//!   dies as it would have died.
//!
//! What stays fatal: `SIGBUS` while a thread has it blocked, faults inside a system call are errors
//! (`EFAULT`) and not signals, and a device that takes the whole machine with it. Code that installs
//! a handler of its own later and does not chain takes this one out of force.

use std::os::raw::{c_int, c_void};
use std::path::Path;

use super::BackingError;
use super::fork::{ProcessTag, hold_off_fork};
use crate::sync::process::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// Mappings that one process can register at a time.
pub const MAX_RANGES: usize = 256;

const STATE_MASK: u64 = 0b11;
const FREE: u64 = 0;
const FILLING: u64 = 1;
const LIVE: u64 = 2;
const GENERATION_STEP: u64 = 4;

/// One registered range.
struct Place {
    /// State in the low two bits, generation above.
    word: AtomicU64,
    start: AtomicUsize,
    length: AtomicUsize,
    owner: AtomicU64,
    writable: AtomicBool,
    lost: AtomicBool,
}

static PLACES: [Place; MAX_RANGES] = [const {
    Place {
        word: AtomicU64::new(FREE),
        start: AtomicUsize::new(0),
        length: AtomicUsize::new(0),
        owner: AtomicU64::new(0),
        writable: AtomicBool::new(false),
        lost: AtomicBool::new(false),
    }
}; MAX_RANGES];

/// A registered range. Dropping it takes the range out of the table.
#[derive(Debug)]
#[must_use = "the range is watched only while this lives"]
pub struct FaultSlot {
    place: usize,
    tag: ProcessTag,
}

impl FaultSlot {
    /// Whether a fault replaced the range by zeros. Never goes back to false. In a forked child
    /// the answer means nothing, for the child may have put a range of its own in the place (Q4).
    #[inline]
    #[must_use]
    pub fn is_lost(&self) -> bool {
        // ORDERING: Acquire, pairs with the handler's Release (Q1): zeros read before this call
        // are followed by a true mark.
        PLACES[self.place].lost.load(Ordering::Acquire)
    }
}

impl Drop for FaultSlot {
    fn drop(&mut self) {
        if self.tag.is_foreign() {
            // The child's copy of the table: Q4 makes the place dead, and `register` reuses it.
            return;
        }
        let word = &PLACES[self.place].word;
        // Only the owner of a LIVE place changes its word, so load and store need no exchange.
        let live = word.load(Ordering::Relaxed);
        // ORDERING: Release, so that the mark's last reader is done before the place is reused.
        word.store((live & !STATE_MASK) | FREE, Ordering::Release);
    }
}

/// Registers a mapped range, whether or not [`install`] was called yet.
///
/// # Errors
/// [`BackingError::TableFull`] when [`MAX_RANGES`] ranges are registered.
///
/// # Safety
/// Until the answer is dropped, the `length` bytes at `start` (page-aligned) are one mapping of the
/// caller's, which nobody else relies on, and which may be replaced by private zero pages at any
/// time. The answer is dropped before the range is unmapped.
pub unsafe fn register(start: *mut u8, length: usize, writable: bool) -> Result<FaultSlot, BackingError> {
    let tag = ProcessTag::current();
    for (index, place) in PLACES.iter().enumerate() {
        let seen = place.word.load(Ordering::Relaxed);
        let usable = match seen & STATE_MASK {
            FREE => true,
            // Left behind in a forked child by its parent (Q4).
            _ => ProcessTag::from_word(place.owner.load(Ordering::Relaxed)).is_foreign() && seen & STATE_MASK == LIVE,
        };
        if !usable {
            continue;
        }
        let generation = (seen & !STATE_MASK).wrapping_add(GENERATION_STEP);
        // ORDERING: Acquire, pairs with the Release in `drop`.
        let claimed = place.word.compare_exchange(seen, generation | FILLING, Ordering::Acquire, Ordering::Relaxed);
        if claimed.is_err() {
            continue;
        }
        // ORDERING: Release on every field, so that a handler which reads a new field also sees
        // the claim and drops what it read (Q3).
        place.start.store(start as usize, Ordering::Release);
        place.length.store(length, Ordering::Release);
        place.owner.store(tag.to_word(), Ordering::Release);
        place.writable.store(writable, Ordering::Release);
        place.lost.store(false, Ordering::Release);
        // ORDERING: Release, publishes the fields; pairs with the first load in `range_of`.
        place.word.store(generation | LIVE, Ordering::Release);
        return Ok(FaultSlot { place: index, tag });
    }
    Err(BackingError::TableFull { what: "ranges watched by the fault handler", limit: MAX_RANGES })
}

static INSTALLED: AtomicBool = AtomicBool::new(false);
/// The handler before ours (`SIG_DFL` is 0) and its flags.
static PREVIOUS: AtomicUsize = AtomicUsize::new(libc::SIG_DFL);
static PREVIOUS_FLAGS: AtomicUsize = AtomicUsize::new(0);

/// Whether [`install`] was done in this process or in the one it was forked from.
#[must_use]
pub fn is_installed() -> bool {
    INSTALLED.load(Ordering::Acquire)
}

/// Installs the handler for the whole process. Again is no error and changes nothing.
///
/// # Errors
/// [`BackingError::Io`] when the kernel refuses.
pub fn install() -> Result<(), BackingError> {
    // Serves as the lock of this function too: it is never left taken in a child.
    let _held = hold_off_fork();
    if is_installed() {
        return Ok(());
    }
    let refused = || BackingError::last_os("install a SIGBUS handler", Path::new("(this process)"));
    let mut previous = no_action();
    // SAFETY: asks only; the pointer is to a local that outlives the call.
    if unsafe { libc::sigaction(libc::SIGBUS, std::ptr::null(), &mut previous) } != 0 {
        return Err(refused());
    }
    remember(&previous);
    let mut ours = no_action();
    let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) = on_sigbus;
    ours.sa_sigaction = handler as usize;
    ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
    // SAFETY: the handler has the signature that SA_SIGINFO asks for, lives as long as the program,
    // and keeps to Q2; the pointers are to locals that outlive the call.
    if unsafe { libc::sigaction(libc::SIGBUS, &ours, &mut previous) } != 0 {
        return Err(refused());
    }
    // Normally what was seen above; differs if another thread was quicker.
    if previous.sa_sigaction != handler as usize {
        remember(&previous);
    }
    INSTALLED.store(true, Ordering::Release);
    Ok(())
}

fn remember(action: &libc::sigaction) {
    PREVIOUS_FLAGS.store(action.sa_flags as usize, Ordering::Release);
    PREVIOUS.store(action.sa_sigaction, Ordering::Release);
}

fn no_action() -> libc::sigaction {
    // SAFETY: `sigaction` is plain data; zeros are SIG_DFL, no flags, an empty mask.
    unsafe { std::mem::zeroed() }
}

/// The live range of this process that holds `address`.
fn range_of(address: usize) -> Option<(&'static Place, usize, usize, bool)> {
    PLACES.iter().find_map(|place| {
        // ORDERING: Acquire on all: the fields belong to the word before, the word after belongs
        // behind the fields (Q3).
        let word = place.word.load(Ordering::Acquire);
        if word & STATE_MASK != LIVE {
            return None;
        }
        let start = place.start.load(Ordering::Acquire);
        let length = place.length.load(Ordering::Acquire);
        let owner = ProcessTag::from_word(place.owner.load(Ordering::Acquire));
        let writable = place.writable.load(Ordering::Acquire);
        let unchanged = place.word.load(Ordering::Relaxed) == word;
        let inside = address.wrapping_sub(start) < length;
        (unchanged && inside && !owner.is_foreign()).then_some((place, start, length, writable))
    })
}

extern "C" fn on_sigbus(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: errno is a thread-local that always exists; the pointer is used on this thread only.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    let errno_before = unsafe { *errno };
    // SAFETY: the kernel hands a valid siginfo to a SA_SIGINFO handler, alive until it returns.
    let details = unsafe { &*info };
    let code = details.si_code;
    // SAFETY: the field is there, whatever the code; for a code below 1 (sent by a process) it
    // means another thing, and `replace` is not asked then.
    let address = unsafe { details.si_addr() } as usize;
    let handled = matches!(code, BUS_ADRERR | BUS_MCEERR_AR | BUS_MCEERR_AO) && replace(address);
    if !handled {
        chain(signal, code, info, context);
    }
    // SAFETY: as above.
    unsafe { *errno = errno_before };
}

const BUS_ADRERR: c_int = 2;
const BUS_MCEERR_AR: c_int = 4;
const BUS_MCEERR_AO: c_int = 5;

fn replace(address: usize) -> bool {
    let Some((place, start, length, writable)) = range_of(address) else {
        return false;
    };
    // ORDERING: Release, pairs with `is_lost`; before the mapping (Q1).
    place.lost.store(true, Ordering::Release);
    let protection = if writable { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_READ };
    // SAFETY: the range is registered and the faulting thread is inside it, so by `register`'s
    // contract it is still mapped, is its owner's alone, and may be replaced by zero pages.
    let mapped = unsafe {
        libc::mmap(
            start as *mut c_void,
            length,
            protection,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE,
            -1,
            0,
        )
    };
    if mapped == libc::MAP_FAILED {
        return false;
    }
    // SAFETY: the range just mapped. A refusal would only let a child inherit zeros.
    unsafe { libc::madvise(mapped, length, libc::MADV_DONTFORK) };
    true
}

/// Hands a fault that is not ours to the handler before (Q5).
fn chain(signal: c_int, code: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    let previous = PREVIOUS.load(Ordering::Acquire);
    let flags = PREVIOUS_FLAGS.load(Ordering::Acquire) as c_int;
    let was_sent = code <= 0;
    match previous {
        libc::SIG_IGN if was_sent => {}
        libc::SIG_DFL | libc::SIG_IGN => {
            let default = no_action();
            // SAFETY: the default action needs no code of ours; the pointer is to a local.
            unsafe { libc::sigaction(signal, &default, std::ptr::null_mut()) };
            if was_sent {
                // A fault happens again by itself once we return, a signal that was sent does not.
                // SAFETY: raising a signal that this process may send itself.
                unsafe { libc::raise(signal) };
            }
        }
        handler if flags & libc::SA_SIGINFO != 0 => {
            // SAFETY: the previous owner registered this address with SA_SIGINFO, so it has this
            // signature.
            let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) =
                unsafe { std::mem::transmute(handler) };
            handler(signal, info, context);
        }
        handler => {
            // SAFETY: the previous owner registered this address without SA_SIGINFO, so it takes
            // the signal's number alone.
            let handler: extern "C" fn(c_int) = unsafe { std::mem::transmute(handler) };
            handler(signal);
        }
    }
}
