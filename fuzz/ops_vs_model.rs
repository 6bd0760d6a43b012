//! Operations against a model.
//!
//! An input is a small region and a list of operations of three sessions on it. The model is a plain array of slots;
//! every answer must be the one it gives, the content of every load must be exact, and after each operation the word
//! of every slot in the file must be in the state that the model says. What the model leaves open is only which free
//! slot a store takes and, where the index is full, which unread block makes room for it.
//!
//! A crash is an operation too: the bytes of the region are copied to a new file, as they are, and all sessions of the
//! copy are dead. So is a writer that never comes back.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::os::unix::fs::FileExt;

use arbitrary::{Arbitrary, Unstructured};
use maru::{
    AttachError, Batch, CallError, ClassSpec, Commit, Evict, Format, Lease, LeaseHandle, LoadError, NamespaceError,
    NamespaceId, ObjectId, OpenOptions, Probe, ReadError, Region, Release, Reservation, Reserve, ReserveOptions,
    Retire, Role, Session, SessionOptions, Token, Verify, Why, Wish, WriteError, Writer,
};
use maru_layout::RECORD_BYTES;
use maru_layout::object::ObjectKey;
use maru_layout::superblock::SectionKind;
use maru_layout::table::Counter;
use maru_layout::word::{SlotState, SlotWord};

use crate::{content, golden, memory_file, namespace, options_for};

const SEATS: usize = 3;
const NAMESPACES: usize = 2;
const KEYS: u8 = 20;
/// Most operations are about one of these.
const FEW_KEYS: u8 = 6;
/// Or of these, where a bucket has to be filled.
const MANY_KEYS: u8 = 12;
const MOST_OPERATIONS: usize = 96;
const MOST_LEASES: usize = 24;

/// Operations, each with its share of the inputs; numbers in them are reduced to what there is.
macro_rules! operations {
    ($($name:ident $({ $($field:ident: $kind:ty),* })? = $share:literal;)*) => {
        #[derive(Debug, Clone, Copy)]
        enum Op { $($name $({ $($field: $kind),* })?,)* }

        impl Op {
            /// One byte says which, the fields follow.
            fn read(source: &mut Unstructured<'_>) -> arbitrary::Result<Self> {
                const SHARES: u16 = 0 $(+ $share)*;
                let mut left = u16::from(source.arbitrary::<u8>()?) % SHARES;
                $(
                    if left < $share {
                        return Ok(Self::$name $({ $($field: <$kind>::arbitrary(source)?),* })?);
                    }
                    left -= $share;
                )*
                unreachable!("{left} is below no share")
            }
        }
    };
}

operations! {
    Store { seat: u8, object: Object, len: u16 } = 14;
    Acquire { seat: u8, objects: [Object; 3], how: u8 } = 12;
    Read { lease: u8, wrong: u8 } = 10;
    Reserve { seat: u8, object: Object, len: u16, device: bool } = 6;
    Write { reservation: u8, offset: u16, len: u16 } = 4;
    Commit { reservation: u8 } = 4;
    Retire { seat: u8, object: Object } = 6;
    Probe { seat: u8, object: Object } = 3;
    ProbePrefix { seat: u8, objects: [Object; 3] } = 2;
    View { lease: u8 } = 3;
    DropLease { lease: u8 } = 3;
    Release { seat: u8, lease: u8 } = 3;
    ReleaseAgain { seat: u8, handle: u8 } = 2;
    Reclaim { seat: u8 } = 3;
    Look { object: Object } = 3;
    Expose { reservation: u8 } = 2;
    Abort { reservation: u8 } = 1;
    DropReservation { reservation: u8 } = 2;
    Forget { reservation: u8, sure: u8 } = 1;
    Resolve { seat: u8, token: u8 } = 2;
    Attach { seat: u8 } = 4;
    Close { seat: u8 } = 3;
    Namespace { seat: u8, which: u8 } = 3;
    Invalidate { seat: u8, name: Name } = 1;
    Fence { seat: u8, other: u8, sure: u8 } = 1;
    Crash { sure: u8 } = 1;
}

#[derive(Debug, Clone, Copy, Arbitrary)]
struct Name {
    which: u8,
    age: u8,
}

#[derive(Debug, Clone, Copy, Arbitrary)]
struct Object {
    name: Name,
    key: u8,
}

/// The sizes of the region.
#[derive(Debug, Clone, Copy, Arbitrary)]
struct Shape {
    slots: u8,
    size: u8,
    second_class: bool,
    /// Nobody has attached yet, and no namespace is registered.
    bare: bool,
    /// All objects fall into one bucket of the index.
    crowded: bool,
}

/// What a slot holds.
#[derive(Debug, Clone)]
enum Slot {
    Free,
    Writing { life: Life, owner: usize, device: bool },
    Ready(Life),
    Retiring(Life),
    Quarantined { generation: u64, owner: Option<usize>, device: bool },
}

/// One life of a slot.
#[derive(Debug, Clone)]
struct Life {
    object: ObjectId,
    generation: u64,
    bytes: Vec<u8>,
}

struct Seat {
    /// From `Box::into_raw`; given back by `leave`.
    session: *mut Session,
    fenced: bool,
    /// Reservations that were forgotten and so stay open.
    forgotten: u32,
}

struct Write {
    seat: usize,
    slot: usize,
    reservation: Reservation<'static>,
    object: ObjectId,
    bytes: Vec<u8>,
    covered: Vec<bool>,
    exposed: bool,
    device: bool,
    ended: Option<Commit>,
}

struct Held {
    seat: usize,
    lease: Option<Lease<'static>>,
    handle: LeaseHandle,
    slot: usize,
    generation: u64,
    object: ObjectId,
    bytes: Vec<u8>,
    released: bool,
}

struct World {
    file: File,
    region: Region,
    seats: [Option<Seat>; SEATS],
    /// Ids got so far, by namespace; the last is the newest.
    names: [Vec<NamespaceId>; NAMESPACES],
    /// Rows in use: which namespace has which, in order of registration, and its present generation.
    rows: Vec<(usize, u64)>,
    slots: Vec<Slot>,
    writes: Vec<Write>,
    held: Vec<Held>,
    handles: Vec<LeaseHandle>,
    tokens: Vec<Token>,
    stored: u64,
    crowded: bool,
    /// Numbers of the objects of a crowded region, by namespace.
    crowds: RefCell<HashMap<NamespaceId, Vec<u64>>>,
}

