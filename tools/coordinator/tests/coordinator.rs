//! A real coordinator beside real processes that die.
//!
//! A participant is this test binary once more, running [`participant`] with a script in its environment.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use maru::layout::table::Role;
use maru::layout::word::{SessionState, SlotState};
use maru::{Format, Lead, Namespace, ObjectId, OpenOptions, Region, Reserve, ReserveOptions, Session};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

const SCRIPT: &str = "MARU_COORDINATOR_TEST";

fn namespace() -> Namespace {
    Namespace::new()
        .tenant("t")
        .model("m")
        .revision("r")
        .adapter("none")
        .dtype("bf16")
        .quantization("none")
        .geometry("g")
        .storage_format("s")
        .block_tokens(16)
        .parallel("tp=1")
        .hash_algorithm("sha256")
        .hash_seed("0")
}

fn object(session: &Session, number: u8) -> ObjectId {
    ObjectId::new(session.namespace(&namespace()).unwrap(), [number; 32])
}

fn store(session: &Session, number: u8) {
    let Reserve::Granted(mut reservation) =
        session.reserve(&object(session, number), 4096, ReserveOptions::default()).unwrap()
    else {
        panic!("block {number} is not granted")
    };
    reservation.write_at(0, &[number; 4096]).unwrap();
    reservation.commit().unwrap();
}

/// Not a test of its own: what a participant does. The script is `PATH VERB...`.
#[test]
fn participant() {
    let Ok(script) = std::env::var(SCRIPT) else { return };
    let words: Vec<&str> = script.split_whitespace().collect();
    let region = Region::open(OpenOptions::path(words[0])).unwrap();
    let session = region.session("participant", Role::Worker).unwrap();
    let object = object(&session, 200);
    let _open = session.reserve(&object, 4096, ReserveOptions::default()).unwrap();
    let announced = words.get(1).map(|socket| session.announce(Path::new(socket)).map_err(|error| error.to_string()));
    println!("\nhere {} {} {announced:?}", session.index(), session.epoch());
    let mut rest = String::new();
    let _ = std::io::stdin().read_to_string(&mut rest);
}

struct Process {
    child: Child,
    lines: BufReader<ChildStdout>,
    _alive: std::sync::mpsc::Sender<()>,
}

impl Process {
    fn start(mut command: Command) -> Self {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        // Waiting for a line that never comes ends here: the pipe closes when its writer is killed.
        let (alive, over) = std::sync::mpsc::channel::<()>();
        let pid = Pid::from_raw(child.id() as i32);
        std::thread::spawn(move || {
            if over.recv_timeout(Duration::from_secs(30)) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
                let _ = kill(pid, Signal::SIGKILL);
            }
        });
        Self { child, lines, _alive: alive }
    }

    /// The next line that `wanted` accepts.
    fn line(&mut self, wanted: impl Fn(&str) -> bool) -> String {
        loop {
            let mut line = String::new();
            let count = self.lines.read_line(&mut line).unwrap();
            assert!(count > 0, "ended without the line that was waited for");
            if wanted(line.trim_end()) {
                return line.trim_end().to_owned();
            }
        }
    }

    fn event(&mut self, kind: &str) -> Value {
        let is = |line: &str| serde_json::from_str::<Value>(line).is_ok_and(|event| event["kind"] == kind);
        serde_json::from_str(&self.line(is)).unwrap()
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id() as i32)
    }

    /// Kills it and waits until the kernel has told its death.
    fn kill(&mut self) -> Instant {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        Instant::now()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

struct Scene {
    directory: tempfile::TempDir,
    region: Region,
}

impl Scene {
    fn new() -> Self {
        let directory = tempfile::Builder::new().prefix("maru-coordinator-").tempdir_in("/dev/shm").unwrap();
        let wish = maru::Wish::of_slots(1 << 20, 4096);
        let region =
            Region::open(OpenOptions::path(directory.path().join("region")).format(Format::IfAbsent).wish(wish))
                .unwrap();
        Self { directory, region }
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("region")
    }

    fn socket(&self) -> PathBuf {
        self.directory.path().join("coordinator.sock")
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_maru-coordinator"));
        command.arg("--region").arg(self.path()).arg("--socket").arg(self.socket()).arg("--json").args(arguments);
        command
    }

    /// A coordinator that is ready.
    fn coordinator(&self, arguments: &[&str]) -> Process {
        let mut process = Process::start(self.command(arguments));
        process.event("ready");
        process
    }

    /// A participant with an open reservation; index, epoch, and what came of announcing.
    fn participant(&self, announce: bool) -> (Process, u32, u32, String) {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "participant", "--nocapture", "--test-threads=1"]);
        let socket = if announce { self.socket().display().to_string() } else { String::new() };
        command.env(SCRIPT, format!("{} {socket}", self.path().display()));
        let mut process = Process::start(command);
        let line = process.line(|line| line.starts_with("here "));
        let words: Vec<&str> = line.splitn(4, ' ').collect();
        (process, words[1].parse().unwrap(), words[2].parse().unwrap(), words[3].to_owned())
    }

    fn writing(&self) -> u32 {
        self.region.reader().usage().unwrap().slots[SlotState::Writing as usize]
    }

    fn word(&self, index: u32) -> maru::layout::word::SessionWord {
        let session = self.region.session("looker", Role::Tool).unwrap();
        let word = session
            .sessions()
            .unwrap()
            .into_iter()
            .find(|other| other.index == index && other.engine != "looker")
            .map_or(maru::layout::word::SessionWord(0), |other| other.word);
        session.close().unwrap();
        word
    }
}

