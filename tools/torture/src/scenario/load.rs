//! Loads, retires, reclaims, damage.

use anyhow::{Context, Result};
use maru::layout::image::Image;
use maru::{Batch, LoadError, Release, Verify};

use super::{Contest, Partner, Scenario, Set};
use crate::actor::{Actor, Joined};
use crate::stage::{Fate, Stage};
use crate::steps::Step;
use crate::world::content;

pub(super) fn scenarios() -> Vec<Scenario> {
    vec![
        Scenario::new("load", "leases two blocks, reads and releases them", load)
            .contest(Contest::Drain(|keys| keys.base[2]))
            .holds_when_fenced(LEASED),
        Scenario::new("load_view", "looks at a block in place", load_view)
            .contest(Contest::Drain(|keys| keys.base[2]))
            .holds_when_fenced(LEASED),
        Scenario::new("load_batch", "all or nothing, with one missing", load_batch)
            .contest(Contest::Drain(|keys| keys.base[2]))
            .holds_when_fenced(LEASED),
        Scenario::new("load_device", "leases for a device and releases by handle", load_device)
            .contest(Contest::Drain(|keys| keys.base[2]))
            .holds_when_fenced(LEASED),
        Scenario::new("load_vanished", "the block is retired between lease and second look", load_one)
            .interlude(Step::LeaseFence, |stage| {
                let joined = stage.join()?;
                let number = joined.keys.base[2];
                joined.session.retire(&joined.object(number))?;
                stage.model.take(&format!("gone {number}"));
                joined.session.close().map_err(|(held, _)| held)?;
                Ok(())
            })
            .sets(&[Set::None, Set::Idle, Set::Blocked, Set::Reading])
            .contest(Contest::Drain(|keys| keys.base[2])),
        Scenario::new("load_damaged", "reads a block whose bytes were damaged", load_damaged)
            .prepare(damage)
            .quarantined(1),
        Scenario::new("retire", "a block that nobody else reads (or that the survivor reads)", retire)
            .contest(Contest::Store(|keys| keys.base[0])),
        Scenario::new("retire_leased", "a block that a partner reads: it drains", retire_leased)
            .partner(Partner::ready(reads_last))
            .contest(Contest::Store(|keys| keys.base[3])),
        Scenario::new("retire_second", "a block in its second bucket", retire_second)
            .prepare(|stage| {
                let joined = stage.join()?;
                let numbers = [joined.keys.out.clone(), vec![joined.keys.pair[7]]].concat();
                stage.store_all(&joined, &numbers)?;
                joined.session.close().map_err(|(held, _)| held)?;
                Ok(())
            })
            .contest(Contest::Store(|keys| keys.pair[7])),
        Scenario::new("reclaim", "frees what drained under a lease that has ended", reclaim)
            .prepare(drained)
            .contest(Contest::Drain(|keys| keys.base[2])),
        Scenario::new("reclaim_ended", "frees what nobody can find since its namespace was invalidated", reclaim)
            .prepare(Stage::end_volatile),
    ]
}

/// Leases of a fenced session go on counting until it is proven gone.
const LEASED: &[Step] = &[Step::LeaseFence, Step::LeaseVisited, Step::LeaseRelease, Step::LeaseCell, Step::LeaseMark];

/// Leases a block or says why not.
fn lease<'j>(actor: &mut Actor<'_>, joined: &'j Joined, number: u64) -> Result<Option<maru::Lease<'j>>> {
    let answer = joined.session.acquire(&[joined.object(number)], Batch::Each)?.pop().context("one answer")?;
    Ok(match answer {
        Ok(lease) => Some(lease),
        Err(why) => {
            actor.say(&format!("answer acquire {why}"));
            None
        }
    })
}

fn compare(actor: &mut Actor<'_>, joined: &Joined, number: u64, bytes: &[u8]) {
    if bytes != joined.content(number) {
        actor.say(&format!("wrong block {number} was read with other bytes"));
    }
}

fn load(actor: &mut Actor<'_>) -> Result<()> {
    let joined = actor.join()?;
    let numbers = [joined.keys.base[2], joined.keys.base[3]];
    actor.begin();
    let objects = numbers.map(|number| joined.object(number));
    for (number, answer) in numbers.into_iter().zip(joined.session.acquire(&objects, Batch::Each)?) {
        match answer {
            Ok(lease) => compare(actor, &joined, number, &lease.read(Verify::Always)?),
            Err(why) => actor.say(&format!("answer acquire {why}")),
        }
    }
    actor.end();
    actor.leave(joined)
}

fn load_one(actor: &mut Actor<'_>) -> Result<()> {
    let joined = actor.join()?;
    let number = joined.keys.base[2];
    actor.begin();
    let answer = joined.session.acquire(&[joined.object(number)], Batch::Each)?.pop().context("one answer")?;
    if answer.is_ok() {
        actor.say("wrong a block was leased that had been retired before the second look");
    }
    drop(answer);
    actor.end();
    actor.leave(joined)
}

fn load_view(actor: &mut Actor<'_>) -> Result<()> {
    let joined = actor.join()?;
    let number = joined.keys.base[2];
    actor.begin();
    if let Some(lease) = lease(actor, &joined, number)? {
        let bytes = lease.view()?.to_vec()?;
        compare(actor, &joined, number, &bytes);
    }
    actor.end();
    actor.leave(joined)
}

