//! Sessions, namespaces, fencing, recovery.

use anyhow::{Context, Result, bail};
use maru::{Batch, Format, Lead, Liveness, Release, Reserve, ReserveOptions, Role, SessionInfo, Writer};

use super::{Contest, Partner, Scenario};
use crate::actor::{Actor, Joined};
use crate::stage::{VOLATILE, VOLATILE_FROM};
use crate::steps::Step;
use crate::world::{Keys, namespace, object};

pub(super) fn scenarios() -> Vec<Scenario> {
    let mut all = vec![
        Scenario::new("attach", "one session more, in a table that has room for exactly one", attach)
            .sessions(3)
            .partner(Partner::ready(occupy))
            .contest(Contest::Attach),
        Scenario::new("attach_after_death", "takes the entry of a session that died in the middle of a store", attach)
            .partner(Partner::dead(dies_storing, Step::StoreReady))
            .dies_first(),
        Scenario::new("heartbeat", "shows that it lives", heartbeat),
        Scenario::new("close", "leaves in order", close),
        Scenario::new("close_fenced", "leaves after it was fenced in the middle of a store", close_fenced),
        Scenario::new("namespace_first", "registers a namespace that nobody has registered", register_first)
            .contest(Contest::Register("first"))
            .holds_when_fenced(CHORE),
        Scenario::new("namespace_second", "registers one after another", register_two)
            .contest(Contest::Register("second"))
            .holds_when_fenced(CHORE),
        Scenario::new("namespace_after_death", "registers after somebody died in the middle of it", register_first)
            .partner(Partner::dead(register_first, Step::NamespaceReady))
            .contest(Contest::Register("first"))
            .holds_when_fenced(CHORE),
        Scenario::new("invalidate", "ends a generation of a namespace and uses the next", invalidate)
            .prepare(crate::stage::Stage::make_volatile)
            .contest(Contest::Register(VOLATILE)),
        Scenario::new("fence", "shuts out a session that stores and reads", fence)
            .partner(Partner::ready(busy_partner))
            .contest(Contest::Outlast(|keys| keys.k2)),
        Scenario::new("lead", "leads the coordinators, and is asked again", lead).contest(Contest::Lead),
        Scenario::new("lead_after_death", "leads after the leader died", lead)
            .partner(Partner::dead(dies_leading, Step::StoreReady))
            .contest(Contest::Lead),
        Scenario::new("vouch", "recovers a session on an operator's word, and what its device left", vouch)
            .partner(Partner::dead(dies_with_device, Step::Heartbeat))
            .contest(Contest::Vouch),
    ];
    all.extend(recoveries());
    all
}

/// Steps at which the holder of the namespace chore stands: it may be writing a row, so nobody takes the chore before
/// it is proven gone (and a registration answers "busy" in time).
const CHORE: &[Step] =
    &[Step::NamespaceAdding, Step::NamespaceFill, Step::NamespaceReady, Step::NamespaceDone, Step::NamespaceChore];

/// The second kill: a first process died somewhere, and whoever recovers it dies, too.
fn recoveries() -> Vec<Scenario> {
    let recover = |name, about, partner: Partner| {
        Scenario::new(name, about, reclaim).partner(partner).contest(Contest::Store(|keys| keys.k))
    };
    vec![
        recover(
            "recover_claiming",
            "second kill: the dead one had claimed",
            Partner::dead(dies_storing, Step::StoreRecord),
        ),
        recover(
            "recover_pending",
            "second kill: the dead one was pending",
            Partner::dead(dies_storing, Step::StoreWriting),
        ),
        recover(
            "recover_writing",
            "second kill: the dead one was writing",
            Partner::dead(dies_storing, Step::StoreReady),
        ),
        recover(
            "recover_retiring",
            "second kill: the dead one was retiring",
            Partner::dead(dies_retiring, Step::RetireFree),
        )
        .contest(Contest::Store(|keys| keys.base[2])),
        recover(
            "recover_freed",
            "second kill: the dead one had freed, not tidied",
            Partner::dead(dies_retiring, Step::IndexRemove),
        )
        .contest(Contest::Store(|keys| keys.base[2])),
        recover(
            "recover_reader",
            "second kill: the dead one held leases",
            Partner::dead(dies_reading, Step::LeaseVisited),
        )
        .contest(Contest::Drain(|keys| keys.base[2])),
        recover(
            "recover_chore",
            "second kill: the dead one held the chore",
            Partner::dead(register_first, Step::NamespaceFill),
        )
        .contest(Contest::Register("first")),
        recover(
            "recover_attaching",
            "second kill: the dead one was attaching",
            Partner::dead(attaches_later, Step::AttachFill),
        ),
        recover(
            "recover_quarantined",
            "second kill: the dead one was fenced before",
            Partner::dead(dies_fenced, Step::StoreReady),
        ),
        recover(
            "recover_many",
            "second kill: it died in two stores and a read",
            Partner::dead(dies_with_much, Step::StoreReady),
        ),
    ]
}

