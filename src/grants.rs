//! A limit for the CPU memory of all engines of a host: who wants to pin 8 GiB asks for a grant of 8 GiB first.
//!
//! The limit lies in one small file that every engine opens: a region whose slots stand for units of memory and hold
//! nothing. A grant is as many open reservations as it has units. So a grant is exactly as alive as its process: whoever
//! finds no unit free recovers the dead, and their units are free.
//!
//! * H1: The file has one slot for each unit and one for the *turn*, a reservation of one known object that a taker holds
//!   while it takes. A slot is taken as a unit only by who holds a slot as its turn, so units never exceed the limit, even
//!   if a taker that stood still has had its turn taken from it and goes on: it holds the turn's slot, quarantined, meanwhile.
//! * H2: Takers follow each other, so two that want more together than is free do not undo each other for ever.
//! * H3: All or nothing: what was taken of a grant that cannot be completed is given back before the refusal is said.
//! * H4: Nothing here is ever committed, and nothing is evicted.
//!
//! Counted are whole units: a limit rounds down, a grant rounds up.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use maru_layout::PAGE_BYTES;
use maru_layout::geometry::ClassSpec;

use crate::os::identity::random_bytes;
use crate::{
    AttachError, CallError, Format, Namespace, NamespaceError, NamespaceId, ObjectId, OpenError, OpenOptions, Region,
    Reservation, Reserve, ReserveOptions, Role, Session, Why, Wish,
};

/// Most units of a limit: a look for a free slot looks at all of them, and says "none" only when there is none.
pub const MAX_GRANT_UNITS: u64 = 4_095;

/// Processes that can hold grants at a time.
const SESSIONS: u32 = 256;
/// How long a taker waits for its turn.
const TURN_WAIT: Duration = Duration::from_secs(5);
/// Keys tried for one unit; another is needed only where both index buckets of one are full.
const KEYS: u32 = 64;

/// Why there is no grant, or no file of grants.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GrantError {
    /// Not enough is free. Nothing was taken.
    #[error("refused: {need_bytes} bytes needed, {have_bytes} of {limit_bytes} free")]
    Refused {
        /// Bytes asked for, in whole units.
        need_bytes: u64,
        /// Bytes free.
        have_bytes: u64,
        /// Bytes in all.
        limit_bytes: u64,
    },
    /// A grant of nothing was asked for.
    #[error("grant of 0 bytes asked for, wanted at least 1")]
    Empty,
    /// The limit cannot be counted in these units.
    #[error("{field} is {found}, wanted {wanted}")]
    Field {
        /// Which value.
        field: &'static str,
        /// Value found.
        found: u64,
        /// Bound in words.
        wanted: &'static str,
    },
    /// Another process opened the file with another limit or unit.
    #[error("{}: {field} is {theirs} there, {yours} here; one limit is for all", path.display())]
    Differs {
        /// The file.
        path: PathBuf,
        /// Which value.
        field: String,
        /// The file's value.
        theirs: String,
        /// The caller's value.
        yours: String,
    },
    /// Others have been taking grants all the time.
    #[error("busy: others were taking grants for {waited_ms} ms")]
    Busy {
        /// How long this call waited.
        waited_ms: u64,
    },
    /// The file cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The file cannot be joined.
    #[error(transparent)]
    Attach(#[from] AttachError),
    /// The file's namespace cannot be registered.
    #[error(transparent)]
    Namespace(#[from] NamespaceError),
    /// The call cannot be tried.
    #[error(transparent)]
    Call(#[from] CallError),
}

/// What is granted of a limit, by all processes together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GrantUsage {
    /// Bytes in all, in whole units.
    pub limit_bytes: u64,
    /// Bytes of a unit.
    pub unit_bytes: u64,
    /// Bytes granted, or being taken right now.
    pub granted_bytes: u64,
    /// Bytes free.
    pub free_bytes: u64,
}

/// A host's limit, as one process sees it.
///
/// ```
/// use maru::{GrantError, HostGrants};
/// const GIB: u64 = 1 << 30;
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("cpu-grants");
/// let host = HostGrants::open(&path, 32 * GIB, GIB)?;
/// let grant = host.take(24 * GIB)?; // held until it is dropped, or this process ends
/// match host.take(16 * GIB) {
///     Err(GrantError::Refused { need_bytes, have_bytes, .. }) => assert_eq!((need_bytes, have_bytes), (16 * GIB, 8 * GIB)),
///     other => panic!("{other:?}"),
/// }
/// drop(grant);
/// assert_eq!(host.usage()?.free_bytes, 32 * GIB);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct HostGrants {
    session: Session,
    region: Region,
    namespace: NamespaceId,
    units: u64,
    unit_bytes: u64,
}

/// Units that this process holds. Dropping it gives them back.
#[derive(Debug)]
pub struct Grant<'h> {
    units: Vec<Reservation<'h>>,
    unit_bytes: u64,
}

