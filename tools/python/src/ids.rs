//! `Namespace` and `ObjectId`: plain data that cannot change, for one region or for one store of pools.

use std::hash::{DefaultHasher, Hash, Hasher};

use maru::{BlockId, NamespaceId, ObjectId, StoreNamespace};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use crate::args;
use crate::errors::{exception, not_picklable};

/// Who registered a namespace.
#[derive(Clone)]
pub(crate) enum Registered {
    /// A session, in its region.
    Region(NamespaceId),
    /// A store, in its pools.
    Store(StoreNamespace),
}

impl Registered {
    pub(crate) fn digest(&self) -> [u8; 16] {
        match self {
            Self::Region(id) => id.digest(),
            Self::Store(namespace) => namespace.digest(),
        }
    }

    fn same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Region(mine), Self::Region(theirs)) => mine == theirs,
            (Self::Store(mine), Self::Store(theirs)) => mine.digest() == theirs.digest(),
            _ => false,
        }
    }

    /// The id in a region, for a call on a session.
    pub(crate) fn of_region(&self, py: Python<'_>) -> PyResult<NamespaceId> {
        match self {
            Self::Region(id) => Ok(*id),
            Self::Store(_) => Err(wrong_owner(py, "a store", "a session")),
        }
    }

    /// The ids in pools, for a call on a store.
    pub(crate) fn of_store(&self, py: Python<'_>) -> PyResult<&StoreNamespace> {
        match self {
            Self::Store(namespace) => Ok(namespace),
            Self::Region(_) => Err(wrong_owner(py, "a session", "a store")),
        }
    }
}

fn wrong_owner(py: Python<'_>, found: &str, wanted: &str) -> PyErr {
    let message = format!("the namespace was registered by {found}, wanted one registered by {wanted}");
    exception(py, "CallError", &message, &[("code", "foreign_namespace")])
}

/// The library's description of a namespace, from a mapping of names to texts or numbers.
pub(crate) fn description(fields: &Bound<'_, PyDict>) -> PyResult<maru::Namespace> {
    let py = fields.py();
    let mut namespace = maru::Namespace::new();
    for (name, value) in fields {
        let name = args::text("namespace field name", &name)?;
        let value = if value.is_instance_of::<pyo3::types::PyString>() {
            args::text(&name, &value)?
        } else {
            args::whole(&format!("namespace field {name}"), &value, 0, u64::MAX)?.to_string()
        };
        namespace = namespace.field(&name, value).map_err(|error| crate::errors::Raise::raise(error, py))?;
    }
    Ok(namespace)
}

/// All that makes two blocks of equal tokens interchangeable, as registered by a session or a store.
#[pyclass(name = "Namespace", module = "maru", frozen)]
pub(crate) struct PyNamespace(pub(crate) Registered);

#[pymethods]
impl PyNamespace {
    /// First 16 bytes of the SHA-256 of its text (and, in a single region, its generation).
    #[getter]
    fn digest<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.0.digest())
    }

    /// Its generation in its region; None for a store, where every pool has its own.
    #[getter]
    fn generation(&self) -> Option<u64> {
        match &self.0 {
            Registered::Region(id) => Some(id.generation()),
            Registered::Store(_) => None,
        }
    }

    /// Pools that could not register it, and why; always empty for a single region.
    #[getter]
    fn left_out(&self) -> Vec<(String, String)> {
        match &self.0 {
            Registered::Region(_) => Vec::new(),
            Registered::Store(namespace) => {
                namespace.left_out().iter().map(|(pool, error)| (pool.clone(), error.to_string())).collect()
            }
        }
    }

    fn __eq__(&self, other: &Bound<'_, PyAny>) -> bool {
        other.cast::<Self>().is_ok_and(|other| self.0.same(&other.get().0))
    }

    fn __hash__(&self) -> u64 {
        u64::from_le_bytes(*self.0.digest().first_chunk().expect("8 of 16 bytes"))
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(not_picklable("Namespace"))
    }

    fn __repr__(&self) -> String {
        let short: String = self.0.digest()[..4].iter().map(|byte| format!("{byte:02x}")).collect();
        match &self.0 {
            Registered::Region(id) => format!("Namespace({short}.., row {}, generation {})", id.row(), id.generation()),
            Registered::Store(_) => format!("Namespace({short}.., of a store)"),
        }
    }
}

