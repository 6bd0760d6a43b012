//! One look at everything that is counted: what `watch` and `metrics` show.
//!
//! * N1: slots by state, with those that could not be read, add up to the capacity: each slot word counts once.
//! * N2: counters lie in the lines of the session that counts and are never zeroed; the next holder of an entry counts on.
//!   So a rate is a difference entry by entry, and the sum over entries only grows.
//! * N3: what depends on bytes of the region is bounded: namespace rows, tokens and their texts.

use std::path::PathBuf;

use maru::Backing;
use maru_layout::image::namespace_text;
use maru_layout::table::{Counter, Role, SessionEntry};
use maru_layout::word::{LeaseKind, RowState, SessionState, SessionWord, SlotState};

use crate::findings::Verdict;
use crate::image::{self, Image, Opening};
use crate::life::{Life, Lives};
use crate::namespaces::{digest_of, fields_of};
use crate::out::{hex, until_zero};
use crate::source::{Part, ReadError, Source};
use crate::tally::{Tally, UsageLine};

/// Namespace rows looked at.
const ROWS: u32 = 1 << 14;
/// Budget tokens looked at.
const TOKENS: u64 = 1 << 22;
/// Bytes of a namespace's text that are shown.
const TEXT: usize = 96;

/// One entry of the session table.
#[derive(Debug, Clone)]
pub struct Entry {
    /// Index.
    pub session: u32,
    /// Word.
    pub word: SessionWord,
    /// Role of an entry in use.
    pub role: Option<Role>,
    /// Engine name.
    pub engine: String,
    /// Process id.
    pub pid: u32,
    /// Whether its holder lives.
    pub life: Option<Life>,
    /// Leases that a retirer counts.
    pub leases: u64,
    /// Slots that name it as owner.
    pub slots: u64,
    /// By the numbers of [`Counter`].
    pub counters: [u64; 64],
}

impl Entry {
    /// The state in one word, from a closed list.
    #[must_use]
    pub fn state(&self) -> &'static str {
        self.word.state().map_or("damaged", SessionState::name)
    }

    /// The role in one word, from a closed list.
    #[must_use]
    pub fn role(&self) -> &'static str {
        match (self.in_use(), self.role) {
            (false, _) => "none",
            (true, Some(role)) => role.name(),
            (true, None) => "unknown",
        }
    }

    /// Whether somebody holds it, or ought to.
    #[must_use]
    pub fn in_use(&self) -> bool {
        !self.word.is(SessionState::Free)
    }
}

/// One registered namespace.
#[derive(Debug, Clone)]
pub struct Space {
    /// Row.
    pub row: u32,
    /// Generation.
    pub generation: u64,
    /// First bytes of the field `tenant`.
    pub tenant: String,
    /// First bytes of the field `model`.
    pub model: String,
    /// Ready objects of this generation.
    pub ready: u64,
    /// Their payload bytes.
    pub ready_bytes: u64,
    /// Slots that it may hold.
    pub budget_slots: Option<u64>,
    /// Tokens spent, where there is a budget and they could be counted.
    pub spent_tokens: Option<u64>,
}

/// What one look finds.
#[derive(Debug, Clone)]
pub struct Census {
    /// Path, where there is one.
    pub path: Option<String>,
    /// Id of the region.
    pub region_id: String,
    /// Incarnation.
    pub incarnation: u64,
    /// Format version.
    pub format_version: u32,
    /// Regime.
    pub regime: &'static str,
    /// Hosts.
    pub hosts: &'static str,
    /// Accounts.
    pub usage: UsageLine,
    /// Slots whose word could not be read (N1).
    pub unread_slots: u64,
    /// Every entry that could be read.
    pub entries: Vec<Entry>,
    /// Leases that count, of each kind.
    pub leases: [u64; 3],
    /// Registered namespaces, by row.
    pub spaces: Vec<Space>,
    /// Whether there are more rows than were looked at.
    pub more_rows: bool,
    /// What is wrong, in one sentence.
    pub problem: Option<String>,
    /// In one word.
    pub verdict: Verdict,
}

/// Kinds of leases, in the order of [`Census::leases`].
pub const LEASE_KINDS: [LeaseKind; 3] = [LeaseKind::Copy, LeaseKind::View, LeaseKind::Device];