impl Grant<'_> {
    /// Bytes granted: those asked for, in whole units.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.units.len() as u64 * self.unit_bytes
    }
}

impl core::fmt::Debug for HostGrants {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "HostGrants({} units of {} bytes, {:?})", self.units, self.unit_bytes, self.session)
    }
}

impl HostGrants {
    /// Opens the file of grants at `path`, and makes it where there is none. All processes of the host name the same file,
    /// limit and unit; the file is a few megabytes, best on a tmpfs such as `/dev/shm`.
    ///
    /// `limit_bytes` rounds down to whole units of `unit_bytes`; a limit of less than one unit refuses every grant.
    ///
    /// # Errors
    /// [`GrantError::Differs`] names both values where the file has another limit or unit; [`GrantError::Field`] where the
    /// unit is 0 or the limit has more than [`MAX_GRANT_UNITS`] of them; or the file cannot be opened.
    pub fn open(path: &Path, limit_bytes: u64, unit_bytes: u64) -> Result<Self, GrantError> {
        if unit_bytes == 0 {
            return Err(GrantError::Field { field: "unit_bytes", found: 0, wanted: "at least 1" });
        }
        let units = limit_bytes / unit_bytes;
        if units > MAX_GRANT_UNITS {
            return Err(GrantError::Field { field: "limit in units", found: units, wanted: "at most 4095" });
        }
        let config = format!(r#"{{"grants":1,"limit_bytes":{limit_bytes},"unit_bytes":{unit_bytes}}}"#);
        let options = OpenOptions::path(path).format(Format::IfAbsent).config(config).wish(wish(units));
        let region = Region::open(options).map_err(|error| match error {
            OpenError::Config { field, region, yours, .. } => {
                GrantError::Differs { path: path.to_owned(), field, theirs: region, yours }
            }
            other => other.into(),
        })?;
        let slots = region.geometry().slot_count;
        if u64::from(slots) != units + 1 {
            return Err(GrantError::Differs {
                path: path.to_owned(),
                field: "slots".to_owned(),
                theirs: slots.to_string(),
                yours: (units + 1).to_string(),
            });
        }
        let session = region.session("host-grants", Role::Worker)?;
        let namespace = session.namespace(&of_grants())?;
        Ok(Self { session, region, namespace, units, unit_bytes })
    }

    /// Takes `bytes` (rounded up to whole units), all of them or nothing.
    ///
    /// # Errors
    /// [`GrantError::Refused`] says what is needed and what there is; it is said only after the grants of dead processes
    /// came back. [`GrantError::Busy`] when others took grants for five seconds on end.
    pub fn take(&self, bytes: u64) -> Result<Grant<'_>, GrantError> {
        if bytes == 0 {
            return Err(GrantError::Empty);
        }
        let need = bytes.div_ceil(self.unit_bytes);
        if need > self.units {
            let free_bytes = self.usage()?.free_bytes;
            return Err(self.refused(need, free_bytes / self.unit_bytes));
        }
        let deadline = Deadline::new();
        let Some(turn) = self.wait_turn(&deadline)? else { return Err(self.refused(need, 0)) };
        let mut units = Vec::with_capacity(need as usize);
        let mut recovered = false;
        while (units.len() as u64) < need {
            match self.take_unit()? {
                Some(unit) => units.push(unit),
                None if !recovered => {
                    // Whoever is blocked by the dead brings their slots home.
                    self.session.recover_dead()?;
                    recovered = true;
                }
                None => {
                    let have = units.len() as u64;
                    // H3, and before the turn is the next one's.
                    drop(units);
                    drop(turn);
                    return Err(self.refused(need, have));
                }
            }
        }
        Ok(Grant { units, unit_bytes: self.unit_bytes })
    }

    /// What is granted by all processes together, grants of the dead that nobody has missed yet included.
    ///
    /// # Errors
    /// The call cannot be tried.
    pub fn usage(&self) -> Result<GrantUsage, GrantError> {
        let taking = !matches!(self.session.probe(&self.turn())?, crate::Probe::Miss(Why::Absent));
        let usage = self.session.usage()?;
        let taken = usage.capacity_slots - usage.slots[0];
        let granted = u64::from(taken).saturating_sub(taking.into()).min(self.units);
        Ok(GrantUsage {
            limit_bytes: self.units * self.unit_bytes,
            unit_bytes: self.unit_bytes,
            granted_bytes: granted * self.unit_bytes,
            free_bytes: (self.units - granted) * self.unit_bytes,
        })
    }

    fn refused(&self, need: u64, have: u64) -> GrantError {
        GrantError::Refused {
            need_bytes: need.saturating_mul(self.unit_bytes),
            have_bytes: have * self.unit_bytes,
            limit_bytes: self.units * self.unit_bytes,
        }
    }

