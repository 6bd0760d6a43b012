//! What would change: the sessions concerned, and what becomes of all that they hold.
//!
//! The library decides again when it acts, by the same rules (its `recover.rs` and `vouch.rs`); a plan says what it will
//! find. A live region moves meanwhile, so numbers of sessions that still run are as of the look.

use std::collections::HashMap;

use maru::os::BackingFile;
use maru::os::identity::ProcessIdentity;
use maru::{HostName, VouchError};
use maru_layout::object::ObjectKey;
use maru_layout::table::SessionEntry;
use maru_layout::word::{Owner, SessionState, SessionWord, SlotState, SlotWord};

use super::lines::{HostLine, KeyLine};
use super::{Outcome, Refusal, Wish};
use crate::image::Image;
use crate::life::{Life, Lives};
use crate::out::hex;
use crate::sessions::Doing;
use crate::source::ReadError;
use crate::tally::States;

/// Keys that a plan names one by one, of each session.
const KEYS: usize = 1000;

/// A session that would be fenced or recovered.
pub(crate) struct Chosen {
    pub(crate) index: u32,
    pub(crate) word: SessionWord,
    pub(crate) entry: SessionEntry,
    pub(crate) life: Life,
    /// What it is, or died, in the middle of.
    pub(crate) doing: Option<String>,
    /// Slots that it owns, by state.
    pub(crate) slots: States,
    /// The slots themselves.
    pub(crate) owned: Vec<(u32, SlotWord)>,
    pub(crate) fates: Fates,
    /// Lease cells that are not empty and count.
    pub(crate) leases: u64,
    pub(crate) keys: Vec<KeyLine>,
    /// Keys that could be stored again, named or not.
    pub(crate) keys_freed: u64,
    /// Ready blocks that it stored; they stay.
    pub(crate) stored_blocks: u64,
    pub(crate) stored_bytes: u64,
}

/// What becomes of slots.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Fates {
    /// Free at once.
    pub(crate) freed: u64,
    /// Set aside until a death or a drained device is vouched for.
    pub(crate) quarantined: u64,
    /// Free when their last reader is done.
    pub(crate) draining: u64,
}

impl Fates {
    pub(crate) fn add(&mut self, other: Self) {
        self.freed += other.freed;
        self.quarantined += other.quarantined;
        self.draining += other.draining;
    }
}

pub(crate) struct Plan {
    pub(crate) wish: Wish,
    pub(crate) sessions: Vec<Chosen>,
    /// Slots that drained devices leave.
    pub(crate) device_slots: u64,
    /// Blocks that a scrub would read, and their bytes.
    pub(crate) scrub_blocks: u64,
    pub(crate) scrub_bytes: u64,
    /// Blocks of these sessions that were set aside before.
    pub(crate) quarantined_before: Vec<u32>,
    /// What is left alone, and why.
    pub(crate) notes: Vec<String>,
}

/// Everything in the session table that somebody has.
struct Entry {
    index: u32,
    word: SessionWord,
    facts: SessionEntry,
}

impl Entry {
    fn filled(&self) -> bool {
        matches!(self.word.state(), Some(SessionState::Live | SessionState::Fenced))
    }
}

impl Plan {
    pub(crate) fn of(image: &Image<'_>, locks: Option<&BackingFile>, wish: Wish) -> Result<Self, Refusal> {
        let lives = Lives::on(image, locks);
        let mut entries = Vec::new();
        for index in 0..image.geometry().session_count {
            let facts = image.session(index)?;
            entries.push(Entry { index, word: SessionWord(facts.word), facts });
        }
        let mut notes = Vec::new();
        let chosen = match wish {
            Wish::Proven => proven(&entries, &lives, &mut notes),
            Wish::HostDead(host) => of_host(&entries, &lives, &host, &mut notes)?,
            Wish::Fence { index, epoch } => vec![named(&entries, index, epoch, wish)?],
            Wish::SessionDead { index, epoch } => {
                let index = named(&entries, index, Some(epoch), wish)?;
                not_running(&entries[index as usize], &lives, &mut notes)?;
                vec![index]
            }
            Wish::DevicesDrained => Vec::new(),
        };
        let sessions = chosen
            .iter()
            .map(|index| {
                let entry = &entries[*index as usize];
                Chosen {
                    index: *index,
                    word: entry.word,
                    entry: entry.facts,
                    life: lives.proof(*index, &entry.facts),
                    doing: None,
                    slots: States::default(),
                    owned: Vec::new(),
                    fates: Fates::default(),
                    leases: 0,
                    keys: Vec::new(),
                    keys_freed: 0,
                    stored_blocks: 0,
                    stored_bytes: 0,
                }
            })
            .collect();
        let mut plan = Self {
            wish,
            sessions,
            device_slots: 0,
            scrub_blocks: 0,
            scrub_bytes: 0,
            quarantined_before: Vec::new(),
            notes,
        };
        plan.count(image)?;
        Ok(plan)
    }

