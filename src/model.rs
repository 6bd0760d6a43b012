//! What models act with: a region on the heap, sessions on it, and death as a switch.
//!
//! Every call here is the protocol of the same name in the library, on tables of a model checker's atomics. Only what
//! the kernel does for a real region is made up: the life locks ([`Region::attach`] takes one, [`Session::die`] lets go
//! of it), and a clock that stands still until a model moves it. The places where a process may stop for ever are
//! [`Session::stop_at`].
//!
//! One [`Session`] belongs to one thread of a model: its book of leases is behind a lock of the standard library, which
//! the model checker does not see.

use std::sync::Arc;

use bytemuck::Zeroable;
use maru_layout::object::{ObjectKey, PayloadCrc, Place};
use maru_layout::record::BodyLine;
use maru_layout::table::SessionEntry;
use maru_layout::word::{ChoreWord, IndexEntry, LeaseKind, RowState, SessionState, SessionWord, SlotState, SlotWord};

pub use crate::region::Size;

use crate::budget::Purse;
use crate::engine::{Engine, Me, World};
use crate::evict::Victim;
use crate::lease::Held;
use crate::regime::OneHost;
use crate::region::Tables;
use crate::slot::identity_words;
use crate::store::{self, Terms};
use crate::sync::{AtomicBool, Ordering, process};
use crate::{CallError, Commit, Lead, LoadError, NamespaceError, NamespaceId, ReclaimReport, Release, Retire, Why};

/// Payload bytes of a model's objects: two words.
pub const LENGTH: u32 = 16;
/// The host that every model runs on.
const HOST: u32 = 1;

/// The key whose prefix starts with `number`.
#[must_use]
pub fn key(number: u64) -> ObjectKey {
    let mut prefix = [0; 32];
    prefix[..8].copy_from_slice(&number.to_le_bytes());
    ObjectKey { namespace: [0; 16], prefix, shard: 0, part: 0 }
}

/// The first `count` keys that the index looks for in the places that `wanted` accepts.
#[must_use]
pub fn keys(buckets: u32, count: usize, wanted: impl Fn(Place) -> bool) -> Vec<ObjectKey> {
    (0..).map(key).filter(|key| wanted(key.place(0, buckets))).take(count).collect()
}

/// A region and the life locks of its sessions.
#[derive(Clone)]
pub struct Region {
    tables: Tables,
    locks: Arc<Vec<AtomicBool>>,
}

/// Where a session stops for ever, holding the word of a slot or a chore.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// The slot is claimed, nothing is filled in.
    Claiming,
    /// The claim has its identity and its index entry.
    Pending,
    /// Half of the payload is written.
    Writing,
    /// A ready slot is shut.
    Retiring,
}

impl Region {
    /// A blank region.
    #[must_use]
    pub fn new(size: Size) -> Self {
        let locks = (0..size.sessions).map(|_| AtomicBool::new(false)).collect();
        Self { tables: Tables::new(size), locks: Arc::new(locks) }
    }

    /// Session `index`, attached. `None`: its lock is held, or its entry was taken.
    #[must_use]
    pub fn attach(&self, index: u32) -> Option<Session> {
        // ORDERING: AcqRel, for the kernel's lock: its taker sees what the last holder did before it let go.
        self.locks[index as usize].compare_exchange(false, true, Ordering::AcqRel, Ordering::Relaxed).ok()?;
        let attaching = self.engine(Me::new(index, SessionWord(0), 0), &Arc::default());
        match attaching.attach_entry(HOST, self.tables.session(index).word(), true, &SessionEntry::zeroed()) {
            Some(live) => Some(self.session(index, live)),
            None => {
                self.locks[index as usize].store(false, Ordering::Release);
                None
            }
        }
    }

    /// Session `index` as if it had attached long ago. Before the threads of a model start.
    ///
    /// # Panics
    /// When it is attached already.
    #[must_use]
    pub fn settled(&self, index: u32) -> Session {
        let live = SessionWord::new(SessionState::Live, HOST, 1);
        assert!(self.tables.session(index).swap(SessionWord(0), live), "attached once");
        self.locks[index as usize].store(true, Ordering::Release);
        self.session(index, live)
    }

    fn session(&self, index: u32, live: SessionWord) -> Session {
        let now_ms = Arc::default();
        let engine = self.engine(Me::new(index, live, u64::from(index)), &now_ms);
        Session { engine, region: self.clone(), now_ms }
    }

