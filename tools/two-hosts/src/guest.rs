//! A guest as the machine outside sees it: an emulator with a kernel in it, and programs in that kernel to talk to.
//!
//! * G1: both guests map one unnamed file. Nothing is left of it, or of them, however this program ends: the emulators
//!   are told to die with it.
//! * G2: two virtual processors and one emulating thread for each: with a single processor the emulator need not make a
//!   guest's atomic operations atomic for another emulator.
//! * G3: every wait has an end, and a guest that has gone is said at once.

use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};
use serde_json::{Value, json};

use crate::prepare::Boot;

/// The device, in every guest.
pub(crate) const DEVICE: &str = "/dev/dax0.0";
/// Where Maru's device starts in the memory: behind the namespace's own information.
pub(crate) const DEVICE_START: u64 = 2 << 20;
/// Bytes of the device.
pub(crate) const DEVICE_BYTES: u64 = 254 << 20;
/// The memory as the guests see it, and the label area behind it. The namespace tools want the first to be a multiple of
/// 16 MiB.
const MEMORY_BYTES: u64 = DEVICE_START + DEVICE_BYTES;
const LABEL_BYTES: u64 = 2 << 20;

/// How long a guest may take to boot, and for one answer.
const BOOT: Duration = Duration::from_secs(180);
const ANSWER: Duration = Duration::from_secs(60);

/// The memory that both guests map (G1).
pub(crate) struct Memory {
    file: File,
}

impl Memory {
    pub(crate) fn new() -> anyhow::Result<Self> {
        let file = nix::sys::memfd::memfd_create("maru-two-hosts", nix::sys::memfd::MFdFlags::empty())?;
        let file = File::from(file);
        file.set_len(MEMORY_BYTES + LABEL_BYTES)?;
        Ok(Self { file })
    }

    fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), self.file.as_raw_fd()))
    }

    /// Makes the device blank, as if nobody had ever formatted it. The guests' mappings see it at once.
    pub(crate) fn wipe(&self) -> anyhow::Result<()> {
        use nix::fcntl::{FallocateFlags, fallocate};
        let hole = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
        Ok(fallocate(&self.file, hole, DEVICE_START as i64, DEVICE_BYTES as i64)?)
    }
}

/// What has been heard and not been asked for yet.
#[derive(Default)]
struct Heard {
    lines: HashMap<String, VecDeque<Value>>,
    gone: bool,
}

#[derive(Default)]
struct Inbox {
    heard: Mutex<Heard>,
    more: Condvar,
}

impl Inbox {
    fn heard(&self) -> MutexGuard<'_, Heard> {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A running guest.
pub(crate) struct Guest {
    pub(crate) name: &'static str,
    emulator: Mutex<Child>,
    input: Mutex<ChildStdin>,
    inbox: Arc<Inbox>,
    next: AtomicU32,
    console: PathBuf,
}

impl Guest {
    /// Starts a guest whose wall clock begins at `wall_seconds`. It boots meanwhile: see [`Guest::booted`].
    pub(crate) fn start(
        name: &'static str,
        boot: &Boot,
        memory: &Memory,
        accel: &str,
        wall_seconds: i64,
        logs: &Path,
    ) -> anyhow::Result<Self> {
        let console = logs.join(format!("{name}.console"));
        let accel = if accel == "tcg" { "tcg,thread=multi".to_owned() } else { accel.to_owned() };
        let size = MEMORY_BYTES + LABEL_BYTES;
        let clock = nix::sys::time::TimeSpec::new(wall_seconds, 0);
        let mut command = Command::new("qemu-system-x86_64");
        command
            .args(["-M", "q35,nvdimm=on", "-accel", &accel, "-cpu", "max", "-smp", "2", "-m", "512M,slots=4,maxmem=4G"])
            .arg("-object")
            .arg(format!("memory-backend-file,id=m1,share=on,mem-path={},size={size}", memory.path().display()))
            .args(["-device", &format!("nvdimm,id=nv1,memdev=m1,label-size={LABEL_BYTES}")])
            .args(["-nodefaults", "-display", "none", "-no-reboot", "-net", "none"])
            .args(["-rtc", &format!("base={}", utc(clock.tv_sec()))])
            .arg("-kernel")
            .arg(&boot.kernel)
            .arg("-initrd")
            .arg(&boot.initramfs)
            .args(["-append", "console=ttyS0 panic=-1 quiet mitigations=off rdinit=/init"])
            .args(["-serial", &format!("file:{}", console.display())])
            .args(["-chardev", "stdio,id=talk,signal=off", "-serial", "chardev:talk"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(File::create(logs.join(format!("{name}.emulator")))?);
        // SAFETY: the closure runs between fork and exec and makes one system call, which is async-signal-safe; it touches
        // no memory of the parent.
        unsafe {
            command.pre_exec(|| {
                nix::sys::prctl::set_pdeathsig(nix::sys::signal::Signal::SIGKILL).map_err(std::io::Error::from)
            });
        }
        let mut emulator = command.spawn().context("start qemu-system-x86_64")?;
        let (input, output) = emulator.stdin.take().zip(emulator.stdout.take()).ok_or_else(|| anyhow!("no pipes"))?;
        let inbox = Arc::new(Inbox::default());
        let hears = inbox.clone();
        thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                // Whatever is no message of the guest's first process is named by the wait that it makes fail.
                let said: Value = serde_json::from_str(&line).unwrap_or_else(|_| json!({ "from": "", "line": line }));
                let from = said["from"].as_str().unwrap_or_default().to_owned();
                hears.heard().lines.entry(from).or_default().push_back(said);
                hears.more.notify_all();
            }
            hears.heard().gone = true;
            hears.more.notify_all();
        });
        let next = AtomicU32::new(0);
        Ok(Self { name, emulator: Mutex::new(emulator), input: Mutex::new(input), inbox, next, console })
    }

