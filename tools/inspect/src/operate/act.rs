//! Acting: join, do what the plan says through the library, leave, and read back what has changed.

use std::io::{self, Write};
use std::time::{Duration, Instant};

use maru::{AttachError, CallError, HostRecovery, Mode, OpenOptions, Region, Role, Session};
use maru_layout::word::{Owner, SessionState, SessionWord, SlotState, SlotWord};

use super::lines::{Side, action, engine_of};
use super::plan::{Chosen, Fates, Plan};
use super::{ChangeLine, Errand, Outcome, OutcomeLine, Refusal, Wish};
use crate::image::Image;
use crate::out::{Line, Out, Tone, grouped, safe};
use crate::source::ReadError;
use crate::tally::States;

/// Engine name of the session that acts.
const NAME: &str = "maru-inspect";
/// Damaged slots that are named.
const NAMED: usize = 10;

/// What the library said.
#[derive(Debug, Default)]
pub(super) struct Done {
    host: HostRecovery,
    device_slots: u32,
}

impl From<AttachError> for Refusal {
    fn from(error: AttachError) -> Self {
        match error {
            AttachError::Full { .. } => {
                let hint =
                    "an operator's verb needs an entry for a moment; close a session, or end a process on this host";
                Self::new(Outcome::Busy, format!("{error}; {hint}"))
            }
            other => Self::cannot(other),
        }
    }
}

impl From<CallError> for Refusal {
    fn from(error: CallError) -> Self {
        Self::cannot(error)
    }
}

/// Joins, acts, leaves.
pub(super) fn act(errand: &Errand, plan: &Plan) -> Result<Done, Refusal> {
    // Payload is mapped for a scrub and for nothing else.
    let mode = if plan.scrub_blocks > 0 { Mode::Full } else { Mode::HeaderOnly };
    let mut options = OpenOptions::new(errand.backing()).partition(errand.offset, errand.length).mode(mode);
    options.lock_file.clone_from(&errand.lock_file);
    let region = Region::open(options).map_err(Refusal::cannot)?;
    // Joining takes the first entry that is free or proven dead; in the latter case it has brought that one home already.
    let session = region.session(NAME, Role::Tool)?;
    let done = work(&session, errand.wish, plan);
    // Nothing is leased or reserved, so closing refuses nothing.
    drop(session);
    done
}

fn work(session: &Session, wish: Wish, plan: &Plan) -> Result<Done, Refusal> {
    let mut done = Done::default();
    match wish {
        Wish::Fence { .. } => {
            for chosen in &plan.sessions {
                session.fence(chosen.index, chosen.word.epoch())?;
            }
        }
        Wish::Proven => {
            session.recover_dead()?;
        }
        Wish::HostDead(host) => {
            let mut progress = Progress::new(io::stderr(), Duration::from_secs(1));
            done.host = session.recover_host(&host, &mut |slots, all| progress.tell(slots, all))?;
            progress.end();
        }
        Wish::SessionDead { index, epoch } => {
            session.recover_vouched(index, epoch)?;
        }
        Wish::DevicesDrained => done.device_slots = session.devices_drained()?,
    }
    Ok(done)
}

/// Says how far a scrub is, once it takes longer than a second.
struct Progress<W: Write> {
    sink: W,
    pause: Duration,
    start: Instant,
    said: Option<Instant>,
}

impl<W: Write> Progress<W> {
    fn new(sink: W, pause: Duration) -> Self {
        Self { sink, pause, start: Instant::now(), said: None }
    }

    fn tell(&mut self, slots: u64, all: u64) {
        if self.said.unwrap_or(self.start).elapsed() < self.pause {
            return;
        }
        self.said = Some(Instant::now());
        let percent = slots * 100 / all.max(1);
        let (slots, all, seconds) = (grouped(slots), grouped(all), self.start.elapsed().as_secs());
        // Nobody may be listening; the work goes on.
        let _ = writeln!(self.sink, "scrub: {slots} of {all} slots, {percent} %, {seconds} s");
    }

