//! Child processes that can be talked to, stopped, killed and waited for.
//!
//! A child is forked from a process with one thread, before it opens anything of its own; it talks to its parent in
//! lines over two pipes, and it never outlives its parent (`PR_SET_PDEATHSIG`). What it said before it was killed is
//! still in the pipe, so the parent knows exactly what the dead process knew.

use std::io::{Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, fork, pipe};

/// Exit status of a child whose work failed in a way that no library answer covers.
const FAILED: i32 = 1;
/// Exit status of a child that panicked.
const PANICKED: i32 = 101;
/// How long a look for news from a child sleeps.
const GLANCE: Duration = Duration::from_micros(100);

/// Nanoseconds on the monotonic clock, which all processes of this host share.
pub(crate) fn now_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is a valid place for the answer, and the clock exists on every Linux.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// A child's end of the conversation.
pub(crate) struct Talk {
    out: std::fs::File,
    input: std::fs::File,
}

impl Talk {
    /// Says a line. Line ends inside become spaces.
    pub(crate) fn say(&mut self, line: &str) {
        let mut bytes = line.replace('\n', " ").into_bytes();
        bytes.push(b'\n');
        // The parent is gone: so is the reason to go on.
        if self.out.write_all(&bytes).is_err() {
            exit_now(FAILED);
        }
    }

    /// Waits for a line from the parent.
    pub(crate) fn hear(&mut self) -> String {
        let mut line = Vec::new();
        let mut byte = [0];
        loop {
            match self.input.read(&mut byte) {
                Ok(1) if byte[0] == b'\n' => return String::from_utf8_lossy(&line).into_owned(),
                Ok(1) => line.push(byte[0]),
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                _ => exit_now(FAILED),
            }
        }
    }
}

/// Leaves without running anything of the parent's that was inherited.
fn exit_now(status: i32) -> ! {
    // SAFETY: `_exit` has no preconditions and does not return.
    unsafe { libc::_exit(status) }
}

/// How a child ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// By itself, with this status.
    Exited(i32),
    /// By this signal.
    Killed(i32),
}

/// News from a child.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Event {
    /// It said a line.
    Said(String),
    /// It stopped (SIGSTOP).
    Stopped,
    /// It ended; `at_ns` is when the kernel reported that.
    Ended { end: End, at_ns: u64 },
    /// Nothing until the deadline.
    Silence,
}

/// A child process. Dropping it kills and buries it.
pub(crate) struct Child {
    name: String,
    pid: Pid,
    from: std::fs::File,
    to: std::fs::File,
    unread: Vec<u8>,
    ended: Option<(End, u64)>,
}

impl Child {
    /// Forks. `work` runs in the child and must open everything it uses itself.
    pub(crate) fn fork(name: &str, work: impl FnOnce(&mut Talk) -> Result<()>) -> Result<Self> {
        let (from, out) = pipe().context("pipe")?;
        let (input, to) = pipe().context("pipe")?;
        // SAFETY: this process has one thread (nothing here makes threads while children are forked), so the child
        // may run any code; it leaves by `_exit`.
        match unsafe { fork() }.context("fork")? {
            ForkResult::Child => {
                drop((from, to));
                run_child(out, input, work)
            }
            ForkResult::Parent { child } => {
                drop((out, input));
                // SAFETY: plain flags on a descriptor that is ours.
                unsafe { libc::fcntl(from.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) };
                Ok(Self {
                    name: name.to_owned(),
                    pid: child,
                    from: from.into(),
                    to: to.into(),
                    unread: Vec::new(),
                    ended: None,
                })
            }
        }
    }

    /// What it is called in messages.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// When the kernel reported its end, if it did.
    pub(crate) fn ended_at(&self) -> Option<u64> {
        self.ended.map(|(_, at_ns)| at_ns)
    }

    /// Says a line to it. A dead child hears nothing.
    pub(crate) fn tell(&mut self, line: &str) {
        let _ = self.to.write_all(format!("{line}\n").as_bytes());
    }

    /// Sends a signal.
    pub(crate) fn signal(&self, signal: Signal) {
        if self.ended.is_none() {
            let _ = kill(self.pid, signal);
        }
    }

