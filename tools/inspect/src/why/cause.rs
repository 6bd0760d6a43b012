//! What follows from what was found: one cause for each object, the nearest first.
//!
//! 1. The namespace asked for has it in a slot: ready, being written, draining, quarantined.
//! 2. An earlier generation of the namespace has, or had, it: invalidated.
//! 3. Another namespace has it ready: the fields that differ.
//! 4. A flight recorder remembers that storing it was refused, after anything below.
//! 5. It was there: a free slot's record, its farewell, or a flight record with a slot that has moved on.
//! 6. Nothing: never stored, or forgotten since.

use std::time::{Duration, Instant};

use maru_layout::object::ObjectKey;
use maru_layout::table::{Counter, SessionEntry};
use maru_layout::word::{
    IndexEntry, LeaseKind, MAX_GENERATION, SessionState, SessionWord, SlotState, SlotWord, short_generation,
};

use super::memory::{refusal, remover, who_of};
use super::sight::{Found, Sighting};
use super::spaces::{Spaces, Whose};
use super::{Also, Held, Question, Who, WhyLine};
use crate::image::Image;
use crate::life::{Life, Lives};
use crate::log::moment;
use crate::out::{grouped, safe, until_zero};
use crate::source::ReadError;

/// Every code, and what it says. `ready` alone is a hit.
pub const CODES: &[(&str, &str)] = &[
    ("ready", "there, and found by the index"),
    ("not_indexed", "there, but no index entry leads to it; whoever stores it anew heals that"),
    ("being_written", "reserved, and not yet committed"),
    ("draining", "retired; its last reader has not let go yet"),
    ("quarantined", "its slot is set aside; `reason` says why"),
    ("invalidated", "stored under a generation of its namespace that has ended"),
    ("other_namespace", "ready under another namespace; `differs` says in which fields"),
    ("refused", "a session remembers that storing it was refused"),
    ("retired", "was there, and was retired: a session remembers it, or the farewell table"),
    ("evicted", "was there, and was evicted: says the farewell table, or else nobody remembers retiring it"),
    ("recovered", "was there; the session that was taking it away died, and its slot was brought home"),
    ("removed", "was there; its slot was freed by nobody who is remembered"),
    ("given_up", "reserved once and never committed: the writer gave up, or died"),
    ("never_stored", "nothing is remembered of it"),
];

/// Why a slot is quarantined.
pub const QUARANTINES: &[(&str, &str)] = &[
    ("damaged", "a reader found that its bytes do not match their checksum"),
    ("owner_fenced", "its writer was shut out and is not proven gone"),
    ("owner_dead", "its writer is dead and not yet recovered"),
    ("stalled_writer", "its writer did not move for too long"),
    ("device", "its writer is gone; a device that it told to write may still do so"),
    ("generations_used_up", "the slot has had its last life"),
];

/// Pause between the two looks at a slot that is being written.
const PAUSE: Duration = Duration::from_millis(200);

/// Decides, and remembers whose digests are.
pub struct Judge<'a, 'b> {
    pub(super) image: &'a Image<'b>,
    lives: Lives,
    spaces: Spaces,
    asked: Option<usize>,
    row: Option<u32>,
    /// Entries that have counted evictions, the most first.
    pub(super) evictors: Vec<(u32, u64)>,
    /// Namespace digests under which a key that no slot has is looked for among the farewells.
    pub(super) digests: Vec<(Whose, [u8; 16])>,
    /// Shards and parts, likewise.
    pub(super) shapes: Vec<(u16, u16)>,
}

/// How a sighting stands to the namespace asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Standing {
    Mine(usize),
    Ended(usize, u64),
    Other(Whose),
}

impl<'a, 'b> Judge<'a, 'b> {
    /// Reads the namespace table.
    ///
    /// # Errors
    /// A table cannot be read.
    pub fn new(image: &'a Image<'b>, question: &Question, shapes: &[(u16, u16)]) -> Result<Self, ReadError> {
        let spaces = Spaces::of(image)?;
        let asked = question.row.and_then(|row| spaces.of_row(row));
        let mut evictors = Vec::new();
        for session in 0..image.geometry().session_count {
            let evicted = image.area(session)?.counters[Counter::Evicted as usize];
            if evicted > 0 {
                evictors.push((session, evicted));
            }
        }
        evictors.sort_by_key(|(session, evicted)| (core::cmp::Reverse(*evicted), *session));
        let digests = spaces.likely(asked);
        let shapes = shapes.to_vec();
        Ok(Self { image, lives: Lives::of(image), spaces, asked, row: question.row, evictors, digests, shapes })
    }