fn occupy(actor: &mut Actor<'_>) -> Result<()> {
    let region = actor.place.open(Format::Never)?;
    let session = region.session("occupier", Role::Worker)?;
    actor.ready_and_go();
    session.close().map_err(|(held, _)| held)?;
    Ok(())
}

fn attach(actor: &mut Actor<'_>) -> Result<()> {
    let region = actor.place.open(Format::Never)?;
    actor.begin();
    let session = actor.place.session(&region, "victim", Role::Worker)?;
    actor.end();
    actor.announce(&session);
    session.close().map_err(|(held, _)| held)?;
    Ok(())
}

/// Attaches when everybody else has.
fn attaches_later(actor: &mut Actor<'_>) -> Result<()> {
    let region = actor.place.open(Format::Never)?;
    actor.gate();
    actor.begin();
    region.session("partner", Role::Worker)?;
    Ok(())
}

/// Its first session is fenced by its second in the middle of a store; then it dies in a store of the second.
fn dies_fenced(actor: &mut Actor<'_>) -> Result<()> {
    let joined = actor.join()?;
    let second = Joined::of(&actor.place, joined.region.clone(), "partner")?;
    let _open = joined.granted(joined.keys.k)?;
    second.session.fence(joined.session.index(), joined.session.epoch())?;
    let number = joined.keys.k2;
    actor.begin();
    actor.store_block(&second, number)
}

fn heartbeat(actor: &mut Actor<'_>) -> Result<()> {
    let joined = actor.join()?;
    actor.begin();
    joined.session.heartbeat()?;
    joined.session.heartbeat()?;
    actor.end();
    actor.leave(joined)
}

fn close(actor: &mut Actor<'_>) -> Result<()> {
    let joined = actor.join()?;
    actor.begin();
    joined.session.close().map_err(|(held, _)| held)?;
    actor.end();
    Ok(())
}

/// Two sessions of one process: the second one fences the first in the middle of a store.
fn close_fenced(actor: &mut Actor<'_>) -> Result<()> {
    let joined = actor.join()?;
    let fencer = joined.region.session("fencer", Role::Worker)?;
    {
        let mut reservation = joined.granted(joined.keys.k)?;
        reservation.write_at(0, &joined.content(joined.keys.k))?;
        fencer.fence(joined.session.index(), joined.session.epoch())?;
        if reservation.commit()? != maru::Commit::Fenced {
            actor.say("wrong a fenced session committed");
        }
    }
    fencer.close().map_err(|(held, _)| held)?;
    actor.begin();
    joined.session.close().map_err(|(held, _)| held)?;
    actor.end();
    Ok(())
}

/// Tries for a key until its stalled writer is quarantined, and stores it.
pub(super) fn take_from_stalled(joined: &Joined, session: &maru::Session, number: u64) -> Result<()> {
    let bytes = joined.content(number);
    let start = std::time::Instant::now();
    loop {
        let object = joined.object(number);
        match session.reserve(&object, bytes.len() as u64, ReserveOptions::default())? {
            Reserve::Granted(mut reservation) => {
                reservation.write_at(0, &bytes)?;
                reservation.commit()?;
                return Ok(());
            }
            other if start.elapsed().as_millis() > 1_000 => bail!("a stalled writer is in the way for good: {other:?}"),
            _ => std::thread::sleep(std::time::Duration::from_millis(1)),
        }
    }
}

fn register_first(actor: &mut Actor<'_>) -> Result<()> {
    let joined = actor.join()?;
    actor.begin();
    joined.session.namespace(&namespace("first"))?;
    actor.end();
    actor.leave(joined)
}

fn register_two(actor: &mut Actor<'_>) -> Result<()> {
    let joined = actor.join()?;
    actor.begin();
    let first = joined.session.namespace(&namespace("first"))?;
    let second = joined.session.namespace(&namespace("second"))?;
    let again = joined.session.namespace(&namespace("first"))?;
    actor.end();
    if first.row() == second.row() || again.row() != first.row() {
        actor.say("wrong two namespaces share a row, or one has two");
    }
    actor.leave(joined)
}

fn invalidate(actor: &mut Actor<'_>) -> Result<()> {
    let joined = actor.join()?;
    let old = joined.session.namespace(&namespace(VOLATILE))?;
    for number in [1, 2] {
        actor.say(&format!("may {}", VOLATILE_FROM + number));
    }
    actor.begin();
    joined.session.invalidate(old)?;
    for number in [1, 2] {
        if joined.session.probe(&object(old, VOLATILE_FROM + number))?.is_hit() {
            actor.say(&format!("wrong block {number} hits after its namespace was invalidated"));
        }
        actor.say(&format!("gone {}", VOLATILE_FROM + number));
    }
    let new = joined.session.namespace(&namespace(VOLATILE))?;
    actor.end();
    if new.digest() == old.digest() {
        actor.say("wrong the next generation has the old digest");
    }
    actor.leave(joined)
}

