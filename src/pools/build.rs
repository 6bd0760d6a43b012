//! Building a store: names and orders are checked before anything is used.

use super::{Member, Pool, Store};
use crate::os::fork::ProcessTag;
use crate::os::identity::random_bytes;

/// Why pools could not be made into a store.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// Two pools have one name.
    #[error("two pools are named {name:?}, wanted a name for each")]
    SameName {
        /// The name.
        name: String,
    },
    /// Two pools are one region: its blocks would be counted, and its budget spent, twice.
    #[error("pools {first:?} and {second:?} are one region ({region_id:032x}), wanted a region for each")]
    SameRegion {
        /// A pool.
        first: String,
        /// Another pool.
        second: String,
        /// Their region's id.
        region_id: u128,
    },
    /// An order names a pool that there is not.
    #[error("{order} order: no pool is named {name:?}; there are: {known}")]
    UnknownPool {
        /// Which order, "read" or "write".
        order: &'static str,
        /// The name.
        name: String,
        /// The names that there are.
        known: String,
    },
    /// An order names a pool twice.
    #[error("{order} order: pool {name:?} stands there twice, wanted once")]
    Repeated {
        /// Which order, "read" or "write".
        order: &'static str,
        /// The name.
        name: String,
    },
    /// An order names no pool.
    #[error("{order} order: it names no pool, wanted at least one of: {known}")]
    EmptyOrder {
        /// Which order, "read" or "write".
        order: &'static str,
        /// The names that there are.
        known: String,
    },
    /// A pool stands in no order, so nothing would ever use it.
    #[error("pool {name:?} stands in neither order, wanted in one at least")]
    Unused {
        /// The name.
        name: String,
    },
}

/// Makes a [`Store`].
#[derive(Debug, Default)]
pub struct StoreBuilder {
    pools: Vec<Pool>,
    write_order: Option<Vec<String>>,
    read_order: Option<Vec<String>>,
}

impl StoreBuilder {
    /// Adds a pool.
    #[must_use]
    pub fn pool(mut self, pool: Pool) -> Self {
        self.pools.push(pool);
        self
    }

    /// Names of pools, the first that stores are tried in first. Unless said, all pools in the order they were added.
    #[must_use]
    pub fn write_order(mut self, names: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.write_order = Some(names.into_iter().map(Into::into).collect());
        self
    }

    /// Names of pools, the first that reads are tried in first. Unless said, all pools in the order they were added.
    #[must_use]
    pub fn read_order(mut self, names: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.read_order = Some(names.into_iter().map(Into::into).collect());
        self
    }

    /// Checks names and orders. A pool that this process may not use is kept and never asked; see [`Store::health`].
    ///
    /// # Errors
    /// Names the pool and the order that cannot be used.
    pub fn build(self) -> Result<Store, BuildError> {
        for (at, pool) in self.pools.iter().enumerate() {
            for earlier in &self.pools[..at] {
                if earlier.name() == pool.name() {
                    return Err(BuildError::SameName { name: pool.name().to_owned() });
                }
                if earlier.region().id() == pool.region().id() {
                    return Err(BuildError::SameRegion {
                        first: earlier.name().to_owned(),
                        second: pool.name().to_owned(),
                        region_id: u128::from_be_bytes(pool.region().id()),
                    });
                }
            }
        }
        let write_order = self.order("write", self.write_order.as_deref())?;
        let read_order = self.order("read", self.read_order.as_deref())?;
        let unused = (0..self.pools.len()).find(|index| !write_order.contains(index) && !read_order.contains(index));
        if let Some(index) = unused {
            return Err(BuildError::Unused { name: self.pools[index].name().to_owned() });
        }
        Ok(Store {
            pools: self.pools.into_iter().map(Member::new).collect(),
            write_order,
            read_order,
            id: u64::from_le_bytes(random_bytes()),
            tag: ProcessTag::current(),
        })
    }

    fn order(&self, order: &'static str, names: Option<&[String]>) -> Result<Vec<usize>, BuildError> {
        let known = || self.pools.iter().map(Pool::name).collect::<Vec<_>>().join(", ");
        let mut indices = Vec::new();
        match names {
            None => indices.extend(0..self.pools.len()),
            Some(names) => {
                for name in names {
                    let Some(index) = self.pools.iter().position(|pool| pool.name() == name) else {
                        return Err(BuildError::UnknownPool { order, name: name.clone(), known: known() });
                    };
                    if indices.contains(&index) {
                        return Err(BuildError::Repeated { order, name: name.clone() });
                    }
                    indices.push(index);
                }
            }
        }
        if indices.is_empty() {
            return Err(BuildError::EmptyOrder { order, known: known() });
        }
        Ok(indices)
    }
}