    fn engine(&self, me: Me, now_ms: &Arc<process::AtomicU64>) -> Engine<OneHost> {
        let world = ModelWorld { locks: Arc::clone(&self.locks), now_ms: Arc::clone(now_ms) };
        Engine::new(self.tables.clone(), me, Box::new(world))
    }

    /// Namespace rows that are registered.
    #[must_use]
    pub fn registered(&self) -> usize {
        let rows = 0..self.tables.geometry().namespace_count;
        rows.filter(|row| self.tables.row(*row).state() == Some(RowState::Ready)).count()
    }

    /// Gives namespace row 0 a budget of so many slots, from the first token on. Before the threads of a model start.
    pub fn give_budget(&self, slots: u64) {
        self.tables.row(0).facts[1].store(slots + 1, Ordering::Relaxed);
    }

    /// Entries of the session table.
    #[must_use]
    pub fn sessions(&self) -> u32 {
        self.tables.geometry().session_count
    }

    /// All slot words.
    #[must_use]
    pub fn words(&self) -> Vec<SlotWord> {
        (0..self.tables.geometry().slot_count).map(|slot| self.tables.slot(slot).word()).collect()
    }

    /// Word and identity of a slot, read as one: the word, and the number that its [`key`] was made of.
    #[must_use]
    pub fn identity(&self, slot: u32) -> Option<(SlotWord, u64)> {
        self.tables.slot(slot).read_identity().map(|(word, identity)| (word, identity[0]))
    }

    /// The word of a session.
    #[must_use]
    pub fn session_word(&self, index: u32) -> SessionWord {
        self.tables.session(index).word()
    }

    /// Who holds the namespace chore.
    #[must_use]
    pub fn namespace_chore(&self) -> ChoreWord {
        ChoreWord(self.tables.control().namespace_chore.load(Ordering::Acquire))
    }

    /// All index entries, by bucket.
    #[must_use]
    pub fn entries(&self) -> Vec<(u32, IndexEntry)> {
        let buckets = 0..self.tables.geometry().bucket_count;
        let of = |bucket| self.tables.bucket(bucket).entries.iter().map(move |cell| (bucket, cell));
        buckets.flat_map(of).map(|(bucket, cell)| (bucket, IndexEntry(cell.load(Ordering::Acquire)))).collect()
    }

    /// The mark of a bucket.
    #[must_use]
    pub fn mark(&self, bucket: u32) -> u64 {
        self.tables.bucket(bucket).mark.load(Ordering::Acquire)
    }

    /// The leader word.
    #[must_use]
    pub fn leader(&self) -> ChoreWord {
        ChoreWord(self.tables.control().leader_chore.load(Ordering::Acquire))
    }

    /// The payload words of a slot as they are.
    #[must_use]
    pub fn bytes(&self, slot: u32) -> [u64; 2] {
        bytes_of(&self.tables, slot)
    }

    /// The life lock of a session that [`Session::vanish`]ed is let go of at last.
    pub fn let_go(&self, index: u32) {
        // ORDERING: Release, for the kernel's lock, as in `attach`.
        self.locks[index as usize].store(false, Ordering::Release);
    }

    /// Whether bitmap and words agree on which slots are free.
    #[must_use]
    pub fn bitmap_is_right(&self) -> bool {
        let bitmap = self.tables.bitmap(0).load(Ordering::Acquire);
        self.words().iter().enumerate().all(|(slot, word)| word.is(SlotState::Free) == (bitmap >> slot & 1 == 0))
    }
}

/// Life locks and a clock.
struct ModelWorld {
    locks: Arc<Vec<AtomicBool>>,
    now_ms: Arc<process::AtomicU64>,
}

impl World for ModelWorld {
    fn proven_dead(&self, session: u32) -> bool {
        // ORDERING: Acquire, for the kernel's lock, as in `Region::attach`.
        !self.locks[session as usize].load(Ordering::Acquire)
    }

    fn now_ms(&self) -> u64 {
        self.now_ms.load(process::Ordering::Relaxed)
    }
}

/// One participant.
pub struct Session {
    engine: Engine<OneHost>,
    region: Region,
    now_ms: Arc<process::AtomicU64>,
}

/// A slot to write.
#[derive(Debug, Clone, Copy)]
pub struct Claim(store::Claim);

