//! The accounts of a store: each pool's, and one namespace's in each pool, recounted from the slot words.

use super::{Pool, Reason, Store, StoreError, StoreNamespace};
use crate::{Medium, NamespaceUsage, Scope, Usage};

/// Counters of one pool, or why they cannot be had: of all of it ([`Usage`]), or of one namespace in it
/// ([`NamespaceUsage`]).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolUsage<U = Usage> {
    /// Name of the pool.
    pub name: String,
    /// Its medium.
    pub medium: Medium,
    /// Who can reach it.
    pub scope: Scope,
    /// Bytes, and slots by state.
    pub usage: Result<U, Reason>,
}

impl Store {
    /// Recounts every pool, in the order in which they were added; those that this process may not use, too. A pool
    /// that cannot be counted says why.
    ///
    /// # Errors
    /// The store belongs to another process.
    pub fn usage(&self) -> Result<Vec<PoolUsage>, StoreError> {
        self.check_process()?;
        let counted = self.pools.iter().map(|member| {
            let usage = member.pool.session().usage().map_err(|error| {
                member.health.note(error);
                Reason::Failed(error)
            });
            shown(&member.pool, usage)
        });
        Ok(counted.collect())
    }

    /// Recounts what a namespace holds in each pool; see [`crate::Session::namespace_usage`].
    ///
    /// # Errors
    /// The namespace or the store is another one's.
    pub fn namespace_usage(&self, namespace: &StoreNamespace) -> Result<Vec<PoolUsage<NamespaceUsage>>, StoreError> {
        self.check(namespace)?;
        let counted = self.pools.iter().enumerate().map(|(index, member)| {
            let usage = match namespace.id(index) {
                None => Err(member.shut().unwrap_or(Reason::NoNamespace)),
                Some(id) => member.ask(|pool| pool.session().namespace_usage(&id)),
            };
            shown(&member.pool, usage)
        });
        Ok(counted.collect())
    }
}

fn shown<U>(pool: &Pool, usage: Result<U, Reason>) -> PoolUsage<U> {
    PoolUsage { name: pool.name().to_owned(), medium: pool.medium(), scope: pool.scope(), usage }
}
