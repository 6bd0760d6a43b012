//! What operators and programs see of a plan, of what it changed, and of how it ended.

use std::io;

use maru_layout::table::Role;
use maru_layout::word::SessionState;
use serde::Serialize;

use super::plan::{Chosen, Plan};
use super::{Errand, Outcome, Refusal, Wish};
use crate::life::Life;
use crate::out::{Line, Out, Tone, grouped, hex, human, safe, until_zero};
use crate::tally::States;

/// What would happen to one session, or to the slots of drained devices.
#[derive(Serialize)]
pub struct PlanLine {
    /// `fence`, `recover` or `devices_drained`.
    pub action: &'static str,
    /// Entry of the session table.
    pub session: Option<u32>,
    /// Its epoch.
    pub epoch: Option<u32>,
    /// State of its word.
    pub state: Option<String>,
    /// What the kernel of this host says.
    pub liveness: Option<Life>,
    /// Role.
    pub role: Option<&'static str>,
    /// Engine name.
    pub engine: String,
    /// Process id.
    pub pid: Option<u32>,
    /// Id of its host; null where the entry is not filled in.
    pub host: Option<String>,
    /// Boot of its host, likewise.
    pub boot: Option<String>,
    /// Host tag in its word.
    pub tag: Option<String>,
    /// What it is, or died, in the middle of.
    pub doing: Option<String>,
    /// Slots that it owns, by state.
    pub slots: States,
    /// Slots that would be free at once.
    pub slots_freed: u64,
    /// Slots that would be set aside.
    pub slots_quarantined: u64,
    /// Slots that would be free when their last reader is done.
    pub slots_draining: u64,
    /// Leases that would be void.
    pub leases_void: u64,
    /// Leases that would go on counting.
    pub leases_kept: u64,
    /// Keys that could be stored again at once.
    pub keys_freed: u64,
    /// The first thousand of them.
    pub keys: Vec<KeyLine>,
    /// Blocks that it stored and that stay.
    pub stored_blocks: u64,
    /// Their bytes.
    pub stored_bytes: u64,
}

/// A key that would be free.
#[derive(Debug, Clone, Serialize)]
pub struct KeyLine {
    /// Slot.
    pub slot: u32,
    /// State of the slot.
    pub state: &'static str,
    /// Generation of the slot.
    pub generation: u64,
    /// Whether a device writes it.
    pub device: bool,
    /// Prefix digest, hex.
    pub prefix: String,
}

/// A host that sessions are of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct HostLine {
    /// Boot id; null where no entry of it is filled in.
    pub boot: Option<String>,
    /// Host id, likewise.
    pub host: Option<String>,
    /// Host tag.
    pub tag: String,
    /// Sessions.
    pub sessions: u32,
    /// Whether it is the host that asks.
    pub this_host: bool,
}

/// What has changed.
#[derive(Serialize)]
pub struct ChangeLine {
    /// `fence`, `recover`, `scrub` or `devices_drained`.
    pub action: &'static str,
    /// Entry of the session table.
    pub session: Option<u32>,
    /// Epoch of the session concerned.
    pub epoch: Option<u32>,
    /// Engine name.
    pub engine: String,
    /// State before.
    pub before: Option<Side>,
    /// State after.
    pub after: Option<Side>,
    /// Slots that are free now.
    pub slots_freed: u64,
    /// Slots that are set aside now.
    pub slots_quarantined: u64,
    /// Slots that wait for a reader.
    pub slots_draining: u64,
    /// Leases that are void now.
    pub leases_void: u64,
    /// Blocks that a scrub read.
    pub scrubbed: u32,
    /// Blocks among them that did not match, and are set aside now.
    pub damaged: u32,
    /// The first ten slots of those.
    pub damaged_slots: Vec<u32>,
}

/// One side of a change.
#[derive(Serialize)]
pub struct Side {
    /// State of the session word.
    pub state: String,
    /// Its epoch.
    pub epoch: u32,
    /// Slots that it owns, by state.
    pub slots: States,
}

