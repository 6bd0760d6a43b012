//! Faults that a review of the protocols found, each with its symptom and cause. The right outcome stays here.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

use super::{Scratch, namespace, object, payload, store};
use crate::{
    Batch, CallError, Format, LoadError, Mode, OpenError, OpenOptions, Region, Release, Reserve, ReserveOptions,
    Retire, Role, Verify, Why, Wish,
};

fn memfd(bytes: u64) -> OwnedFd {
    let flags = nix::sys::memfd::MFdFlags::MFD_CLOEXEC;
    let fd = nix::sys::memfd::memfd_create("maru-test", flags).expect("memfd");
    nix::unistd::ftruncate(fd.as_fd(), bytes as i64).expect("ftruncate");
    fd
}

/// Symptom: a 32 KiB-of-zeros image (ISO 9660 begins so) was taken for blank and replaced.
/// Cause: "blank" looked at sixteen bytes.
#[test]
fn a_foreign_file_that_begins_with_zeros_is_not_blank() {
    let scratch = Scratch::new();
    let path = scratch.path("image.iso");
    for tail in [32 << 10, 300 << 10, (1 << 20) - 1] {
        let mut bytes = vec![0u8; 1 << 20];
        bytes[tail] = b'C';
        std::fs::write(&path, &bytes).expect("write");
        let error = Region::open(OpenOptions::path(&path).format(Format::IfAbsent)).err().expect("refused");
        assert!(matches!(error, OpenError::NotBlank { .. }), "{error}");
        assert_eq!(std::fs::read(&path).expect("still there"), bytes);
    }
    std::fs::write(&path, vec![0u8; 1 << 20]).expect("write");
    let region = Region::open(OpenOptions::path(&path).format(Format::IfAbsent)).expect("blank is blank");
    assert_eq!(region.geometry().length_bytes, 1 << 20);
}

/// Symptom: formatting the part of a file at offset 0 gave the name to a new, shorter file; the region in the other part
/// was gone. Cause: only an offset other than 0 was taken for "a part".
#[test]
fn formatting_one_part_of_a_file_leaves_the_other_parts_alone() {
    let scratch = Scratch::new();
    let path = scratch.path("parts");
    std::fs::File::create(&path).and_then(|file| file.set_len(8 << 20)).expect("create");
    let part = |offset: u64| {
        let wish = Wish { size_bytes: None, ..Wish::of_slots(0, 4096) };
        Region::open(OpenOptions::path(&path).partition(offset, Some(4 << 20)).format(Format::IfAbsent).wish(wish))
    };
    let second = part(4 << 20).expect("second part");
    let inode = std::fs::metadata(&path).expect("stat").ino();
    let session = second.session("a", Role::Worker).expect("attach");
    let ns = session.namespace(&namespace("t")).expect("namespace");
    assert_eq!(store(&session, &object(ns, 1), &payload(1, 4096)), "stored");
    let first = part(0).expect("first part");
    assert_ne!(first.id(), second.id());
    assert_eq!(std::fs::metadata(&path).expect("stat").ino(), inode);
    assert!(session.probe(&object(ns, 1)).expect("still there").is_hit());
    // The whole file is not one region's to take.
    let error = Region::open(OpenOptions::path(&path).format(Format::Replace)).err().expect("refused");
    assert!(matches!(error, OpenError::Overlap { .. } | OpenError::InUse { .. }), "{error}");
    // And a part may not lie over another.
    let over = OpenOptions::path(&path).partition(2 << 20, Some(4 << 20)).format(Format::IfAbsent);
    let error = Region::open(over).err().expect("refused");
    assert!(matches!(error, OpenError::Overlap { .. } | OpenError::NotBlank { .. }), "{error}");
}

/// Symptom: a read-only open with format = replace gave the name to a new region and then failed.
/// Cause: the mode was looked at after the exchange.
#[test]
fn a_read_only_open_never_makes_a_region() {
    let scratch = Scratch::new();
    let region = scratch.region(Wish::of_slots(1 << 20, 4096));
    let before = std::fs::read(scratch.path("region")).expect("read");
    for format in [Format::Force, Format::Replace] {
        let options = OpenOptions::path(scratch.path("region")).mode(Mode::ReadOnly).format(format);
        assert!(matches!(Region::open(options).err(), Some(OpenError::ReadOnlyFormat)));
    }
    let absent = OpenOptions::path(scratch.path("absent")).mode(Mode::ReadOnly).format(Format::IfAbsent);
    assert!(Region::open(absent).is_err());
    assert!(!scratch.path("absent").exists());
    assert_eq!(std::fs::read(scratch.path("region")).expect("read"), before);
    drop(region);
}

