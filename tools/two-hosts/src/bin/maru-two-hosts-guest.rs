//! The first process of a guest: mounts what a kernel needs, loads modules when told to, and runs programs.
//!
//! The machine outside talks to it through the second serial port, one JSON object a line:
//!
//! * `{"do": "facts", "as": NAME}`: boot id, clocks, and what the kernel says about the device;
//! * `{"do": "modules", "as": NAME}`: loads the modules in `/modules`, in the order of their names;
//! * `{"do": "clock", "seconds": N, "as": NAME}`: sets the wall clock;
//! * `{"do": "run", "argv": [...], "env": {...}, "as": NAME}`: runs to the end, answers exit code and output;
//! * `{"do": "spawn", "argv": [...], "env": {...}, "pid": N, "as": NAME}`: starts a program (under that process id, if
//!   one is named) whose lines go out under its name;
//! * `{"do": "send", "line": TEXT, "as": NAME}` and `{"do": "kill", "as": NAME}`: to a started program.
//!
//! Everything it says is `{"from": NAME, ...}`. What fails is said under the name too: `{"from": NAME, "error": TEXT}`.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, SystemTime};

use anyhow::{Context, anyhow, bail};
use nix::kmod::{ModuleInitFlags, finit_module};
use nix::mount::{MsFlags, mount};
use nix::sys::termios::{SetArg, cfmakeraw, tcgetattr, tcsetattr};
use nix::sys::time::TimeSpec;
use nix::time::{ClockId, clock_settime};
use serde_json::{Map, Value, json};

const LINE: &str = "/dev/ttyS1";
const DEVICE: &str = "/dev/dax0.0";

fn main() {
    if std::process::id() != 1 {
        eprintln!("maru-two-hosts-guest is the first process of a guest; run maru-two-hosts instead");
        std::process::exit(2);
    }
    if let Err(error) = serve() {
        eprintln!("guest: {error:#}");
    }
    // The first process must not end: the kernel would panic, and the machine outside is to see the last line.
    let _ = nix::sys::reboot::reboot(nix::sys::reboot::RebootMode::RB_POWER_OFF);
    loop {
        thread::sleep(Duration::from_secs(1));
    }
}

fn serve() -> anyhow::Result<()> {
    for (what, place, kind) in [("proc", "/proc", "proc"), ("sys", "/sys", "sysfs"), ("dev", "/dev", "devtmpfs")] {
        fs::create_dir_all(place)?;
        mount(Some(what), place, Some(kind), MsFlags::empty(), None::<&str>)
            .with_context(|| format!("mount {place}"))?;
    }
    let input = OpenOptions::new().read(true).write(true).open(LINE).with_context(|| format!("open {LINE}"))?;
    let mut settings = tcgetattr(&input)?;
    cfmakeraw(&mut settings);
    tcsetattr(&input, SetArg::TCSANOW, &settings)?;
    let agent = Agent { out: Arc::new(Mutex::new(input.try_clone()?)), programs: HashMap::new() };
    agent.say("guest", json!({ "ready": true }));
    agent.answer(BufReader::new(input))
}

struct Agent {
    out: Arc<Mutex<File>>,
    programs: HashMap<String, Program>,
}

/// A started program. Whoever waits for its end holds the child.
struct Program {
    pid: i32,
    input: ChildStdin,
}

fn say(out: &Mutex<File>, from: &str, mut what: Value) {
    what["from"] = from.into();
    let mut out = out.lock().unwrap_or_else(PoisonError::into_inner);
    // Nobody is left to hear that this failed.
    let _ = out.write_all(format!("{what}\n").as_bytes());
}

impl Agent {
    fn say(&self, from: &str, what: Value) {
        say(&self.out, from, what);
    }

    fn answer(mut self, input: impl BufRead) -> anyhow::Result<()> {
        for line in input.lines() {
            let line = line?;
            let order: Value = match serde_json::from_str(&line) {
                Ok(order) => order,
                Err(error) => {
                    self.say("guest", json!({ "error": format!("{error}: {line}") }));
                    continue;
                }
            };
            let name = order["as"].as_str().unwrap_or("guest").to_owned();
            match self.obey(&name, &order) {
                Ok(Some(answer)) => self.say(&name, answer),
                Ok(None) => {}
                Err(error) => self.say(&name, json!({ "error": format!("{error:#}") })),
            }
        }
        Ok(())
    }

