//! Starts shells, talks to them line by line, and never waits for ever.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// No answer within this time is a failure; rule G1 allows half of it, the rest is for a busy machine.
const WATCHDOG: Duration = Duration::from_secs(10);

/// Who is in the way of a dead process goes on within this time of the death, with nobody's help.
pub(crate) const BOUND: Duration = Duration::from_secs(1);

/// The library counts its limits in whole milliseconds of a clock that it rounds down, so they may end this much early.
pub(crate) const ROUNDING: Duration = Duration::from_millis(1);

/// A running shell. Killed when the test ends, whatever happens.
pub(crate) struct Shell {
    child: Child,
    input: Option<ChildStdin>,
    answers: Receiver<String>,
    asked: String,
}

impl Shell {
    /// Starts the shell with these arguments.
    pub(crate) fn start<S: AsRef<std::ffi::OsStr>>(args: &[S]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_maru-shell"));
        command.args(args);
        Self::spawn(command)
    }

    /// A shell on the region at `path`.
    pub(crate) fn at(path: &Path) -> Self {
        Self::with(path, &[])
    }

    /// A shell on the region at `path`, with more arguments.
    pub(crate) fn with(path: &Path, more: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_maru-shell"));
        command.arg("--region").arg(path).args(more);
        Self::spawn(command)
    }

    /// A shell that stops or dies at a step, such as "format.link:kill".
    pub(crate) fn at_step(path: &Path, step: &str, more: &[&str]) -> Self {
        let mut command = Command::new(with_steps());
        command.arg("--region").arg(path).args(more).env("MARU_STEP", step);
        Self::spawn(command)
    }

    pub(crate) fn spawn(mut command: Command) -> Self {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{command:?} starts: {error}"));
        let output = BufReader::new(child.stdout.take().expect("a pipe"));
        let (sender, answers) = channel();
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        Self { input: child.stdin.take(), child, answers, asked: String::new() }
    }

    /// Sends a line.
    pub(crate) fn send(&mut self, line: &Value) {
        self.send_text(&line.to_string());
    }

    /// Sends a line as it is. A shell that is gone is noticed by who waits for its answer.
    pub(crate) fn send_text(&mut self, line: &str) {
        line.clone_into(&mut self.asked);
        if let Some(input) = &mut self.input {
            let _ = input.write_all(format!("{line}\n").as_bytes()).and_then(|()| input.flush());
        }
    }

    /// The next answer. Fails when there is none in time, or the shell has died.
    pub(crate) fn answer(&mut self) -> Value {
        match self.answers.recv_timeout(WATCHDOG) {
            Ok(text) => serde_json::from_str(&text).unwrap_or_else(|error| panic!("{text:?} is no JSON: {error}")),
            Err(RecvTimeoutError::Timeout) => {
                let _ = self.child.kill();
                panic!("no answer within {WATCHDOG:?} to {}", self.asked);
            }
            Err(RecvTimeoutError::Disconnected) => {
                let status = self.child.wait();
                panic!("the shell ended ({status:?}) instead of answering {}", self.asked);
            }
        }
    }

    /// Sends a line and waits for its answer.
    pub(crate) fn ask(&mut self, line: Value) -> Value {
        self.send(&line);
        self.answer()
    }

    /// As [`Shell::ask`]; the answer has to be `ok`.
    #[track_caller]
    pub(crate) fn ok(&mut self, line: Value) -> Value {
        let answer = self.ask(line);
        assert_eq!(answer["ok"], true, "{} -> {answer}", self.asked);
        answer
    }

    /// As [`Shell::ask`]; the answer has to be a refusal with this code. Returns its text.
    #[track_caller]
    pub(crate) fn refused(&mut self, line: Value, code: &str) -> String {
        let answer = self.ask(line);
        assert_eq!(
            (answer["ok"].as_bool(), answer["code"].as_str()),
            (Some(false), Some(code)),
            "{} -> {answer}",
            self.asked
        );
        answer["error"].as_str().expect("a text").to_owned()
    }

