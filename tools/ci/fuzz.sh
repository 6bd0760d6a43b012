#!/usr/bin/env bash
# Fuzzes with libfuzzer: all targets, or those named.
#   tools/ci/fuzz.sh [open_region] [ops_vs_model] [words]
#   MARU_FUZZ_SECONDS=N   seconds of each target (60 for open_region, 20 for the others)
#   MARU_ALLOW_SKIP=1     without nightly or a C++ compiler: say so and pass
set -euo pipefail
cd "$(dirname "$0")/../.."

missing() {
    echo "SKIPPED: fuzzing needs $1; to have it: $2" >&2
    [ -n "${MARU_ALLOW_SKIP:-}" ] && exit 0
    exit 1
}
cargo +nightly --version >/dev/null 2>&1 || missing "a nightly compiler" "rustup toolchain install nightly --profile minimal"
command -v "${CXX:-c++}" >/dev/null || command -v clang++ >/dev/null || missing "a C++ compiler" "apt-get install g++"
cargo fuzz --version >/dev/null 2>&1 || cargo install --locked cargo-fuzz \
    || missing "cargo-fuzz" "cargo install --locked cargo-fuzz"

# Whole-program optimisation costs minutes here and finds nothing.
# Writers that are forgotten on purpose leave their memory and locks behind; that is not a leak to report.
export ASAN_OPTIONS="detect_leaks=0${ASAN_OPTIONS:+:$ASAN_OPTIONS}"
export CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16
output="${CARGO_TARGET_DIR:-target}"
[ $# -gt 0 ] || set -- open_region ops_vs_model words
for target in "$@"; do
    case "$target" in open_region) seconds=60 ;; *) seconds=20 ;; esac
    corpus="$output/fuzz/$target/corpus"
    artifacts="fuzz/artifacts/$target/"
    mkdir -p "$corpus" "$artifacts"
    cp "fuzz/seeds/$target/"* "$corpus/"
    if [ "$target" = open_region ]; then
        # Golden images and their first pages as files (image number 7: the rest of the input is the file).
        for image in layout/golden/*.maru; do
            name="$(basename "$image" .maru)"
            { printf '\007\000\000'; cat "$image"; } >"$corpus/$name"
            { printf '\007\000\000'; head -c 8192 "$image"; } >"$corpus/$name-head"
        done
    fi
    cargo +nightly fuzz run "$target" --features libfuzzer --target-dir "$output" "$corpus" -- \
        -max_total_time="${MARU_FUZZ_SECONDS:-$seconds}" -timeout=30 -rss_limit_mb=4096 -detect_leaks=0 \
        -len_control=20 -artifact_prefix="$artifacts" -print_final_stats=1
done
echo "fuzzing: no findings"
