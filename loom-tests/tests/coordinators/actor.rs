//! A session, what it does, and the claims that each answer has to keep.

use std::collections::BTreeSet;
use std::sync::Arc;

use maru::layout::STALLED_WRITER_MS;
use maru::layout::word::{LeaseKind, SlotState};
use maru::model::{Claim, Lease, Region, Reserve, Session, key};
use maru::sync::fate;
use maru::{CallError, Commit, Lead, LoadError, Release, Retire};
use maru_loom_tests::{claim, one_in, pick};

use super::books::{End, Ledger, Name};
use super::{KEYS, RECOVERY, SIZE, WAIT};

pub(crate) struct Actor {
    session: Session,
    region: Region,
    ledger: Arc<Ledger>,
}

impl Actor {
    pub(crate) fn new(session: Session, region: &Region, ledger: &Arc<Ledger>) -> Self {
        let actor = Self { session, region: region.clone(), ledger: Arc::clone(ledger) };
        let mut books = actor.ledger.open();
        books.highest_epoch = books.highest_epoch.max(actor.name().1);
        drop(books);
        actor
    }

    /// Attaches at an index whose last holder is gone, and which nobody else wants.
    pub(crate) fn attach(index: u32, region: &Region, ledger: &Arc<Ledger>) -> Self {
        let highest = ledger.open().highest_epoch;
        let session = region.attach(index);
        claim!(session.is_some(), "session {index} is nobody's, and its word is {:?}", region.session_word(index));
        let actor = Self::new(session.expect("just looked"), region, ledger);
        claim!(actor.name().1 > highest, "epoch {} after epoch {highest}", actor.name().1);
        actor
    }

    pub(crate) fn name(&self) -> Name {
        (self.session.index(), self.session.live().epoch())
    }

    /// Whether this session may act; it may not only if somebody fenced it by name.
    pub(crate) fn lives(&self) -> bool {
        let lives = self.session.check().is_ok();
        claim!(lives || self.was_asked_to_go(), "{:?} is shut out, and nobody has fenced it", self.name());
        lives
    }

    fn was_asked_to_go(&self) -> bool {
        self.ledger.open().asked.contains(&self.name())
    }

    /// Some turns of whatever sessions do. Ends early for one that finds itself fenced.
    pub(crate) fn work(&self, turns: u32) {
        for _ in 0..turns {
            if !self.lives() {
                return;
            }
            let number = u64::from(pick(KEYS));
            match pick(8) {
                0..4 => self.store(number),
                4 => self.view(number),
                5 => self.copy(number),
                6 => self.make_room(number),
                _ => {
                    self.session.reclaim();
                }
            }
        }
    }

    /// Reserve, write, commit. A zombie goes on writing: nothing tells it.
    fn store(&self, number: u64) {
        let mut answer = self.session.reserve(&key(number));
        if matches!(answer, Reserve::BeingWritten) && one_in(2) {
            self.ledger.open().impatient = true;
            self.session.wait_ms(STALLED_WRITER_MS.default.into());
            answer = self.session.reserve(&key(number));
        }
        let Reserve::Granted(granted) = answer else { return };
        let value = self.ledger.open().write(granted.slot(), granted.word().generation(), number);
        for _ in 0..=pick(3) {
            self.session.write(&granted, value);
        }
        if one_in(8) {
            claim!(
                self.session.abort(&granted) || !self.lives() || self.ledger.open().impatient,
                "{granted:?} is gone"
            );
            return;
        }
        self.commit(&granted, value);
    }

