//! Looking without joining: no session entry, no lease, not a byte stored. What inspectors, probes and read-only
//! mounts use. A read copies first and checks afterwards; whoever needs a block protected joins as a session.

use std::sync::Arc;

use super::{CallError, Dispatch, check_region, check_size, not_lost, on};
use crate::engine::{Eviction, Me, World};
use crate::lease::Held;
use crate::namespace::Namespace;
use crate::region::{Inner, Mode};
use crate::{LoadError, NamespaceError, NamespaceId, NamespaceUsage, ObjectId, Probe, Usage, Why};

/// Nobody dies for somebody who only looks.
struct Onlooker;

impl World for Onlooker {
    fn proven_dead(&self, _: u32) -> bool {
        false
    }

    fn now_ms(&self) -> u64 {
        0
    }
}

/// Read access without a session; see [`crate::Region::reader`].
pub struct Reader {
    inner: Arc<Inner>,
    dispatch: Dispatch,
}

/// Why a [`Reader`] returned no bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// Not there, and why.
    #[error("miss: {0}")]
    Miss(Why),
    /// There, and the copy failed.
    #[error(transparent)]
    Load(#[from] LoadError),
}

impl Reader {
    pub(crate) fn new(inner: &Arc<Inner>) -> Self {
        Self {
            inner: inner.clone(),
            dispatch: Dispatch::new(inner, Me::observer(), Box::new(Onlooker), Eviction::default()),
        }
    }

    /// The registered id of a namespace; `None` when nobody has registered it.
    ///
    /// # Errors
    /// Names a missing field.
    pub fn namespace(&self, namespace: &Namespace) -> Result<Option<NamespaceId>, NamespaceError> {
        let text = namespace.text()?;
        check_region(&self.inner)?;
        Ok(on!(self.dispatch, e => e.find_row(&text)))
    }

    /// Whether `object` is ready now.
    ///
    /// # Errors
    /// The call cannot be tried.
    pub fn probe(&self, object: &ObjectId) -> Result<Probe, CallError> {
        check_region(&self.inner)?;
        let answer = super::look::probe(&self.dispatch, object);
        not_lost(&self.inner)?;
        answer
    }

    /// How many leading objects are ready now.
    ///
    /// # Errors
    /// The call cannot be tried.
    pub fn probe_prefix(&self, objects: &[ObjectId]) -> Result<usize, CallError> {
        check_region(&self.inner)?;
        let answer = super::look::probe_prefix(&self.dispatch, objects);
        not_lost(&self.inner)?;
        answer
    }

    /// Copies a block out, verified, without protecting it: a block that is replaced meanwhile answers "expired".
    ///
    /// # Errors
    /// A miss with its reason, or why the copy does not count.
    pub fn read(&self, object: &ObjectId) -> Result<Vec<u8>, ReadError> {
        let call = |error: CallError| ReadError::Load(LoadError::Call(error));
        check_region(&self.inner).map_err(call)?;
        if self.inner.mode == Mode::HeaderOnly {
            return Err(call(CallError::NoPayload));
        }
        check_size(&self.inner).map_err(call)?;
        on!(self.dispatch, e => {
            let key = object.key();
            let (place, identity) = e.place_and_identity(&key);
            let sighting = e.find_ready(&place, &identity).map_err(ReadError::Miss)?;
            let slot_bytes = self.inner.geometry().payload_of(sighting.slot).map_or(0, |(_, bytes)| bytes);
            let len = u64::from(crate::slot::length_of(&sighting.identity)).min(slot_bytes);
            let held = Held { slot: sighting.slot, word: sighting.word, cell: 0, sequence: 0 };
            let mut bytes = vec![0; len as usize];
            e.copy_out(&held, &key, &mut bytes, true)?;
            if !e.check_namespace(&object.namespace).map_err(call)? {
                return Err(LoadError::Invalidated.into());
            }
            Ok(bytes)
        })
    }

    /// Recounts what a namespace holds, and the tokens of its budget.
    ///
    /// # Errors
    /// The id is of another region; or the call cannot be tried.
    pub fn namespace_usage(&self, namespace: &NamespaceId) -> Result<NamespaceUsage, CallError> {
        check_region(&self.inner)?;
        super::look::namespace_usage(&self.inner, &self.dispatch, namespace)
    }

    /// Recounts all slot words.
    ///
    /// # Errors
    /// The call cannot be tried.
    pub fn usage(&self) -> Result<Usage, CallError> {
        check_region(&self.inner)?;
        let usage = crate::region::usage(&self.inner.tables);
        not_lost(&self.inner)?;
        Ok(usage)
    }
}
