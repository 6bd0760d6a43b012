//! Storing in the first pool of the write order that has room.
//!
//! What ends the walk and what does not: space, size, budget and bucket are a pool's own matter, so the next pool is asked;
//! an object that is present, being written or wanted by others is the store's answer, unless another replica is asked for;
//! a wrong length, an empty block and an ended namespace would be wrong everywhere.

use core::ops::{Deref, DerefMut};

use super::{BlockId, Member, PoolAnswer, Reason, Store, StoreError, StoreNamespace, StoreProbe};
use crate::{CallError, Reservation, Reserve, ReserveOptions, Why};

/// How many replicas are wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Replicas {
    /// One in any pool that is read or written.
    #[default]
    One,
    /// One more than there are: in the first pool of the write order that has none.
    Another,
}

/// Options of [`Store::reserve`].
#[derive(Debug, Clone, Copy, Default)]
pub struct StoreOptions {
    /// As of a single pool.
    pub reserve: ReserveOptions,
    /// How many replicas are wanted.
    pub replicas: Replicas,
}

/// Answer of [`Store::reserve`].
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "lives for one match; a box would be an allocation for every store")]
pub enum StoreReserve<'s> {
    /// A slot to write, in one pool.
    Granted(StoreReservation<'s>),
    /// The block is ready in this pool already.
    Present {
        /// Name of the pool.
        pool: &'s str,
    },
    /// Somebody is writing it in this pool.
    BeingWritten {
        /// Name of the pool.
        pool: &'s str,
    },
    /// Lost too many rounds to others that want the same block in this pool; try again.
    Contended {
        /// Name of the pool.
        pool: &'s str,
    },
    /// No, and each asked pool's reason, in the write order. Nothing that was there is lost by it.
    Refused(Vec<PoolAnswer>),
}

impl<'s> StoreReserve<'s> {
    /// The reservation, if granted.
    #[must_use]
    pub fn granted(self) -> Option<StoreReservation<'s>> {
        match self {
            Self::Granted(reservation) => Some(reservation),
            _ => None,
        }
    }

    /// A short word for JSON.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::Granted(_) => "granted",
            Self::Present { .. } => "present",
            Self::BeingWritten { .. } => "being_written",
            Self::Contended { .. } => "contended",
            Self::Refused(_) => "refused",
        }
    }
}

/// A slot that this process writes, and the pool that it lies in. All of [`Reservation`] works on it.
#[derive(Debug)]
pub struct StoreReservation<'s> {
    pool: &'s str,
    reservation: Reservation<'s>,
}

impl<'s> StoreReservation<'s> {
    /// Name of its pool.
    #[must_use]
    pub fn pool(&self) -> &'s str {
        self.pool
    }

    /// The reservation itself, such as for [`Reservation::abort`].
    #[must_use]
    pub fn into_inner(self) -> Reservation<'s> {
        self.reservation
    }

    /// As [`Reservation::abort`].
    ///
    /// # Errors
    /// The call cannot be tried.
    pub fn abort(self) -> Result<bool, CallError> {
        self.reservation.abort()
    }
}

impl<'s> Deref for StoreReservation<'s> {
    type Target = Reservation<'s>;

    fn deref(&self) -> &Reservation<'s> {
        &self.reservation
    }
}

impl DerefMut for StoreReservation<'_> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.reservation
    }
}

impl Store {
    /// Reserves a slot for `block` in the first pool of the write order that has free space; where none has, in the first
    /// that makes some ([`crate::Evict`] of its session).
    ///
    /// `len` is in bytes. With [`Replicas::One`] a block that is ready in any pool of the read order is
    /// [`StoreReserve::Present`], and so is one that a pool of the write order has.
    ///
    /// # Errors
    /// The namespace or the store is another one's. Pools that cannot be asked are reasons of [`StoreReserve::Refused`].
    pub fn reserve(
        &self,
        namespace: &StoreNamespace,
        block: &BlockId,
        len: u64,
        options: StoreOptions,
    ) -> Result<StoreReserve<'_>, StoreError> {
        self.check(namespace)?;
        if options.replicas == Replicas::One
            && let Some(present) = self.present_anywhere(namespace, block, len)
        {
            return Ok(present);
        }
        let mut reasons = Vec::with_capacity(self.write_order.len());
        // O3: space that is free in any of them, before a block goes from any of them.
        let rounds: &[bool] = if options.reserve.free_space_only || self.write_order.len() < 2 {
            &[options.reserve.free_space_only]
        } else {
            &[true, false]
        };
        for free_space_only in rounds.iter().copied() {
            let wanted = ReserveOptions { free_space_only, ..options.reserve };
            reasons.clear();
            for index in &self.write_order {
                let member = &self.pools[*index];
                let Some(id) = namespace.id(*index) else {
                    reasons.push(member.says(member.shut().unwrap_or(Reason::NoNamespace)));
                    continue;
                };
                let object = block.object(id);
                let asked = member.ask(|pool| pool.session().reserve(&object, len, wanted));
                match asked.and_then(|answer| weigh(member, answer, options.replicas)) {
                    Ok(answer) => return Ok(answer),
                    Err(reason) => reasons.push(member.says(reason)),
                }
            }
        }
        Ok(StoreReserve::Refused(reasons))
    }

    /// The answer for a block that some pool of the read order has.
    fn present_anywhere(&self, namespace: &StoreNamespace, block: &BlockId, len: u64) -> Option<StoreReserve<'_>> {
        // Pools that cannot be asked have nothing to say about what is present.
        let (index, present_bytes) = match self.look(namespace, block) {
            (StoreProbe::Hit { len, .. }, index) => (index?, len),
            (StoreProbe::Miss(_), _) => return None,
        };
        let member = &self.pools[index];
        if u64::from(present_bytes) == len {
            return Some(StoreReserve::Present { pool: member.pool.name() });
        }
        let why = Why::LengthMismatch { present_bytes, asked_bytes: len };
        Some(StoreReserve::Refused(vec![member.says(Reason::Why(why))]))
    }
}

/// What one pool's answer means for the walk: the store's answer, or a reason to ask the next pool.
fn weigh<'s>(member: &'s Member, answer: Reserve<'s>, replicas: Replicas) -> Result<StoreReserve<'s>, Reason> {
    let pool = member.pool.name();
    let another = replicas == Replicas::Another;
    match answer {
        Reserve::Granted(reservation) => Ok(StoreReserve::Granted(StoreReservation { pool, reservation })),
        Reserve::Present | Reserve::BeingWritten if another => Err(Reason::HasReplica),
        Reserve::Contended if another => Err(Reason::Contended),
        Reserve::Present => Ok(StoreReserve::Present { pool }),
        Reserve::BeingWritten => Ok(StoreReserve::BeingWritten { pool }),
        Reserve::Contended => Ok(StoreReserve::Contended { pool }),
        Reserve::Refused(why @ (Why::Empty | Why::LengthMismatch { .. } | Why::Invalidated)) => {
            Ok(StoreReserve::Refused(vec![member.says(Reason::Why(why))]))
        }
        Reserve::Refused(why) => Err(Reason::Why(why)),
    }
}
