//! `stat`: what the region is and how full.
//!
//! `metadata_bytes_per_slot` counts everything that a slot costs beside itself: all bytes before the payload (tables, and
//! the gap up to the payload's alignment) and the copy of the superblock, divided by the number of slots. A tail between
//! the last slot and the copy that no slot fits into is not counted: it is shown as `unused tail`.

use std::io;

use maru_layout::PAGE_BYTES;
use maru_layout::superblock::SectionKind;
use maru_layout::word::{FormatState, FormatWord};

use crate::image::Image;
use crate::out::{
    ClassLine, Features, Line, Out, PoolLine, RegionLine, SectionLine, Table, Tone, date, grouped, hex, human, plain,
    safe, toned, until_zero,
};
use crate::run::path_of;
use crate::source::ReadError;
use crate::tally::Tally;

/// Columns of the pictures.
const WIDTH: usize = 64;

/// See the module's story.
#[must_use]
pub fn metadata_bytes_per_slot(image: &Image<'_>) -> f64 {
    let geometry = image.geometry();
    (geometry.header_bytes + PAGE_BYTES) as f64 / f64::from(geometry.slot_count)
}

/// Bytes between the last slot and the copy.
fn unused_tail(image: &Image<'_>) -> u64 {
    let geometry = image.geometry();
    let last = geometry.classes.iter();
    let end = last.map(|class| class.payload_offset_bytes + class.slot_bytes * u64::from(class.slot_count)).max();
    geometry.offset(SectionKind::Copy).saturating_sub(end.unwrap_or(geometry.header_bytes))
}

fn format_state(image: &Image<'_>) -> String {
    let Ok(control) = image.control() else { return "unread".to_owned() };
    let word = FormatWord(control.format);
    match word.state() {
        Some(FormatState::Ready) if word == FormatWord::ready(&image.geometry().region_id) => "ready".to_owned(),
        Some(FormatState::Ready) => "ready (another region's id)".to_owned(),
        Some(FormatState::Blank) => "blank".to_owned(),
        Some(FormatState::Formatting) => "formatting".to_owned(),
        Some(FormatState::Replaced) => "replaced".to_owned(),
        None => format!("{word:?}"),
    }
}

