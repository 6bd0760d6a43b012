//! `Region`: opening one, and joining it.

use std::os::fd::{BorrowedFd, RawFd};
use std::sync::{Arc, Mutex, PoisonError};

use maru::layout::geometry::ClassSpec;
use maru::os::fork::ProcessTag;
use maru::{Evict, Format, Liveness, Medium, Mode, OpenOptions, Outcome, Role, Scope, SessionInfo, SessionOptions};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use crate::args::{self, Options};
use crate::errors::{OrRaise, argument, closed, exception, not_picklable, other_process};
use crate::session::PySession;
use crate::usage;

/// Options of `Region.open`, of which `path` may be the first argument.
pub(crate) fn open_options(
    py: Python<'_>,
    path: Option<&Bound<'_, PyAny>>,
    options: &mut Options<'_>,
) -> PyResult<OpenOptions> {
    let said = options.take("path")?;
    let path = path.or(said.as_ref()).map(|path| args::path("path", path)).transpose()?;
    let fd = options.read("fd", |field, value| args::whole(field, value, 0, RawFd::MAX as u64))?;
    let mut open = match (path, fd) {
        (Some(_), Some(_)) => return Err(argument(py, "fd", "said beside path", "one of the two")),
        (Some(path), None) => OpenOptions::path(path),
        (None, Some(fd)) => {
            // SAFETY: only lent for the call; the kernel says whether the number is an open descriptor.
            let borrowed = unsafe { BorrowedFd::borrow_raw(fd as RawFd) };
            let wanted = "an open descriptor";
            let owned = borrowed.try_clone_to_owned();
            OpenOptions::descriptor(owned.map_err(|error| argument(py, "fd", &format!("{fd} ({error})"), wanted))?)
        }
        (None, None) => OpenOptions::environment(),
    };
    let modes = [("full", Mode::Full), ("header_only", Mode::HeaderOnly), ("read_only", Mode::ReadOnly)];
    if let Some(mode) = options.read("mode", |field, value| args::choice(field, value, &modes))? {
        open.mode = mode;
    }
    let formats = [
        ("never", Format::Never),
        ("if_absent", Format::IfAbsent),
        ("force", Format::Force),
        ("replace", Format::Replace),
    ];
    if let Some(format) = options.read("format", |field, value| args::choice(field, value, &formats))? {
        open.format = format;
    }
    if let Some(offset) = options.read("offset", |field, value| args::whole(field, value, 0, u64::MAX))? {
        open.partition.offset = offset;
    }
    open.partition.length = options.read("length", |field, value| args::whole(field, value, 1, u64::MAX))?;
    open.config = options.read("config", args::text)?;
    if let Some(prefault) = options.read("prefault", args::flag)? {
        open.prefault = prefault;
    }
    if let Some(huge_pages) = options.read("huge_pages", args::flag)? {
        open.huge_pages = huge_pages;
    }
    if let Some(mode) = options.read("file_mode", |field, value| args::whole(field, value, 0, 0o777))? {
        open.file_mode = mode as u32;
    }
    open.lock_file = options.read("lock_file", args::path)?;
    wish(py, &mut open, options)?;
    Ok(open)
}

/// What a new region is like.
fn wish(py: Python<'_>, open: &mut OpenOptions, options: &mut Options<'_>) -> PyResult<()> {
    let wish = &mut open.wish;
    wish.size_bytes = options.read("size", |field, value| args::whole(field, value, 1, u64::MAX))?;
    let slot_bytes = options.read("slot_bytes", |field, value| args::whole(field, value, 1, u64::MAX))?;
    let classes = options.read("classes", read_classes)?;
    match (slot_bytes, classes) {
        (Some(_), Some(_)) => return Err(argument(py, "classes", "said beside slot_bytes", "one of the two")),
        (Some(slot_bytes), None) => wish.classes = vec![ClassSpec { slot_bytes, slots: None }],
        (None, Some(classes)) => wish.classes = classes,
        (None, None) => {}
    }
    let count = |field: &str, value: &Bound<'_, PyAny>| args::whole32(field, value, 1);
    wish.sessions = options.read("sessions", count)?;
    wish.session_area_bytes = options.read("session_area_bytes", count)?;
    wish.namespaces = options.read("namespaces", count)?;
    wish.tokens = options.read("tokens", |field, value| args::whole32(field, value, 0))?;
    if let Some(time) = options.read("copy_lease_ms", count)? {
        wish.copy_lease_ms = time;
    }
    if let Some(time) = options.read("stalled_writer_ms", count)? {
        wish.stalled_writer_ms = time;
    }
    if let Some(time) = options.read("attach_wait_ms", count)? {
        wish.attach_wait_ms = time;
    }
    let media = [("cpu", Medium::Cpu), ("cxl", Medium::Cxl), ("ssd", Medium::Ssd)];
    wish.medium = options.read("medium", |field, value| args::choice(field, value, &media))?;
    let scopes = [("process", Scope::Process), ("host", Scope::Host), ("domain", Scope::Domain)];
    wish.scope = options.read("scope", |field, value| args::choice(field, value, &scopes))?;
    if let Some(name) = options.read("name", args::text)? {
        wish.name = name;
    }
    Ok(())
}

