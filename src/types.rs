//! What callers say and hear: object ids, options, outcomes, handles.

use core::fmt;
use core::time::Duration;

use maru_layout::object::ObjectKey;
use maru_layout::word::MAX_GENERATION;

/// A namespace as registered in a region: the row, and the generation it had.
///
/// Got from [`crate::Session::namespace`]. After [`crate::Session::invalidate`] every call with an id of the
/// old generation answers "invalidated"; asking for the namespace again gives the new one.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct NamespaceId {
    /// First half of the id of the region that registered it.
    pub(crate) region: u64,
    pub(crate) row: u32,
    pub(crate) generation: u64,
    pub(crate) digest: [u8; 16],
}

impl NamespaceId {
    /// Row of the region's namespace table.
    #[must_use]
    pub fn row(&self) -> u32 {
        self.row
    }

    /// Generation of the namespace that this id was made under.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// SHA-256 of canonical text and generation, first 16 bytes.
    #[must_use]
    pub fn digest(&self) -> [u8; 16] {
        self.digest
    }
}

impl fmt::Debug for NamespaceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NamespaceId(row {}, generation {}, ", self.row, self.generation)?;
        for byte in &self.digest[..4] {
            write!(f, "{byte:02x}")?;
        }
        f.write_str("..)")
    }
}

/// Name of a KV block: what it holds, never who stored it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ObjectId {
    /// Everything that makes two blocks of equal tokens interchangeable.
    pub namespace: NamespaceId,
    /// Digest of the token prefix through this block. Compared in full, whatever its value.
    pub prefix: [u8; 32],
    /// Shard: tensor- or pipeline-parallel rank.
    pub shard: u16,
    /// Part of the block, such as a group of layers; 0 for all.
    pub part: u16,
}

impl ObjectId {
    /// The object of shard 0, part 0.
    #[must_use]
    pub fn new(namespace: NamespaceId, prefix: [u8; 32]) -> Self {
        Self { namespace, prefix, shard: 0, part: 0 }
    }

    pub(crate) fn key(&self) -> ObjectKey {
        ObjectKey { namespace: self.namespace.digest, prefix: self.prefix, shard: self.shard, part: self.part }
    }
}

/// How much of a region a namespace may hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Budget {
    /// Slots, of whichever class.
    Slots(u32),
    /// Bytes, rounded down to slots of the largest class: what it holds never exceeds them.
    Bytes(u64),
}

impl Budget {
    /// In slots, where the largest class has `slot_bytes`.
    #[must_use]
    pub fn slots(self, slot_bytes: u64) -> u32 {
        match self {
            Self::Slots(slots) => slots,
            Self::Bytes(bytes) => u32::try_from(bytes / slot_bytes.max(1)).unwrap_or(u32::MAX),
        }
    }
}

/// Who writes the payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Writer {
    /// This process. When it is proven dead, so is the writer.
    #[default]
    Cpu,
    /// A device on behalf of this process: after the owner's death the slot stays quarantined until somebody
    /// vouches that the device has drained.
    Device,
}

/// Options of [`crate::Session::reserve`].
#[derive(Debug, Clone, Copy, Default)]
pub struct ReserveOptions {
    /// Who writes.
    pub writer: Writer,
    /// Depth of the block in its prefix chain, in blocks; eviction prefers deep ones.
    pub depth: u32,
    /// Prefix digest of the parent block.
    pub parent: Option<[u8; 32]>,
    /// Leading blocks of the same request that were found before this one had to be stored. What follows a shared prefix
    /// is mostly private to its request, and is evicted somewhat sooner.
    pub after_hits: u32,
    /// Takes only space that is free: nothing is evicted for this store, whatever the session's [`crate::Evict`] says.
    pub free_space_only: bool,
}

