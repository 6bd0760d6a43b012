//! One case: one scenario, one step, one set of survivors. Who is there, who dies, what must follow.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use maru::{Batch, LeaseHandle};
use nix::sys::signal::Signal;

use crate::actor::{Actor, Joined, Target};
use crate::check;
use crate::child::{Child, End, Event, Talk, now_ns};
use crate::scenario::{Attempt, Contest, Contestant, Scenario, Set, Until};
use crate::stage::{Fate, Stage, slot_of, still_protected};
use crate::steps::{Action, Step};
use crate::world::{Keys, Place, Stored, content, store};

/// The published bound: a blocked survivor goes on this long after the kernel reported the death, without a
/// coordinator.
pub(crate) const BOUND_MS: f64 = 1_000.0;
/// Beyond this many seconds a process counts as hung.
static PATIENCE_SECONDS: AtomicU64 = AtomicU64::new(10);
/// Processes that race for a region whose formatter died.
const RACERS: usize = 3;
/// How long a contestant tries before it gives up.
const TRIES: Duration = Duration::from_secs(4);

/// Says how long a process may be silent before it counts as hung.
pub(crate) fn set_patience(seconds: u64) {
    PATIENCE_SECONDS.store(seconds.max(6), Ordering::Relaxed);
}

fn patience() -> Duration {
    Duration::from_secs(PATIENCE_SECONDS.load(Ordering::Relaxed))
}

/// Which case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CaseKey {
    /// Index of the scenario.
    pub(crate) scenario: usize,
    /// Where the victim ends; `None` plays the scenario through.
    pub(crate) at: Option<(Step, u64)>,
    pub(crate) set: Set,
}

/// What came of it.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) violations: Vec<String>,
    /// From the report of the death to the success of whoever was waiting.
    pub(crate) recovery_ms: Option<f64>,
    /// The victim reached its step.
    pub(crate) reached: bool,
    /// Steps hit during the operation, in a run without a step.
    pub(crate) counts: Vec<(Step, u64)>,
}

/// Plays a case in `directory`, which it empties.
pub(crate) fn play(scenario: &Scenario, case: CaseKey, directory: &Path) -> Outcome {
    let mut outcome = Outcome::default();
    let mut run = Run { scenario, case, outcome: &mut outcome };
    if let Err(error) = run.play(directory) {
        outcome.violations.push(format!("the case could not be played: {error:#}"));
    }
    let _ = std::fs::remove_dir_all(directory);
    outcome
}

struct Run<'a> {
    scenario: &'a Scenario,
    case: CaseKey,
    outcome: &'a mut Outcome,
}

/// Where the victim stands after it was set going.
enum Stand {
    Dead { at_ns: u64 },
    Stopped,
    Finished,
}

