//! Claim, publish, read: a reader gets the bytes that were stored under exactly the id it asked for, or nothing.
//!
//! The edges \[claim] and \[publish] of `src/slot.rs`, and the look at the word after a copy (`src/lease.rs`, L5).

#![cfg(all(maru_loom, not(maru_shuttle)))]

use maru::layout::COPY_LEASE_MS;
use maru::layout::object::ObjectKey;
use maru::layout::word::LeaseKind;
use maru::model::{Region, Session, Size, Stop, key};
use maru::{LoadError, Retire};
use maru_loom_tests::{Edge, Here, Model, Seen, both, claim};

/// One slot, so that its next life is always in the same place; one bucket.
const SIZE: Size = Size { slots: 1, sessions: 2, buckets: 1, rows: 0, cells: 1 };

/// Acquires, looks, releases; what it saw.
fn read(reader: &Session, key: &ObjectKey, value: u64) -> &'static str {
    match reader.acquire(key, LeaseKind::View) {
        Ok(lease) => {
            let found = reader.look(&lease);
            claim!(found == [value; 2], "read {found:?}, stored was {value}");
            reader.release(&lease);
            "hit"
        }
        Err(why) => why.code(),
    }
}

fn first_life(seen: &Seen, here: Here) {
    let region = Region::new(SIZE);
    let (writer, reader) = (region.settled(0), region.settled(1));
    let write = move || {
        claim!(writer.store(&key(1), 7), "an empty region takes a block");
        claim!(writer.probe(&key(1)).is_ok(), "committed means found");
    };
    let (_, outcome) = both(here, write, move || read(&reader, &key(1), 7));
    seen.reached(outcome);
}

const FIRST_LIFE: [Model; 2] = [
    Model { name: "publish: first life, reader spawned", bound: Some(4), run: |seen| first_life(seen, Here::First) },
    Model { name: "publish: first life, writer spawned", bound: Some(4), run: |seen| first_life(seen, Here::Second) },
];

#[test]
fn a_reader_of_a_first_life_gets_all_or_nothing() {
    for model in FIRST_LIFE {
        model.holds(&["absent", "not_ready", "hit"]);
        model.fails_without(Edge::Publish);
    }
}

/// The slot's block is retired and another one stored in the same place, while a reader asks for either.
fn next_life(seen: &Seen, here: Here, wants_old: bool) {
    let region = Region::new(SIZE);
    let (writer, reader) = (region.settled(0), region.settled(1));
    let (old, new) = (key(1), key(2));
    assert!(writer.store(&old, 1));
    let write = move || {
        let retired = writer.retire(&old);
        let stored = writer.store(&new, 2);
        claim!(stored || retired == Retire::Draining, "{retired:?}, and yet no room");
        if stored { "reused" } else { "kept" }
    };
    let (wanted, value, which) = if wants_old { (old, 1, "old") } else { (new, 2, "new") };
    let (written, found) = both(here, write, move || read(&reader, &wanted, value));
    seen.reached(format!("{written}, {which} {found}"));
}

const OLD_LIFE: [Model; 2] = [
    Model { name: "publish: old life, reader spawned", bound: Some(3), run: |seen| next_life(seen, Here::First, true) },
    Model {
        name: "publish: old life, writer spawned",
        bound: Some(3),
        run: |seen| next_life(seen, Here::Second, true),
    },
];
const NEW_LIFE: [Model; 2] = [
    Model {
        name: "publish: new life, reader spawned",
        bound: Some(3),
        run: |seen| next_life(seen, Here::First, false),
    },
    Model {
        name: "publish: new life, writer spawned",
        bound: Some(3),
        run: |seen| next_life(seen, Here::Second, false),
    },
];

#[test]
fn a_reader_of_the_old_life_never_gets_the_new_one() {
    for model in OLD_LIFE {
        // Kept for a reader that has just seen it vanish: its cell was still there when the writer looked.
        model.holds(&[
            "kept, old hit",
            "kept, old vanished",
            "reused, old absent",
            "reused, old hit",
            "reused, old vanished",
        ]);
        model.fails_without(Edge::ReaderFence);
    }
}

#[test]
fn a_reader_of_the_new_life_never_gets_the_old_one() {
    for model in NEW_LIFE {
        model.holds(&["reused, new absent", "reused, new hit", "reused, new not_ready"]);
        model.fails_without(Edge::Publish);
    }
}

/// A slot changes hands while its record is read: word and identity belong to the same life.
fn identity(seen: &Seen, here: Here) {
    let region = Region::new(Size { cells: 0, ..SIZE });
    let writer = region.settled(0);
    let (old, new) = (key(1), key(2));
    assert!(writer.store(&old, 1));
    let old_life = region.words()[0].generation();
    let write = move || {
        assert_eq!(writer.retire(&old), Retire::Retired);
        writer.stop_at(Stop::Pending, 0, &new);
    };
    let (_, found) = both(here, write, move || region.identity(0));
    seen.reached(match found {
        None => "changing".to_owned(),
        Some((word, number)) => {
            let life = if word.generation() == old_life { 1 } else { 2 };
            claim!(number == life, "identity of life {number} under {word:?}");
            format!("life {life}, {}", word.state().map_or("damaged", |state| state.name()))
        }
    });
}

const FOREIGN: [Model; 2] = [
    Model { name: "publish: identity, reader spawned", bound: Some(4), run: |seen| identity(seen, Here::First) },
    Model { name: "publish: identity, writer spawned", bound: Some(4), run: |seen| identity(seen, Here::Second) },
];

#[test]
fn no_identity_is_seen_under_the_word_of_another() {
    for model in FOREIGN {
        model.holds(&["changing", "life 1, ready", "life 1, retiring", "life 2, pending"]);
        model.fails_without(Edge::ClaimFence);
        model.fails_without(Edge::IdentityFence);
    }
}

/// A copy lease outlives its time, the slot is retired and used anew, and the reader copies all the same.
fn lapsed(seen: &Seen, here: Here) {
    let region = Region::new(SIZE);
    let (writer, reader) = (region.settled(0), region.settled(1));
    let (old, new) = (key(1), key(2));
    assert!(writer.store(&old, 1));
    let lease = reader.acquire(&old, LeaseKind::Copy).expect("there");
    assert_eq!(writer.retire(&old), Retire::Draining);
    writer.wait_ms(COPY_LEASE_MS.default.into());
    let write = move || {
        claim!(writer.reclaim().freed_slots == 1, "a lapsed copy lease holds nothing");
        claim!(writer.store(&new, 2), "the slot is free");
    };
    let copy = move || match reader.load(&old, &lease) {
        Ok(found) => {
            claim!(found == [1; 2], "copied {found:?}, stored was 1");
            "copied"
        }
        Err(LoadError::Expired) => "expired",
        Err(other) => panic!("claim broken: {other}"),
    };
    let (_, copied) = both(here, write, copy);
    seen.reached(copied);
}

const LAPSED: [Model; 2] = [
    Model { name: "publish: lapsed copy, reader spawned", bound: Some(4), run: |seen| lapsed(seen, Here::First) },
    Model { name: "publish: lapsed copy, writer spawned", bound: Some(4), run: |seen| lapsed(seen, Here::Second) },
];

#[test]
fn a_copy_that_outlives_its_lease_returns_nothing_else() {
    for model in LAPSED {
        model.holds(&["copied", "expired"]);
        model.fails_without(Edge::LookAfterCopy);
    }
}
