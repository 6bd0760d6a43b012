//! `Store`: several regions behind the verbs of one session.
//!
//! A pool that fails costs its own blocks only, so its failure is never an exception of a load or a store: it is a
//! reason, and `health` shows it. Exceptions are left for what is wrong with the call itself.

use std::sync::{Arc, Mutex, PoisonError};

use maru::os::fork::ProcessTag;
use maru::{Batch, Budget, Pool, PoolState, Replicas, Role, Store, StoreError, StoreOptions, StoreProbe, StoreReserve};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use crate::args::{self, Options};
use crate::errors::{OrRaise, Raise, argument, call_code, closed, exception, not_picklable, other_process};
use crate::ids::{PyNamespace, PyObjectId, Registered, description};
use crate::lease::{Miss, PyLease, verified};
use crate::pinned::Pinned;
use crate::pool_words::{NO_POOL, blocks, load_all, medium, reason_dict, refusal, run, scope, store_one, words};
use crate::region::{open_options, role_of, session_list, session_options};
use crate::reservation::{PyReservation, PyReserve};
use crate::session::{reserve_options, retired};
use crate::{batch, usage};

/// Pools with a write order and a read order.
#[pyclass(name = "Store", module = "maru", frozen, weakref)]
pub(crate) struct PyStore {
    /// None once closed.
    store: Mutex<Option<Arc<Store>>>,
    tag: ProcessTag,
}

impl PyStore {
    fn get(&self, py: Python<'_>) -> PyResult<Arc<Store>> {
        if self.tag.is_foreign() {
            return Err(other_process(py));
        }
        let store = self.store.lock().unwrap_or_else(PoisonError::into_inner).clone();
        store.ok_or_else(|| closed(py, "store"))
    }
}

/// One pool of `Store.open`.
fn open_pool(py: Python<'_>, at: usize, pool: &Bound<'_, PyAny>, engine: &str, role: Role) -> PyResult<Pool> {
    let whose = format!("pools[{at}]");
    let wanted = "a dict: name, and the options of Region.open and Region.session";
    let pool = pool.cast::<PyDict>().map_err(|_| argument(py, &whose, &args::shown(pool), wanted))?;
    let mut options = Options::new(&whose, pool)?;
    let name = options.read("name", args::text)?;
    let name =
        name.ok_or_else(|| argument(py, &format!("{whose}: name"), "missing", "a name for orders and answers"))?;
    let mut open = open_options(py, None, &mut options)?;
    if open.wish.name.is_empty() {
        open.wish.name.clone_from(&name);
    }
    let joined = session_options(&mut options)?;
    options.finish()?;
    py.detach(|| Pool::open(&name, open, |region| region.session_with(engine, role, joined))).or_raise(py)
}

/// The pool of this name.
fn named<'s>(py: Python<'_>, store: &'s Store, pool: &Bound<'_, PyAny>) -> PyResult<&'s Pool> {
    let name = args::text("pool", pool)?;
    store.pool(&name).ok_or_else(|| {
        let known = store.pools().map(Pool::name).collect::<Vec<_>>().join(", ");
        argument(py, "pool", &args::shown(pool), &format!("one of {known}"))
    })
}

/// A list of pool names.
fn order(field: &str, value: &Bound<'_, PyAny>) -> PyResult<Vec<String>> {
    let list = value.cast::<PyList>().ok().and_then(|list| list.extract::<Vec<String>>().ok());
    list.ok_or_else(|| argument(value.py(), field, &args::shown(value), "a list of pool names"))
}

