//! One look: judge the superblock, run a verb, end with a summary.

use std::io;

use serde::Serialize;

use crate::findings::{Finding, Report, Severity, Verdict};
use crate::image::{self, Image, Opening};
use crate::out::{Line, Out, Tone, hex};
use crate::source::Source;
use crate::tally::{States, Tally};
use crate::{dump, leases, log, map, namespaces, sessions, stat, verify, why};

/// What to show.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Verb {
    /// Identity, geometry, accounts.
    #[default]
    Stat,
    /// Who is attached.
    Sessions,
    /// Who protects what.
    Leases,
    /// What is stored under which name.
    Namespaces,
    /// Slots.
    Dump(dump::Filter),
    /// What sessions remember of their last operations.
    Log(log::Filter),
    /// Every slot in one picture.
    Map(map::Wish),
    /// Why blocks are hits or misses.
    Why(why::Question),
    /// Everything against everything.
    Verify {
        /// Also the payload checksums of ready slots.
        payload: bool,
    },
}

/// A verb and how to go about it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Request {
    /// What to show.
    pub verb: Verb,
    /// Take the copy at the end where the first page is no superblock at all.
    pub from_copy: bool,
    /// Show people every finding, not only the first of each kind.
    pub all: bool,
    /// Show a progress bar on a terminal.
    pub progress: bool,
}

/// The last JSON line.
#[derive(Serialize)]
pub struct SummaryLine {
    /// In one word.
    pub verdict: Verdict,
    /// Why it could not be read, or what is wrong with the superblock.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Path, where there is one.
    pub path: Option<String>,
    /// Random id.
    pub region_id: Option<String>,
    /// Format version found.
    pub format_version: Option<u32>,
    /// What the verdict rests on: `superblock`, `header`, `header+payload`.
    pub checked: &'static str,
    /// Findings of all severities.
    pub findings: u64,
    /// Of these: damage.
    pub damage: u64,
    /// Of these: left behind by the dead.
    pub leftover: u64,
    /// Of these: hints that are off.
    pub info: u64,
    /// Places that kept changing while they looked wrong.
    pub busy: u64,
    /// Slots.
    pub capacity_slots: u32,
    /// Slots by state.
    pub slots: States,
    /// Everything but slots and unused tail, per slot.
    pub metadata_bytes_per_slot: Option<f64>,
}

/// Prints findings as they come: JSON all of them, people the first few of each code.
pub struct Printer {
    all: bool,
    shown: Vec<(&'static str, u64)>,
    headed: bool,
}

/// Findings of one code that people see without `--all`.
const SHOWN: u64 = 10;

impl Printer {
    pub(crate) fn new(all: bool) -> Self {
        Self { all, shown: Vec::new(), headed: false }
    }

    /// Counts and prints a finding. Infos are gathered by code and printed at the end.
    pub(crate) fn add(&mut self, finding: Finding, report: &mut Report, out: &mut Out) -> io::Result<()> {
        if finding.severity != Severity::Info {
            self.print(&finding, out)?;
        }
        report.add(finding);
        Ok(())
    }

    fn print(&mut self, finding: &Finding, out: &mut Out) -> io::Result<()> {
        out.object(&Line::Finding(finding))?;
        if out.is_json() {
            return Ok(());
        }
        if !self.headed {
            self.headed = true;
            out.head("findings")?;
        }
        let at = match self.shown.iter().position(|(code, _)| *code == finding.code) {
            Some(at) => at,
            None => {
                self.shown.push((finding.code, 0));
                self.shown.len() - 1
            }
        };
        self.shown[at].1 += 1;
        if !self.all && self.shown[at].1 > SHOWN {
            return Ok(());
        }
        let tone = match finding.severity {
            Severity::Damage => Tone::Bad,
            Severity::Leftover => Tone::Warn,
            Severity::Info => Tone::Dim,
        };
        let severity = out.paint(tone, &format!("{:<8}", finding.severity.name()));
        let text = crate::out::safe(finding.text.as_bytes());
        let more =
            if finding.count > 1 { format!(" ({} places)", crate::out::grouped(finding.count)) } else { String::new() };
        out.line(format!("  {severity}  {:<16}  {text}{more}", finding.code))
    }

