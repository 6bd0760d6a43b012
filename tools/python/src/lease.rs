//! `Lease`, `Miss`, and blocks in place: what a reader gets.

use core::ffi::c_int;
use std::sync::{Arc, Mutex, PoisonError};

use maru::Verify;
use maru::os::fork::ProcessTag;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyMemoryView};

use crate::args;
use crate::errors::{OrRaise, exception, not_picklable, other_process};
use crate::owned::{OwnedLease, OwnedView, Owner};
use crate::pinned::Pinned;

/// A block that could not be had, and why.
#[pyclass(name = "Miss", module = "maru", frozen, get_all)]
pub(crate) struct Miss {
    /// The reason, a short word.
    why: String,
    /// The reason of each pool, in the read order; empty for a session.
    pools: Vec<(String, String)>,
}

impl Miss {
    pub(crate) fn new(why: &str, pools: Vec<(String, String)>) -> Self {
        Self { why: why.to_owned(), pools }
    }
}

#[pymethods]
impl Miss {
    fn __bool__(&self) -> bool {
        false
    }

    fn __repr__(&self) -> String {
        format!("Miss({})", self.why)
    }
}

/// Protection of one block until it is released and the last view of it is.
#[pyclass(name = "Lease", module = "maru", frozen, weakref)]
pub(crate) struct PyLease {
    /// None once released.
    lease: Mutex<Option<Arc<OwnedLease>>>,
    length: u32,
    pool: Option<String>,
    tag: ProcessTag,
}

impl PyLease {
    /// # Safety
    /// As [`OwnedLease::new`].
    pub(crate) unsafe fn new(lease: maru::Lease<'_>, owner: Owner, pool: Option<String>) -> Self {
        let length = lease.len();
        // SAFETY: passed on to the caller.
        let lease = unsafe { OwnedLease::new(lease, owner) };
        Self { lease: Mutex::new(Some(Arc::new(lease))), length, pool, tag: ProcessTag::current() }
    }

    fn held(&self, py: Python<'_>) -> PyResult<Arc<OwnedLease>> {
        if self.tag.is_foreign() {
            return Err(other_process(py));
        }
        let held = self.lease.lock().unwrap_or_else(PoisonError::into_inner).clone();
        held.ok_or_else(|| exception(py, "LoadError", "the lease has been released", &[("code", "released")]))
    }
}

#[pymethods]
impl PyLease {
    fn __len__(&self) -> usize {
        self.length as usize
    }

    fn __bool__(&self) -> bool {
        true
    }

    /// Name of the pool that the block lies in; None for a session.
    #[getter]
    fn pool(&self) -> Option<&str> {
        self.pool.as_deref()
    }

    /// Whether it has been released.
    #[getter]
    fn released(&self, py: Python<'_>) -> PyResult<bool> {
        if self.tag.is_foreign() {
            return Err(other_process(py));
        }
        Ok(self.lease.lock().unwrap_or_else(PoisonError::into_inner).is_none())
    }

    /// Copies the block into a writable buffer of exactly its length; returns the number of bytes. On any error the buffer
    /// holds zeros.
    #[pyo3(signature = (buffer, verify=None), text_signature = "($self, buffer, verify='always')")]
    fn read_into(
        &self,
        py: Python<'_>,
        buffer: &Bound<'_, PyAny>,
        verify: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<usize> {
        let lease = self.held(py)?;
        let verify = verified(verify)?;
        let target = Pinned::target("buffer", buffer)?;
        // SAFETY: used within this call, and held for writing.
        let bytes = unsafe { target.as_mut_slice() };
        py.detach(|| lease.get().read_into(bytes, verify)).or_raise(py)?;
        Ok(self.length as usize)
    }

    /// The block as new bytes.
    #[pyo3(signature = (verify=None), text_signature = "($self, verify='always')")]
    fn read<'py>(&self, py: Python<'py>, verify: Option<&Bound<'_, PyAny>>) -> PyResult<Bound<'py, PyBytes>> {
        let lease = self.held(py)?;
        let verify = verified(verify)?;
        PyBytes::new_with(py, self.length as usize, |bytes| {
            py.detach(|| lease.get().read_into(bytes, verify)).or_raise(py)
        })
    }

    /// The block in place, read-only, without a copy and without a checksum. The lease holds until the view, all views
    /// made of it (slices, arrays) and this object have let go.
    fn view<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyMemoryView>> {
        let lease = self.held(py)?;
        let view = py.detach(|| OwnedView::new(&lease)).or_raise(py)?;
        let block = Bound::new(py, Block { view, tag: self.tag })?;
        PyMemoryView::from(block.as_any())
    }

    /// The plain name of this lease, for `Session.release`.
    fn handle<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        Ok(PyBytes::new(py, &self.held(py)?.get().handle().to_bytes()))
    }

    /// Gives the lease up. It ends now, or with the last view. False: it had been released before.
    fn release(&self, py: Python<'_>) -> PyResult<bool> {
        if self.tag.is_foreign() {
            return Err(other_process(py));
        }
        Ok(self.lease.lock().unwrap_or_else(PoisonError::into_inner).take().is_some())
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyAny>) -> PyResult<()> {
        self.release(py).map(|_| ())
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(not_picklable("Lease"))
    }

    fn __repr__(&self) -> String {
        format!("Lease({} bytes)", self.length)
    }
}

/// When a load checks bytes against their checksum: "always", "never", or a number (one load in so many).
pub(crate) fn verified(verify: Option<&Bound<'_, PyAny>>) -> PyResult<Verify> {
    match verify {
        None => Ok(Verify::Always),
        Some(one_in) if one_in.is_instance_of::<pyo3::types::PyInt>() => {
            Ok(Verify::Sampled(args::whole32("verify", one_in, 1)?))
        }
        Some(word) => args::choice("verify", word, &[("always", Verify::Always), ("never", Verify::Never)]),
    }
}

/// A block in place: gives its bytes out through the buffer protocol, and holds the lease while any buffer of it lives.
#[pyclass(frozen)]
struct Block {
    view: OwnedView,
    tag: ProcessTag,
}

#[pymethods]
impl Block {
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let block = slf.get();
        if block.tag.is_foreign() {
            return Err(other_process(slf.py()));
        }
        let length = block.view.len() as ffi::Py_ssize_t;
        let start = block.view.as_ptr().cast_mut().cast();
        // SAFETY: `view` is the interpreter's to be filled. The bytes stay mapped and protected while this object lives,
        // which the buffer refers to; "1" makes it read-only, and a wish for a writable one an error.
        let status = unsafe { ffi::PyBuffer_FillInfo(view, slf.as_ptr(), start, length, 1, flags) };
        if status == 0 { Ok(()) } else { Err(PyErr::fetch(slf.py())) }
    }
}
