//! A session: one attached process (or one of several in a process), and everything it can ask for.
//!
//! This file is the façade. It checks who is calling (the process that made the handle, a session that is not fenced, a
//! region that has not been replaced), then hands over to the protocol of the verb.
//!
//! | file | does |
//! | --- | --- |
//! | `check.rs` | whether a call can be tried |
//! | `join.rs`, `attach.rs` | choose an entry of the session table, and take it |
//! | `announce.rs` | tells the host's coordinator about it |
//! | `liveness.rs` | proof of death |
//! | `reservation.rs` | the writer's end of a store |
//! | `lease.rs` | the reader's end of a load |
//! | `options.rs` | whether it evicts, and what it may hold |
//! | `pin.rs` | keeps blocks for a time |
//! | `look.rs`, `reader.rs` | looking, also without joining |
//! | `operator.rs` | fencing, recovering, leading: for coordinators and operators |

mod announce;
mod attach;
mod check;
mod join;
mod lease;
pub(crate) mod liveness;
mod look;
pub(crate) mod operator;
mod options;
mod pin;
mod reader;
mod reservation;

use std::sync::{Arc, Mutex};

use maru_layout::superblock::Hosts;
use maru_layout::table::{Counter, Operation, RecordOutcome};
use maru_layout::word::{LeaseKind, SlotState, SlotWord};

pub use self::announce::{AnnounceError, coordinator_socket};
pub(crate) use self::check::{check_region, check_size, not_lost};
pub use self::lease::{Lease, View};
pub use self::liveness::{Liveness, host_tag};
use self::look::each_namespace;
pub use self::operator::SessionInfo;
pub use self::options::{Evict, SessionOptions};
pub use self::pin::Pin;
pub use self::reader::{ReadError, Reader};
pub use self::reservation::{Reservation, Reserve};

use self::pin::Pins;
use crate::engine::{Engine, Eviction, Me, World};
use crate::lease::Held;
use crate::namespace::Namespace;
use crate::os::lock::LifeLock;
use crate::regime::{ManyHosts, OneHost};
use crate::region::{Inner, Mode};
use crate::step::step;
use crate::store::{NotGranted, Terms};
use crate::sync::{Ordering, process};
use crate::{
    Batch, Budget, CallError, Commit, LeaseHandle, Limits, NamespaceError, NamespaceId, NamespaceUsage, ObjectId,
    Probe, ReclaimReport, Release, ReserveOptions, Retire, StillHeld, Token, Usage, Why, Writer,
};

/// The one dispatch on the regime, made when the session is.
pub(crate) enum Dispatch {
    One(Engine<OneHost>),
    Many(Engine<ManyHosts>),
}

/// Calls a protocol on the engine of the session's regime.
macro_rules! on {
    ($dispatch:expr, $engine:ident => $call:expr) => {
        match &$dispatch {
            $crate::session::Dispatch::One($engine) => $call,
            $crate::session::Dispatch::Many($engine) => $call,
        }
    };
}
pub(crate) use on;

impl Dispatch {
    pub(crate) fn new(inner: &Inner, me: Me, world: Box<dyn World>, eviction: Eviction) -> Self {
        let tables = inner.tables.clone();
        match inner.geometry().hosts {
            Hosts::One => Self::One(Engine::new(tables, me, world).evicting(eviction)),
            Hosts::Many => Self::Many(Engine::new(tables, me, world).evicting(eviction)),
        }
    }
}

/// A participant of a region.
///
/// `Send` and `Sync`: threads of a process may share one session, or have one each. Dropping it closes it; see
/// [`Session::close`] for a close that says what is still held. In a forked child every call answers
/// [`CallError::ForeignProcess`] and dropping does nothing.
pub struct Session {
    inner: Arc<Inner>,
    dispatch: Dispatch,
    /// Held as long as the session; `None` once it is closed.
    lock: Option<LifeLock>,
    me: Me,
    /// For questions about others that no protocol asks.
    world: liveness::HostWorld,
    options: SessionOptions,
    pins: Mutex<Pins>,
    loads: process::AtomicU64,
}

impl Session {
    /// Refuses calls that cannot be tried: another process, a lost or replaced region, a fenced session.
    fn check(&self) -> Result<(), CallError> {
        check_region(&self.inner)?;
        let session = on!(self.dispatch, e => e.check_session());
        // A session word that faulted away reads as zero, which is nobody's.
        not_lost(&self.inner)?;
        session
    }

