"""Stand-ins for the CUDA libraries that PyPI's torch links against and a CPU never calls.

`import torch` opens its libraries with RTLD_NOW, so every versioned symbol must resolve. For each library that torch's
own `NEEDED` entries name (cublas, cudnn, nccl, ...) this writes one shared object next to them, with the wanted symbols
under the wanted versions; each returns 1, an error code, should anything call it after all. Run by install.sh in the
venv.
"""

import collections
import pathlib
import re
import subprocess
import sysconfig
import tempfile

NVIDIA_LIBRARY = re.compile(r"lib(cu(sparse|fft|rand|blas|dnn|solver)|nccl|nvrtc|nvJitLink|nvshmem)")
NVIDIA_SYMBOL = re.compile(r"(cusparse|cufft|curand|cublas|cudnn|cusolver|nccl|nvrtc|nvJitLink|nvshmem)\w*$")


def output(*command):
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


def wanted(folder):
    """Library names that are needed, and per library its symbols by version."""
    needed, library_of, symbols = set(), {}, collections.defaultdict(set)
    for so in folder.glob("lib*.so"):
        needed |= {n for n in re.findall(r"NEEDED.*\[(.*)\]", output("readelf", "-dW", so)) if NVIDIA_LIBRARY.match(n)}
        current = None
        for line in output("readelf", "-VW", so).splitlines():
            if match := re.search(r"File: (\S+)", line):
                current = match[1]
            elif (match := re.search(r"Name: (\S+)", line)) and current and NVIDIA_LIBRARY.match(current):
                library_of[match[1]] = current
        for line in output("nm", "-D", "--undefined-only", so).splitlines():
            symbol, _, version = line.split()[-1].partition("@")
            if NVIDIA_SYMBOL.match(symbol):
                symbols[version.lstrip("@")].add(symbol)
    by_library = collections.defaultdict(dict)
    for version, names in symbols.items():
        by_library[library_of.get(version, sorted(needed)[0])][version] = sorted(names)
    return sorted(needed), by_library


def main():
    folder = pathlib.Path(sysconfig.get_paths()["purelib"]) / "torch" / "lib"
    needed, by_library = wanted(folder)
    with tempfile.TemporaryDirectory() as scratch:
        source, versions = pathlib.Path(scratch, "stub.c"), pathlib.Path(scratch, "stub.map")
        for name in needed:
            groups = by_library[name]
            source.write_text("".join(f"int {s}(void){{return 1;}}\n" for symbols in groups.values() for s in symbols))
            script = "".join(f"{v} {{ {' '.join(s + ';' for s in symbols)} }};\n" for v, symbols in groups.items() if v)
            versions.write_text(script)
            command = ["cc", "-shared", "-fPIC", "-w", f"-Wl,-soname,{name}", "-o", folder / name, source]
            subprocess.check_call(command + ([f"-Wl,--version-script={versions}"] if script else []))
    print(f"{len(needed)} stub libraries in {folder}")


if __name__ == "__main__":
    main()
