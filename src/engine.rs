//! What every protocol acts with: the tables, who I am, and how I learn that somebody has died.
//!
//! [`Engine`] carries no protocol of its own. Each protocol is an `impl` block in the file of its name:
//! [`crate::directory`] (index), `store.rs` (reserve to commit), `lease.rs` and `load.rs` (acquire, copy,
//! release), `retire.rs` (retire, reclaim), `recover.rs` (death and fencing), `namespace.rs` (registration).

use core::marker::PhantomData;
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use maru_layout::word::{Owner, SessionWord};

use crate::lease::LeaseBook;
use crate::regime::Regime;
use crate::sync::process;
use crate::{CallError, region::Tables};

/// Hands over the tokens of namespaces; rows share one when there are more. Only a place to start from.
const TOKEN_HANDS: usize = if cfg!(maru_loom) { 1 } else { 64 };

/// What a clock in whole milliseconds may have rounded down: a limit ends late, never early. A model's clock is exact.
const ROUNDED_MS: u64 = if cfg!(maru_loom) { 0 } else { 1 };

/// The session that acts.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Me {
    pub(crate) index: u32,
    pub(crate) owner: Owner,
    /// The session word while this session may act.
    pub(crate) live: SessionWord,
    /// Low half of the random session id.
    pub(crate) id: u64,
}

impl Me {
    pub(crate) fn new(index: u32, live: SessionWord, id: u64) -> Self {
        Self { index, owner: Owner::session(index), live, id }
    }

    /// Somebody who only looks: no entry, no area, no counters.
    #[cfg(not(maru_loom))]
    pub(crate) fn observer() -> Self {
        Self { index: u32::MAX, owner: Owner::NOBODY, live: SessionWord(0), id: 0 }
    }

    /// Whether this is somebody who only looks, and so never stores.
    pub(crate) fn is_observer(&self) -> bool {
        self.index == u32::MAX
    }
}

/// Where proof of death and elapsed time come from: the kernel, or a model.
pub(crate) trait World: Send + Sync {
    /// Whether the process behind this session is proven gone. "Cannot know" is `false`.
    fn proven_dead(&self, session: u32) -> bool;

    /// Milliseconds on this process's own monotonic clock.
    fn now_ms(&self) -> u64;
}

/// Tables and identity of one session.
pub(crate) struct Engine<R: Regime> {
    pub(crate) tables: Tables,
    pub(crate) me: Me,
    pub(crate) world: Box<dyn World>,
    pub(crate) book: LeaseBook,
    pub(crate) watch: Mutex<Watch>,
    /// Where the next search for a free slot starts, by class.
    pub(crate) cursors: [process::AtomicUsize; maru_layout::MAX_CLASSES],
    /// When all slot words of a class were last looked through in vain, milliseconds + 1.
    pub(crate) full_look_ms: [process::AtomicU64; maru_layout::MAX_CLASSES],
    /// Whether and when this session evicts.
    pub(crate) eviction: Eviction,
    /// When the bitmap of a class was last looked through in vain, milliseconds + 1.
    pub(crate) bitmap_in_vain_ms: [process::AtomicU64; maru_layout::MAX_CLASSES],
    /// Whether the last search for room found every block read: the next one looks before it tries.
    pub(crate) all_read: process::AtomicBool,
    /// Claims so far: watermarks are looked at once in a while.
    pub(crate) claims: process::AtomicU64,
    /// Where the next search among a namespace's tokens starts, by row.
    pub(crate) token_hands: [process::AtomicU64; TOKEN_HANDS],
    /// When a namespace's tokens were last looked through in vain, milliseconds + 1.
    pub(crate) whole_budget_look_ms: process::AtomicU64,
    /// Reservations neither committed nor aborted.
    pub(crate) open_reservations: process::AtomicU64,
    regime: PhantomData<R>,
}

