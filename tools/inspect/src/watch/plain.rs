//! Lines for pipes: one a look, and one JSON object a look.

use std::collections::BTreeMap;
use std::io;

use maru_layout::table::Counter;
use serde::Serialize;

use super::history::{History, Rates, overall};
use crate::census::{Census, LEASE_KINDS, refusals};
use crate::findings::Report;
use crate::life::Life;
use crate::out::{Line, Out, date, safe};
use crate::run::unread_summary;
use crate::tally::States;

/// Namespaces of a sample.
const SPACES: usize = 10;
/// Lines between two headings.
const HEADING: u64 = 24;

/// One look, for JSON.
#[derive(Serialize)]
pub struct SampleLine {
    /// Wall clock of the look.
    pub time_ns: u64,
    /// Why no region was found; then nothing else is there.
    pub unread: Option<String>,
    /// What happened that the numbers do not say.
    pub notice: Option<String>,
    /// Damage that was met, in one sentence.
    pub problem: Option<String>,
    /// Id of the region.
    pub region_id: Option<String>,
    /// Slots by state.
    pub slots: Option<States>,
    /// Slots.
    pub capacity_slots: Option<u32>,
    /// Seconds since the look before; null for the first one.
    pub seconds: Option<f64>,
    /// Per second, by counter.
    pub rates: Option<BTreeMap<&'static str, f64>>,
    /// Refusals per second, by reason.
    pub refusals: Option<BTreeMap<&'static str, f64>>,
    /// Since the beginning, by counter.
    pub totals: BTreeMap<&'static str, u64>,
    /// Keys found of keys probed, since the look before.
    pub planned_hit_ratio: Option<f64>,
    /// The same since the beginning.
    pub planned_hit_ratio_overall: Option<f64>,
    /// Blocks acquired of blocks asked for, since the look before.
    pub hit_ratio: Option<f64>,
    /// The same since the beginning.
    pub hit_ratio_overall: Option<f64>,
    /// Holders by what is known of them.
    pub sessions: BTreeMap<&'static str, usize>,
    /// Leases by kind.
    pub leases: BTreeMap<&'static str, u64>,
    /// Namespaces with the most ready blocks.
    pub namespaces: Vec<SpaceSample>,
}

/// A namespace of a sample.
#[derive(Serialize)]
pub struct SpaceSample {
    /// Row.
    pub row: u32,
    /// Tenant.
    pub tenant: String,
    /// Model.
    pub model: String,
    /// Ready blocks.
    pub ready: u64,
    /// Budget in slots.
    pub budget_slots: Option<u64>,
    /// Tokens spent.
    pub spent_tokens: Option<u64>,
}

const LIVES: [Life; 3] = [Life::Alive, Life::Dead, Life::Unknown];

impl SampleLine {
    fn of(history: &History) -> Self {
        let census = history.latest().filter(|_| history.unread().is_none());
        let rates = history.now().filter(|_| census.is_some());
        let top = census.map(|census| top_spaces(census, SPACES)).unwrap_or_default();
        Self {
            time_ns: wall_ns(),
            unread: history.unread().map(str::to_owned),
            notice: history.notice().map(str::to_owned),
            problem: census.and_then(|census| census.problem.clone()),
            region_id: census.map(|census| census.region_id.clone()),
            slots: census.map(|census| census.usage.slots),
            capacity_slots: census.map(|census| census.usage.capacity_slots),
            seconds: rates.map(|rates| rates.seconds),
            rates: rates.map(|rates| Counter::ALL.iter().map(|c| (c.name(), rates.of(*c))).collect()),
            refusals: rates.map(|rates| refusals().map(|(c, reason)| (reason, rates.of(c))).collect()),
            totals: census
                .into_iter()
                .flat_map(|census| Counter::ALL.iter().map(|c| (c.name(), census.total(*c))))
                .collect(),
            planned_hit_ratio: rates.and_then(Rates::planned),
            planned_hit_ratio_overall: census.and_then(|census| overall(census, Counter::ProbeHits, Counter::Probed)),
            hit_ratio: rates.and_then(Rates::real),
            hit_ratio_overall: census.and_then(|census| overall(census, Counter::AcquireHits, Counter::Acquired)),
            sessions: census.into_iter().flat_map(|c| LIVES.map(|life| (life.name(), c.lives(life)))).collect(),
            leases: census
                .into_iter()
                .flat_map(|census| LEASE_KINDS.iter().zip(census.leases).map(|(kind, leases)| (kind.name(), leases)))
                .collect(),
            namespaces: top
                .into_iter()
                .map(|space| SpaceSample {
                    row: space.row,
                    tenant: space.tenant.clone(),
                    model: space.model.clone(),
                    ready: space.ready,
                    budget_slots: space.budget_slots,
                    spent_tokens: space.spent_tokens,
                })
                .collect(),
        }
    }
}

