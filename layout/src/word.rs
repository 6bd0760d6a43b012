//! Packed words: every bit of a region that is decided by compare-and-swap.
//!
//! Each word is a newtype over `u64` with its shifts and widths here, and a `Debug` that prints
//! states instead of hex. Decoding never fails: a state number that no version wrote decodes to
//! `None` ("damaged"), because a region is untrusted input.

use core::fmt;

const fn mask(bits: u32) -> u64 {
    (1u64 << bits) - 1
}

/// Generations have this many bits in a slot word.
pub const GENERATION_BITS: u32 = 44;
/// Generations have this many bits in index entries and lease cells.
pub const SHORT_GENERATION_BITS: u32 = 26;
/// Last generation of a slot; when it is used up, the slot stays quarantined.
pub const MAX_GENERATION: u64 = mask(GENERATION_BITS);
/// Slot indices have this many bits.
pub const SLOT_BITS: u32 = 28;
/// Tags of index entries have this many bits.
pub const TAG_BITS: u32 = 9;

/// The low 26 bits of a generation, as index entries and lease cells keep them. Never zero for a
/// generation that was ever handed out (see [`claimable`]).
#[must_use]
pub const fn short_generation(generation: u64) -> u64 {
    generation & mask(SHORT_GENERATION_BITS)
}

/// The generation under which a free slot at `generation` is claimed: itself, or the next one where
/// its short form would be zero (an all-zero index entry means "empty").
#[must_use]
pub const fn claimable(generation: u64) -> u64 {
    if short_generation(generation) == 0 { generation + 1 } else { generation }
}

/// State of a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum SlotState {
    /// Nobody's; content meaningless.
    Free = 0,
    /// Owned by a session that is filling in the record.
    Claiming = 1,
    /// Record filled, competing with twins of the same object; no payload written yet.
    Pending = 2,
    /// The owner writes the payload.
    Writing = 3,
    /// Published: payload, checksum and barrier done. No owner.
    Ready = 4,
    /// Shut to new readers, waiting for leases; owner 0 means "anyone frees, nobody reverts".
    Retiring = 5,
    /// Space that may still be written by somebody who is not proven gone, or whose generations are used up.
    Quarantined = 6,
}

impl SlotState {
    /// All states, in order of their numbers.
    pub const ALL: [Self; 7] =
        [Self::Free, Self::Claiming, Self::Pending, Self::Writing, Self::Ready, Self::Retiring, Self::Quarantined];

    /// The state with this number.
    #[must_use]
    pub const fn from_bits(bits: u64) -> Option<Self> {
        Some(match bits {
            0 => Self::Free,
            1 => Self::Claiming,
            2 => Self::Pending,
            3 => Self::Writing,
            4 => Self::Ready,
            5 => Self::Retiring,
            6 => Self::Quarantined,
            _ => return None,
        })
    }

    /// The name used in tables and JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Free => "free",
            Self::Claiming => "claiming",
            Self::Pending => "pending",
            Self::Writing => "writing",
            Self::Ready => "ready",
            Self::Retiring => "retiring",
            Self::Quarantined => "quarantined",
        }
    }
}

/// A slot's word: the only truth about the slot.
///
/// ```text
/// bits  0..4   state
/// bit   4      the writer is a device
/// bits  5..8   zero
/// bits  8..20  owner: session index + 1, 0 = nobody
/// bits 20..64  generation
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct SlotWord(pub u64);

impl SlotWord {
    /// State bits.
    pub const STATE_BITS: u32 = 4;
    /// Bit that says "written by a device".
    pub const DEVICE_BIT: u32 = 4;
    /// Shift of the owner field.
    pub const OWNER_SHIFT: u32 = 8;
    /// Bits of the owner field.
    pub const OWNER_BITS: u32 = 12;
    /// Shift of the generation field.
    pub const GENERATION_SHIFT: u32 = 20;
    const SPARE: u64 = 0b1110_0000;

    /// Packs a word.
    #[must_use]
    pub const fn new(state: SlotState, owner: Owner, generation: u64) -> Self {
        Self(
            state as u64
                | ((owner.0 as u64) << Self::OWNER_SHIFT)
                | ((generation & MAX_GENERATION) << Self::GENERATION_SHIFT),
        )
    }

    /// The state, or `None` where the bits are none of ours.
    #[must_use]
    pub const fn state(self) -> Option<SlotState> {
        if self.0 & Self::SPARE != 0 {
            return None;
        }
        SlotState::from_bits(self.0 & mask(Self::STATE_BITS))
    }