impl Run<'_> {
    fn complain(&mut self, text: String) {
        self.outcome.violations.push(text);
    }

    fn play(&mut self, directory: &Path) -> Result<()> {
        let scenario = self.scenario;
        let mut stage = Stage::new(directory, scenario).context("make the region")?;
        if let Some(prepare) = scenario.prepare {
            prepare(&mut stage).context("prepare")?;
        }
        let mut partners = self.partners(&mut stage)?;
        // Where nothing is formatted yet, several race for what the dead formatter leaves.
        let count = match self.case.set {
            Set::None | Set::Fenced => 0,
            Set::Blocked if scenario.unformatted => RACERS,
            Set::Idle | Set::Blocked | Set::Reading => 1,
        };
        let mut survivors = (0..count).map(|_| self.survivor(&stage)).collect::<Result<Vec<_>>>()?;
        if scenario.dies_first {
            self.let_partners_die(&mut stage, &mut partners)?;
        }
        let mut victim = self.victim(&stage)?;
        let mut told = Told::default();
        match self.until_it_stands(&mut stage, &mut victim, &mut partners, &mut told)? {
            Stand::Finished => self.finished(&mut stage, &mut survivors, &told)?,
            Stand::Dead { at_ns } => {
                self.outcome.reached = true;
                self.look_at_once(&stage);
                self.contest_after(&mut stage, &mut survivors, at_ns)?;
            }
            Stand::Stopped if self.case.set == Set::Fenced => {
                self.outcome.reached = true;
                self.fence_and_go_on(&mut stage, &mut victim, &mut told)?;
            }
            Stand::Stopped => {
                self.outcome.reached = true;
                self.contest_around(&mut stage, &mut victim, &mut survivors, &mut told)?;
            }
        }
        drop(victim);
        stage.let_go().context("the parent lets go")?;
        for partner in &mut partners {
            self.settle_partner(&mut stage, partner)?;
        }
        for survivor in &mut survivors {
            survivor.tell("leave");
            self.until_it_ends(&mut stage, survivor)?;
        }
        if self.outcome.reached || self.case.at.is_none() {
            let found = check::whole(&stage, scenario.allowed).context("check")?;
            self.outcome.violations.extend(found);
            self.outcome.violations.append(&mut stage.model.wrong);
        }
        Ok(())
    }

    fn partners(&mut self, stage: &mut Stage) -> Result<Vec<Child>> {
        let mut partners = Vec::new();
        for (at, partner) in self.scenario.partners.iter().enumerate() {
            let partner = *partner;
            let place = stage.place.clone();
            let target = partner.at.map(|(step, nth)| Target { step, nth, action: partner.action() });
            let gated = partner.until == Until::Dead;
            let mut child = Child::fork(&format!("partner {at}"), move |talk| {
                Actor::new(talk, &place, target).gated(gated).play(partner.work)
            })?;
            loop {
                match (child.event(patience()), partner.until) {
                    (Event::Said(line), Until::Ready) if line == "ready" => break,
                    (Event::Said(line), Until::Dead) if line == "joined" => break,
                    (Event::Stopped, Until::Stopped) | (Event::Ended { end: End::Killed(9), .. }, Until::Dead) => break,
                    (Event::Said(line), _) if line.starts_with("session ") => {}
                    (Event::Said(line), _) if stage.model.take(&line) => {}
                    (event, until) => bail!("partner {at} should be {until:?}: {event:?}"),
                }
            }
            partners.push(child);
        }
        Ok(partners)
    }

    /// Opens the gate of the partners that are to die, and waits until they have.
    fn let_partners_die(&mut self, stage: &mut Stage, partners: &mut [Child]) -> Result<()> {
        for (child, partner) in partners.iter_mut().zip(&self.scenario.partners) {
            if partner.until != Until::Dead {
                continue;
            }
            child.tell("go");
            loop {
                match child.event(patience()) {
                    Event::Said(line) if stage.model.take(&line) => {}
                    Event::Ended { end: End::Killed(9), .. } => break,
                    event => bail!("{} should have died: {event:?}", child.name()),
                }
            }
        }
        Ok(())
    }

    fn survivor(&self, stage: &Stage) -> Result<Child> {
        let (place, contest, unformatted) = (stage.place.clone(), self.scenario.contest, self.scenario.unformatted);
        let reading = self.case.set == Set::Reading;
        let mut child = Child::fork("survivor", move |talk| survive(talk, &place, contest, reading, unformatted))?;
        child.expect("ready", patience(), |_| false)?;
        Ok(child)
    }

    fn victim(&self, stage: &Stage) -> Result<Child> {
        let place = stage.place.clone();
        let action = match self.case.set {
            Set::Blocked | Set::Fenced => Action::Stop,
            Set::None | Set::Idle | Set::Reading => Action::Kill,
        };
        let target = self.case.at.map(|(step, nth)| Target { step, nth, action });
        let interlude = self.scenario.interlude.map(|(step, _)| step);
        let work = self.scenario.victim;
        let gated =
            !self.scenario.dies_first && self.scenario.partners.iter().any(|partner| partner.until == Until::Dead);
        Child::fork("victim", move |talk| Actor::new(talk, &place, target).interlude(interlude).gated(gated).play(work))
    }

    /// Takes the victim's lines and moves it past the interlude, until it stands, dies or is done.
    fn until_it_stands(
        &mut self,
        stage: &mut Stage,
        victim: &mut Child,
        partners: &mut [Child],
        told: &mut Told,
    ) -> Result<Stand> {
        let mut interlude = self.scenario.interlude;
        loop {
            match victim.event(patience()) {
                Event::Said(line) if line == "joined" => {
                    self.let_partners_die(stage, partners)?;
                    victim.tell("go");
                }
                Event::Said(line) => told.take(&line, &mut stage.model),
                Event::Stopped => match interlude.take() {
                    Some((_, act)) => {
                        act(stage).context("interlude")?;
                        victim.signal(Signal::SIGCONT);
                    }
                    None => return Ok(Stand::Stopped),
                },
                Event::Ended { end: End::Killed(9), at_ns } => return Ok(Stand::Dead { at_ns }),
                Event::Ended { end: End::Exited(0), .. } => return Ok(Stand::Finished),
                Event::Ended { end, .. } => bail!("the victim ended with {end:?}: {}", told.answers.join("; ")),
                Event::Silence => bail!("the victim does not move"),
            }
        }
    }

    /// The victim came through. Without a step that is what was wanted, and it must have been told no.
    fn finished(&mut self, stage: &mut Stage, survivors: &mut [Child], told: &Told) -> Result<()> {
        self.outcome.counts.clone_from(&told.counts);
        if self.case.at.is_some() {
            return Ok(());
        }
        if !told.answers.is_empty() {
            self.complain(format!("nobody interfered, and the library answered {:?}", told.answers));
        }
        self.contest_after(stage, survivors, now_ns())
    }

    fn look_at_once(&mut self, stage: &Stage) {
        // In the middle of formatting there is no whole region to look at.
        if crate::scenario::is_formatting(self.scenario) {
            return;
        }
        let damaged = stage.model.fates.values().filter(|fate| **fate == Fate::Damaged).count();
        match check::at_once(&stage.place, damaged) {
            Ok(found) => self.outcome.violations.extend(found.into_iter().map(|text| format!("right after: {text}"))),
            Err(error) => self.complain(format!("right after: {error:#}")),
        }
    }

    /// Nobody waited for the victim while it lived; now somebody wants what it may have held.
    fn contest_after(&mut self, stage: &mut Stage, survivors: &mut [Child], death_ns: u64) -> Result<()> {
        if survivors.is_empty() {
            let mut contestant = Contestant::outside(&stage.place);
            self.try_until_done(stage, &mut contestant, death_ns)?;
            return contestant.close().context("the later attacher leaves");
        }
        for survivor in survivors.iter_mut() {
            survivor.tell("contest");
        }
        self.hear_contest(stage, survivors, death_ns)
    }

    /// Somebody wants it while the victim stands at its step; then the victim is killed.
    fn contest_around(
        &mut self,
        stage: &mut Stage,
        victim: &mut Child,
        survivors: &mut [Child],
        told: &mut Told,
    ) -> Result<()> {
        for survivor in survivors.iter_mut() {
            survivor.tell("contest");
        }
        // Who opens or registers waits inside its one call; everybody else says how the first try went.
        if matches!(self.scenario.contest, Contest::Open | Contest::Register(_)) {
            std::thread::sleep(Duration::from_millis(4));
        } else {
            for survivor in survivors.iter_mut() {
                survivor.expect("tried", patience(), |_| false)?;
            }
        }
        victim.signal(Signal::SIGKILL);
        let death_ns = loop {
            match victim.event(patience()) {
                Event::Said(line) => told.take(&line, &mut stage.model),
                Event::Ended { at_ns, .. } => break at_ns,
                Event::Stopped => {}
                Event::Silence => bail!("the victim does not die"),
            }
        };
        self.hear_contest(stage, survivors, death_ns)
    }

    fn hear_contest(&mut self, stage: &mut Stage, survivors: &mut [Child], death_ns: u64) -> Result<()> {
        for survivor in survivors {
            match survivor.expect("done", patience(), |line| line.starts_with("tried")) {
                Ok(at) => self.won(stage, death_ns, at.parse().context("time of the success")?)?,
                Err(error) => self.complain(format!("a survivor is stuck: {error:#}")),
            }
        }
        Ok(())
    }

    fn try_until_done(&mut self, stage: &mut Stage, contestant: &mut Contestant, from_ns: u64) -> Result<()> {
        match try_for_long(contestant, self.scenario.contest, |_| {}) {
            Ok(()) => self.won(stage, from_ns, now_ns()),
            Err(error) => {
                self.complain(format!("stuck: {error:#}"));
                Ok(())
            }
        }
    }

    /// The contest is won: what it makes true, and whether in time.
    fn won(&mut self, stage: &mut Stage, from_ns: u64, at_ns: u64) -> Result<()> {
        let ms = at_ns.saturating_sub(from_ns) as f64 / 1e6;
        if at_ns > from_ns && self.case.at.is_some() {
            self.outcome.recovery_ms = Some(self.outcome.recovery_ms.unwrap_or(0.0).max(ms));
        }
        if ms > BOUND_MS {
            self.complain(format!("a survivor went on only after {ms:.0} ms, the bound is {BOUND_MS:.0} ms"));
        }
        let (pick, fate): (fn(&Keys) -> u64, Fate) = match self.scenario.contest {
            Contest::Store(pick) | Contest::Outlast(pick) => (pick, Fate::Must),
            Contest::Open => (|keys| keys.k, Fate::Must),
            Contest::Drain(pick) => (pick, Fate::Gone),
            Contest::Register(_) | Contest::Attach | Contest::Lead | Contest::Vouch => return Ok(()),
        };
        let region = stage.place.open(maru::Format::Never)?;
        let reader = region.reader();
        let id = reader.namespace(&crate::world::namespace(crate::world::MAIN))?.context("the namespace is gone")?;
        let number = pick(&Keys::of(region.geometry(), &id));
        stage.model.fates.insert(number, fate);
        Ok(())
    }

    /// The victim is stopped, not dead: it is fenced, the others go on, every free slot gets a block of another key,
    /// and only then does it wake.
    fn fence_and_go_on(&mut self, stage: &mut Stage, victim: &mut Child, told: &mut Told) -> Result<()> {
        let joined = stage.join().context("the fencing session")?;
        let from_ns = now_ns();
        let fenced = match told.session {
            Some((index, epoch)) => joined.session.fence(index, epoch)?,
            None => false,
        };
        let step = self.case.at.map(|(step, _)| step);
        let holds = step.is_some_and(|step| self.scenario.holds_when_fenced.contains(&step));
        if fenced && !holds {
            let mut contestant = Contestant::outside(&stage.place);
            self.try_until_done(stage, &mut contestant, from_ns)?;
            contestant.close().context("the survivor leaves")?;
        }
        // One block half written by somebody who lives, the rest full of other keys' blocks.
        let half = Keys::even(joined.region.geometry(), &joined.id, 400_000, 1, 2)[0];
        let mut open = joined.reserve(half, maru::ReserveOptions::default())?.granted();
        self.bait(stage, &joined)?;
        victim.signal(Signal::SIGCONT);
        self.until_it_woke(stage, victim, told);
        if let Some(reservation) = &mut open {
            let written = reservation.write_at(0, &joined.content(half));
            let commit = reservation.commit();
            if written.is_ok() && matches!(commit, Ok(maru::Commit::Stored)) {
                stage.model.fates.insert(half, Fate::Must);
            } else {
                self.complain(format!("a live writer lost its slot to a woken one: {written:?}, {commit:?}"));
            }
        }
        drop(open);
        joined.session.close().map_err(|(held, _)| held).context("the fencing session leaves")
    }

    fn until_it_woke(&mut self, stage: &mut Stage, victim: &mut Child, told: &mut Told) {
        loop {
            match victim.event(patience()) {
                // It may have begun before the others stored the block anew: when exactly, only it knows.
                Event::Said(line) => match line.strip_prefix("gone ") {
                    Some(number) => {
                        stage.model.take(&format!("may {number}"));
                    }
                    None => told.take(&line, &mut stage.model),
                },
                Event::Stopped => {}
                Event::Ended { end: End::Exited(0), .. } => return,
                Event::Ended { end, .. } => {
                    return self.complain(format!("the woken victim ended with {end:?}: {}", told.answers.join("; ")));
                }
                Event::Silence => return self.complain("the woken victim does not end".to_owned()),
            }
        }
    }

    /// Fills what is free, so that a late store of the woken victim would hit somebody's block.
    fn bait(&mut self, stage: &mut Stage, joined: &Joined) -> Result<()> {
        let numbers = Keys::even(joined.region.geometry(), &joined.id, 200_000, stage.place.shape.slots, 2);
        for number in numbers {
            match store(&joined.session, joined.id, number, joined.slot_bytes)? {
                Stored::Yes => stage.model.fates.insert(number, Fate::Must),
                Stored::NotNow(_) => break,
            };
        }
        Ok(())
    }

    /// Lets a partner finish. It may be told no, but it must end in order.
    fn settle_partner(&mut self, stage: &mut Stage, partner: &mut Child) -> Result<()> {
        partner.tell("go");
        partner.signal(Signal::SIGCONT);
        self.until_it_ends(stage, partner)
    }

    fn until_it_ends(&mut self, stage: &mut Stage, child: &mut Child) -> Result<()> {
        loop {
            match child.event(patience()) {
                Event::Said(line) => {
                    if line.starts_with("failed") {
                        self.complain(format!("{}: {line}", child.name()));
                    }
                    stage.model.take(&line);
                }
                Event::Stopped => {}
                // A partner that was killed on purpose ended long ago.
                Event::Ended { end: End::Exited(0) | End::Killed(9), .. } => return Ok(()),
                Event::Ended { end, .. } => {
                    self.complain(format!("{} ended with {end:?}", child.name()));
                    return Ok(());
                }
                Event::Silence => {
                    self.complain(format!("{} does not end", child.name()));
                    return Ok(());
                }
            }
        }
    }
}

