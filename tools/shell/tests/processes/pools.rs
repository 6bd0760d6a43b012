//! Pools and grants between processes: what a process leaves behind when it ends, and what others may not touch.
//!
//! * Symptoms: a limit of a host that counts the grants of the dead; blocks that end with the engine that stored them; a
//!   background copy whose source is used again while it runs, or whose torso is found by readers; a private pool that
//!   another process reads; a pool file of another user that is followed by a crash and not by an answer.
//!
//! The other process is this test program, started again with a part to play.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use maru::{
    BackingError, Batch, BlockId, Evict, Format, GrantError, HostGrants, Ineligible, Namespace, OpenError, OpenOptions,
    Pool, PoolError, PoolState, Replicas, Retire, Role, Scope, SessionOptions, Store, StoreLease, StoreNamespace,
    StoreOptions, StoreReserve, Verify, Wish,
};

use crate::driver::{BOUND, Scratch};

const GIB: u64 = 1 << 30;
const SLOT: usize = 4096;
/// What lets this program play a part: its name, then the folder that it plays in.
const PART: &str = "MARU_POOLS_PART";

/// The other process. Killed when the test ends.
struct Other {
    child: Child,
    lines: Receiver<String>,
}

impl Other {
    /// Starts a part and waits for its first line.
    #[track_caller]
    fn plays(part: &str, folder: &Path, says: &str) -> Self {
        let mut child = Command::new(std::env::current_exe().expect("this test"))
            .args(["--exact", "pools::the_other_process", "--nocapture"])
            .env(PART, format!("{part}:{}", folder.display()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("started");
        let output = BufReader::new(child.stdout.take().expect("a pipe"));
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            let said = |line: String| line.split_once("MARU ").map(|(_, said)| said.to_owned());
            for line in output.lines().map_while(Result::ok).filter_map(said) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        let other = Self { child, lines };
        other.says(says);
        other
    }

    #[track_caller]
    fn says(&self, wanted: &str) {
        let said = self.lines.recv_timeout(Duration::from_secs(20)).expect("a line in time");
        assert!(said.starts_with(wanted), "said {said:?}, wanted {wanted:?}");
    }

    /// Ends it as a signal does; its memory is gone when this returns.
    fn kill(mut self) {
        self.child.kill().expect("it runs");
        self.child.wait().expect("a child");
    }

    /// Lets it go; it ends in good order.
    fn go(mut self) {
        drop(self.child.stdin.take());
        assert!(self.child.wait().expect("a child").success());
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Says a line, and waits to be let go.
fn say_and_wait(line: &str) {
    println!("\nMARU {line}");
    let mut nothing = String::new();
    while std::io::stdin().read_line(&mut nothing).is_ok_and(|read| read > 0) {}
}

fn pool_in(folder: &Path, name: &str, scope: Scope) -> Result<Pool, PoolError> {
    let wish = Wish { scope: Some(scope), ..Wish::of_slots(1 << 20, SLOT as u64) };
    let options = OpenOptions::path(folder.join(name)).format(Format::IfAbsent).wish(wish);
    // Refuses when full: what is there stays, so that it can be counted.
    let keep = SessionOptions { evict: Evict::Never, ..SessionOptions::default() };
    Pool::open(name, options, |region| region.session_with(name, Role::Worker, keep))
}

/// Host-shared CPU memory and CXL memory.
fn store_in(folder: &Path) -> (Store, StoreNamespace) {
    let pool = |name: &str| pool_in(folder, name, Scope::Host).expect("a pool in memory");
    let store = Store::builder().pool(pool("cpu")).pool(pool("cxl")).build().expect("two pools");
    let ns = store.namespace(&model()).expect("registered");
    (store, ns)
}

fn model() -> Namespace {
    Namespace::new()
        .tenant("t")
        .model("m")
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

fn block(number: u8) -> BlockId {
    BlockId::new([number; 32])
}

fn bytes(number: u8) -> Vec<u8> {
    (0..SLOT).map(|at| number ^ (at / 8) as u8).collect()
}

fn put(store: &Store, ns: &StoreNamespace, number: u8, replicas: Replicas) -> String {
    let options = StoreOptions { replicas, ..StoreOptions::default() };
    match store.reserve(ns, &block(number), SLOT as u64, options).expect("a store in order") {
        StoreReserve::Granted(mut slot) => {
            slot.write_at(0, &bytes(number)).expect("write");
            assert_eq!(slot.commit().expect("commit").code(), "stored");
            slot.pool().to_owned()
        }
        other => other.code().to_owned(),
    }
}

fn lease<'s>(store: &'s Store, ns: &StoreNamespace, number: u8) -> Option<StoreLease<'s>> {
    store.acquire(ns, &[block(number)], Batch::Each).expect("acquire").remove(0).ok()
}

fn retired(store: &Store, ns: &StoreNamespace, number: u8) -> Retire {
    store.retire(ns, &block(number)).expect("retire")[0].1
}

fn freed(store: &Store) -> u32 {
    store.pool("cpu").expect("a pool").session().reclaim().expect("reclaim").freed_slots
}

/// Not a test of its own: what the other process does. As a test it only says that it has no part.
#[test]
fn the_other_process() {
    let Ok(part) = std::env::var(PART) else { return };
    let (part, folder) = part.split_once(':').expect("PART:FOLDER");
    let folder = Path::new(folder);
    match part {
        "taker" => {
            let host = HostGrants::open(&folder.join("grants"), 32 * GIB, GIB).expect("opened");
            let grant = host.take(8 * GIB).expect("granted");
            say_and_wait("granted");
            drop(grant);
        }
        "owner" => {
            let (store, ns) = store_in(folder);
            for number in 0..10 {
                assert_eq!(put(&store, &ns, number, Replicas::One), "cpu");
            }
            let held = lease(&store, &ns, 9).expect("a hit");
            say_and_wait("stored");
            drop(held);
        }
        "copier" => {
            let (store, ns) = store_in(folder);
            let mut source = lease(&store, &ns, 1).expect("a hit");
            assert_eq!(source.pool(), "cpu");
            let options = StoreOptions { replicas: Replicas::Another, ..StoreOptions::default() };
            let target = store.reserve(&ns, &block(1), SLOT as u64, options).expect("reserve");
            let mut target = target.granted().expect("granted");
            assert_eq!(target.pool(), "cxl");
            let view = source.view().expect("a view");
            target.write_at(0, &view.to_vec().expect("read")[..SLOT / 2]).expect("write");
            say_and_wait("half");
            drop(view);
            target.write_at(0, &source.read(Verify::Always).expect("read")).expect("write");
            assert_eq!(target.commit().expect("commit").code(), "stored");
        }
        "private" => {
            let store = Store::builder().pool(pool_in(folder, "cpu", Scope::Process).expect("a pool")).build();
            let store = store.expect("one pool");
            let ns = store.namespace(&model()).expect("registered");
            assert_eq!(put(&store, &ns, 1, Replicas::One), "cpu");
            say_and_wait("stored");
        }
        "stranger" => {
            become_nobody();
            match pool_in(folder, "cpu", Scope::Host) {
                Ok(pool) => {
                    let store = Store::builder().pool(pool).build().expect("one pool");
                    let ns = store.namespace(&model()).expect("registered");
                    let mut lease = lease(&store, &ns, 1).expect("a hit");
                    assert_eq!(lease.read(Verify::Always).expect("read"), bytes(1));
                    say_and_wait("read it");
                }
                Err(
                    error @ PoolError::Open {
                        source: OpenError::Backing(BackingError::PermissionDenied { .. }), ..
                    },
                ) => {
                    say_and_wait(&format!("denied: {error}"));
                }
                Err(error) => say_and_wait(&format!("something else: {error:?}")),
            }
        }
        other => panic!("no part {other:?}"),
    }
}

/// Gives up being root, in this process and for good.
fn become_nobody() {
    const NOBODY: u32 = 65_534;
    // SAFETY: no group is passed, so no list is read.
    assert_eq!(unsafe { libc::setgroups(0, std::ptr::null()) }, 0);
    // SAFETY: plain numbers.
    assert_eq!(unsafe { libc::setgid(NOBODY) }, 0);
    // SAFETY: plain numbers.
    assert_eq!(unsafe { libc::setuid(NOBODY) }, 0);
}

#[test]
fn the_grant_of_a_killed_taker_is_the_next_ones() {
    let scratch = Scratch::new();
    let host = HostGrants::open(&scratch.path("grants"), 32 * GIB, GIB).expect("opened");
    let mut takers: Vec<Other> = (0..4).map(|_| Other::plays("taker", &scratch.path(""), "granted")).collect();
    assert_eq!(host.usage().expect("usage").free_bytes, 0);
    let refused = |have| match host.take(8 * GIB) {
        Err(GrantError::Refused { need_bytes, have_bytes, limit_bytes }) => {
            assert_eq!((need_bytes, have_bytes, limit_bytes), (8 * GIB, have, 32 * GIB));
        }
        other => panic!("{other:?}"),
    };
    refused(0);
    takers.pop().expect("four").kill();
    let start = Instant::now();
    let mine = host.take(8 * GIB).expect("what the dead one had");
    assert!(start.elapsed() < BOUND, "{:?}", start.elapsed());
    refused(0);
    // One that ends in good order gives back at once, too.
    takers.pop().expect("three").go();
    assert_eq!(host.usage().expect("usage").free_bytes, 8 * GIB);
    let more = host.take(8 * GIB).expect("granted");
    takers.drain(..).for_each(Other::kill);
    drop((mine, more));
    assert_eq!(host.take(32 * GIB).expect("all of it").bytes(), 32 * GIB);
}

#[test]
fn a_pool_outlives_its_owner_and_a_lease_its_owners_end() {
    for killed in [false, true] {
        let scratch = Scratch::new();
        let owner = Other::plays("owner", &scratch.path(""), "stored");
        let (store, ns) = store_in(&scratch.path(""));
        let prefix: Vec<BlockId> = (0..10).map(block).collect();
        let mut held: Vec<_> = (0..5).map(|number| lease(&store, &ns, number).expect("a hit")).collect();
        let viewed = lease(&store, &ns, 5).expect("a hit");
        let view = viewed.view().expect("a view");
        assert_eq!(retired(&store, &ns, 9), Retire::Draining, "its owner reads it");
        if killed {
            owner.kill()
        } else {
            owner.go()
        }
        assert_eq!(freed(&store), 1, "the owner's lease ended with it");
        assert_eq!(store.probe_prefix(&ns, &prefix).expect("probe"), 9);
        // The leases of a foreign reader protect as before: their slots are not used again under them.
        for number in 0..6 {
            assert_eq!(retired(&store, &ns, number), Retire::Draining, "{number}");
        }
        assert_eq!(freed(&store), 0);
        let slots = store.pool("cpu").expect("a pool").region().geometry().slot_count as u8;
        let stored =
            (100..=255).chain(20..100).filter(|number| put(&store, &ns, *number, Replicas::One) == "cpu").count();
        assert_eq!(stored, usize::from(slots) - 9, "everything but the nine that are there is used again");
        for (number, lease) in (0..).zip(&mut held) {
            assert_eq!(lease.read(Verify::Always).expect("read"), bytes(number));
        }
        assert_eq!(view.to_vec().expect("read"), bytes(5));
        drop((view, held));
        drop(viewed);
        assert_eq!(freed(&store), 6);
    }
}

#[test]
fn a_copy_keeps_its_source_and_a_killed_one_leaves_nothing() {
    let scratch = Scratch::new();
    let (store, ns) = store_in(&scratch.path(""));
    let free = |name: &str| store.pool(name).expect("a pool").session().usage().expect("usage").slots[0];
    let before = free("cxl");
    assert_eq!(put(&store, &ns, 1, Replicas::One), "cpu");
    let copier = Other::plays("copier", &scratch.path(""), "half");
    // Half a copy is no replica, and nobody starts another one.
    let cxl = |number| {
        let one = Store::builder().pool(pool_in(&scratch.path(""), "cxl", Scope::Host).expect("a pool")).build();
        let one = one.expect("one pool");
        let ns = one.namespace(&model()).expect("registered");
        (one.probe(&ns, &block(number)).expect("probe").is_hit(), put(&one, &ns, number, Replicas::One))
    };
    assert_eq!(cxl(1), (false, "being_written".to_owned()));
    // The source can be shut, and not be used again while the copy reads it.
    assert_eq!(retired(&store, &ns, 1), Retire::Draining);
    assert_eq!(freed(&store), 0);
    copier.kill();
    assert_eq!(freed(&store), 1, "nothing reads it any more");
    assert!(lease(&store, &ns, 1).is_none(), "no readable replica");
    assert_eq!(cxl(1), (false, "cxl".to_owned()), "the key is free at once, and so is the space");
    assert_eq!(free("cxl"), before - 1);
    // A copy that is let finish is the block.
    assert_eq!(put(&store, &ns, 1, Replicas::One), "present");
    store.retire(&ns, &block(1)).expect("retire");
    assert_eq!(put(&store, &ns, 1, Replicas::One), "cpu");
    let copier = Other::plays("copier", &scratch.path(""), "half");
    copier.go();
    assert_eq!(retired(&store, &ns, 1), Retire::Retired);
    assert_eq!(put(&store, &ns, 1, Replicas::One), "cpu");
}

#[test]
fn a_private_pool_is_its_processes_alone_also_when_that_has_gone() {
    let scratch = Scratch::new();
    let owner = Other::plays("private", &scratch.path(""), "stored");
    let look = || {
        let pool = |name: &str, scope| pool_in(&scratch.path(""), name, scope).expect("a pool in memory");
        let builder = Store::builder().pool(pool("cpu", Scope::Process)).pool(pool("cxl", Scope::Host));
        let store = builder.build().expect("two pools");
        let ns = store.namespace(&model()).expect("registered");
        let barred = PoolState::Ineligible(Ineligible::PrivateToAnotherProcess);
        assert_eq!(store.health()[0].state, barred);
        assert!(lease(&store, &ns, 1).is_none(), "it lies there, and is not asked for");
        assert_eq!(put(&store, &ns, 1, Replicas::One), "cxl", "first in the order, and not asked");
        assert_eq!(lease(&store, &ns, 1).expect("a hit").pool(), "cxl");
        store.retire(&ns, &block(1)).expect("retire");
        let cpu = store.pool("cpu").expect("a pool").session().usage().expect("usage");
        assert_eq!(cpu.slots[4], 1, "what was there is there");
    };
    look();
    owner.kill();
    look();
}

#[test]
fn another_user_is_refused_or_let_in_by_the_files_bits() {
    // SAFETY: asks, and changes nothing.
    if unsafe { libc::geteuid() } != 0 {
        eprintln!("SKIPPED: not root, so no process of another user could be started");
        return;
    }
    let scratch = Scratch::new();
    let folder = scratch.path("");
    std::fs::set_permissions(&folder, PermissionsExt::from_mode(0o755)).expect("chmod");
    let (store, ns) = store_in(&folder);
    assert_eq!(put(&store, &ns, 1, Replicas::One), "cpu");
    let stranger = |mode, says: &str| {
        let path = folder.join("cpu");
        std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).expect("chmod");
        let other = Other::plays("stranger", &folder, says);
        other.go();
    };
    stranger(0o660, "denied: pool cpu: ");
    // To read is to lease, and to lease is to write one's own lines.
    stranger(0o664, "denied: pool cpu: ");
    stranger(0o666, "read it");
    assert_eq!(store.probe_prefix(&ns, &[block(1)]).expect("probe"), 1);
    assert_eq!(put(&store, &ns, 2, Replicas::One), "cpu");
}
