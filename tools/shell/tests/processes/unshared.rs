//! Processes in namespaces of their own, as containers are: other process ids, other clocks.

use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::driver::Shell;

/// Defined for the scripts: the next process that is started gets this id.
const PIN: &str = "pin() { echo $(($1 - 1)) > /proc/sys/kernel/ns_last_pid; }\n";

/// Whether pid namespaces can be made and process ids chosen in them. Said loudly where not.
pub(crate) fn pid_namespaces() -> bool {
    static WORK: OnceLock<bool> = OnceLock::new();
    let work = *WORK.get_or_init(|| {
        let output = in_pid_namespace(&format!("{PIN}pin 70; sh -c 'echo $$'")).output();
        output.is_ok_and(|output| output.stdout == b"70\n")
    });
    if !work {
        eprintln!("SKIPPED: no pid namespace can be made here (needs root and unshare), so nothing was checked in one");
    }
    work
}

/// The arguments of `unshare` that move the clocks of a program forward, or back; `None`, said loudly, where it cannot.
pub(crate) fn clocks_moved_by(seconds: i64) -> Option<Vec<String>> {
    let text = seconds.to_string();
    let arguments = ["--time", "--fork", "--kill-child", "--monotonic", &text, "--boottime", &text];
    let works = Command::new("unshare").args(arguments).arg("true").status().is_ok_and(|status| status.success());
    if !works {
        eprintln!("SKIPPED: no time namespace {seconds} s away can be made here, so no clock was moved by one");
        return None;
    }
    Some(std::iter::once("unshare").chain(arguments).map(str::to_owned).collect())
}

fn in_pid_namespace(script: &str) -> Command {
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", script, "sh"]);
    command
}

/// A shell of commands in a new pid namespace: `pin N` gives the next process the id N, and `"$@"` is a `maru-shell` on
/// `path`, which then talks to the test.
pub(crate) fn script(path: &Path, script: &str, more: &[&str]) -> Shell {
    let mut command = in_pid_namespace(&format!("{PIN}{script}\n:"));
    command.arg(env!("CARGO_BIN_EXE_maru-shell")).arg("--region").arg(path).args(more);
    Shell::spawn(command)
}

/// The `maru-shell` that runs below `root`, by its id out here.
pub(crate) fn inner(root: Pid) -> Pid {
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(5) {
        if let Some(found) = below(root) {
            return found;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    panic!("no maru-shell runs below {root}");
}

fn below(pid: Pid) -> Option<Pid> {
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
    if name.trim_end().starts_with("maru-shell") {
        return Some(pid);
    }
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
    children.split_whitespace().find_map(|child| below(Pid::from_raw(child.parse().ok()?)))
}

/// Kills the `maru-shell` below `root` and waits until it is gone, its memory and locks too.
pub(crate) fn kill_inner(root: Pid) {
    let pid = inner(root);
    kill(pid, Signal::SIGKILL).expect("it runs");
    let start = Instant::now();
    // Reaped by its parent in the namespace, or a zombie: either way its memory has gone.
    while std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z ")) {
        assert!(start.elapsed() < Duration::from_secs(5), "{pid} goes on after SIGKILL");
        std::thread::sleep(Duration::from_millis(1));
    }
}