thread_local! {
    static REACHED: RefCell<BTreeSet<&'static str>> = const { RefCell::new(BTreeSet::new()) };
}

/// Remembers that an answer was seen.
fn reached(mark: &'static str) {
    REACHED.with_borrow_mut(|reached| reached.insert(mark));
}

/// The answers that this thread's inputs have led to: what proves that a test has looked.
#[must_use]
pub fn answers_reached() -> BTreeSet<&'static str> {
    REACHED.with_borrow(Clone::clone)
}

/// Runs one input.
///
/// # Panics
/// When an answer is none that the model allows.
pub fn run(input: &[u8]) {
    let mut source = Unstructured::new(input);
    let Ok(shape) = Shape::arbitrary(&mut source) else { return };
    let mut world = World::new(shape);
    if !shape.bare {
        for op in [0, 1, 2].map(|seat| Op::Attach { seat }) {
            world.step(op);
        }
        for op in [0, 1].map(|which| Op::Namespace { seat: 0, which }) {
            world.step(op);
        }
    }
    for _ in 0..MOST_OPERATIONS {
        if source.is_empty() {
            break;
        }
        let Ok(op) = Op::read(&mut source) else { break };
        if std::env::var_os("MARU_SHOW").is_some() {
            eprintln!("{op:?}");
        }
        world.step(op);
        world.check_slots();
    }
    world.finish();
}

fn options(shape: Shape) -> (Wish, u64) {
    let slots = 4 + u32::from(shape.slots % 13);
    let slot_bytes = [64, 128, 1024, 2048][usize::from(shape.size % 4)];
    let mut classes = vec![ClassSpec { slot_bytes, slots: Some(slots) }];
    if shape.second_class {
        classes = vec![
            ClassSpec { slot_bytes, slots: Some(slots / 2) },
            ClassSpec { slot_bytes: 2 * slot_bytes, slots: Some(slots - slots / 2) },
        ];
    }
    let length = 128 << 10;
    let wish = Wish {
        size_bytes: Some(length),
        classes,
        sessions: Some(SEATS as u32),
        namespaces: Some(NAMESPACES as u32),
        // Nothing may depend on how fast the test runs.
        copy_lease_ms: 3_600_000,
        stalled_writer_ms: 3_600_000,
        attach_wait_ms: 0,
        ..Wish::default()
    };
    (wish, length)
}

impl World {
    fn new(shape: Shape) -> Self {
        let (wish, length) = options(shape);
        let file = memory_file(&[]);
        file.set_len(length).expect("room for a small file");
        let options: OpenOptions = options_for(&file).format(Format::IfAbsent).wish(wish);
        let region = Region::open(options).expect("a small region");
        let slots = vec![Slot::Free; region.geometry().slot_count as usize];
        Self {
            file,
            region,
            seats: [const { None }; SEATS],
            names: [const { Vec::new() }; NAMESPACES],
            rows: Vec::new(),
            slots,
            writes: Vec::new(),
            held: Vec::new(),
            handles: Vec::new(),
            tokens: Vec::new(),
            stored: 0,
            crowded: shape.crowded,
            crowds: RefCell::default(),
        }
    }

    fn seat(&self, seat: u8) -> Option<(usize, &'static Session, bool)> {
        let index = usize::from(seat) % SEATS;
        let seat = self.seats[index].as_ref()?;
        // SAFETY: the session is boxed and lives until `leave`, which is called only when no lease and no reservation
        // that borrows it is left.
        Some((index, unsafe { &*seat.session }, seat.fenced))
    }

    /// The id that `name` means, and whether it is current.
    fn id(&self, name: Name) -> Option<NamespaceId> {
        let ids = &self.names[usize::from(name.which) % NAMESPACES];
        let back = usize::from(name.age > 200).min(ids.len().saturating_sub(1));
        ids.len().checked_sub(1 + back).map(|at| ids[at])
    }

    fn object(&self, object: Object) -> Option<ObjectId> {
        let id = self.id(object.name)?;
        let few = if self.crowded { MANY_KEYS } else { FEW_KEYS };
        let number = object.key % if object.key < 192 { few } else { KEYS };
        if !self.crowded {
            return Some(ObjectId::new(id, golden::prefix(number.into())));
        }
        let mut crowds = self.crowds.borrow_mut();
        let crowd = crowds.entry(id).or_insert_with(|| {
            let geometry = self.region.geometry();
            let only_there = |number: &u64| {
                let key = ObjectKey { namespace: id.digest(), prefix: golden::prefix(*number), shard: 0, part: 0 };
                let place = key.place(geometry.hash_seed, geometry.bucket_count);
                (place.first, place.second) == (0, 0)
            };
            (0..).filter(only_there).take(KEYS.into()).collect()
        });
        Some(ObjectId::new(id, golden::prefix(crowd[usize::from(number)])))
    }

    fn current(&self, id: &NamespaceId) -> bool {
        self.rows[id.row() as usize].1 == id.generation()
    }

    fn find(&self, object: &ObjectId, wanted: impl Fn(&Slot) -> Option<&Life>) -> Option<usize> {
        self.slots.iter().position(|slot| wanted(slot).is_some_and(|life| life.object == *object))
    }

    fn ready(&self, object: &ObjectId) -> Option<(usize, &Life)> {
        let slot = self.find(object, |slot| if let Slot::Ready(life) = slot { Some(life) } else { None })?;
        let Slot::Ready(life) = &self.slots[slot] else { unreachable!("just found") };
        Some((slot, life))
    }

    fn written(&self, object: &ObjectId) -> bool {
        self.find(object, |slot| if let Slot::Writing { life, .. } = slot { Some(life) } else { None }).is_some()
    }

    fn leased(&self, slot: usize, generation: u64) -> bool {
        self.held.iter().any(|held| !held.released && (held.slot, held.generation) == (slot, generation))
    }

