//! `sessions`: who is attached, whether they live, and what they hold.

use std::collections::BTreeMap;
use std::io;

use maru_layout::table::{Counter, Role, SessionEntry};
use maru_layout::word::{SessionState, SessionWord};
use serde::Serialize;

use crate::image::Image;
use crate::life::{Life, Lives};
use crate::out::{Line, Out, Table, Tone, date, grouped, hex, plain, safe, toned, until_zero};
use crate::source::ReadError;
use crate::tally::{States, Tally};

/// One session entry.
#[derive(Serialize)]
pub struct SessionLine {
    /// Index.
    pub session: u32,
    /// State.
    pub state: String,
    /// Epoch.
    pub epoch: u32,
    /// Whether the holder lives; null for an entry that nobody holds.
    pub liveness: Option<Life>,
    /// Role.
    pub role: String,
    /// Engine name.
    pub engine: String,
    /// Process id in `pid_ns`.
    pub pid: u32,
    /// Inode of the pid namespace.
    pub pid_ns: u64,
    /// Clock ticks since boot.
    pub start_time_ticks: u64,
    /// Random id of the session.
    pub id: String,
    /// Id of the host.
    pub host: String,
    /// Boot of the host.
    pub boot: String,
    /// Host tag in the word.
    pub host_tag: u32,
    /// Wall clock of the attach.
    pub attached_ns: u64,
    /// Heartbeat.
    pub heartbeat: u64,
    /// Lease cells in use.
    pub leases: u32,
    /// Slots that name it as owner, by state.
    pub slots: States,
    /// Operation under way, number of the library.
    pub operation: u32,
    /// Step of the operation.
    pub step: u32,
    /// Slot of the operation.
    pub slot: Option<u64>,
    /// What it has counted.
    pub counters: BTreeMap<&'static str, u64>,
}

impl SessionLine {
    fn of(image: &Image<'_>, index: u32, lives: &Lives, owned: States) -> Result<Self, ReadError> {
        let entry: SessionEntry = image.session(index)?;
        let word = SessionWord(entry.word);
        let (word, liveness) = lives.steady(image, index)?.unwrap_or((word, Some(Life::Unknown)));
        let head = image.area(index)?;
        let mut leases = 0;
        if matches!(word.state(), Some(SessionState::Live | SessionState::Fenced) | None) {
            image.for_each_cell(index, |_, cell| {
                leases += u32::from(cell.kind().is_some());
                Ok(())
            })?;
        }
        Ok(Self {
            session: index,
            state: word.state().map_or_else(|| format!("{word:?}"), |state| state.name().to_owned()),
            epoch: word.epoch(),
            liveness,
            role: Role::from_bits(entry.role)
                .map_or_else(|| format!("unknown({})", entry.role), |r| r.name().to_owned()),
            engine: String::from_utf8_lossy(until_zero(&entry.engine)).into_owned(),
            pid: entry.pid,
            pid_ns: entry.pid_ns,
            start_time_ticks: entry.start_time_ticks,
            id: hex(&entry.id),
            host: hex(&entry.host_id),
            boot: hex(&entry.boot_id),
            host_tag: word.host_tag(),
            attached_ns: entry.attached_ns,
            heartbeat: entry.heartbeat,
            leases,
            slots: owned,
            operation: (head.current_step >> 32) as u32,
            step: head.current_step as u32,
            slot: head.current_slot.checked_sub(1),
            counters: Counter::ALL.iter().map(|counter| (counter.name(), head.counters[*counter as usize])).collect(),
        })
    }

    /// Whether somebody holds it, or ought to.
    fn in_use(&self) -> bool {
        self.state != SessionState::Free.name() || self.slots.held() > 0
    }

    fn cells(&self) -> Vec<(String, Tone)> {
        let life = match self.liveness {
            Some(Life::Alive) => toned(Tone::Good, "alive"),
            Some(Life::Dead) => toned(Tone::Bad, "dead"),
            Some(Life::Unknown) => toned(Tone::Warn, "unknown"),
            None => toned(Tone::Dim, "-"),
        };
        let owned: Vec<String> = self
            .slots
            .each()
            .iter()
            .skip(1)
            .filter(|(_, slots)| *slots > 0)
            .map(|(name, slots)| format!("{slots} {name}"))
            .collect();
        let count = |counter: Counter| grouped(self.counters.get(counter.name()).copied().unwrap_or(0));
        vec![
            plain(self.session),
            plain(&self.state),
            life,
            plain(self.epoch),
            plain(&self.role),
            plain(safe(self.engine.as_bytes())),
            plain(self.pid),
            plain(format!("{}/{}", &self.host[..8], &self.boot[..8])),
            plain(date(self.attached_ns)),
            plain(grouped(self.heartbeat)),
            plain(grouped(self.leases)),
            plain(if owned.is_empty() { "-".to_owned() } else { owned.join(", ") }),
            plain(count(Counter::Stored)),
            plain(count(Counter::AcquireHits)),
        ]
    }
}

/// Shows the session table: programs get every entry, people those in use.
///
/// # Errors
/// Outer: the reader of the output has gone. Inner: a table cannot be read.
pub fn show(image: &Image<'_>, tally: &Tally, out: &mut Out) -> io::Result<Result<(), ReadError>> {
    let lives = Lives::of(image);
    let mut table = Table::new(&[
        ">#",
        "state",
        "holder",
        ">epoch",
        "role",
        "engine",
        ">pid",
        "host/boot",
        "attached",
        ">beats",
        ">leases",
        "owns",
        ">stored",
        ">hits",
    ]);
    let mut end = Ok(());
    for index in 0..image.geometry().session_count {
        let owned = tally.owned.get(index as usize).copied().unwrap_or_default();
        match SessionLine::of(image, index, &lives, owned) {
            Ok(line) => {
                if line.in_use() {
                    table.row(line.cells());
                }
                out.object(&Line::Session(Box::new(line)))?;
            }
            Err(error) => {
                end = Err(error);
                break;
            }
        }
    }
    out.head("sessions")?;
    if table.is_empty() {
        out.line(format!("  nobody is attached; {} entries are free", image.geometry().session_count))?;
    } else {
        table.print(out)?;
    }
    Ok(end)
}
