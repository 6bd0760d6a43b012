//! What is accepted, what is refused, and by which name.

use std::ffi::OsString;
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::stat::Mode;

use super::{mounted, shm_folder};
use crate::os::backing::{ENV_DEVICE, ENV_SIZE, Surroundings, parse_size};
use crate::os::{Backing, BackingError, BackingFile, BackingKind, Partition, page_bytes};

fn open(path: impl Into<PathBuf>) -> Result<BackingFile, BackingError> {
    BackingFile::open(&Backing::Path(path.into()), true)
}

#[test]
fn what_holds_no_region_is_refused_at_once() {
    let folder = tempfile::tempdir().expect("tempdir");
    let at = |name: &str| folder.path().join(name);
    nix::unistd::mkfifo(&at("fifo"), Mode::S_IRWXU).expect("mkfifo");
    let _listener = UnixListener::bind(at("socket")).expect("bind");
    symlink("nowhere", at("dangling")).expect("symlink");

    let found = |path: &Path| match open(path).expect_err("refused") {
        BackingError::WrongFileType { found, .. } => found,
        other => panic!("{}: {other}", path.display()),
    };
    assert_eq!(found(&at("fifo")), "FIFO");
    assert_eq!(found(&at("socket")), "socket");
    for device in ["/dev/zero", "/dev/null", "/dev/full"] {
        assert!(found(Path::new(device)).contains("unknown size"), "{device}");
    }
    if Path::new("/dev/loop0").exists() {
        assert_eq!(found(Path::new("/dev/loop0")), "block device");
    }
    assert!(matches!(open(folder.path()), Err(BackingError::IsDirectory { .. })));
    assert!(matches!(open("/dev/shm"), Err(BackingError::IsDirectory { .. })));
    assert!(matches!(open(at("absent")), Err(BackingError::NotFound { .. })));
    assert!(matches!(open(at("dangling")), Err(BackingError::NotFound { .. })));
    assert!(matches!(open(at("fifo/below")), Err(BackingError::Io { .. })));
    assert!(open("").is_err());
    assert!(open("a\0b").is_err());
}

#[test]
fn files_are_told_apart() {
    let shm = shm_folder();
    let path = shm.path().join("region");
    fs::write(&path, vec![1; 10_000]).expect("write");
    let file = open(&path).expect("open");
    assert_eq!(file.kind(), BackingKind::Tmpfs);
    assert_eq!((file.size_bytes(), file.align_bytes()), (10_000, page_bytes()));
    assert_eq!(file.dev_ino(), (fs::metadata(&path).expect("stat").dev(), file.ino()));
    assert!(file.kind().is_file() && !file.kind().needs_msync());
    assert!(!file.kind().shared_between_hosts());

    // A name in the file system does not make a memfd, deleted or not.
    let lookalike = shm.path().join("memfd:x");
    fs::write(&lookalike, "x").expect("write");
    let opened: OwnedFd = fs::File::open(&lookalike).expect("open").into();
    fs::remove_file(&lookalike).expect("remove");
    let kind = BackingFile::open(&Backing::Fd(opened), false).expect("open").kind();
    assert_eq!(kind, BackingKind::Tmpfs);

    let disk = tempfile::NamedTempFile::new_in("/var/tmp").expect("tempfile");
    let kind = open(disk.path()).expect("open").kind();
    if kind == BackingKind::Tmpfs {
        eprintln!("SKIPPED: /var/tmp is a tmpfs here");
    } else {
        assert_eq!(kind, BackingKind::OrdinaryFile);
        assert!(kind.needs_msync() && !kind.shared_between_hosts());
    }
    if let Some(mount) = mounted("hugetlbfs", "pagesize=2M") {
        let path = mount.path().join("region");
        fs::File::create(&path).expect("create");
        let file = open(&path).expect("open");
        assert_eq!(file.kind(), BackingKind::Hugetlbfs { page_bytes: 2 << 20 });
        assert_eq!(file.align_bytes(), 2 << 20);
    }
}

#[test]
fn a_memfd_comes_in_as_a_descriptor_and_is_opened_anew() {
    let memfd = memfd_create(c"region", MFdFlags::MFD_CLOEXEC).expect("memfd");
    nix::unistd::ftruncate(&memfd, 1 << 20).expect("ftruncate");
    let theirs = memfd.try_clone().expect("dup");
    let file = BackingFile::open(&Backing::Fd(memfd), true).expect("open");
    assert_eq!((file.kind(), file.size_bytes()), (BackingKind::Memfd, 1 << 20));
    assert!(file.path().is_none() && file.path_still_names_this());
    nix::unistd::ftruncate(&theirs, 4096).expect("ftruncate");
    assert_eq!(file.size_now().expect("size"), 4096);
    let again = file.reopen(false).expect("reopen");
    assert_eq!(again.metadata().expect("stat").ino(), file.ino());
}

#[test]
fn a_replaced_path_is_noticed() {
    let shm = shm_folder();
    let path = shm.path().join("region");
    fs::write(&path, "one").expect("write");
    let file = open(&path).expect("open");
    assert!(file.path_still_names_this());
    fs::remove_file(&path).expect("remove");
    assert!(!file.path_still_names_this());
    fs::write(&path, "two").expect("write");
    assert!(!file.path_still_names_this());
    assert_eq!(file.size_now().expect("size"), 3);
}

