//! What this process has mapped to share, from `/proc/self/maps`: the region, its life locks, and nothing else, since the
//! shell shares no other memory. Names do not tell: a file that was made under no name keeps a made-up one there.

use serde_json::{Value, json};

/// Shared mappings in order of address.
pub(crate) fn shared() -> std::io::Result<Vec<Value>> {
    let text = std::fs::read_to_string("/proc/self/maps")?;
    Ok(text.lines().filter_map(range).collect())
}

fn range(line: &str) -> Option<Value> {
    let mut words = line.split_ascii_whitespace();
    let (addresses, permissions, offset) = (words.next()?, words.next()?, words.next()?);
    let (device, inode) = (words.next()?, words.next()?);
    if !permissions.ends_with('s') {
        return None;
    }
    let (start, end) = addresses.split_once('-')?;
    let bytes = u64::from_str_radix(end, 16).ok()?.checked_sub(u64::from_str_radix(start, 16).ok()?)?;
    Some(json!({
        "offset": u64::from_str_radix(offset, 16).ok()?,
        "bytes": bytes,
        "permissions": permissions,
        "device": device,
        "inode": inode.parse::<u64>().ok()?,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_taken_apart() {
        let found = range("7f00-9f00 rw-s 00001000 00:1b 42        /dev/shm/#42 (deleted)").expect("shared");
        assert_eq!((&found["bytes"], &found["offset"], &found["inode"]), (&json!(0x2000), &json!(4096), &json!(42)));
        assert!(range("7f00-9f00 rw-p 00001000 00:1b 42 /usr/bin/x").is_none());
        assert!(range("").is_none());
    }
}
