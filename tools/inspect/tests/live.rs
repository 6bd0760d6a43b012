//! Live regions: no false finding beside busy writers, and what is said about sessions, leases and namespaces.

mod common;

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use common::{Scratch, inspect, namespace, object, payload, run_with, store};
use maru::{Batch, OpenOptions, Region, Reserve, ReserveOptions, Role, Wish};
use maru_layout::superblock::SectionKind;
use maru_layout::table::NamespaceRow;

/// Rounds beside the writers; the check of a release runs 200.
fn rounds() -> u32 {
    std::env::var("MARU_ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(30)
}

/// Stores, loads and retires, on a key space about as large as the region, until told to stop.
fn work(region: &Region, engine: &str, stop: &AtomicBool, done: &AtomicU64) {
    let session = region.session(engine, Role::Worker).expect("attach");
    let ns = session.namespace(&namespace("busy")).expect("namespace");
    let mut random = common::Random(session.index().into());
    let slots = u64::from(region.geometry().slot_count);
    while !stop.load(Ordering::Relaxed) {
        let object = object(ns, random.below(slots * 2));
        match random.below(8) {
            0..4 => {
                let bytes = payload(random.below(100), 1 + random.below(4096) as usize);
                store(&session, &object, &bytes);
            }
            4..6 => drop(session.acquire(&[object], Batch::Each).expect("acquire")),
            6 => {
                session.retire(&object).expect("retire");
            }
            _ => {
                if let Reserve::Granted(reservation) =
                    session.reserve(&object, 64, ReserveOptions::default()).expect("reserve")
                {
                    reservation.abort().expect("abort");
                }
            }
        }
        done.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn beside_four_busy_writers_nothing_is_called_damaged() {
    let scratch = Scratch::new();
    let region = scratch.region("busy", Wish::of_slots(2 << 20, 4096));
    let path = scratch.path("busy");
    let (stop, done) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let ended = EndOfTest(&stop);
        for number in 0..4 {
            let (region, stop, done) = (&region, &stop, &done);
            scope.spawn(move || work(region, &format!("writer {number}"), stop, done));
        }
        while done.load(Ordering::Relaxed) < 100 {
            std::thread::sleep(Duration::from_millis(1));
        }
        let mut hints = 0;
        for round in 0..rounds() {
            let before = done.load(Ordering::Relaxed);
            let payload = if round % 3 == 0 { "--payload" } else { "--all" };
            let said = inspect(&["verify".as_ref(), path.as_os_str(), "--json".as_ref(), payload.as_ref()]);
            let summary = said.summary();
            assert!(matches!(said.code, 0 | 3), "round {round}: {}", said.text);
            assert_eq!(summary["damage"], 0, "round {round}: {}", said.text);
            assert_eq!(summary["leftover"], 0, "round {round}: {}", said.text);
            hints += summary["info"].as_u64().expect("a number");
            let others = inspect(&["sessions".as_ref(), path.as_os_str(), "--json".as_ref()]);
            assert_eq!(others.code, 0, "round {round}: {}", others.text);
            let live = others.of_kind("session").iter().filter(|session| session["liveness"] == "alive").count();
            assert_eq!(live, 4, "round {round}: {}", others.text);
            let start = Instant::now();
            while done.load(Ordering::Relaxed) == before {
                assert!(start.elapsed() < Duration::from_secs(10), "round {round}: the writers stand still");
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        println!("{hints} hints that stood off for the time of a look, {} operations", done.load(Ordering::Relaxed));
        // Teeth: real damage is found beside the same writers.
        let row = region.geometry().offset(SectionKind::Namespaces);
        let digest = row + std::mem::offset_of!(NamespaceRow, text_digest) as u64;
        let file = std::fs::File::options().read(true).write(true).open(&path).expect("opened");
        let mut byte = [0];
        file.read_exact_at(&mut byte, digest).expect("read");
        file.write_all_at(&[byte[0] ^ 1], digest).expect("written");
        let said = inspect(&["verify".as_ref(), path.as_os_str(), "--json".as_ref()]);
        file.write_all_at(&byte, digest).expect("written");
        assert_eq!((said.code, said.codes().contains(&"namespace_text".to_owned())), (1, true), "{}", said.text);
        drop(ended);
    });
    let said = inspect(&["verify".as_ref(), path.as_os_str(), "--json".as_ref(), "--payload".as_ref()]);
    assert_eq!(
        (said.code, &said.summary()["damage"], &said.summary()["leftover"]),
        (0, &0.into(), &0.into()),
        "{}",
        said.text
    );
}

/// Stops the writers also when an assertion fails.
struct EndOfTest<'a>(&'a AtomicBool);

impl Drop for EndOfTest<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// This test binary again, as a process that holds a session, a lease and a half-written slot until it is killed.
#[test]
fn child_holds_everything() {
    let Some(path) = std::env::var_os("MARU_INSPECT_CHILD") else { return };
    let region = Region::open(OpenOptions::path(path)).expect("opened");
    let session = region.session("doomed engine", Role::Worker);
    let session = session.expect("attach");
    let ns = session.namespace(&namespace("live")).expect("namespace");
    store(&session, &object(ns, 1), &payload(1, 100));
    let leases = session.acquire(&[object(ns, 1)], Batch::Each).expect("acquire");
    let reservation = session.reserve(&object(ns, 2), 4096, ReserveOptions::default()).expect("reserve");
    println!("holding");
    std::thread::sleep(Duration::from_secs(60));
    drop((leases, reservation));
}

struct Killed(Child);

impl Killed {
    fn kill(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Killed {
    fn drop(&mut self) {
        self.kill();
    }
}

fn child(path: &Path) -> Killed {
    let child = Command::new(std::env::current_exe().expect("this test"))
        .args(["--exact", "child_holds_everything", "--nocapture"])
        .env("MARU_INSPECT_CHILD", path)
        .stdout(Stdio::piped())
        .spawn()
        .expect("started");
    Killed(child)
}

#[test]
fn the_living_and_the_dead_are_told_apart() {
    let scratch = Scratch::new();
    let region = scratch.region("life", Wish::of_slots(1 << 20, 4096));
    let path = scratch.path("life");
    let path = path.as_os_str();
    let mut doomed = child(Path::new(path));
    let start = Instant::now();
    let writing = || inspect(&["stat".as_ref(), path, "--json".as_ref()]).summary()["slots"]["writing"].as_u64();
    while writing() != Some(1) {
        assert!(start.elapsed() < Duration::from_secs(10), "the child never came");
        std::thread::sleep(Duration::from_millis(10));
    }
    let usage = inspect(&["stat".as_ref(), path, "--json".as_ref()]).of_kind("usage");
    assert_eq!((&usage[0]["writing_bytes"], &usage[0]["ready_bytes"]), (&4096.into(), &100.into()));
    assert_eq!(usage[0]["allocated_bytes"], region.usage().allocated_bytes);
    let sessions = inspect(&["sessions".as_ref(), path, "--json".as_ref()]).of_kind("session");
    assert_eq!(sessions.len(), region.geometry().session_count as usize);
    let session = &sessions[0];
    assert_eq!(
        (&session["state"], &session["liveness"], &session["role"]),
        (&"live".into(), &"alive".into(), &"worker".into())
    );
    assert_eq!((&session["leases"], &session["slots"]["writing"]), (&1.into(), &1.into()));
    assert_eq!(session["counters"]["stored_blocks"], 1);
    assert_eq!(session["pid"], doomed.0.id());
    assert_eq!(sessions[1]["liveness"], serde_json::Value::Null);
    let leases = inspect(&["leases".as_ref(), path, "--json".as_ref()]).of_kind("lease");
    assert_eq!(leases.len(), 1);
    assert_eq!(
        (&leases[0]["match"], &leases[0]["lease"], &leases[0]["counts"]),
        (&"current".into(), &"copy".into(), &true.into())
    );
    assert_eq!(leases[0]["prefix"], "0100000000000000");
    let said = inspect(&["verify".as_ref(), path, "--json".as_ref()]);
    assert_eq!((said.code, said.codes()), (0, vec![]), "a live writer is no finding");
    let dump = |wish: &[&str]| {
        let mut arguments = vec!["dump".as_ref(), path, "--json".as_ref()];
        arguments.extend(wish.iter().map(std::ffi::OsStr::new));
        inspect(&arguments).of_kind("slot")
    };
    assert_eq!(dump(&["--state", "writing"])[0]["owner"], 0);
    assert_eq!(dump(&["--key", "01000"]).len(), 1);
    assert_eq!(dump(&["--key", "ff"]).len(), 0);
    assert_eq!(dump(&["--slot", "3"]).len(), 1);
    assert_eq!(dump(&[]).len(), region.geometry().slot_count as usize);
    let rows = inspect(&["namespaces".as_ref(), path, "--json".as_ref()]).of_kind("namespace");
    assert_eq!((rows.len(), &rows[0]["fields"]["model"], &rows[0]["objects"]), (1, &"m=1".into(), &1.into()));

    doomed.kill();
    let said = inspect(&["verify".as_ref(), path, "--json".as_ref()]);
    assert_eq!(said.code, 0, "what the dead leave behind is not damage: {}", said.text);
    let mut codes = said.codes();
    codes.sort();
    assert_eq!(codes, ["dead_owner", "dead_session"], "{}", said.text);
    let text = inspect(&["verify".as_ref(), path]).text;
    assert!(text.contains("reclaim") && text.contains("verdict: sound (0 damage, 2 leftover"), "{text}");
    assert!(!text.contains('\x1b'), "no colours in a pipe");
    let text = inspect(&["sessions".as_ref(), path]).text;
    assert!(text.contains("dead") && text.contains("1 writing"), "{text}");
    // Another session brings it home; then nothing is left.
    let session = region.session("heir", Role::Worker).expect("attach");
    session.reclaim().expect("reclaim");
    let said = inspect(&["verify".as_ref(), path, "--json".as_ref()]);
    assert_eq!((said.code, said.codes()), (0, vec![]));
}

#[test]
fn the_bare_command_lists_regions_and_says_what_to_try() {
    let scratch = Scratch::new();
    let region = scratch.region("one", Wish::of_slots(1 << 20, 4096));
    let _session = region.session("a", Role::Worker).expect("attach");
    scratch.file("text", &[b'x'; 5000]);
    std::os::unix::fs::symlink(scratch.directory(), scratch.path("up")).expect("linked");
    let said = run_with::<&str>(&[], &[("MARU_REGIONS", scratch.directory())]);
    let path = scratch.path("one").display().to_string();
    let line = said.text.lines().find(|line| line.contains(&path)).unwrap_or_else(|| panic!("{}", said.text));
    assert!(line.contains("1 alive") && line.contains("ready"), "{line}");
    assert!(!said.text.contains("/text"), "{}", said.text);
    let last = said.text.lines().last().expect("lines");
    assert!(last.starts_with("next: maru-inspect stat "), "{last}");
    let said = run_with(&["--json"], &[("MARU_REGIONS", scratch.directory())]);
    assert!(said.of_kind("region").iter().any(|region| region["path"] == path.as_str()));
    assert_eq!(said.summary()["kind"], "summary");
    // A damaged one is in the list, with its reason.
    let mut bytes = scratch.stored(1 << 20, 4096, 1);
    bytes[76] = 3;
    scratch.file("broken", &bytes);
    let said = run_with(&["--json"], &[("MARU_REGIONS", scratch.directory())]);
    assert_eq!((said.code, said.summary()["verdict"].as_str()), (1, Some("damaged")), "{}", said.text);
    let said = run_with::<&str>(&[], &[("MARU_REGIONS", scratch.directory())]);
    assert!(said.text.contains("align_bytes is"), "{}", said.text);
}

#[test]
fn watching_looks_again() {
    let scratch = Scratch::new();
    let _region = scratch.region("watched", Wish::of_slots(1 << 20, 4096));
    let path = scratch.path("watched");
    for verb in ["stat", "sessions", "leases"] {
        let said = inspect(&[
            verb.as_ref(),
            path.as_os_str(),
            "--json".as_ref(),
            "--watch".as_ref(),
            "20ms".as_ref(),
            "--times".as_ref(),
            "3".as_ref(),
        ]);
        assert_eq!((said.code, said.of_kind("summary").len()), (0, 3), "{verb}");
    }
}

#[test]
fn help_teaches_and_version_says_what_it_reads() {
    let help = inspect(&["--help"]);
    assert_eq!(help.code, 0);
    for word in ["Examples:", "verify", "Exit codes: 0 sound", "CXL_DAX_DEVICE"] {
        assert!(help.text.contains(word), "{word}: {}", help.text);
    }
    let version = inspect(&["--version"]);
    assert!(version.text.contains("reads formats 1 to 1, steps: o"), "{}", version.text);
    assert_eq!(inspect(&["dump", "x", "--state", "purple"]).code, 2);
}
