//! Every kernel against bytes counted by hand: alignments, lengths, edges, and a source that never stands still.

use maru_layout::object::PayloadCrc;

use super::{Kernel, Stores, copy_by, copy_hashed_by, forced};

/// What a test tries: each kernel of this processor, each way to store, with a checksum and without.
fn every_way(mut body: impl FnMut(Kernel, Stores, bool)) {
    let (here, missing): (Vec<Kernel>, Vec<Kernel>) = Kernel::ALL.iter().partition(|kernel| kernel.is_here());
    if !missing.is_empty() {
        eprintln!("SKIPPED: this processor has no instructions for {missing:?}");
    }
    for kernel in here {
        for stores in [Stores::Plain, Stores::Streaming] {
            for hashed in [false, true] {
                body(kernel, stores, hashed);
            }
        }
    }
}

/// Copies in one of the ways, and compares the checksum with that of the bytes that landed.
///
/// # Safety
/// As `copy`, and nobody stores to `target` meanwhile.
unsafe fn copied(way: (Kernel, Stores, bool), target: *mut u8, source: *const u8, length: usize) {
    let (kernel, stores, hashed) = way;
    if !hashed {
        // SAFETY: the caller's promise; `every_way` leaves out kernels that the processor has not.
        return unsafe { copy_by(kernel, target, source, length, stores) };
    }
    let mut before = PayloadCrc::of_part();
    before.update(b"before");
    let (mut crc, mut right) = (before, before);
    // SAFETY: as above.
    unsafe { copy_hashed_by(kernel, target, source, length, stores, &mut crc) }
    // SAFETY: `length` bytes at `target` are readable, and nobody else stores there.
    right.update(unsafe { core::slice::from_raw_parts(target, length) });
    assert_eq!(crc, right, "{way:?}, {length} bytes");
}

#[repr(align(64))]
struct Lines([u8; 1024]);

#[test]
fn every_length_at_every_alignment_and_not_a_byte_more() {
    const AROUND: usize = 64;
    let lengths = if cfg!(miri) { 0..40 } else { 0..300 };
    let aligned = if cfg!(miri) { 0..9 } else { 0..64 };
    let source = Lines(core::array::from_fn(|at| (at % 251) as u8 + 1));
    let mut target = Lines([0; 1024]);
    every_way(|kernel, stores, hashed| {
        for (to, from) in aligned.clone().flat_map(|to| aligned.clone().map(move |from| (AROUND + to, from))) {
            // Each pair of alignments with every fourth length, and each length with every pair of alignments modulo 4.
            for length in lengths.clone().filter(|length| (length + to + from) % 4 == 0) {
                let (place, piece) = (target.0[to..].as_mut_ptr(), source.0[from..].as_ptr());
                // SAFETY: at most 64 + 64 + 300 bytes of 1024 on either side.
                unsafe { copied((kernel, stores, hashed), place, piece, length) }
                let landed = &mut target.0[to - AROUND..to + length + AROUND];
                assert!(
                    landed[..AROUND].iter().all(|byte| *byte == 0)
                        && landed[AROUND..][..length] == source.0[from..][..length]
                        && landed[AROUND + length..].iter().all(|byte| *byte == 0),
                    "{kernel:?} {stores:?} hashed {hashed}: {length} bytes from {from} to {to}"
                );
                landed.fill(0);
            }
        }
    });
}

/// Pages with a page on either side that nobody may touch.
#[cfg(not(miri))]
struct Guarded {
    start: *mut u8,
    bytes: usize,
}

#[cfg(not(miri))]
impl Guarded {
    const PAGE: usize = 4096;

    fn new(pages: usize) -> Self {
        let bytes = pages * Self::PAGE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let place = unsafe { libc::mmap(core::ptr::null_mut(), bytes + 2 * Self::PAGE, libc::PROT_NONE, flags, -1, 0) };
        assert_ne!(place, libc::MAP_FAILED);
        let start = place.cast::<u8>().wrapping_add(Self::PAGE);
        // SAFETY: the pages in the middle of what was just mapped.
        let opened = unsafe { libc::mprotect(start.cast(), bytes, libc::PROT_READ | libc::PROT_WRITE) };
        assert_eq!(opened, 0);
        Self { start, bytes }
    }

    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: mapped, readable and writable, zeroed by the kernel, and this value's alone.
        unsafe { core::slice::from_raw_parts_mut(self.start, self.bytes) }
    }
}