    fn end(&mut self) {
        if self.said.is_some() {
            let _ = writeln!(self.sink, "scrub: done after {} s", self.start.elapsed().as_secs());
        }
    }
}

/// What there is of a planned session now.
struct After {
    side: Side,
    fates: Fates,
    as_wished: bool,
}

impl After {
    fn of(image: &Image<'_>, chosen: &Chosen, wish: Wish) -> Result<Self, ReadError> {
        let word = image.session_word(chosen.index)?;
        let (mut slots, mut fates) = (States::default(), Fates::default());
        for (slot, before) in &chosen.owned {
            let now: SlotWord = image.slot_word(*slot)?;
            if now.owner() == Owner::session(chosen.index) && now.generation() == before.generation() {
                *slots.of(now.state()) += 1;
            }
            match now.state() {
                _ if now.generation() != before.generation() => fates.freed += 1,
                Some(SlotState::Quarantined) if before.is(SlotState::Quarantined) && now == *before => {}
                Some(SlotState::Quarantined) => fates.quarantined += 1,
                Some(SlotState::Retiring) if now.owner() == Owner::NOBODY => fates.draining += 1,
                _ => {}
            }
        }
        let ended = word.epoch() != chosen.word.epoch() || word.is(SessionState::Free);
        let as_wished = ended || (matches!(wish, Wish::Fence { .. }) && word.is(SessionState::Fenced));
        Ok(Self { side: side(word, slots), fates, as_wished })
    }
}

fn side(word: SessionWord, slots: States) -> Side {
    let state = word.state().map_or_else(|| "damaged".to_owned(), |state| state.name().to_owned());
    Side { state, epoch: word.epoch(), slots }
}

/// Reads back what has changed (O4), shows it, and settles the outcome.
pub(super) fn compare(
    image: &Image<'_>,
    plan: &Plan,
    done: Done,
    outcome: &mut OutcomeLine,
    out: &mut Out,
) -> io::Result<Result<(), Refusal>> {
    out.head("what has changed")?;
    let (mut all, mut missed) = (Fates::default(), Vec::new());
    for chosen in &plan.sessions {
        let after = match After::of(image, chosen, plan.wish) {
            Ok(after) => after,
            Err(error) => return Ok(Err(error.into())),
        };
        all.add(after.fates);
        if !after.as_wished {
            missed.push(chosen.index.to_string());
        }
        show_session(chosen, after, plan.wish, out)?;
    }
    if done.device_slots > 0 {
        all.freed += u64::from(done.device_slots);
        out.line(format!("  {} slots that devices had left: quarantined ──▶ free", done.device_slots))?;
        let line = ChangeLine { slots_freed: done.device_slots.into(), ..change("devices_drained") };
        out.object(&Line::Change(Box::new(line)))?;
    }
    let host = done.host;
    if plan.scrub_blocks > 0 {
        let damaged_slots =
            if host.damaged > 0 { newly_quarantined(image, plan).unwrap_or_default() } else { Vec::new() };
        let tone = if host.damaged > 0 { Tone::Bad } else { Tone::Good };
        let text = match host.damaged {
            0 => "all match their checksums".to_owned(),
            damaged => format!("{damaged} did not match and are quarantined now: slots {damaged_slots:?}"),
        };
        let text = out.paint(tone, &text);
        out.line(format!("  scrub: {} blocks read, {text}", grouped(host.scrubbed)))?;
        let line = ChangeLine { scrubbed: host.scrubbed, damaged: host.damaged, damaged_slots, ..change("scrub") };
        out.object(&Line::Change(Box::new(line)))?;
    }
    outcome.slots_freed = all.freed;
    outcome.slots_quarantined = all.quarantined;
    outcome.slots_draining = all.draining;
    outcome.scrubbed = host.scrubbed.into();
    outcome.damaged = host.damaged.into();
    if !missed.is_empty() {
        let reason =
            format!("session {} is as before: it moved while it was acted upon; look again", missed.join(", "));
        outcome.settle(Outcome::Busy, Some(reason));
    } else if host.damaged > 0 {
        let reason = format!("recovered; {} blocks were damaged and are misses now", host.damaged);
        outcome.settle(Outcome::Damaged, Some(reason));
    } else {
        outcome.settle(Outcome::Done, None);
    }
    Ok(Ok(()))
}