    fn drained(&self, slot: usize) -> bool {
        matches!(&self.slots[slot], Slot::Retiring(life) if !self.leased(slot, life.generation))
    }

    /// A ready block of a namespace generation that has ended: nobody finds it, and whoever looks for space retires it.
    fn ended(&self, slot: usize) -> bool {
        matches!(&self.slots[slot], Slot::Ready(life) if !self.current(&life.object.namespace))
    }

    /// Retires a block of an ended generation.
    fn retire_ended(&mut self, slot: usize) {
        if let Slot::Ready(life) = self.slots[slot].clone() {
            reached("ended and retired");
            self.slots[slot] = if self.leased(slot, life.generation) { Slot::Retiring(life) } else { Slot::Free };
        }
    }

    fn leases_of(&self, seat: usize) -> usize {
        self.held.iter().filter(|held| held.seat == seat && !held.released).count()
    }

    fn open_writes_of(&self, seat: usize) -> u32 {
        let open = self.writes.iter().filter(|write| write.seat == seat && write.ended.is_none()).count() as u32;
        open + self.seats[seat].as_ref().map_or(0, |seat| seat.forgotten)
    }

    // ------------------------------------------------------------ the file against the model

    fn words(&self) -> Vec<SlotWord> {
        let mut bytes = vec![0; self.slots.len() * RECORD_BYTES as usize];
        let offset = self.region.geometry().offset(SectionKind::Records);
        self.file.read_exact_at(&mut bytes, offset).expect("the file is as long as it was");
        bytes
            .chunks(RECORD_BYTES as usize)
            .map(|record| SlotWord(u64::from_le_bytes(record[..8].try_into().expect("eight bytes"))))
            .collect()
    }

    fn check_slots(&self) {
        let words = self.words();
        let mut counts = [0; 7];
        for (index, (slot, word)) in self.slots.iter().zip(&words).enumerate() {
            let (state, generation) = match slot {
                Slot::Free => (SlotState::Free, None),
                Slot::Writing { life, .. } => (SlotState::Writing, Some(life.generation)),
                Slot::Ready(life) => (SlotState::Ready, Some(life.generation)),
                Slot::Retiring(life) => (SlotState::Retiring, Some(life.generation)),
                Slot::Quarantined { generation, .. } => (SlotState::Quarantined, Some(*generation)),
            };
            assert!(
                word.is(state) && generation.is_none_or(|generation| generation == word.generation()),
                "slot {index} is {word:?}, the model says {slot:?}"
            );
            counts[state as usize] += 1;
        }
        let usage = self.region.usage();
        assert_eq!((usage.slots, usage.damaged_slots), (counts, 0));
        let parts = usage.ready_allocated_bytes + usage.retiring_bytes + usage.writing_bytes + usage.quarantined_bytes;
        assert_eq!(parts, usage.allocated_bytes);
        let free: u64 = (0u32..)
            .zip(&self.slots)
            .filter(|(_, slot)| matches!(slot, Slot::Free))
            .map(|(slot, _)| self.region.geometry().payload_of(slot).expect("a slot").1)
            .sum();
        assert_eq!(free + usage.allocated_bytes, usage.capacity_bytes, "free and allocated make the capacity");
        let ready: usize =
            self.slots.iter().map(|slot| if let Slot::Ready(life) = slot { life.bytes.len() } else { 0 }).sum();
        assert_eq!(usage.ready_bytes, ready as u64);
        for (seat, entry) in self.seats.iter().enumerate() {
            if let Some(entry) = entry {
                // SAFETY: as in `seat`.
                let session = unsafe { &*entry.session };
                assert_eq!(session.leases() as usize, self.leases_of(seat));
            }
        }
    }

    // ------------------------------------------------------------ operations

    fn step(&mut self, op: Op) {
        match op {
            Op::Attach { seat } => self.attach(usize::from(seat) % SEATS),
            Op::Close { seat } => self.close(usize::from(seat) % SEATS, seat & 0x40 != 0),
            Op::Namespace { seat, which } => self.register(seat, usize::from(which) % (NAMESPACES + 1)),
            Op::Invalidate { seat, name } => self.invalidate(seat, name),
            Op::Reserve { seat, object, len, device } => drop(self.reserve(seat, object, len.into(), device)),
            Op::Store { seat, object, len } => {
                let most = self.region.geometry().max_payload_bytes();
                if self.reserve(seat, object, 1 + u64::from(len) % most, false) == Some(true) {
                    let last = self.writes.len() - 1;
                    self.write(last, 0, u32::MAX);
                    self.commit(last);
                    self.drop_write(last);
                }
            }
            Op::Write { reservation, offset, len } => {
                if let Some(at) = pick(&self.writes, reservation) {
                    self.write(at, offset.into(), len.into());
                }
            }
            Op::Expose { reservation } => {
                if let Some(at) = pick(&self.writes, reservation) {
                    self.expose(at);
                }
            }
            Op::Commit { reservation } => {
                if let Some(at) = pick(&self.writes, reservation) {
                    self.commit(at);
                }
            }
            Op::Abort { reservation } => {
                if let Some(at) = pick(&self.writes, reservation) {
                    self.abort(at);
                }
            }
            Op::DropReservation { reservation } => {
                if let Some(at) = pick(&self.writes, reservation) {
                    self.drop_write(at);
                }
            }
            Op::Forget { reservation, sure } => {
                if let Some(at) = pick(&self.writes, reservation).filter(|_| sure < 64) {
                    let write = self.writes.swap_remove(at);
                    if write.ended.is_none() {
                        self.seats[write.seat].as_mut().expect("it has a session").forgotten += 1;
                    }
                    core::mem::forget(write.reservation);
                }
            }
            Op::Resolve { seat, token } => self.resolve(seat, token),
            Op::Probe { seat, object } => self.probe(seat, object),
            Op::ProbePrefix { seat, objects } => self.probe_prefix(seat, &objects),
            Op::Acquire { seat, objects, how } => {
                self.acquire(seat, &objects[..1 + usize::from(how) % 3], how & 0x40 != 0, how & 0x80 != 0);
            }
            Op::Read { lease, wrong } => {
                if let Some(at) = pick(&self.held, lease) {
                    self.read(at, wrong > 230);
                }
            }
            Op::View { lease } => {
                if let Some(at) = pick(&self.held, lease) {
                    self.view(at);
                }
            }
            Op::DropLease { lease } => {
                if let Some(at) = pick(&self.held, lease)
                    && self.held[at].lease.is_some()
                {
                    drop(self.held.swap_remove(at));
                }
            }
            Op::Release { seat, lease } => self.release(seat, lease),
            Op::ReleaseAgain { seat, handle } => self.release_again(seat, handle),
            Op::Retire { seat, object } => self.retire(seat, object),
            Op::Reclaim { seat } => self.reclaim(seat),
            Op::Fence { seat, other, sure } if sure < 128 => self.fence(seat, usize::from(other) % SEATS),
            Op::Look { object } => self.look(object),
            Op::Crash { sure } if sure < 128 => self.crash(),
            Op::Fence { .. } | Op::Crash { .. } => {}
        }
    }

