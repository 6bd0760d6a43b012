//! Making regions: a formatter dies at each step, while others wait to attach or come later.

use anyhow::{Context, Result};
use maru::{Format, OpenOptions, Outcome, Region, Role};

use super::{Contest, Partner, Scenario, Set};
use crate::actor::Actor;
use crate::stage::Stage;
use crate::world::Lies;

const RACING: &[Set] = &[Set::None, Set::Blocked];

pub(super) fn scenarios() -> Vec<Scenario> {
    vec![
        Scenario::new("format_file", "a new file", format_if_absent).unformatted().contest(Contest::Open).sets(RACING),
        Scenario::new("format_partition", "part of a file whose other part is a region", format_if_absent)
            .lies(Lies::Partition)
            .unformatted()
            .contest(Contest::Open)
            .sets(RACING),
        Scenario::new("format_memfd", "a memfd", format_if_absent)
            .lies(Lies::Memfd)
            .unformatted()
            .contest(Contest::Open)
            .sets(RACING),
        Scenario::new("format_after_death", "part of a file where another formatter died", format_if_absent)
            .lies(Lies::Partition)
            .unformatted()
            .partner(Partner::dead(format_if_absent, crate::steps::Step::FormatSuperblock))
            .dies_first()
            .contest(Contest::Open)
            .sets(RACING),
        Scenario::new("format_force_partition", "anew, over a region that nobody uses", format_force)
            .lies(Lies::Partition)
            .prepare(forget_blocks)
            .contest(Contest::Open)
            .sets(&[Set::None]),
        Scenario::new("format_force_file", "anew, beside a file that nobody uses", format_force)
            .prepare(forget_blocks)
            .contest(Contest::Open)
            .sets(&[Set::None]),
        Scenario::new("format_replace", "anew, beside a file that somebody uses", format_replace)
            .prepare(forget_blocks)
            .partner(Partner::ready(uses_the_old_one))
            .contest(Contest::Open)
            .sets(&[Set::None]),
    ]
}

/// The old region's blocks may end with it.
fn forget_blocks(stage: &mut Stage) -> Result<()> {
    for fate in stage.model.fates.values_mut() {
        *fate = crate::stage::Fate::May;
    }
    Ok(())
}

fn format(actor: &mut Actor<'_>, format: Format) -> Result<()> {
    let options: OpenOptions = actor.place.options(format)?;
    actor.begin();
    let region = Region::open(options)?;
    actor.end();
    if region.outcome() != Outcome::Formatted && format != Format::IfAbsent {
        actor.say("wrong a forced format attached");
    }
    let session = region.session("formatter", Role::Worker)?;
    session.close().map_err(|(held, _)| held)?;
    Ok(())
}

fn format_if_absent(actor: &mut Actor<'_>) -> Result<()> {
    format(actor, Format::IfAbsent)
}

fn format_force(actor: &mut Actor<'_>) -> Result<()> {
    format(actor, Format::Force)
}

fn format_replace(actor: &mut Actor<'_>) -> Result<()> {
    format(actor, Format::Replace)
}

/// A user of the old region. If the name leads elsewhere by the time it is asked, it must be told.
fn uses_the_old_one(actor: &mut Actor<'_>) -> Result<()> {
    let region = actor.place.open(Format::Never)?;
    let session = region.session("user", Role::Worker)?;
    actor.ready_and_go();
    let now = actor.place.open(Format::Never).context("what the name leads to")?;
    let beat = session.heartbeat();
    if (now.id() == region.id()) != beat.is_ok() {
        actor.say(&format!("wrong the name leads to {}, and the heartbeat says {beat:?}", hex(now.id())));
    }
    drop(session);
    Ok(())
}

fn hex(id: [u8; 16]) -> String {
    id[..4].iter().map(|byte| format!("{byte:02x}")).collect()
}
