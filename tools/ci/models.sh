#!/usr/bin/env bash
# The loom models and their teeth (loom-tests/README.md says what each one claims and how far it looks).
#
#   ./tools/ci/models.sh               all models, at the bounds of the index
#   ./tools/ci/models.sh --test lease  one protocol
#   MARU_BOUND=5 ./tools/ci/models.sh --test fence   further than the index says
set -euo pipefail
cd "$(dirname "$0")/../.."
export RUSTFLAGS="--cfg maru_loom"
# Their own build folder: the flag reaches every crate, and would throw the ordinary build away each time.
export CARGO_TARGET_DIR=target/loom
# Nothing is measured here, and this halves the build.
export CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16

cargo clippy -p maru -p maru-loom-tests --all-targets --quiet -- -D warnings
cargo test -p maru-loom-tests --release "$@" -- --nocapture --test-threads=2
