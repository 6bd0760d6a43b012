//! Packed words, handles, keys, checksums and names: what is packed comes back, different names stay different.

use arbitrary::{Arbitrary, Unstructured};
use bytemuck::Zeroable;
use maru::{LeaseHandle, Namespace, NamespaceError, Token};
use maru_layout::object::{ObjectKey, PayloadCrc, other_bucket, record_is_sealed, seal};
use maru_layout::record::{BodyLine, IdentityLine};
use maru_layout::word::{
    ChoreWord, FormatState, FormatWord, IndexEntry, LeaseCell, LeaseKind, MAX_GENERATION, Owner, SessionState,
    SessionWord, SlotState, SlotWord, short_generation,
};

/// One round.
#[derive(Debug, Arbitrary)]
struct Round {
    bits: u64,
    other_bits: u64,
    number: u32,
    small: u16,
    flag: bool,
    prefix: [u8; 32],
    digest: [u8; 16],
    flip: u16,
}

/// Runs one input.
///
/// # Panics
/// When a promise is broken.
pub fn run(input: &[u8]) {
    let mut source = Unstructured::new(input);
    if let Ok(round) = Round::arbitrary(&mut source) {
        words(&round);
        plain_handles(&round);
        places(&round);
        seals(&round);
    }
    names(&mut source);
}

fn words(round: &Round) {
    let bits = round.bits;
    let slot = SlotWord(bits);
    let _ = format!("{slot:?}");
    if let Some(state) = slot.state() {
        let again = SlotWord::new(state, slot.owner(), slot.generation()).with_device_writer(slot.device_writer());
        assert_eq!(again.0, bits, "every bit of a sound slot word has a name");
        assert_eq!(slot.to(state, slot.owner()), slot);
    }
    let freed = slot.freed();
    assert!(freed.is(SlotState::Free) || freed.is(SlotState::Quarantined) && freed.generation() == MAX_GENERATION);
    assert!(freed.generation() > slot.generation() || slot.generation() == MAX_GENERATION);
    if let Some(claimed) = slot.claimed_by(Owner(round.small % 4096), round.flag) {
        assert!(
            slot.is(SlotState::Free) && claimed.is(SlotState::Claiming) && short_generation(claimed.generation()) != 0
        );
        assert_eq!((claimed.owner(), claimed.device_writer()), (Owner(round.small % 4096), round.flag));
        assert!(claimed.generation() >= slot.generation());
    }

    let session = SessionWord(bits);
    let _ = format!("{session:?}");
    if let Some(state) = session.state() {
        assert_eq!(SessionWord::new(state, session.host_tag(), session.epoch()), session);
        let free = session.to(SessionState::Free);
        assert_eq!((free.host_tag(), free.epoch()), (0, session.epoch()));
    }

    let format = FormatWord(bits);
    let _ = format!("{format:?}");
    if let Some(state) = format.state() {
        assert_eq!(FormatWord::new(state, format.claim()), format);
    }
    let claim = FormatWord::formatting(round.number, round.other_bits as u32);
    assert_eq!(claim.state(), Some(FormatState::Formatting));
    assert!(claim.claimed_by_host(round.number) && !claim.claimed_by_host(round.number ^ 1));
    assert_eq!(FormatWord::ready(&round.digest).state(), Some(FormatState::Ready));

    let lease = LeaseCell(bits);
    let _ = format!("{lease:?}");
    if let Some(kind) = lease.kind() {
        assert_eq!(LeaseCell::new(kind, lease.sequence(), lease.slot(), lease.short_generation()), lease);
        assert!(lease.protects(lease.slot(), lease.short_generation()));
        assert!(!lease.protects(lease.slot() ^ 1, lease.short_generation()));
    }
    assert_ne!(LeaseCell::new(LeaseKind::Copy, 0, 0, 0), LeaseCell::EMPTY);

    let entry = IndexEntry(bits);
    let _ = format!("{entry:?}");
    let first = IndexEntry::new(entry.slot(), entry.short_generation(), entry.tag());
    assert_eq!(if entry.is_second() { first.in_second() } else { first }, entry);
    assert!(first.same_replica(first.in_second()));

    let chore = ChoreWord::held(Owner(round.small % 4096), round.number);
    assert_eq!((chore.owner(), chore.epoch()), (Owner(round.small % 4096), round.number));
    assert_eq!(chore == ChoreWord::FREE, chore.owner() == Owner::NOBODY && round.number == 0);
}

fn plain_handles(round: &Round) {
    let mut bytes = [0; LeaseHandle::BYTES];
    bytes.copy_from_slice(&round.prefix);
    assert_eq!(LeaseHandle::from_bytes(&bytes).to_bytes(), bytes);

    let mut bytes = [0; Token::BYTES];
    bytes[..16].copy_from_slice(&round.digest);
    bytes[16..20].copy_from_slice(&round.number.to_le_bytes());
    bytes[20..].copy_from_slice(&round.bits.to_le_bytes());
    let token = Token::from_bytes(&bytes);
    assert_eq!(Token::from_bytes(&token.to_bytes()), token);
    assert!(round.bits > MAX_GENERATION || token.to_bytes() == bytes);
}

