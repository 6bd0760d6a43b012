//! Values that borrow from a session or a store, kept together with it.
//!
//! The library's leases, reservations and views borrow. Python objects have no lifetimes, so each one that comes from a
//! session holds that session by a counted reference, and drops it last:
//!
//! * K1: what is borrowed from lies in an `Arc`, so it does not move while a clone of the `Arc` lives.
//! * K2: a kept value is dropped before its clone of the `Arc` (fields drop in the order they are written), and is never
//!   moved out.
//! * K3: the `'static` in the types below is only ever lent for as long as the keeper is borrowed.

use core::mem::transmute;
use std::sync::Arc;

use maru::{Lease, LoadError, Reservation, View};

/// What a lease or a reservation comes from: a session or a store, kept and never asked.
pub(crate) type Owner = Arc<dyn Send + Sync>;

/// A lease and what it comes from.
pub(crate) struct OwnedLease {
    lease: Lease<'static>,
    _owner: Owner,
}

impl OwnedLease {
    /// # Safety
    /// `lease` borrows from what `owner` holds, and from nothing else.
    pub(crate) unsafe fn new(lease: Lease<'_>, owner: Owner) -> Self {
        // SAFETY: the lease borrows from the owner's `Arc` (caller), which `_owner` keeps alive and in place (K1) until the
        // lease is dropped (K2); the long lifetime does not get out (K3).
        let lease = unsafe { transmute::<Lease<'_>, Lease<'static>>(lease) };
        Self { lease, _owner: owner }
    }

    pub(crate) fn get(&self) -> &Lease<'_> {
        &self.lease
    }
}

/// A reservation and what it comes from.
pub(crate) struct OwnedReservation {
    reservation: Reservation<'static>,
    _owner: Owner,
}

impl OwnedReservation {
    /// # Safety
    /// `reservation` borrows from what `owner` holds, and from nothing else.
    pub(crate) unsafe fn new(reservation: Reservation<'_>, owner: Owner) -> Self {
        // SAFETY: as for leases (K1, K2, K3).
        let reservation = unsafe { transmute::<Reservation<'_>, Reservation<'static>>(reservation) };
        Self { reservation, _owner: owner }
    }

    pub(crate) fn with<R>(&mut self, use_it: impl FnOnce(&mut Reservation<'_>) -> R) -> R {
        use_it(&mut self.reservation)
    }

    /// Ends it; whether there was something to give back.
    pub(crate) fn abort(self) -> Result<bool, maru::CallError> {
        // `_owner` is a local from here on, and goes after the reservation.
        let Self { reservation, _owner } = self;
        reservation.abort()
    }
}

/// A view and the lease that it keeps.
pub(crate) struct OwnedView {
    view: View<'static>,
    _lease: Arc<OwnedLease>,
}

// SAFETY: a view is an address in the mapping, which is the same for all threads, a length, and a reference to a lease,
// which may be used from all of them; ending it is one call on the session, which is `Sync`.
unsafe impl Send for OwnedView {}
// SAFETY: as above; through a shared reference one can only ask for address and length.
unsafe impl Sync for OwnedView {}

impl OwnedView {
    pub(crate) fn new(lease: &Arc<OwnedLease>) -> Result<Self, LoadError> {
        let view = lease.get().view()?;
        // SAFETY: the view borrows the lease in the `Arc`, which `_lease` keeps alive and in place (K1) until the view is
        // dropped (K2); the long lifetime does not get out (K3).
        let view = unsafe { transmute::<View<'_>, View<'static>>(view) };
        Ok(Self { view, _lease: lease.clone() })
    }

    pub(crate) fn as_ptr(&self) -> *const u8 {
        self.view.as_ptr()
    }

    pub(crate) fn len(&self) -> usize {
        self.view.len()
    }
}
