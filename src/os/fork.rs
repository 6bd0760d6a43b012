//! Fork: knowing that it happened, and holding it off for a moment.
//!
//! A forked child inherits the handles of its parent as bytes, but neither the shared mappings
//! (`MADV_DONTFORK`) nor the right to act as the parent's session. One private page answers both
//! questions. The kernel hands it to the child as zeros (`MADV_WIPEONFORK`), whichever way the
//! child was made:
//!
//! * F1: `number` is 0 until somebody asks, then random for the life of the process; a handle that
//!   remembers another number belongs to another process. One relaxed load, no system call.
//! * F2: `gate` is the mutex that [`hold_off_fork`] holds and `pthread_atfork`'s prepare step
//!   waits for. It lies in the wiped page, so a child always starts with an open gate, whoever held
//!   it: no dead lock in the child.
//! * F3: the gate is counted per thread, so it may be taken again by the thread that has it, and a
//!   thread that forks while it holds the gate does not wait for itself.
//! * F4: descriptors that must not outlive the fork are kept in `CloseInChild` places and closed
//!   by the child's handler before the child runs on.
//!
//! What this cannot see: a raw `clone(2)` or `vfork` runs no handlers, so F2 and F4 do not bind it
//! (F1 does, for `clone` without `CLONE_VM`). `posix_spawn` and `std::process::Command` run none
//! either, but their child executes at once, and the descriptors are `O_CLOEXEC`.

use std::cell::{Cell, UnsafeCell};
use std::marker::PhantomData;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

use super::identity::random_bytes;
use crate::sync::process::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// The page of F1 and F2.
#[repr(C)]
struct Page {
    number: AtomicU64,
    gate: UnsafeCell<libc::pthread_mutex_t>,
}

// SAFETY: `number` is an atomic. `gate` is touched only through `pthread_mutex_lock` and
// `pthread_mutex_unlock`, which may be called from any thread. No other process sees the page: it
// is private memory.
unsafe impl Sync for Page {}

/// Serves where the kernel has no page for us or knows no `MADV_WIPEONFORK` (before 4.14); the
/// number of the process is then its pid.
static FALLBACK: Page = Page { number: AtomicU64::new(0), gate: UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER) };

/// Address of the page, 0 until it was first needed.
static PAGE: AtomicUsize = AtomicUsize::new(0);

fn page() -> &'static Page {
    // ORDERING: Acquire, so that the zeros of a page mapped by another thread are seen; pairs with
    // the AcqRel exchange in `make_page`.
    let address = PAGE.load(Ordering::Acquire);
    if address == 0 {
        return make_page();
    }
    // SAFETY: PAGE holds 0 or the address of a page that `make_page` mapped (or of FALLBACK),
    // which is never unmapped, is aligned to a page, and as zeros or as left by its own methods is
    // a valid `Page` (an all-zero mutex is PTHREAD_MUTEX_INITIALIZER on Linux, glibc and musl).
    unsafe { &*(address as *const Page) }
}

#[cold]
fn make_page() -> &'static Page {
    let length = super::page_bytes() as usize;
    // SAFETY: a new private anonymous mapping at an address of the kernel's choice touches nothing
    // that exists.
    let new = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            length,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    let mut chosen = &raw const FALLBACK as usize;
    if new != libc::MAP_FAILED {
        // SAFETY: the range is the mapping made above, known to nobody else.
        let wiped = unsafe { libc::madvise(new, length, libc::MADV_WIPEONFORK) };
        if wiped == 0 {
            chosen = new as usize;
        }
    }
    // Two threads may come here at once; a lock would be a lock that a child can inherit taken, so
    // the first to store wins and the other throws its page away.
    // ORDERING: AcqRel; Release publishes nothing but zeros, Acquire pairs with the winner's.
    let kept = match PAGE.compare_exchange(0, chosen, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => chosen,
        Err(other) => other,
    };
    if new != libc::MAP_FAILED && kept != new as usize {
        // SAFETY: the mapping made above was not published, so nobody holds its address.
        unsafe { libc::munmap(new, length) };
    }
    page()
}

impl Page {
    /// The number of this process: F1.
    fn number(&self) -> u64 {
        // Relaxed: the number stands for itself; nothing is published with it.
        let seen = self.number.load(Ordering::Relaxed);
        if std::ptr::eq(self, &FALLBACK) {
            return u64::from(std::process::id());
        }
        seen
    }

    fn number_or_new(&self) -> u64 {
        let seen = self.number();
        if seen != 0 {
            return seen;
        }
        let fresh = u64::from_le_bytes(random_bytes()) | 1;
        match self.number.compare_exchange(0, fresh, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => fresh,
            Err(other) => other,
        }
    }
}

/// Remembers which process made a handle.
///
/// ```
/// let tag = maru::os::fork::ProcessTag::current();
/// assert!(!tag.is_foreign()); // in a child made by fork() it would be
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessTag {
    number: u64,
}

impl ProcessTag {
    /// The tag of the calling process.
    #[must_use]
    pub fn current() -> Self {
        Self { number: page().number_or_new() }
    }

    /// Whether the calling process is another one than the one that made the tag. Two loads, no
    /// system call; async-signal-safe.
    #[inline]
    #[must_use]
    pub fn is_foreign(self) -> bool {
        page().number() != self.number
    }