    fn turn(&self) -> ObjectId {
        ObjectId::new(self.namespace, [0xFF; 32])
    }

    /// The turn (H1), however long others have it. A dead holder's is brought home by asking; that of one that stands
    /// still is taken after the region's bound of stalled writers. `None`: not even that slot is free, so no unit is.
    fn wait_turn(&self, deadline: &Deadline) -> Result<Option<Reservation<'_>>, GrantError> {
        let turn = self.turn();
        let mut recovered = false;
        loop {
            match self.session.reserve(&turn, 1, ReserveOptions::default())? {
                Reserve::Granted(reservation) => return Ok(Some(reservation)),
                // Nothing is committed here (H4); a stranger's block does not stop the host.
                Reserve::Present | Reserve::Refused(Why::LengthMismatch { .. }) => {
                    self.session.retire(&turn)?;
                }
                // Beside all units there are turns of processes that stand still, or are dead.
                Reserve::Refused(Why::NoSpace) if recovered => return Ok(None),
                Reserve::Refused(Why::NoSpace) => {
                    self.session.recover_dead()?;
                    recovered = true;
                    continue;
                }
                Reserve::BeingWritten | Reserve::Contended | Reserve::Refused(_) => {}
            }
            deadline.wait()?;
        }
    }

    /// One unit; `None` when no slot is free.
    fn take_unit(&self) -> Result<Option<Reservation<'_>>, GrantError> {
        for _ in 0..KEYS {
            let object = self.unit_key();
            match self.session.reserve(&object, 1, ReserveOptions::default())? {
                Reserve::Granted(reservation) => return Ok(Some(reservation)),
                Reserve::Refused(Why::NoSpace) => return Ok(None),
                // Another key has other buckets and no twins.
                _ => {}
            }
        }
        Ok(None)
    }

    /// A key of nobody's. Not one that lies in the turn's buckets: however many units are taken, the turn has a place.
    fn unit_key(&self) -> ObjectId {
        let geometry = self.region.geometry();
        let place = |object: &ObjectId| object.key().place(geometry.hash_seed, geometry.bucket_count);
        let turn = place(&self.turn());
        let own = [turn.first, turn.second];
        for _ in 0..KEYS {
            let object = ObjectId::new(self.namespace, random_bytes());
            let place = place(&object);
            if !own.contains(&place.first) && !own.contains(&place.second) {
                return object;
            }
        }
        // So few buckets that all are the turn's, and so few units that they fit beside it.
        ObjectId::new(self.namespace, random_bytes())
    }
}

/// A taker that stops in the middle, for tests.
#[cfg(test)]
impl HostGrants {
    pub(crate) fn stop_within_take(&self) -> Result<(Reservation<'_>, Reservation<'_>), GrantError> {
        let turn = self.wait_turn(&Deadline::new())?.expect("a free slot");
        let first = self.take_unit()?;
        Ok((turn, first.expect("a free unit")))
    }

    pub(crate) fn unit_within_take(&self) -> Result<Option<Reservation<'_>>, GrantError> {
        self.take_unit()
    }
}

/// A region of `units + 1` slots of one line each.
fn wish(units: u64) -> Wish {
    let slots = units as u32 + 1;
    // A session has an entry and an area; a slot has a record, tokens, a share of the index and its line.
    let size = (u64::from(SESSIONS) * (PAGE_BYTES + 512) + u64::from(slots) * 512 + (1 << 20)).div_ceil(PAGE_BYTES);
    Wish {
        size_bytes: Some(size * PAGE_BYTES),
        classes: vec![ClassSpec { slot_bytes: 64, slots: Some(slots) }],
        sessions: Some(SESSIONS),
        session_area_bytes: Some(PAGE_BYTES as u32),
        namespaces: Some(1),
        name: "grants".to_owned(),
        ..Wish::default()
    }
}

fn of_grants() -> Namespace {
    let none = "none";
    Namespace::new()
        .tenant("maru-host-grants")
        .model(none)
        .revision("1")
        .adapter(none)
        .dtype(none)
        .quantization(none)
        .geometry(none)
        .storage_format("grants-1")
        .block_tokens(1)
        .parallel(none)
        .hash_algorithm(none)
        .hash_seed(none)
}

/// A bounded wait with growing naps.
struct Deadline {
    start: Instant,
}

impl Deadline {
    fn new() -> Self {
        Self { start: Instant::now() }
    }

    fn wait(&self) -> Result<(), GrantError> {
        let waited = self.start.elapsed();
        if waited >= TURN_WAIT {
            return Err(GrantError::Busy { waited_ms: waited.as_millis() as u64 });
        }
        // Short while turns change hands quickly, longer behind one that stands still.
        std::thread::sleep((waited / 8).clamp(Duration::from_micros(100), Duration::from_millis(5)));
        Ok(())
    }
}
