//! `sessions`: who is attached, whether they live, what they hold, and what each is doing now.
//!
//! "Now" is the word in the session's own area that says which operation is under way: it is set before the first step
//! of the operation and cleared after the last, so after a kill it says what the session died in the middle of.

use std::collections::BTreeMap;
use std::io;

use maru_layout::table::{Counter, FlightRecord, Role, SessionAreaHead, SessionEntry};
use maru_layout::word::{SessionState, SessionWord, SlotState};
use serde::Serialize;

use crate::flight::{Flight, operation_name, outcome_name};
use crate::hint::Place;
use crate::image::Image;
use crate::life::{Life, Lives};
use crate::log::moment;
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
    /// The same, as `--host-dead` takes it.
    pub tag: String,
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
    /// The operation under way in words; null for none.
    pub doing: Option<Doing>,
    /// The last operation that ended.
    pub last: Option<Last>,
    /// Whether it is dead and nobody has brought home what it left.
    pub unrecovered: bool,
    /// The command that recovers it: at once for a dead one; once somebody vouches for it where its host is another.
    pub recovery: Option<String>,
    /// What it has counted.
    pub counters: BTreeMap<&'static str, u64>,
}

/// An operation under way.
#[derive(Serialize)]
pub struct Doing {
    /// Operation.
    pub operation: String,
    /// Its slot, where it has one by now.
    pub slot: Option<u64>,
    /// State of that slot.
    pub slot_state: Option<&'static str>,
    /// Whether that slot names this session as its owner.
    pub slot_is_own: Option<bool>,
}

impl Doing {
    pub(crate) fn of(image: &Image<'_>, head: &SessionAreaHead, index: u32) -> Result<Option<Self>, ReadError> {
        if head.current_step == 0 {
            return Ok(None);
        }
        let operation = operation_name((head.current_step >> 32) as u32);
        let slot = head.current_slot.checked_sub(1);
        let there = slot.filter(|slot| *slot < image.geometry().slot_count.into());
        let word = there.map(|slot| image.slot_word(slot as u32)).transpose()?;
        Ok(Some(Self {
            operation,
            slot,
            slot_state: word.map(|word| word.state().map_or("damaged", SlotState::name)),
            slot_is_own: word.map(|word| word.owner().index() == Some(index)),
        }))
    }

    /// For people.
    pub(crate) fn words(&self) -> String {
        match (self.slot, self.slot_state, self.slot_is_own) {
            (None, ..) => self.operation.clone(),
            (Some(slot), None, _) => format!("{} of slot {slot}, which is not there", self.operation),
            (Some(slot), Some(state), Some(true)) => format!("{} of slot {slot} ({state}, its own)", self.operation),
            (Some(slot), Some(state), _) => {
                format!("{} of slot {slot} ({state}, not its own any more)", self.operation)
            }
        }
    }
}

/// An operation that ended.
#[derive(Serialize)]
pub struct Last {
    /// Operation.
    pub operation: String,
    /// How it ended.
    pub outcome: String,
    /// Wall clock at its end.
    pub time_ns: u64,
    /// Slot.
    pub slot: Option<u64>,
    /// Generation of the slot.
    pub generation: Option<u64>,
    /// First 24 bytes of the prefix digest, hex.
    pub prefix: Option<String>,
}

impl Last {
    fn of(record: &FlightRecord) -> Self {
        let slot = record.slot.checked_sub(1);
        Self {
            operation: operation_name(record.operation),
            outcome: outcome_name(record.outcome),
            time_ns: record.time_ns,
            slot,
            generation: slot.map(|_| record.generation),
            prefix: (record.prefix != [0; 24]).then(|| hex(&record.prefix)),
        }
    }

    fn words(&self) -> String {
        let slot = self.slot.map_or_else(String::new, |slot| format!(", slot {slot}"));
        let key = self.prefix.as_deref().map_or_else(String::new, |prefix| format!(", key {}", &prefix[..8]));
        format!("{} {} at {}{slot}{key}", self.operation, self.outcome, moment(self.time_ns))
    }
}

