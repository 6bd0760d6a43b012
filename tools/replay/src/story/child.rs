//! The two children of the story: one that is killed while it stores a block, and one that wants the same block.
//!
//! Both are processes that join the region as any engine does. The victim says when half of the payload is written, and
//! then waits for its end. The survivor does one thing for each line that it is told.

use std::io::BufRead;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use maru::os::identity::monotonic_ns;
use maru::{Batch, Commit, LoadError, ObjectId, OpenOptions, Region, Reserve, ReserveOptions, Role, Session, Verify};
use serde::{Deserialize, Serialize};

use crate::payload::{Payload, digest_of};
use crate::protocol::{ChildOrder, say};

/// How long the survivor tries for the block.
const PATIENCE: Duration = Duration::from_secs(10);

/// What the survivor is told to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Wish {
    /// Ask for a slot once.
    Ask,
    /// Ask until there is a slot, and store the block.
    Store,
    /// Load the block and compare it.
    Load,
}

/// What the two say.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Said {
    /// It has joined.
    Joined {
        /// Its session.
        session: u32,
    },
    /// Half of the payload is written.
    Halfway {
        /// The slot.
        slot: u32,
    },
    /// What a reservation was answered.
    Answer(String),
    /// The block is stored.
    Stored {
        /// The slot.
        slot: u32,
        /// When the slot was granted, by the clock that all processes of the host share.
        granted_ns: u64,
    },
    /// What a load came to: the bytes were right, or why there were none.
    Loaded {
        /// Bytes that the caller got; none after a miss.
        bytes: u64,
        /// Of these, wrong ones.
        wrong_bytes: u64,
        /// Why there were none.
        miss: Option<String>,
    },
}

fn join(order: &ChildOrder) -> Result<(Region, u64)> {
    let block = order.block.context("an order without a block")?;
    Ok((Region::open(OpenOptions::path(&order.region))?, block))
}

fn object(session: &Session, order: &ChildOrder, block: u64) -> Result<ObjectId> {
    Ok(ObjectId::new(session.namespace(&order.kind.namespace())?, digest_of(block)))
}

/// Stores half a block.
pub(crate) fn victim(order: &ChildOrder) -> Result<()> {
    let (region, block) = join(order)?;
    let session = region.session(&order.engine, Role::Worker)?;
    let object = object(&session, order, block)?;
    say(&Said::Joined { session: session.index() })?;
    let bytes = payload(order, &object)?;
    let mut reservation = match session.reserve(&object, order.kind.block_bytes, ReserveOptions::default())? {
        Reserve::Granted(reservation) => reservation,
        other => bail!("the victim's reservation was answered \"{}\"", other.code()),
    };
    reservation.write_at(0, &bytes[..bytes.len() / 2])?;
    say(&Said::Halfway { slot: reservation.slot() })?;
    // Whoever started this process ends it here. The end of its input means that the starter is gone.
    let _ = std::io::stdin().lock().read_line(&mut String::new());
    bail!("nobody killed the victim")
}

fn payload(order: &ChildOrder, object: &ObjectId) -> Result<Vec<u8>> {
    let mut bytes = vec![0; usize::try_from(order.kind.block_bytes)?];
    Payload::of(&object.prefix).fill(&mut bytes);
    Ok(bytes)
}

/// Does what it is told.
pub(crate) fn survivor(order: &ChildOrder) -> Result<()> {
    let (region, block) = join(order)?;
    let session = region.session(&order.engine, Role::Worker)?;
    let object = object(&session, order, block)?;
    let bytes = payload(order, &object)?;
    say(&Said::Joined { session: session.index() })?;
    for line in std::io::stdin().lock().lines() {
        let said = match serde_json::from_str(&line?)? {
            Wish::Ask => {
                let answer = session.reserve(&object, order.kind.block_bytes, ReserveOptions::default())?;
                Said::Answer(answer.code().to_owned())
            }
            Wish::Store => store(&session, &object, &bytes)?,
            Wish::Load => load(&session, &object)?,
        };
        say(&said)?;
    }
    session.close().map_err(|(held, _)| held.into())
}

fn store(session: &Session, object: &ObjectId, bytes: &[u8]) -> Result<Said> {
    let start = Instant::now();
    loop {
        let answer = session.reserve(object, bytes.len() as u64, ReserveOptions::default())?;
        let granted_ns = monotonic_ns();
        let code = answer.code();
        if let Some(mut reservation) = answer.granted() {
            let slot = reservation.slot();
            reservation.write_at(0, bytes)?;
            return match reservation.commit()? {
                Commit::Stored => Ok(Said::Stored { slot, granted_ns }),
                other => bail!("the survivor's store ended with \"{}\"", other.code()),
            };
        }
        if start.elapsed() > PATIENCE {
            bail!("{} s after the death a reservation is still answered \"{code}\"", PATIENCE.as_secs());
        }
        std::thread::yield_now();
    }
}

fn load(session: &Session, object: &ObjectId) -> Result<Said> {
    let miss = |why: String| Ok(Said::Loaded { bytes: 0, wrong_bytes: 0, miss: Some(why) });
    let mut leases = session.acquire(&[*object], Batch::Each)?;
    let lease = match leases.pop().context("an answer for each object")? {
        Ok(lease) => lease,
        Err(why) => return miss(why.code().to_owned()),
    };
    let mut buffer = vec![0; lease.len() as usize];
    match lease.read_into(&mut buffer, Verify::Always) {
        Ok(()) => {
            let wrong_bytes = Payload::of(&object.prefix).wrong_bytes(&buffer);
            Ok(Said::Loaded { bytes: buffer.len() as u64, wrong_bytes, miss: None })
        }
        Err(damaged @ LoadError::Damaged { .. }) => miss(damaged.to_string()),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_survive_the_wire() {
        for said in [
            Said::Joined { session: 3 },
            Said::Halfway { slot: 17 },
            Said::Answer("being_written".to_owned()),
            Said::Stored { slot: 17, granted_ns: u64::MAX },
            Said::Loaded { bytes: 0, wrong_bytes: 0, miss: Some("absent".to_owned()) },
        ] {
            let text = serde_json::to_string(&said).expect("plain data");
            assert_eq!(serde_json::from_str::<Said>(&text).expect("what was written"), said);
        }
        assert_eq!(serde_json::to_string(&Wish::Store).expect("plain data"), "\"store\"");
    }
}
