//! A file that is replaced as a whole: readers find the old text or the new one, never a half.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Writes `bytes` beside `path`, and renames.
///
/// # Errors
/// The folder is not there or not writable. Nothing is left behind, and `path` is as it was.
pub fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let (file, beside) = create_beside(path)?;
    let written = fill(file, bytes).and_then(|()| std::fs::rename(&beside, path));
    if written.is_err() {
        let _ = std::fs::remove_file(&beside);
    }
    written
}

fn fill(mut file: File, bytes: &[u8]) -> io::Result<()> {
    file.write_all(bytes)?;
    file.sync_data()
}

/// A new file in the same folder. Never one that is there: a link that somebody has laid out is not followed.
fn create_beside(path: &Path) -> io::Result<(File, PathBuf)> {
    let name = path.file_name().ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "names no file"))?;
    for attempt in 0..100 {
        // A leading dot, and not the ending that collectors look for.
        let beside = path.with_file_name(format!(".{}.{}-{attempt}", name.display(), std::process::id()));
        match OpenOptions::new().write(true).create_new(true).mode(0o644).open(&beside) {
            Ok(file) => return Ok((file, beside)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
    Err(io::Error::new(io::ErrorKind::AlreadyExists, "a hundred half-written files lie beside it"))
}
