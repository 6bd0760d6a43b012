//! `watch`: lines in a pipe, and the screen at two sizes, on a live region, and on one that is replaced or cut meanwhile.

mod common;

use std::path::Path;
use std::time::{Duration, Instant};

use common::{Scratch, inspect, namespace, object, payload, store};
use maru::{Batch, Budget, Evict, Region, Reserve, ReserveOptions, Role, Session, SessionOptions, Wish};
use maru_inspect::census::Site;
use maru_inspect::watch::draw::draw;
use maru_inspect::watch::screen::{Pressed, Screen};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

/// A region with two sessions, two namespaces, one of them with a budget that is spent, and a store refused.
struct Scene {
    scratch: Scratch,
    region: Region,
    one: Session,
    two: Session,
    stored: u64,
}

impl Scene {
    fn new() -> Self {
        let scratch = Scratch::new();
        let region = scratch.region("kv", Wish::of_slots(1 << 20, 4096));
        let one = region.session("engine-a", Role::Worker).expect("attach");
        let never = SessionOptions { evict: Evict::Never, ..SessionOptions::default() };
        let two = region.session_with("engine-b", Role::Scheduler, never).expect("attach");
        let bounded = two.namespace_with_budget(&namespace("bounded"), Budget::Slots(4)).expect("namespace");
        for number in 0..4 {
            assert_eq!(store(&two, &object(bounded, number), &payload(number, 100)), "stored");
        }
        let refused = two.reserve(&object(bounded, 9), 100, ReserveOptions::default()).expect("reserve");
        assert!(matches!(refused, Reserve::Refused(_)));
        drop(refused);
        Self { scratch, region, one, two, stored: 0 }
    }

    fn path(&self) -> std::path::PathBuf {
        self.scratch.path("kv")
    }

    /// Stores three blocks, asks for four: a ratio of 3 in 4; probes for two of which one is there.
    fn work(&mut self) {
        let ns = self.one.namespace(&namespace("free")).expect("namespace");
        let first = 100 + self.stored;
        for number in first..first + 3 {
            assert_eq!(store(&self.one, &object(ns, number), &payload(number, 100)), "stored");
        }
        self.stored += 3;
        let probed = [object(ns, first), object(ns, 99_999)];
        assert_eq!(self.one.probe_prefix(&probed).expect("probe"), 1);
        let asked: Vec<_> = (first..first + 4).map(|number| object(ns, number)).collect();
        for lease in self.one.acquire(&asked, Batch::Each).expect("acquire").into_iter().flatten() {
            let mut bytes = vec![0; lease.len() as usize];
            lease.read_into(&mut bytes, maru::Verify::Always).expect("read");
        }
    }
}

fn site(path: &Path) -> Site {
    Site { path: Some(path.to_owned()), ..Site::default() }
}

fn frame(screen: &Screen, width: u16, height: u16) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a terminal");
    terminal.draw(|frame| draw(frame, screen)).expect("drawn");
    let buffer = terminal.backend().buffer();
    (0..height)
        .map(|y| (0..width).map(|x| buffer[(x, y)].symbol().to_owned()).collect::<String>().trim_end().to_owned())
        .collect()
}

fn press(screen: &mut Screen, keys: &str) {
    for letter in keys.chars() {
        let code = if letter == '\n' { KeyCode::Enter } else { KeyCode::Char(letter) };
        assert_eq!(screen.press(KeyEvent::new(code, KeyModifiers::NONE)), Pressed::On);
    }
}

/// Two looks, a second apart by the clock that the screen is given.
fn seen(scene: &mut Scene) -> Screen {
    let mut screen = Screen::new(Duration::from_secs(1), false);
    let start = Instant::now();
    screen.history.add(site(&scene.path()).look(), start);
    scene.work();
    screen.history.add(site(&scene.path()).look(), start + Duration::from_secs(1));
    screen
}

fn line<'a>(lines: &'a [String], start: &str) -> &'a str {
    lines.iter().find(|line| line.trim_start().starts_with(start)).unwrap_or_else(|| panic!("{start} in {lines:#?}"))
}