    /// The tag as a word, for a place that can hold only atomics.
    pub(crate) fn to_word(self) -> u64 {
        self.number
    }

    /// The tag that [`Self::to_word`] gave.
    pub(crate) fn from_word(number: u64) -> Self {
        Self { number }
    }
}

thread_local! {
    /// How often this thread holds the gate (F3). Constant and without destructor, so it may be
    /// used in fork handlers.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// Set once `pthread_atfork` knows our handlers. Children inherit the handlers and the word.
static HANDLERS: AtomicBool = AtomicBool::new(false);

/// While this lives, no other thread of the process can pass through `fork()`.
///
/// Hold it for a few system calls only: it is a lock, and every `fork` of the process waits for
/// it. It stays with the thread that took it.
#[derive(Debug)]
#[must_use = "fork is held off only while this lives"]
pub struct ForkHold {
    tag: ProcessTag,
    /// Not `Send`: a mutex is given back by the thread that took it.
    thread: PhantomData<*const ()>,
}

/// Waits for forks that are under way, then holds off new ones until the answer is dropped.
///
/// A raw `clone(2)` runs no handlers and is not held off.
pub fn hold_off_fork() -> ForkHold {
    enter();
    // Under the gate, so only one thread comes here at a time. Were the flag ever lost to a fork
    // in between, handlers would be registered twice, which F3 makes harmless.
    // Relaxed: the gate orders it.
    if !HANDLERS.load(Ordering::Relaxed) {
        // SAFETY: the three handlers are plain functions that live as long as the program, and do
        // only what a fork handler may do (see each).
        let refused = unsafe { libc::pthread_atfork(Some(prepare), Some(in_parent), Some(in_child)) };
        HANDLERS.store(refused == 0, Ordering::Relaxed);
    }
    ForkHold { tag: ProcessTag::current(), thread: PhantomData }
}

impl Drop for ForkHold {
    fn drop(&mut self) {
        if self.tag.is_foreign() {
            // The gate was wiped open by the fork; only the count came along.
            DEPTH.set(DEPTH.get().saturating_sub(1));
        } else {
            leave();
        }
    }
}

fn enter() {
    if DEPTH.get() == 0 {
        // SAFETY: the mutex is valid for the life of the process (`page`), and this thread does not
        // hold it (F3). The call cannot fail for a normal mutex.
        unsafe { libc::pthread_mutex_lock(page().gate.get()) };
    }
    DEPTH.set(DEPTH.get() + 1);
}

fn leave() {
    DEPTH.set(DEPTH.get().saturating_sub(1));
    if DEPTH.get() == 0 {
        // SAFETY: the mutex is valid as above, and this thread took it in `enter` (F3).
        unsafe { libc::pthread_mutex_unlock(page().gate.get()) };
    }
}

extern "C" fn prepare() {
    enter();
}

extern "C" fn in_parent() {
    leave();
}

/// Runs in the child before `fork` returns: only loads, stores and `close`.
extern "C" fn in_child() {
    DEPTH.set(DEPTH.get().saturating_sub(1));
    if std::ptr::eq(page(), &FALLBACK) && DEPTH.get() == 0 {
        // The fallback page is not wiped: this thread's copy of the mutex is taken, by itself.
        // SAFETY: valid as above; the child's only thread is the copy of the one that took it.
        unsafe { libc::pthread_mutex_unlock(page().gate.get()) };
    }
    for place in &CLOSE_IN_CHILD {
        // Relaxed: the child has one thread, and fork orders all that came before.
        let kept = place.swap(0, Ordering::Relaxed);
        if kept != 0 {
            // SAFETY: the descriptor is the child's copy of one that a `CloseInChild` of the parent
            // owns; nothing in the child uses it, since its owner checks the process tag first.
            unsafe { libc::close((kept - 1) as RawFd) };
        }
    }
}

/// Places for descriptors that a child must not keep: descriptor + 1, or 0.
static CLOSE_IN_CHILD: [AtomicU64; 64] = [const { AtomicU64::new(0) }; 64];

/// A standing order to close one descriptor in every forked child (F4).
#[derive(Debug)]
pub(crate) struct CloseInChild {
    place: usize,
    tag: ProcessTag,
}

impl CloseInChild {
    /// Gives the order for `descriptor`; `None` when all places are taken.
    ///
    /// The order must be dropped before the descriptor is closed. The caller holds fork off, so
    /// that none happens between opening and ordering.
    pub(crate) fn order(descriptor: BorrowedFd<'_>, _held: &ForkHold) -> Option<Self> {
        let word = descriptor.as_raw_fd() as u64 + 1;
        for (place, slot) in CLOSE_IN_CHILD.iter().enumerate() {
            // Relaxed: read by a child only, and fork orders it.
            let taken = slot.compare_exchange(0, word, Ordering::Relaxed, Ordering::Relaxed);
            if taken.is_ok() {
                return Some(Self { place, tag: ProcessTag::current() });
            }
        }
        None
    }
}

impl Drop for CloseInChild {
    fn drop(&mut self) {
        if !self.tag.is_foreign() {
            CLOSE_IN_CHILD[self.place].store(0, Ordering::Relaxed);
        }
    }
}
