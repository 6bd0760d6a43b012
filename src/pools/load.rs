//! Reading from the first pool of the read order that has a block, and from the next one where that replica does not hold.

use core::ops::Deref;

use super::{BlockId, Member, PoolAnswer, Reason, Store, StoreError, StoreMiss, StoreNamespace};
use crate::{Batch, CallError, Lease, LoadError, ObjectId, Probe, Session, Verify, Why};

/// Blocks asked of one pool at a time where a prefix changes pools; doubled while a pool answers for all of them.
const FIRST_WINDOW: usize = 64;

/// Answer of [`Store::probe`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreProbe {
    /// Ready now, in this pool, the first of the read order. Protects nothing.
    Hit {
        /// Payload bytes.
        len: u32,
        /// Name of the pool.
        pool: String,
    },
    /// Not to be had, and what each pool says.
    Miss(StoreMiss),
}

impl StoreProbe {
    /// Whether it is a hit.
    #[must_use]
    pub fn is_hit(&self) -> bool {
        matches!(self, Self::Hit { .. })
    }
}

/// Protection of one replica of one block, and the pool that it lies in. All of [`Lease`] works on it; reading falls to the
/// next pool where this replica does not hold.
#[derive(Debug)]
pub struct StoreLease<'s> {
    store: &'s Store,
    namespace: StoreNamespace,
    block: BlockId,
    /// Index of the pool.
    pool: usize,
    lease: Lease<'s>,
}

impl<'s> StoreLease<'s> {
    /// Name of the pool that the protected replica lies in. After a read that fell to another pool, that pool.
    #[must_use]
    pub fn pool(&self) -> &'s str {
        self.store.pools[self.pool].pool.name()
    }

    /// The block.
    #[must_use]
    pub fn block(&self) -> &BlockId {
        &self.block
    }

    /// The lease itself, of the session of [`StoreLease::pool`].
    #[must_use]
    pub fn into_inner(self) -> Lease<'s> {
        self.lease
    }

    /// Copies the block out, as [`Lease::read_into`] does. Where the replica is damaged, expired or in a pool that is
    /// lost, the other pools of the read order are tried, and the lease is of the one that the bytes came from.
    ///
    /// # Errors
    /// That of the first replica, when none can be read. The buffer's content is not the block then.
    pub fn read_into(&mut self, buffer: &mut [u8], verify: Verify) -> Result<(), LoadError> {
        let store = self.store;
        let Err(first) = self.lease.read_into(buffer, verify) else { return Ok(()) };
        if !self.note(first) {
            return Err(first);
        }
        for index in store.read_order.iter().copied().filter(|index| *index != self.pool).collect::<Vec<_>>() {
            let Some(lease) = store.acquire_one(index, &self.namespace, &self.block) else { continue };
            if lease.len() as usize != buffer.len() {
                continue;
            }
            match lease.read_into(buffer, verify) {
                Ok(()) => {
                    (self.pool, self.lease) = (index, lease);
                    return Ok(());
                }
                Err(LoadError::Call(error)) => store.pools[index].health.note(error),
                Err(_) => {}
            }
        }
        Err(first)
    }

    /// As [`StoreLease::read_into`], into a new vector.
    ///
    /// # Errors
    /// As [`StoreLease::read_into`].
    pub fn read(&mut self, verify: Verify) -> Result<Vec<u8>, LoadError> {
        let mut bytes = vec![0; self.lease.len() as usize];
        self.read_into(&mut bytes, verify)?;
        Ok(bytes)
    }

    /// Whether another replica may do better; a failed pool is remembered.
    fn note(&self, error: LoadError) -> bool {
        match error {
            LoadError::Damaged { .. } | LoadError::Expired => true,
            LoadError::Call(error) => {
                self.store.pools[self.pool].health.note(error);
                error != CallError::ForeignProcess
            }
            _ => false,
        }
    }
}

impl<'s> Deref for StoreLease<'s> {
    type Target = Lease<'s>;

    fn deref(&self) -> &Lease<'s> {
        &self.lease
    }
}

