//! The story of one block: its writer is killed in the middle, another process stores it, a byte of it is flipped.
//!
//! Everything in it happens: real processes, a real SIGKILL, a real byte. What is said about it is read from the region
//! afterwards, and a story that does not end as it must is an error.
//!
//! * S1: the time of the takeover counts from when the kernel reports the death to this process (`waitpid`) to when the
//!   survivor has the slot, by the clock that both read. The survivor is told by a line on its pipe, and asks then: it does
//!   not lie in wait for a lock that the kernel drops somewhat earlier.
//! * S2: what the dead was in the middle of is read from its flight record, not from what it had said.
//! * S3: the block is of a namespace of its own, and its name is a new one each time.

pub(crate) mod child;

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail, ensure};
use maru::Region;
use maru::os::identity::monotonic_ns;
use maru_inspect::Severity;
use maru_layout::word::SlotState;
use serde::Serialize;
use xxhash_rust::xxh3::xxh3_64;

use self::child::{Said, Wish};
use crate::look;
use crate::plan::Plan;
use crate::protocol::{ChildKind, ChildOrder, Kind, command};
use crate::report::grouped;

/// What programs are told of it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Story {
    /// Operation and slot in whose middle the victim was killed.
    pub(crate) killed_in: String,
    /// From the report of its death to the survivor's grant.
    pub(crate) takeover_us: f64,
    /// What a reader was told of the flipped byte.
    pub(crate) damaged_finding: String,
}

/// A child and its ends.
struct Actor {
    child: Child,
    /// Its input; `None` once it is to leave.
    told: Option<ChildStdin>,
    said: BufReader<ChildStdout>,
    session: u32,
}

impl Drop for Actor {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Actor {
    fn start(kind: ChildKind, order: &ChildOrder) -> Result<Self> {
        let mut child =
            command(kind, order)?.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().context("starting")?;
        let (told, said) = (child.stdin.take().context("its input")?, child.stdout.take().context("its output")?);
        let mut actor = Self { child, told: Some(told), said: BufReader::new(said), session: 0 };
        match actor.hear()? {
            Said::Joined { session } => actor.session = session,
            other => bail!("joining, it said {other:?}"),
        }
        Ok(actor)
    }

    fn hear(&mut self) -> Result<Said> {
        let mut line = String::new();
        ensure!(self.said.read_line(&mut line)? > 0, "process {} has ended: see above", self.child.id());
        Ok(serde_json::from_str(&line)?)
    }

    fn tell(&mut self, wish: Wish) -> Result<Said> {
        let line = serde_json::to_string(&wish)? + "\n";
        self.told.as_mut().context("it has been told to leave")?.write_all(line.as_bytes())?;
        self.hear()
    }

    /// Lets it leave the region and end.
    fn leave(&mut self) -> Result<()> {
        self.told = None;
        let status = self.child.wait()?;
        ensure!(status.success(), "process {} ended with {status}", self.child.id());
        Ok(())
    }
}

/// Plays it, and says each line as it happens.
pub(crate) fn tell(plan: &Plan, region: &Region, say: &mut dyn FnMut(&str)) -> Result<Story> {
    let mut stage = Stage::set(plan, region)?;
    let (victim_session, killed_in, takeover_us, slot) = stage.kill(say)?;
    let after = look::under_way(&plan.region, victim_session)?;
    let (operation, its_slot) = after.context("the victim's flight record says that nothing was under way")?;
    ensure!(its_slot == Some(killed_in.into()), "the victim had slot {killed_in}, its flight record says {its_slot:?}");
    let killed_in = format!("{operation}, slot {killed_in}");
    say(&format!("  its flight record: killed in the middle of {killed_in}"));
    say(&format!(
        "  a survivor that wants the same block got slot {slot} {takeover_us:.0} us after the kernel's report"
    ));
    stage.loads(say)?;
    say(&format!("  {}", balance(region)?));
    let damaged_finding = stage.damage(slot, say)?;
    stage.survivor.leave().context("the survivor")?;
    say(&format!("  {}", balance(region)?));
    Ok(Story { killed_in, takeover_us, damaged_finding })
}

struct Stage<'p> {
    plan: &'p Plan,
    region: &'p Region,
    order: ChildOrder,
    survivor: Actor,
}

