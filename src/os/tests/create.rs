//! Whole or not at all: linking, shortage, replacing.

use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;
use std::sync::Barrier;

use super::{child, mounted, part, shm_folder};
use crate::os::create::{AsideFile, LinkOutcome, ReplaceOutcome};
use crate::os::space::{cgroup_room_bytes, room_at};
use crate::os::{BackingError, BackingFile, BackingKind, HUGE_PAGE_BYTES};
use crate::sync::process::{AtomicBool, Ordering};

const HERE: &str = module_path!();

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(folder)
        .expect("read_dir")
        .map(|entry| entry.expect("entry").file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

fn linked(outcome: LinkOutcome) -> BackingFile {
    match outcome {
        LinkOutcome::Linked(file) => file,
        LinkOutcome::Exists => panic!("somebody was first"),
    }
}

fn free_bytes(folder: &Path) -> u64 {
    let stat = nix::sys::statvfs::statvfs(folder).expect("statvfs");
    stat.blocks_available() * stat.fragment_size()
}

#[test]
fn nothing_is_seen_before_the_link() {
    let folder = shm_folder();
    let path = folder.path().join("region");
    for unnamed in [true, false] {
        let aside = AsideFile::create_by(&path, 8 << 20, unnamed).expect("create");
        assert!(!path.exists());
        assert_eq!(names(folder.path()).len(), usize::from(!unnamed));
        assert_eq!((aside.backing().size_bytes(), aside.backing().kind()), (8 << 20, BackingKind::Tmpfs));
        aside.set_mode(0o640).expect("mode");
        drop(aside);
        assert_eq!(names(folder.path()).len(), 0, "dropped without a trace");

        let aside = AsideFile::create_by(&path, 8 << 20, unnamed).expect("create");
        let file = linked(aside.link().expect("link"));
        assert!(file.path_still_names_this());
        assert_eq!(names(folder.path()), ["region"]);
        let second = AsideFile::create_by(&path, 4096, unnamed).expect("create");
        assert!(matches!(second.link().expect("link"), LinkOutcome::Exists));
        assert_eq!(names(folder.path()), ["region"]);
        assert_eq!(file.size_now().expect("size"), 8 << 20);
        fs::remove_file(&path).expect("remove");
    }
}

#[test]
fn of_eight_builders_one_links() {
    for unnamed in [true, false] {
        for _round in 0..50 {
            let folder = shm_folder();
            let path = folder.path().join("region");
            let barrier = Barrier::new(8);
            let winners: Vec<u64> = std::thread::scope(|scope| {
                let builders: Vec<_> = (0..8)
                    .map(|_| {
                        scope.spawn(|| {
                            let aside = AsideFile::create_by(&path, 1 << 20, unnamed).expect("create");
                            barrier.wait();
                            match aside.link().expect("link") {
                                LinkOutcome::Linked(file) => Some(file.ino()),
                                LinkOutcome::Exists => None,
                            }
                        })
                    })
                    .collect();
                builders.into_iter().filter_map(|builder| builder.join().expect("join")).collect()
            });
            assert_eq!(winners, [fs::metadata(&path).expect("stat").ino()]);
            assert_eq!(names(folder.path()), ["region"]);
        }
    }
}

#[test]
fn what_cannot_fit_is_refused_before_it_starts() {
    let Some(mount) = mounted("tmpfs", "size=1m") else { return };
    let path = mount.path().join("region");
    let error = AsideFile::create(&path, 8 << 20).expect_err("too large");
    let BackingError::NoSpace { need_bytes, available_bytes, limit, .. } = &error else { panic!("{error}") };
    assert_eq!((*need_bytes, *limit), (8 << 20, "file system"));
    assert!(*available_bytes <= 1 << 20);
    assert!(error.to_string().contains("need 8388608 B, available 1048576 B"), "{error}");
    assert!(names(mount.path()).is_empty());
    assert_eq!(free_bytes(mount.path()), 1 << 20);
}

#[test]
fn a_shortage_on_the_way_leaves_nothing() {
    let Some(mount) = mounted("tmpfs", "size=8m") else { return };
    let path = mount.path().join("region");
    for huge in [false, true] {
        let aside = AsideFile::create(&path, 6 << 20).expect("create");
        let filler = mount.path().join("filler");
        let error = aside
            .reserve_pages(0..6 << 20, huge, &mut |done, _| {
                if done == HUGE_PAGE_BYTES {
                    fs::write(&filler, vec![1; 5 << 20]).expect("filler");
                }
            })
            .expect_err("no space");
        assert!(matches!(error, BackingError::NoSpace { need_bytes: 1.., .. }), "{error}");
        drop(aside);
        assert_eq!(names(mount.path()), ["filler"]);
        assert_eq!(free_bytes(mount.path()), 3 << 20);
        let error = AsideFile::create(&path, 6 << 20).expect_err("and now at once");
        assert!(matches!(error, BackingError::NoSpace { .. }), "{error}");
        fs::remove_file(&filler).expect("remove");
    }
    let aside = AsideFile::create(&path, 6 << 20).expect("create");
    aside.reserve_pages(0..6 << 20, true, &mut |_, _| {}).expect("reserve");
    drop(linked(aside.link().expect("link")));
    assert_eq!(free_bytes(mount.path()), 2 << 20);
}

#[test]
fn reserved_pages_are_real_and_bytes_stay() {
    use std::os::unix::fs::FileExt;
    let folder = shm_folder();
    let size = (16 << 20) + 12_288;
    let aside = AsideFile::create(&folder.path().join("region"), size).expect("create");
    aside.backing().file().write_all_at(b"kept", 5 << 20).expect("write");
    let mut told = Vec::new();
    let reserved = aside.reserve_pages(4096..size, true, &mut |done, total| told.push((done, total))).expect("reserve");
    assert_eq!(reserved.total_bytes, size - 4096);
    assert_eq!(told.last(), Some(&(size - 4096, size - 4096)));
    assert!(reserved.huge_bytes <= 14 << 20);
    if reserved.huge_bytes == 0 {
        eprintln!("SKIPPED: this kernel collapses nothing on /dev/shm");
    }
    let mut read = [0; 4];
    aside.backing().file().read_exact_at(&mut read, 5 << 20).expect("read");
    assert_eq!(&read, b"kept");
    let blocks = aside.backing().file().metadata().expect("stat").blocks();
    assert_eq!(blocks * 512, size - 4096);
    assert!(matches!(aside.reserve_pages(0..size + 1, true, &mut |_, _| {}), Err(BackingError::OutOfBounds { .. })));
}

#[test]
fn an_ordinary_file_system_works_too() {
    let folder = tempfile::tempdir_in("/var/tmp").expect("tempdir");
    let path = folder.path().join("region");
    let aside = AsideFile::create(&path, 3 << 20).expect("create");
    let reserved = aside.reserve_pages(0..3 << 20, true, &mut |_, _| {}).expect("reserve");
    assert_eq!(reserved.total_bytes, 3 << 20);
    let file = linked(aside.link().expect("link"));
    assert!(file.path_still_names_this());
    assert_eq!(names(folder.path()), ["region"]);
}

#[test]
fn only_the_judged_inode_is_replaced() {
    let folder = shm_folder();
    let path = folder.path().join("region");
    for unnamed in [true, false] {
        let aside = |size| AsideFile::create_by(&path, size, unnamed).expect("create");
        let old = linked(aside(4096).link().expect("link"));
        let judged = old.dev_ino();

        let ReplaceOutcome::Replaced(new) = aside(8192).replace(judged).expect("replace") else { panic!("changed") };
        assert!(new.path_still_names_this() && !old.path_still_names_this());
        assert_eq!(fs::metadata(&path).expect("stat").len(), 8192);
        assert_eq!(names(folder.path()), ["region"]);

        // The judgement is about a file that is not there any more.
        assert!(matches!(aside(4096).replace(judged).expect("replace"), ReplaceOutcome::Changed));
        assert!(new.path_still_names_this());
        fs::remove_file(&path).expect("remove");
        assert!(matches!(aside(4096).replace(new.dev_ino()).expect("replace"), ReplaceOutcome::Changed));
        assert_eq!(names(folder.path()).len(), 0);
    }
}

#[test]
fn of_many_replacers_each_removes_what_it_judged() {
    let folder = shm_folder();
    let path = folder.path().join("region");
    linked(AsideFile::create(&path, 4096).expect("create").link().expect("link"));
    for _round in 0..50 {
        let current = fs::metadata(&path).expect("stat");
        let current = (current.dev(), current.ino());
        let barrier = Barrier::new(4);
        let outcomes: Vec<_> = std::thread::scope(|scope| {
            let replacers: Vec<_> = (0..4)
                .map(|_| {
                    scope.spawn(|| {
                        let aside = AsideFile::create(&path, 4096).expect("create");
                        barrier.wait();
                        aside.replace(current)
                    })
                })
                .collect();
            replacers.into_iter().map(|replacer| replacer.join().expect("join")).collect()
        });
        let changed = outcomes.iter().filter(|o| matches!(o, Ok(ReplaceOutcome::Changed))).count();
        let replaced = outcomes.iter().filter(|o| matches!(o, Ok(ReplaceOutcome::Replaced(_)))).count();
        assert_eq!((replaced, changed), (1, 3), "{outcomes:?}");
        let winner = outcomes.iter().find_map(|o| match o {
            Ok(ReplaceOutcome::Replaced(file)) => Some(file),
            _ => None,
        });
        assert!(winner.expect("one").path_still_names_this());
        assert_eq!(names(folder.path()), ["region"]);
    }
}

#[test]
fn a_file_met_instead_of_the_judged_one_is_put_back() {
    let folder = shm_folder();
    let path = folder.path().join("region");
    for unnamed in [true, false] {
        let aside = || AsideFile::create_by(&path, 4096, unnamed).expect("create");
        let old = linked(aside().link().expect("link"));
        let outcome = aside().replace_after(old.dev_ino(), || {
            let theirs = folder.path().join("theirs");
            fs::write(&theirs, "stranger").expect("write");
            fs::rename(&theirs, &path).expect("rename");
        });
        assert!(matches!(outcome, Ok(ReplaceOutcome::Changed)), "{outcome:?}");
        assert_eq!(fs::read(&path).expect("read"), b"stranger");
        assert_eq!(names(folder.path()), ["region"]);

        let judged = fs::metadata(&path).expect("stat");
        let outcome = aside().replace_after((judged.dev(), judged.ino()), || fs::remove_file(&path).expect("remove"));
        assert!(matches!(outcome, Ok(ReplaceOutcome::Changed)), "{outcome:?}");
        assert!(names(folder.path()).is_empty());
    }
}

#[test]
fn replacers_take_turns() {
    let folder = shm_folder();
    let path = folder.path().join("region");
    let aside = || AsideFile::create(&path, 4096).expect("create");
    let judged = linked(aside().link().expect("link")).dev_ino();
    std::thread::scope(|scope| {
        let mut second = None;
        let first = aside().replace_after(judged, || {
            let (path, started) = (&path, AtomicBool::new(false));
            let started = std::sync::Arc::new(started);
            let theirs = std::sync::Arc::clone(&started);
            second = Some(scope.spawn(move || {
                let aside = AsideFile::create(path, 4096).expect("create");
                theirs.store(true, Ordering::SeqCst);
                aside.replace(judged)
            }));
            super::eventually("the second is there", || started.load(Ordering::SeqCst));
            std::thread::sleep(std::time::Duration::from_millis(50));
        });
        let Ok(ReplaceOutcome::Replaced(first)) = first else { panic!("{first:?}") };
        let second = second.expect("started").join().expect("join");
        assert!(matches!(second, Ok(ReplaceOutcome::Changed)), "{second:?}");
        assert!(first.path_still_names_this());
    });
    assert_eq!(names(folder.path()), ["region"]);
}

#[test]
fn a_stranger_who_renames_in_between_loses_nothing() {
    // The stranger keeps no turns: it puts files of its own in place by rename, as fast as it can.
    let folder = shm_folder();
    let path = folder.path().join("region");
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let theirs = folder.path().join("theirs");
            while !stop.load(Ordering::Relaxed) {
                fs::write(&theirs, "stranger").expect("write");
                fs::rename(&theirs, &path).expect("rename");
            }
        });
        for _round in 0..300 {
            let Ok(current) = fs::metadata(&path) else { continue };
            let aside = AsideFile::create(&path, 4096).expect("create");
            let own = aside.backing().dev_ino();
            let outcome = aside.replace((current.dev(), current.ino()));
            if matches!(outcome, Ok(ReplaceOutcome::Changed)) {
                let now = fs::metadata(&path).expect("the path is never empty");
                assert_ne!((now.dev(), now.ino()), own);
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    for name in names(folder.path()).iter().filter(|name| name.starts_with('.')) {
        let kept = fs::read(folder.path().join(name)).expect("read");
        assert_eq!(kept, b"stranger", "only a stranger's file may be left over, unharmed");
    }
}

#[test]
fn bad_requests_have_names() {
    let folder = shm_folder();
    let create = |path: &Path, size| AsideFile::create(path, size).expect_err("refused");
    let path = folder.path().join("region");
    assert!(matches!(create(&path, 0), BackingError::ZeroLength { .. }));
    assert!(matches!(create(folder.path(), 4096), BackingError::IsDirectory { .. }));
    assert!(matches!(create(Path::new("/"), 4096), BackingError::IsDirectory { .. }));
    assert!(matches!(create(&folder.path().join("no/region"), 4096), BackingError::NotFound { .. }));
    assert!(matches!(create(&path, u64::MAX), BackingError::NoSpace { .. }));
    assert!(matches!(create(&path, 1 << 50), BackingError::NoSpace { .. }));
    symlink("loop", folder.path().join("loop")).expect("symlink");
    assert!(matches!(create(&folder.path().join("loop"), 4096), BackingError::Io { .. }));
    // A link to a file yet to be made leads there.
    symlink("target", folder.path().join("link")).expect("symlink");
    let aside = AsideFile::create(&folder.path().join("link"), 4096).expect("create");
    assert!(linked(aside.link().expect("link")).path_still_names_this());
    assert_eq!(names(folder.path()), ["link", "loop", "target"]);
    if let Some(mount) = mounted("hugetlbfs", "pagesize=2M") {
        let path = mount.path().join("region");
        assert!(matches!(create(&path, 4096), BackingError::Misaligned { multiple: 0x20_0000, .. }));
        // The pool is empty in most test machines; a full one would be no error.
        if let Err(error) = AsideFile::create(&path, 1 << 40) {
            assert!(matches!(error, BackingError::NoSpace { limit: "free huge pages", .. }), "{error}");
        }
    }
}

#[test]
fn a_file_size_limit_is_an_error_and_no_signal() {
    let folder = shm_folder();
    let path = folder.path().join("region");
    let status = child(&format!("{HERE}::child_limited"), &path).status().expect("start");
    assert!(status.success(), "{status}");
}

#[test]
fn child_limited() {
    let Some(path) = part() else { return };
    let limit = libc::rlimit { rlim_cur: 1 << 20, rlim_max: 1 << 20 };
    // SAFETY: the pointer is to a local that outlives the call.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &limit) }, 0);
    let error = AsideFile::create(&path, 8 << 20).expect_err("over the limit");
    assert!(matches!(error, BackingError::FileSizeLimit { limit_bytes: 0x10_0000, .. }), "{error}");
    AsideFile::create(&path, 1 << 20).expect("at the limit");
}

#[test]
fn the_strictest_cgroup_counts() {
    let root = tempfile::tempdir().expect("tempdir");
    let write = |name: &str, text: &str| fs::write(root.path().join(name), text).expect("write");
    fs::create_dir_all(root.path().join("pod/engine")).expect("mkdir");
    write("self", "1:name=systemd:/x\n0::/pod/engine\n");
    let room = || cgroup_room_bytes(&root.path().join("self"), root.path());
    assert_eq!(room(), None);
    write("pod/engine/memory.max", "max\n");
    assert_eq!(room(), None);
    write("pod/memory.max", "1000\n");
    write("pod/memory.current", "900\n");
    assert_eq!(room(), Some(100));
    write("pod/memory.stat", "anon 300\ninactive_file 200\nactive_file 50\n");
    assert_eq!(room(), Some(350));
    write("pod/engine/memory.max", "40\n");
    assert_eq!(room(), Some(40));
    write("self", "0::/gone/../..\n");
    let _ = room();
    let shm = fs::File::open("/dev/shm").expect("open");
    assert!(room_at(&shm, BackingKind::Tmpfs).available_bytes < u64::MAX);
    assert_eq!(room_at(&shm, BackingKind::DeviceDax).available_bytes, u64::MAX);
}