#[cfg(not(miri))]
impl Drop for Guarded {
    fn drop(&mut self) {
        // SAFETY: the whole of what `new` mapped; not used after this.
        unsafe { libc::munmap(self.start.wrapping_sub(Self::PAGE).cast(), self.bytes + 2 * Self::PAGE) };
    }
}

#[cfg(not(miri))]
#[test]
fn between_guard_pages_and_over_page_edges() {
    let mut source = Guarded::new(3);
    let mut target = Guarded::new(3);
    source.bytes().iter_mut().enumerate().for_each(|(at, byte)| *byte = (at % 253) as u8 + 1);
    let whole = source.bytes;
    let near = |edge: usize| [edge - 257, edge - 64, edge - 1, edge, edge + 1, edge + 63, edge + 256];
    let lengths: Vec<usize> = (0..300).chain(near(4096)).chain(near(8192)).chain([whole - 1, whole]).collect();
    every_way(|kernel, stores, hashed| {
        for &length in &lengths {
            // Against the page before, against the page behind, and over the edge in between.
            let places = [0, whole - length, (4096_usize.saturating_sub(length / 2)).min(whole - length)];
            for (to, from) in places.iter().flat_map(|to| places.iter().map(move |from| (*to, *from))) {
                let (place, piece) = (target.start.wrapping_add(to), source.start.wrapping_add(from));
                // SAFETY: both lie within the pages in the middle.
                unsafe { copied((kernel, stores, hashed), place, piece, length) }
                let landed = target.bytes();
                assert!(
                    landed[..to].iter().all(|byte| *byte == 0)
                        && landed[to..][..length] == source.bytes()[from..][..length]
                        && landed[to + length..].iter().all(|byte| *byte == 0),
                    "{kernel:?} {stores:?} hashed {hashed}: {length} bytes from {from} to {to}"
                );
                landed[to..][..length].fill(0);
            }
        }
    });
}

/// Says stop when it is dropped.
struct Stopped<'s>(&'s crate::sync::process::AtomicBool);

impl Drop for Stopped<'_> {
    fn drop(&mut self) {
        self.0.store(true, crate::sync::Ordering::Relaxed);
    }
}

/// Runs `body` while another thread keeps storing to `bytes`.
fn while_changing(bytes: &mut [u8], body: impl FnOnce(*const u8)) {
    use crate::sync::process::AtomicBool;
    use crate::sync::{AtomicU64, Ordering};
    let (start, words) = (bytes.as_mut_ptr().addr(), bytes.len() / 8);
    let source = bytes.as_mut_ptr();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let first = core::ptr::with_exposed_provenance_mut::<u64>(start);
            let mut value = 0_u64;
            while !stop.load(Ordering::Relaxed) {
                value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
                for at in 0..words {
                    // SAFETY: the borrow that the caller gave up for this call, word by word; every access to it is atomic or
                    // opaque to the compiler.
                    let word = unsafe { AtomicU64::from_ptr(first.wrapping_add(at)) };
                    word.store(value ^ at as u64, Ordering::Relaxed);
                }
            }
        });
        // Also when `body` fails: the other thread waits for nothing else.
        let _stopped = Stopped(&stop);
        body(source.cast_const());
    });
}

#[test]
fn the_checksum_is_of_what_landed_while_the_source_changes() {
    let (length, rounds) = if cfg!(miri) { (256, 3) } else { (64 << 10, 200) };
    let mut source = vec![0_u64; length / 8];
    let source: &mut [u8] = bytemuck::cast_slice_mut(&mut source);
    let exposed = source.as_mut_ptr().expose_provenance();
    assert_ne!(exposed, 0);
    let mut target = vec![0_u8; length + 64];
    let mut torn = 0;
    while_changing(source, |source| {
        every_way(|kernel, stores, hashed| {
            for round in 0..rounds {
                // SAFETY: `length` bytes on both sides, up to 63 into the target; nobody else knows the target.
                unsafe { copied((kernel, stores, hashed), target[round % 64..].as_mut_ptr(), source, length) }
                let landed = &target[round % 64..][..length];
                torn += usize::from(landed[..8] != landed[length - 8..]);
            }
        });
    });
    assert!(torn > 0, "the source stood still");
}

