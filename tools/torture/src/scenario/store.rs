//! Stores: reserve to commit, abort, twins, full buckets, full regions.

use anyhow::{Context, Result, bail};
use maru::{Batch, Commit, Reserve, ReserveOptions, Role, Session, Why, Writer};

use super::life::take_from_stalled;
use super::{Contest, Partner, Scenario, Set};
use crate::actor::{Actor, Joined};
use crate::stage::{Stage, VOLATILE};
use crate::steps::Step;
use crate::world::{Keys, namespace, object};

pub(super) fn scenarios() -> Vec<Scenario> {
    vec![
        Scenario::new("store", "a fresh block, and a second one", store_two),
        Scenario::new("store_pieces", "a block in pieces out of order", store_pieces),
        Scenario::new("store_exposed", "a block written in place through its pointer", store_exposed),
        Scenario::new("store_device", "a block that a device writes", store_device).quarantined(1),
        Scenario::new("store_twin_higher", "a twin stands still as pending in a higher slot", store_one)
            .partner(Partner::stopped(pending_in_a_high_slot, Step::StoreWriting)),
        Scenario::new("store_twin_lower", "a twin stands still as pending in a lower slot", store_one)
            .partner(Partner::stopped(pending, Step::StoreWriting)),
        Scenario::new("store_twin_dead", "a twin died as pending", store_one)
            .partner(Partner::dead(pending, Step::StoreWriting)),
        Scenario::new("store_twin_writing", "a twin is being written: the answer is no", store_refused)
            .partner(Partner::ready(writes))
            .contest(Contest::Store(|keys| keys.k2)),
        Scenario::new("store_twin_stalled", "a twin's writer stands still for longer than the limit", store_stalled)
            .stalled_ms(10)
            .partner(Partner::ready(writes)),
        Scenario::new("store_twin_writer_dead", "a twin's writer died", store_one)
            .partner(Partner::dead(pending, Step::StoreReady)),
        Scenario::new("store_twin_retiring_dead", "somebody died retiring the block that is stored", store_base)
            .partner(Partner::dead(retires_base, Step::RetireFree))
            .contest(Contest::Store(|keys| keys.base[2])),
        Scenario::new("store_second_bucket", "the first bucket is full", store_crowded)
            .prepare(|stage| crowd(stage, |keys| keys.out.clone()))
            .contest(Contest::Store(|keys| keys.pair[7])),
        Scenario::new("store_move", "both buckets are full, one resident can move", store_crowded)
            .prepare(|stage| crowd(stage, |keys| [keys.out.clone(), keys.out_of_one.clone()].concat()))
            .contest(Contest::Store(|keys| keys.pair[7])),
        Scenario::new("store_evict", "both buckets are full of blocks that cannot move", store_crowded)
            .prepare(|stage| crowd(stage, pair_and_back))
            .contest(Contest::Store(|keys| keys.pair[7]))
            // One by the victim, one by the survivor.
            .evicted(2),
        Scenario::new("store_evict_busy", "whom it evicts is being read: it is put back", store_crowded)
            .prepare(|stage| crowd(stage, pair_and_back))
            .interlude(Step::RetireShut, lease_the_crowd)
            .contest(Contest::Store(|keys| keys.k))
            .sets(&[Set::None, Set::Idle, Set::Blocked, Set::Reading])
            // Whoever dies between shutting and putting back: a recoverer frees, it never puts back.
            .evicted(1),
        Scenario::new("store_bucket_lost", "the second bucket fills up while it is tried", store_crowded)
            .prepare(|stage| crowd(stage, |keys| keys.pair[..7].to_vec()))
            .interlude(Step::IndexMarkRaise, |stage| crowd(stage, |keys| keys.back.clone()))
            .contest(Contest::Store(|keys| keys.pair[7]))
            .sets(&[Set::None, Set::Idle, Set::Blocked, Set::Reading])
            .evicted(2),
        Scenario::new("store_full_of_dead", "every slot is taken, some by a dead session", store_one)
            .prepare(|stage| fill(stage, 2))
            .partner(Partner::dead(writes_elsewhere, Step::StoreReady))
            .partner(Partner::dead(writes_elsewhere_too, Step::StorePayload)),
        Scenario::new("store_full_of_drained", "every slot is taken, some only by ended leases", store_one)
            .prepare(fill_with_drained),
        Scenario::new(
            "store_full_of_ended",
            "every slot is taken, some by blocks of an invalidated namespace",
            store_one,
        )
        .prepare(|stage| {
            stage.end_volatile()?;
            fill(stage, 0)
        }),
        Scenario::new("store_untold", "a slot is free and the bitmap does not say so", store_one)
            .prepare(|stage| fill(stage, 0))
            .partner(Partner::dead(retires_base, Step::FreeBitmap))
            .partner(Partner::dead(retires_next, Step::FreeBitmap)),
        Scenario::new("evict", "every slot is taken by blocks that nobody reads", store_one)
            .evicts()
            .prepare(|stage| fill_evictable(stage, 0))
            .sets(&[Set::None, Set::Idle, Set::Blocked, Set::Reading])
            .evicted(24),
        Scenario::new("evict_own", "the namespace's budget is spent on blocks that nobody reads", store_two)
            .evicts()
            .budget(12)
            .prepare(|stage| fill_evictable(stage, 12))
            .sets(&[Set::None, Set::Idle, Set::Blocked, Set::Reading])
            .evicted(12),
        Scenario::new("budget", "the namespace's budget has room for one more", store_one)
            .budget(9)
            .prepare(|stage| fill_evictable(stage, 16))
            .sets(&[Set::None, Set::Idle, Set::Blocked, Set::Reading]),
        Scenario::new(
            "budget_of_the_dead",
            "the last of the namespace's budget is in a dead session's hands",
            store_one,
        )
        .budget(9)
        .prepare(|stage| fill_evictable(stage, 16))
        .partner(Partner::dead(writes_elsewhere, Step::StoreReady))
        .sets(&[Set::None, Set::Idle, Set::Blocked, Set::Reading]),
        Scenario::new("evict_own_of_the_dead", "as that, by a session that evicts, while all else is read", store_one)
            .evicts()
            .budget(9)
            .prepare(|stage| fill_evictable(stage, 16))
            .partner(Partner::dead(writes_elsewhere, Step::StoreReady))
            .sets(&[Set::None, Set::Idle, Set::Blocked, Set::Reading])
            .evicted(8),
        Scenario::new("budget_lost", "somebody else spends the last of the budget after it was found", over_budget)
            .budget(9)
            .prepare(|stage| fill_evictable(stage, 16))
            .interlude(Step::StoreClaim, |stage| {
                let joined = stage.join()?;
                let number = joined.keys.k2;
                stage.store_all(&joined, &[number])?;
                joined.session.close().map_err(|(held, _)| held)?;
                Ok(())
            })
            .contest(Contest::Lead)
            .sets(&[Set::None, Set::Idle, Set::Blocked, Set::Reading]),
        Scenario::new("abort", "gives a reservation back", abort),
        Scenario::new("drop", "drops a reservation", drop_it),
        Scenario::new("drop_device", "drops a reservation that a device may still write", drop_device).quarantined(1),
        Scenario::new("commit_superseded", "commits after others took the key", commit_superseded).stalled_ms(10),
        Scenario::new("abort_superseded", "gives back what others have quarantined", abort_superseded).stalled_ms(10),
        Scenario::new("commit_invalidated", "commits into a namespace that has ended", commit_invalidated)
            .contest(Contest::Register(VOLATILE)),
        Scenario::new("commit_invalidated_late", "the namespace ends in the middle of a commit", commit_volatile)
            .interlude(Step::StoreReady, |stage| {
                let joined = stage.join()?;
                let id = joined.session.namespace(&namespace(VOLATILE))?;
                joined.session.invalidate(id)?;
                joined.session.close().map_err(|(held, _)| held)?;
                Ok(())
            })
            .sets(&[Set::None, Set::Idle, Set::Blocked, Set::Reading])
            .contest(Contest::Register(VOLATILE)),
    ]
}

