//! The one place where Maru names atomics, fences and spinning.
//!
//! Protocol code says `crate::sync::AtomicU64`; whether that is the machine's atomic or loom's is
//! decided here and nowhere else, so the source that runs in production is the source that the
//! models explore. Two rules keep that honest:
//!
//! * S1: nothing else in `src/` names `core::sync::atomic`, `std::sync::atomic` or `loom`
//!   (`tools/ci/rules.sh` refuses it);
//! * S2: waiting goes through [`Backoff`], because a spin that the model checker cannot see is an
//!   endless loop to it.
//!
//! Loom's atomics are handles into its runtime and carry no value of their own, so they can never
//! be laid over mapped bytes; under `cfg(maru_loom)` the tables live on the heap instead
//! (`region/heap.rs`).

#[cfg(all(maru_loom, feature = "steps"))]
compile_error!("the models explore every interleaving already; build them without the `steps` feature");

#[cfg(not(maru_loom))]
pub use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};

#[cfg(maru_loom)]
pub use loom::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};

/// Atomics of the process itself, never part of a region and never explored by a model: statistics,
/// the fork guard, the registry of the fault handler. They keep the machine's type under loom too,
/// because they live in `static`s.
pub mod process {
    pub use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
}

/// Bounded waiting: a few spins, then yields of the processor.
#[derive(Debug, Default)]
pub struct Backoff {
    #[cfg(not(maru_loom))]
    inner: crossbeam_utils::Backoff,
}

impl Backoff {
    /// A fresh wait.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Waits a little, a little longer each time.
    pub fn snooze(&self) {
        #[cfg(not(maru_loom))]
        self.inner.snooze();
        #[cfg(maru_loom)]
        loom::thread::yield_now();
    }
}