    /// Joins and registers the example namespace.
    #[track_caller]
    pub(crate) fn join(&mut self) -> Value {
        let joined = self.ok(json!({ "op": "session" }));
        self.ok(json!({ "op": "namespace", "example": true }));
        joined
    }

    #[track_caller]
    pub(crate) fn store(&mut self, key: impl Into<Value>, len: u64, seed: u64) -> String {
        let answer = self.ok(json!({ "op": "store", "key": key.into(), "len": len, "seed": seed }));
        let word = if answer["outcome"] == "refused" { &answer["why"] } else { &answer["outcome"] };
        word.as_str().expect("an outcome").to_owned()
    }

    /// Whether `key` is there with exactly the payload of `seed`; foreign bytes fail the test.
    #[track_caller]
    pub(crate) fn holds(&mut self, key: impl Into<Value>, len: u64, seed: u64) -> bool {
        let answer = self.ok(json!({ "op": "get", "key": key.into(), "seed": seed }));
        if answer["hit"] == true {
            assert_eq!((&answer["len"], &answer["matches"]), (&json!(len), &json!(true)), "{} -> {answer}", self.asked);
        }
        answer["hit"] == true
    }

    /// Acquires one key that is there. Returns the name of the lease and its handle.
    #[track_caller]
    pub(crate) fn acquire(&mut self, key: impl Into<Value>) -> (Value, Value) {
        let item = self.ok(json!({ "op": "acquire", "key": key.into() }))["items"][0].clone();
        assert!(item["lease"].is_string(), "{} -> {item}", self.asked);
        (item["lease"].clone(), item["handle"].clone())
    }

    /// What retiring this key answers.
    #[track_caller]
    pub(crate) fn retire(&mut self, key: impl Into<Value>) -> Value {
        self.ok(json!({ "op": "retire", "key": key.into() }))["outcome"].clone()
    }

    /// Whether the holder of session entry `index` lives, as this process sees it.
    #[track_caller]
    pub(crate) fn liveness(&mut self, index: &Value) -> Value {
        let items = self.ok(json!({ "op": "sessions" }))["items"].clone();
        items[index.as_u64().expect("an index") as usize]["liveness"].clone()
    }

    #[track_caller]
    pub(crate) fn probe(&mut self, key: impl Into<Value>) -> bool {
        self.ok(json!({ "op": "probe", "key": key.into() }))["hit"] == true
    }

