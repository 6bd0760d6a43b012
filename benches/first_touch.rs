//! What does it cost until a fresh region can be stored to without a fault, and what do those pay who attach later?
//!
//! Beside ours: small pages touched by the kernel (`MAP_POPULATE`'s way), which is what a file in memory costs anybody
//! else; and anonymous huge pages, which is the least that the kernel can do: it clears the same bytes and keeps no file.
//! Wall clock; a machine that hands out memory for the first time adds its own faults, which no row can avoid, so look at
//! medians. `MARU_BENCH_TOUCH_MIB` is the size (256), `MARU_BENCH_ATTACH_GIB` that of the region attached to (8).

use std::cell::Cell;
use std::hint::black_box;
use std::time::{Duration, Instant};

use maru::os::fill::{Reserved, reserve};
use maru::os::map::Mapping;
use maru::os::{Backing, BackingFile};
use maru::{Format, Mode, OpenOptions, Region, Wish};
use maru_bench::contest::{Contest, Spread};
use memmap2::{Advice, MmapMut, MmapOptions};

fn number(name: &str, standard: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(standard)
}

fn holes(folder: &std::path::Path, bytes: u64) -> BackingFile {
    let path = folder.join("fresh");
    let file = std::fs::File::options().read(true).write(true).create(true).truncate(true).open(&path).expect("a file");
    file.set_len(bytes).expect("a size");
    BackingFile::open(&Backing::Path(path), true).expect("the file")
}

/// Minor faults of this process so far.
fn faults() -> u64 {
    let stat = std::fs::read_to_string("/proc/self/stat").expect("/proc");
    // Behind the command's name, which may hold anything: state, ppid, pgrp, session, tty, tpgid, flags, minflt.
    let (_, rest) = stat.rsplit_once(')').expect("a name in brackets");
    rest.split_whitespace().nth(7).and_then(|word| word.parse().ok()).expect("a number")
}

/// Nanoseconds that this thread has been on a processor.
fn on_processor_ns() -> u64 {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").expect("/proc");
    stat.split(' ').next().and_then(|word| word.parse().ok()).expect("a number")
}

/// One core's own time for the filling alone, which a crowded machine disturbs least.
fn in_processor_time(folder: &std::path::Path, bytes: u64, gib: f64) {
    let (mut file, mut least) = (Vec::new(), Vec::new());
    for _ in 0..15 {
        let backing = holes(folder, bytes);
        let before = on_processor_ns();
        reserve(&backing, 0..bytes, true, 1, &mut |_, _| {}).expect("room");
        file.push((on_processor_ns() - before) as f64 / 1e9 / gib);
        drop(holes(folder, bytes));
        let map = MmapOptions::new().len(bytes as usize).map_anon().expect("map");
        let _ = map.advise(Advice::HugePage);
        let before = on_processor_ns();
        map.advise(Advice::PopulateWrite).expect("memory");
        least.push((on_processor_ns() - before) as f64 / 1e9 / gib);
    }
    for (name, times) in [("maru, huge pages, 1 thread", file), ("anonymous huge pages, populated", least)] {
        let spread = Spread::of(times);
        let (median, low, high) = (spread.median, spread.tenth, spread.ninetieth);
        eprintln!("{name:36} {median:.3} s/GiB [{low:.3}-{high:.3}], processor time, filling alone");
    }
}

fn touch(map: &mut [u8]) {
    for page in map.chunks_mut(4096) {
        page[0] = black_box(1);
    }
}

