//! Whether the holder of a session entry lives.
//!
//! The kernel's answer, asked the way the library asks: is the life lock on the entry's byte held? Asking takes no lock.
//! It says something about holders on this host only; for any other the answer is "unknown". An earlier boot of this
//! host counts as another host.

use maru::BackingKind;
use maru::os::identity::HostIdentity;
use maru::os::lock::{Held, LockAsker};
use maru_layout::superblock::Hosts;
use maru_layout::table::SessionEntry;
use maru_layout::word::{SessionState, SessionWord};
use serde::Serialize;

use crate::image::Image;
use crate::source::{BackingFile, ReadError};

/// What is known about a holder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Life {
    /// Its life lock is held.
    Alive,
    /// Its life lock is free.
    Dead,
    /// Another host's, or no lock to ask for (an image in memory, a file system without locks).
    Unknown,
}

impl Life {
    /// The word in tables and JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Alive => "alive",
            Self::Dead => "dead",
            Self::Unknown => "unknown",
        }
    }
}

/// Asks for the holders of one region.
pub struct Lives {
    asker: Option<LockAsker>,
    base: u64,
    hosts: Hosts,
    device: bool,
    here: Option<HostIdentity>,
    my_tag: Option<u32>,
}

impl Lives {
    /// Asks about the holders of this region.
    #[must_use]
    pub fn of(image: &Image<'_>) -> Self {
        Self::on(image, image.source().backing())
    }

    /// The same, where life locks lie on this file.
    #[must_use]
    pub fn on(image: &Image<'_>, locks: Option<&BackingFile>) -> Self {
        let source = image.source();
        let here = HostIdentity::current().ok();
        Self {
            asker: locks.and_then(|locks| LockAsker::new(locks).ok()),
            base: source.offset_bytes(),
            hosts: image.geometry().hosts,
            device: source.backing().is_some_and(|backing| backing.kind() == BackingKind::DeviceDax),
            here,
            my_tag: here.and_then(|here| maru::host_tag(&here, locks?).ok()),
        }
    }

    /// This host, where the kernel says.
    #[must_use]
    pub fn here(&self) -> Option<&HostIdentity> {
        self.here.as_ref()
    }

    /// What session words of this host's processes carry.
    #[must_use]
    pub fn my_tag(&self) -> Option<u32> {
        self.my_tag
    }

    /// Whether the lock on a byte, counted from the region's offset, is held.
    #[must_use]
    pub fn byte(&self, byte: u64) -> Life {
        match self.asker.as_ref().map(|asker| asker.ask(self.base.saturating_add(byte))) {
            Some(Ok(Held::Yes { .. })) => Life::Alive,
            Some(Ok(Held::No)) => Life::Dead,
            Some(Err(_)) | None => Life::Unknown,
        }
    }

    /// What is known about the holder of entry `index`; `None` for an entry that nobody holds.
    #[must_use]
    pub fn holder(&self, index: u32, entry: &SessionEntry) -> Option<Life> {
        match SessionWord(entry.word).state() {
            Some(SessionState::Free) => None,
            Some(SessionState::Dead) => Some(Life::Dead),
            _ => Some(self.proof(index, entry)),
        }
    }

    /// What the kernel of this host says about the holder of entry `index`, whatever its word says.
    #[must_use]
    pub fn proof(&self, index: u32, entry: &SessionEntry) -> Life {
        if self.hosts == Hosts::One && !self.device {
            return self.byte(index.into());
        }
        let word = SessionWord(entry.word);
        // The tag has 28 bits; where the entry is filled in, its whole boot id has to agree too.
        let filled = matches!(word.state(), Some(SessionState::Live | SessionState::Fenced));
        let here = self.my_tag == Some(word.host_tag())
            && (!filled || self.here.is_some_and(|here| here.boot_id == entry.boot_id));
        if here { self.byte(index.into()) } else { Life::Unknown }
    }

    /// As [`Self::holder`], about a holder whose word was read before the kernel is asked and has not moved after.
    /// `None`: it has moved.
    ///
    /// # Errors
    /// The word cannot be read.
    pub fn steady(&self, image: &Image<'_>, index: u32) -> Result<Option<(SessionWord, Option<Life>)>, ReadError> {
        for _ in 0..4 {
            let entry = image.session(index)?;
            let word = SessionWord(entry.word);
            let life = self.holder(index, &entry);
            if image.session_word(index)? == word {
                return Ok(Some((word, life)));
            }
        }
        Ok(None)
    }
}
