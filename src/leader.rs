//! Leading: of the coordinators of a region, one does what needs doing once.
//!
//! The leader word of the control page names a session and its epoch.
//!
//! * C1: it goes from free, or from a holder that does not live under that epoch any more, to a live session's name,
//!   in one swap; and back to free by its holder, or by the recoverer of its holder.
//! * C2: leading is economy, never safety. Whatever a leader does (fencing, recovering) is a protocol that several may
//!   run at once, so one that lost the word while it slept does no harm, and nobody has to wait for a leader.
//! * C3: a holder that is proven dead is recovered by whoever asks. One that is fenced without proof has lost the word:
//!   it may go on only with calls that look at their own session word first.

use maru_layout::word::{ChoreWord, SessionState};

use crate::engine::Engine;
use crate::regime::Regime;
use crate::step::step;
use crate::sync::{Ordering, edge};
use crate::{CallError, Lead};

/// Looks at the word before one call gives up: each one but the first is owed to somebody who took it or let go of it
/// since the last.
const ROUNDS: u32 = 64;

impl<R: Regime> Engine<R> {
    /// Leads if nobody else does.
    pub(crate) fn lead(&self) -> Result<Lead, CallError> {
        let word = &self.tables.control().leader_chore;
        let mine = ChoreWord::held(self.me.owner, self.me.live.epoch());
        // ORDERING: Relaxed: the swap decides; nothing is published through this word (C2).
        let mut found = ChoreWord(word.load(Ordering::Relaxed));
        for _ in 0..ROUNDS {
            self.check_session()?;
            if found == mine {
                return Ok(Lead::Leading);
            }
            if self.leads(found) {
                let index = found.owner().index().unwrap_or(u32::MAX);
                // The second look: somebody else may have recovered it since the first one.
                if !self.recover_if_dead(index) && self.leads(found) {
                    return Ok(Lead::Follows { index, epoch: found.epoch() });
                }
            }
            // Nobody's, or of one that does not live (C1); its recoverer may be about to give the word back.
            step!(LeaderTake);
            // ORDERING: AcqRel: as any chore: what the last holder did is seen by the next.
            match word.compare_exchange(found.0, mine.0, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => {
                    // Fenced between the look and the swap: the word names a session that does not live, which
                    // anybody may take (C1).
                    self.check_session()?;
                    return Ok(Lead::Leading);
                }
                Err(now) => found = ChoreWord(now),
            }
        }
        Ok(Lead::Follows { index: found.owner().index().unwrap_or(u32::MAX), epoch: found.epoch() })
    }

    /// Whether the session that `word` names lives under that epoch, as far as its session word says.
    fn leads(&self, word: ChoreWord) -> bool {
        let Some(index) = word.owner().index().filter(|index| *index < self.tables.geometry().session_count) else {
            if word != ChoreWord::FREE {
                self.damage();
            }
            return false;
        };
        let holder = self.tables.session(index).word();
        let lives = holder.is(SessionState::Live) || !edge!(LeaderLives);
        lives && holder.epoch() == word.epoch()
    }
}
