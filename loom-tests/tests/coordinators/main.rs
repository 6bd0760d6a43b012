//! Fencing, dying and leading at once: seven threads on one small region, and one that comes after them.
//!
//! Two coordinators lead, recover the dead and shut out whom they take for stalled, each other too; one of them may die
//! while it leads. A writer falls asleep anywhere and goes on as a zombie. A process dies at any access and has a
//! successor at its index. One on another host stops without proof, and an operator vouches for it, maybe too late. A
//! reader keeps leases. All of them store the same few keys.
//!
//! What each answer must keep to is in `actor.rs`; here is who does what, and what must be true when all have gone.

#![cfg(all(maru_loom, maru_shuttle))]

mod actor;
mod books;

use std::sync::Arc;

use maru::model::{Region, Size};
use maru::sync::fate;
use maru_loom_tests::{Edge, Model, Seen, claim, one_in, pick};

use actor::Actor;
use books::Ledger;

const KEYS: u32 = 3;
const SIZE: Size = Size { slots: 3, sessions: 7, buckets: 1, rows: 0, cells: 2 };

/// Index of each session; the operator's is the last one's too.
const COORDINATORS: [u32; 2] = [0, 1];
const WRITER: u32 = 2;
const MORTAL: u32 = 3;
const READER: u32 = 4;
const ABROAD: u32 = 5;
const OPERATOR: u32 = 6;

/// Accesses of a role, about: where its fate may meet it.
const ACCESSES: u32 = 300;
/// Accesses of a recovery, about.
const RECOVERY: u32 = 40;
/// Turns that somebody waits for somebody else before it goes on without him.
const WAIT: u32 = 200;

struct Scene {
    region: Region,
    ledger: Arc<Ledger>,
}

impl Scene {
    fn settled(&self, index: u32) -> Actor {
        Actor::new(self.region.settled(index), &self.region, &self.ledger)
    }

    fn attach(&self, index: u32) -> Actor {
        Actor::attach(index, &self.region, &self.ledger)
    }

    /// A fenced session may stay for as long as it likes; any other one leaves.
    fn leave(&self, actor: Actor) -> Option<Actor> {
        fate::spare();
        if !actor.lives() && one_in(2) {
            self.ledger.reached("a zombie stays");
            return Some(actor);
        }
        if one_in(4) {
            actor.die()
        } else {
            actor.close()
        }
        None
    }

    fn coordinator(&self, actor: Actor) -> Option<Actor> {
        match pick(4) {
            0 => {
                if fate::die_at(pick(ACCESSES), || actor.coordinate(3, false)).is_none() {
                    self.ledger.reached("a coordinator dies");
                    actor.die();
                    return None;
                }
            }
            1 => {
                fate::sleep_at(pick(ACCESSES), pick(WAIT));
                actor.coordinate(3, false);
            }
            _ => actor.coordinate(3, true),
        }
        self.leave(actor)
    }

    fn sleeper(&self, actor: Actor) -> Option<Actor> {
        fate::sleep_at(pick(ACCESSES), pick(WAIT));
        actor.work(4);
        self.leave(actor)
    }

    fn mortal(&self, actor: Actor) -> Option<Actor> {
        if fate::die_at(pick(ACCESSES), || actor.work(3)).is_none() {
            self.ledger.reached("dies on the way");
        }
        actor.die();
        if one_in(3) {
            return None;
        }
        self.pause();
        let next = self.attach(MORTAL);
        self.ledger.reached("a successor of the dead");
        next.work(3);
        self.leave(next)
    }

    fn abroad(&self, actor: Actor) -> Option<Actor> {
        let _ = fate::die_at(pick(ACCESSES), || {
            actor.lead();
            actor.work(2);
        });
        actor.vanish();
        // The lock may be let go of before or after somebody vouches: a descriptor was left over.
        if one_in(2) {
            self.wait_until(|| self.ledger.open().vouched);
        }
        self.region.let_go(ABROAD);
        if one_in(2) {
            return None;
        }
        self.pause();
        let next = self.attach(ABROAD);
        self.ledger.reached("a successor of one that vanished");
        next.work(2);
        self.leave(next)
    }

