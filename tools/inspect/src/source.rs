//! Where bytes come from.
//!
//! A [`Source`] is a region's bytes, counted from its first one, and its only question is "copy these out". Files
//! answer with `pread`, so that a file which is cut under the reader gives an error instead of a signal. Device-dax
//! nodes have no `read`; they do not shrink either, so windows of them are mapped, read-only.

use std::cell::RefCell;
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;

use maru::os::map::Mapping;
use maru::{Backing, BackingError, BackingKind};
use maru_layout::PAGE_BYTES;

pub use maru::os::BackingFile;

/// Why bytes could not be copied out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReadError {
    /// The backing ends before them.
    Cut {
        /// First byte asked for, from the region's first byte.
        offset: u64,
        /// Byte after the last one asked for.
        need: u64,
        /// Bytes that there are.
        have: u64,
    },
    /// The kernel refused.
    Io {
        /// First byte asked for.
        offset: u64,
        /// The kernel's answer.
        problem: String,
    },
}

impl core::fmt::Display for ReadError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Cut { offset, need, have } => {
                write!(f, "bytes {offset} to {need} are missing: the backing ends at {have}")
            }
            Self::Io { offset, problem } => write!(f, "cannot read at {offset}: {problem}"),
        }
    }
}

/// Bytes of a region, from its first one on.
pub trait Source {
    /// Bytes that there were when it was opened.
    fn size_bytes(&self) -> u64;

    /// Whether somebody may be changing the bytes.
    fn may_change(&self) -> bool;

    /// Copies bytes out.
    ///
    /// # Errors
    /// They are not there, or the kernel refused.
    fn read_at(&self, offset: u64, target: &mut [u8]) -> Result<(), ReadError>;

    /// The backing, where there is one.
    fn backing(&self) -> Option<&BackingFile> {
        None
    }

    /// Where the region starts in it.
    fn offset_bytes(&self) -> u64 {
        0
    }

    /// Length of the partition, where one was asked for.
    fn asked_bytes(&self) -> Option<u64> {
        None
    }
}

/// A region in memory: an image, a fuzzer's input.
#[derive(Debug, Clone, Copy)]
pub struct Bytes<'a> {
    bytes: &'a [u8],
}

impl<'a> Bytes<'a> {
    /// These bytes.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes }
    }
}

impl Source for Bytes<'_> {
    fn size_bytes(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn may_change(&self) -> bool {
        false
    }

    fn read_at(&self, offset: u64, target: &mut [u8]) -> Result<(), ReadError> {
        let need = offset.saturating_add(target.len() as u64);
        let cut = ReadError::Cut { offset, need, have: self.size_bytes() };
        let (Ok(start), Ok(end)) = (usize::try_from(offset), usize::try_from(need)) else { return Err(cut) };
        target.copy_from_slice(self.bytes.get(start..end).ok_or(cut)?);
        Ok(())
    }
}

/// A part of a file or device.
#[derive(Debug)]
pub struct Part {
    backing: BackingFile,
    offset: u64,
    length: u64,
    asked: Option<u64>,
    windows: RefCell<Vec<Window>>,
}

/// A mapped piece of a device.
#[derive(Debug)]
struct Window {
    start: u64,
    mapping: Mapping,
}

/// Windows kept: one for records, one for buckets, and two for what is compared with them.
const WINDOWS: usize = 4;
const WINDOW_BYTES: u64 = 16 << 20;

impl Part {
    /// Opens a part of a backing. Judges before it opens: a FIFO, a directory or a socket is refused at once.
    ///
    /// # Errors
    /// As [`BackingFile::open`], or the part lies outside.
    pub fn open(backing: &Backing, offset: u64, length: Option<u64>) -> Result<Self, BackingError> {
        let backing = BackingFile::open(backing, false)?;
        let size_bytes = backing.size_now()?;
        let Some(rest) = size_bytes.checked_sub(offset) else {
            return Err(BackingError::OutOfBounds { offset, length: length.unwrap_or(PAGE_BYTES), size_bytes });
        };
        let asked = length;
        let length = length.map_or(rest, |length| length.min(rest));
        Ok(Self { backing, offset, length, asked, windows: RefCell::new(Vec::new()) })
    }

    fn read_file(&self, offset: u64, target: &mut [u8]) -> Result<(), ReadError> {
        let mut done = 0;
        while done < target.len() {
            match self.backing.file().read_at(&mut target[done..], self.offset + offset + done as u64) {
                Ok(0) => {
                    let need = offset + target.len() as u64;
                    return Err(ReadError::Cut { offset, need, have: offset + done as u64 });
                }
                Ok(read) => done += read,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(ReadError::Io { offset, problem: error.to_string() }),
            }
        }
        Ok(())
    }

