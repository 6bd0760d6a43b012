//! The golden images still are what they were, open, hold their blocks, and are refused by name when a field is changed.

use std::path::{Path, PathBuf};
use std::process::Command;

use maru::{Batch, Mode, ObjectId, OpenError, Probe, Region, Role, Verify};
use maru_fuzz::golden::{Block, Golden, images};
use maru_fuzz::{memory_file, namespace, options_for};
use maru_layout::image::Image;
use maru_layout::superblock::{Superblock, SuperblockError};
use maru_layout::word::SlotState;
use maru_layout::{FORMAT_VERSION, PAGE_BYTES};
use sha2::{Digest, Sha256};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../layout/golden")
}

fn kept(golden: &Golden) -> Vec<u8> {
    std::fs::read(folder().join(golden.name).with_extension("maru")).expect("a golden image is in layout/golden")
}

#[test]
fn the_files_are_what_the_builder_makes_and_what_the_readme_says() {
    assert_eq!(FORMAT_VERSION, 1, "a new format adds images and leaves those of format 1");
    let readme = std::fs::read_to_string(folder().join("README.md")).expect("a README");
    for golden in images() {
        let bytes = kept(golden);
        assert!(bytes == golden.bytes, "{} differs from what builds it", golden.name);
        let digest: String = Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect();
        let line = readme.lines().find(|line| line.contains(&format!("`{}`", golden.name))).expect(golden.name);
        assert!(line.contains(&digest), "{}: sha256 is {digest}", golden.name);
    }
}

#[test]
fn plain_bytes_are_undamaged_and_counted() {
    for golden in images() {
        let bytes = kept(golden);
        let image = Image::read(&bytes).expect(golden.name);
        assert_eq!(image.damage(), [], "{}", golden.name);
        assert_eq!(image.state_counts(), (golden.slots, 0), "{}", golden.name);
        let ready: Vec<_> = image.ready_replicas().collect();
        assert!(ready.iter().all(|replica| image.is_indexed(replica)), "{}", golden.name);
        for block in &golden.ready {
            let replica = ready.iter().find(|replica| replica.key == block.key()).expect("ready");
            assert_eq!(image.payload(replica.slot, replica.length), Some(&block.content()[..]));
        }
    }
}

#[test]
fn the_second_reader_says_what_is_kept_beside_each_image() {
    let reader = folder().join("../reader/maru_reader.py");
    for golden in images() {
        let image = folder().join(golden.name).with_extension("maru");
        let kept = std::fs::read_to_string(image.with_extension("json")).expect("a json line beside the image");
        let mut kept: serde_json::Value = serde_json::from_str(&kept).expect("json");
        let output = match Command::new("python3").arg(&reader).arg(&image).output() {
            Ok(output) => output,
            Err(error) if std::env::var_os("MARU_NEED_PYTHON").is_none() => {
                eprintln!("SKIPPED: no python3 ({error})");
                return;
            }
            Err(error) => panic!("python3: {error}"),
        };
        let mut said: serde_json::Value = serde_json::from_slice(&output.stdout).expect("json");
        for value in [&mut kept, &mut said] {
            value.as_object_mut().expect("an object").remove("file");
        }
        assert_eq!(said, kept, "{}", golden.name);
    }
}

fn objects(golden: &Golden, region: &Region) -> Vec<(ObjectId, Block)> {
    let reader = region.reader();
    for (tenant, generation) in &golden.namespaces {
        let id = reader.namespace(&namespace(tenant)).expect("complete").expect("registered");
        assert_eq!(id.generation(), *generation);
    }
    let object = |block: &Block| {
        let id = reader.namespace(&namespace(block.tenant)).expect("complete").expect("registered");
        let object = ObjectId { shard: block.shard, part: block.part, ..ObjectId::new(id, block.prefix()) };
        (id.generation() == block.generation).then_some((object, *block))
    };
    golden.ready.iter().filter_map(object).collect()
}

