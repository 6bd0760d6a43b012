//! `why` of a block that is gone, after its slot has had the next life: when, by whom, and why it went.

mod common;

use std::os::unix::fs::FileExt;
use std::path::Path;

use common::{Scratch, inspect, namespace, object, payload, store};
use maru::{Evict, NamespaceId, ObjectId, Region, Role, Session, SessionOptions, Wish};
use maru_layout::farewell::{Cause, FAREWELL_LAST_SECOND, FarewellWord};
use maru_layout::image::Image;
use maru_layout::object::ObjectKey;
use maru_layout::record::SlotRecord;
use maru_layout::superblock::SectionKind;
use maru_layout::word::{Owner, SlotState, SlotWord};
use serde_json::Value;

const BLOCK: usize = 4096;

struct Scene {
    scratch: Scratch,
    region: Region,
    session: Session,
    ns: NamespaceId,
    began_ns: u64,
}

fn wall_ns() -> u64 {
    std::time::UNIX_EPOCH.elapsed().expect("after 1970").as_nanos() as u64
}

impl Scene {
    fn new() -> Self {
        let scratch = Scratch::new();
        let began_ns = wall_ns();
        let region = scratch.region("why", Wish::of_slots(1 << 20, BLOCK as u64));
        let session = region.session("storer", Role::Worker).expect("attach");
        let ns = session.namespace(&namespace("t")).expect("namespace");
        Self { scratch, region, session, ns, began_ns }
    }

    fn object(&self, number: u64) -> ObjectId {
        object(self.ns, number)
    }

    fn path(&self) -> std::path::PathBuf {
        self.scratch.path("why")
    }

    /// Stores so many others, under a namespace of their own, that every slot has had another life; the last sixteen
    /// operations of the session are forgotten on the way.
    fn bury(&self, session: &Session) {
        let ns = session.namespace(&namespace("others")).expect("namespace");
        let slots = u64::from(self.region.geometry().slot_count);
        for number in 1000..1000 + 4 * slots {
            assert_eq!(store(session, &object(ns, number), &payload(number, BLOCK)), "stored");
        }
    }

    /// The farewell of a block, and where it lies.
    fn farewell(&self, object: &ObjectId) -> (FarewellWord, u64, u32) {
        let bytes = std::fs::read(self.path()).expect("read");
        let image = Image::read(&bytes).expect("sound");
        let geometry = image.geometry();
        let ObjectId { prefix, shard, part, .. } = *object;
        let key = ObjectKey { namespace: object.namespace.digest(), prefix, shard, part };
        let place = key.farewell(geometry.hash_seed, geometry.farewell_count);
        let at = geometry.offset(SectionKind::Farewells) + u64::from(place.index) * 8;
        (image.farewell(place.index).expect("within the table"), at, place.tag)
    }

    /// Puts a word where it was before others were evicted on top of it: the table forgets, which is not what is tested.
    fn put(&self, at: u64, word: FarewellWord) {
        let file = std::fs::OpenOptions::new().write(true).open(self.path()).expect("opened");
        file.write_all_at(&word.0.to_le_bytes(), at).expect("written");
    }

    fn is_within(&self, answer: &Value) {
        let gone = answer["gone_ns"].as_u64().expect("a time");
        assert!((self.began_ns - 1_000_000_000..=wall_ns()).contains(&gone), "{answer}");
        let doubt = answer["doubt"].as_f64().expect("doubt");
        assert!(doubt > 0.0 && doubt < 1e-3, "{answer}");
    }
}