    /// Whether the state is `state`.
    #[must_use]
    pub fn is(self, state: SlotState) -> bool {
        self.state() == Some(state)
    }

    /// The owner field.
    #[must_use]
    pub const fn owner(self) -> Owner {
        Owner(((self.0 >> Self::OWNER_SHIFT) & mask(Self::OWNER_BITS)) as u16)
    }

    /// Whether a device writes the payload.
    #[must_use]
    pub const fn device_writer(self) -> bool {
        self.0 & (1 << Self::DEVICE_BIT) != 0
    }

    /// The same word, marked as written by a device or not.
    #[must_use]
    pub const fn with_device_writer(self, device: bool) -> Self {
        Self(self.0 & !(1 << Self::DEVICE_BIT) | ((device as u64) << Self::DEVICE_BIT))
    }

    /// The generation.
    #[must_use]
    pub const fn generation(self) -> u64 {
        self.0 >> Self::GENERATION_SHIFT
    }

    /// The same generation and writer kind in another state under another owner.
    #[must_use]
    pub const fn to(self, state: SlotState, owner: Owner) -> Self {
        Self::new(state, owner, self.generation()).with_device_writer(self.device_writer())
    }

    /// What the slot becomes when this generation ends: `Free` at the next generation, or
    /// `Quarantined` for ever when there is none left.
    #[must_use]
    pub const fn freed(self) -> Self {
        if self.generation() >= MAX_GENERATION {
            Self::new(SlotState::Quarantined, Owner::NOBODY, MAX_GENERATION)
        } else {
            Self::new(SlotState::Free, Owner::NOBODY, self.generation() + 1)
        }
    }

    /// The claim of this free word by `owner`; `None` when the word is not free or its generations are used up.
    #[must_use]
    pub fn claimed_by(self, owner: Owner, device: bool) -> Option<Self> {
        if !self.is(SlotState::Free) {
            return None;
        }
        let generation = claimable(self.generation());
        if generation > MAX_GENERATION {
            return None;
        }
        Some(Self::new(SlotState::Claiming, owner, generation).with_device_writer(device))
    }
}

impl fmt::Debug for SlotWord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.state() {
            Some(state) => write!(
                f,
                "{}(gen {}, {:?}{})",
                state.name(),
                self.generation(),
                self.owner(),
                if self.device_writer() { ", device" } else { "" }
            ),
            None => write!(f, "damaged({:#018x})", self.0),
        }
    }
}

/// Who owns a slot: a session index plus one, or nobody.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct Owner(pub u16);

impl Owner {
    /// No owner.
    pub const NOBODY: Self = Self(0);

    /// The owner with this session index.
    ///
    /// # Panics
    /// When `index` is not below [`crate::MAX_SESSIONS`]; indices come from a validated geometry.
    #[must_use]
    pub const fn session(index: u32) -> Self {
        assert!(index < crate::MAX_SESSIONS);
        Self(index as u16 + 1)
    }

    /// The session index, or `None` for nobody.
    #[must_use]
    pub const fn index(self) -> Option<u32> {
        if self.0 == 0 { None } else { Some(self.0 as u32 - 1) }
    }
}

impl fmt::Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.index() {
            Some(index) => write!(f, "session {index}"),
            None => f.write_str("nobody"),
        }
    }
}

/// State of a session entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum SessionState {
    /// Unused.
    Free = 0,
    /// Its new owner is filling it in and zeroing the old lease cells.
    Attaching = 1,
    /// In use.
    Live = 2,
    /// Shut out, but not proven gone: its leases still count.
    Fenced = 3,
    /// Proven gone: its leases are void, its slots are being swept.
    Dead = 4,
}

impl SessionState {
    /// The state with this number.
    #[must_use]
    pub const fn from_bits(bits: u64) -> Option<Self> {
        Some(match bits {
            0 => Self::Free,
            1 => Self::Attaching,
            2 => Self::Live,
            3 => Self::Fenced,
            4 => Self::Dead,
            _ => return None,
        })
    }

    /// The name used in tables and JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Free => "free",
            Self::Attaching => "attaching",
            Self::Live => "live",
            Self::Fenced => "fenced",
            Self::Dead => "dead",
        }
    }
}

/// A session's word.
///
/// ```text
/// bits  0..4   state
/// bits  4..32  host tag: which boot of which host the holder runs on; 0 when free
/// bits 32..64  epoch
/// ```
///
/// The host tag goes in with the claim, so that an entry whose holder died before filling in its identity
/// is still judged by its own host and by no other.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct SessionWord(pub u64);

