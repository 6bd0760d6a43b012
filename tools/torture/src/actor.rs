//! A process of a case at work: it joins the region, arms its step, acts, and says what it knows.
//!
//! Lines that it says:
//!
//! | line | meaning |
//! | --- | --- |
//! | `session I E` | attached as entry I at epoch E |
//! | `may N` | an operation on block N begins: from here on it may be there or not |
//! | `must N` | the library has answered that block N is there |
//! | `gone N` | the library has answered that block N is not there any more |
//! | `evictable N` | block N may be evicted from here on |
//! | `count STEP N` | step hit N times during the operation |
//! | `ready`, `joined` | in position; waits for a line |
//! | `answer TEXT` | the library refused with this |
//! | `wrong TEXT` | something that must never be |

use anyhow::{Context, Result};
use maru::{Commit, Format, NamespaceId, ObjectId, Region, Reservation, Reserve, ReserveOptions, Role, Session};

use crate::child::Talk;
use crate::scenario::is_typed;
use crate::steps::{Action, Step, arm, counts, disarm};
use crate::world::{Keys, Place, content, object};

/// Where and how a process is to end or stand still.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) step: Step,
    /// Counted from [`Actor::begin`] (or from the end of the interlude).
    pub(crate) nth: u64,
    pub(crate) action: Action,
}

/// A process of a case.
pub(crate) struct Actor<'t> {
    talk: &'t mut Talk,
    pub(crate) place: Place,
    target: Option<Target>,
    interlude: Option<Step>,
    /// Once joined, it waits until the others are where they should be.
    gated: bool,
}

/// A reservation was answered with something else: no error where others were quicker.
#[derive(Debug)]
pub(crate) struct NotGranted(String);

impl std::fmt::Display for NotGranted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for NotGranted {}

/// A session with everything that scenarios need at hand.
pub(crate) struct Joined {
    pub(crate) session: Session,
    pub(crate) region: Region,
    pub(crate) id: NamespaceId,
    pub(crate) keys: Keys,
    pub(crate) slot_bytes: u32,
}

impl Joined {
    pub(crate) fn of(place: &Place, region: Region, engine: &str) -> Result<Self> {
        let session = place.session(&region, engine, Role::Worker)?;
        let id = place.main_namespace(&session)?;
        let keys = Keys::of(region.geometry(), &id);
        Ok(Self { session, region, id, keys, slot_bytes: place.shape.slot_bytes })
    }

    pub(crate) fn object(&self, number: u64) -> ObjectId {
        object(self.id, number)
    }

    pub(crate) fn content(&self, number: u64) -> Vec<u8> {
        content(number, self.slot_bytes)
    }

    pub(crate) fn reserve(&self, number: u64, options: ReserveOptions) -> Result<Reserve<'_>> {
        Ok(self.session.reserve(&self.object(number), self.content(number).len() as u64, options)?)
    }

    /// A reservation, or another answer as an error.
    pub(crate) fn granted(&self, number: u64) -> Result<Reservation<'_>> {
        match self.reserve(number, ReserveOptions::default())? {
            Reserve::Granted(reservation) => Ok(reservation),
            other => Err(NotGranted(format!("block {number}: {other:?}")).into()),
        }
    }
}

impl<'t> Actor<'t> {
    pub(crate) fn new(talk: &'t mut Talk, place: &Place, target: Option<Target>) -> Self {
        Self { talk, place: place.clone(), target, interlude: None, gated: false }
    }

    /// One that stops at a step first, and counts only from there on.
    pub(crate) fn interlude(mut self, step: Option<Step>) -> Self {
        self.interlude = step;
        self
    }

    /// One that waits at its gate.
    pub(crate) fn gated(mut self, gated: bool) -> Self {
        self.gated = gated;
        self
    }

    /// Where it waits until everybody who must be attached before the first death is.
    pub(crate) fn gate(&mut self) {
        if self.gated {
            self.talk.say("joined");
            self.talk.hear();
        }
    }

    pub(crate) fn say(&mut self, line: &str) {
        self.talk.say(line);
    }

    /// Says that it is in position, and waits for "go".
    pub(crate) fn ready_and_go(&mut self) {
        self.talk.say("ready");
        self.talk.hear();
    }

