//! Proof of death, as far as this host can give it.
//!
//! * P1: a session holds an OFD write lock on the byte `partition offset + index`, through the open file that its
//!   life-lock mapping belongs to. The kernel drops the lock when the last reference to that open file goes, which is when
//!   the process's memory is torn down, whatever namespace anybody is in.
//! * P2: asking uses a second open file that never locks.
//! * P3: only holders on this host are judged by the lock. The host tag in the session word says where it runs; on a
//!   region for one host, every holder is on this host or on a boot of it that has ended.
//! * P4: an error, a foreign host, a damaged word: "cannot know", which is not "dead".

use maru_layout::superblock::Hosts;
use maru_layout::word::SessionWord;
use xxhash_rust::xxh3::xxh3_64;

use crate::engine::World;
use crate::os::identity::{HostIdentity, monotonic_ns};
use crate::os::lock::{Held, LockAsker};
use crate::region::Tables;

/// What can be said about the holder of a session entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Liveness {
    /// Its life lock is held.
    Alive,
    /// Its life lock is free.
    Dead,
    /// It runs on another host (or ran on an earlier boot of one), or the kernel does not say.
    Unknown,
}

/// This boot of this host, as the 28 bits that session words carry. Never zero.
pub(crate) fn host_tag(host: &HostIdentity) -> u32 {
    let mut bytes = [0; 32];
    bytes[..16].copy_from_slice(&host.host_id);
    bytes[16..].copy_from_slice(&host.boot_id);
    ((xxh3_64(&bytes) >> 36) as u32).max(1)
}

/// Asks the kernel of this host.
pub(crate) struct HostWorld {
    tables: Tables,
    asker: LockAsker,
    lock_base: u64,
    host: HostIdentity,
}

impl HostWorld {
    pub(crate) fn new(tables: Tables, asker: LockAsker, lock_base: u64, host: HostIdentity) -> Self {
        Self { tables, asker, lock_base, host }
    }

    /// Whether this host's locks decide about the holder of `word`. An earlier boot of this host is not told from
    /// another host here: machine ids are copied with images, so only a vouching operator can say that it is gone.
    fn decides(&self, word: SessionWord) -> bool {
        self.tables.geometry().hosts == Hosts::One || word.host_tag() == host_tag(&self.host)
    }

    /// Whether holding the life lock of `index` proves that the holder of its word is gone.
    pub(crate) fn judges(&self, index: u32) -> bool {
        self.decides(self.tables.session(index).word())
    }

    /// What can be said about the holder of entry `index`.
    pub(crate) fn liveness(&self, index: u32) -> Liveness {
        if !self.judges(index) {
            return Liveness::Unknown;
        }
        match self.asker.ask(self.lock_base + u64::from(index)) {
            Ok(Held::Yes { .. }) => Liveness::Alive,
            Ok(Held::No) => Liveness::Dead,
            Err(_) => Liveness::Unknown,
        }
    }
}

impl World for HostWorld {
    fn proven_dead(&self, session: u32) -> bool {
        self.liveness(session) == Liveness::Dead
    }

    fn now_ms(&self) -> u64 {
        monotonic_ns() / 1_000_000
    }
}