impl SessionWord {
    /// Bits of the host tag.
    pub const HOST_BITS: u32 = 28;

    /// Packs a word.
    #[must_use]
    pub const fn new(state: SessionState, host_tag: u32, epoch: u32) -> Self {
        Self(state as u64 | ((host_tag as u64 & mask(Self::HOST_BITS)) << 4) | ((epoch as u64) << 32))
    }

    /// The state, or `None` where the bits are none of ours.
    #[must_use]
    pub const fn state(self) -> Option<SessionState> {
        SessionState::from_bits(self.0 & mask(4))
    }

    /// Whether the state is `state`.
    #[must_use]
    pub fn is(self, state: SessionState) -> bool {
        self.state() == Some(state)
    }

    /// The host tag.
    #[must_use]
    pub const fn host_tag(self) -> u32 {
        ((self.0 >> 4) & mask(Self::HOST_BITS)) as u32
    }

    /// The epoch.
    #[must_use]
    pub const fn epoch(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// The same holder in another state; `Free` names no host.
    #[must_use]
    pub fn to(self, state: SessionState) -> Self {
        let host_tag = if state as u8 == SessionState::Free as u8 { 0 } else { self.host_tag() };
        Self::new(state, host_tag, self.epoch())
    }
}

impl fmt::Debug for SessionWord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.state() {
            Some(state) => write!(f, "{}(epoch {})", state.name(), self.epoch()),
            None => write!(f, "damaged({:#018x})", self.0),
        }
    }
}

/// Life of the whole region.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum FormatState {
    /// Nothing here yet.
    Blank = 0,
    /// Somebody is formatting; the claim says who.
    Formatting = 1,
    /// Complete. Stored last.
    Ready = 2,
    /// Another region has taken this one's name; nothing may be stored here any more.
    Replaced = 3,
}

/// The format word, first word of the control page.
///
/// ```text
/// bits  0..8   state
/// bits  8..64  while formatting: low 24 bits of the formatter's host tag, 32 random bits above them
///              ready: the first 7 bytes of the region id, little endian
///              replaced: zero
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct FormatWord(pub u64);

impl FormatWord {
    /// Packs a word.
    #[must_use]
    pub const fn new(state: FormatState, claim: u64) -> Self {
        Self(state as u64 | (claim << 8))
    }

    /// The state, or `None` where the bits are none of ours.
    #[must_use]
    pub const fn state(self) -> Option<FormatState> {
        Some(match self.0 & mask(8) {
            0 if self.0 == 0 => FormatState::Blank,
            1 => FormatState::Formatting,
            2 => FormatState::Ready,
            3 => FormatState::Replaced,
            _ => return None,
        })
    }

    /// The word of a complete region with this id. Whoever has it open compares the whole word: another region
    /// formatted in the same place has another one.
    #[must_use]
    pub const fn ready(region_id: &[u8; 16]) -> Self {
        let [a, b, c, d, e, f, g, ..] = *region_id;
        Self::new(FormatState::Ready, u64::from_le_bytes([a, b, c, d, e, f, g, 0]))
    }

    /// The claim of a formatter on this boot of this host.
    #[must_use]
    pub const fn formatting(host_tag: u32, random: u32) -> Self {
        Self::new(FormatState::Formatting, (host_tag as u64 & mask(24)) | ((random as u64) << 24))
    }

    /// Whether a formatter's claim was made on this boot of this host.
    #[must_use]
    pub const fn claimed_by_host(self, host_tag: u32) -> bool {
        self.claim() & mask(24) == host_tag as u64 & mask(24)
    }

    /// The claim.
    #[must_use]
    pub const fn claim(self) -> u64 {
        self.0 >> 8
    }
}

impl fmt::Debug for FormatWord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.state() {
            Some(state) => write!(f, "{state:?}(claim {:#x})", self.claim()),
            None => write!(f, "damaged({:#018x})", self.0),
        }
    }
}

/// How long a lease holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum LeaseKind {
    /// The reader copies and checks afterwards; may lapse by the time limit.
    Copy = 1,
    /// The reader looks at the bytes in place; never lapses.
    View = 2,
    /// A device reads; never lapses.
    Device = 3,
}

impl LeaseKind {
    /// The name used in tables and JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Copy => "copy",
            Self::View => "view",
            Self::Device => "device",
        }
    }
}

/// A lease cell: one protected replica, in the reader's own session area. Zero = empty.
///
/// ```text
/// bits  0..2   kind
/// bits  2..10  sequence: changes whenever the cell is used anew, so that a watcher sees movement
/// bits 10..36  generation, short form
/// bits 36..64  slot
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct LeaseCell(pub u64);