/// `/sys` with one device of the dax subsystem, which has the number of `/dev/null`.
fn fake_sysfs(size: Option<&str>, align: Option<&str>) -> tempfile::TempDir {
    let root = tempfile::tempdir().expect("tempdir");
    let device = root.path().join("dev/char/1:3");
    fs::create_dir_all(&device).expect("mkdir");
    symlink("../../../bus/dax", device.join("subsystem")).expect("symlink");
    for (name, text) in [("size", size), ("align", align)] {
        if let Some(text) = text {
            fs::write(device.join(name), text).expect("write");
        }
    }
    root
}

fn open_null_as_dax(sysfs: &Path) -> Result<BackingFile, BackingError> {
    let around = Surroundings { sysfs_root: sysfs, ..Surroundings::default() };
    BackingFile::open_in(&Backing::Path("/dev/null".into()), true, around)
}

#[test]
fn size_and_alignment_of_a_dax_device_come_from_sysfs() {
    let sysfs = fake_sysfs(Some("137438953472\n"), Some("2097152\n"));
    let device = open_null_as_dax(sysfs.path()).expect("open");
    assert_eq!(device.kind(), BackingKind::DeviceDax);
    assert_eq!((device.size_bytes(), device.align_bytes()), (128 << 30, 2 << 20));
    assert!(device.kind().shared_between_hosts() && !device.kind().is_file());
    assert!(device.path_still_names_this());
    assert_eq!(device.size_now().expect("size"), 128 << 30);
    fs::remove_dir_all(sysfs.path().join("dev")).expect("the device goes away");
    assert!(matches!(device.size_now(), Err(BackingError::UnknownSize { .. })));
}

#[test]
fn a_dax_device_of_unknown_size_is_refused() {
    let good = Some("2097152");
    for (size, align) in [(None, good), (Some("0"), good), (Some("huge"), good), (good, None), (good, Some("3"))] {
        let sysfs = fake_sysfs(size, align);
        let error = open_null_as_dax(sysfs.path()).expect_err("refused");
        assert!(matches!(error, BackingError::UnknownSize { .. }), "{size:?} {align:?}: {error}");
    }
}

#[test]
fn the_environment_hands_over_a_device() {
    let sysfs = fake_sysfs(Some("1073741824"), Some("2097152"));
    let open = |device: Option<&str>, size: Option<&str>| {
        let env = |name: &str| match name {
            ENV_DEVICE => device.map(OsString::from),
            ENV_SIZE => size.map(OsString::from),
            _ => None,
        };
        BackingFile::open_in(&Backing::Env, false, Surroundings { env: &env, sysfs_root: sysfs.path() })
    };
    let null = Some("/dev/null");
    for size in [None, Some(""), Some("1073741824"), Some("1G"), Some("1GiB"), Some("1024 Mi"), Some("1048576k")] {
        assert_eq!(open(null, size).expect("open").size_bytes(), 1 << 30, "{size:?}");
    }
    let missing = open(None, Some("1G")).expect_err("missing");
    assert!(matches!(missing, BackingError::EnvMissing { variable: "CXL_DAX_DEVICE" }), "{missing}");
    assert!(matches!(open(Some(""), None), Err(BackingError::EnvMissing { .. })));
    let disagrees = open(null, Some("2G")).expect_err("disagrees");
    assert!(matches!(disagrees, BackingError::EnvDisagrees { sysfs_bytes: 0x4000_0000, .. }));
    let text = disagrees.to_string();
    assert!(text.contains("CXL_DAX_SIZE") && text.contains("2G") && text.contains("1073741824"), "{text}");
    for bad in ["G", "-1", "1.5G", "1GB", "1P", "99999999999T", "999999999999999999999"] {
        let error = open(null, Some(bad)).expect_err(bad);
        assert!(matches!(error, BackingError::EnvUnreadable { .. }), "{bad}: {error}");
    }
    assert_eq!(parse_size("16777215T"), Ok(16_777_215 << 40));
}

#[test]
fn partitions_keep_inside_and_aligned() {
    let resolve = |offset, length, size| Partition { offset, length }.resolve(size, 4096);
    assert_eq!(Partition::default().resolve(8192, 4096).expect("whole"), 0..8192);
    assert_eq!(resolve(4096, None, 8192).expect("rest"), 4096..8192);
    assert_eq!(resolve(0, Some(4096), 8192).expect("head"), 0..4096);
    assert!(matches!(resolve(1, None, 8192), Err(BackingError::Misaligned { value: 1, .. })));
    assert!(matches!(resolve(0, Some(5), 8192), Err(BackingError::Misaligned { value: 5, .. })));
    assert!(matches!(resolve(0, Some(0), 8192), Err(BackingError::ZeroLength { .. })));
    assert!(matches!(resolve(8192, None, 8192), Err(BackingError::ZeroLength { .. })));
    assert!(matches!(resolve(12_288, None, 8192), Err(BackingError::OutOfBounds { .. })));
    assert!(matches!(resolve(4096, Some(u64::MAX - 4095), 8192), Err(BackingError::OutOfBounds { .. })));
}