    /// Prints the infos, and what was left out.
    pub(crate) fn finish(&mut self, report: &Report, out: &mut Out) -> io::Result<()> {
        for finding in report.findings.iter().filter(|finding| finding.severity == Severity::Info) {
            self.print(finding, out)?;
        }
        for (code, count) in &self.shown {
            if !self.all && *count > SHOWN {
                out.line(format!("            {code:<16}  … and {} more (--all shows them)", count - SHOWN))?;
            }
        }
        Ok(())
    }
}

/// Looks at a region and prints what the request asks for.
///
/// # Errors
/// The reader of the output has gone. What is wrong with the region is in the report.
pub fn inspect(source: &dyn Source, request: &Request, out: &mut Out) -> io::Result<Report> {
    let mut report = Report::new();
    let mut printer = Printer::new(request.all);
    match image::open(source, request.from_copy) {
        Opening::Unreadable { reason, format_version } => {
            report.verdict = Verdict::Unreadable;
            report.reason = Some(reason);
            finish_unread(source, format_version, &report, out)?;
        }
        Opening::Damaged { problems, reason } => {
            for problem in problems {
                printer.add(problem, &mut report, out)?;
            }
            printer.finish(&report, out)?;
            report.reason = Some(reason);
            finish_unread(source, Some(maru_layout::FORMAT_VERSION), &report, out)?;
        }
        Opening::Region { image, problems, from_copy } => {
            report.reason = problems.first().map(|problem| problem.text.clone());
            look(&image, problems, from_copy, request, &mut printer, &mut report, out)?;
        }
    }
    out.flush()?;
    Ok(report)
}

fn look(
    image: &Image<'_>,
    problems: Vec<Finding>,
    from_copy: bool,
    request: &Request,
    printer: &mut Printer,
    report: &mut Report,
    out: &mut Out,
) -> io::Result<()> {
    let verifying = matches!(request.verb, Verb::Verify { .. });
    if out.is_json() {
        out.object(&Line::Region(Box::new(stat::region_line(image, from_copy))))?;
    } else {
        stat::headline(image, out)?;
    }
    for problem in problems {
        printer.add(problem, report, out)?;
    }
    if from_copy {
        out.line("            the rest is shown through the copy of the superblock at the end")?;
    }
    let mut tally = Tally::of(image);
    if !verifying && let Some(cut) = tally.cut.take() {
        printer.add(cut, report, out)?;
    }
    let shown = match &request.verb {
        Verb::Stat => stat::show(image, &tally, out)?,
        Verb::Sessions => sessions::show(image, &tally, out)?,
        Verb::Leases => leases::show(image, out)?,
        Verb::Namespaces => namespaces::show(image, &tally, out)?,
        Verb::Dump(filter) => dump::show(image, filter, out)?,
        Verb::Log(filter) => log::show(image, filter, printer, report, out)?,
        Verb::Map(wish) => map::show(image, wish, out)?,
        Verb::Why(question) => why::show(image, question, report, out)?,
        Verb::Verify { payload } => {
            verify::run(image, *payload, request.progress, printer, report, out)?;
            Ok(())
        }
    };
    if let Err(error) = shown {
        printer.add(Finding::of_read_error(&error, image), report, out)?;
    }
    printer.finish(report, out)?;
    if let Verb::Verify { payload } = request.verb {
        verify::show_extent(image, payload, out)?;
    }
    let checked = match request.verb {
        Verb::Verify { payload: true } => "header+payload",
        Verb::Verify { payload: false } => "header",
        _ => "superblock",
    };
    let geometry = image.geometry();
    let summary = SummaryLine {
        verdict: report.verdict,
        reason: report.reason.clone(),
        path: path_of(image.source()),
        region_id: Some(hex(&geometry.region_id)),
        format_version: Some(image.superblock().format_version),
        checked,
        findings: report.total(),
        damage: report.damage,
        leftover: report.leftover,
        info: report.info,
        busy: report.busy,
        capacity_slots: geometry.slot_count,
        slots: tally.usage.slots,
        metadata_bytes_per_slot: Some(stat::metadata_bytes_per_slot(image)),
    };
    out.object(&Line::Summary(Box::new(summary)))?;
    if verifying || report.verdict != Verdict::Sound {
        verdict_line(report, out)?;
    }
    Ok(())
}

fn finish_unread(source: &dyn Source, format_version: Option<u32>, report: &Report, out: &mut Out) -> io::Result<()> {
    out.object(&Line::Summary(Box::new(unread_summary(path_of(source), format_version, report))))?;
    verdict_line(report, out)
}

pub(crate) fn unread_summary(path: Option<String>, format_version: Option<u32>, report: &Report) -> SummaryLine {
    SummaryLine {
        verdict: report.verdict,
        reason: report.reason.clone(),
        path,
        region_id: None,
        format_version,
        checked: "superblock",
        findings: report.total(),
        damage: report.damage,
        leftover: report.leftover,
        info: report.info,
        busy: report.busy,
        capacity_slots: 0,
        slots: States::default(),
        metadata_bytes_per_slot: None,
    }
}

pub(crate) fn verdict_line(report: &Report, out: &mut Out) -> io::Result<()> {
    let (tone, counts) = match report.verdict {
        Verdict::Sound => (Tone::Good, true),
        Verdict::Damaged => (Tone::Bad, true),
        Verdict::Busy => (Tone::Warn, true),
        Verdict::Unreadable => (Tone::Bad, false),
    };
    let verdict = out.paint(tone, report.verdict.name());
    out.line("")?;
    let reason = report.reason.as_deref().map(|reason| crate::out::safe(reason.as_bytes()));
    if !counts {
        return out.line(format!("verdict: {verdict}: {}", reason.unwrap_or_default()));
    }
    let busy = if report.busy > 0 { format!(", {} kept changing: look again", report.busy) } else { String::new() };
    out.line(format!(
        "verdict: {verdict} ({} damage, {} leftover, {} info{busy})",
        report.damage, report.leftover, report.info
    ))?;
    if let Some(reason) = reason {
        out.line(format!("         {reason}"))?;
    }
    Ok(())
}

pub(crate) fn path_of(source: &dyn Source) -> Option<String> {
    source.backing().map(|backing| backing.shown_path().display().to_string())
}
