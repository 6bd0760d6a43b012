#!/usr/bin/env bash
# The models and their teeth (loom-tests/README.md says what each one claims and how far it looks): loom's, which try
# every order of a few threads, and shuttle's, which draws long runs of many from seeds.
#
#   ./tools/ci/models.sh                     all models, at the bounds of the index
#   ./tools/ci/models.sh --test lease        one protocol
#   ./tools/ci/models.sh --test coordinators the drawn one
#   MARU_BOUND=5 ./tools/ci/models.sh --test fence                            further than the index says
#   MARU_SHUTTLE_ITERATIONS=1000000 ./tools/ci/models.sh --test coordinators  more runs than the index says
#   MARU_SHUTTLE_SEED=N MARU_SHUTTLE_ITERATIONS=1 ./tools/ci/models.sh --test coordinators  one run again
set -euo pipefail
cd "$(dirname "$0")/../.."
# Nothing is measured here, and this halves the build.
export CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16

models() { # models FOLDER FLAGS [ARGUMENTS]: a build folder of its own, or the flags throw the ordinary build away
  local folder=$1 flags=$2
  shift 2
  export CARGO_TARGET_DIR=target/$folder RUSTFLAGS=$flags
  cargo clippy -p maru -p maru-loom-tests --all-targets --quiet -- -D warnings
  cargo test -p maru-loom-tests --release "$@" -- --nocapture --test-threads=2
}

every=true drawn=true
case " $* " in
  *" coordinators "*) every=false ;;
  *" --test "*) drawn=false ;;
esac
if $every; then models loom "--cfg maru_loom" "$@"; fi
if $drawn; then models shuttle "--cfg maru_loom --cfg maru_shuttle" "$@"; fi
