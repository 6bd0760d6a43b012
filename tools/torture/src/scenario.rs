//! What is played: a victim's operation, what lies around it, and what must go on afterwards.
//!
//! | file | operations |
//! | --- | --- |
//! | `scenario/life.rs` | attach, close, heartbeat, namespaces, fencing, recovery |
//! | `scenario/store.rs` | reserve to commit, twins, full buckets, full regions |
//! | `scenario/load.rs` | acquire to release, retire, reclaim, damage |
//! | `scenario/format.rs` | making regions |

mod format;
mod life;
mod load;
mod store;

use anyhow::{Context, Result};
use maru::{
    CallError, Format, Lead, LoadError, NamespaceError, NamespaceId, OpenError, Region, Role, Session, WriteError,
};

use crate::actor::{Actor, NotGranted};
use crate::stage::Stage;
use crate::steps::{Action, Step};
use crate::world::{Keys, Lies, Place, Shape, Stored, namespace, object, store};

/// Who else is there when the victim dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Set {
    /// Nobody: somebody attaches later and must manage alone.
    None,
    /// A session that was attached before and did nothing.
    Idle,
    /// A session that wants the very thing that the victim holds, from before its death.
    Blocked,
    /// A session that holds leases and reads.
    Reading,
    /// The victim is not killed but stopped at the step; it is fenced, others go on, then it wakes.
    Fenced,
}

impl Set {
    pub(crate) const ALL: [Self; 5] = [Self::None, Self::Idle, Self::Blocked, Self::Reading, Self::Fenced];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Idle => "idle",
            Self::Blocked => "blocked",
            Self::Reading => "reading",
            Self::Fenced => "fenced",
        }
    }

    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|set| set.name() == name)
    }
}

/// What a process of a case does; it opens everything itself.
pub(crate) type Work = fn(&mut Actor<'_>) -> Result<()>;

/// What the parent does.
pub(crate) type Act = fn(&mut Stage) -> Result<()>;

/// A block's number among the keys of a region.
pub(crate) type Pick = fn(&Keys) -> u64;

/// When a partner is in position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Until {
    /// It said so and waits for "go".
    Ready,
    /// It was stopped at its step.
    Stopped,
    /// It was killed at its step.
    Dead,
}

/// Another process that is there first.
#[derive(Clone, Copy)]
pub(crate) struct Partner {
    pub(crate) work: Work,
    pub(crate) at: Option<(Step, u64)>,
    pub(crate) until: Until,
}

impl Partner {
    /// One that waits for "go".
    pub(crate) const fn ready(work: Work) -> Self {
        Self { work, at: None, until: Until::Ready }
    }

    /// One that stands still at a step.
    pub(crate) const fn stopped(work: Work, step: Step) -> Self {
        Self { work, at: Some((step, 1)), until: Until::Stopped }
    }

    /// One that died at a step and has not been recovered.
    pub(crate) const fn dead(work: Work, step: Step) -> Self {
        Self { work, at: Some((step, 1)), until: Until::Dead }
    }

    pub(crate) fn action(&self) -> Action {
        if self.until == Until::Stopped { Action::Stop } else { Action::Kill }
    }
}

/// What must succeed after the death, within the published bound.
#[derive(Clone, Copy)]
pub(crate) enum Contest {
    /// Store this block.
    Store(Pick),
    /// Shut out the session at entry 0, and store this block of its.
    Outlast(Pick),
    /// Register this namespace.
    Register(&'static str),
    /// Become one session more.
    Attach,
    /// Lead the coordinators.
    Lead,
    /// Vouch again, until nothing is quarantined.
    Vouch,
    /// Retire this block and get its space back.
    Drain(Pick),
    /// Open the region (making it if need be), join, store and read back.
    Open,
}

/// What a scenario leaves behind beyond the usual.
#[derive(Clone, Copy, Default)]
pub(crate) struct Allowed {
    /// Slots that may end up quarantined for good (damaged content, a device that nobody vouches for).
    pub(crate) quarantined: u32,
    /// Blocks that may have been evicted to make room in a bucket.
    pub(crate) evicted: u32,
}

/// A scenario.
#[derive(Clone)]
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    pub(crate) shape: Shape,
    /// Runs in the parent, in a session of its own, before anybody else is there.
    pub(crate) prepare: Option<Act>,
    pub(crate) partners: Vec<Partner>,
    /// The victim first stops here, then this runs in the parent, then the victim goes on to its step.
    pub(crate) interlude: Option<(Step, Act)>,
    pub(crate) victim: Work,
    pub(crate) contest: Contest,
    pub(crate) sets: &'static [Set],
    pub(crate) allowed: Allowed,
    /// Steps at which a fenced victim still holds what the contest wants until it is proven gone (design, 9).
    pub(crate) holds_when_fenced: &'static [Step],
    /// No region is there beforehand.
    pub(crate) unformatted: bool,
    /// Partners that die do so before the victim attaches; otherwise after, since whoever attaches recovers them.
    pub(crate) dies_first: bool,
}

