//! Blocks of several parts: tensor-parallel ranks, groups of layers.
//!
//! An engine that splits a block's bytes stores one object for each shard and part. Such a block is worth something only
//! whole: it is a hit if every part is ready, a prefix is as long as the shortest of its parts' prefixes and ends at the
//! first hole, and leases are had on all parts or on none.
//!
//! The parts of one block are asked for side by side, so a block costs as many look-ups as it has parts, under way together.

use crate::pools::{BlockId, Store, StoreError, StoreLease, StoreMiss, StoreNamespace};
use crate::{Batch, CallError, Lease, ObjectId, Session, Why};

/// Blocks of one question to a session; more are asked as long as all of them hit.
const WINDOW_BLOCKS: usize = 64;

/// Into how many objects a block is split: shards 0 to `shards - 1`, each of parts 0 to `parts - 1`.
///
/// ```
/// let parts = maru::Parts::new(4, 2).unwrap();
/// assert_eq!(parts.objects(), 8);
/// assert!(maru::Parts::new(0, 1).unwrap_err().to_string().contains("shards is 0"));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Parts {
    shards: u16,
    parts: u16,
}

/// A split that no block can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{field} is 0, wanted at least 1")]
pub struct PartsError {
    /// Which number.
    pub field: &'static str,
}

impl Parts {
    /// One object a block.
    pub const WHOLE: Self = Self { shards: 1, parts: 1 };

    /// So many shards (ranks), each of so many parts.
    ///
    /// # Errors
    /// One of them is 0.
    pub fn new(shards: u16, parts: u16) -> Result<Self, PartsError> {
        match (shards, parts) {
            (0, _) => Err(PartsError { field: "shards" }),
            (_, 0) => Err(PartsError { field: "parts" }),
            _ => Ok(Self { shards, parts }),
        }
    }

    /// Shards of a block.
    #[must_use]
    pub fn shards(&self) -> u16 {
        self.shards
    }

    /// Parts of a shard.
    #[must_use]
    pub fn parts(&self) -> u16 {
        self.parts
    }

    /// Objects of a block.
    #[must_use]
    pub fn objects(&self) -> usize {
        usize::from(self.shards) * usize::from(self.parts)
    }

    /// Shard and part of the object at `at` of a block: shard by shard, parts of a shard in order.
    fn at(self, at: usize) -> (u16, u16) {
        // Both are below their u16 bounds, `at` being below `objects`.
        ((at / usize::from(self.parts)) as u16, (at % usize::from(self.parts)) as u16)
    }

    /// The objects of a block, whose own shard and part are not looked at: shard by shard, parts of a shard in order.
    pub fn of(self, block: ObjectId) -> impl Iterator<Item = ObjectId> {
        (0..self.objects()).map(move |at| {
            let (shard, part) = self.at(at);
            ObjectId { shard, part, ..block }
        })
    }

    /// As [`Parts::of`], of a block of a store.
    pub fn of_block(self, block: BlockId) -> impl Iterator<Item = BlockId> {
        (0..self.objects()).map(move |at| {
            let (shard, part) = self.at(at);
            BlockId { shard, part, ..block }
        })
    }
}

impl Session {
    /// How many leading blocks are ready now in all their parts. The shard and part in the ids given are not looked at.
    ///
    /// # Errors
    /// The call cannot be tried.
    pub fn probe_prefix_parts(&self, blocks: &[ObjectId], parts: Parts) -> Result<usize, CallError> {
        let mut run = 0;
        let mut objects = Vec::new();
        for window in blocks.chunks(WINDOW_BLOCKS.div_ceil(parts.objects())) {
            objects.clear();
            objects.extend(window.iter().flat_map(|block| parts.of(*block)));
            // Parts of a block stand together, so a run of objects is a run of whole blocks and a piece of the next.
            let whole = self.probe_prefix(&objects)? / parts.objects();
            run += whole;
            if whole < window.len() {
                break;
            }
        }
        Ok(run)
    }

    /// Protects each block in all its parts or not at all; answers keep the order, and leases that of [`Parts::of`]. A
    /// block of which a part is missing answers with the reason of the first such part.
    ///
    /// With [`Batch::AllOrNothing`] one miss releases the other blocks too, which then answer [`Why::PartnerMissing`].
    ///
    /// # Errors
    /// The batch cannot be tried.
    pub fn acquire_parts(
        &self,
        blocks: &[ObjectId],
        parts: Parts,
        batch: Batch,
    ) -> Result<Vec<Result<Vec<Lease<'_>>, Why>>, CallError> {
        let objects: Vec<ObjectId> = blocks.iter().flat_map(|block| parts.of(*block)).collect();
        let answers = self.acquire(&objects, Batch::Each)?;
        Ok(whole_blocks(answers, parts, batch, || Why::PartnerMissing))
    }
}

impl Store {
    /// How many leading blocks are ready now in all their parts, each part in whichever pool of the read order. The shard
    /// and part in the ids given are not looked at.
    ///
    /// # Errors
    /// As [`Store::probe_prefix`].
    pub fn probe_prefix_parts(
        &self,
        namespace: &StoreNamespace,
        blocks: &[BlockId],
        parts: Parts,
    ) -> Result<usize, StoreError> {
        // Asked for nothing, to be told of a namespace or store that is another one's.
        self.probe_prefix(namespace, &[])?;
        let object = |at: usize| {
            let (shard, part) = parts.at(at % parts.objects());
            BlockId { shard, part, ..blocks[at / parts.objects()] }
        };
        let run = self.leading_run(namespace, blocks.len().saturating_mul(parts.objects()), object)?;
        Ok(run / parts.objects())
    }

    /// Protects each block in all its parts or not at all, each part in the first pool of the read order that grants it;
    /// otherwise as [`Session::acquire_parts`].
    ///
    /// # Errors
    /// As [`Store::acquire`].
    pub fn acquire_parts(
        &self,
        namespace: &StoreNamespace,
        blocks: &[BlockId],
        parts: Parts,
        batch: Batch,
    ) -> Result<Vec<Result<Vec<StoreLease<'_>>, StoreMiss>>, StoreError> {
        let objects: Vec<BlockId> = blocks.iter().flat_map(|block| parts.of_block(*block)).collect();
        let answers = self.acquire(namespace, &objects, Batch::Each)?;
        Ok(whole_blocks(answers, parts, batch, StoreMiss::partner))
    }
}

/// Puts answers for parts together to answers for blocks. What is not whole is dropped, and so released.
fn whole_blocks<L, W>(
    answers: Vec<Result<L, W>>,
    parts: Parts,
    batch: Batch,
    partner: impl Fn() -> W,
) -> Vec<Result<Vec<L>, W>> {
    let mut answers = answers.into_iter();
    let mut blocks = Vec::new();
    while answers.len() > 0 {
        // All of the block's answers are taken, also after the first miss.
        let block: Vec<Result<L, W>> = answers.by_ref().take(parts.objects()).collect();
        blocks.push(block.into_iter().collect::<Result<Vec<L>, W>>());
    }
    if batch == Batch::AllOrNothing && blocks.iter().any(Result::is_err) {
        for block in blocks.iter_mut().filter(|block| block.is_ok()) {
            *block = Err(partner());
        }
    }
    blocks
}