impl Claim {
    /// The slot.
    #[must_use]
    pub fn slot(&self) -> u32 {
        self.0.slot
    }

    /// The word it was granted with.
    #[must_use]
    pub fn word(&self) -> SlotWord {
        self.0.word
    }
}

/// A protected replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lease(Held);

impl Lease {
    /// The slot.
    #[must_use]
    pub fn slot(&self) -> u32 {
        self.0.slot
    }

    /// The word that was protected.
    #[must_use]
    pub fn word(&self) -> SlotWord {
        self.0.word
    }
}

/// What became of a wish to store.
#[derive(Debug, Clone, Copy)]
pub enum Reserve {
    /// A slot to write.
    Granted(Claim),
    /// The object is ready already.
    Present,
    /// Somebody is writing it.
    BeingWritten,
    /// No, and why.
    Refused(Why),
    /// Lost too many rounds.
    Contended,
}

/// What became of one claim.
#[derive(Debug, Clone, Copy)]
pub enum Settle {
    /// It writes.
    Won(Claim),
    /// It gave its slot back: a twin had won, or would not move.
    Lost,
    /// A twin, or somebody who thought it dead, took the slot away.
    Killed,
}

impl Session {
    /// The index of its entry.
    #[must_use]
    pub fn index(&self) -> u32 {
        self.engine.me.index
    }

    /// Its word while it may act.
    #[must_use]
    pub fn live(&self) -> SessionWord {
        self.engine.me.live
    }

    /// Whether it has not been shut out.
    ///
    /// # Errors
    /// It has.
    pub fn check(&self) -> Result<(), CallError> {
        self.engine.check_session()
    }

    /// Moves this session's clock.
    pub fn wait_ms(&self, ms: u64) {
        self.now_ms.fetch_add(ms, process::Ordering::Relaxed);
    }

    /// As this session's own options say.
    fn terms(&self, purse: Option<Purse>) -> Terms {
        Terms { device: false, purse, evict: self.engine.eviction.on }
    }

    /// Reserves a slot within the budget of namespace row 0.
    #[must_use]
    pub fn reserve_within(&self, key: &ObjectKey) -> Reserve {
        let purse = self.engine.purse(0);
        reserved(self.engine.reserve_slot(key, LENGTH.into(), self.terms(purse)))
    }

    /// Reserves a slot.
    #[must_use]
    pub fn reserve(&self, key: &ObjectKey) -> Reserve {
        reserved(self.engine.reserve_slot(key, LENGTH.into(), self.terms(None)))
    }

    /// Goes on from [`Stop::Claiming`] until it is decided who of the twins writes; one round, no second try.
    #[must_use]
    pub fn settle(&self, claim: &Claim) -> Settle {
        let Claim(store::Claim { slot, word, key, place, identity, .. }) = *claim;
        match self.engine.fill_claim(slot, word, &key, place, identity) {
            Ok(pending) => match self.engine.settle(pending) {
                store::Settled::Won(claim) => Settle::Won(Claim(claim)),
                store::Settled::Lost(_) => Settle::Lost,
                store::Settled::Killed => Settle::Killed,
            },
            Err(_) => Settle::Killed,
        }
    }

    /// Writes both payload words.
    ///
    /// # Panics
    /// Never: a model's payload is there.
    pub fn write(&self, claim: &Claim, value: u64) {
        let payload = self.engine.tables.payload(claim.0.slot).expect("payload");
        payload.write(0, &[value.to_le_bytes(), value.to_le_bytes()].concat());
    }

    /// Publishes what [`Session::write`] wrote.
    #[must_use]
    pub fn publish(&self, claim: &Claim, value: u64) -> Commit {
        let mut crc = PayloadCrc::new(&claim.0.key, claim.0.word.generation(), LENGTH);
        crc.update(&[value.to_le_bytes(), value.to_le_bytes()].concat());
        self.engine.publish(&claim.0, BodyLine::zeroed(), crc.finish(), false)
    }

    /// Gives the slot back.
    #[must_use]
    pub fn abort(&self, claim: &Claim) -> bool {
        self.engine.give_back(&claim.0)
    }

    /// Reserves, writes, publishes; whether the object is there now by this call.
    pub fn store(&self, key: &ObjectKey, value: u64) -> bool {
        let Reserve::Granted(claim) = self.reserve(key) else { return false };
        self.write(&claim, value);
        self.publish(&claim, value) == Commit::Stored
    }

