//! The picture: bars, sparklines, sessions, namespaces. Every text out of the region is escaped before it is drawn.

use maru_layout::table::Counter;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Clear, Paragraph, Row, Sparkline, Table};

use super::history::{Rates, overall};
use super::plain::{percent, short, top_spaces};
use super::screen::Screen;
use crate::census::{Census, LEASE_KINDS, refusals};
use crate::life::Life;
use crate::out::{grouped, human, safe};
use crate::stat::shares;

/// States of the bar: letter, colour, name. Free ones are what is left.
const STATES: [(char, Color, &str); 6] = [
    ('#', Color::Blue, "ready"),
    ('+', Color::Yellow, "being written"),
    ('~', Color::Cyan, "retiring"),
    ('x', Color::Magenta, "quarantined"),
    ('!', Color::Red, "damaged"),
    (' ', Color::Reset, "free"),
];

/// A series: its name, its value in one look, the number beside the line.
type Series = (&'static str, fn(&Rates) -> f64, fn(&Rates) -> String);

const SERIES: [Series; 6] = [
    ("hits planned", |rates| rates.planned().unwrap_or(0.0) * 100.0, |rates| percent(rates.planned())),
    ("hits real", |rates| rates.real().unwrap_or(0.0) * 100.0, |rates| percent(rates.real())),
    ("loads/s", |rates| rates.of(Counter::Loaded), |rates| short(rates.of(Counter::Loaded))),
    ("stores/s", |rates| rates.of(Counter::Stored), |rates| short(rates.of(Counter::Stored))),
    ("evictions/s", |rates| rates.of(Counter::Evicted), |rates| short(rates.of(Counter::Evicted))),
    ("refused/s", Rates::refused, |rates| short(rates.refused())),
];

/// Draws the screen.
pub fn draw(frame: &mut Frame<'_>, screen: &Screen) {
    let area = frame.area();
    let reasons = refusals().count() as u16;
    // A taller terminal shows every reason on a line of its own.
    let reason_lines = if area.height >= 34 { reasons } else { 1 };
    let [title, bar, legend, series, refused, leases, sessions, spaces, foot] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(1),
        Constraint::Length(1),
        Constraint::Length(SERIES.len() as u16),
        Constraint::Length(reason_lines),
        Constraint::Length(1),
        Constraint::Fill(3),
        Constraint::Fill(2),
        Constraint::Length(1),
    ])
    .areas(area);
    draw_title(frame, title, screen);
    match screen.history.latest() {
        None => {
            let text = screen.history.unread().unwrap_or("looking");
            let text = safe(text.as_bytes());
            frame.render_widget(Paragraph::new(text).style(style(screen, Color::Red)), bar);
        }
        Some(census) => {
            draw_bar(frame, bar, legend, census, screen);
            draw_series(frame, series, screen);
            draw_reasons(frame, refused, census, screen);
            draw_leases(frame, leases, census);
            draw_sessions(frame, sessions, census, screen);
            draw_spaces(frame, spaces, census);
        }
    }
    draw_foot(frame, foot, screen);
    if screen.shows_help() {
        draw_help(frame, area);
    }
}

fn style(screen: &Screen, colour: Color) -> Style {
    if screen.colour { Style::new().fg(colour) } else { Style::new() }
}

fn bold() -> Style {
    Style::new().add_modifier(Modifier::BOLD)
}

fn draw_title(frame: &mut Frame<'_>, area: Rect, screen: &Screen) {
    let mut spans = Vec::new();
    if screen.is_frozen() {
        spans.push(Span::styled("FROZEN ", style(screen, Color::Yellow).add_modifier(Modifier::BOLD)));
    }
    // The worst news first: they must not fall off a narrow screen.
    if let Some(reason) = screen.history.unread() {
        let reason = format!("NOT READABLE: {} ", safe(reason.as_bytes()));
        spans.push(Span::styled(reason, style(screen, Color::Red)));
    }
    if let Some(census) = screen.history.latest() {
        if let Some(problem) = &census.problem {
            let problem = format!("DAMAGED: {} ", safe(problem.as_bytes()));
            spans.push(Span::styled(problem, style(screen, Color::Red)));
        }
        if let Some(notice) = screen.history.notice() {
            spans.push(Span::styled(format!("{} ", safe(notice.as_bytes())), style(screen, Color::Yellow)));
        }
        let path = safe(census.path.as_deref().unwrap_or("(memory)").as_bytes());
        spans.push(Span::styled(path, bold()));
        spans.push(Span::raw(format!(
            "  {}  {} slots, {}",
            &census.region_id[..8],
            grouped(census.usage.capacity_slots),
            human(census.usage.capacity_bytes)
        )));
    }
    frame.render_widget(Paragraph::new(Line::from(spans)), area);
}

