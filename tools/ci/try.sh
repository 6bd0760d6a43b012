#!/usr/bin/env bash
# The README's first command, its story of a kill and a flipped byte, kills under a budget, and the exact ratios of the public traces where they are at hand.
set -euo pipefail
cd "$(dirname "$0")/../.."

region=$(mktemp -u /dev/shm/maru-ci-XXXXXX)
trap 'rm -f "$region" "$region".*' EXIT
line=$(MARU_TRY_REGION=$region ./tools/try --json | tail -n 1)
echo "$line"
python3 - "$line" <<'P'
import json, sys
run = json.loads(sys.argv[1])
assert run["wrong_bytes"] == 0, run
assert run["hits"] > 0 and run["references"] > run["hits"] and run["stores"] > 0, run
assert run["workers"] == 2 and run["region_id"], run
assert run["killed_in"].startswith("write, slot "), run
assert 0 < run["takeover_us"] < 1e6, run
assert run["damaged_finding"].startswith("damaged: checksum mismatch in slot "), run
P
# What is timed here says of itself that no test is built into it.
target/release/maru-replay --version | grep -x "steps: off"
# The damaged block is shut away: nothing that is left is wrong.
target/release/maru-inspect verify --payload "$region"
# The second reader, on a region that the library wrote.
python3 - "$(target/release/maru-inspect verify --json "$region" | tail -n 1)" \
  "$(python3 layout/reader/maru_reader.py --summary "$region")" <<'P'
import json, sys
ours, theirs = map(json.loads, sys.argv[1:])
assert theirs["exit"] == 0 and not any(theirs["damage"].values()), theirs
assert ours["region_id"] == theirs["region"] and ours["capacity_slots"] == theirs["slot_count"], (ours, theirs)
assert all(theirs["states"][state] == count for state, count in ours["slots"].items()), (ours, theirs)
print("both readers agree:", theirs["states"])
P

endure() { # endure SECONDS FLAGS...: kills every second under a budget; every sample and the recount must be right
  local seconds=$1 line
  shift
  line=$(target/release/maru-replay "$@" --workers 4 --kill-every 1 --seconds "$seconds" --repeat 100000 \
    --region "$region" --no-rival --json 2>/dev/null | tail -n 1)
  echo "killed every second: $line"
  python3 - "$line" "$seconds" <<'P'
import json, sys
run, seconds = json.loads(sys.argv[1]), int(sys.argv[2])
assert run["kills"] >= seconds / 2 and run["recovered"] == run["kills"] >= run["killed_requests"], run
assert run["wrong_bytes"] == 0 and run["samples"] > 10 * seconds, run
assert run["budget_exceeded"] == 0 and 0 < run["most_spent"] <= run["budget"], run
P
  target/release/maru-inspect verify --payload "$region" | tail -n 1
}
traces=${MARU_TRACES:-../shared/traces}
if [ ! -f "$traces/conversation_trace.jsonl" ]; then
  endure 6 --requests 100 --block-bytes 4096 --slots 600 --budget 500
  echo "SKIPPED: no request traces in $traces (README says where they come from; MARU_TRACES names their folder)"
  exit 0
fi
check() { # check TRACE WORKERS HITS
  local line
  line=$(target/release/maru-replay --trace "$traces/$1" --workers "$2" --block-bytes 4096 --region "$region" --no-rival --json 2>/dev/null | tail -n 1)
  echo "$1, $2 worker(s): $line"
  python3 - "$line" "$3" <<'P'
import json, sys
run, hits = json.loads(sys.argv[1]), sys.argv[2]
assert run["wrong_bytes"] == 0 and run["refused"] == 0, run
assert hits == "any" or run["hits"] == int(hits), (run["hits"], hits)
P
  target/release/maru-inspect verify "$region" | tail -n 1
}
hits() { python3 - "$traces/$1" <<'P'
import json, sys
seen, hits = set(), 0
for line in open(sys.argv[1]):
    ids = json.loads(line)["hash_ids"]
    for i in ids:
        if i not in seen:
            break
        hits += 1
    seen.update(ids)
print(hits)
P
}
check conversation_trace.jsonl 1 "$(hits conversation_trace.jsonl)"
check synthetic_trace.jsonl 1 "$(hits synthetic_trace.jsonl)"
check conversation_trace.jsonl 2 any
check conversation_trace.jsonl 4 any
endure 20 --trace "$traces/conversation_trace.jsonl" --block-bytes 4096 --slots 18279 --budget 16000
