//! Budgets of namespaces: never exceeded, exact, and at nobody else's cost.

use super::{Scratch, keeping, namespace, object, payload, store};
use crate::{
    Batch, Budget, NamespaceError, NamespaceId, Region, Reserve, ReserveOptions, Retire, Role, Session, Why, Wish,
};

const BLOCK: usize = 4096;

fn region(scratch: &Scratch) -> Region {
    scratch.region(Wish::of_slots(1 << 20, BLOCK as u64))
}

/// Slots of a namespace from `Pending` on, tokens spent, budget.
fn held(session: &Session, ns: NamespaceId) -> (u32, u32, Option<u64>) {
    let usage = session.namespace_usage(&ns).expect("usage");
    (usage.slots.iter().sum(), usage.spent_tokens, usage.budget_slots)
}

/// B12: stored + refused = asked, each success is a hit right after, and a refusal costs no hit.
#[test]
fn a_spent_budget_refuses_where_the_session_keeps() {
    let scratch = Scratch::new();
    let region = region(&scratch);
    let session = region.session_with("a", Role::Worker, keeping()).expect("attach");
    let ns = session.namespace_with_budget(&namespace("t"), Budget::Slots(8)).expect("namespace");
    let (mut stored, mut refused) = (0, 0);
    for number in 0..20 {
        match store(&session, &object(ns, number), &payload(number, BLOCK)) {
            "stored" => stored += 1,
            "over_budget" => refused += 1,
            other => panic!("{other}"),
        }
    }
    assert_eq!((stored, refused), (8, 12));
    assert!((0..8).all(|number| session.probe(&object(ns, number)).expect("probe").is_hit()));
    assert_eq!(held(&session, ns), (8, 8, Some(8)));
    // What comes free can be spent again, whatever freed it.
    assert_eq!(session.retire(&object(ns, 3)).expect("retire"), Retire::Retired);
    assert_eq!(held(&session, ns), (7, 7, Some(8)));
    let open = session.reserve(&object(ns, 50), 64, ReserveOptions::default()).expect("reserve").granted();
    assert_eq!(held(&session, ns), (8, 8, Some(8)), "an open reservation is spent");
    assert!(matches!(
        session.reserve(&object(ns, 51), 64, ReserveOptions::default()).expect("reserve"),
        Reserve::Refused(Why::OverBudget)
    ));
    open.expect("granted").abort().expect("abort");
    assert_eq!(held(&session, ns), (7, 7, Some(8)));
    assert_eq!(region.usage().slots[4], 7, "a refused store leaves no claim behind");
    assert_eq!(region.usage().slots[0], region.usage().capacity_slots - 7);
}

/// At its budget a namespace makes room from its own: a noisy tenant costs nobody else a hit.
#[test]
fn a_noisy_tenant_evicts_its_own_blocks() {
    let scratch = Scratch::new();
    let region = region(&scratch);
    let session = region.session("a", Role::Worker).expect("attach");
    let slots = region.geometry().slot_count;
    let quiet = session.namespace_with_budget(&namespace("quiet"), Budget::Slots(slots / 2)).expect("namespace");
    let noisy = session.namespace_with_budget(&namespace("noisy"), Budget::Slots(slots / 2)).expect("namespace");
    for number in 0..u64::from(slots / 2) {
        assert_eq!(store(&session, &object(quiet, number), &payload(number, BLOCK)), "stored");
    }
    for number in 0..u64::from(slots) * 8 {
        assert_eq!(store(&session, &object(noisy, number), &payload(number, BLOCK)), "stored");
        assert!(session.probe(&object(noisy, number)).expect("probe").is_hit());
    }
    assert!((0..u64::from(slots / 2)).all(|number| session.probe(&object(quiet, number)).expect("probe").is_hit()));
    assert_eq!(held(&session, quiet), (slots / 2, slots / 2, Some(u64::from(slots / 2))));
    assert!(held(&session, noisy).0 <= slots / 2);
    // All of its blocks are read: a refusal, and the others are left alone.
    let mine: Vec<_> = (0..u64::from(slots) * 8)
        .map(|number| object(noisy, number))
        .filter(|object| session.probe(object).expect("probe").is_hit())
        .collect();
    let leases = session.acquire(&mine, Batch::Each).expect("acquire");
    assert_eq!(store(&session, &object(noisy, 1 << 40), &payload(0, BLOCK)), "over_budget");
    drop(leases);
    assert_eq!(store(&session, &object(noisy, 1 << 40), &payload(0, BLOCK)), "stored");
}

