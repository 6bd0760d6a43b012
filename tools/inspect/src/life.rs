//! Whether the holder of a session entry lives.
//!
//! The kernel's answer, asked the way the library asks: is the life lock on the entry's byte held? Asking takes no lock.
//! It says something about holders on this host only; for any other the answer is "unknown".

use maru::BackingKind;
use maru::os::identity::HostIdentity;
use maru::os::lock::{Held, LockAsker};
use maru_layout::superblock::Hosts;
use maru_layout::word::{SessionState, SessionWord};
use serde::Serialize;

use crate::image::Image;
use crate::source::ReadError;

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
    my_tag: Option<u32>,
}

impl Lives {
    /// Asks about the holders of this region.
    #[must_use]
    pub fn of(image: &Image<'_>) -> Self {
        let source = image.source();
        Self {
            asker: source.backing().and_then(|backing| LockAsker::new(backing).ok()),
            base: source.offset_bytes(),
            hosts: image.geometry().hosts,
            device: source.backing().is_some_and(|backing| backing.kind() == BackingKind::DeviceDax),
            my_tag: source.backing().and_then(|backing| maru::host_tag(&HostIdentity::current().ok()?, backing).ok()),
        }
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

    /// What is known about the holder of entry `index` under `word`; `None` for an entry that nobody holds.
    #[must_use]
    pub fn holder(&self, index: u32, word: SessionWord) -> Option<Life> {
        match word.state() {
            Some(SessionState::Free) => return None,
            Some(SessionState::Dead) => return Some(Life::Dead),
            _ => {}
        }
        if (self.hosts != Hosts::One || self.device) && Some(word.host_tag()) != self.my_tag {
            return Some(Life::Unknown);
        }
        Some(self.byte(index.into()))
    }

    /// As [`Self::holder`], about a holder whose word was read before the kernel is asked and has not moved after.
    /// `None`: it has moved.
    ///
    /// # Errors
    /// The word cannot be read.
    pub fn steady(&self, image: &Image<'_>, index: u32) -> Result<Option<(SessionWord, Option<Life>)>, ReadError> {
        for _ in 0..4 {
            let word = image.session_word(index)?;
            let life = self.holder(index, word);
            if image.session_word(index)? == word {
                return Ok(Some((word, life)));
            }
        }
        Ok(None)
    }
}