/// A list of (slot_bytes, slots or None).
fn read_classes(field: &str, value: &Bound<'_, PyAny>) -> PyResult<Vec<ClassSpec>> {
    let wrong = |found: &Bound<'_, PyAny>| {
        argument(value.py(), field, &args::shown(found), "a list of (slot_bytes, slots or None)")
    };
    let mut classes = Vec::new();
    for class in value.try_iter().map_err(|_| wrong(value))? {
        let class = class?;
        let (bytes, slots) =
            class.extract::<(Bound<'_, PyAny>, Option<Bound<'_, PyAny>>)>().map_err(|_| wrong(&class))?;
        let slots = slots.map(|slots| args::whole32("slots of a class", &slots, 1)).transpose()?;
        classes.push(ClassSpec { slot_bytes: args::whole("slot_bytes of a class", &bytes, 1, u64::MAX)?, slots });
    }
    Ok(classes)
}

/// How a session joins: its role and its options.
pub(crate) fn session_options(options: &mut Options<'_>) -> PyResult<SessionOptions> {
    let mut session = SessionOptions::default();
    let evictions = [("never", 0), ("when_full", 1), ("watermarks", 2)];
    let evict = options.read("evict", |field, value| args::choice(field, value, &evictions))?;
    let low = options.read("evict_low", args::fraction)?;
    let high = options.read("evict_high", args::fraction)?;
    match evict {
        Some(0) => session.evict = Evict::Never,
        Some(2) => session.evict = Evict::Watermarks { low: low.unwrap_or(0.05), high: high.unwrap_or(0.10) },
        _ => session.evict = Evict::WhenFull,
    }
    session.most_reservations = options.read("most_reservations", |field, value| args::whole32(field, value, 1))?;
    Ok(session)
}

/// The role of a session.
pub(crate) fn role_of(value: &Bound<'_, PyAny>) -> PyResult<Role> {
    let roles = [Role::Worker, Role::Scheduler, Role::Coordinator, Role::Tool].map(|role| (role.name(), role));
    args::choice("role", value, &roles)
}

/// Who has joined a region; `me` is an entry of this process, which lives.
pub(crate) fn session_list<'py>(
    py: Python<'py>,
    region: &maru::Region,
    me: Option<u32>,
) -> PyResult<Vec<Bound<'py, PyDict>>> {
    let sessions = py.detach(|| region.sessions());
    let sessions = sessions.map_err(|error| exception(py, "OpenError", &error.to_string(), &[]))?;
    session_dicts(py, sessions, me)
}

/// Entries of a session table as dictionaries.
pub(crate) fn session_dicts<'py>(
    py: Python<'py>,
    sessions: Vec<SessionInfo>,
    me: Option<u32>,
) -> PyResult<Vec<Bound<'py, PyDict>>> {
    let shown = sessions.into_iter().map(|session| {
        let alive = match session.liveness {
            _ if me == Some(session.index) => Some(true),
            Liveness::Alive => Some(true),
            Liveness::Dead => Some(false),
            Liveness::Unknown => None,
        };
        let dict = PyDict::new(py);
        dict.set_item("index", session.index)?;
        dict.set_item("epoch", session.word.epoch())?;
        dict.set_item("state", session.word.state().map(|state| format!("{state:?}").to_lowercase()))?;
        dict.set_item("engine", session.engine)?;
        dict.set_item("role", session.role.map(Role::name))?;
        dict.set_item("pid", session.pid)?;
        dict.set_item("alive", alive)?;
        dict.set_item("heartbeat", session.heartbeat)?;
        Ok(dict)
    });
    shown.collect()
}

/// A mapped region: one byte range that describes itself.
#[pyclass(name = "Region", module = "maru", frozen, weakref)]
pub(crate) struct PyRegion {
    /// None once closed. Sessions keep the mapping.
    region: Mutex<Option<maru::Region>>,
    tag: ProcessTag,
}

impl PyRegion {
    fn get(&self, py: Python<'_>) -> PyResult<maru::Region> {
        if self.tag.is_foreign() {
            return Err(other_process(py));
        }
        let region = self.region.lock().unwrap_or_else(PoisonError::into_inner).clone();
        region.ok_or_else(|| closed(py, "region"))
    }
}

