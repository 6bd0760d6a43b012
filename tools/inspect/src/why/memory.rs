//! What flight records tell of an object: who was refused, who retired it.

use super::Who;
use super::sight::Found;
use crate::log::{RecordLine, moment};
use crate::out::safe;

/// The latest record of a store that was not granted.
pub(super) fn refusal(found: &Found) -> Option<&RecordLine> {
    let latest = found.events.iter().rev().find(|event| event.operation == "reserve")?;
    matches!(latest.outcome.as_str(), "refused" | "contended").then_some(latest)
}

/// The record of a retire, not older than the block.
pub(super) fn remover(found: &Found, committed_ns: u64) -> Option<&RecordLine> {
    found.events.iter().rev().find(|event| {
        event.operation == "retire"
            && matches!(event.outcome.as_str(), "done" | "draining")
            && event.time_ns >= committed_ns
    })
}

pub(super) fn who_of(event: &RecordLine) -> Who {
    let holder = match (event.epoch, event.liveness) {
        (None, _) => "replaced",
        (Some(_), None) => "closed",
        (Some(_), Some(life)) => life.name(),
    };
    Who { session: event.session, epoch: event.epoch.unwrap_or(0), engine: event.engine.clone(), holder }
}

/// One remembered operation in words.
pub(super) fn event_words(event: &RecordLine) -> String {
    let engine = event.engine.as_deref().map_or(String::new(), |engine| format!(" ({})", safe(engine.as_bytes())));
    let epoch = event.epoch.map_or("?".to_owned(), |epoch| epoch.to_string());
    let slot = event.slot.map_or(String::new(), |slot| format!(", slot {slot}"));
    format!(
        "{} {} at {} by session {}:{epoch}{engine}{slot}",
        event.operation,
        event.outcome,
        moment(event.time_ns),
        event.session
    )
}
