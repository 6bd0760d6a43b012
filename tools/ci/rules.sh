#!/usr/bin/env bash
# Formatting, lints, documentation, and the rules of this repository that no lint knows.
set -euo pipefail
cd "$(dirname "$0")/../.."

cargo fmt --all --check
cargo clippy --workspace --all-targets --quiet -- -D warnings
# The feature that makes steps stoppable is off above; it must be clean too.
cargo clippy -p maru --all-targets --features steps --quiet -- -D warnings
# The library builds for ARM, too, where copies take the portable kernel.
arm=aarch64-unknown-linux-gnu
if rustup target add "$arm" 2>/dev/null; then
  cargo clippy -p maru-layout -p maru --target "$arm" --quiet -- -D warnings
else
  echo "SKIPPED: nothing was built for $arm: rustup could not add that target"
fi
RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --quiet

complain() { echo "rule broken: $1" >&2; bad=1; }
bad=0

# Only src/sync.rs names atomics (and loom).
if hits=$(git grep -nE '(core|std)::sync::atomic|loom::|shuttle::' -- 'src/*.rs' ':!src/sync.rs'); then
  complain "atomics are named outside src/sync.rs:
$hits"
fi
# Only the region module turns bytes into references.
if hits=$(git grep -nE '&\*[a-z_]+\.cast::<|&mut \*[a-z_]+\.cast' -- 'src/*.rs' ':!src/region' ':!src/os'); then
  complain "bytes become references outside src/region:
$hits"
fi
# Nothing unfinished, nothing switched off.
if hits=$(git grep -nIE '\b(todo|unimplemented)!\(|#\[ignore' -- '*.rs' '*.py' ':!tools/ci'); then
  complain "unfinished or switched off:
$hits"
fi
# Root folders are fixed.
extra=$(git ls-files | cut -d/ -f1 -s | sort -u | grep -vxE 'src|layout|loom-tests|benches|fuzz|tools|\.ci' || true)
[ -z "$extra" ] || complain "root folders: $extra"

python3 tools/ci/unused_dependencies.py || bad=1
python3 tools/ci/unstepped.py || bad=1
exit $bad
