//! Leases against retiring: a slot whose protection was granted is not freed before it ends.
//!
//! The edges \[lease] and \[free] of `src/slot.rs`; L1 to L5 of `src/lease.rs`, X1 and X2 of `src/retire.rs`.

#![cfg(all(maru_loom, not(maru_shuttle)))]

use maru::layout::COPY_LEASE_MS;
use maru::layout::object::ObjectKey;
use maru::layout::word::{LeaseKind, Owner, SlotState};
use maru::model::{Region, Session, Size, Stop, key};
use maru::{Retire, Why};
use maru_loom_tests::{Edge, Here, Model, Role, Seen, all, both, claim};

const SIZE: Size = Size { slots: 1, sessions: 2, buckets: 1, rows: 0, cells: 1 };

/// Acquires and, as long as the lease lasts, sees the slot in the life that it protects.
fn hold(region: &Region, reader: &Session, key: &ObjectKey) -> &'static str {
    let lease = match reader.acquire(key, LeaseKind::View) {
        Ok(lease) => lease,
        Err(Why::Vanished) => return "vanished",
        Err(why) => return why.code(),
    };
    let found = reader.look(&lease);
    claim!(found == [1; 2], "read {found:?} under a lease");
    let word = region.words()[0];
    claim!(
        word.generation() == lease.word().generation() && (word.is(SlotState::Ready) || word.is(SlotState::Retiring)),
        "leased at {:?}, and then {word:?}",
        lease.word()
    );
    reader.release(&lease);
    "held"
}

/// Somebody retires the block and, if the slot is free then, stores another in it.
fn retire(seen: &Seen, here: Here) {
    let region = Region::new(SIZE);
    let (owner, reader) = (region.settled(0), region.settled(1));
    assert!(owner.store(&key(1), 1));
    let inside = region.clone();
    let clear = move || {
        let retired = owner.retire(&key(1));
        if retired == Retire::Retired {
            owner.write(&owner.stop_at(Stop::Writing, 0, &key(2)), 2);
        }
        (owner, retired)
    };
    let ((owner, retired), held) = both(here, clear, move || hold(&inside, &reader, &key(1)));
    if retired == Retire::Draining {
        let word = region.words()[0];
        claim!(word.is(SlotState::Retiring) && word.owner() == Owner::NOBODY, "draining, and the word is {word:?}");
        claim!(owner.reclaim().freed_slots == 1, "the last lease has ended, and the slot is not freed");
    }
    seen.reached(format!("{retired:?}, {held}"));
}

const RETIRE: [Model; 2] = [
    Model { name: "lease: retire, reader spawned", bound: Some(3), run: |seen| retire(seen, Here::First) },
    Model { name: "lease: retire, retirer spawned", bound: Some(3), run: |seen| retire(seen, Here::Second) },
];

#[test]
fn a_leased_slot_is_not_retired_under_its_reader() {
    for model in RETIRE {
        model.holds(&["Draining, held", "Draining, vanished", "Retired, absent", "Retired, held", "Retired, vanished"]);
        model.fails_without(Edge::ReaderFence);
        model.fails_without(Edge::RetirerFence);
    }
}

/// Somebody evicts the block; an eviction that meets a reader puts it back.
fn evict(seen: &Seen, here: Here) {
    let region = Region::new(SIZE);
    let (owner, reader) = (region.settled(0), region.settled(1));
    assert!(owner.store(&key(1), 1));
    let inside = region.clone();
    let clear = move || {
        let evicted = owner.evict(0, &key(1));
        if evicted {
            owner.write(&owner.stop_at(Stop::Writing, 0, &key(2)), 2);
        }
        (owner, evicted)
    };
    let ((owner, evicted), held) = both(here, clear, move || hold(&inside, &reader, &key(1)));
    claim!(evicted || owner.probe(&key(1)).is_ok(), "not evicted, and not there any more");
    seen.reached(format!("{}, {held}", if evicted { "evicted" } else { "kept" }));
}

const EVICT: [Model; 2] = [
    Model { name: "lease: evict, reader spawned", bound: Some(3), run: |seen| evict(seen, Here::First) },
    Model { name: "lease: evict, evictor spawned", bound: Some(3), run: |seen| evict(seen, Here::Second) },
];

#[test]
fn a_leased_slot_is_not_evicted_under_its_reader() {
    for model in EVICT {
        model.holds(&["evicted, absent", "evicted, held", "evicted, vanished", "kept, held", "kept, vanished"]);
        model.fails_without(Edge::ReaderFence);
        model.fails_without(Edge::RetirerFence);
        model.fails_without(Edge::ScanAfterShut);
    }
}

