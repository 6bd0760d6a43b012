//! A whole prefix as a picture: what a request would find, where its leading run ends, and why.

use std::io;

use serde::Serialize;

use super::cause::Judge;
use super::sight::Sights;
use crate::out::{Line, Out, Table, Tone, grouped, plain, toned};
use crate::source::ReadError;

/// Blocks of a row.
const COLUMNS: usize = 64;
/// Rows that people see.
const ROWS: usize = 64;

/// The prefix, for JSON.
#[derive(Serialize)]
pub struct StripLine {
    /// Blocks asked for.
    pub blocks: usize,
    /// Blocks before the first one that is missing.
    pub leading_run: usize,
    /// Blocks behind it that are there, and of no use.
    pub stranded: usize,
    /// Number of the first missing block.
    pub first_missing: Option<usize>,
    /// Its key.
    pub key: Option<String>,
    /// Its cause.
    pub code: Option<&'static str>,
    /// One character a block: `#` in the leading run, `x` the first missing one, `:` there but behind it, `.` missing.
    pub strip: String,
}

/// Draws the blocks in order.
///
/// # Errors
/// Outer: the reader of the output has gone. Inner: a table cannot be read.
pub fn show(judge: &mut Judge<'_, '_>, sights: &Sights, out: &mut Out) -> io::Result<Result<(), ReadError>> {
    let (mut strip, mut codes) = (String::with_capacity(sights.found.len()), Vec::<(&'static str, usize)>::new());
    let mut first = None;
    for (at, found) in sights.found.iter().enumerate() {
        let line = match judge.answer(found, false) {
            Ok(line) => line,
            Err(error) => return Ok(Err(error)),
        };
        strip.push(match (line.hit, first.is_some()) {
            (true, false) => '#',
            (true, true) => ':',
            (false, false) => 'x',
            (false, true) => '.',
        });
        match codes.iter_mut().find(|(code, _)| *code == line.code) {
            Some((_, count)) => *count += 1,
            None => codes.push((line.code, 1)),
        }
        if !line.hit && first.is_none() {
            first = Some((at, judge_again(judge, found, &line)));
        }
        out.object(&Line::Why(Box::new(line)))?;
    }
    let leading_run = first.as_ref().map_or(sights.found.len(), |(at, _)| *at);
    let stranded = strip.bytes().filter(|byte| *byte == b':').count();
    if !out.is_json() {
        picture(&strip, out)?;
        out.line("")?;
        out.line(format!(
            "  leading run: {} of {} blocks",
            grouped(leading_run as u64),
            grouped(sights.found.len() as u64)
        ))?;
    }
    if let Some((at, line)) = &first {
        out.line(format!("  first missing: block {at}"))?;
        super::print(line, out)?;
        if stranded > 0 {
            out.line(format!("  {} blocks behind it are there, and of no use without it", grouped(stranded as u64)))?;
        }
        causes(&codes, out)?;
    }
    out.object(&Line::Strip(StripLine {
        blocks: sights.found.len(),
        leading_run,
        stranded,
        first_missing: first.as_ref().map(|(at, _)| *at),
        key: first.as_ref().map(|(_, line)| line.key.clone()),
        code: first.as_ref().map(|(_, line)| line.code),
        strip,
    }))?;
    Ok(sights.end.clone().map_or(Ok(()), Err))
}

/// The first missing block deserves a second look, at its writer and leases.
fn judge_again(judge: &mut Judge<'_, '_>, found: &super::sight::Found, line: &super::WhyLine) -> super::WhyLine {
    judge.answer(found, true).unwrap_or_else(|_| line.clone())
}

fn picture(strip: &str, out: &mut Out) -> io::Result<()> {
    out.head("prefix, block by block")?;
    let rows = strip.as_bytes().chunks(COLUMNS);
    let count = rows.len();
    for (row, blocks) in rows.enumerate().take(ROWS) {
        let mut text = String::new();
        for run in blocks.chunk_by(|one, two| one == two) {
            let tone = match run[0] {
                b'#' => Tone::Good,
                b'x' => Tone::Bad,
                _ => Tone::Dim,
            };
            text.push_str(&out.paint(tone, &String::from_utf8_lossy(run)));
        }
        out.line(format!("  {:>7}  {text}", grouped((row * COLUMNS) as u64)))?;
    }
    if count > ROWS {
        out.line(format!("  … and {} more rows (--json has them all)", count - ROWS))?;
    }
    out.line("  # in the leading run  x the first that is missing  : there, but behind it  . missing")
}

fn causes(codes: &[(&'static str, usize)], out: &mut Out) -> io::Result<()> {
    if out.is_json() {
        return Ok(());
    }
    let mut table = Table::new(&["cause", ">blocks"]);
    for (code, count) in codes {
        let tone = if *code == "ready" { Tone::Good } else { Tone::Plain };
        table.row(vec![toned(tone, code), plain(grouped(*count as u64))]);
    }
    out.line("")?;
    table.print(out)
}
