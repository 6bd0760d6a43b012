//! Requests from a file, one JSON object a line, as the Mooncake traces have them.
//!
//! * T1: one line is in memory at a time, and a line has a limit, so the file may be of any size.
//! * T2: whatever is wrong is told with file, line number and field. Unknown fields are somebody else's.
//! * T3: `hash_ids` has one number per block; equal numbers mean an equal prompt up to and with that block.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;
use serde_json::Value;

use crate::queue::MAX_BLOCKS;

/// Tokens of a block in these traces.
pub(crate) const BLOCK_TOKENS: u32 = 512;

/// Bytes of the longest line: far above [`MAX_BLOCKS`] numbers of any length.
const MAX_LINE_BYTES: u64 = 1 << 20;

/// A line as it should be. Only the ids matter here; the others show that it is such a trace.
#[derive(Debug, Deserialize)]
struct Line {
    #[serde(rename = "timestamp")]
    _timestamp: f64,
    #[serde(rename = "input_length")]
    _input_length: u64,
    #[serde(rename = "output_length")]
    _output_length: u64,
    hash_ids: Vec<u64>,
}

/// The requests of a file, in its order.
#[derive(Debug)]
pub(crate) struct Trace<R> {
    path: PathBuf,
    reader: R,
    line_number: u64,
    line: Vec<u8>,
}

impl Trace<BufReader<File>> {
    /// Opens a file; it is read twice, so it must be one that can be.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let file = File::open(path).with_context(|| format!("trace {}", path.display()))?;
        let kind = file.metadata().with_context(|| format!("trace {}", path.display()))?;
        ensure!(kind.is_file(), "trace {}: not a regular file, and it is read twice", path.display());
        Ok(Self::new(path, BufReader::with_capacity(1 << 18, file)))
    }
}

impl<R: BufRead> Trace<R> {
    fn new(path: &Path, reader: R) -> Self {
        Self { path: path.to_owned(), reader, line_number: 0, line: Vec::new() }
    }

    /// The next line that is not blank; `false` at the end.
    fn read_line(&mut self) -> Result<bool> {
        loop {
            self.line.clear();
            self.line_number += 1;
            let read = self.reader.by_ref().take(MAX_LINE_BYTES + 1).read_until(b'\n', &mut self.line)?;
            if read == 0 {
                return Ok(false);
            }
            ensure!(self.line.len() as u64 <= MAX_LINE_BYTES, "line is longer than {MAX_LINE_BYTES} bytes");
            if !self.line.iter().all(u8::is_ascii_whitespace) {
                return Ok(true);
            }
        }
    }

    fn request(&mut self) -> Result<Option<Vec<u64>>> {
        if !self.read_line()? {
            return Ok(None);
        }
        let line: Line = serde_json::from_slice(&self.line).map_err(|error| explain(&self.line, &error))?;
        let blocks = line.hash_ids.len();
        ensure!(blocks <= MAX_BLOCKS, "field `hash_ids` has {blocks} numbers, wanted at most {MAX_BLOCKS}");
        Ok(Some(line.hash_ids))
    }
}

impl<R: BufRead> Iterator for Trace<R> {
    type Item = Result<Vec<u64>>;

    fn next(&mut self) -> Option<Self::Item> {
        let request = self.request().with_context(|| format!("{}: line {}", self.path.display(), self.line_number));
        request.transpose()
    }
}

/// Why a line was not taken, with the field's name.
#[cold]
fn explain(line: &[u8], error: &serde_json::Error) -> anyhow::Error {
    match diagnose(line) {
        Err(found) => found,
        // Such as a field that is there twice: the parser's own words name it.
        Ok(()) => anyhow::anyhow!("{error}"),
    }
}

