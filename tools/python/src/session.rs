//! `Session`: a participant's verbs, one call a method. `batch.rs` has the calls on many blocks.

use std::sync::{Arc, Mutex, PoisonError};

use maru::os::fork::ProcessTag;
use maru::{
    Batch, BlockId, Budget, LeaseHandle, Probe, Release, Reserve, ReserveOptions, Retire, Session, StillHeld, Token,
    Writer,
};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::errors::{OrRaise, argument, closed, not_picklable, other_process, still_held};
use crate::ids::{self, PyNamespace, PyObjectId, Registered, description};
use crate::lease::{Miss, PyLease};
use crate::region::session_dicts;
use crate::reservation::{PyReservation, PyReserve};
use crate::{args, batch, usage};

/// One attached process (or one of several participants in a process).
#[pyclass(name = "Session", module = "maru", frozen, weakref)]
pub(crate) struct PySession {
    /// None once closed.
    session: Mutex<Option<Arc<Session>>>,
    index: u32,
    epoch: u32,
    tag: ProcessTag,
}

impl PySession {
    pub(crate) fn new(session: Arc<Session>) -> Self {
        let (index, epoch) = (session.index(), session.epoch());
        Self { session: Mutex::new(Some(session)), index, epoch, tag: ProcessTag::current() }
    }

    fn get(&self, py: Python<'_>) -> PyResult<Arc<Session>> {
        if self.tag.is_foreign() {
            return Err(other_process(py));
        }
        let session = self.session.lock().unwrap_or_else(PoisonError::into_inner).clone();
        session.ok_or_else(|| closed(py, "session"))
    }
}

/// Options of a reservation.
pub(crate) fn reserve_options(
    depth: Option<&Bound<'_, PyAny>>,
    parent: Option<&Bound<'_, PyAny>>,
    after_hits: Option<&Bound<'_, PyAny>>,
    writer: Option<&Bound<'_, PyAny>>,
) -> PyResult<ReserveOptions> {
    let mut options = ReserveOptions::default();
    if let Some(depth) = depth {
        options.depth = args::whole32("depth", depth, 0)?;
    }
    if let Some(parent) = parent {
        options.parent = Some(args::bytes("parent", parent)?);
    }
    if let Some(after_hits) = after_hits {
        options.after_hits = args::whole32("after_hits", after_hits, 0)?;
    }
    if let Some(writer) = writer {
        options.writer = args::choice("writer", writer, &[("cpu", Writer::Cpu), ("device", Writer::Device)])?;
    }
    Ok(options)
}

/// A budget, where one of the two is said.
pub(crate) fn budget(
    py: Python<'_>,
    slots: Option<&Bound<'_, PyAny>>,
    bytes: Option<&Bound<'_, PyAny>>,
) -> PyResult<Option<Budget>> {
    match (slots, bytes) {
        (Some(_), Some(_)) => Err(argument(py, "budget_bytes", "said beside budget_slots", "one of the two")),
        (Some(slots), None) => Ok(Some(Budget::Slots(args::whole32("budget_slots", slots, 0)?))),
        (None, Some(bytes)) => Ok(Some(Budget::Bytes(args::whole("budget_bytes", bytes, 0, u64::MAX)?))),
        (None, None) => Ok(None),
    }
}

#[pymethods]
impl PySession {
    /// Index of its entry in the session table.
    #[getter]
    fn index(&self) -> u32 {
        self.index
    }

    /// Its epoch: higher than that of any session before it.
    #[getter]
    fn epoch(&self) -> u32 {
        self.epoch
    }

    /// Whether calls can be tried: not closed, not fenced, its region neither replaced nor lost, and not another process's.
    #[getter]
    fn alive(&self, py: Python<'_>) -> bool {
        let Ok(session) = self.get(py) else { return false };
        py.detach(|| session.heartbeat()).is_ok()
    }

    /// Leases that it holds now.
    #[getter]
    fn leases(&self, py: Python<'_>) -> PyResult<u32> {
        Ok(self.get(py)?.leases())
    }

    /// Shows that the process still turns, and notices a region that was replaced, cut or lost. To be called about once a
    /// second.
    fn heartbeat(&self, py: Python<'_>) -> PyResult<u64> {
        let session = self.get(py)?;
        py.detach(|| session.heartbeat()).or_raise(py)
    }

