//! What do the answers cost that must never take long, in a region of a million slots?
//!
//! A refusal, because everything is being written or everything is leased, ends after a bounded search; a namespace is
//! invalidated by one swap, however much it holds. Beside them: one ordinary store. `MARU_BENCH_SLOTS` sets the slots.

#![allow(missing_docs, reason = "a bench is a program")]

use std::path::Path;

use maru::layout::geometry::{ClassSpec, FormatSpec};
use maru::{
    Batch, Format, NamespaceId, ObjectId, OpenOptions, Region, Reserve, ReserveOptions, Role, Session, Why, Wish,
};
use maru_bench::contest::Contest;
use maru_bench::{namespace, prefix};

const BYTES: u64 = 64;

fn slots() -> u32 {
    std::env::var("MARU_BENCH_SLOTS").ok().and_then(|text| text.parse().ok()).unwrap_or(1 << 20)
}

/// A region of exactly so many slots, whose sessions have a lease cell for each.
fn region(folder: &Path, name: &str, slots: u32) -> Region {
    let area = (u64::from(slots) * 8 + (64 << 10)).next_multiple_of(4096).min(16 << 20);
    let bytes = FormatSpec::for_slots(slots, BYTES).expect("a sound wish").length_bytes + 4 * area;
    let wish = Wish {
        classes: vec![ClassSpec { slot_bytes: BYTES, slots: Some(slots) }],
        sessions: Some(4),
        session_area_bytes: Some(area as u32),
        ..Wish::of_slots(bytes, BYTES)
    };
    let options = OpenOptions::path(folder.join(name)).format(Format::IfAbsent).wish(wish);
    Region::open(options).expect("a region in memory")
}

fn store(session: &Session, object: &ObjectId) {
    match session.reserve(object, BYTES, ReserveOptions::default()).expect("a session in order") {
        Reserve::Granted(mut slot) => {
            slot.write_at(0, &[7; BYTES as usize]).expect("fits");
            assert_eq!(slot.commit().expect("commit").code(), "stored");
        }
        other => panic!("no slot: {other:?}"),
    }
}

fn objects(namespace: NamespaceId, slots: u32) -> Vec<ObjectId> {
    (0..u64::from(slots)).map(|number| ObjectId::new(namespace, prefix(number))).collect()
}

fn refused(session: &Session, namespace: NamespaceId, number: &mut u64) {
    *number += 1;
    let object = ObjectId::new(namespace, prefix(*number << 32));
    match session.reserve(&object, BYTES, ReserveOptions::default()).expect("a session in order") {
        Reserve::Refused(Why::NoSpace) => {}
        other => panic!("there is no room: {other:?}"),
    }
}

fn main() {
    let slots = slots();
    let folder = tempfile::tempdir_in("/dev/shm").expect("/dev/shm");
    let join = |region: &Region, name: &str| region.session(name, Role::Tool).expect("attach");

    eprintln!("filling three regions of {slots} slots");
    let writing = region(folder.path(), "writing", slots);
    let (writer, asker_w) = (join(&writing, "writer"), join(&writing, "asker"));
    let namespace_w = writer.namespace(&namespace()).expect("namespace");
    let reservations: Vec<_> = objects(namespace_w, slots)
        .iter()
        .filter_map(|object| writer.reserve(object, BYTES, ReserveOptions::default()).expect("in order").granted())
        .collect();
    assert_eq!(reservations.len() as u32, slots);

    let leased = region(folder.path(), "leased", slots);
    let (reader, asker_l) = (join(&leased, "reader"), join(&leased, "asker"));
    let namespace_l = reader.namespace(&namespace()).expect("namespace");
    let all = objects(namespace_l, slots);
    all.iter().for_each(|object| store(&reader, object));
    let leases: Vec<_> =
        reader.acquire(&all, Batch::Each).expect("acquire").into_iter().map(|lease| lease.expect("a hit")).collect();
    // Views never lapse, copies do while this runs.
    let views: Vec<_> = leases.iter().map(|lease| lease.view().expect("a view")).collect();

    let full = region(folder.path(), "full", slots);
    let owner = join(&full, "owner");
    let namespace_f = owner.namespace(&namespace()).expect("namespace");
    objects(namespace_f, slots).iter().for_each(|object| store(&owner, object));
    let again = owner.namespace(&maru_bench::namespace().tenant("again")).expect("namespace");

    let started = std::time::Instant::now();
    assert!(owner.invalidate(namespace_f).expect("invalidated"));
    let first = started.elapsed().as_nanos() as u64;
    assert!(!owner.probe(&ObjectId::new(namespace_f, prefix(0))).expect("probe").is_hit(), "no old hit");
    let register = || owner.namespace(&namespace()).expect("namespace");

    let (mut w, mut l, mut f) = (1, 1, 1);
    Contest::new("limits")
        .unit(&format!("{slots} slots"))
        .fact("invalidate, with a block in every slot, ns", first)
        .entry("one store that evicts", || {
            f += 1;
            store(&owner, &ObjectId::new(again, prefix(f << 32)));
        })
        .entry("refused: all being written", || refused(&asker_w, namespace_w, &mut w))
        .entry("refused: all leased", || refused(&asker_l, namespace_l, &mut l))
        .entry("a namespace invalidated and registered anew", || {
            assert!(owner.invalidate(register()).expect("invalidated"));
        })
        .run();
    drop((views, reservations));
}
