//! `metrics`: exact numbers, closed labels, a server that cannot be hurt, a file that is never half.

mod common;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use common::{Random, Scratch, inspect, namespace, object, payload, store};
use maru::{Batch, Budget, Evict, Region, Role, SessionOptions, Wish};
use maru_layout::table::Counter;

/// Samples by name and labels, as the text has them.
fn parse(text: &str) -> BTreeMap<String, f64> {
    let mut samples = BTreeMap::new();
    let (mut helped, mut typed) = (BTreeSet::new(), BTreeMap::new());
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').expect("a help");
            assert!(!help.is_empty() && helped.insert(name.to_owned()), "{line}");
            continue;
        }
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').expect("a type");
            assert!(matches!(kind, "gauge" | "counter") && helped.contains(name), "{line}");
            assert_eq!(name.ends_with("_total"), kind == "counter", "{line}");
            typed.insert(name.to_owned(), kind);
            continue;
        }
        let (series, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("{line:?}"));
        let name = series.split('{').next().expect("a name");
        assert!(typed.contains_key(name), "{line} has no type");
        let value: f64 = value.parse().unwrap_or_else(|error| panic!("{error}: {line}"));
        assert!(samples.insert(series.to_owned(), value).is_none(), "{series} twice");
    }
    samples
}

fn sum(samples: &BTreeMap<String, f64>, name: &str) -> f64 {
    let start = format!("{name}{{");
    samples.iter().filter(|(series, _)| series.starts_with(&start)).map(|(_, value)| value).sum()
}

fn scrape(path: &Path) -> BTreeMap<String, f64> {
    let said = inspect(&["metrics".as_ref(), path.as_os_str()]);
    assert_eq!(said.code, 0, "{}{}", said.text, said.errors);
    parse(&said.text)
}

/// Two sessions in the first entry one after the other, one more, and a namespace with a budget.
fn scene(scratch: &Scratch) -> (Region, maru::Session) {
    let region = scratch.region("kv", Wish::of_slots(1 << 20, 4096));
    let first = region.session("first", Role::Worker).expect("attach");
    let ns = first.namespace(&namespace("a \"quoted\" tenant")).expect("namespace");
    for number in 0..3 {
        store(&first, &object(ns, number), &payload(number, 100));
    }
    first.close().map_err(|(held, _)| held).expect("closed");
    let never = SessionOptions { evict: Evict::Never, ..SessionOptions::default() };
    let second = region.session_with("second", Role::Scheduler, never).expect("attach");
    let bounded = second.namespace_with_budget(&namespace("bounded"), Budget::Slots(2)).expect("namespace");
    for number in 10..13 {
        store(&second, &object(bounded, number), &payload(number, 1000));
    }
    (region, second)
}

