//! The simulator against results found by hand, and against the numbers that are known of the traces.

use crate::clock::Clock;
use crate::contest::entrants;
use crate::optimum::Optimum;
use crate::peers::{Lru, OfFoyer};
use crate::replay::{Cache, replay};
use crate::slots::{FURTHEST, LIFETIME, Settings, Slots};
use crate::trace::{NAMES, Trace, default_folder};

/// Letters are blocks of one request each, words are requests.
fn requests(text: &str) -> Trace {
    let words: Vec<Vec<u64>> = text.split(' ').map(|word| word.bytes().map(u64::from).collect()).collect();
    Trace::of("by hand", &words).expect("a prefix tree")
}

fn hits(trace: &Trace, mut cache: impl Cache) -> usize {
    replay(trace, &mut cache)
}

#[test]
fn single_blocks_by_hand() {
    // FIFO: d drops a though it was just read; a comes back for b, e takes c's place, and the last a is found.
    let trace = requests("a b c a d a e a");
    assert_eq!(hits(&trace, OfFoyer::fifo(3)), 2);
    // LRU keeps a throughout.
    assert_eq!(hits(&trace, Lru::new(3)), 3);
    // SIEVE: a is visited, so d takes b's place and e takes c's.
    assert_eq!(hits(&trace, OfFoyer::sieve(3)), 3);
    assert_eq!(hits(&trace, Optimum::new(3, &trace)), 3);
}

#[test]
fn a_loop_is_lost_by_lru_and_half_kept_by_the_optimum() {
    let trace = requests("a b c a b c a b c");
    assert_eq!(hits(&trace, OfFoyer::fifo(2)), 0);
    assert_eq!(hits(&trace, Lru::new(2)), 0);
    // a and b stay, c is refused each time, but for the last round, when it no longer matters.
    assert_eq!(hits(&trace, Optimum::new(2, &trace)), 4);
}

#[test]
fn what_lies_behind_a_hole_is_no_hit() {
    // Three slots, LRU: x drops a, which is the head of abc; b and c are there and are worth nothing.
    let trace = requests("abc x abc");
    assert_eq!(hits(&trace, Lru::new(3)), 0);
    // With the deepest first, x drops c.
    assert_eq!(hits(&trace, Lru::deepest_first(3)), 2);
    // The optimum refuses x.
    assert_eq!(hits(&trace, Optimum::new(3, &trace)), 3);
}

#[test]
fn s3_fifo_forgets_what_came_once() {
    // Twenty blocks once, with a in between each: a is moved to the main queue and stays.
    let trace = requests("a a b a c a d a e a f a g a h a i a j a k a l a m a n a o a p a q a r a s a t a");
    assert_eq!(hits(&trace, OfFoyer::s3_fifo(10)), 20);
}

#[test]
fn a_clock_gives_a_visited_block_a_second_pass() {
    // a is visited before d comes, so the hand clears a and takes b.
    let trace = requests("a b c a d a b");
    assert_eq!(hits(&trace, Clock::new(3, trace.distinct, 0, 1, 1)), 2);
    // Not visited: a goes.
    let trace = requests("a b c d a");
    assert_eq!(hits(&trace, Clock::new(3, trace.distinct, 0, 1, 1)), 0);
    // Of a window of three, the deepest goes: c.
    let trace = requests("abc x ab");
    assert_eq!(hits(&trace, Clock::new(3, trace.distinct, 0, 3, 1)), 2);
    assert_eq!(hits(&trace, Clock::new(3, trace.distinct, 0, 1, 1)), 0);
}

fn one_at_a_time() -> Settings {
    Settings { batch_most: 1, ..Settings::default() }
}

#[test]
fn slots_forget_what_was_read_longest_ago() {
    // Four slots, so a store is ten epochs. a is read after d; e takes b's place, f takes c's, and a is still there.
    let trace = requests("a b c d a e f a d b");
    assert_eq!(hits(&trace, Slots::new(4, trace.distinct, one_at_a_time())), 3, "a, a, d");
    // Whoever sets no mark is forgotten in the order of stores.
    let trace = requests("a b c d e a");
    assert_eq!(hits(&trace, Slots::new(4, trace.distinct, one_at_a_time())), 0);
}

#[test]
fn tails_leave_sooner() {
    // d follows a run of two and is stored after c; x takes its place, and c's if tails are as the rest.
    let trace = requests("ab c abd x c");
    let tails = Slots::new(4, trace.distinct, one_at_a_time());
    let alike = Slots::new(4, trace.distinct, Settings { tail_sooner: 0, ..one_at_a_time() });
    assert_eq!(hits(&trace, tails), 3, "ab, c");
    assert_eq!(hits(&trace, alike), 2, "ab");
}