/// What brings a session home, and whether it waits for somebody to vouch.
fn recovery(place: &Place, lives: &Lives, index: u32, entry: &SessionEntry) -> Option<String> {
    let word = SessionWord(entry.word);
    let filled = matches!(word.state()?, SessionState::Live | SessionState::Fenced);
    match (lives.proof(index, entry), word.state()?) {
        (_, SessionState::Free) | (Life::Alive, _) => None,
        (Life::Dead, _) => Some(place.command("recover", "--yes")),
        (Life::Unknown, _) if filled && lives.here().is_some_and(|here| here.boot_id == entry.boot_id) => {
            Some(place.command("recover", &format!("--session-dead {index}:{}", word.epoch())))
        }
        (Life::Unknown, _) if filled => Some(place.command("recover", &format!("--host-dead {}", hex(&entry.boot_id)))),
        (Life::Unknown, _) => Some(place.command("recover", &format!("--host-dead tag:{:07x}", word.host_tag()))),
    }
}

impl SessionLine {
    fn of(image: &Image<'_>, index: u32, lives: &Lives, place: &Place, owned: States) -> Result<Self, ReadError> {
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
            tag: format!("tag:{:07x}", word.host_tag()),
            attached_ns: entry.attached_ns,
            heartbeat: entry.heartbeat,
            leases,
            slots: owned,
            operation: (head.current_step >> 32) as u32,
            step: head.current_step as u32,
            slot: head.current_slot.checked_sub(1),
            doing: Doing::of(image, &head, index)?,
            last: Flight::of(image, index)?.records.last().map(Last::of),
            unrecovered: liveness == Some(Life::Dead),
            recovery: recovery(place, lives, index, &SessionEntry { word: word.0, ..entry }),
            counters: Counter::ALL.iter().map(|counter| (counter.name(), head.counters[*counter as usize])).collect(),
        })
    }

    /// What it is doing, in a few lines for people.
    fn story(&self) -> Vec<(String, Tone)> {
        let ended = matches!(self.liveness, Some(Life::Dead) | None);
        let doing = match (&self.doing, ended) {
            (None, false) => plain("is between operations"),
            (None, true) => plain("ended between operations"),
            (Some(doing), false) => toned(Tone::Good, format!("is in the middle of {}", doing.words())),
            (Some(doing), true) => toned(Tone::Bad, format!("died in the middle of {}", doing.words())),
        };
        let name = format!("{}:{} {}: ", self.session, self.epoch, safe(self.engine.as_bytes()));
        let mut story = vec![(format!("{name}{}", doing.0), doing.1)];
        if let Some(last) = &self.last {
            story.push(plain(format!("    last: {}", last.words())));
        }
        match (&self.recovery, self.unrecovered) {
            (Some(command), true) => {
                story.push(toned(Tone::Bad, format!("    dead and not recovered; brought home by: {command}")));
            }
            (Some(command), false) => {
                let text = "    this host cannot know whether it lives; if you know that it is gone:";
                story.push(toned(Tone::Warn, format!("{text} {command}")));
            }
            (None, _) => {}
        }
        story
    }

    /// A mark of the picture of the table.
    fn mark(&self) -> char {
        match self.liveness {
            _ if self.state == SessionState::Fenced.name() => 'F',
            Some(Life::Alive) => 'A',
            Some(Life::Dead) => 'X',
            Some(Life::Unknown) => '?',
            None => '.',
        }
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
            plain(&self.tag),
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
        "host tag",
        "attached",
        ">beats",
        ">leases",
        "owns",
        ">stored",
        ">hits",
    ]);
    let place = Place::of(image.source());
    let (mut picture, mut stories) = (String::new(), Vec::new());
    let mut end = Ok(());
    for index in 0..image.geometry().session_count {
        let owned = tally.owned.get(index as usize).copied().unwrap_or_default();
        match SessionLine::of(image, index, &lives, &place, owned) {
            Ok(line) => {
                picture.push(line.mark());
                if line.in_use() {
                    table.row(line.cells());
                    stories.extend(line.story());
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
        for row in picture.as_bytes().chunks(64) {
            out.line(format!("  {}", String::from_utf8_lossy(row)))?;
        }
        out.line("  one character an entry: A alive, X dead, ? unknown here, F fenced, . free")?;
        out.line("")?;
        table.print(out)?;
        out.head("what each is doing")?;
        for (text, tone) in stories {
            let text = out.paint(tone, &text);
            out.line(format!("  {text}"))?;
        }
    }
    Ok(end)
}
