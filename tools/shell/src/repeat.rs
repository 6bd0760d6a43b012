//! One block read many times in a row, so that a process that is stopped at any moment is stopped in the middle of a copy.

use maru::{Lease, LoadError, Verify, View};
use serde_json::{Value, json};

use crate::codes::Code;
use crate::objects;

/// What many reads of one block gave.
#[derive(Default)]
struct Tally {
    exact: u64,
    other: u64,
}

impl Tally {
    fn add(&mut self, bytes: &[u8], wanted: &[u8]) {
        if bytes == wanted {
            self.exact += 1;
        } else {
            self.other += 1;
        }
    }

    fn answer(&self, ended: Option<LoadError>) -> Value {
        json!({ "exact": self.exact, "other": self.other, "ended": ended.map(|error| error.code()) })
    }
}

/// Copies out `times` times, or until a copy does not count; each copy that counts is compared with the payload of `seed`.
pub(crate) fn copies(lease: &Lease<'_>, verify: Verify, seed: u64, times: u64) -> Value {
    let wanted = payload(seed, lease.len() as usize);
    let (mut tally, mut bytes) = (Tally::default(), vec![0; wanted.len()]);
    for _ in 0..times {
        if let Err(error) = lease.read_into(&mut bytes, verify) {
            return tally.answer(Some(error));
        }
        tally.add(&bytes, &wanted);
    }
    tally.answer(None)
}

/// Reads in place `times` times, all under one view. Nothing is checked but the bytes themselves: the view has to do.
pub(crate) fn looks(view: &View<'_>, seed: u64, times: u64) -> Value {
    let wanted = payload(seed, view.len());
    let (mut tally, mut bytes) = (Tally::default(), vec![0; wanted.len()]);
    for _ in 0..times {
        for (index, byte) in bytes.iter_mut().enumerate() {
            // SAFETY: the index is below the view's length, and the view keeps those bytes mapped. The read is volatile,
            // so that it is made anew each time and shows whatever a process that breaks the rules has stored there.
            *byte = unsafe { byte_at(view.as_ptr(), index) };
        }
        tally.add(&bytes, &wanted);
    }
    tally.answer(None)
}

/// # Safety
/// `index` bytes behind `start` a byte is mapped.
unsafe fn byte_at(start: *const u8, index: usize) -> u8 {
    // SAFETY: the caller's premise: the byte lies in the same mapping as `start`.
    let byte = unsafe { start.add(index) };
    // SAFETY: the caller's premise: the byte is mapped; a byte is never unaligned, and any value is valid.
    unsafe { byte.read_volatile() }
}

fn payload(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    objects::fill(seed, 0, &mut bytes);
    bytes
}