    fn attach(&mut self, seat: usize) {
        if self.seats[seat].is_some() {
            if self.seats.iter().all(Option::is_some) {
                let answer = self.region.session("one more", Role::Tool);
                reached("participants full");
                assert!(matches!(answer, Err(AttachError::Full { limit: 3, live: 3, unknown: 0 })), "{answer:?}");
            }
            return;
        }
        // The model knows which blocks are there; what an evictor chooses, it does not.
        let keep = SessionOptions { evict: Evict::Never, ..SessionOptions::default() };
        let session = self.region.session_with("fuzz", Role::Worker, keep).expect("an entry is free");
        self.seats[seat] = Some(Seat { session: Box::into_raw(Box::new(session)), fenced: false, forgotten: 0 });
    }

    fn close(&mut self, seat: usize, insist: bool) {
        // Half of the time everything is let go of first.
        if insist {
            while let Some(at) = self.writes.iter().position(|write| write.seat == seat) {
                self.drop_write(at);
            }
            self.held.retain(|held| held.seat != seat || held.lease.is_none());
        }
        let borrowed = self.writes.iter().any(|write| write.seat == seat)
            || self.held.iter().any(|held| held.seat == seat && held.lease.is_some());
        if self.seats[seat].is_none() || borrowed {
            return;
        }
        let (leases, reservations) = (self.leases_of(seat) as u32, self.open_writes_of(seat));
        let Seat { session, fenced, forgotten } = self.seats[seat].take().expect("just seen");
        // SAFETY: made by `Box::into_raw` in `attach`, taken out of its seat, and nothing borrows it.
        let session = unsafe { Box::from_raw(session) };
        match session.close() {
            Ok(()) => {
                assert_eq!((leases, reservations), (0, 0), "closed with something held");
                for slot in &mut self.slots {
                    match slot {
                        Slot::Quarantined { owner, device, .. } if *owner == Some(seat) => {
                            if *device {
                                *owner = None
                            } else {
                                *slot = Slot::Free
                            }
                        }
                        Slot::Writing { owner, .. } => assert_ne!(*owner, seat, "nothing was held"),
                        _ => {}
                    }
                }
                self.held.retain(|held| held.seat != seat);
            }
            Err((held, session)) => {
                reached("still held");
                assert_eq!((held.leases, held.reservations), (leases, reservations));
                assert!(leases + reservations > 0);
                self.seats[seat] = Some(Seat { session: Box::into_raw(session), fenced, forgotten });
            }
        }
    }

    fn register(&mut self, seat: u8, which: usize) {
        let Some((_, session, fenced)) = self.seat(seat) else { return };
        let answer = session.namespace(&namespace(["a", "b", "c"][which]));
        if fenced {
            assert!(matches!(answer, Err(NamespaceError::Call(CallError::Fenced { .. }))), "{answer:?}");
            return;
        }
        let row = self.rows.iter().position(|(owner, _)| *owner == which);
        match answer {
            Ok(id) => {
                let row = row.unwrap_or_else(|| {
                    self.rows.push((which, 1));
                    self.rows.len() - 1
                });
                assert_eq!((id.row() as usize, id.generation()), (row, self.rows[row].1));
                // The third text has a row only if one of the others has none; it holds no blocks.
                if which < NAMESPACES && self.names[which].last() != Some(&id) {
                    self.names[which].push(id);
                }
            }
            Err(error) => {
                reached("namespaces full");
                assert_eq!(error, NamespaceError::Full { rows: NAMESPACES as u32 });
                assert!(row.is_none() && self.rows.len() == NAMESPACES);
            }
        }
    }

    fn invalidate(&mut self, seat: u8, name: Name) {
        let (Some((_, session, fenced)), Some(id)) = (self.seat(seat), self.id(name)) else { return };
        let answer = session.invalidate(id);
        if fenced {
            return assert_fenced(&answer);
        }
        assert_eq!(answer, Ok(self.current(&id)));
        if answer == Ok(true) {
            self.rows[id.row() as usize].1 += 1;
        }
    }

