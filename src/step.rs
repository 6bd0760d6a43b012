//! Numbered steps: every shared store and every fence of every protocol has a name here.
//!
//! `step!(Name)` stands directly before the store it names. In an ordinary build it expands to
//! nothing. With the feature `steps`, a test can make the process stop or die right there, so that
//! "any step may be the last one" is something that is tried, not argued: a kill at step N leaves the
//! region as it was after store N-1.
//!
//! ```text
//! MARU_STEP=store.ready:kill          die the first time that step is reached
//! MARU_STEP=index.insert_first:3:stop stop (SIGSTOP) the third time
//! ```

/// Marks the next shared store as the numbered step `$name`.
macro_rules! step {
    ($name:ident) => {
        #[cfg(feature = "steps")]
        $crate::step::hit($crate::step::Step::$name);
    };
}
pub(crate) use step;

macro_rules! steps {
    ($($(#[$doc:meta])* $variant:ident = $name:literal;)*) => {
        /// A numbered step.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[repr(u16)]
        pub enum Step { $($(#[$doc])* $variant,)* }

        impl Step {
            /// All steps in order of their numbers.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// The name by which tests and `MARU_STEP` call it.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// The step of this name.
            #[must_use]
            pub fn named(name: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|step| step.name() == name)
            }
        }
    };
}

steps! {
    /// Format word of a device becomes `Formatting`.
    FormatClaim = "format.claim";
    /// Superblock copy at the end is written.
    FormatCopy = "format.copy";
    /// Tables are zeroed.
    FormatTables = "format.tables";
    /// Pool entry is written.
    FormatPool = "format.pool";
    /// Superblock is written.
    FormatSuperblock = "format.superblock";
    /// Fence after all tables are written.
    FormatFence = "format.fence";
    /// Format word becomes `Ready`.
    FormatReady = "format.ready";
    /// Nameless file gets its name.
    FormatLink = "format.link";
    /// Format word of the old region becomes `Replaced`.
    FormatReplaced = "format.replaced";
    /// Session word becomes `Attaching`.
    AttachClaim = "attach.claim";
    /// Old lease mark and cells are zeroed.
    AttachZero = "attach.zero";
    /// Session entry is filled in.
    AttachFill = "attach.fill";
    /// Session word becomes `Live`.
    AttachLive = "attach.live";
    /// Heartbeat moves.
    Heartbeat = "session.heartbeat";
    /// Fence between going live and looking at the format word once more.
    AttachFence = "attach.fence";
    /// Session word goes back to `Free` on close.
    CloseFree = "close.free";
    /// Namespace chore is taken.
    NamespaceChore = "namespace.chore";
    /// Namespace row becomes `Adding`.
    NamespaceAdding = "namespace.adding";
    /// Namespace row is filled in.
    NamespaceFill = "namespace.fill";
    /// Namespace row becomes `Ready`.
    NamespaceReady = "namespace.ready";
    /// Namespace chore is given back.
    NamespaceDone = "namespace.done";
    /// Namespace generation moves.
    NamespaceInvalidate = "namespace.invalidate";
    /// Leader word is taken.
    LeaderTake = "leader.take";
    /// Slot word becomes `Claiming`.
    StoreClaim = "store.claim";
    /// Bitmap bit is set.
    StoreBitmap = "store.bitmap";
    /// Budget token is spent on the claimed slot.
    BudgetSpend = "budget.spend";
    /// A claim without an identity is given back.
    StoreUnclaim = "store.unclaim";
    /// Record is filled in.
    StoreRecord = "store.record";
    /// Slot word becomes `Pending`.
    StorePending = "store.pending";
    /// Fence between my index entry and the twin scan.
    StoreTwinFence = "store.twin_fence";
    /// A twin's `Pending` is killed.
    StoreKillTwin = "store.kill_twin";
    /// Slot word becomes `Writing`.
    StoreWriting = "store.writing";
    /// Payload bytes are written.
    StorePayload = "store.payload";
    /// Access byte says when the block is due.
    StoreDue = "store.due";
    /// Body line is filled in.
    StoreBody = "store.body";
    /// Slot word becomes `Ready`.
    StoreReady = "store.ready";
    /// Own slot is given back (lost, aborted, superseded).
    StoreGiveBack = "store.give_back";
    /// A stalled writer's slot becomes `Quarantined`.
    StoreQuarantine = "store.quarantine";
    /// Entry goes into an empty way of the first bucket.
    IndexInsertFirst = "index.insert_first";
    /// Mark of the first bucket is raised.
    IndexMarkRaise = "index.mark_raise";
    /// Entry goes into the second bucket.
    IndexInsertSecond = "index.insert_second";
    /// Mark of a first bucket is lowered.
    IndexMarkLower = "index.mark_lower";
    /// Entry takes the place of a resident that is being evicted.
    IndexTakePlace = "index.take_place";
    /// Entry is removed.
    IndexRemove = "index.remove";
    /// Bitmap bit is cleared.
    FreeBitmap = "free.bitmap";
    /// Lease mark is raised.
    LeaseMark = "lease.mark";
    /// Lease cell is stored.
    LeaseCell = "lease.cell";
    /// Fence between lease cell and second look at the word.
    LeaseFence = "lease.fence";
    /// Access byte is set.
    LeaseVisited = "lease.visited";
    /// Lease cell is emptied.
    LeaseRelease = "lease.release";
    /// Slot with damaged content becomes `Quarantined`.
    LoadQuarantine = "load.quarantine";
    /// Stores of a class are counted for its eviction clock.
    EvictTick = "evict.tick";
    /// The hand of an eviction clock moves.
    EvictHand = "evict.hand";
    /// A block that was read is due later.
    EvictRenew = "evict.renew";
    /// The horizon of an eviction clock moves.
    EvictHorizon = "evict.horizon";
    /// Slot word becomes `Retiring`.
    RetireShut = "retire.shut";
    /// Fence between shutting and scanning leases.
    RetireFence = "retire.fence";
    /// Slot word goes back to `Ready`: somebody reads it.
    RetireRevert = "retire.revert";
    /// Slot word becomes `Retiring` owned by nobody: anyone may free it later.
    RetireDrain = "retire.drain";
    /// Why a block goes is said before its slot is freed.
    Farewell = "retire.farewell";
    /// Slot word becomes `Free`.
    RetireFree = "retire.free";
    /// Session word becomes `Dead`.
    RecoverDead = "recover.dead";
    /// A dead session's slot word moves.
    RecoverSlot = "recover.slot";
    /// A dead session's chore is given back.
    RecoverChore = "recover.chore";
    /// Session word becomes `Free`.
    RecoverFree = "recover.free";
    /// Session word becomes `Fenced`.
    FenceSession = "fence.session";
    /// A fenced session's slot becomes `Quarantined`.
    FenceSlot = "fence.slot";
}

/// Whether this build can be stopped at steps.
#[must_use]
pub const fn enabled() -> bool {
    cfg!(feature = "steps")
}

#[cfg(feature = "steps")]
mod armed {
    use super::Step;
    use crate::sync::process::{AtomicU64, Ordering};
    use std::sync::OnceLock;

    static COUNTS: [AtomicU64; 128] = [const { AtomicU64::new(0) }; 128];
    /// step + 1 in the high half, nth hit in bits 2.., action in bits 0..2; 0 = nothing armed.
    static TARGET: AtomicU64 = AtomicU64::new(0);
    static FROM_ENV: OnceLock<()> = OnceLock::new();

    /// What happens at an armed step.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Action {
        /// SIGKILL to this process.
        Kill,
        /// SIGSTOP to this process.
        Stop,
    }

    /// Arms a step: the `nth` time (from 1, counted from process start) it is reached, `action` happens.
    pub fn arm(step: Step, nth: u64, action: Action) {
        let bits = ((step as u64 + 1) << 32) | (nth.min(1 << 29) << 2) | action as u64;
        // ORDERING: Relaxed: one word, and the arming thread is the one that runs the protocol or spawns it.
        TARGET.store(bits, Ordering::Relaxed);
    }

    /// Forgets the armed step.
    pub fn disarm() {
        TARGET.store(0, Ordering::Relaxed);
    }

    /// How often each step was reached in this process.
    #[must_use]
    pub fn counts() -> Vec<(&'static str, u64)> {
        Step::ALL.iter().map(|step| (step.name(), COUNTS[*step as usize].load(Ordering::Relaxed))).collect()
    }

    fn from_env() {
        let Ok(text) = std::env::var("MARU_STEP") else { return };
        let parts: Vec<&str> = text.split(':').collect();
        let (name, nth, action) = match parts[..] {
            [name, action] => (name, "1", action),
            [name, nth, action] => (name, nth, action),
            _ => ("", "", ""),
        };
        let action = match action {
            "kill" => Some(Action::Kill),
            "stop" => Some(Action::Stop),
            _ => None,
        };
        match (Step::named(name), nth.parse(), action) {
            (Some(step), Ok(nth), Some(action)) => arm(step, nth, action),
            _ => {
                eprintln!("MARU_STEP={text}: wanted STEP[:NTH]:kill or STEP[:NTH]:stop");
                std::process::exit(2);
            }
        }
    }

    #[cold]
    fn act(action: u64) {
        let signal = if action == Action::Stop as u64 { libc::SIGSTOP } else { libc::SIGKILL };
        // SAFETY: raise has no memory preconditions; the signal is one of two constants.
        unsafe { libc::raise(signal) };
    }

    pub(crate) fn hit(step: Step) {
        FROM_ENV.get_or_init(from_env);
        let nth = COUNTS[step as usize].fetch_add(1, Ordering::Relaxed) + 1;
        let target = TARGET.load(Ordering::Relaxed);
        if target >> 32 == step as u64 + 1 && (target >> 2) & ((1 << 30) - 1) == nth {
            act(target & 3);
        }
    }
}

#[cfg(feature = "steps")]
pub(crate) use armed::hit;
#[cfg(feature = "steps")]
pub use armed::{Action, arm, counts, disarm};
