//! `Reserve` and `Reservation`: what a writer gets.

use core::ffi::c_int;
use core::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use maru::os::fork::ProcessTag;
use maru::{CallError, Commit, WriteError};
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyMemoryView};

use crate::args;
use crate::errors::{OrRaise, Raise, exception, not_picklable, other_process};
use crate::owned::{OwnedReservation, Owner};
use crate::pinned::Pinned;

/// Answer of `reserve`: a reservation, or why there is none.
#[pyclass(name = "Reserve", module = "maru", frozen)]
pub(crate) struct PyReserve {
    /// granted, present, being_written, refused or contended.
    #[pyo3(get)]
    code: &'static str,
    /// The reason of a refusal, a short word.
    #[pyo3(get)]
    why: Option<String>,
    /// The reason of a refusal in a sentence.
    #[pyo3(get)]
    detail: Option<String>,
    /// The pool that has or grants it; None for a session.
    #[pyo3(get)]
    pool: Option<String>,
    reservation: Option<Py<PyReservation>>,
}

impl PyReserve {
    pub(crate) fn granted_by(py: Python<'_>, reservation: PyReservation, pool: Option<String>) -> PyResult<Self> {
        let reservation = Some(Py::new(py, reservation)?);
        Ok(Self { code: "granted", why: None, detail: None, pool, reservation })
    }

    pub(crate) fn other(code: &'static str, pool: Option<String>) -> Self {
        Self { code, why: None, detail: None, pool, reservation: None }
    }

    pub(crate) fn refused(why: &str, detail: String) -> Self {
        Self { code: "refused", why: Some(why.to_owned()), detail: Some(detail), pool: None, reservation: None }
    }
}

#[pymethods]
impl PyReserve {
    /// Whether there is a slot to write.
    #[getter]
    fn granted(&self) -> bool {
        self.reservation.is_some()
    }

    /// The reservation, if granted.
    #[getter]
    fn reservation(&self, py: Python<'_>) -> Option<Py<PyReservation>> {
        self.reservation.as_ref().map(|reservation| reservation.clone_ref(py))
    }

    fn __bool__(&self) -> bool {
        self.reservation.is_some()
    }

    fn __repr__(&self) -> String {
        match &self.why {
            Some(why) => format!("Reserve({}: {why})", self.code),
            None => format!("Reserve({})", self.code),
        }
    }
}

enum State {
    Open(Box<OwnedReservation>),
    /// With what a further commit answers.
    Ended(&'static str),
}

/// A slot being written.
struct Slot(Mutex<Written>);

struct Written {
    state: State,
    /// Writable buffers of the slot that Python has. Counted, because bytes must not change after the block is published.
    views: usize,
}

impl Slot {
    /// Only in the process that made it: in a forked child the lock may be somebody's who is not there.
    fn lock(&self) -> MutexGuard<'_, Written> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Why a reservation did not end.
enum EndError {
    Viewed(usize),
    Call(CallError),
}

impl From<CallError> for EndError {
    fn from(error: CallError) -> Self {
        Self::Call(error)
    }
}

impl Raise for EndError {
    fn raise(self, py: Python<'_>) -> PyErr {
        match self {
            Self::Call(error) => error.raise(py),
            Self::Viewed(views) => {
                let message =
                    format!("{views} writable view(s) of the slot are in use, wanted none; release them first");
                exception(py, "WriteError", &message, &[("code", "viewed")])
            }
        }
    }
}

/// A slot that this process writes. As a context manager it is given back at the end unless it was committed.
#[pyclass(name = "Reservation", module = "maru", frozen, weakref)]
pub(crate) struct PyReservation {
    slot: Arc<Slot>,
    length: u32,
    token: [u8; maru::Token::BYTES],
    tag: ProcessTag,
}

/// The word for an end.
fn past(commit: &Commit) -> &'static str {
    match commit {
        Commit::Stored => Commit::AlreadyStored.code(),
        other => other.code(),
    }
}

impl PyReservation {
    /// # Safety
    /// As [`OwnedReservation::new`].
    pub(crate) unsafe fn new(reservation: maru::Reservation<'_>, owner: Owner) -> Self {
        let (length, token) = (reservation.len(), reservation.token().to_bytes());
        // SAFETY: passed on to the caller.
        let owned = unsafe { OwnedReservation::new(reservation, owner) };
        let slot = Slot(Mutex::new(Written { state: State::Open(Box::new(owned)), views: 0 }));
        Self { slot: Arc::new(slot), length, token, tag: ProcessTag::current() }
    }

    fn check(&self, py: Python<'_>) -> PyResult<()> {
        if self.tag.is_foreign() { Err(other_process(py)) } else { Ok(()) }
    }
}

#[pymethods]
impl PyReservation {
    /// Bytes reserved.
    #[getter]
    fn length(&self) -> u32 {
        self.length
    }

    fn __len__(&self) -> usize {
        self.length as usize
    }

