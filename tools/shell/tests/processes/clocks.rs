//! Clocks that jump, processes that pause.
//!
//! * Symptom: the wall clock is set, and every lease ends at once or none ever does; a process wakes after a pause and
//!   takes what it held before for what it holds now; a limit of zero protects nothing, a huge one wraps to that.
//! * Cause: expiry is kept as a point in wall time, or compared between two processes' clocks; the holder believes its own
//!   memory; limits are multiplied and added unchecked.

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::json;

use crate::accounts::{session_entry, settled};
use crate::driver::{ROUNDING, Scratch, Shell};
use crate::unshared::clocks_moved_by;

const YEAR: i64 = 365 * 86_400;
/// Of copy leases and of stalled writers.
const LIMIT: Duration = Duration::from_millis(700);
const ARGS: [&str; 8] = ["--size", "1M", "--slot-bytes", "16K", "--copy-lease-ms", "700", "--stalled-writer-ms", "700"];

/// A clock of the test's own, that a shell follows.
struct WallClock {
    library: PathBuf,
    file: PathBuf,
}

impl WallClock {
    /// `None`, said loudly, where there is no compiler.
    fn new(scratch: &Scratch, name: &str) -> Option<Self> {
        let library = scratch.path("clock_shift.so");
        if !library.exists() {
            let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/clock_shift.c");
            let built =
                Command::new("cc").args(["-O1", "-Wall", "-shared", "-fPIC", "-o"]).arg(&library).arg(source).status();
            let Ok(status) = built else {
                eprintln!("SKIPPED: there is no C compiler here, so no wall clock was moved");
                return None;
            };
            assert!(status.success(), "clock_shift.c builds");
        }
        let file = scratch.path(name);
        std::fs::write(&file, [0; 16]).expect("file");
        Some(Self { library, file })
    }

    fn shift(&self, seconds: i64) {
        let file = std::fs::OpenOptions::new().write(true).open(&self.file).expect("file");
        file.write_all_at(&seconds.to_le_bytes(), 0).expect("written");
    }

    fn asked(&self) -> u64 {
        let bytes = std::fs::read(&self.file).expect("file");
        u64::from_le_bytes(bytes[8..].try_into().expect("eight bytes"))
    }

    fn shell(&self, path: &Path) -> Shell {
        let mut command = Command::new(env!("CARGO_BIN_EXE_maru-shell"));
        command.arg("--region").arg(path);
        command.env("LD_PRELOAD", &self.library).env("CLOCK_SHIFT_FILE", &self.file);
        Shell::spawn(command)
    }
}

/// A holder of a lease and a reservation, and somebody who wants both.
struct Pair {
    name: String,
    path: PathBuf,
    holder: Shell,
    other: Shell,
    /// Before `other` saw what it wants for the first time.
    since: Instant,
    /// After it.
    begun: Instant,
    /// A look that was to be within the limit came too late, and may have taken what is taken past it.
    late: bool,
}

impl Pair {
    fn new(name: String, path: &Path, mut holder: Shell, mut other: Shell) -> Self {
        holder.join();
        other.join();
        assert_eq!(holder.store("k", 10_000, 1), "stored");
        holder.acquire("k");
        holder.ok(json!({ "op": "reserve", "key": "half", "len": 10_000 }));
        holder.ok(json!({ "op": "write", "reservation": "r0", "seed": 2 }));
        let now = Instant::now();
        Self { name, path: path.to_owned(), holder, other, since: now, begun: now, late: false }
    }

    /// From here on the limits run, on the clock of `other`.
    fn begin(&mut self) {
        self.since = Instant::now();
        assert_eq!(self.other.retire("k"), "draining", "{}", self.name);
        assert_eq!(self.other.store("half", 10_000, 3), "being_written", "{}", self.name);
        self.begun = Instant::now();
    }

    /// Within the limit everything is the holder's. On a machine that was too slow to ask in time nothing is said.
    fn within(&mut self, holder_answers: bool) -> bool {
        let report = self.other.ok(json!({ "op": "reclaim" }));
        let store = self.other.store("half", 10_000, 3);
        if self.since.elapsed() + ROUNDING >= LIMIT {
            self.late = true;
            return false;
        }
        assert_eq!((&report["freed_slots"], &report["draining_slots"]), (&json!(0), &json!(1)), "{}", self.name);
        assert_eq!(store, "being_written", "{}", self.name);
        if holder_answers {
            let load = self.holder.ok(json!({ "op": "load", "lease": "l0", "seed": 1 }));
            assert_eq!(load["matches"], true, "{}: {load}", self.name);
        }
        true
    }

