//! Namespaces and blocks across pools.

use std::sync::Arc;

use super::{Member, Reason, Store, StoreError};
use crate::{CallError, Namespace, NamespaceError, NamespaceId, ObjectId, Retire, Session};

/// Name of a KV block in whatever pool: what it holds. With a [`StoreNamespace`] it is an [`ObjectId`] in each of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct BlockId {
    /// Digest of the token prefix through this block. Compared in full, whatever its value.
    pub prefix: [u8; 32],
    /// Shard: tensor- or pipeline-parallel rank.
    pub shard: u16,
    /// Part of the block, such as a group of layers; 0 for all.
    pub part: u16,
}

impl BlockId {
    /// The block of shard 0, part 0.
    #[must_use]
    pub fn new(prefix: [u8; 32]) -> Self {
        Self { prefix, shard: 0, part: 0 }
    }

    pub(crate) fn object(&self, namespace: NamespaceId) -> ObjectId {
        ObjectId { namespace, prefix: self.prefix, shard: self.shard, part: self.part }
    }
}

/// A namespace as registered in the pools of one [`Store`]. Cheap to clone.
#[derive(Debug, Clone)]
pub struct StoreNamespace {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    store: u64,
    /// Of the text, whatever generations the pools have it in.
    digest: [u8; 16],
    /// By pool; none where it is not registered.
    ids: Vec<Option<NamespaceId>>,
    left_out: Vec<(String, NamespaceError)>,
}

impl StoreNamespace {
    /// Pools that can be used and have not registered it, and why.
    #[must_use]
    pub fn left_out(&self) -> &[(String, NamespaceError)] {
        &self.inner.left_out
    }

    /// SHA-256 of the canonical text, first 16 bytes: the same in every pool, process and generation.
    #[must_use]
    pub fn digest(&self) -> [u8; 16] {
        self.inner.digest
    }

    pub(super) fn id(&self, pool: usize) -> Option<NamespaceId> {
        self.inner.ids[pool]
    }
}

/// What [`Store::invalidate`] did.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StoreInvalidation {
    /// Pools in which this generation ended by this call.
    pub ended: Vec<String>,
    /// Pools in which it had ended before.
    pub before: Vec<String>,
    /// Pools that could not be told. Their blocks are not read through this store either, as long as the error lasts.
    pub failed: Vec<(String, CallError)>,
}

impl Store {
    /// Registers a namespace in every pool that is in use, or finds it registered. Ids differ from pool to pool.
    ///
    /// # Errors
    /// Names a missing field, or says why no pool has it. A pool that refuses it while others do not is left out:
    /// [`StoreNamespace::left_out`].
    pub fn namespace(&self, namespace: &Namespace) -> Result<StoreNamespace, StoreError> {
        self.namespace_with(namespace, |_, session| session.namespace(namespace))
    }

    /// As [`Store::namespace`], with the registration made by the caller, who is told the pool's name and given its
    /// session: for what a registration says beside the namespace, such as a budget in that pool.
    ///
    /// # Errors
    /// As [`Store::namespace`].
    pub fn namespace_with(
        &self,
        namespace: &Namespace,
        register: impl Fn(&str, &Session) -> Result<NamespaceId, NamespaceError>,
    ) -> Result<StoreNamespace, StoreError> {
        self.check_process()?;
        let pool = || "(none)".to_owned();
        let text = namespace.text().map_err(|source| StoreError::Namespace { pool: pool(), source })?;
        let (mut ids, mut left_out) = (Vec::with_capacity(self.pools.len()), Vec::new());
        for member in &self.pools {
            let registered = match member.shut() {
                Some(Reason::Failed(error)) => Err(NamespaceError::Call(error)),
                Some(_) => {
                    ids.push(None);
                    continue;
                }
                None => register(member.pool.name(), member.pool.session()),
            };
            match registered {
                Ok(id) => ids.push(Some(id)),
                Err(error) => {
                    if let NamespaceError::Call(error) = error {
                        member.health.note(error);
                    }
                    ids.push(None);
                    left_out.push((member.pool.name().to_owned(), error));
                }
            }
        }
        if ids.iter().all(Option::is_none) {
            return Err(match left_out.into_iter().next() {
                Some((pool, source)) => StoreError::Namespace { pool, source },
                None => StoreError::NoPool { order: "write", pools: self.shut_pools(&self.write_order) },
            });
        }
        // A digest without a generation: generations are each region's own.
        let digest = crate::namespace::digest_of(text.as_bytes(), 0);
        Ok(StoreNamespace { inner: Arc::new(Inner { store: self.id, digest, ids, left_out }) })
    }

    /// Ends the present generation of a namespace in every pool, one after the other, each at once and for everybody. When
    /// this returns, no call in any process returns an old hit from a pool in `ended` or `before`.
    ///
    /// # Errors
    /// The namespace or the store is another one's.
    pub fn invalidate(&self, namespace: &StoreNamespace) -> Result<StoreInvalidation, StoreError> {
        self.check(namespace)?;
        let mut done = StoreInvalidation::default();
        for (index, member) in self.pools.iter().enumerate() {
            let Some(id) = namespace.id(index) else { continue };
            let name = member.pool.name().to_owned();
            match member.ask(|pool| pool.session().invalidate(id)) {
                Ok(true) => done.ended.push(name),
                Ok(false) => done.before.push(name),
                Err(Reason::Failed(error)) => done.failed.push((name, error)),
                Err(_) => {}
            }
        }
        Ok(done)
    }

    /// Retires a block in every pool that has it. One answer for each pool that could be asked, with its name.
    ///
    /// # Errors
    /// The namespace or the store is another one's.
    pub fn retire(&self, namespace: &StoreNamespace, block: &BlockId) -> Result<Vec<(String, Retire)>, StoreError> {
        self.check(namespace)?;
        let retire = |(index, member): (usize, &Member)| {
            let object = block.object(namespace.id(index)?);
            let answer = member.ask(|pool| pool.session().retire(&object)).ok()?;
            Some((member.pool.name().to_owned(), answer))
        };
        Ok(self.pools.iter().enumerate().filter_map(retire).collect())
    }

    /// Refuses another process's store and another store's namespace.
    pub(super) fn check(&self, namespace: &StoreNamespace) -> Result<(), StoreError> {
        self.check_process()?;
        if namespace.inner.store == self.id { Ok(()) } else { Err(StoreError::ForeignNamespace) }
    }

    /// The pools of an order that are not asked, and why.
    pub(super) fn shut_pools(&self, order: &[usize]) -> Vec<super::PoolAnswer> {
        order
            .iter()
            .map(|index| &self.pools[*index])
            .filter_map(|member| member.shut().map(|reason| member.says(reason)))
            .collect()
    }
}