    /// `Some(true)` when granted.
    fn reserve(&mut self, seat: u8, object: Object, len: u64, device: bool) -> Option<bool> {
        let (seat, session, fenced) = self.seat(seat)?;
        let object = self.object(object)?;
        if self.writes.len() >= MOST_LEASES {
            return None;
        }
        let geometry = self.region.geometry();
        let max_bytes = geometry.max_payload_bytes();
        let writer = if device { Writer::Device } else { Writer::Cpu };
        let evicted_before = counter(session, Counter::Evicted);
        let answer = session.reserve(
            &object,
            len,
            ReserveOptions { writer, depth: len as u32, parent: Some(object.prefix), ..ReserveOptions::default() },
        );
        let evicted = counter(session, Counter::Evicted) - evicted_before;
        if fenced {
            assert!(matches!(answer, Err(CallError::Fenced { .. })), "{answer:?}");
            return None;
        }
        let answer = answer.expect("a session in order");
        reached(match &answer {
            Reserve::Refused(why) => why.code(),
            other => other.code(),
        });
        let refusal = if !self.current(&object.namespace) {
            Some(Why::Invalidated)
        } else if len == 0 {
            Some(Why::Empty)
        } else if len > max_bytes {
            Some(Why::TooLarge { bytes: len, max_bytes })
        } else {
            None
        };
        if let Some(why) = refusal {
            assert!(matches!(answer, Reserve::Refused(found) if found == why), "{answer:?}, wanted {why:?}");
            return Some(false);
        }
        if let Some((_, life)) = self.ready(&object) {
            let same = life.bytes.len() as u64 == len;
            let why = Why::LengthMismatch { present_bytes: life.bytes.len() as u32, asked_bytes: len };
            match answer {
                Reserve::Present => assert!(same),
                Reserve::Refused(found) => assert!(!same && found == why, "{found:?}"),
                other => panic!("{other:?}, and it is present"),
            }
            return Some(false);
        }
        if self.written(&object) {
            assert!(matches!(answer, Reserve::BeingWritten), "{answer:?}");
            return Some(false);
        }
        // The first fitting class with a free slot. Slots whose last reader has gone are freed on the way, but not by
        // every call: a session that has looked for them in vain looks again only after a while.
        let mut usable = Vec::new();
        for class in geometry.classes.iter().filter(|class| class.slot_bytes >= len) {
            let range = class.first_slot as usize..(class.first_slot + class.slot_count) as usize;
            let free: Vec<usize> = range.clone().filter(|slot| matches!(self.slots[*slot], Slot::Free)).collect();
            let freeable = |slot: &usize| match &self.slots[*slot] {
                Slot::Ready(life) => self.ended(*slot) && !self.leased(*slot, life.generation),
                _ => self.drained(*slot),
            };
            if free.is_empty() {
                usable.extend(range.filter(freeable));
            }
            if !free.is_empty() {
                usable.extend(free);
                break;
            }
        }
        let certain = usable.iter().any(|slot| matches!(self.slots[*slot], Slot::Free));
        let words = self.words();
        for slot in &usable {
            if self.drained(*slot) && !words[*slot].is(SlotState::Retiring) {
                reached("drained for a store");
                self.slots[*slot] = Slot::Free;
            }
        }
        for (slot, word) in words.iter().enumerate() {
            let Slot::Ready(life) = &self.slots[slot] else { continue };
            if self.ended(slot) && (word.generation() != life.generation || word.is(SlotState::Retiring)) {
                assert_eq!(self.leased(slot, life.generation), word.generation() == life.generation);
                self.retire_ended(slot);
            }
        }
        if matches!(answer, Reserve::Refused(Why::NoSpace)) {
            assert!(!certain, "no space, and slots {usable:?} are to be had of {:?}", self.slots);
            assert_eq!(evicted, 0, "a refused store costs no existing hit");
            return Some(false);
        }
        match answer {
            Reserve::Granted(reservation) => {
                let slot = reservation.slot() as usize;
                assert!(usable.contains(&slot), "slot {slot} was granted, of {usable:?}");
                assert_eq!(u64::from(reservation.len()), len);
                let token = reservation.token();
                let generation = u64::from_le_bytes(token.to_bytes()[20..].try_into().expect("eight bytes"));
                self.note_evicted(evicted);
                self.stored += 1;
                let bytes = content(self.stored, len as usize);
                let life = Life { object, generation, bytes: bytes.clone() };
                self.slots[slot] = Slot::Writing { life, owner: seat, device };
                self.tokens.push(token);
                let covered = vec![false; len as usize];
                let (exposed, ended) = (false, None);
                self.writes.push(Write { seat, slot, reservation, object, bytes, covered, exposed, device, ended });
                Some(true)
            }
            Reserve::Refused(Why::BucketBusy) => {
                assert!(self.crowded || self.slots.len() > 2 * maru_layout::BUCKET_WAYS, "no bucket is that full");
                assert_eq!(evicted, 0, "a refused store costs no existing hit");
                let used = self.slots.iter().filter(|slot| !matches!(slot, Slot::Free)).count();
                assert!(used >= maru_layout::BUCKET_WAYS, "no bucket can be full of {used} entries");
                Some(false)
            }
            other => panic!("{other:?}, and slots {usable:?} are to be had"),
        }
    }

    /// Room was made in the index: so many ready blocks that nobody reads are gone.
    fn note_evicted(&mut self, evicted: u64) {
        let words = self.words();
        for (slot, word) in words.iter().enumerate() {
            let Slot::Ready(life) = &self.slots[slot] else { continue };
            if word.generation() != life.generation {
                assert!(!self.leased(slot, life.generation), "a leased block was evicted");
                reached("evicted");
                assert!(evicted > 0, "a block is gone, and nothing was evicted");
                self.slots[slot] = Slot::Free;
            }
        }
    }

    fn write(&mut self, at: usize, offset: u32, len: u32) {
        let fenced = self.seats[self.writes[at].seat].as_ref().expect("it has a session").fenced;
        let write = &mut self.writes[at];
        let total = write.bytes.len() as u32;
        if len == u32::MAX {
            let answer = write.reservation.write_at(0, &write.bytes);
            assert_eq!(answer, Ok(()));
            write.covered.fill(true);
            return;
        }
        let (start, end) = (offset % (total + 2), (offset % (total + 2)).saturating_add(len % (total + 2)));
        let piece = match write.bytes.get(start as usize..end as usize) {
            Some(piece) => piece.to_vec(),
            None => vec![0; (end - start) as usize],
        };
        let answer = write.reservation.write_at(start, &piece);
        if write.ended.is_some() {
            assert_eq!(answer, Err(WriteError::Ended));
        } else if end > total {
            assert_eq!(answer, Err(WriteError::OutOfBounds { offset: start, bytes: piece.len(), len: total }));
        } else if fenced {
            assert!(matches!(answer, Err(WriteError::Call(CallError::Fenced { .. }))), "{answer:?}");
        } else {
            assert_eq!(answer, Ok(()));
            write.covered[start as usize..end as usize].fill(true);
        }
    }