/// Symptom: a namespace id of one region, used in another, named an unrelated namespace there: it was invalidated, or an
/// old hit came back. Cause: only row and generation were compared.
#[test]
fn a_namespace_id_of_another_region_is_refused() {
    let scratch = Scratch::new();
    let here = scratch.region(Wish::of_slots(1 << 20, 4096));
    let there = Region::open(
        OpenOptions::path(scratch.path("other")).format(Format::IfAbsent).wish(Wish::of_slots(1 << 20, 4096)),
    )
    .expect("another region");
    let (mine, theirs) =
        (here.session("a", Role::Worker).expect("attach"), there.session("a", Role::Worker).expect("attach"));
    let foreign = theirs.namespace(&namespace("t")).expect("namespace");
    let own = mine.namespace(&namespace("t")).expect("namespace");
    let refused = |error: CallError| matches!(error, CallError::ForeignNamespace { .. });
    assert!(refused(mine.invalidate(foreign).expect_err("foreign")));
    assert!(refused(mine.probe(&object(foreign, 1)).expect_err("foreign")));
    assert!(refused(mine.reserve(&object(foreign, 1), 10, ReserveOptions::default()).expect_err("foreign")));
    // Nothing is left protected by a batch that fails in its middle.
    assert_eq!(store(&mine, &object(own, 1), &payload(1, 100)), "stored");
    let batch = [object(own, 1), object(foreign, 1), object(own, 1)];
    assert!(refused(mine.acquire(&batch, Batch::AllOrNothing).expect_err("foreign")));
    assert_eq!(mine.leases(), 0);
    assert_eq!(mine.retire(&object(own, 1)).expect("retire"), Retire::Retired);
}

/// Symptom: after `invalidate` returned, a view still showed the old bytes. Cause: `view` did not look at the namespace.
#[test]
fn nothing_old_is_shown_after_an_invalidation() {
    let scratch = Scratch::new();
    let region = scratch.region(Wish::of_slots(1 << 20, 4096));
    let session = region.session("a", Role::Worker).expect("attach");
    let ns = session.namespace(&namespace("t")).expect("namespace");
    assert_eq!(store(&session, &object(ns, 1), &payload(1, 4096)), "stored");
    let lease = session.acquire(&[object(ns, 1)], Batch::Each).expect("acquire").remove(0).expect("hit");
    let mut open =
        session.reserve(&object(ns, 2), 100, ReserveOptions::default()).expect("reserve").granted().expect("granted");
    open.write_at(0, &[1; 100]).expect("write");
    assert!(session.invalidate(ns).expect("invalidate"));
    assert!(!session.invalidate(ns).expect("once only"));
    assert_eq!(lease.view().err(), Some(LoadError::Invalidated));
    assert_eq!(lease.read(Verify::Always), Err(LoadError::Invalidated));
    assert_eq!(open.commit().expect("commit").code(), "invalidated");
    assert_eq!(session.probe(&object(ns, 1)).expect("probe"), crate::Probe::Miss(Why::Invalidated));
    let renewed = session.namespace(&namespace("t")).expect("namespace");
    assert_ne!(renewed, ns);
    assert_eq!(session.probe(&object(renewed, 1)).expect("probe"), crate::Probe::Miss(Why::Absent));
}

/// Symptom: releasing by handle while a view lived let the slot be freed under the view. Cause: the book of leases did
/// not know of views.
#[test]
fn a_lease_with_a_view_is_not_released_by_its_handle() {
    let scratch = Scratch::new();
    let region = scratch.region(Wish::of_slots(1 << 20, 4096));
    let session = region.session("a", Role::Worker).expect("attach");
    let ns = session.namespace(&namespace("t")).expect("namespace");
    assert_eq!(store(&session, &object(ns, 1), &payload(1, 4096)), "stored");
    let lease = session.acquire(&[object(ns, 1)], Batch::Each).expect("acquire").remove(0).expect("hit");
    let view = lease.view().expect("view");
    assert_eq!(session.release(lease.handle()).expect("release"), Release::Viewed);
    assert_eq!(session.retire(&object(ns, 1)).expect("retire"), Retire::Draining);
    assert_eq!(session.reclaim().expect("reclaim").draining_slots, 1);
    assert_eq!(view.to_vec().expect("still protected"), payload(1, 4096));
    drop(view);
    drop(lease);
    assert_eq!(session.reclaim().expect("reclaim").freed_slots, 1);
}

