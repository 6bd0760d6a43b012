//! One scheduler's life: for each request that passes by, how much of it is there?
//!
//! A router asks this before it chooses an engine, and needs no device and no payload for it: the region is mapped
//! header-only, so this process could not read a block if it wanted to.

use std::time::Instant;

use anyhow::Result;
use maru::{Mode, ObjectId, OpenOptions, Region, Role};

use crate::histogram::Histogram;
use crate::payload::digest_of;
use crate::protocol::{ChildOrder, Message};
use crate::queue::Receiver;
use crate::tally::Tally;

/// From order to done.
pub(crate) fn main(order: &ChildOrder) -> Result<()> {
    let region = Region::open(OpenOptions::path(&order.region).mode(Mode::HeaderOnly).prefault(true))?;
    let session = region.session(&order.engine, Role::Scheduler)?;
    let namespace = session.namespace(&order.kind.namespace())?;
    let mut queue = Receiver::from_stdin()?;
    let (mut tally, mut lookups) = (Tally::default(), Histogram::default());
    let mut objects = Vec::new();
    Message::Ready { session: session.index(), epoch: session.epoch() }.say()?;
    while let Some(ids) = queue.next()? {
        objects.clear();
        objects.extend(ids.iter().map(|id| ObjectId::new(namespace, digest_of(*id))));
        let start = Instant::now();
        let run = session.probe_prefix(&objects)?;
        lookups.record(start.elapsed().as_nanos() as u64);
        tally.requests += 1;
        tally.references += ids.len() as u64;
        tally.hits += run as u64;
    }
    session.close().map_err(|(held, _)| held)?;
    Message::Done { tally, lookups }.say()
}