fn load_batch(actor: &mut Actor<'_>) -> Result<()> {
    let joined = actor.join()?;
    let objects = [joined.keys.base[2], joined.keys.base[3], joined.keys.k].map(|number| joined.object(number));
    actor.begin();
    let answers = joined.session.acquire(&objects, Batch::AllOrNothing)?;
    let leased = answers.iter().filter(|answer| answer.is_ok()).count();
    drop(answers);
    actor.end();
    if leased > 0 {
        actor.say("wrong an all-or-nothing batch with a missing block leased some");
    }
    if joined.session.leases() > 0 {
        actor.say("wrong leases are left of a batch that failed");
    }
    actor.leave(joined)
}

fn load_device(actor: &mut Actor<'_>) -> Result<()> {
    let joined = actor.join()?;
    let object = joined.object(joined.keys.base[2]);
    actor.begin();
    let answer = joined.session.acquire_for_device(&[object], Batch::Each)?.pop().context("one answer")?;
    match answer.map(maru::Lease::into_handle) {
        Ok(handle) => {
            let first = joined.session.release(handle)?;
            let second = joined.session.release(handle)?;
            if (first, second) != (Release::Released, Release::NotHeld) {
                actor.say(&format!("wrong two releases of one handle answered {first:?} and {second:?}"));
            }
        }
        Err(why) => actor.say(&format!("answer acquire {why}")),
    }
    actor.end();
    actor.leave(joined)
}

/// Flips a byte of a committed block.
fn damage(stage: &mut Stage) -> Result<()> {
    let joined = stage.join()?;
    let number = joined.keys.base[3];
    let wanted = content(number, joined.slot_bytes);
    let bytes = stage.place.bytes()?;
    let image = Image::read(&bytes).context("the superblock")?;
    let slot = image.ready_replicas().find(|ready| image.payload(ready.slot, ready.length) == Some(&wanted[..]));
    let slot = slot.context("the block to damage is nowhere")?.slot;
    let (at, _) = joined.region.geometry().payload_of(slot).context("no payload")?;
    joined.session.close().map_err(|(held, _)| held)?;
    stage.place.flip_byte(at)?;
    stage.model.fates.insert(number, Fate::Damaged);
    Ok(())
}

fn load_damaged(actor: &mut Actor<'_>) -> Result<()> {
    let joined = actor.join()?;
    let number = joined.keys.base[3];
    actor.begin();
    if let Some(lease) = lease(actor, &joined, number)? {
        match lease.read(Verify::Always) {
            Ok(_) => actor.say("wrong damaged bytes were returned as good"),
            Err(LoadError::Damaged { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    actor.end();
    actor.leave(joined)
}

fn retire_number(actor: &mut Actor<'_>, joined: &Joined, number: u64) -> Result<()> {
    actor.say(&format!("may {number}"));
    actor.begin();
    let retired = joined.session.retire(&joined.object(number))?;
    actor.end();
    if retired != maru::Retire::Gone {
        actor.say(&format!("gone {number}"));
    }
    Ok(())
}

fn retire(actor: &mut Actor<'_>) -> Result<()> {
    let joined = actor.join()?;
    let number = joined.keys.base[0];
    retire_number(actor, &joined, number)?;
    actor.leave(joined)
}

fn retire_leased(actor: &mut Actor<'_>) -> Result<()> {
    let joined = actor.join()?;
    let number = joined.keys.base[3];
    retire_number(actor, &joined, number)?;
    actor.leave(joined)
}

fn retire_second(actor: &mut Actor<'_>) -> Result<()> {
    let joined = actor.join()?;
    let number = joined.keys.pair[7];
    retire_number(actor, &joined, number)?;
    actor.leave(joined)
}

/// Reads the last block in place until told to go on; it must still be what it was, retired or not.
fn reads_last(actor: &mut Actor<'_>) -> Result<()> {
    let joined = actor.join()?;
    let number = joined.keys.base[3];
    {
        let lease = lease(actor, &joined, number)?.context("the block is not there")?;
        let view = lease.view()?;
        actor.ready_and_go();
        match view.to_vec() {
            Ok(bytes) => compare(actor, &joined, number, &bytes),
            Err(error) => actor.say(&format!("wrong a view of block {number} did not hold: {error}")),
        }
    }
    joined.session.reclaim()?;
    actor.leave(joined)
}

/// A block that drains under a lease, which then ends.
fn drained(stage: &mut Stage) -> Result<()> {
    let joined = stage.join()?;
    let number = joined.keys.base[2];
    let object = joined.object(number);
    let handle = {
        let lease = joined.session.acquire(&[object], Batch::Each)?.pop().context("one")?;
        lease.map_err(|why| anyhow::anyhow!("{why}"))?.into_handle()
    };
    joined.session.retire(&object)?;
    joined.session.release(handle)?;
    stage.model.take(&format!("gone {number}"));
    joined.session.close().map_err(|(held, _)| held)?;
    Ok(())
}

fn reclaim(actor: &mut Actor<'_>) -> Result<()> {
    let joined = actor.join()?;
    actor.begin();
    joined.session.reclaim()?;
    actor.end();
    actor.leave(joined)
}
