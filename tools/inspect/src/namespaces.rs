//! `namespaces`: what is stored under which name.

use std::io;

use maru_layout::image::namespace_text;
use maru_layout::table::NamespaceRow;
use maru_layout::word::RowState;
use serde::{Serialize, Serializer};
use sha2::{Digest, Sha256};

use crate::image::Image;
use crate::out::{Line, Out, Table, Tone, date, grouped, hex, human, plain, safe, toned};
use crate::source::ReadError;
use crate::tally::{Objects, Tally};

/// One namespace row.
#[derive(Serialize)]
pub struct NamespaceLine {
    /// Row.
    pub row: u32,
    /// State.
    pub state: String,
    /// Generation.
    pub generation: u64,
    /// What objects of this generation carry.
    pub digest: Option<String>,
    /// The text as fields, unescaped, in the text's order; an object in JSON.
    #[serde(serialize_with = "as_object")]
    pub fields: Option<Vec<(String, String)>>,
    /// Ready objects of this generation.
    pub objects: u64,
    /// Their payload bytes.
    pub bytes: u64,
    /// Budget in slots.
    pub budget_slots: Option<u64>,
    /// Wall clock of the registration.
    pub created_ns: u64,
}

/// What objects of this text carry at this generation.
#[must_use]
pub fn digest_of(text: &[u8], generation: u64) -> [u8; 16] {
    let digest = Sha256::new().chain_update(text).chain_update(generation.to_le_bytes()).finalize();
    let mut short = [0; 16];
    short.copy_from_slice(&digest[..16]);
    short
}

/// The fields of a canonical text, unescaped. Lines without `=`, or with a name that was there before, keep their text
/// under a numbered name.
#[must_use]
pub fn fields_of(text: &str) -> Vec<(String, String)> {
    let unescaped = |value: &str| value.replace("%0A", "\n").replace("%3D", "=").replace("%25", "%");
    let mut fields: Vec<(String, String)> = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let field = match line.split_once('=') {
            Some((name, value)) if fields.iter().all(|(known, _)| known != name) => (name.to_owned(), unescaped(value)),
            _ => (format!("line {number}"), line.to_owned()),
        };
        fields.push(field);
    }
    fields
}

fn as_object<S: Serializer>(fields: &Option<Vec<(String, String)>>, serializer: S) -> Result<S::Ok, S::Error> {
    match fields {
        None => serializer.serialize_none(),
        Some(fields) => serializer.collect_map(fields.iter().map(|(name, value)| (name, value))),
    }
}

impl NamespaceLine {
    fn of(index: u32, row: &NamespaceRow, tally: &Tally) -> Self {
        let state = RowState::from_bits(row.state);
        let text = namespace_text(row).filter(|_| state == Some(RowState::Ready));
        let digest = text.map(|text| digest_of(text.as_bytes(), row.generation));
        let objects = digest.and_then(|digest| tally.by_namespace.get(&digest).copied()).unwrap_or_default();
        Self {
            row: index,
            state: state.map_or_else(|| format!("damaged({:#x})", row.state), |state| state.name().to_owned()),
            generation: row.generation,
            digest: digest.map(|digest| hex(&digest)),
            fields: text.map(fields_of),
            objects: objects.objects,
            bytes: objects.bytes,
            budget_slots: row.budget_slots.checked_sub(1),
            created_ns: row.created_ns,
        }
    }

    fn print(&self, out: &mut Out) -> io::Result<()> {
        let tone = if self.fields.is_some() { Tone::Plain } else { Tone::Warn };
        let mut table = Table::new(&[">row", "state", ">generation", "digest", ">objects", ">bytes", "registered"]);
        table.row(vec![
            plain(self.row),
            toned(tone, &self.state),
            plain(self.generation),
            plain(self.digest.as_deref().unwrap_or("-")),
            plain(grouped(self.objects)),
            plain(human(self.bytes)),
            plain(date(self.created_ns)),
        ]);
        table.print(out)?;
        for (name, value) in self.fields.iter().flatten() {
            out.line(format!("       {:<16} {}", safe(name.as_bytes()), safe(value.as_bytes())))?;
        }
        out.line("")
    }
}

/// Shows every row that is not free.
///
/// # Errors
/// Outer: the reader of the output has gone. Inner: a table cannot be read.
pub fn show(image: &Image<'_>, tally: &Tally, out: &mut Out) -> io::Result<Result<(), ReadError>> {
    out.head("namespaces")?;
    let (mut shown, mut known) = (0u32, Objects::default());
    let mut written = Ok(());
    let end = image.for_each_row(|index, row| {
        if row.state == RowState::Free as u64 || written.is_err() {
            return Ok(());
        }
        let line = NamespaceLine::of(index, &row, tally);
        shown += 1;
        known.objects += line.objects;
        known.bytes += line.bytes;
        if !out.is_json() {
            written = line.print(out);
        } else {
            written = out.object(&Line::Namespace(Box::new(line)));
        }
        Ok(())
    });
    written?;
    if shown == 0 {
        out.line("  none registered")?;
    }
    let unnamed = tally.usage.slots.ready.saturating_sub(known.objects);
    if unnamed > 0 {
        let bytes = tally.usage.ready_bytes.saturating_sub(known.bytes);
        out.line(format!(
            "  {} ready objects ({}) belong to no current namespace: invalidated ones, freed as they are met",
            grouped(unnamed),
            human(bytes)
        ))?;
    }
    Ok(end)
}
