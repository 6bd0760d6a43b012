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
//! A model checker's atomics are handles into its runtime or larger than a word, so they can never be
//! laid over mapped bytes; under `cfg(maru_loom)` the tables live on the heap instead (`region/heap.rs`).
//! That flag means "a model": alone with loom, which tries every order of few threads and sees weak
//! orderings; with `cfg(maru_shuttle)` beside it with shuttle, which draws long runs of many threads from
//! seeds and is sequentially consistent.
//!
//! A model also has to show that it would notice: `edge!` marks the orderings, fences and second looks that the
//! protocols stand on, and a model can take one of them away. Outside of models it is exactly what it is given.

#[cfg(all(maru_loom, feature = "steps"))]
compile_error!("the models explore every interleaving already; build them without the `steps` feature");

#[cfg(not(maru_loom))]
pub use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};

#[cfg(all(maru_shuttle, not(maru_loom)))]
compile_error!("cfg(maru_shuttle) chooses the checker of a model; cfg(maru_loom) beside it makes it one");

/// The model checker.
#[cfg(all(maru_loom, not(maru_shuttle)))]
use loom as checker;
#[cfg(all(maru_loom, maru_shuttle))]
use shuttle as checker;

#[cfg(maru_loom)]
pub use checker::sync::atomic::{Ordering, fence};
#[cfg(maru_loom)]
pub use explored::{AtomicBool, AtomicU8, AtomicU64};

/// Words of a region that order nothing and decide nothing: padding, statistics, facts for people. The machine's type
/// in models too, where each explored access would multiply the interleavings.
pub(crate) use core::sync::atomic::AtomicU64 as AsideU64;

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
        checker::thread::yield_now();
    }
}

/// The checker's atomics, with what each of the two needs before an access.
///
/// Loom 0.7.3 remembers only the last access to an atomic when it decides where threads must be swapped. A thread that
/// loads a word and then swaps it (everything here does) covers up the other thread's earlier load by its own, so that
/// the order "swapped before that load" is never tried. A store that nobody reads, next to every load, makes loads
/// conflict with each other too; then the last access is the right one to remember. It orders nothing:
/// `loom-tests/tests/looking.rs` shows both halves of this.
///
/// Under shuttle, an access is where a thread may meet its [`fate`].
#[cfg(maru_loom)]
mod explored {
    use super::{Ordering, checker::sync::atomic};