fn pair_and_back(keys: &Keys) -> Vec<u64> {
    [&keys.pair[..7], &keys.back[..]].concat()
}

/// Fills buckets 0 and 1 with these blocks. Those that nothing but eviction can make room for are evictable.
fn crowd(stage: &mut Stage, pick: fn(&Keys) -> Vec<u64>) -> Result<()> {
    let joined = stage.join()?;
    let numbers = pick(&joined.keys);
    stage.store_all(&joined, &numbers)?;
    for number in numbers {
        if joined.keys.pair.contains(&number) || joined.keys.back.contains(&number) {
            stage.model.take(&format!("evictable {number}"));
        }
    }
    joined.session.close().map_err(|(held, _)| held)?;
    Ok(())
}

/// Leases everything that could be evicted, in a session of the parent.
fn lease_the_crowd(stage: &mut Stage) -> Result<()> {
    let joined = stage.join()?;
    let mut handles = Vec::new();
    for number in pair_and_back(&joined.keys) {
        for lease in joined.session.acquire(&[joined.object(number)], Batch::Each)?.into_iter().flatten() {
            handles.push(lease.into_handle());
        }
    }
    stage.hold = Some((joined, handles));
    Ok(())
}

/// Fills the region but for `rest` slots.
fn fill(stage: &mut Stage, rest: u32) -> Result<()> {
    let joined = stage.join()?;
    let free = joined.session.usage()?.slots[0] - rest;
    let numbers = Keys::even(joined.region.geometry(), &joined.id, 300_000, free, 2);
    stage.store_all(&joined, &numbers)?;
    joined.session.close().map_err(|(held, _)| held)?;
    Ok(())
}

