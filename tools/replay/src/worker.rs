//! One engine's life: take a request, load what is there, store what is not.
//!
//! * E1: a hit is a block of the leading run that was loaded and compared. A block that the probe saw and the load did
//!   not get (it may go in between) ends the run.
//! * E2: what is loaded lands in one buffer that is used again and again, as engines do with pinned memory.
//! * E3: a block that somebody else has stored, or is storing, is theirs; it is counted and left alone.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use maru::{
    Batch, Commit, LoadError, Mode, NamespaceId, ObjectId, OpenOptions, Region, Reserve, ReserveOptions, Role, Session,
    Verify, WriteError,
};

use crate::histogram::Histogram;
use crate::payload::{Payload, digest_of};
use crate::protocol::{ChildOrder, Message};
use crate::queue::Receiver;
use crate::tally::Tally;

/// Leases taken at once.
const LOAD_BATCH: usize = 64;
/// Reservations open at once.
const STORE_BATCH: usize = 16;
/// How often a store that lost to others is tried again.
const TRIES: u32 = 1000;
/// Between two words to the parent.
const PROGRESS: Duration = Duration::from_millis(20);
/// Between two heartbeats.
const HEARTBEAT: Duration = Duration::from_secs(1);

/// From order to done.
pub(crate) fn main(order: &ChildOrder) -> Result<()> {
    let region = Region::open(OpenOptions::path(&order.region).mode(Mode::Full).prefault(true))?;
    let session = region.session(&order.engine, Role::Worker)?;
    let mut worker = Worker::new(order, &region, &session)?;
    let mut queue = Receiver::from_stdin()?;
    Message::Ready { session: session.index(), epoch: session.epoch() }.say()?;
    let (mut said, mut beat) = (Instant::now(), Instant::now());
    while let Some(ids) = queue.next()? {
        worker.serve(ids).with_context(|| order.engine.clone())?;
        if order.says_all || said.elapsed() >= PROGRESS {
            Message::Progress(worker.tally.clone()).say()?;
            said = Instant::now();
        }
        if beat.elapsed() >= HEARTBEAT {
            session.heartbeat()?;
            beat = Instant::now();
        }
    }
    let Worker { tally, lookups, .. } = worker;
    session.close().map_err(|(held, _)| held)?;
    Message::Done { tally, lookups }.say()
}

struct Worker<'s> {
    session: &'s Session,
    namespace: NamespaceId,
    block_bytes: usize,
    load_batch: usize,
    /// The only buffer (E2).
    buffer: Vec<u8>,
    /// The request at hand.
    objects: Vec<ObjectId>,
    tally: Tally,
    lookups: Histogram,
}

impl<'s> Worker<'s> {
    fn new(order: &ChildOrder, region: &Region, session: &'s Session) -> Result<Self> {
        let block_bytes = usize::try_from(order.kind.block_bytes)?;
        Ok(Self {
            session,
            namespace: session.namespace(&order.kind.namespace())?,
            block_bytes,
            load_batch: LOAD_BATCH.min(region.geometry().lease_cells as usize).max(1),
            buffer: vec![0; block_bytes],
            objects: Vec::new(),
            tally: Tally::default(),
            lookups: Histogram::default(),
        })
    }

    fn serve(&mut self, ids: &[u64]) -> Result<()> {
        self.objects.clear();
        self.objects.extend(ids.iter().map(|id| ObjectId::new(self.namespace, digest_of(*id))));
        let start = Instant::now();
        let run = self.session.probe_prefix(&self.objects)?;
        self.lookups.record(start.elapsed().as_nanos() as u64);
        let loaded = self.load(run)?;
        self.store(loaded)?;
        self.tally.requests += 1;
        self.tally.references += ids.len() as u64;
        self.tally.hits += loaded as u64;
        Ok(())
    }