    macro_rules! explored {
        ($($(#[$doc:meta])* $name:ident of $value:ty;)*) => {$(
            $(#[$doc])*
            #[derive(Debug)]
            pub struct $name {
                word: atomic::$name,
                #[cfg(not(maru_shuttle))]
                looks: atomic::AtomicBool,
            }

            impl $name {
                /// A word of this value.
                #[must_use]
                pub fn new(value: $value) -> Self {
                    Self {
                        word: atomic::$name::new(value),
                        #[cfg(not(maru_shuttle))]
                        looks: atomic::AtomicBool::new(false),
                    }
                }

                fn accessed(&self) -> &atomic::$name {
                    #[cfg(maru_shuttle)]
                    super::fate::meet();
                    &self.word
                }

                /// Loads.
                pub fn load(&self, ordering: Ordering) -> $value {
                    #[cfg(not(maru_shuttle))]
                    self.looks.store(true, Ordering::Relaxed);
                    self.accessed().load(ordering)
                }

                /// Stores.
                pub fn store(&self, value: $value, ordering: Ordering) {
                    self.accessed().store(value, ordering);
                }

                /// Compares and swaps.
                ///
                /// # Errors
                /// The value found instead.
                pub fn compare_exchange(
                    &self,
                    from: $value,
                    to: $value,
                    success: Ordering,
                    failure: Ordering,
                ) -> Result<$value, $value> {
                    self.accessed().compare_exchange(from, to, success, failure)
                }
            }
        )*};
    }

    explored! {
        /// A truth value.
        AtomicBool of bool;
        /// A byte.
        AtomicU8 of u8;
        /// A word.
        AtomicU64 of u64;
    }

    impl AtomicU8 {
        /// Sets bits; returns what was there.
        pub fn fetch_or(&self, value: u8, ordering: Ordering) -> u8 {
            self.accessed().fetch_or(value, ordering)
        }
    }

    impl AtomicU64 {
        /// Adds; returns what was there.
        pub fn fetch_add(&self, value: u64, ordering: Ordering) -> u64 {
            self.accessed().fetch_add(value, ordering)
        }

        /// Sets bits; returns what was there.
        pub fn fetch_or(&self, value: u64, ordering: Ordering) -> u64 {
            self.accessed().fetch_or(value, ordering)
        }

        /// Keeps bits; returns what was there.
        pub fn fetch_and(&self, value: u64, ordering: Ordering) -> u64 {
            self.accessed().fetch_and(value, ordering)
        }
    }
}

/// What befalls a thread of a model in the middle of a call: death, or a long sleep, at its n-th access from now.
#[cfg(all(maru_loom, maru_shuttle))]
pub mod fate {
    use std::cell::Cell;
    use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

    use super::checker;

    #[derive(Clone, Copy)]
    enum Fate {
        Death,
        /// Looks at nothing for so many turns.
        Sleep(u32),
    }

    struct Died;

    checker::thread_local! {
        static NEXT: Cell<Option<(u32, Fate)>> = Cell::new(None);
    }

    /// Before an access.
    pub(super) fn meet() {
        let met = NEXT.with(|next| {
            let (left, fate) = next.get()?;
            next.set(left.checked_sub(1).map(|left| (left, fate)));
            (left == 0).then_some(fate)
        });
        match met {
            None => {}
            // No panic hook runs: nothing has failed.
            Some(Fate::Death) => resume_unwind(Box::new(Died)),
            Some(Fate::Sleep(turns)) => (0..turns).for_each(|_| checker::thread::yield_now()),
        }
    }

    /// Sleeps for so many turns at the n-th access from now, wherever that is.
    pub fn sleep_at(access: u32, turns: u32) {
        NEXT.with(|next| next.set(Some((access, Fate::Sleep(turns)))));
    }

    /// Goes on without a fate.
    pub fn spare() {
        NEXT.with(|next| next.set(None));
    }

    /// Runs `life`, and ends it at its n-th access. `None`: it did not come to its own end.
    pub fn die_at<T>(access: u32, life: impl FnOnce() -> T) -> Option<T> {
        NEXT.with(|next| next.set(Some((access, Fate::Death))));
        let ended = catch_unwind(AssertUnwindSafe(life));
        spare();
        match ended {
            Ok(value) => Some(value),
            Err(payload) if payload.is::<Died>() => None,
            Err(payload) => resume_unwind(payload),
        }
    }
}

/// Marks something a protocol stands on, so that a model can take it away and show that it notices:
///
/// * `edge!(Name, ordering)`: that ordering; without its Release or Acquire half when taken away. With `Name if
///   condition`, only where the condition holds.
/// * `edge!(fence Name, ordering)`: that fence; AcqRel instead of SeqCst, or none at all, when taken away.
/// * `edge!(Name)`: `true`; `false` when taken away.
///
/// Under shuttle only the last kind can be missed: it knows no weak orderings.
macro_rules! edge {
    (fence $edge:ident, $ordering:expr) => {{
        #[cfg(not(maru_loom))]
        $crate::sync::fence($ordering);
        #[cfg(maru_loom)]
        $crate::sync::weak::fence($crate::sync::weak::Edge::$edge, $ordering);
    }};
    ($edge:ident $(if $condition:expr)?, $ordering:expr) => {{
        #[cfg(not(maru_loom))]
        {
            $ordering
        }
        #[cfg(maru_loom)]
        $crate::sync::weak::ordering($crate::sync::weak::Edge::$edge, true $(&& $condition)?, $ordering)
    }};
    ($edge:ident) => {{
        #[cfg(not(maru_loom))]
        {
            true
        }
        #[cfg(maru_loom)]
        $crate::sync::weak::keeps($crate::sync::weak::Edge::$edge)
    }};
}
pub(crate) use edge;

/// What a model can take away, one at a time.
#[cfg(maru_loom)]
pub mod weak {
    use super::Ordering;
    use std::cell::Cell;

    /// An ordering, a fence, or a second look.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub enum Edge {
        /// \[claim], writer: the Release fence before identity fields change.
        ClaimFence,
        /// \[claim], reader: the Acquire fence between the fields and the second look at the word.
        IdentityFence,
        /// \[publish]: the Release of `Writing → Ready`.
        Publish,
        /// \[twin]: the SeqCst fence between my entry and my scan.
        TwinFence,
        /// W1: the scan for twins.
        TwinScan,
        /// \[lease], reader: the SeqCst fence between cell and second look.
        ReaderFence,
        /// \[lease], retirer: the SeqCst fence between shutting and scanning.
        RetirerFence,
        /// X2: the scan after the word was shut.
        ScanAfterShut,
        /// The reader's look at the word after its copy.
        LookAfterCopy,
        /// D1: the session word looked at between reading and swapping a slot word.
        StillDead,
        /// D4: the session word read before the proof is asked for.
        WordBeforeProof,
        /// D3, W4: what somebody not proven gone may write to is quarantined and not freed.
        Quarantine,
        /// I2: the mark raised before the entry appears in the second bucket.
        MarkFirst,
        /// I5: the Release of a resident's removal after it was copied to its other bucket.
        Moved,
        /// N1: the search repeated under the chore.
        SearchAgain,
        /// C1: the leader word counts only while its session lives under that epoch.
        LeaderLives,
        /// T1: the token spent before the slot becomes `Pending`.
        SpendFirst,
        /// L3: a session's word decides whether its cells count.
        SessionDecides,
        /// L3: the Release of `Live`, which publishes the zeroed cells of the former owner.
        Live,
    }

    thread_local! {
        // Both checkers run all threads of a model on the thread that called them.
        static TAKEN: Cell<Option<Edge>> = const { Cell::new(None) };
    }

    /// Takes `edge` away, or gives everything back. For the calling thread's models.
    pub fn take(edge: Option<Edge>) {
        TAKEN.set(edge);
    }

    /// Whether `edge` is there.
    #[must_use]
    pub fn keeps(edge: Edge) -> bool {
        TAKEN.get() != Some(edge)
    }

    pub(crate) fn ordering(edge: Edge, here: bool, ordering: Ordering) -> Ordering {
        match ordering {
            _ if keeps(edge) || !here => ordering,
            // A compare-and-swap keeps the half that its author needs for himself.
            Ordering::AcqRel => Ordering::Acquire,
            _ => Ordering::Relaxed,
        }
    }

    pub(crate) fn fence(edge: Edge, ordering: Ordering) {
        if keeps(edge) {
            super::fence(ordering);
        } else if ordering == Ordering::SeqCst {
            super::fence(Ordering::AcqRel);
        }
    }
}