fn until(what: &str, patience: Duration, done: impl Fn() -> bool) -> Duration {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < patience, "{what}: not within {patience:?}");
        std::thread::sleep(Duration::from_micros(200));
    }
    start.elapsed()
}

fn say(socket: &Path, bytes: &[u8]) -> String {
    let mut stream = UnixStream::connect(socket).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let _ = stream.write_all(bytes);
    let mut line = String::new();
    let _ = BufReader::new(stream).read_line(&mut line);
    line.trim_end().to_owned()
}

/// The bound of the README: with a coordinator, what a dead session held is free 100 ms after its death was reported,
/// though nobody asked for it. The median, because a test machine may be busy for longer than that.
#[test]
fn leftovers_of_the_dead_come_home_within_the_bound_though_nobody_is_blocked() {
    let scene = Scene::new();
    let mut coordinator = scene.coordinator(&[]);
    for announced in [false, true] {
        let mut times: Vec<Duration> = (0..15)
            .map(|_| {
                let (mut process, _, _, answer) = scene.participant(announced);
                assert_eq!(answer, if announced { "Some(Ok(()))" } else { "None" });
                assert_eq!(scene.writing(), 1);
                process.kill();
                until("the slot of the dead is free", Duration::from_secs(10), || scene.writing() == 0)
            })
            .collect();
        times.sort();
        println!("announced: {announced}: median {:?}, longest {:?}", times[7], times[14]);
        assert!(times[7] <= Duration::from_millis(100), "median {:?}", times[7]);
    }
    let told = coordinator.event("recovered");
    assert_eq!((&told["engine"], told["epoch"].is_u64()), (&Value::from("participant"), true));
}

/// Where the kernel has no pidfd of a peer: a pidfd by number, and a challenge.
#[test]
fn a_challenge_names_the_process_as_well() {
    let scene = Scene::new();
    let mut coordinator = scene.coordinator(&["--peer", "challenge", "--interval-ms", "10000"]);
    let (mut process, index, epoch, answer) = scene.participant(true);
    assert_eq!(answer, "Some(Ok(()))");
    let told = coordinator.event("announced");
    assert_eq!((told["session"].as_u64(), told["pid"].as_u64()), (Some(index.into()), Some(process.child.id().into())));
    // Life locks are asked every 10 s here: this is the pidfd.
    process.kill();
    let told = coordinator.event("recovered");
    assert_eq!((told["session"].as_u64(), told["epoch"].as_u64()), (Some(index.into()), Some(epoch.into())));
    assert_eq!(scene.writing(), 0);
}

/// Symptom: a stranger announces somebody else's session and ends, and the living owner loses its slots. Cause: the
/// peer's word was taken for its identity.
#[test]
fn a_stranger_cannot_announce_the_session_of_another_process() {
    let scene = Scene::new();
    let _coordinator = scene.coordinator(&[]);
    let (_process, index, epoch, _) = scene.participant(false);
    let region = u128::from_be_bytes(scene.region.id());
    let answer = say(&scene.socket(), format!("hello {region:032x} {index} {epoch}\n").as_bytes());
    assert!(answer.starts_with("no ") && answer.contains("the peer is"), "{answer}");
    let answer = say(&scene.socket(), format!("hello {region:032x} {index} {}\n", epoch + 1).as_bytes());
    assert!(answer.contains("does not live under epoch"), "{answer}");
    let answer = say(&scene.socket(), format!("hello {:032x} {index} {epoch}\n", !region).as_bytes());
    assert!(answer.contains("not watched here"), "{answer}");
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(scene.writing(), 1, "the owner lives and writes");
}

