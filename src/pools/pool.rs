//! One pool: a region, a session in it, a name, and whether this process may use it.
//!
//! *Scope* is written into the region's pool entry when it is formatted. Who may use a pool:
//!
//! * `domain`: every process that can open it.
//! * `host`: the same, as long as the region is for one host (its memory then is this host's); a region for many hosts is
//!   its formatter's host's alone.
//! * `process`: the process that formatted it through [`Pool::open`], and nobody after that process: a private pool ends with
//!   its process. Its own second handles are known by region id and process ([`MINE`]), so a fork or a restart under the same
//!   process id does not inherit it.
//!
//! Whether a region is another process's is a rule among those who keep it. It is kept before any session verb is called.

use core::fmt;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, PoisonError};

use maru_layout::superblock::{Hosts, SectionKind};
use maru_layout::table::PoolEntry;
use maru_layout::word::FormatWord;

use crate::os::fork::{ProcessTag, hold_off_fork};
use crate::os::identity::HostIdentity;
use crate::os::map::Mapping;
use crate::os::{Backing, BackingFile};
use crate::region::Tables;
use crate::{AttachError, BackingError, Medium, OpenError, OpenOptions, Outcome, Region, Scope, Session};

/// Longest name of a pool, bytes.
const MAX_NAME_BYTES: usize = 64;

/// Regions that this process formatted, and which process "this" was. Locked only while forks are held off.
static MINE: Mutex<Vec<([u8; 16], ProcessTag)>> = Mutex::new(Vec::new());

/// Why this process may not use a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Ineligible {
    /// Its scope is one process, and that is another one.
    PrivateToAnotherProcess,
    /// Its scope is one host, and that is another one.
    OtherHost,
}

impl fmt::Display for Ineligible {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::PrivateToAnotherProcess => "its scope is process, and another process formatted it",
            Self::OtherHost => "its scope is host, and another host formatted it",
        })
    }
}

/// Why a pool could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PoolError {
    /// The name cannot be used.
    #[error("pool name {found:?} has {} bytes, wanted 1 to 64 without control characters", found.len())]
    Name {
        /// The name.
        found: String,
    },
    /// Its region could not be opened.
    #[error("pool {pool}: {source}")]
    Open {
        /// Name of the pool.
        pool: String,
        /// What was wrong.
        source: OpenError,
    },
    /// Its region could not be joined.
    #[error("pool {pool}: {source}")]
    Attach {
        /// Name of the pool.
        pool: String,
        /// What was wrong.
        source: AttachError,
    },
    /// Its region's pool entry says something that no version writes.
    #[error("pool {pool}: pool entry: {field} is {found}, wanted {wanted}")]
    Entry {
        /// Name of the pool.
        pool: String,
        /// Field of the entry.
        field: &'static str,
        /// Value found.
        found: u8,
        /// Values known.
        wanted: &'static str,
    },
}

/// A region that is open, a session in it, and a name; see [`super::Store`].
pub struct Pool {
    name: Arc<str>,
    session: Session,
    region: Region,
    medium: Medium,
    scope: Scope,
    ineligible: Option<Ineligible>,
}

impl Pool {
    /// Opens a region and joins it. `join` makes the session, and says what it does when the pool is full: blocks of a
    /// pool that is joined with [`crate::Evict::Never`] stay, and stores wait for space or go to other pools.
    ///
    /// ```no_run
    /// use maru::{Evict, OpenOptions, Pool, Role, SessionOptions};
    /// let (options, keep) = (OpenOptions::path("/dev/shm/kv"), SessionOptions { evict: Evict::Never, ..Default::default() });
    /// let pool = Pool::open("cpu", options, |region| region.session_with("engine-a", Role::Worker, keep))?;
    /// # Ok::<(), maru::PoolError>(())
    /// ```
    ///
    /// # Errors
    /// As [`Region::open`] and [`Region::session`], with the pool's name; or the name or the region's pool entry cannot be
    /// used.
    pub fn open(
        name: &str,
        options: OpenOptions,
        join: impl FnOnce(&Region) -> Result<Session, AttachError>,
    ) -> Result<Self, PoolError> {
        if name.is_empty() || name.len() > MAX_NAME_BYTES || name.chars().any(char::is_control) {
            return Err(PoolError::Name { found: name.to_owned() });
        }
        let open = |source| PoolError::Open { pool: name.to_owned(), source };
        let offset = options.partition.offset;
        let again = same_backing(&options.backing).map_err(|error| open(error.into()))?;
        let region = Region::open(options).map_err(open)?;
        let entry = pool_entry(&again, offset, &region).map_err(open)?;
        let (medium, scope) = (medium_of(name, &entry)?, scope_of(name, &entry)?);
        let ineligible = eligibility(&region, scope).map_err(|error| open(error.into()))?;
        let session = join(&region).map_err(|source| PoolError::Attach { pool: name.to_owned(), source })?;
        Ok(Self { name: name.into(), session, region, medium, scope, ineligible })
    }

