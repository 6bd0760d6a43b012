#!/usr/bin/env bash
# Kills real processes at every step of every operation, then at random for a while.
#
# The seed changes with the day, and is printed: MARU_TORTURE_SEED=N plays one again. It orders the cases, so that a
# machine too slow for all of them in 8 minutes plays another part every day. MARU_TORTURE_SECONDS limits the sweep,
# MARU_SOAK_SECONDS the soak (default 30).
set -euo pipefail
cd "$(dirname "$0")/../.."

seed=${MARU_TORTURE_SEED:-$(date -u +%Y%m%d)}
sweep_seconds=${MARU_TORTURE_SECONDS:-420}
soak_seconds=${MARU_SOAK_SECONDS:-30}
torture=target/steps/debug/maru-torture
echo "torture: seed $seed"

# Alone and in a folder of its own: one workspace build would switch the steps on for everybody.
cargo build -p maru-torture --features steps --target-dir target/steps --quiet
"$torture" --version | grep -qx 'steps: on'
# Built without steps it must say so and refuse.
cargo build -p maru-torture --quiet
if ${CARGO_TARGET_DIR:-target}/debug/maru-torture sweep 2>/dev/null; then
  echo "maru-torture without steps ran" >&2
  exit 1
fi

failed=0
"$torture" sweep --seed "$seed" --seconds "$sweep_seconds" || failed=1
"$torture" soak --seed "$seed" --seconds "$soak_seconds" --workers 4 || failed=1
exit $failed