/// Why something was not granted or not found. A reason, never a failure of the region.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Why {
    /// No such object in this region.
    Absent,
    /// Somebody is writing it.
    NotReady,
    /// Its bytes were found damaged earlier, and its slot is quarantined. [`Why::Absent`] once its place in the index is
    /// needed; the object can be stored anew at any time.
    Quarantined,
    /// It was found and had gone before it could be protected.
    Vanished,
    /// The bytes did not match their checksum; the slot has been quarantined.
    Damaged,
    /// The namespace was invalidated after the id was made.
    Invalidated,
    /// All lease cells of this session are in use.
    LeasesFull,
    /// Another member of an all-or-nothing batch could not be had.
    PartnerMissing,
    /// No slot of a fitting class is free.
    NoSpace,
    /// Larger than any slot.
    TooLarge {
        /// Bytes asked for.
        bytes: u64,
        /// Bytes of the largest slot.
        max_bytes: u64,
    },
    /// A length of zero.
    Empty,
    /// The same id is present with another length.
    LengthMismatch {
        /// Bytes of the present object.
        present_bytes: u32,
        /// Bytes asked for.
        asked_bytes: u64,
    },
    /// Both index buckets of the key are full of blocks in use.
    BucketBusy,
    /// The namespace's budget is spent.
    OverBudget,
    /// This session's own limit is reached (reservations, pins).
    SessionLimit,
}

impl Why {
    /// A short word for JSON and metrics.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Absent => "absent",
            Self::NotReady => "not_ready",
            Self::Quarantined => "quarantined",
            Self::Vanished => "vanished",
            Self::Damaged => "damaged",
            Self::Invalidated => "invalidated",
            Self::LeasesFull => "leases_full",
            Self::PartnerMissing => "partner_missing",
            Self::NoSpace => "no_space",
            Self::TooLarge { .. } => "too_large",
            Self::Empty => "empty",
            Self::LengthMismatch { .. } => "length_mismatch",
            Self::BucketBusy => "bucket_busy",
            Self::OverBudget => "over_budget",
            Self::SessionLimit => "session_limit",
        }
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Absent => f.write_str("no such object"),
            Self::NotReady => f.write_str("being written"),
            Self::Quarantined => f.write_str("its slot is quarantined"),
            Self::Vanished => f.write_str("gone before it could be protected"),
            Self::Damaged => f.write_str("checksum mismatch; slot quarantined"),
            Self::Invalidated => f.write_str("namespace invalidated"),
            Self::LeasesFull => f.write_str("all lease cells of this session are in use"),
            Self::PartnerMissing => f.write_str("another object of the batch is missing"),
            Self::NoSpace => f.write_str("no free slot"),
            Self::TooLarge { bytes, max_bytes } => {
                write!(f, "{bytes} bytes asked for, the largest slot has {max_bytes}")
            }
            Self::Empty => f.write_str("0 bytes asked for, wanted at least 1"),
            Self::LengthMismatch { present_bytes, asked_bytes } => {
                write!(f, "present with {present_bytes} bytes, {asked_bytes} asked for")
            }
            Self::BucketBusy => f.write_str("both index buckets are full of blocks in use"),
            Self::OverBudget => f.write_str("the namespace's budget is spent"),
            Self::SessionLimit => f.write_str("this session's own limit is reached"),
        }
    }
}

/// Answer of [`crate::Session::probe`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Probe {
    /// Ready now. Protects nothing.
    Hit {
        /// Payload bytes.
        len: u32,
    },
    /// Not to be had, and why.
    Miss(Why),
}

impl Probe {
    /// Whether it is a hit.
    #[must_use]
    pub fn is_hit(&self) -> bool {
        matches!(self, Self::Hit { .. })
    }
}

/// Answer of a commit, and of [`crate::Session::resolve`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Commit {
    /// Ready; a probe right after hits.
    Stored,
    /// It had been ready before this call.
    AlreadyStored,
    /// The slot was taken away because this writer stood still too long; nothing was stored, the space is given
    /// back.
    Superseded,
    /// The slot has moved on to another life; nothing is known any more but that this one has ended.
    GenerationGone,
    /// This session is fenced.
    Fenced,
    /// The namespace was invalidated; nothing was stored.
    Invalidated,
    /// Bytes of the reserved range have not been written. The reservation stays open.
    Incomplete {
        /// Bytes written.
        written: u32,
        /// Bytes reserved.
        len: u32,
    },
    /// Not decided yet, or the region was lost in the middle; ask [`crate::Session::resolve`] with this token.
    Unknown(Token),
}

impl Commit {
    /// A short word for JSON.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Stored => "stored",
            Self::AlreadyStored => "already_stored",
            Self::Superseded => "superseded",
            Self::GenerationGone => "generation_gone",
            Self::Fenced => "fenced",
            Self::Invalidated => "invalidated",
            Self::Incomplete { .. } => "incomplete",
            Self::Unknown(_) => "unknown",
        }
    }
}