    fn expose(&mut self, at: usize) {
        let fenced = self.seats[self.writes[at].seat].as_ref().expect("it has a session").fenced;
        let write = &mut self.writes[at];
        if write.ended.is_some() {
            return;
        }
        match write.reservation.expose() {
            Ok(start) => {
                assert!(!fenced);
                write.exposed = true;
                // SAFETY: the reservation is open, so `len` bytes from its start are this writer's.
                unsafe { core::ptr::copy_nonoverlapping(write.bytes.as_ptr(), start, write.bytes.len()) };
            }
            Err(error) => assert!(fenced && matches!(error, CallError::Fenced { .. }), "{error}"),
        }
    }

    fn commit(&mut self, at: usize) {
        let fenced = self.seats[self.writes[at].seat].as_ref().expect("it has a session").fenced;
        let current = self.current(&self.writes[at].object.namespace);
        let write = &mut self.writes[at];
        let answer = write.reservation.commit().expect("a session in order");
        let whole = write.exposed || write.covered.iter().all(|covered| *covered);
        let expected = match write.ended {
            Some(Commit::Stored) => Commit::AlreadyStored,
            Some(ended) => ended,
            None if fenced => Commit::Fenced,
            None if !whole => Commit::Incomplete {
                written: write.covered.iter().filter(|covered| **covered).count() as u32,
                len: write.bytes.len() as u32,
            },
            None if !current => Commit::Invalidated,
            None => Commit::Stored,
        };
        assert_eq!(answer, expected);
        reached(answer.code());
        if write.ended.is_some() || matches!(answer, Commit::Incomplete { .. }) {
            return;
        }
        write.ended = Some(answer);
        let slot = &mut self.slots[write.slot];
        match answer {
            Commit::Stored => {
                let Slot::Writing { life, .. } = slot.clone() else { panic!("stored into {slot:?}") };
                *slot = Slot::Ready(life);
                let (object, len) = (write.object, write.bytes.len() as u32);
                // A probe right after hits.
                assert_eq!(self.region.reader().probe(&object), Ok(Probe::Hit { len }));
            }
            Commit::Invalidated => *slot = Slot::Free,
            _ => {}
        }
    }

    /// What becomes of the slot of a reservation that is given up.
    fn give_up(&mut self, write: &Write, quarantine: bool) {
        let slot = &mut self.slots[write.slot];
        *slot = match slot {
            Slot::Writing { life, .. } if quarantine => {
                Slot::Quarantined { generation: life.generation, owner: Some(write.seat), device: true }
            }
            Slot::Quarantined { generation, .. } if quarantine => {
                Slot::Quarantined { generation: *generation, owner: Some(write.seat), device: true }
            }
            _ => Slot::Free,
        };
    }

    fn abort(&mut self, at: usize) {
        let write = self.writes.swap_remove(at);
        if write.ended.is_none() {
            self.give_up(&write, false);
        }
        assert_eq!(write.reservation.abort(), Ok(write.ended.is_none()));
    }

    fn drop_write(&mut self, at: usize) {
        let write = self.writes.swap_remove(at);
        if write.ended.is_none() {
            self.give_up(&write, write.device && write.exposed);
        }
    }

    fn resolve(&mut self, seat: u8, token: u8) {
        let (Some((_, session, fenced)), Some(at)) = (self.seat(seat), pick(&self.tokens, token)) else { return };
        let token = self.tokens[at];
        let answer = session.resolve(&token);
        if fenced {
            return assert_fenced(&answer);
        }
        let bytes = token.to_bytes();
        let slot = u32::from_le_bytes(bytes[16..20].try_into().expect("four bytes")) as usize;
        let generation = u64::from_le_bytes(bytes[20..].try_into().expect("eight bytes"));
        let expected = match &self.slots[slot] {
            Slot::Writing { life, .. } if life.generation == generation => Commit::Unknown(token),
            Slot::Ready(life) | Slot::Retiring(life) if life.generation == generation => Commit::AlreadyStored,
            Slot::Quarantined { generation: found, .. } if *found == generation => Commit::Superseded,
            _ => Commit::GenerationGone,
        };
        reached(expected.code());
        assert_eq!(answer, Ok(expected));
    }

    fn expected_probe(&self, object: &ObjectId) -> Probe {
        if !self.current(&object.namespace) {
            return Probe::Miss(Why::Invalidated);
        }
        match self.ready(object) {
            Some((_, life)) => Probe::Hit { len: life.bytes.len() as u32 },
            None if self.written(object) => Probe::Miss(Why::NotReady),
            None => Probe::Miss(Why::Absent),
        }
    }

    fn probe(&self, seat: u8, object: Object) {
        let (Some((_, session, fenced)), Some(object)) = (self.seat(seat), self.object(object)) else { return };
        let answer = session.probe(&object);
        if fenced {
            return assert_fenced(&answer);
        }
        assert_eq!(answer, Ok(self.expected_probe(&object)));
    }

    fn probe_prefix(&self, seat: u8, objects: &[Object]) {
        let Some((_, session, fenced)) = self.seat(seat) else { return };
        let objects: Vec<ObjectId> = objects.iter().filter_map(|object| self.object(*object)).collect();
        let answer = session.probe_prefix(&objects);
        if fenced {
            return assert_fenced(&answer);
        }
        assert_eq!(answer, Ok(objects.iter().take_while(|object| self.expected_probe(object).is_hit()).count()));
    }

