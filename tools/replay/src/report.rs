//! The end: a table for people, or one JSON object for programs.

use std::fmt::Write;

use anyhow::Result;
use comfy_table::{CellAlignment, Table, presets};
use maru::Region;
use serde::Serialize;

use crate::audit::Audit;
use crate::plan::{Plan, shown};
use crate::region::human_bytes;
use crate::rival::Rival;
use crate::run::Replayed;
use crate::story::Story;
use crate::watch::Watched;

/// All that a run came to.
pub(crate) struct Outcome<'a> {
    /// What was asked for.
    pub(crate) plan: &'a Plan,
    /// Where.
    pub(crate) region: &'a Region,
    /// The replay.
    pub(crate) replayed: &'a Replayed,
    /// The look-up against a rival's.
    pub(crate) rival: Option<Rival>,
    /// Accounts meanwhile, where somebody was killed or a budget kept.
    pub(crate) watched: Option<Watched>,
    /// Accounts afterwards, likewise.
    pub(crate) audit: Option<Audit>,
}

impl Outcome<'_> {
    /// What is not as it must be, if anything: what decides the exit status.
    pub(crate) fn problem(&self) -> Option<String> {
        let tally = &self.replayed.tally;
        let mut problems = Vec::new();
        if tally.wrong_bytes > 0 {
            let wrong = grouped(tally.wrong_bytes);
            problems.push(format!("{wrong} of the loaded bytes are not those that belong there"));
        }
        if tally.damaged > 0 {
            problems.push(format!("{} blocks did not match their checksums", grouped(tally.damaged)));
        }
        if let Some(watched) = &self.watched {
            if watched.exceeded > 0 {
                problems.push(format!("the budget was exceeded in {} samples", grouped(watched.exceeded)));
            }
            if watched.unbalanced > 0 {
                problems.push(format!("the slots did not add up in {} samples", grouped(watched.unbalanced)));
            }
        }
        problems.extend(self.audit.iter().flat_map(|audit| audit.problems.iter().cloned()));
        (!problems.is_empty()).then(|| problems.join("; "))
    }
}

/// Keys and meaning are a contract; see the project's list of names.
#[derive(Debug, Serialize)]
struct Json {
    requests: u64,
    references: u64,
    hits: u64,
    hit_ratio: f64,
    stores: u64,
    refused: u64,
    bytes_moved: u64,
    wrong_bytes: u64,
    lookup_ns: LookupNs,
    seconds: f64,
    workers: u32,
    slots: u32,
    seed: u64,
    region: String,
    region_id: String,
    rival: Option<RivalNs>,
    kills: u64,
    killed_requests: u64,
    recovered: u64,
    samples: u64,
    sample_gap_us: Option<SampleGapUs>,
    budget: Option<u32>,
    most_spent: Option<u32>,
    budget_exceeded: u64,
    #[serde(flatten)]
    story: Option<Story>,
}

#[derive(Debug, Serialize)]
struct SampleGapUs {
    p50: u64,
    p99: u64,
    max: u64,
}

#[derive(Debug, Serialize)]
struct LookupNs {
    p50: u64,
    p99: u64,
}

#[derive(Debug, Serialize)]
struct RivalNs {
    name: &'static str,
    ours_ns: u64,
    rival_ns: u64,
}