/// Symptom: making a region anew in a larger part of a device was refused by the old region's own superblock copy.
/// Cause: any sound superblock was taken for a region; only one with its format word behind it is.
#[test]
fn the_copy_of_a_superblock_is_no_region_of_its_own() {
    let fd = memfd(32 << 20);
    let open = |length: u64, format| {
        let fd = fd.as_fd().try_clone_to_owned().expect("dup");
        let wish = Wish { size_bytes: Some(length), ..Wish::of_slots(0, 4096) };
        Region::open(OpenOptions::descriptor(fd).format(format).wish(wish))
    };
    let small = open(8 << 20, Format::IfAbsent).expect("small");
    let id = small.id();
    drop(small);
    let large = open(32 << 20, Format::Force).expect("large");
    assert_ne!(large.id(), id);
    assert_eq!(large.superblock().incarnation, 1);
}

/// Symptom: a place with a live session was formatted in place. Cause: users were looked for before the claim only.
#[test]
fn a_place_in_use_is_not_formatted_in_place() {
    let fd = memfd(4 << 20);
    let open = |format| {
        let fd = fd.as_fd().try_clone_to_owned().expect("dup");
        Region::open(OpenOptions::descriptor(fd).format(format).wish(Wish::of_slots(4 << 20, 4096)))
    };
    let region = open(Format::IfAbsent).expect("region");
    let session = region.session("a", Role::Worker).expect("attach");
    for format in [Format::Force, Format::Replace] {
        assert!(matches!(open(format).err(), Some(OpenError::InUse { live: 1, .. })));
    }
    assert!(session.heartbeat().is_ok());
    drop(session);
    let anew = open(Format::Force).expect("nobody is there");
    assert_ne!(anew.id(), region.id());
    assert!(matches!(region.session("b", Role::Worker).err(), Some(crate::AttachError::Call(CallError::Replaced))));
}

/// Symptom: a store refused as "bucket busy" had evicted a block all the same. Cause: the place was freed before it was
/// taken. Here: a crowd of keys for two buckets, most of them being read.
#[test]
fn a_crowd_in_one_bucket_costs_only_what_nobody_reads() {
    let scratch = Scratch::new();
    let region = scratch.region(Wish::of_slots(1 << 20, 64));
    let session = region.session("a", Role::Worker).expect("attach");
    let ns = session.namespace(&namespace("t")).expect("namespace");
    let geometry = region.geometry();
    let place = |number| object(ns, number).key().place(geometry.hash_seed, geometry.bucket_count);
    let home = place(0);
    // Same first bucket, same tag: same second bucket too.
    let crowd: Vec<u64> =
        (0..).filter(|n| (place(*n).first, place(*n).tag % 8) == (home.first, home.tag % 8)).take(60).collect();
    let mut leases = Vec::new();
    let mut answers = Vec::new();
    for number in &crowd {
        let code = store(&session, &object(ns, *number), &payload(*number, 64));
        answers.push(code);
        if code == "stored" {
            leases.extend(session.acquire(&[object(ns, *number)], Batch::Each).expect("acquire"));
        }
    }
    let stored = answers.iter().filter(|code| **code == "stored").count();
    assert_eq!(stored + answers.iter().filter(|code| **code == "bucket_busy").count(), crowd.len());
    assert_eq!(leases.iter().filter(|lease| lease.is_ok()).count(), stored, "all leased blocks are still there");
    for lease in leases.iter().flatten() {
        lease.read(Verify::Always).expect("exact");
    }
    drop(leases);
    let ready = region.usage().slots[4];
    // With nobody reading, there is always room: one goes, one comes.
    for (number, code) in crowd.iter().zip(answers).filter(|(_, code)| *code != "stored") {
        assert_eq!(store(&session, &object(ns, *number), &payload(*number, 64)), "stored", "{code}");
        assert!(session.probe(&object(ns, *number)).expect("probe").is_hit());
    }
    assert!(region.usage().slots[4] >= ready);
    match session.reserve(&object(ns, crowd[0]), 64, ReserveOptions::default()).expect("reserve") {
        Reserve::Granted(_) | Reserve::Present => {}
        other => panic!("{other:?}"),
    }
}

/// Without looking at the size first, the beat itself would be the process' end: SIGBUS, with no handler asked for.
#[test]
fn a_beat_over_a_file_that_was_cut_into_its_header_says_so() {
    let scratch = Scratch::new();
    let region = scratch.region(Wish::of_slots(8 << 20, 65536));
    let session = region.session("a", Role::Worker).expect("attach");
    assert_eq!(session.heartbeat().expect("whole"), 1);
    for length in [1 << 20, 8192, 4096, 0] {
        let file = std::fs::File::options().write(true).open(scratch.path("region")).expect("the region");
        file.set_len(length).expect("cut");
        assert!(matches!(session.heartbeat(), Err(CallError::Resized { .. })), "cut to {length} bytes");
    }
    // What is left of it is not touched on the way out.
    std::mem::forget(session);
}
