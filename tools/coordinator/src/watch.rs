//! One region: open it when it is there, and once a turn look who died, who leads, who has fallen silent.

use std::collections::HashMap;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::{Duration, Instant};

use maru::layout::word::SessionState;
use maru::{CallError, Lead, Liveness, Mode, OpenOptions, Region, Role, Session, SessionInfo};
use serde_json::{Value, json};

use crate::tell::Tell;

/// How long to wait before a region that could not be opened is tried again.
const RETRY: Duration = Duration::from_secs(1);
/// How often the own heartbeat moves.
const BEAT: Duration = Duration::from_secs(1);

/// Where a region lies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) path: PathBuf,
    pub(crate) offset: u64,
    pub(crate) length: Option<u64>,
}

impl FromStr for Place {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let whole = |path: &str| Self { path: path.into(), offset: 0, length: None };
        let Some((path, part)) = text.rsplit_once('@') else {
            return if text.is_empty() { Err("a path is wanted".to_owned()) } else { Ok(whole(text)) };
        };
        let number = |text: &str| text.parse::<u64>().map_err(|_| format!("{text:?} is no number of bytes"));
        let (offset, length) = match part.split_once('+') {
            Some((offset, length)) => (number(offset)?, Some(number(length)?)),
            // A file whose name has an @ in it.
            None if !part.bytes().all(|byte| byte.is_ascii_digit()) => return Ok(whole(text)),
            None => (number(part)?, None),
        };
        Ok(Self { path: path.into(), offset, length })
    }
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.path.display())?;
        match (self.offset, self.length) {
            (0, None) => Ok(()),
            (offset, None) => write!(f, "@{offset}"),
            (offset, Some(length)) => write!(f, "@{offset}+{length}"),
        }
    }
}

/// A region as long as it is open. The session goes before the region.
struct Open {
    session: Session,
    region: Region,
    leading: bool,
    beat: Instant,
    /// Of each session, epoch and heartbeat as they stand, and since when by this process's clock.
    silent: HashMap<u32, (u32, u64, Instant)>,
}

/// A region that is watched.
pub(crate) struct Watch {
    place: Place,
    lock_file: Option<PathBuf>,
    fence_silent: Option<Duration>,
    open: Option<Open>,
    tried: Option<Instant>,
    /// The last reason for not having it open, so that it is said once.
    trouble: String,
    recovered: u64,
    slots: u64,
    fenced: u64,
}

impl Watch {
    pub(crate) fn new(place: Place, lock_file: Option<PathBuf>, fence_silent: Option<Duration>) -> Self {
        Self {
            place,
            lock_file,
            fence_silent,
            open: None,
            tried: None,
            trouble: String::new(),
            recovered: 0,
            slots: 0,
            fenced: 0,
        }
    }

    /// Id of the region, while it is open.
    pub(crate) fn region_id(&self) -> Option<[u8; 16]> {
        self.open.as_ref().map(|open| open.region.id())
    }

    /// Why it is not open.
    pub(crate) fn trouble(&self) -> Option<&str> {
        (self.open.is_none()).then_some(self.trouble.as_str())
    }

    /// One look. What goes wrong closes the region, is said once, and is tried again.
    pub(crate) fn look(&mut self, tell: &Tell) {
        if self.open.is_none() && !self.try_open(tell) {
            return;
        }
        if let Err(error) = self.look_inside(tell) {
            self.lose(&error.to_string(), tell);
        }
    }

    fn try_open(&mut self, tell: &Tell) -> bool {
        if self.tried.is_some_and(|tried| tried.elapsed() < RETRY) {
            return false;
        }
        self.tried = Some(Instant::now());
        let mut options =
            OpenOptions::path(&self.place.path).partition(self.place.offset, self.place.length).mode(Mode::HeaderOnly);
        if let Some(lock_file) = &self.lock_file {
            options = options.lock_file(lock_file);
        }
        let opened = Region::open(options).map_err(|error| error.to_string()).and_then(|region| {
            // Joining may already take the place of somebody dead.
            let before = region.sessions().map_err(|error| error.to_string())?;
            let session = region.session("maru-coordinator", Role::Coordinator).map_err(|error| error.to_string())?;
            Ok((region, session, before))
        });
        match opened {
            Ok((region, session, before)) => {
                let id = hex(&region.id());
                tell.event(
                    "watching",
                    &format!("watching {} (region {id}) as session {}", self.place, session.index()),
                    json!({ "region": self.place.to_string(), "region_id": id, "session": session.index() }),
                );
                self.trouble.clear();
                for dead in
                    before.iter().filter(|other| other.liveness == Liveness::Dead && other.index == session.index())
                {
                    self.recovered += 1;
                    say_recovered(&self.place, dead, "its place was taken", tell);
                }
                let beat = Instant::now();
                self.open = Some(Open { session, region, leading: false, beat, silent: HashMap::new() });
                true
            }
            Err(error) => {
                self.lose(&error, tell);
                false
            }
        }
    }

    fn lose(&mut self, error: &str, tell: &Tell) {
        self.open = None;
        self.tried = Some(Instant::now());
        if self.trouble != error {
            self.trouble = error.to_owned();
            tell.event(
                "waiting",
                &format!("waiting for {}: {error}", self.place),
                json!({ "region": self.place.to_string(), "error": error }),
            );
        }
    }

