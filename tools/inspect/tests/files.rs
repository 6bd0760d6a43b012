//! Things that are no region, regions that were cut, and regions of other versions: each is refused by name, quickly, and
//! nothing is changed by looking.

mod common;

use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::Path;
use std::process::Command;

use common::{Scratch, inspect, run_with};
use maru::{Role, Wish};
use maru_layout::geometry::Geometry;
use maru_layout::superblock::Superblock;

fn refused(path: &Path, wanted: &str) {
    for verb in ["stat", "verify", "sessions", "leases", "namespaces", "dump"] {
        let said = inspect(&[verb.as_ref(), path.as_os_str()]);
        assert_eq!(said.code, 2, "{verb} {}: {}", path.display(), said.text);
        assert!(said.text.contains(wanted), "{verb} {}: wanted {wanted:?}: {}", path.display(), said.text);
        let said = inspect(&[verb.as_ref(), path.as_os_str(), "--json".as_ref()]);
        let summary = said.summary();
        assert_eq!((said.code, summary["verdict"].as_str()), (2, Some("unreadable")), "{verb} {}", path.display());
        assert!(summary["reason"].as_str().is_some_and(|reason| reason.contains(wanted)), "{summary}");
    }
}

#[test]
fn what_is_no_region_is_refused_by_name() {
    let scratch = Scratch::new();
    refused(&scratch.file("empty", b""), "need 4096 bytes, have 0");
    refused(&scratch.file("short text", b"hello\n"), "need 4096 bytes, have 6");
    refused(&scratch.file("text", "a line of text\n".repeat(1000).as_bytes()), "not a Maru region: magic is");
    refused(&scratch.file("zeros", &[0; 1 << 16]), "not formatted");
    refused(scratch.directory(), "is a directory");
    refused(Path::new("/dev/zero"), "character device of unknown size");
    refused(Path::new("/dev/null"), "character device of unknown size");
    refused(&scratch.path("missing"), "no such file");
    let fifo = scratch.path("fifo");
    assert!(Command::new("mkfifo").arg(&fifo).status().expect("mkfifo").success());
    assert!(std::fs::metadata(&fifo).expect("there").file_type().is_fifo());
    refused(&fifo, "FIFO");
    let socket = scratch.path("socket");
    let _listener = std::os::unix::net::UnixListener::bind(&socket).expect("bound");
    refused(&socket, "socket");
    let link = scratch.path("loop");
    std::os::unix::fs::symlink(&link, &link).expect("linked");
    refused(&link, "loop");
    let none = run_with(&["stat", "--json"], &[]);
    assert_eq!(none.code, 2);
    assert!(none.summary()["reason"].as_str().is_some_and(|reason| reason.contains("CXL_DAX_DEVICE")));
}

#[test]
fn what_may_not_be_read_is_refused() {
    let scratch = Scratch::new();
    let path = scratch.file("secret", &scratch.stored(1 << 20, 4096, 3));
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o000)).expect("changed");
    if std::fs::File::open(&path).is_ok() {
        eprintln!("SKIPPED: this user may read everything (root), so nothing can be unreadable");
        return;
    }
    refused(&path, "permission denied");
}