    /// Past it, all of it is anybody's, and the holder is told.
    fn past(&mut self) {
        std::thread::sleep((LIMIT + Duration::from_millis(50)).saturating_sub(self.begun.elapsed()));
        let (report, store) = (self.other.ok(json!({ "op": "reclaim" })), self.other.store("half", 10_000, 3));
        if self.late {
            assert!(
                report["draining_slots"] == 0 && ["stored", "present"].contains(&store.as_str()),
                "{}: {store}",
                self.name
            );
        } else {
            assert_eq!((&report["freed_slots"], store.as_str()), (&json!(1), "stored"), "{}", self.name);
        }
        // All space that there is, so that the slot of the lease is somebody else's too.
        let capacity = self.other.ok(json!({ "op": "region" }))["slots"].as_u64().expect("a number");
        let free = self.other.slots()["free"].as_u64().expect("a number");
        assert!(free < capacity);
        for key in 0..free {
            assert_eq!(self.other.store(key, 10_000, 100 + key), "stored", "{}", self.name);
        }
    }

    fn holder_is_told(mut self) {
        let name = &self.name;
        for verify in ["always", "never"] {
            let text = self.holder.refused(json!({ "op": "load", "lease": "l0", "verify": verify }), "expired");
            assert!(text.contains("lease"), "{name}: {text}");
        }
        self.holder.refused(json!({ "op": "view", "lease": "l0" }), "expired");
        assert_eq!(self.holder.ok(json!({ "op": "commit", "reservation": "r0" }))["outcome"], "superseded", "{name}");
        self.holder.ok(json!({ "op": "release", "lease": "l0" }));
        for shell in [&mut self.holder, &mut self.other] {
            assert!(shell.holds("half", 10_000, 3), "{name}");
            assert!(shell.holds(0, 10_000, 100), "{name}");
        }
        assert_eq!(settled(&mut self.other, &self.path)["quarantined"], 0, "{name}");
    }
}

/// The wall clock jumps a year ahead or back while a lease and a reservation are watched: in the holder, in the other
/// process, in both. Or the monotonic clock of one of them is another one altogether. The limits are kept as if nothing
/// had happened.
#[test]
fn limits_follow_elapsed_time_whatever_the_clocks_say() {
    let scratch = Scratch::new();
    let mut pairs = Vec::new();
    let mut clocks = Vec::new();
    for (number, seconds) in [YEAR, -YEAR].into_iter().enumerate() {
        for who in ["holder", "other", "both"] {
            let name = format!("wall clock of {who} moved by {seconds} s");
            let Some(clock) = WallClock::new(&scratch, &format!("clock-{number}-{who}")) else { break };
            let path = scratch.format(&format!("wall-{number}-{who}"), &ARGS);
            let shell = |moved: bool| if moved { clock.shell(&path) } else { Shell::at(&path) };
            let (holder, other) = (shell(who != "other"), shell(who != "holder"));
            pairs.push(Pair::new(name, &path, holder, other));
            clocks.push((clock, seconds));
        }
    }
    let uptime = maru::os::identity::monotonic_ns() as i64 / 1_000_000_000;
    for seconds in [YEAR, -uptime / 2] {
        let Some(arguments) = clocks_moved_by(seconds) else { continue };
        for who in ["holder", "other"] {
            let path = scratch.format(&format!("monotonic-{seconds}-{who}"), &ARGS);
            let moved = || {
                let mut command = Command::new(&arguments[0]);
                command.args(&arguments[1..]).arg(env!("CARGO_BIN_EXE_maru-shell")).arg("--region").arg(&path);
                Shell::spawn(command)
            };
            let (holder, other) =
                if who == "holder" { (moved(), Shell::at(&path)) } else { (Shell::at(&path), moved()) };
            pairs.push(Pair::new(format!("monotonic clock of {who} moved by {seconds} s"), &path, holder, other));
        }
    }
    let mut in_time = 0;
    for (number, pair) in pairs.iter_mut().enumerate() {
        pair.begin();
        // The pairs with a wall clock of their own come first, in the order of the clocks.
        if let Some((clock, seconds)) = clocks.get(number) {
            clock.shift(*seconds);
        }
        in_time += usize::from(pair.within(true));
    }
    std::thread::sleep(LIMIT / 4);
    let later = pairs.iter_mut().filter_map(|pair| pair.within(true).then_some(())).count();
    eprintln!("of {} pairs {in_time} were asked within the limit, {later} again later", pairs.len());
    assert!(in_time > 0 || pairs.is_empty(), "the machine is too slow for {LIMIT:?}");
    for pair in &mut pairs {
        pair.past();
    }
    // Back, while the holder has not yet been told.
    for (clock, _) in &clocks {
        clock.shift(0);
    }
    for pair in pairs {
        pair.holder_is_told();
    }
    assert!(clocks.iter().all(|(clock, _)| clock.asked() > 0), "somebody asked the clocks that were moved");
}