    /// Whether the row asked for is registered.
    #[must_use]
    pub fn row_is_ready(&self) -> bool {
        self.row.is_none() || self.asked.is_some()
    }

    fn standing(&mut self, sighting: &Sighting) -> Standing {
        let hint = Some(sighting.record.body.namespace_row);
        match (self.spaces.whose(&sighting.record.identity.namespace, hint), self.asked) {
            (Whose::Current(space), asked) if asked.is_none_or(|asked| asked == space) => Standing::Mine(space),
            (Whose::Ended(space, generation), asked) if asked.is_none_or(|asked| asked == space) => {
                Standing::Ended(space, generation)
            }
            (whose, _) => Standing::Other(whose),
        }
    }

    /// The cause for one object. With `patient`, leases are listed, and a slot that is being written is looked at twice.
    ///
    /// # Errors
    /// A table cannot be read.
    pub fn answer(&mut self, found: &Found, patient: bool) -> Result<WhyLine, ReadError> {
        let mut line = blank(found);
        let standings: Vec<(Sighting, Standing)> =
            found.sightings.iter().map(|sighting| (*sighting, self.standing(sighting))).collect();
        let chosen = self.choose(&standings, found);
        match chosen {
            Some((sighting, standing)) => self.describe(&mut line, &sighting, standing, found, patient)?,
            None => self.without_slot(&mut line, found, patient)?,
        }
        for (sighting, standing) in standings.iter().filter(|(sighting, _)| Some(sighting.slot) != line.slot) {
            let state = sighting.word.state().map_or("damaged", SlotState::name);
            let text = format!("slot {} ({state}): {}", sighting.slot, self.space_words(*standing));
            line.also.push(Also { slot: sighting.slot, state, text });
        }
        Ok(line)
    }

    /// The sighting that the answer rests on.
    fn choose(&self, standings: &[(Sighting, Standing)], found: &Found) -> Option<(Sighting, Standing)> {
        let rank = |(sighting, standing): &(Sighting, Standing)| {
            let state = sighting.word.state()?;
            Some(match (standing, state) {
                (Standing::Mine(_), SlotState::Ready) if self.is_indexed(sighting) => 0,
                (Standing::Mine(_), SlotState::Ready) => 1,
                (Standing::Mine(_), SlotState::Claiming | SlotState::Pending | SlotState::Writing) => 2,
                (Standing::Mine(_), SlotState::Retiring) => 3,
                (Standing::Mine(_), SlotState::Quarantined) => 4,
                (Standing::Ended(..), SlotState::Ready | SlotState::Retiring) => 5,
                (Standing::Other(_), SlotState::Ready) => 6,
                (Standing::Mine(_), SlotState::Free) => 8,
                (Standing::Ended(..), SlotState::Free) => 9,
                _ => return None,
            })
        };
        // What was there, where the latest word on it is that it was refused.
        let best = standings.iter().filter_map(|each| Some((rank(each)?, each.0.record.body.committed_ns, *each)));
        let best = best.min_by_key(|(rank, committed, _)| (*rank, core::cmp::Reverse(*committed)))?;
        let refused_since = refusal(found).is_some_and(|event| event.time_ns >= best.1 && best.0 >= 8);
        (!refused_since).then_some(best.2)
    }

    /// Whether the index leads to it.
    fn is_indexed(&self, sighting: &Sighting) -> bool {
        let geometry = self.image.geometry();
        let place = ObjectKey::of_record(&sighting.record.identity).place(geometry.hash_seed, geometry.bucket_count);
        let generation = sighting.word.generation();
        let names = |entry: u64| {
            let entry = IndexEntry(entry);
            entry.slot() == sighting.slot
                && entry.short_generation() == short_generation(generation)
                && entry.tag() == place.tag
        };
        let Ok(first) = self.image.bucket(place.first) else { return false };
        first.entries.iter().any(|entry| names(*entry))
            || first.mark > 0
                && self.image.bucket(place.second).is_ok_and(|second| second.entries.iter().any(|entry| names(*entry)))
    }

    fn space_words(&self, standing: Standing) -> String {
        match standing {
            Standing::Mine(space) | Standing::Other(Whose::Current(space)) => {
                format!("namespace {}", self.spaces.get(space).words())
            }
            Standing::Ended(space, generation) | Standing::Other(Whose::Ended(space, generation)) => {
                format!("generation {generation} of namespace {}", self.spaces.get(space).words())
            }
            Standing::Other(Whose::Unknown) => "a namespace that is not registered".to_owned(),
        }
    }