    /// As the library's: a session that knows it is fenced publishes nothing.
    fn commit(&self, granted: &Claim, value: u64) {
        let fenced_before = self.ledger.open().ended.get(&self.name()) == Some(&End::Fenced);
        let commit = if self.session.check().is_err() { Commit::Fenced } else { self.session.publish(granted, value) };
        let impatient = self.ledger.open().impatient;
        match commit {
            Commit::Stored => {
                claim!(!fenced_before, "{:?} was fenced, and then stored {granted:?}", self.name());
                self.ledger.reached("stored");
            }
            Commit::Fenced => {
                claim!(self.was_asked_to_go(), "{:?}: commit says fenced, and nobody has", self.name());
                self.ledger.reached("commit of a zombie: fenced");
            }
            Commit::Superseded => {
                claim!(impatient, "{:?}: superseded, and nobody's clock has moved", self.name());
                self.ledger.reached("commit of a stalled writer: superseded");
            }
            other => {
                let word = self.region.words()[granted.slot() as usize];
                claim!(false, "{:?}: commit of {granted:?} answers {other:?}, the word is {word:?}", self.name());
            }
        }
    }

    fn acquired(&self, number: u64, kind: LeaseKind) -> Option<(Lease, [u64; 2])> {
        let lease = self.session.acquire(&key(number), kind).ok()?;
        let block = self.ledger.open().block(lease.slot(), lease.word().generation());
        claim!(block.key == number, "asked for {number}, found {block:?}");
        Some((lease, [block.value; 2]))
    }

    /// Reads under a lease that never lapses, twice.
    fn view(&self, number: u64) {
        let Some((lease, wanted)) = self.acquired(number, LeaseKind::View) else { return };
        for _ in 0..=pick(20) {
            let found = self.session.look(&lease);
            claim!(found == wanted, "{:?} looks at {lease:?} and finds {found:?}, not {wanted:?}", self.name());
            let word = self.region.words()[lease.slot() as usize];
            if word.is(SlotState::Retiring) {
                self.ledger.reached("a leased block drains");
            }
        }
        if one_in(3) {
            // Kept for the rest of this life.
            return;
        }
        claim!(self.session.release(&lease) == Release::Released, "{lease:?} was held");
    }

    fn copy(&self, number: u64) {
        let Some((lease, wanted)) = self.acquired(number, LeaseKind::Copy) else { return };
        match self.session.load(&key(number), &lease) {
            Ok(found) => claim!(found == wanted, "{:?} copies {lease:?}: {found:?}, not {wanted:?}", self.name()),
            Err(LoadError::Call(CallError::Fenced { .. })) => {
                claim!(self.was_asked_to_go(), "{:?}: load says fenced, and nobody has", self.name());
            }
            Err(LoadError::Expired) => {}
            Err(other) => claim!(false, "{:?}: load of {lease:?} says {other:?}", self.name()),
        }
        claim!(self.session.release(&lease) == Release::Released, "{lease:?} was held");
    }

    fn make_room(&self, number: u64) {
        if one_in(2) {
            if self.session.retire(&key(number)) == Retire::Draining {
                self.ledger.reached("retired: draining");
            }
        } else if self.session.evict(pick(SIZE.slots), &key(number)) {
            self.ledger.reached("evicted");
            self.store(number);
        }
    }

    /// Leads or follows; `None` for one that is fenced. The word never stays with a life that had ended before it was
    /// asked for.
    pub(crate) fn lead(&self) -> Option<bool> {
        let before = self.ledger.open().ended.clone();
        match self.session.lead() {
            Err(error) => {
                claim!(self.was_asked_to_go(), "{:?}: lead says {error}, and nobody has", self.name());
                None
            }
            Ok(Lead::Leading) => {
                let mut books = self.ledger.open();
                if books.leaders.last() != Some(&self.name()) {
                    let last = books.leaders.last().map(|last| books.ended.get(last).copied());
                    books.leaders.push(self.name());
                    drop(books);
                    match last {
                        None => self.ledger.reached("leads: the first one"),
                        Some(Some(End::Fenced)) => self.ledger.reached("leads: after a fenced one"),
                        Some(Some(End::Died)) => self.ledger.reached("leads: after a dead one"),
                        Some(Some(End::Closed)) => self.ledger.reached("leads: after one that resigned"),
                        Some(Some(End::Vouched)) => self.ledger.reached("leads: after one vouched dead"),
                        // It is about to end, and has not said so yet.
                        Some(None) => {}
                    }
                }
                Some(true)
            }
            Ok(Lead::Follows { index, epoch }) => {
                claim!(index < SIZE.sessions, "{:?} follows nobody", self.name());
                let ended = before.get(&(index, epoch));
                claim!(ended.is_none(), "{:?} follows {:?}, which had ended: {ended:?}", self.name(), (index, epoch));
                self.ledger.reached("follows");
                Some(false)
            }
        }
    }

