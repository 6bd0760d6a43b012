//! One queue of requests that many processes take from.
//!
//! A pair of connected sockets that keeps messages apart: the parent sends a request as one message; the other end is
//! the standard input of every worker, and whoever reads gets a whole message that nobody else gets. The kernel is the
//! lock: a worker that dies takes one request with it and blocks nobody.
//!
//! * Q1: requests are dealt in order; one worker alone gets them in order, one after another.
//! * Q2: a full queue makes the parent wait, so what is under way is bounded.
//! * Q3: the end of the queue is the parent's closing of it, also by dying.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use anyhow::{Context, Result, ensure};
use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, send, socketpair};

/// Blocks of the longest request: 8M tokens at 512 a block. A message has to fit a socket's usual send buffer.
pub(crate) const MAX_BLOCKS: usize = 16_384;

const WORD: usize = size_of::<u64>();

/// The parent's end.
#[derive(Debug)]
pub(crate) struct Sender {
    socket: OwnedFd,
    message: Vec<u8>,
}

/// What became of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sent {
    /// It is in the queue.
    Queued,
    /// The queue is full (only from [`Sender::offer`]).
    Full,
    /// Nobody is there to take it.
    NobodyListens,
}

/// Makes a queue: the parent's end, and the end that becomes the children's standard input.
pub(crate) fn queue() -> Result<(Sender, OwnedFd)> {
    let (socket, children) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC)
        .context("a socket pair for the queue of requests")?;
    Ok((Sender { socket, message: Vec::new() }, children))
}

impl Sender {
    /// Queues a request, waiting for room.
    pub(crate) fn send(&mut self, ids: &[u64]) -> Result<Sent> {
        self.transmit(ids, MsgFlags::MSG_NOSIGNAL)
    }

    /// Queues a request if there is room.
    pub(crate) fn offer(&mut self, ids: &[u64]) -> Result<Sent> {
        self.transmit(ids, MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT)
    }

    fn transmit(&mut self, ids: &[u64], flags: MsgFlags) -> Result<Sent> {
        ensure!(ids.len() <= MAX_BLOCKS, "request of {} blocks, wanted at most {MAX_BLOCKS}", ids.len());
        self.message.clear();
        self.message.extend_from_slice(&(ids.len() as u64).to_le_bytes());
        self.message.extend(ids.iter().flat_map(|id| id.to_le_bytes()));
        loop {
            match send(self.socket.as_fd().as_raw_fd(), &self.message, flags) {
                Ok(_) => return Ok(Sent::Queued),
                Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN) => return Ok(Sent::Full),
                Err(Errno::EPIPE | Errno::ECONNRESET) => return Ok(Sent::NobodyListens),
                Err(error) => {
                    return Err(error).with_context(|| format!("queueing a request of {} blocks", ids.len()));
                }
            }
        }
    }
}

/// A child's end.
#[derive(Debug)]
pub(crate) struct Receiver {
    socket: File,
    message: Vec<u8>,
    ids: Vec<u64>,
}

impl Receiver {
    /// The queue that this child got as its standard input.
    pub(crate) fn from_stdin() -> Result<Self> {
        Ok(Self::new(io::stdin().as_fd().try_clone_to_owned().context("standard input")?))
    }

    fn new(socket: OwnedFd) -> Self {
        Self { socket: socket.into(), message: vec![0; (1 + MAX_BLOCKS) * WORD], ids: Vec::new() }
    }

    /// The next request; `None` when there are no more.
    pub(crate) fn next(&mut self) -> Result<Option<&[u64]>> {
        let bytes = loop {
            match self.socket.read(&mut self.message) {
                Ok(bytes) => break bytes,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // The parent went away with messages of ours unread.
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(None),
                Err(error) => return Err(error).context("the queue of requests"),
            }
        };
        if bytes == 0 {
            return Ok(None);
        }
        let (words, rest) = self.message[..bytes].as_chunks::<WORD>();
        let (count, ids) = words.split_first().context("a message of the queue without its length")?;
        ensure!(
            rest.is_empty() && u64::from_le_bytes(*count) == ids.len() as u64,
            "a message of the queue was cut to {bytes} bytes"
        );
        self.ids.clear();
        self.ids.extend(ids.iter().map(|id| u64::from_le_bytes(*id)));
        Ok(Some(&self.ids))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_arrive_whole_once_and_in_order() {
        let (mut sender, children) = queue().expect("queue");
        let mut first = Receiver::new(children.try_clone().expect("clone"));
        let mut second = Receiver::new(children);
        for ids in [&[1, 2, 3][..], &[], &[u64::MAX]] {
            assert_eq!(sender.send(ids).expect("send"), Sent::Queued);
        }
        assert_eq!(first.next().expect("read"), Some(&[1, 2, 3][..]));
        assert_eq!(second.next().expect("read"), Some(&[][..]));
        assert_eq!(first.next().expect("read"), Some(&[u64::MAX][..]));
        drop(sender);
        assert_eq!(first.next().expect("read"), None);
        assert_eq!(second.next().expect("read"), None);
    }

    #[test]
    fn the_longest_request_fits_and_a_longer_one_is_refused() {
        let (mut sender, children) = queue().expect("queue");
        let ids: Vec<u64> = (0..=MAX_BLOCKS as u64).collect();
        assert_eq!(sender.send(&ids[1..]).expect("send"), Sent::Queued);
        assert_eq!(Receiver::new(children).next().expect("read"), Some(&ids[1..]));
        assert!(sender.send(&ids).is_err());
    }

    #[test]
    fn a_full_queue_and_an_abandoned_one_are_told_apart() {
        let (mut sender, children) = queue().expect("queue");
        let mut queued = 0;
        while sender.offer(&[0; 128]).expect("offer") == Sent::Queued {
            queued += 1;
        }
        assert!((2..100_000).contains(&queued), "{queued}");
        drop(children);
        assert_eq!(sender.send(&[0; 128]).expect("send"), Sent::NobodyListens);
    }
}