fn draw_bar(frame: &mut Frame<'_>, bar: Rect, legend: Rect, census: &Census, screen: &Screen) {
    let slots = &census.usage.slots;
    let parts = [
        slots.ready,
        slots.claiming + slots.pending + slots.writing,
        slots.retiring,
        slots.quarantined,
        slots.damaged + census.unread_slots,
        slots.free,
    ];
    let in_use = slots.held() as f64 / f64::from(census.usage.capacity_slots.max(1));
    let after = format!("] {} in use", percent(Some(in_use)));
    let width = usize::from(bar.width).saturating_sub(after.len() + 7);
    let mut spans = vec![Span::raw("slots [")];
    for ((glyph, colour, _), columns) in STATES.into_iter().zip(shares(&parts, width)) {
        spans.push(Span::styled(glyph.to_string().repeat(columns), style(screen, colour)));
    }
    spans.push(Span::raw(after));
    frame.render_widget(Paragraph::new(Line::from(spans)), bar);
    let mut spans = vec![Span::raw("      ")];
    for ((glyph, colour, name), count) in STATES.into_iter().zip(parts) {
        if count > 0 || name == "ready" || name == "free" {
            let glyph = if name == "free" { String::new() } else { format!("{glyph} ") };
            spans.push(Span::styled(format!(" {glyph}{name} {}", grouped(count)), style(screen, colour)));
        }
    }
    frame.render_widget(Paragraph::new(Line::from(spans)), legend);
}

/// One line a series: name, number, line.
fn draw_series(frame: &mut Frame<'_>, area: Rect, screen: &Screen) {
    let rows = Layout::vertical([Constraint::Length(1); SERIES.len()]).split(area);
    for ((name, value, words), row) in SERIES.iter().zip(rows.iter()) {
        let now = screen.history.now().map_or("-".to_owned(), words);
        let [text, line] = Layout::horizontal([Constraint::Length(22), Constraint::Fill(1)]).areas(*row);
        frame.render_widget(Paragraph::new(format!("{name:<13}{now:>8}")), text);
        let points = screen.history.last(usize::from(line.width));
        // In thousandths: sparklines take whole numbers.
        let data: Vec<u64> = points.map(|rates| (value(rates) * 1000.0) as u64).collect();
        let spark = Sparkline::default().data(&data).style(style(screen, Color::Green));
        // Hits are parts of a hundred, whatever the highest was.
        let spark = if name.starts_with("hits") { spark.max(100_000) } else { spark };
        frame.render_widget(spark, line);
    }
}

fn draw_reasons(frame: &mut Frame<'_>, area: Rect, census: &Census, screen: &Screen) {
    let rates = screen.history.now();
    let rate = |counter| rates.map_or("-".to_owned(), |rates: &Rates| format!("{}/s", short(rates.of(counter))));
    let of_total = |counter: Counter| grouped(census.total(counter));
    if area.height > 1 {
        let rows = Layout::vertical(vec![Constraint::Length(1); usize::from(area.height)]).split(area);
        for ((counter, reason), row) in refusals().zip(rows.iter()) {
            let [text, line] = Layout::horizontal([Constraint::Length(46), Constraint::Fill(1)]).areas(*row);
            let words = format!("  {reason:<18}{:>10}  {:>12}", rate(counter), of_total(counter));
            frame.render_widget(Paragraph::new(words), text);
            let points = screen.history.last(usize::from(line.width));
            let data: Vec<u64> = points.map(|rates| (rates.of(counter) * 1000.0) as u64).collect();
            frame.render_widget(Sparkline::default().data(&data).style(style(screen, Color::Yellow)), line);
        }
        return;
    }
    let mut text = String::from("  by reason:");
    for (counter, reason) in refusals() {
        // On one line, only those that were ever met.
        if census.total(counter) > 0 {
            text.push_str(&format!("  {reason} {} ({})", rate(counter), of_total(counter)));
        }
    }
    if refusals().all(|(counter, _)| census.total(counter) == 0) {
        text.push_str(" nothing was ever refused");
    }
    frame.render_widget(Paragraph::new(text), area);
}

fn draw_leases(frame: &mut Frame<'_>, area: Rect, census: &Census) {
    let kinds: Vec<String> =
        LEASE_KINDS.iter().zip(census.leases).map(|(kind, leases)| format!("{leases} {}", kind.name())).collect();
    let overall = overall(census, Counter::AcquireHits, Counter::Acquired);
    let planned = super::history::overall(census, Counter::ProbeHits, Counter::Probed);
    let text = format!(
        "leases: {}   ever: real hits {} of {}, planned {} of {}",
        kinds.join(", "),
        percent(overall),
        grouped(census.total(Counter::Acquired)),
        percent(planned),
        grouped(census.total(Counter::Probed)),
    );
    frame.render_widget(Paragraph::new(text), area);
}