impl LeaseCell {
    /// An unused cell.
    pub const EMPTY: Self = Self(0);

    /// Packs a cell.
    #[must_use]
    pub const fn new(kind: LeaseKind, sequence: u8, slot: u32, generation: u64) -> Self {
        Self(
            kind as u64
                | ((sequence as u64) << 2)
                | (short_generation(generation) << 10)
                | ((slot as u64 & mask(SLOT_BITS)) << 36),
        )
    }

    /// The kind; `None` for an empty cell.
    #[must_use]
    pub const fn kind(self) -> Option<LeaseKind> {
        match self.0 & 3 {
            1 => Some(LeaseKind::Copy),
            2 => Some(LeaseKind::View),
            3 => Some(LeaseKind::Device),
            _ => None,
        }
    }

    /// The sequence.
    #[must_use]
    pub const fn sequence(self) -> u8 {
        (self.0 >> 2) as u8
    }

    /// The generation, short form.
    #[must_use]
    pub const fn short_generation(self) -> u64 {
        (self.0 >> 10) & mask(SHORT_GENERATION_BITS)
    }

    /// The slot.
    #[must_use]
    pub const fn slot(self) -> u32 {
        (self.0 >> 36) as u32
    }

    /// Whether this cell protects `slot` at `generation`. A short generation may also match one
    /// that is 2^26 re-uses away: that delays a retirer and harms nobody.
    #[must_use]
    pub const fn protects(self, slot: u32, generation: u64) -> bool {
        self.0 & 3 != 0 && self.slot() == slot && self.short_generation() == short_generation(generation)
    }
}

impl fmt::Debug for LeaseCell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind() {
            Some(kind) => write!(
                f,
                "{}(slot {}, gen ..{}, seq {})",
                kind.name(),
                self.slot(),
                self.short_generation(),
                self.sequence()
            ),
            None => f.write_str("empty"),
        }
    }
}

/// A budget token: the slot and the life of it that the token is spent on. Zero = never spent.
///
/// ```text
/// bits  0..36  generation, low bits (a slot's first generation is 1)
/// bits 36..64  slot
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct TokenWord(pub u64);

impl TokenWord {
    /// Never spent.
    pub const UNUSED: Self = Self(0);

    /// Spent on this life of this slot.
    #[must_use]
    pub const fn new(slot: u32, generation: u64) -> Self {
        Self((generation & mask(36)) | ((slot as u64 & mask(SLOT_BITS)) << 36))
    }

    /// Slot and low bits of the generation; `None` for a token that was never spent.
    #[must_use]
    pub const fn names(self) -> Option<(u32, u64)> {
        if self.0 == 0 { None } else { Some(((self.0 >> 36) as u32, self.0 & mask(36))) }
    }

    /// Whether it names this life of this slot.
    #[must_use]
    pub const fn is_of(self, slot: u32, generation: u64) -> bool {
        self.0 == Self::new(slot, generation).0
    }
}

impl fmt::Debug for TokenWord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.names() {
            Some((slot, generation)) => write!(f, "spent on slot {slot}, generation ..{generation}"),
            None => f.write_str("unused"),
        }
    }
}

/// An entry of an index bucket. Zero = empty.
///
/// ```text
/// bits  0..9   tag of the key
/// bit   9      this bucket is the key's second choice
/// bits 10..36  generation, short form (never zero)
/// bits 36..64  slot
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct IndexEntry(pub u64);

impl IndexEntry {
    /// No entry.
    pub const EMPTY: Self = Self(0);
    const SECOND: u64 = 1 << TAG_BITS;

    /// Packs an entry for a key's first bucket.
    #[must_use]
    pub const fn new(slot: u32, generation: u64, tag: u16) -> Self {
        Self(
            (tag as u64 & mask(TAG_BITS))
                | (short_generation(generation) << 10)
                | ((slot as u64 & mask(SLOT_BITS)) << 36),
        )
    }

    /// The same entry for the key's second bucket.
    #[must_use]
    pub const fn in_second(self) -> Self {
        Self(self.0 | Self::SECOND)
    }

    /// Whether it lies in the key's second bucket.
    #[must_use]
    pub const fn is_second(self) -> bool {
        self.0 & Self::SECOND != 0
    }

    /// Whether there is no entry.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The tag.
    #[must_use]
    pub const fn tag(self) -> u16 {
        (self.0 & mask(TAG_BITS)) as u16
    }

    /// The generation, short form.
    #[must_use]
    pub const fn short_generation(self) -> u64 {
        (self.0 >> 10) & mask(SHORT_GENERATION_BITS)
    }

