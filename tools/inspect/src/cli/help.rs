//! What `--help` teaches about the verbs that need more than a line.

pub(super) const SESSIONS_HELP: &str = "\
The picture has one character for each entry of the table: A alive, X dead, ? unknown here, F fenced, . free.
Alive and dead are the kernel's word: each session holds a lock that the kernel drops with the process. It says
something about this host only; sessions of other hosts, and of earlier boots of this one, are unknown.
A heartbeat proves nothing; --watch 1s shows whether it moves.

Below the table, for each session: the operation that it is in the middle of (after a kill: that it died in), with its
slot and what that slot is now; the last operation that ended; and for a dead one the command that recovers it.
Nobody has to run that command: whoever is in the way of a dead session recovers it.

Examples:
  maru-inspect sessions /dev/shm/kv --watch 1s
  maru-inspect sessions /dev/shm/kv --json | jq 'select(.unrecovered) | .recovery'";

pub(super) const LOG_HELP: &str = "\
Each session remembers its last 16 operations in its own lines, readable after kill -9. They are shown merged, the
oldest first, with a lane for each session. Times are wall clocks of the machines that wrote them.

Records of an entry's last holder carry its epoch and engine; older ones are of holders that nobody remembers
(`3:?`). A record that was never finished (its writer died or stands in it), or that no version writes, is a finding
(flight_torn, flight_record) and is marked as not believed.

Examples:
  maru-inspect log /dev/shm/kv --last 20
  maru-inspect log /dev/shm/kv --session 3
  maru-inspect log /dev/shm/kv --json | jq 'select(.kind == \"record\" and .outcome != \"done\")'";

pub(super) const FENCE_HELP: &str = "\
Says what would change, and ends with the command that does it. Nothing is changed without --yes.

--session N[:EPOCH]  shuts a session out without proof that it is gone: a process that hangs, or that misbehaves. Its
                     later calls answer \"fenced\"; the keys that it was writing are free at once, the slots are
                     quarantined until its death is proven; its leases go on counting; what it stored stays.
--host-dead HOST     the same as `recover --host-dead HOST`: you vouch that the host is gone.

Examples:
  maru-inspect sessions /dev/shm/kv               who is there; N and EPOCH are the columns # and epoch
  maru-inspect fence /dev/shm/kv --session 3      what would change
  maru-inspect fence /dev/shm/kv --session 3:17 --yes

Exit codes: 0 done or nothing to do, 1 damaged, 2 cannot (nobody by that name), 3 busy (look again).";

pub(super) const RECOVER_HELP: &str = "\
Says what would change, and ends with the command that does it. Nothing is changed without --yes.
To recover a session: its leases are void, what it was writing is freed, its entry is given to the next; what it stored
stays. What you must vouch for, by name, is what no kernel can prove:

(nothing)              recovers what this host's kernel proves dead. Nobody has to: whoever is in the way does it too.
--host-dead HOST       HOST is switched off, or unbound from the memory, and stays so. Recovers all its sessions, then
                       reads once what they stored (a host may die before its last bytes arrive) and quarantines what
                       does not match its checksum. HOST is a boot id, a host id (all boots of it), or tag:HEX, as
                       `maru-inspect sessions --json` shows them. Never this boot of this host: its kernel is asked.
--session-dead N:EPOCH the process is gone, whatever the kernel can say. Refused where it is seen to run.
--devices-drained      no device that a dead session had told to write here is still writing. Frees those slots.

While you vouch for what still runs, it may write into blocks that are not its own any more; loads notice that by the
checksum, nothing prevents it. If in doubt, use `fence`.

Examples:
  maru-inspect recover /dev/shm/kv                              what the dead of this host left
  maru-inspect recover /dev/shm/kv --yes
  maru-inspect recover /dev/dax0.0 --host-dead 6b1c3c5e8e1f4f0f9d3f0a1b2c3d4e5f
  maru-inspect recover /dev/dax0.0 --session-dead 3:17 --json

Exit codes: 0 done or nothing to do, 1 damaged (the region, or blocks that the scrub quarantined), 2 cannot, 3 busy.";