/// B01: cuts at every kind of place, and a file that has grown.
#[test]
fn a_cut_region_says_how_much_is_missing() {
    let scratch = Scratch::new();
    let sound = scratch.stored(8 << 20, 65536, 4);
    let length = sound.len() as u64;
    let geometry = Geometry::of(&Superblock::read(&sound).expect("a page"), length, false).expect("sound");
    for cut in [0, 1, 63, 4095] {
        let path = scratch.file("cut", &sound[..cut]);
        refused(&path, &format!("region shorter than its header says (need 4096 bytes, have {cut})"));
    }
    for cut in [4096, 8192, geometry.header_bytes, length / 2, length - 1] {
        let path = scratch.file("cut", &sound[..cut as usize]);
        let wanted = format!("region shorter than its header says (need {length} bytes, have {cut})");
        for verb in ["stat", "verify", "sessions", "leases", "namespaces", "dump"] {
            let said = inspect(&[verb.as_ref(), path.as_os_str()]);
            assert_eq!(said.code, 1, "{verb} at {cut}: {}", said.text);
            assert!(said.text.contains(&wanted), "{verb} at {cut}: {}", said.text);
            let said = inspect(&[verb.as_ref(), path.as_os_str(), "--json".as_ref()]);
            assert_eq!(said.summary()["verdict"], "damaged", "{verb} at {cut}");
            assert!(said.codes().contains(&"too_short".to_owned()), "{verb} at {cut}");
        }
        let said = inspect(&["verify".as_ref(), path.as_os_str(), "--payload".as_ref(), "--json".as_ref()]);
        // What lies before the cut is still shown.
        let ready = said.summary()["slots"]["ready"].as_u64();
        assert_eq!(ready, Some(if cut >= geometry.header_bytes { 4 } else { 0 }), "at {cut}");
        assert_eq!(said.codes().iter().filter(|code| *code == "cut").count().min(1), 1, "at {cut}: {:?}", said.codes());
    }
    let mut grown = sound;
    grown.resize(12 << 20, 0);
    let said = inspect(&["verify".as_ref(), scratch.file("grown", &grown).as_os_str(), "--json".as_ref()]);
    assert_eq!((said.code, said.codes()), (0, vec!["grown".to_owned()]));
}

/// B02: another version is told as a version, a changed field as that field, with the value found and the range known.
#[test]
fn other_versions_and_changed_fields_are_told_by_name() {
    let scratch = Scratch::new();
    let sound = scratch.stored(4 << 20, 65536, 4);
    let change = |at: usize, bytes: &[u8], sealed: bool| {
        let mut changed = sound.clone();
        changed[at..at + bytes.len()].copy_from_slice(bytes);
        if sealed {
            let checksum = Superblock::read(&changed).expect("a page").computed_checksum();
            changed[4088..4096].copy_from_slice(&checksum.to_le_bytes());
        }
        changed
    };
    for sealed in [true, false] {
        for version in [0u32, 2] {
            let path = scratch.file("version", &change(8, &version.to_le_bytes(), sealed));
            refused(&path, &format!("format_version is {version}, this build reads 1 to 1"));
            let summary = inspect(&["verify".as_ref(), path.as_os_str(), "--json".as_ref()]).summary();
            assert_eq!(summary["format_version"], version);
        }
        refused(
            &scratch.file("feature", &change(16, &(1u64 | 1 << 40).to_le_bytes(), sealed)),
            "features_read has unknown bits 0x10000000000 (found 0x10000000001, this build knows 0x1)",
        );
        let mut magic = maru_layout::MAGIC;
        magic.reverse();
        refused(&scratch.file("magic", &change(0, &magic, sealed)), "not a Maru region: magic is [1a, 0a");
    }
    // All integers of the head swapped, magic intact.
    let mut swapped = sound.clone();
    for at in [8, 12, 68, 72, 76, 96, 100, 104, 108, 112, 116] {
        swapped[at..at + 4].reverse();
    }
    for at in [16, 24, 32, 56, 80, 88] {
        swapped[at..at + 8].reverse();
    }
    refused(&scratch.file("swapped", &swapped), "written on a big-endian host");
    // A writer's feature does not keep a reader out.
    let said = inspect(&[
        "stat".as_ref(),
        scratch.file("write", &change(24, &(3u64 | 1 << 40).to_le_bytes(), true)).as_os_str(),
        "--json".as_ref(),
    ]);
    assert_eq!(said.of_kind("region")[0]["features"]["write"], 3u64 | 1 << 40);
    for (align, wanted) in
        [(16384u32, "header_bytes"), (2 << 20, "header_bytes"), (3, "align_bytes is 3, wanted a power of two")]
    {
        let path = scratch.file("align", &change(76, &align.to_le_bytes(), true));
        let said = inspect(&["verify".as_ref(), path.as_os_str()]);
        assert_eq!(said.code, 1, "{align}");
        assert!(said.text.contains(wanted) && said.text.contains(&format!("align_bytes is {align}")), "{}", said.text);
    }
    let said = inspect(&["verify".as_ref(), scratch.file("sum", &change(4088, &[1], false)).as_os_str()]);
    assert_eq!(said.code, 1);
    assert!(said.text.contains("superblock checksum is 0x"), "{}", said.text);
    // Truly made with larger alignments: sound, whatever the page of this host.
    for align in [64 << 10, 2 << 20] {
        let wish = Wish { align_bytes: Some(align), ..Wish::of_slots(8 << 20, 65536) };
        let name = format!("aligned {align}");
        let region = scratch.region(&name, wish);
        drop(region.session("a", Role::Worker).expect("attach"));
        let said = inspect(&["verify".as_ref(), scratch.path(&name).as_os_str(), "--json".as_ref()]);
        assert_eq!((said.code, said.codes()), (0, vec![]), "{align}");
        assert_eq!(said.of_kind("region")[0]["align_bytes"], align);
    }
}