/// As [`fill`], with blocks that may make room.
fn fill_evictable(stage: &mut Stage, rest: u32) -> Result<()> {
    let before: Vec<u64> = stage.model.fates.keys().copied().collect();
    fill(stage, rest)?;
    let filled: Vec<u64> = stage.model.fates.keys().filter(|number| !before.contains(number)).copied().collect();
    for number in filled.into_iter().chain(before) {
        stage.model.take(&format!("evictable {number}"));
    }
    Ok(())
}

/// A full region in which two slots drain under leases that have ended.
fn fill_with_drained(stage: &mut Stage) -> Result<()> {
    fill(stage, 0)?;
    let joined = stage.join()?;
    for number in [joined.keys.base[2], joined.keys.base[3]] {
        let object = joined.object(number);
        let lease = joined.session.acquire(&[object], Batch::Each)?.pop().context("one")?;
        let handle = lease.map_err(|why| anyhow::anyhow!("{why}"))?.into_handle();
        joined.session.retire(&object)?;
        joined.session.release(handle)?;
        stage.model.take(&format!("gone {number}"));
    }
    joined.session.close().map_err(|(held, _)| held)?;
    Ok(())
}

/// Is told that the budget is spent, or finds it free again.
fn over_budget(actor: &mut Actor<'_>) -> Result<()> {
    let joined = actor.join()?;
    actor.begin();
    let answer = joined.reserve(joined.keys.k, ReserveOptions::default())?;
    actor.end();
    if !matches!(answer, Reserve::Refused(Why::OverBudget)) {
        actor.say(&format!("wrong the budget is spent, and the answer is {answer:?}"));
    }
    drop(answer);
    actor.leave(joined)
}

fn store_one(actor: &mut Actor<'_>) -> Result<()> {
    let joined = actor.join()?;
    let number = joined.keys.k;
    actor.begin();
    actor.store_block(&joined, number)?;
    actor.end();
    actor.leave(joined)
}

fn store_base(actor: &mut Actor<'_>) -> Result<()> {
    let joined = actor.join()?;
    let number = joined.keys.base[2];
    actor.begin();
    actor.store_block(&joined, number)?;
    actor.end();
    actor.leave(joined)
}

fn store_two(actor: &mut Actor<'_>) -> Result<()> {
    let joined = actor.join()?;
    let (first, second) = (joined.keys.k, joined.keys.k2);
    actor.begin();
    actor.store_block(&joined, first)?;
    actor.store_block(&joined, second)?;
    actor.end();
    actor.leave(joined)
}

fn store_crowded(actor: &mut Actor<'_>) -> Result<()> {
    let joined = actor.join()?;
    let number = joined.keys.pair[7];
    actor.say(&format!("may {number}"));
    actor.begin();
    let bytes = joined.content(number);
    match joined.reserve(number, ReserveOptions::default())? {
        Reserve::Granted(mut reservation) => {
            reservation.write_at(0, &bytes)?;
            let commit = reservation.commit()?;
            actor.told(number, commit);
        }
        // In the scenarios where room cannot be made.
        Reserve::Refused(maru::Why::BucketBusy) => {}
        other => actor.say(&format!("answer reserve {other:?}")),
    }
    actor.end();
    actor.leave(joined)
}

fn store_pieces(actor: &mut Actor<'_>) -> Result<()> {
    let joined = actor.join()?;
    let number = joined.keys.k;
    let bytes = joined.content(number);
    let (third, two) = (bytes.len() / 3, bytes.len() * 2 / 3);
    actor.say(&format!("may {number}"));
    actor.begin();
    let mut reservation = joined.granted(number)?;
    reservation.write_at(two as u32, &bytes[two..])?;
    reservation.write_at(0, &bytes[..third])?;
    if !matches!(reservation.commit()?, Commit::Incomplete { .. }) {
        let fenced = joined.session.heartbeat().is_err();
        if !fenced {
            actor.say("wrong a block with a hole was committed");
        }
    }
    reservation.write_at(third as u32, &bytes[third..two])?;
    let commit = reservation.commit()?;
    actor.told(number, commit);
    actor.end();
    drop(reservation);
    actor.leave(joined)
}