impl Store {
    /// Whether `block` is ready now in a pool of the read order. Protects nothing, stores nothing that others read.
    ///
    /// # Errors
    /// The namespace or the store is another one's; or no pool could be asked, so that nothing is known.
    pub fn probe(&self, namespace: &StoreNamespace, block: &BlockId) -> Result<StoreProbe, StoreError> {
        self.check(namespace)?;
        let (answer, _) = self.look(namespace, block);
        match answer {
            StoreProbe::Miss(miss) if nobody_asked(&miss.pools) => Err(no_pool(miss.pools)),
            answer => Ok(answer),
        }
    }

    /// Probes pool by pool; the index is that of the pool that hits.
    pub(super) fn look(&self, namespace: &StoreNamespace, block: &BlockId) -> (StoreProbe, Option<usize>) {
        let mut reasons = Vec::new();
        for index in &self.read_order {
            let member = &self.pools[*index];
            let asked = id_or_reason(member, namespace, *index)
                .and_then(|id| member.ask(|pool| pool.session().probe(&block.object(id))));
            match asked {
                Ok(Probe::Hit { len }) => {
                    let pool = member.pool.name().to_owned();
                    return (StoreProbe::Hit { len, pool }, Some(*index));
                }
                Ok(Probe::Miss(why)) => reasons.push(member.says(Reason::Why(why))),
                Err(reason) => reasons.push(member.says(reason)),
            }
        }
        (StoreProbe::Miss(StoreMiss::of(reasons)), None)
    }

    /// How many leading blocks are ready now, each in whichever pool of the read order: what a scheduler asks for a whole
    /// request.
    ///
    /// # Errors
    /// The namespace or the store is another one's; or no pool could be asked, so that nothing is known.
    pub fn probe_prefix(&self, namespace: &StoreNamespace, blocks: &[BlockId]) -> Result<usize, StoreError> {
        self.check(namespace)?;
        self.leading_run(namespace, blocks.len(), |at| blocks[at])
    }

    /// The leading run of `count` blocks, the one at each place given by `block`.
    pub(crate) fn leading_run(
        &self,
        namespace: &StoreNamespace,
        count: usize,
        block: impl Fn(usize) -> BlockId,
    ) -> Result<usize, StoreError> {
        let (mut run, mut window) = (0, FIRST_WINDOW);
        let mut objects: Vec<ObjectId> = Vec::new();
        // The pool that ended its run here need not be asked for the same block again.
        let mut ended = None;
        let mut answered = false;
        while run < count {
            let (mut found, mut reasons) = (0, Vec::new());
            let wanted = window.min(count - run);
            for index in self.read_order.iter().copied().filter(|index| Some(*index) != ended) {
                let member = &self.pools[index];
                let asked = id_or_reason(member, namespace, index).and_then(|id| {
                    objects.clear();
                    objects.extend((run..run + wanted).map(|at| block(at).object(id)));
                    member.ask(|pool| pool.session().probe_prefix(&objects))
                });
                match asked {
                    Ok(0) => answered = true,
                    Ok(leading) => {
                        found = leading;
                        ended = (leading < wanted).then_some(index);
                        answered = true;
                        break;
                    }
                    Err(reason) => reasons.push(member.says(reason)),
                }
            }
            if found == 0 {
                if !answered {
                    return Err(no_pool(reasons));
                }
                break;
            }
            run += found;
            window = if found == wanted { window.saturating_mul(2) } else { FIRST_WINDOW };
        }
        Ok(run)
    }