    /// Whether the object is ready.
    ///
    /// # Errors
    /// Why not.
    pub fn probe(&self, key: &ObjectKey) -> Result<(), Why> {
        self.engine.find_one(key).map(|_| ())
    }

    /// Finds and protects.
    ///
    /// # Errors
    /// Why not.
    pub fn acquire(&self, key: &ObjectKey, kind: LeaseKind) -> Result<Lease, Why> {
        let found = self.engine.find_one(key)?;
        self.engine.protect(&[Some(found)], kind).remove(0).map(Lease)
    }

    /// The payload words as they are, without any check: for leases that never lapse.
    ///
    /// # Panics
    /// Never: a model's payload is there.
    #[must_use]
    pub fn look(&self, lease: &Lease) -> [u64; 2] {
        bytes_of(&self.engine.tables, lease.0.slot)
    }

    /// Copies out; the checksum is left aside, so that wrong bytes reach the model.
    ///
    /// # Errors
    /// As the library's.
    pub fn load(&self, key: &ObjectKey, lease: &Lease) -> Result<[u64; 2], LoadError> {
        let mut bytes = [0; LENGTH as usize];
        self.engine.copy_out(&lease.0, key, &mut bytes, false)?;
        Ok(words_of(&bytes))
    }

    /// Turns a copy lease into a view.
    #[must_use]
    pub fn view(&self, lease: &Lease) -> bool {
        self.engine.strengthen(&lease.0, LeaseKind::View)
    }

    /// Releases.
    pub fn release(&self, lease: &Lease) -> Release {
        self.engine.release_held(lease.0.slot, lease.0.word.generation(), lease.0.cell, lease.0.sequence)
    }

    /// Retires on request.
    pub fn retire(&self, key: &ObjectKey) -> Retire {
        self.engine.retire_object(key)
    }

    /// Evicts whatever is ready in `slot`; false when it is read, gone or not ready.
    #[must_use]
    pub fn evict(&self, slot: u32, key: &ObjectKey) -> bool {
        let place = self.place(key);
        let word = self.engine.tables.slot(slot).word();
        self.engine.evict(IndexEntry::new(slot, word.generation(), place.tag), || true)
    }

    /// Evicts, as one batch, whatever is ready and unread in `slots`; how many.
    #[must_use]
    pub fn evict_batch(&self, slots: &[u32]) -> u32 {
        let mut victims: Vec<Victim> = slots
            .iter()
            .map(|slot| Victim::of(*slot, self.engine.tables.slot(*slot).word()))
            .filter(|victim| victim.word.is(SlotState::Ready))
            .collect();
        self.engine.evict_batch(&mut victims)
    }

    fn place(&self, key: &ObjectKey) -> Place {
        let geometry = self.engine.tables.geometry();
        key.place(geometry.hash_seed, geometry.bucket_count)
    }

    /// Recovers the dead and frees what drains.
    pub fn reclaim(&self) -> ReclaimReport {
        self.engine.reclaim_all()
    }

    /// Recovers the dead.
    pub fn recover(&self) -> (u32, u32) {
        self.engine.recover_all_dead()
    }

    /// Shuts another session out.
    pub fn fence(&self, index: u32, epoch: u32) -> bool {
        self.engine.fence_session(index, epoch)
    }

    /// Recovers another session of that epoch, whose process is vouched dead. As `vouch.rs` does, which reads facts of
    /// sessions that a model does not have.
    pub fn vouch(&self, index: u32, epoch: u32) -> Option<u32> {
        let word = self.engine.tables.session(index).word();
        let there = word.epoch() == epoch && !matches!(word.state(), None | Some(SessionState::Free));
        there.then(|| self.engine.recover_session(index, word)).flatten()
    }

    /// Leads if nobody else does.
    ///
    /// # Errors
    /// This session has been shut out.
    pub fn lead(&self) -> Result<Lead, CallError> {
        self.engine.lead()
    }

    /// Registers a namespace's text of at most eight bytes.
    ///
    /// # Errors
    /// As the library's.
    pub fn register(&self, text: &str) -> Result<NamespaceId, NamespaceError> {
        self.engine.register(text, None)
    }

