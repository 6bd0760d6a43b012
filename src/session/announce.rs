//! Telling the host's coordinator about a session, so that it hears of the process's death at once.
//!
//! Optional: without it the coordinator asks the life locks, every few milliseconds. What it adds is the kernel's word
//! about the *process* (a pidfd of the peer) beside its word about the lock.
//!
//! The conversation is lines of text over a stream socket:
//!
//! ```text
//! session                       coordinator
//! hello REGION INDEX EPOCH  ->                       region id in hexadecimal, numbers in decimal
//!                           <-  challenge NONCE      only where the kernel gives no pidfd of a peer
//! answer NONCE              ->
//!                           <-  ok | no REASON
//! ```

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::Session;
use crate::CallError;

/// How long a coordinator may take over one line.
const PATIENCE: Duration = Duration::from_secs(2);

/// Why a coordinator does not know of a session.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AnnounceError {
    /// The call cannot be tried.
    #[error(transparent)]
    Call(#[from] CallError),
    /// Nobody answers at the socket, or not in words.
    #[error("coordinator at {}: {source}", socket.display())]
    Io {
        /// The socket.
        socket: PathBuf,
        /// What went wrong.
        source: std::io::Error,
    },
    /// The coordinator said no.
    #[error("coordinator at {}: {reason}", socket.display())]
    Refused {
        /// The socket.
        socket: PathBuf,
        /// Its reason.
        reason: String,
    },
}

/// Where a coordinator of this host listens unless something else is said: `MARU_COORDINATOR`, else
/// `maru/coordinator.sock` under `XDG_RUNTIME_DIR`, else under `/run`.
#[must_use]
pub fn coordinator_socket() -> PathBuf {
    if let Some(path) = std::env::var_os("MARU_COORDINATOR").filter(|path| !path.is_empty()) {
        return path.into();
    }
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").filter(|path| !path.is_empty());
    Path::new(&runtime.unwrap_or_else(|| "/run".into())).join("maru/coordinator.sock")
}

impl Session {
    /// Announces this session to the coordinator that listens at `socket`. Nothing depends on it: a coordinator that
    /// goes away is not missed.
    ///
    /// # Errors
    /// Nobody listens there, or it does not serve this region or this process.
    pub fn announce(&self, socket: &Path) -> Result<(), AnnounceError> {
        self.check()?;
        let io = |source| AnnounceError::Io { socket: socket.to_path_buf(), source };
        let mut stream = UnixStream::connect(socket).map_err(io)?;
        stream.set_read_timeout(Some(PATIENCE)).map_err(io)?;
        stream.set_write_timeout(Some(PATIENCE)).map_err(io)?;
        let region = u128::from_be_bytes(self.inner.geometry().region_id);
        writeln!(stream, "hello {region:032x} {} {}", self.index(), self.epoch()).map_err(io)?;
        let mut answers = BufReader::new(stream.try_clone().map_err(io)?);
        loop {
            let mut line = String::new();
            // A peer that sends no line end is not read for ever.
            std::io::Read::take(&mut answers, 1024).read_line(&mut line).map_err(io)?;
            let line = line.trim_end();
            if let Some(nonce) = line.strip_prefix("challenge ") {
                writeln!(stream, "answer {nonce}").map_err(io)?;
            } else if line == "ok" {
                return Ok(());
            } else {
                let reason = line.strip_prefix("no ").unwrap_or(line);
                let reason = if reason.is_empty() { "hung up" } else { reason }.to_owned();
                return Err(AnnounceError::Refused { socket: socket.to_path_buf(), reason });
            }
        }
    }
}
