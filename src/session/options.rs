//! What a session does when there is no room, and what it may hold at once.

use crate::AttachError;
use crate::engine::Eviction;

/// Options of [`crate::Region::session_with`]. They are the process's own and die with it.
///
/// ```
/// use maru::{Evict, SessionOptions};
/// let options = SessionOptions { most_reservations: Some(32), ..SessionOptions::default() };
/// assert_eq!(options.evict, Evict::WhenFull);
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SessionOptions {
    /// What to do when no slot is free.
    pub evict: Evict,
    /// Reservations that may be open at once; one more answers [`crate::Why::SessionLimit`].
    pub most_reservations: Option<u32>,
    /// Blocks that may be pinned at once.
    pub most_pins: u32,
}

impl Default for SessionOptions {
    fn default() -> Self {
        Self { evict: Evict::WhenFull, most_reservations: None, most_pins: 64 }
    }
}

/// What a store does when the region is full, or nearly.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Evict {
    /// Refuse: blocks that are there stay, the new one is skipped. One exception: where both index buckets of a key are
    /// full, one unread block of theirs makes room, or the key could not be stored at all.
    Never,
    /// Make room for this store.
    WhenFull,
    /// Begin when less than `low` of a class's slots are free, and go on until `high` of them are: stores then rarely wait
    /// for an eviction of their own.
    Watermarks {
        /// Part of the slots, 0 to 0.5.
        low: f64,
        /// Part of the slots, `low` to 0.5.
        high: f64,
    },
}

impl SessionOptions {
    pub(crate) fn check(&self) -> Result<(), AttachError> {
        let Evict::Watermarks { low, high } = self.evict else { return Ok(()) };
        let wrong = |field, found: f64, wanted| Err(AttachError::Options { field, found: found.to_string(), wanted });
        if !(0.0..=0.5).contains(&low) {
            return wrong("evict.low", low, "0 to 0.5");
        }
        if !(low..=0.5).contains(&high) {
            return wrong("evict.high", high, "evict.low to 0.5");
        }
        Ok(())
    }

    pub(crate) fn eviction(&self) -> Eviction {
        match self.evict {
            Evict::Never => Eviction::default(),
            Evict::WhenFull => Eviction { on: true, ..Eviction::default() },
            Evict::Watermarks { low, high } => Eviction { on: true, low, high },
        }
    }
}