    /// Names this reservation, so that its outcome can be asked for later (`Session.resolve`).
    fn token<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.token)
    }

    /// Writes a piece. Pieces may come in any order; in order from the start is fastest.
    fn write_at(&self, py: Python<'_>, offset: &Bound<'_, PyAny>, buffer: &Bound<'_, PyAny>) -> PyResult<()> {
        self.check(py)?;
        let offset = args::whole32("offset", offset, 0)?;
        let source = Pinned::source("buffer", buffer)?;
        // SAFETY: used within this call; a change by another thread costs this block its checksum.
        let bytes = unsafe { source.as_slice() };
        let slot = &self.slot;
        py.detach(|| match &mut slot.lock().state {
            State::Open(owned) => owned.with(|reservation| reservation.write_at(offset, bytes)),
            State::Ended(_) => Err(WriteError::Ended),
        })
        .or_raise(py)
    }

    /// Publishes the block and says what became of it: stored, already_stored, superseded, generation_gone, fenced,
    /// invalidated, incomplete (it stays open) or unknown (ask `Session.resolve`).
    fn commit(&self, py: Python<'_>) -> PyResult<&'static str> {
        self.check(py)?;
        let slot = &self.slot;
        let commit = py.detach(|| -> Result<&'static str, EndError> {
            let mut written = slot.lock();
            let owned = match &mut *written {
                Written { state: State::Ended(code), .. } => return Ok(code),
                Written { state: State::Open(_), views } if *views > 0 => return Err(EndError::Viewed(*views)),
                Written { state: State::Open(owned), .. } => owned,
            };
            let commit = owned.with(|reservation| reservation.commit())?;
            if !matches!(commit, Commit::Incomplete { .. } | Commit::Unknown(_)) {
                written.state = State::Ended(past(&commit));
            }
            Ok(commit.code())
        });
        commit.or_raise(py)
    }

    /// Gives the slot back. False: it had ended before.
    fn abort(&self, py: Python<'_>) -> PyResult<bool> {
        self.check(py)?;
        let slot = &self.slot;
        py.detach(|| -> Result<bool, EndError> {
            let mut written = slot.lock();
            match &written.state {
                State::Ended(_) => return Ok(false),
                State::Open(_) if written.views > 0 => return Err(EndError::Viewed(written.views)),
                State::Open(_) => {}
            }
            match mem::replace(&mut written.state, State::Ended(Commit::GenerationGone.code())) {
                State::Open(owned) => Ok(owned.abort()?),
                State::Ended(_) => Ok(false),
            }
        })
        .or_raise(py)
    }

    /// The slot itself as a writable buffer, for a gather that writes in place. All reserved bytes count as written from
    /// here on. `commit` and `abort` are refused until the view, and all made of it, are released.
    fn view<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyMemoryView>> {
        self.check(py)?;
        let slot = &self.slot;
        let start = py
            .detach(|| match &mut slot.lock().state {
                State::Open(owned) => {
                    owned.with(|reservation| reservation.expose()).map(|start| start as usize).map_err(WriteError::Call)
                }
                State::Ended(_) => Err(WriteError::Ended),
            })
            .or_raise(py)?;
        let exposed = Exposed { slot: slot.clone(), start, length: self.length as usize, tag: self.tag };
        PyMemoryView::from(Bound::new(py, exposed)?.as_any())
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyAny>) -> PyResult<()> {
        self.abort(py).map(|_| ())
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(not_picklable("Reservation"))
    }

    fn __repr__(&self) -> String {
        format!("Reservation({} bytes)", self.length)
    }
}

/// A slot being written, given out through the buffer protocol.
#[pyclass(frozen)]
struct Exposed {
    slot: Arc<Slot>,
    /// Address of its first byte.
    start: usize,
    length: usize,
    tag: ProcessTag,
}

#[pymethods]
impl Exposed {
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let py = slf.py();
        let exposed = slf.get();
        if exposed.tag.is_foreign() {
            return Err(CallError::ForeignProcess.raise(py));
        }
        let mut written = exposed.slot.lock();
        if let State::Ended(_) = written.state {
            return Err(PyBufferError::new_err("the reservation has ended"));
        }
        let (start, length) = (exposed.start as *mut core::ffi::c_void, exposed.length as ffi::Py_ssize_t);
        // SAFETY: `view` is the interpreter's to be filled. The slot is this reservation's, and mapped, until it ends, which
        // is refused while views are counted.
        let status = unsafe { ffi::PyBuffer_FillInfo(view, slf.as_ptr(), start, length, 0, flags) };
        if status != 0 {
            return Err(PyErr::fetch(py));
        }
        written.views += 1;
        Ok(())
    }

    unsafe fn __releasebuffer__(&self, _view: *mut ffi::Py_buffer) {
        if !self.tag.is_foreign() {
            self.slot.lock().views -= 1;
        }
    }
}
