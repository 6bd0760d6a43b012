//! What a region remembers of blocks that are gone: one word each, in a small table that forgets.
//!
//! Whoever frees the slot of a block leaves a word here first: why, who, when, and enough of the key's hash to tell its
//! words from most others. A key has one place, words overwrite each other, and nothing rests on them: they answer "why
//! is that block a miss?" after its slot has had the next life. FORMAT.md, section 7.4.
//!
//! A word is a claim. Another key's word passes for this one's with a probability of one in 2^[`FAREWELL_TAG_BITS`], and
//! bytes of a region may say anything.

use core::fmt;

use crate::word::Owner;

/// Slots of a region for each word of the table.
pub const FAREWELL_SLOTS: u32 = 2;
/// Bits of the key's hash in a word.
pub const FAREWELL_TAG_BITS: u32 = 22;
/// Bits of the time: seconds since the region was formatted, a good four years of them.
pub const FAREWELL_TIME_BITS: u32 = 27;
/// The last second that a word can name; it stands for all later ones too.
pub const FAREWELL_LAST_SECOND: u32 = (1 << FAREWELL_TIME_BITS) - 1;

const OWNER_SHIFT: u32 = 3;
const TIME_SHIFT: u32 = 15;
const TAG_SHIFT: u32 = TIME_SHIFT + FAREWELL_TIME_BITS;

/// The low bits of a value.
const fn low(value: u64, bits: u32) -> u64 {
    value & ((1 << bits) - 1)
}

const _: () = assert!(TAG_SHIFT + FAREWELL_TAG_BITS == 64);

/// Words of the table of a region with so many slots.
#[must_use]
pub const fn farewell_count(slots: u32) -> u32 {
    slots.div_ceil(FAREWELL_SLOTS)
}

/// Seconds from a region's formatting to `now_ns`, as words keep them: a clock that was set back gives 0.
#[must_use]
pub const fn farewell_second(formatted_ns: u64, now_ns: u64) -> u32 {
    let seconds = now_ns.saturating_sub(formatted_ns) / 1_000_000_000;
    if seconds > FAREWELL_LAST_SECOND as u64 { FAREWELL_LAST_SECOND } else { seconds as u32 }
}

/// Why a block is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Cause {
    /// Evicted to make room among the slots, or within its namespace's budget.
    Evicted = 1,
    /// Evicted to make room in the index.
    Displaced = 2,
    /// Retired on request.
    Retired = 3,
    /// Brought home after its namespace's generation had ended.
    Invalidated = 4,
    /// Freed in the name of a session that had shut it and died.
    Recovered = 5,
    /// Freed after its last reader; who had shut it stood still, or was fenced.
    Drained = 6,
    /// Never was a block: its writer died, or closed, before it committed.
    Unfinished = 7,
}

impl Cause {
    /// All causes, in order of their numbers.
    pub const ALL: [Self; 7] = [
        Self::Evicted,
        Self::Displaced,
        Self::Retired,
        Self::Invalidated,
        Self::Recovered,
        Self::Drained,
        Self::Unfinished,
    ];

    /// The cause with this number.
    #[must_use]
    pub fn from_bits(bits: u64) -> Option<Self> {
        Self::ALL.into_iter().find(|cause| *cause as u64 == bits)
    }

    /// The name used in tables and JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Evicted => "evicted",
            Self::Displaced => "displaced",
            Self::Retired => "retired",
            Self::Invalidated => "invalidated",
            Self::Recovered => "recovered",
            Self::Drained => "drained",
            Self::Unfinished => "unfinished",
        }
    }
}

/// Where a key's farewell lies, and by what it is told from others there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FarewellPlace {
    /// Word of the table.
    pub index: u32,
    /// Bits of the key's hash.
    pub tag: u32,
}

/// The last words on a block. Zero = nothing was ever said here.
///
/// ```text
/// bits  0..3   cause
/// bits  3..15  who freed it: session index + 1, 0 = nobody
/// bits 15..42  when: whole seconds since the region was formatted, the last number for all later ones
/// bits 42..64  tag: bits of the key's hash
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct FarewellWord(pub u64);