    /// Runs `work`; an answer of the library that stops it is an answer, anything else a failure.
    pub(crate) fn play(&mut self, work: crate::scenario::Work) -> Result<()> {
        match work(self) {
            Ok(()) => {
                self.say("done");
                Ok(())
            }
            Err(error) if is_typed(&error) => {
                self.say(&format!("answer {error:#}"));
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// Opens the region and becomes a session.
    pub(crate) fn join(&mut self) -> Result<Joined> {
        let region = self.place.open(Format::Never)?;
        let joined = Joined::of(&self.place, region, "victim")?;
        self.announce(&joined.session);
        self.gate();
        Ok(joined)
    }

    pub(crate) fn announce(&mut self, session: &Session) {
        self.say(&format!("session {} {}", session.index(), session.epoch()));
    }

    /// From here on the steps count.
    pub(crate) fn begin(&mut self) {
        continued::remember();
        match self.interlude {
            Some(step) => {
                continued::after(self.target);
                arm(step, continued::so_far(step) + 1, Action::Stop);
            }
            None => {
                if let Some(target) = self.target {
                    arm(target.step, continued::so_far(target.step) + target.nth, target.action);
                }
            }
        }
    }

    /// The operation is over: nothing that follows counts.
    pub(crate) fn end(&mut self) {
        disarm();
        for (at, (name, count)) in counts().into_iter().enumerate() {
            let hit = count - continued::before(at);
            if hit > 0 {
                self.say(&format!("count {name} {hit}"));
            }
        }
    }

    /// Says what a commit means for the block.
    pub(crate) fn told(&mut self, number: u64, commit: Commit) {
        match commit {
            Commit::Stored | Commit::AlreadyStored => self.say(&format!("must {number}")),
            Commit::Unknown(_) => self.say("wrong commit answered unknown"),
            other => self.say(&format!("answer commit {}", other.code())),
        }
    }

    /// The whole store of one block: reserve, one piece, commit.
    pub(crate) fn store_block(&mut self, joined: &Joined, number: u64) -> Result<()> {
        self.say(&format!("may {number}"));
        match joined.reserve(number, ReserveOptions::default())? {
            Reserve::Granted(mut reservation) => {
                reservation.write_at(0, &joined.content(number))?;
                let commit = reservation.commit()?;
                self.told(number, commit);
            }
            Reserve::Present => self.say(&format!("must {number}")),
            other => self.say(&format!("answer reserve {other:?}")),
        }
        Ok(())
    }

    /// Leaves the region in order. A fenced session can, too.
    pub(crate) fn leave(&mut self, joined: Joined) -> Result<()> {
        joined.session.close().map_err(|(held, _)| held).context("close")
    }
}

/// What a process counts from, and what it does when it is continued after an interlude.
mod continued {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::Target;
    use crate::steps::{Action, Step, arm, counts};

    static BEFORE: [AtomicU64; 128] = [const { AtomicU64::new(0) }; 128];
    /// 0 nothing, 1 an interlude without a target, 2 with one.
    static WAITING: AtomicU64 = AtomicU64::new(0);
    static STEP: AtomicU64 = AtomicU64::new(0);
    static NTH: AtomicU64 = AtomicU64::new(0);
    static STOP: AtomicU64 = AtomicU64::new(0);

    pub(super) fn remember() {
        for (before, (_, count)) in BEFORE.iter().zip(counts()) {
            before.store(count, Ordering::Relaxed);
        }
    }

    pub(super) fn before(at: usize) -> u64 {
        BEFORE[at].load(Ordering::Relaxed)
    }

    pub(super) fn so_far(step: Step) -> u64 {
        counts().get(step as usize).map_or(0, |(_, count)| *count)
    }

    /// Prepares what happens at SIGCONT.
    pub(super) fn after(target: Option<Target>) {
        if let Some(target) = target {
            STEP.store(target.step as u64, Ordering::Relaxed);
            NTH.store(target.nth, Ordering::Relaxed);
            STOP.store(u64::from(target.action == Action::Stop), Ordering::Relaxed);
        }
        WAITING.store(1 + u64::from(target.is_some()), Ordering::Relaxed);
        let handler: extern "C" fn(libc::c_int) = on_continue;
        // SAFETY: the handler is a plain function that lives as long as the program. It runs while the process stands
        // in `raise` at an armed step, never in the middle of an allocation.
        unsafe { libc::signal(libc::SIGCONT, handler as *const () as libc::sighandler_t) };
    }

    extern "C" fn on_continue(_: libc::c_int) {
        let waiting = WAITING.swap(0, Ordering::Relaxed);
        if waiting == 0 {
            return;
        }
        remember();
        if waiting == 2
            && let Some(step) = Step::ALL.get(STEP.load(Ordering::Relaxed) as usize)
        {
            let action = if STOP.load(Ordering::Relaxed) == 1 { Action::Stop } else { Action::Kill };
            arm(*step, so_far(*step) + NTH.load(Ordering::Relaxed), action);
        }
    }
}
