//! What is left of a block that went: why, by whom and when, said once by whoever took it away; and what a lookup says of
//! one that was set aside.

use std::os::unix::fs::FileExt;

use maru_layout::farewell::{Cause, FarewellWord, farewell_second};
use maru_layout::image::Image;
use maru_layout::superblock::SectionKind;
use maru_layout::word::{Owner, SessionState, SessionWord, SlotState, SlotWord};

use super::{Scratch, namespace, object, payload, store};
use crate::{
    Batch, LeaseHandle, NamespaceId, ObjectId, Probe, Region, Release, Reserve, ReserveOptions, Retire, Role, Session,
    Verify, Why, Wish,
};

const BLOCK: usize = 4096;
/// An entry of the session table that nobody has.
const NOBODY: u32 = 7;

struct Scene {
    scratch: Scratch,
    region: Region,
    session: Session,
    ns: NamespaceId,
}

impl Scene {
    fn new() -> Self {
        let scratch = Scratch::new();
        let region = scratch.region(Wish::of_slots(1 << 20, BLOCK as u64));
        let session = region.session("a", Role::Worker).expect("attach");
        let ns = session.namespace(&namespace("t")).expect("namespace");
        Self { scratch, region, session, ns }
    }

    fn object(&self, number: u64) -> ObjectId {
        object(self.ns, number)
    }

    fn store(&self, number: u64) {
        assert_eq!(store(&self.session, &self.object(number), &payload(number, BLOCK)), "stored", "{number}");
    }

    fn hit(&self, number: u64) -> bool {
        self.session.probe(&self.object(number)).expect("probe").is_hit()
    }

    fn bytes(&self) -> Vec<u8> {
        std::fs::read(self.scratch.path("region")).expect("read")
    }

    /// What the table says of a block, in the second named, if that lies between formatting and now.
    fn said(&self, object: &ObjectId) -> Option<(Cause, Option<u32>)> {
        let bytes = self.bytes();
        let image = Image::read(&bytes).expect("sound");
        let geometry = image.geometry();
        let place = object.key().farewell(geometry.hash_seed, geometry.farewell_count);
        let word = image.farewell(place.index).expect("within the table");
        if !word.may_be_of(place.tag) {
            return None;
        }
        assert!(word.second() <= farewell_second(geometry.formatted_ns, crate::wall_ns()), "{word:?}");
        Some((word.cause().expect("may be of it"), word.who().index()))
    }

    fn words(&self) -> Vec<FarewellWord> {
        let bytes = self.bytes();
        let image = Image::read(&bytes).expect("sound");
        (0..image.geometry().farewell_count).map(|index| image.farewell(index).expect("within")).collect()
    }

    fn put(&self, kind: SectionKind, byte: u64, word: u64) {
        let at = self.region.geometry().offset(kind) + byte;
        let file = std::fs::OpenOptions::new().write(true).open(self.scratch.path("region")).expect("opened");
        file.write_all_at(&word.to_le_bytes(), at).expect("written");
    }

    /// The slot that says `state`, and its word.
    fn slot_in(&self, state: SlotState) -> (u32, SlotWord) {
        let bytes = self.bytes();
        let image = Image::read(&bytes).expect("sound");
        let words = image.records().map(|(slot, record)| (slot, SlotWord(record.identity.word)));
        words.into_iter().find(|(_, word)| word.is(state)).expect("one in that state")
    }

    /// As if a session of this host had died while the word of this slot was its own.
    fn died_with(&self, slot: u32, word: SlotWord, state: SlotState) {
        let bytes = self.bytes();
        let image = Image::read(&bytes).expect("sound");
        let mine = SessionWord(image.session(self.session.index()).expect("mine").word);
        let dead = SessionWord::new(SessionState::Live, mine.host_tag(), mine.epoch() + 1);
        self.put(SectionKind::Sessions, u64::from(NOBODY) * 256, dead.0);
        self.put(SectionKind::Records, u64::from(slot) * 128, word.to(state, Owner::session(NOBODY)).0);
    }

    fn lease(&self, number: u64) -> LeaseHandle {
        let lease = self.session.acquire(&[self.object(number)], Batch::Each).expect("acquire").remove(0);
        lease.expect("a hit").into_handle()
    }
}

#[test]
fn an_evicted_block_says_so_and_one_that_is_there_does_not() {
    let scene = Scene::new();
    let slots = u64::from(scene.region.geometry().slot_count);
    for number in 0..3 * slots {
        scene.store(number);
    }
    let gone: Vec<u64> = (0..3 * slots).filter(|number| !scene.hit(*number)).collect();
    let told = gone.iter().filter_map(|number| scene.said(&scene.object(*number))).collect::<Vec<_>>();
    let mine = Some(scene.session.index());
    assert!(told.iter().all(|said| *said == (Cause::Evicted, mine)), "{told:?}");
    // A word for two slots: as many are remembered as words were said to, less those that share a place.
    let written = scene.words().iter().filter(|word| word.cause().is_some()).count();
    assert_eq!(told.len(), written, "each word is some block's");
    assert!(written as u64 > slots / 3, "{written} of {slots}");
    for number in (0..3 * slots).filter(|number| scene.hit(*number)) {
        assert_eq!(scene.said(&scene.object(number)), None, "{number} is there");
    }
}

