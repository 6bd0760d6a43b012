//! What people and programs see.
//!
//! People get aligned tables, and colours on a terminal only. Programs get one JSON object a line. Text that comes out of
//! a region is escaped for people ([`safe`]); JSON escapes by itself.

use std::io::{self, IsTerminal, Write};

pub use crate::lines::{ClassLine, Features, Line, PoolLine, RegionLine, SectionLine};

/// Where output goes.
pub struct Out {
    json: bool,
    colour: bool,
    sink: Sink,
}

enum Sink {
    Stdout(io::BufWriter<io::Stdout>),
    Memory(Vec<u8>),
}

/// Colours, by meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tone {
    /// As it is.
    Plain,
    /// Headings.
    Head,
    /// All is well.
    Good,
    /// Worth a look.
    Warn,
    /// Broken.
    Bad,
    /// Beside the point.
    Dim,
}

impl Tone {
    const fn code(self) -> &'static str {
        match self {
            Self::Plain => "",
            Self::Head => "\x1b[1m",
            Self::Good => "\x1b[32m",
            Self::Warn => "\x1b[33m",
            Self::Bad => "\x1b[1;31m",
            Self::Dim => "\x1b[2m",
        }
    }
}

impl Out {
    /// Standard output; coloured if it is a terminal and `NO_COLOR` is not set.
    #[must_use]
    pub fn stdout(json: bool) -> Self {
        let stdout = io::stdout();
        let colour = !json && stdout.is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        Self { json, colour, sink: Sink::Stdout(io::BufWriter::new(stdout)) }
    }

    /// Memory, without colours.
    #[must_use]
    pub fn memory(json: bool) -> Self {
        Self { json, colour: false, sink: Sink::Memory(Vec::new()) }
    }

    /// What was written to memory.
    #[must_use]
    pub fn into_text(self) -> String {
        match self.sink {
            Sink::Memory(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
            Sink::Stdout(_) => String::new(),
        }
    }

    /// Whether JSON lines are wanted.
    #[must_use]
    pub fn is_json(&self) -> bool {
        self.json
    }

    /// Whether colours and cursor movements are welcome.
    #[must_use]
    pub fn is_coloured(&self) -> bool {
        self.colour
    }

    fn writer(&mut self) -> &mut dyn Write {
        match &mut self.sink {
            Sink::Stdout(stdout) => stdout,
            Sink::Memory(bytes) => bytes,
        }
    }

    /// A line for people; nothing where JSON is wanted.
    ///
    /// # Errors
    /// The reader of the output has gone.
    pub fn line(&mut self, text: impl AsRef<str>) -> io::Result<()> {
        if self.json {
            return Ok(());
        }
        writeln!(self.writer(), "{}", text.as_ref().trim_end())
    }

    /// An object for programs; nothing where people read.
    ///
    /// # Errors
    /// The reader of the output has gone.
    pub fn object(&mut self, object: &Line<'_>) -> io::Result<()> {
        if !self.json {
            return Ok(());
        }
        let text = serde_json::to_string(object).map_err(io::Error::other)?;
        writeln!(self.writer(), "{text}")
    }

    /// Hands on what is buffered.
    ///
    /// # Errors
    /// The reader of the output has gone.
    pub fn flush(&mut self) -> io::Result<()> {
        self.writer().flush()
    }

    /// Text in a tone.
    #[must_use]
    pub fn paint(&self, tone: Tone, text: &str) -> String {
        if !self.colour || tone == Tone::Plain {
            return text.to_owned();
        }
        format!("{}{text}\x1b[0m", tone.code())
    }

    /// A heading.
    ///
    /// # Errors
    /// The reader of the output has gone.
    pub fn head(&mut self, text: &str) -> io::Result<()> {
        let text = self.paint(Tone::Head, text);
        self.line("")?;
        self.line(text)
    }
}

/// An aligned table.
pub struct Table {
    columns: Vec<(&'static str, bool)>,
    rows: Vec<Vec<(String, Tone)>>,
}

impl Table {
    /// Columns; a name that starts with `>` is set to the right.
    #[must_use]
    pub fn new(columns: &[&'static str]) -> Self {
        let columns = columns.iter().map(|name| (name.trim_start_matches('>'), name.starts_with('>'))).collect();
        Self { columns, rows: Vec::new() }
    }

    /// Adds a row.
    pub fn row(&mut self, cells: Vec<(String, Tone)>) {
        self.rows.push(cells);
    }

    /// Whether there is no row.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Prints heading and rows.
    ///
    /// # Errors
    /// The reader of the output has gone.
    pub fn print(&self, out: &mut Out) -> io::Result<()> {
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column)).map(|(text, _)| text.chars().count());
            cells.chain([self.columns[column].0.chars().count()]).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.columns.len()).map(width).collect();
        let heads: Vec<(String, Tone)> =
            self.columns.iter().map(|(name, _)| ((*name).to_owned(), Tone::Head)).collect();
        print_row(out, &self.columns, &widths, &heads)?;
        self.rows.iter().try_for_each(|row| print_row(out, &self.columns, &widths, row))
    }
}

