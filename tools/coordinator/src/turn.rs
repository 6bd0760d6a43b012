//! The loop: wait for the socket, a pidfd, a signal or the next look at the life locks.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use sd_notify::NotifyState;
use serde_json::json;

use crate::cli::PeerProof;
use crate::hall::Hall;
use crate::tell::Tell;
use crate::watch::Watch;

/// How often sessions that have left are forgotten.
const TIDY: Duration = Duration::from_secs(10);

/// What to run.
pub(crate) struct Plan {
    pub(crate) watches: Vec<Watch>,
    pub(crate) socket: PathBuf,
    pub(crate) interval: Duration,
    pub(crate) peer: PeerProof,
}

/// Looks once and leaves. Fails when a region could not be opened.
pub(crate) fn once(mut watches: Vec<Watch>, tell: &Tell) -> Result<()> {
    for watch in &mut watches {
        watch.look(tell);
    }
    for watch in &watches {
        tell.event("status", &watch.status().to_string(), watch.status());
    }
    match watches.iter().find_map(Watch::trouble) {
        None => Ok(()),
        Some(trouble) => anyhow::bail!("{trouble}"),
    }
}

/// Runs until SIGTERM or SIGINT.
pub(crate) fn run(plan: Plan, tell: &Tell) -> Result<()> {
    let Plan { mut watches, socket, interval, peer } = plan;
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGTERM);
    signals.add(Signal::SIGINT);
    signals.thread_block().context("hold signals back")?;
    let stop = SignalFd::with_flags(&signals, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?;
    let mut hall = Hall::open(&socket, peer)?;
    for watch in &mut watches {
        watch.look(tell);
    }
    tell.event(
        "ready",
        &format!("listening at {}", socket.display()),
        json!({ "socket": socket.display().to_string(), "pid": std::process::id() }),
    );
    // Fails where no service manager asked for it.
    let _ = sd_notify::notify(false, &[NotifyState::Ready]);
    let mut tidied = Instant::now();
    loop {
        wait(&hall, &stop, interval)?;
        if stop.read_signal()?.is_some() {
            break;
        }
        hall.turn(&mut watches, tell)?;
        for watch in &mut watches {
            watch.look(tell);
        }
        if tidied.elapsed() >= TIDY {
            hall.tidy(&watches);
            tidied = Instant::now();
        }
    }
    let _ = sd_notify::notify(false, &[NotifyState::Stopping]);
    tell.event("stopping", "stopping", json!({}));
    Ok(())
}

fn wait(hall: &Hall, stop: &SignalFd, interval: Duration) -> Result<()> {
    use std::os::fd::AsFd;
    let mut descriptors: Vec<PollFd<'_>> =
        hall.descriptors().map(|descriptor| PollFd::new(descriptor, PollFlags::POLLIN)).collect();
    descriptors.push(PollFd::new(stop.as_fd(), PollFlags::POLLIN));
    let timeout = PollTimeout::try_from(interval).unwrap_or(PollTimeout::MAX);
    match poll(&mut descriptors, timeout) {
        Ok(_) | Err(nix::errno::Errno::EINTR) => Ok(()),
        Err(error) => Err(error).context("wait"),
    }
}