/// Stores and reads, and waits. Its commit afterwards must be refused in words, because it was fenced.
fn busy_partner(actor: &mut Actor<'_>) -> Result<()> {
    let joined = actor.join()?;
    let mut first = joined.granted(joined.keys.k)?;
    let mut second = joined.granted(joined.keys.k2)?;
    let lease = joined.session.acquire(&[joined.object(joined.keys.base[3])], Batch::Each)?.pop().context("one")?;
    let lease = lease.map_err(|why| anyhow::anyhow!("{why}"))?;
    first.write_at(0, &joined.content(joined.keys.k))?;
    actor.ready_and_go();
    let _ = second.write_at(0, &joined.content(joined.keys.k2));
    for (number, reservation) in [(joined.keys.k, &mut first), (joined.keys.k2, &mut second)] {
        let commit = reservation.commit()?;
        if matches!(commit, maru::Commit::Stored | maru::Commit::AlreadyStored) {
            actor.told(number, commit);
        }
    }
    let handle = lease.into_handle();
    if joined.session.release(handle)? != Release::Released {
        actor.say("wrong a fenced session's lease was taken from it");
    }
    drop((first, second));
    actor.leave(joined)
}

fn fence(actor: &mut Actor<'_>) -> Result<()> {
    let joined = actor.join()?;
    // The partner was there first, so it has entry 0 and a lower epoch.
    actor.begin();
    for epoch in (1..joined.session.epoch()).rev() {
        if joined.session.fence(0, epoch)? {
            break;
        }
    }
    actor.end();
    actor.leave(joined)
}

fn dies_storing(actor: &mut Actor<'_>) -> Result<()> {
    let joined = actor.join()?;
    let number = joined.keys.k;
    actor.begin();
    actor.store_block(&joined, number)
}

fn dies_retiring(actor: &mut Actor<'_>) -> Result<()> {
    let joined = actor.join()?;
    let number = joined.keys.base[2];
    actor.say(&format!("may {number}"));
    actor.begin();
    joined.session.retire(&joined.object(number))?;
    Ok(())
}

fn dies_reading(actor: &mut Actor<'_>) -> Result<()> {
    let joined = actor.join()?;
    actor.begin();
    let objects: Vec<_> = joined.keys.base.iter().map(|number| joined.object(*number)).collect();
    let _leases = joined.session.acquire(&objects, Batch::Each)?;
    Ok(())
}

/// Two open stores, a lease, and the death in a third store.
fn dies_with_much(actor: &mut Actor<'_>) -> Result<()> {
    let joined = actor.join()?;
    let Keys { k, k2, base, out, .. } = joined.keys.clone();
    let _open = (joined.granted(k2)?, joined.granted(out[0])?);
    let lease = joined.session.acquire(&[joined.object(base[3])], Batch::Each)?.pop().context("one")?;
    let _ = lease.map_err(|why| anyhow::anyhow!("{why}"))?.into_handle();
    actor.say(&format!("may {k2}"));
    actor.begin();
    actor.store_block(&joined, k)
}

/// Recovers whatever is dead.
fn reclaim(actor: &mut Actor<'_>) -> Result<()> {
    let joined = actor.join()?;
    actor.begin();
    joined.session.reclaim()?;
    actor.end();
    actor.leave(joined)
}

fn lead(actor: &mut Actor<'_>) -> Result<()> {
    let joined = actor.join()?;
    actor.begin();
    let first = joined.session.lead()?;
    let again = joined.session.lead()?;
    actor.end();
    if first != Lead::Leading || again != first {
        actor.say(&format!("wrong nobody lives who leads, and the answer is {first:?}, then {again:?}"));
    }
    actor.leave(joined)
}

fn dies_leading(actor: &mut Actor<'_>) -> Result<()> {
    let joined = actor.join()?;
    joined.session.lead()?;
    let number = joined.keys.k;
    actor.begin();
    actor.store_block(&joined, number)
}

/// Dies while a device writes for it.
fn dies_with_device(actor: &mut Actor<'_>) -> Result<()> {
    let joined = actor.join()?;
    let options = ReserveOptions { writer: Writer::Device, ..ReserveOptions::default() };
    let _open = joined.reserve(joined.keys.k, options)?;
    actor.begin();
    joined.session.heartbeat()?;
    Ok(())
}

/// Says of every other session that is not known to live that it is gone, and of every device that it has drained.
fn vouch(actor: &mut Actor<'_>) -> Result<()> {
    let joined = actor.join()?;
    let others: Vec<SessionInfo> = joined.session.sessions()?;
    actor.begin();
    for other in others.iter().filter(|other| other.liveness == Liveness::Dead) {
        joined.session.recover_vouched(other.index, other.word.epoch())?;
    }
    joined.session.devices_drained()?;
    actor.end();
    actor.leave(joined)
}
