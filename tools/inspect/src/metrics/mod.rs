//! `metrics`: what is counted, as Prometheus reads it.
//!
//! * M1: label values come from closed lists: states, roles, kinds, reasons, and row numbers of the namespace table, of
//!   which at most [`ROWS`] are named. Nothing that grows with requests or objects is a label.
//! * M2: every value of a closed list is there at every scrape, as zero where there is none: a query never finds nothing
//!   because nothing has happened yet.
//! * M3: the slots of all states add up to the capacity at every scrape; what could not be read has a state of its own.
//! * M4: counters are sums over session entries, which count on from holder to holder, so they only grow.
//!
//! | file | holds |
//! | --- | --- |
//! | [`families`](mod@families) | what there is, with help |
//! | [`serve`] | the answer over HTTP |
//! | [`file`](mod@file) | a file that is replaced as a whole |

pub mod families;
pub mod file;
pub mod serve;

use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde::Serialize;

pub use families::{Family, Labels, families, render};

use crate::census::{Look, Site};
use crate::findings::{Report, Verdict};
use crate::out::{Line, Out};
use crate::run::unread_summary;

/// Namespace rows that get lines of their own (M1).
pub const ROWS: usize = 256;

/// What to do with the numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wish {
    /// Which region.
    pub site: Site,
    /// Value of the label `region`.
    pub name: Option<String>,
    /// Answer scrapes here.
    pub listen: Option<std::net::SocketAddr>,
    /// Write this file.
    pub out: Option<PathBuf>,
    /// Look again after this time.
    pub pause: Option<Duration>,
    /// Look so often.
    pub times: Option<u64>,
}

/// One sample, for JSON.
#[derive(Serialize)]
pub struct MetricLine<'a> {
    /// Name.
    pub name: &'a str,
    /// `gauge` or `counter`.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// Labels.
    pub labels: std::collections::BTreeMap<&'static str, &'a str>,
    /// Value.
    pub value: f64,
}

/// Looks once.
#[must_use]
pub fn scrape(site: &Site, name: &str) -> (Vec<Family>, Look) {
    let start = Instant::now();
    let look = site.look();
    (families(name, &look, start.elapsed()), look)
}

/// Runs the verb.
///
/// # Errors
/// The reader of the output has gone, the file cannot be written, or the address is taken.
pub fn run(wish: &Wish, json: bool) -> io::Result<Verdict> {
    let name = wish.name.clone().unwrap_or_else(|| wish.site.name());
    if let Some(address) = wish.listen {
        return serve::run(address, || render(&scrape(&wish.site, &name).0), wish.times);
    }
    let mut looks = 0;
    loop {
        let (families, look) = scrape(&wish.site, &name);
        match &wish.out {
            Some(path) => {
                file::replace(path, render(&families).as_bytes())
                    .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))?;
                said(&look);
            }
            None => print(&families, &look, json)?,
        }
        looks += 1;
        match wish.pause {
            Some(pause) if wish.times.is_none_or(|times| looks < times) => std::thread::sleep(pause),
            _ => return Ok(look.verdict()),
        }
    }
}

/// What is wrong goes where logs go: the numbers say no more than that something is.
fn said(look: &Look) {
    let reason = match look {
        Look::Seen(census) => census.problem.as_deref(),
        Look::Unread { reason, .. } => Some(reason.as_str()),
    };
    if let Some(reason) = reason {
        eprintln!("maru-inspect: {}", crate::out::safe(reason.as_bytes()));
    }
}

fn print(families: &[Family], look: &Look, json: bool) -> io::Result<()> {
    let mut out = Out::stdout(json);
    show(families, look, &mut out)?;
    out.flush()?;
    if !json {
        said(look);
    }
    Ok(())
}

/// Prints the families: as Prometheus reads them, or an object a sample.
///
/// # Errors
/// The reader of the output has gone.
pub fn show(families: &[Family], look: &Look, out: &mut Out) -> io::Result<()> {
    if !out.is_json() {
        return out.line(render(families));
    }
    for family in families {
        for (labels, value) in &family.samples {
            let labels = labels.iter().map(|(name, value)| (*name, value.as_str())).collect();
            let line = MetricLine { name: &family.name, kind: family.kind, labels, value: *value };
            out.object(&Line::Metric(line))?;
        }
    }
    let mut report = Report::new();
    report.verdict = look.verdict();
    report.reason = match look {
        Look::Seen(census) => census.problem.clone(),
        Look::Unread { reason, .. } => Some(reason.clone()),
    };
    let path = match look {
        Look::Seen(census) => census.path.clone(),
        Look::Unread { .. } => None,
    };
    let mut summary = unread_summary(path, None, &report);
    if let Look::Seen(census) = look {
        summary.region_id = Some(census.region_id.clone());
        summary.format_version = Some(census.format_version);
        summary.capacity_slots = census.usage.capacity_slots;
        summary.slots = census.usage.slots;
    }
    out.object(&Line::Summary(Box::new(summary)))
}