#[cfg(not(miri))]
mod in_a_region {
    use super::*;
    use crate::tests::{Scratch, namespace, object, payload, store};
    use crate::{Batch, Commit, Lease, NamespaceId, ObjectId, ReadFor, ReserveOptions, Role, Session, Verify, Wish};

    struct Stage {
        session: Session,
        namespace: NamespaceId,
        _scratch: Scratch,
    }

    impl Stage {
        fn lease(&self, object: ObjectId) -> Lease<'_> {
            let mut answers = self.session.acquire(&[object], Batch::Each).expect("in order");
            answers.remove(0).expect("there")
        }
    }

    /// A region of sixteen or so slots; when they are full, old blocks make room.
    fn stage(slot_bytes: u64) -> Stage {
        let scratch = Scratch::new();
        let region = scratch.region(Wish::of_slots(16 * slot_bytes + (1 << 20), slot_bytes));
        let session = region.session("copies", Role::Tool).expect("attach");
        let namespace = session.namespace(&namespace("copies")).expect("namespace");
        Stage { session, namespace, _scratch: scratch }
    }

    #[test]
    fn blocks_that_any_kernel_stored_every_kernel_loads() {
        let stage = stage(128 << 10);
        let lengths = [1_usize, 63, 64, 4095, 4096, 5000, 100_001, 128 << 10];
        let kernels = || Kernel::ALL.iter().filter(|kernel| kernel.is_here());
        let mut number = 0;
        for writer in kernels() {
            for length in lengths {
                number += 1;
                let (object, bytes) = (object(stage.namespace, number), payload(number, length));
                forced::with(*writer, || assert_eq!(store(&stage.session, &object, &bytes), "stored"));
                for reader in kernels() {
                    for (read_for, shift) in [(ReadFor::Cpu, 0), (ReadFor::Device, 0), (ReadFor::Device, 13)] {
                        let lease = stage.lease(object);
                        let mut buffer = vec![0; shift + length];
                        forced::with(*reader, || {
                            lease.read_into_for(&mut buffer[shift..], Verify::Always, read_for).expect("whole");
                        });
                        assert!(buffer[shift..] == bytes, "{writer:?} {reader:?} {length} {read_for:?}");
                        buffer.fill(0);
                        forced::with(*reader, || {
                            lease.read_into_for(&mut buffer[shift..], Verify::Never, read_for).expect("whole");
                        });
                        assert!(buffer[shift..] == bytes, "{writer:?} {reader:?} {length} {read_for:?}, unverified");
                    }
                }
            }
        }
    }

    #[test]
    fn a_block_whose_source_changed_meanwhile_still_verifies() {
        const LENGTH: usize = 96 << 10;
        let stage = stage(128 << 10);
        let mut source = vec![0_u64; LENGTH / 8];
        let source: &mut [u8] = bytemuck::cast_slice_mut(&mut source);
        assert_ne!(source.as_mut_ptr().expose_provenance(), 0);
        // In one piece, in order, backwards, and with an overlap.
        let orders: [&[(usize, usize)]; 4] = [
            &[(0, LENGTH)],
            &[(0, 5000), (5000, 64 << 10), (64 << 10, LENGTH)],
            &[(70_001, LENGTH), (33, 70_001), (0, 33)],
            &[(0, 50_000), (40_000, LENGTH)],
        ];
        let mut number = 0;
        while_changing(source, |source| {
            for kernel in Kernel::ALL.iter().filter(|kernel| kernel.is_here()) {
                for (round, pieces) in (0..20).flat_map(|round| orders.map(|pieces| (round, pieces))) {
                    number += 1;
                    let object = object(stage.namespace, number);
                    forced::with(*kernel, || {
                        let options = ReserveOptions::default();
                        let reserve = stage.session.reserve(&object, LENGTH as u64, options).expect("in order");
                        let mut slot = reserve.granted().expect("room");
                        for (start, end) in pieces {
                            let piece = source.wrapping_add(*start);
                            // SAFETY: `LENGTH` bytes are readable at `source`, outside of the region.
                            unsafe { slot.write_from(*start as u32, piece, end - start) }.expect("fits");
                        }
                        assert_eq!(slot.commit().expect("in order"), Commit::Stored);
                    });
                    let lease = stage.lease(object);
                    lease.read(Verify::Always).unwrap_or_else(|error| panic!("{kernel:?} {pieces:?} {round}: {error}"));
                }
            }
        });
    }
}