    /// Waits until the guest's first process answers.
    pub(crate) fn booted(&self) -> anyhow::Result<()> {
        self.hear_within("guest", BOOT).map(drop)
    }

    /// Loads the driver of the device, and makes the namespace first if nobody has.
    pub(crate) fn find_device(&self, make: bool) -> anyhow::Result<Value> {
        self.ask(json!({ "do": "modules" }))?;
        if make {
            let made = self.run(&[
                "/bin/ndctl",
                "create-namespace",
                "-f",
                "-e",
                "namespace0.0",
                "-m",
                "devdax",
                "-a",
                "2M",
                "-M",
                "mem",
            ])?;
            if made.exit != 0 {
                bail!("guest {}: ndctl: {}{}", self.name, made.stdout, made.stderr);
            }
        }
        let until = Instant::now() + ANSWER;
        loop {
            let facts = self.facts()?;
            if facts["device"] == true || Instant::now() > until {
                return Ok(facts);
            }
            thread::sleep(Duration::from_millis(100));
        }
    }

    pub(crate) fn facts(&self) -> anyhow::Result<Value> {
        self.ask(json!({ "do": "facts" }))
    }

    pub(crate) fn set_clock(&self, wall_seconds: i64) -> anyhow::Result<()> {
        self.ask(json!({ "do": "clock", "seconds": wall_seconds })).map(drop)
    }

    /// Runs a program to its end.
    pub(crate) fn run(&self, argv: &[&str]) -> anyhow::Result<Ended> {
        let ended = self.ask(json!({ "do": "run", "argv": argv }))?;
        let text = |name: &str| ended[name].as_str().unwrap_or_default().to_owned();
        Ok(Ended { exit: ended["exit"].as_i64().unwrap_or(-1), stdout: text("stdout"), stderr: text("stderr") })
    }

    /// Starts a `maru-shell`.
    pub(crate) fn shell(&self, arguments: &[&str], options: Start<'_>) -> anyhow::Result<Shell<'_>> {
        let name = self.name();
        let argv: Vec<&str> = [&["/bin/maru-shell"], arguments].concat();
        let environment: HashMap<&str, &str> = options.environment.iter().copied().collect();
        let mut order = json!({ "do": "spawn", "as": name, "argv": argv, "env": environment });
        if let Some(pid) = options.pid {
            order["pid"] = pid.into();
        }
        self.send(&order)?;
        let started = self.hear_within(&name, ANSWER)?;
        let pid =
            started["pid"].as_u64().ok_or_else(|| anyhow!("guest {}: cannot start a shell: {started}", self.name))?;
        Ok(Shell { guest: self, name, pid })
    }

    /// A shell on the device, with a session.
    pub(crate) fn worker(&self, engine: &str) -> anyhow::Result<Shell<'_>> {
        self.worker_with(engine, Start::default())
    }

