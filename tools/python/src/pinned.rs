//! Buffers of Python objects, held still while the interpreter is released.
//!
//! A held buffer keeps its exporter from moving or freeing the bytes (a `bytearray` refuses to be resized, and so on).
//! It does not keep another Python thread from *changing* them: a block stored meanwhile may then fail its checksum
//! when it is loaded, which is what the checksum is for.

use core::slice;

use pyo3::buffer::PyUntypedBuffer;
use pyo3::prelude::*;

use crate::args::shown;
use crate::errors::argument;

/// A contiguous buffer, held.
pub(crate) struct Pinned(PyUntypedBuffer);

impl Pinned {
    /// Holds the buffer of `object` for reading.
    pub(crate) fn source(field: &str, object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let wanted = "an object with a contiguous buffer (bytes, memoryview, array, ...)";
        match PyUntypedBuffer::get(object) {
            Ok(buffer) if buffer.is_c_contiguous() => Ok(Self(buffer)),
            Ok(_) => Err(argument(object.py(), field, "not contiguous", wanted)),
            Err(_) => Err(argument(object.py(), field, &shown(object), wanted)),
        }
    }

    /// Holds the buffer of `object` for writing.
    pub(crate) fn target(field: &str, object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let pinned = Self::source(field, object)?;
        if pinned.0.readonly() {
            return Err(argument(object.py(), field, "read-only", "a writable buffer"));
        }
        Ok(pinned)
    }

    /// Holds each of a sequence for reading.
    pub(crate) fn sources(objects: &[Bound<'_, PyAny>]) -> PyResult<Vec<Self>> {
        objects.iter().enumerate().map(|(at, object)| Self::source(&format!("buffers[{at}]"), object)).collect()
    }

    /// Holds each of a sequence for writing.
    pub(crate) fn targets(objects: &[Bound<'_, PyAny>]) -> PyResult<Vec<Self>> {
        objects.iter().enumerate().map(|(at, object)| Self::target(&format!("buffers[{at}]"), object)).collect()
    }

    /// Its bytes, for a call that copies them out.
    ///
    /// # Safety
    /// The slice must not outlive the call that made it, and nobody may rely on its bytes standing still.
    pub(crate) unsafe fn as_slice(&self) -> &[u8] {
        let (start, length) = (self.0.buf_ptr().cast::<u8>().cast_const(), self.0.len_bytes());
        if length == 0 {
            return &[];
        }
        // SAFETY: a held C-contiguous buffer is `length` readable bytes from `start` until it is released, which is when
        // `self` goes. Changes by other threads are the caller's promise.
        unsafe { slice::from_raw_parts(start, length) }
    }

    /// Its bytes, for a call that copies into them.
    ///
    /// # Safety
    /// As [`Pinned::as_slice`]; and it was made by [`Pinned::target`] or [`Pinned::targets`].
    #[expect(clippy::mut_from_ref, reason = "the bytes are the exporter's, not this value's")]
    pub(crate) unsafe fn as_mut_slice(&self) -> &mut [u8] {
        let (start, length) = (self.0.buf_ptr().cast::<u8>(), self.0.len_bytes());
        if length == 0 {
            return &mut [];
        }
        // SAFETY: as above, and the exporter said that the buffer is writable.
        unsafe { slice::from_raw_parts_mut(start, length) }
    }
}