/// Namespaces with the most ready blocks first.
pub(super) fn top_spaces(census: &Census, most: usize) -> Vec<&crate::census::Space> {
    let mut spaces: Vec<_> = census.spaces.iter().collect();
    spaces.sort_by_key(|space| (core::cmp::Reverse(space.ready), space.row));
    spaces.truncate(most);
    spaces
}

/// A part of one in percent.
pub(super) fn percent(part: Option<f64>) -> String {
    part.map_or("-".to_owned(), |part| format!("{:.1}%", part * 100.0))
}

/// A rate, short.
pub(super) fn short(rate: f64) -> String {
    match rate {
        rate if rate >= 1e9 => format!("{:.1}G", rate / 1e9),
        rate if rate >= 1e6 => format!("{:.1}M", rate / 1e6),
        rate if rate >= 1e4 => format!("{:.1}k", rate / 1e3),
        rate => format!("{rate:.1}"),
    }
}

fn wall_ns() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
}

/// Prints the latest look; `looks` were printed before.
///
/// # Errors
/// The reader of the output has gone.
pub fn print(history: &History, looks: u64, out: &mut Out) -> io::Result<()> {
    if out.is_json() {
        return out.object(&Line::Sample(Box::new(SampleLine::of(history))));
    }
    if looks.is_multiple_of(HEADING) {
        out.line(
            "time      in use       ready  writing retiring quarant. planned   real  loads/s stores/s evicts/s refused/s  sessions       leases",
        )?;
    }
    let clock = date(wall_ns());
    let clock = clock.get(11..19).unwrap_or("-");
    if let Some(reason) = history.unread() {
        return out.line(format!("{clock}  {}: {}", history.verdict().name(), safe(reason.as_bytes())));
    }
    let Some(census) = history.latest() else { return Ok(()) };
    let slots = &census.usage.slots;
    let in_use = slots.held() as f64 / f64::from(census.usage.capacity_slots.max(1));
    let rate = |counter| history.now().map_or("-".to_owned(), |rates| short(rates.of(counter)));
    let refused = history.now().map_or("-".to_owned(), |rates| short(rates.refused()));
    let hits = |ratio: fn(&Rates) -> Option<f64>| percent(history.now().and_then(ratio));
    let [alive, dead, unknown] = LIVES.map(|life| census.lives(life));
    let mut people = format!("{alive} alive");
    for (count, name) in [(dead, "dead"), (unknown, "unknown")] {
        if count > 0 {
            people.push_str(&format!(" {count} {name}"));
        }
    }
    out.line(format!(
        "{clock}  {:>6} {:>11} {:>8} {:>8} {:>8} {:>7} {:>6} {:>8} {:>8} {:>8} {:>9}  {people:<14} {:>6}",
        percent(Some(in_use)),
        slots.ready,
        slots.claiming + slots.pending + slots.writing,
        slots.retiring,
        slots.quarantined,
        hits(Rates::planned),
        hits(Rates::real),
        rate(Counter::Loaded),
        rate(Counter::Stored),
        rate(Counter::Evicted),
        refused,
        census.leases.iter().sum::<u64>(),
    ))?;
    for text in [history.notice(), census.problem.as_deref()].into_iter().flatten() {
        out.line(format!("          {}", safe(text.as_bytes())))?;
    }
    Ok(())
}

/// The last JSON line.
///
/// # Errors
/// The reader of the output has gone.
pub fn summary(history: &History, out: &mut Out) -> io::Result<()> {
    let mut report = Report::new();
    report.verdict = history.verdict();
    let census = history.latest();
    report.reason = history.unread().map(str::to_owned).or_else(|| census.and_then(|census| census.problem.clone()));
    let mut summary = unread_summary(census.and_then(|census| census.path.clone()), None, &report);
    if let Some(census) = census {
        summary.region_id = Some(census.region_id.clone());
        summary.format_version = Some(census.format_version);
        summary.capacity_slots = census.usage.capacity_slots;
        summary.slots = census.usage.slots;
    }
    out.object(&Line::Summary(Box::new(summary)))
}
