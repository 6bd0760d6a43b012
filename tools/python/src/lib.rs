//! The native half of the Python package `maru`.
//!
//! The classes here are thin: they check what Python hands over, let go of the interpreter, call the library, and turn
//! its answers into words, numbers and buffers. What is decided here and nowhere else:
//!
//! * *Lifetimes.* What borrows in the library holds its session by a counted reference here (`owned.rs`), so a view keeps
//!   its lease, a lease its session, and a session its mapping, in whatever order Python lets go.
//! * *The interpreter is released* around every call that copies, waits, or looks at more than one block (`batch.rs`).
//!   Locks are never held while waiting for the interpreter.
//! * *Forked children.* Every object remembers its process and is asked about it first, before any lock: a child may have
//!   inherited a lock whose holder it has not. Dropping an object there touches nothing.
//! * *Numbers and words* are checked before they are used, and errors name the field (`args.rs`).
//!
//! | file | does |
//! | --- | --- |
//! | `region.rs` | `Region` |
//! | `session.rs` | `Session` |
//! | `pools.rs`, `pool_words.rs` | `Store`, several regions behind the verbs of a session |
//! | `batch.rs` | loads and stores of many blocks |
//! | `reservation.rs` | `Reserve`, `Reservation` |
//! | `lease.rs` | `Lease`, `Miss`, zero-copy views |
//! | `ids.rs` | `Namespace`, `ObjectId` |
//! | `owned.rs` | what borrows, kept with what it borrows from |
//! | `pinned.rs` | buffers of Python objects |
//! | `args.rs`, `errors.rs`, `usage.rs` | arguments, exceptions, accounts |

// A panic must reach Python as an exception and not end the interpreter.
#[cfg(panic = "abort")]
compile_error!("the Python module needs panic = \"unwind\"");

mod args;
mod batch;
mod errors;
mod ids;
mod lease;
mod owned;
mod pinned;
mod pool_words;
mod pools;
mod region;
mod reservation;
mod session;
mod usage;

use pyo3::prelude::*;

use crate::errors::exception;

/// Installs a handler for the whole process, after which memory of a region that is gone (a file that was cut, a device that
/// failed) makes calls raise Lost instead of ending the process with SIGBUS. To be called before regions are opened; what
/// is not a region's goes to the handler that was there before. Again is no error.
#[pyfunction]
fn catch_faults(py: Python<'_>) -> PyResult<()> {
    let failed = |error: maru::BackingError| exception(py, "MaruError", &error.to_string(), &[("code", "faults")]);
    maru::os::fault::install().map_err(failed)
}

/// The module `maru._maru`; the package `maru` says what is public.
#[pymodule]
fn _maru(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<region::PyRegion>()?;
    module.add_class::<session::PySession>()?;
    module.add_class::<pools::PyStore>()?;
    module.add_class::<ids::PyNamespace>()?;
    module.add_class::<ids::PyObjectId>()?;
    module.add_class::<reservation::PyReserve>()?;
    module.add_class::<reservation::PyReservation>()?;
    module.add_class::<lease::PyLease>()?;
    module.add_class::<lease::Miss>()?;
    module.add_function(wrap_pyfunction!(catch_faults, module)?)?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))
}
