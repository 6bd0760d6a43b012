//! The golden images of format 1, built from plain records: no clock, no randomness, not the library under test.
//!
//! The files in `layout/golden/` are what is kept; this module says how they came about, and gives the fuzzers images
//! whose content is known. A test holds the two together byte for byte. Once a version of the format is released its
//! images stay as they are, and so does what builds them here.

use std::sync::OnceLock;

use bytemuck::{Pod, Zeroable};
use maru_layout::geometry::{ClassSpec, FormatSpec, Geometry, Stamp};
use maru_layout::object::{ObjectKey, PayloadCrc, seal};
use maru_layout::record::{BodyLine, IdentityLine, SlotRecord};
use maru_layout::superblock::{Hosts, SectionKind, Superblock};
use maru_layout::table::{Bucket, ControlPage, NamespaceRow, PoolEntry, Role, SessionAreaHead, SessionEntry};
use maru_layout::word::{
    ChoreWord, FormatWord, IndexEntry, LeaseCell, LeaseKind, MAX_GENERATION, Owner, RowState, SessionState,
    SessionWord, SlotState, SlotWord,
};
use maru_layout::{RECORD_BYTES, SESSION_AREA_HEAD_BYTES};
use sha2::{Digest, Sha256};

use crate::{content, namespace};

/// Name of a block in a golden image; its content follows from number and length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Block {
    /// Tenant of its namespace.
    pub tenant: &'static str,
    /// Generation of the namespace that its id was made under.
    pub generation: u64,
    /// What its prefix digest begins with.
    pub number: u64,
    /// Shard.
    pub shard: u16,
    /// Part.
    pub part: u16,
    /// Payload bytes.
    pub len: u32,
}

impl Block {
    const fn new(tenant: &'static str, number: u64, len: u32) -> Self {
        Self { tenant, generation: 1, number, shard: 0, part: 0, len }
    }

    /// The prefix digest.
    #[must_use]
    pub fn prefix(&self) -> [u8; 32] {
        prefix(self.number)
    }

    /// The object id as the index sees it.
    #[must_use]
    pub fn key(&self) -> ObjectKey {
        let text = namespace(self.tenant).text().expect("complete");
        let digest = Sha256::new().chain_update(text).chain_update(self.generation.to_le_bytes()).finalize();
        ObjectKey {
            namespace: digest[..16].try_into().expect("32 bytes"),
            prefix: self.prefix(),
            shard: self.shard,
            part: self.part,
        }
    }

    /// The payload.
    #[must_use]
    pub fn content(&self) -> Vec<u8> {
        content(self.number, self.len as usize)
    }
}

/// The prefix digest of block `number`.
#[must_use]
pub fn prefix(number: u64) -> [u8; 32] {
    let mut prefix = [0; 32];
    prefix[..8].copy_from_slice(&number.to_le_bytes());
    prefix
}

/// A golden image and what is known of it.
#[derive(Debug, Clone)]
pub struct Golden {
    /// File name without `.maru`.
    pub name: &'static str,
    /// The region.
    pub bytes: Vec<u8>,
    /// Registered namespaces, by tenant and present generation.
    pub namespaces: Vec<(&'static str, u64)>,
    /// Blocks that are ready.
    pub ready: Vec<Block>,
    /// Slots in each state, in the order of [`SlotState::ALL`].
    pub slots: [u32; 7],
}

/// All images of format 1.
#[must_use]
pub fn images() -> &'static [Golden] {
    static IMAGES: OnceLock<Vec<Golden>> = OnceLock::new();
    IMAGES.get_or_init(|| vec![empty(), ready(), states(), crowded(), classes()])
}

/// A fixed time, so that images do not depend on the day they were made: 2025-01-01.
const FORMATTED_NS: u64 = 1_735_689_600_000_000_000;
/// Host tag in session words: of no host that exists.
const HOST_TAG: u32 = 0x0AB_CDEF;

struct Draft {
    geometry: Geometry,
    golden: Golden,
    bytes: Vec<u8>,
}

