//! Pins: blocks that stay for a time, whoever stores meanwhile.
//!
//! A pin is a lease that does not lapse, held by the session that pinned, with a length of time on that process's own
//! clock. It ends at the first call after its time (a heartbeat at the latest), when it is dropped, when the session
//! closes, or with the process. There is nothing in the region that could outlive who wanted it.

use std::sync::PoisonError;
use std::time::{Duration, Instant};

use maru_layout::word::LeaseKind;

use super::{Session, check_region, on};
use crate::{Batch, CallError, LeaseHandle, ObjectId, Release, Why};

/// What a session has pinned.
#[derive(Debug, Default)]
pub(super) struct Pins {
    held: Vec<(LeaseHandle, Instant)>,
}

/// Answer of [`Session::pin`] for one object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pin {
    /// Pinned until its time is over; [`Session::unpin`] ends it earlier.
    Pinned(LeaseHandle),
    /// Not there, or the session's number of pins or leases is used up.
    Refused(Why),
}

impl Session {
    /// Keeps blocks from being evicted for `lifetime`. Answers keep the order.
    ///
    /// # Errors
    /// The call cannot be tried.
    pub fn pin(&self, objects: &[ObjectId], lifetime: Duration) -> Result<Vec<Pin>, CallError> {
        check_region(&self.inner)?;
        self.drop_expired_pins();
        let until = Instant::now().checked_add(lifetime).unwrap_or_else(far_away);
        let mut pins = self.pins.lock().unwrap_or_else(PoisonError::into_inner);
        let room = (self.options.most_pins as usize).saturating_sub(pins.held.len()).min(objects.len());
        let mut answers = Vec::with_capacity(objects.len());
        for lease in self.acquire_as(&objects[..room], Batch::Each, LeaseKind::View)? {
            answers.push(match lease {
                Ok(lease) => {
                    let handle = lease.into_handle();
                    pins.held.push((handle, until));
                    Pin::Pinned(handle)
                }
                Err(why) => Pin::Refused(why),
            });
        }
        answers.resize(objects.len(), Pin::Refused(Why::SessionLimit));
        Ok(answers)
    }

    /// Ends a pin before its time.
    ///
    /// # Errors
    /// The call cannot be tried.
    pub fn unpin(&self, handle: LeaseHandle) -> Result<Release, CallError> {
        check_region(&self.inner)?;
        let mut pins = self.pins.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(at) = pins.held.iter().position(|(held, _)| *held == handle) else { return Ok(Release::NotHeld) };
        pins.held.swap_remove(at);
        self.release(handle)
    }

    /// Blocks that this session has pinned and whose time is not over.
    #[must_use]
    pub fn pinned(&self) -> usize {
        if self.inner.tag.is_foreign() {
            return 0;
        }
        let now = Instant::now();
        let pins = self.pins.lock().unwrap_or_else(PoisonError::into_inner);
        pins.held.iter().filter(|(_, until)| *until > now).count()
    }

    /// Releases the pins whose time is over.
    pub(super) fn drop_expired_pins(&self) {
        let now = Instant::now();
        self.drop_pins(|until| until <= now);
    }

    /// Releases all pins: the session is about to leave.
    pub(super) fn drop_all_pins(&self) {
        self.drop_pins(|_| true);
    }

    fn drop_pins(&self, over: impl Fn(Instant) -> bool) {
        let mut pins = self.pins.lock().unwrap_or_else(PoisonError::into_inner);
        if pins.held.is_empty() {
            return;
        }
        pins.held.retain(|(handle, until)| {
            if over(*until) {
                on!(self.dispatch, e => {
                    e.release_held(handle.slot, handle.generation, handle.cell, handle.sequence)
                });
                return false;
            }
            true
        });
    }
}

/// What a lifetime beyond the clock's range becomes: a hundred years.
fn far_away() -> Instant {
    Instant::now() + Duration::from_secs(100 * 365 * 24 * 3600)
}
