//! The socket: who connects, what they say, and the pidfds of those who announced a session.
//!
//! Peers are not trusted: a line is bounded, a connection that says nothing useful is closed after a while, and there is
//! a bound on how many there are. A connection that closes proves nothing about its process.

use std::collections::HashMap;
use std::fs;
use std::io::{ErrorKind, IoSliceMut, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use maru::Liveness;
use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg, setsockopt, sockopt::PassCred};
use serde_json::json;

use crate::cli::PeerProof;
use crate::peer::Process;
use crate::tell::Tell;
use crate::watch::{Watch, hex};

/// Bytes of a line.
const LINE_BYTES: usize = 256;
/// Reads of one connection in one turn.
const READS_A_TURN: u32 = 4;
/// Lines of one connection: nobody has more to say.
const MOST_LINES: u32 = 64;
/// Connections that are open at once.
const MOST_CONNECTIONS: usize = 256;
/// Sessions that are known at once.
const MOST_KNOWN: usize = 4096;
/// How long a connection may take to say what it wants.
const PATIENCE: Duration = Duration::from_secs(5);

/// What a peer announced, waiting for its answer to a challenge.
struct Claim {
    region: [u8; 16],
    index: u32,
    epoch: u32,
}

struct Connection {
    stream: UnixStream,
    said: Vec<u8>,
    lines: u32,
    since: Instant,
    /// Nonce, the process that must answer it, and what it then is believed.
    challenged: Option<(u64, Process, Claim)>,
}

/// An announced session and its process.
pub(crate) struct Known {
    process: Process,
    region: [u8; 16],
    index: u32,
    epoch: u32,
}

/// The socket, and what is known through it.
pub(crate) struct Hall {
    listener: UnixListener,
    path: PathBuf,
    proof: PeerProof,
    connections: HashMap<i32, Connection>,
    known: Vec<Known>,
    nonce: u64,
}