    fn acquire(&mut self, seat: u8, objects: &[Object], together: bool, device: bool) {
        let Some((seat, session, fenced)) = self.seat(seat) else { return };
        let objects: Vec<ObjectId> = objects.iter().filter_map(|object| self.object(*object)).collect();
        if self.held.len() + objects.len() > MOST_LEASES {
            return;
        }
        let batch = if together { Batch::AllOrNothing } else { Batch::Each };
        let answer =
            if device { session.acquire_for_device(&objects, batch) } else { session.acquire(&objects, batch) };
        if fenced {
            return assert_fenced(&answer.map(|_| ()));
        }
        let answers = answer.expect("a session in order");
        assert_eq!(answers.len(), objects.len());
        let whole = objects.iter().all(|object| self.expected_probe(object).is_hit());
        for (object, answer) in objects.iter().zip(answers) {
            match (answer, self.expected_probe(object)) {
                (Ok(lease), Probe::Hit { len }) => {
                    assert!(whole || !together);
                    let (slot, life) = self.ready(object).expect("a hit");
                    assert_eq!(lease.replica(), (slot as u32, life.generation));
                    assert_eq!((lease.len(), *lease.object()), (len, *object));
                    let (generation, bytes) = (life.generation, life.bytes.clone());
                    let handle = lease.handle();
                    self.handles.push(handle);
                    let (lease, object, released) = (Some(lease), *object, false);
                    self.held.push(Held { seat, lease, handle, slot, generation, object, bytes, released });
                }
                (Err(Why::PartnerMissing), Probe::Hit { .. }) => {
                    reached("partner missing");
                    assert!(together && !whole);
                }
                // An id that is not current may be told either reason.
                (Err(Why::Absent | Why::NotReady), Probe::Miss(Why::Invalidated)) => {}
                (Err(why), Probe::Miss(expected)) => assert_eq!(why, expected),
                (answer, expected) => panic!("{answer:?}, and a probe says {expected:?}"),
            }
        }
    }

    /// Whether the replica of a lease is there, ready or retiring.
    fn there(&self, held: &Held) -> bool {
        matches!(&self.slots[held.slot], Slot::Ready(life) | Slot::Retiring(life) if life.generation == held.generation)
    }

    fn read(&mut self, at: usize, wrong: bool) {
        let held = &self.held[at];
        let Some(lease) = &held.lease else { return };
        let fenced = self.seats[held.seat].as_ref().expect("it has a session").fenced;
        let mut buffer = vec![0; held.bytes.len() + usize::from(wrong)];
        let answer = lease.read_into(&mut buffer, Verify::Always);
        let expected = if fenced {
            assert!(matches!(answer, Err(LoadError::Call(CallError::Fenced { .. }))), "{answer:?}");
            return;
        } else if wrong {
            Err(LoadError::Length { buffer_bytes: buffer.len(), block_bytes: held.bytes.len() as u32 })
        } else if !self.there(held) {
            Err(LoadError::Expired)
        } else if !self.current(&held.object.namespace) {
            Err(LoadError::Invalidated)
        } else {
            Ok(())
        };
        assert_eq!(answer, expected);
        reached(match answer {
            Ok(()) => "read",
            Err(LoadError::Expired) => "read expired",
            Err(LoadError::Invalidated) => "read invalidated",
            Err(_) => "read with a wrong buffer",
        });
        assert!(answer.is_err() || buffer == held.bytes, "the bytes are not those that were stored");
    }

    fn view(&mut self, at: usize) {
        let held = &self.held[at];
        let Some(lease) = &held.lease else { return };
        let fenced = self.seats[held.seat].as_ref().expect("it has a session").fenced;
        let ready =
            matches!(&self.slots[held.slot], Slot::Ready(life) if life.generation == held.generation) && !held.released;
        let current = self.current(&held.object.namespace);
        match lease.view() {
            Ok(view) => {
                assert!(ready && current && !fenced, "a view of {:?}", self.slots[held.slot]);
                // SAFETY: nobody stores to a leased slot here: all sessions belong to this thread.
                assert_eq!(unsafe { view.as_slice() }, held.bytes);
                reached("view");
                assert_eq!(view.to_vec(), Ok(held.bytes.clone()));
                // What somebody looks at is not given away by its handle.
                let seat = self.seats[held.seat].as_ref().expect("it has a session");
                // SAFETY: as in `seat`.
                assert_eq!(unsafe { &*seat.session }.release(held.handle), Ok(Release::Viewed));
            }
            Err(LoadError::Expired) => assert!(!ready && !fenced),
            Err(LoadError::Invalidated) => assert!(ready && !current && !fenced),
            Err(error) => assert!(fenced && matches!(error, LoadError::Call(CallError::Fenced { .. })), "{error}"),
        }
    }

    /// Releases by handle; the lease object, if there is one, stays and must notice.
    fn release(&mut self, seat: u8, lease: u8) {
        let (Some((seat, session, _)), Some(at)) = (self.seat(seat), pick(&self.held, lease)) else { return };
        let held = &mut self.held[at];
        let mine = held.seat == seat && !held.released;
        reached(if mine { "released" } else { "not held" });
        let answer = session.release(held.handle);
        assert_eq!(answer, Ok(if mine { Release::Released } else { Release::NotHeld }));
        held.released |= mine;
        if held.released && lease & 0x80 != 0 {
            let held = self.held.swap_remove(at);
            if let Some(lease) = held.lease {
                let _ = lease.into_handle();
            }
        }
    }

    /// Releases a handle that may have been released, may be somebody else's, or was never given out.
    fn release_again(&mut self, seat: u8, handle: u8) {
        let (Some((seat, session, _)), Some(at)) = (self.seat(seat), pick(&self.handles, handle)) else { return };
        let mut handle = self.handles[at];
        if at % 5 == 4 {
            let mut bytes = handle.to_bytes();
            bytes[8 + at % 24] ^= 1;
            handle = LeaseHandle::from_bytes(&bytes);
        }
        let mine = self.held.iter().position(|held| held.handle == handle && held.seat == seat && !held.released);
        let answer = session.release(handle);
        assert_eq!(answer, Ok(if mine.is_some() { Release::Released } else { Release::NotHeld }));
        if let Some(at) = mine {
            self.held[at].released = true;
        }
    }

    fn retire(&mut self, seat: u8, object: Object) {
        let (Some((_, session, fenced)), Some(object)) = (self.seat(seat), self.object(object)) else { return };
        let answer = session.retire(&object);
        if fenced {
            return assert_fenced(&answer);
        }
        let Some((slot, life)) = self.ready(&object) else {
            assert_eq!(answer, Ok(Retire::Gone));
            return;
        };
        let life = life.clone();
        let leased = self.leased(slot, life.generation);
        assert_eq!(answer, Ok(if leased { Retire::Draining } else { Retire::Retired }));
        reached(if leased { "draining" } else { "retired" });
        self.slots[slot] = if leased { Slot::Retiring(life) } else { Slot::Free };
    }

