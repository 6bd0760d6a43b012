#!/usr/bin/env bash
# All tests of the workspace, doctests and README included.
set -euo pipefail
cd "$(dirname "$0")/../.."
export MARU_NEED_PYTHON=1
cargo test --workspace --quiet
# The library's own tests once more with stoppable steps compiled in.
cargo test -p maru --features steps --lib --quiet --target-dir target/steps
# Steps that are off, and barriers that one host does not need, must not be in the machine code.
python3 tools/ci/machine_code.py
# What one operation costs, counted: a line or a store more on the read path is refused.
python3 tools/ci/instructions.py