impl Draft {
    fn new(name: &'static str, number: u8, spec: &FormatSpec) -> Self {
        let stamp = Stamp {
            region_id: [number; 16],
            incarnation: 0,
            hash_seed: u64::from(number) << 32 | 0x5EED,
            formatted_ns: FORMATTED_NS,
            formatter_host: [0xF0 | number; 16],
        };
        let superblock = spec.plan(&stamp).expect("a sound wish");
        let geometry = Geometry::of(&superblock, spec.length_bytes, true).expect("a planned superblock is sound");
        let slots = [geometry.slot_count, 0, 0, 0, 0, 0, 0];
        let golden = Golden { name, bytes: Vec::new(), namespaces: Vec::new(), ready: Vec::new(), slots };
        let bytes = vec![0; spec.length_bytes as usize];
        let mut draft = Self { geometry, golden, bytes };
        for kind in [None, Some(SectionKind::Copy)] {
            let offset = kind.map_or(0, |kind| draft.geometry.offset(kind));
            draft.edit_at(offset, |page: &mut Superblock| *page = superblock);
        }
        draft.edit(SectionKind::Control, 0, 0, |page: &mut ControlPage| {
            page.format = FormatWord::ready(&superblock.region_id).0;
        });
        draft.edit(SectionKind::Pools, 0, 0, |pool: &mut PoolEntry| {
            pool.id = [number ^ 0xFF; 16];
            (pool.medium, pool.tier, pool.scope) = (1, 1, 2);
            pool.name[..name.len()].copy_from_slice(name.as_bytes());
        });
        draft
    }

    fn edit_at<T: Pod>(&mut self, offset: u64, change: impl FnOnce(&mut T)) {
        let place = &mut self.bytes[offset as usize..][..size_of::<T>()];
        let mut value: T = bytemuck::pod_read_unaligned(place);
        change(&mut value);
        place.copy_from_slice(bytemuck::bytes_of(&value));
    }

    fn edit<T: Pod>(&mut self, kind: SectionKind, index: u32, stride: u64, change: impl FnOnce(&mut T)) {
        self.edit_at(self.geometry.offset(kind) + u64::from(index) * stride, change);
    }

    fn namespace(&mut self, row: u32, tenant: &'static str, generation: u64) {
        let text = namespace(tenant).text().expect("complete");
        self.edit(SectionKind::Namespaces, row, size_of::<NamespaceRow>() as u64, |row: &mut NamespaceRow| {
            row.state = RowState::Ready as u64;
            row.generation = generation;
            row.text_bytes = text.len() as u32;
            row.created_ns = FORMATTED_NS + 1;
            row.text_digest = Sha256::digest(&text).into();
            row.text[..text.len()].copy_from_slice(text.as_bytes());
        });
        self.golden.namespaces.push((tenant, generation));
    }

    /// A slot that holds `block`, indexed where its key belongs.
    fn slot(&mut self, slot: u32, word: SlotWord, block: Block) {
        let key = block.key();
        let payload = block.content();
        let row = self.golden.namespaces.iter().position(|(tenant, _)| *tenant == block.tenant).expect("registered");
        let identity = IdentityLine {
            word: word.0,
            prefix: key.prefix,
            namespace: key.namespace,
            shard: key.shard,
            part: key.part,
            length: block.len,
        };
        let mut body = BodyLine {
            generation: word.generation(),
            committed_ns: FORMATTED_NS + 2,
            storer_id: 0x1D,
            depth: block.number as u32,
            namespace_row: row as u32,
            storer_epoch: 1,
            ..BodyLine::zeroed()
        };
        let mut crc = PayloadCrc::new(&key, word.generation(), block.len);
        crc.update(&payload);
        body.checksum = seal(&identity, &body, crc.finish());
        self.edit(SectionKind::Records, slot, RECORD_BYTES, |record: &mut SlotRecord| {
            *record = SlotRecord { identity, body };
        });
        let (offset, size) = self.geometry.payload_of(slot).expect("a slot of this region");
        assert!(u64::from(block.len) <= size);
        self.bytes[offset as usize..][..payload.len()].copy_from_slice(&payload);
        if word.is(SlotState::Ready) {
            self.golden.ready.push(block);
        }
        self.used(slot, word);
        self.index(&key, slot, word.generation());
    }

    /// A slot without a record.
    fn bare_slot(&mut self, slot: u32, word: SlotWord) {
        self.edit(SectionKind::Records, slot, RECORD_BYTES, |record: &mut SlotRecord| record.identity.word = word.0);
        self.used(slot, word);
    }

    fn used(&mut self, slot: u32, word: SlotWord) {
        let state = word.state().expect("a state of ours");
        self.golden.slots[SlotState::Free as usize] -= 1;
        self.golden.slots[state as usize] += 1;
        self.edit(SectionKind::Bitmap, slot / 64, 8, |bits: &mut u64| *bits |= 1 << (slot % 64));
    }