/// What the victim has said.
#[derive(Default)]
struct Told {
    session: Option<(u32, u32)>,
    counts: Vec<(Step, u64)>,
    answers: Vec<String>,
}

impl Told {
    fn take(&mut self, line: &str, model: &mut crate::stage::Model) {
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["session", index, epoch] => self.session = index.parse().ok().zip(epoch.parse().ok()),
            ["count", name, hits] => {
                if let Some(pair) = Step::named(name).zip(hits.parse().ok()) {
                    self.counts.push(pair);
                }
            }
            ["answer" | "failed", ..] => self.answers.push(line.to_owned()),
            _ => {
                model.take(line);
            }
        }
    }
}

/// Tries until it is done; `tried` hears of the first try.
fn try_for_long(contestant: &mut Contestant, contest: Contest, mut tried: impl FnMut(&str)) -> Result<()> {
    let start = Instant::now();
    let mut first = true;
    loop {
        let attempt = contestant.attempt(contest)?;
        let text = match &attempt {
            Attempt::Done => "done",
            Attempt::Again(why) => why.as_str(),
        };
        if first {
            tried(text);
            first = false;
        }
        if attempt == Attempt::Done {
            return Ok(());
        }
        if start.elapsed() > TRIES {
            bail!("still {text} after {} s", TRIES.as_secs());
        }
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// The survivor's life.
fn survive(talk: &mut Talk, place: &Place, contest: Contest, reading: bool, unformatted: bool) -> Result<()> {
    let mut contestant = if unformatted { Contestant::outside(place) } else { Contestant::attached(place)? };
    let mut leases = Vec::new();
    if reading {
        leases = take_leases(&contestant)?;
    }
    talk.say("ready");
    loop {
        match talk.hear().as_str() {
            "contest" => {
                let done = try_for_long(&mut contestant, contest, |text| talk.say(&format!("tried {text}")));
                match done {
                    Ok(()) => talk.say(&format!("done {}", now_ns())),
                    Err(error) => talk.say(&format!("stuck {error:#}")),
                }
            }
            "leave" => {
                if reading {
                    give_leases_back(talk, &contestant, place, leases)?;
                }
                return contestant.close();
            }
            other => bail!("unknown command {other}"),
        }
    }
}

/// Leases the first two blocks: one to copy, one to look at in place.
fn take_leases(contestant: &Contestant) -> Result<Vec<(u64, LeaseHandle)>> {
    let (id, keys) = contestant.keys()?;
    let session = contestant.session()?;
    let mut handles = Vec::new();
    for (at, number) in keys.base.iter().take(2).enumerate() {
        let lease = session.acquire(&[crate::world::object(id, *number)], Batch::Each)?.pop().context("one answer")?;
        let lease = lease.map_err(|why| anyhow::anyhow!("block {number}: {why}"))?;
        if at == 1 {
            lease.view()?;
        }
        handles.push((*number, lease.into_handle()));
    }
    Ok(handles)
}

/// The leased blocks are still what they were, retired or not, and the leases can be given back.
fn give_leases_back(
    talk: &mut Talk,
    contestant: &Contestant,
    place: &Place,
    leases: Vec<(u64, LeaseHandle)>,
) -> Result<()> {
    let session = contestant.session()?;
    let bytes = place.bytes()?;
    let image = maru::layout::image::Image::read(&bytes).context("the superblock")?;
    for (number, handle) in leases {
        let slot = slot_of(&handle);
        if let Err(error) = still_protected(place, &handle) {
            talk.say(&format!("wrong block {number}: {error:#}"));
        }
        let wanted = content(number, place.shape.slot_bytes);
        if image.payload(slot, wanted.len() as u32) != Some(&wanted[..]) {
            talk.say(&format!("wrong leased block {number} changed in slot {slot}"));
        }
        if session.release(handle)? != maru::Release::Released {
            talk.say(&format!("wrong the lease of block {number} is not held any more"));
        }
    }
    // Whatever drained under these leases can go now.
    session.reclaim()?;
    Ok(())
}