/// That the moved clock is the one that the library reads: what it writes down for people is wrong by the year.
#[test]
fn the_moved_clock_is_the_one_that_is_read() {
    let scratch = Scratch::new();
    let path = scratch.format("region", &ARGS);
    let Some(clock) = WallClock::new(&scratch, "clock") else { return };
    for seconds in [YEAR, -YEAR] {
        clock.shift(seconds);
        let mut shell = clock.shell(&path);
        let index = shell.join()["index"].as_u64().expect("an index");
        let wrong_by = session_entry(&path, index).attached_ns.abs_diff(maru::os::identity::wall_ns());
        assert!(wrong_by.abs_diff(YEAR as u64 * 1_000_000_000) < 60_000_000_000, "wrong by {wrong_by} ns");
        shell.quit();
    }
}

/// A holder that is stopped for less than the limit finds everything as it left it, although others wanted its space all
/// the while; one that is stopped for longer is told, and changes nothing of what is there now.
#[test]
fn a_pause_within_the_limit_costs_nothing_and_one_beyond_it_is_told() {
    let scratch = Scratch::new();
    let in_time = (0..10).any(|number| {
        let path = scratch.format(&format!("within-{number}"), &ARGS);
        let mut pair = Pair::new("paused".to_owned(), &path, Shell::at(&path), Shell::at(&path));
        pair.holder.signal(Signal::SIGSTOP);
        pair.holder.wait_stopped();
        pair.begin();
        // All other slots are asked for; what is beyond them is refused, or makes room of a block that nobody reads.
        let free = pair.other.slots()["free"].as_u64().expect("a number");
        for key in 0..free + 3 {
            let stored = pair.other.store(format!("pressure {key}"), 10_000, 7);
            assert!(["stored", "no_space"].contains(&stored.as_str()), "{stored}");
        }
        let in_time = pair.within(false);
        pair.holder.signal(Signal::SIGCONT);
        if in_time {
            // Nothing of it was taken while it was in time, and nobody has asked since.
            let load = pair.holder.ok(json!({ "op": "load", "lease": "l0", "seed": 1 }));
            assert_eq!(load["matches"], true, "{load}");
            assert_eq!(pair.holder.ok(json!({ "op": "commit", "reservation": "r0" }))["outcome"], "stored");
            assert!(pair.other.holds("half", 10_000, 2));
            settled(&mut pair.other, &path);
        }
        in_time
    });
    assert!(in_time, "the machine is too slow for {LIMIT:?}");

    let path = scratch.format("beyond", &ARGS);
    let mut pair = Pair::new("paused for long".to_owned(), &path, Shell::at(&path), Shell::at(&path));
    pair.holder.signal(Signal::SIGSTOP);
    pair.holder.wait_stopped();
    pair.begin();
    pair.past();
    pair.holder.signal(Signal::SIGCONT);
    pair.holder_is_told();
}