    fn index(&mut self, key: &ObjectKey, slot: u32, generation: u64) {
        let place = key.place(self.geometry.hash_seed, self.geometry.bucket_count);
        let entry = IndexEntry::new(slot, generation, place.tag);
        if !self.insert(place.first, entry) {
            assert!(self.insert(place.second, entry.in_second()), "room in one of two buckets");
            self.edit(SectionKind::Buckets, place.first, 64, |bucket: &mut Bucket| bucket.mark += 1);
        }
    }

    fn insert(&mut self, bucket: u32, entry: IndexEntry) -> bool {
        let mut done = false;
        self.edit(SectionKind::Buckets, bucket, 64, |bucket: &mut Bucket| {
            if let Some(way) = bucket.entries.iter().position(|way| *way == 0) {
                bucket.entries[way] = entry.0;
                done = true;
            }
        });
        done
    }

    fn session(&mut self, index: u32, state: SessionState, epoch: u32, engine: &str) {
        self.edit(SectionKind::Sessions, index, size_of::<SessionEntry>() as u64, |entry: &mut SessionEntry| {
            entry.word = SessionWord::new(state, HOST_TAG, epoch).0;
            entry.heartbeat = 7;
            entry.id = [index as u8 + 1; 16];
            entry.host_id = [0xAB; 16];
            entry.boot_id = [0xCD; 16];
            entry.pid = 1000 + index;
            entry.role = Role::Worker as u16;
            entry.attached_ns = FORMATTED_NS + 1;
            entry.engine[..engine.len()].copy_from_slice(engine.as_bytes());
        });
    }

    fn lease(&mut self, session: u32, cell: u32, lease: LeaseCell) {
        let area = u64::from(session) * self.geometry.session_area_bytes;
        let base = self.geometry.offset(SectionKind::SessionAreas) + area;
        self.edit_at(base, |head: &mut SessionAreaHead| head.lease_mark = head.lease_mark.max(u64::from(cell) + 1));
        self.edit_at(base + SESSION_AREA_HEAD_BYTES + u64::from(cell) * 8, |word: &mut u64| *word = lease.0);
    }

    fn done(self) -> Golden {
        Golden { bytes: self.bytes, ..self.golden }
    }
}

fn ready_word(generation: u64) -> SlotWord {
    SlotWord::new(SlotState::Ready, Owner::NOBODY, generation)
}

/// A region that nobody has used yet.
fn empty() -> Golden {
    Draft::new("v1-empty", 1, &FormatSpec::new(64 << 10, 4096)).done()
}

/// Ready blocks in two namespaces: lengths from one byte to the whole slot, shards, parts, the same prefix in both
/// namespaces. The second namespace was invalidated once and still has a block of its first generation.
fn ready() -> Golden {
    let mut spec = FormatSpec::new(64 << 10, 4096);
    spec.sessions = Some(2);
    spec.namespaces = Some(3);
    spec.config = r#"{"model":"m","block_tokens":16}"#.to_owned();
    let mut draft = Draft::new("v1-ready", 2, &spec);
    draft.namespace(0, "a", 1);
    draft.namespace(1, "b", 2);
    let blocks = [
        Block::new("a", 1, 4096),
        Block::new("a", 2, 1),
        Block::new("a", 3, 4095),
        Block { shard: 1, ..Block::new("a", 3, 64) },
        Block { part: 7, ..Block::new("a", 3, 65) },
        Block { generation: 2, ..Block::new("b", 1, 1000) },
        Block { generation: 2, shard: 0xFFFF, part: 0xFFFF, ..Block::new("b", u64::MAX, 4096) },
        Block::new("b", 2, 300),
    ];
    for (slot, block) in (0..).zip(blocks) {
        draft.slot(slot, ready_word(1 + u64::from(slot) * 1000), block);
    }
    draft.done()
}