/// Answer of one look.
#[derive(Debug, Clone)]
pub enum Look {
    /// A region.
    Seen(Box<Census>),
    /// Not one that can be read, or a damaged one that cannot be looked through.
    Unread {
        /// In one sentence.
        reason: String,
        /// In one word.
        verdict: Verdict,
    },
}

impl Look {
    /// In one word.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        match self {
            Self::Seen(census) => census.verdict,
            Self::Unread { verdict, .. } => *verdict,
        }
    }
}

/// Which bytes, opened anew for each look: the path may lead to another region by now.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Site {
    /// File or device; without it, what `CXL_DAX_DEVICE` names.
    pub path: Option<PathBuf>,
    /// Where the region starts.
    pub offset: u64,
    /// Length of the partition.
    pub length: Option<u64>,
}

impl Site {
    /// Looks.
    #[must_use]
    pub fn look(&self) -> Look {
        let backing = self.path.clone().map_or(Backing::Env, Backing::Path);
        match Part::open(&backing, self.offset, self.length) {
            Ok(part) => look(&part),
            Err(error) => Look::Unread { reason: error.to_string(), verdict: Verdict::Unreadable },
        }
    }

    /// For people and labels.
    #[must_use]
    pub fn name(&self) -> String {
        let device = || std::env::var_os(maru::os::backing::ENV_DEVICE).map(PathBuf::from);
        let path = self.path.clone().or_else(device).unwrap_or_default();
        path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned())
    }
}

/// Looks at bytes.
#[must_use]
pub fn look(source: &dyn Source) -> Look {
    match image::open(source, false) {
        Opening::Unreadable { reason, .. } => Look::Unread { reason, verdict: Verdict::Unreadable },
        Opening::Damaged { reason, .. } => Look::Unread { reason, verdict: Verdict::Damaged },
        Opening::Region { image, problems, .. } => {
            let mut census = Census::of(&image);
            if let Some(problem) = problems.first() {
                census.problem = Some(problem.text.clone());
                census.verdict = Verdict::Damaged;
            }
            Look::Seen(Box::new(census))
        }
    }
}

impl Census {
    /// Counts.
    #[must_use]
    pub fn of(image: &Image<'_>) -> Self {
        let geometry = image.geometry();
        let tally = Tally::of(image);
        let counted: u64 = tally.usage.slots.each().iter().map(|(_, slots)| slots).sum();
        let mut census = Self {
            path: crate::run::path_of(image.source()),
            region_id: hex(&geometry.region_id),
            incarnation: geometry.incarnation,
            format_version: image.superblock().format_version,
            regime: geometry.regime.name(),
            hosts: geometry.hosts.name(),
            unread_slots: u64::from(geometry.slot_count).saturating_sub(counted),
            usage: tally.usage.clone(),
            entries: Vec::new(),
            leases: [0; 3],
            spaces: Vec::new(),
            more_rows: geometry.namespace_count > ROWS,
            problem: tally.cut.as_ref().map(|cut| cut.text.clone()),
            verdict: if tally.cut.is_some() { Verdict::Damaged } else { Verdict::Sound },
        };
        let read = census.sessions(image, &tally).and_then(|()| census.namespaces(image, &tally));
        if let Err(error) = read {
            census.verdict = Verdict::Damaged;
            census.problem.get_or_insert(error.to_string());
        }
        census
    }

    fn sessions(&mut self, image: &Image<'_>, tally: &Tally) -> Result<(), ReadError> {
        let lives = Lives::of(image);
        for session in 0..image.geometry().session_count {
            let facts: SessionEntry = image.session(session)?;
            let head = image.area(session)?;
            let word = SessionWord(facts.word);
            let mut leases = 0;
            if matches!(word.state(), Some(SessionState::Live | SessionState::Fenced) | None) {
                image.for_each_cell(session, |_, cell| {
                    if let Some(at) = LEASE_KINDS.iter().position(|kind| cell.kind() == Some(*kind)) {
                        self.leases[at] += 1;
                        leases += 1;
                    }
                    Ok(())
                })?;
            }
            // Whom the word names now may be another than when the lock was asked for; then nothing is said.
            let life = lives.steady(image, session)?.and_then(|(steady, life)| life.filter(|_| steady == word));
            self.entries.push(Entry {
                session,
                word,
                role: Role::from_bits(facts.role),
                engine: String::from_utf8_lossy(until_zero(&facts.engine)).into_owned(),
                pid: facts.pid,
                life,
                leases,
                slots: tally.owned.get(session as usize).map_or(0, crate::tally::States::held),
                counters: head.counters,
            });
        }
        Ok(())
    }

