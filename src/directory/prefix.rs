//! Answering for the keys of a whole request at once.
//!
//! One key costs two dependent misses, bucket and identity line. A request has a hundred keys and knows them all. So
//! they go through three stations, a group at a time: where the bucket lies, and asking for it; what the bucket says,
//! and asking for the record that it names; whether the record is the object. While a group stands at one station, the
//! next group stands at the one before, and no station waits for a line that was not asked for a whole group earlier.
//!
//! The bucket's line alone decides most misses. A hit is decided by the record that the bucket named a moment ago;
//! whatever else is found there sends the key through the ordinary look, from the beginning.

use core::ops::ControlFlow;

use maru_layout::object::{Home, Homes, ObjectKey};
use maru_layout::word::{IndexEntry, SlotState, TAG_BITS};

use crate::directory::Sighting;
use crate::engine::Engine;
use crate::regime::Regime;
use crate::slot::identity_words;
use crate::sync::Ordering;
use crate::{ObjectId, Why};

/// Keys at one station: about as many lines as a processor can have under way.
const GROUP: usize = if cfg!(maru_loom) { 1 } else { 16 };
const STATIONS: usize = 3;

/// A key on its way.
#[derive(Clone, Copy)]
struct Traveller {
    home: Home,
    named: Named,
}

/// What a bucket says about a key.
#[derive(Clone, Copy)]
enum Named {
    /// There is no such object.
    Nothing,
    /// This entry may be it.
    Entry(IndexEntry),
    /// Not for this line to say.
    Unclear,
}

const NOBODY: Traveller = Traveller { home: Home { first: 0, tag: 0 }, named: Named::Unclear };

impl<R: Regime> Engine<R> {
    /// Looks for each object, and gives its number and the answer to `visit`, in order, until that breaks.
    #[inline]
    pub(crate) fn find_each(
        &self,
        objects: &[ObjectId],
        mut visit: impl FnMut(usize, Result<Sighting, Why>) -> ControlFlow<()>,
    ) {
        let Some(first) = objects.first() else { return };
        let geometry = self.tables.geometry();
        let homes_of = |digest: &[u8; 16]| Homes::new(digest, geometry.hash_seed, geometry.bucket_count);
        let mut digest = first.namespace.digest;
        let mut homes = homes_of(&digest);
        let mut stations = [[NOBODY; GROUP]; STATIONS];
        let group = |number: usize| objects.chunks(GROUP).nth(number).unwrap_or(&[]);
        for turn in 0..objects.len().div_ceil(GROUP) + STATIONS - 1 {
            for (traveller, object) in stations[turn % STATIONS].iter_mut().zip(group(turn)) {
                if object.namespace.digest != digest {
                    digest = object.namespace.digest;
                    homes = homes_of(&digest);
                }
                traveller.home = homes.home(&object.prefix, object.shard, object.part);
                self.tables.prefetch_bucket(traveller.home.first);
            }
            let Some(behind) = turn.checked_sub(1) else { continue };
            for (traveller, _) in stations[behind % STATIONS].iter_mut().zip(group(behind)) {
                traveller.named = self.named(traveller.home);
                if let Named::Entry(entry) = traveller.named {
                    self.tables.prefetch_slot(entry.slot());
                }
            }
            let Some(last) = turn.checked_sub(2) else { continue };
            for (at, (traveller, object)) in stations[last % STATIONS].iter().zip(group(last)).enumerate() {
                if visit(last * GROUP + at, self.settled(traveller, &object.key())).is_break() {
                    return;
                }
            }
        }
    }

    /// Looks for one key: the same, without company.
    #[inline]
    pub(crate) fn find_one(&self, key: &ObjectKey) -> Result<Sighting, Why> {
        let geometry = self.tables.geometry();
        let home = key.home(geometry.hash_seed, geometry.bucket_count);
        self.settled(&Traveller { home, named: self.named(home) }, key)
    }

    /// The number of leading objects that are ready.
    pub(crate) fn leading_run(&self, objects: &[ObjectId]) -> usize {
        let mut run = 0;
        self.find_each(objects, |_, answer| match answer {
            Ok(_) => {
                run += 1;
                ControlFlow::Continue(())
            }
            Err(_) => ControlFlow::Break(()),
        });
        run
    }

    /// What the first bucket of a key says. Its entries are looked at all together, without a branch for each.
    #[inline]
    fn named(&self, home: Home) -> Named {
        // An empty way looks like an entry of tag 0.
        if home.tag == 0 {
            return Named::Unclear;
        }
        let bucket = self.tables.bucket(home.first);
        let mut named = 0;
        for cell in &bucket.entries {
            // ORDERING: Acquire: reader's end of [entry], and before the mark below, as in `scan` (I3).
            let entry = cell.load(Ordering::Acquire);
            let alike = (entry ^ u64::from(home.tag)) & ((1 << TAG_BITS) - 1) == 0;
            named = if alike { entry } else { named };
        }
        if named != 0 {
            return Named::Entry(IndexEntry(named));
        }
        // ORDERING: Acquire, and after the Acquire loads of the entries (I3), as in `scan`.
        if bucket.mark.load(Ordering::Acquire) == 0 { Named::Nothing } else { Named::Unclear }
    }

    #[inline]
    fn settled(&self, traveller: &Traveller, key: &ObjectKey) -> Result<Sighting, Why> {
        if matches!(traveller.named, Named::Nothing) {
            return Err(Why::Absent);
        }
        let wanted = identity_words(key, 0);
        if let Named::Entry(entry) = traveller.named
            && let Some(sighting) = self.sight(entry, &wanted)
            && sighting.word.is(SlotState::Ready)
        {
            return Ok(sighting);
        }
        self.find_ready(&traveller.home, &wanted)
    }
}
