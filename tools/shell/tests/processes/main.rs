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
//! | `lines.rs` | the shell itself |

mod altered_headers;
mod attach_cuts;
mod backing_space;
mod driver;
mod forked;
mod format_deaths;
mod format_life;
mod gone;
mod handles;
mod lines;
mod modes;
mod partitions;
mod same_keys;
mod sizes;
