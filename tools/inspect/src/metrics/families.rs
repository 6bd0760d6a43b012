//! What there is to scrape.

use std::fmt::Write as _;
use std::time::Duration;

use maru_layout::table::{Counter, Role};
use maru_layout::word::SessionState;

use super::ROWS;
use crate::census::{Census, LEASE_KINDS, Look, refusals};
use crate::findings::Verdict;
use crate::life::Life;
use crate::out::safe;

/// Labels of a sample, the constant `region` among them.
pub type Labels = Vec<(&'static str, String)>;

/// Samples of one name.
#[derive(Debug, Clone)]
pub struct Family {
    /// Name.
    pub name: String,
    /// `gauge` or `counter`.
    pub kind: &'static str,
    /// For people.
    pub help: String,
    /// Samples.
    pub samples: Vec<(Labels, f64)>,
}

/// Gathers families for one region.
struct Gatherer<'a> {
    region: &'a str,
    families: Vec<Family>,
}

impl Gatherer<'_> {
    fn add(&mut self, name: &str, kind: &'static str, help: &str, samples: Vec<(Labels, f64)>) {
        let region = ("region", self.region.to_owned());
        let samples = samples
            .into_iter()
            .map(|(mut labels, value)| {
                labels.insert(0, region.clone());
                (labels, value)
            })
            .collect();
        self.families.push(Family { name: name.to_owned(), kind, help: help.to_owned(), samples });
    }

    fn gauge(&mut self, name: &str, help: &str, value: f64) {
        self.add(name, "gauge", help, vec![(Vec::new(), value)]);
    }
}

/// Every family for what one look found. What cannot be read has `maru_up` 0, and nothing that would look like zero.
#[must_use]
pub fn families(region: &str, look: &Look, took: Duration) -> Vec<Family> {
    let mut all = Gatherer { region, families: Vec::new() };
    let seen = match look {
        Look::Seen(census) => Some(census.as_ref()),
        Look::Unread { .. } => None,
    };
    all.gauge("maru_up", "1: the region could be read.", f64::from(u8::from(seen.is_some())));
    all.gauge(
        "maru_damaged",
        "1: bytes that no correct writer leaves were met in superblock or slot words; `maru-inspect verify` names them.",
        f64::from(u8::from(look.verdict() == Verdict::Damaged)),
    );
    all.gauge("maru_scrape_seconds", "Time that this look took.", took.as_secs_f64());
    if let Some(census) = seen {
        space(&mut all, census);
        counters(&mut all, census);
        people(&mut all, census);
        namespaces(&mut all, census);
    }
    all.families
}

fn space(all: &mut Gatherer<'_>, census: &Census) {
    let info = vec![
        ("format_version", census.format_version.to_string()),
        ("regime", census.regime.to_owned()),
        ("hosts", census.hosts.to_owned()),
    ];
    all.add("maru_region_info", "gauge", "Always 1; the labels say what the region is.", vec![(info, 1.0)]);
    let usage = &census.usage;
    for (name, help, bytes) in [
        ("maru_capacity_bytes", "Bytes of all slots.", usage.capacity_bytes),
        ("maru_reserved_bytes", "Bytes of the region, tables and alignment included.", usage.reserved_bytes),
        ("maru_allocated_bytes", "Bytes of slots that are not free.", usage.allocated_bytes),
        ("maru_ready_bytes", "Payload bytes of ready blocks.", usage.ready_bytes),
        ("maru_ready_allocated_bytes", "Bytes of slots of ready blocks.", usage.ready_allocated_bytes),
        ("maru_writing_bytes", "Bytes of slots claimed and not yet committed.", usage.writing_bytes),
        ("maru_retiring_bytes", "Bytes of slots that wait for their last reader.", usage.retiring_bytes),
        ("maru_quarantined_bytes", "Bytes of slots that nobody may use.", usage.quarantined_bytes),
    ] {
        all.gauge(name, help, bytes as f64);
    }
    all.gauge("maru_capacity_slots", "Slots.", f64::from(usage.capacity_slots));
    let states = usage.slots.each().into_iter().chain([("unread", census.unread_slots)]);
    let samples = states.map(|(state, slots)| (vec![("state", state.to_owned())], slots as f64)).collect();
    all.add("maru_slots", "gauge", "Slots by state; the sum is the capacity.", samples);
}