#[test]
fn a_block_that_made_room_in_the_index_says_so() {
    let scene = Scene::new();
    let geometry = scene.region.geometry();
    let place = |number| scene.object(number).key().place(geometry.hash_seed, geometry.bucket_count);
    let buckets = |number| (place(number).first, place(number).second);
    // Fourteen have room; twenty do not.
    let crowd: Vec<u64> = (0..).filter(|number| buckets(*number) == buckets(0)).take(20).collect();
    for number in &crowd {
        scene.store(*number);
    }
    let told: Vec<_> = crowd.iter().filter_map(|number| scene.said(&scene.object(*number))).collect();
    assert!(!told.is_empty() && told.iter().all(|said| said.0 == Cause::Displaced), "{told:?}");
}

#[test]
fn a_retired_block_names_who_asked_though_another_session_freed_it() {
    let scene = Scene::new();
    let other = scene.region.session("b", Role::Worker).expect("attach");
    scene.store(1);
    scene.store(2);
    assert_eq!(scene.session.retire(&scene.object(1)).expect("retire"), Retire::Retired);
    assert_eq!(scene.said(&scene.object(1)), Some((Cause::Retired, Some(scene.session.index()))));
    let held = scene.lease(2);
    assert_eq!(scene.said(&scene.object(2)), None);
    assert_eq!(scene.session.retire(&scene.object(2)).expect("retire"), Retire::Draining);
    let asked = Some((Cause::Retired, Some(scene.session.index())));
    assert_eq!(scene.said(&scene.object(2)), asked);
    assert_eq!(scene.session.release(held).expect("release"), Release::Released);
    assert_eq!(other.reclaim().expect("reclaim").freed_slots, 1);
    assert_eq!(scene.said(&scene.object(2)), asked, "who frees it knows less");
}

#[test]
fn a_block_of_an_ended_generation_says_so_once_it_is_brought_home() {
    let scene = Scene::new();
    let other = scene.region.session("b", Role::Worker).expect("attach");
    scene.store(1);
    scene.session.invalidate(scene.ns).expect("invalidate");
    assert_eq!(scene.said(&scene.object(1)), None);
    assert_eq!(other.reclaim().expect("reclaim").freed_slots, 1);
    assert_eq!(scene.said(&scene.object(1)), Some((Cause::Invalidated, Some(other.index()))));
}

#[test]
fn what_the_dead_held_is_said_by_whoever_brings_it_home() {
    let scene = Scene::new();
    scene.store(1);
    let (slot, ready) = scene.slot_in(SlotState::Ready);
    scene.died_with(slot, ready, SlotState::Retiring);
    assert_eq!(scene.session.reclaim().expect("reclaim").recovered_slots, 1);
    let mine = Some(scene.session.index());
    assert_eq!(scene.said(&scene.object(1)), Some((Cause::Recovered, mine)));

    let granted = scene.session.reserve(&scene.object(2), BLOCK as u64, ReserveOptions::default()).expect("reserve");
    let Reserve::Granted(half) = granted else { panic!("there is room") };
    let (slot, writing) = scene.slot_in(SlotState::Writing);
    scene.died_with(slot, writing, SlotState::Writing);
    assert_eq!(scene.session.reclaim().expect("reclaim").recovered_slots, 1);
    assert_eq!(scene.said(&scene.object(2)), Some((Cause::Unfinished, mine)));
    drop(half);
}

#[test]
fn a_block_that_drained_under_nobodys_name_says_so() {
    let scene = Scene::new();
    scene.store(1);
    let (slot, ready) = scene.slot_in(SlotState::Ready);
    scene.put(SectionKind::Records, u64::from(slot) * 128, ready.to(SlotState::Retiring, Owner::NOBODY).0);
    assert_eq!(scene.session.reclaim().expect("reclaim").freed_slots, 1);
    assert_eq!(scene.said(&scene.object(1)), Some((Cause::Drained, Some(scene.session.index()))));
}

#[test]
fn what_never_was_a_block_leaves_no_word() {
    let scene = Scene::new();
    let granted = scene.session.reserve(&scene.object(1), BLOCK as u64, ReserveOptions::default()).expect("reserve");
    let Reserve::Granted(half) = granted else { panic!("there is room") };
    half.abort().expect("abort");
    assert!(scene.words().iter().all(|word| word.0 == 0));
}

/// Symptom: a block that was found damaged is a miss like any other, and nobody learns that memory is bad.
#[test]
fn a_damaged_block_is_a_miss_by_that_name_until_it_is_stored_anew() {
    let scene = Scene::new();
    scene.store(1);
    let (slot, _) = scene.slot_in(SlotState::Ready);
    let at = scene.region.geometry().payload_of(slot).expect("there").0
        - scene.region.geometry().offset(SectionKind::Payload);
    scene.put(SectionKind::Payload, at, u64::MAX);
    let lease = scene.session.acquire(&[scene.object(1)], Batch::Each).expect("acquire").remove(0).expect("a hit");
    assert!(lease.read(Verify::Always).is_err());
    drop(lease);
    let other = scene.region.session("b", Role::Worker).expect("attach");
    let probe = |number| other.probe(&scene.object(number)).expect("probe");
    assert_eq!((probe(1), probe(2)), (Probe::Miss(Why::Quarantined), Probe::Miss(Why::Absent)));
    let answers = other.acquire(&[scene.object(1)], Batch::Each).expect("acquire");
    assert!(matches!(answers[..], [Err(Why::Quarantined)]));
    drop(answers);
    // The key is free at once, and what is stored under it is found.
    scene.store(1);
    assert!(probe(1).is_hit());
    let lease = other.acquire(&[scene.object(1)], Batch::Each).expect("acquire").remove(0).expect("a hit");
    assert_eq!(lease.read(Verify::Always).expect("read"), payload(1, BLOCK));
}