    fn describe(
        &mut self,
        line: &mut WhyLine,
        sighting: &Sighting,
        standing: Standing,
        found: &Found,
        patient: bool,
    ) -> Result<(), ReadError> {
        let Sighting { slot, word, record, .. } = *sighting;
        line.slot = Some(slot);
        line.generation = Some(record.body.generation);
        line.length = Some(record.identity.length);
        if sighting.sealed {
            line.committed_ns = Some(record.body.committed_ns);
        }
        self.name_space(line, standing);
        let space = self.space_words(standing);
        let committed = format!("committed {}", moment(record.body.committed_ns));
        match (standing, word.state()) {
            (Standing::Mine(_), Some(SlotState::Ready)) => {
                line.hit = self.is_indexed(sighting);
                line.code = if line.hit { "ready" } else { "not_indexed" };
                line.who = Some(self.storer(sighting)?);
                let bytes = grouped(record.identity.length);
                line.text = format!("slot {slot}, {bytes} bytes, {committed}, {space}");
                if !line.hit {
                    line.text.push_str("; no index entry leads to it, so nobody finds it");
                }
                if patient {
                    line.leases = self.leases(slot, word)?;
                }
            }
            (Standing::Mine(_), Some(SlotState::Claiming | SlotState::Pending | SlotState::Writing)) => {
                line.code = "being_written";
                self.being_written(line, slot, word, found, patient)?;
            }
            (Standing::Mine(_), Some(SlotState::Retiring)) => {
                line.code = "draining";
                line.text = format!("slot {slot} was retired and waits for its last reader; {space}");
                line.who = remover(found, record.body.committed_ns).map(who_of);
                if patient {
                    line.leases = self.leases(slot, word)?;
                }
            }
            (Standing::Mine(_), Some(SlotState::Quarantined)) => self.quarantined(line, slot, word)?,
            (Standing::Ended(space, generation), state) => {
                line.code = "invalidated";
                line.who = if sighting.sealed { Some(self.storer(sighting)?) } else { None };
                let now = self.spaces.get(space).generation;
                let words = self.spaces.get(space).words();
                let freed = if state == Some(SlotState::Free) { ", and freed since" } else { "" };
                line.text = format!(
                    "stored under generation {generation} of namespace {words}, which has been invalidated: it is at \
                     {now} now{freed}"
                );
                if state == Some(SlotState::Free)
                    && let Some(recalled) = self.recalled(sighting)?
                {
                    self.tell(line, &recalled)?;
                }
            }
            (Standing::Other(whose), _) => {
                line.code = "other_namespace";
                line.who = Some(self.storer(sighting)?);
                line.text = format!("ready in slot {slot}, but under {space}");
                if let (Some(asked), Whose::Current(there) | Whose::Ended(there, _)) = (self.asked, whose) {
                    line.differs = self.spaces.differences(asked, there);
                    let names: Vec<String> =
                        line.differs.iter().map(|difference| safe(difference.field.as_bytes())).collect();
                    line.text.push_str(&format!("; what was asked for differs in {}", names.join(", ")));
                }
            }
            (Standing::Mine(_), _) => self.gone(line, sighting, found)?,
        }
        Ok(())
    }

    pub(super) fn name_space(&self, line: &mut WhyLine, standing: Standing) {
        let (space, generation) = match standing {
            Standing::Mine(space) | Standing::Other(Whose::Current(space)) => (space, None),
            Standing::Ended(space, generation) | Standing::Other(Whose::Ended(space, generation)) => {
                (space, Some(generation))
            }
            Standing::Other(Whose::Unknown) => return,
        };
        let space = self.spaces.get(space);
        line.namespace_row = Some(space.row);
        line.namespace_generation = Some(generation.unwrap_or(space.generation));
        line.current_generation = Some(space.generation);
    }

    /// Who stored it, by the body.
    pub(super) fn storer(&self, sighting: &Sighting) -> Result<Who, ReadError> {
        let body = &sighting.record.body;
        self.who(body.storer_index.into(), Some(body.storer_epoch))
    }