    /// Who has joined; see `Region.sessions`.
    fn sessions<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyDict>>> {
        let session = self.get(py)?;
        let sessions = py.detach(|| session.sessions()).or_raise(py)?;
        session_dicts(py, sessions, Some(self.index))
    }

    /// Shuts another session out, for operators: its later calls raise Fenced. False: no such session at that epoch, or
    /// this very one.
    fn fence(&self, py: Python<'_>, index: &Bound<'_, PyAny>, epoch: &Bound<'_, PyAny>) -> PyResult<bool> {
        let session = self.get(py)?;
        let (index, epoch) = (args::whole32("index", index, 0)?, args::whole32("epoch", epoch, 0)?);
        py.detach(|| session.fence(index, epoch)).or_raise(py)
    }

    /// Registers a namespace, or finds it registered. Fields: tenant, model, revision, adapter, dtype, quantization,
    /// geometry, storage_format, block_tokens, parallel, hash_algorithm, hash_seed; all of them.
    #[pyo3(signature = (fields, budget_slots=None, budget_bytes=None))]
    fn namespace(
        &self,
        py: Python<'_>,
        fields: &Bound<'_, PyDict>,
        budget_slots: Option<&Bound<'_, PyAny>>,
        budget_bytes: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<PyNamespace> {
        let session = self.get(py)?;
        let namespace = description(fields)?;
        let budget = budget(py, budget_slots, budget_bytes)?;
        let id = py.detach(|| match budget {
            Some(budget) => session.namespace_with_budget(&namespace, budget),
            None => session.namespace(&namespace),
        });
        Ok(PyNamespace(Registered::Region(id.or_raise(py)?)))
    }

    /// Ends the present generation of a namespace, for everybody and at once. False: it had ended before.
    fn invalidate(&self, py: Python<'_>, namespace: &Bound<'_, PyNamespace>) -> PyResult<bool> {
        let session = self.get(py)?;
        let id = namespace.get().0.of_region(py)?;
        py.detach(|| session.invalidate(id)).or_raise(py)
    }

    /// Recounts what a namespace holds.
    fn namespace_usage<'py>(
        &self,
        py: Python<'py>,
        namespace: &Bound<'_, PyNamespace>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let session = self.get(py)?;
        let id = namespace.get().0.of_region(py)?;
        usage::of_namespace(py, &py.detach(|| session.namespace_usage(&id)).or_raise(py)?)
    }