#[test]
fn numbers_are_those_of_the_library() {
    let scratch = Scratch::new();
    let (region, session) = scene(&scratch);
    let path = scratch.path("kv");
    let found = session.namespace(&namespace("a \"quoted\" tenant")).expect("namespace");
    let lease = session.acquire(&[object(found, 1), object(found, 77)], Batch::Each).expect("acquire");
    let samples = scrape(&path);
    let usage = session.usage().expect("usage");
    let of = |series: &str| *samples.get(series).unwrap_or_else(|| panic!("{series} in {samples:#?}"));
    for (name, wanted) in [
        ("capacity_bytes", usage.capacity_bytes),
        ("reserved_bytes", usage.reserved_bytes),
        ("allocated_bytes", usage.allocated_bytes),
        ("ready_bytes", usage.ready_bytes),
        ("ready_allocated_bytes", usage.ready_allocated_bytes),
        ("writing_bytes", usage.writing_bytes),
        ("retiring_bytes", usage.retiring_bytes),
        ("quarantined_bytes", usage.quarantined_bytes),
        ("capacity_slots", usage.capacity_slots.into()),
    ] {
        assert_eq!(of(&format!("maru_{name}{{region=\"kv\"}}")), wanted as f64, "{name}");
    }
    assert_eq!(sum(&samples, "maru_slots"), f64::from(usage.capacity_slots));
    assert_eq!(of("maru_slots{region=\"kv\",state=\"ready\"}"), 5.0);
    // Every counter of the format, once: refusals by reason, the others by name. All of this entry and its holder before.
    let counted: HashMap<Counter, u64> = session.counters().into_iter().collect();
    for counter in Counter::ALL {
        let series = match counter.name().strip_prefix("refused_") {
            Some(reason) => format!("maru_refused_total{{region=\"kv\",reason=\"{reason}\"}}"),
            None => format!("maru_{}_total{{region=\"kv\"}}", counter.name()),
        };
        assert_eq!(of(&series), counted[counter] as f64, "{series}");
    }
    assert_eq!(of("maru_stored_blocks_total{region=\"kv\"}"), 5.0, "the first holder's three, and two");
    assert_eq!(of("maru_refused_total{region=\"kv\",reason=\"over_budget\"}"), 1.0);
    assert_eq!(of("maru_acquire_requests_total{region=\"kv\"}"), 2.0);
    assert_eq!(of("maru_acquire_hits_total{region=\"kv\"}"), 1.0);
    let entries = region.geometry().session_count;
    assert_eq!(sum(&samples, "maru_sessions"), f64::from(entries));
    assert_eq!(of("maru_sessions{region=\"kv\",state=\"live\",role=\"scheduler\"}"), 1.0);
    assert_eq!(of("maru_sessions{region=\"kv\",state=\"free\",role=\"none\"}"), f64::from(entries) - 1.0);
    assert_eq!(of("maru_session_holders{region=\"kv\",holder=\"alive\"}"), 1.0);
    assert_eq!(of("maru_leases{region=\"kv\",kind=\"copy\"}"), 1.0);
    assert_eq!(of("maru_namespace_ready_slots{region=\"kv\",row=\"0\"}"), 3.0);
    assert_eq!(of("maru_namespace_ready_slots{region=\"kv\",row=\"1\"}"), 2.0);
    assert_eq!(of("maru_namespace_budget_slots{region=\"kv\",row=\"1\"}"), 2.0);
    assert_eq!(of("maru_namespace_spent_tokens{region=\"kv\",row=\"1\"}"), 2.0);
    assert!(!samples.contains_key("maru_namespace_budget_slots{region=\"kv\",row=\"0\"}"), "it has none");
    assert_eq!(
        of("maru_namespace_info{region=\"kv\",row=\"0\",tenant=\"a \\\"quoted\\\" tenant\",model=\"m=1\"}"),
        1.0
    );
    drop(lease);

    // Nobody's keys or ids.
    let said = inspect(&["metrics".as_ref(), path.as_os_str()]);
    let labels = [
        "region",
        "state",
        "role",
        "holder",
        "kind",
        "reason",
        "row",
        "tenant",
        "model",
        "format_version",
        "regime",
        "hosts",
    ];
    for line in said.text.lines().filter(|line| !line.starts_with('#')) {
        let inside = line.split_once('{').expect("labels").1;
        for label in inside.split(",").filter_map(|part| part.split_once("=\"")).map(|(label, _)| label) {
            assert!(labels.contains(&label), "{label} in {line}");
        }
    }
    let named = inspect(&["metrics", path.to_str().expect("UTF-8"), "--name", "n-1"]);
    assert!(named.text.contains("maru_up{region=\"n-1\"} 1"), "{}", named.text);
    // The same as JSON.
    let said = inspect(&["metrics", path.to_str().expect("UTF-8"), "--json"]);
    assert_eq!(said.of_kind("metric").len(), samples.len());
    assert_eq!(said.summary()["verdict"], "sound");
}