#[test]
fn due_epochs_never_lie_outside_seven_bits() {
    // Everything is read all the time while others come: the horizon must follow, and nothing may get stuck.
    let mut words: Vec<Vec<u64>> = Vec::new();
    for round in 0..2_000u64 {
        words.push(vec![round % 7]);
        words.push(vec![1_000 + round]);
    }
    let trace = Trace::of("by hand", &words).expect("a prefix tree");
    for capacity in [1, 2, 3, 8, 9, 50] {
        for lifetime in [1, 16, LIFETIME, FURTHEST] {
            let settings = Settings { lifetime, tail_sooner: lifetime / 3, ..Settings::default() };
            let mut slots = Slots::new(capacity, trace.distinct, settings);
            let found = replay(&trace, &mut slots);
            let held = (0..trace.distinct as u32).filter(|block| slots.contains(*block)).count();
            assert!(held <= capacity && held > 0, "{held} of {capacity}");
            assert!(capacity < 50 || lifetime < 16 || found >= 1_990, "{found} hits, lifetime {lifetime}");
            assert!(slots.looked_at_per_store() < 300.0, "{}", slots.looked_at_per_store());
        }
    }
}

#[test]
fn nobody_holds_more_than_fits_and_nobody_beats_the_optimum() {
    // A seeded tree: sixty heads, tails of their own.
    let mut state = 42u64;
    let mut draw = |below: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % below
    };
    let words: Vec<Vec<u64>> = (0..1_500)
        .map(|_| {
            let (head, length) = (draw(8) * draw(8), 1 + draw(9));
            let fork = draw(3);
            (0..length).map(|depth| head * 1_000 + depth * 10 + if depth > 4 { fork } else { 0 }).collect()
        })
        .collect();
    let mut seen = std::collections::HashMap::new();
    let tree = words.iter().map(|ids| {
        let mut path = 0u64;
        let named = ids.iter().map(|id| {
            path = path.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(id + 1);
            let next = seen.len() as u64;
            *seen.entry(path).or_insert(next)
        });
        named.collect()
    });
    let trace = Trace::of("seeded", &tree.collect::<Vec<_>>()).expect("a prefix tree");
    for capacity in [40, 100, 200] {
        let most = hits(&trace, Optimum::new(capacity, &trace));
        for entrant in entrants() {
            let mut cache = entrant.make(capacity, &trace);
            let found = replay(&trace, &mut *cache);
            let held = (0..trace.distinct as u32).filter(|block| cache.contains(*block)).count();
            assert!(held <= capacity, "{} holds {held} of {capacity}", entrant.name);
            assert!(found <= most && found * 5 > most, "{}: {found}, optimum {most}", entrant.name);
        }
    }
}

#[test]
fn traces_by_the_numbers_that_are_known() {
    for (name, hits_wanted, references) in [(NAMES[0], 105_710, 288_500), (NAMES[1], 77_953, 121_877)] {
        let trace = match Trace::read(&default_folder(), name) {
            Ok(trace) => trace,
            Err(why) => {
                println!("SKIPPED: {why}");
                continue;
            }
        };
        assert_eq!(trace.references, references);
        assert_eq!(hits(&trace, Lru::new(trace.distinct)), hits_wanted);
        assert_eq!(hits(&trace, Slots::new(trace.distinct, trace.distinct, Settings::default())), hits_wanted);
        // In a set that is closed under parents every block that is there is in the leading run (O3).
        let mut optimum = Optimum::new(trace.distinct / 10, &trace);
        let (mut in_runs, mut there) = (0, 0);
        for (number, blocks) in trace.requests.iter().enumerate() {
            let run = blocks.iter().take_while(|block| optimum.contains(**block)).count();
            in_runs += run;
            there += blocks.iter().filter(|block| optimum.contains(**block)).count();
            optimum.begin(number, run);
            for (depth, block) in blocks.iter().enumerate() {
                optimum.hit(*block, depth as u32);
            }
        }
        assert_eq!(in_runs, there);
    }
}

#[test]
fn a_trace_that_is_no_tree_is_refused() {
    let error = Trace::of("wrong", &[vec![1, 2], vec![3, 2]]).map(|_| ()).expect_err("two parents");
    assert!(error.contains("request 2") && error.contains("block 2"), "{error}");
    assert!(Trace::of("empty", &[]).is_err());
}