    /// One pass over the records, and the lease cells of those concerned.
    fn count(&mut self, image: &Image<'_>) -> Result<(), ReadError> {
        let scrubs = matches!(self.wish, Wish::HostDead(_)) && !self.sessions.is_empty();
        let at: HashMap<u32, usize> = self.sessions.iter().enumerate().map(|(at, c)| (c.index, at)).collect();
        image.for_each_record(|slot, record| {
            let word = SlotWord(record.identity.word);
            if matches!(self.wish, Wish::DevicesDrained) {
                let left = word.is(SlotState::Quarantined) && word.device_writer() && word.owner() == Owner::NOBODY;
                self.device_slots += u64::from(left);
                return Ok(());
            }
            if let Some(at) = word.owner().index().and_then(|index| at.get(&index)) {
                let key = ObjectKey::of_record(&record.identity).prefix;
                self.sessions[*at].own(slot, word, &key, matches!(self.wish, Wish::Fence { .. }));
                return Ok(());
            }
            let body = record.body;
            let whole = body.generation == word.generation();
            let storer = at.get(&u32::from(body.storer_index)).map(|at| &mut self.sessions[*at]);
            let storer = storer.filter(|chosen| whole && chosen.word.epoch() == body.storer_epoch);
            let bytes = u64::from(record.identity.length);
            match (word.state(), storer) {
                (Some(SlotState::Ready), storer) => {
                    if scrubs && (storer.is_some() || !whole) {
                        self.scrub_blocks += 1;
                        self.scrub_bytes += bytes;
                    }
                    if let Some(chosen) = storer {
                        chosen.stored_blocks += 1;
                        chosen.stored_bytes += bytes;
                    }
                }
                (Some(SlotState::Quarantined), Some(_)) => self.quarantined_before.push(slot),
                _ => {}
            }
            Ok(())
        })?;
        for chosen in &mut self.sessions {
            let area = image.area(chosen.index)?;
            chosen.doing = Doing::of(image, &area, chosen.index)?.map(|doing| doing.words());
            if matches!(chosen.word.state(), Some(SessionState::Live | SessionState::Fenced)) {
                image.for_each_cell(chosen.index, |_, cell| {
                    chosen.leases += u64::from(cell.kind().is_some());
                    Ok(())
                })?;
            }
        }
        // Shut out already, and nothing left to set aside.
        if matches!(self.wish, Wish::Fence { .. }) {
            self.sessions.retain(|chosen| {
                !chosen.word.is(SessionState::Fenced) || chosen.fates.quarantined + chosen.fates.draining > 0
            });
        }
        Ok(())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.sessions.is_empty() && self.device_slots == 0
    }

    /// Why there is nothing to do.
    pub(crate) fn nothing(&self) -> String {
        match self.wish {
            Wish::Fence { index, .. } => format!("session {index} is fenced already and was writing nothing"),
            Wish::DevicesDrained => "no slot waits for a device to drain".to_owned(),
            Wish::Proven => "this host's kernel proves no session dead".to_owned(),
            Wish::HostDead(host) => format!("no session of host {host} is left to recover"),
            Wish::SessionDead { index, .. } => format!("session {index} has ended"),
        }
    }

    /// What the command says, exactly (O2).
    pub(crate) fn arguments(&self) -> String {
        match self.wish {
            Wish::Fence { index, .. } => {
                let epoch = self.sessions.first().map_or(0, |chosen| chosen.word.epoch());
                format!("--session {index}:{epoch}")
            }
            Wish::Proven => String::new(),
            Wish::HostDead(host) => format!("--host-dead {}", self.one_boot().unwrap_or(host)),
            Wish::SessionDead { index, epoch } => format!("--session-dead {index}:{epoch}"),
            Wish::DevicesDrained => "--devices-drained".to_owned(),
        }
    }

    /// The boot that all of them are of, where there is one: a host that was named by its id may be up again by the time
    /// the command is given, and its new sessions are then not meant (O2).
    fn one_boot(&self) -> Option<HostName> {
        let Wish::HostDead(HostName::Id(_)) = self.wish else { return None };
        let boot = self.sessions.iter().find(|chosen| chosen.filled())?.entry.boot_id;
        let one = self.sessions.iter().all(|chosen| !chosen.filled() || chosen.entry.boot_id == boot);
        one.then_some(HostName::Id(boot))
    }