/// Whatever a peer sends: an answer in words or a closed connection, and the coordinator goes on.
#[test]
fn nothing_that_a_peer_sends_ends_the_coordinator() {
    let scene = Scene::new();
    let mut coordinator = scene.coordinator(&[]);
    for bytes in [
        &b"\n"[..],
        b"hello\n",
        b"hello zz 0 0\n",
        b"hello 00000000000000000000000000000000 4294967296 1\n",
        b"hello +0000000000000000000000000000000 1 1\n",
        b"answer 12\n",
        b"\xff\xfe\x00\n",
    ] {
        let answer = say(&scene.socket(), bytes);
        assert!(answer.starts_with("no "), "{bytes:?}: {answer:?}");
    }
    let answer = say(&scene.socket(), &[b'x'; 4096]);
    assert!(answer.is_empty() || answer.starts_with("no "), "{answer:?}");
    // More silent connections than it takes; those that wait longest make room.
    let silent: Vec<_> = (0..300).filter_map(|_| UnixStream::connect(scene.socket()).ok()).collect();
    drop(silent);
    let status: Value = serde_json::from_str(&say(&scene.socket(), b"status\n")).unwrap();
    assert_eq!((&status["kind"], &status["regions"][0]["leading"]), (&Value::from("status"), &Value::from(true)));
    assert!(coordinator.child.try_wait().unwrap().is_none());
}

/// Symptom: one peer keeps the coordinator busy for ever, and not even SIGTERM ends it. Cause: a connection is heard until
/// it falls silent.
#[test]
fn a_peer_that_never_stops_talking_keeps_nobody_waiting() {
    let scene = Scene::new();
    let mut coordinator = scene.coordinator(&[]);
    let over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while !over.load(std::sync::atomic::Ordering::Relaxed) {
                    let Ok(mut stream) = UnixStream::connect(scene.socket()) else { break };
                    let Ok(mut answers) = stream.try_clone() else { break };
                    // Somebody else takes the answers, so that there is always more to hear.
                    scope.spawn(move || {
                        let mut bytes = [0; 65_536];
                        while matches!(answers.read(&mut bytes), Ok(1..)) {}
                    });
                    let lines = b"status\n".repeat(2_000);
                    while !over.load(std::sync::atomic::Ordering::Relaxed) {
                        if stream.write_all(&lines).is_err() {
                            break;
                        }
                    }
                    let _ = stream.shutdown(std::net::Shutdown::Both);
                }
            });
        }
        let (mut process, ..) = scene.participant(false);
        process.kill();
        until("the slot of the dead is free", Duration::from_secs(5), || scene.writing() == 0);
        kill(coordinator.pid(), Signal::SIGTERM).unwrap();
        let start = Instant::now();
        while coordinator.child.try_wait().unwrap().is_none() && start.elapsed() < Duration::from_secs(5) {
            std::thread::sleep(Duration::from_millis(5));
        }
        let ended = coordinator.child.try_wait().unwrap();
        over.store(true, std::sync::atomic::Ordering::Relaxed);
        assert!(ended.is_some_and(|status| status.success()), "{ended:?}");
    });
}

/// Killed and started again, it knows what it knew: everything is in the region. B08: its successor has a higher epoch
/// than anybody before, and erases nothing.
#[test]
fn a_killed_coordinator_is_not_missed_and_its_successor_goes_on_above_it() {
    let scene = Scene::new();
    let session = scene.region.session("engine", Role::Worker).unwrap();
    (1..=10).for_each(|number| store(&session, number));
    let mut first = Process::start(scene.command(&[]));
    first.event("leading");
    first.kill();
    // Nobody watches, and everything works.
    store(&session, 11);
    let mut second = Process::start(scene.command(&[]));
    second.event("leading");
    second.event("ready");
    let sessions = session.sessions().unwrap();
    let coordinators: Vec<_> = sessions.iter().filter(|other| other.role == Some(Role::Coordinator)).collect();
    assert_eq!(coordinators.len(), 1);
    assert!(sessions.iter().all(|other| other.word.epoch() <= coordinators[0].word.epoch()));
    for number in 1..=11 {
        assert!(session.probe(&object(&session, number)).unwrap().is_hit(), "block {number}");
    }
    kill(second.pid(), Signal::SIGTERM).unwrap();
    assert!(second.child.wait().unwrap().success());
    assert!(!scene.socket().exists());
    assert_eq!(session.lead().unwrap(), Lead::Leading, "who left does not lead");
}

/// One leads, the other follows; when the leader dies the other leads.
#[test]
fn of_two_one_leads_and_the_other_takes_over() {
    let scene = Scene::new();
    let mut first = Process::start(scene.command(&[]));
    first.event("leading");
    let mut command = Command::new(env!("CARGO_BIN_EXE_maru-coordinator"));
    command
        .arg("--region")
        .arg(scene.path())
        .arg("--json")
        .arg("--socket")
        .arg(scene.directory.path().join("two.sock"));
    let mut second = Process::start(command);
    second.event("ready");
    let status: Value = serde_json::from_str(&say(&scene.directory.path().join("two.sock"), b"status\n")).unwrap();
    assert_eq!(status["regions"][0]["leading"], false);
    first.kill();
    second.event("leading");
}