    pub(crate) fn worker_with(&self, engine: &str, options: Start<'_>) -> anyhow::Result<Shell<'_>> {
        let shell = self.shell(&["--region", DEVICE, "--role", "worker", "--engine", engine], options)?;
        shell.good(json!({ "op": "session" }))?;
        shell.good(json!({ "op": "namespace", "example": true }))?;
        Ok(shell)
    }

    /// Switches the guest off as a power failure would: no instruction of it runs after this.
    pub(crate) fn power_off(&self) {
        let mut emulator = self.emulator.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = emulator.kill();
        let _ = emulator.wait();
    }

    fn name(&self) -> String {
        format!("p{}", self.next.fetch_add(1, Ordering::Relaxed))
    }

    fn send(&self, order: &Value) -> anyhow::Result<()> {
        let mut input = self.input.lock().unwrap_or_else(PoisonError::into_inner);
        input.write_all(format!("{order}\n").as_bytes()).with_context(|| format!("talk to guest {}", self.name))?;
        input.flush().with_context(|| format!("talk to guest {}", self.name))
    }

    fn ask(&self, mut order: Value) -> anyhow::Result<Value> {
        let name = self.name();
        order["as"] = name.as_str().into();
        self.send(&order)?;
        let answer = self.hear_within(&name, ANSWER)?;
        match answer["error"].as_str() {
            Some(error) => bail!("guest {}: {}: {error}", self.name, order["do"]),
            None => Ok(answer),
        }
    }

    fn hear_within(&self, name: &str, limit: Duration) -> anyhow::Result<Value> {
        let until = Instant::now() + limit;
        let mut heard = self.inbox.heard();
        loop {
            if let Some(said) = heard.lines.get_mut(name).and_then(VecDeque::pop_front) {
                return Ok(said);
            }
            let strays = heard.lines.get("").map(|lines| format!("; it said {lines:?}")).unwrap_or_default();
            if heard.gone {
                bail!("guest {} has gone (its console: {}){strays}", self.name, self.console.display());
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                bail!(
                    "guest {}: no answer within {limit:?} (its console: {}){strays}",
                    self.name,
                    self.console.display()
                );
            }
            heard = self.inbox.more.wait_timeout(heard, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.power_off();
    }
}

/// How a program ended.
pub(crate) struct Ended {
    pub(crate) exit: i64,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Ended {
    /// The JSON objects that it printed.
    pub(crate) fn objects(&self) -> Vec<Value> {
        self.stdout.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }
}

/// How a shell is started.
#[derive(Default)]
pub(crate) struct Start<'a> {
    pub(crate) environment: &'a [(&'a str, &'a str)],
    pub(crate) pid: Option<u64>,
}

/// A `maru-shell` in a guest.
pub(crate) struct Shell<'g> {
    guest: &'g Guest,
    name: String,
    pub(crate) pid: u64,
}

impl Shell<'_> {
    /// Sends a line without waiting for its answer.
    pub(crate) fn send(&self, line: &Value) -> anyhow::Result<()> {
        self.guest.send(&json!({ "do": "send", "as": self.name, "line": line.to_string() }))
    }

    /// The next answer.
    pub(crate) fn hear(&self) -> anyhow::Result<Value> {
        let said = self.guest.hear_within(&self.name, ANSWER)?;
        let line = said["line"].as_str();
        let line = line.ok_or_else(|| anyhow!("guest {}: a shell of process {}: {said}", self.guest.name, self.pid))?;
        serde_json::from_str(line).with_context(|| format!("read {line}"))
    }

    /// Whether an answer has come that nobody has asked for yet.
    pub(crate) fn has_spoken(&self) -> bool {
        self.guest.inbox.heard().lines.get(&self.name).is_some_and(|lines| !lines.is_empty())
    }

    /// One line and its answer, good or bad.
    pub(crate) fn ask(&self, line: Value) -> anyhow::Result<Value> {
        self.send(&line)?;
        self.hear()
    }

    /// One line, whose answer has to be good.
    pub(crate) fn good(&self, line: Value) -> anyhow::Result<Value> {
        let answer = self.ask(line.clone())?;
        if answer["ok"] != true {
            bail!("guest {}: {line} -> {answer}", self.guest.name);
        }
        Ok(answer)
    }

    /// One line about one block; what its answer calls `outcome`.
    pub(crate) fn outcome(&self, line: Value) -> anyhow::Result<String> {
        let answer = self.good(line)?;
        Ok(answer["outcome"].as_str().unwrap_or_default().to_owned())
    }

    /// Ends it by signal, in its own kernel.
    pub(crate) fn kill(self) -> anyhow::Result<()> {
        self.guest.send(&json!({ "do": "kill", "as": self.name }))?;
        loop {
            if self.guest.hear_within(&self.name, ANSWER)?["ended"].is_string() {
                return Ok(());
            }
        }
    }

    /// Ends it as a user would.
    pub(crate) fn quit(self) -> anyhow::Result<()> {
        self.good(json!({ "op": "quit" })).map(drop)
    }
}

/// A time as the emulator takes it.
fn utc(seconds: i64) -> String {
    // Days since 1970 to a date: years from March on, so that the leap day is the last of its year.
    let (days, rest) = (seconds.div_euclid(86_400) + 719_468, seconds.rem_euclid(86_400));
    let (era, day) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let (day, month) = (day - (153 * month + 2) / 5 + 1, if month < 10 { month + 3 } else { month - 9 });
    let year = year + era * 400 + i64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}", rest / 3600, rest / 60 % 60, rest % 60)
}

#[cfg(test)]
mod tests {
    use super::utc;

    #[test]
    fn times_are_written_as_dates() {
        assert_eq!(utc(0), "1970-01-01T00:00:00");
        assert_eq!(utc(951_782_400), "2000-02-29T00:00:00");
        assert_eq!(utc(1_767_225_599), "2025-12-31T23:59:59");
    }
}