#[test]
fn readers_and_sessions_find_every_block() {
    for golden in images() {
        let file = memory_file(&kept(golden));
        let region = Region::open(options_for(&file).mode(Mode::ReadOnly)).expect(golden.name);
        assert_eq!(region.usage().slots, golden.slots);
        let objects = objects(golden, &region);
        for (object, block) in &objects {
            assert_eq!(region.reader().read(object), Ok(block.content()), "{}: {block:?}", golden.name);
        }
        drop(region);

        let region = Region::open(options_for(&file)).expect(golden.name);
        let session = region.session("golden", Role::Worker).expect(golden.name);
        for (object, block) in &objects {
            assert_eq!(session.probe(object), Ok(Probe::Hit { len: block.len }));
            let leases = session.acquire(&[*object], Batch::Each).expect("a session in order");
            assert_eq!(leases[0].as_ref().expect("ready").read(Verify::Always), Ok(block.content()));
        }
        session.reclaim().expect("a session in order");
        let slots = region.usage().slots;
        // Blocks of ended generations are nobody's, and go when somebody looks for space.
        assert_eq!(slots[SlotState::Ready as usize] as usize, objects.len(), "{}", golden.name);
        session.close().expect("nothing held");
        if golden.name == "v1-states" {
            // All its sessions are dead: what they claimed is free, what drained is free, and quarantined is what a
            // device may still write (slot 5), what nobody vouches for (9) and what is used up (10).
            assert_eq!(slots, [14, 0, 0, 0, 3, 0, 3], "{slots:?}");
        }
    }
}

/// Each scalar field of the header, with the name that its refusal must contain.
#[test]
fn every_changed_header_field_is_refused_by_name() {
    for golden in images() {
        let bytes = kept(golden);
        let superblock = Superblock::read(&bytes).expect("a page");
        for (index, (name, _)) in superblock.scalar_fields().into_iter().enumerate() {
            let (offset, width) = FIELDS[index];
            assert_eq!(
                read_field(&bytes, offset, width),
                superblock.scalar_fields()[index].1,
                "{name} lies at {offset}"
            );
            let mut damaged = bytes.clone();
            // The highest bit: out of every bound.
            damaged[offset + width - 1] ^= 0x80;
            let error = refusal(&damaged);
            assert!(named(&error, name), "{}: {name} gives {error}", golden.name);
            // The lowest bit, which may be within the bounds: then the checksum tells, and the copy says which field.
            let mut damaged = bytes.clone();
            damaged[offset] ^= 1;
            let error = refusal(&damaged);
            assert!(named(&error, name), "{}: {name} gives {error}", golden.name);
        }
        // And every single byte is noticed.
        for at in 0..PAGE_BYTES as usize {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0x10;
            assert!(Image::read(&damaged).is_err(), "{}: byte {at}", golden.name);
        }
    }
}

/// Offset and width of the fields of `Superblock::scalar_fields`, as FORMAT.md says.
const FIELDS: [(usize, usize); 31] = [
    (8, 4),
    (12, 4),
    (16, 8),
    (24, 8),
    (32, 8),
    (56, 8),
    (64, 1),
    (65, 1),
    (68, 4),
    (72, 4),
    (76, 4),
    (80, 8),
    (88, 8),
    (96, 4),
    (100, 4),
    (104, 4),
    (108, 4),
    (112, 4),
    (116, 4),
    (120, 4),
    (124, 4),
    (128, 4),
    (132, 4),
    (136, 4),
    (140, 4),
    (144, 4),
    (148, 4),
    (152, 4),
    (156, 4),
    (160, 8),
    (168, 8),
];

fn read_field(bytes: &[u8], offset: usize, width: usize) -> u64 {
    let mut word = [0; 8];
    word[..width].copy_from_slice(&bytes[offset..offset + width]);
    u64::from_le_bytes(word)
}

/// What opening for writing says; reading says the same but for feature bits that only writers need.
fn refusal(bytes: &[u8]) -> String {
    match Region::open(options_for(&memory_file(bytes))) {
        Err(OpenError::Superblock { source, .. }) => {
            assert!(Image::read(bytes).is_err() || matches!(source, SuperblockError::Feature { .. }));
            source.to_string()
        }
        Err(other) => panic!("refused for another reason: {other}"),
        Ok(_) => panic!("a changed header was believed"),
    }
}

/// Whether an error names a field, itself or by what follows from it.
fn named(error: &str, field: &str) -> bool {
    // Lengths and counts are tied to each other; the first one that cannot be with the others is named.
    let follows: &[&str] = match field {
        "length_bytes" => &["region shorter than its header says", "align_bytes"],
        "header_bytes" => &["sections[payload]", "classes[0]"],
        "slot_count" => &["sections[bitmap]", "sections[records]"],
        "bucket_count" => &["sections[buckets]", "shards"],
        "session_count" => &["sections[sessions]"],
        "session_area_bytes" => &["sections[session_areas]"],
        "namespace_count" => &["sections[namespaces]"],
        "token_count" => &["sections[tokens]"],
        "task_count" => &["sections[tasks]"],
        "advert_count" => &["sections[adverts]"],
        "access_lanes" => &["sections[access_bytes]"],
        "class_count" => &["classes["],
        "section_count" => &["sections[15]", "sections[14]"],
        "config_bytes" => &["config padding", "config"],
        _ => &[],
    };
    error.contains(field) || follows.iter().any(|name| error.contains(name))
}