impl FarewellWord {
    /// Packs a word.
    #[must_use]
    pub const fn new(tag: u32, cause: Cause, who: Owner, second: u32) -> Self {
        let second = if second > FAREWELL_LAST_SECOND { FAREWELL_LAST_SECOND } else { second };
        Self(
            cause as u64
                | (low(who.0 as u64, TIME_SHIFT - OWNER_SHIFT) << OWNER_SHIFT)
                | ((second as u64) << TIME_SHIFT)
                | (low(tag as u64, FAREWELL_TAG_BITS) << TAG_SHIFT),
        )
    }

    /// The cause; `None` where nothing was said.
    #[must_use]
    pub fn cause(self) -> Option<Cause> {
        Cause::from_bits(self.0 & 7)
    }

    /// Who freed it.
    #[must_use]
    pub const fn who(self) -> Owner {
        Owner((self.0 >> OWNER_SHIFT & 0xFFF) as u16)
    }

    /// Seconds from the region's formatting.
    #[must_use]
    pub const fn second(self) -> u32 {
        (self.0 >> TIME_SHIFT) as u32 & FAREWELL_LAST_SECOND
    }

    /// Bits of the key's hash.
    #[must_use]
    pub const fn tag(self) -> u32 {
        (self.0 >> TAG_SHIFT) as u32
    }

    /// Whether this may be the word of a key with that tag.
    #[must_use]
    pub fn may_be_of(self, tag: u32) -> bool {
        self.cause().is_some() && self.tag() == tag
    }
}

impl fmt::Debug for FarewellWord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.cause() {
            Some(cause) => {
                write!(f, "{} by {:?} at {} s (tag {:#x})", cause.name(), self.who(), self.second(), self.tag())
            }
            None => f.write_str("nothing said"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn words_round_trip(
            tag in 0u32..1 << FAREWELL_TAG_BITS, cause in 0usize..7, who in 0u16..4096, second in 0..=FAREWELL_LAST_SECOND,
        ) {
            let word = FarewellWord::new(tag, Cause::ALL[cause], Owner(who), second);
            let read = (word.tag(), word.cause(), word.who(), word.second());
            prop_assert_eq!(read, (tag, Some(Cause::ALL[cause]), Owner(who), second));
            prop_assert!(word.may_be_of(tag) && !word.may_be_of(tag ^ 1));
        }

        #[test]
        fn any_bits_decode_without_panic_and_within_bounds(bits: u64) {
            let word = FarewellWord(bits);
            let text = format!("{word:?}");
            prop_assert!(!text.is_empty());
            prop_assert!(word.who().0 <= 4095 && word.second() <= FAREWELL_LAST_SECOND && word.tag() < 1 << FAREWELL_TAG_BITS);
        }

        #[test]
        fn no_time_spills_into_the_tag(second: u32, formatted in 0u64..1 << 62, now: u64) {
            prop_assert_eq!(FarewellWord::new(5, Cause::Evicted, Owner(1), second).tag(), 5);
            prop_assert!(farewell_second(formatted, now) <= FAREWELL_LAST_SECOND);
        }
    }

    #[test]
    fn a_blank_word_is_nobodys() {
        assert!(!FarewellWord(0).may_be_of(0) && !FarewellWord(7 << TAG_SHIFT).may_be_of(7));
    }

    #[test]
    fn seconds_are_counted_from_the_formatting_and_end_at_the_last() {
        const SECOND: u64 = 1_000_000_000;
        assert_eq!(farewell_second(10 * SECOND, 9 * SECOND), 0);
        assert_eq!(farewell_second(10 * SECOND, 13 * SECOND - 1), 2);
        assert_eq!(farewell_second(0, SECOND << 40), FAREWELL_LAST_SECOND);
        assert_eq!([1, 2, 3, 4].map(farewell_count), [1, 1, 2, 2]);
    }
}
