//! Tests that need more than one process, a mount of their own, or a signal.
//!
//! Whatever must not happen to the test process itself happens in a second copy of it: a test
//! function called `child_…` does nothing by itself and plays a part when [`child`] runs it alone.
//! Where the sandbox refuses a mount, the test says so on stderr and passes.

mod backing;
mod create;
mod fault;
mod fill;
mod fork;
mod identity;
mod lock;
mod map;

use std::ffi::CString;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

/// Set for the copy that plays a part; its value is the file to play with.
const PART: &str = "MARU_OS_TEST_PART";

/// The argument of a part, `None` in an ordinary run.
fn part() -> Option<PathBuf> {
    std::env::var_os(PART).map(PathBuf::from)
}

/// The test binary once more, to run one test function alone.
fn child(test: &str, argument: &Path) -> Command {
    // Test names start behind the crate's name.
    let name = test.split_once("::").map_or(test, |(_, rest)| rest);
    let mut command = Command::new(std::env::current_exe().expect("own path"));
    command.args(["--exact", name, "--nocapture", "--test-threads=1"]).env(PART, argument).stdin(Stdio::null());
    command
}

/// A started copy, killed and reaped at the latest on drop.
struct Copy {
    process: Child,
    output: BufReader<ChildStdout>,
    /// What it said behind `READY`.
    said: String,
}

impl Copy {
    fn kill(&mut self) {
        self.process.kill().expect("kill");
        self.process.wait().expect("wait");
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Starts a part and waits until it says `READY`.
fn start_until_ready(mut command: Command) -> Copy {
    let mut process = command.stdout(Stdio::piped()).spawn().expect("start a copy");
    let output = BufReader::new(process.stdout.take().expect("piped"));
    let mut copy = Copy { process, output, said: String::new() };
    loop {
        let mut line = String::new();
        let length = copy.output.read_line(&mut line).expect("read from the copy");
        assert!(length > 0, "the copy ended before it was ready: {:?}", copy.process.wait());
        if let Some((_, rest)) = line.split_once("READY") {
            copy.said = rest.trim().to_owned();
            return copy;
        }
    }
}

/// Sleeps until killed.
fn sleep_forever() -> ! {
    loop {
        std::thread::sleep(std::time::Duration::from_secs(60));
    }
}

/// Waits for something that another process does. A guard against deadlock, not a time limit.
fn eventually(what: &str, mut check: impl FnMut() -> bool) {
    for _ in 0..2_000 {
        if check() {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    panic!("never came true: {what}");
}

/// Runs `body` in a forked child and answers its exit status; 99 when it panicked.
fn in_fork(body: impl FnOnce() -> i32) -> i32 {
    // SAFETY: the child runs `body` on the copy of this thread and leaves by `_exit`, without
    // unwinding into the test harness; glibc keeps its allocator usable in a forked child.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "fork");
    if pid == 0 {
        let code = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)).unwrap_or(99);
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(code) };
    }
    wait_for(pid)
}

fn wait_for(pid: i32) -> i32 {
    use nix::sys::wait::{WaitStatus, waitpid};
    match waitpid(nix::unistd::Pid::from_raw(pid), None).expect("wait") {
        WaitStatus::Exited(_, code) => code,
        other => panic!("child ended by {other:?}"),
    }
}

/// A folder with a file system of its own, taken away again on drop.
struct Mount {
    folder: tempfile::TempDir,
}

impl Mount {
    fn path(&self) -> &Path {
        self.folder.path()
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let path = c_string(self.path().as_os_str().as_encoded_bytes());
        // SAFETY: the path is a string that outlives the call; the mount is this test's own.
        if unsafe { libc::umount(path.as_ptr()) } != 0 {
            eprintln!("cannot unmount {path:?}: {}", std::io::Error::last_os_error());
        }
    }
}

fn c_string(bytes: &[u8]) -> CString {
    CString::new(bytes).expect("no zero byte")
}

/// Mounts; `None`, loudly, where the sandbox refuses.
fn mounted(kind: &str, options: &str) -> Option<Mount> {
    let folder = tempfile::tempdir().expect("tempdir");
    let (kind, options) = (c_string(kind.as_bytes()), c_string(options.as_bytes()));
    let path = c_string(folder.path().as_os_str().as_encoded_bytes());
    // SAFETY: four strings that outlive the call; the folder is new and this test's own.
    let refused = unsafe { libc::mount(kind.as_ptr(), path.as_ptr(), kind.as_ptr(), 0, options.as_ptr().cast()) };
    if refused != 0 {
        eprintln!("SKIPPED: cannot mount {kind:?} ({options:?}): {}", std::io::Error::last_os_error());
        return None;
    }
    Some(Mount { folder })
}

/// A folder on tmpfs.
fn shm_folder() -> tempfile::TempDir {
    tempfile::Builder::new().prefix("maru-os-").tempdir_in("/dev/shm").expect("a folder in /dev/shm")
}

/// Descriptors of this process that lead to a file.
fn descriptors_of(path: &Path) -> usize {
    let wanted = std::fs::metadata(path).expect("stat");
    std::fs::read_dir("/proc/self/fd")
        .expect("/proc")
        .filter_map(|entry| std::fs::metadata(entry.ok()?.path()).ok())
        .filter(|found| (found.dev(), found.ino()) == (wanted.dev(), wanted.ino()))
        .count()
}
