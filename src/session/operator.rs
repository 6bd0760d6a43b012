//! What coordinators and operators ask of a session: who is there, who leads, shut this one out, that one is gone.
//!
//! None of it is needed for stores and loads to go on: whoever is blocked by the dead recovers them itself.

use maru_layout::table::{Operation, RecordOutcome, Role};
use maru_layout::word::{SessionState, SessionWord};

use super::liveness::HostWorld;
use super::{Dispatch, Liveness, Mode, Session, check_region, on};
use crate::engine::{Eviction, Me};
use crate::region::{Inner, Tables};
use crate::{CallError, HostName, HostRecovery, Lead, ReclaimReport, VouchError};

/// An entry of the session table, and what this host can say about its holder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionInfo {
    /// Index of the entry.
    pub index: u32,
    /// State, host tag and epoch.
    pub word: SessionWord,
    /// What the kernel of this host says.
    pub liveness: Liveness,
    /// Random id.
    pub id: [u8; 16],
    /// What it is for; `None` where the entry is not filled in.
    pub role: Option<Role>,
    /// Engine name; empty where the entry is not filled in.
    pub engine: String,
    /// Process id in `pid_ns`.
    pub pid: u32,
    /// Inode of its pid namespace.
    pub pid_ns: u64,
    /// Boot id of its host.
    pub boot_id: [u8; 16],
    /// Heartbeats so far. To be compared with an earlier look, by the looker's own clock.
    pub heartbeat: u64,
}

/// The holders of a region's session entries. `me` lives, whatever its lock says: a process does not judge itself.
pub(crate) fn list(tables: &Tables, world: &HostWorld, me: Option<u32>) -> Vec<SessionInfo> {
    (0..tables.geometry().session_count)
        .filter_map(|index| {
            let entry = tables.session(index);
            let (word, facts) = entry.holder()?;
            let filled = matches!(word.state(), Some(SessionState::Live | SessionState::Fenced));
            let name = facts.engine.split(|byte| *byte == 0).next().unwrap_or_default();
            Some(SessionInfo {
                index,
                word,
                liveness: if me == Some(index) { Liveness::Alive } else { world.liveness(index) },
                id: facts.id,
                role: Role::from_bits(facts.role).filter(|_| filled),
                engine: if filled { String::from_utf8_lossy(name).into_owned() } else { String::new() },
                pid: facts.pid,
                pid_ns: facts.pid_ns,
                boot_id: facts.boot_id,
                heartbeat: entry.beats(),
            })
        })
        .collect()
}

/// Recovers a host's sessions on behalf of somebody who has not joined.
pub(crate) fn recover_host_unjoined(inner: &Inner, host: &HostName) -> Result<HostRecovery, VouchError> {
    check_region(inner)?;
    let world = inner.world().map_err(|error| VouchError::Locks(error.to_string()))?;
    let here = refuse_this_host(&world, host)?;
    let dispatch = Dispatch::new(inner, Me::observer(), Box::new(world), Eviction::default());
    Ok(on!(dispatch, e => e.recover_host(host, &here).0))
}

/// Boot id of this host, which is not the one that `host` names.
fn refuse_this_host(world: &HostWorld, host: &HostName) -> Result<[u8; 16], VouchError> {
    let here = world.boot_id();
    if *host == HostName::Id(here) || *host == HostName::Tag(world.host_tag()) {
        return Err(VouchError::ThisHost { host: *host });
    }
    Ok(here)
}

impl Session {
    /// Every entry of the session table that somebody has, this session's included.
    ///
    /// # Errors
    /// The call cannot be tried.
    pub fn sessions(&self) -> Result<Vec<SessionInfo>, CallError> {
        self.check()?;
        Ok(list(&self.inner.tables, &self.world, Some(self.me.index)))
    }