fn hex(id: [u8; 16]) -> String {
    id.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// One object on one line.
pub(crate) fn json(outcome: &Outcome<'_>, story: Option<Story>) -> Result<String> {
    let Outcome { plan, region, replayed, rival, watched, audit } = outcome;
    let tally = &replayed.tally;
    let us = |watched: &Watched, share| watched.gaps.percentile(share) / 1000;
    let json = Json {
        requests: tally.requests,
        references: tally.references,
        hits: tally.hits,
        hit_ratio: tally.hit_ratio(),
        stores: tally.stores,
        refused: tally.refused_total(),
        bytes_moved: tally.bytes_moved(),
        wrong_bytes: tally.wrong_bytes,
        lookup_ns: LookupNs { p50: replayed.lookups.percentile(0.5), p99: replayed.lookups.percentile(0.99) },
        seconds: replayed.seconds,
        workers: plan.workers,
        slots: region.geometry().slot_count,
        seed: plan.seed,
        region: plan.region.display().to_string(),
        region_id: hex(region.id()),
        rival: rival.map(|rival| RivalNs { name: "lmdb", ours_ns: rival.ours_ns, rival_ns: rival.rival_ns }),
        kills: replayed.deaths.len() as u64,
        killed_requests: replayed.killed_requests,
        recovered: audit.as_ref().map_or(0, |audit| audit.recovered),
        samples: watched.as_ref().map_or(0, |watched| watched.samples),
        sample_gap_us: watched.as_ref().map(|watched| SampleGapUs {
            p50: us(watched, 0.5),
            p99: us(watched, 0.99),
            max: us(watched, 1.0),
        }),
        budget: plan.budget,
        most_spent: plan.budget.and(watched.as_ref()).map(|watched| watched.most_spent),
        budget_exceeded: watched.as_ref().map_or(0, |watched| watched.exceeded),
        story,
    };
    Ok(serde_json::to_string(&json)? + "\n")
}

/// The table, and what was measured beside it.
pub(crate) fn table(outcome: &Outcome<'_>) -> String {
    let Outcome { plan, replayed, rival, .. } = outcome;
    let tally = &replayed.tally;
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    let mut row = |name: &str, value: String, note: String| {
        table.add_row([name.to_owned(), value, note]);
    };
    let workers = if plan.workers == 1 { "1 worker".to_owned() } else { format!("{} workers", plan.workers) };
    row("requests", grouped(tally.requests), format!("by {workers} in {:.2} s", replayed.seconds));
    row("references", grouped(tally.references), "blocks that the requests asked for".to_owned());
    row("leading-run hits", grouped(tally.hits), "blocks loaded and compared byte for byte".to_owned());
    let endless = &replayed.endless;
    row("hit ratio", percent(tally.hits, tally.references), {
        let ideal = percent(endless.hits, endless.references);
        format!("an endless cache, one request after another: {ideal}")
    });
    row("stores", grouped(tally.stores), {
        let others = [
            (tally.present, "stored before"),
            (tally.being_written, "being stored by another"),
            (tally.contended, "contended"),
            (tally.lost_stores, "taken away"),
        ];
        listed(&others, &format!("{} distinct blocks", grouped(endless.distinct())))
    });
    row("refused", grouped(tally.refused_total()), {
        let reasons: Vec<_> = tally.refused.iter().map(|(why, count)| format!("{} {why}", grouped(*count))).collect();
        reasons.join(", ")
    });
    row("bytes moved", human_bytes(tally.bytes_moved()), {
        format!("{} loaded, {} stored", human_bytes(tally.loaded_bytes), human_bytes(tally.stored_bytes))
    });
    let rate = tally.bytes_moved() as f64 / 1e9 / replayed.seconds.max(1e-9);
    row("throughput", format!("{rate:.2} GB/s"), "copy, checksum and comparison included".to_owned());
    let times = |histogram: &crate::histogram::Histogram| {
        format!("{} / {}", micros(histogram.percentile(0.5)), micros(histogram.percentile(0.99)))
    };
    row("lookup p50 / p99", times(&replayed.lookups), "probe_prefix of a whole request, in the workers".to_owned());
    if let Some((asked, lookups)) = &replayed.scheduler {
        let note = format!("{} requests, asked by a process that maps no payload", grouped(asked.requests));
        row("scheduler p50 / p99", times(lookups), note);
    }
    if tally.lost_loads + tally.damaged > 0 {
        let note = format!("{} damaged", grouped(tally.damaged));
        row("seen, not loaded", grouped(tally.lost_loads), note);
    }
    row("wrong bytes", grouped(tally.wrong_bytes), "of those loaded".to_owned());
    endured(outcome, &mut row);
    if let Some(column) = table.column_mut(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }

    let mut text = String::new();
    let _ = writeln!(text, "\n{}", shown(&plan.source));
    for line in table.lines() {
        let _ = writeln!(text, "{}", line.trim_end());
    }
    let _ = writeln!(text, "\nrefused: {}, wrong bytes: {}", tally.refused_total(), tally.wrong_bytes);
    let _ = writeln!(text, "picture: {}", plan.picture.display());
    if let Some(rival) = rival {
        let _ = writeln!(
            text,
            "\n{} keys in {}; LMDB {}\n(medians of alternating rounds, {} keys held; LMDB in memory, no syncing, one read \
             transaction)",
            rival.keys,
            micros(rival.ours_ns),
            micros(rival.rival_ns),
            grouped(rival.held as u64)
        );
    }
    text
}

/// Rows about kills and accounts, where somebody looked at them.
fn endured(outcome: &Outcome<'_>, row: &mut dyn FnMut(&str, String, String)) {
    let (Some(watched), Some(audit)) = (&outcome.watched, &outcome.audit) else { return };
    let replayed = outcome.replayed;
    if outcome.plan.kill_every.is_some() {
        let (recovered, others) = (grouped(audit.recovered), grouped(audit.recovered_by_others));
        row("workers killed", grouped(replayed.deaths.len() as u64), {
            let lost = grouped(replayed.killed_requests);
            format!("{recovered} recovered, {others} of them in passing; {lost} requests died with them")
        });
    }
    row("samples", grouped(watched.samples), {
        let gap = |share| format!("{:.1}", watched.gaps.percentile(share) as f64 / 1e6);
        let gaps = format!("{} / {} / {} ms apart (p50, p99, max)", gap(0.5), gap(0.99), gap(1.0));
        format!("{gaps}; the slots did not add up in {}", grouped(watched.unbalanced))
    });
    if let Some(budget) = outcome.plan.budget {
        row("budget", format!("{} slots", grouped(budget.into())), {
            let (spent, held) = (grouped(watched.most_spent.into()), grouped(watched.most_held.into()));
            format!("at most {spent} tokens spent, {held} slots held at once; exceeded in {} samples", watched.exceeded)
        });
    }
    let free = audit.slots[maru_layout::word::SlotState::Free as usize];
    let capacity = audit.slots.iter().sum::<u32>();
    let (free, taken) = (grouped(free.into()), grouped((capacity - free).into()));
    let spent = audit.held_and_spent.map_or_else(String::new, |(held, spent)| {
        format!("; {} slots held, {} tokens spent", grouped(held.into()), grouped(spent.into()))
    });
    row("recounted", format!("{free} + {taken}"), {
        let verdict =
            if audit.problems.is_empty() { "verified with all payload".to_owned() } else { audit.problems.join("; ") };
        format!("free and allocated of {} slots{spent}; {verdict}", grouped(capacity.into()))
    });
}

/// What to type next.
pub(crate) fn next(plan: &Plan, region: &Region) -> String {
    let command = format!("{} watch {}", quoted(&inspector()), quoted(&plan.region.display().to_string()));
    format!("\nThe region ({}) is still there. Next:\n{command}\n", hex(region.id()))
}

/// Those that are not zero, after a first one.
fn listed(counts: &[(u64, &str)], first: &str) -> String {
    let others = counts.iter().filter(|(count, _)| *count > 0);
    others.fold(first.to_owned(), |text, (count, name)| format!("{text}; {} {name}", grouped(*count)))
}

fn percent(part: u64, whole: u64) -> String {
    if whole == 0 { "-".to_owned() } else { format!("{:.2} %", part as f64 * 100.0 / whole as f64) }
}

fn micros(ns: u64) -> String {
    format!("{:.1} us", ns as f64 / 1e3)
}

/// A number with its thousands apart.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// As a shell wants it.
fn quoted(path: &str) -> String {
    let plain = |char: char| char.is_ascii_alphanumeric() || "/._-+:@%".contains(char);
    if path.chars().all(plain) { path.to_owned() } else { format!("'{}'", path.replace('\'', r"'\''")) }
}

/// How to call `maru-inspect` from here: the one beside this program, by its path from the working directory where there
/// is one, or by its name where it is not beside us.
fn inspector() -> String {
    let name = "maru-inspect";
    let beside = std::env::current_exe().ok().map(|me| me.with_file_name(name)).filter(|path| path.exists());
    let Some(beside) = beside else { return name.to_owned() };
    let here = std::env::current_dir().ok();
    let short = here.as_deref().and_then(|here| beside.strip_prefix(here).ok()).unwrap_or(&beside);
    short.display().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_paths_are_shown_as_people_want_them() {
        assert_eq!(grouped(0), "0");
        assert_eq!(grouped(999), "999");
        assert_eq!(grouped(288_500), "288,500");
        assert_eq!(grouped(1_000_000), "1,000,000");
        assert_eq!(percent(1, 3), "33.33 %");
        assert_eq!(percent(0, 0), "-");
        assert_eq!(micros(3140), "3.1 us");
        assert_eq!(quoted("/dev/shm/maru-try"), "/dev/shm/maru-try");
        assert_eq!(quoted("/tmp/a b's"), r"'/tmp/a b'\''s'");
        assert_eq!(listed(&[(0, "x"), (2, "y")], "1 z"), "1 z; 2 y");
    }
}