impl Scenario {
    fn new(name: &'static str, about: &'static str, victim: Work) -> Self {
        Self {
            name,
            about,
            shape: Shape::USUAL,
            prepare: None,
            partners: Vec::new(),
            interlude: None,
            victim,
            contest: Contest::Store(|keys| keys.k),
            sets: &Set::ALL,
            allowed: Allowed::default(),
            holds_when_fenced: &[],
            unformatted: false,
            dies_first: false,
        }
    }

    fn prepare(mut self, prepare: Act) -> Self {
        self.prepare = Some(prepare);
        self
    }

    fn partner(mut self, partner: Partner) -> Self {
        self.partners.push(partner);
        self
    }

    fn interlude(mut self, step: Step, act: Act) -> Self {
        self.interlude = Some((step, act));
        self
    }

    fn contest(mut self, contest: Contest) -> Self {
        self.contest = contest;
        self
    }

    fn sets(mut self, sets: &'static [Set]) -> Self {
        self.sets = sets;
        self
    }

    fn stalled_ms(mut self, stalled_ms: u32) -> Self {
        self.shape.stalled_ms = stalled_ms;
        self
    }

    fn sessions(mut self, sessions: u32) -> Self {
        self.shape.sessions = sessions;
        self
    }

    fn lies(mut self, lies: Lies) -> Self {
        self.shape.lies = lies;
        self
    }

    fn quarantined(mut self, quarantined: u32) -> Self {
        self.allowed.quarantined = quarantined;
        self
    }

    fn evicted(mut self, evicted: u32) -> Self {
        self.allowed.evicted = evicted;
        self
    }

    fn evicts(mut self) -> Self {
        self.shape.evicts = true;
        self
    }

    fn budget(mut self, slots: u32) -> Self {
        self.shape.budget = Some(slots);
        self
    }

    fn holds_when_fenced(mut self, steps: &'static [Step]) -> Self {
        self.holds_when_fenced = steps;
        self
    }

    fn dies_first(mut self) -> Self {
        self.dies_first = true;
        self
    }

    fn unformatted(mut self) -> Self {
        self.unformatted = true;
        self
    }
}

/// All scenarios.
pub(crate) fn all() -> Vec<Scenario> {
    let mut all = life::scenarios();
    all.extend(store::scenarios());
    all.extend(load::scenarios());
    all.extend(format::scenarios());
    all
}

/// Names of the formatting scenarios.
pub(crate) fn is_formatting(scenario: &Scenario) -> bool {
    scenario.name.starts_with("format")
}

/// How one try of a contest went.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Attempt {
    Done,
    Again(String),
}

/// A survivor's place in the contest, and what it took on the way.
pub(crate) struct Contestant {
    place: Place,
    region: Option<Region>,
    session: Option<Session>,
    more: Vec<Session>,
    retired: bool,
}

impl Contestant {
    /// One that has not opened anything.
    pub(crate) fn outside(place: &Place) -> Self {
        Self { place: place.clone(), region: None, session: None, more: Vec::new(), retired: false }
    }

    /// One that is attached.
    pub(crate) fn attached(place: &Place) -> Result<Self> {
        let mut contestant = Self::outside(place);
        contestant.attach()?;
        Ok(contestant)
    }

    fn attach(&mut self) -> Result<()> {
        if self.session.is_none() {
            let region = self.place.open(Format::Never)?;
            self.session = Some(self.place.session(&region, "survivor", Role::Worker)?);
            self.region = Some(region);
        }
        Ok(())
    }

