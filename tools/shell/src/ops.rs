//! The one table of operations and their fields. `--help` is printed from it, and every line is checked against it.

use std::fmt::Write;

/// One operation.
pub(crate) struct Op {
    pub(crate) name: &'static str,
    pub(crate) fields: &'static [&'static str],
    what: &'static str,
}

macro_rules! ops {
    ($($name:literal [$($field:literal)*] $what:literal;)*) => {
        /// All operations, in the order of `--help`.
        pub(crate) const OPS: &[Op] = &[$(Op { name: $name, fields: &[$($field),*], what: $what },)*];
    };
}

ops! {
    "open" ["region" "env" "fd" "offset" "length" "mode" "format" "size" "slot_bytes" "slots" "align" "sessions"
            "namespaces" "hosts" "copy_lease_ms" "stalled_writer_ms" "attach_wait_ms" "lock_file" "config" "prefault"]
        "Opens a region as the command line says; fields override it. Ends what was open before. -> outcome \
         (formatted | attached), region_id, inode, length, slots, ...";
    "session" ["engine" "role" "evict" "most_pins" "most_reservations"]
        "Joins as a participant (opens first if nothing is open). With \"evict\": false it refuses where there is no room. \
         -> index, epoch";
    "namespace" ["tenant" "model" "revision" "adapter" "dtype" "quantization" "geometry" "storage_format" "block_tokens"
                 "parallel" "hash_algorithm" "hash_seed" "example" "budget_slots"]
        "Registers a namespace, or finds it. With \"example\": true, fields not said take example values. -> namespace, \
         row, generation, digest";
    "store" ["key" "keys" "namespace" "shard" "part" "len" "seed" "hex" "depth" "parent"]
        "Reserve, write and commit in one. -> outcome (stored | present | being_written | refused | contended | ...), why";
    "get" ["key" "keys" "namespace" "shard" "part" "seed" "verify"]
        "Acquire, load and release in one. Without a session: copies and checks afterwards. -> hit, len, crc32, head, \
         matches, or miss";
    "probe" ["key" "keys" "namespace" "shard" "part"] "Asks; protects nothing. -> hit, len, or miss";
    "probe_prefix" ["keys" "namespace" "shard" "part"] "How many leading keys are ready. -> run";
    "reserve" ["key" "namespace" "shard" "part" "len" "depth" "parent" "writer" "after_hits"]
        "Reserves a slot; writer is cpu or device. -> outcome, and if granted reservation, token, slot";
    "write" ["reservation" "offset" "seed" "len" "hex"]
        "Writes bytes offset..offset+len of the payload that seed names (to the end unless len says), or literal bytes";
    "commit" ["reservation"] "Publishes. -> outcome";
    "abort" ["reservation"] "Gives the slot back. -> given_back";
    "resolve" ["token"] "What became of a reservation, in whatever process it was made. -> outcome";
    "acquire" ["key" "keys" "namespace" "shard" "part" "all_or_nothing" "kind"]
        "Protects; kind is copy or device. -> items: lease, handle, len, slot, or miss";
    "load" ["lease" "seed" "verify" "times"]
        "Copies a block out; verify is always, never or a number. -> len, crc32, head, matches. With times: copies that \
         often and compares with the seed. -> exact, other, ended (why a copy did not count, or null)";
    "view" ["lease" "seed" "times"]
        "Makes the lease one that never lapses and reads in place. -> as load. With times: all reads under one view";
    "detach" ["lease"] "Gives the lease away as its handle. -> handle";
    "release" ["lease" "handle" "handles"] "Ends a lease. -> outcome (released | not_held | viewed)";
    "retire" ["key" "keys" "namespace" "shard" "part"] "Shuts a block to new readers. -> outcome (retired | draining | gone)";
    "invalidate" ["namespace"] "Ends the present generation of a namespace. -> ended";
    "reclaim" [] "Recovers dead sessions, frees drained slots. -> counts of both";
    "heartbeat" [] "Shows that this process turns; notices a replaced path. -> beat";
    "fence" ["index" "epoch"] "Shuts another session out. -> fenced";
    "lead" [] "Leads the coordinators, if no live session does. -> leading, index, epoch of who does";
    "recover_dead" [] "Recovers sessions that this host's kernel proves dead. -> sessions, slots";
    "recover_vouched" ["index" "epoch"] "Recovers a session whose process you vouch is gone. -> recovered, slots";
    "recover_host" ["host"] "Recovers all sessions of a host that you vouch is gone. -> sessions, slots, here, scrubbed, damaged";
    "devices_drained" [] "Frees what devices of dead sessions wrote to; you vouch that they have drained. -> slots";
    "pin" ["key" "keys" "namespace" "shard" "part" "milliseconds"]
        "Keeps blocks from being evicted for so long. -> items: handle, or miss";
    "unpin" ["handle"] "Ends a pin before its time. -> outcome (released | not_held)";
    "namespace_usage" ["namespace"] "Recounts what a namespace holds. -> budget_slots, spent_tokens, slots by state, bytes";
    "usage" [] "Recounts the slot words. -> bytes and slots by state";
    "counters" [] "What this session's entry has counted. -> one field a counter";
    "sessions" [] "What can be said about each session entry. -> items: index, liveness (alive | dead = nobody holds it | unknown)";
    "region" [] "What is open. -> as open";
    "maps" [] "What this process has mapped to share: region and life locks. -> items: offset, bytes, permissions, inode";
    "held" [] "What this session holds. -> leases (the library's count), reservations";
    "fork" ["key"] "Forks; the child tries each call on the handles it inherited, drops them all and exits. -> child: \
         answer by call, exit";
    "sleep_ms" ["ms"] "Waits";
    "close" ["drop"] "Leaves the region; refused while something is held unless \"drop\": true";
    "quit" [] "Answers, drops everything and exits";
}

