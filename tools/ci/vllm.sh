#!/usr/bin/env bash
# Two real vLLM engines on one region, on CPUs. `tools/ci/vllm.sh` is the CI set, `tools/ci/vllm.sh --all` everything.
#
# Takes: vLLM's installation (80 s where it is not there yet, about 1 GB), the wheel of `maru`, and the tests: two engines and
# what two more need for the CI set, about fifteen more with --all. SKIPPED and why, where vLLM cannot be had.
set -euo pipefail
cd "$(dirname "$0")/../.."

export MARU_VLLM_VENV=${MARU_VLLM_VENV:-$PWD/target/vllm-venv}
if ! tools/python/vllm/install.sh "$MARU_VLLM_VENV"; then
  [ -n "${MARU_NEED_VLLM:-}" ] && exit 1
  echo "SKIPPED: vLLM could not be installed (see above; MARU_NEED_VLLM=1 makes this an error)"
  exit 0
fi
MARU_VENV=$MARU_VLLM_VENV tools/python/build
scratch=$(mktemp -d "${TMPDIR:-/tmp}/maru-vllm-XXXXXX")
trap 'rm -rf "$scratch"' EXIT
MARU_VLLM_SCRATCH=$scratch "$MARU_VLLM_VENV/bin/python" -m pytest -q -rs -p no:cacheprovider tools/python/vllm/tests "$@"