#[test]
fn states_add_up_beside_busy_writers() {
    let scratch = Scratch::new();
    let region = scratch.region("busy", Wish::of_slots(1 << 20, 4096));
    let path = scratch.path("busy");
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for number in 0..2u64 {
            let (region, stop) = (&region, &stop);
            scope.spawn(move || {
                let session = region.session(&format!("writer {number}"), Role::Worker).expect("attach");
                let ns = session.namespace(&namespace("busy")).expect("namespace");
                let mut random = Random(number);
                while !stop.load(Ordering::Relaxed) {
                    store(&session, &object(ns, random.below(600)), &payload(1, 100));
                    drop(session.acquire(&[object(ns, random.below(600))], Batch::Each).expect("acquire"));
                }
            });
        }
        let mut before = 0.0;
        for round in 0..20 {
            let samples = scrape(&path);
            let capacity = samples["maru_capacity_slots{region=\"busy\"}"];
            if sum(&samples, "maru_slots") != capacity {
                stop.store(true, Ordering::Relaxed);
                panic!("round {round}: {samples:#?}");
            }
            let asked = samples["maru_acquire_requests_total{region=\"busy\"}"];
            if asked < before {
                stop.store(true, Ordering::Relaxed);
                panic!("round {round}: a counter went back from {before} to {asked}");
            }
            before = asked;
        }
        stop.store(true, Ordering::Relaxed);
        assert!(before > 0.0);
    });
}

#[test]
fn what_cannot_be_read_says_only_that() {
    let scratch = Scratch::new();
    let path = scratch.file("kv", b"nonsense");
    let said = inspect(&["metrics".as_ref(), path.as_os_str()]);
    let samples = parse(&said.text);
    assert_eq!((said.code, samples["maru_up{region=\"kv\"}"]), (2, 0.0));
    assert!(samples.len() == 3 && said.errors.contains("need 4096 bytes"), "{samples:?} {}", said.errors);
    // Cut in the middle of the tables: every slot is still counted once.
    let bytes = scratch.stored(1 << 20, 4096, 40);
    let path = scratch.file("kv", &bytes[..40_000]);
    let said = inspect(&["metrics".as_ref(), path.as_os_str()]);
    let samples = parse(&said.text);
    assert_eq!((said.code, samples["maru_damaged{region=\"kv\"}"]), (1, 1.0), "{}", said.errors);
    assert_eq!(sum(&samples, "maru_slots"), samples["maru_capacity_slots{region=\"kv\"}"]);
    assert!(samples["maru_slots{region=\"kv\",state=\"unread\"}"] > 0.0);
}

/// `maru-inspect metrics --listen 127.0.0.1:0`, ended with the test.
struct Server {
    child: Child,
    address: SocketAddr,
}