    pub(crate) fn fates(&self) -> Fates {
        let mut all = Fates { freed: self.device_slots, ..Fates::default() };
        self.sessions.iter().for_each(|chosen| all.add(chosen.fates));
        all
    }
}

impl Chosen {
    /// Counts a slot that it owns.
    fn own(&mut self, slot: u32, word: SlotWord, prefix: &[u8; 32], fenced: bool) {
        let Some(state) = word.state() else { return };
        *self.slots.of(Some(state)) += 1;
        self.owned.push((slot, word));
        let device = word.device_writer();
        match state {
            SlotState::Retiring => self.fates.draining += 1,
            SlotState::Quarantined if fenced => {}
            SlotState::Claiming | SlotState::Pending | SlotState::Writing if fenced => self.fates.quarantined += 1,
            SlotState::Writing | SlotState::Quarantined if device => self.fates.quarantined += 1,
            SlotState::Claiming | SlotState::Pending | SlotState::Writing | SlotState::Quarantined => {
                self.fates.freed += 1;
            }
            SlotState::Free | SlotState::Ready => {}
        }
        // A claim has no record yet, and what is set aside has given its key back.
        if matches!(state, SlotState::Pending | SlotState::Writing) {
            self.keys_freed += 1;
            if self.keys.len() < KEYS {
                let (state, generation) = (state.name(), word.generation());
                self.keys.push(KeyLine { slot, state, generation, device, prefix: hex(prefix) });
            }
        }
    }
}

/// Entries that this host's kernel proves dead.
fn proven(entries: &[Entry], lives: &Lives, notes: &mut Vec<String>) -> Vec<u32> {
    let used = |entry: &&Entry| !matches!(entry.word.state(), None | Some(SessionState::Free));
    let mut unknown = 0;
    let mut dead = Vec::new();
    for entry in entries.iter().filter(used) {
        match lives.proof(entry.index, &entry.facts) {
            Life::Dead => dead.push(entry.index),
            Life::Unknown => unknown += 1,
            Life::Alive => {}
        }
    }
    if unknown > 0 {
        notes.push(format!(
            "{unknown} sessions that this host cannot judge are left alone; `maru-inspect sessions` names their hosts, \
             and --host-dead vouches for one"
        ));
    }
    dead
}

/// Entries of a host, chosen as the library does.
fn of_host(entries: &[Entry], lives: &Lives, host: &HostName, notes: &mut Vec<String>) -> Result<Vec<u32>, Refusal> {
    let here = lives.here().ok_or_else(|| Refusal::cannot("/proc does not say which boot of which host this is"))?;
    let my_tag = lives.my_tag();
    if *host == HostName::Id(here.boot_id) || my_tag.is_some_and(|tag| *host == HostName::Tag(tag)) {
        return Err(VouchError::ThisHost { host: *host }.into());
    }
    let used = |entry: &&Entry| !matches!(entry.word.state(), None | Some(SessionState::Free));
    let names = |entry: &Entry| host.names(&entry.facts, entry.word.host_tag());
    let tags: Vec<u32> = entries.iter().filter(|e| e.filled() && names(e)).map(|entry| entry.word.host_tag()).collect();
    let (mut chosen, mut on_this_boot) = (Vec::new(), 0);
    for entry in entries.iter().filter(used) {
        let tag = entry.word.host_tag();
        let named = if entry.filled() { names(entry) } else { tags.contains(&tag) || *host == HostName::Tag(tag) };
        if named && entry.filled() && entry.facts.boot_id == here.boot_id {
            on_this_boot += 1;
        } else if named {
            chosen.push(entry.index);
        }
    }
    if on_this_boot > 0 {
        notes
            .push(format!("{on_this_boot} sessions of that name run on this boot of this host, whose kernel is asked"));
    }
    if !chosen.is_empty() || on_this_boot > 0 {
        return Ok(chosen);
    }
    // The last holder of a free entry is still written there: asked twice is not asked for a stranger.
    let was_here = entries.iter().any(|entry| entry.word.is(SessionState::Free) && names(entry));
    let (outcome, reason) = if was_here {
        let reason =
            "its sessions have all ended or been recovered (`maru-inspect verify --payload` checks every block)";
        (Outcome::NothingToDo, format!("host {host}: {reason}"))
    } else {
        let nobody = if entries.iter().any(|entry| used(&entry)) { "" } else { "; nobody is attached at all" };
        (Outcome::Cannot, format!("no session here is of host {host}{nobody}"))
    };
    Err(Refusal { hosts: hosts(entries, here.boot_id, my_tag), ..Refusal::new(outcome, reason) })
}