impl Hall {
    /// Listens. A socket file that nobody listens at any more is a leftover, and goes.
    pub(crate) fn open(path: &Path, proof: PeerProof) -> Result<Self> {
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).with_context(|| format!("make {}", folder.display()))?;
        }
        if path.exists() {
            match UnixStream::connect(path) {
                Ok(_) => bail!("another coordinator listens at {}", path.display()),
                Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
                    fs::remove_file(path).with_context(|| format!("remove the leftover {}", path.display()))?;
                }
                Err(error) => return Err(error).with_context(|| format!("{} is in the way", path.display())),
            }
        }
        let listener = UnixListener::bind(path).with_context(|| format!("listen at {}", path.display()))?;
        listener.set_nonblocking(true)?;
        // Engines run as other users, too. Announcing proves itself, and asking for the status tells nothing secret.
        fs::set_permissions(path, fs::Permissions::from_mode(0o666))?;
        let nonce = u64::from_le_bytes(maru::os::identity::random_bytes());
        Ok(Self { listener, path: path.to_path_buf(), proof, connections: HashMap::new(), known: Vec::new(), nonce })
    }

    /// Everything to wait for.
    pub(crate) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let streams = self.connections.values().map(|connection| connection.stream.as_fd());
        let processes = self.known.iter().map(|known| known.process.pidfd());
        std::iter::once(self.listener.as_fd()).chain(streams).chain(processes)
    }

    /// One turn: new connections, lines, ends of processes.
    pub(crate) fn turn(&mut self, watches: &mut [Watch], tell: &Tell) -> Result<()> {
        let descriptors: Vec<i32> = self.connections.keys().copied().collect();
        for descriptor in descriptors {
            let Some(mut connection) = self.connections.remove(&descriptor) else { continue };
            if self.hear(&mut connection, watches, tell) && connection.since.elapsed() < PATIENCE {
                self.connections.insert(descriptor, connection);
            }
        }
        self.welcome();
        let (gone, here): (Vec<Known>, Vec<Known>) =
            std::mem::take(&mut self.known).into_iter().partition(|known| known.process.is_gone());
        self.known = here;
        for known in gone {
            for watch in watches.iter_mut().filter(|watch| watch.region_id() == Some(known.region)) {
                // A region that cannot be asked now is looked at again in its own turn, by its life locks.
                let _ = watch.process_is_gone(known.index, known.epoch, tell);
            }
        }
        Ok(())
    }

    /// Takes new connections; where there are too many, the one that has been silent longest makes room.
    fn welcome(&mut self) {
        // So many a turn: whoever connects without end does not keep the others waiting.
        for _ in 0..MOST_CONNECTIONS {
            let Ok((stream, _)) = self.listener.accept() else { break };
            if stream.set_nonblocking(true).is_err() {
                continue;
            }
            if self.connections.len() >= MOST_CONNECTIONS
                && let Some(oldest) =
                    self.connections.iter().min_by_key(|(_, connection)| connection.since).map(|(number, _)| *number)
            {
                self.connections.remove(&oldest);
            }
            // Where it cannot be had, no challenge is answered.
            let _ = setsockopt(&stream, PassCred, &true);
            let connection = Connection { since: Instant::now(), said: Vec::new(), lines: 0, challenged: None, stream };
            self.connections.insert(connection.stream.as_raw_fd(), connection);
        }
    }

    /// Forgets sessions that have left. Once in a while.
    pub(crate) fn tidy(&mut self, watches: &[Watch]) {
        self.known.retain(|known| {
            watches
                .iter()
                .filter(|watch| watch.region_id() == Some(known.region))
                .any(|watch| matches!(watch.claimed(known.index, known.epoch), Ok(Some(_)) | Err(_)))
        });
    }

    /// Hears a connection out; false when it is done with.
    fn hear(&mut self, connection: &mut Connection, watches: &[Watch], tell: &Tell) -> bool {
        // So much a turn: a peer that never stops talking is heard on in the next one.
        for _ in 0..READS_A_TURN {
            let mut bytes = [0u8; LINE_BYTES];
            let writer = match receive(&connection.stream, &mut bytes) {
                Ok(Some((0, _))) => return false,
                Ok(Some((count, writer))) => {
                    connection.said.extend_from_slice(&bytes[..count]);
                    writer
                }
                Ok(None) => return true,
                Err(_) => return false,
            };
            while let Some(end) = connection.said.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = connection.said.drain(..=end).collect();
                let line = String::from_utf8_lossy(&line[..end]).into_owned();
                connection.lines += 1;
                if connection.lines > MOST_LINES {
                    return false;
                }
                match self.line(connection, &line, writer, watches, tell) {
                    Some(answer) => {
                        // A peer that does not read its answer loses it.
                        if connection.stream.write_all(answer.as_bytes()).is_err() {
                            return false;
                        }
                    }
                    None => return false,
                }
            }
            if connection.said.len() >= LINE_BYTES {
                let _ = connection.stream.write_all(b"no the line is longer than 256 bytes\n");
                return false;
            }
        }
        true
    }

    fn line(
        &mut self,
        connection: &mut Connection,
        line: &str,
        writer: Option<i32>,
        watches: &[Watch],
        tell: &Tell,
    ) -> Option<String> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let answer = match words[..] {
            ["status"] => {
                let regions: Vec<_> = watches.iter().map(Watch::status).collect();
                let status = json!({ "kind": "status", "pid": std::process::id(), "announced": self.known.len(), "regions": regions });
                return Some(format!("{status}\n"));
            }
            ["hello", region, index, epoch] => match claim(region, index, epoch) {
                Some(claim) => self.hello(connection, claim, watches, tell),
                None => Err("wanted: hello REGION(32 hexadecimal digits) INDEX EPOCH".to_owned()),
            },
            ["answer", nonce] => match connection.challenged.take() {
                Some((asked, process, claim)) if nonce.parse() == Ok(asked) => {
                    if writer == Some(process.pid) && !process.is_gone() {
                        self.believe(process, claim, watches, tell).map(|()| "ok".to_owned())
                    } else {
                        Err("another process answered".to_owned())
                    }
                }
                _ => Err("nothing was asked, or something else".to_owned()),
            },
            _ => Err("wanted: hello REGION INDEX EPOCH, answer NONCE, or status".to_owned()),
        };
        Some(answer.map_or_else(|reason| format!("no {reason}\n"), |word| format!("{word}\n")))
    }

    fn hello(
        &mut self,
        connection: &mut Connection,
        claim: Claim,
        watches: &[Watch],
        tell: &Tell,
    ) -> Result<String, String> {
        let failed = |error: std::io::Error| format!("your process cannot be named: {error}");
        if self.proof == PeerProof::Auto
            && let Some(process) = Process::of_peer(&connection.stream).map_err(failed)?
        {
            return self.believe(process, claim, watches, tell).map(|()| "ok".to_owned());
        }
        let process = Process::by_number(&connection.stream).map_err(failed)?;
        self.nonce = self.nonce.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        connection.challenged = Some((self.nonce, process, claim));
        Ok(format!("challenge {}", self.nonce))
    }

    /// Takes a session for that of a process, if the entry agrees.
    fn believe(&mut self, process: Process, claim: Claim, watches: &[Watch], tell: &Tell) -> Result<(), String> {
        let watch = watches
            .iter()
            .find(|watch| watch.region_id() == Some(claim.region))
            .ok_or_else(|| format!("region {} is not watched here", hex(&claim.region)))?;
        let session = watch
            .claimed(claim.index, claim.epoch)
            .map_err(|error| error.to_string())?
            .ok_or_else(|| format!("session {} does not live under epoch {}", claim.index, claim.epoch))?;
        if session.liveness == Liveness::Unknown {
            return Err(format!("session {} is not of this host", claim.index));
        }
        if let Some(difference) = process.differs_from(&session) {
            return Err(difference);
        }
        let same = |known: &Known| (known.region, known.index, known.epoch) == (claim.region, claim.index, claim.epoch);
        if self.known.iter().any(same) {
            return Ok(());
        }
        if self.known.len() >= MOST_KNOWN {
            return Err(format!("{MOST_KNOWN} sessions are announced already"));
        }
        tell.event(
            "announced",
            &format!("session {} is pid {}: {}", claim.index, process.pid, session.engine),
            json!({
                "region_id": hex(&claim.region),
                "session": claim.index,
                "epoch": claim.epoch,
                "engine": session.engine,
                "pid": process.pid,
            }),
        );
        self.known.push(Known { process, region: claim.region, index: claim.index, epoch: claim.epoch });
        Ok(())
    }
}