fn key(object: &ObjectId) -> String {
    object.prefix.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn ask(path: &Path, object: &ObjectId, rest: &[&str]) -> Value {
    let (path, key) = (path.to_str().expect("UTF-8"), key(object));
    let said = inspect(&[&["why", path, &key, "--json"], rest].concat());
    let mut answers = said.of_kind("why");
    assert_eq!((said.code, answers.len()), (0, 1), "{}{}", said.text, said.errors);
    let told = inspect(&[&["why", path, &key], rest].concat());
    let answer = answers.remove(0);
    assert!(told.text.contains(answer["text"].as_str().expect("text")), "{}", told.text);
    answer
}

fn names(answer: &Value) -> (&str, Option<&str>, Option<&str>, Option<&str>) {
    (
        answer["code"].as_str().expect("a code"),
        answer["remembered"].as_str(),
        answer["gone_cause"].as_str(),
        answer["who"]["engine"].as_str(),
    )
}

#[test]
fn an_evicted_block_whose_slot_has_had_the_next_life() {
    let scene = Scene::new();
    let path = scene.path();
    let slots = u64::from(scene.region.geometry().slot_count);
    for number in 0..slots {
        assert_eq!(store(&scene.session, &scene.object(number), &payload(number, BLOCK)), "stored");
    }
    let evictor = scene.region.session("evictor", Role::Worker).expect("attach");
    let others = evictor.namespace(&namespace("others")).expect("namespace");
    let mut buried = None;
    for number in 1000..1000 + 2 * slots {
        assert_eq!(store(&evictor, &object(others, number), &payload(number, BLOCK)), "stored");
        // A block that is gone, of which no slot says anything any more, and whose word nobody has overwritten yet.
        let bytes = std::fs::read(&path).expect("read");
        let image = Image::read(&bytes).expect("sound");
        buried = (0..slots).map(|number| scene.object(number)).find(|object| {
            let told = image.records().any(|(_, record)| record.identity.prefix == object.prefix);
            let (word, _, tag) = scene.farewell(object);
            !told && word.may_be_of(tag)
        });
        if buried.is_some() {
            break;
        }
    }
    let buried = buried.expect("one of them");
    let answer = ask(&path, &buried, &[]);
    assert_eq!(names(&answer), ("evicted", Some("farewell"), Some("evicted"), Some("evictor")), "{answer}");
    assert_eq!((answer["who"]["session"].as_u64(), answer["who"]["holder"].as_str()), (Some(1), Some("alive")));
    assert_eq!((answer["hit"].as_bool(), answer["slot"].as_u64()), (Some(false), None));
    assert_eq!((answer["namespace_row"].as_u64(), answer["shard"].as_u64()), (Some(0), Some(0)), "{answer}");
    assert!(answer["text"].as_str().is_some_and(|text| text.contains("probably evicted to make room")), "{answer}");
    scene.is_within(&answer);
    // Under another namespace it never was.
    let row = others.row().to_string();
    assert_eq!(names(&ask(&path, &buried, &["--namespace-row", &row])).0, "never_stored");
    assert_eq!(names(&ask(&path, &buried, &["--namespace-row", "0"])).0, "evicted");
    // Of another shard as little.
    assert_eq!(names(&ask(&path, &buried, &["--shard", "1"])).0, "never_stored");
    // The evictor has left: its entry still tells who it was.
    drop(evictor);
    let answer = ask(&path, &buried, &[]);
    assert_eq!((names(&answer).3, answer["who"]["holder"].as_str()), (Some("evictor"), Some("closed")), "{answer}");
}

/// While the old record still stands, the farewell tells who and when, and no guess is needed.
#[test]
fn an_evicted_block_whose_record_still_stands() {
    let scene = Scene::new();
    let path = scene.path();
    let slots = u64::from(scene.region.geometry().slot_count);
    let tidy = SessionOptions { evict: Evict::Watermarks { low: 0.2, high: 0.4 }, ..SessionOptions::default() };
    let tidy = scene.region.session_with("tidy", Role::Worker, tidy).expect("attach");
    let mut standing = None;
    for number in 0..4 * slots {
        assert_eq!(store(&tidy, &scene.object(number), &payload(number, BLOCK)), "stored");
        let bytes = std::fs::read(&path).expect("read");
        let image = Image::read(&bytes).expect("sound");
        let free = |record: &SlotRecord| SlotWord(record.identity.word).is(SlotState::Free);
        standing = (0..number).map(|number| scene.object(number)).find(|object| {
            let named = image.records().any(|(_, record)| free(&record) && record.identity.prefix == object.prefix);
            named && scene.farewell(object).0.may_be_of(scene.farewell(object).2)
        });
        if standing.is_some() {
            break;
        }
    }
    let Some(standing) = standing else { panic!("some slots are kept free") };
    let answer = ask(&path, &standing, &[]);
    assert_eq!(names(&answer), ("evicted", Some("farewell"), Some("evicted"), Some("tidy")), "{answer}");
    assert!(answer["slot"].is_u64() && answer["committed_ns"].is_u64(), "{answer}");
    scene.is_within(&answer);
}

#[test]
fn a_retired_block_and_one_of_an_ended_generation() {
    let scene = Scene::new();
    let path = scene.path();
    let keeper = SessionOptions { evict: Evict::Never, ..SessionOptions::default() };
    let keeper = scene.region.session_with("keeper", Role::Worker, keeper).expect("attach");
    for number in [1, 2] {
        assert_eq!(store(&scene.session, &scene.object(number), &payload(number, BLOCK)), "stored");
    }
    keeper.retire(&scene.object(1)).expect("retire");
    let retired = scene.farewell(&scene.object(1));
    scene.session.invalidate(scene.ns).expect("invalidate");
    keeper.reclaim().expect("reclaim");
    let ended = scene.farewell(&scene.object(2));
    // Flight recorders are rings: sixteen other operations and the retire is forgotten.
    for number in 0..20 {
        keeper.retire(&object(scene.ns, 500 + number)).expect("retire");
    }
    scene.bury(&scene.session);
    for (word, at, _) in [retired, ended] {
        scene.put(at, word);
    }
    // Both were stored under the generation that has ended since.
    let answer = ask(&path, &scene.object(1), &[]);
    assert_eq!(names(&answer), ("invalidated", Some("farewell"), Some("retired"), Some("keeper")), "{answer}");
    let generations = (answer["namespace_generation"].as_u64(), answer["current_generation"].as_u64());
    assert_eq!(generations, (Some(1), Some(2)), "{answer}");
    scene.is_within(&answer);
    let answer = ask(&path, &scene.object(2), &[]);
    assert_eq!(names(&answer), ("invalidated", Some("farewell"), Some("invalidated"), Some("keeper")), "{answer}");
    scene.is_within(&answer);
    // Under the generation of now, "retired" is the nearest cause.
    let now = scene.session.namespace(&namespace("t")).expect("namespace");
    assert_eq!(store(&scene.session, &object(now, 3), &payload(3, BLOCK)), "stored");
    keeper.retire(&object(now, 3)).expect("retire");
    let again = scene.farewell(&object(now, 3));
    for number in 0..20 {
        keeper.retire(&object(now, 500 + number)).expect("retire");
    }
    scene.bury(&scene.session);
    scene.put(again.1, again.0);
    let answer = ask(&path, &object(now, 3), &[]);
    assert_eq!(names(&answer), ("retired", Some("farewell"), Some("retired"), Some("keeper")), "{answer}");
}

/// Every cause has its code; a word whose tag differs is not of this key, and no bits are believed further than they go.
#[test]
fn words_that_no_version_wrote_and_those_of_other_keys() {
    let scene = Scene::new();
    let path = scene.path();
    let asked = scene.object(77);
    let (_, at, tag) = scene.farewell(&asked);
    let mine = Owner::session(scene.session.index());
    let codes = ["evicted", "evicted", "retired", "invalidated", "recovered", "removed", "given_up"];
    for (cause, code) in Cause::ALL.into_iter().zip(codes) {
        scene.put(at, FarewellWord::new(tag, cause, mine, 0));
        let answer = ask(&path, &asked, &[]);
        assert_eq!(names(&answer), (code, Some("farewell"), Some(cause.name()), Some("storer")), "{answer}");
        for bit in [0, 1, 7, 15, 21] {
            scene.put(at, FarewellWord::new(tag ^ (1 << bit), cause, mine, 0));
            assert_eq!(names(&ask(&path, &asked, &[])), ("never_stored", None, None, None), "tag bit {bit}");
        }
    }
    // Nobody of this region, and not yet.
    for (who, second) in [(Owner(4095), 0), (mine, FAREWELL_LAST_SECOND), (Owner(0), 1 << 20), (Owner(4000), 1 << 25)] {
        scene.put(at, FarewellWord::new(tag, Cause::Evicted, who, second));
        let answer = ask(&path, &asked, &[]);
        assert_eq!((answer["code"].as_str(), answer["gone_ns"].is_null()), (Some("evicted"), second != 0), "{answer}");
        let engine = (who == mine && second == 0).then_some("storer");
        assert_eq!(answer["who"]["engine"].as_str(), engine, "{answer}");
        assert!(answer["text"].as_str().is_some_and(|text| text.contains("unknown")), "{answer}");
    }
    let mut bits = 0x9E37_79B9_7F4A_7C15u64;
    for _ in 0..40 {
        bits = bits.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        scene.put(at, FarewellWord(bits));
        let told = FarewellWord(bits).may_be_of(tag);
        assert_eq!(ask(&path, &asked, &[])["remembered"].is_string(), told);
        scene.put(at, FarewellWord(bits & ((1 << 42) - 1) | u64::from(tag) << 42));
        ask(&path, &asked, &[]);
    }
    // A cause of zero says nothing, whatever else is there.
    scene.put(at, FarewellWord(u64::MAX << 42 >> 3 << 3));
    assert_eq!(names(&ask(&path, &asked, &[])).0, "never_stored");
    // A block that is there is there, whatever was said.
    assert_eq!(store(&scene.session, &asked, &payload(77, BLOCK)), "stored");
    scene.put(at, FarewellWord::new(tag, Cause::Evicted, mine, 0));
    let answer = ask(&path, &asked, &[]);
    assert_eq!((names(&answer).0, answer["hit"].as_bool()), ("ready", Some(true)), "{answer}");
}

/// A session that attached after the farewell is not the one that said it.
#[test]
fn an_entry_with_another_holder_since_is_nobody_in_particular() {
    let scene = Scene::new();
    let path = scene.path();
    let asked = scene.object(1);
    let (_, at, tag) = scene.farewell(&asked);
    std::thread::sleep(std::time::Duration::from_millis(2100));
    let late = scene.region.session("late", Role::Worker).expect("attach");
    scene.put(at, FarewellWord::new(tag, Cause::Retired, Owner::session(late.index()), 0));
    let answer = ask(&path, &asked, &[]);
    assert_eq!((answer["code"].as_str(), answer["who"]["holder"].as_str()), (Some("retired"), Some("replaced")));
    assert_eq!(
        (answer["who"]["engine"].as_str(), answer["who"]["session"].as_u64()),
        (None, Some(late.index().into()))
    );
    scene.put(at, FarewellWord::new(tag, Cause::Retired, Owner::session(late.index()), 2));
    assert_eq!(ask(&path, &asked, &[])["who"]["engine"], "late");
}