    fn operator(&self, actor: Actor) -> Option<Actor> {
        self.wait_until(|| self.ledger.open().vanished.is_some());
        let vanished = self.ledger.open().vanished;
        if let Some(name) = vanished {
            fate::sleep_at(pick(ACCESSES / 4), pick(WAIT));
            actor.vouch(name);
            self.ledger.open().vouched = true;
            actor.lead();
            fate::spare();
        }
        claim!(actor.lives(), "nobody fences an operator here");
        actor.close();
        None
    }

    /// Long enough for somebody to notice a death before the successor does.
    fn pause(&self) {
        (0..pick(RECOVERY)).for_each(|_| shuttle::thread::yield_now());
    }

    fn wait_until(&self, ready: impl Fn() -> bool) {
        for _ in 0..WAIT {
            if ready() {
                return;
            }
            shuttle::thread::yield_now();
        }
    }
}

type Role = fn(&Scene, Actor) -> Option<Actor>;

fn all_at_once(seen: &Seen) {
    let scene = Arc::new(Scene { region: Region::new(SIZE), ledger: Arc::new(Ledger::new(seen)) });
    let roles: [(u32, Role); 7] = [
        (COORDINATORS[0], Scene::coordinator),
        (COORDINATORS[1], Scene::coordinator),
        (WRITER, Scene::sleeper),
        (MORTAL, Scene::mortal),
        (READER, Scene::sleeper),
        (ABROAD, Scene::abroad),
        (OPERATOR, Scene::operator),
    ];
    // Everybody is there before anybody begins.
    let cast: Vec<_> = roles.map(|(index, role)| (scene.settled(index), role)).into();
    let threads: Vec<_> = cast
        .into_iter()
        .map(|(actor, role)| {
            let scene = Arc::clone(&scene);
            shuttle::thread::spawn(move || role(&scene, actor))
        })
        .collect();
    let zombies: Vec<Actor> =
        threads.into_iter().filter_map(|thread| thread.join().expect("ends, or the whole execution does")).collect();

    let last = scene.attach(OPERATOR);
    // Beside it there are only zombies, and the word does not stay with one of them, nor with the dead.
    claim!(last.lead() == Some(true), "the only one alive does not lead: {:?}", scene.region.leader());
    for zombie in zombies {
        claim!(!zombie.lives(), "only zombies stay");
        if one_in(2) { zombie.die() } else { zombie.close() }
    }
    last.tidy();
}

const ALL: Model = Model { name: "coordinators: all at once", iterations: 60_000, steps: 1_000, run: all_at_once };

#[test]
fn fencing_dying_and_leading_at_once() {
    ALL.holds(&[
        "a block is there in the end",
        "a coordinator dies",
        "a coordinator finds itself fenced",
        "a leased block drains",
        "a successor of one that vanished",
        "a successor of the dead",
        "a zombie stays",
        "commit of a stalled writer: superseded",
        "commit of a zombie: fenced",
        "dies on the way",
        "evicted",
        "fenced",
        "follows",
        "leads: after a dead one",
        "leads: after a fenced one",
        "leads: after one that resigned",
        "leads: after one vouched dead",
        "leads: the first one",
        "recovered",
        "retired: draining",
        "stored",
        "vouched: recovered",
        "vouched: too late",
    ]);
}

macro_rules! teeth {
    ($($name:ident: $edge:ident;)*) => {$(
        #[test]
        fn $name() {
            ALL.fails_without(Edge::$edge);
        }
    )*};
}

teeth! {
    misses_a_recoverer_that_does_not_look_again: StillDead;
    misses_proof_of_a_later_holder: WordBeforeProof;
    misses_space_given_away_while_a_zombie_may_write: Quarantine;
    misses_a_leader_that_does_not_live: LeaderLives;
    misses_leases_of_the_dead: SessionDecides;
    misses_an_eviction_that_scans_too_early: ScanAfterShut;
    misses_twins_that_do_not_look_at_each_other: TwinScan;
}
