//! The parent's side of a case: the region's place, what is known about its blocks, and what the parent itself holds.

use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use maru::layout::image::Image;
use maru::layout::word::{SlotState, SlotWord};
use maru::{Format, LeaseHandle, NamespaceId};

use crate::actor::Joined;
use crate::scenario::Scenario;
use crate::world::{Lies, PARTITION_OFFSET, Place, REGION_BYTES, Shape, Stored, content, namespace, object, store};

/// Numbers from here on name blocks of the namespace [`VOLATILE`], under the id it had at first.
pub(crate) const VOLATILE_FROM: u64 = 1 << 40;
/// A second namespace, for scenarios that invalidate one.
pub(crate) const VOLATILE: &str = "volatile";

/// What is known about a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    /// Committed and not retired: it must be there, byte for byte.
    Must,
    /// An operation on it was under way: there or not, but never wrong.
    May,
    /// The library has said that it is not there any more.
    Gone,
    /// Its bytes were damaged on purpose: a typed miss, and never wrong bytes.
    Damaged,
    /// May be evicted to make room, as long as not too many are.
    Evictable,
}

/// Known fates.
#[derive(Debug, Clone, Default)]
pub(crate) struct Model {
    pub(crate) fates: BTreeMap<u64, Fate>,
    /// Things that must never be, as said by processes of the case.
    pub(crate) wrong: Vec<String>,
}

impl Model {
    /// Takes in a line of an actor; false when it is none of the lines that say something about blocks.
    pub(crate) fn take(&mut self, line: &str) -> bool {
        let Some((word, rest)) = line.split_once(' ') else { return false };
        let fate = match word {
            "may" => Fate::May,
            "must" => Fate::Must,
            "gone" => Fate::Gone,
            "evictable" => Fate::Evictable,
            "wrong" => {
                self.wrong.push(rest.to_owned());
                return true;
            }
            _ => return false,
        };
        let Ok(number) = rest.parse() else { return false };
        self.fates.insert(number, fate);
        true
    }
}

/// One case's place and knowledge.
pub(crate) struct Stage {
    pub(crate) place: Place,
    pub(crate) model: Model,
    /// A session of the parent, with leases given away as handles.
    pub(crate) hold: Option<(Joined, Vec<LeaseHandle>)>,
    /// The id that [`VOLATILE`] had at first.
    pub(crate) volatile: Option<NamespaceId>,
    /// A region in the same file that nobody of this case touches.
    pub(crate) neighbour: Option<Place>,
    directory: PathBuf,
    _memfd: Option<OwnedFd>,
}

impl Stage {
    /// An empty folder, a place in it, and the region unless the scenario makes it itself.
    pub(crate) fn new(directory: &Path, scenario: &Scenario) -> Result<Self> {
        let _ = std::fs::remove_dir_all(directory);
        std::fs::create_dir_all(directory).with_context(|| format!("make {}", directory.display()))?;
        let shape = scenario.shape;
        let path = directory.join("region");
        let mut place = Place { path: path.clone(), offset: 0, memfd: None, shape };
        let (mut neighbour, mut memfd) = (None, None);
        match shape.lies {
            Lies::File => {}
            Lies::Partition => {
                let file = std::fs::File::create(&path).context("make the file")?;
                file.set_len(PARTITION_OFFSET + REGION_BYTES).context("size the file")?;
                place.offset = PARTITION_OFFSET;
                neighbour = Some(neighbour_of(&path)?);
            }
            Lies::Memfd => {
                let fd = make_memfd()?;
                place.memfd = Some(fd.as_raw_fd());
                memfd = Some(fd);
            }
        }
        let mut stage = Self {
            place,
            model: Model::default(),
            hold: None,
            volatile: None,
            neighbour,
            directory: directory.to_owned(),
            _memfd: memfd,
        };
        if !scenario.unformatted {
            let joined = Joined::of(&stage.place, stage.place.open(Format::IfAbsent)?, "prepare")?;
            let numbers = joined.keys.base.clone();
            stage.store_all(&joined, &numbers)?;
            joined.session.close().map_err(|(held, _)| held)?;
        }
        Ok(stage)
    }

    /// A place that is there already, with what is known about its blocks.
    pub(crate) fn of(place: Place, directory: &Path, model: Model) -> Self {
        Self {
            place,
            model,
            hold: None,
            volatile: None,
            neighbour: None,
            directory: directory.to_owned(),
            _memfd: None,
        }
    }

    /// A session of the parent.
    pub(crate) fn join(&self) -> Result<Joined> {
        Joined::of(&self.place, self.place.open(Format::Never)?, "parent")
    }

    /// Commits blocks; from then on they must be there.
    pub(crate) fn store_all(&mut self, joined: &Joined, numbers: &[u64]) -> Result<()> {
        for number in numbers {
            match store(&joined.session, joined.id, *number, joined.slot_bytes)? {
                Stored::Yes => self.model.fates.insert(*number, Fate::Must),
                Stored::NotNow(why) => bail!("block {number} cannot be stored: {why}"),
            };
        }
        Ok(())
    }

    /// The object of a number, in whichever namespace it belongs to.
    pub(crate) fn object(&self, id: NamespaceId, number: u64) -> maru::ObjectId {
        match self.volatile {
            Some(volatile) if number >= VOLATILE_FROM => object(volatile, number),
            _ => object(id, number),
        }
    }