/// The last line.
#[derive(Serialize)]
pub struct OutcomeLine {
    /// `fence` or `recover`.
    pub verb: &'static str,
    /// In one word.
    pub outcome: Outcome,
    /// The process's exit code.
    pub exit_code: u8,
    /// Whether nothing was to be changed.
    pub dry_run: bool,
    /// Why, where it was refused or there is nothing to do.
    pub reason: Option<String>,
    /// Path, where there is one.
    pub path: Option<String>,
    /// Random id.
    pub region_id: Option<String>,
    /// Sessions concerned.
    pub sessions: u64,
    /// Slots free at once.
    pub slots_freed: u64,
    /// Slots set aside.
    pub slots_quarantined: u64,
    /// Slots that wait for a reader.
    pub slots_draining: u64,
    /// Leases void.
    pub leases_void: u64,
    /// Keys that can be stored again.
    pub keys_freed: u64,
    /// Blocks to be read by a scrub; of an action: that were.
    pub scrubbed: u64,
    /// Of these: did not match.
    pub damaged: u64,
    /// What is left alone, and why.
    pub notes: Vec<String>,
    /// Where nobody matched: whom there is.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub hosts: Vec<HostLine>,
    /// The command that does it.
    pub command: Option<String>,
}

/// Name of what is done to a session.
pub(super) const fn action(wish: Wish) -> &'static str {
    match wish {
        Wish::Fence { .. } => "fence",
        Wish::DevicesDrained => "devices_drained",
        _ => "recover",
    }
}

pub(super) fn engine_of(chosen: &Chosen) -> String {
    if chosen.filled() { String::from_utf8_lossy(until_zero(&chosen.entry.engine)).into_owned() } else { String::new() }
}

impl Chosen {
    /// Whether its entry says who it is.
    pub(super) fn filled(&self) -> bool {
        matches!(self.word.state(), Some(SessionState::Live | SessionState::Fenced))
    }
}

impl PlanLine {
    fn of(chosen: &Chosen, wish: Wish) -> Self {
        let fence = matches!(wish, Wish::Fence { .. });
        let filled = chosen.filled();
        Self {
            action: action(wish),
            session: Some(chosen.index),
            epoch: Some(chosen.word.epoch()),
            state: chosen.word.state().map(|state| state.name().to_owned()),
            liveness: Some(chosen.life),
            role: Role::from_bits(chosen.entry.role).filter(|_| filled).map(Role::name),
            engine: engine_of(chosen),
            pid: filled.then_some(chosen.entry.pid),
            host: filled.then(|| hex(&chosen.entry.host_id)),
            boot: filled.then(|| hex(&chosen.entry.boot_id)),
            tag: Some(format!("tag:{:07x}", chosen.word.host_tag())),
            doing: chosen.doing.clone(),
            slots: chosen.slots,
            slots_freed: chosen.fates.freed,
            slots_quarantined: chosen.fates.quarantined,
            slots_draining: chosen.fates.draining,
            leases_void: if fence { 0 } else { chosen.leases },
            leases_kept: if fence { chosen.leases } else { 0 },
            keys_freed: chosen.keys_freed,
            keys: chosen.keys.clone(),
            stored_blocks: chosen.stored_blocks,
            stored_bytes: chosen.stored_bytes,
        }
    }

    fn of_devices(slots: u64) -> Self {
        Self {
            action: "devices_drained",
            session: None,
            epoch: None,
            state: None,
            liveness: None,
            role: None,
            engine: String::new(),
            pid: None,
            host: None,
            boot: None,
            tag: None,
            doing: None,
            slots: States { quarantined: slots, ..States::default() },
            slots_freed: slots,
            slots_quarantined: 0,
            slots_draining: 0,
            leases_void: 0,
            leases_kept: 0,
            keys_freed: 0,
            keys: Vec::new(),
            stored_blocks: 0,
            stored_bytes: 0,
        }
    }

