//! Which process is at the other end, and whether it is the one that a session entry names.
//!
//! A peer may say anything. What it announces makes a coordinator declare a session dead when the *peer's* process ends,
//! so the two must be the same process. It is known by a pidfd:
//!
//! * from `SO_PEERPIDFD` (Linux 6.5), which names the process that connected, whatever happens to its number;
//! * else by its number from `SO_PEERCRED`, opened as a pidfd, and a challenge: the kernel stamps the answer with the
//!   number of whoever wrote it, and if after the answer the pidfd still is not readable, its process has lived all the
//!   time and has that number.
//!
//! Then `/proc/NUMBER` is compared with the entry: pid namespace and number in it. As long as the pidfd is not readable
//! afterwards, what was read there was that process's.

use std::fs;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;

use maru::SessionInfo;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};

/// Not in libc's constants for every target yet.
const SO_PEERPIDFD: libc::c_int = 77;

/// A process that cannot be mistaken for another one.
#[derive(Debug)]
pub(crate) struct Process {
    /// Its number as this process sees it.
    pub(crate) pid: i32,
    pidfd: OwnedFd,
}

impl Process {
    /// The pidfd of whoever connected, from the kernel. `None` where the kernel does not give it.
    pub(crate) fn of_peer(stream: &UnixStream) -> std::io::Result<Option<Self>> {
        let pid = getsockopt(stream, PeerCredentials)?.pid();
        let mut number: libc::c_int = -1;
        let mut length = size_of::<libc::c_int>() as libc::socklen_t;
        // SAFETY: the kernel stores at most `length` bytes into `number`, and both live on.
        let done = unsafe {
            libc::getsockopt(
                stream.as_raw_fd(),
                libc::SOL_SOCKET,
                SO_PEERPIDFD,
                (&raw mut number).cast(),
                &raw mut length,
            )
        };
        match Errno::result(done) {
            Ok(_) if number >= 0 => {
                // SAFETY: a descriptor that the kernel has just made for this process, and nobody else's.
                let pidfd = unsafe { OwnedFd::from_raw_fd(number) };
                Ok(Some(Self { pid, pidfd }))
            }
            Ok(_) | Err(Errno::ENOPROTOOPT | Errno::EINVAL) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// A pidfd opened by number. Only an answered challenge makes it the peer's.
    pub(crate) fn by_number(stream: &UnixStream) -> std::io::Result<Self> {
        let pid = getsockopt(stream, PeerCredentials)?.pid();
        // SAFETY: no memory is passed.
        let number = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
        let number = Errno::result(number)?;
        // SAFETY: a descriptor that the kernel has just made for this process, and nobody else's.
        let pidfd = unsafe { OwnedFd::from_raw_fd(number as libc::c_int) };
        Ok(Self { pid, pidfd })
    }

    /// For waiting: readable when the process has ended.
    pub(crate) fn pidfd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }

    /// Whether it has ended.
    pub(crate) fn is_gone(&self) -> bool {
        let mut wait = [PollFd::new(self.pidfd.as_fd(), PollFlags::POLLIN)];
        poll(&mut wait, PollTimeout::ZERO).is_ok()
            && wait[0].revents().is_some_and(|events| events.contains(PollFlags::POLLIN))
    }

    /// Why this is not the process of `session`; `None` when it is.
    pub(crate) fn differs_from(&self, session: &SessionInfo) -> Option<String> {
        let namespace = match fs::metadata(format!("/proc/{}/ns/pid", self.pid)) {
            Ok(file) => file.ino(),
            Err(error) => return Some(format!("the pid namespace of process {} cannot be read: {error}", self.pid)),
        };
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid)).unwrap_or_default();
        let inner = innermost_pid(&status);
        if self.is_gone() {
            return Some("the process has ended".to_owned());
        }
        if namespace != session.pid_ns || inner != Some(session.pid) {
            return Some(format!(
                "session {} belongs to pid {} of pid namespace {}, the peer is {} of {namespace}",
                session.index,
                session.pid,
                session.pid_ns,
                inner.map_or_else(|| "unknown".to_owned(), |pid| pid.to_string()),
            ));
        }
        None
    }
}

/// The number of a process in its own pid namespace: the last one of `NSpid`.
fn innermost_pid(status: &str) -> Option<u32> {
    let line = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
    line.split_whitespace().next_back()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_in_the_innermost_namespace_counts() {
        assert_eq!(innermost_pid("Name:\tx\nNSpid:\t4021\t17\t2\nVmPeak: 1\n"), Some(2));
        assert_eq!(innermost_pid("NSpid:\t4021\n"), Some(4021));
        assert_eq!(innermost_pid("NSpid:\n"), None);
        assert_eq!(innermost_pid("Name: NSpid\n"), None);
    }

    #[test]
    fn both_ways_name_the_peer_of_a_connection() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let me = std::process::id() as i32;
        let by_number = Process::by_number(&ours).unwrap();
        assert_eq!((by_number.pid, by_number.is_gone()), (me, false));
        match Process::of_peer(&ours).unwrap() {
            Some(process) => assert_eq!((process.pid, process.is_gone()), (me, false)),
            None => eprintln!("SKIPPED: this kernel gives no pidfd of a peer"),
        }
    }
}
