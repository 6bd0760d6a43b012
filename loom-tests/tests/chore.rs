//! Namespace registration: one row for one text, whoever asks first and whoever dies meanwhile.
//!
//! N1 of `src/namespace.rs`; chores of the dead in `src/recover.rs`.

#![cfg(all(maru_loom, not(maru_shuttle)))]

use maru::layout::word::ChoreWord;
use maru::model::{Region, Session, Size};
use maru_loom_tests::{Edge, Here, Model, Seen, both, claim};

const SIZE: Size = Size { slots: 1, sessions: 3, buckets: 1, rows: 2, cells: 0 };

fn register(session: &Session, text: &str) -> (u32, [u8; 16]) {
    match session.register(text) {
        Ok(id) => (id.row(), id.digest()),
        Err(error) => panic!("claim broken: {error}"),
    }
}

fn pair(seen: &Seen, here: Here, texts: [&'static str; 2], dead_holder: bool) {
    let region = Region::new(SIZE);
    if dead_holder {
        let holder = region.settled(2);
        holder.hold_chore();
        holder.die();
    }
    let (one, two) = (region.settled(0), region.settled(1));
    let inside = region.clone();
    let second = move || (inside.registered(), register(&two, texts[1]));
    let (one, (before, two)) = both(here, move || register(&one, texts[0]), second);
    let same = texts[0] == texts[1];
    claim!((one == two) == same, "rows {} and {}", one.0, two.0);
    claim!(region.registered() == if same { 1 } else { 2 }, "{} rows registered", region.registered());
    claim!(region.namespace_chore() == ChoreWord::FREE, "the chore is left with {:?}", region.namespace_chore());
    seen.reached(format!("rows {} and {}, {before} before the second", one.0, two.0));
}

const SAME: [Model; 2] = [
    Model {
        name: "chore: one text, second spawned",
        bound: None,
        run: |seen| pair(seen, Here::First, ["a", "a"], false),
    },
    Model {
        name: "chore: one text, first spawned",
        bound: None,
        run: |seen| pair(seen, Here::Second, ["a", "a"], false),
    },
];

#[test]
fn one_text_has_one_row() {
    for model in SAME {
        model.holds(&["rows 0 and 0, 0 before the second", "rows 0 and 0, 1 before the second"]);
        model.fails_without(Edge::SearchAgain);
    }
}

const DIFFERENT: Model =
    Model { name: "chore: two texts", bound: None, run: |seen| pair(seen, Here::First, ["a", "b"], false) };

#[test]
fn two_texts_have_two_rows() {
    DIFFERENT.holds(&[
        "rows 0 and 1, 0 before the second",
        "rows 0 and 1, 1 before the second",
        "rows 1 and 0, 0 before the second",
    ]);
}

const DEAD: [Model; 2] = [
    Model {
        name: "chore: dead holder, second spawned",
        bound: Some(3),
        run: |seen| pair(seen, Here::First, ["a", "a"], true),
    },
    Model {
        name: "chore: dead holder, first spawned",
        bound: Some(3),
        run: |seen| pair(seen, Here::Second, ["a", "a"], true),
    },
];

#[test]
fn a_dead_holder_is_in_nobodys_way() {
    let [second_spawned, first_spawned] = DEAD;
    second_spawned.holds(&["rows 0 and 0, 0 before the second", "rows 0 and 0, 1 before the second"]);
    first_spawned.holds(&["rows 0 and 0, 0 before the second"]);
    for model in DEAD {
        model.fails_without(Edge::SearchAgain);
    }
}