#[test]
fn the_screen_at_two_sizes() {
    let mut scene = Scene::new();
    let screen = seen(&mut scene);
    for (width, height) in [(80, 24), (120, 40)] {
        let lines = frame(&screen, width, height);
        assert!(line(&lines, "hits real").contains("75.0%"), "{lines:#?}");
        assert!(line(&lines, "hits planned").contains("50.0%"), "{lines:#?}");
        assert!(line(&lines, "stores/s").contains("3.0"), "{lines:#?}");
        assert!(line(&lines, "loads/s").contains("3.0"), "{lines:#?}");
        assert!(line(&lines, "refused/s").contains("0.0"), "{lines:#?}");
        // Whatever the height, the reason of the one refusal is named.
        assert!(lines.iter().any(|line| line.contains("over_budget") && line.contains("0.0/s")), "{lines:#?}");
        let ready = line(&lines, "# ready");
        assert!(ready.contains("# ready 7") && ready.contains("free"), "{ready}");
        // 7 of 249 or so slots: a bar of that part, and never of none.
        let bar = line(&lines, "slots [");
        assert!(bar.contains("[#") && bar.contains("% in use"), "{bar}");
        assert!(line(&lines, "sessions (2 shown, by index)").len() > 10);
        let (one, two) = (line(&lines, "0    alive"), line(&lines, "1    alive"));
        assert!(one.contains("worker") && one.contains("engine-a"), "{one}");
        assert!(two.contains("scheduler") && two.contains("engine-b"), "{two}");
        assert!(line(&lines, "namespaces (2 registered").len() > 10);
        assert!(lines.iter().any(|line| line.contains("bounded") && line.contains("4 of 4 (100.0%)")), "{lines:#?}");
        assert!(lines.last().expect("a foot").starts_with("q quit"), "{lines:#?}");
        // Something of the line of the stores is drawn.
        assert!(line(&lines, "stores/s").contains('█'), "{lines:#?}");
    }
    // The tall one has each reason on a line of its own.
    let tall = frame(&screen, 120, 40);
    assert!(line(&tall, "no_space").contains("0.0/s") && line(&tall, "over_budget").ends_with('1'), "{tall:#?}");
    // The smallest terminals get what fits.
    for (width, height) in [(1, 1), (10, 3), (200, 8)] {
        frame(&screen, width, height);
    }
}

#[test]
fn keys_sort_filter_freeze_and_help() {
    let mut scene = Scene::new();
    let mut screen = seen(&mut scene);
    let order = |screen: &Screen| {
        let lines = frame(screen, 120, 40);
        let at = |name: &str| lines.iter().position(|line| line.contains(name));
        (at("engine-a"), at("engine-b"))
    };
    let (a, b) = order(&screen);
    assert!(a < b && a.is_some());
    press(&mut screen, "s");
    let (a, b) = order(&screen);
    assert!(b < a && b.is_some(), "by stored: four before three");
    press(&mut screen, "/SCHED");
    assert!(frame(&screen, 80, 24).last().expect("a foot").starts_with("filter sessions: SCHED_"));
    press(&mut screen, "\n");
    let (a, b) = order(&screen);
    assert!(a.is_none() && b.is_some(), "filtered by role");
    assert_eq!(screen.press(KeyEvent::new(KeyCode::Esc, KeyModifiers::NONE)), Pressed::On, "drops the filter");
    assert!(order(&screen).0.is_some());
    assert!(!screen.is_frozen());
    press(&mut screen, "p");
    assert!(screen.is_frozen() && frame(&screen, 80, 24)[0].starts_with("FROZEN"));
    press(&mut screen, "p?");
    let help = frame(&screen, 80, 24).join("\n");
    assert!(help.contains("freeze the screen") && help.contains("maru-inspect why"), "{help}");
    press(&mut screen, "?");
    for (code, modifiers) in [(KeyCode::Char('q'), KeyModifiers::NONE), (KeyCode::Char('c'), KeyModifiers::CONTROL)] {
        assert_eq!(screen.press(KeyEvent::new(code, modifiers)), Pressed::Quit);
    }
}

#[test]
fn replaced_cut_and_damaged_while_it_is_watched() {
    let mut scene = Scene::new();
    let path = scene.path();
    let mut screen = seen(&mut scene);
    let start = Instant::now() + Duration::from_secs(2);
    assert!(screen.history.now().is_some());
    let Scene { scratch, region, one, two, .. } = scene;
    drop((one, two, region));
    // Cut in the middle of the tables: damaged, and what is left is shown.
    let whole = std::fs::read(&path).expect("read");
    std::fs::write(&path, &whole[..40_000]).expect("written");
    screen.history.add(site(&path).look(), start);
    let lines = frame(&screen, 120, 40);
    assert!(lines[0].contains("DAMAGED: "), "{}", lines[0]);
    // Gone: the last picture stays, and is said to be old.
    std::fs::remove_file(&path).expect("removed");
    screen.history.add(site(&path).look(), start);
    let lines = frame(&screen, 120, 40);
    assert!(lines[0].starts_with("NOT READABLE: ") && lines[0].contains("no such file"), "{}", lines[0]);
    // Another region under the name: rates of the first one are forgotten.
    let other = scratch.region("kv", Wish::of_slots(2 << 20, 4096));
    screen.history.add(site(&path).look(), start);
    let lines = frame(&screen, 120, 40);
    assert!(lines[0].contains("another region lies here now"), "{}", lines[0]);
    assert!(screen.history.now().is_none() && line(&lines, "stores/s").trim_end().ends_with('-'), "{lines:#?}");
    assert!(line(&lines, "# ready").contains("# ready 0"));
    drop(other);
    // Nonsense: not a region, and no panic.
    std::fs::write(&path, b"nonsense").expect("written");
    screen.history.add(site(&path).look(), start);
    assert!(frame(&screen, 80, 24)[0].starts_with("NOT READABLE: "));
    // Never anything but that.
    let mut fresh = Screen::new(Duration::from_secs(1), true);
    fresh.history.add(site(&path).look(), start);
    let lines = frame(&fresh, 80, 24);
    assert!(lines[0].starts_with("NOT READABLE: ") && lines[1].contains("need 4096 bytes"), "{lines:#?}");
}