fn diagnose(line: &[u8]) -> Result<()> {
    let value: Value = match serde_json::from_slice(line) {
        Ok(value) => value,
        Err(error) => bail!("not JSON (column {}): {error}", error.column()),
    };
    let Value::Object(fields) = &value else { bail!("wanted a JSON object, found {}", shown(&value)) };
    for name in ["timestamp", "input_length", "output_length", "hash_ids"] {
        let Some(field) = fields.get(name) else { bail!("field `{name}` is missing") };
        match name {
            "timestamp" => ensure!(field.is_number(), "field `{name}` is {}, wanted a number", shown(field)),
            "hash_ids" => {
                let Value::Array(ids) = field else {
                    bail!("field `{name}` is {}, wanted an array of numbers", shown(field));
                };
                if let Some(at) = ids.iter().position(|id| !id.is_u64()) {
                    bail!("field `{name}`[{at}] is {}, wanted a whole number from 0 to 2^64 - 1", shown(&ids[at]));
                }
            }
            _ => ensure!(field.is_u64(), "field `{name}` is {}, wanted a whole number from 0", shown(field)),
        }
    }
    Ok(())
}

/// A value, short enough for a message.
fn shown(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(40) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Vec<Vec<u64>>> {
        Trace::new(Path::new("t.jsonl"), text.as_bytes()).collect()
    }

    const GOOD: &str =
        r#"{"timestamp": 0, "input_length": 9, "output_length": 1, "hash_ids": [0, 18446744073709551615]}"#;

    #[test]
    fn lines_are_requests_and_blank_ones_are_not() {
        let text = format!("{GOOD}\r\n\n   \n{}", GOOD.replace('9', "9, \"new\": [1]").replace("0,", "0.5,"));
        // The second replacement also hits the first id, which then is no whole number.
        assert!(read(&text).is_err());
        let text = format!("{GOOD}\r\n\n   \n{}", GOOD.replace("\"output", "\"new\": null, \"output"));
        assert_eq!(read(&text).expect("two requests"), [[0, u64::MAX], [0, u64::MAX]]);
        assert_eq!(read("").expect("no request"), Vec::<Vec<u64>>::new());
    }

    #[test]
    fn whatever_is_wrong_is_named_with_line_and_field() {
        for (wrong, words) in [
            (GOOD.replace("hash_ids", "hash_id"), "`hash_ids` is missing"),
            (GOOD.replace("timestamp", "time"), "`timestamp` is missing"),
            (GOOD.replace("[0, ", "[-1, "), "`hash_ids`[0] is -1"),
            (GOOD.replace("[0, ", "[0, 1.5, "), "`hash_ids`[1] is 1.5"),
            (GOOD.replace("551615", "551616"), "`hash_ids`[1] is 1.8446744073709552e"),
            (GOOD.replace("[0, 18446744073709551615]", "7"), "`hash_ids` is 7, wanted an array"),
            (GOOD.replace(": 9", ": \"nine\""), "`input_length` is \"nine\""),
            (GOOD.replace(": 1,", ": -1,"), "`output_length` is -1"),
            (GOOD.replace(": 0,", ": {},"), "`timestamp` is {}"),
            (GOOD.replace("\"output", "\"timestamp\": 1, \"output"), "timestamp"),
            (GOOD[..40].to_owned(), "not JSON"),
            ("[]".to_owned(), "wanted a JSON object, found []"),
            ("\u{1}\u{2}".to_owned(), "not JSON"),
            (" ".repeat(MAX_LINE_BYTES as usize + 1), "longer than"),
        ] {
            let error = format!("{:#}", read(&format!("{GOOD}\n{wrong}\n")).expect_err(words));
            assert!(error.contains("t.jsonl: line 2: ") && error.contains(words), "{error}");
        }
        let many = GOOD.replace("[0, ", &format!("[{}", "0, ".repeat(MAX_BLOCKS)));
        assert!(format!("{:#}", read(&many).expect_err("too many")).contains("at most 16384"));
    }

    #[test]
    fn a_missing_file_is_named() {
        let error = format!("{:#}", Trace::open(Path::new("/no/such/trace")).expect_err("missing"));
        assert!(error.contains("trace /no/such/trace: No such file"), "{error}");
        assert!(Trace::open(Path::new("/")).is_err());
    }
}