    /// Its name in orders and answers.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its region.
    #[must_use]
    pub fn region(&self) -> &Region {
        &self.region
    }

    /// This process's session in it.
    #[must_use]
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// What it lies in, as written when it was formatted.
    #[must_use]
    pub fn medium(&self) -> Medium {
        self.medium
    }

    /// Who can reach it, as written when it was formatted.
    #[must_use]
    pub fn scope(&self) -> Scope {
        self.scope
    }

    /// Why this process may not use it; `None` when it may.
    #[must_use]
    pub fn ineligible(&self) -> Option<Ineligible> {
        self.ineligible
    }

    pub(super) fn shared_name(&self) -> Arc<str> {
        self.name.clone()
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pool({}, {:?}, {:?}, {:?})", self.name, self.medium, self.scope, self.session)
    }
}

/// The same backing once more: opening the region takes the first.
fn same_backing(backing: &Backing) -> Result<Backing, BackingError> {
    Ok(match backing {
        Backing::Path(path) => Backing::Path(path.clone()),
        Backing::Env => Backing::Env,
        Backing::Fd(descriptor) => {
            let again = descriptor.as_fd().try_clone_to_owned();
            Backing::Fd(again.map_err(|source| BackingError::Io {
                action: "duplicate the descriptor",
                path: crate::os::backing::proc_path(descriptor.as_fd()),
                source,
            })?)
        }
    })
}

/// The pool entry of an open region, read through an open file and a mapping of their own.
fn pool_entry(backing: &Backing, offset: u64, region: &Region) -> Result<PoolEntry, OpenError> {
    let backing = BackingFile::open(backing, false)?;
    let geometry = region.geometry().clone();
    let mapping = Arc::new(Mapping::of(&backing, offset..offset + geometry.header_bytes, false)?);
    let (id, entry) = (geometry.region_id, geometry.offset(SectionKind::Pools) as usize);
    let tables = Tables::new(mapping.clone(), Arc::new(geometry));
    // The place may have changed hands since it was opened.
    if tables.control().format() != FormatWord::ready(&id) {
        return Err(OpenError::Replaced { place: backing.shown_path().display().to_string() });
    }
    let mut bytes = [0; size_of::<PoolEntry>()];
    // SAFETY: the pool table lies in the header, which is mapped (region R1).
    let source = unsafe { mapping.as_ptr().add(entry) };
    // SAFETY: the table has one entry of that many bytes; the target is private.
    unsafe { crate::copy::from_shared(&mut bytes, source) };
    Ok(bytemuck::pod_read_unaligned(&bytes))
}

fn medium_of(pool: &str, entry: &PoolEntry) -> Result<Medium, PoolError> {
    match entry.medium {
        1 => Ok(Medium::Cpu),
        2 => Ok(Medium::Cxl),
        3 => Ok(Medium::Ssd),
        found => {
            let wanted = "1 (cpu), 2 (cxl) or 3 (ssd)";
            Err(PoolError::Entry { pool: pool.to_owned(), field: "medium", found, wanted })
        }
    }
}

fn scope_of(pool: &str, entry: &PoolEntry) -> Result<Scope, PoolError> {
    match entry.scope {
        1 => Ok(Scope::Process),
        2 => Ok(Scope::Host),
        3 => Ok(Scope::Domain),
        found => {
            let wanted = "1 (process), 2 (host) or 3 (domain)";
            Err(PoolError::Entry { pool: pool.to_owned(), field: "scope", found, wanted })
        }
    }
}

fn eligibility(region: &Region, scope: Scope) -> Result<Option<Ineligible>, BackingError> {
    match scope {
        Scope::Domain => Ok(None),
        Scope::Host if region.geometry().hosts == Hosts::One => Ok(None),
        Scope::Host => {
            let here = HostIdentity::current()?.host_id;
            Ok((region.superblock().formatter_host != here).then_some(Ineligible::OtherHost))
        }
        Scope::Process => {
            // So that no child inherits the lock.
            let _held = hold_off_fork();
            let mut mine = MINE.lock().unwrap_or_else(PoisonError::into_inner);
            if region.outcome() == Outcome::Formatted {
                mine.push((region.id(), ProcessTag::current()));
            }
            let known = mine.iter().any(|(id, tag)| *id == region.id() && !tag.is_foreign());
            Ok((!known).then_some(Ineligible::PrivateToAnotherProcess))
        }
    }
}
