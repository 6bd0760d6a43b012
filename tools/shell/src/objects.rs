//! Keys, namespaces and payload bytes, as lines name them. `--help` tells outsiders how to produce the same.

use maru::Namespace;
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::line::{Refusal, Request, from_hex, wrong};

/// The 32 bytes that a key stands for: 64 hexadecimal digits are taken as they are, any other text (and the decimal
/// digits of a number) is hashed by SHA-256.
pub(crate) fn prefix(name: &str, key: &Value) -> Result<[u8; 32], Refusal> {
    let text = match key {
        Value::String(text) => text.clone(),
        Value::Number(number) if number.is_u64() => number.to_string(),
        other => return Err(wrong(name, other, "64 hexadecimal digits, any other text, or a number of at least 0")),
    };
    let literal = (text.len() == 64).then(|| from_hex(&text)).flatten();
    Ok(match literal.and_then(|bytes| <[u8; 32]>::try_from(bytes).ok()) {
        Some(bytes) => bytes,
        None => Sha256::digest(text.as_bytes()).into(),
    })
}

/// Payload bytes `offset..offset + bytes.len()` of a seed.
///
/// Word `k` (bytes `8k..8k+8`, little endian) is the output of SplitMix64 at state `seed + (k + 1) * G`.
pub(crate) fn fill(seed: u64, offset: u64, bytes: &mut [u8]) {
    let mut at = offset;
    let mut rest = bytes;
    while !rest.is_empty() {
        let word = word(seed, at / 8).to_le_bytes();
        let within = (at % 8) as usize;
        let piece = rest.len().min(8 - within);
        rest[..piece].copy_from_slice(&word[within..within + piece]);
        rest = &mut rest[piece..];
        at += piece as u64;
    }
}

fn word(seed: u64, index: u64) -> u64 {
    let mut z = seed.wrapping_add(index.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// Names of the fields of a namespace, with the values that `"example": true` gives those that are not said.
pub(crate) const NAMESPACE_FIELDS: [(&str, &str); 12] = [
    ("tenant", "default"),
    ("model", "example/model"),
    ("revision", "0"),
    ("adapter", "none"),
    ("dtype", "bfloat16"),
    ("quantization", "none"),
    ("geometry", "layers=2,kv_heads=2,head_dim=64"),
    ("storage_format", "shell-1"),
    ("block_tokens", "16"),
    ("parallel", "tp=1"),
    ("hash_algorithm", "sha256"),
    ("hash_seed", "0"),
];

/// The namespace that a line describes. Missing fields are the library's to name.
pub(crate) fn namespace(request: &Request) -> Result<Namespace, Refusal> {
    let example = request.flag("example")?;
    let mut namespace = Namespace::new();
    for (name, value) in NAMESPACE_FIELDS {
        let value = match request.get(name) {
            Some(Value::String(text)) => text.clone(),
            Some(Value::Number(number)) => number.to_string(),
            Some(other) => return Err(wrong(name, other, "a string or a number")),
            None if example => value.to_owned(),
            None => continue,
        };
        namespace = namespace.field(name, value)?;
    }
    Ok(namespace)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Symptom of the fault kind: an outsider's bytes never match. Cause: the generator drifts from its description,
    /// whose example these are.
    #[test]
    fn payload_is_as_documented() {
        let mut bytes = [0; 16];
        fill(1, 0, &mut bytes);
        assert_eq!(crate::line::to_hex(&bytes), "c15c0289ec2d0a9167ec8e65a18debbe".to_owned());
        for (offset, len) in [(0, 16), (3, 9), (7, 2), (8, 8), (15, 1)] {
            let mut piece = vec![0; len];
            fill(1, offset, &mut piece);
            assert_eq!(piece, bytes[offset as usize..offset as usize + len], "{offset}+{len}");
        }
    }

    #[test]
    fn keys_are_literal_or_hashed() {
        let literal = "ab".repeat(32);
        assert_eq!(prefix("key", &literal.into()).expect("key"), [0xab; 32]);
        assert_eq!(prefix("key", &7.into()).expect("key"), prefix("key", &"7".into()).expect("key"));
        assert_ne!(prefix("key", &"zz".repeat(32).into()).expect("key"), [0; 32]);
        assert!(prefix("key", &(-1).into()).is_err());
        assert!(prefix("key", &Value::Null).is_err());
    }
}
