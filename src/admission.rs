//! Admission: which of a request's missing blocks are worth storing.
//!
//! Most prompts end in blocks that nobody asks for again. Storing those costs space that blocks with a future hold. The hook
//! is process-local and says what to store before anything is reserved; what it says depends on nothing but the requests
//! that it has been told of, in their order.
//!
//! * G1: Memory is bounded: a ghost table of [`Admission::SecondSight::remember`] key tags of four bytes, in sets of eight,
//!   each set in the order of last sight. Two keys with one tag in one set (one in 2^29 for a full set) pass for one another,
//!   which costs a store and nothing else.
//! * G2: A request counts once: its blocks are judged by the requests before it, then remembered, each once.
//! * G3: What is admitted is a leading run of the missing blocks: a block is of use only with its parents.
//! * G4: [`Admission::Measured`] asks its own traffic whether second sight pays. Two shadows, tables of tags and no bytes, play
//!   the cache on a sample of the keys, one with every block let in and one on second sight; whichever has found more of late
//!   has the say, and a lead must be worth a few blocks before the say changes. (Waldspurger et al. call such shadows
//!   miniature simulations.)

use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use xxhash_rust::xxh3::xxh3_64;

use crate::ObjectId;
use crate::pools::{BlockId, StoreNamespace};

/// Tags of one set.
const WAYS: usize = 8;
/// Most tags that can be asked for: 1 GiB of them.
const MAX_REMEMBER: usize = 1 << 28;

/// Which blocks are let in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Admission {
    /// Every block.
    #[default]
    All,
    /// Blocks that an earlier request named, too.
    SecondSight {
        /// How many blocks are remembered, rounded up to a multiple of 8; 4 bytes each. At least 1, at most 2^28.
        remember: usize,
    },
    /// Every block, or on second sight, whichever finds more of this process' own requests in a cache of that size.
    Measured {
        /// How many blocks are remembered for second sight; as there.
        remember: usize,
        /// Blocks that the cache holds, all pools together. At least 1, at most 2^32 - 1.
        cache_blocks: usize,
    },
}

/// A rule that cannot be followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{field} is {found}, wanted 1 to {most}")]
pub struct AdmissionError {
    /// Which field of the rule.
    pub field: &'static str,
    /// The most that it may be.
    pub most: usize,
    /// The number found.
    pub found: usize,
}

/// The hook: a rule, a cap per request, and what has been seen. Threads may share it.
///
/// ```
/// use maru::{Admission, Admitter, BlockId};
/// # let folder = tempfile::tempdir()?;
/// # let options = maru::OpenOptions::path(folder.path().join("r")).format(maru::Format::IfAbsent)
/// #     .wish(maru::Wish::of_slots(1 << 20, 4096));
/// # let pool = maru::Pool::open("p", options, |region| region.session("e", maru::Role::Worker))?;
/// # let store = maru::Store::builder().pool(pool).build()?;
/// # let model = maru::Namespace::new()
/// #     .tenant("search").model("m").revision("1").adapter("none").dtype("bfloat16").quantization("none")
/// #     .geometry("layers=2").storage_format("demo-1").block_tokens(16).parallel("tp=1")
/// #     .hash_algorithm("sha256").hash_seed("0");
/// # let namespace = store.namespace(&model)?;
/// let admitter = Admitter::new(Admission::SecondSight { remember: 1 << 20 }, Some(64))?;
/// let request = [BlockId::new([1; 32]), BlockId::new([2; 32])];
/// assert!(admitter.admit_blocks(&namespace, &request, 0..2).is_empty()); // never seen before
/// assert_eq!(admitter.admit_blocks(&namespace, &request, 0..2), 0..2);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Admitter {
    /// `None`: everything is let in, and nothing need be remembered.
    sights: Option<Mutex<Sights>>,
    max_blocks: Option<usize>,
}

impl Admitter {
    /// A hook that follows `rule` and lets at most `max_blocks_per_request` blocks of one request in (`None`: any number;
    /// 0: none).
    ///
    /// # Errors
    /// The rule says a number of blocks to remember that is out of bounds.
    pub fn new(rule: Admission, max_blocks_per_request: Option<usize>) -> Result<Self, AdmissionError> {
        let within = |field, found: usize, most: usize| {
            if (1..=most).contains(&found) { Ok(found) } else { Err(AdmissionError { field, found, most }) }
        };
        let seen = |remember| Ok(Ghosts::new(within("remember", remember, MAX_REMEMBER)?));
        let sights = match rule {
            Admission::All => None,
            Admission::SecondSight { remember } => Some(Sights { seen: seen(remember)?, shadows: None }),
            Admission::Measured { remember, cache_blocks } => {
                let cache_blocks = within("cache_blocks", cache_blocks, u32::MAX as usize)?;
                Some(Sights { seen: seen(remember)?, shadows: Some(Shadows::new(cache_blocks)) })
            }
        };
        Ok(Self { sights: sights.map(Mutex::new), max_blocks: max_blocks_per_request })
    }