/// Writes a whole block through the pointer that a reservation exposes.
fn write_exposed(reservation: &mut maru::Reservation<'_>, bytes: &[u8]) -> Result<()> {
    let start = reservation.expose()?;
    // SAFETY: `expose` gives `len` writable bytes until commit or abort, and the content has exactly that length.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), start, bytes.len()) };
    Ok(())
}

fn store_exposed(actor: &mut Actor<'_>) -> Result<()> {
    let joined = actor.join()?;
    let number = joined.keys.k;
    actor.say(&format!("may {number}"));
    actor.begin();
    let mut reservation = joined.granted(number)?;
    write_exposed(&mut reservation, &joined.content(number))?;
    let commit = reservation.commit()?;
    actor.told(number, commit);
    actor.end();
    drop(reservation);
    actor.leave(joined)
}

fn device() -> ReserveOptions {
    ReserveOptions { writer: Writer::Device, ..ReserveOptions::default() }
}

fn store_device(actor: &mut Actor<'_>) -> Result<()> {
    let joined = actor.join()?;
    let number = joined.keys.k;
    actor.say(&format!("may {number}"));
    actor.begin();
    match joined.reserve(number, device())? {
        Reserve::Granted(mut reservation) => {
            write_exposed(&mut reservation, &joined.content(number))?;
            let commit = reservation.commit()?;
            actor.told(number, commit);
        }
        other => actor.say(&format!("answer reserve {other:?}")),
    }
    actor.end();
    actor.leave(joined)
}

/// Becomes pending and stands at its step.
fn pending(actor: &mut Actor<'_>) -> Result<()> {
    let joined = actor.join()?;
    let number = joined.keys.k;
    actor.begin();
    actor.store_block(&joined, number)?;
    actor.leave(joined)
}

/// The same from a session whose search for a slot begins further up than the victim's.
fn pending_in_a_high_slot(actor: &mut Actor<'_>) -> Result<()> {
    let region = actor.place.open(maru::Format::Never)?;
    let lower: Vec<Session> =
        (0..4).map(|_| region.session("placeholder", Role::Worker)).collect::<std::result::Result<_, _>>()?;
    let joined = Joined::of(&actor.place, region, "partner")?;
    for session in lower {
        session.close().map_err(|(held, _)| held)?;
    }
    let number = joined.keys.k;
    actor.begin();
    actor.store_block(&joined, number)?;
    actor.leave(joined)
}

/// Holds a reservation open until told to go on, then commits it: it may have been taken away.
fn writes(actor: &mut Actor<'_>) -> Result<()> {
    let joined = actor.join()?;
    let number = joined.keys.k;
    let mut reservation = joined.granted(number)?;
    actor.say(&format!("may {number}"));
    reservation.write_at(0, &joined.content(number)[..1])?;
    actor.ready_and_go();
    if reservation.write_at(0, &joined.content(number)).is_ok()
        && matches!(reservation.commit()?, Commit::Stored | Commit::AlreadyStored)
    {
        actor.say(&format!("must {number}"));
    }
    drop(reservation);
    actor.leave(joined)
}

/// Dies in a store of a block that nobody else wants.
fn writes_elsewhere(actor: &mut Actor<'_>) -> Result<()> {
    let joined = actor.join()?;
    let number = joined.keys.out[0];
    actor.begin();
    actor.store_block(&joined, number)
}

/// The same with another block.
fn writes_elsewhere_too(actor: &mut Actor<'_>) -> Result<()> {
    let joined = actor.join()?;
    let number = joined.keys.out[1];
    actor.begin();
    actor.store_block(&joined, number)
}

fn retire_and_die(actor: &mut Actor<'_>, at: usize) -> Result<()> {
    let joined = actor.join()?;
    let number = joined.keys.base[at];
    actor.say(&format!("may {number}"));
    actor.begin();
    joined.session.retire(&joined.object(number))?;
    actor.leave(joined)
}

fn retires_base(actor: &mut Actor<'_>) -> Result<()> {
    retire_and_die(actor, 2)
}

fn retires_next(actor: &mut Actor<'_>) -> Result<()> {
    retire_and_die(actor, 3)
}