    /// Registers [`VOLATILE`] and commits two blocks in it.
    pub(crate) fn make_volatile(&mut self) -> Result<()> {
        let joined = self.join()?;
        let id = joined.session.namespace(&namespace(VOLATILE))?;
        self.volatile = Some(id);
        for number in [VOLATILE_FROM + 1, VOLATILE_FROM + 2] {
            let stored = store(&joined.session, id, number, joined.slot_bytes)?;
            anyhow::ensure!(stored == Stored::Yes, "block of the volatile namespace: {stored:?}");
            self.model.fates.insert(number, Fate::Must);
        }
        joined.session.close().map_err(|(held, _)| held)?;
        Ok(())
    }

    /// Ends the generation of [`VOLATILE`], as somebody does who then dies before retiring what was in it.
    pub(crate) fn end_volatile(&mut self) -> Result<()> {
        self.make_volatile()?;
        let joined = self.join()?;
        joined.session.invalidate(self.volatile.context("it was just made")?)?;
        for (number, fate) in &mut self.model.fates {
            if *number >= VOLATILE_FROM {
                *fate = Fate::Gone;
            }
        }
        joined.session.close().map_err(|(held, _)| held)?;
        Ok(())
    }

    /// Gives back what the parent holds.
    pub(crate) fn let_go(&mut self) -> Result<()> {
        if let Some((joined, handles)) = self.hold.take() {
            for handle in handles {
                if let Err(error) = still_protected(&self.place, &handle) {
                    self.model.wrong.push(format!("{error:#}"));
                }
                joined.session.release(handle)?;
            }
            joined.session.close().map_err(|(held, _)| held)?;
        }
        Ok(())
    }

    /// Names in the folder besides the region's.
    pub(crate) fn litter(&self) -> Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in std::fs::read_dir(&self.directory).context("list the folder")? {
            let name = entry.context("list the folder")?.file_name().to_string_lossy().into_owned();
            if name != "region" {
                names.push(name);
            }
        }
        Ok(names)
    }
}

/// Whether the slot under a lease is still in the life that was leased: ready, or waiting for its readers.
pub(crate) fn still_protected(place: &Place, handle: &LeaseHandle) -> Result<()> {
    let bytes = place.bytes()?;
    let image = Image::read(&bytes).context("the superblock")?;
    let slot = slot_of(handle);
    let generation = u64::from_le_bytes(*handle.to_bytes()[16..].first_chunk().context("eight bytes")?);
    let word = SlotWord(image.record(slot).context("a leased slot")?.identity.word);
    let same = word.generation() == generation && (word.is(SlotState::Ready) || word.is(SlotState::Retiring));
    anyhow::ensure!(same, "slot {slot} is leased at generation {generation}, and its word is {word:?}");
    Ok(())
}

/// The slot that a lease protects.
pub(crate) fn slot_of(handle: &LeaseHandle) -> u32 {
    let plain = handle.to_bytes();
    u32::from_le_bytes([plain[12], plain[13], plain[14], plain[15]])
}

/// Makes a region in the first part of a file. By descriptor, so that it is filled in where it is: a blank file with a
/// name would be replaced whole.
fn neighbour_of(path: &Path) -> Result<Place> {
    let place = Place { path: path.to_owned(), offset: 0, memfd: None, shape: Shape::USUAL };
    let file = std::fs::OpenOptions::new().read(true).write(true).open(path).context("open the file")?;
    let options = maru::OpenOptions::descriptor(file.into())
        .format(Format::IfAbsent)
        .wish(place.options(Format::IfAbsent)?.wish)
        .partition(0, Some(REGION_BYTES));
    let joined = Joined::of(&place, maru::Region::open(options)?, "neighbour")?;
    for number in joined.keys.base.clone() {
        let stored = store(&joined.session, joined.id, number, joined.slot_bytes)?;
        anyhow::ensure!(stored == Stored::Yes, "the neighbour's block {number}: {stored:?}");
    }
    joined.session.close().map_err(|(held, _)| held)?;
    Ok(place)
}

/// Whether the neighbour's blocks are as they were.
pub(crate) fn neighbour_is_whole(place: &Place) -> Result<()> {
    let region = place.open(Format::Never)?;
    let reader = region.reader();
    let id = reader.namespace(&namespace(crate::world::MAIN))?.context("the neighbour's namespace is gone")?;
    let keys = crate::world::Keys::of(region.geometry(), &id);
    for number in keys.base {
        let bytes = reader.read(&object(id, number))?;
        anyhow::ensure!(bytes == content(number, place.shape.slot_bytes), "the neighbour's block {number} has changed");
    }
    Ok(())
}

fn make_memfd() -> Result<OwnedFd> {
    use std::os::fd::FromRawFd;
    // SAFETY: a constant, terminated name.
    let fd = unsafe { libc::memfd_create(c"maru-torture".as_ptr(), 0) };
    anyhow::ensure!(fd >= 0, "memfd_create: {}", std::io::Error::last_os_error());
    // SAFETY: the descriptor was made above and belongs to nobody else.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    std::fs::File::from(fd.try_clone().context("duplicate the memfd")?)
        .set_len(REGION_BYTES)
        .context("size the memfd")?;
    Ok(fd)
}