    pub(crate) fn session(&self) -> Result<&Session> {
        self.session.as_ref().context("not attached")
    }

    /// Keys and namespace of the region.
    pub(crate) fn keys(&self) -> Result<(NamespaceId, Keys)> {
        let id = self.place.main_namespace(self.session()?)?;
        Ok((id, Keys::of(self.region.as_ref().context("not open")?.geometry(), &id)))
    }

    /// One try.
    pub(crate) fn attempt(&mut self, contest: Contest) -> Result<Attempt> {
        let slot_bytes = self.place.shape.slot_bytes;
        let again = |why: &str| Ok(Attempt::Again(why.to_owned()));
        match contest {
            Contest::Open => {
                if self.session.is_none() {
                    let region = self.place.open(Format::IfAbsent)?;
                    self.session = Some(self.place.session(&region, "survivor", Role::Worker)?);
                    self.region = Some(region);
                }
                let (id, keys) = self.keys()?;
                match store(self.session()?, id, keys.k, slot_bytes)? {
                    Stored::Yes => Ok(Attempt::Done),
                    Stored::NotNow(why) => again(why),
                }
            }
            Contest::Attach => {
                self.attach()?;
                match self.region.as_ref().context("not open")?.session("one more", Role::Worker) {
                    Ok(session) => {
                        self.more.push(session);
                        Ok(Attempt::Done)
                    }
                    Err(maru::AttachError::Full { .. }) => again("full"),
                    Err(error) => Err(error.into()),
                }
            }
            Contest::Lead => {
                self.attach()?;
                match self.session()?.lead()? {
                    Lead::Leading => Ok(Attempt::Done),
                    Lead::Follows { .. } => again("another one leads"),
                }
            }
            Contest::Vouch => {
                self.attach()?;
                let session = self.session()?;
                session.recover_dead()?;
                session.devices_drained()?;
                let left = session.usage()?.slots[maru::layout::word::SlotState::Quarantined as usize];
                if left == 0 { Ok(Attempt::Done) } else { again("quarantined") }
            }
            Contest::Store(pick) => {
                self.attach()?;
                let (id, keys) = self.keys()?;
                match store(self.session()?, id, pick(&keys), slot_bytes)? {
                    Stored::Yes => Ok(Attempt::Done),
                    Stored::NotNow(why) => again(why),
                }
            }
            Contest::Outlast(pick) => {
                self.attach()?;
                let session = self.session()?;
                for epoch in 1..session.epoch() {
                    session.fence(0, epoch)?;
                }
                let (id, keys) = self.keys()?;
                match store(self.session()?, id, pick(&keys), slot_bytes)? {
                    Stored::Yes => Ok(Attempt::Done),
                    Stored::NotNow(why) => again(why),
                }
            }
            Contest::Register(tag) => {
                self.attach()?;
                match self.session()?.namespace(&namespace(tag)) {
                    Ok(_) => Ok(Attempt::Done),
                    Err(NamespaceError::Busy { .. }) => again("busy"),
                    Err(error) => Err(error.into()),
                }
            }
            Contest::Drain(pick) => {
                self.attach()?;
                let (id, keys) = self.keys()?;
                let session = self.session()?;
                if !self.retired {
                    session.retire(&object(id, pick(&keys)))?;
                    self.retired = true;
                }
                let session = self.session()?;
                let report = session.reclaim()?;
                let retiring = session.usage()?.slots[maru::layout::word::SlotState::Retiring as usize];
                if report.draining_slots == 0 && retiring == 0 { Ok(Attempt::Done) } else { again("draining") }
            }
        }
    }

    /// Leaves. Everything taken on the way must be free by now.
    pub(crate) fn close(self) -> Result<()> {
        for session in self.more.into_iter().chain(self.session) {
            session.close().map_err(|(held, _)| held)?;
        }
        Ok(())
    }
}

/// Whether an error is one of the library's own answers: what a process that was fenced, superseded or outpaced may
/// be told.
pub(crate) fn is_typed(error: &anyhow::Error) -> bool {
    error.is::<CallError>()
        || error.is::<LoadError>()
        || error.is::<WriteError>()
        || error.is::<NamespaceError>()
        || error.is::<maru::AttachError>()
        || error.is::<OpenError>()
        || error.is::<NotGranted>()
}