#[test]
fn lines_in_a_pipe() {
    let mut scene = Scene::new();
    scene.work();
    let path = scene.path();
    let path = path.to_str().expect("UTF-8");
    // The alias, and lines: a heading and one for each look.
    let said = inspect(&["top", path, "--interval", "50ms", "--count", "3"]);
    let lines: Vec<&str> = said.text.lines().collect();
    assert_eq!((said.code, lines.len()), (0, 4), "{}", said.text);
    assert!(lines[0].starts_with("time") && lines[1].contains("2 alive"), "{}", said.text);
    assert!(!said.text.contains('\x1b'), "{}", said.text);

    let said = inspect(&["watch", path, "--interval", "50ms", "--count", "2", "--json"]);
    let samples = said.of_kind("sample");
    assert_eq!((said.code, samples.len(), said.summary()["verdict"].as_str()), (0, 2, Some("sound")), "{}", said.text);
    let (first, second) = (&samples[0], &samples[1]);
    assert!(first["rates"].is_null() && first["seconds"].is_null(), "nothing to differ from yet");
    assert_eq!(second["rates"]["stored_blocks"], 0.0, "the same region, and nobody works");
    assert!(second["seconds"].as_f64().is_some_and(|seconds| seconds >= 0.05), "{second}");
    assert_eq!(second["slots"]["ready"], 7);
    assert_eq!(
        (second["hit_ratio_overall"].as_f64(), second["planned_hit_ratio_overall"].as_f64()),
        (Some(0.75), Some(0.5))
    );
    assert!(second["hit_ratio"].is_null(), "nothing was asked for");
    assert_eq!(
        (second["totals"]["refused_over_budget"].as_u64(), second["refusals"]["over_budget"].as_f64()),
        (Some(1), Some(0.0))
    );
    assert_eq!(second["sessions"]["alive"], 2);
    let spaces = second["namespaces"].as_array().expect("a list");
    let of = |tenant: &str| spaces.iter().find(|space| space["tenant"] == tenant).expect("registered");
    assert_eq!((of("bounded")["budget_slots"].as_u64(), of("bounded")["spent_tokens"].as_u64()), (Some(4), Some(4)));
    assert!(of("free")["budget_slots"].is_null());

    let said = inspect(&["watch", "/nonexistent", "--count", "1"]);
    assert!(said.code == 2 && said.text.contains("unreadable: "), "{}", said.text);
    assert_eq!(inspect(&["watch", path, "--interval", "1ms"]).code, 2, "a look takes longer than that");
}

/// An entry's counters go on with its next holder, so that no rate is ever negative, nor a whole life of counts at once.
#[test]
fn the_next_holder_of_an_entry_counts_on() {
    let mut scene = Scene::new();
    let path = scene.path();
    let mut screen = seen(&mut scene);
    let Scene { scratch: _scratch, region, one, two, .. } = scene;
    one.close().map_err(|(held, _)| held).expect("closed");
    let next = region.session("engine-c", Role::Worker).expect("attach");
    assert_eq!(next.index(), 0, "the entry is used again");
    let ns = next.namespace(&namespace("free")).expect("namespace");
    for number in 500..505 {
        assert_eq!(store(&next, &object(ns, number), &payload(number, 100)), "stored");
    }
    screen.history.add(site(&path).look(), Instant::now() + Duration::from_secs(10));
    let rates = screen.history.now().expect("two looks");
    let stored = rates.of(maru_layout::table::Counter::Stored) * rates.seconds;
    assert!((stored - 5.0).abs() < 1e-6, "{stored}");
    drop((next, two));
}
