//! Budgets in a region's bytes: every block of a namespace with one has a token that names it.

mod common;

use common::{Scratch, namespace, object, payload, store};
use maru::{Budget, Role, Wish};
use maru_inspect::{Verdict, inspect_bytes};
use maru_layout::geometry::Geometry;
use maru_layout::superblock::{SectionKind, Superblock};
use maru_layout::word::TokenWord;

/// A region with a budget of four slots, all of them spent.
fn budgeted(scratch: &Scratch) -> Vec<u8> {
    let region = scratch.region("region", Wish::of_slots(1 << 20, 4096));
    let session = region.session("storer", Role::Worker).expect("attach");
    let ns = session.namespace_with_budget(&namespace("t"), Budget::Slots(4)).expect("namespace");
    for number in 0..4 {
        assert_eq!(store(&session, &object(ns, number), &payload(number, 4000)), "stored");
    }
    session.close().expect("nothing held");
    std::fs::read(scratch.path("region")).expect("read")
}

fn findings(bytes: &[u8]) -> (Verdict, Vec<(&'static str, String)>) {
    let report = inspect_bytes(bytes);
    let found = report.findings.iter().map(|finding| (finding.code, finding.text.clone())).collect();
    (report.verdict, found)
}

/// Symptom: a namespace holds more than its budget and nobody can tell. Cause: tokens are believed without being read.
#[test]
fn a_block_without_its_token_is_named() {
    let scratch = Scratch::new();
    let sound = budgeted(&scratch);
    assert_eq!(findings(&sound).0, Verdict::Sound, "{:?}", findings(&sound).1);
    let geometry = Geometry::of(&Superblock::read(&sound).expect("a page"), sound.len() as u64, false).expect("sound");
    let token = geometry.offset(SectionKind::Tokens) as usize;
    let put = |value: u64| {
        let mut bytes = sound.clone();
        bytes[token..token + 8].copy_from_slice(&value.to_le_bytes());
        bytes
    };
    for (value, says) in [(0, "unused"), (TokenWord::new(3, 77).0, "slot 3, generation ..77"), (u64::MAX, "slot")] {
        let (verdict, found) = findings(&put(value));
        assert_eq!(verdict, Verdict::Damaged, "{value:#x}: {found:?}");
        assert!(
            found.iter().any(|(code, text)| *code == "budget_token" && text.contains(says)),
            "{value:#x}: {found:?}"
        );
    }
}

/// A row whose tokens lie beyond the section: damage, and nothing is read there.
#[test]
fn a_budget_beyond_the_tokens_is_named() {
    let scratch = Scratch::new();
    let sound = budgeted(&scratch);
    let geometry = Geometry::of(&Superblock::read(&sound).expect("a page"), sound.len() as u64, false).expect("sound");
    let row = geometry.offset(SectionKind::Namespaces) as usize;
    for (budget, first) in [(u64::MAX, 0u32), (5, u32::MAX), (u64::from(geometry.token_count) + 2, 0)] {
        let mut bytes = sound.clone();
        bytes[row + 64..row + 72].copy_from_slice(&budget.to_le_bytes());
        bytes[row + 72..row + 76].copy_from_slice(&first.to_le_bytes());
        let (verdict, found) = findings(&bytes);
        assert_eq!(verdict, Verdict::Damaged, "{budget} {first}: {found:?}");
        assert!(found.iter().any(|(code, _)| *code == "namespace_budget"), "{budget} {first}: {found:?}");
    }
}