    /// What a coordinator does: leads, recovers, and shuts out whom it takes for stalled. A drowsy one falls asleep
    /// in the middle of a recovery, for as long as others need to finish it.
    pub(crate) fn coordinate(&self, rounds: u32, drowsy: bool) {
        for _ in 0..rounds {
            let Some(leads) = self.lead() else {
                self.ledger.reached("a coordinator finds itself fenced");
                return;
            };
            if drowsy {
                fate::sleep_at(pick(RECOVERY), pick(WAIT));
            }
            if self.session.recover().0 > 0 {
                self.ledger.reached("recovered");
            }
            if one_in(if leads { 2 } else { 4 }) {
                self.fence(pick(SIZE.sessions - 1));
                self.lead();
            }
        }
    }

    pub(crate) fn fence(&self, index: u32) {
        let epoch = self.region.session_word(index).epoch();
        if index == self.session.index() {
            return;
        }
        self.ledger.open().asked.insert((index, epoch));
        if self.session.fence(index, epoch) {
            self.ledger.open().end((index, epoch), End::Fenced);
            self.ledger.reached("fenced");
        }
    }

    /// An operator's word for a process that this host's kernel cannot prove gone.
    pub(crate) fn vouch(&self, name: Name) {
        let recovered = self.session.vouch(name.0, name.1);
        let word = self.region.session_word(name.0);
        claim!(
            word.epoch() != name.1 || word.is(maru::layout::word::SessionState::Free),
            "vouched for {name:?}, and the entry is {word:?}"
        );
        self.ledger.open().end(name, End::Vouched);
        self.ledger.reached(if recovered.is_some() { "vouched: recovered" } else { "vouched: too late" });
    }

    pub(crate) fn close(self) {
        let name = self.name();
        self.session.close();
        self.ledger.open().end(name, End::Closed);
    }

    pub(crate) fn die(self) {
        let name = self.name();
        self.session.die();
        self.ledger.open().end(name, End::Died);
    }

    pub(crate) fn vanish(self) {
        self.ledger.open().vanished = Some(self.name());
        self.session.vanish();
    }

    /// Last of all: brings everything home that others left.
    pub(crate) fn tidy(&self) {
        self.session.reclaim();
        for index in 0..SIZE.sessions {
            let word = self.region.session_word(index);
            let free = word.is(maru::layout::word::SessionState::Free);
            claim!(free || index == self.session.index(), "everybody is gone, and session {index} is {word:?}");
        }
        let mut keys = BTreeSet::new();
        for (slot, word) in (0..).zip(self.region.words()) {
            if word.is(SlotState::Ready) {
                let block = self.ledger.open().block(slot, word.generation());
                claim!(keys.insert(block.key), "{block:?} is there twice");
                let wanted = [block.value; 2];
                let found = self.region.bytes(slot);
                claim!(found == wanted, "slot {slot} was committed with {wanted:?}, and holds {found:?}");
                claim!(self.session.evict(slot, &key(0)), "nobody is left to read {word:?}, and it cannot be evicted");
                self.ledger.reached("a block is there in the end");
            } else {
                claim!(word.is(SlotState::Free), "everybody is gone, and slot {slot} is {word:?}");
            }
        }
        let words = self.region.words();
        claim!(words.iter().all(|word| word.is(SlotState::Free)), "all was freed, and the words are {words:?}");
    }
}
