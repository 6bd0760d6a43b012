//! `watch` (also `top`): a region as it goes, at a terminal a screen, else a line for each look.
//!
//! Every look opens the region anew and reads the tables; rates are what the counters have grown by between two looks,
//! over this tool's own clock. A region that is replaced, cut or damaged meanwhile is said, and watched on: what was
//! gathered of another region is forgotten, not mixed.
//!
//! | file | holds |
//! | --- | --- |
//! | [`history`] | looks and rates |
//! | [`screen`] | the state of the screen and its keys |
//! | [`draw`] | the picture |
//! | [`plain`] | lines for pipes, and JSON |

pub mod draw;
pub mod history;
pub mod plain;
pub mod screen;

use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

use ratatui::crossterm::event::{self, Event, KeyEventKind};

use crate::census::Site;
use crate::findings::Verdict;
use crate::out::Out;

use history::History;
use screen::{Pressed, Screen};

/// What to watch, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wish {
    /// Which region.
    pub site: Site,
    /// Time between looks.
    pub interval: Duration,
    /// Looks, then the end.
    pub count: Option<u64>,
    /// Lines even at a terminal.
    pub plain: bool,
}

/// Watches until the count is reached, the reader of the output has gone, or `q` is pressed.
///
/// # Errors
/// The reader of the output has gone, or the terminal cannot be used.
pub fn run(wish: &Wish, json: bool) -> io::Result<Verdict> {
    if json || wish.plain || !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        return lines(wish, json);
    }
    let mut terminal = ratatui::try_init()?;
    let ended = on_screen(wish, &mut terminal);
    ratatui::try_restore()?;
    ended
}

fn lines(wish: &Wish, json: bool) -> io::Result<Verdict> {
    let mut history = History::new();
    let mut out = Out::stdout(json);
    let mut looks = 0;
    loop {
        let look = wish.site.look();
        let verdict = look.verdict();
        history.add(look, Instant::now());
        plain::print(&history, looks, &mut out)?;
        out.flush()?;
        looks += 1;
        if wish.count.is_some_and(|count| looks >= count) {
            plain::summary(&history, &mut out)?;
            out.flush()?;
            return Ok(verdict);
        }
        std::thread::sleep(wish.interval);
    }
}

fn on_screen(wish: &Wish, terminal: &mut ratatui::DefaultTerminal) -> io::Result<Verdict> {
    let colour = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let mut screen = Screen::new(wish.interval, colour);
    let mut looks = 0;
    let mut next = Instant::now();
    loop {
        let now = Instant::now();
        if now >= next {
            if !screen.is_frozen() {
                screen.history.add(wish.site.look(), now);
                looks += 1;
            }
            next = now + wish.interval;
        }
        terminal.draw(|frame| draw::draw(frame, &screen))?;
        if wish.count.is_some_and(|count| looks >= count) {
            return Ok(screen.history.verdict());
        }
        if event::poll(next.saturating_duration_since(Instant::now()))?
            && let Event::Key(key) = event::read()?
            && key.kind != KeyEventKind::Release
            && screen.press(key) == Pressed::Quit
        {
            return Ok(screen.history.verdict());
        }
    }
}
