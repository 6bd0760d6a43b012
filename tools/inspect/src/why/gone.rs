//! Objects that were there, as records, farewells and flight records remember it, and those of which nothing is known.

use super::WhyLine;
use super::cause::Judge;
use super::farewell::Recalled;
use super::memory::{event_words, refusal, remover, who_of};
use super::sight::{Found, Sighting};
use crate::log::moment;
use crate::out::grouped;
use crate::source::ReadError;

impl Judge<'_, '_> {
    /// A free slot whose last life was this object's.
    pub(super) fn gone(&self, line: &mut WhyLine, sighting: &Sighting, found: &Found) -> Result<(), ReadError> {
        let slot = sighting.slot;
        let recalled = self.recalled(sighting)?;
        if !sighting.sealed {
            line.code = "given_up";
            let event =
                found.events.iter().rev().find(|event| event.operation == "abort" || event.operation == "commit");
            line.who = event.map(who_of);
            line.text = format!("slot {slot} was reserved for it and given back without a commit");
            match (event, recalled) {
                (Some(event), _) => line.text.push_str(&format!(": {}", event_words(event))),
                (None, Some(recalled)) => self.tell(line, &recalled)?,
                (None, None) => {}
            }
            return Ok(());
        }
        let committed = sighting.record.body.committed_ns;
        let storer = self.storer(sighting)?;
        line.text = format!("was in slot {slot}, committed {} by {}, and was freed", moment(committed), storer.words());
        self.by_whom(line, found, committed, recalled.as_ref())
    }

    /// The latest of what a flight recorder and a farewell say, or else who may have.
    fn by_whom(
        &self,
        line: &mut WhyLine,
        found: &Found,
        committed: u64,
        recalled: Option<&Recalled>,
    ) -> Result<(), ReadError> {
        let event = remover(found, committed);
        if let Some(recalled) = recalled.filter(|recalled| event.is_none_or(|event| recalled.is_after(event.time_ns))) {
            line.code = recalled.code();
            return self.tell(line, recalled);
        }
        match event {
            Some(event) => {
                line.code = "retired";
                line.who = Some(who_of(event));
                line.text.push_str(&format!(": {}", event_words(event)));
            }
            None if !self.evictors.is_empty() => {
                line.code = "evicted";
                let named = self.evictors.iter().take(3).map(|(session, count)| {
                    let who = self.who(*session, None).map_or_else(|_| format!("session {session}"), |who| who.words());
                    format!("{} by {who}", grouped(*count))
                });
                let more = self.evictors.len().saturating_sub(3);
                let more = if more > 0 { format!(" and {more} more entries") } else { String::new() };
                line.text.push_str(&format!(
                    "; nobody remembers retiring it; evictions here: {}{more}",
                    named.collect::<Vec<_>>().join(", ")
                ));
                // Where only one entry has ever evicted, it was that one, under this holder or one before.
                if let [(session, _)] = self.evictors[..] {
                    line.who = self.who(session, None).ok();
                }
            }
            None => {
                line.code = "removed";
                line.text.push_str("; nobody remembers retiring it, and no eviction is counted here");
            }
        }
        Ok(())
    }

    /// No slot tells anything: what flight recorders and farewells remember.
    pub(super) fn without_slot(&self, line: &mut WhyLine, found: &Found, patient: bool) -> Result<(), ReadError> {
        let stored = found.events.iter().rev().find(|event| {
            matches!(event.operation.as_str(), "commit" | "load" | "acquire")
                && event.outcome == "done"
                && event.slot.is_some()
        });
        let recalled = self.recall(found, patient)?;
        let refused = refusal(found)
            .filter(|event| stored.is_none_or(|stored| stored.time_ns <= event.time_ns))
            .filter(|event| recalled.as_ref().is_none_or(|recalled| !recalled.is_after(event.time_ns)));
        if let Some(event) = refused {
            line.code = "refused";
            line.who = Some(who_of(event));
            line.text = format!("{}; records do not say under which namespace", event_words(event));
            if let Some(reasons) = self.reasons(event.session)? {
                line.text.push_str(&format!("; that entry counts {reasons}"));
            }
            return Ok(());
        }
        if let Some(recalled) = &recalled {
            self.name_recalled(line, recalled);
        }
        let since = |recalled: &Recalled| stored.is_none_or(|event| recalled.is_not_before(event.time_ns));
        let recalled = recalled.filter(since);
        match (stored, recalled) {
            (Some(event), recalled) => {
                line.slot = event.slot.and_then(|slot| u32::try_from(slot).ok());
                line.generation = event.generation;
                line.text = format!("was there ({}), and its slot has another life now", event_words(event));
                self.by_whom(line, found, event.time_ns, recalled.as_ref())?;
            }
            (None, Some(recalled)) => {
                line.code = recalled.code();
                line.text = recalled.was().to_owned();
                self.tell(line, &recalled)?;
            }
            (None, None) => {
                line.code = "never_stored";
                line.text =
                    "nothing is remembered of it. Memory is bounded (each slot's last life, a farewell for two \
                             slots, each session's last 16 operations), so it was never stored, or that is forgotten"
                        .to_owned();
            }
        }
        Ok(())
    }

    /// Counters of refusals that an entry has.
    fn reasons(&self, session: u32) -> Result<Option<String>, ReadError> {
        let counters = self.image.area(session)?.counters;
        let reasons: Vec<String> = crate::census::refusals()
            .filter(|(counter, _)| counters[*counter as usize] > 0)
            .map(|(counter, reason)| format!("{} {reason}", grouped(counters[counter as usize])))
            .collect();
        Ok((!reasons.is_empty()).then(|| reasons.join(", ")))
    }
}