const BEFORE: &str = "\
LINES
  {\"op\": \"probe\", \"key\": 7, \"id\": 1}     ->  {\"id\":1,\"ok\":true,\"hit\":true,\"len\":4096}
  Every answer has \"ok\". What cannot be tried, or is wrongly said: {\"ok\":false,\"error\":\"text\",\"code\":\"word\"}.
  A miss, a refusal and a lost race are answers with \"ok\": true. \"id\" comes back as it was sent.
  The end of the input is a quit.

OBJECTS
  key         64 hexadecimal digits: those 32 bytes. Any other text, or a number: SHA-256 of the text (of the number's
              decimal digits).
  namespace   a name that the operation namespace gave, such as \"n0\"; the latest one unless said.
  shard, part numbers, 0 unless said.
  keys        a list, instead of key: each a key, or an object with key and, where the operation has them, namespace,
              shard, part, len, seed. The answer has \"items\" in the same order.

PAYLOAD
  seed, len   64-bit word k (little endian, k from 0) of the payload of a seed is, modulo 2^64:
                z = seed + (k + 1) * 0x9E3779B97F4A7C15
                z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;  z = (z ^ (z >> 27)) * 0x94D049BB133111EB;  z ^ (z >> 31)
              cut to len bytes. Seed 1 begins with c1 5c 02 89 ec 2d 0a 91 67 ec 8e 65 a1 8d eb be.
  crc32       the usual CRC-32 of the loaded bytes; head: its first 16 bytes; matches: whether it is the seed's payload.
";

const AFTER: &str = "
TWO PROCESSES
  first                                                          second
  $ maru-shell --region /dev/shm/kv --format if-absent \\
      --size 64M --slot-bytes 64K
  {\"op\":\"session\"}
  {\"op\":\"namespace\",\"example\":true}
  {\"op\":\"store\",\"key\":\"prompt\",\"len\":65000,\"seed\":7}
                                                                 $ maru-shell --region /dev/shm/kv
                                                                 {\"op\":\"session\"}
                                                                 {\"op\":\"namespace\",\"example\":true}
                                                                 {\"op\":\"acquire\",\"key\":\"prompt\"}
                                                                 -> {\"ok\":true,\"items\":[{\"lease\":\"l0\",\"len\":65000,...}]}
  {\"op\":\"retire\",\"key\":\"prompt\"}
  -> {\"ok\":true,\"outcome\":\"draining\"}
                                                                 {\"op\":\"load\",\"lease\":\"l0\",\"seed\":7}
                                                                 -> {\"ok\":true,\"matches\":true,\"len\":65000,...}
                                                                 {\"op\":\"release\",\"lease\":\"l0\"}
  {\"op\":\"reclaim\"}
  -> {\"ok\":true,\"freed_slots\":1,...}

  Built with the feature `steps`, a shell stops or dies at a numbered step: MARU_STEP=store.ready:kill,
  MARU_STEP=index.insert_first:3:stop.
";

/// What `--help` says after the options.
pub(crate) fn help() -> String {
    let mut text = String::from(BEFORE);
    text.push_str("\nOPERATIONS\n");
    for op in OPS {
        let _ = writeln!(text, "  {:<12} {}", op.name, op.what);
        if !op.fields.is_empty() {
            let _ = writeln!(text, "  {:<12}   fields: {}", "", op.fields.join(", "));
        }
    }
    text.push_str(AFTER);
    text
}