/// A table whose widths are known, printed row by row: for what may have millions of rows.
pub struct Stream {
    columns: Vec<(&'static str, bool)>,
    widths: Vec<usize>,
}

impl Stream {
    /// Columns and widths; prints the heading.
    ///
    /// # Errors
    /// The reader of the output has gone.
    pub fn new(out: &mut Out, columns: &[(&'static str, usize)]) -> io::Result<Self> {
        let widths = columns.iter().map(|(_, width)| *width).collect();
        let columns: Vec<_> =
            columns.iter().map(|(name, _)| (name.trim_start_matches('>'), name.starts_with('>'))).collect();
        let heads: Vec<(String, Tone)> = columns.iter().map(|(name, _)| ((*name).to_owned(), Tone::Head)).collect();
        let stream = Self { columns, widths };
        print_row(out, &stream.columns, &stream.widths, &heads)?;
        Ok(stream)
    }

    /// Prints a row.
    ///
    /// # Errors
    /// The reader of the output has gone.
    pub fn row(&self, out: &mut Out, cells: &[(String, Tone)]) -> io::Result<()> {
        print_row(out, &self.columns, &self.widths, cells)
    }
}

fn print_row(
    out: &mut Out,
    columns: &[(&'static str, bool)],
    widths: &[usize],
    cells: &[(String, Tone)],
) -> io::Result<()> {
    let mut line = String::from(" ");
    for (((text, tone), width), (_, right)) in cells.iter().zip(widths).zip(columns) {
        let pad = " ".repeat(width.saturating_sub(text.chars().count()));
        let text = out.paint(*tone, text);
        line.push(' ');
        if *right {
            line.push_str(&pad);
            line.push_str(&text);
        } else {
            line.push_str(&text);
            line.push_str(&pad);
        }
        line.push(' ');
    }
    out.line(line)
}

/// A cell as it is.
#[must_use]
pub fn plain(text: impl ToString) -> (String, Tone) {
    (text.to_string(), Tone::Plain)
}

/// A cell in a tone.
#[must_use]
pub fn toned(tone: Tone, text: impl ToString) -> (String, Tone) {
    (text.to_string(), tone)
}

/// Lower-case hex.
#[must_use]
pub fn hex(bytes: &[u8]) -> String {
    use core::fmt::Write as _;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Text out of a region, for people: control characters, bidirectional marks and broken UTF-8 become escapes.
#[must_use]
pub fn safe(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes)
        .chars()
        .map(|char| match char {
            '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}' => {
                char.escape_unicode().to_string()
            }
            char if char.is_control() => char.escape_default().to_string(),
            char => char.to_string(),
        })
        .collect()
}

/// Bytes before the first zero.
#[must_use]
pub fn until_zero(bytes: &[u8]) -> &[u8] {
    bytes.split(|byte| *byte == 0).next().unwrap_or_default()
}

/// A number with commas.
#[must_use]
pub fn grouped(number: impl Into<u64>) -> String {
    let digits = number.into().to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Bytes in the largest binary unit that keeps them above one.
#[must_use]
pub fn human(bytes: u64) -> String {
    const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let unit = (64 - bytes.leading_zeros()).saturating_sub(1) as usize / 10;
    if unit == 0 {
        return format!("{bytes} B");
    }
    format!("{:.1} {}", bytes as f64 / (1u64 << (unit * 10)) as f64, UNITS[unit])
}

/// A wall-clock time, nanoseconds since 1970, in UTC.
#[must_use]
pub fn date(ns: u64) -> String {
    if ns == 0 {
        return "-".to_owned();
    }
    let seconds = ns / 1_000_000_000;
    let (days, time) = ((seconds / 86_400) as i64, seconds % 86_400);
    // Days to a civil date, counting years from March so that the leap day is the last.
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02} {:02}:{:02}:{:02}Z", time / 3600, time / 60 % 60, time % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_a_region_sends_nothing_to_a_terminal() {
        assert_eq!(safe(b"a\x1b[31mb\x07\xffc\n"), "a\\u{1b}[31mb\\u{7}\u{fffd}c\\n");
        assert_eq!(safe("\u{202e}x".as_bytes()), "\\u{202e}x");
        assert_eq!(until_zero(b"ab\0cd"), b"ab");
    }

    #[test]
    fn numbers_read_well() {
        assert_eq!(grouped(1_234_567u64), "1,234,567");
        assert_eq!(grouped(12u64), "12");
        assert_eq!(human(0), "0 B");
        assert_eq!(human(1023), "1023 B");
        assert_eq!(human(1 << 20), "1.0 MiB");
        assert_eq!(human(u64::MAX), "16.0 EiB");
        assert_eq!(date(951_782_400_000_000_000), "2000-02-29 00:00:00Z");
        assert_eq!(date(1_767_225_599_000_000_000), "2025-12-31 23:59:59Z");
        assert_eq!(hex(&[0, 255]), "00ff");
    }
}