    /// Bytes that the memory of seen blocks takes; they do not grow.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.sights.as_ref().map_or(0, |sights| sights.lock().unwrap_or_else(PoisonError::into_inner).bytes())
    }

    /// Whether blocks are let in on second sight now; `None` for a rule that lets every block in.
    #[must_use]
    pub fn on_second_sight(&self) -> Option<bool> {
        let sights = self.sights.as_ref()?.lock().unwrap_or_else(PoisonError::into_inner);
        Some(sights.shadows.as_ref().is_none_or(|shadows| shadows.second_leads))
    }

    /// Which of the missing blocks of a request to store: a range of indices of `request` that begins where `missing`
    /// does. To be called once for each request, with all its blocks, those that hit too: they have been seen.
    ///
    /// What lies outside the request in `missing` is not looked at.
    #[must_use]
    pub fn admit(&self, request: &[ObjectId], missing: Range<usize>) -> Range<usize> {
        let tag = |object: &ObjectId| xxh3_64(&object.key().to_bytes());
        self.judge(request.len(), missing, || request.iter().map(tag).collect())
    }

    /// As [`Admitter::admit`], for blocks of a store. Sight is of the namespace, whatever pools it is registered in.
    #[must_use]
    pub fn admit_blocks(&self, namespace: &StoreNamespace, request: &[BlockId], missing: Range<usize>) -> Range<usize> {
        let digest = namespace.digest();
        let tag = |block: &BlockId| {
            let key = maru_layout::object::ObjectKey {
                namespace: digest,
                prefix: block.prefix,
                shard: block.shard,
                part: block.part,
            };
            xxh3_64(&key.to_bytes())
        };
        self.judge(request.len(), missing, || request.iter().map(tag).collect())
    }

    fn judge(&self, blocks: usize, missing: Range<usize>, hashes: impl FnOnce() -> Vec<u64>) -> Range<usize> {
        let start = missing.start.min(blocks);
        let end = missing.end.clamp(start, blocks);
        let allowed = match &self.sights {
            None => end - start,
            Some(sights) => {
                let hashes = hashes();
                let mut sights = sights.lock().unwrap_or_else(PoisonError::into_inner);
                let known = hashes[start..end].iter().take_while(|hash| sights.seen.has(**hash)).count();
                let second = sights.note(&hashes);
                if second { known } else { end - start }
            }
        };
        start..start + allowed.min(self.max_blocks.unwrap_or(usize::MAX))
    }
}

/// What has been seen, and what that was good for.
#[derive(Debug)]
struct Sights {
    seen: Ghosts,
    shadows: Option<Shadows>,
}

impl Sights {
    fn bytes(&self) -> usize {
        let shadows = self.shadows.as_ref().map_or(0, |shadows| shadows.every.bytes() + shadows.second.bytes());
        self.seen.bytes() + shadows
    }

    /// A request is over; whether this one was to be judged on second sight.
    fn note(&mut self, hashes: &[u64]) -> bool {
        let second = self.shadows.as_ref().is_none_or(|shadows| shadows.second_leads);
        if let Some(shadows) = &mut self.shadows {
            shadows.play(hashes, &self.seen);
        }
        // G2: remembered only now, so that a block named twice is not its own first sight.
        hashes.iter().for_each(|hash| self.seen.see(*hash));
        second
    }
}

/// Blocks of a shadow, if the cache has more: a sample of so many tells hit ratios to about a percent.
const SHADOW_BLOCKS: usize = 8192;
/// Requests after which half of a lead is forgotten, about.
const LEAD_HALVES: f64 = 0.002;
/// A lead, in sampled blocks, that changes the say.
const LEAD: f64 = 16.0;

/// The cache as it would be under either rule (G4).
#[derive(Debug)]
struct Shadows {
    /// One key of so many takes part.
    one_in: u64,
    every: Ghosts,
    second: Ghosts,
    /// What `second` found of late more than `every`.
    lead: f64,
    second_leads: bool,
}

impl Shadows {
    fn new(cache_blocks: usize) -> Self {
        let one_in = cache_blocks.div_ceil(SHADOW_BLOCKS);
        let blocks = cache_blocks.div_ceil(one_in);
        Self {
            one_in: one_in as u64,
            every: Ghosts::new(blocks),
            second: Ghosts::new(blocks),
            lead: 0.0,
            second_leads: false,
        }
    }

    fn play(&mut self, hashes: &[u64], seen: &Ghosts) {
        let mut gain = 0.0;
        // Bits of the hash that neither set nor tag of a small table are made of come first in the product.
        let one_in = self.one_in;
        for &hash in hashes.iter().filter(|hash| hash.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32 < (1 << 32) / one_in) {
            gain -= f64::from(u8::from(self.every.has(hash)));
            self.every.see(hash);
            let found = self.second.has(hash);
            gain += f64::from(u8::from(found));
            if found || seen.has(hash) {
                self.second.see(hash);
            }
        }
        self.lead = self.lead * (1.0 - LEAD_HALVES) + gain;
        if self.lead.abs() >= LEAD {
            self.second_leads = self.lead > 0.0;
        }
    }
}

/// Tags of keys in sets, each set in the order of last sight; 0 = empty.
#[derive(Debug)]
struct Ghosts {
    sets: Vec<[u32; WAYS]>,
}

impl Ghosts {
    fn new(remember: usize) -> Self {
        Self { sets: vec![[0; WAYS]; remember.div_ceil(WAYS)] }
    }

    /// Set and tag: the high half of the hash chooses the one, the low half is the other.
    fn bytes(&self) -> usize {
        size_of_val(self.sets.as_slice())
    }

    fn place(&self, hash: u64) -> (usize, u32) {
        let set = ((hash >> 32) * self.sets.len() as u64) >> 32;
        (set as usize, (hash as u32).max(1))
    }

    fn has(&self, hash: u64) -> bool {
        let (set, tag) = self.place(hash);
        self.sets[set].contains(&tag)
    }

    fn see(&mut self, hash: u64) {
        let (set, tag) = self.place(hash);
        let ways = &mut self.sets[set];
        let last = ways.iter().position(|way| *way == tag).unwrap_or(WAYS - 1);
        ways[..=last].rotate_right(1);
        ways[0] = tag;
    }
}