    /// Recounts all slot words of the region.
    fn usage<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let session = self.get(py)?;
        usage::of_region(py, &py.detach(|| session.usage()).or_raise(py)?)
    }

    /// What this session's entry has counted.
    fn counters<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let counters = PyDict::new(py);
        for (counter, count) in self.get(py)?.counters() {
            counters.set_item(counter.name(), count)?;
        }
        Ok(counters)
    }

    /// The length of an object that is ready now, else None. Protects nothing.
    fn probe(&self, py: Python<'_>, object: &Bound<'_, PyObjectId>) -> PyResult<Option<u32>> {
        let session = self.get(py)?;
        Ok(match session.probe(&object.get().object(py)?).or_raise(py)? {
            Probe::Hit { len } => Some(len),
            Probe::Miss(_) => None,
        })
    }

    /// Why an object is not to be had, a short word; None when it is.
    fn why(&self, py: Python<'_>, object: &Bound<'_, PyObjectId>) -> PyResult<Option<&'static str>> {
        let session = self.get(py)?;
        Ok(match session.probe(&object.get().object(py)?).or_raise(py)? {
            Probe::Hit { .. } => None,
            Probe::Miss(why) => Some(why.code()),
        })
    }

    /// How many leading objects are ready now.
    fn probe_prefix(&self, py: Python<'_>, objects: Vec<Bound<'_, PyObjectId>>) -> PyResult<usize> {
        let session = self.get(py)?;
        let objects = ids::objects(py, &objects)?;
        py.detach(|| session.probe_prefix(&objects)).or_raise(py)
    }

    /// As `probe_prefix`, of blocks whose 32-byte prefix digests lie one after the other in one buffer.
    #[pyo3(
        signature = (namespace, prefixes, shard=None, part=None),
        text_signature = "($self, namespace, prefixes, shard=0, part=0)"
    )]
    fn probe_prefixes(
        &self,
        py: Python<'_>,
        namespace: &Bound<'_, PyNamespace>,
        prefixes: &Bound<'_, PyAny>,
        shard: Option<&Bound<'_, PyAny>>,
        part: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<usize> {
        let session = self.get(py)?;
        let id = namespace.get().0.of_region(py)?;
        let blocks = batch::prefixes(py, prefixes, shard, part)?;
        py.detach(|| {
            let objects: Vec<_> = blocks.into_iter().map(|block: BlockId| ids::object(id, block)).collect();
            session.probe_prefix(&objects)
        })
        .or_raise(py)
    }

    /// Reserves a slot of `length` bytes for an object.
    #[pyo3(
        signature = (object, length, depth=None, parent=None, after_hits=None, writer=None),
        text_signature = "($self, object, length, depth=None, parent=None, after_hits=None, writer='cpu')"
    )]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of the Python call")]
    fn reserve(
        &self,
        py: Python<'_>,
        object: &Bound<'_, PyObjectId>,
        length: &Bound<'_, PyAny>,
        depth: Option<&Bound<'_, PyAny>>,
        parent: Option<&Bound<'_, PyAny>>,
        after_hits: Option<&Bound<'_, PyAny>>,
        writer: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<PyReserve> {
        let session = self.get(py)?;
        let object = object.get().object(py)?;
        let length = args::whole("length", length, 1, u64::MAX)?;
        let options = reserve_options(depth, parent, after_hits, writer)?;
        match py.detach(|| session.reserve(&object, length, options)).or_raise(py)? {
            Reserve::Granted(reservation) => {
                // SAFETY: the reservation borrows from this session alone, which is kept with it.
                let reservation = unsafe { PyReservation::new(reservation, session.clone()) };
                PyReserve::granted_by(py, reservation, None)
            }
            Reserve::Refused(why) => Ok(PyReserve::refused(why.code(), why.to_string())),
            other => Ok(PyReserve::other(other.code(), None)),
        }
    }

    /// What became of the reservation that a token names; any 28 bytes get an answer.
    fn resolve(&self, py: Python<'_>, token: &Bound<'_, PyAny>) -> PyResult<&'static str> {
        let session = self.get(py)?;
        let token = Token::from_bytes(&args::bytes("token", token)?);
        Ok(py.detach(|| session.resolve(&token)).or_raise(py)?.code())
    }

    /// Protects each object that is ready; answers keep the order. With `all_or_nothing`, one miss releases the others,
    /// which then answer "partner_missing".
    #[pyo3(signature = (objects, all_or_nothing=true, device=false))]
    fn acquire(
        &self,
        py: Python<'_>,
        objects: Vec<Bound<'_, PyObjectId>>,
        all_or_nothing: bool,
        device: bool,
    ) -> PyResult<Vec<Py<PyAny>>> {
        let session = self.get(py)?;
        let objects = ids::objects(py, &objects)?;
        let batch = if all_or_nothing { Batch::AllOrNothing } else { Batch::Each };
        let leases = py.detach(|| match device {
            true => session.acquire_for_device(&objects, batch),
            false => session.acquire(&objects, batch),
        });
        let answers = leases.or_raise(py)?.into_iter().map(|lease| match lease {
            Ok(lease) => {
                // SAFETY: the lease borrows from this session alone, which is kept with it.
                let lease = unsafe { PyLease::new(lease, session.clone(), None) };
                Ok(Py::new(py, lease)?.into_any())
            }
            Err(why) => Ok(Py::new(py, Miss::new(why.code(), Vec::new()))?.into_any()),
        });
        answers.collect()
    }

    /// Releases a lease by its handle: "released", "not_held" (a second, stale, foreign or made-up one) or "viewed".
    fn release(&self, py: Python<'_>, handle: &Bound<'_, PyAny>) -> PyResult<&'static str> {
        let session = self.get(py)?;
        let handle = LeaseHandle::from_bytes(&args::bytes("handle", handle)?);
        Ok(match session.release(handle).or_raise(py)? {
            Release::Released => "released",
            Release::NotHeld => "not_held",
            Release::Viewed => "viewed",
        })
    }

    /// Shuts an object to new readers and frees it when nobody reads it any more: "retired", "draining" or "gone".
    fn retire(&self, py: Python<'_>, object: &Bound<'_, PyObjectId>) -> PyResult<&'static str> {
        let session = self.get(py)?;
        let object = object.get().object(py)?;
        Ok(retired(py.detach(|| session.retire(&object)).or_raise(py)?))
    }

    /// Recovers dead sessions and frees every drained slot.
    fn reclaim<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let session = self.get(py)?;
        let report = py.detach(|| session.reclaim()).or_raise(py)?;
        let dict = PyDict::new(py);
        dict.set_item("freed_slots", report.freed_slots)?;
        dict.set_item("draining_slots", report.draining_slots)?;
        dict.set_item("recovered_sessions", report.recovered_sessions)?;
        dict.set_item("recovered_slots", report.recovered_slots)?;
        Ok(dict)
    }

    /// Copies objects into writable buffers of exactly their lengths, all in one call: None where the bytes are right, else
    /// the reason, a short word; such a buffer holds zeros or what it held.
    #[pyo3(signature = (objects, buffers, *, verify=None), text_signature = "($self, objects, buffers, *, verify='always')")]
    fn load_into(
        &self,
        py: Python<'_>,
        objects: Vec<Bound<'_, PyObjectId>>,
        buffers: Vec<Bound<'_, PyAny>>,
        verify: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Vec<Option<&'static str>>> {
        let session = self.get(py)?;
        batch::load(py, &session, &objects, &buffers, verify)
    }

    /// Stores buffers under objects, all in one call. Each answer is "stored", "present", "being_written", "contended", the
    /// reason of a refusal, or what else a commit can say.
    #[pyo3(
        signature = (objects, buffers, *, depths=None, parents=None, after_hits=None, writer=None),
        text_signature = "($self, objects, buffers, *, depths=None, parents=None, after_hits=None, writer='cpu')"
    )]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of the Python call")]
    fn store_from(
        &self,
        py: Python<'_>,
        objects: Vec<Bound<'_, PyObjectId>>,
        buffers: Vec<Bound<'_, PyAny>>,
        depths: Option<Vec<Bound<'_, PyAny>>>,
        parents: Option<Vec<Option<Bound<'_, PyAny>>>>,
        after_hits: Option<&Bound<'_, PyAny>>,
        writer: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Vec<&'static str>> {
        let session = self.get(py)?;
        let options = batch::store_options(py, objects.len(), depths, parents, after_hits, writer)?;
        batch::store(py, &session, &objects, &buffers, &options)
    }

    /// Gives everything back and leaves the region. Raises StillHeld while leases, reservations or views are left. Closing a
    /// closed session does nothing.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        if self.tag.is_foreign() {
            return Err(other_process(py));
        }
        let closed = py.detach(|| -> Result<(), (StillHeld, bool)> {
            let mut held = self.session.lock().unwrap_or_else(PoisonError::into_inner);
            let Some(session) = held.take() else { return Ok(()) };
            match Arc::try_unwrap(session) {
                Ok(session) => session.close().map_err(|(still, session)| {
                    *held = Some(Arc::new(*session));
                    (still, false)
                }),
                Err(session) => {
                    let reservations = Arc::strong_count(&session).saturating_sub(1) as u32;
                    let leases = session.leases();
                    let reservations = reservations.saturating_sub(leases);
                    let still = StillHeld { index: self.index, leases, reservations };
                    *held = Some(session);
                    Err((still, true))
                }
            }
        });
        closed.map_err(|(still, calls)| still_held(py, still, calls))
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyAny>) -> PyResult<()> {
        self.close(py)
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(not_picklable("Session"))
    }

    fn __repr__(&self) -> String {
        format!("Session({}, epoch {})", self.index, self.epoch)
    }
}

/// The word for what became of a retired object.
pub(crate) fn retired(retire: Retire) -> &'static str {
    match retire {
        Retire::Retired => "retired",
        Retire::Draining => "draining",
        Retire::Gone => "gone",
    }
}
