//! Command lines to paste: what to do next, on exactly this region.

use std::path::Path;

use crate::source::Source;

/// Which region, as a command line says it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Place {
    words: String,
}

impl Place {
    /// The region that these bytes are of. An image in memory has no name.
    #[must_use]
    pub fn of(source: &dyn Source) -> Self {
        let mut words = match source.backing() {
            Some(backing) => quoted(&backing.shown_path()),
            None => "REGION".to_owned(),
        };
        if source.offset_bytes() > 0 {
            words.push_str(&format!(" --offset {}", source.offset_bytes()));
        }
        if let Some(length) = source.asked_bytes() {
            words.push_str(&format!(" --length {length}"));
        }
        Self { words }
    }

    /// The same, with life locks on another file.
    #[must_use]
    pub fn with_lock_file(mut self, lock_file: Option<&Path>) -> Self {
        if let Some(path) = lock_file {
            self.words.push_str(&format!(" --lock-file {}", quoted(path)));
        }
        self
    }

    /// `maru-inspect VERB REGION REST`.
    #[must_use]
    pub fn command(&self, verb: &str, rest: &str) -> String {
        let rest = if rest.is_empty() { String::new() } else { format!(" {rest}") };
        format!("maru-inspect {verb} {}{rest}", self.words)
    }
}

/// A path as a shell takes it: bare where that is safe, else in single quotes.
fn quoted(path: &Path) -> String {
    let text = path.display().to_string();
    let bare = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-+=:,@%".contains(&byte);
    if !text.is_empty() && !text.starts_with('-') && text.bytes().all(bare) {
        return text;
    }
    format!("'{}'", text.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_survive_a_shell() {
        assert_eq!(quoted(Path::new("/dev/shm/kv-1.x")), "/dev/shm/kv-1.x");
        assert_eq!(quoted(Path::new("/tmp/a b")), "'/tmp/a b'");
        assert_eq!(quoted(Path::new("it's")), "'it'\\''s'");
        assert_eq!(quoted(Path::new("-x")), "'-x'");
    }
}