    fn look_inside(&mut self, tell: &Tell) -> Result<(), CallError> {
        let Some(open) = &mut self.open else { return Ok(()) };
        if open.beat.elapsed() >= BEAT {
            open.session.heartbeat()?;
            open.beat = Instant::now();
        }
        let sessions = open.session.sessions()?;
        let dead: Vec<&SessionInfo> = sessions.iter().filter(|session| session.liveness == Liveness::Dead).collect();
        if !dead.is_empty() {
            let report = open.session.recover_dead()?;
            self.recovered += u64::from(report.recovered_sessions);
            self.slots += u64::from(report.recovered_slots);
            for session in dead {
                say_recovered(&self.place, session, "its life lock is free", tell);
            }
        }
        let leading = open.session.lead()? == Lead::Leading;
        if leading != open.leading {
            open.leading = leading;
            let text = if leading { "leading" } else { "following" };
            tell.event(text, &format!("{text} in {}", self.place), json!({ "region": self.place.to_string() }));
        }
        if leading && let Some(limit) = self.fence_silent {
            for session in silent_for(&mut open.silent, &sessions, open.session.index(), limit) {
                if open.session.fence(session.index, session.word.epoch())? {
                    self.fenced += 1;
                    say_fenced(&self.place, session, limit, tell);
                }
            }
        }
        Ok(())
    }

    /// The session entry that a peer claims to be; `None` when nobody lives there under that epoch.
    pub(crate) fn claimed(&self, index: u32, epoch: u32) -> Result<Option<SessionInfo>, CallError> {
        let Some(open) = &self.open else { return Ok(None) };
        let there = open.session.sessions()?.into_iter().find(|session| session.index == index);
        Ok(there.filter(|session| session.word.epoch() == epoch && session.word.is(SessionState::Live)))
    }

    /// The kernel says that the process of an announced session is gone.
    pub(crate) fn process_is_gone(&mut self, index: u32, epoch: u32, tell: &Tell) -> Result<(), CallError> {
        let Some(open) = &mut self.open else { return Ok(()) };
        let Some(session) = open
            .session
            .sessions()?
            .into_iter()
            .find(|session| session.index == index && session.word.epoch() == epoch)
        else {
            return Ok(());
        };
        // Memory that is shared by `clone` outlives the process: the life lock decides, and is asked again every turn.
        if session.liveness == Liveness::Alive {
            return Ok(());
        }
        if let Some(slots) = open.session.recover_vouched(index, epoch)? {
            self.recovered += 1;
            self.slots += u64::from(slots);
            say_recovered(&self.place, &session, "its pidfd is readable", tell);
        }
        Ok(())
    }

    /// Fields of a status line.
    pub(crate) fn status(&self) -> Value {
        json!({
            "region": self.place.to_string(),
            "region_id": self.region_id().map(|id| hex(&id)),
            "leading": self.open.as_ref().is_some_and(|open| open.leading),
            "trouble": self.trouble(),
            "sessions_recovered": self.recovered,
            "slots_recovered": self.slots,
            "sessions_fenced": self.fenced,
        })
    }
}

/// Sessions whose heartbeat has stood still for `limit`. Coordinators are left to each other's proofs of death.
fn silent_for<'a>(
    seen: &mut HashMap<u32, (u32, u64, Instant)>,
    sessions: &'a [SessionInfo],
    me: u32,
    limit: Duration,
) -> Vec<&'a SessionInfo> {
    seen.retain(|index, _| sessions.iter().any(|session| session.index == *index));
    sessions
        .iter()
        .filter(|session| {
            let may = session.index != me
                && session.word.is(SessionState::Live)
                && session.liveness != Liveness::Dead
                && session.role != Some(Role::Coordinator);
            let (epoch, beat) = (session.word.epoch(), session.heartbeat);
            let stand = seen.entry(session.index).or_insert((epoch, beat, Instant::now()));
            if (stand.0, stand.1) != (epoch, beat) {
                *stand = (epoch, beat, Instant::now());
            }
            may && stand.2.elapsed() >= limit
        })
        .collect()
}

fn say_recovered(place: &Place, session: &SessionInfo, why: &str, tell: &Tell) {
    tell.event(
        "recovered",
        &format!(
            "recovered session {} of {place}: {}, pid {}, epoch {}: {why}",
            session.index,
            if session.engine.is_empty() { "attaching" } else { &session.engine },
            session.pid,
            session.word.epoch(),
        ),
        json!({
            "region": place.to_string(),
            "session": session.index,
            "epoch": session.word.epoch(),
            "engine": session.engine,
            "pid": session.pid,
            "why": why,
        }),
    );
}

fn say_fenced(place: &Place, session: &SessionInfo, limit: Duration, tell: &Tell) {
    tell.event(
        "fenced",
        &format!(
            "fenced session {} of {place}: {}, pid {}, epoch {}: no heartbeat for {} s",
            session.index,
            session.engine,
            session.pid,
            session.word.epoch(),
            limit.as_secs(),
        ),
        json!({
            "region": place.to_string(),
            "session": session.index,
            "epoch": session.word.epoch(),
            "engine": session.engine,
            "pid": session.pid,
            "silent_seconds": limit.as_secs(),
        }),
    );
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_paths_with_an_optional_partition() {
        let place = |text: &str| text.parse::<Place>();
        assert_eq!(place("/dev/shm/kv"), Ok(Place { path: "/dev/shm/kv".into(), offset: 0, length: None }));
        let part = Place { path: "/dev/dax0.0".into(), offset: 4096, length: Some(8192) };
        assert_eq!(place("/dev/dax0.0@4096+8192"), Ok(part.clone()));
        assert_eq!(part.to_string(), "/dev/dax0.0@4096+8192");
        assert_eq!(place("/shm/a@b").map(|place| place.path), Ok("/shm/a@b".into()));
        assert!(place("/dev/dax0.0@4096+all").unwrap_err().contains("\"all\""));
        assert!(place("").is_err());
    }
}
