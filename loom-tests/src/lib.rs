//! What every model of this crate is made of: a name, a bound, the threads, and the outcomes it must have reached.
//!
//! A model that passes because nothing was explored looks exactly like one that passes because all is well. So each
//! one says which outcomes it reached (`Seen::reached`), and `holds` compares them with the ones that must be possible;
//! and each has twins that take one ordering, fence or second look away and have to break a claim (`fails_without`), at
//! the same bound.
//!
//! `every.rs` has loom below it, which tries every order of two or three threads; `drawn.rs` has shuttle, which draws
//! long runs of many. `README.md` is the index of the models.
//!
//! Built without `--cfg maru_loom`, this crate is empty.

#![cfg(maru_loom)]

use std::any::Any;
use std::cell::Cell;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, Once, PoisonError};

pub use maru::sync::weak::Edge;

#[cfg(maru_shuttle)]
mod drawn;
#[cfg(not(maru_shuttle))]
mod every;

#[cfg(maru_shuttle)]
pub use drawn::{Model, one_in, pick};
#[cfg(not(maru_shuttle))]
pub use every::{Here, Model, Role, all, both};

/// Says that a claim of the model is broken. What a twin without one of its edges must come to.
#[macro_export]
macro_rules! claim {
    ($holds:expr, $($what:tt)+) => {
        if !$holds {
            panic!("claim broken: {}", format_args!($($what)+));
        }
    };
}

/// Outcomes reached so far, over all executions of a model. Outside of what loom explores.
#[derive(Clone, Default)]
pub struct Seen {
    outcomes: Arc<Mutex<BTreeSet<String>>>,
}

impl Seen {
    /// One execution ended like this.
    pub fn reached(&self, outcome: impl Into<String>) {
        self.outcomes.lock().unwrap_or_else(PoisonError::into_inner).insert(outcome.into());
    }
    fn outcomes(&self) -> BTreeSet<String> {
        self.outcomes.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// What a panic said.
fn message(payload: Box<dyn Any + Send>) -> String {
    let text = payload.downcast_ref::<String>().cloned();
    text.or_else(|| payload.downcast_ref::<&str>().map(ToString::to_string)).unwrap_or_default()
}

thread_local! {
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Explores without `edge`. A twin's panic is its success; only `holds` and `fails_without` say what came of it.
fn quietly<T>(without: Option<Edge>, explore: impl FnOnce() -> T) -> T {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !QUIET.get() {
                before(info);
            }
        }));
    });
    maru::sync::weak::take(without);
    QUIET.set(true);
    let explored = explore();
    QUIET.set(false);
    maru::sync::weak::take(None);
    explored
}