/// A partition behind something else, by offset and length.
#[test]
fn a_partition_is_looked_at_by_its_offset() {
    let scratch = Scratch::new();
    let sound = scratch.stored(1 << 20, 4096, 5);
    let mut whole = vec![0xEE; 1 << 20];
    whole.extend_from_slice(&sound);
    whole.extend_from_slice(&[0xEE; 1 << 16]);
    let path = scratch.file("parts", &whole);
    let path = path.as_os_str();
    let said = inspect(&[
        "verify".as_ref(),
        path,
        "--offset".as_ref(),
        "1MiB".as_ref(),
        "--length".as_ref(),
        "1m".as_ref(),
        "--json".as_ref(),
    ]);
    assert_eq!((said.code, said.codes()), (0, vec![]));
    assert_eq!(said.of_kind("region")[0]["offset_bytes"], 1 << 20);
    assert_eq!(inspect(&["stat".as_ref(), path]).code, 2);
    assert_eq!(inspect(&["stat".as_ref(), path, "--offset".as_ref(), "1G".as_ref()]).code, 2);
    let said = run_with(&["stat", "--offset", "1048576"], &[("CXL_DAX_DEVICE", Path::new(path))]);
    assert_eq!(said.code, 0, "{}", said.text);
}

#[test]
fn looking_changes_nothing() {
    let scratch = Scratch::new();
    let sound = scratch.stored(1 << 20, 4096, 50);
    let path = scratch.file("kept", &sound);
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o444)).expect("changed");
    let before = std::fs::metadata(&path).expect("there").modified().expect("a time");
    for verb in [&["stat"][..], &["verify", "--payload"], &["sessions"], &["leases"], &["namespaces"], &["dump"]] {
        let mut arguments = verb.to_vec();
        arguments.push(path.to_str().expect("UTF-8"));
        assert_eq!(inspect(&arguments).code, 0, "{verb:?}");
    }
    assert!(std::fs::read(&path).expect("read") == sound);
    assert_eq!(std::fs::metadata(&path).expect("there").modified().expect("a time"), before);
}

/// Memory stays bounded where the region is large: 1 GiB of 4 KiB slots under 256 MiB of address space.
#[test]
fn a_large_region_fits_a_small_memory() {
    let scratch = Scratch::new();
    let path = scratch.path("large");
    let superblock = maru_layout::geometry::FormatSpec::new(4 << 30, 1024).plan(&Default::default()).expect("planned");
    let file = std::fs::File::create(&path).expect("created");
    // Sparse: the tool reads tables, which are zero, and never the payload.
    file.set_len(superblock.length_bytes).expect("sparse");
    let page = maru_layout::PAGE_BYTES;
    use std::os::unix::fs::FileExt;
    // The whole page as bytes, without a dependency on its type: through the fields that a reader judges.
    let bytes = superblock_bytes(&superblock);
    file.write_all_at(&bytes, superblock.length_bytes - page).expect("written");
    file.write_all_at(&bytes, 0).expect("written");
    let ready = maru_layout::word::FormatWord::ready(&superblock.region_id).0;
    file.write_all_at(&ready.to_le_bytes(), page).expect("written");
    drop(file);
    for verb in ["stat", "verify", "sessions", "leases", "namespaces"] {
        let said = inspect(&[verb.as_ref(), path.as_os_str(), "--json".as_ref()]);
        assert_eq!(said.code, 0, "{verb}: {}", said.text);
        assert!(said.summary()["capacity_slots"].as_u64().is_some_and(|slots| slots > 3_000_000), "{verb}");
    }
}

fn superblock_bytes(superblock: &Superblock) -> Vec<u8> {
    bytemuck::bytes_of(superblock).to_vec()
}