impl<'p> Stage<'p> {
    fn set(plan: &'p Plan, region: &'p Region) -> Result<Self> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let block = xxh3_64(format!("{} {}", std::process::id(), now.as_nanos()).as_bytes());
        let order = ChildOrder {
            engine: format!("{}-survivor", plan.engine_prefix),
            kind: Kind { source: "story".to_owned(), ..plan.kind.clone() },
            says_all: false,
            block: Some(block),
            region: plan.region.clone(),
        };
        let survivor = Actor::start(ChildKind::Survivor, &order).context("the survivor")?;
        Ok(Self { plan, region, order, survivor })
    }

    /// Kills a process in the middle of a store. Its session and slot, microseconds until the survivor had a slot for the
    /// same block, and that slot.
    fn kill(&mut self, say: &mut dyn FnMut(&str)) -> Result<(u32, u32, f64, u32)> {
        let engine = format!("{}-victim", self.plan.engine_prefix);
        let mut victim =
            Actor::start(ChildKind::Victim, &ChildOrder { engine, ..self.order.clone() }).context("the victim")?;
        let Said::Halfway { slot } = victim.hear().context("the victim")? else {
            bail!("the victim did not get half-way")
        };
        let (pid, bytes) = (victim.child.id(), grouped(self.order.kind.block_bytes));
        say("");
        say(&format!("A process is killed in mid-store: pid {pid}, session {}", victim.session));
        say(&format!("  it has reserved slot {slot} and written half of {bytes} bytes"));
        match self.survivor.tell(Wish::Ask)? {
            Said::Answer(answer) => {
                ensure!(answer == "being_written", "while the victim wrote, the survivor was told \"{answer}\"");
                say(&format!("  a survivor asks for the same block: {answer}"));
            }
            other => bail!("the survivor said {other:?}"),
        }
        victim.child.kill().context("killing the victim")?;
        let status = victim.child.wait().context("the victim")?;
        let reported_ns = monotonic_ns();
        // S1: nothing comes between.
        let stored = self.survivor.tell(Wish::Store)?;
        say(&format!("  kill -9: {status}"));
        let Said::Stored { slot: taken, granted_ns } = stored else { bail!("the survivor said {stored:?}") };
        ensure!(granted_ns >= reported_ns, "the survivor had the slot before the death was reported");
        Ok((victim.session, slot, (granted_ns - reported_ns) as f64 / 1e3, taken))
    }

    fn loads(&mut self, say: &mut dyn FnMut(&str)) -> Result<()> {
        match self.survivor.tell(Wish::Load)? {
            Said::Loaded { bytes, wrong_bytes: 0, miss: None } => {
                say(&format!("  it stored the block and loads it: {} bytes, none wrong", grouped(bytes)));
                Ok(())
            }
            other => bail!("the block that the survivor stored: {other:?}"),
        }
    }

    /// Flips a byte of the block in `slot`; what a reader is told then.
    fn damage(&mut self, slot: u32, say: &mut dyn FnMut(&str)) -> Result<String> {
        let (start, _) = self.region.geometry().payload_of(slot).context("a slot of the region")?;
        let at = start + self.order.kind.block_bytes / 2;
        let file = File::options().read(true).write(true).open(&self.plan.region).context("the region's file")?;
        let mut byte = [0];
        file.read_exact_at(&mut byte, at).context("the byte")?;
        file.write_all_at(&[byte[0] ^ 0x10], at).context("the byte")?;
        say("");
        say(&format!(
            "A byte is flipped: one bit of byte {} of the block in slot {slot}",
            self.order.kind.block_bytes / 2
        ));
        let report = look::verify(&self.plan.region)?;
        let place = format!("slot {slot}");
        let damage = report.findings.iter().filter(|finding| finding.severity == Severity::Damage);
        let mut here = damage.filter(|finding| finding.place == place);
        let finding = here.next().with_context(|| format!("verify does not name {place}: {:?}", report.findings))?;
        say(&format!("  maru-inspect verify --payload: {}: {}: {}", report.verdict.name(), finding.code, finding.text));
        let first = self.missed()?;
        say(&format!("  a reader: miss, {first}"));
        ensure!(first == format!("damaged: checksum mismatch in {place}"), "a reader of the damaged block: {first}");
        let again = self.missed()?;
        say(&format!("  asked again: miss, {again}; the slot is quarantined, and is given to nobody"));
        Ok(first)
    }

    /// Loads what cannot be loaded: why.
    fn missed(&mut self) -> Result<String> {
        match self.survivor.tell(Wish::Load)? {
            Said::Loaded { bytes: 0, miss: Some(why), .. } => Ok(why),
            other => bail!("a reader of the damaged block: {other:?}"),
        }
    }
}

/// The line of accounts, in slots: every one of them is free, in use, or shut away.
fn balance(region: &Region) -> Result<String> {
    let usage = region.usage();
    let count = |state: SlotState| u64::from(usage.slots[state as usize]);
    let (free, quarantined) = (count(SlotState::Free), count(SlotState::Quarantined));
    let allocated = usage.slots.iter().map(|slots| u64::from(*slots)).sum::<u64>() - free - quarantined;
    let capacity = u64::from(usage.capacity_slots);
    ensure!(
        free + allocated + quarantined == capacity && usage.damaged_slots == 0,
        "free {free} + allocated {allocated} + quarantined {quarantined} is not {capacity}: {usage:?}"
    );
    Ok(format!(
        "free {} + allocated {} + quarantined {} = capacity {} slots",
        grouped(free),
        grouped(allocated),
        grouped(quarantined),
        grouped(capacity)
    ))
}
