#!/usr/bin/env python3
"""Second reader of Maru regions, written from FORMAT.md alone; it shares no code with the crate.

    maru_reader.py [--summary] FILE...

One line of JSON for each file. Exit: 0 all sound, 1 some are damaged, 2 some cannot be read at all.
Section numbers below are those of FORMAT.md.
"""
import hashlib, json, mmap, os, struct, sys, zlib

PAGE, U32 = 4096, 1 << 32
MAGIC = b"\x89MARU\r\n\x1a"
SLOT_STATES = ["free", "claiming", "pending", "writing", "ready", "retiring", "quarantined"]
SESSION_STATES = ["free", "attaching", "live", "fenced", "dead"]
FORMAT_STATES = {1: "formatting", 2: "ready", 3: "replaced"}
BOUNDS = [("slot_count", 1, (1 << 28) - 1), ("bucket_count", 1, (1 << 28) - 1), ("session_count", 1, 4095),
          ("namespace_count", 1, 1 << 20), ("token_count", 0, 1 << 31), ("task_count", 0, 1 << 24),
          ("advert_count", 0, 1 << 24), ("access_lanes", 1, 64), ("class_count", 1, 8), ("shard_count", 1, 1),
          ("section_count", 15, 15), ("copy_lease_ms", 10, 3600000), ("stalled_writer_ms", 10, 3600000),
          ("attach_wait_ms", 0, 3600000), ("config_bytes", 0, 1984), ("session_area_bytes", 4096, 1 << 24)]
NUMBERS = ["slot_count", "bucket_count", "session_count", "session_area_bytes", "namespace_count", "token_count",
           "task_count", "advert_count", "access_lanes", "class_count", "shard_count", "section_count",
           "copy_lease_ms", "stalled_writer_ms", "attach_wait_ms", "config_bytes"]  # u32 each, from offset 96 on


class CannotRead(Exception):
    """Not a region, or one that this reader does not know how to read."""


class Damaged(Exception):
    """A superblock that is not what its formatter wrote."""


def want(truth, what, kind=Damaged):
    if not truth:
        raise kind(what)


