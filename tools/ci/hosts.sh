#!/usr/bin/env bash
# Two guests, each with its own kernel, on one device-dax device (tools/two-hosts/README.md): two to three minutes, after
# the build of three programs without shared libraries.
#
# Where the guests cannot run it says SKIPPED and why. MARU_NEED_QEMU=1 makes that a failure; MARU_HOSTS_SECONDS
# limits the run itself (default 300).
set -euo pipefail
cd "$(dirname "$0")/../.."

out=$(mktemp)
trap 'rm -f "$out"' EXIT
status=0
./tools/two-hosts/run --prepare || status=$?
[ $status != 0 ] || timeout "${MARU_HOSTS_SECONDS:-300}" ./tools/two-hosts/run --json >"$out" || status=$?
cat "$out"
if [ $status = 77 ] && [ "${MARU_NEED_QEMU:-0}" != 1 ]; then
  echo "SKIPPED: two hosts on one device: nothing of it has been tried here (the reason is above)"
  exit 0
fi
[ $status = 0 ] || { echo "two hosts: exit $status" >&2; exit 1; }
# A run that looked at less than all of it is not a run.
python3 - "$(tail -n 1 "$out")" <<'P'
import json, sys
run = json.loads(sys.argv[1])
points = {row["point"] for row in run["rows"]}
assert run["verdict"] == "ok" and run["failed"] == 0, run
assert points == {"device", "race", "exchange", "identity", "death", "comeback"}, points
print(f"two hosts: {run['claims']} claims in {run['seconds']:.0f} s")
P