/// A pause of the one who watches is not a pause of the holder: what it had seen before counts no longer than it was there
/// to see. A lease that was given back and taken anew meanwhile is a new one.
#[test]
fn who_wakes_after_a_pause_does_not_take_a_new_lease_for_the_old_one() {
    let scratch = Scratch::new();
    let path = scratch.format("region", &ARGS);
    let (mut holder, mut watcher) = (Shell::at(&path), Shell::at(&path));
    holder.join();
    watcher.join();
    let judged = (0..10).any(|round| {
        let key = format!("k{round}");
        assert_eq!(holder.store(key.clone(), 10_000, round), "stored");
        let (first, _) = holder.acquire(key.clone());
        assert_eq!(watcher.retire(key.clone()), "draining");
        watcher.signal(Signal::SIGSTOP);
        watcher.wait_stopped();
        holder.ok(json!({ "op": "release", "lease": first }));
        assert_eq!(holder.ok(json!({ "op": "reclaim" }))["freed_slots"], 1);
        // The same key, the same slot and cell if the library has its way, and another life.
        assert_eq!(holder.store(key.clone(), 10_000, round + 100), "stored");
        std::thread::sleep(LIMIT);
        let (second, _) = holder.acquire(key.clone());
        let since = Instant::now();
        watcher.signal(Signal::SIGCONT);
        assert_eq!(watcher.retire(key), "draining", "round {round}");
        let freed = watcher.ok(json!({ "op": "reclaim" }))["freed_slots"].clone();
        let load = holder.ask(json!({ "op": "load", "lease": second, "seed": round + 100 }));
        if since.elapsed() + ROUNDING >= LIMIT {
            return false;
        }
        assert_eq!((&freed, &load["matches"]), (&json!(0), &json!(true)), "round {round}: {load}");
        true
    });
    assert!(judged, "the machine is too slow for {LIMIT:?}");
}

/// Limits at and beyond their edges: 0, 1 ms and the largest integers are refused by name with the range that is had; the
/// smallest and the largest that are taken are kept to the millisecond, and the largest does not wrap to a small one.
#[test]
fn limits_at_their_edges_are_refused_or_kept_and_never_wrapped() {
    let scratch = Scratch::new();
    const LEAST: u64 = 10;
    const MOST: u64 = 3_600_000;
    for field in ["copy_lease_ms", "stalled_writer_ms"] {
        for (number, value) in [0, 1, LEAST - 1, MOST + 1, 1 << 31, u64::from(u32::MAX)].into_iter().enumerate() {
            let path = scratch.path(&format!("{field}-{number}"));
            let mut shell = Shell::at(&path);
            let open = json!({ "op": "open", "format": "if-absent", "size": "1M", "slot_bytes": "16K", field: value });
            let text = shell.refused(open, "spec");
            for said in [field, &value.to_string(), "from 10 to 3600000"] {
                assert!(text.contains(said), "{said}: {text}");
            }
            assert!(!path.exists());
        }
        for value in [json!(1_u64 << 32), json!(u64::MAX), json!(-1), json!(1.5), json!("10")] {
            let mut shell = Shell::at(&scratch.path("never"));
            let text =
                shell.refused(json!({ "op": "open", "format": "if-absent", "size": "1M", field: value }), "bad_field");
            assert!(text.contains(field), "{text}");
        }
    }
    for (name, limit) in [("least", LEAST), ("most", MOST)] {
        let text = limit.to_string();
        let mut args = ARGS;
        (args[5], args[7]) = (&text, &text);
        let path = scratch.format(name, &args);
        let mut pair = Pair::new(name.to_owned(), &path, Shell::at(&path), Shell::at(&path));
        let region = pair.other.ok(json!({ "op": "region" }));
        assert_eq!((&region["copy_lease_ms"], &region["stalled_writer_ms"]), (&json!(limit), &json!(limit)));
        pair.other.retire("k");
        pair.other.store("half", 10_000, 3);
        std::thread::sleep(Duration::from_millis(300));
        let (reclaimed, stored) = (pair.other.ok(json!({ "op": "reclaim" })), pair.other.store("half", 10_000, 3));
        let lapsed = limit == LEAST;
        assert_eq!(reclaimed["draining_slots"], u64::from(!lapsed), "{name}: {reclaimed}");
        assert_eq!(stored, if lapsed { "stored" } else { "being_written" }, "{name}");
        let load = pair.holder.ask(json!({ "op": "load", "lease": "l0", "seed": 1 }));
        assert!(if lapsed { load["code"] == "expired" } else { load["matches"] == true }, "{name}: {load}");
    }
}