/// A socket that somebody listens at is not taken from them; a leftover is.
#[test]
fn a_socket_in_use_is_refused_and_a_leftover_is_replaced() {
    let scene = Scene::new();
    let mut first = scene.coordinator(&[]);
    let refused = scene.command(&[]).output().unwrap();
    assert_eq!(refused.status.code(), Some(2));
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(said.contains("another coordinator listens at"), "{said}");
    first.kill();
    assert!(scene.socket().exists());
    let _second = scene.coordinator(&[]);
}

/// `--once` brings home what is dead, and says so; a region that is not there is an error.
#[test]
fn once_recovers_and_leaves() {
    let scene = Scene::new();
    let (mut process, index, epoch, _) = scene.participant(false);
    process.kill();
    assert_eq!(scene.writing(), 1);
    let output = scene.command(&["--once"]).output().unwrap();
    assert!(output.status.success());
    let lines = String::from_utf8(output.stdout).unwrap();
    let events: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let told = events.iter().find(|event| event["kind"] == "recovered").unwrap();
    assert_eq!((told["session"].as_u64(), told["epoch"].as_u64()), (Some(index.into()), Some(epoch.into())));
    assert_eq!(events.last().unwrap()["sessions_recovered"], 1);
    assert_eq!(scene.writing(), 0);
    assert!(!scene.socket().exists());

    let missing = Command::new(env!("CARGO_BIN_EXE_maru-coordinator"))
        .args(["--region", "/dev/shm/maru-no-such-region", "--once"])
        .output()
        .unwrap();
    assert_eq!(missing.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&missing.stderr).contains("maru-no-such-region"));
}

/// A region that is made later, or made anew, is found.
#[test]
fn a_region_that_comes_later_is_waited_for() {
    let directory = tempfile::Builder::new().prefix("maru-coordinator-").tempdir_in("/dev/shm").unwrap();
    let path = directory.path().join("region");
    let mut command = Command::new(env!("CARGO_BIN_EXE_maru-coordinator"));
    command.arg("--region").arg(&path).arg("--json").arg("--socket").arg(directory.path().join("c.sock"));
    let mut coordinator = Process::start(command);
    assert!(coordinator.event("waiting")["error"].as_str().unwrap().contains("region"));
    let make = |format| {
        Region::open(OpenOptions::path(&path).format(format).wish(maru::Wish::of_slots(1 << 20, 4096))).unwrap()
    };
    let first = make(Format::IfAbsent);
    let hex = |region: &Region| format!("{:032x}", u128::from_be_bytes(region.id()));
    assert_eq!(coordinator.event("watching")["region_id"], hex(&first));
    let second = make(Format::Replace);
    assert_ne!(first.id(), second.id());
    coordinator.event("waiting");
    assert_eq!(coordinator.event("watching")["region_id"], hex(&second));
}

/// Silence proves nothing: without being told to, a coordinator leaves a stopped session alone; told to, it hides it and
/// frees nothing.
#[test]
fn a_silent_session_is_fenced_only_on_request_and_keeps_its_space() {
    let scene = Scene::new();
    let (process, index, epoch, _) = scene.participant(false);
    kill(process.pid(), Signal::SIGSTOP).unwrap();
    {
        let _calm = scene.coordinator(&[]);
        std::thread::sleep(Duration::from_millis(1_200));
        assert!(scene.word(index).is(SessionState::Live));
    }
    let mut strict = scene.coordinator(&["--fence-silent", "1"]);
    let told = strict.event("fenced");
    assert_eq!((told["session"].as_u64(), told["epoch"].as_u64()), (Some(index.into()), Some(epoch.into())));
    assert!(scene.word(index).is(SessionState::Fenced));
    let slots = scene.region.reader().usage().unwrap().slots;
    assert_eq!((slots[SlotState::Writing as usize], slots[SlotState::Quarantined as usize]), (0, 1));
    drop(process);
    strict.event("recovered");
    assert_eq!(scene.region.reader().usage().unwrap().slots[SlotState::Quarantined as usize], 0);
}

/// What a service manager is told.
#[test]
fn a_service_manager_hears_ready_and_stopping() {
    let scene = Scene::new();
    let path = scene.directory.path().join("notify");
    let manager = UnixDatagram::bind(&path).unwrap();
    manager.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let mut command = scene.command(&[]);
    command.env("NOTIFY_SOCKET", &path);
    let mut coordinator = Process::start(command);
    let hear = || {
        let mut bytes = [0; 256];
        let count = manager.recv(&mut bytes).unwrap();
        String::from_utf8_lossy(&bytes[..count]).into_owned()
    };
    assert!(hear().contains("READY=1"));
    kill(coordinator.pid(), Signal::SIGTERM).unwrap();
    assert!(hear().contains("STOPPING=1"));
    assert!(coordinator.child.wait().unwrap().success());
}