fn main() {
    let folder = tempfile::tempdir_in("/dev/shm").expect("/dev/shm");
    let bytes = number("MARU_BENCH_TOUCH_MIB", 256) << 20;
    let gib = bytes as f64 / (1_u64 << 30) as f64;
    let last = Cell::new(Reserved::default());
    let outcome = Contest::new("first-touch")
        .unit(format!("{} MiB, fresh", bytes >> 20).as_str())
        .bytes(bytes)
        .rounds(15)
        .sample(Duration::from_millis(1))
        .entry("maru, huge pages, 1 thread", || {
            last.set(reserve(&holes(folder.path(), bytes), 0..bytes, true, 1, &mut |_, _| {}).expect("room"));
        })
        .entry("maru, huge pages, 2 threads", || {
            reserve(&holes(folder.path(), bytes), 0..bytes, true, 2, &mut |_, _| {}).expect("room");
        })
        .entry("small pages, populated", || {
            let backing = holes(folder.path(), bytes);
            let mapping = Mapping::of(&backing, 0..bytes, true).expect("map");
            mapping.prefault(0..bytes as usize, true, 1, &mut |_, _| {}).expect("room");
        })
        .entry("anonymous huge pages, populated", || {
            let map = MmapOptions::new().len(bytes as usize + (2 << 20)).map_anon().expect("map");
            let _ = map.advise(Advice::HugePage);
            map.advise_range(Advice::PopulateWrite, 0, bytes as usize).expect("memory");
        })
        .run();
    eprintln!("{:?}", last.get());
    for entry in &outcome.entries {
        let [median, low, high] = [entry.ns.median, entry.ns.tenth, entry.ns.ninetieth].map(|ns| ns / 1e9 / gib);
        eprintln!("{:36} {median:.3} s/GiB [{low:.3}-{high:.3}], wall clock, with taking it away again", entry.name);
    }
    in_processor_time(folder.path(), bytes, gib);

    // Whoever comes later: faults and time of touching every page of a region that somebody else filled.
    let path = folder.path().join("region");
    let options = || OpenOptions::path(&path).format(Format::IfAbsent).wish(Wish::of_slots(bytes, 448 << 10));
    let region = Region::open(options()).expect("a region in memory");
    eprintln!("reserved at format: {:?}", region.reserved());
    for prefault in [false, true] {
        let (before, start) = (faults(), Instant::now());
        let late = Region::open(options().prefault(prefault)).expect("the region");
        let (opened, attach_faults) = (start.elapsed(), faults() - before);
        drop(late);
        eprintln!("second attach, prefault {prefault}: {:.3} ms, {attach_faults} faults", opened.as_secs_f64() * 1e3);
    }
    let file = std::fs::File::options().read(true).write(true).open(&path).expect("the region");
    // SAFETY: only the bytes behind the header are stored to, in a region that nobody uses.
    let mut map = unsafe { MmapMut::map_mut(&file) }.expect("a mapping");
    let header = region.geometry().header_bytes as usize;
    let before = faults();
    touch(&mut map[header..]);
    eprintln!("storing to all of {} small pages through a new mapping: {} faults", map.len() / 4096, faults() - before);
    drop((map, region));
    std::fs::remove_file(&path).expect("remove");

    attach(&folder.path().join("large"), number("MARU_BENCH_ATTACH_GIB", 8) << 30);
}

/// A large region that is there already. It has real pages, as every region has.
fn attach(path: &std::path::Path, bytes: u64) {
    let available = std::fs::read_to_string("/proc/meminfo").ok().and_then(|text| {
        let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
        line.trim().split(' ').next()?.parse::<u64>().ok()
    });
    if available.is_none_or(|kib| kib << 10 < bytes + (2 << 30)) {
        eprintln!("SKIPPED: attaching to {} GiB: MemAvailable is {available:?} KiB", bytes >> 30);
        return;
    }
    let made = OpenOptions::path(path).format(Format::IfAbsent).wish(Wish::of_slots(bytes, 448 << 10));
    let start = Instant::now();
    let region = Region::open(made).expect("a region");
    let took = start.elapsed().as_secs_f64();
    eprintln!("format of {} GiB: {took:.2} s, {:?}", bytes >> 30, region.reserved());
    let open =
        |mode, prefault| drop(Region::open(OpenOptions::path(path).mode(mode).prefault(prefault)).expect("attach"));
    let outcome = Contest::new("attach")
        .unit(format!("{} GiB", bytes >> 30).as_str())
        .rounds(41)
        .sample(Duration::from_millis(1))
        .entry("header only", || open(Mode::HeaderOnly, false))
        .entry("header only, prefault", || open(Mode::HeaderOnly, true))
        .entry("full", || open(Mode::Full, false))
        .entry("full, prefault", || open(Mode::Full, true))
        .run();
    for entry in &outcome.entries {
        eprintln!(
            "{:24} {:.3} ms [{:.3}-{:.3}]",
            entry.name,
            entry.ns.median / 1e6,
            entry.ns.tenth / 1e6,
            entry.ns.ninetieth / 1e6
        );
    }
}
