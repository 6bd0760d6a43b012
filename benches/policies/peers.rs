//! Policies of other crates, with one shard so that the whole capacity is one queue, and with their default settings.

use std::hash::{BuildHasherDefault, DefaultHasher};
use std::num::NonZeroUsize;

use foyer_memory::{
    Cache as Foyer, CacheBuilder, CacheProperties, EvictionConfig, FifoConfig, LfuConfig, S3FifoConfig, SieveConfig,
};
use lru::LruCache;

use crate::replay::Cache;
use crate::trace::Block;

/// Hashes the same way in every run.
type Fixed = BuildHasherDefault<DefaultHasher>;

/// A policy of `foyer-memory`.
pub(crate) struct OfFoyer(Foyer<Block, (), Fixed, CacheProperties>);

impl OfFoyer {
    fn new(capacity: usize, policy: impl Into<EvictionConfig>) -> Self {
        let builder = CacheBuilder::new(capacity).with_shards(1).with_hash_builder(Fixed::default());
        Self(builder.with_eviction_config(policy).build())
    }

    pub(crate) fn fifo(capacity: usize) -> Self {
        Self::new(capacity, FifoConfig::default())
    }

    pub(crate) fn sieve(capacity: usize) -> Self {
        Self::new(capacity, SieveConfig)
    }

    pub(crate) fn s3_fifo(capacity: usize) -> Self {
        Self::new(capacity, S3FifoConfig::default())
    }

    pub(crate) fn w_tiny_lfu(capacity: usize) -> Self {
        Self::new(capacity, LfuConfig::default())
    }
}

impl Cache for OfFoyer {
    fn contains(&self, block: Block) -> bool {
        self.0.contains(&block)
    }

    fn hit(&mut self, block: Block, _depth: u32) {
        drop(self.0.get(&block));
    }

    fn store(&mut self, block: Block, _depth: u32) {
        drop(self.0.insert(block, ()));
    }
}

/// Strict LRU, of `lru`.
pub(crate) struct Lru {
    cache: LruCache<Block, (), Fixed>,
    deepest_first: bool,
}

impl Lru {
    /// Blocks age in the order in which they were touched.
    pub(crate) fn new(capacity: usize) -> Self {
        let capacity = NonZeroUsize::new(capacity).unwrap_or(NonZeroUsize::MIN);
        Self { cache: LruCache::with_hasher(capacity, Fixed::default()), deepest_first: false }
    }

    /// Of one request, the deepest block ages first, as engines free their own blocks.
    pub(crate) fn deepest_first(capacity: usize) -> Self {
        Self { deepest_first: true, ..Self::new(capacity) }
    }
}

impl Cache for Lru {
    fn contains(&self, block: Block) -> bool {
        self.cache.contains(&block)
    }

    fn hit(&mut self, block: Block, _depth: u32) {
        self.cache.promote(&block);
    }

    fn store(&mut self, block: Block, _depth: u32) {
        self.cache.put(block, ());
    }

    fn end(&mut self, blocks: &[Block]) {
        if self.deepest_first {
            for block in blocks.iter().rev() {
                self.cache.promote(block);
            }
        }
    }
}

/// Clock-PRO, of `quick_cache`.
pub(crate) struct ClockPro(quick_cache::unsync::Cache<Block, (), quick_cache::UnitWeighter, Fixed>);

impl ClockPro {
    pub(crate) fn new(capacity: usize) -> Self {
        let mut options = quick_cache::OptionsBuilder::new();
        options.estimated_items_capacity(capacity).weight_capacity(capacity as u64);
        Self(quick_cache::unsync::Cache::with_options(
            options.build().expect("all that is asked for is given"),
            quick_cache::UnitWeighter,
            Fixed::default(),
            Default::default(),
        ))
    }
}

impl Cache for ClockPro {
    fn contains(&self, block: Block) -> bool {
        self.0.peek(&block).is_some()
    }

    fn hit(&mut self, block: Block, _depth: u32) {
        self.0.get(&block);
    }

    fn store(&mut self, block: Block, _depth: u32) {
        self.0.insert(block, ());
    }
}
