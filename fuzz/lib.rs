//! Fuzz targets as ordinary functions.
//!
//! Each target is a `run(&[u8])` that panics when a promise is broken. `cargo test -p maru-fuzz` calls them on a
//! stable compiler with seeds, golden images, saved findings and seeded random inputs; the binaries in `targets/` hand
//! the same functions to libfuzzer. See README.md.
//!
//! | module | promise |
//! | --- | --- |
//! | [`open_region`] | no bytes of a region make a call panic, hang, or return bytes that were not stored |
//! | [`ops_vs_model`] | any sequence of calls answers as a map of blocks would, and space is accounted for |
//! | [`words`] | what is packed comes back; different names stay different |
//! | [`golden`] | the images of `layout/golden`, built from plain records |

pub mod golden;
pub mod open_region;
pub mod ops_vs_model;
pub mod words;

use std::fs::File;
use std::os::fd::OwnedFd;

use maru::{Namespace, OpenOptions};
use nix::sys::memfd::{MFdFlags, memfd_create};

/// A namespace whose tenant is `tenant`.
#[must_use]
pub fn namespace(tenant: &str) -> Namespace {
    Namespace::new()
        .tenant(tenant)
        .model("model")
        .revision("1")
        .adapter("none")
        .dtype("bf16")
        .quantization("none")
        .geometry("layers=2")
        .storage_format("fuzz-1")
        .block_tokens(16)
        .parallel("tp=1")
        .hash_algorithm("sha256")
        .hash_seed("0")
}

/// The content of block `number`: each byte depends on block and place, so that one foreign byte shows.
#[must_use]
pub fn content(number: u64, len: usize) -> Vec<u8> {
    let mut dice = Dice(number.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ len as u64);
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        bytes.extend_from_slice(&dice.next().to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// An unnamed file in memory with these bytes.
///
/// # Panics
/// When the kernel has no memory for it.
#[must_use]
pub fn memory_file(bytes: &[u8]) -> File {
    let file = File::from(memfd_create(c"maru-fuzz", MFdFlags::MFD_CLOEXEC).expect("a file in memory"));
    std::os::unix::fs::FileExt::write_all_at(&file, bytes, 0).expect("room for a small file");
    file
}

/// Options that open the region in `file` and never wait for anybody.
///
/// # Panics
/// When the process has no descriptors left.
#[must_use]
pub fn options_for(file: &File) -> OpenOptions {
    let mut options = OpenOptions::descriptor(OwnedFd::from(file.try_clone().expect("a descriptor")));
    options.huge_pages = false;
    options.wish.attach_wait_ms = 0;
    options
}

/// SplitMix64: small, and the same everywhere.
#[derive(Debug, Clone)]
pub struct Dice(pub u64);

impl Dice {
    /// The next 64 bits.
    #[allow(clippy::should_implement_trait, reason = "an endless one needs no Option")]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    /// An input for a target: up to `longest` bytes, half of the time with many small numbers, as an operation list
    /// likes them.
    pub fn input(&mut self, longest: usize) -> Vec<u8> {
        let len = self.below(longest + 1);
        let small = self.next() & 1 == 0;
        (0..len).map(|_| if small && self.next() & 3 != 0 { self.below(9) as u8 } else { self.next() as u8 }).collect()
    }

    /// Changes a few places of an input.
    pub fn mutate(&mut self, input: &mut Vec<u8>) {
        for _ in 0..1 + self.below(8) {
            let at = self.below(input.len() + 1);
            match self.below(4) {
                0 => input.insert(at, self.next() as u8),
                1 if at < input.len() => drop(input.remove(at)),
                2 if at < input.len() => input[at] ^= 1 << self.below(8),
                _ if at < input.len() => input[at] = self.next() as u8,
                _ => input.push(self.next() as u8),
            }
        }
    }
}

/// What is kept for a target in `seeds/` and `findings/`: name and bytes, in order of names.
///
/// # Panics
/// When a kept file cannot be read.
#[must_use]
pub fn kept(target: &str) -> Vec<(String, Vec<u8>)> {
    let mut kept = Vec::new();
    for folder in ["seeds", "findings"] {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(folder).join(target);
        let Ok(files) = std::fs::read_dir(&folder) else { continue };
        for file in files {
            let path = file.expect("a folder that can be listed").path();
            let name = path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
            kept.push((name, std::fs::read(&path).expect("a file that can be read")));
        }
    }
    kept.sort();
    kept
}

/// Runs a target; when it panics, says how to do so again.
///
/// # Panics
/// When the target does.
pub fn shown(how: &str, input: &[u8], target: fn(&[u8])) {
    struct Shown<'a>(&'a str, &'a [u8]);
    impl Drop for Shown<'_> {
        fn drop(&mut self) {
            if std::thread::panicking() {
                eprintln!("again with {}, input {:02x?}", self.0, self.1);
            }
        }
    }
    let _shown = Shown(how, input);
    target(input);
}