fn counters(all: &mut Gatherer<'_>, census: &Census) {
    for counter in Counter::ALL {
        if refusals().any(|(refusal, _)| refusal == *counter) {
            continue;
        }
        let name = format!("maru_{}_total", counter.name());
        all.add(&name, "counter", help(*counter), vec![(Vec::new(), census.total(*counter) as f64)]);
    }
    let samples = refusals()
        .map(|(counter, reason)| (vec![("reason", reason.to_owned())], census.total(counter) as f64))
        .collect();
    all.add("maru_refused_total", "counter", "Stores refused, by reason.", samples);
}

/// What a counter counts. One that is newer than this table is told by its name.
fn help(counter: Counter) -> &'static str {
    match counter {
        Counter::Probed => "Keys asked for by probes: the denominator of planned hits.",
        Counter::ProbeHits => "Keys found by probes.",
        Counter::Acquired => "Blocks asked for by acquire: the denominator of real hits.",
        Counter::AcquireHits => "Blocks protected by acquire.",
        Counter::Loaded => "Blocks whose bytes were copied out whole.",
        Counter::LoadedBytes => "Payload bytes copied out.",
        Counter::Reserved => "Calls of reserve.",
        Counter::Stored => "Blocks made ready.",
        Counter::StoredBytes => "Payload bytes made ready.",
        Counter::Present => "Stores answered: already present.",
        Counter::BeingWritten => "Stores answered: being written.",
        Counter::LengthMismatch => "Stores or loads refused: another length under the same id.",
        Counter::Aborted => "Reservations given back.",
        Counter::Superseded => "Commits that found their slot taken away.",
        Counter::Retired => "Blocks retired on request.",
        Counter::Evicted => "Blocks evicted to make room.",
        Counter::Reclaimed => "Slots freed after their leases ended.",
        Counter::ChecksumMismatch => "Loads whose bytes did not match their checksum.",
        Counter::Expired => "Copies that outlived their lease.",
        Counter::LeasesFull => "Acquires refused: every lease cell of the session in use.",
        Counter::Recovered => "Dead sessions whose slots another one swept.",
        Counter::RecoveredSlots => "Slots that such sweeps returned.",
        Counter::Quarantined => "Stalled writers whose slot was quarantined.",
        Counter::Invalidated => "Calls refused because their namespace was invalidated.",
        Counter::Damage => "Words, indices or lengths found outside their bounds and clamped.",
        _ => "Counted by sessions in their own lines; see the format's list of counters.",
    }
}

/// States that a session entry can have.
fn session_states() -> impl Iterator<Item = &'static str> {
    let known = (0..).map_while(SessionState::from_bits).map(SessionState::name);
    known.chain(["damaged"])
}

fn session_roles() -> impl Iterator<Item = &'static str> {
    (1..).map_while(Role::from_bits).map(Role::name).chain(["unknown", "none"])
}

fn people(all: &mut Gatherer<'_>, census: &Census) {
    let mut samples = Vec::new();
    for state in session_states() {
        for role in session_roles() {
            // A free entry has no role, any other has one.
            if (state == "free") != (role == "none") {
                continue;
            }
            let entries = census.entries.iter().filter(|entry| entry.state() == state && entry.role() == role).count();
            samples.push((vec![("state", state.to_owned()), ("role", role.to_owned())], entries as f64));
        }
    }
    all.add("maru_sessions", "gauge", "Entries of the session table by state and role.", samples);
    let samples = [Life::Alive, Life::Dead, Life::Unknown]
        .into_iter()
        .map(|life| (vec![("holder", life.name().to_owned())], census.lives(life) as f64))
        .collect();
    all.add(
        "maru_session_holders",
        "gauge",
        "Holders of entries in use, as this host's kernel judges them: alive, dead and not yet recovered, or unknown.",
        samples,
    );
    let samples = LEASE_KINDS
        .iter()
        .zip(census.leases)
        .map(|(kind, leases)| (vec![("kind", kind.name().to_owned())], leases as f64))
        .collect();
    all.add("maru_leases", "gauge", "Leases of sessions that are live or fenced, by kind.", samples);
}