fn draw_sessions(frame: &mut Frame<'_>, area: Rect, census: &Census, screen: &Screen) {
    let entries = screen.sessions(census);
    let room = usize::from(area.height.saturating_sub(2));
    let hidden = entries.len().saturating_sub(room);
    // On a narrow screen names of engines need the room more than the last columns.
    let columns = if area.width < 100 { 8 } else { 10 };
    let rows = entries.iter().take(room).map(|entry| {
        let (life, colour) = match entry.life {
            Some(Life::Alive) => ("alive", Color::Green),
            Some(Life::Dead) => ("dead", Color::Red),
            Some(Life::Unknown) => ("unknown", Color::Yellow),
            None => ("-", Color::Reset),
        };
        let cells = [
            entry.session.to_string(),
            life.to_owned(),
            entry.state().to_owned(),
            entry.role().to_owned(),
            safe(entry.engine.as_bytes()),
            grouped(entry.counters[Counter::Stored as usize]),
            grouped(entry.counters[Counter::AcquireHits as usize]),
            grouped(entry.leases),
            grouped(entry.slots),
            entry.pid.to_string(),
        ];
        Row::new(cells.into_iter().take(columns)).style(style(screen, colour))
    });
    let widths = [4, 7, 9, 9, 0, 9, 9, 6, 5, 8]
        .map(|width| if width == 0 { Constraint::Fill(1) } else { Constraint::Length(width) });
    let names = ["#", "holder", "state", "role", "engine", "stored", "hits", "leases", "slots", "pid"];
    let (widths, header) = (&widths[..columns], Row::new(names.into_iter().take(columns)));
    let (filter, _) = screen.filter();
    let mut title = format!("sessions ({} shown, by {})", entries.len() - hidden, screen.sort().name());
    if hidden > 0 {
        title.push_str(&format!(", {hidden} more"));
    }
    if !filter.is_empty() {
        title.push_str(&format!(", filter {:?}", filter));
    }
    let table = Table::new(rows, widths)
        .header(header.style(Style::new().add_modifier(Modifier::UNDERLINED)))
        .block(Block::new().title(Span::styled(title, bold())));
    frame.render_widget(table, area);
}

fn draw_spaces(frame: &mut Frame<'_>, area: Rect, census: &Census) {
    let room = usize::from(area.height.saturating_sub(2));
    let rows = top_spaces(census, room).into_iter().map(|space| {
        let budget = match (space.budget_slots, space.spent_tokens) {
            (None, _) => "-".to_owned(),
            (Some(slots), None) => format!("? of {}", grouped(slots)),
            (Some(slots), Some(spent)) => {
                let share = percent(Some(spent as f64 / slots.max(1) as f64));
                format!("{} of {} ({share})", grouped(spent), grouped(slots))
            }
        };
        Row::new([
            space.row.to_string(),
            safe(space.tenant.as_bytes()),
            safe(space.model.as_bytes()),
            space.generation.to_string(),
            grouped(space.ready),
            human(space.ready_bytes),
            budget,
        ])
    });
    let widths =
        [4, 12, 0, 4, 10, 10, 24].map(|width| if width == 0 { Constraint::Fill(1) } else { Constraint::Length(width) });
    let header = Row::new(["row", "tenant", "model", "gen", "ready", "bytes", "budget spent"]);
    let title = format!("namespaces ({} registered, the fullest first)", census.spaces.len());
    let table = Table::new(rows, widths)
        .header(header.style(Style::new().add_modifier(Modifier::UNDERLINED)))
        .block(Block::new().title(Span::styled(title, bold())));
    frame.render_widget(table, area);
}

fn draw_foot(frame: &mut Frame<'_>, area: Rect, screen: &Screen) {
    let text = match screen.filter() {
        (filter, true) => format!("filter sessions: {filter}_   Enter keeps it, Esc drops it"),
        (_, false) => format!(
            "q quit  s sort  / filter  p {}  ? help   every {} ms",
            if screen.is_frozen() { "go on" } else { "freeze" },
            screen.interval.as_millis()
        ),
    };
    frame.render_widget(Paragraph::new(text).style(Style::new().add_modifier(Modifier::REVERSED)), area);
}

const HELP: [&str; 15] = [
    "q, Ctrl-C   quit",
    "s           sort sessions: index, stored, hits, leases, slots",
    "/           filter sessions by engine, role, state, holder",
    "p           freeze the screen, and go on",
    "?           this help; Esc closes it",
    "",
    "Rates are differences of counters that sessions keep in their own",
    "lines. The next holder of an entry counts on, so none goes back.",
    "hits planned: keys found of those probed; real: blocks acquired",
    "of those asked for.",
    "holder: alive and dead are the kernel's word on this host.",
    "",
    "Next: maru-inspect why REGION KEY   one block",
    "      maru-inspect map REGION       every slot",
    "      maru-inspect log REGION       what everybody did last",
];

fn draw_help(frame: &mut Frame<'_>, area: Rect) {
    let (width, height) = (70.min(area.width), (HELP.len() as u16 + 2).min(area.height));
    let area = Rect { x: area.x + (area.width - width) / 2, y: area.y + (area.height - height) / 2, width, height };
    let lines: Vec<Line<'_>> = HELP.iter().map(|line| Line::raw(*line)).collect();
    frame.render_widget(Clear, area);
    frame.render_widget(Paragraph::new(lines).block(Block::bordered().title(" help ")), area);
}