/// Name of a KV block: what it holds, never who stored it.
#[pyclass(name = "ObjectId", module = "maru", frozen)]
#[derive(Clone)]
pub(crate) struct PyObjectId {
    pub(crate) namespace: Registered,
    pub(crate) block: BlockId,
}

impl PyObjectId {
    /// As an object of a region.
    pub(crate) fn object(&self, py: Python<'_>) -> PyResult<ObjectId> {
        Ok(object(self.namespace.of_region(py)?, self.block))
    }
}

/// A block of a namespace of one region.
pub(crate) fn object(namespace: NamespaceId, block: BlockId) -> ObjectId {
    ObjectId { namespace, prefix: block.prefix, shard: block.shard, part: block.part }
}

/// Objects of one region.
pub(crate) fn objects(py: Python<'_>, ids: &[Bound<'_, PyObjectId>]) -> PyResult<Vec<ObjectId>> {
    ids.iter().map(|id| id.get().object(py)).collect()
}

/// The blocks whose prefix digests lie one after the other in one buffer.
pub(crate) fn blocks_of(py: Python<'_>, prefixes: &[u8], shard: u16, part: u16) -> PyResult<Vec<BlockId>> {
    let (digests, rest) = prefixes.as_chunks::<32>();
    if !rest.is_empty() {
        let found = format!("{} bytes", prefixes.len());
        return Err(crate::errors::argument(py, "prefixes", &found, "a multiple of 32 bytes"));
    }
    Ok(digests.iter().map(|prefix| BlockId { prefix: *prefix, shard, part }).collect())
}

#[pymethods]
impl PyObjectId {
    #[new]
    #[pyo3(signature = (namespace, prefix, shard=None, part=None), text_signature = "(namespace, prefix, shard=0, part=0)")]
    fn new(
        namespace: &Bound<'_, PyNamespace>,
        prefix: &Bound<'_, PyAny>,
        shard: Option<&Bound<'_, PyAny>>,
        part: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let block = BlockId {
            prefix: args::bytes("prefix", prefix)?,
            shard: shard.map_or(Ok(0), |shard| args::whole16("shard", shard))?,
            part: part.map_or(Ok(0), |part| args::whole16("part", part))?,
        };
        Ok(Self { namespace: namespace.get().0.clone(), block })
    }

    /// Its namespace.
    #[getter]
    fn namespace(&self) -> PyNamespace {
        PyNamespace(self.namespace.clone())
    }

    /// Digest of the token prefix through this block.
    #[getter]
    fn prefix<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.block.prefix)
    }

    /// Tensor- or pipeline-parallel rank.
    #[getter]
    fn shard(&self) -> u16 {
        self.block.shard
    }

    /// Part of the block, such as a group of layers; 0 for all.
    #[getter]
    fn part(&self) -> u16 {
        self.block.part
    }

    fn __eq__(&self, other: &Bound<'_, PyAny>) -> bool {
        other.cast::<Self>().is_ok_and(|other| {
            let other = other.get();
            self.block == other.block && self.namespace.same(&other.namespace)
        })
    }

    fn __hash__(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        (self.namespace.digest(), self.block).hash(&mut hasher);
        hasher.finish()
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(not_picklable("ObjectId"))
    }

    fn __repr__(&self) -> String {
        let short: String = self.block.prefix[..4].iter().map(|byte| format!("{byte:02x}")).collect();
        format!("ObjectId({short}.., shard {}, part {})", self.block.shard, self.block.part)
    }
}
