//! Namespaces: all that makes two KV blocks of equal tokens interchangeable.
//!
//! Two engines share blocks exactly if their namespaces are equal in every field. The fields are written into one
//! canonical text (a line each, in a fixed order, with `%`, `=` and line ends escaped), so that no two different
//! lists of fields give the same text: "a"+"bc" is not "ab"+"c". The text is registered once in the region, for
//! people and for comparison in full; its SHA-256 together with the namespace's generation is what objects carry.
//!
//! * N1: a row is added under the region's *namespace chore*, a word that names its holder; a dead holder is
//!   recovered by whoever waits. So there is one row for a text.
//! * N2: text and digest of a `Ready` row never change; its generation only grows.
//! * N3: `invalidate` is one swap of the generation. Every later call with the old id is refused where slot
//!   generations are checked; new ids have another digest, and so other keys: nothing of the old space can hit.

use maru_layout::table::{Counter, NamespaceRow};
use maru_layout::word::{ChoreWord, RowState};
use sha2::{Digest, Sha256};

use crate::engine::Engine;
use crate::regime::Regime;
use crate::step::step;
use crate::sync::{Backoff, Ordering, edge};
use crate::view::{RowLines, load_bytes, store_bytes};
use crate::{CallError, NamespaceError, NamespaceId};

/// How long a registration waits for another one before it names the session in its way.
const WAIT_MS: u64 = 5_000;

/// The fields of a namespace. Built field by field; [`Namespace::text`] says which one is missing.
///
/// ```
/// use maru::Namespace;
/// let namespace = Namespace::new()
///     .tenant("search")
///     .model("Qwen/Qwen2.5-7B-Instruct")
///     .revision("a09a35458c702b33eeacc393d103063234e8bc28")
///     .adapter("none")
///     .dtype("bfloat16")
///     .quantization("none")
///     .geometry("layers=28,kv_heads=4,head_dim=128")
///     .storage_format("vllm-0.32-LBHNC")
///     .block_tokens(256)
///     .parallel("tp=1,pp=1")
///     .hash_algorithm("sha256_cbor")
///     .hash_seed("0");
/// assert!(namespace.text().unwrap().contains("dtype=bfloat16\n"));
/// assert!(Namespace::new().model("m").text().unwrap_err().to_string().contains("tenant"));
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Namespace {
    values: [Option<String>; FIELDS.len()],
}

/// Name and example of each field, in canonical order.
const FIELDS: [(&str, &str); 12] = [
    ("tenant", "tenant(\"default\")"),
    ("model", "model(\"Qwen/Qwen2.5-7B-Instruct\")"),
    ("revision", "revision(\"<commit of the weights>\"): a name that can move is not enough"),
    ("adapter", "adapter(\"none\")"),
    ("dtype", "dtype(\"bfloat16\")"),
    ("quantization", "quantization(\"none\")"),
    ("geometry", "geometry(\"layers=28,kv_heads=4,head_dim=128\")"),
    ("storage_format", "storage_format(\"vllm-0.32-LBHNC\")"),
    ("block_tokens", "block_tokens(256)"),
    ("parallel", "parallel(\"tp=1,pp=1\")"),
    ("hash_algorithm", "hash_algorithm(\"sha256_cbor\")"),
    ("hash_seed", "hash_seed(\"0\"): the engines' PYTHONHASHSEED, equal on all"),
];