    fn obey(&mut self, name: &str, order: &Value) -> anyhow::Result<Option<Value>> {
        match order["do"].as_str() {
            Some("facts") => facts().map(Some),
            Some("modules") => load_modules().map(Some),
            Some("clock") => {
                let seconds = order["seconds"].as_i64().ok_or_else(|| anyhow!("seconds: wanted a number"))?;
                clock_settime(ClockId::CLOCK_REALTIME, TimeSpec::new(seconds, 0))?;
                Ok(Some(json!({ "set": seconds })))
            }
            Some("run") => {
                let (mut command, out, name) = (command(order)?, self.out.clone(), name.to_owned());
                thread::spawn(move || {
                    let answer = match command.stdin(Stdio::null()).output() {
                        Ok(ended) => json!({
                            "exit": ended.status.code(),
                            "stdout": String::from_utf8_lossy(&ended.stdout),
                            "stderr": String::from_utf8_lossy(&ended.stderr),
                        }),
                        Err(error) => json!({ "error": error.to_string() }),
                    };
                    say(&out, &name, answer);
                });
                Ok(None)
            }
            Some("spawn") => self.spawn(name, order).map(Some),
            Some("send") => {
                let line = order["line"].as_str().ok_or_else(|| anyhow!("line: wanted a text"))?;
                let program = self.programs.get_mut(name).ok_or_else(|| anyhow!("no program of that name"))?;
                program.input.write_all(format!("{line}\n").as_bytes())?;
                Ok(None)
            }
            Some("kill") => {
                let program = self.programs.remove(name).ok_or_else(|| anyhow!("no program of that name"))?;
                nix::sys::signal::kill(nix::unistd::Pid::from_raw(program.pid), nix::sys::signal::Signal::SIGKILL)?;
                Ok(None)
            }
            other => bail!("do: {other:?} is nothing that a guest can do"),
        }
    }

    fn spawn(&mut self, name: &str, order: &Value) -> anyhow::Result<Value> {
        if let Some(pid) = order["pid"].as_u64() {
            fs::write("/proc/sys/kernel/ns_last_pid", (pid - 1).to_string()).context("choose the process id")?;
        }
        let mut child = command(order)?.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let pid = i32::try_from(child.id())?;
        let (input, output) = child.stdin.take().zip(child.stdout.take()).ok_or_else(|| anyhow!("no pipes"))?;
        self.programs.insert(name.to_owned(), Program { pid, input });
        let (out, name) = (self.out.clone(), name.to_owned());
        thread::spawn(move || forward(&out, &name, BufReader::new(output), child));
        Ok(json!({ "pid": pid }))
    }
}

/// Passes a program's lines on, and says how it ended.
fn forward(out: &Mutex<File>, name: &str, output: impl BufRead, mut child: Child) {
    for line in output.lines().map_while(Result::ok) {
        say(out, name, json!({ "line": line }));
    }
    let ended = child.wait().map_or_else(|error| error.to_string(), |status| status.to_string());
    say(out, name, json!({ "ended": ended }));
}

fn command(order: &Value) -> anyhow::Result<Command> {
    let argv: Vec<&str> = order["argv"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let (program, arguments) = argv.split_first().ok_or_else(|| anyhow!("argv: wanted a list of texts"))?;
    let mut command = Command::new(program);
    command.args(arguments);
    for (key, value) in order["env"].as_object().unwrap_or(&Map::new()) {
        command.env(key, value.as_str().unwrap_or_default());
    }
    Ok(command)
}

fn facts() -> anyhow::Result<Value> {
    let text = |path: &str| fs::read_to_string(path).map(|text| text.trim().to_owned()).ok();
    let sysfs =
        |name: &str| text(&format!("/sys/bus/dax/devices/dax0.0/{name}")).and_then(|text| text.parse::<u64>().ok());
    let node = fs::metadata(DEVICE).ok();
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Ok(json!({
        "boot_id": text("/proc/sys/kernel/random/boot_id"),
        "kernel": text("/proc/sys/kernel/osrelease"),
        "uptime": text("/proc/uptime").and_then(|text| text.split(' ').next()?.parse::<f64>().ok()),
        "wall_seconds": now.as_secs(),
        "device": node.is_some(),
        "character_device": node.as_ref().is_some_and(|node| node.file_type().is_char_device()),
        "fstat_bytes": node.as_ref().map(MetadataExt::size),
        "sysfs_bytes": sysfs("size"),
        "sysfs_align": sysfs("align"),
        "driver": fs::read_link("/sys/bus/dax/devices/dax0.0/driver").ok().and_then(|path| {
            Some(path.file_name()?.to_string_lossy().into_owned())
        }),
    }))
}

fn load_modules() -> anyhow::Result<Value> {
    let mut paths: Vec<_> =
        fs::read_dir("/modules")?.map(|entry| entry.map(|entry| entry.path())).collect::<Result<_, _>>()?;
    paths.sort();
    for path in &paths {
        load(path).with_context(|| format!("load {}", path.display()))?;
    }
    Ok(json!({ "modules": paths.len() }))
}

fn load(path: &Path) -> anyhow::Result<()> {
    match finit_module(&File::open(path)?, c"", ModuleInitFlags::empty()) {
        Ok(()) | Err(nix::errno::Errno::EEXIST) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