fn namespaces(all: &mut Gatherer<'_>, census: &Census) {
    let named = &census.spaces[..census.spaces.len().min(ROWS)];
    let row = |row: u32| ("row", row.to_string());
    let mut per_row = |name: &str, help: &str, value: &dyn Fn(&crate::census::Space) -> Option<f64>| {
        let samples = named.iter().filter_map(|space| Some((vec![row(space.row)], value(space)?))).collect::<Vec<_>>();
        all.add(name, "gauge", help, samples);
    };
    per_row("maru_namespace_ready_slots", "Ready blocks of a namespace's generation.", &|space| {
        Some(space.ready as f64)
    });
    per_row("maru_namespace_ready_bytes", "Their payload bytes.", &|space| Some(space.ready_bytes as f64));
    per_row("maru_namespace_generation", "Generation of a namespace; each invalidation adds one.", &|space| {
        Some(space.generation as f64)
    });
    per_row("maru_namespace_budget_slots", "Slots that a namespace may hold; absent without a budget.", &|space| {
        space.budget_slots.map(|slots| slots as f64)
    });
    per_row("maru_namespace_spent_tokens", "Budget tokens that are spent; absent without a budget.", &|space| {
        space.spent_tokens.map(|tokens| tokens as f64)
    });
    let info = |space: &crate::census::Space| {
        let labels = vec![row(space.row), ("tenant", space.tenant.clone()), ("model", space.model.clone())];
        (labels, 1.0)
    };
    let samples = named.iter().map(info).collect();
    all.add("maru_namespace_info", "gauge", "Always 1; whom a row of the namespace table is for.", samples);
    all.gauge(
        "maru_namespaces",
        "Registered namespaces; those after the first 256 have no lines of their own.",
        census.spaces.len() as f64,
    );
}

/// The text format.
#[must_use]
pub fn render(families: &[Family]) -> String {
    let mut text = String::new();
    for family in families {
        let _ = writeln!(text, "# HELP {} {}", family.name, family.help);
        let _ = writeln!(text, "# TYPE {} {}", family.name, family.kind);
        for (labels, value) in &family.samples {
            let labels: Vec<String> =
                labels.iter().map(|(name, value)| format!("{name}=\"{}\"", label_value(value))).collect();
            let _ = writeln!(text, "{}{{{}}} {value}", family.name, labels.join(","));
        }
    }
    text
}

/// A label value as the text format wants it. Control characters are escaped for people first.
fn label_value(text: &str) -> String {
    safe(text.as_bytes()).replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_counter_has_help_of_its_own() {
        let newest = "Counted by sessions";
        let without: Vec<_> = Counter::ALL
            .iter()
            .filter(|counter| help(**counter).starts_with(newest) && refusals().all(|(known, _)| known != **counter))
            .collect();
        assert!(without.is_empty(), "no help for {without:?}");
    }

    #[test]
    fn closed_lists_are_whole() {
        assert_eq!(session_states().collect::<Vec<_>>(), ["free", "attaching", "live", "fenced", "dead", "damaged"]);
        let roles: Vec<_> = session_roles().collect();
        assert_eq!(roles, ["worker", "scheduler", "coordinator", "tool", "unknown", "none"]);
    }

    #[test]
    fn label_values_stay_in_their_quotes() {
        assert_eq!(label_value("a\"b\\c\nd\x1b"), "a\\\"b\\\\c\\\\nd\\\\u{1b}");
    }
}
