#!/usr/bin/env bash
# The Python package: its wheel, built and installed into a fresh environment, and the binding's tests in it.
#
# MARU_PYTHON names the interpreter (3.11 or newer). What pip fetches (maturin, pytest) stays in pip's own cache.
set -euo pipefail
cd "$(dirname "$0")/../.."

python=${MARU_PYTHON:-python3}
if ! "$python" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
  if [ -n "${MARU_NEED_PYTHON:-}" ]; then
    echo "python: $python is not Python 3.11 or newer with venv (package python3-venv)" >&2
    exit 1
  fi
  echo "SKIPPED: python: $python is not Python 3.11 or newer with venv (package python3-venv)"
  exit 0
fi

fresh=$(mktemp -d)
trap 'rm -rf "$fresh"' EXIT
"$python" -m venv "$fresh/venv"
MARU_VENV="$fresh/venv" tools/python/build
"$fresh/venv/bin/python" -m pip install --quiet --disable-pip-version-check pytest
# The wheel is what is tested: no source of this folder is on the path.
PYTHONDONTWRITEBYTECODE=1 "$fresh/venv/bin/python" -m pytest -q -p no:cacheprovider tools/python/tests
