//! The soak: workers do random things under pressure, the parent kills and stops them at random moments, and the
//! accounts must be exact at every look and at the end.
//!
//! Blocks are of four kinds. *Owned* ones are stored and retired by one worker alone, so that a table that all
//! processes share can say for certain whether they are there. *Shared* ones anybody stores and retires. *Crowded*
//! ones all belong in two buckets of the index and evict each other. *Volatile* ones lie in a namespace of the worker,
//! which it invalidates. Owned and shared blocks never come near the crowded buckets, and no bucket of theirs can
//! overflow: nothing but their owner ends an owned block.

use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use maru::{
    Batch, Budget, CallError, Format, LeaseHandle, NamespaceId, ObjectId, Region, Release, Reserve, ReserveOptions,
    Role, Session, Verify, Why,
};
use nix::sys::signal::Signal;
use serde_json::json;

use crate::case::BOUND_MS;
use crate::check;
use crate::child::{Child, End, Event, Talk, now_ns};
use crate::cli::SoakArgs;
use crate::random::Random;
use crate::scenario::{Allowed, is_typed};
use crate::stage::{Fate, Model, Stage};
use crate::sweep::{Scratch, p50_and_max};
use crate::world::{Lies, MAIN, Place, SOAK_BYTES, Shape, Stored, content, length, namespace, object, place_of, store};

const SLOTS: u32 = 64;
const SLOT_BYTES: u32 = 512;
/// A writer that stands still this long may be quarantined.
const STALLED_MS: u32 = 150;
const OWNED_EACH: usize = 12;
const SHARED: usize = 16;
const CROWDED: usize = 18;
const MAX_WORKERS: u32 = 32;
/// Slots that a worker's own namespace may hold.
const VOLATILE_BUDGET: u32 = 2;
/// Blocks that an evictor frees before it counts them: so many may go uncounted when it is killed.
const UNCOUNTED: u64 = 32;

/// What is known of an owned block.
const ABSENT: u64 = 0;
const UNKNOWN: u64 = 1;
const THERE: u64 = 2;
/// A look missed what was there: it is evicted, or an evictor that met a reader is about to put it back.
const MISSED: u64 = 3;

/// What all processes of a soak share, beside the region.
struct Table {
    stop: AtomicBool,
    /// State in the low two bits, number of changes above: equal before and after a look means "all the time".
    owned: [AtomicU64; MAX_WORKERS as usize * OWNED_EACH],
    operations: AtomicU64,
    loads: AtomicU64,
    stores: AtomicU64,
    retires: AtomicU64,
    refused: AtomicU64,
    superseded: AtomicU64,
    fenced: AtomicU64,
    invalidated: AtomicU64,
    /// Owned blocks that were there and are not: some evictor's work.
    lost: AtomicU64,
}