    /// Additionally looks at the file, once a batch: a backing that was cut is told before bytes are touched.
    fn check_bytes(&self) -> Result<(), CallError> {
        self.check()?;
        if self.inner.mode == Mode::HeaderOnly {
            return Err(CallError::NoPayload);
        }
        check_size(&self.inner)
    }

    /// Index of this session's entry.
    #[must_use]
    pub fn index(&self) -> u32 {
        self.me.index
    }

    /// Epoch of this session: higher than that of any session before it.
    #[must_use]
    pub fn epoch(&self) -> u32 {
        self.me.live.epoch()
    }

    /// Times that this region promises.
    #[must_use]
    pub fn limits(&self) -> Limits {
        let geometry = self.inner.geometry();
        Limits {
            copy_lease: std::time::Duration::from_millis(geometry.copy_lease_ms.into()),
            stalled_writer: std::time::Duration::from_millis(geometry.stalled_writer_ms.into()),
        }
    }

    /// Shows that the process still turns, and notices when the path names another region. To be called about once
    /// a second; nothing is freed for want of it.
    ///
    /// # Errors
    /// As any call.
    pub fn heartbeat(&self) -> Result<u64, CallError> {
        if self.inner.tag.is_foreign() {
            return Err(CallError::ForeignProcess);
        }
        // Before anything mapped is read: the file may have been cut into its header since the last beat.
        check_size(&self.inner)?;
        check_region(&self.inner)?;
        // A fenced session's pins end, too.
        self.drop_expired_pins();
        self.check()?;
        if !self.inner.backing.path_still_names_this() {
            crate::region::note_replaced(&self.inner);
            return Err(CallError::Replaced);
        }
        let beat = &self.inner.tables.session(self.me.index).heartbeat;
        step!(Heartbeat);
        // ORDERING: Relaxed: a number that others watch for change.
        let next = beat.load(Ordering::Relaxed).wrapping_add(1);
        beat.store(next, Ordering::Relaxed);
        Ok(next)
    }

    /// Registers a namespace, or finds it registered: one row for one text, whoever asks first. A namespace registered
    /// here has no budget; one that has a budget keeps it.
    ///
    /// # Errors
    /// Names a missing field; or the table is full, or busy.
    pub fn namespace(&self, namespace: &Namespace) -> Result<NamespaceId, NamespaceError> {
        self.namespace_within(namespace, None)
    }

    /// As [`Session::namespace`], with a budget: at no instant does the namespace hold more slots than that. A budget is
    /// given once, by whoever registers first, and stays.
    ///
    /// # Errors
    /// As [`Session::namespace`]; the namespace has another budget; the region has not as many tokens left.
    pub fn namespace_with_budget(&self, namespace: &Namespace, budget: Budget) -> Result<NamespaceId, NamespaceError> {
        self.namespace_within(namespace, Some(budget))
    }

    fn namespace_within(&self, namespace: &Namespace, budget: Option<Budget>) -> Result<NamespaceId, NamespaceError> {
        let text = namespace.text()?;
        let geometry = self.inner.geometry();
        // More than all slots is as good as all of them, and needs no more tokens.
        let budget = budget.map(|budget| budget.slots(geometry.max_payload_bytes()).min(geometry.slot_count));
        self.check()?;
        on!(self.dispatch, e => {
            e.begin(Operation::Register, None);
            let id = e.register(&text, budget);
            let outcome = if id.is_ok() { RecordOutcome::Done } else { RecordOutcome::Refused };
            e.ended(Operation::Register, outcome, None, &[0; 32]);
            id
        })
    }

    /// Ends the present generation of a namespace, in constant time: when this returns, no call in any process
    /// returns an old hit or an old byte any more. Old slots are freed as they are met. `false`: it had ended before.
    ///
    /// # Errors
    /// As any call.
    pub fn invalidate(&self, namespace: NamespaceId) -> Result<bool, CallError> {
        self.check()?;
        on!(self.dispatch, e => {
            e.begin(Operation::Invalidate, None);
            let ended = e.invalidate_namespace(&namespace);
            e.ended(Operation::Invalidate, RecordOutcome::Done, None, &[0; 32]);
            ended
        })
    }