/// Two victims under one fence and one scan: the one that is being read stays, the other's slot is used anew.
fn batch(seen: &Seen, here: Here) {
    let region = Region::new(Size { slots: 2, ..SIZE });
    let (owner, reader) = (region.settled(0), region.settled(1));
    assert!(owner.store(&key(1), 1) && owner.store(&key(2), 2));
    let inside = region.clone();
    let clear = move || {
        // One of them twice: a hand may come by a slot again.
        let evicted = owner.evict_batch(&[0, 0, 1]);
        let left: Vec<bool> = [1, 2].map(|number| owner.probe(&key(number)).is_ok()).into();
        let ready = left.iter().filter(|there| **there).count() as u32;
        claim!(evicted + ready == 2, "{evicted} evicted, {ready} of two left");
        for (slot, _) in left.iter().enumerate().filter(|(_, there)| !**there) {
            owner.write(&owner.stop_at(Stop::Writing, slot as u32, &key(3 + slot as u64)), 3);
        }
        evicted
    };
    let (evicted, held) = both(here, clear, move || hold(&inside, &reader, &key(1)));
    seen.reached(format!("{evicted} evicted, {held}"));
}

const BATCH: [Model; 2] = [
    Model { name: "lease: batch, reader spawned", bound: Some(2), run: |seen| batch(seen, Here::First) },
    Model { name: "lease: batch, evictor spawned", bound: Some(2), run: |seen| batch(seen, Here::Second) },
];

#[test]
fn of_a_batch_only_what_nobody_reads_is_evicted() {
    for model in BATCH {
        model.holds(&[
            "1 evicted, held",
            "1 evicted, vanished",
            "2 evicted, absent",
            "2 evicted, held",
            "2 evicted, vanished",
        ]);
        model.fails_without(Edge::ReaderFence);
        model.fails_without(Edge::RetirerFence);
        model.fails_without(Edge::ScanAfterShut);
    }
}

/// A third one frees a draining slot while its reader, who came before the door was shut, reads and leaves.
fn drain(seen: &Seen, here: usize) {
    let region = Region::new(Size { sessions: 3, ..SIZE });
    let (owner, reader, third) = (region.settled(0), region.settled(1), region.settled(2));
    assert!(owner.store(&key(1), 1));
    let inside = region.clone();
    let roles: Vec<Role<String>> = vec![
        Box::new(move || format!("{:?}", owner.retire(&key(1)))),
        Box::new(move || hold(&inside, &reader, &key(1)).to_owned()),
        Box::new(move || {
            let freed = third.reclaim().freed_slots;
            if freed == 1 {
                third.write(&third.stop_at(Stop::Writing, 0, &key(2)), 2);
            }
            format!("freed {freed}")
        }),
    ];
    seen.reached(all(here, roles).join(", "));
}

const DRAIN: [Model; 3] = [
    Model { name: "lease: drain, retirer here", bound: Some(3), run: |seen| drain(seen, 0) },
    Model { name: "lease: drain, reader here", bound: Some(3), run: |seen| drain(seen, 1) },
    Model { name: "lease: drain, third here", bound: Some(3), run: |seen| drain(seen, 2) },
];

#[test]
fn whoever_frees_a_draining_slot_waits_for_its_reader() {
    for model in DRAIN {
        model.holds(&[
            "Draining, held, freed 0",
            "Draining, held, freed 1",
            "Draining, vanished, freed 0",
            "Draining, vanished, freed 1",
            "Retired, absent, freed 0",
            "Retired, held, freed 0",
            "Retired, vanished, freed 0",
        ]);
        model.fails_without(Edge::ReaderFence);
        model.fails_without(Edge::RetirerFence);
    }
}

/// A copy lease becomes a view while a retirer, for whom the copy lease has lapsed, takes the slot.
fn strengthen(seen: &Seen, here: Here) {
    let region = Region::new(SIZE);
    let (owner, reader) = (region.settled(0), region.settled(1));
    assert!(owner.store(&key(1), 1));
    let lease = reader.acquire(&key(1), LeaseKind::Copy).expect("there");
    // The first look starts the retirer's own clock.
    assert!(!owner.evict(0, &key(1)));
    owner.wait_ms(COPY_LEASE_MS.default.into());
    let clear = move || {
        let evicted = owner.evict(0, &key(1));
        if evicted {
            owner.write(&owner.stop_at(Stop::Writing, 0, &key(2)), 2);
        }
        if evicted { "evicted" } else { "kept" }
    };
    let view = move || {
        if !reader.view(&lease) {
            return "expired";
        }
        let found = reader.look(&lease);
        claim!(found == [1; 2], "read {found:?} through a view");
        "viewed"
    };
    let (cleared, viewed) = both(here, clear, view);
    seen.reached(format!("{cleared}, {viewed}"));
}

const STRENGTHEN: [Model; 2] = [
    Model { name: "lease: view, reader spawned", bound: None, run: |seen| strengthen(seen, Here::First) },
    Model { name: "lease: view, evictor spawned", bound: None, run: |seen| strengthen(seen, Here::Second) },
];

#[test]
fn a_lapsed_copy_lease_becomes_a_view_or_expires() {
    for model in STRENGTHEN {
        model.holds(&["evicted, expired", "kept, viewed", "kept, expired"]);
        model.fails_without(Edge::ReaderFence);
        model.fails_without(Edge::RetirerFence);
    }
}
