//! Regions to look at, and ways to run the real binary.
#![allow(dead_code, unreachable_pub, missing_docs, reason = "each test file uses its part")]

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use maru::{
    Format, Namespace, NamespaceId, ObjectId, OpenOptions, Region, Reserve, ReserveOptions, Role, Session, Wish,
};
use serde_json::Value;

/// Files in memory that go when the test ends.
pub struct Scratch {
    directory: tempfile::TempDir,
}

impl Scratch {
    pub fn new() -> Self {
        let place = if Path::new("/dev/shm").is_dir() { "/dev/shm".into() } else { std::env::temp_dir() };
        Self { directory: tempfile::tempdir_in(place).expect("a directory") }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    pub fn file(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, bytes).expect("written");
        path
    }

    pub fn region(&self, name: &str, wish: Wish) -> Region {
        let options = OpenOptions::path(self.path(name)).format(Format::IfAbsent).wish(wish);
        Region::open(options).expect("a region in memory")
    }

    /// The bytes of a region of this size with this many blocks stored and its session closed.
    pub fn stored(&self, size_bytes: u64, slot_bytes: u64, blocks: u64) -> Vec<u8> {
        let region = self.region("stored", Wish::of_slots(size_bytes, slot_bytes));
        let session = region.session("storer", Role::Worker).expect("attach");
        let ns = session.namespace(&namespace("t")).expect("namespace");
        for number in 0..blocks {
            assert_eq!(store(&session, &object(ns, number), &payload(number, slot_bytes as usize - 7)), "stored");
        }
        drop(session);
        drop(region);
        let bytes = std::fs::read(self.path("stored")).expect("read");
        std::fs::remove_file(self.path("stored")).expect("removed");
        bytes
    }
}

pub fn namespace(tag: &str) -> Namespace {
    Namespace::new()
        .tenant(tag)
        .model("m=1")
        .revision("1")
        .adapter("none")
        .dtype("bf16")
        .quantization("none")
        .geometry("layers=2")
        .storage_format("test-1")
        .block_tokens(16)
        .parallel("tp=1")
        .hash_algorithm("sha256")
        .hash_seed("0")
}

pub fn object(namespace: NamespaceId, number: u64) -> ObjectId {
    let mut prefix = [0; 32];
    prefix[..8].copy_from_slice(&number.to_le_bytes());
    prefix[8..16].copy_from_slice(&number.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes());
    ObjectId::new(namespace, prefix)
}

pub fn payload(number: u64, len: usize) -> Vec<u8> {
    (0..len).map(|at| (number.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (at % 8 * 8)) as u8 ^ (at / 8) as u8).collect()
}

pub fn store(session: &Session, object: &ObjectId, bytes: &[u8]) -> &'static str {
    match session.reserve(object, bytes.len() as u64, ReserveOptions::default()).expect("a session in order") {
        Reserve::Granted(mut reservation) => {
            reservation.write_at(0, bytes).expect("within the slot");
            reservation.commit().expect("a session in order").code()
        }
        other => other.code(),
    }
}

/// What the binary said.
pub struct Said {
    pub code: i32,
    pub text: String,
    pub errors: String,
}

impl Said {
    /// The JSON lines; panics if one is none.
    pub fn lines(&self) -> Vec<Value> {
        let parse = |line: &str| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        self.text.lines().map(parse).collect()
    }

    pub fn summary(&self) -> Value {
        let lines = self.lines();
        let last = lines.last().unwrap_or_else(|| panic!("no line; stderr: {}", self.errors));
        assert_eq!(last["kind"], "summary", "{last}");
        last.clone()
    }

    pub fn of_kind(&self, kind: &str) -> Vec<Value> {
        self.lines().into_iter().filter(|line| line["kind"] == kind).collect()
    }

    pub fn codes(&self) -> Vec<String> {
        self.of_kind("finding").iter().map(|finding| finding["code"].as_str().expect("a code").to_owned()).collect()
    }
}

/// Runs the binary within 256 MiB of address space and 10 s.
pub fn inspect<S: AsRef<std::ffi::OsStr>>(arguments: &[S]) -> Said {
    run_with(arguments, &[])
}

pub fn run_with<S: AsRef<std::ffi::OsStr>>(arguments: &[S], environment: &[(&str, &Path)]) -> Said {
    let mut command = Command::new("sh");
    command
        .args(["-c", "ulimit -v 262144 && exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_maru-inspect")])
        .args(arguments)
        .env_remove("CXL_DAX_DEVICE")
        .env_remove("CXL_DAX_SIZE")
        .env_remove("MARU_REGIONS")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    for (name, value) in environment {
        command.env(name, value);
    }
    let mut child = command.spawn().expect("started");
    let mut stdout = child.stdout.take().expect("piped");
    let mut stderr = child.stderr.take().expect("piped");
    let read = std::thread::spawn(move || {
        let mut text = String::new();
        stdout.read_to_string(&mut text).expect("UTF-8");
        text
    });
    let errors = std::thread::spawn(move || {
        let mut text = String::new();
        let _ = stderr.read_to_string(&mut text);
        text
    });
    let start = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().expect("waited") {
            break status;
        }
        if start.elapsed() > Duration::from_secs(10) {
            let _ = child.kill();
            panic!("still running after 10 s");
        }
        std::thread::sleep(Duration::from_millis(1));
    };
    let text = read.join().expect("read");
    let errors = errors.join().expect("read");
    let code = status.code().unwrap_or_else(|| panic!("killed by a signal: {status}; {errors}"));
    assert!(!errors.contains("panicked"), "{errors}");
    Said { code, text, errors }
}

/// A small generator, so that a run can be repeated by its seed.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

/// A child process that is killed when the test ends, if it has not been before.
pub struct Doomed {
    pub child: std::process::Child,
    lines: std::io::Lines<std::io::BufReader<std::process::ChildStdout>>,
}

impl Doomed {
    /// This test binary again, running `test` with the region's path in `MARU_INSPECT_CHILD`; back when it says that it
    /// holds what it should.
    pub fn start(test: &str, path: &Path) -> Self {
        use std::io::BufRead as _;
        let mut child = Command::new(std::env::current_exe().expect("this test"))
            .args(["--exact", test, "--nocapture"])
            .env("MARU_INSPECT_CHILD", path)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("started");
        let lines = std::io::BufReader::new(child.stdout.take().expect("piped")).lines();
        let mut doomed = Self { child, lines };
        doomed.until("holding");
        doomed
    }

    /// Reads what it says until a line ends with `word`.
    pub fn until(&mut self, word: &str) {
        let found = self.lines.by_ref().map_while(Result::ok).any(|line| line.ends_with(word));
        assert!(found, "the child ended without saying {word:?}");
    }

    /// Stops it, or lets it go on.
    pub fn signal(&self, name: &str) {
        let said = Command::new("kill").args([name, &self.child.id().to_string()]).status().expect("kill");
        assert!(said.success());
        let stat = || std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).expect("a process");
        while name == "-STOP" && !stat().rsplit(')').next().is_some_and(|rest| rest.starts_with(" T")) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Doomed {
    fn drop(&mut self) {
        self.kill();
    }
}