    /// Loads and compares the first `run` blocks; answers with how many there were (E1).
    fn load(&mut self, run: usize) -> Result<usize> {
        let mut loaded = 0;
        for batch in self.objects[..run].chunks(self.load_batch) {
            for lease in self.session.acquire(batch, Batch::Each)? {
                let Ok(lease) = lease else {
                    self.tally.lost_loads += (run - loaded) as u64;
                    return Ok(loaded);
                };
                let length = lease.len() as usize;
                self.buffer.resize(length, 0);
                match lease.read_into(&mut self.buffer, Verify::Always) {
                    Ok(()) => {}
                    Err(LoadError::Expired) => {
                        self.tally.lost_loads += (run - loaded) as u64;
                        return Ok(loaded);
                    }
                    Err(LoadError::Damaged { slot }) => {
                        eprintln!("slot {slot}: checksum mismatch; the library has quarantined it");
                        self.tally.damaged += 1;
                        return Ok(loaded);
                    }
                    Err(error) => return Err(error.into()),
                }
                let wrong = Payload::of(&lease.object().prefix).wrong_bytes(&self.buffer);
                self.tally.wrong_bytes += wrong + length.abs_diff(self.block_bytes) as u64;
                self.tally.loaded_bytes += length as u64;
                loaded += 1;
            }
        }
        Ok(loaded)
    }

    /// Stores the blocks after the first `loaded`, those that are not there.
    fn store(&mut self, loaded: usize) -> Result<()> {
        self.buffer.resize(self.block_bytes, 0);
        let mut wishes = Vec::with_capacity(STORE_BATCH);
        let mut again = Vec::new();
        for start in (loaded..self.objects.len()).step_by(STORE_BATCH) {
            let end = self.objects.len().min(start + STORE_BATCH);
            wishes.clear();
            wishes.extend((start..end).map(|at| {
                let parent = at.checked_sub(1).map(|parent| self.objects[parent].prefix);
                let after_hits = loaded as u32;
                let options = ReserveOptions { depth: at as u32, parent, after_hits, ..ReserveOptions::default() };
                (self.objects[at], self.block_bytes as u64, options)
            }));
            for (wish, answer) in wishes.iter().zip(self.session.reserve_batch(&wishes)?) {
                if !settle(&mut self.tally, &mut self.buffer, &wish.0, answer)? {
                    again.push(*wish);
                }
            }
        }
        for (object, length, options) in again {
            let mut settled = false;
            for _ in 0..TRIES {
                let answer = self.session.reserve(&object, length, options)?;
                settled = settle(&mut self.tally, &mut self.buffer, &object, answer)?;
                if settled {
                    break;
                }
                std::thread::yield_now();
            }
            self.tally.contended += u64::from(!settled);
        }
        Ok(())
    }
}

/// Writes what was granted and counts what was not; `false`: to be tried again.
fn settle(tally: &mut Tally, buffer: &mut [u8], object: &ObjectId, answer: Reserve<'_>) -> Result<bool> {
    let mut reservation = match answer {
        Reserve::Granted(reservation) => reservation,
        Reserve::Present => {
            tally.present += 1;
            return Ok(true);
        }
        Reserve::BeingWritten => {
            tally.being_written += 1;
            return Ok(true);
        }
        Reserve::Refused(why) => {
            tally.refuse(why);
            return Ok(true);
        }
        Reserve::Contended => return Ok(false),
    };
    Payload::of(&object.prefix).fill(buffer);
    match reservation.write_at(0, buffer) {
        Ok(()) => {}
        Err(WriteError::Superseded) => {
            tally.lost_stores += 1;
            return Ok(true);
        }
        Err(error) => return Err(error.into()),
    }
    match reservation.commit()? {
        Commit::Stored | Commit::AlreadyStored => {
            tally.stores += 1;
            tally.stored_bytes += buffer.len() as u64;
        }
        Commit::Superseded | Commit::GenerationGone => tally.lost_stores += 1,
        other => bail!("a store ended with \"{}\"", other.code()),
    }
    Ok(true)
}
