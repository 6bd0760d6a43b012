//! From the library's errors to the exception classes of `maru.errors`.
//!
//! The classes are written in Python, where they are read; this file looks them up once and says which one an error
//! belongs to, and its `code`.

use maru::{
    AttachError, BuildError, CallError, LoadError, NamespaceError, OpenError, PoolError, StillHeld, StoreError,
    WriteError,
};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyType};

/// An exception of class `class` with these facts as attributes. Where the class cannot be had (the package is broken),
/// that is the error.
pub(crate) fn exception(py: Python<'_>, class: &str, message: &str, facts: &[(&str, &str)]) -> PyErr {
    let made = || -> PyResult<PyErr> {
        let class = py.import("maru.errors")?.getattr(class)?.cast_into::<PyType>()?;
        let kwargs = PyDict::new(py);
        for (name, value) in facts {
            kwargs.set_item(name, value)?;
        }
        Ok(PyErr::from_value(class.call((message,), Some(&kwargs))?))
    };
    made().unwrap_or_else(|error| error)
}

/// An argument that cannot be.
pub(crate) fn argument(py: Python<'_>, field: &str, found: &str, wanted: &str) -> PyErr {
    let message = format!("{field} is {found}, wanted {wanted}");
    exception(py, "ArgumentError", &message, &[("field", field), ("found", found), ("wanted", wanted)])
}

/// The session or the region handle has been closed.
pub(crate) fn closed(py: Python<'_>, what: &str) -> PyErr {
    exception(py, "CallError", &format!("the {what} is closed"), &[("code", "closed")])
}

/// An object that another process cannot use, and what to do instead.
pub(crate) fn not_picklable(class: &str) -> PyErr {
    PyTypeError::new_err(format!(
        "cannot pickle maru.{class}: it belongs to its process; open the region (and register the namespace) in the other one"
    ))
}

/// The handle belongs to the parent of this process.
pub(crate) fn other_process(py: Python<'_>) -> PyErr {
    CallError::ForeignProcess.raise(py)
}

/// An error that knows its exception class.
pub(crate) trait Raise {
    /// The exception.
    fn raise(self, py: Python<'_>) -> PyErr;
}

/// `result.or_raise(py)?`.
pub(crate) trait OrRaise<T> {
    /// The value, or the error as its exception.
    fn or_raise(self, py: Python<'_>) -> PyResult<T>;
}

impl<T, E: Raise> OrRaise<T> for Result<T, E> {
    fn or_raise(self, py: Python<'_>) -> PyResult<T> {
        self.map_err(|error| error.raise(py))
    }
}

fn coded(py: Python<'_>, class: &str, error: &dyn core::fmt::Display, code: &str) -> PyErr {
    exception(py, class, &error.to_string(), &[("code", code)])
}

impl Raise for CallError {
    fn raise(self, py: Python<'_>) -> PyErr {
        let (class, code) = match self {
            Self::Fenced { .. } => ("Fenced", "fenced"),
            Self::ForeignProcess => ("OtherProcess", "other_process"),
            Self::Replaced => ("Replaced", "replaced"),
            Self::Resized { .. } => ("Resized", "resized"),
            Self::Lost => ("Lost", "lost"),
            Self::NoPayload => ("NoPayload", "no_payload"),
            Self::ForeignNamespace { .. } => ("CallError", "foreign_namespace"),
            _ => ("CallError", "call"),
        };
        coded(py, class, &self, code)
    }
}

/// The word for an error of a call, as reasons of loads and stores use it.
pub(crate) fn call_code(error: &CallError) -> &'static str {
    match error {
        CallError::Fenced { .. } => "fenced",
        CallError::ForeignProcess => "other_process",
        CallError::Replaced => "replaced",
        CallError::Resized { .. } => "resized",
        CallError::Lost => "lost",
        CallError::NoPayload => "no_payload",
        CallError::ForeignNamespace { .. } => "foreign_namespace",
        _ => "call",
    }
}

/// The word for a failed load.
pub(crate) fn load_code(error: &LoadError) -> &'static str {
    match error {
        LoadError::Call(error) => call_code(error),
        LoadError::Expired => "expired",
        LoadError::Invalidated => "invalidated",
        LoadError::Damaged { .. } => "damaged",
        LoadError::Length { .. } => "length",
        _ => "load",
    }
}

impl Raise for LoadError {
    fn raise(self, py: Python<'_>) -> PyErr {
        match self {
            Self::Call(error) => error.raise(py),
            other => coded(py, "LoadError", &other, load_code(&other)),
        }
    }
}