    /// For people: who it is, and an arrow for each thing that would change.
    fn show(&self, out: &mut Out) -> io::Result<()> {
        let arrow = |out: &mut Out, what: &str, text: String| out.line(format!("      {what:<8}  {text}"));
        let Some((session, epoch)) = self.session.zip(self.epoch) else {
            out.line("  slots that devices of dead sessions were writing to")?;
            return arrow(out, "slots", format!("{} quarantined ──▶ free", grouped(self.slots_freed)));
        };
        let name = out.paint(Tone::Head, &format!("session {session}:{epoch}"));
        let who = match (self.pid, &self.host, &self.boot) {
            (Some(pid), Some(host), Some(boot)) => format!(
                "{}, {}, pid {pid} on host {} boot {}",
                safe(self.engine.as_bytes()),
                self.role.unwrap_or("unknown role"),
                &host[..8],
                &boot[..8]
            ),
            _ => "who it was is not written there".to_owned(),
        };
        let tag = self.tag.as_deref().unwrap_or_default();
        out.line(format!("  {name}  {who} ({tag}), {}", self.liveness.map_or("-", Life::name)))?;
        if let Some(doing) = &self.doing {
            arrow(out, "doing", format!("in the middle of {doing}"))?;
        }
        let fence = self.action == "fence";
        let state = self.state.as_deref().unwrap_or("damaged");
        let next = if fence {
            "fenced: its later calls answer \"fenced\""
        } else {
            "free: the next session may have the entry"
        };
        arrow(out, "session", format!("{state} ──▶ {next}"))?;
        let owned: Vec<String> =
            self.slots.each().iter().filter(|(_, n)| *n > 0).map(|(s, n)| format!("{n} {s}")).collect();
        if owned.is_empty() {
            arrow(out, "slots", "owns none".to_owned())?;
        } else {
            let fates: Vec<String> = [
                (self.slots_freed, "free"),
                (self.slots_quarantined, "quarantined"),
                (self.slots_draining, "free when their last reader is done"),
                (self.slots.held() - self.slots_freed - self.slots_quarantined - self.slots_draining, "as they are"),
            ]
            .iter()
            .filter(|(slots, _)| *slots > 0)
            .map(|(slots, fate)| format!("{slots} {fate}"))
            .collect();
            arrow(out, "slots", format!("{} ──▶ {}", owned.join(", "), fates.join(", ")))?;
        }
        if self.leases_void + self.leases_kept > 0 {
            let fate = if fence { "go on counting" } else { "void" };
            arrow(out, "leases", format!("{} ──▶ {fate}", self.leases_void + self.leases_kept))?;
        }
        if self.keys_freed > 0 {
            let named: Vec<String> = self.keys.iter().take(4).map(|key| format!("{}…", &key.prefix[..16])).collect();
            let more = if self.keys_freed > 4 { ", …" } else { "" };
            arrow(out, "keys", format!("{} can be stored again: {}{more}", self.keys_freed, named.join(", ")))?;
        }
        if self.stored_blocks > 0 {
            arrow(
                out,
                "stays",
                format!("{} blocks that it stored, {}", grouped(self.stored_blocks), human(self.stored_bytes)),
            )?;
        }
        Ok(())
    }
}

/// Shows what would change, or is about to.
pub(super) fn show_plan(plan: &Plan, errand: &Errand, out: &mut Out) -> io::Result<()> {
    let mut lines: Vec<PlanLine> = plan.sessions.iter().map(|chosen| PlanLine::of(chosen, plan.wish)).collect();
    if plan.device_slots > 0 {
        lines.push(PlanLine::of_devices(plan.device_slots));
    }
    if !lines.is_empty() {
        out.head(if errand.yes { "what changes" } else { "what would change" })?;
    }
    for line in lines {
        if !out.is_json() {
            line.show(out)?;
        }
        out.object(&Line::Plan(Box::new(line)))?;
    }
    if plan.scrub_blocks > 0 {
        let (blocks, bytes) = (grouped(plan.scrub_blocks), human(plan.scrub_bytes));
        out.line(format!(
            "  scrub: {blocks} blocks ({bytes}) that may never have arrived are read once; what does not match its checksum \
             is quarantined"
        ))?;
    }
    plan.notes.iter().try_for_each(|note| out.line(format!("  note: {note}")))
}