    /// Copies out of a mapped window, window by window.
    fn read_mapped(&self, offset: u64, target: &mut [u8]) -> Result<(), ReadError> {
        let unit = self.backing.align_bytes().max(WINDOW_BYTES);
        let mut done = 0;
        while done < target.len() {
            let at = self.offset + offset + done as u64;
            let start = at / unit * unit;
            let mut windows = self.windows.borrow_mut();
            let index = match windows.iter().position(|window| window.start == start) {
                Some(index) => index,
                None => {
                    let io = |error: BackingError| ReadError::Io { offset, problem: error.to_string() };
                    let end = start.saturating_add(unit).min(self.backing.size_bytes());
                    if windows.len() >= WINDOWS {
                        windows.remove(0);
                    }
                    let mapping = Mapping::of(&self.backing, start..end, false).map_err(io)?;
                    windows.push(Window { start, mapping });
                    windows.len() - 1
                }
            };
            let within = (at - start) as usize;
            let mapping = &windows[index].mapping;
            let length = (target.len() - done).min(mapping.len().saturating_sub(within));
            if length == 0 {
                let need = offset + target.len() as u64;
                return Err(ReadError::Cut { offset, need, have: offset + done as u64 });
            }
            copy_out(mapping, within, &mut target[done..done + length]);
            done += length;
        }
        Ok(())
    }
}

impl Source for Part {
    fn size_bytes(&self) -> u64 {
        self.length
    }

    fn may_change(&self) -> bool {
        true
    }

    fn read_at(&self, offset: u64, target: &mut [u8]) -> Result<(), ReadError> {
        let need = offset.saturating_add(target.len() as u64);
        if need > self.length {
            return Err(ReadError::Cut { offset, need, have: self.length });
        }
        if self.backing.kind() == BackingKind::DeviceDax {
            self.read_mapped(offset, target)
        } else {
            self.read_file(offset, target)
        }
    }

    fn backing(&self) -> Option<&BackingFile> {
        Some(&self.backing)
    }

    fn offset_bytes(&self) -> u64 {
        self.offset
    }

    fn asked_bytes(&self) -> Option<u64> {
        self.asked
    }
}

/// Copies bytes out of a mapping that others may be storing to: aligned words with volatile loads, each of which the
/// hardware does as a whole.
fn copy_out(mapping: &Mapping, offset: usize, target: &mut [u8]) {
    assert!(offset.checked_add(target.len()).is_some_and(|end| end <= mapping.len()), "inside the mapping");
    let mut done = 0;
    while done < target.len() {
        let at = offset + done;
        let word_start = at / 8 * 8;
        let mut eight = [0; 8];
        // Mappings are whole pages, so the word that holds a mapped byte is mapped too.
        // SAFETY: `word_start <= at < mapping.len()`, asserted above.
        let place = unsafe { mapping.as_ptr().add(word_start) };
        // SAFETY: mapped for as long as `mapping` is borrowed; a mapping starts on a page, so the word is aligned.
        // Volatile: another process may store there at any time, and the value read is only ever data.
        let word = unsafe { place.cast::<u64>().read_volatile() };
        eight.copy_from_slice(&word.to_le_bytes());
        let skip = at - word_start;
        let length = (8 - skip).min(target.len() - done);
        target[done..done + length].copy_from_slice(&eight[skip..skip + length]);
        done += length;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mapped_windows_give_what_pread_gives() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("bytes");
        let bytes: Vec<u8> =
            (0..(33u32 << 20) / 4).flat_map(|at| at.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
        std::fs::write(&path, &bytes).expect("written");
        let part = Part::open(&Backing::Path(path), 4096, None).expect("opened");
        for (offset, length) in [(0, 1), (3, 21), (4095, 4098), ((16 << 20) - 4100, 9000), ((32 << 20) - 13, 13)] {
            let (mut read, mut mapped) = (vec![0; length], vec![1; length]);
            part.read_file(offset, &mut read).expect("read");
            part.read_mapped(offset, &mut mapped).expect("mapped");
            assert!(read == mapped, "{length} bytes at {offset}");
            assert!(read == bytes[offset as usize + 4096..][..length]);
        }
        let size = part.size_bytes();
        assert!(matches!(part.read_at(size - 1, &mut [0; 2]), Err(ReadError::Cut { .. })));
        assert!(matches!(part.read_at(u64::MAX - 1, &mut [0; 8]), Err(ReadError::Cut { .. })));
    }
}