    /// Recovers every session that the kernel of this host proves dead, and nothing else: one system call for each
    /// entry in use. What a coordinator does many times a second; [`Session::reclaim`] also frees drained slots.
    ///
    /// # Errors
    /// The call cannot be tried.
    pub fn recover_dead(&self) -> Result<ReclaimReport, CallError> {
        self.check()?;
        let (recovered_sessions, recovered_slots) = on!(self.dispatch, e => e.recover_all_dead());
        Ok(ReclaimReport { recovered_sessions, recovered_slots, ..ReclaimReport::default() })
    }

    /// Leads the region's coordinators, if no live session does. Leading saves work; no protocol depends on it.
    ///
    /// # Errors
    /// The call cannot be tried.
    pub fn lead(&self) -> Result<Lead, CallError> {
        self.check()?;
        on!(self.dispatch, e => e.lead())
    }

    /// Shuts another session out without proof that it is gone: its later calls answer "fenced", what it was writing is
    /// quarantined, its leases go on counting. For operators and the coordinator. `false`: no such session at that
    /// epoch, or this very one.
    ///
    /// # Errors
    /// The call cannot be tried.
    pub fn fence(&self, index: u32, epoch: u32) -> Result<bool, CallError> {
        self.check()?;
        if index >= self.inner.geometry().session_count || index == self.me.index {
            return Ok(false);
        }
        Ok(self.recorded(Operation::Fence, || on!(self.dispatch, e => e.fence_session(index, epoch)), |fenced| *fenced))
    }

    /// Recovers every session of a host that is gone, on the caller's word: it is switched off or unbound from the
    /// memory. Sessions on this boot of this host are left to its kernel.
    ///
    /// `tell` is told of slots done and slots in all, while blocks that the host's sessions stored are read once more.
    ///
    /// # Errors
    /// The name is this host's present boot; or the call cannot be tried.
    pub fn recover_host(&self, host: &HostName, tell: &mut dyn FnMut(u64, u64)) -> Result<HostRecovery, VouchError> {
        self.check()?;
        let here = refuse_this_host(&self.world, host)?;
        let payload_read = self.inner.mode != Mode::HeaderOnly;
        Ok(self.recorded(
            Operation::Reclaim,
            || {
                on!(self.dispatch, e => {
                    let (mut report, storers) = e.recover_host(host, &here);
                    report.payload_read = payload_read;
                    if payload_read && !storers.is_empty() {
                        (report.scrubbed, report.damaged) = e.scrub(&storers, tell);
                    }
                    report
                })
            },
            |report| report.sessions > 0,
        ))
    }

    /// Recovers one session on the caller's word that its process is gone (a readable pidfd, an operator). Returns the
    /// slots that came back; `None`: there is no such session at that epoch, or it is this very one.
    ///
    /// # Errors
    /// The call cannot be tried.
    pub fn recover_vouched(&self, index: u32, epoch: u32) -> Result<Option<u32>, CallError> {
        self.check()?;
        let recovered = || on!(self.dispatch, e => e.recover_vouched(index, epoch));
        Ok(self.recorded(Operation::Reclaim, recovered, Option::is_some))
    }

    /// Frees the slots that devices of dead sessions were writing to, on the caller's word that all of them have
    /// drained. Returns how many.
    ///
    /// # Errors
    /// The call cannot be tried.
    pub fn devices_drained(&self) -> Result<u32, CallError> {
        self.check()?;
        Ok(self.recorded(Operation::Reclaim, || on!(self.dispatch, e => e.free_device_slots()), |freed| *freed > 0))
    }

    fn recorded<T>(&self, operation: Operation, act: impl FnOnce() -> T, done: impl FnOnce(&T) -> bool) -> T {
        on!(self.dispatch, e => e.begin(operation, None));
        let answer = act();
        let outcome = if done(&answer) { RecordOutcome::Done } else { RecordOutcome::Miss };
        on!(self.dispatch, e => e.ended(operation, outcome, None, &[0; 32]));
        answer
    }
}
