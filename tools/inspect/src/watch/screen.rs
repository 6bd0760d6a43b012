//! The state of the screen, and what keys do to it.

use std::time::Duration;

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::history::History;
use crate::census::{Census, Entry};
use crate::life::Life;
use maru_layout::table::Counter;

/// What sessions are sorted by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sort {
    /// Index in the table.
    Index,
    /// Blocks stored.
    Stored,
    /// Blocks found.
    Hits,
    /// Leases held.
    Leases,
    /// Slots owned.
    Slots,
}

impl Sort {
    const ALL: [Self; 5] = [Self::Index, Self::Stored, Self::Hits, Self::Leases, Self::Slots];

    /// Name of the column.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Index => "index",
            Self::Stored => "stored",
            Self::Hits => "hits",
            Self::Leases => "leases",
            Self::Slots => "slots",
        }
    }

    fn next(self) -> Self {
        let at = Self::ALL.iter().position(|sort| *sort == self).unwrap_or(0);
        Self::ALL[(at + 1) % Self::ALL.len()]
    }

    fn key(self, entry: &Entry) -> u64 {
        match self {
            Self::Index => 0,
            Self::Stored => entry.counters[Counter::Stored as usize],
            Self::Hits => entry.counters[Counter::AcquireHits as usize],
            Self::Leases => entry.leases,
            Self::Slots => entry.slots,
        }
    }
}

/// What a key led to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pressed {
    /// Draw on.
    On,
    /// The user has seen enough.
    Quit,
}

/// Characters of a filter.
const FILTER: usize = 64;

/// The state of the screen.
#[derive(Debug)]
pub struct Screen {
    /// What was seen.
    pub history: History,
    /// Time between looks.
    pub interval: Duration,
    /// Whether to use colours.
    pub colour: bool,
    sort: Sort,
    filter: String,
    typing: bool,
    frozen: bool,
    help: bool,
}

impl Screen {
    /// Nothing seen yet.
    #[must_use]
    pub fn new(interval: Duration, colour: bool) -> Self {
        Self {
            history: History::new(),
            interval,
            colour,
            sort: Sort::Index,
            filter: String::new(),
            typing: false,
            frozen: false,
            help: false,
        }
    }

    /// Whether looks are held back.
    #[must_use]
    pub fn is_frozen(&self) -> bool {
        self.frozen
    }

    /// Whether the help is shown.
    #[must_use]
    pub fn shows_help(&self) -> bool {
        self.help
    }

    /// What sessions are sorted by.
    #[must_use]
    pub fn sort(&self) -> Sort {
        self.sort
    }

    /// The filter, and whether it is being typed.
    #[must_use]
    pub fn filter(&self) -> (&str, bool) {
        (&self.filter, self.typing)
    }

    /// Does what a key says.
    pub fn press(&mut self, key: KeyEvent) -> Pressed {
        if key.modifiers.contains(KeyModifiers::CONTROL) && key.code == KeyCode::Char('c') {
            return Pressed::Quit;
        }
        if self.typing {
            match key.code {
                KeyCode::Enter => self.typing = false,
                KeyCode::Esc => (self.typing, self.filter) = (false, String::new()),
                KeyCode::Backspace => drop(self.filter.pop()),
                KeyCode::Char(letter) if self.filter.chars().count() < FILTER && !letter.is_control() => {
                    self.filter.push(letter);
                }
                _ => {}
            }
            return Pressed::On;
        }
        match key.code {
            KeyCode::Char('q') => return Pressed::Quit,
            KeyCode::Char('s') => self.sort = self.sort.next(),
            KeyCode::Char('/') => self.typing = true,
            KeyCode::Char('p') => self.frozen = !self.frozen,
            KeyCode::Char('?' | 'h') => self.help = !self.help,
            // The first one closes what is open, the next one the screen.
            KeyCode::Esc if self.help => self.help = false,
            KeyCode::Esc if !self.filter.is_empty() => self.filter.clear(),
            KeyCode::Esc => return Pressed::Quit,
            _ => {}
        }
        Pressed::On
    }

    /// Sessions in use that the filter lets through, sorted.
    #[must_use]
    pub fn sessions<'a>(&self, census: &'a Census) -> Vec<&'a Entry> {
        let wanted = self.filter.to_lowercase();
        let matches = |entry: &Entry| {
            let life = entry.life.map_or("", Life::name);
            let text = format!("{} {} {} {life}", entry.engine, entry.role(), entry.state()).to_lowercase();
            text.contains(&wanted)
        };
        let mut entries: Vec<&Entry> =
            census.entries.iter().filter(|entry| (entry.in_use() || entry.slots > 0) && matches(entry)).collect();
        entries.sort_by_key(|entry| (core::cmp::Reverse(self.sort.key(entry)), entry.session));
        entries
    }
}
