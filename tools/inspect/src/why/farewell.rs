//! What the farewell table tells: why, when and by whom a block went, after its slot has had the next life.
//!
//! A word there is found by a hash of the whole object id. Of an object that no slot holds only the prefix is known: it is
//! tried under the namespaces asked for and their last generations, with the shards and parts that records of this region
//! have. Each try may meet another key's word, with a probability that adds up and is told ([`WhyLine::doubt`]).
//!
//! * F1: slots are looked at first: a farewell says nothing of a block that is there.
//! * F2: a word is a claim. A session that is not in the table, and a time that has not come yet, are not repeated.

use std::time::{SystemTime, UNIX_EPOCH};

use maru_layout::farewell::{Cause, FAREWELL_LAST_SECOND, FAREWELL_TAG_BITS, FarewellWord, farewell_second};
use maru_layout::object::ObjectKey;
use maru_layout::superblock::feature_ignorable;

use super::cause::{Judge, Standing};
use super::sight::{Found, Sighting};
use super::spaces::Whose;
use super::{Who, WhyLine};
use crate::dump::HexPrefix;
use crate::out::date;
use crate::source::ReadError;

/// Object ids that are tried for a key, and for each of a strip's.
const TRIES: usize = 1024;
const TRIES_OF_MANY: usize = 64;
const SECOND_NS: u64 = 1_000_000_000;

/// A farewell that is, in all likelihood, of the key asked for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Recalled {
    cause: Cause,
    /// Index of an entry that the session table has.
    session: Option<u32>,
    /// First nanosecond of the second that the word names.
    gone_ns: u64,
    /// Whether that can be.
    dated: bool,
    /// Under what it was found, where that had to be tried.
    whose: Option<(Whose, (u16, u16))>,
    /// Object ids tried for it.
    tries: u32,
}

impl Recalled {
    /// The code of an answer that rests on it.
    pub(super) fn code(&self) -> &'static str {
        match (self.cause, self.whose) {
            (_, Some((Whose::Ended(..), _))) | (Cause::Invalidated, _) => "invalidated",
            (Cause::Evicted | Cause::Displaced, _) => "evicted",
            (Cause::Retired, _) => "retired",
            (Cause::Recovered, _) => "recovered",
            (Cause::Drained, _) => "removed",
            (Cause::Unfinished, _) => "given_up",
        }
    }

    /// What it was, before it went.
    pub(super) fn was(&self) -> &'static str {
        match (self.cause, self.whose) {
            (Cause::Unfinished, _) => "was reserved once",
            (_, Some((Whose::Ended(..), _))) => "was there, under a generation of its namespace that has ended",
            _ => "was there",
        }
    }

    /// Whether it was said after a moment, for sure.
    pub(super) fn is_after(&self, time_ns: u64) -> bool {
        self.dated && self.gone_ns > time_ns
    }

    /// Whether it may have been said after a moment: words know whole seconds.
    pub(super) fn is_not_before(&self, time_ns: u64) -> bool {
        !self.dated || self.gone_ns.saturating_add(SECOND_NS) > time_ns
    }

    fn because(&self) -> &'static str {
        match self.cause {
            Cause::Evicted => "evicted to make room",
            Cause::Displaced => "evicted to make room in the index",
            Cause::Retired => "retired",
            Cause::Invalidated => "brought home after its namespace was invalidated",
            Cause::Recovered => "recovered from a session that died while it took it away",
            Cause::Drained => "freed after its last reader",
            Cause::Unfinished => "brought home, its writer being gone before it committed",
        }
    }
}

impl Judge<'_, '_> {
    /// The farewell of an object that a free slot's record still names.
    pub(super) fn recalled(&self, sighting: &Sighting) -> Result<Option<Recalled>, ReadError> {
        let recalled = self.word_of(&ObjectKey::of_record(&sighting.record.identity))?;
        Ok(recalled.filter(|recalled| match sighting.sealed {
            true => recalled.cause != Cause::Unfinished && recalled.is_not_before(sighting.record.body.committed_ns),
            false => recalled.cause == Cause::Unfinished,
        }))
    }

