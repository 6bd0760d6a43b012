//! Requests from a seed: people who chat with a few assistants.
//!
//! Each assistant has a system prompt, and some are much more popular than others. A conversation starts with its
//! assistant's system prompt, sometimes followed by a long document; each turn sends the whole conversation so far and
//! some new blocks, up to 128 blocks (32K tokens at 256 a block). Some turns are sent again unchanged. Many
//! conversations are open at once and take turns in random order.
//!
//! * W1: the same seed gives the same requests, on every machine.
//! * W2: a block's id is a hash of the id before it and of what is new, so equal ids mean an equal prompt up to there.
//! * W3: what is remembered is the open conversations, however many requests are asked for.

use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Tokens of a block.
pub(crate) const BLOCK_TOKENS: u32 = 256;
/// Blocks of the longest prompt.
pub(crate) const MAX_PROMPT_BLOCKS: usize = 128;

/// Blocks of each assistant's system prompt, the most popular first.
const SYSTEM_PROMPTS: [usize; 6] = [24, 40, 12, 32, 8, 48];
/// Conversations that are open at once.
const OPEN: usize = 48;

/// A small generator with a full period (splitmix64); nothing here needs more.
#[derive(Debug, Clone)]
pub(crate) struct Random(pub(crate) u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// From 0 to `end - 1`.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        ((u128::from(self.next()) * end as u128) >> 64) as usize
    }

    fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }
}

/// The requests of a seed, without end.
#[derive(Debug, Clone)]
pub(crate) struct Chat {
    random: Random,
    seed: u64,
    started: u64,
    open: Vec<Vec<u64>>,
}

impl Chat {
    /// The workload of this seed.
    pub(crate) fn new(seed: u64) -> Self {
        let mut chat = Self { random: Random(seed), seed, started: 0, open: Vec::new() };
        chat.open = (0..OPEN).map(|_| chat.start()).collect();
        chat
    }

    /// Appends blocks to a prompt; `text` stands for what is in them.
    fn extend(&self, prompt: &mut Vec<u64>, blocks: usize, text: u64) {
        for part in 0..blocks as u64 {
            let before = prompt.last().copied().unwrap_or(0);
            let mut bytes = [0; 24];
            bytes[..8].copy_from_slice(&before.to_le_bytes());
            bytes[8..16].copy_from_slice(&text.to_le_bytes());
            bytes[16..].copy_from_slice(&part.to_le_bytes());
            prompt.push(xxh3_64_with_seed(&bytes, self.seed));
        }
    }

    /// A new conversation: the system prompt, and perhaps a document.
    fn start(&mut self) -> Vec<u64> {
        self.started += 1;
        // Half of those that remain go to the next one.
        let mut assistant = 0;
        while assistant + 1 < SYSTEM_PROMPTS.len() && self.random.one_in(2) {
            assistant += 1;
        }
        let mut prompt = Vec::with_capacity(MAX_PROMPT_BLOCKS);
        self.extend(&mut prompt, SYSTEM_PROMPTS[assistant], assistant as u64);
        if self.random.one_in(8) {
            let blocks = 16 + self.random.below(32);
            let text = self.random.next();
            self.extend(&mut prompt, blocks, text);
        }
        prompt
    }
}

impl Iterator for Chat {
    type Item = Vec<u64>;

    fn next(&mut self) -> Option<Vec<u64>> {
        let at = self.random.below(OPEN);
        if self.random.one_in(12) {
            return Some(self.open[at].clone());
        }
        let new = 1 + self.random.below(5);
        if self.open[at].len() + new > MAX_PROMPT_BLOCKS || self.random.one_in(24) {
            self.open[at] = self.start();
        }
        let mut prompt = std::mem::take(&mut self.open[at]);
        let text = self.random.next();
        self.extend(&mut prompt, new, text);
        self.open[at].clone_from(&prompt);
        Some(prompt)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::EndlessCache;

    #[test]
    fn a_seed_is_a_workload() {
        let take = |seed| Chat::new(seed).take(200).collect::<Vec<_>>();
        assert_eq!(take(1), take(1));
        assert_ne!(take(1), take(2));
    }

    #[test]
    fn prompts_are_as_long_and_as_shared_as_in_a_chat() {
        for seed in [0, 42, u64::MAX] {
            let mut cache = EndlessCache::default();
            let mut longest = 0;
            for prompt in Chat::new(seed).take(4000) {
                longest = longest.max(prompt.len());
                cache.serve(&prompt);
            }
            assert!((120..=MAX_PROMPT_BLOCKS).contains(&longest), "{longest}");
            let ratio = cache.hits as f64 / cache.references as f64;
            assert!((0.85..0.99).contains(&ratio), "{ratio}");
        }
    }

    #[test]
    fn equal_ids_mean_equal_prompts() {
        let mut before = std::collections::HashMap::new();
        for prompt in Chat::new(3).take(3000) {
            for at in 0..prompt.len() {
                let head = at.checked_sub(1).map(|previous| prompt[previous]);
                assert_eq!(*before.entry(prompt[at]).or_insert(head), head);
            }
        }
    }
}