impl OutcomeLine {
    pub(super) fn of(errand: &Errand) -> Self {
        Self {
            verb: errand.wish.verb(),
            outcome: Outcome::Cannot,
            exit_code: Outcome::Cannot.exit_code(),
            dry_run: !errand.yes,
            reason: None,
            path: errand.path.as_ref().map(|path| path.display().to_string()),
            region_id: None,
            sessions: 0,
            slots_freed: 0,
            slots_quarantined: 0,
            slots_draining: 0,
            leases_void: 0,
            keys_freed: 0,
            scrubbed: 0,
            damaged: 0,
            notes: Vec::new(),
            hosts: Vec::new(),
            command: None,
        }
    }

    pub(super) fn plan(&mut self, plan: &Plan) {
        let fates = plan.fates();
        self.sessions = plan.sessions.len() as u64;
        self.slots_freed = fates.freed;
        self.slots_quarantined = fates.quarantined;
        self.slots_draining = fates.draining;
        if !matches!(plan.wish, Wish::Fence { .. }) {
            self.leases_void = plan.sessions.iter().map(|chosen| chosen.leases).sum();
        }
        self.keys_freed = plan.sessions.iter().map(|chosen| chosen.keys_freed).sum();
        self.scrubbed = plan.scrub_blocks;
        self.notes.clone_from(&plan.notes);
    }

    pub(super) fn settle(&mut self, outcome: Outcome, reason: Option<String>) {
        self.outcome = outcome;
        self.exit_code = outcome.exit_code();
        self.reason = reason;
    }

    /// Nothing was done, so nothing of a plan is left to count.
    pub(super) fn refuse(&mut self, refusal: Refusal) {
        self.settle(refusal.outcome, Some(refusal.reason));
        self.hosts = refusal.hosts;
        self.sessions = 0;
        self.slots_freed = 0;
        self.slots_quarantined = 0;
        self.slots_draining = 0;
        self.leases_void = 0;
        self.keys_freed = 0;
        self.scrubbed = 0;
    }
}

/// The end, for people: the outcome, and last the command that does it.
pub(super) fn show_outcome(outcome: &OutcomeLine, out: &mut Out) -> io::Result<()> {
    let tone = match outcome.outcome {
        Outcome::Planned | Outcome::NothingToDo => Tone::Plain,
        Outcome::Done => Tone::Good,
        Outcome::Busy => Tone::Warn,
        Outcome::Damaged | Outcome::Cannot => Tone::Bad,
    };
    let word = out.paint(tone, outcome.outcome.words());
    out.line("")?;
    match &outcome.reason {
        Some(reason) => out.line(format!("{}: {word}: {}", outcome.verb, safe(reason.as_bytes())))?,
        None => out.line(format!("{}: {word}", outcome.verb))?,
    }
    if !outcome.hosts.is_empty() {
        out.line("  hosts with sessions here:")?;
    }
    for host in &outcome.hosts {
        let name = host.boot.as_deref().unwrap_or(&host.tag);
        let id = host.host.as_deref().map_or_else(String::new, |host| format!(" (host id {host})"));
        let here = if host.this_host { ", this host" } else { "" };
        out.line(format!("    {name}{id} {}: {} sessions{here}", host.tag, host.sessions))?;
    }
    if let Some(command) = &outcome.command {
        out.line("to do it:")?;
        out.line(format!("  {command}"))?;
    }
    Ok(())
}