impl Server {
    fn start(path: &Path) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_maru-inspect"))
            .args(["metrics".as_ref(), path.as_os_str(), "--listen".as_ref(), "127.0.0.1:0".as_ref()])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("started");
        let mut said = String::new();
        BufReader::new(child.stderr.take().expect("piped")).read_line(&mut said).expect("a line");
        let address = said.split("http://").nth(1).and_then(|rest| rest.split('/').next());
        let address = address.and_then(|address| address.parse().ok()).unwrap_or_else(|| panic!("{said}"));
        Self { child, address }
    }

    /// Sends bytes and returns all that comes back.
    fn say(&self, bytes: &[u8]) -> String {
        let mut stream = TcpStream::connect(self.address).expect("connected");
        stream.set_read_timeout(Some(Duration::from_secs(10))).expect("set");
        // It may have stopped reading: too long is too long.
        let _ = stream.write_all(bytes);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        String::from_utf8(answer).expect("UTF-8")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn the_server_answers_one_question_and_survives_the_others() {
    let scratch = Scratch::new();
    let (_region, session) = scene(&scratch);
    let server = Server::start(&scratch.path("kv"));
    let get = || {
        let answer = server.say(b"GET /metrics HTTP/1.1\r\nHost: x\r\nAccept: */*\r\n\r\n");
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n") && head.contains("text/plain; version=0.0.4"), "{head}");
        assert!(head.contains(&format!("Content-Length: {}", body.len())), "{head}");
        parse(body)
    };
    let before = get();
    let ns = session.namespace(&namespace("a \"quoted\" tenant")).expect("namespace");
    assert_eq!(store(&session, &object(ns, 50), &payload(1, 10)), "stored");
    let stored = "maru_stored_blocks_total{region=\"kv\"}";
    assert_eq!(get()[stored], before[stored] + 1.0, "each scrape looks anew");
    for (request, status) in [
        (&b"GET / HTTP/1.1\r\n\r\n"[..], "404"),
        (b"GET /../etc/passwd HTTP/1.1\r\n\r\n", "404"),
        (b"POST /metrics HTTP/1.1\r\nContent-Length: 0\r\n\r\n", "405"),
        (b"nonsense\r\n\r\n", "400"),
        (b"\xff\xfe\x00\r\n\r\n", "400"),
        (b"\r\n\r\n", "400"),
        (&[b'A'; 1 << 20], "414"),
        (&[&b"GET /metrics HTTP/1.1\r\n"[..], &b"X: y\r\n".repeat(4000)].concat(), "431"),
    ] {
        let answer = server.say(request);
        // Where it hung up on bytes still under way, the answer may be lost with them.
        let cut = answer.is_empty() && request.len() > 8192;
        assert!(cut || answer.starts_with(&format!("HTTP/1.1 {status} ")), "{status}: {answer}");
    }
    // One that drips does not hold the others up for long; one that hangs up neither.
    let start = Instant::now();
    let mut slow = TcpStream::connect(server.address).expect("connected");
    slow.write_all(b"GET /metr").expect("sent");
    drop(TcpStream::connect(server.address).expect("connected"));
    get();
    assert!(start.elapsed() < Duration::from_secs(8), "{:?}", start.elapsed());
    let mut answer = String::new();
    slow.read_to_string(&mut answer).expect("read");
    assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
    // The region goes: the server stays, and says so.
    std::fs::remove_file(scratch.path("kv")).expect("removed");
    assert_eq!(get()["maru_up{region=\"kv\"}"], 0.0);
}

#[test]
fn only_loopback_unless_said() {
    let scratch = Scratch::new();
    let path = scratch.file("kv", b"x");
    let path = path.to_str().expect("UTF-8");
    for address in ["0.0.0.0:0", "[::]:0", "192.0.2.1:9190"] {
        let said = inspect(&["metrics", path, "--listen", address]);
        assert!(said.code == 2 && said.errors.contains("not a loopback address"), "{address}: {}", said.errors);
    }
    let said = inspect(&["metrics", path, "--listen", "192.0.2.1:1", "--listen-anywhere"]);
    assert!(said.code == 2 && said.errors.contains("cannot listen on 192.0.2.1:1"), "{}", said.errors);
}

#[test]
fn the_file_is_replaced_as_a_whole() {
    let scratch = Scratch::new();
    let (_region, _session) = scene(&scratch);
    let path = scratch.path("kv");
    let path = path.to_str().expect("UTF-8");
    let folder = scratch.path("collector");
    std::fs::create_dir(&folder).expect("made");
    let out = folder.join("maru.prom");
    let file = out.to_str().expect("UTF-8");
    let said = inspect(&["metrics", path, "--out", file]);
    assert_eq!((said.code, said.text.as_str()), (0, ""), "{}", said.errors);
    let first = std::fs::read_to_string(&out).expect("written");
    assert_eq!(parse(&first)["maru_up{region=\"kv\"}"], 1.0);
    // Whoever has the old file open reads the old text to its end; a hundred reads find a whole text each.
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (out, stop) = (&out, &stop);
        let reader = scope.spawn(move || {
            let mut reads = 0;
            while !stop.load(Ordering::Relaxed) || reads < 100 {
                let text = std::fs::read_to_string(out).expect("always there");
                assert!(text.ends_with('\n') && parse(&text).len() > 50, "half a file: {text}");
                reads += 1;
            }
        });
        let said = inspect(&["metrics", path, "--out", file, "--watch", "50ms", "--times", "20"]);
        stop.store(true, Ordering::Relaxed);
        assert_eq!(said.code, 0);
        reader.join().expect("no half file");
    });
    // A link that lies where it writes is replaced, not followed.
    let victim = scratch.file("victim", b"precious");
    std::fs::remove_file(&out).expect("removed");
    std::os::unix::fs::symlink(&victim, &out).expect("linked");
    assert_eq!(inspect(&["metrics", path, "--out", file]).code, 0);
    assert_eq!(std::fs::read(&victim).expect("read"), b"precious");
    assert_eq!(folder.read_dir().expect("a folder").count(), 1, "nothing is left beside it");
    let said = inspect(&["metrics", path, "--out", "/nonexistent/maru.prom"]);
    assert!(said.code == 2 && said.errors.contains("/nonexistent/maru.prom"), "{}", said.errors);
}