impl<R: Regime> Engine<R> {
    pub(crate) fn new(tables: Tables, me: Me, world: Box<dyn World>) -> Self {
        let cells = tables.geometry().lease_cells;
        // Sessions start their searches apart from each other, so that they rarely try for the same slot.
        let spread = tables.geometry().slot_count as usize / tables.geometry().session_count.max(1) as usize;
        let start = (me.index as usize).wrapping_mul(spread) % tables.geometry().slot_count.max(1) as usize;
        Self {
            tables,
            me,
            world,
            book: LeaseBook::new(cells),
            watch: Mutex::new(Watch::default()),
            cursors: core::array::from_fn(|_| process::AtomicUsize::new(start)),
            full_look_ms: [const { process::AtomicU64::new(0) }; maru_layout::MAX_CLASSES],
            eviction: Eviction::default(),
            bitmap_in_vain_ms: [const { process::AtomicU64::new(0) }; maru_layout::MAX_CLASSES],
            all_read: process::AtomicBool::new(false),
            claims: process::AtomicU64::new(0),
            token_hands: [const { process::AtomicU64::new(0) }; TOKEN_HANDS],
            whole_budget_look_ms: process::AtomicU64::new(0),
            open_reservations: process::AtomicU64::new(0),
            regime: PhantomData,
        }
    }

    /// This engine, evicting so.
    pub(crate) fn evicting(self, eviction: Eviction) -> Self {
        Self { eviction, ..self }
    }

    /// Refuses a session that has been shut out. Asked at the start of a call and again where generations are
    /// re-checked.
    pub(crate) fn check_session(&self) -> Result<(), CallError> {
        if self.me.is_observer() || self.tables.session(self.me.index).word() == self.me.live {
            Ok(())
        } else {
            Err(CallError::Fenced { index: self.me.index, epoch: self.me.live.epoch() })
        }
    }

    /// Counts in this session's own lines.
    pub(crate) fn count(&self, counter: maru_layout::table::Counter, n: u64) {
        if !self.me.is_observer() {
            self.tables.area(self.me.index).count(counter, n);
        }
    }

    /// How long `value` has been seen unchanged under `key`, by this process's clock.
    pub(crate) fn unchanged_ms(&self, key: Watched, value: u64) -> u64 {
        let now = self.world.now_ms();
        self.watch.lock().unwrap_or_else(PoisonError::into_inner).unchanged_ms(key, value, now)
    }
}

/// Whether and when a session evicts.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Eviction {
    pub(crate) on: bool,
    /// Parts of a class's slots: below `low` free ones eviction begins, at `high` it ends. 0 = only when none is free.
    pub(crate) low: f64,
    pub(crate) high: f64,
}

/// Something whose standing still matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Watched {
    /// A slot word in `Writing`.
    Slot(u32),
    /// A lease cell (session, cell).
    Cell(u32, u32),
}

/// What this process has seen standing still, and since when. Private: nobody else's clock is believed, and
/// forgetting an entry only starts its time anew.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    seen: HashMap<Watched, Stand>,
    /// When idle entries were last looked for, milliseconds + 1.
    cleared_ms: u64,
}

#[derive(Debug, Clone, Copy)]
struct Stand {
    value: u64,
    since_ms: u64,
    asked_ms: u64,
}

impl Watch {
    /// Room for every cell of a large region; beyond it, what nobody has asked for lately goes.
    const MOST: usize = 1 << 16;
    const IDLE_MS: u64 = 60_000;
    /// Between two looks for idle entries: who asks after a million cells would pass over all entries for each of them.
    const CLEAR_MS: u64 = 1_000;

    fn unchanged_ms(&mut self, key: Watched, value: u64, now: u64) -> u64 {
        if self.seen.len() >= Self::MOST && !self.seen.contains_key(&key) {
            if self.cleared_ms == 0 || now.saturating_sub(self.cleared_ms - 1) >= Self::CLEAR_MS {
                self.cleared_ms = now + 1;
                self.seen.retain(|_, stand| now.saturating_sub(stand.asked_ms) < Self::IDLE_MS);
            }
            if self.seen.len() >= Self::MOST {
                // Its time starts when there is room: later than it could, never earlier.
                return 0;
            }
        }
        let fresh = Stand { value, since_ms: now + ROUNDED_MS, asked_ms: now };
        let stand = self.seen.entry(key).or_insert(fresh);
        if stand.value != value {
            *stand = fresh;
        }
        stand.asked_ms = now;
        now.saturating_sub(stand.since_ms)
    }
}
