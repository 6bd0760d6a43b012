//! `map`: letters that say what slots are, and pictures that are well formed.

mod common;

use std::path::Path;

use common::{Said, Scratch, inspect, namespace, object, payload, store};
use maru::{Batch, Reserve, ReserveOptions, Role, Wish};
use serde_json::Value;

fn map(path: &Path, rest: &[&str]) -> Said {
    let mut arguments = vec!["map", path.to_str().expect("UTF-8"), "--json"];
    arguments.extend(rest);
    inspect(&arguments)
}

fn cells(said: &Said) -> String {
    said.of_kind("map").iter().map(|line| line["cells"].as_str().expect("text").to_owned()).collect()
}

fn count(said: &Said, meaning: &str) -> u64 {
    let legend = said.of_kind("legend");
    let found: Vec<&Value> =
        legend.iter().filter(|line| line["meaning"].as_str().is_some_and(|text| text.starts_with(meaning))).collect();
    assert_eq!(found.len(), 1, "{meaning}: {legend:?}");
    found[0]["count"].as_u64().expect("a number")
}

#[test]
fn slots_by_everything() {
    let scratch = Scratch::new();
    let region = scratch.region("map", Wish::of_slots(1 << 20, 4096));
    let path = scratch.path("map");
    let session = region.session("s", Role::Worker).expect("attach");
    let (one, two) = (
        session.namespace(&namespace("one")).expect("namespace"),
        session.namespace(&namespace("<two & \"three\">")).expect("namespace"),
    );
    let ended = session.namespace(&namespace("ended")).expect("namespace");
    let put = |id, depth| {
        let options = ReserveOptions { depth, ..ReserveOptions::default() };
        let Reserve::Granted(mut slot) = session.reserve(&id, 100, options).expect("reserve") else {
            panic!("granted")
        };
        slot.write_at(0, &payload(1, 100)).expect("written");
        assert_eq!(slot.commit().expect("committed").code(), "stored");
    };
    (0..5).for_each(|number| put(object(one, number), number as u32));
    (10..13).for_each(|number| put(object(two, number), 300));
    put(object(ended, 20), 0);
    session.invalidate(ended).expect("invalidated");
    let lease = session.acquire(&[object(one, 0)], Batch::Each).expect("acquire");
    session.retire(&object(one, 0)).expect("retire");
    let half = session.reserve(&object(one, 30), 100, ReserveOptions::default()).expect("reserve");

    let said = map(&path, &[]);
    let slots = said.summary()["capacity_slots"].as_u64().expect("a number");
    let drawn = cells(&said);
    assert_eq!(drawn.len() as u64, slots, "a cell a slot");
    for (glyph, name, wanted) in
        [('#', "ready", 8), ('~', "retiring", 1), ('w', "writing", 1), ('.', "free", slots - 10)]
    {
        assert_eq!(drawn.matches(glyph).count() as u64, wanted, "{drawn}");
        assert_eq!(count(&said, name), wanted);
    }
    let total: u64 = said.of_kind("legend").iter().map(|line| line["count"].as_u64().expect("a number")).sum();
    assert_eq!(total, slots, "every slot is in the legend once");

    let said = map(&path, &["--by", "namespace"]);
    let drawn = cells(&said);
    assert_eq!(["a", "b", "?", "+"].map(|glyph| drawn.matches(glyph).count()), [4, 3, 1, 2], "{drawn}");
    assert_eq!(
        (count(&said, "row 0: one"), count(&said, "row 1:"), count(&said, "of a namespace that has ended")),
        (4, 3, 1)
    );

    let said = map(&path, &["--by", "depth"]);
    let drawn = cells(&said);
    // Depths 1, 2, 3, 4; three of 300; one of 0.
    assert_eq!(["0", "1", "2", "3", "9"].map(|glyph| drawn.matches(glyph).count()), [1, 1, 2, 1, 3], "{drawn}");

    let said = map(&path, &["--by", "age"]);
    assert_eq!(cells(&said).matches('0').count(), 8, "all of this second or so");

    let told = inspect(&["map", path.to_str().expect("UTF-8")]);
    assert!(
        told.text.contains("a cell is one slot") && told.text.contains("#              8 slots  ready"),
        "{}",
        told.text
    );
    assert!(!told.text.contains('\x1b'));

    for by in ["state", "age", "namespace", "depth"] {
        let svg = scratch.path(&format!("{by}.svg"));
        let said = map(&path, &["--by", by, "--svg", svg.to_str().expect("UTF-8")]);
        assert_eq!(said.code, 0, "{}", said.text);
        let text = std::fs::read_to_string(&svg).expect("drawn");
        assert!(text.starts_with("<svg ") && text.ends_with("</svg>\n"), "{text}");
        assert_eq!(text.matches('<').count(), text.matches('>').count(), "{text}");
        assert_eq!(text.matches("<text").count(), text.matches("</text>").count());
        if by == "namespace" {
            assert!(text.contains("&lt;two &amp; &quot;three&quot;&gt;"), "{text}");
        }
        // Widths of the cells' rectangles are whole cells, and all of them together the slots.
        let cells: u64 = text
            .lines()
            .filter(|line| line.starts_with("<rect x=") && line.ends_with("\"/>") && !line.contains("stroke"))
            .map(|line| {
                let number = |name: &str| -> u64 {
                    let rest = line.split(&format!(" {name}=\"")).nth(1).expect("there");
                    rest.split('"').next().expect("quoted").parse().expect("a number")
                };
                number("width") / number("height")
            })
            .sum();
        assert_eq!(cells, slots, "{by}");
        assert!(
            !scratch
                .directory()
                .read_dir()
                .expect("a folder")
                .any(|entry| { entry.expect("an entry").file_name().to_string_lossy().starts_with('.') })
        );
    }
    let said = map(&path, &["--svg", "/nonexistent/x.svg"]);
    assert_eq!(said.code, 2);
    assert!(said.errors.contains("/nonexistent/x.svg"), "{}", said.errors);
    drop((half, lease));
}

#[test]
fn a_large_region_is_drawn_in_runs() {
    let scratch = Scratch::new();
    let region = scratch.region("map", Wish::of_slots(8 << 20, 512));
    let path = scratch.path("map");
    let session = region.session("s", Role::Worker).expect("attach");
    let ns = session.namespace(&namespace("one")).expect("namespace");
    let slots = region.geometry().slot_count;
    for number in 0..u64::from(slots) / 2 {
        store(&session, &object(ns, number), &payload(1, 10));
    }
    let said = map(&path, &[]);
    let drawn = cells(&said);
    let per_cell = said.of_kind("map")[0]["slots_per_cell"].as_u64().expect("a number");
    assert_eq!((drawn.len() as u64, per_cell), (u64::from(slots).div_ceil(per_cell), u64::from(slots).div_ceil(2048)));
    let ready = drawn.matches('#').count();
    assert!(ready.abs_diff(drawn.len() / 2) <= 1, "{ready} of {}", drawn.len());
    assert_eq!(count(&said, "ready"), u64::from(slots) / 2);
}