    /// An entry of the session table; with an epoch, that holder of it.
    pub(super) fn who(&self, session: u32, epoch: Option<u32>) -> Result<Who, ReadError> {
        let mut who = Who { session, epoch: epoch.unwrap_or(0), engine: None, holder: "unknown" };
        if session >= self.image.geometry().session_count {
            return Ok(who);
        }
        let entry: SessionEntry = self.image.session(session)?;
        let word = SessionWord(entry.word);
        who.epoch = epoch.unwrap_or(word.epoch());
        if who.epoch != word.epoch() {
            who.holder = "replaced";
            return Ok(who);
        }
        who.engine = Some(String::from_utf8_lossy(until_zero(&entry.engine)).into_owned());
        who.holder = self.lives.holder(session, &entry).map_or("closed", Life::name);
        Ok(who)
    }

    fn leases(&self, slot: u32, word: SlotWord) -> Result<Vec<Held>, ReadError> {
        let mut held = Vec::new();
        for session in 0..self.image.geometry().session_count {
            let state = self.image.session_word(session)?.state();
            if !matches!(state, Some(SessionState::Live | SessionState::Fenced) | None) {
                continue;
            }
            self.image.for_each_cell(session, |_, cell| {
                if cell.protects(slot, word.generation()) && held.len() < 1000 {
                    held.push(Held { session, lease: cell.kind().map_or("none", LeaseKind::name) });
                }
                Ok(())
            })?;
        }
        Ok(held)
    }

    fn being_written(
        &self,
        line: &mut WhyLine,
        slot: u32,
        word: SlotWord,
        found: &Found,
        patient: bool,
    ) -> Result<(), ReadError> {
        let writer = word.owner().index();
        let state = word.state().map_or("damaged", SlotState::name);
        line.who = writer.map(|index| self.who(index, None)).transpose()?;
        line.text = format!("slot {slot} is {state}");
        let began = found.events.iter().rev().find(|event| {
            event.operation == "reserve"
                && event.slot == Some(slot.into())
                && event.generation == Some(word.generation())
        });
        if let Some(event) = began {
            line.text.push_str(&format!(", reserved {}", moment(event.time_ns)));
        }
        if patient && self.image.source().may_change() {
            let start = Instant::now();
            std::thread::sleep(PAUSE);
            let again = self.image.slot_word(slot)?;
            let waited = start.elapsed().as_millis() as u64;
            if again == word {
                line.unmoved_ms = Some(waited);
                let limit = self.image.geometry().stalled_writer_ms;
                line.text.push_str(&format!(
                    "; its word has not moved for {waited} ms (after {limit} ms without movement anyone may take the key \
                     from it)"
                ));
            } else {
                line.text.push_str(&format!("; {waited} ms later it is {again:?}: look again"));
            }
        }
        if line.who.as_ref().is_some_and(|who| who.holder == "dead") {
            line.text.push_str("; its writer is dead, and whoever is in the way brings the slot home");
        }
        Ok(())
    }

    fn quarantined(&self, line: &mut WhyLine, slot: u32, word: SlotWord) -> Result<(), ReadError> {
        let owner = word.owner().index();
        line.code = "quarantined";
        line.who = owner.map(|index| self.who(index, None)).transpose()?;
        let reason = match owner {
            None if word.device_writer() => "device",
            None if word.generation() == MAX_GENERATION => "generations_used_up",
            None => "damaged",
            Some(_) if line.who.as_ref().is_some_and(|who| who.holder == "dead") => "owner_dead",
            Some(index) if index < self.image.geometry().session_count => {
                match self.image.session_word(index)?.state() {
                    Some(SessionState::Fenced) => "owner_fenced",
                    _ => "stalled_writer",
                }
            }
            Some(_) => "stalled_writer",
        };
        line.reason = Some(reason);
        let why = QUARANTINES.iter().find(|(name, _)| *name == reason).map_or("", |(_, text)| text);
        line.text = format!("slot {slot} is quarantined: {why}");
        Ok(())
    }
}

fn blank(found: &Found) -> WhyLine {
    WhyLine {
        key: found.key.clone(),
        shard: found.shape.map(|(shard, _)| shard),
        part: found.shape.map(|(_, part)| part),
        hit: false,
        code: "never_stored",
        reason: None,
        text: String::new(),
        slot: None,
        generation: None,
        namespace_row: None,
        namespace_generation: None,
        current_generation: None,
        who: None,
        committed_ns: None,
        length: None,
        leases: Vec::new(),
        unmoved_ms: None,
        remembered: None,
        gone_cause: None,
        gone_ns: None,
        doubt: None,
        differs: Vec::new(),
        also: Vec::new(),
        events: found.events.clone(),
    }
}