    /// Protects each block in the first pool of the read order that grants it; answers keep the order. A lost race is a
    /// miss, never an error.
    ///
    /// With [`Batch::AllOrNothing`] one miss releases the others, which then answer [`Why::PartnerMissing`].
    ///
    /// # Errors
    /// The namespace or the store is another one's; or no pool could be asked, so that nothing is known.
    pub fn acquire(
        &self,
        namespace: &StoreNamespace,
        blocks: &[BlockId],
        batch: Batch,
    ) -> Result<Vec<Result<StoreLease<'_>, StoreMiss>>, StoreError> {
        self.acquire_by(namespace, blocks, batch, |session, objects| session.acquire(objects, Batch::Each))
    }

    /// As [`Store::acquire`], for a device that will read the slots; see [`Session::acquire_for_device`].
    ///
    /// # Errors
    /// As [`Store::acquire`].
    pub fn acquire_for_device(
        &self,
        namespace: &StoreNamespace,
        blocks: &[BlockId],
        batch: Batch,
    ) -> Result<Vec<Result<StoreLease<'_>, StoreMiss>>, StoreError> {
        self.acquire_by(namespace, blocks, batch, |session, objects| session.acquire_for_device(objects, Batch::Each))
    }

    fn acquire_by<'s>(
        &'s self,
        namespace: &StoreNamespace,
        blocks: &[BlockId],
        batch: Batch,
        acquire: impl Fn(&'s Session, &[ObjectId]) -> Result<Vec<Result<Lease<'s>, Why>>, CallError>,
    ) -> Result<Vec<Result<StoreLease<'s>, StoreMiss>>, StoreError> {
        self.check(namespace)?;
        let mut leases: Vec<Option<StoreLease<'s>>> = blocks.iter().map(|_| None).collect();
        let mut reasons: Vec<Vec<PoolAnswer>> = vec![Vec::new(); blocks.len()];
        for index in self.read_order.iter().copied() {
            let missing: Vec<usize> = (0..blocks.len()).filter(|at| leases[*at].is_none()).collect();
            if missing.is_empty() {
                break;
            }
            let member = &self.pools[index];
            let asked = id_or_reason(member, namespace, index).and_then(|id| {
                let objects: Vec<ObjectId> = missing.iter().map(|at| blocks[*at].object(id)).collect();
                member.ask(|pool| acquire(pool.session(), &objects))
            });
            match asked {
                Ok(answers) => {
                    for (at, answer) in missing.into_iter().zip(answers) {
                        match answer {
                            Ok(lease) => {
                                let (namespace, block) = (namespace.clone(), blocks[at]);
                                leases[at] = Some(StoreLease { store: self, namespace, block, pool: index, lease });
                            }
                            Err(why) => reasons[at].push(member.says(Reason::Why(why))),
                        }
                    }
                }
                Err(reason) => missing.into_iter().for_each(|at| reasons[at].push(member.says(reason))),
            }
        }
        if let Some(first) = reasons.iter().zip(&leases).find(|(_, lease)| lease.is_none()).map(|(reasons, _)| reasons)
            && leases.iter().all(Option::is_none)
            && nobody_asked(first)
        {
            return Err(no_pool(first.clone()));
        }
        let incomplete = batch == Batch::AllOrNothing && leases.iter().any(Option::is_none);
        let answer = |(lease, reasons): (Option<StoreLease<'s>>, Vec<PoolAnswer>)| match lease {
            Some(_) if incomplete => Err(StoreMiss::partner()),
            Some(lease) => Ok(lease),
            None => Err(StoreMiss::of(reasons)),
        };
        Ok(leases.into_iter().zip(reasons).map(answer).collect())
    }

    /// A lease on one replica in one pool.
    fn acquire_one(&self, index: usize, namespace: &StoreNamespace, block: &BlockId) -> Option<Lease<'_>> {
        let member = &self.pools[index];
        let object = block.object(namespace.id(index)?);
        let answers = member.ask(|pool| pool.session().acquire(&[object], Batch::Each)).ok()?;
        answers.into_iter().next()?.ok()
    }
}

/// The namespace's id in a pool, or why that pool is not asked.
fn id_or_reason(member: &Member, namespace: &StoreNamespace, index: usize) -> Result<crate::NamespaceId, Reason> {
    namespace.id(index).ok_or_else(|| member.shut().unwrap_or(Reason::NoNamespace))
}

/// Whether no pool at all has said anything about the block itself.
fn nobody_asked(answers: &[PoolAnswer]) -> bool {
    answers.iter().all(|answer| !matches!(answer.reason, Reason::Why(_)))
}

fn no_pool(pools: Vec<PoolAnswer>) -> StoreError {
    StoreError::NoPool { order: "read", pools }
}