/// Every slot state, every session state, every kind of lease: what a host leaves behind when it goes down in the
/// middle of everything.
fn states() -> Golden {
    let mut spec = FormatSpec::new(64 << 10, 1024);
    spec.sessions = Some(6);
    spec.namespaces = Some(2);
    let mut draft = Draft::new("v1-states", 3, &spec);
    draft.namespace(0, "a", 1);
    draft.session(0, SessionState::Live, 4, "vllm");
    draft.session(1, SessionState::Fenced, 5, "sglang");
    draft.session(2, SessionState::Dead, 3, "vllm");
    draft.session(3, SessionState::Attaching, 6, "");
    draft.session(4, SessionState::Live, 7, "vllm");
    let owner = Owner::session;
    let word = SlotWord::new;
    draft.slot(0, ready_word(1), Block::new("a", 1, 1024));
    draft.slot(1, ready_word(2), Block::new("a", 2, 100));
    draft.bare_slot(2, word(SlotState::Claiming, owner(0), 1));
    draft.slot(3, word(SlotState::Pending, owner(0), 1), Block::new("a", 3, 1024));
    draft.slot(4, word(SlotState::Writing, owner(4), 9), Block::new("a", 4, 512));
    draft.slot(5, word(SlotState::Writing, owner(0), 9).with_device_writer(true), Block::new("a", 5, 512));
    draft.slot(6, word(SlotState::Retiring, Owner::NOBODY, 3), Block::new("a", 6, 64));
    draft.slot(7, word(SlotState::Retiring, owner(2), 3), Block::new("a", 7, 64));
    draft.slot(8, word(SlotState::Quarantined, owner(1), 5), Block::new("a", 8, 64));
    draft.slot(9, word(SlotState::Quarantined, Owner::NOBODY, 5), Block::new("a", 9, 64));
    draft.bare_slot(10, word(SlotState::Quarantined, Owner::NOBODY, MAX_GENERATION));
    // A twin that had lost and was not given back yet.
    draft.slot(11, word(SlotState::Pending, owner(4), 2), Block::new("a", 1, 1024));
    draft.slot(12, ready_word(MAX_GENERATION), Block::new("a", 12, 1024));
    draft.lease(0, 0, LeaseCell::new(LeaseKind::Copy, 1, 0, 1));
    draft.lease(0, 2, LeaseCell::new(LeaseKind::View, 3, 6, 3));
    draft.lease(4, 1, LeaseCell::new(LeaseKind::Device, 9, 7, 3));
    draft.lease(1, 255, LeaseCell::new(LeaseKind::View, 255, 1, 2));
    draft.edit(SectionKind::Control, 0, 0, |page: &mut ControlPage| {
        page.namespace_chore = ChoreWord::held(owner(0), 4).0;
        page.leader_chore = ChoreWord::held(owner(2), 3).0;
    });
    draft.done()
}

/// Fourteen keys that share a first bucket: seven in their second bucket, counted by the mark; stale entries besides.
fn crowded() -> Golden {
    let mut spec = FormatSpec::new(64 << 10, 64);
    spec.classes = vec![ClassSpec { slot_bytes: 64, slots: Some(48) }];
    spec.sessions = Some(2);
    let mut draft = Draft::new("v1-crowded", 4, &spec);
    draft.namespace(0, "a", 1);
    let (seed, buckets) = (draft.geometry.hash_seed, draft.geometry.bucket_count);
    let mut slot = 0;
    for number in 0.. {
        let block = Block::new("a", number, 1 + number as u32 % 64);
        let place = block.key().place(seed, buckets);
        if place.first == 5 && place.second != 5 {
            draft.slot(slot, ready_word(1), block);
            slot += 1;
        }
        if slot == 14 {
            break;
        }
    }
    // Entries of lives that have ended.
    for (bucket, slot) in [(0, 20), (0, 21), (1, 22)] {
        draft.insert(bucket, IndexEntry::new(slot, 1, 17));
        draft.edit(SectionKind::Records, slot, RECORD_BYTES, |record: &mut SlotRecord| {
            record.identity.word = SlotWord::new(SlotState::Free, Owner::NOBODY, 2).0;
        });
    }
    draft.done()
}

/// Three slot classes, many hosts, a session of another host, larger session areas.
fn classes() -> Golden {
    let mut spec = FormatSpec::new(96 << 10, 64);
    spec.classes = [(64, Some(10)), (1024, Some(5)), (8192, None)]
        .map(|(slot_bytes, slots)| ClassSpec { slot_bytes, slots })
        .to_vec();
    spec.hosts = Hosts::Many;
    spec.sessions = Some(3);
    spec.session_area_bytes = Some(8192);
    spec.config = r#"{"pool":"gr\u00fc\u00df","nested":{"a":[1,2,3]}}"#.to_owned();
    let mut draft = Draft::new("v1-classes", 5, &spec);
    draft.namespace(0, "a", 1);
    draft.session(1, SessionState::Live, 2, "elsewhere");
    draft.slot(0, ready_word(1), Block::new("a", 1, 64));
    draft.slot(10, ready_word(1), Block::new("a", 2, 65));
    draft.slot(15, ready_word(1), Block::new("a", 3, 8192));
    draft.lease(1, 0, LeaseCell::new(LeaseKind::View, 1, 15, 1));
    draft.done()
}
