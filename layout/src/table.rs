//! The tables between superblock and payload: control page, pool entry, session entries and areas,
//! namespace rows, index buckets.

use bytemuck::{Pod, Zeroable};

/// The mutable words of the region as a whole; page 1.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
pub struct ControlPage {
    /// [`crate::word::FormatWord`]; the last store of formatting.
    pub format: u64,
    /// Zero.
    pub reserved0: [u8; 56],
    /// [`crate::word::ChoreWord`] of whoever registers a namespace.
    pub namespace_chore: u64,
    /// Zero.
    pub reserved1: [u8; 56],
    /// [`crate::word::ChoreWord`] of the leading coordinator.
    pub leader_chore: u64,
    /// Zero.
    pub reserved2: [u8; 56],
    /// Four words a slot class, in this order: stores so far, hand, horizon, earliest due epoch seen. Hints of eviction.
    pub clocks: [u64; 4 * crate::MAX_CLASSES],
    /// Zero.
    pub reserved3: [u8; 3648],
}

/// The one pool of a region.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
pub struct PoolEntry {
    /// Random id.
    pub id: [u8; 16],
    /// 1 = cpu, 2 = cxl, 3 = ssd.
    pub medium: u8,
    /// 1 = L1, 2 = L2.
    pub tier: u8,
    /// 1 = process, 2 = host, 3 = domain.
    pub scope: u8,
    /// Zero.
    pub reserved0: [u8; 5],
    /// Name for people, UTF-8, zero-padded.
    pub name: [u8; 64],
    /// Zero.
    pub reserved1: [u8; 40],
}

/// A session table entry. Everything but the words is written by the owner while `Attaching`.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
pub struct SessionEntry {
    /// [`crate::word::SessionWord`].
    pub word: u64,
    /// Counts up while the session lives; watched with the watcher's own clock.
    pub heartbeat: u64,
    /// Random id of this session.
    pub id: [u8; 16],
    /// Random id of the host.
    pub host_id: [u8; 16],
    /// Boot id of the host.
    pub boot_id: [u8; 16],
    /// Process id in `pid_ns`.
    pub pid: u32,
    /// See [`Role`].
    pub role: u16,
    /// Zero in this format.
    pub host_index: u16,
    /// Start time of the process, clock ticks since boot.
    pub start_time_ticks: u64,
    /// Inode of the pid namespace.
    pub pid_ns: u64,
    /// Wall-clock time of the attach, nanoseconds since 1970. For people.
    pub attached_ns: u64,
    /// Zero.
    pub reserved0: [u8; 32],
    /// Engine name, UTF-8, zero-padded.
    pub engine: [u8; 64],
    /// Zero.
    pub reserved1: [u8; 64],
}

/// What a session is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u16)]
pub enum Role {
    /// Stores and loads.
    Worker = 1,
    /// Only asks.
    Scheduler = 2,
    /// Fences, recovers, matches replication tasks.
    Coordinator = 3,
    /// A tool or a test.
    Tool = 4,
}

impl Role {
    /// The role with this number.
    #[must_use]
    pub const fn from_bits(bits: u16) -> Option<Self> {
        Some(match bits {
            1 => Self::Worker,
            2 => Self::Scheduler,
            3 => Self::Coordinator,
            4 => Self::Tool,
            _ => return None,
        })
    }

    /// The name used in tables and JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Worker => "worker",
            Self::Scheduler => "scheduler",
            Self::Coordinator => "coordinator",
            Self::Tool => "tool",
        }
    }
}

/// Fixed head of a session area; lease cells (one `u64` each) follow. Only the session stores here.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
pub struct SessionAreaHead {
    /// Lease cells ever used: readers of leases look no further.
    pub lease_mark: u64,
    /// Zero.
    pub reserved0: [u8; 56],
    /// Flight recorder: records written so far.
    pub recorder_next: u64,
    /// [`Operation`] under way in the high half; 0 = none.
    pub current_step: u64,
    /// Slot of the operation under way, plus one; 0 = none.
    pub current_slot: u64,
    /// Zero.
    pub reserved1: [u8; 40],
    /// See [`Counter`]. Never zeroed: the next owner of the entry counts on.
    pub counters: [u64; 64],
    /// Flight recorder ring.
    pub recorder: [FlightRecord; 16],
    /// Zero.
    pub reserved2: [u8; 384],
}

