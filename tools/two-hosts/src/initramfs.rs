//! The file system that a guest boots from: one archive in the form that the kernel unpacks ("newc").

use std::fs;
use std::path::Path;

use anyhow::Context;

const FOLDER: u32 = 0o040_755;
const PROGRAM: u32 = 0o100_755;
const NODE: u32 = 0o020_600;

/// An archive being written.
#[derive(Default)]
pub(crate) struct Archive {
    bytes: Vec<u8>,
    folders: Vec<String>,
    files: u32,
}

impl Archive {
    /// Puts a file there, with the folders above it.
    pub(crate) fn file(&mut self, path: &str, from: &Path) -> anyhow::Result<()> {
        let bytes = fs::read(from).with_context(|| format!("read {}", from.display()))?;
        self.folders_above(path);
        self.entry(path, PROGRAM, (0, 0), &bytes);
        Ok(())
    }

    /// A character device, for what is opened before `/dev` is mounted.
    pub(crate) fn node(&mut self, path: &str, numbers: (u32, u32)) {
        self.folders_above(path);
        self.entry(path, NODE, numbers, &[]);
    }

    fn folders_above(&mut self, path: &str) {
        for (at, _) in path.match_indices('/') {
            let folder = path[..at].to_owned();
            if !folder.is_empty() && !self.folders.contains(&folder) {
                self.entry(&folder, FOLDER, (0, 0), &[]);
                self.folders.push(folder);
            }
        }
    }

    fn entry(&mut self, path: &str, mode: u32, (major, minor): (u32, u32), data: &[u8]) {
        self.files += 1;
        // Inode, mode, uid, gid, links, time, size, two numbers of the file system, two of the device, length of the
        // name with its zero, checksum (unused).
        let fields = [self.files, mode, 0, 0, 1, 0, data.len() as u32, 0, 0, major, minor, path.len() as u32 + 1, 0];
        self.bytes.extend_from_slice(b"070701");
        for field in fields {
            self.bytes.extend_from_slice(format!("{field:08x}").as_bytes());
        }
        self.bytes.extend_from_slice(path.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(data);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    /// The whole archive.
    pub(crate) fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, (0, 0), &[]);
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_follow_each_other_where_their_headers_say() {
        let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
        let mut archive = Archive::default();
        archive.file("a/b/file", &here).expect("read");
        archive.node("dev/console", (5, 1));
        let bytes = archive.finish();
        let number = |at: usize| {
            u32::from_str_radix(std::str::from_utf8(&bytes[at..at + 8]).expect("text"), 16).expect("a number") as usize
        };
        let (mut at, mut names) = (0, Vec::new());
        while at < bytes.len() {
            assert_eq!(&bytes[at..at + 6], b"070701", "at {at}");
            let (size, name) = (number(at + 6 + 6 * 8), number(at + 6 + 11 * 8));
            names.push(String::from_utf8_lossy(&bytes[at + 110..at + 110 + name - 1]).into_owned());
            at = ((at + 110 + name).next_multiple_of(4) + size).next_multiple_of(4);
        }
        assert_eq!(names, ["a", "a/b", "a/b/file", "dev", "dev/console", "TRAILER!!!"]);
    }
}