    /// Slots by state, and their sum equal to the capacity (rule G5).
    #[track_caller]
    pub(crate) fn slots(&mut self) -> Value {
        let usage = self.ok(json!({ "op": "usage" }));
        let slots = usage["slots"].as_object().expect("states");
        let sum: u64 = slots.values().map(|count| count.as_u64().expect("a count")).sum();
        assert_eq!(sum, usage["capacity_slots"].as_u64().expect("a count"), "{usage}");
        assert_eq!(usage["damaged_slots"], 0, "{usage}");
        usage["slots"].clone()
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id() as i32)
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(self.pid(), signal).expect("a child that is not waited for yet");
    }

    /// SIGKILL, and the end of it.
    pub(crate) fn kill(mut self) {
        self.child.kill().expect("a child");
        self.child.wait().expect("a child");
    }

    /// Waits until the process has stopped (SIGSTOP).
    pub(crate) fn wait_stopped(&self) {
        let path = format!("/proc/{}/stat", self.child.id());
        let start = Instant::now();
        loop {
            let stat = std::fs::read_to_string(&path).expect("a child");
            let state = stat.rsplit(") ").next().and_then(|rest| rest.chars().next());
            if state == Some('T') {
                return;
            }
            assert!(start.elapsed() < WATCHDOG, "not stopped: {stat}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Waits until the process is gone.
    pub(crate) fn wait_end(&mut self) -> ExitStatus {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("a child") {
                return status;
            }
            assert!(start.elapsed() < WATCHDOG, "still running after {}", self.asked);
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Says quit; the end has to be an orderly one.
    #[track_caller]
    pub(crate) fn quit(mut self) {
        self.ok(json!({ "op": "quit" }));
        let status = self.wait_end();
        assert_eq!((status.code(), status.signal()), (Some(0), None));
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A folder in memory that goes when the test ends.
pub(crate) struct Scratch {
    folder: tempfile::TempDir,
}

impl Scratch {
    pub(crate) fn new() -> Self {
        Self { folder: tempfile::tempdir_in("/dev/shm").expect("/dev/shm is there and writable") }
    }

    /// A folder on a file system that is not memory, where the build goes.
    pub(crate) fn on_disk() -> Self {
        Self { folder: tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("the build folder is writable") }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn names(&self) -> Vec<String> {
        names_in(self.folder.path())
    }

    /// Formats `name` and leaves it to the tests.
    pub(crate) fn format(&self, name: &str, args: &[&str]) -> PathBuf {
        let path = self.path(name);
        let mut shell = Shell::with(&path, args);
        let opened = shell.ok(json!({ "op": "open", "format": "if-absent" }));
        assert_eq!(opened["outcome"], "formatted", "{opened}");
        shell.quit();
        path
    }
}

pub(crate) fn names_in(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).expect("a folder");
    let mut names: Vec<_> =
        entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// A private tmpfs. `None`, said loudly, where mounts are not allowed.
pub(crate) struct Tmpfs {
    folder: tempfile::TempDir,
}

impl Tmpfs {
    pub(crate) fn new(size: &str) -> Option<Self> {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={size}"), "none"])
            .arg(folder.path())
            .status()
            .is_ok_and(|status| status.success());
        if !mounted {
            eprintln!("SKIPPED: no tmpfs can be mounted here (needs root), so nothing was checked on a small one");
            return None;
        }
        Some(Self { folder })
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn names(&self) -> Vec<String> {
        names_in(self.folder.path())
    }

    pub(crate) fn used_bytes(&self) -> u64 {
        let stat = nix::sys::statvfs::statvfs(self.folder.path()).expect("a mount");
        (stat.blocks() - stat.blocks_free()) * stat.fragment_size()
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.folder.path()).status();
    }
}

/// SHA-256 of a file (rule G4).
pub(crate) fn hash(path: &Path) -> String {
    let bytes = std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    Sha256::digest(&bytes).iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// A seed from the clock, or from MARU_SEED to run a failed test again. Printed, so that it is in the failure's output.
pub(crate) fn seed() -> u64 {
    let seed = match std::env::var("MARU_SEED").ok().and_then(|text| text.parse().ok()) {
        Some(seed) => seed,
        None => maru::os::identity::wall_ns(),
    };
    eprintln!("MARU_SEED={seed}");
    seed
}

/// Rounds of a random test; MARU_ROUNDS buys more, or fewer.
pub(crate) fn rounds(usual: u64) -> u64 {
    std::env::var("MARU_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}

/// SplitMix64.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub(crate) fn hex(&mut self, bytes: usize) -> String {
        let mut text = String::new();
        while text.len() < 2 * bytes {
            let _ = write!(text, "{:016x}", self.next());
        }
        text.truncate(2 * bytes);
        text
    }
}

/// The shell built with steps: this very build if it has them, otherwise built once, beside it.
pub(crate) fn with_steps() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let plain = Path::new(env!("CARGO_BIN_EXE_maru-shell"));
        if maru::step::enabled() {
            return plain.to_owned();
        }
        let folder = plain.parent().expect("target/PROFILE/maru-shell");
        let profile = match folder.file_name().and_then(|name| name.to_str()) {
            Some("debug") | None => "dev",
            Some(name) => name,
        };
        let built = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .args(["build", "--quiet", "--offline", "--package", "maru-shell", "--features", "steps"])
            .args(["--bin", "maru-shell-steps", "--profile", profile, "--target-dir"])
            .arg(folder.parent().expect("target"))
            .status();
        assert!(built.is_ok_and(|status| status.success()), "the shell with steps builds");
        folder.join("maru-shell-steps")
    })
}