macro_rules! numbered {
    ($(#[$doc:meta])* $name:ident { $($(#[$each:meta])* $variant:ident = $number:literal, $text:literal;)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[repr(u32)]
        pub enum $name { $($(#[$each])* $variant = $number,)* }

        impl $name {
            /// All values, in order of their numbers.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// The value with this number.
            #[must_use]
            pub fn from_bits(bits: u32) -> Option<Self> {
                Self::ALL.iter().copied().find(|value| *value as u32 == bits)
            }

            /// The name used in tables and JSON.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $text,)* }
            }
        }
    };
}

numbered! {
    /// What a flight record remembers.
    Operation {
        /// Becoming a session.
        Attach = 1, "attach";
        /// Leaving.
        Close = 2, "close";
        /// Reserving a slot; `slot` is the one granted.
        Reserve = 3, "reserve";
        /// Writing the payload of a reserved slot.
        Write = 4, "write";
        /// Publishing it.
        Commit = 5, "commit";
        /// Giving it back.
        Abort = 6, "abort";
        /// Protecting objects; `slot` is the first one's.
        Acquire = 7, "acquire";
        /// Copying one out.
        Load = 8, "load";
        /// Retiring an object.
        Retire = 9, "retire";
        /// Recovering dead sessions and freeing drained slots.
        Reclaim = 10, "reclaim";
        /// Registering a namespace.
        Register = 11, "register";
        /// Invalidating one.
        Invalidate = 12, "invalidate";
        /// Fencing a session.
        Fence = 13, "fence";
    }
}

numbered! {
    /// How a remembered operation ended.
    RecordOutcome {
        /// Done.
        Done = 1, "done";
        /// The object was there already.
        Present = 2, "present";
        /// Somebody else writes it.
        BeingWritten = 3, "being_written";
        /// Refused for want of space, budget or room in the index.
        Refused = 4, "refused";
        /// Lost too many rounds.
        Contended = 5, "contended";
        /// Not found, or gone.
        Miss = 6, "miss";
        /// The slot had been taken away.
        Superseded = 7, "superseded";
        /// The lease had lapsed.
        Expired = 8, "expired";
        /// The bytes did not match.
        Damaged = 9, "damaged";
        /// The namespace was invalidated.
        Invalidated = 10, "invalidated";
        /// The session was fenced.
        Fenced = 11, "fenced";
        /// Waits for its last reader.
        Draining = 12, "draining";
    }
}

/// One remembered operation.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub struct FlightRecord {
    /// Sequence number, stored last.
    pub sequence: u64,
    /// Wall-clock time, nanoseconds since 1970.
    pub time_ns: u64,
    /// [`Operation`].
    pub operation: u32,
    /// [`RecordOutcome`].
    pub outcome: u32,
    /// Slot plus one; 0 = none.
    pub slot: u64,
    /// Generation.
    pub generation: u64,
    /// First bytes of the prefix digest.
    pub prefix: [u8; 24],
}

macro_rules! counters {
    ($($(#[$doc:meta])* $variant:ident = $index:literal, $name:literal;)*) => {
        /// What a session counts, in its own lines.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum Counter { $($(#[$doc])* $variant = $index,)* }

        impl Counter {
            /// All counters.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// The name used in tables, JSON and metrics.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }
        }
    };
}

counters! {
    /// Keys asked for by `probe` and `probe_prefix`.
    Probed = 0, "probed_keys";
    /// Keys found by them.
    ProbeHits = 1, "probe_hits";
    /// Objects asked for by `acquire`.
    Acquired = 2, "acquire_requests";
    /// Objects protected by it.
    AcquireHits = 3, "acquire_hits";
    /// Objects whose bytes were copied out whole.
    Loaded = 4, "loaded_blocks";
    /// Payload bytes copied out.
    LoadedBytes = 5, "loaded_bytes";
    /// Calls of `reserve`.
    Reserved = 6, "reserve_requests";
    /// Objects made ready.
    Stored = 7, "stored_blocks";
    /// Payload bytes made ready.
    StoredBytes = 8, "stored_bytes";
    /// Stores answered "already present".
    Present = 9, "already_present";
    /// Stores answered "being written".
    BeingWritten = 10, "being_written";
    /// Stores refused: no free slot.
    NoSpace = 11, "refused_no_space";
    /// Stores refused: larger than any slot.
    TooLarge = 12, "refused_too_large";
    /// Stores refused: both buckets full and nothing to make room.
    BucketBusy = 13, "refused_bucket_busy";
    /// Stores refused: lost too many rounds to twins.
    Contended = 14, "refused_contended";
    /// Stores or loads refused: another length under the same id.
    LengthMismatch = 15, "length_mismatch";
    /// Stores refused: the namespace's budget is spent.
    OverBudget = 16, "refused_over_budget";
    /// Reservations given back.
    Aborted = 17, "aborted";
    /// Commits that found their slot taken away.
    Superseded = 18, "superseded";
    /// Replicas retired on request.
    Retired = 19, "retired";
    /// Replicas retired to make room.
    Evicted = 20, "evicted";
    /// Slots freed after their leases ended.
    Reclaimed = 21, "reclaimed";
    /// Loads whose bytes did not match their checksum.
    ChecksumMismatch = 22, "checksum_mismatch";
    /// Copies that outlived their lease.
    Expired = 23, "lease_expired";
    /// Acquires refused: every lease cell in use.
    LeasesFull = 24, "lease_table_full";
    /// Dead sessions whose slots this session swept.
    Recovered = 25, "sessions_recovered";
    /// Slots that such a sweep returned.
    RecoveredSlots = 26, "slots_recovered";
    /// Stalled writers whose slot this session quarantined.
    Quarantined = 27, "writers_quarantined";
    /// Calls refused because the namespace was invalidated.
    Invalidated = 28, "invalidated";
    /// Words, indices or lengths found outside their bounds and clamped.
    Damage = 29, "damage_found";
}

/// A namespace row: 96 bytes of facts, then the readable text.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
pub struct NamespaceRow {
    /// [`crate::word::RowState`].
    pub state: u64,
    /// Generation of the namespace; raised by `invalidate`.
    pub generation: u64,
    /// Bytes of `text`.
    pub text_bytes: u32,
    /// Zero.
    pub reserved0: u32,
    /// Wall-clock time of the registration, nanoseconds since 1970. For people.
    pub created_ns: u64,
    /// SHA-256 of the text.
    pub text_digest: [u8; 32],
    /// Budget in slots plus one; 0 = no budget.
    pub budget_slots: u64,
    /// First of as many tokens as the budget has slots; 0 without a budget.
    pub first_token: u32,
    /// Zero.
    pub reserved1: [u8; 20],
    /// Canonical text, UTF-8, zero-padded.
    pub text: [u8; 928],
}

/// An index bucket.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
pub struct Bucket {
    /// [`crate::word::IndexEntry`].
    pub entries: [u64; crate::BUCKET_WAYS],
    /// Number of entries that lie in other buckets because this one was full.
    pub mark: u64,
}

const _: () = {
    assert!(size_of::<ControlPage>() == 4096);
    assert!(size_of::<PoolEntry>() == 128);
    assert!(size_of::<SessionEntry>() == 256);
    assert!(size_of::<SessionAreaHead>() == crate::SESSION_AREA_HEAD_BYTES as usize);
    assert!(size_of::<FlightRecord>() == 64);
    assert!(size_of::<NamespaceRow>() == 1024);
    assert!(size_of::<Bucket>() == crate::BUCKET_BYTES as usize);
};