fn show_session(chosen: &Chosen, after: After, wish: Wish, out: &mut Out) -> io::Result<()> {
    let (before, fence) = (side(chosen.word, chosen.slots), matches!(wish, Wish::Fence { .. }));
    let engine = engine_of(chosen);
    let fates = after.fates;
    let leases_void = if fence || !after.as_wished { 0 } else { chosen.leases };
    let now = if after.side.epoch == before.epoch {
        after.side.state.clone()
    } else {
        format!("gone (the entry is {} at epoch {})", after.side.state, after.side.epoch)
    };
    let mut parts = vec![format!("{} ──▶ {now}", before.state)];
    for (count, what) in [
        (fates.freed, "slots free"),
        (fates.quarantined, "slots quarantined"),
        (fates.draining, "slots draining"),
        (leases_void, "leases void"),
    ] {
        if count > 0 {
            parts.push(format!("{count} {what}"));
        }
    }
    let name = format!("session {}:{} {}", chosen.index, chosen.word.epoch(), safe(engine.as_bytes()));
    out.line(format!("  {name}: {}", parts.join(", ")))?;
    let line = ChangeLine {
        session: Some(chosen.index),
        epoch: Some(chosen.word.epoch()),
        engine,
        before: Some(before),
        after: Some(after.side),
        slots_freed: fates.freed,
        slots_quarantined: fates.quarantined,
        slots_draining: fates.draining,
        leases_void,
        ..change(action(wish))
    };
    out.object(&Line::Change(Box::new(line)))
}

/// A change of nothing.
fn change(action: &'static str) -> ChangeLine {
    ChangeLine {
        action,
        session: None,
        epoch: None,
        engine: String::new(),
        before: None,
        after: None,
        slots_freed: 0,
        slots_quarantined: 0,
        slots_draining: 0,
        leases_void: 0,
        scrubbed: 0,
        damaged: 0,
        damaged_slots: Vec::new(),
    }
}

/// Slots of blocks that the planned sessions stored, and that were not set aside before.
fn newly_quarantined(image: &Image<'_>, plan: &Plan) -> Result<Vec<u32>, ReadError> {
    let mut slots = Vec::new();
    image.for_each_record(|slot, record| {
        let word = SlotWord(record.identity.word);
        let body = record.body;
        let whole = body.generation == word.generation();
        let storer =
            |chosen: &Chosen| chosen.index == u32::from(body.storer_index) && chosen.word.epoch() == body.storer_epoch;
        let of_theirs = !whole || plan.sessions.iter().any(storer);
        let news = word.is(SlotState::Quarantined)
            && word.owner() == Owner::NOBODY
            && !word.device_writer()
            && of_theirs
            && !plan.quarantined_before.contains(&slot);
        if news && slots.len() < NAMED {
            slots.push(slot);
        }
        Ok(())
    })?;
    Ok(slots)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_long_scrub_is_talked_about() {
        let said = |pause| {
            let mut progress = Progress::new(Vec::new(), pause);
            (1..=3).for_each(|slot| progress.tell(slot * 1000, 4000));
            progress.end();
            String::from_utf8(progress.sink).expect("text")
        };
        assert_eq!(said(Duration::from_secs(3600)), "");
        let text = said(Duration::ZERO);
        assert_eq!(text.lines().count(), 4, "{text}");
        assert!(text.starts_with("scrub: 1,000 of 4,000 slots, 25 %") && text.contains("done after"), "{text}");
    }
}