/// The twin's writer lives: the answer is "being written", at once.
fn store_refused(actor: &mut Actor<'_>) -> Result<()> {
    let joined = actor.join()?;
    let (number, other) = (joined.keys.k, joined.keys.k2);
    actor.begin();
    if let Reserve::Granted(_) = joined.reserve(number, ReserveOptions::default())? {
        actor.say("wrong a block that is being written was granted to a second writer");
    }
    actor.store_block(&joined, other)?;
    actor.end();
    actor.leave(joined)
}

fn store_stalled(actor: &mut Actor<'_>) -> Result<()> {
    let joined = actor.join()?;
    let number = joined.keys.k;
    actor.say(&format!("may {number}"));
    actor.begin();
    take_from_stalled(&joined, &joined.session, number)?;
    actor.say(&format!("must {number}"));
    actor.end();
    actor.leave(joined)
}

fn abort(actor: &mut Actor<'_>) -> Result<()> {
    let joined = actor.join()?;
    let mut reservation = joined.granted(joined.keys.k)?;
    reservation.write_at(0, &[1])?;
    actor.begin();
    reservation.abort()?;
    actor.end();
    actor.leave(joined)
}

fn drop_it(actor: &mut Actor<'_>) -> Result<()> {
    let joined = actor.join()?;
    let reservation = joined.granted(joined.keys.k)?;
    actor.begin();
    drop(reservation);
    actor.end();
    actor.leave(joined)
}

fn drop_device(actor: &mut Actor<'_>) -> Result<()> {
    let joined = actor.join()?;
    let Reserve::Granted(mut reservation) = joined.reserve(joined.keys.k, device())? else { bail!("not granted") };
    reservation.expose()?;
    actor.begin();
    drop(reservation);
    actor.end();
    actor.leave(joined)
}

/// A reservation whose key another session of this process has taken and stored.
fn superseded<'j>(actor: &mut Actor<'_>, joined: &'j Joined) -> Result<maru::Reservation<'j>> {
    let number = joined.keys.k;
    let mut reservation = joined.granted(number)?;
    reservation.write_at(0, &joined.content(number))?;
    let other = joined.region.session("quarantiner", Role::Worker)?;
    take_from_stalled(joined, &other, number)?;
    actor.say(&format!("must {number}"));
    other.close().map_err(|(held, _)| held)?;
    Ok(reservation)
}

fn commit_superseded(actor: &mut Actor<'_>) -> Result<()> {
    let joined = actor.join()?;
    let mut reservation = superseded(actor, &joined)?;
    actor.begin();
    let commit = reservation.commit()?;
    actor.end();
    if !matches!(commit, Commit::Superseded | Commit::Fenced) {
        actor.say(&format!("wrong a superseded commit answered {commit:?}"));
    }
    drop(reservation);
    actor.leave(joined)
}

fn abort_superseded(actor: &mut Actor<'_>) -> Result<()> {
    let joined = actor.join()?;
    let reservation = superseded(actor, &joined)?;
    actor.begin();
    drop(reservation);
    actor.end();
    actor.leave(joined)
}

/// A reservation in the volatile namespace, whose block is not in anybody's model: it can only ever be a miss.
fn volatile_reservation(joined: &Joined) -> Result<maru::Reservation<'_>> {
    let id = joined.session.namespace(&namespace(VOLATILE))?;
    let bytes = joined.content(joined.keys.k);
    let object = object(id, joined.keys.k);
    match joined.session.reserve(&object, bytes.len() as u64, ReserveOptions::default())? {
        Reserve::Granted(mut reservation) => {
            reservation.write_at(0, &bytes)?;
            Ok(reservation)
        }
        other => bail!("volatile block: {other:?}"),
    }
}

fn commit_invalidated(actor: &mut Actor<'_>) -> Result<()> {
    let joined = actor.join()?;
    let mut reservation = volatile_reservation(&joined)?;
    let id = joined.session.namespace(&namespace(VOLATILE))?;
    joined.session.invalidate(id)?;
    actor.begin();
    let commit = reservation.commit()?;
    actor.end();
    if !matches!(commit, Commit::Invalidated | Commit::Fenced) {
        actor.say(&format!("wrong a commit into an ended namespace answered {commit:?}"));
    }
    drop(reservation);
    actor.leave(joined)
}

fn commit_volatile(actor: &mut Actor<'_>) -> Result<()> {
    let joined = actor.join()?;
    let mut reservation = volatile_reservation(&joined)?;
    actor.begin();
    let commit = reservation.commit()?;
    actor.end();
    if commit != Commit::Invalidated {
        actor.say(&format!("wrong a commit across the end of its namespace answered {commit:?}"));
    }
    drop(reservation);
    actor.leave(joined)
}
