//! `fence` and `recover`: real processes that hang or are killed, and hosts that are gone.

mod common;

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

use common::{Doomed, Said, Scratch, inspect, namespace, object, payload, store};
use maru::os::identity::HostIdentity;
use maru::{Batch, CallError, Format, OpenOptions, Region, Reserve, ReserveOptions, Role, Verify, Wish, Writer};
use maru_layout::superblock::{Hosts, SectionKind};
use maru_layout::table::SessionEntry;
use maru_layout::word::{SessionState, SessionWord};
use serde_json::Value;
use sha2::{Digest, Sha256};

/// Blocks that the child stores.
const STORED: u64 = 4;
/// The block that it is in the middle of, and the one that it told a device to write.
const HALF: u64 = 10;
const DEVICE: u64 = 11;

/// This test binary again: a session that has stored four blocks, reads one, is in the middle of a fifth, and has told a
/// device to write a sixth. It says when it finds itself shut out.
#[test]
fn child_of_operators() {
    let Some(path) = std::env::var_os("MARU_INSPECT_CHILD") else { return };
    let region = Region::open(OpenOptions::path(path)).expect("opened");
    let session = region.session("doomed engine", Role::Worker).expect("attach");
    let ns = session.namespace(&namespace("ops")).expect("namespace");
    for number in 1..=STORED {
        assert_eq!(store(&session, &object(ns, number), &payload(number, 1000)), "stored");
    }
    let leases = session.acquire(&[object(ns, 1)], Batch::Each).expect("acquire");
    let device = ReserveOptions { writer: Writer::Device, ..ReserveOptions::default() };
    let device = session.reserve(&object(ns, DEVICE), 4096, device).expect("reserve");
    let Reserve::Granted(mut half) =
        session.reserve(&object(ns, HALF), 4096, ReserveOptions::default()).expect("reserve")
    else {
        panic!("the region is empty")
    };
    half.write_at(0, &payload(HALF, 100)).expect("within the slot");
    println!("\nholding");
    for _ in 0..6000 {
        if matches!(session.heartbeat(), Err(CallError::Fenced { .. })) {
            println!("\nshut out");
            std::thread::sleep(Duration::from_secs(60));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    drop((leases, device, half));
}

fn doomed(path: &Path) -> Doomed {
    Doomed::start("child_of_operators", path)
}

fn region(scratch: &Scratch, hosts: Hosts) -> Region {
    let wish = Wish { hosts: Some(hosts), ..Wish::of_slots(1 << 20, 4096) };
    Region::open(OpenOptions::path(scratch.path("r")).format(Format::IfAbsent).wish(wish)).expect("a region")
}

fn hash(path: &Path) -> String {
    format!("{:x}", Sha256::digest(std::fs::read(path).expect("read")))
}

/// Runs `VERB REGION REST --json`.
fn say(verb: &str, path: &Path, rest: &[&str]) -> Said {
    let mut arguments = vec![verb, path.to_str().expect("UTF-8"), "--json"];
    arguments.extend(rest);
    inspect(&arguments)
}

/// The same for people.
fn tell(verb: &str, path: &Path, rest: &[&str]) -> Said {
    let mut arguments = vec![verb, path.to_str().expect("UTF-8")];
    arguments.extend(rest);
    inspect(&arguments)
}

/// Says what would change, in both forms, shows that no byte has changed, and returns the summary.
fn dry(verb: &str, path: &Path, rest: &[&str]) -> Said {
    let before = hash(path);
    let said = say(verb, path, rest);
    assert_eq!((said.code, said.summary()["outcome"].as_str()), (0, Some("planned")), "{}", said.text);
    assert_eq!(said.summary()["dry_run"], true);
    assert!(!said.of_kind("plan").is_empty() && said.of_kind("change").is_empty(), "{}", said.text);
    let told = tell(verb, path, rest);
    assert_eq!(told.code, 0, "{}", told.text);
    assert!(told.text.contains("what would change"), "{}", told.text);
    assert_eq!(told.text.lines().last().map(str::trim), said.summary()["command"].as_str(), "{}", told.text);
    assert_eq!(hash(path), before, "a dry run has stored something");
    said
}

/// Does what the last line of a dry run says, word for word.
fn obey(planned: &Said) -> Said {
    let command = planned.summary()["command"].as_str().expect("a command").to_owned();
    let mut words: Vec<&str> = command.split(' ').collect();
    assert_eq!((words.remove(0), words.last()), ("maru-inspect", Some(&"--yes")), "{command}");
    words.push("--json");
    inspect(&words)
}

/// Numbers of a JSON line by their names.
fn numbers<const N: usize>(line: &Value, names: [&str; N]) -> [u64; N] {
    names.map(|name| line[name].as_u64().unwrap_or_else(|| panic!("{name} in {line}")))
}

fn session_of(path: &Path, index: usize) -> Value {
    say("sessions", path, &[]).of_kind("session").swap_remove(index)
}

fn slots(path: &Path) -> Value {
    say("stat", path, &[]).summary()["slots"].clone()
}

const FATES: [&str; 5] = ["slots_freed", "slots_quarantined", "slots_draining", "leases_void", "keys_freed"];

#[test]
fn what_the_dead_of_this_host_left_is_planned_then_brought_home() {
    let scratch = Scratch::new();
    let _region = region(&scratch, Hosts::One);
    let path = scratch.path("r");
    let mut child = doomed(&path);
    let nothing = say("recover", &path, &[]);
    assert_eq!((nothing.code, nothing.summary()["outcome"].as_str()), (0, Some("nothing_to_do")), "{}", nothing.text);
    let living = session_of(&path, 0);
    assert_eq!(
        (&living["liveness"], &living["unrecovered"], &living["recovery"]),
        (&"alive".into(), &false.into(), &Value::Null)
    );
    assert_eq!((&living["doing"]["operation"], &living["doing"]["slot_state"]), (&"write".into(), &"writing".into()));
    assert_eq!((&living["doing"]["slot_is_own"], &living["role"]), (&true.into(), &"worker".into()));
    assert_eq!((&living["last"]["operation"], &living["last"]["outcome"]), (&"reserve".into(), &"done".into()));
    assert!(tell("sessions", &path, &[]).text.contains("is in the middle of write of slot"));

    child.kill();
    let dead = session_of(&path, 0);
    assert_eq!((&dead["liveness"], &dead["unrecovered"]), (&"dead".into(), &true.into()));
    let text = tell("sessions", &path, &[]).text;
    assert!(text.contains("died in the middle of write of slot"), "{text}");
    assert!(text.contains(&format!("maru-inspect recover {} --yes", path.display())), "{text}");
    assert!(text.contains("  X."), "the picture: {text}");

    let planned = dry("recover", &path, &[]);
    let plan = planned.of_kind("plan").swap_remove(0);
    assert_eq!(
        (&plan["session"], &plan["engine"], &plan["pid"]),
        (&0.into(), &"doomed engine".into(), &child.child.id().into())
    );
    assert_eq!(numbers(&plan, FATES), [1, 1, 0, 1, 2], "{plan}");
    assert!(plan["doing"].as_str().is_some_and(|doing| doing.starts_with("write of slot ")), "{plan}");
    assert_eq!((&plan["slots"]["writing"], &plan["stored_blocks"]), (&2.into(), &STORED.into()));
    let keys: Vec<&str> =
        plan["keys"].as_array().expect("keys").iter().filter_map(|key| key["prefix"].as_str()).collect();
    assert!(keys.iter().any(|key| key.starts_with("0a00000000000000")), "{keys:?}");

    let done = obey(&planned);
    assert_eq!((done.code, done.summary()["outcome"].as_str()), (0, Some("done")), "{}", done.text);
    let change = done.of_kind("change").swap_remove(0);
    assert_eq!((&change["before"]["state"], &change["after"]["slots"]["writing"]), (&"live".into(), &0.into()));
    assert_eq!(numbers(&change, ["slots_freed", "slots_quarantined", "leases_void"]), [1, 1, 1], "{change}");
    assert_eq!(numbers(&slots(&path), ["ready", "writing", "quarantined"]), [STORED, 0, 1]);
    assert_eq!(session_of(&path, 0)["state"], "free");

    // The device's slot waits for somebody who knows.
    let planned = dry("recover", &path, &["--devices-drained"]);
    assert_eq!(planned.summary()["slots_freed"], 1);
    let done = obey(&planned);
    assert_eq!((done.code, &done.of_kind("change")[0]["slots_freed"]), (0, &1.into()), "{}", done.text);
    assert_eq!(numbers(&slots(&path), ["ready", "quarantined"]), [STORED, 0]);
    for rest in [&[][..], &["--devices-drained"], &["--devices-drained", "--yes"]] {
        assert_eq!(say("recover", &path, rest).summary()["outcome"], "nothing_to_do");
    }
    let said = say("verify", &path, &["--payload"]);
    assert_eq!((said.code, numbers(&said.summary(), ["damage", "leftover"])), (0, [0, 0]), "{}", said.text);
}

#[test]
fn a_fence_shuts_out_a_process_that_lives() {
    let scratch = Scratch::new();
    let _region = region(&scratch, Hosts::One);
    let path = scratch.path("r");
    let mut child = doomed(&path);
    // Stopped, as a process that hangs: then every byte stands still.
    child.signal("-STOP");
    let planned = dry("fence", &path, &["--session", "0"]);
    let plan = planned.of_kind("plan").swap_remove(0);
    assert_eq!((numbers(&plan, FATES), &plan["leases_kept"]), ([0, 2, 0, 0, 2], &1.into()), "{plan}");
    let command = planned.summary()["command"].as_str().expect("a command").to_owned();
    assert!(command.contains("--session 0:1 "), "the epoch is named: {command}");
    let done = obey(&planned);
    assert_eq!((done.code, done.summary()["outcome"].as_str()), (0, Some("done")), "{}", done.text);
    let change = done.of_kind("change").swap_remove(0);
    assert_eq!((&change["before"]["state"], &change["after"]["state"]), (&"live".into(), &"fenced".into()));
    assert_eq!(change["slots_quarantined"], 2);
    child.signal("-CONT");
    child.until("shut out");
    let fenced = session_of(&path, 0);
    assert_eq!((&fenced["state"], &fenced["leases"]), (&"fenced".into(), &1.into()), "leases go on counting");
    for rest in [&["--session", "0"][..], &["--session", "0:1", "--yes"]] {
        let again = say("fence", &path, rest);
        assert_eq!((again.code, again.summary()["outcome"].as_str()), (0, Some("nothing_to_do")), "{}", again.text);
    }
    // Names that name nobody.
    let before = hash(&path);
    for (whom, code) in [("0:7", 2), ("1", 2), ("1:9", 2), ("4095", 2), ("0:0", 0)] {
        let said = say("fence", &path, &["--session", whom, "--yes"]);
        assert_eq!(said.code, code, "{whom}: {}", said.text);
        assert!(said.summary()["reason"].as_str().is_some_and(|reason| reason.contains("session ")), "{}", said.text);
    }
    // Its process runs, so nobody can vouch that it is gone.
    for rest in [&["--session-dead", "0:1"][..], &["--session-dead", "0:1", "--yes"]] {
        let said = say("recover", &path, rest);
        assert_eq!((said.code, said.summary()["outcome"].as_str()), (2, Some("cannot")), "{}", said.text);
        assert!(said.text.contains("runs on this host"), "{}", said.text);
    }
    assert_eq!(hash(&path), before, "a refusal has stored something");
    child.kill();
    let done = say("recover", &path, &["--session-dead", "0:1", "--yes"]);
    assert_eq!((done.code, done.summary()["outcome"].as_str()), (0, Some("done")), "{}", done.text);
    assert_eq!(numbers(&slots(&path), ["ready", "writing"]), [STORED, 0]);
    assert_eq!(say("recover", &path, &["--session-dead", "0:1", "--yes"]).summary()["outcome"], "nothing_to_do");
}

/// Makes the holder of an entry one of another host, as a host that was switched off leaves it.
fn move_to_another_host(path: &Path, region: &Region, index: u64, boot: [u8; 16], host: [u8; 16], tag: u32) {
    let file = std::fs::File::options().read(true).write(true).open(path).expect("opened");
    let at = region.geometry().offset(SectionKind::Sessions) + index * size_of::<SessionEntry>() as u64;
    let mut bytes = [0; size_of::<SessionEntry>()];
    file.read_exact_at(&mut bytes, at).expect("read");
    let mut entry: SessionEntry = bytemuck::pod_read_unaligned(&bytes);
    let word = SessionWord(entry.word);
    assert!(word.is(SessionState::Live), "{word:?}");
    entry.word = SessionWord::new(SessionState::Live, tag, word.epoch()).0;
    (entry.boot_id, entry.host_id) = (boot, host);
    file.write_all_at(bytemuck::bytes_of(&entry), at).expect("written");
}

const BOOT: [u8; 16] = [0xb0; 16];
const HOST: [u8; 16] = [0xa0; 16];
const TAG: u32 = 0x0ab_cdef;

/// A region for many hosts, whose entry 0 a process of another host had.
fn of_another_host(scratch: &Scratch) -> Region {
    let region = region(scratch, Hosts::Many);
    let path = scratch.path("r");
    let mut child = doomed(&path);
    child.kill();
    move_to_another_host(&path, &region, 0, BOOT, HOST, TAG);
    region
}

#[test]
fn a_host_that_is_gone_is_recovered_on_an_operators_word_alone() {
    let scratch = Scratch::new();
    let region = of_another_host(&scratch);
    let path = scratch.path("r");
    // A byte that never arrived: of the second block that the host stored.
    let key = payload_slot(&path, 2);
    let (offset, _) = region.geometry().payload_of(key).expect("a slot");
    let file = std::fs::File::options().read(true).write(true).open(&path).expect("opened");
    let mut byte = [0];
    file.read_exact_at(&mut byte, offset + 500).expect("read");
    file.write_all_at(&[byte[0] ^ 4], offset + 500).expect("written");

    // Nothing that this host does on its own touches it.
    let bystander = region.session("bystander", Role::Worker).expect("attach");
    assert_eq!(bystander.index(), 1);
    bystander.reclaim().expect("reclaim");
    bystander.recover_dead().expect("recover");
    for rest in [&["--yes"][..], &[]] {
        let said = say("recover", &path, rest);
        assert_eq!((said.code, said.summary()["outcome"].as_str()), (0, Some("nothing_to_do")), "{}", said.text);
        assert!(said.summary()["notes"][0].as_str().is_some_and(|note| note.contains("cannot judge")), "{}", said.text);
    }
    let lost = session_of(&path, 0);
    assert_eq!(
        (&lost["state"], &lost["liveness"], &lost["unrecovered"]),
        (&"live".into(), &"unknown".into(), &false.into())
    );
    assert_eq!(numbers(&slots(&path), ["ready", "writing"]), [STORED, 2]);
    let boot = "b0".repeat(16);
    let recovery = format!("maru-inspect recover {} --host-dead {boot}", path.display());
    assert_eq!(lost["recovery"], recovery.as_str());

    // The three names of the host, and both verbs, plan the same.
    let (host, tag) = ("a0".repeat(16), format!("tag:{TAG:07x}"));
    for name in [&boot, &host, &tag] {
        for verb in ["recover", "fence"] {
            let planned = dry(verb, &path, &["--host-dead", name]);
            let plan = planned.of_kind("plan");
            assert_eq!((plan.len(), &plan[0]["boot"]), (1, &boot.as_str().into()), "{}", planned.text);
            assert_eq!((numbers(&plan[0], FATES), &plan[0]["stored_blocks"]), ([1, 1, 0, 1, 2], &STORED.into()));
            assert_eq!(planned.summary()["scrubbed"], STORED);
            // By the host's id is said all its boots; what was looked at is one.
            let named = if name == &tag { &tag } else { &boot };
            let command = planned.summary()["command"].as_str().expect("a command").to_owned();
            assert!(command.ends_with(&format!("--host-dead {named} --yes")), "{command}");
        }
    }
    let done = obey(&dry("fence", &path, &["--host-dead", &boot]));
    assert_eq!((done.code, done.summary()["outcome"].as_str()), (1, Some("damaged")), "{}", done.text);
    assert_eq!(
        numbers(&done.summary(), ["slots_freed", "slots_quarantined", "scrubbed", "damaged"]),
        [1, 1, STORED, 1]
    );
    let changes = done.of_kind("change");
    assert_eq!((&changes[0]["action"], &changes[0]["after"]["state"]), (&"recover".into(), &"free".into()));
    assert_eq!((&changes[1]["action"], &changes[1]["damaged_slots"]), (&"scrub".into(), &vec![key].into()));

    // What it committed still hits; what never arrived does not.
    let ns = bystander.namespace(&namespace("ops")).expect("namespace");
    for number in 1..=STORED {
        let hit = bystander.probe(&object(ns, number)).expect("probe").is_hit();
        assert_eq!(hit, number != 2, "block {number}");
        if let Ok(lease) = bystander.acquire(&[object(ns, number)], Batch::Each).expect("acquire").swap_remove(0) {
            let mut bytes = vec![0; 1000];
            lease.read_into(&mut bytes, Verify::Always).expect("whole");
            assert_eq!(bytes, payload(number, 1000));
        }
    }
    assert_eq!(store(&bystander, &object(ns, HALF), &payload(HALF, 10)), "stored", "its key is free");
    // Asked again: nothing to do, not an unknown host.
    let again = say("recover", &path, &["--host-dead", &boot, "--yes"]);
    assert_eq!((again.code, again.summary()["outcome"].as_str()), (0, Some("nothing_to_do")), "{}", again.text);
}

/// The slot of a stored block, by its key.
fn payload_slot(path: &Path, number: u64) -> u32 {
    let key: String = number.to_le_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    let found = say("dump", path, &["--key", &key, "--state", "ready"]).of_kind("slot");
    assert_eq!(found.len(), 1);
    found[0]["slot"].as_u64().expect("a slot") as u32
}

#[test]
fn one_process_of_another_host_is_recovered_by_name() {
    let scratch = Scratch::new();
    let _region = of_another_host(&scratch);
    let path = scratch.path("r");
    let planned = dry("recover", &path, &["--session-dead", "0:1"]);
    assert_eq!(numbers(&planned.summary(), FATES), [1, 1, 0, 1, 2]);
    let wrong = say("recover", &path, &["--session-dead", "0:2", "--yes"]);
    assert_eq!((wrong.code, wrong.summary()["outcome"].as_str()), (2, Some("cannot")), "{}", wrong.text);
    let done = obey(&planned);
    assert_eq!((done.code, done.summary()["outcome"].as_str()), (0, Some("done")), "{}", done.text);
    assert_eq!(numbers(&slots(&path), ["ready", "writing", "quarantined"]), [STORED, 0, 1]);
}

#[test]
fn this_host_and_strangers_are_refused_by_name() {
    let scratch = Scratch::new();
    let _region = of_another_host(&scratch);
    let path = scratch.path("r");
    let before = hash(&path);
    let here = HostIdentity::current().expect("an identity").boot_id;
    let here: String = here.iter().map(|byte| format!("{byte:02x}")).collect();
    for rest in [&["--host-dead", &here][..], &["--host-dead", &here, "--yes"]] {
        let said = say("recover", &path, rest);
        assert_eq!((said.code, said.summary()["outcome"].as_str()), (2, Some("cannot")), "{}", said.text);
        let reason = said.summary()["reason"].as_str().expect("a reason").to_owned();
        assert!(reason.contains("is this one, and its kernel knows who lives"), "{reason}");
    }
    let stranger = "c0".repeat(16);
    let said = say("recover", &path, &["--host-dead", &stranger, "--yes"]);
    assert_eq!((said.code, said.summary()["outcome"].as_str()), (2, Some("cannot")), "{}", said.text);
    let hosts = said.summary()["hosts"].clone();
    assert_eq!((&hosts[0]["boot"], &hosts[0]["tag"]), (&"b0".repeat(16).into(), &"tag:0abcdef".into()), "{hosts}");
    let told = tell("fence", &path, &["--host-dead", &stranger]);
    assert!(told.code == 2 && told.text.contains(&"b0".repeat(16)), "{}", told.text);
    for wrong in
        [&["--host-dead", "host-7"][..], &["--session-dead", "3"], &["--host-dead", &stranger, "--devices-drained"]]
    {
        let said = tell("recover", &path, wrong);
        assert_eq!(said.code, 2, "{}", said.text);
        assert!(said.errors.contains("error:"), "{}", said.errors);
    }
    assert_eq!(tell("fence", &path, &[]).code, 2, "a fence names somebody");
    assert_eq!(hash(&path), before);
}

#[test]
fn damaged_full_and_missing_regions_are_told_apart() {
    let scratch = Scratch::new();
    let mut bytes = scratch.stored(1 << 20, 4096, 2);
    bytes[76] = 3;
    let broken = scratch.file("broken", &bytes);
    let missing = scratch.path("missing");
    let text = scratch.file("text", &[b'x'; 5000]);
    for verb in [&["recover"][..], &["recover", "--devices-drained", "--yes"], &["fence", "--session", "0", "--yes"]] {
        let (verb, rest) = (verb[0], &verb[1..]);
        for (path, code, outcome) in [(&broken, 1, "damaged"), (&missing, 2, "cannot"), (&text, 2, "cannot")] {
            let said = say(verb, path, rest);
            assert_eq!((said.code, said.summary()["outcome"].as_str()), (code, Some(outcome)), "{}", said.text);
        }
    }
    assert_eq!(std::fs::read(&broken).expect("read"), bytes);
    // Every entry is a living session's: there is no room to act in.
    let wish = Wish { sessions: Some(1), ..Wish::of_slots(1 << 20, 4096) };
    let region = scratch.region("full", wish);
    let _one = region.session("the only one", Role::Worker).expect("attach");
    let said = say("fence", &scratch.path("full"), &["--session", "0", "--yes"]);
    assert_eq!((said.code, said.summary()["outcome"].as_str()), (3, Some("busy")), "{}", said.text);
    assert!(said.text.contains("participants full (1)"), "{}", said.text);
}

#[test]
fn help_of_the_verbs_teaches() {
    for (verb, words) in [
        ("sessions", &["heartbeat proves nothing", "in the middle of", "jq"][..]),
        ("log", &["kill -9", "flight_torn", "--last 20"]),
        ("fence", &["Nothing is changed without --yes", "leases go on counting", "Exit codes"]),
        ("recover", &["tag:HEX", "--devices-drained", "you vouch", "Exit codes"]),
    ] {
        let help = inspect(&[verb, "--help"]);
        assert_eq!(help.code, 0);
        for word in words {
            assert!(help.text.contains(word), "{verb}: {word}: {}", help.text);
        }
    }
}
