//! Parsing of `/proc`, and identities that are what they say.

use std::fs;

use crate::os::identity::{
    HostIdentity, ProcessIdentity, monotonic_ns, parse_hex_id, random_bytes, start_time_of, wall_ns,
};

#[test]
fn start_time_is_counted_behind_the_last_parenthesis() {
    let tail = "S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4242 20 21";
    for name in ["sh", "a b", "evil) S 9 9 9", ")", "(((", "line\nfeed"] {
        let line = format!("77 ({name}) {tail}\n");
        assert_eq!(start_time_of(line.as_bytes()), Some(4242), "{name:?}");
    }
    for broken in ["", "77 sh S 1", "77 (sh)", "77 (sh) S 1 2", "77 (sh"] {
        assert_eq!(start_time_of(broken.as_bytes()), None, "{broken:?}");
    }
}

#[test]
fn own_identity_is_stable_and_complete() {
    let first = ProcessIdentity::current().expect("identity");
    assert_eq!(first, ProcessIdentity::current().expect("identity"));
    assert_eq!(first.pid, std::process::id());
    assert!(first.start_time_ticks > 0 && first.pid_ns > 0);
    assert_ne!(first.host.host_id, [0; 16]);
    assert!(first.host.same_boot(&HostIdentity::current().expect("host")));
}

#[test]
fn host_without_machine_id_gets_one_from_its_boot() {
    let folder = tempfile::tempdir().expect("tempdir");
    let (machine, boot) = (folder.path().join("machine-id"), folder.path().join("boot_id"));
    fs::write(&boot, "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0\n").expect("write");
    let absent = HostIdentity::read(&machine, &boot).expect("identity");
    fs::write(&machine, "uninitialized\n").expect("write");
    let unset = HostIdentity::read(&machine, &boot).expect("identity");
    assert_eq!(absent, unset);
    assert_ne!(absent.host_id, absent.boot_id);
    fs::write(&machine, "00112233445566778899aabbccddeeff\n").expect("write");
    let named = HostIdentity::read(&machine, &boot).expect("identity");
    assert_eq!(named.host_id[..3], [0x00, 0x11, 0x22]);
    fs::write(&boot, "no uuid").expect("write");
    let error = HostIdentity::read(&machine, &boot).expect_err("no boot id");
    assert!(error.to_string().contains("no uuid"), "{error}");
}

#[test]
fn ids_are_32_digits() {
    assert!(parse_hex_id("00000000000000000000000000000000").is_none());
    assert!(parse_hex_id("0123456789abcdef0123456789abcdef0").is_none());
    assert!(parse_hex_id("0123456789abcdef0123456789abcde").is_none());
    assert!(parse_hex_id("ä123456789abcdef0123456789abcdef").is_none());
    assert!(parse_hex_id(" 0123456789ABCDEF0123456789abcdef\n").is_some());
}

#[test]
fn random_bytes_differ_and_clocks_run() {
    assert_ne!(random_bytes::<32>(), random_bytes::<32>());
    assert!(random_bytes::<0>().is_empty());
    let before = monotonic_ns();
    assert!(monotonic_ns() >= before && before > 0);
    assert!(wall_ns() > 1_600_000_000_000_000_000);
}