#[test]
fn odd_budgets_are_what_they_say() {
    let scratch = Scratch::new();
    let region = scratch.region(Wish::of_slots(4 << 20, BLOCK as u64));
    let session = region.session("a", Role::Worker).expect("attach");
    let slots = region.geometry().slot_count;
    let nothing = session.namespace_with_budget(&namespace("0"), Budget::Slots(0)).expect("namespace");
    assert_eq!(store(&session, &object(nothing, 1), &payload(1, BLOCK)), "over_budget");
    let one = session.namespace_with_budget(&namespace("1"), Budget::Slots(1)).expect("namespace");
    for number in 0..10 {
        assert_eq!(store(&session, &object(one, number), &payload(number, BLOCK)), "stored");
    }
    assert_eq!(held(&session, one), (1, 1, Some(1)));
    // Bytes round down to slots; less than a slot is none.
    let bytes = session.namespace_with_budget(&namespace("b"), Budget::Bytes(3 * BLOCK as u64 - 1)).expect("namespace");
    assert_eq!(held(&session, bytes).2, Some(2));
    let less = session.namespace_with_budget(&namespace("l"), Budget::Bytes(BLOCK as u64 - 1)).expect("namespace");
    assert_eq!(held(&session, less).2, Some(0));
    // More than the region is the region.
    let all = session.namespace_with_budget(&namespace("all"), Budget::Slots(u32::MAX)).expect("namespace");
    assert_eq!(held(&session, all).2, Some(u64::from(slots)));
    // Given once.
    assert_eq!(session.namespace(&namespace("1")).expect("found"), one);
    assert_eq!(session.namespace_with_budget(&namespace("1"), Budget::Slots(1)).expect("the same"), one);
    let other = session.namespace_with_budget(&namespace("1"), Budget::Slots(2)).expect_err("another budget");
    assert_eq!(other, NamespaceError::Budget { asked: 2, found: Some(1) });
    session.namespace(&namespace("free")).expect("no budget");
    let none = session.namespace_with_budget(&namespace("free"), Budget::Slots(2)).expect_err("has none");
    assert_eq!(none, NamespaceError::Budget { asked: 2, found: None });
    assert!(none.to_string().contains("budget is none"), "{none}");
    // Tokens are twice the slots unless said otherwise; what is dealt is gone.
    let spent = 1 + 2 + slots;
    let left = 2 * slots - spent;
    let error = session.namespace_with_budget(&namespace("x"), Budget::Slots(slots)).expect_err("not enough tokens");
    assert_eq!(error, NamespaceError::Tokens { asked: slots, left, tokens: 2 * slots });
}

/// Four threads store into one budget at once, in sessions of their own: at no sample more than the budget.
#[test]
fn concurrent_stores_never_exceed_a_budget() {
    let scratch = Scratch::new();
    let region = region(&scratch);
    let watcher = region.session("watcher", Role::Tool).expect("attach");
    let budget = 10;
    let ns = watcher.namespace_with_budget(&namespace("t"), Budget::Slots(budget)).expect("namespace");
    let over = std::thread::scope(|scope| {
        let storers: Vec<_> = (0..4u64)
            .map(|worker| {
                let region = &region;
                scope.spawn(move || {
                    let session = region.session("w", Role::Worker).expect("attach");
                    let ns = session.namespace(&namespace("t")).expect("namespace");
                    let mut stored = 0;
                    for number in 0..600 {
                        let number = worker << 32 | number;
                        match store(&session, &object(ns, number), &payload(number, BLOCK)) {
                            "stored" => stored += 1,
                            "over_budget" | "contended" => {}
                            other => panic!("{other}"),
                        }
                    }
                    session.close().expect("nothing held");
                    stored
                })
            })
            .collect();
        let mut most = 0;
        while storers.iter().any(|storer| !storer.is_finished()) {
            // Words are read one after another, so slots that move while they are read may count twice or not at all:
            // tokens are what is exact. A slot is counted by its token.
            most = most.max(watcher.namespace_usage(&ns).expect("usage").spent_tokens);
        }
        let stored: u32 = storers.into_iter().map(|storer| storer.join().expect("no panic")).sum();
        assert!(stored > 1200, "{stored}");
        most
    });
    assert!(over <= budget, "{over} of {budget}");
    let (slots, spent, _) = held(&watcher, ns);
    assert!(slots == spent && spent <= budget, "{slots} slots, {spent} tokens");
}

/// A session that refuses where there is no room, and a namespace whose budget of four is spent on blocks of a generation
/// that has ended.
fn spent_and_ended(scratch: &Scratch) -> (Session, NamespaceId) {
    let session = region(scratch).session_with("a", Role::Worker, keeping()).expect("attach");
    let old = session.namespace_with_budget(&namespace("t"), Budget::Slots(4)).expect("namespace");
    for number in 0..4 {
        assert_eq!(store(&session, &object(old, number), &payload(number, BLOCK)), "stored");
    }
    assert!(session.invalidate(old).expect("invalidate"));
    let new = session.namespace(&namespace("t")).expect("namespace");
    (session, new)
}

/// Invalidated blocks still take space, and so still count, until they are drained.
#[test]
fn blocks_of_an_ended_generation_count_until_they_are_gone() {
    let scratch = Scratch::new();
    let (session, new) = spent_and_ended(&scratch);
    assert_eq!(held(&session, new), (4, 4, Some(4)));
    assert_eq!(session.reclaim().expect("reclaim").freed_slots, 4);
    assert_eq!(held(&session, new), (0, 0, Some(4)));
    assert_eq!(store(&session, &object(new, 1), &payload(1, BLOCK)), "stored");
}

/// Symptom: after a weight update a tenant that refuses where there is no room is refused for ever. Cause: tokens stay
/// spent on blocks that nobody can find, and nobody is blocked by them but this very store.
#[test]
fn a_spent_budget_frees_what_an_ended_generation_left() {
    let scratch = Scratch::new();
    let (session, new) = spent_and_ended(&scratch);
    assert_eq!(store(&session, &object(new, 1), &payload(1, BLOCK)), "stored");
    assert!(held(&session, new).0 <= 4);
}
