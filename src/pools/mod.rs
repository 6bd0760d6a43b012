//! A store of pools: several regions behind one set of verbs.
//!
//! A pool is a region that is open, a session in it, and a name. CPU memory and CXL memory are peers: a [`Store`] tries
//! its pools in one order when it stores and in another when it reads, and both are lists that the caller writes down.
//!
//! * O1: *Eligibility before ranking.* A pool that this process may not use ([`Ineligible`]) is never asked, wherever it
//!   stands in an order.
//! * O2: *One success, one pool.* A reservation, and so a commit, belongs to exactly one pool; nothing is spread or copied.
//! * O3: *Refusals of one pool are the next one's chance.* Space, size, budget and bucket are matters of a pool. When all
//!   have refused, the store is refused with each pool's reason, and no pool has lost a hit by it. Free space of any pool is
//!   used before a block goes from one of them; after that, what goes is the first pool's that can make room.
//! * O4: *Replicas are judged per pool.* "Present" means present in some pool that is read, unless the caller asks for
//!   another replica. Two processes that store one block at once through different pools make two replicas; content under
//!   an id never changes, so a reader may take either.
//! * O5: *A pool that fails costs its own blocks only.* Its error is remembered and shown ([`Store::health`]); the others go on.
//!
//! Namespace ids are numbers of one region. A [`StoreNamespace`] holds one for each pool, and a [`BlockId`] names a block
//! in any of them.
//!
//! | file | does |
//! | --- | --- |
//! | `pool.rs` | opens one, and says whether this process may use it |
//! | `build.rs` | checks names and orders |
//! | `health.rs` | remembers what became of each pool |
//! | `answer.rs` | what a pool said, with its name |
//! | `names.rs` | namespaces and blocks across pools |
//! | `reserve.rs` | the writer's end |
//! | `load.rs` | the reader's end |
//! | `usage.rs` | the accounts, per pool and per namespace |

mod answer;
mod build;
mod health;
mod load;
mod names;
mod pool;
mod reserve;
mod usage;

pub use self::answer::{PoolAnswer, Reason, StoreError, StoreMiss};
pub use self::build::{BuildError, StoreBuilder};
pub use self::health::{PoolHealth, PoolState};
pub use self::load::{StoreLease, StoreProbe};
pub use self::names::{BlockId, StoreInvalidation, StoreNamespace};
pub use self::pool::{Ineligible, Pool, PoolError};
pub use self::reserve::{Replicas, StoreOptions, StoreReservation, StoreReserve};
pub use self::usage::PoolUsage;

use crate::os::fork::ProcessTag;

/// Pools with a write order and a read order.
///
/// `Send` and `Sync`, as the sessions in it are. Dropping it closes them. In a forked child every call answers
/// [`StoreError::ForeignProcess`].
///
/// ```
/// use maru::{Batch, BlockId, Format, Medium, Namespace, OpenOptions, Pool, Role, Store, StoreOptions, StoreReserve};
/// use maru::{Verify, Wish};
///
/// # let folder = std::env::temp_dir().join(format!("maru-store-{}", std::process::id()));
/// # std::fs::create_dir_all(&folder)?;
/// let pool = |name: &str, medium| {
///     let wish = Wish { medium: Some(medium), ..Wish::of_slots(1 << 20, 4096) };
///     let options = OpenOptions::path(folder.join(name)).format(Format::IfAbsent).wish(wish);
///     Pool::open(name, options, |region| region.session("engine-a", Role::Worker))
/// };
/// let store = Store::builder()
///     .pool(pool("cpu", Medium::Cpu)?)
///     .pool(pool("cxl", Medium::Cxl)?)
///     .write_order(["cpu", "cxl"])
///     .read_order(["cxl", "cpu"])
///     .build()?;
/// let model = Namespace::new()
///     .tenant("search").model("m").revision("1").adapter("none").dtype("bfloat16").quantization("none")
///     .geometry("layers=2").storage_format("demo-1").block_tokens(16).parallel("tp=1")
///     .hash_algorithm("sha256").hash_seed("0");
/// let namespace = store.namespace(&model)?;
/// let block = BlockId::new([7; 32]);
/// if let StoreReserve::Granted(mut slot) = store.reserve(&namespace, &block, 5, StoreOptions::default())? {
///     assert_eq!(slot.pool(), "cpu");
///     slot.write_at(0, b"bytes")?;
///     slot.commit()?;
/// }
/// assert_eq!(store.probe_prefix(&namespace, &[block])?, 1);
/// for lease in store.acquire(&namespace, &[block], Batch::Each)? {
///     let mut lease = lease.expect("a hit");
///     let mut bytes = [0; 5];
///     lease.read_into(&mut bytes, Verify::Always)?;
///     assert_eq!((&bytes, lease.pool()), (b"bytes", "cpu"));
/// }
/// # drop(store);
/// # std::fs::remove_dir_all(&folder)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Store {
    pools: Vec<Member>,
    /// Indices into `pools`.
    write_order: Vec<usize>,
    read_order: Vec<usize>,
    /// Tells this store's namespaces from another one's; random.
    id: u64,
    tag: ProcessTag,
}

/// A pool, and what became of it.
#[derive(Debug)]
struct Member {
    pool: Pool,
    health: health::Memory,
}

impl Store {
    /// A store that has no pools yet.
    #[must_use]
    pub fn builder() -> StoreBuilder {
        StoreBuilder::default()
    }

    /// Names of the pools in the order in which stores are tried.
    pub fn write_order(&self) -> impl Iterator<Item = &str> {
        self.write_order.iter().map(|index| self.pools[*index].pool.name())
    }

    /// Names of the pools in the order in which reads are tried.
    pub fn read_order(&self) -> impl Iterator<Item = &str> {
        self.read_order.iter().map(|index| self.pools[*index].pool.name())
    }

    /// The pool of this name: its region, its session, its scope.
    #[must_use]
    pub fn pool(&self, name: &str) -> Option<&Pool> {
        self.pools.iter().map(|member| &member.pool).find(|pool| pool.name() == name)
    }

    /// All pools, in the order in which they were added.
    pub fn pools(&self) -> impl Iterator<Item = &Pool> {
        self.pools.iter().map(|member| &member.pool)
    }

    /// Shows that the process still turns, in every pool that is in use, and notices pools that have been replaced, cut or
    /// lost. To be called about once a second. Returns how many pools answered.
    ///
    /// # Errors
    /// The store belongs to another process.
    pub fn heartbeat(&self) -> Result<usize, StoreError> {
        self.check_process()?;
        let beat = |member: &&Member| member.ask(|pool| pool.session().heartbeat()).is_ok();
        Ok(self.pools.iter().filter(beat).count())
    }

    /// What became of each pool, in the order in which they were added.
    #[must_use]
    pub fn health(&self) -> Vec<PoolHealth> {
        let foreign = self.tag.is_foreign();
        self.pools.iter().map(|member| member.health(foreign)).collect()
    }

    fn check_process(&self) -> Result<(), StoreError> {
        if self.tag.is_foreign() { Err(StoreError::ForeignProcess) } else { Ok(()) }
    }
}