    /// Reserves a slot for `object`.
    ///
    /// # Errors
    /// The call cannot be tried. "No", with a reason, is [`Reserve::Refused`].
    pub fn reserve(&self, object: &ObjectId, len: u64, options: ReserveOptions) -> Result<Reserve<'_>, CallError> {
        self.check_bytes()?;
        self.reserve_checked(object, len, options)
    }

    /// Reserves a slot for each object; answers keep the order.
    ///
    /// # Errors
    /// The batch cannot be tried.
    pub fn reserve_batch(&self, objects: &[(ObjectId, u64, ReserveOptions)]) -> Result<Vec<Reserve<'_>>, CallError> {
        self.check_bytes()?;
        objects.iter().map(|(object, len, options)| self.reserve_checked(object, *len, *options)).collect()
    }

    fn reserve_checked(&self, object: &ObjectId, len: u64, options: ReserveOptions) -> Result<Reserve<'_>, CallError> {
        if !on!(self.dispatch, e => e.check_namespace(&object.namespace))? {
            return Ok(Reserve::Refused(Why::Invalidated));
        }
        // Counted before it is had, so that threads together stay within the limit.
        let limit = self.options.most_reservations.map_or(u64::MAX, u64::from);
        let (set, fetch) = (process::Ordering::Relaxed, process::Ordering::Relaxed);
        let one_more = |open: u64| (open < limit).then(|| open + 1);
        if on!(self.dispatch, e => e.open_reservations.fetch_update(set, fetch, one_more)).is_err() {
            return Ok(Reserve::Refused(Why::SessionLimit));
        }
        self.drop_expired_pins();
        let device = options.writer == Writer::Device;
        on!(self.dispatch, e => e.begin(Operation::Reserve, None));
        let reserved = on!(self.dispatch, e => e.reserve_slot(
            &object.key(),
            len,
            Terms {
                device,
                purse: e.purse(object.namespace.row),
                evict: e.eviction.on && !options.free_space_only,
            },
        ));
        if reserved.is_err() {
            on!(self.dispatch, e => e.open_reservations.fetch_sub(1, process::Ordering::Relaxed));
        }
        let (outcome, replica) = match &reserved {
            Ok(claim) => (RecordOutcome::Done, Some((claim.slot, claim.word))),
            Err(NotGranted::Present) => (RecordOutcome::Present, None),
            Err(NotGranted::BeingWritten) => (RecordOutcome::BeingWritten, None),
            Err(NotGranted::Refused(_)) => (RecordOutcome::Refused, None),
            Err(NotGranted::Contended) => (RecordOutcome::Contended, None),
        };
        on!(self.dispatch, e => e.ended(Operation::Reserve, outcome, replica, &object.prefix));
        Ok(match reserved {
            Ok(claim) => Reserve::Granted(Reservation::new(self, claim, object.namespace, options)),
            Err(NotGranted::Present) => Reserve::Present,
            Err(NotGranted::BeingWritten) => Reserve::BeingWritten,
            Err(NotGranted::Refused(why)) => Reserve::Refused(why),
            Err(NotGranted::Contended) => {
                self.check()?;
                Reserve::Contended
            }
        })
    }

    /// What became of the reservation that `token` names. Any token gets an answer; a made-up one changes nothing.
    ///
    /// # Errors
    /// The call cannot be tried.
    pub fn resolve(&self, token: &Token) -> Result<Commit, CallError> {
        self.check()?;
        if token.region != self.inner.geometry().region_id {
            return Ok(Commit::GenerationGone);
        }
        let Some(slot) = self.inner.tables.slot_checked(token.slot) else { return Ok(Commit::GenerationGone) };
        let word: SlotWord = slot.word();
        if word.generation() != token.generation {
            return Ok(Commit::GenerationGone);
        }
        Ok(match word.state() {
            Some(SlotState::Ready | SlotState::Retiring) => Commit::AlreadyStored,
            Some(SlotState::Claiming | SlotState::Pending | SlotState::Writing) => {
                // A writer that is gone will not decide any more: bring its slot home, and say so.
                if on!(self.dispatch, e => e.recover_owner(word)) {
                    Commit::GenerationGone
                } else {
                    Commit::Unknown(*token)
                }
            }
            Some(SlotState::Quarantined) => Commit::Superseded,
            Some(SlotState::Free) | None => Commit::GenerationGone,
        })
    }

    /// Whether `object` is ready now. Protects nothing, stores nothing that others read.
    ///
    /// # Errors
    /// The call cannot be tried.
    pub fn probe(&self, object: &ObjectId) -> Result<Probe, CallError> {
        self.check()?;
        let answer = look::probe(&self.dispatch, object);
        not_lost(&self.inner)?;
        answer
    }

    /// Probes each object; answers keep the order.
    ///
    /// # Errors
    /// The batch cannot be tried.
    pub fn probe_batch(&self, objects: &[ObjectId]) -> Result<Vec<Probe>, CallError> {
        self.check()?;
        let answers = look::probe_batch(&self.dispatch, objects);
        not_lost(&self.inner)?;
        answers
    }

    /// How many leading objects are ready now: what a scheduler asks for a whole request. All lines are under way at
    /// once, so the cost is not a sum of misses.
    ///
    /// # Errors
    /// The call cannot be tried.
    pub fn probe_prefix(&self, objects: &[ObjectId]) -> Result<usize, CallError> {
        self.check()?;
        let answer = look::probe_prefix(&self.dispatch, objects);
        not_lost(&self.inner)?;
        answer
    }

    /// Protects each object that is ready; answers keep the order. A lost race is a miss, never an error.
    ///
    /// With [`Batch::AllOrNothing`] one miss releases the others, which then answer [`Why::PartnerMissing`].
    ///
    /// # Errors
    /// The batch cannot be tried.
    pub fn acquire(&self, objects: &[ObjectId], batch: Batch) -> Result<Vec<Result<Lease<'_>, Why>>, CallError> {
        self.acquire_as(objects, batch, LeaseKind::Copy)
    }

    /// As [`Session::acquire`], for a device that will read the slots: such leases never lapse, and end by
    /// [`Session::release`] or by proof of this process's death.
    ///
    /// # Errors
    /// The batch cannot be tried.
    pub fn acquire_for_device(
        &self,
        objects: &[ObjectId],
        batch: Batch,
    ) -> Result<Vec<Result<Lease<'_>, Why>>, CallError> {
        self.acquire_as(objects, batch, LeaseKind::Device)
    }

    fn acquire_as(
        &self,
        objects: &[ObjectId],
        batch: Batch,
        kind: LeaseKind,
    ) -> Result<Vec<Result<Lease<'_>, Why>>, CallError> {
        self.check_bytes()?;
        // All ids are this region's before anything is protected: an error leaves nothing behind.
        on!(self.dispatch, e => each_namespace(objects, |_, namespace| e.check_origin(namespace)))?;
        on!(self.dispatch, e => e.begin(Operation::Acquire, None));
        let mut room = on!(self.dispatch, e => e.book.lend_room());
        on!(self.dispatch, e => e.acquire_each(objects, kind, &mut room));
        let first = room.iter().flatten().next().map(|(held, _)| (held.slot, held.word));
        let outcome = if room.iter().any(Result::is_err) { RecordOutcome::Miss } else { RecordOutcome::Done };
        let prefix = objects.first().map_or([0; 32], |object| object.prefix);
        on!(self.dispatch, e => e.ended(Operation::Acquire, outcome, first, &prefix));
        // Leases first: whatever fails from here on, dropping them releases.
        let mut answers: Vec<Result<Lease<'_>, Why>> = objects
            .iter()
            .zip(room.drain(..))
            .map(|(object, held)| held.map(|(held, len)| Lease::new(self, held, *object, len)))
            .collect();
        on!(self.dispatch, e => e.book.return_room(room));
        let mut whole = outcome == RecordOutcome::Done;
        on!(self.dispatch, e => each_namespace(objects, |run, namespace| {
            if !e.check_namespace(namespace)? {
                whole = false;
                answers[run].iter_mut().for_each(|answer| *answer = Err(Why::Invalidated));
            }
            Ok(())
        }))?;
        if batch == Batch::AllOrNothing && !whole {
            for answer in &mut answers {
                if answer.is_ok() {
                    *answer = Err(Why::PartnerMissing);
                }
            }
        }
        self.check()?;
        Ok(answers)
    }

    /// Releases a lease by its handle. A second, stale, foreign or made-up handle changes nothing.
    ///
    /// # Errors
    /// The call cannot be tried.
    pub fn release(&self, handle: LeaseHandle) -> Result<Release, CallError> {
        check_region(&self.inner)?;
        if handle.session != self.me.id {
            return Ok(Release::NotHeld);
        }
        Ok(on!(self.dispatch, e => e.release_held(handle.slot, handle.generation, handle.cell, handle.sequence)))
    }

    /// Releases each handle; answers keep the order.
    ///
    /// # Errors
    /// The batch cannot be tried.
    pub fn release_batch(&self, handles: &[LeaseHandle]) -> Result<Vec<Release>, CallError> {
        handles.iter().map(|handle| self.release(*handle)).collect()
    }

    /// Leases that this session holds now.
    #[must_use]
    pub fn leases(&self) -> u32 {
        if self.inner.tag.is_foreign() {
            return 0;
        }
        on!(self.dispatch, e => e.book.held_count())
    }

    /// Retires an object: shut to new readers at once, freed when nobody reads it any more.
    ///
    /// # Errors
    /// The call cannot be tried.
    pub fn retire(&self, object: &ObjectId) -> Result<Retire, CallError> {
        self.check()?;
        Ok(self.retire_checked(object))
    }

    fn retire_checked(&self, object: &ObjectId) -> Retire {
        on!(self.dispatch, e => {
            e.begin(Operation::Retire, None);
            let retired = e.retire_object(&object.key());
            let outcome = match retired {
                Retire::Retired => RecordOutcome::Done,
                Retire::Draining => RecordOutcome::Draining,
                Retire::Gone => RecordOutcome::Miss,
            };
            e.ended(Operation::Retire, outcome, None, &object.prefix);
            retired
        })
    }

    /// Retires each object; answers keep the order.
    ///
    /// # Errors
    /// The batch cannot be tried.
    pub fn retire_batch(&self, objects: &[ObjectId]) -> Result<Vec<Retire>, CallError> {
        self.check()?;
        Ok(objects.iter().map(|object| self.retire_checked(object)).collect())
    }

    /// Recovers dead sessions and frees every drained slot.
    ///
    /// # Errors
    /// The call cannot be tried.
    pub fn reclaim(&self) -> Result<ReclaimReport, CallError> {
        self.check()?;
        on!(self.dispatch, e => {
            e.begin(Operation::Reclaim, None);
            let report = e.reclaim_all();
            e.ended(Operation::Reclaim, RecordOutcome::Done, None, &[0; 32]);
            Ok(report)
        })
    }

    /// Recounts all slot words of the region.
    ///
    /// # Errors
    /// The call cannot be tried.
    pub fn usage(&self) -> Result<Usage, CallError> {
        check_region(&self.inner)?;
        let usage = crate::region::usage(&self.inner.tables);
        not_lost(&self.inner)?;
        Ok(usage)
    }

    /// Recounts what a namespace holds, and the tokens of its budget.
    ///
    /// # Errors
    /// The id is of another region; or the call cannot be tried.
    pub fn namespace_usage(&self, namespace: &NamespaceId) -> Result<NamespaceUsage, CallError> {
        check_region(&self.inner)?;
        look::namespace_usage(&self.inner, &self.dispatch, namespace)
    }

    /// What this entry has counted, by its owners so far. Nothing in a forked child, where nothing is mapped.
    #[must_use]
    pub fn counters(&self) -> Vec<(Counter, u64)> {
        if self.inner.tag.is_foreign() {
            return Vec::new();
        }
        let area = self.inner.tables.area(self.me.index);
        // ORDERING: Relaxed: statistics.
        Counter::ALL
            .iter()
            .map(|counter| (*counter, area.counters[*counter as usize].load(Ordering::Relaxed)))
            .collect()
    }

    /// Gives everything back and leaves the region.
    ///
    /// # Errors
    /// Says what is still held, and gives the session back so that it can be released.
    pub fn close(mut self) -> Result<(), (StillHeld, Box<Self>)> {
        self.leave().map_err(|held| (held, Box::new(self)))
    }

    fn leave(&mut self) -> Result<(), StillHeld> {
        if self.lock.is_none() || self.inner.tag.is_foreign() {
            return Ok(());
        }
        if check_region(&self.inner).is_ok() {
            self.drop_all_pins();
        }
        let leases = self.leases();
        let reservations = on!(self.dispatch, e => e.open_reservations.load(process::Ordering::Relaxed)) as u32;
        if leases > 0 || reservations > 0 {
            return Err(StillHeld { index: self.me.index, leases, reservations });
        }
        if check_region(&self.inner).is_ok() && check_size(&self.inner).is_ok() {
            on!(self.dispatch, e => {
                e.ended(Operation::Close, RecordOutcome::Done, None, &[0; 32]);
                e.detach();
            });
        }
        self.lock = None;
        Ok(())
    }

    fn sample(&self, one_in: u32) -> bool {
        one_in <= 1 || self.loads.fetch_add(1, process::Ordering::Relaxed).is_multiple_of(one_in.into())
    }

    fn release_quietly(&self, held: &Held) {
        // In a replaced region the cell may be another session's by now.
        if check_region(&self.inner).is_ok() {
            on!(self.dispatch, e => e.release_held(held.slot, held.word.generation(), held.cell, held.sequence));
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if self.leave().is_err() {
            // Something may still read or write on this session's behalf. Its life lock and the mapping must not end
            // before the process does, so that nobody takes the slots and no address of theirs becomes another's.
            core::mem::forget(self.lock.take());
            core::mem::forget(self.inner.clone());
        }
    }
}

impl core::fmt::Debug for Session {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Session({}, epoch {})", self.me.index, self.me.live.epoch())
    }
}