#[pymethods]
impl PyStore {
    /// Opens pools: {"engine": name, "role": "worker", "pools": [{"name": ..., "path": ..., and whatever Region.open and
    /// Region.session take}, ...], "write_order": [names], "read_order": [names]}.
    #[staticmethod]
    fn open(py: Python<'_>, config: &Bound<'_, PyDict>) -> PyResult<Self> {
        let mut options = Options::new("Store.open", config)?;
        let missing = |field: &str, wanted: &str| argument(py, &format!("Store.open: {field}"), "missing", wanted);
        let engine = options.read("engine", args::text)?.ok_or_else(|| missing("engine", "a name"))?;
        let role = options.read("role", |_, value| role_of(value))?.unwrap_or(Role::Worker);
        let pools = options.take("pools")?.ok_or_else(|| missing("pools", "a list of dicts"))?;
        let write_order = options.read("write_order", order)?;
        let read_order = options.read("read_order", order)?;
        options.finish()?;
        let pools =
            pools.cast::<PyList>().map_err(|_| argument(py, "pools", &args::shown(&pools), "a list of dicts"))?;
        let mut builder = Store::builder();
        for (at, pool) in pools.iter().enumerate() {
            builder = builder.pool(open_pool(py, at, &pool, &engine, role)?);
        }
        if let Some(names) = write_order {
            builder = builder.write_order(names);
        }
        if let Some(names) = read_order {
            builder = builder.read_order(names);
        }
        let store = py.detach(|| builder.build()).or_raise(py)?;
        Ok(Self { store: Mutex::new(Some(Arc::new(store))), tag: ProcessTag::current() })
    }

    /// Names of the pools in the order in which stores are tried.
    #[getter]
    fn write_order(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        Ok(self.get(py)?.write_order().map(str::to_owned).collect())
    }

    /// Names of the pools in the order in which reads are tried.
    #[getter]
    fn read_order(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        Ok(self.get(py)?.read_order().map(str::to_owned).collect())
    }

    /// Shows that the process still turns, in every pool that is in use. Returns how many pools answered.
    fn heartbeat(&self, py: Python<'_>) -> PyResult<usize> {
        let store = self.get(py)?;
        py.detach(|| store.heartbeat()).or_raise(py)
    }

    /// What became of each pool: name, medium, scope, region_id, state (in_use, ineligible or out), why, errors, slots,
    /// slot_bytes.
    fn health<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyDict>>> {
        let store = self.get(py)?;
        let shown = store.health().into_iter().zip(store.pools()).map(|(health, pool)| {
            let dict = PyDict::new(py);
            dict.set_item("name", &health.name)?;
            dict.set_item("medium", medium(health.medium))?;
            dict.set_item("scope", scope(health.scope))?;
            dict.set_item("region_id", pyo3::types::PyBytes::new(py, &health.region_id))?;
            let (state, why) = match health.state {
                PoolState::InUse => ("in_use", health.last_error.map(|error| error.to_string())),
                PoolState::Ineligible(why) => ("ineligible", Some(why.to_string())),
                PoolState::Out(error) => ("out", Some(error.to_string())),
            };
            dict.set_item("state", state)?;
            dict.set_item("why", why)?;
            dict.set_item("errors", health.errors)?;
            dict.set_item("slots", pool.region().geometry().slot_count)?;
            dict.set_item("slot_bytes", pool.region().geometry().max_payload_bytes())?;
            Ok(dict)
        });
        shown.collect()
    }