impl Table {
    /// A table that forked children share.
    fn shared() -> Result<&'static Self> {
        // SAFETY: a new anonymous mapping touches nothing that exists; the answer is checked.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                size_of::<Self>(),
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if start == libc::MAP_FAILED {
            bail!("no memory for the shared table");
        }
        // SAFETY: mapped for the life of the program, page-aligned, zeroed, and a table is made of atomics for which
        // all bits are valid.
        Ok(unsafe { &*start.cast::<Self>() })
    }

    fn set(&self, at: usize, state: u64) {
        let before = self.owned[at].load(Ordering::SeqCst);
        self.owned[at].store(((before >> 2) + 1) << 2 | state, Ordering::SeqCst);
    }

    /// A block that was missed is there again: its evictor has put it back.
    fn find_again(&self, at: usize, word: u64) {
        let there = ((word >> 2) + 1) << 2 | THERE;
        if self.owned[at].compare_exchange(word, there, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
            self.lost.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// The block of `word` was missed; false when it has changed since.
    fn lose(&self, at: usize, word: u64) -> bool {
        let gone = ((word >> 2) + 1) << 2 | MISSED;
        let lost = self.owned[at].compare_exchange(word, gone, Ordering::SeqCst, Ordering::SeqCst).is_ok();
        if lost {
            count(&self.lost);
        }
        lost
    }

    fn state(&self, at: usize) -> u64 {
        self.owned[at].load(Ordering::SeqCst) & 3
    }

    fn word(&self, at: usize) -> u64 {
        self.owned[at].load(Ordering::SeqCst)
    }
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// The blocks of a soak. Every process finds the same ones.
struct Blocks {
    owned: Vec<u64>,
    shared: Vec<u64>,
    crowded: Vec<u64>,
}

impl Blocks {
    fn of(region: &Region, id: &NamespaceId, workers: u32) -> Self {
        let geometry = region.geometry();
        let crowded = (1_000_000..)
            .filter(|number| {
                let place = place_of(geometry, id, *number);
                place.first + place.second == 1
            })
            .take(CROWDED)
            .collect();
        // At most six first choices a bucket, none of them near the crowd, whichever bucket is meant.
        let mut room = vec![6; geometry.bucket_count as usize];
        let mut spread = (1..).filter(|number| {
            let place = place_of(geometry, id, *number);
            let fits = place.first > 1 && place.second > 1 && room[place.first as usize] > 0;
            room[place.first as usize] -= i32::from(fits);
            fits
        });
        let owned = spread.by_ref().take(workers as usize * OWNED_EACH).collect();
        Self { owned, shared: spread.take(SHARED).collect(), crowded }
    }
}

/// Plays the soak and reports. True when nothing was wrong.
pub(crate) fn run(args: &SoakArgs) -> Result<bool> {
    let workers = args.workers.clamp(1, MAX_WORKERS);
    let scratch = Scratch::new()?;
    let directory = scratch.path.join("soak");
    std::fs::create_dir_all(&directory).context("make a folder")?;
    let shape = Shape {
        slots: SLOTS,
        slot_bytes: SLOT_BYTES,
        sessions: workers + 2,
        namespaces: workers + 2,
        stalled_ms: STALLED_MS,
        lies: Lies::File,
        bytes: SOAK_BYTES,
        evicts: true,
        budget: None,
    };
    let place = Place { path: directory.join("region"), offset: 0, memfd: None, shape };
    let region = place.open(Format::IfAbsent)?;
    let table = Table::shared()?;
    let mut parent = Parent {
        random: Random::new(args.seed),
        table,
        place: place.clone(),
        workers: Vec::new(),
        region,
        kills: 0,
        stops: 0,
        fences: 0,
        samples: 0,
        attached_ms: Vec::new(),
        violations: Vec::new(),
    };
    for at in 0..workers {
        parent.workers.push(Worker { child: spawn(&place, table, at, workers, args.seed)?, born: 0, died_ns: None });
    }
    let start = Instant::now();
    parent.torment(Duration::from_secs(args.seconds), workers, args.seed)?;
    table.stop.store(true, Ordering::SeqCst);
    for at in 0..workers as usize {
        parent.workers[at].child.signal(Signal::SIGCONT);
        parent.until_it_ends(at);
    }
    parent.workers.clear();
    let found = final_check(&parent, &directory, workers)?;
    parent.violations.extend(found);
    let clean = parent.violations.is_empty();
    parent.report(args, workers, start.elapsed().as_secs_f64());
    Ok(clean)
}

struct Worker {
    child: Child,
    born: u64,
    /// When the kernel reported the death of the one before, until this one is attached.
    died_ns: Option<u64>,
}

struct Parent {
    random: Random,
    table: &'static Table,
    place: Place,
    workers: Vec<Worker>,
    region: Region,
    kills: u64,
    stops: u64,
    fences: u64,
    samples: u64,
    attached_ms: Vec<f64>,
    violations: Vec<String>,
}

impl Parent {
    fn torment(&mut self, length: Duration, workers: u32, seed: u64) -> Result<()> {
        let start = Instant::now();
        let mut told = Instant::now();
        let mut next = Duration::from_millis(50);
        while start.elapsed() < length {
            for at in 0..workers as usize {
                self.listen(at, Duration::from_micros(500));
            }
            self.sample();
            if start.elapsed() >= next {
                next = start.elapsed() + Duration::from_millis(10 + self.random.below(120));
                let at = self.random.below(workers.into()) as usize;
                self.strike(at)?;
            }
            for at in 0..workers as usize {
                if self.workers[at].child_is_gone() {
                    self.restart(at, workers, seed)?;
                }
            }
            if told.elapsed() > Duration::from_secs(5) {
                told = Instant::now();
                let _ = writeln!(
                    std::io::stderr(),
                    "soak {:.0} s of {}: {} operations, {} kills, {} stops, {} fences, {} looks, {} violations",
                    start.elapsed().as_secs_f64(),
                    length.as_secs(),
                    self.table.operations.load(Ordering::Relaxed),
                    self.kills,
                    self.stops,
                    self.fences,
                    self.samples,
                    self.violations.len()
                );
            }
            if self.violations.len() > 50 {
                let _ = writeln!(std::io::stderr(), "too many violations, the soak ends here");
                break;
            }
        }
        Ok(())
    }

    /// Every look at the accounts adds up.
    fn sample(&mut self) {
        let usage = self.region.usage();
        let counted = usage.slots.iter().sum::<u32>() + usage.damaged_slots;
        let free = u64::from(usage.slots[0]) * u64::from(SLOT_BYTES);
        if counted != usage.capacity_slots
            || usage.damaged_slots != 0
            || free + usage.allocated_bytes != usage.capacity_bytes
        {
            self.violations.push(format!("the accounts do not add up: {usage:?}"));
        }
        let reader = self.region.reader();
        for at in 0..self.workers.len() as u32 {
            let Ok(Some(id)) = reader.namespace(&volatile(at)) else { continue };
            if let Ok(usage) = reader.namespace_usage(&id)
                && usage.spent_tokens > VOLATILE_BUDGET
            {
                self.violations.push(format!("worker {at} holds more than its budget: {usage:?}"));
            }
        }
        self.samples += 1;
    }

    /// Kills a worker, or stops it for a while (and may have it shut out meanwhile).
    fn strike(&mut self, at: usize) -> Result<()> {
        if self.random.below(10) < 7 {
            self.workers[at].child.signal(Signal::SIGKILL);
            self.kills += 1;
            self.until_it_ends(at);
            return Ok(());
        }
        self.workers[at].child.signal(Signal::SIGSTOP);
        self.stops += 1;
        let pause = 1 + self.random.below(300);
        if self.random.below(2) == 0 {
            self.shut_out_somebody()?;
        }
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(pause) {
            for other in (0..self.workers.len()).filter(|other| *other != at) {
                self.listen(other, Duration::from_micros(500));
            }
            self.sample();
        }
        if self.random.below(3) == 0 {
            self.workers[at].child.signal(Signal::SIGKILL);
            self.kills += 1;
            self.until_it_ends(at);
        } else {
            self.workers[at].child.signal(Signal::SIGCONT);
        }
        Ok(())
    }

    /// Fences some live session: usually somebody else than the one that stands still. It must manage.
    fn shut_out_somebody(&mut self) -> Result<()> {
        let Ok(session) = self.region.session("operator", Role::Tool) else { return Ok(()) };
        let bytes = self.place.bytes()?;
        let image = maru::layout::image::Image::read(&bytes).context("the superblock")?;
        let live: Vec<(u32, u32)> = image
            .sessions()
            .map(|(index, entry)| (index, maru::layout::word::SessionWord(entry.word)))
            .filter(|(index, word)| word.is(maru::layout::word::SessionState::Live) && *index != session.index())
            .map(|(index, word)| (index, word.epoch()))
            .collect();
        if !live.is_empty() {
            let (index, epoch) = live[self.random.below(live.len() as u64) as usize];
            self.fences += u64::from(session.fence(index, epoch)?);
        }
        session.close().map_err(|(held, _)| held)?;
        Ok(())
    }

    fn listen(&mut self, at: usize, patience: Duration) {
        let event = self.workers[at].child.event(patience);
        self.take(at, event);
    }

    fn take(&mut self, at: usize, event: Event) -> bool {
        match event {
            Event::Said(line) => {
                if line == "attached" {
                    if let Some(died_ns) = self.workers[at].died_ns.take() {
                        self.attached_ms.push(now_ns().saturating_sub(died_ns) as f64 / 1e6);
                    }
                } else {
                    self.violations.push(format!("worker {at}: {line}"));
                }
                false
            }
            Event::Ended { end, .. } => {
                if !matches!(end, End::Exited(0) | End::Killed(9)) {
                    self.violations.push(format!("worker {at} ended with {end:?}"));
                }
                true
            }
            Event::Stopped | Event::Silence => false,
        }
    }

    fn until_it_ends(&mut self, at: usize) {
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(20) {
            let event = self.workers[at].child.event(Duration::from_millis(50));
            if self.take(at, event) {
                return;
            }
        }
        self.violations.push(format!("worker {at} does not end"));
    }

    fn restart(&mut self, at: usize, workers: u32, seed: u64) -> Result<()> {
        let born = self.workers[at].born + 1;
        let died_ns = Some(self.workers[at].child.ended_at().unwrap_or_else(now_ns));
        let child = spawn(&self.place, self.table, at as u32, workers, seed.wrapping_add(born << 8))?;
        self.workers[at] = Worker { child, born, died_ns };
        Ok(())
    }

    fn report(&mut self, args: &SoakArgs, workers: u32, seconds: f64) {
        let (p50, max) = p50_and_max(&mut self.attached_ms);
        let table = self.table;
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let mut out = format!(
            "{seconds:.1} s, {workers} workers, seed {}\n\
             operations   {:>12}   loads {}, stores {}, retires {}, refused {}, superseded {}, invalidated {}\n\
             deaths       {:>12}   stops {}, fences {}, sessions told so {}\n\
             looks        {:>12}   at which free + allocated = capacity\n\
             back at work {:>9.2} ms   median after a death, {max:.2} ms at most\n\
             violations   {:>12}\n",
            args.seed,
            load(&table.operations),
            load(&table.loads),
            load(&table.stores),
            load(&table.retires),
            load(&table.refused),
            load(&table.superseded),
            load(&table.invalidated),
            self.kills,
            self.stops,
            self.fences,
            load(&table.fenced),
            self.samples,
            p50,
            self.violations.len(),
        );
        for violation in &self.violations {
            out.push_str(&format!(
                "VIOLATION {violation}\n    maru-torture soak --seconds {} --seed {} --workers {workers}\n",
                args.seconds, args.seed
            ));
        }
        if !args.json {
            print!("{out}");
            return;
        }
        let _ = std::io::stderr().write_all(out.as_bytes());
        println!(
            "{}",
            json!({
                "cases": self.kills + self.stops,
                "steps": load(&table.operations),
                "uncovered_steps": [],
                "violations": self.violations.len(),
                "violation_texts": self.violations,
                "recovery_ms": { "p50": p50, "max": max },
                "seconds": seconds,
                "seed": args.seed,
                "workers": workers,
                "kills": self.kills,
                "stops": self.stops,
                "fences": self.fences,
                "samples": self.samples,
                "loads": load(&table.loads),
                "stores": load(&table.stores),
                "retires": load(&table.retires),
                "lost_to_eviction": load(&table.lost),
            })
        );
    }
}

impl Worker {
    fn child_is_gone(&self) -> bool {
        self.child.ended_at().is_some()
    }
}

/// Everything once more, when all workers have left.
fn final_check(parent: &Parent, directory: &std::path::Path, workers: u32) -> Result<Vec<String>> {
    let session = parent.region.session("parent", Role::Tool)?;
    let id = session.namespace(&namespace(MAIN))?;
    let blocks = Blocks::of(&parent.region, &id, workers);
    // Whatever is left in the workers' own namespaces becomes space again by ending them.
    for at in 0..workers {
        let id = session.namespace_with_budget(&volatile(at), Budget::Slots(VOLATILE_BUDGET))?;
        session.invalidate(id)?;
    }
    for (at, number) in blocks.owned.iter().enumerate() {
        let word = parent.table.word(at);
        if word & 3 == MISSED && session.probe(&object(id, *number))?.is_hit() {
            parent.table.find_again(at, word);
        }
    }
    session.close().map_err(|(held, _)| held)?;
    let mut model = Model::default();
    for (at, number) in blocks.owned.iter().enumerate() {
        let fate = match parent.table.state(at) {
            THERE => Fate::Evictable,
            ABSENT => Fate::Gone,
            _ => Fate::May,
        };
        model.fates.insert(*number, fate);
    }
    for number in blocks.shared.iter().chain(&blocks.crowded) {
        model.fates.insert(*number, Fate::May);
    }
    let stage = Stage::of(parent.place.clone(), directory, model);
    // What evictors counted, and what those that were killed did not come to count, is what may be missing.
    let bytes = parent.place.bytes()?;
    let image = maru::layout::image::Image::read(&bytes).context("the superblock")?;
    let evicted: u64 = (0..parent.place.shape.sessions)
        .filter_map(|index| image.session_area(index))
        .map(|area| area.counters[maru::layout::table::Counter::Evicted as usize])
        .sum();
    let lost = parent.table.lost.load(Ordering::Relaxed);
    let most = evicted + UNCOUNTED * (parent.kills + parent.fences);
    if lost > most {
        return Ok(vec![format!(
            "at the end: {lost} committed blocks were lost, {evicted} evicted: the rest is nobody's work"
        )]);
    }
    let allowed = Allowed { evicted: u32::try_from(most - lost).unwrap_or(u32::MAX), ..Allowed::default() };
    let found = check::whole(&stage, allowed)?;
    Ok(found.into_iter().map(|text| format!("at the end: {text}")).collect())
}

/// The namespace that a worker uses and ends.
fn volatile(worker: u32) -> maru::Namespace {
    namespace(&format!("volatile {worker}"))
}

fn spawn(place: &Place, table: &'static Table, at: u32, workers: u32, seed: u64) -> Result<Child> {
    let place = place.clone();
    Child::fork(&format!("worker {at}"), move |talk| {
        let mut life = Life { table, at, workers, random: Random::new(seed ^ (u64::from(at) << 40)), place };
        while !table.stop.load(Ordering::SeqCst) {
            life.session(talk)?;
        }
        Ok(())
    })
}

/// A worker.
struct Life {
    table: &'static Table,
    at: u32,
    workers: u32,
    random: Random,
    place: Place,
}

/// A worker's session and what it holds.
struct Work<'s> {
    session: &'s Session,
    id: NamespaceId,
    blocks: &'s Blocks,
    held: Vec<LeaseHandle>,
    since: Instant,
}

impl Life {
    /// One session: attach, work for a while, leave.
    fn session(&mut self, talk: &mut Talk) -> Result<()> {
        let region = self.place.open(Format::Never)?;
        let session = loop {
            // Every second one refuses where there is no room.
            let place = if self.at.is_multiple_of(2) { self.place.clone() } else { self.place.keeping() };
            match place.session(&region, "soak", Role::Worker) {
                Ok(session) => break session,
                Err(maru::AttachError::Full { .. }) => std::thread::sleep(Duration::from_micros(500)),
                Err(error) => return Err(error.into()),
            }
        };
        talk.say("attached");
        let worked = self.work(talk, &region, &session);
        match worked {
            Ok(()) => {}
            // Shut out: it leaves, and comes back as somebody new.
            Err(error) if is_typed(&error) => {
                if error.downcast_ref::<CallError>().is_some_and(|error| matches!(error, CallError::Fenced { .. })) {
                    count(&self.table.fenced);
                }
            }
            Err(error) => return Err(error),
        }
        if let Err((held, _)) = session.close() {
            talk.say(&format!("wrong still held at the end: {held}"));
        }
        Ok(())
    }

    fn work(&mut self, talk: &mut Talk, region: &Region, session: &Session) -> Result<()> {
        let id = loop {
            match session.namespace(&namespace(MAIN)) {
                Ok(id) => break id,
                Err(maru::NamespaceError::Busy { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        };
        let blocks = Blocks::of(region, &id, self.workers);
        let mut work = Work { session, id, blocks: &blocks, held: Vec::new(), since: Instant::now() };
        let turns = 200 + self.random.below(20_000);
        let mut outcome = Ok(());
        for _ in 0..turns {
            if self.table.stop.load(Ordering::SeqCst) {
                break;
            }
            count(&self.table.operations);
            outcome = self.turn(talk, &mut work);
            if outcome.is_err() {
                break;
            }
        }
        for handle in work.held.drain(..) {
            session.release(handle)?;
        }
        outcome
    }

    fn turn(&mut self, talk: &mut Talk, work: &mut Work<'_>) -> Result<()> {
        match self.random.below(100) {
            0..40 => self.load(talk, work),
            40..65 => self.store_owned(talk, work),
            65..73 => self.retire_owned(work),
            73..82 => self.shared(work),
            82..88 => self.crowded(work),
            88..92 => self.give_up(work),
            92..94 => self.volatile(talk, work),
            94..97 => {
                if let Some(handle) = work.held.pop()
                    && work.session.release(handle)? != Release::Released
                {
                    talk.say("wrong a lease was gone before it was released");
                }
                Ok(())
            }
            97..99 => {
                work.session.reclaim()?;
                Ok(())
            }
            _ => {
                work.session.heartbeat()?;
                let usage = work.session.usage()?;
                if usage.slots.iter().sum::<u32>() != usage.capacity_slots {
                    talk.say(&format!("wrong the accounts do not add up: {usage:?}"));
                }
                Ok(())
            }
        }
    }

    fn own(&mut self) -> usize {
        self.at as usize * OWNED_EACH + self.random.below(OWNED_EACH as u64) as usize
    }

    fn load(&mut self, talk: &mut Talk, work: &mut Work<'_>) -> Result<()> {
        let owned = work.blocks.owned.len();
        let pick = self.random.below((owned + SHARED + CROWDED) as u64) as usize;
        let number = *work
            .blocks
            .owned
            .iter()
            .chain(&work.blocks.shared)
            .chain(&work.blocks.crowded)
            .nth(pick)
            .context("a block")?;
        let object = object(work.id, number);
        let before = (pick < owned).then(|| self.table.word(pick));
        let answer = work.session.acquire(&[object], Batch::Each)?.pop().context("one answer")?;
        let steady = before.filter(|word| self.table.word(pick) == *word);
        match answer {
            Ok(lease) => {
                count(&self.table.loads);
                match steady.map(|word| (word, word & 3)) {
                    Some((_, ABSENT)) => talk.say(&format!("wrong block {number} was retired and is there")),
                    Some((word, MISSED)) => self.table.find_again(pick, word),
                    _ => {}
                }
                let bytes =
                    if self.random.below(4) == 0 { lease.view()?.to_vec()? } else { lease.read(Verify::Always)? };
                if bytes != content(number, SLOT_BYTES) {
                    talk.say(&format!("wrong WRONG BYTES in block {number}"));
                }
                if work.held.len() < 6 && self.random.below(4) == 0 {
                    work.held.push(lease.into_handle());
                }
            }
            Err(Why::LeasesFull) => {}
            Err(why) => {
                // Somebody made room: at the end there are as many evictions as losses, or the accounts are wrong.
                if let Some(word) = steady.filter(|word| word & 3 == THERE)
                    && why != Why::Absent
                    && why != Why::Vanished
                    && self.table.lose(pick, word)
                {
                    talk.say(&format!("wrong block {number} was committed and is lost: {why}"));
                } else if let Some(word) = steady.filter(|word| word & 3 == THERE) {
                    self.table.lose(pick, word);
                }
            }
        }
        Ok(())
    }

    /// Whether one of its own is there, for all that is known.
    fn is_there(&self, work: &Work<'_>, at: usize) -> Result<bool> {
        let word = self.table.word(at);
        if word & 3 == MISSED && work.session.probe(&object(work.id, work.blocks.owned[at]))?.is_hit() {
            self.table.find_again(at, word);
        }
        Ok(self.table.state(at) == THERE)
    }

    /// Stores one of its own. Nobody else does, so whoever is in the way is a dead self of this worker's.
    fn store_owned(&mut self, talk: &mut Talk, work: &mut Work<'_>) -> Result<()> {
        let at = self.own();
        let number = work.blocks.owned[at];
        if self.is_there(work, at)? {
            return Ok(());
        }
        let before = self.table.state(at);
        self.table.set(at, UNKNOWN);
        let start = Instant::now();
        loop {
            match store(work.session, work.id, number, SLOT_BYTES)? {
                Stored::Yes => {
                    self.table.set(at, THERE);
                    count(&self.table.stores);
                    return Ok(());
                }
                Stored::NotNow("no_space") => {
                    // What was missed before may be in the hands of an evictor that puts it back.
                    self.table.set(at, if before == ABSENT { ABSENT } else { UNKNOWN });
                    count(&self.table.refused);
                    return self.make_room(work);
                }
                Stored::NotNow(why) => {
                    if start.elapsed().as_secs_f64() * 1e3 > BOUND_MS && self.undisturbed(work) {
                        talk.say(&format!("wrong own block {number} cannot be stored for a second: {why}"));
                        return Ok(());
                    }
                    work.session.heartbeat()?;
                    std::thread::sleep(Duration::from_micros(200));
                }
            }
        }
    }

    /// This process was not itself stopped for long just now.
    fn undisturbed(&self, work: &Work<'_>) -> bool {
        work.since.elapsed() > Duration::from_millis(BOUND_MS as u64)
    }

    fn make_room(&mut self, work: &mut Work<'_>) -> Result<()> {
        self.retire_owned(work)?;
        let number = work.blocks.shared[self.random.below(SHARED as u64) as usize];
        work.session.retire(&object(work.id, number))?;
        let number = work.blocks.crowded[self.random.below(CROWDED as u64) as usize];
        work.session.retire(&object(work.id, number))?;
        Ok(())
    }

    fn retire_owned(&mut self, work: &mut Work<'_>) -> Result<()> {
        let at = self.own();
        self.table.set(at, UNKNOWN);
        work.session.retire(&object(work.id, work.blocks.owned[at]))?;
        self.table.set(at, ABSENT);
        count(&self.table.retires);
        Ok(())
    }

    fn shared(&mut self, work: &mut Work<'_>) -> Result<()> {
        let number = work.blocks.shared[self.random.below(SHARED as u64) as usize];
        if self.random.below(3) == 0 {
            work.session.retire(&object(work.id, number))?;
            count(&self.table.retires);
            return Ok(());
        }
        self.store_any(work, number)
    }

    fn crowded(&mut self, work: &mut Work<'_>) -> Result<()> {
        let number = work.blocks.crowded[self.random.below(CROWDED as u64) as usize];
        self.store_any(work, number)
    }

    /// Stores in pieces, some of the time out of order, some of the time slowly.
    fn store_any(&mut self, work: &mut Work<'_>, number: u64) -> Result<()> {
        let bytes = content(number, SLOT_BYTES);
        let object = object(work.id, number);
        let reserved = work.session.reserve(&object, bytes.len() as u64, ReserveOptions::default())?;
        let Reserve::Granted(mut reservation) = reserved else {
            count(&self.table.refused);
            return Ok(());
        };
        let half = bytes.len() / 2;
        let backwards = self.random.below(2) == 0;
        let written = if backwards {
            reservation.write_at(half as u32, &bytes[half..]).and_then(|()| reservation.write_at(0, &bytes[..half]))
        } else {
            reservation.write_at(0, &bytes)
        };
        match written {
            Ok(()) => match reservation.commit()? {
                maru::Commit::Stored | maru::Commit::AlreadyStored => count(&self.table.stores),
                maru::Commit::Superseded => count(&self.table.superseded),
                _ => {}
            },
            Err(maru::WriteError::Superseded) => count(&self.table.superseded),
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    /// Reserves one of its own and thinks better of it.
    fn give_up(&mut self, work: &mut Work<'_>) -> Result<()> {
        let at = self.own();
        if self.is_there(work, at)? {
            return Ok(());
        }
        self.table.set(at, UNKNOWN);
        let number = work.blocks.owned[at];
        let bytes = length(number, SLOT_BYTES) as u64;
        if let Reserve::Granted(reservation) =
            work.session.reserve(&object(work.id, number), bytes, ReserveOptions::default())?
        {
            if self.random.below(2) == 0 {
                reservation.abort()?;
            }
            self.table.set(at, ABSENT);
        }
        Ok(())
    }

    /// Uses a namespace of its own and ends it: nothing of it may be found afterwards.
    fn volatile(&mut self, talk: &mut Talk, work: &mut Work<'_>) -> Result<()> {
        let id = match work.session.namespace_with_budget(&volatile(self.at), Budget::Slots(VOLATILE_BUDGET)) {
            Ok(id) => id,
            Err(maru::NamespaceError::Busy { .. }) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        let mut objects: Vec<ObjectId> = Vec::new();
        for number in 1..=2 + u64::from(VOLATILE_BUDGET) {
            if store(work.session, id, number, SLOT_BYTES)? == Stored::Yes {
                objects.push(object(id, number));
            }
        }
        if self.random.below(2) == 0 {
            return Ok(());
        }
        work.session.invalidate(id)?;
        count(&self.table.invalidated);
        for object in objects {
            if work.session.probe(&object)?.is_hit() {
                talk.say("wrong a block of an invalidated namespace hits");
            }
        }
        Ok(())
    }
}