/// Names one reservation, so that its outcome can be asked for later, by anybody, from anywhere. Plain data: a
/// made-up one gets an answer and changes nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Token {
    pub(crate) region: [u8; 16],
    pub(crate) slot: u32,
    pub(crate) generation: u64,
}

impl Token {
    /// Bytes of the plain form.
    pub const BYTES: usize = 28;

    /// Plain form: region id, slot, generation; little endian.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..16].copy_from_slice(&self.region);
        bytes[16..20].copy_from_slice(&self.slot.to_le_bytes());
        bytes[20..].copy_from_slice(&self.generation.to_le_bytes());
        bytes
    }

    /// Reads a plain form; any bytes will do.
    #[must_use]
    pub fn from_bytes(bytes: &[u8; Self::BYTES]) -> Self {
        let (region, rest) = bytes.split_first_chunk::<16>().expect("28 bytes");
        let (slot, generation) = rest.split_first_chunk::<4>().expect("12 bytes");
        Self {
            region: *region,
            slot: u32::from_le_bytes(*slot),
            generation: u64::from_le_bytes(generation.try_into().expect("8 bytes")) & MAX_GENERATION,
        }
    }
}

/// Names one lease of one session. Plain data: a second, foreign, stale or made-up one releases nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LeaseHandle {
    /// Low half of the session's random id.
    pub(crate) session: u64,
    pub(crate) cell: u32,
    pub(crate) slot: u32,
    pub(crate) generation: u64,
    pub(crate) sequence: u64,
}

impl LeaseHandle {
    /// Bytes of the plain form.
    pub const BYTES: usize = 32;

    /// Plain form: session, cell, slot, generation, sequence; little endian.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..8].copy_from_slice(&self.session.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.cell.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.slot.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.generation.to_le_bytes());
        bytes[24..].copy_from_slice(&self.sequence.to_le_bytes());
        bytes
    }

    /// Reads a plain form; any bytes will do.
    #[must_use]
    pub fn from_bytes(bytes: &[u8; Self::BYTES]) -> Self {
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        let half = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        Self { session: word(0), cell: half(8), slot: half(12), generation: word(16), sequence: word(24) }
    }
}

/// Answer of [`crate::Session::release`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Release {
    /// It was held and is not any more.
    Released,
    /// This session holds no such lease; nothing changed.
    NotHeld,
    /// A [`crate::View`] of it lives; nothing changed.
    Viewed,
}

/// Answer of [`crate::Session::retire`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retire {
    /// Freed.
    Retired,
    /// Shut to new readers; freed when the last lease ends (by [`crate::Session::reclaim`] or whoever needs space).
    Draining,
    /// There was nothing to retire.
    Gone,
}

/// Whether a batch of [`crate::Session::acquire`] stands or falls together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Batch {
    /// One missing object releases the others.
    AllOrNothing,
    /// Each for itself.
    #[default]
    Each,
}

/// When a load checks the bytes against their checksum.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Verify {
    /// Every time.
    #[default]
    Always,
    /// One load in this many (0 and 1 mean every).
    Sampled(u32),
    /// Never. Generation and session are still checked after the copy.
    Never,
}

/// What [`crate::Session::reclaim`] did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ReclaimReport {
    /// Slots freed: drained ones, and those of namespaces whose generation has ended.
    pub freed_slots: u32,
    /// Draining slots still leased.
    pub draining_slots: u32,
    /// Dead sessions recovered.
    pub recovered_sessions: u32,
    /// Slots that came back from them.
    pub recovered_slots: u32,
}

/// Byte counters of a region, recounted from the slot words. Subsets are shown inside `allocated_bytes`; nobody
/// adds them to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// All slots.
    pub capacity_bytes: u64,
    /// The backing, alignment and tables included.
    pub reserved_bytes: u64,
    /// Every slot that is not free.
    pub allocated_bytes: u64,
    /// Payload bytes of ready objects.
    pub ready_bytes: u64,
    /// Slots of ready objects.
    pub ready_allocated_bytes: u64,
    /// Slots that wait for their last reader.
    pub retiring_bytes: u64,
    /// Slots claimed and not yet committed.
    pub writing_bytes: u64,
    /// Slots that nobody may use.
    pub quarantined_bytes: u64,
    /// Bytes registered with a device; none in this format.
    pub pinned_bytes: u64,
    /// Slots.
    pub capacity_slots: u32,
    /// Slots by state, in the order of [`maru_layout::word::SlotState::ALL`].
    pub slots: [u32; 7],
    /// Slots whose word is none that any version writes.
    pub damaged_slots: u32,
}

