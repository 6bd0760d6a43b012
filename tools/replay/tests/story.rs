//! The story that `./tools/try` tells: what it says happened has happened.

mod common;

use maru::layout::image::{Damage, Image};
use maru::layout::word::SlotState;

use common::{Scratch, json, stderr};

fn slot_of(text: &str) -> u32 {
    text.rsplit(' ')
        .next()
        .and_then(|slot| slot.parse().ok())
        .unwrap_or_else(|| panic!("a slot at the end of {text:?}"))
}

#[test]
fn programs_are_told_who_died_in_what_and_what_was_damaged() {
    let scratch = Scratch::new();
    let trace = scratch.trace(&[vec![1, 2, 3]]);
    let output = scratch
        .command()
        .args(["--story", "--json", "--no-rival", "--slots", "40", "--trace"])
        .arg(&trace)
        .output()
        .expect("started");
    assert!(output.status.success(), "{}", stderr(&output));
    let found = json(&output);
    let killed_in = found["killed_in"].as_str().expect("a text");
    assert!(killed_in.starts_with("write, slot ") && slot_of(killed_in) < 40, "{killed_in}");
    let takeover_us = found["takeover_us"].as_f64().expect("a number");
    assert!(takeover_us > 0.0 && takeover_us < 10e6, "{takeover_us}");
    let damaged = found["damaged_finding"].as_str().expect("a text");
    assert!(damaged.starts_with("damaged: checksum mismatch in slot "), "{damaged}");

    // The region says the same: the slot is quarantined, nothing else is wrong, and what is ready is whole.
    let bytes = std::fs::read(scratch.path("region")).expect("the region");
    let image = Image::read(&bytes).expect("a region");
    let (states, strange) = image.state_counts();
    assert_eq!((states[SlotState::Quarantined as usize], states[SlotState::Ready as usize], strange), (1, 3, 0));
    let quarantined = image
        .records()
        .find(|(_, record)| maru::layout::word::SlotWord(record.identity.word).is(SlotState::Quarantined));
    assert_eq!(quarantined.map(|(slot, _)| slot), Some(slot_of(damaged)));
    assert!(!image.damage().iter().any(|damage| matches!(damage, Damage::Record { .. })), "{:?}", image.damage());
    // Nobody is left in it, nor anything that a dead process left.
    for (index, entry) in image.sessions() {
        let word = maru::layout::word::SessionWord(entry.word);
        assert!(word.is(maru::layout::word::SessionState::Free), "session {index}: {word:?}");
    }
    // The story is not the replay's: its numbers are what they would be without.
    assert_eq!((found["stores"].as_u64(), found["requests"].as_u64()), (Some(3), Some(1)));
}

#[test]
fn people_see_it_happen_line_by_line() {
    let scratch = Scratch::new();
    let output =
        scratch.command().args(["--story", "--requests", "60", "--block-bytes", "4K"]).output().expect("started");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}", stderr(&output));
    let mut rest = &text[..];
    for words in [
        "128 keys in ",
        "A process is killed in mid-store: pid ",
        "written half of 4,096 bytes",
        "a survivor asks for the same block: being_written",
        "kill -9: signal: 9 (SIGKILL)",
        "killed in the middle of write, slot ",
        "after the kernel's report",
        "4,096 bytes, none wrong",
        " + quarantined 0 = capacity ",
        "A byte is flipped",
        "damaged: slot_payload: slot ",
        "a reader: miss, damaged: checksum mismatch in slot ",
        "asked again: miss, ",
        " + quarantined 1 = capacity ",
        "maru-inspect watch ",
    ] {
        let at = rest.find(words).unwrap_or_else(|| panic!("{words:?}, in its place, in {text}"));
        rest = &rest[at..];
    }
    let sum = text.lines().find(|line| line.contains("quarantined 1 =")).expect("found above").replace(',', "");
    let numbers: Vec<u64> = sum.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    assert_eq!(numbers[0] + numbers[1] + numbers[2], numbers[3], "{sum}");
    assert!(text.lines().last().is_some_and(|line| line.ends_with(&scratch.path("region").display().to_string())));
}

#[test]
fn a_full_region_has_room_for_it() {
    let scratch = Scratch::new();
    let trace = scratch.trace(&[(0..40).collect()]);
    let output = scratch
        .command()
        .args(["--story", "--json", "--no-rival", "--slots", "16", "--trace"])
        .arg(&trace)
        .output()
        .expect("started");
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(json(&output)["killed_in"].is_string());
}