    /// The slot.
    #[must_use]
    pub const fn slot(self) -> u32 {
        (self.0 >> 36) as u32
    }

    /// Whether the two name the same slot at the same generation, in whichever bucket.
    #[must_use]
    pub const fn same_replica(self, other: Self) -> bool {
        self.0 | Self::SECOND == other.0 | Self::SECOND
    }
}

impl fmt::Debug for IndexEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            return f.write_str("empty");
        }
        write!(
            f,
            "{}(slot {}, gen ..{}, tag {:#05x})",
            if self.is_second() { "second" } else { "first" },
            self.slot(),
            self.short_generation(),
            self.tag()
        )
    }
}

/// The word that a session holds a region-wide chore with (registering a namespace, leading).
///
/// ```text
/// bits  0..12  owner: session index + 1, 0 = nobody
/// bits 12..32  zero
/// bits 32..64  epoch of that session
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct ChoreWord(pub u64);

impl ChoreWord {
    /// Held by nobody.
    pub const FREE: Self = Self(0);

    /// Held by this session.
    #[must_use]
    pub const fn held(owner: Owner, epoch: u32) -> Self {
        Self(owner.0 as u64 | ((epoch as u64) << 32))
    }

    /// The holder.
    #[must_use]
    pub const fn owner(self) -> Owner {
        Owner((self.0 & mask(12)) as u16)
    }

    /// The holder's epoch.
    #[must_use]
    pub const fn epoch(self) -> u32 {
        (self.0 >> 32) as u32
    }
}

/// State of a namespace row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum RowState {
    /// Unused.
    Free = 0,
    /// Being filled in by the holder of the namespace chore.
    Adding = 1,
    /// Registered; text immutable, generation may move.
    Ready = 2,
}

impl RowState {
    /// The state with this number.
    #[must_use]
    pub const fn from_bits(bits: u64) -> Option<Self> {
        Some(match bits {
            0 => Self::Free,
            1 => Self::Adding,
            2 => Self::Ready,
            _ => return None,
        })
    }

    /// The name used in tables and JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Free => "free",
            Self::Adding => "adding",
            Self::Ready => "ready",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn slot_words_round_trip(state in 0usize..7, owner in 0u16..4096, generation in 0..=MAX_GENERATION, device: bool) {
            let word = SlotWord::new(SlotState::ALL[state], Owner(owner), generation).with_device_writer(device);
            prop_assert_eq!(word.state(), Some(SlotState::ALL[state]));
            prop_assert_eq!(word.owner(), Owner(owner));
            prop_assert_eq!(word.generation(), generation);
            prop_assert_eq!(word.device_writer(), device);
        }

        #[test]
        fn any_bits_decode_without_panic(bits: u64) {
            let _ = format!("{:?}{:?}{:?}{:?}{:?}", SlotWord(bits), SessionWord(bits), FormatWord(bits), LeaseCell(bits), IndexEntry(bits));
            let _ = SlotWord(bits).freed().state().expect("freed words are ours");
        }

        #[test]
        fn entries_round_trip(slot in 0..(1u32 << 28), generation in 1..=MAX_GENERATION, tag in 0u16..512) {
            let generation = claimable(generation.min(MAX_GENERATION - 1));
            let entry = IndexEntry::new(slot, generation, tag);
            prop_assert!(!entry.is_empty() && !entry.is_second() && entry.in_second().is_second());
            prop_assert_eq!((entry.slot(), entry.short_generation(), entry.tag()), (slot, short_generation(generation), tag));
            prop_assert!(entry.same_replica(entry.in_second()));
            let cell = LeaseCell::new(LeaseKind::View, 7, slot, generation);
            prop_assert!(cell.protects(slot, generation));
            prop_assert!(!cell.protects(slot ^ 1, generation));
        }
    }

    #[test]
    fn a_slot_whose_generations_are_used_up_stays_quarantined() {
        let last = SlotWord::new(SlotState::Ready, Owner::NOBODY, MAX_GENERATION);
        assert!(last.freed().is(SlotState::Quarantined));
        assert_eq!(last.freed().freed(), last.freed());
    }

    #[test]
    fn no_claimed_generation_has_an_empty_short_form() {
        for generation in [0, 1 << 26, 5 << 26] {
            let word = SlotWord::new(SlotState::Free, Owner::NOBODY, generation);
            let claimed = word.claimed_by(Owner::session(0), false).expect("free");
            assert_ne!(short_generation(claimed.generation()), 0);
        }
    }
}