def superblock(data):
    """2.1: judges the first page in the order given there. Returns its numbers."""
    want(len(data) >= PAGE, "shorter than a superblock", CannotRead)
    page = bytes(data[:PAGE])
    want(page[:8] != bytes(8), "not formatted", CannotRead)
    want(page[:8] == MAGIC, "not a region", CannotRead)
    version, order, read, write, _ = struct.unpack_from("<IIQQQ", page, 8)
    want(order == 0x0A0B0C0D, f"byte_order is {order:#x}", CannotRead)
    want(version == 1, f"format_version is {version}", CannotRead)
    want(read & ~1 == 0, f"features_read is {read:#x}", CannotRead)
    want(read & 1 and write & 1, f"features {read:#x} and {write:#x} miss what version 1 always has")
    regime, hosts, page_bytes, line, align, length, header = struct.unpack_from("<BB2xIIIQQ", page, 64)
    want(regime in (1, 2, 3) and hosts in (1, 2) and page_bytes == PAGE and line == 64, "regime, hosts or units")
    want(PAGE <= align <= 1 << 30 and align & (align - 1) == 0, f"align_bytes is {align}")
    want(length <= len(data), f"length_bytes is {length}, the file has {len(data)}")
    want(length > 0 and length % align == 0, f"length_bytes is {length}")
    want(2 * PAGE <= header <= length and header % align == 0, f"header_bytes is {header}")
    sb = dict(zip(NUMBERS, struct.unpack_from("<16I", page, 96)), id=page[40:56].hex(), length=length)
    for name, least, most in BOUNDS:
        want(least <= sb[name] <= most, f"{name} is {sb[name]}")
    want(sb["session_area_bytes"] % PAGE == 0, "session_area_bytes is no multiple of a page")

    # 3: sections
    n = sb["slot_count"]
    expected = [(PAGE, 1, PAGE), (1024, sb["namespace_count"], 128), (128, 1, 128), (256, sb["session_count"], 128),
                (sb["session_area_bytes"], sb["session_count"], PAGE), (8, -(-n // 64), 128), (128, n, 128),
                (64, sb["bucket_count"], 128), (1, n * sb["access_lanes"], 128), (8, sb["token_count"], 128),
                (128, sb["task_count"], 128), (64, sb["advert_count"], 128), (8, -(-n // 2), 128), (0, n, align),
                (PAGE, 1, PAGE)]
    end, offsets, payload_end = PAGE, [0], 0
    for index, (stride, count, unit) in enumerate(expected):
        row = struct.unpack_from("<IIQQQ", page, 512 + 32 * index)
        want(row[:2] == (index + 1, stride) and row[4] == count and row[3] >= stride * count, f"section {index + 1}")
        want(row[2] >= end and row[2] % unit == 0 and row[2] + row[3] <= length, f"section {index + 1} lies wrong")
        end = row[2] + row[3]
        offsets.append(row[2])
        payload_end = end if index == 13 else payload_end
    want((offsets[1], offsets[14], offsets[15]) == (PAGE, header, length - PAGE), "fixed sections lie elsewhere")
    want(not any(page[512 + 32 * 15:1280]), "unused section rows are not zero")

    # 3.2, 3.3: classes and shards
    slot, byte, sb["classes"] = 0, header, []
    for index in range(sb["class_count"]):
        size, offset, first, count, spare = struct.unpack_from("<QQIIQ", page, 1280 + 32 * index)
        want(0 < size < U32 and size % 64 == 0 and first == slot and count > 0 and not spare, f"class {index}")
        want(offset >= byte and offset % 64 == 0 and offset + size * count <= payload_end, f"class {index} lies wrong")
        slot, byte = slot + count, offset + size * count
        sb["classes"].append({"slot_bytes": size, "payload_offset_bytes": offset, "first_slot": first,
                              "slot_count": count})
    want(slot == n and not any(page[1280 + 32 * sb["class_count"]:1536]), "slot classes")
    slot = bucket = 0
    for index in range(sb["shard_count"]):
        first, count, first_bucket, buckets = struct.unpack_from("<4I", page, 1536 + 32 * index)
        spare = any(page[1556 + 32 * index:1568 + 32 * index])
        want(first == slot and first_bucket == bucket and buckets > 0 and not spare, f"shard {index}")
        slot, bucket = slot + count, bucket + buckets
    want((slot, bucket) == (n, sb["bucket_count"]) and not any(page[1536 + 32 * sb["shard_count"]:2048]), "shards")

    config = 2048 + sb["config_bytes"]
    want(not any(page[66:68] + page[192:512] + page[config:4088]), "reserved bytes are not zero")
    try:
        page[2048:config].decode()
    except UnicodeDecodeError:
        raise Damaged("config is not UTF-8") from None
    want(zlib.crc32(page[:4088]) == struct.unpack_from("<Q", page, 4088)[0], "superblock checksum")
    sb["offsets"] = offsets
    return sb


def ready_slots(data, sb, words, indexed):
    """5, 10: the slots whose word says ready, and whether their CRCs agree."""
    found, records, class_at = [], sb["offsets"][7], 0
    for slot, word in enumerate(words):
        if word & 0xEF != 4:
            continue
        while slot >= sb["classes"][class_at]["first_slot"] + sb["classes"][class_at]["slot_count"]:
            class_at += 1
        row = sb["classes"][class_at]
        at = records + 128 * slot
        identity, body = data[at:at + 64], data[at + 64:at + 128]
        shard, part, length = struct.unpack_from("<HHI", identity, 56)
        body_generation, checksum = struct.unpack_from("<QQ", body)
        counts, payload_crc = body_generation == word >> 20, checksum % U32
        payload_ok = counts and length <= row["slot_bytes"]
        if payload_ok:
            start = row["payload_offset_bytes"] + (slot - row["first_slot"]) * row["slot_bytes"]
            head = identity[40:56] + identity[8:40] + identity[56:60] + body[:8] + identity[60:64]
            payload_ok = zlib.crc32(data[start:start + length], zlib.crc32(head)) == payload_crc
        own = zlib.crc32(identity[8:] + body[:8] + body[16:] + struct.pack("<I", payload_crc))
        found.append({"slot": slot, "generation": word >> 20, "namespace": identity[40:56].hex(),
                      "prefix": identity[8:40].hex(), "shard": shard, "part": part, "length": length,
                      "payload_crc_ok": payload_ok, "record_crc_ok": counts and own == checksum >> 32,
                      "indexed": (slot << 26 | (word >> 20) % (1 << 26)) in indexed})
    return found


def read(data, summary):
    sb = superblock(data)
    at, n = sb["offsets"], sb["slot_count"]
    damage = dict.fromkeys(["copy", "format", "slot_words", "records", "index", "sessions", "leases", "namespaces"], 0)
    damage["copy"] = int(data[:PAGE] != data[at[15]:at[15] + PAGE])
    format_state = FORMAT_STATES.get(data[at[1]], "damaged" if any(data[at[1]:at[1] + 8]) else "blank")
    ready_word = b"\x02" + bytes.fromhex(sb["id"])[:7]
    damage["format"] = int(data[at[1]:at[1] + 8] != ready_word and format_state != "replaced")

    words = [word for (word,) in struct.iter_unpack("<Q120x", data[at[7]:at[7] + 128 * n])]
    states = dict.fromkeys(SLOT_STATES + ["damaged"], 0)
    for word in words:
        state, owner = word & 0xEF, word >> 8 & 4095
        states[SLOT_STATES[state] if state < 7 else "damaged"] += 1
        if state > 6 or owner > sb["session_count"] or (owner == 0 and 1 <= state <= 3):
            damage["slot_words"] += 1

    entries = [entry for row in struct.iter_unpack("<7Q8x", data[at[8]:at[8] + 64 * sb["bucket_count"]])
               if any(row) for entry in row if entry]
    damage["index"] = sum(entry >> 36 >= n or entry >> 10 & (1 << 26) - 1 == 0 for entry in entries)
    ready = ready_slots(data, sb, words, {entry >> 10 for entry in entries})
    damage["records"] = sum(not (row["payload_crc_ok"] and row["record_crc_ok"]) for row in ready)

    namespaces, sessions = [], []
    for row in range(sb["namespace_count"]):
        base = at[2] + 1024 * row
        state, generation, size = struct.unpack_from("<QQI", data, base)
        text = data[base + 96:base + 96 + min(size, 928)]
        if state == 2:
            namespaces.append({"row": row, "generation": generation, "text": text.decode(errors="replace")})
            utf8 = namespaces[-1]["text"].encode() == text
            good = size <= 928 and utf8 and hashlib.sha256(text).digest() == data[base + 32:base + 64]
        damage["namespaces"] += state > 2 or (state == 2 and not good)
    for index in range(sb["session_count"]):
        base, area = at[4] + 256 * index, sb["session_area_bytes"]
        word, = struct.unpack_from("<Q", data, base)
        known = word & 15 < len(SESSION_STATES)
        damage["sessions"] += not known
        damage["leases"] += struct.unpack_from("<Q", data, at[5] + area * index)[0] > (area - 2048) // 8
        if word & 15:
            sessions.append({"index": index, "state": SESSION_STATES[word & 15] if known else "damaged",
                             "epoch": word >> 32, "pid": struct.unpack_from("<I", data, base + 64)[0],
                             "engine": data[base + 128:base + 192].rstrip(b"\0").decode(errors="replace")})

    out = {"region": sb["id"], "format": format_state, "slot_count": n, "bucket_count": sb["bucket_count"],
           "states": states, "index_entries": len(entries), "damage": damage}
    if summary:
        lines = sorted(" ".join(str(int(v)) if isinstance(v, int) else v for v in row.values()) + "\n" for row in ready)
        out.update(namespaces=len(namespaces), sessions=len(sessions), ready=len(ready),
                   ready_sha256=hashlib.sha256("".join(lines).encode()).hexdigest())
    else:
        out.update(classes=sb["classes"], ready=ready, namespaces=namespaces, sessions=sessions)
    return out, int(any(damage.values()))


def main(arguments):
    summary, worst = "--summary" in arguments, 0
    for path in [argument for argument in arguments if argument != "--summary"]:
        try:
            with open(path, "rb") as file:
                size = os.fstat(file.fileno()).st_size
                data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else b""
            out, code = read(data, summary)
        except (OSError, CannotRead) as error:
            out, code = {"error": str(error)}, 2
        except Damaged as error:
            out, code = {"error": str(error)}, 1
        print(json.dumps({"file": path, "exit": code, **out}, separators=(",", ":")))
        worst = max(worst, code)
    return worst


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