#[pymethods]
impl PyRegion {
    /// Opens a region, and makes it first if `format` says so. `size`, `slot_bytes` (or `classes`), `sessions`, `namespaces`,
    /// `tokens`, the times, `medium`, `scope` and `name` are what a new one is like; they are not looked at when one is
    /// attached to. Without path and fd, the environment names the device (CXL_DAX_DEVICE).
    #[staticmethod]
    #[pyo3(
        signature = (path=None, **options),
        text_signature = "(path=None, *, fd=None, mode='full', format='never', size=None, slot_bytes=None, classes=None, \
                          offset=0, length=None, config=None, sessions=None, session_area_bytes=None, namespaces=None, \
                          tokens=None, copy_lease_ms=None, stalled_writer_ms=None, attach_wait_ms=None, medium=None, \
                          scope=None, name='', prefault=False, huge_pages=True, file_mode=0o660, lock_file=None)"
    )]
    fn open(py: Python<'_>, path: Option<&Bound<'_, PyAny>>, options: Option<&Bound<'_, PyDict>>) -> PyResult<Self> {
        let none = PyDict::new(py);
        let mut options = Options::new("Region.open", options.unwrap_or(&none))?;
        let open = open_options(py, path, &mut options)?;
        options.finish()?;
        let region = py.detach(|| maru::Region::open(open)).or_raise(py)?;
        Ok(Self { region: Mutex::new(Some(region)), tag: ProcessTag::current() })
    }

    /// Joins the region as a participant called `engine`.
    #[pyo3(
        signature = (engine, role=None, **options),
        text_signature = "($self, engine, role='worker', *, evict='when_full', evict_low=None, evict_high=None, \
                          most_reservations=None)"
    )]
    fn session(
        &self,
        py: Python<'_>,
        engine: &Bound<'_, PyAny>,
        role: Option<&Bound<'_, PyAny>>,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<PySession> {
        let region = self.get(py)?;
        let engine = args::text("engine", engine)?;
        let role = role.map_or(Ok(Role::Worker), role_of)?;
        let none = PyDict::new(py);
        let mut options = Options::new("Region.session", options.unwrap_or(&none))?;
        let joined = session_options(&mut options)?;
        options.finish()?;
        let session = py.detach(|| region.session_with(&engine, role, joined)).or_raise(py)?;
        Ok(PySession::new(Arc::new(session)))
    }

    /// The region's random id, 16 bytes.
    #[getter]
    fn region_id<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        Ok(PyBytes::new(py, &self.get(py)?.id()))
    }

    /// Slots, of all classes.
    #[getter]
    fn slots(&self, py: Python<'_>) -> PyResult<u32> {
        Ok(self.get(py)?.geometry().slot_count)
    }

    /// Bytes of the largest slot.
    #[getter]
    fn slot_bytes(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.get(py)?.geometry().max_payload_bytes())
    }

    /// Slot classes: (slot_bytes, slots).
    #[getter]
    fn classes(&self, py: Python<'_>) -> PyResult<Vec<(u64, u32)>> {
        let region = self.get(py)?;
        Ok(region.geometry().classes.iter().map(|class| (class.slot_bytes, class.slot_count)).collect())
    }

    /// Bytes of the region, tables included.
    #[getter]
    fn length_bytes(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.get(py)?.geometry().length_bytes)
    }

    /// Bytes of the tables: all that mode "header_only" maps.
    #[getter]
    fn header_bytes(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.get(py)?.geometry().header_bytes)
    }

    /// "formatted" or "attached": whether this call made the region or found it.
    #[getter]
    fn outcome(&self, py: Python<'_>) -> PyResult<&'static str> {
        Ok(match self.get(py)?.outcome() {
            Outcome::Formatted => "formatted",
            Outcome::Attached => "attached",
        })
    }

    /// "full", "header_only" or "read_only".
    #[getter]
    fn mode(&self, py: Python<'_>) -> PyResult<&'static str> {
        Ok(match self.get(py)?.mode() {
            Mode::Full => "full",
            Mode::HeaderOnly => "header_only",
            Mode::ReadOnly => "read_only",
        })
    }

    /// What it lies in: tmpfs, hugetlbfs, famfs, memfd, device-dax, ordinary file.
    #[getter]
    fn backing(&self, py: Python<'_>) -> PyResult<&'static str> {
        Ok(self.get(py)?.backing().name())
    }

    /// The writer's configuration, a JSON text; empty where none was given.
    #[getter]
    fn config(&self, py: Python<'_>) -> PyResult<String> {
        Ok(self.get(py)?.geometry().config.clone())
    }

    /// Whether its memory has faulted away.
    #[getter]
    fn lost(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.get(py)?.is_lost())
    }

    /// Recounts all slot words.
    fn usage<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let region = self.get(py)?;
        usage::of_region(py, &py.detach(|| region.usage()))
    }

    /// Who has joined: index, epoch, state, engine, role, pid, alive (True, False, or None where this host cannot know),
    /// heartbeat.
    fn sessions<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyDict>>> {
        session_list(py, &self.get(py)?, None)
    }

    /// Lets go of this handle; sessions go on. Whoever is still reading keeps the mapping.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        if self.tag.is_foreign() {
            return Err(other_process(py));
        }
        let region = self.region.lock().unwrap_or_else(PoisonError::into_inner).take();
        py.detach(|| drop(region));
        Ok(())
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyAny>) -> PyResult<()> {
        self.close(py)
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(not_picklable("Region"))
    }

    fn __repr__(&self) -> String {
        if self.tag.is_foreign() {
            return "Region(of another process)".to_owned();
        }
        match &*self.region.lock().unwrap_or_else(PoisonError::into_inner) {
            None => "Region(closed)".to_owned(),
            Some(region) => {
                let id: String = region.id()[..4].iter().map(|byte| format!("{byte:02x}")).collect();
                format!("Region({id}.., {} slots, {})", region.geometry().slot_count, region.backing().name())
            }
        }
    }
}
