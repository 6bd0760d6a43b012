//! Proof of death, as far as this host can give it.
//!
//! * P1: a session holds an OFD write lock on the byte `partition offset + index`, through the open file that its
//!   life-lock mapping belongs to. The kernel drops the lock when the last reference to that open file goes, which is when
//!   the process's memory is torn down, whatever namespace anybody is in.
//! * P2: asking uses a second open file that never locks.
//! * P3: only holders are judged whose lock this process could see: the tag in the session word names boot and lock
//!   inode. In a file for one host, every holder is on this host or on a boot of it that has ended.
//! * P4: an error, a foreign host, a damaged word: "cannot know", which is not "dead".

use std::os::unix::fs::MetadataExt;

use maru_layout::superblock::Hosts;
use maru_layout::word::{SessionState, SessionWord};
use xxhash_rust::xxh3::xxh3_64;

use crate::engine::World;
use crate::os::identity::{HostIdentity, monotonic_ns};
use crate::os::lock::{Held, LockAsker};
use crate::os::{BackingError, BackingFile};
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

/// Which kernel's locks, on which inode, decide about a session: boot id and inode of the lock file, as the 28 bits
/// that session words carry. Never zero. Two device nodes of one device are two inodes, and so two courts: what is held
/// on one is not seen through the other.
///
/// # Errors
/// The lock file cannot be looked at.
pub fn host_tag(host: &HostIdentity, locks: &BackingFile) -> Result<u32, BackingError> {
    let inode = locks.file().metadata().map_err(|source| BackingError::Io {
        action: "look at the lock file",
        path: locks.shown_path(),
        source,
    })?;
    let mut bytes = [0; 32];
    bytes[..16].copy_from_slice(&host.boot_id);
    bytes[16..24].copy_from_slice(&inode.dev().to_le_bytes());
    bytes[24..].copy_from_slice(&inode.ino().to_le_bytes());
    Ok(((xxh3_64(&bytes) >> 36) as u32).max(1))
}

/// Asks the kernel of this host.
pub(crate) struct HostWorld {
    tables: Tables,
    asker: LockAsker,
    lock_base: u64,
    host: HostIdentity,
    host_tag: u32,
    /// A file on one host, whose inode is the same to all: every holder is judged by its lock.
    one_court: bool,
}

impl HostWorld {
    pub(crate) fn new(
        tables: Tables,
        locks: &BackingFile,
        lock_base: u64,
        host: HostIdentity,
        device: bool,
    ) -> Result<Self, BackingError> {
        let one_court = tables.geometry().hosts == Hosts::One && !device;
        let host_tag = host_tag(&host, locks)?;
        Ok(Self { tables, asker: LockAsker::new(locks)?, lock_base, host, host_tag, one_court })
    }

    /// Whether this host's locks decide about the holder of entry `index` under `word`. An earlier boot of this host is
    /// not told from another host here: machine ids are copied with images, so only a vouching operator can say that it
    /// is gone.
    fn decides(&self, index: u32, word: SessionWord) -> bool {
        if self.one_court {
            return true;
        }
        // The tag has 28 bits; where the entry is filled in, its whole boot id has to agree too.
        let filled = matches!(word.state(), Some(SessionState::Live | SessionState::Fenced));
        word.host_tag() == self.host_tag && (!filled || self.tables.session(index).read().boot_id == self.host.boot_id)
    }

    /// Boot id of this host.
    pub(crate) fn boot_id(&self) -> [u8; 16] {
        self.host.boot_id
    }

    /// What session words of this host's processes carry.
    pub(crate) fn host_tag(&self) -> u32 {
        self.host_tag
    }

    /// The word of `index` now, and whether holding its life lock proves that the holder under *that* word is gone: one
    /// look for both (D4), since another court's session may take the entry in between.
    pub(crate) fn judged(&self, index: u32) -> (SessionWord, bool) {
        let word = self.tables.session(index).word();
        (word, self.decides(index, word))
    }

    /// What can be said about the holder of entry `index`.
    pub(crate) fn liveness(&self, index: u32) -> Liveness {
        if !self.judged(index).1 {
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
