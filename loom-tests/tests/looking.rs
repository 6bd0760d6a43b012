//! The models' own ground: that every order of two threads' accesses is tried.
//!
//! Loom 0.7.3 forgets a thread's load of a word when another thread loads the same word before it swaps it. The first
//! test shows that with loom's own atomic; the second that Maru's wrapper of it is not blind there.

#![cfg(all(maru_loom, not(maru_shuttle)))]

use std::sync::Arc;

use maru::sync::{AtomicU64, Ordering};
use maru_loom_tests::{Model, Seen};

macro_rules! look_and_swap {
    ($seen:expr, $atomic:ty) => {{
        let word = Arc::new(<$atomic>::new(0));
        let swapper = {
            let word = Arc::clone(&word);
            loom::thread::spawn(move || {
                if word.load(Ordering::Acquire) == 0 {
                    let _ = word.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Relaxed);
                }
            })
        };
        $seen.reached(format!("looker saw {}", word.load(Ordering::Acquire)));
        swapper.join().expect("no panic");
    }};
}

fn with_loom(seen: &Seen) {
    look_and_swap!(seen, loom::sync::atomic::AtomicU64);
}

fn with_ours(seen: &Seen) {
    look_and_swap!(seen, AtomicU64);
}

#[test]
fn loom_alone_does_not_try_the_swap_before_the_look() {
    Model { name: "looking: loom's atomic", bound: None, run: with_loom }.holds(&["looker saw 0"]);
}

#[test]
fn the_wrapper_tries_both_orders() {
    Model { name: "looking: the wrapper", bound: None, run: with_ours }.holds(&["looker saw 0", "looker saw 1"]);
}
