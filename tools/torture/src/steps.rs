//! The library's steps, where they are compiled in. Without them everything here still compiles (and is linted), and
//! `main` refuses to run.

pub(crate) use maru::step::Step;

#[cfg(feature = "steps")]
pub(crate) use maru::step::{Action, arm, counts, disarm};

#[cfg(not(feature = "steps"))]
pub(crate) use off::{Action, arm, counts, disarm};

/// Whether a child can be stopped at a step.
pub(crate) const fn enabled() -> bool {
    cfg!(feature = "steps") && maru::step::enabled()
}

#[cfg(not(feature = "steps"))]
mod off {
    use super::Step;

    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(crate) enum Action {
        Kill,
        Stop,
    }

    pub(crate) fn arm(_: Step, _: u64, _: Action) {}

    pub(crate) fn disarm() {}

    pub(crate) fn counts() -> Vec<(&'static str, u64)> {
        Step::ALL.iter().map(|step| (step.name(), 0)).collect()
    }
}