    fn reclaim(&mut self, seat: u8) {
        let Some((_, session, fenced)) = self.seat(seat) else { return };
        let answer = session.reclaim();
        if fenced {
            return assert_fenced(&answer);
        }
        let report = answer.expect("a session in order");
        let (mut freed, mut draining) = (0, 0);
        for slot in 0..self.slots.len() {
            if self.drained(slot) {
                self.slots[slot] = Slot::Free;
                freed += 1;
            }
            if self.ended(slot) {
                self.retire_ended(slot);
                freed += u32::from(matches!(self.slots[slot], Slot::Free));
            }
            draining += u32::from(matches!(self.slots[slot], Slot::Retiring(_)));
        }
        assert_eq!((report.freed_slots, report.draining_slots), (freed, draining));
        if freed > 0 {
            reached("reclaimed");
        }
        assert_eq!((report.recovered_sessions, report.recovered_slots), (0, 0));
    }

    fn fence(&mut self, seat: u8, other: usize) {
        let Some((mine, session, fenced)) = self.seat(seat) else { return };
        let Some((_, target, _)) = self.seat(other as u8) else { return };
        let answer = session.fence(target.index(), target.epoch());
        if fenced {
            return assert_fenced(&answer);
        }
        assert_eq!(answer, Ok(mine != other));
        assert_eq!(session.fence(target.index(), target.epoch() + 1), Ok(false));
        if mine == other {
            return;
        }
        self.seats[other].as_mut().expect("just seen").fenced = true;
        for slot in &mut self.slots {
            if let Slot::Writing { life, owner, device } = slot
                && *owner == other
            {
                *slot = Slot::Quarantined { generation: life.generation, owner: Some(other), device: *device };
            }
        }
    }

    /// Reading without joining.
    fn look(&self, object: Object) {
        let Some(object) = self.object(object) else { return };
        let reader = self.region.reader();
        let expected = self.expected_probe(&object);
        assert_eq!(reader.probe(&object), Ok(expected));
        match (reader.read(&object), expected) {
            (Ok(bytes), Probe::Hit { .. }) => assert_eq!(bytes, self.ready(&object).expect("a hit").1.bytes),
            (Err(ReadError::Miss(_)), Probe::Miss(_)) => {}
            // The block of an ended generation is there until somebody needs its place.
            (Err(ReadError::Load(LoadError::Invalidated)), Probe::Miss(Why::Invalidated)) => {}
            (answer, expected) => panic!("{answer:?}, and a probe says {expected:?}"),
        }
    }

    /// Every process dies at once; one starts again and recovers.
    fn crash(&mut self) {
        let mut bytes = vec![0; self.region.geometry().length_bytes as usize];
        self.file.read_exact_at(&mut bytes, 0).expect("the file is as long as it was");
        if self.slots.iter().any(|slot| matches!(slot, Slot::Writing { .. })) {
            reached("crash of a writer");
        }
        self.bury();
        self.file = memory_file(&bytes);
        self.region = Region::open(options_for(&self.file)).expect("a crash leaves a region that opens");
        self.attach(0);
        self.attach(1);
        for slot in &mut self.slots {
            *slot = match core::mem::replace(slot, Slot::Free) {
                Slot::Writing { life, device: true, .. } => {
                    Slot::Quarantined { generation: life.generation, owner: None, device: true }
                }
                Slot::Quarantined { generation, owner, device } if device || owner.is_none() => {
                    Slot::Quarantined { generation, owner: None, device }
                }
                Slot::Ready(life) => Slot::Ready(life),
                _ => Slot::Free,
            };
        }
        let (_, session, _) = self.seat(0).expect("just attached");
        session.reclaim().expect("a session in order");
        for slot in 0..self.slots.len() {
            if self.ended(slot) {
                self.retire_ended(slot);
            }
        }
        self.check_slots();
        let reader = self.region.reader();
        for slot in &self.slots {
            if let Slot::Ready(life) = slot {
                assert_eq!(reader.read(&life.object), Ok(life.bytes.clone()), "a crash has cost a ready block");
            }
        }
    }

    /// Drops everything that borrows a session, then the sessions.
    fn bury(&mut self) {
        self.writes.clear();
        self.held.clear();
        for seat in &mut self.seats {
            if let Some(seat) = seat.take() {
                // SAFETY: made by `Box::into_raw`, taken out of its seat, and nothing borrows it any more.
                drop(unsafe { Box::from_raw(seat.session) });
            }
        }
    }

    /// Releases and closes everything: what is left is free, ready, or was left behind on purpose.
    fn finish(mut self) {
        while !self.writes.is_empty() {
            self.drop_write(0);
        }
        for at in 0..self.held.len() {
            let seat = self.held[at].seat;
            let (handle, released) = (self.held[at].handle, self.held[at].released);
            let (_, session, _) = self.seat(seat as u8).expect("it has a session");
            assert_eq!(session.release(handle), Ok(if released { Release::NotHeld } else { Release::Released }));
            self.held[at].released = true;
            self.held[at].lease = None;
        }
        self.check_slots();
        for seat in 0..SEATS {
            let forgotten = self.seats[seat].as_ref().is_some_and(|seat| seat.forgotten > 0);
            self.close(seat, false);
            assert_eq!(self.seats[seat].is_some(), forgotten, "only a forgotten reservation keeps a session open");
        }
        self.check_slots();
        if self.seats.iter().all(Option::is_none) {
            self.attach(0);
            self.reclaim(0);
            for slot in &self.slots {
                assert!(
                    matches!(slot, Slot::Free | Slot::Ready(_) | Slot::Quarantined { owner: None, .. }),
                    "{slot:?}"
                );
            }
        }
        self.bury();
    }
}

fn pick<T>(list: &[T], index: u8) -> Option<usize> {
    (usize::from(index & 0x7F)).checked_rem(list.len())
}

fn counter(session: &Session, wanted: Counter) -> u64 {
    session.counters().iter().find(|(counter, _)| *counter == wanted).map_or(0, |(_, n)| *n)
}

fn assert_fenced<T: core::fmt::Debug>(answer: &Result<T, CallError>) {
    reached("fenced");
    assert!(matches!(answer, Err(CallError::Fenced { .. })), "{answer:?} of a fenced session");
}