/// The word for a piece that was not written.
pub(crate) fn write_code(error: &WriteError) -> &'static str {
    match error {
        WriteError::Call(error) => call_code(error),
        WriteError::OutOfBounds { .. } => "out_of_bounds",
        WriteError::Superseded => "superseded",
        WriteError::Ended => "ended",
        _ => "write",
    }
}

impl Raise for WriteError {
    fn raise(self, py: Python<'_>) -> PyErr {
        match self {
            Self::Call(error) => error.raise(py),
            other => coded(py, "WriteError", &other, write_code(&other)),
        }
    }
}

impl Raise for OpenError {
    fn raise(self, py: Python<'_>) -> PyErr {
        let code = match &self {
            Self::Backing(_) => "backing",
            Self::Superblock { .. } => "superblock",
            Self::Spec { .. } => "spec",
            Self::ReadOnlyFormat => "read_only_format",
            Self::SizeMissing { .. } => "size_missing",
            Self::NotFormatted { .. } => "not_formatted",
            Self::FormatIncomplete { .. } => "format_incomplete",
            Self::NotBlank { .. } => "not_blank",
            Self::InUse { .. } => "in_use",
            Self::Config { .. } => "config",
            Self::BadConfig { .. } => "bad_config",
            Self::Regime { .. } => "regime",
            Self::NotShared { .. } => "not_shared",
            Self::Overlap { .. } => "overlap",
            Self::Replaced { .. } => "replaced",
            _ => "open",
        };
        coded(py, "OpenError", &self, code)
    }
}

impl Raise for AttachError {
    fn raise(self, py: Python<'_>) -> PyErr {
        let code = match self {
            Self::Call(error) => return error.raise(py),
            Self::Full { .. } => "full",
            Self::EngineName { .. } => "engine_name",
            Self::Options { .. } => "options",
            Self::ReadOnly => "read_only",
            Self::Lock(_) => "lock",
            _ => "attach",
        };
        coded(py, "AttachError", &self, code)
    }
}

impl Raise for NamespaceError {
    fn raise(self, py: Python<'_>) -> PyErr {
        let code = match self {
            Self::Call(error) => return error.raise(py),
            Self::Missing { .. } => "missing",
            Self::Field { .. } => "field",
            Self::TooLong { .. } => "too_long",
            Self::Full { .. } => "full",
            Self::Budget { .. } => "budget",
            Self::Tokens { .. } => "tokens",
            Self::Busy { .. } => "busy",
            _ => "namespace",
        };
        coded(py, "NamespaceError", &self, code)
    }
}

impl Raise for PoolError {
    fn raise(self, py: Python<'_>) -> PyErr {
        let (class, code) = match &self {
            Self::Name { .. } => ("ConfigError", "pool_name"),
            Self::Open { .. } => ("OpenError", "open"),
            Self::Attach { .. } => ("AttachError", "attach"),
            Self::Entry { .. } => ("OpenError", "pool_entry"),
            _ => ("OpenError", "pool"),
        };
        coded(py, class, &self, code)
    }
}

impl Raise for BuildError {
    fn raise(self, py: Python<'_>) -> PyErr {
        coded(py, "ConfigError", &self, "pools")
    }
}

impl Raise for StoreError {
    fn raise(self, py: Python<'_>) -> PyErr {
        match self {
            Self::ForeignProcess => CallError::ForeignProcess.raise(py),
            Self::Namespace { source, .. } if matches!(source, NamespaceError::Missing { .. }) => source.raise(py),
            Self::Namespace { .. } => coded(py, "NamespaceError", &self, "no_pool"),
            Self::ForeignNamespace => coded(py, "CallError", &self, "foreign_namespace"),
            Self::NoPool { .. } => coded(py, "CallError", &self, "no_pool"),
            _ => coded(py, "CallError", &self, "store"),
        }
    }
}

/// A session that cannot be closed: what it holds, and calls of other threads that are still in it.
pub(crate) fn still_held(py: Python<'_>, held: StillHeld, calls: bool) -> PyErr {
    let also = if calls { ", or a call of another thread is in it" } else { "" };
    let error = exception(py, "StillHeld", &format!("{held}{also}; release them first"), &[]);
    let value = error.value(py);
    let set = value.setattr("leases", held.leases).and_then(|()| value.setattr("reservations", held.reservations));
    set.err().unwrap_or(error)
}