    /// Ends a namespace's generation.
    ///
    /// # Errors
    /// As the library's.
    pub fn invalidate(&self, id: &NamespaceId) -> Result<bool, CallError> {
        self.engine.invalidate_namespace(id)
    }

    /// Whether a namespace id is current.
    ///
    /// # Errors
    /// As the library's.
    pub fn is_current(&self, id: &NamespaceId) -> Result<bool, CallError> {
        self.engine.check_namespace(id)
    }

    /// Ends the life of a slot that is `Pending`, as a twin does that kills it. False when it is not.
    #[must_use]
    pub fn kill(&self, slot: u32) -> bool {
        let word = self.engine.tables.slot(slot).word();
        word.is(SlotState::Pending) && self.engine.free_shut(slot, word)
    }

    /// Takes the namespace chore and begins to add a row, and goes no further.
    ///
    /// # Panics
    /// When it is held.
    pub fn hold_chore(&self) {
        let mine = ChoreWord::held(self.engine.me.owner, self.engine.me.live.epoch());
        let chore = &self.engine.tables.control().namespace_chore;
        let taken = chore.compare_exchange(ChoreWord::FREE.0, mine.0, Ordering::AcqRel, Ordering::Relaxed);
        assert!(taken.is_ok(), "the chore is free");
        self.engine.tables.row(0).state.store(RowState::Adding as u64, Ordering::Relaxed);
    }

    /// Goes as far with `slot` as `stop` says, by the stores of the protocol, and no further. The slot is free before,
    /// or ready for [`Stop::Retiring`].
    ///
    /// # Panics
    /// When it is not.
    pub fn stop_at(&self, stop: Stop, slot: u32, key: &ObjectKey) -> Claim {
        let tables = &self.engine.tables;
        let record = tables.slot(slot);
        let place = self.place(key);
        let identity = identity_words(key, LENGTH);
        let mut word = record.word();
        let mut go = |to: SlotWord| {
            record.swap(word, to).expect("the slot is this session's");
            word = to;
            Claim(store::Claim { slot, word, key: *key, place, identity, token: 0 })
        };
        if stop == Stop::Retiring {
            let ready = record.word();
            return go(ready.to(SlotState::Retiring, self.engine.me.owner));
        }
        let claiming = record.word().claimed_by(self.engine.me.owner, false).expect("the slot is free");
        let claim = go(claiming);
        tables.bitmap(slot / 64).fetch_or(1 << (slot % 64), Ordering::Relaxed);
        if stop == Stop::Claiming {
            return claim;
        }
        record.fill_identity(&identity, claiming.generation());
        let claim = go(claiming.to(SlotState::Pending, self.engine.me.owner));
        self.engine
            .insert_entry(&place, IndexEntry::new(slot, claiming.generation(), place.tag))
            .expect("the bucket has room");
        if stop == Stop::Pending {
            return claim;
        }
        let claim = go(claiming.to(SlotState::Writing, self.engine.me.owner));
        tables.payload(slot).expect("payload").write(0, &u64::MAX.to_le_bytes());
        claim
    }

    /// The process is gone, and nothing here proves it: the life lock stays held.
    pub fn vanish(self) {}

    /// The process is gone: its life lock is free. Whatever it held stays as it is.
    pub fn die(self) {
        // ORDERING: Release, for the kernel's lock, as in `Region::attach`.
        self.region.locks[self.engine.me.index as usize].store(false, Ordering::Release);
    }

    /// Gives everything back and leaves.
    pub fn close(self) {
        self.engine.detach();
        self.die();
    }
}

fn bytes_of(tables: &Tables, slot: u32) -> [u64; 2] {
    let mut bytes = [0; LENGTH as usize];
    tables.payload(slot).expect("payload").read(0, &mut bytes);
    words_of(&bytes)
}

fn words_of(bytes: &[u8; LENGTH as usize]) -> [u64; 2] {
    bytemuck::cast(*bytes)
}

/// A reservation's answer, in a model's words.
fn reserved(answer: Result<store::Claim, store::NotGranted>) -> Reserve {
    match answer {
        Ok(claim) => Reserve::Granted(Claim(claim)),
        Err(store::NotGranted::Present) => Reserve::Present,
        Err(store::NotGranted::BeingWritten) => Reserve::BeingWritten,
        Err(store::NotGranted::Refused(why)) => Reserve::Refused(why),
        Err(store::NotGranted::Contended) => Reserve::Contended,
    }
}