/// What one namespace holds, recounted from the slot words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NamespaceUsage {
    /// Slots that it may hold; `None`: no budget.
    pub budget_slots: Option<u64>,
    /// Budget tokens that are spent now: slots that it holds, and slots that are about to be its.
    pub spent_tokens: u32,
    /// Slots by state, in the order of [`maru_layout::word::SlotState::ALL`]. A slot that is only claimed does not say for
    /// whom; a free one is nobody's.
    pub slots: [u32; 7],
    /// Bytes of its slots.
    pub allocated_bytes: u64,
    /// Payload bytes of its ready objects.
    pub ready_bytes: u64,
}

/// How a session waits and how long others wait for it; from the region's superblock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// After this time without release a copy lease may be ignored.
    pub copy_lease: Duration,
    /// After this time without movement a writer's slot may be quarantined.
    pub stalled_writer: Duration,
}

/// Answer of [`crate::Session::lead`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lead {
    /// This session leads.
    Leading,
    /// Another one does.
    Follows {
        /// Its index.
        index: u32,
        /// Its epoch.
        epoch: u32,
    },
}

/// A host, as an operator names it: by what `maru-inspect sessions` shows.
///
/// ```
/// use maru::HostName;
/// let id: HostName = "6b1c3c5e-8e1f-4f0f-9d3f-0a1b2c3d4e5f".parse().unwrap();
/// assert_eq!(id, "6b1c3c5e8e1f4f0f9d3f0a1b2c3d4e5f".parse().unwrap());
/// assert_eq!("tag:0abcdef".parse(), Ok(HostName::Tag(0x0ab_cdef)));
/// assert!("host-7".parse::<HostName>().is_err());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum HostName {
    /// Its boot id (one boot of it), or its host id (all boots of it).
    Id([u8; 16]),
    /// The 28-bit tag in session words: all that a session has said that was attaching when its host died.
    Tag(u32),
}

impl HostName {
    /// Whether this names the host of a filled-in session entry.
    #[must_use]
    pub fn names(&self, entry: &maru_layout::table::SessionEntry, host_tag: u32) -> bool {
        match self {
            Self::Id(id) => entry.boot_id == *id || entry.host_id == *id,
            Self::Tag(tag) => *tag == host_tag,
        }
    }
}

/// A text that names no host.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "host {found:?} is neither a boot or host id (32 hexadecimal digits, dashes allowed) nor tag:HEX (1 to 7 of them)"
)]
pub struct NotAHostName {
    /// The text.
    pub found: String,
}

impl core::str::FromStr for HostName {
    type Err = NotAHostName;

    fn from_str(text: &str) -> Result<Self, NotAHostName> {
        let wrong = || NotAHostName { found: text.to_owned() };
        let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        if let Some(tag) = text.strip_prefix("tag:") {
            let tag = (tag.len() <= 7 && digits(tag)).then(|| u32::from_str_radix(tag, 16).ok()).flatten();
            return tag.map(Self::Tag).ok_or_else(wrong);
        }
        let plain = text.replace('-', "");
        if plain.len() != 32 || !digits(&plain) {
            return Err(wrong());
        }
        u128::from_str_radix(&plain, 16).map(|id| Self::Id(id.to_be_bytes())).map_err(|_| wrong())
    }
}

impl fmt::Display for HostName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Id(id) => write!(f, "{:032x}", u128::from_be_bytes(*id)),
            Self::Tag(tag) => write!(f, "tag:{tag:07x}"),
        }
    }
}

/// What [`crate::Session::recover_host`] did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct HostRecovery {
    /// Sessions recovered.
    pub sessions: u32,
    /// Slots that came back from them.
    pub slots: u32,
    /// Sessions of that name left alone, because they run on this boot of this host and its kernel is asked.
    pub here: u32,
    /// Blocks of those sessions that were read once more.
    pub scrubbed: u32,
    /// Blocks among them that did not match their checksums, and are quarantined now.
    pub damaged: u32,
    /// Whether blocks could be read: not in a region opened header-only.
    pub payload_read: bool,
}
