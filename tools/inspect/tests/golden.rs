//! `stat` for people, line by line: a change of the picture is a change of this file.

mod common;

use std::os::unix::fs::FileExt;

use common::{Scratch, inspect};
use maru_layout::PAGE_BYTES;
use maru_layout::geometry::{ClassSpec, FormatSpec, Stamp};
use maru_layout::word::FormatWord;

#[test]
fn stat_of_a_fresh_region() {
    let scratch = Scratch::new();
    let mut spec = FormatSpec::new(4 << 20, 4096);
    spec.classes = vec![ClassSpec { slot_bytes: 4096, slots: Some(200) }, ClassSpec { slot_bytes: 65536, slots: None }];
    spec.config = r#"{"model":"m"}"#.to_owned();
    let stamp = Stamp { region_id: [0xAB; 16], formatted_ns: 1_767_225_599_000_000_000, ..Stamp::default() };
    let superblock = spec.plan(&stamp).expect("planned");
    let path = scratch.path("golden");
    let file = std::fs::File::create(&path).expect("created");
    file.set_len(superblock.length_bytes).expect("sized");
    file.write_all_at(bytemuck::bytes_of(&superblock), 0).expect("written");
    file.write_all_at(bytemuck::bytes_of(&superblock), superblock.length_bytes - PAGE_BYTES).expect("written");
    file.write_all_at(&FormatWord::ready(&superblock.region_id).0.to_le_bytes(), PAGE_BYTES).expect("written");
    let said = inspect(&["stat".as_ref(), path.as_os_str()]);
    assert_eq!(said.code, 0, "{}", said.text);
    let text = said.text.replace(&path.display().to_string(), "PATH");
    let text = text.replace("ordinary file", "tmpfs");
    // Which features a formatter sets is the format's business.
    let text: String =
        text.lines().filter(|line| !line.starts_with("  features ")).flat_map(|line| [line, "\n"]).collect();
    let golden = include_str!("stat.golden");
    if std::env::var_os("MARU_BLESS").is_some() {
        std::fs::write(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/stat.golden"), &text).expect("written");
        return;
    }
    assert_eq!(text, golden, "MARU_BLESS=1 writes it anew\n{text}");
}