    /// The farewell of a key that no slot names.
    pub(super) fn recall(&self, found: &Found, patient: bool) -> Result<Option<Recalled>, ReadError> {
        let Some(prefix) = HexPrefix::parse(&found.key).and_then(|key| key.whole()) else { return Ok(None) };
        let most = if patient { TRIES } else { TRIES_OF_MANY };
        let shapes = found.shape.map_or_else(|| self.shapes.clone(), |shape| vec![shape]);
        let ids = self.digests.iter().flat_map(|id| shapes.iter().map(move |shape| (id, *shape)));
        for (tries, ((whose, namespace), shape)) in (1..).zip(ids.take(most)) {
            let key = ObjectKey { namespace: *namespace, prefix, shard: shape.0, part: shape.1 };
            if let Some(recalled) = self.word_of(&key)? {
                return Ok(Some(Recalled { whose: Some((*whose, shape)), tries, ..recalled }));
            }
        }
        Ok(None)
    }

    /// What is said in the place of this key, if it may be of this key.
    fn word_of(&self, key: &ObjectKey) -> Result<Option<Recalled>, ReadError> {
        let geometry = self.image.geometry();
        if self.image.superblock().features_ignorable & feature_ignorable::FAREWELLS == 0 {
            return Ok(None);
        }
        let place = key.farewell(geometry.hash_seed, geometry.farewell_count);
        let word: FarewellWord = self.image.farewell(place.index)?;
        let Some(cause) = word.cause().filter(|_| word.may_be_of(place.tag)) else { return Ok(None) };
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64);
        // F2. Clocks of two hosts may be a little apart.
        let latest = farewell_second(geometry.formatted_ns, now).saturating_add(60);
        Ok(Some(Recalled {
            cause,
            session: word.who().index().filter(|index| *index < geometry.session_count),
            gone_ns: geometry.formatted_ns.saturating_add(u64::from(word.second()) * SECOND_NS),
            dated: word.second() <= latest && word.second() < FAREWELL_LAST_SECOND,
            whose: None,
            tries: 1,
        }))
    }

    /// Namespace, shard and part under which it was found.
    pub(super) fn name_recalled(&self, line: &mut WhyLine, recalled: &Recalled) {
        let Some((whose, (shard, part))) = recalled.whose else { return };
        (line.shard, line.part) = (Some(shard), Some(part));
        self.name_space(line, Standing::Other(whose));
    }

    /// Adds it to an answer.
    pub(super) fn tell(&self, line: &mut WhyLine, recalled: &Recalled) -> Result<(), ReadError> {
        line.remembered = Some("farewell");
        line.gone_cause = Some(recalled.cause.name());
        line.gone_ns = recalled.dated.then_some(recalled.gone_ns);
        let doubt = f64::from(recalled.tries) / f64::from(1u32 << FAREWELL_TAG_BITS);
        line.doubt = Some(doubt);
        line.who = recalled.session.map(|session| self.holder_then(session, recalled)).transpose()?;
        let when = if recalled.dated { date(recalled.gone_ns) } else { "at an unknown time".to_owned() };
        let who = line.who.as_ref().map_or_else(|| "an unknown session".to_owned(), Who::words);
        let because = recalled.because();
        line.text.push_str(&format!("; probably {because}, {when}, by {who}: so says the farewell table"));
        line.text.push_str(&format!(" (another key's word with a probability of at most {doubt:.1e})"));
        Ok(())
    }

    /// The session that had an entry at that time, as far as the entry still tells.
    fn holder_then(&self, session: u32, recalled: &Recalled) -> Result<Who, ReadError> {
        let attached_ns = self.image.session(session)?.attached_ns;
        // Within one second it is not known which of two holders it was; the later one is named.
        if recalled.is_not_before(attached_ns) && recalled.dated {
            return self.who(session, None);
        }
        let holder = if recalled.dated { "replaced" } else { "unknown" };
        Ok(Who { session, epoch: 0, engine: None, holder })
    }
}