    fn namespaces(&mut self, image: &Image<'_>, tally: &Tally) -> Result<(), ReadError> {
        let mut tokens_left = TOKENS;
        for index in 0..image.geometry().namespace_count.min(ROWS) {
            let row = image.row(index)?;
            let Some(text) = namespace_text(&row).filter(|_| row.state == RowState::Ready as u64) else { continue };
            let objects = tally.by_namespace.get(&digest_of(text.as_bytes(), row.generation)).copied();
            let objects = objects.unwrap_or_default();
            let fields = fields_of(text);
            let field = |wanted: &str| {
                let found = fields.iter().find(|(name, _)| name == wanted).map(|(_, value)| value.as_str());
                shortened(found.unwrap_or_default())
            };
            let budget_slots = row.budget_slots.checked_sub(1);
            let spent_tokens = match budget_slots {
                Some(slots) if slots <= tokens_left => {
                    tokens_left -= slots;
                    spent_tokens(image, row.first_token, slots)?
                }
                _ => None,
            };
            self.spaces.push(Space {
                row: index,
                generation: row.generation,
                tenant: field("tenant"),
                model: field("model"),
                ready: objects.objects,
                ready_bytes: objects.bytes,
                budget_slots,
                spent_tokens,
            });
        }
        Ok(())
    }

    /// Whether the two looks were at one life of one region.
    #[must_use]
    pub fn same_region(&self, other: &Self) -> bool {
        self.region_id == other.region_id && self.incarnation == other.incarnation
    }

    /// A counter, summed over all entries.
    #[must_use]
    pub fn total(&self, counter: Counter) -> u64 {
        self.entries.iter().fold(0, |sum, entry| sum.wrapping_add(entry.counters[counter as usize]))
    }

    /// What a counter has grown by since an earlier look, entry by entry (N2). A number that has shrunk is damage, and
    /// counts as no growth.
    #[must_use]
    pub fn growth(&self, before: &Self, counter: Counter) -> u64 {
        let at = counter as usize;
        self.entries
            .iter()
            .zip(&before.entries)
            .fold(0u64, |sum, (now, then)| sum.saturating_add(now.counters[at].saturating_sub(then.counters[at])))
    }

    /// Sessions whose holder lives, is dead, or is not known.
    #[must_use]
    pub fn lives(&self, life: Life) -> usize {
        self.entries.iter().filter(|entry| entry.life == Some(life)).count()
    }
}

/// The tokens of a budget that name the present life of a slot; `None` where the range lies outside the section.
fn spent_tokens(image: &Image<'_>, first: u32, slots: u64) -> Result<Option<u64>, ReadError> {
    let (geometry, first) = (image.geometry(), u64::from(first));
    if first.saturating_add(slots) > geometry.token_count.into() {
        return Ok(None);
    }
    let mut spent = 0;
    image.for_each_token(first as u32, slots, |token| {
        if let Some((slot, _)) = token.names().filter(|(slot, _)| *slot < geometry.slot_count) {
            let word = image.slot_word(slot)?;
            spent += u64::from(token.is_of(slot, word.generation()) && !word.is(SlotState::Free));
        }
        Ok(())
    })?;
    Ok(Some(spent))
}

/// The first bytes of a text, whole characters.
fn shortened(text: &str) -> String {
    let mut end = text.len().min(TEXT);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].to_owned()
}

/// Counters that say why a store was refused, and the reason in one word.
pub fn refusals() -> impl Iterator<Item = (Counter, &'static str)> {
    Counter::ALL.iter().filter_map(|counter| Some((*counter, counter.name().strip_prefix("refused_")?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_cut_at_characters() {
        assert_eq!(shortened(&"ä".repeat(60)).chars().count(), 48);
        assert_eq!(shortened("x"), "x");
    }

    #[test]
    fn refusals_are_those_that_the_format_names() {
        let reasons: Vec<_> = refusals().map(|(_, reason)| reason).collect();
        assert!(reasons.contains(&"no_space") && reasons.contains(&"over_budget"), "{reasons:?}");
    }
}