    /// Accounts of each pool, by name; a pool that cannot be counted has its reason under "why".
    fn usage<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let store = self.get(py)?;
        let all = PyDict::new(py);
        for pool in py.detach(|| store.usage()).or_raise(py)? {
            let dict = match &pool.usage {
                Ok(counted) => usage::of_region(py, counted)?,
                Err(reason) => reason_dict(py, reason)?,
            };
            all.set_item(pool.name, dict)?;
        }
        Ok(all)
    }

    /// What each pool's session has counted, by name.
    fn counters<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let all = PyDict::new(py);
        for pool in self.get(py)?.pools() {
            let counters = PyDict::new(py);
            for (counter, count) in pool.session().counters() {
                counters.set_item(counter.name(), count)?;
            }
            all.set_item(pool.name(), counters)?;
        }
        Ok(all)
    }

    /// Who has joined a pool; see `Region.sessions`.
    fn sessions<'py>(&self, py: Python<'py>, pool: &Bound<'_, PyAny>) -> PyResult<Vec<Bound<'py, PyDict>>> {
        let store = self.get(py)?;
        let found = named(py, &store, pool)?;
        session_list(py, found.region(), Some(found.session().index()))
    }

    /// Index of this process's own entry in a pool's session table.
    fn session_index(&self, py: Python<'_>, pool: &Bound<'_, PyAny>) -> PyResult<u32> {
        let store = self.get(py)?;
        Ok(named(py, &store, pool)?.session().index())
    }

    /// Registers a namespace in every pool that is in use. `budgets` are bytes by pool name.
    #[pyo3(signature = (fields, budgets=None))]
    fn namespace(
        &self,
        py: Python<'_>,
        fields: &Bound<'_, PyDict>,
        budgets: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<PyNamespace> {
        let store = self.get(py)?;
        let namespace = description(fields)?;
        let mut limits: Vec<(String, u64)> = Vec::new();
        for (pool, bytes) in budgets.into_iter().flatten() {
            let name = named(py, &store, &pool)?.name().to_owned();
            limits.push((name.clone(), args::whole(&format!("budgets[{name:?}]"), &bytes, 0, u64::MAX)?));
        }
        let registered = py.detach(|| {
            store.namespace_with(&namespace, |pool, session| match limits.iter().find(|(name, _)| name == pool) {
                Some((_, bytes)) => session.namespace_with_budget(&namespace, Budget::Bytes(*bytes)),
                None => session.namespace(&namespace),
            })
        });
        Ok(PyNamespace(Registered::Store(registered.or_raise(py)?)))
    }

    /// Ends a namespace in every pool: {"ended": [pools], "before": [pools], "failed": [(pool, why)]}.
    fn invalidate<'py>(&self, py: Python<'py>, namespace: &Bound<'_, PyNamespace>) -> PyResult<Bound<'py, PyDict>> {
        let store = self.get(py)?;
        let namespace = namespace.get().0.of_store(py)?;
        let done = py.detach(|| store.invalidate(namespace)).or_raise(py)?;
        let failed: Vec<(String, &str)> =
            done.failed.iter().map(|(pool, error)| (pool.clone(), call_code(error))).collect();
        let dict = PyDict::new(py);
        dict.set_item("ended", done.ended)?;
        dict.set_item("before", done.before)?;
        dict.set_item("failed", failed)?;
        Ok(dict)
    }

    /// What a namespace holds in each pool, by name.
    fn namespace_usage<'py>(
        &self,
        py: Python<'py>,
        namespace: &Bound<'_, PyNamespace>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let store = self.get(py)?;
        let namespace = namespace.get().0.of_store(py)?;
        let all = PyDict::new(py);
        for pool in py.detach(|| store.namespace_usage(namespace)).or_raise(py)? {
            let dict = match &pool.usage {
                Ok(counted) => usage::of_namespace(py, counted)?,
                Err(reason) => reason_dict(py, reason)?,
            };
            all.set_item(pool.name, dict)?;
        }
        Ok(all)
    }

    /// The length of a block that is ready in some pool of the read order, else None.
    fn probe(&self, py: Python<'_>, object: &Bound<'_, PyObjectId>) -> PyResult<Option<u32>> {
        Ok(match self.look(py, object)? {
            Ok(StoreProbe::Hit { len, .. }) => Some(len),
            _ => None,
        })
    }

    /// The pool that a block would be read from, else None.
    fn pool_of(&self, py: Python<'_>, object: &Bound<'_, PyObjectId>) -> PyResult<Option<String>> {
        Ok(match self.look(py, object)? {
            Ok(StoreProbe::Hit { pool, .. }) => Some(pool),
            _ => None,
        })
    }

    /// Why a block is not to be had, a short word; None when it is. "no_pool": no pool could be asked.
    fn why(&self, py: Python<'_>, object: &Bound<'_, PyObjectId>) -> PyResult<Option<&'static str>> {
        Ok(match self.look(py, object)? {
            Ok(StoreProbe::Hit { .. }) => None,
            Ok(StoreProbe::Miss(miss)) => Some(miss.why.code()),
            Err(_) => Some(NO_POOL),
        })
    }

    /// How many leading blocks are ready now, each in whichever pool.
    fn probe_prefix(&self, py: Python<'_>, objects: Vec<Bound<'_, PyObjectId>>) -> PyResult<usize> {
        let store = self.get(py)?;
        let Some((namespace, blocks)) = blocks(py, &objects)? else { return Ok(0) };
        run(py, py.detach(|| store.probe_prefix(&namespace, &blocks)))
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
        let store = self.get(py)?;
        let namespace = namespace.get().0.of_store(py)?;
        let blocks = batch::prefixes(py, prefixes, shard, part)?;
        run(py, py.detach(|| store.probe_prefix(namespace, &blocks)))
    }

    /// Reserves a slot in the first pool of the write order that grants one. `another`: one more replica, in a pool that has
    /// none.
    #[pyo3(
        signature = (object, length, depth=None, parent=None, after_hits=None, writer=None, another=false),
        text_signature = "($self, object, length, depth=None, parent=None, after_hits=None, writer='cpu', another=False)"
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
        another: bool,
    ) -> PyResult<PyReserve> {
        let store = self.get(py)?;
        let id = object.get();
        let namespace = id.namespace.of_store(py)?;
        let length = args::whole("length", length, 1, u64::MAX)?;
        let options = StoreOptions {
            reserve: reserve_options(depth, parent, after_hits, writer)?,
            replicas: if another { Replicas::Another } else { Replicas::One },
        };
        let reserved = py.detach(|| store.reserve(namespace, &id.block, length, options)).or_raise(py)?;
        let code = reserved.code();
        match reserved {
            StoreReserve::Granted(reservation) => {
                let pool = Some(reservation.pool().to_owned());
                let owner = store.clone();
                // SAFETY: the reservation borrows from this store alone, which is kept with it.
                let reservation = unsafe { PyReservation::new(reservation.into_inner(), owner) };
                PyReserve::granted_by(py, reservation, pool)
            }
            StoreReserve::Present { pool } | StoreReserve::BeingWritten { pool } | StoreReserve::Contended { pool } => {
                Ok(PyReserve::other(code, Some(pool.to_owned())))
            }
            StoreReserve::Refused(answers) => {
                let detail = answers.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
                Ok(PyReserve::refused(refusal(&answers), detail))
            }
        }
    }

    /// Protects each block in the first pool of the read order that grants it; see `Session.acquire`. A miss also has each
    /// pool's reason. Such a lease is of one replica: `load_into` is what falls to another pool where one does not hold.
    #[pyo3(signature = (objects, all_or_nothing=true, device=false))]
    fn acquire(
        &self,
        py: Python<'_>,
        objects: Vec<Bound<'_, PyObjectId>>,
        all_or_nothing: bool,
        device: bool,
    ) -> PyResult<Vec<Py<PyAny>>> {
        let store = self.get(py)?;
        let Some((namespace, blocks)) = blocks(py, &objects)? else { return Ok(Vec::new()) };
        let batch = if all_or_nothing { Batch::AllOrNothing } else { Batch::Each };
        let leases = py.detach(|| match device {
            true => store.acquire_for_device(&namespace, &blocks, batch),
            false => store.acquire(&namespace, &blocks, batch),
        });
        let leases = match leases {
            Err(StoreError::NoPool { pools, .. }) => {
                let miss = || Ok(Py::new(py, Miss::new(NO_POOL, words(&pools)))?.into_any());
                return blocks.iter().map(|_| miss()).collect();
            }
            leases => leases.or_raise(py)?,
        };
        let answers = leases.into_iter().map(|lease| match lease {
            Ok(lease) => {
                let pool = Some(lease.pool().to_owned());
                // SAFETY: the lease borrows from this store alone, which is kept with it.
                let lease = unsafe { PyLease::new(lease.into_inner(), store.clone(), pool) };
                Ok(Py::new(py, lease)?.into_any())
            }
            Err(miss) => Ok(Py::new(py, Miss::new(miss.why.code(), words(&miss.pools)))?.into_any()),
        });
        answers.collect()
    }

    /// As `Session.load_into`; where one replica does not hold, the other pools are tried. Failures of pools are answers.
    #[pyo3(signature = (objects, buffers, *, verify=None), text_signature = "($self, objects, buffers, *, verify='always')")]
    fn load_into(
        &self,
        py: Python<'_>,
        objects: Vec<Bound<'_, PyObjectId>>,
        buffers: Vec<Bound<'_, PyAny>>,
        verify: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Vec<Option<&'static str>>> {
        let store = self.get(py)?;
        batch::same_length(py, "buffers", buffers.len(), objects.len())?;
        let Some((namespace, blocks)) = blocks(py, &objects)? else { return Ok(Vec::new()) };
        let verify = verified(verify)?;
        let pinned = Pinned::targets(&buffers)?;
        // SAFETY: used within this call, and held for writing.
        let mut targets: Vec<&mut [u8]> = pinned.iter().map(|pinned| unsafe { pinned.as_mut_slice() }).collect();
        py.detach(|| load_all(&store, &namespace, &blocks, &mut targets, verify)).or_raise(py)
    }

    /// As `Session.store_from`, each block in the first pool of the write order that has room. Failures of pools are answers.
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
        let store = self.get(py)?;
        batch::same_length(py, "buffers", buffers.len(), objects.len())?;
        let options = batch::store_options(py, objects.len(), depths, parents, after_hits, writer)?;
        let Some((namespace, blocks)) = blocks(py, &objects)? else { return Ok(Vec::new()) };
        let pinned = Pinned::sources(&buffers)?;
        // SAFETY: used within this call; a change by another thread costs that block its checksum.
        let sources: Vec<&[u8]> = pinned.iter().map(|pinned| unsafe { pinned.as_slice() }).collect();
        let stored = py.detach(|| -> Result<Vec<&'static str>, StoreError> {
            let each = blocks.iter().zip(&sources).zip(&options);
            each.map(|((block, bytes), options)| store_one(&store, &namespace, block, bytes, *options)).collect()
        });
        stored.or_raise(py)
    }

    /// Retires a block in every pool: the word of each, by name.
    fn retire<'py>(&self, py: Python<'py>, object: &Bound<'_, PyObjectId>) -> PyResult<Bound<'py, PyDict>> {
        let store = self.get(py)?;
        let id = object.get();
        let namespace = id.namespace.of_store(py)?;
        let dict = PyDict::new(py);
        for (pool, answer) in py.detach(|| store.retire(namespace, &id.block)).or_raise(py)? {
            dict.set_item(pool, retired(answer))?;
        }
        Ok(dict)
    }

    /// Leaves every pool. Raises StillHeld while leases, reservations or views are left.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        if self.tag.is_foreign() {
            return Err(other_process(py));
        }
        let leases = py.detach(|| {
            let mut held = self.store.lock().unwrap_or_else(PoisonError::into_inner);
            let store = held.take()?;
            match Arc::try_unwrap(store) {
                Ok(store) => {
                    drop(store);
                    None
                }
                Err(store) => {
                    let leases: u32 = store.pools().map(|pool| pool.session().leases()).sum();
                    *held = Some(store);
                    Some(leases)
                }
            }
        });
        let Some(leases) = leases else { return Ok(()) };
        let message = format!("the store still holds {leases} lease(s), or reservations or calls; release them first");
        let error = exception(py, "StillHeld", &message, &[]);
        error.value(py).setattr("leases", leases)?;
        Err(error)
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyAny>) -> PyResult<()> {
        self.close(py)
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(not_picklable("Store"))
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        match self.get(py) {
            Ok(store) => format!("Store({})", store.pools().map(Pool::name).collect::<Vec<_>>().join(", ")),
            Err(_) => "Store(closed, or of another process)".to_owned(),
        }
    }
}

impl PyStore {
    /// Probes; the inner error is that no pool could be asked.
    fn look(&self, py: Python<'_>, object: &Bound<'_, PyObjectId>) -> PyResult<Result<StoreProbe, StoreError>> {
        let store = self.get(py)?;
        let id = object.get();
        let namespace = id.namespace.of_store(py)?;
        match store.probe(namespace, &id.block) {
            Ok(probe) => Ok(Ok(probe)),
            Err(error @ StoreError::NoPool { .. }) => Ok(Err(error)),
            Err(error) => Err(error.raise(py)),
        }
    }
}