fn key(round: &Round) -> ObjectKey {
    ObjectKey { namespace: round.digest, prefix: round.prefix, shard: round.small, part: round.flip }
}

fn places(round: &Round) {
    let key = key(round);
    for buckets in [1, 2, 3, u32::from(round.flip) + 1, (round.number >> 4).max(1), (1 << 28) - 1] {
        let place = key.place(round.bits, buckets);
        assert!(place.first < buckets && place.second < buckets && place.tag < 512);
        assert_eq!(other_bucket(place.second, place.tag, round.bits, buckets), place.first);
        let any = round.other_bits as u32 % buckets;
        let there = other_bucket(any, round.small % 512, round.bits, buckets);
        assert!(there < buckets);
        assert_eq!(other_bucket(there, round.small % 512, round.bits, buckets), any);
    }
}

fn seals(round: &Round) {
    let key = key(round);
    let identity = IdentityLine {
        word: round.bits,
        prefix: key.prefix,
        namespace: key.namespace,
        shard: key.shard,
        part: key.part,
        length: round.number,
    };
    assert_eq!(ObjectKey::of_record(&identity), key);
    let (left, right) = round.prefix.split_at(usize::from(round.small) % 33);
    let crc = |pieces: &[&[u8]], generation, length| {
        let mut crc = PayloadCrc::new(&key, generation, length);
        pieces.iter().for_each(|piece| crc.update(piece));
        crc.finish()
    };
    let payload_crc = crc(&[left, right], round.other_bits, round.number);
    assert_eq!(payload_crc, crc(&[&round.prefix], round.other_bits, round.number), "pieces make the same checksum");
    assert_ne!(payload_crc, crc(&[&round.prefix], round.other_bits, round.number ^ 1 << (round.flip % 32)));
    assert_ne!(payload_crc, crc(&[&round.prefix], round.other_bits ^ 1 << (round.flip % 64), round.number));

    let mut body = BodyLine { generation: round.other_bits, depth: round.number, ..BodyLine::zeroed() };
    body.checksum = seal(&identity, &body, payload_crc);
    assert!(record_is_sealed(&identity, &body) && body.checksum as u32 == payload_crc);
    // One changed bit outside the slot word is always seen.
    let bit = usize::from(round.flip) % (120 * 8) + 64;
    let mut bytes = [0; 128];
    bytes[..64].copy_from_slice(bytemuck::bytes_of(&identity));
    bytes[64..].copy_from_slice(bytemuck::bytes_of(&body));
    bytes[bit / 8] ^= 1 << (bit % 8);
    assert!(!record_is_sealed(
        &bytemuck::pod_read_unaligned(&bytes[..64]),
        &bytemuck::pod_read_unaligned(&bytes[64..])
    ));
}

const FIELDS: [&str; 12] = [
    "tenant",
    "model",
    "revision",
    "adapter",
    "dtype",
    "quantization",
    "geometry",
    "storage_format",
    "block_tokens",
    "parallel",
    "hash_algorithm",
    "hash_seed",
];

/// A namespace of twelve values; the values are read back from its text, so two lists never share one.
fn names(source: &mut Unstructured<'_>) {
    let mut values: Vec<String> = Vec::new();
    for field in FIELDS {
        let value = match field {
            "block_tokens" => source.arbitrary::<u32>().unwrap_or(1).to_string(),
            _ => source.arbitrary::<&str>().unwrap_or("").to_owned(),
        };
        values.push(if value.is_empty() { "none".to_owned() } else { value });
    }
    let namespace = FIELDS
        .iter()
        .zip(&values)
        .fold(Namespace::new(), |namespace, (field, value)| namespace.field(field, value.as_str()).expect("a field"));
    match namespace.text() {
        Ok(text) => assert_eq!(read_back(&text), values),
        Err(NamespaceError::TooLong { bytes, max_bytes }) => assert!(bytes > max_bytes),
        Err(NamespaceError::Field { field, .. }) => assert!(field == "block_tokens" && values[8] == "0"),
        Err(other) => panic!("all fields are said: {other}"),
    }
}

fn read_back(text: &str) -> Vec<String> {
    let lines: Vec<&str> = text.strip_suffix('\n').expect("a last line end").split('\n').collect();
    assert_eq!(lines.len(), FIELDS.len());
    let value = |(line, field): (&&str, &str)| {
        let (name, value) = line.split_once('=').expect("name and value");
        assert!(name == field && !value.contains('='));
        value.replace("%0A", "\n").replace("%3D", "=").replace("%25", "%")
    };
    lines.iter().zip(FIELDS).map(value).collect()
}
