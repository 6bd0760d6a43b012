//! Real processes on real regions, driven through the shell.
//!
//! Each file opens with the kind of fault that it guards against: how it shows (symptom) and where it comes from (cause).
//! A test that needs what this machine has not says SKIPPED on standard error.
//!
//! | file | guards |
//! | --- | --- |
//! | `attach_cuts.rs` | files that are shorter or longer than their region |
//! | `altered_headers.rs` | versions, features, byte order, alignment, checksums |
//! | `backing_space.rs` | no room, wrong places, restarts |
//! | `format_life.rs` | two formatters, replaced files |
//! | `format_deaths.rs` | formatters that stop or die at a step |
//! | `partitions.rs` | several regions in one file; configurations |
//! | `modes.rs` | header-only and read-only |
//! | `same_keys.rs` | one key stored by many at once |
//! | `handles.rs` | tokens and handles: second, foreign, made up |
//! | `gone.rs` | a hit that is gone before the load |
//! | `sizes.rs` | lengths and sizes at their edges |
//! | `forked.rs` | handles in a forked child |
//! | `namespaces_and_pids.rs` | process ids that mean something else to somebody else |
//! | `table_full.rs` | a table of participants that fills with the dead |
//! | `clocks.rs` | clocks that jump, processes that pause |
//! | `restarts.rs` | an engine that is back before anybody noticed |
//! | `dead_writers.rs` | writers that die or stop, and the accounts afterwards |
//! | `lease_handles.rs` | leases that nobody gives back |
//! | `slow_readers.rs` | a slot that is used again under a slow reader |
//! | `pools.rs` | stores of pools and grants of a host, between processes |
//! | `lines.rs` | the shell itself |
//!
//! Beside them: `driver.rs` talks to shells, `accounts.rs` counts, `unshared.rs` makes namespaces.

mod accounts;
mod altered_headers;
mod attach_cuts;
mod backing_space;
mod clocks;
mod dead_writers;
mod driver;
mod forked;
mod format_deaths;
mod format_life;
mod gone;
mod handles;
mod lease_handles;
mod lines;
mod modes;
mod namespaces_and_pids;
mod partitions;
mod pools;
mod restarts;
mod same_keys;
mod sizes;
mod slow_readers;
mod table_full;
mod unshared;
