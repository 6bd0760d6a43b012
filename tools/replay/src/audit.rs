//! The end of a run in which workers were killed or budgets kept: everything counted once more, in peace.
//!
//! * C1: the sessions of the killed are home, by those who went on, or by this one.
//! * C2: no slot is left in the middle of anything, and all states together are all slots.
//! * C3: the namespace's spent tokens are exactly the slots that it holds.
//! * C4: `maru-inspect verify --payload` finds nothing damaged.

use anyhow::Result;
use maru::{Region, Role};
use maru_inspect::Verdict;
use maru_layout::word::SlotState;

use crate::look;
use crate::plan::Plan;
use crate::run::Replayed;
use crate::watch::Limit;

/// What was counted.
#[derive(Debug, Default)]
pub(crate) struct Audit {
    /// Sessions of the killed that are home.
    pub(crate) recovered: u64,
    /// Of these, those that the others had brought home while they worked.
    pub(crate) recovered_by_others: u64,
    /// Slots that the namespace holds, and tokens that are spent, where it has a budget.
    pub(crate) held_and_spent: Option<(u32, u32)>,
    /// Slots by state.
    pub(crate) slots: [u32; 7],
    /// What is not as it must be.
    pub(crate) problems: Vec<String>,
}

/// Counts.
pub(crate) fn audit(plan: &Plan, region: &Region, limit: Option<Limit>, replayed: &Replayed) -> Result<Audit> {
    let mut audit = Audit::default();
    let session = region.session(&format!("{}-audit", plan.engine_prefix), Role::Tool)?;
    let home = || -> Result<u64> {
        let there = session.sessions()?;
        let gone = |dead: &&(u32, u32)| !there.iter().any(|info| (info.index, info.word.epoch()) == **dead);
        Ok(replayed.deaths.iter().filter(gone).count() as u64)
    };
    audit.recovered_by_others = home()?;
    session.reclaim()?;
    audit.recovered = home()?;
    let kills = replayed.deaths.len() as u64;
    if audit.recovered != kills {
        audit.problems.push(format!("{} of {kills} killed sessions were recovered", audit.recovered));
    }
    if replayed.killed_requests > kills {
        audit.problems.push(format!("{} requests were lost to {kills} kills", replayed.killed_requests));
    }
    let usage = session.usage()?;
    audit.slots = usage.slots;
    for state in [SlotState::Claiming, SlotState::Pending, SlotState::Writing, SlotState::Retiring] {
        let count = usage.slots[state as usize];
        if count > 0 {
            audit.problems.push(format!("{count} slots are still {}", state.name()));
        }
    }
    if usage.slots.iter().sum::<u32>() != usage.capacity_slots || usage.damaged_slots > 0 {
        audit.problems.push(format!("slots {:?} are not {}", usage.slots, usage.capacity_slots));
    }
    if let Some(limit) = limit {
        let usage = session.namespace_usage(&limit.id)?;
        let held: u32 = usage.slots.iter().sum();
        audit.held_and_spent = Some((held, usage.spent_tokens));
        if held != usage.spent_tokens || held > limit.slots {
            let spent = usage.spent_tokens;
            audit.problems.push(format!("budget {}: {held} slots held, {spent} tokens spent", limit.slots));
        }
    }
    session.close().map_err(|(held, _)| held)?;
    let report = look::verify(&plan.region)?;
    if report.verdict != Verdict::Sound {
        let first = report.findings.first().map_or_else(String::new, |finding| format!(": {}", finding.text));
        audit.problems.push(format!("verify says {}{first}", report.verdict.name()));
    }
    Ok(audit)
}