impl Drop for Hall {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

fn claim(region: &str, index: &str, epoch: &str) -> Option<Claim> {
    let whole = region.len() == 32 && region.bytes().all(|byte| byte.is_ascii_hexdigit());
    let region = whole.then(|| u128::from_str_radix(region, 16).ok()).flatten()?.to_be_bytes();
    Some(Claim { region, index: index.parse().ok()?, epoch: epoch.parse().ok()? })
}

/// Bytes and the number of the process that wrote them, as the kernel stamped it; `None` when there are none now.
fn receive(stream: &UnixStream, bytes: &mut [u8]) -> nix::Result<Option<(usize, Option<i32>)>> {
    let mut control = nix::cmsg_space!(nix::libc::ucred);
    let mut pieces = [IoSliceMut::new(bytes)];
    let message = match recvmsg::<()>(stream.as_raw_fd(), &mut pieces, Some(&mut control), MsgFlags::MSG_DONTWAIT) {
        Ok(message) => message,
        Err(nix::errno::Errno::EAGAIN | nix::errno::Errno::EINTR) => return Ok(None),
        Err(error) => return Err(error),
    };
    let writer = message.cmsgs()?.find_map(|control| match control {
        ControlMessageOwned::ScmCredentials(credentials) => Some(credentials.pid()),
        _ => None,
    });
    Ok(Some((message.bytes, writer)))
}