    /// The next news, waited for up to `patience`. Lines come before the end of the process that said them.
    pub(crate) fn event(&mut self, patience: Duration) -> Event {
        let start = Instant::now();
        loop {
            self.read_what_is_there();
            if let Some(line) = self.take_line() {
                return Event::Said(line);
            }
            if let Some((end, at_ns)) = self.ended {
                return Event::Ended { end, at_ns };
            }
            match waitpid(self.pid, Some(WaitPidFlag::WNOHANG | WaitPidFlag::WUNTRACED)) {
                Ok(WaitStatus::Stopped(..)) => return Event::Stopped,
                Ok(WaitStatus::Exited(_, status)) => {
                    self.ended = Some((End::Exited(status), now_ns()));
                    continue;
                }
                Ok(WaitStatus::Signaled(_, signal, _)) => {
                    self.ended = Some((End::Killed(signal as i32), now_ns()));
                    continue;
                }
                Err(_) => {
                    self.ended = Some((End::Exited(FAILED), now_ns()));
                    continue;
                }
                Ok(_) => {}
            }
            let waited = start.elapsed();
            if waited >= patience {
                return Event::Silence;
            }
            self.sleep_until_readable(GLANCE.min(patience - waited));
        }
    }

    /// Waits for a line that begins with `word`, and gives what follows it. Anything else is an error that says what
    /// came instead; lines that `aside` accepts are passed over.
    pub(crate) fn expect(
        &mut self,
        word: &str,
        patience: Duration,
        mut aside: impl FnMut(&str) -> bool,
    ) -> Result<String> {
        let start = Instant::now();
        loop {
            match self.event(patience.saturating_sub(start.elapsed())) {
                Event::Said(line) => {
                    if let Some(rest) = line.strip_prefix(word) {
                        return Ok(rest.trim().to_owned());
                    }
                    if !aside(&line) {
                        bail!("{}: wanted {word:?}, heard {line:?}", self.name);
                    }
                }
                other => bail!("{}: wanted {word:?}, got {other:?}", self.name),
            }
        }
    }

    fn read_what_is_there(&mut self) {
        let mut piece = [0; 4096];
        while let Ok(n @ 1..) = self.from.read(&mut piece) {
            self.unread.extend_from_slice(&piece[..n]);
        }
    }

    fn take_line(&mut self) -> Option<String> {
        let end = self.unread.iter().position(|byte| *byte == b'\n')?;
        let line = self.unread.drain(..=end).collect::<Vec<_>>();
        Some(String::from_utf8_lossy(&line[..end]).into_owned())
    }

    fn sleep_until_readable(&self, longest: Duration) {
        let mut entry = libc::pollfd { fd: self.from.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        let time = libc::timespec { tv_sec: 0, tv_nsec: longest.subsec_nanos().into() };
        // SAFETY: one entry and one time, both alive for the call.
        unsafe { libc::ppoll(&raw mut entry, 1, &raw const time, std::ptr::null()) };
        if entry.revents & libc::POLLHUP != 0 && entry.revents & libc::POLLIN == 0 {
            // The pipe is closed and poll returns at once; the end of the process follows in a moment.
            std::thread::sleep(longest / 4);
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if self.ended.is_none() {
            let _ = kill(self.pid, Signal::SIGKILL);
            let _ = waitpid(self.pid, None);
        }
    }
}

fn run_child(out: OwnedFd, input: OwnedFd, work: impl FnOnce(&mut Talk) -> Result<()>) -> ! {
    // SAFETY: asks the kernel to kill this process with its parent; no memory is involved.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    let mut talk = Talk { out: out.into(), input: input.into() };
    let told = std::sync::Arc::new(std::sync::Mutex::new(String::new()));
    let tell = told.clone();
    std::panic::set_hook(Box::new(move |info| {
        if let Ok(mut told) = tell.lock() {
            *told = info.to_string();
        }
    }));
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| work(&mut talk)));
    match outcome {
        Ok(Ok(())) => exit_now(0),
        Ok(Err(error)) => {
            talk.say(&format!("failed {error:#}"));
            exit_now(FAILED)
        }
        Err(_) => {
            let text = told.lock().map(|told| told.clone()).unwrap_or_default();
            talk.say(&format!("failed panic: {text}"));
            exit_now(PANICKED)
        }
    }
}