macro_rules! setters {
    ($($(#[$doc:meta])* $name:ident = $index:literal;)*) => {
        impl Namespace {
            $($(#[$doc])*
            #[must_use]
            pub fn $name(mut self, value: impl Into<String>) -> Self {
                self.values[$index] = Some(value.into());
                self
            })*
        }
    };
}

setters! {
    /// Whose blocks these are; nothing is shared between tenants.
    tenant = 0;
    /// The model's name.
    model = 1;
    /// The exact weights: a commit or digest, not a branch.
    revision = 2;
    /// Adapter (LoRA) identity, or "none".
    adapter = 3;
    /// Element type of the KV cache.
    dtype = 4;
    /// Quantisation of weights and cache, or "none".
    quantization = 5;
    /// Layers, heads, head size, and whatever else shapes a block.
    geometry = 6;
    /// Version of the byte layout inside a block.
    storage_format = 7;
    /// Parallel layout: tensor, pipeline, context.
    parallel = 9;
    /// Algorithm of the prefix digests.
    hash_algorithm = 10;
    /// Seed of the prefix digests.
    hash_seed = 11;
}

impl Namespace {
    /// No field said yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Tokens of one block.
    #[must_use]
    pub fn block_tokens(mut self, tokens: u32) -> Self {
        self.values[8] = Some(tokens.to_string());
        self
    }

    /// Sets a field by its name, as read from a configuration file.
    ///
    /// # Errors
    /// There is no such field.
    pub fn field(mut self, name: &str, value: impl Into<String>) -> Result<Self, NamespaceError> {
        let Some(index) = FIELDS.iter().position(|(field, _)| *field == name) else {
            return Err(NamespaceError::Field {
                field: "(name)",
                found: name.to_owned(),
                wanted: "one of tenant, model, revision, adapter, dtype, quantization, geometry, storage_format, \
                         block_tokens, parallel, hash_algorithm, hash_seed",
            });
        };
        self.values[index] = Some(value.into());
        Ok(self)
    }

    /// The canonical text: what is registered, compared and hashed.
    ///
    /// # Errors
    /// Names a missing or empty field.
    pub fn text(&self) -> Result<String, NamespaceError> {
        let mut text = String::new();
        for ((field, example), value) in FIELDS.into_iter().zip(&self.values) {
            let Some(value) = value else { return Err(NamespaceError::Missing { field, example }) };
            if value.is_empty() {
                return Err(NamespaceError::Field {
                    field,
                    found: String::new(),
                    wanted: "a value (say \"none\" where there is none)",
                });
            }
            if field == "block_tokens" && value.parse::<u32>().ok().filter(|tokens| *tokens > 0).is_none() {
                return Err(NamespaceError::Field { field, found: value.clone(), wanted: "a number of at least 1" });
            }
            text.push_str(field);
            text.push('=');
            for char in value.chars() {
                match char {
                    '%' => text.push_str("%25"),
                    '=' => text.push_str("%3D"),
                    '\n' => text.push_str("%0A"),
                    other => text.push(other),
                }
            }
            text.push('\n');
        }
        let max_bytes = size_of::<NamespaceRow>() - core::mem::offset_of!(NamespaceRow, text);
        if text.len() > max_bytes {
            return Err(NamespaceError::TooLong { bytes: text.len(), max_bytes });
        }
        Ok(text)
    }
}

/// What objects of a namespace carry: SHA-256 of text and generation, first 16 bytes.
pub(crate) fn digest_of(text: &[u8], generation: u64) -> [u8; 16] {
    let digest = Sha256::new().chain_update(text).chain_update(generation.to_le_bytes()).finalize();
    digest[..16].try_into().expect("SHA-256 has 32 bytes")
}

impl<R: Regime> Engine<R> {
    /// Registers a text, or finds it registered. With a budget (in slots): under that one and no other.
    pub(crate) fn register(&self, text: &str, budget: Option<u32>) -> Result<NamespaceId, NamespaceError> {
        if let Some(id) = self.find_row(text) {
            return self.within(id, budget);
        }
        let mine = ChoreWord::held(self.me.owner, self.me.live.epoch());
        self.take_chore(mine)?;
        // Somebody may have added it before I had the chore.
        let answer = match self.find_row(text).filter(|_| edge!(SearchAgain)) {
            Some(id) => self.within(id, budget),
            None => self.add_row(text, budget),
        };
        step!(NamespaceDone);
        // ORDERING: Release, pairs with the next taker's Acquire: the row I added is seen by its search.
        let _ = self.tables.control().namespace_chore.compare_exchange(
            mine.0,
            ChoreWord::FREE.0,
            Ordering::Release,
            Ordering::Relaxed,
        );
        answer
    }

    fn take_chore(&self, mine: ChoreWord) -> Result<(), NamespaceError> {
        let chore = &self.tables.control().namespace_chore;
        let backoff = Backoff::new();
        let start = self.world.now_ms();
        loop {
            step!(NamespaceChore);
            // ORDERING: AcqRel: Acquire sees the rows of the last holder; the name goes in with the claim.
            let Err(found) = chore.compare_exchange(ChoreWord::FREE.0, mine.0, Ordering::AcqRel, Ordering::Acquire)
            else {
                return Ok(());
            };
            let holder = ChoreWord(found);
            if holder != ChoreWord::FREE {
                self.recover_chore_holder(chore, holder);
            }
            self.check_session()?;
            let waited_ms = self.world.now_ms() - start;
            if waited_ms > WAIT_MS {
                return Err(NamespaceError::Busy { index: holder.owner().index().unwrap_or(u32::MAX), waited_ms });
            }
            backoff.snooze();
        }
    }

    /// The registered row of this text, under its present generation.
    pub(crate) fn find_row(&self, text: &str) -> Option<NamespaceId> {
        (0..self.tables.geometry().namespace_count).find_map(|row| {
            let lines = self.tables.row(row);
            (lines.state() == Some(RowState::Ready) && row_text(lines).as_deref() == Some(text.as_bytes())).then(|| {
                let generation = lines.generation();
                self.namespace_id(row, generation, text)
            })
        })
    }

    /// Adds a row. Only the holder of the chore comes here, so a row in `Adding` is a dead holder's leftover.
    fn add_row(&self, text: &str, budget: Option<u32>) -> Result<NamespaceId, NamespaceError> {
        let rows = self.tables.geometry().namespace_count;
        let free = (0..rows).find(|row| self.tables.row(*row).state() != Some(RowState::Ready));
        let Some(row) = free else { return Err(NamespaceError::Full { rows }) };
        let first_token = budget.map(|slots| self.deal(slots)).transpose()?;
        let lines = self.tables.row(row);
        step!(NamespaceAdding);
        // ORDERING: Relaxed: the chore serialises writers; readers look only at `Ready` rows.
        lines.state.store(RowState::Adding as u64, Ordering::Relaxed);
        let mut plain: NamespaceRow = bytemuck::Zeroable::zeroed();
        plain.text_bytes = text.len() as u32;
        plain.created_ns = crate::wall_ns();
        plain.text_digest = Sha256::digest(text.as_bytes()).into();
        plain.budget_slots = budget.map_or(0, |slots| u64::from(slots) + 1);
        plain.first_token = first_token.unwrap_or(0);
        plain.text[..text.len()].copy_from_slice(text.as_bytes());
        step!(NamespaceFill);
        let bytes = bytemuck::bytes_of(&plain);
        store_bytes(&lines.facts, &bytes[16..96]);
        store_bytes(&lines.text, &bytes[96..]);
        // A row that was never ready is at generation 0; start at 1, so that no made-up id is current.
        lines.generation.store(1, Ordering::Relaxed);
        step!(NamespaceReady);
        // ORDERING: Release, publishes the text; pairs with `RowLines::state`.
        lines.state.store(RowState::Ready as u64, Ordering::Release);
        R::write_back(lines);
        Ok(self.namespace_id(row, 1, text))
    }

    /// Tokens behind those of all rows: the first of `slots` ones. Only the holder of the chore comes here.
    fn deal(&self, slots: u32) -> Result<u32, NamespaceError> {
        let geometry = self.tables.geometry();
        let end = (0..geometry.namespace_count)
            .map(|row| self.tables.row(row))
            .filter(|lines| lines.state() == Some(RowState::Ready))
            .map(|lines| {
                let (budget, first) = lines.budget();
                // Bytes of the region; a sum beyond the section leaves nothing to deal.
                budget.checked_sub(1).map_or(0, |slots| u64::from(first).saturating_add(slots))
            })
            .max()
            .unwrap_or(0);
        let left = u64::from(geometry.token_count).saturating_sub(end);
        if u64::from(slots) > left {
            return Err(NamespaceError::Tokens { asked: slots, left: left as u32, tokens: geometry.token_count });
        }
        Ok(end as u32)
    }

    /// Refuses a registered namespace whose budget is not the one asked for.
    fn within(&self, id: NamespaceId, budget: Option<u32>) -> Result<NamespaceId, NamespaceError> {
        let found = self.tables.row(id.row).budget().0.checked_sub(1);
        match budget {
            Some(asked) if found != Some(u64::from(asked)) => Err(NamespaceError::Budget { asked, found }),
            _ => Ok(id),
        }
    }

    fn namespace_id(&self, row: u32, generation: u64, text: &str) -> NamespaceId {
        NamespaceId { region: self.region_half(), row, generation, digest: digest_of(text.as_bytes(), generation) }
    }

    fn region_half(&self) -> u64 {
        u64::from_le_bytes(*self.tables.geometry().region_id.first_chunk().expect("8 of 16 bytes"))
    }

    /// Refuses an id that was registered in another region, or before this place was formatted anew.
    pub(crate) fn check_origin(&self, id: &NamespaceId) -> Result<(), CallError> {
        let rows = self.tables.geometry().namespace_count;
        if id.region != self.region_half() || id.row >= rows {
            return Err(CallError::ForeignNamespace { row: id.row, rows });
        }
        Ok(())
    }

    /// Whether `id` is this region's and still current.
    pub(crate) fn check_namespace(&self, id: &NamespaceId) -> Result<bool, CallError> {
        self.check_origin(id)?;
        let current = self.tables.row(id.row).generation() == id.generation;
        if !current {
            self.count(Counter::Invalidated, 1);
        }
        Ok(current)
    }

    /// Ends the generation of `id`, at once and for everybody.
    pub(crate) fn invalidate_namespace(&self, id: &NamespaceId) -> Result<bool, CallError> {
        self.check_origin(id)?;
        let lines = self.tables.row(id.row);
        step!(NamespaceInvalidate);
        // ORDERING: SeqCst: in the total order with the fences of `protect`, so that a lease taken after this
        // returned finds the new generation.
        let swapped = lines
            .generation
            .compare_exchange(id.generation, id.generation.wrapping_add(1), Ordering::SeqCst, Ordering::Relaxed)
            .is_ok();
        R::write_back(lines);
        Ok(swapped)
    }
}

/// A row's text; `None` when its length is beyond the row (damage).
pub(crate) fn row_text(lines: &RowLines) -> Option<Vec<u8>> {
    let mut head = [0; 8];
    load_bytes(&lines.facts[..1], &mut head);
    let length = u32::from_le_bytes(head[..4].try_into().expect("four bytes")) as usize;
    let mut text = vec![0; size_of::<NamespaceRow>() - core::mem::offset_of!(NamespaceRow, text)];
    if length > text.len() {
        return None;
    }
    load_bytes(&lines.text, &mut text);
    text.truncate(length);
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn full() -> Namespace {
        FIELDS.iter().fold(Namespace::new(), |namespace, (name, _)| namespace.field(name, "1").expect("known"))
    }

    #[test]
    fn each_field_alone_changes_the_text_and_none_may_be_missing() {
        let text = full().text().expect("complete");
        for (name, _) in FIELDS {
            assert_ne!(full().field(name, "2").expect("known").text().expect("complete"), text, "{name}");
            let mut missing = full();
            missing.values[FIELDS.iter().position(|(field, _)| *field == name).expect("known")] = None;
            assert!(missing.text().expect_err("missing").to_string().contains(name));
        }
        assert!(full().field("colour", "2").is_err());
        assert!(full().dtype("").text().is_err());
        assert!(full().tenant("x".repeat(1000)).text().is_err());
    }

    #[test]
    fn fields_whose_joined_text_is_equal_stay_apart() {
        let join = |tenant: &str, model: &str| full().tenant(tenant).model(model).text().expect("complete");
        for (left, right) in [
            (("a", "bc"), ("ab", "c")),
            (("a\nmodel=b", "c"), ("a", "b\nmodel=c")),
            (("a%0Amodel", "b"), ("a\nmodel", "b")),
            (("a=", "b"), ("a%3D", "b")),
        ] {
            assert_ne!(join(left.0, left.1), join(right.0, right.1));
        }
    }

    #[test]
    fn generations_have_different_digests() {
        assert_ne!(digest_of(b"text", 1), digest_of(b"text", 2));
    }
}