fn backing_kind(image: &Image<'_>) -> &'static str {
    image.source().backing().map_or("memory", |backing| backing.kind().name())
}

fn pool(image: &Image<'_>) -> Option<PoolLine> {
    let pool = image.pool().ok()?;
    Some(PoolLine {
        name: String::from_utf8_lossy(until_zero(&pool.name)).into_owned(),
        medium: match pool.medium {
            1 => "cpu",
            2 => "cxl",
            3 => "ssd",
            _ => "unknown",
        },
        tier: pool.tier,
        scope: match pool.scope {
            1 => "process",
            2 => "host",
            3 => "domain",
            _ => "unknown",
        },
    })
}

/// Identity and geometry, for JSON.
#[must_use]
pub fn region_line(image: &Image<'_>, from_copy: bool) -> RegionLine {
    let (geometry, superblock, source) = (image.geometry(), image.superblock(), image.source());
    let sections = SectionKind::ALL.into_iter().filter_map(|kind| superblock.section(kind).map(|row| (kind, row)));
    RegionLine {
        path: path_of(source),
        offset_bytes: source.offset_bytes(),
        backing: backing_kind(image),
        backing_bytes: source.size_bytes(),
        region_id: hex(&geometry.region_id),
        incarnation: geometry.incarnation,
        format_version: superblock.format_version,
        format_state: format_state(image),
        features: Features {
            read: superblock.features_read,
            write: superblock.features_write,
            ignorable: superblock.features_ignorable,
        },
        regime: geometry.regime.name(),
        hosts: geometry.hosts.name(),
        length_bytes: geometry.length_bytes,
        header_bytes: geometry.header_bytes,
        align_bytes: geometry.align_bytes,
        slot_count: geometry.slot_count,
        bucket_count: geometry.bucket_count,
        session_count: geometry.session_count,
        session_area_bytes: geometry.session_area_bytes,
        lease_cells: geometry.lease_cells,
        namespace_count: geometry.namespace_count,
        token_count: geometry.token_count,
        copy_lease_ms: geometry.copy_lease_ms,
        stalled_writer_ms: geometry.stalled_writer_ms,
        attach_wait_ms: geometry.attach_wait_ms,
        metadata_bytes_per_slot: metadata_bytes_per_slot(image),
        formatted_ns: superblock.formatted_ns,
        formatter_host: hex(&superblock.formatter_host),
        config: geometry.config.clone(),
        pool: pool(image),
        classes: geometry
            .classes
            .iter()
            .map(|class| ClassLine {
                slot_bytes: class.slot_bytes,
                slot_count: class.slot_count,
                first_slot: class.first_slot,
                payload_offset_bytes: class.payload_offset_bytes,
            })
            .collect(),
        sections: sections
            .map(|(kind, row)| SectionLine {
                name: kind.name(),
                offset_bytes: row.offset_bytes,
                length_bytes: row.length_bytes,
                count: row.count,
            })
            .collect(),
        from_copy,
    }
}

/// The line above every verb's output, for people.
///
/// # Errors
/// The reader of the output has gone.
pub fn headline(image: &Image<'_>, out: &mut Out) -> io::Result<()> {
    let geometry = image.geometry();
    let id = out.paint(Tone::Head, &hex(&geometry.region_id));
    let path = path_of(image.source()).unwrap_or_else(|| "(memory)".to_owned());
    let offset = image.source().offset_bytes();
    let at = if offset == 0 { String::new() } else { format!(" at offset {offset}") };
    out.line(format!(
        "region {id}  {}{at}  format {}, {}",
        safe(path.as_bytes()),
        image.superblock().format_version,
        format_state(image)
    ))
}

/// Shows identity, geometry and accounts.
///
/// # Errors
/// Outer: the reader of the output has gone. Inner: a table cannot be read.
pub fn show(image: &Image<'_>, tally: &Tally, out: &mut Out) -> io::Result<Result<(), ReadError>> {
    out.object(&Line::Usage(tally.usage.clone()))?;
    if out.is_json() {
        return Ok(Ok(()));
    }
    identity(image, out)?;
    classes(image, out)?;
    layout(image, out)?;
    usage(tally, out)?;
    Ok(Ok(()))
}

fn pairs(out: &mut Out, pairs: &[(&str, String)]) -> io::Result<()> {
    pairs.iter().try_for_each(|(name, value)| out.line(format!("  {name:<24} {value}")))
}

fn identity(image: &Image<'_>, out: &mut Out) -> io::Result<()> {
    let (geometry, superblock) = (image.geometry(), image.superblock());
    let pool = pool(image).map_or_else(
        || "unread".to_owned(),
        |pool| {
            let name = if pool.name.is_empty() { "(no name)".to_owned() } else { safe(pool.name.as_bytes()) };
            format!("{name}, {}, L{}, {}", pool.medium, pool.tier, pool.scope)
        },
    );
    out.head("identity")?;
    pairs(
        out,
        &[
            ("incarnation", geometry.incarnation.to_string()),
            ("backing", format!("{}, {}", backing_kind(image), human(image.source().size_bytes()))),
            ("regime", format!("{}, hosts: {}", geometry.regime.name(), geometry.hosts.name())),
            ("pool", pool),
            (
                "features",
                format!(
                    "read {:#x}, write {:#x}, ignorable {:#x}",
                    superblock.features_read, superblock.features_write, superblock.features_ignorable
                ),
            ),
            ("formatted", date(superblock.formatted_ns)),
            (
                "times",
                format!(
                    "copy lease {} ms, stalled writer {} ms, attach wait {} ms",
                    geometry.copy_lease_ms, geometry.stalled_writer_ms, geometry.attach_wait_ms
                ),
            ),
            ("config", safe(geometry.config.as_bytes())),
        ],
    )?;
    out.head("geometry")?;
    pairs(
        out,
        &[
            ("length", format!("{} ({} bytes)", human(geometry.length_bytes), grouped(geometry.length_bytes))),
            ("slots", grouped(geometry.slot_count)),
            ("buckets", grouped(geometry.bucket_count)),
            (
                "sessions",
                format!("{}, {} lease cells each", grouped(geometry.session_count), grouped(geometry.lease_cells)),
            ),
            ("namespace rows", grouped(geometry.namespace_count)),
            ("metadata_bytes_per_slot", format!("{:.1}", metadata_bytes_per_slot(image))),
            ("unused tail", human(unused_tail(image))),
        ],
    )
}

fn classes(image: &Image<'_>, out: &mut Out) -> io::Result<()> {
    out.head("slot classes")?;
    let mut table = Table::new(&[">class", ">slot bytes", ">slots", ">first slot", ">payload at"]);
    for (index, class) in image.geometry().classes.iter().enumerate() {
        table.row(vec![
            plain(index),
            plain(grouped(class.slot_bytes)),
            plain(grouped(class.slot_count)),
            plain(grouped(class.first_slot)),
            plain(grouped(class.payload_offset_bytes)),
        ]);
    }
    table.print(out)
}

/// One letter a section, for the rulers.
fn letter(kind: SectionKind) -> char {
    match kind {
        SectionKind::Control => 'c',
        SectionKind::Namespaces => 'N',
        SectionKind::Pools => 'p',
        SectionKind::Sessions => 's',
        SectionKind::SessionAreas => 'A',
        SectionKind::Bitmap => 'b',
        SectionKind::Records => 'R',
        SectionKind::Buckets => 'I',
        SectionKind::AccessBytes => 'a',
        SectionKind::Tokens => 't',
        SectionKind::Tasks => 'k',
        SectionKind::Adverts => 'v',
        SectionKind::Farewells => 'f',
        SectionKind::Payload => '#',
        SectionKind::Copy => 'S',
    }
}

/// Shares of a line: each part that is not empty has at least one column.
pub(crate) fn shares(parts: &[u64], width: usize) -> Vec<usize> {
    let total: u128 = parts.iter().map(|part| u128::from(*part)).sum::<u128>().max(1);
    let mut columns: Vec<usize> = parts
        .iter()
        .map(|part| (u128::from(*part) * width as u128 / total) as usize + usize::from(*part > 0))
        .collect();
    while columns.iter().sum::<usize>() > width {
        let Some(widest) = (0..columns.len()).max_by_key(|at| columns[*at]) else { break };
        columns[widest] -= 1;
    }
    columns
}

fn ruler(parts: &[(char, u64)], fill: char) -> String {
    let columns = shares(&parts.iter().map(|(_, bytes)| *bytes).collect::<Vec<_>>(), WIDTH);
    let mut text = String::from("|");
    for ((glyph, _), columns) in parts.iter().zip(&columns) {
        text.extend(std::iter::repeat_n(*glyph, *columns));
    }
    while text.chars().count() <= WIDTH {
        text.push(fill);
    }
    text.push('|');
    text
}

fn layout(image: &Image<'_>, out: &mut Out) -> io::Result<()> {
    let (geometry, superblock) = (image.geometry(), image.superblock());
    out.head("layout")?;
    let slots = geometry.capacity_bytes();
    let whole = [('H', geometry.header_bytes), ('#', slots), ('.', unused_tail(image)), ('S', PAGE_BYTES)];
    out.line(format!("  region  {}  {}", ruler(&whole, '.'), human(geometry.length_bytes)))?;
    let mut header = vec![('S', PAGE_BYTES)];
    let mut end = PAGE_BYTES;
    for kind in SectionKind::ALL {
        let Some(row) = superblock.section(kind).filter(|_| !matches!(kind, SectionKind::Payload | SectionKind::Copy))
        else {
            continue;
        };
        header.push((letter(kind), row.length_bytes));
        end = row.offset_bytes + row.length_bytes;
    }
    header.push(('.', geometry.header_bytes.saturating_sub(end)));
    out.line(format!("  header  {}  {}", ruler(&header, '.'), human(geometry.header_bytes)))?;
    out.line("")?;
    let mut table = Table::new(&["", "section", ">offset", ">bytes", ">count", ">share"]);
    let share = |bytes: u64| format!("{:.2} %", bytes as f64 * 100.0 / geometry.length_bytes as f64);
    table.row(vec![
        plain('S'),
        plain("superblock"),
        plain(0),
        plain(grouped(PAGE_BYTES)),
        plain(1),
        plain(share(PAGE_BYTES)),
    ]);
    for kind in SectionKind::ALL {
        let Some(row) = superblock.section(kind) else { continue };
        if row.count == 0 {
            continue;
        }
        table.row(vec![
            plain(letter(kind)),
            plain(kind.name()),
            plain(grouped(row.offset_bytes)),
            plain(grouped(row.length_bytes)),
            plain(grouped(row.count)),
            plain(share(row.length_bytes)),
        ]);
    }
    table.print(out)
}

fn usage(tally: &Tally, out: &mut Out) -> io::Result<()> {
    let usage = &tally.usage;
    out.head("usage")?;
    let free = usage.capacity_bytes.saturating_sub(usage.allocated_bytes);
    let damaged = usage.allocated_bytes.saturating_sub(
        usage.ready_allocated_bytes + usage.retiring_bytes + usage.quarantined_bytes + usage.writing_bytes,
    );
    let bar = [
        ('#', usage.ready_allocated_bytes),
        ('+', usage.writing_bytes),
        ('~', usage.retiring_bytes),
        ('x', usage.quarantined_bytes),
        ('!', damaged),
        (' ', free),
    ];
    let percent = usage.allocated_bytes as f64 * 100.0 / usage.capacity_bytes.max(1) as f64;
    out.line(format!("  slots   {}  {percent:.1} % in use", ruler(&bar, ' ')))?;
    out.line("          # ready  + being written  ~ retiring  x quarantined  ! damaged")?;
    out.line("")?;
    for (name, bytes, inside) in [
        ("capacity_bytes", usage.capacity_bytes, false),
        ("reserved_bytes", usage.reserved_bytes, false),
        ("allocated_bytes", usage.allocated_bytes, false),
        ("ready_allocated_bytes", usage.ready_allocated_bytes, true),
        ("ready_bytes", usage.ready_bytes, true),
        ("writing_bytes", usage.writing_bytes, true),
        ("retiring_bytes", usage.retiring_bytes, true),
        ("quarantined_bytes", usage.quarantined_bytes, true),
        ("pinned_bytes", usage.pinned_bytes, true),
    ] {
        let name = if inside { format!("  {name}") } else { name.to_owned() };
        out.line(format!("  {name:<24} {:>20}  {:>10}", grouped(bytes), human(bytes)))?;
    }
    out.line("")?;
    let mut table = Table::new(&["state", ">slots"]);
    for (name, slots) in usage.slots.each() {
        let tone = match name {
            "damaged" if slots > 0 => Tone::Bad,
            "quarantined" if slots > 0 => Tone::Warn,
            _ => Tone::Plain,
        };
        if name != "damaged" || slots > 0 {
            table.row(vec![plain(name), toned(tone, grouped(slots))]);
        }
    }
    table.print(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ruler_is_as_wide_as_it_says_and_hides_nothing() {
        for parts in [vec![1, 1 << 40, 0, 1], vec![0, 0], vec![5; 14], vec![u64::MAX; 14]] {
            let columns = shares(&parts, WIDTH);
            assert!(columns.iter().sum::<usize>() <= WIDTH);
            assert!(parts.iter().zip(&columns).all(|(part, columns)| (*part > 0) == (*columns > 0)));
            let named: Vec<_> = parts.iter().map(|part| ('x', *part)).collect();
            assert_eq!(ruler(&named, '.').chars().count(), WIDTH + 2);
        }
    }
}
