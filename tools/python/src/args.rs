//! What Python hands over, checked: whole numbers with bounds, words out of a list, digests, options of a dictionary.
//!
//! Python's numbers have no end, so every one is asked against its bounds before it becomes one of ours, and the
//! answer names the field.

use std::path::PathBuf;

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyDict, PyInt};

use crate::errors::argument;

/// How a value looks in a message: its `repr`, cut where it is long.
pub(crate) fn shown(value: &Bound<'_, PyAny>) -> String {
    let text = value.repr().map_or_else(|_| "(unprintable)".to_owned(), |text| text.to_string());
    match text.char_indices().nth(80) {
        Some((end, _)) => format!("{}... ({} characters)", &text[..end], text.chars().count()),
        None => text,
    }
}

/// A whole number from `min` to `max`.
pub(crate) fn whole(field: &str, value: &Bound<'_, PyAny>, min: u64, max: u64) -> PyResult<u64> {
    let wanted = || match max {
        u64::MAX => format!("a whole number of at least {min}, below 2**64"),
        max => format!("a whole number from {min} to {max}"),
    };
    let number = if value.is_instance_of::<PyBool>() { None } else { index(value) };
    match number {
        None => Err(argument(value.py(), field, &shown(value), &wanted())),
        Some(number) => match number.extract::<u64>() {
            Ok(found) if (min..=max).contains(&found) => Ok(found),
            _ => Err(argument(value.py(), field, &shown(value), &wanted())),
        },
    }
}

/// The `int` that a value is or stands for (`__index__`).
fn index<'py>(value: &Bound<'py, PyAny>) -> Option<Bound<'py, PyInt>> {
    if let Ok(number) = value.cast::<PyInt>() {
        return Some(number.clone());
    }
    value.call_method0("__index__").ok()?.cast_into::<PyInt>().ok()
}

/// As [`whole`], in 32 bits.
pub(crate) fn whole32(field: &str, value: &Bound<'_, PyAny>, min: u32) -> PyResult<u32> {
    Ok(whole(field, value, min.into(), u32::MAX.into())? as u32)
}

/// As [`whole`], in 16 bits.
pub(crate) fn whole16(field: &str, value: &Bound<'_, PyAny>) -> PyResult<u16> {
    Ok(whole(field, value, 0, u16::MAX.into())? as u16)
}

/// One of a list of words.
pub(crate) fn choice<T: Copy>(field: &str, value: &Bound<'_, PyAny>, known: &[(&str, T)]) -> PyResult<T> {
    let found = value.extract::<String>().ok();
    let hit = known.iter().find(|(word, _)| found.as_deref() == Some(*word));
    hit.map(|(_, meaning)| *meaning).ok_or_else(|| {
        let words: Vec<&str> = known.iter().map(|(word, _)| *word).collect();
        argument(value.py(), field, &shown(value), &format!("one of {}", words.join(", ")))
    })
}

/// A text.
pub(crate) fn text(field: &str, value: &Bound<'_, PyAny>) -> PyResult<String> {
    value.extract::<String>().map_err(|_| argument(value.py(), field, &shown(value), "a text (str)"))
}

/// A path: `str`, `bytes` or `os.PathLike`.
pub(crate) fn path(field: &str, value: &Bound<'_, PyAny>) -> PyResult<PathBuf> {
    let wanted = "a path (str, bytes or os.PathLike)";
    value.extract::<PathBuf>().map_err(|_| argument(value.py(), field, &shown(value), wanted))
}

/// A yes or no.
pub(crate) fn flag(field: &str, value: &Bound<'_, PyAny>) -> PyResult<bool> {
    value.extract::<bool>().map_err(|_| argument(value.py(), field, &shown(value), "True or False"))
}

/// A number from 0 to 1; the library has narrower bounds and says them.
pub(crate) fn fraction(field: &str, value: &Bound<'_, PyAny>) -> PyResult<f64> {
    value.extract::<f64>().map_err(|_| argument(value.py(), field, &shown(value), "a number"))
}

/// Exactly `N` bytes.
pub(crate) fn bytes<const N: usize>(field: &str, value: &Bound<'_, PyAny>) -> PyResult<[u8; N]> {
    let wrong = |found: &str| argument(value.py(), field, found, &format!("{N} bytes"));
    let found = value.cast::<PyBytes>().map_err(|_| wrong(&shown(value)))?.as_bytes();
    found.try_into().map_err(|_| wrong(&format!("{} bytes", found.len())))
}

/// Options of a dictionary, each asked for once; what is left over is refused by name.
pub(crate) struct Options<'py> {
    /// What the options belong to, for messages.
    whose: String,
    dict: Bound<'py, PyDict>,
    known: Vec<&'static str>,
}

impl<'py> Options<'py> {
    pub(crate) fn new(whose: &str, dict: &Bound<'py, PyDict>) -> PyResult<Self> {
        Ok(Self { whose: whose.to_owned(), dict: dict.copy()?, known: Vec::new() })
    }

    /// The value of an option; `None` where it is not said, or said to be `None`.
    pub(crate) fn take(&mut self, name: &'static str) -> PyResult<Option<Bound<'py, PyAny>>> {
        self.known.push(name);
        let Some(value) = self.dict.get_item(name)? else { return Ok(None) };
        self.dict.del_item(name)?;
        Ok((!value.is_none()).then_some(value))
    }

    /// As [`Options::take`], read by `read`, which is given the field's name.
    pub(crate) fn read<T>(
        &mut self,
        name: &'static str,
        read: impl FnOnce(&str, &Bound<'py, PyAny>) -> PyResult<T>,
    ) -> PyResult<Option<T>> {
        self.take(name)?.map(|value| read(name, &value)).transpose()
    }

    /// Refuses options that nobody asked for.
    pub(crate) fn finish(self) -> PyResult<()> {
        let Some((name, _)) = self.dict.iter().next() else { return Ok(()) };
        let Ok(found) = name.extract::<String>() else {
            return Err(PyTypeError::new_err(format!(
                "{}: option names are texts, found {}",
                self.whose,
                shown(&name)
            )));
        };
        let wanted = format!("one of {}", self.known.join(", "));
        Err(argument(name.py(), &format!("{}: option {found}", self.whose), "unknown", &wanted))
    }
}