/// The hosts that sessions are of.
fn hosts(entries: &[Entry], here: [u8; 16], my_tag: Option<u32>) -> Vec<HostLine> {
    let mut hosts: Vec<HostLine> = Vec::new();
    for entry in entries.iter().filter(|entry| !matches!(entry.word.state(), None | Some(SessionState::Free))) {
        let filled = entry.filled();
        let tag = entry.word.host_tag();
        let line = HostLine {
            boot: filled.then(|| hex(&entry.facts.boot_id)),
            host: filled.then(|| hex(&entry.facts.host_id)),
            tag: format!("tag:{tag:07x}"),
            sessions: 1,
            this_host: if filled { entry.facts.boot_id == here } else { my_tag == Some(tag) },
        };
        match hosts.iter_mut().find(|known| (&known.boot, &known.tag) == (&line.boot, &line.tag)) {
            Some(known) => known.sessions += 1,
            None => hosts.push(line),
        }
    }
    hosts
}

/// The entry that an operator names by index, and by epoch if he is careful.
fn named(entries: &[Entry], index: u32, epoch: Option<u32>, wish: Wish) -> Result<u32, Refusal> {
    let Some(entry) = entries.get(index as usize) else {
        return Err(Refusal::cannot(format!("session {index}: this region has entries 0 to {}", entries.len() - 1)));
    };
    let (state, found) = (entry.word.state(), entry.word.epoch());
    let Some(state) = state else {
        return Err(Refusal::new(Outcome::Damaged, format!("session {index}: its word is {:?}", entry.word)));
    };
    let free = state == SessionState::Free;
    match epoch {
        Some(wanted) if found > wanted || (free && found == wanted) => {
            return Err(Refusal::nothing(format!("session {index}:{wanted} has ended; the entry is at epoch {found}")));
        }
        Some(wanted) if found != wanted => {
            return Err(Refusal::cannot(format!(
                "session {index} is at epoch {found}, there is no epoch {wanted} yet"
            )));
        }
        None if free => return Err(Refusal::cannot(format!("session {index}: nobody has this entry"))),
        _ => {}
    }
    // Only a session that is live or fenced is fenced: an attaching one has nothing, a dead one is past it.
    if matches!(wish, Wish::Fence { .. }) && !entry.filled() {
        let reason =
            format!("session {index}:{found} is {}, wanted live; `recover` brings home what is dead", state.name());
        return Err(Refusal::cannot(reason));
    }
    Ok(index)
}

/// Refuses to call dead who is seen to run (O5).
fn not_running(entry: &Entry, lives: &Lives, notes: &mut Vec<String>) -> Result<(), Refusal> {
    let (index, epoch, pid) = (entry.index, entry.word.epoch(), entry.facts.pid);
    if entry.filled() && runs_here(&entry.facts) {
        return Err(Refusal::cannot(format!(
            "session {index}:{epoch} is process {pid}, and that runs on this host (started {} ticks after boot); end it, \
             or shut it out with `fence`",
            entry.facts.start_time_ticks
        )));
    }
    match lives.proof(index, &entry.facts) {
        Life::Alive => notes.push(format!(
            "the life lock of session {index}:{epoch} is held, so something still has its memory: be sure of what you \
             vouch for. If it runs after all, its later calls answer \"fenced\" and what it was writing may be overwritten"
        )),
        Life::Dead => notes.push(format!("the kernel proves session {index}:{epoch} dead; nobody needs to vouch")),
        Life::Unknown => {}
    }
    Ok(())
}

/// Whether the process that an entry names is seen to run: same boot, same pid namespace, same start time, no zombie.
/// Only ever a reason against recovery; not seeing it proves nothing.
fn runs_here(facts: &SessionEntry) -> bool {
    let Ok(me) = ProcessIdentity::current() else { return false };
    if facts.boot_id != me.host.boot_id || facts.pid_ns != me.pid_ns {
        return false;
    }
    let Ok(stat) = std::fs::read(format!("/proc/{}/stat", facts.pid)) else { return false };
    // The name, field 2, may hold anything; fields are counted behind its last parenthesis.
    let behind = stat.iter().rposition(|byte| *byte == b')').map_or(&[][..], |at| &stat[at + 1..]);
    let text = String::from_utf8_lossy(behind);
    let mut fields = text.split_ascii_whitespace();
    let state = fields.next().unwrap_or("X");
    let started = fields.nth(22 - 4).and_then(|field| field.parse::<u64>().ok());
    !matches!(state, "Z" | "X" | "x") && started == Some(facts.start_time_ticks)
}
