#!/usr/bin/env python3
"""What must not be in the machine code of an ordinary build.

Numbered steps cost nothing where they are off: the machine code of the whole library, and of the calls on the read path
by name, is the same with every `step!` line of the source taken out. With the feature on it is another one, so the
comparison can fail. And the protocols of a region on one host contain no instruction that writes a cache line back;
those of a region on many hosts do, so that can fail, too."""

import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
REGIMES = ["OneHost", "ManyHosts"]
WRITE_BACK = re.compile(r"(clwb|clflush|clflushopt|sfence)\b")
CALLS = ["probe", "probe_prefix", "acquire", "release"]


def assembly(tree, target, *features):
    """The library's assembly, one piece of text a function."""
    command = ["cargo", "rustc", "--release", "-p", "maru", "--lib", "--target-dir", target, *features, "--quiet", "--"]
    # One unit, so that neither the split nor its numbering can differ.
    subprocess.run([*command, "--emit=asm", "-Ccodegen-units=1", "-Clto=off", "-Awarnings", "-Csymbol-mangling-version=v0"], cwd=tree, check=True)
    files = sorted(pathlib.Path(target).glob("release/deps/maru-*.s"), key=lambda path: path.stat().st_mtime)
    functions, name = {}, None
    for line in files[-1].read_text().splitlines():
        if begun := re.match(r"^(_R\w+|_ZN\w+):", line):
            name = begun[1]
            functions[name] = []
        elif name:
            functions[name].append(line)
            if line.lstrip().startswith(".cfi_endproc"):
                name = None
    return functions


def plain(lines):
    """Instructions alone: no directives, no hashes of the build, labels numbered in order of appearance."""
    labels, out = {}, []
    for line in lines:
        line = line.strip()
        if line.startswith((".", "#")) and not line.endswith(":"):
            continue
        line = re.sub(r"17h[0-9a-f]{16}E", "", line)
        line = re.sub(r"Cs[0-9A-Za-z]+_", "Cs_", line)
        line = re.sub(r"\.L[\w.$]+", lambda label: labels.setdefault(label[0], f"L{len(labels)}"), line)
        out.append(line)
    return out


def call(functions, name):
    pattern = re.compile(rf"^_R\w*7sessionNtB\w+7Session{len(name)}{name}(B\w+)?$")
    found = [lines for symbol, lines in functions.items() if pattern.match(symbol)]
    if len(found) != 1:
        sys.exit(f"machine_code: {len(found)} functions look like Session::{name}; the comparison has to be adapted")
    return plain(found[0])


def main():
    with tempfile.TemporaryDirectory(prefix="maru-code-") as scratch:
        without = pathlib.Path(scratch) / "tree"
        shutil.copytree(ROOT, without, ignore=shutil.ignore_patterns("target", ".git", "__pycache__"))
        taken = 0
        for path in without.glob("src/**/*.rs"):
            # The line stays, so that line numbers in messages do.
            text, count = re.subn(r"^(\s*)step!\(\w+\);$", r"\1", path.read_text(), flags=re.M)
            taken += count
            path.write_text(text)
        # One folder each: where nothing has changed cargo writes nothing, and the newest listing would be the other's.
        target = str(ROOT / "target" / "machine-code")
        with_steps = assembly(ROOT, target)
        without_steps = assembly(without, str(pathlib.Path(scratch) / "target"))
        switched_on = assembly(ROOT, target + "-steps", "--features", "steps")
        different = 0
        for name in CALLS:
            a, b, c = (call(functions, name) for functions in (with_steps, without_steps, switched_on))
            same = a == b
            different += not same
            # probe stores nothing that others read, so it has no step and is the same in all three.
            print(f"Session::{name}: {len(a)} lines of assembly, without any step! {'the same' if same else f'ANOTHER ({len(b)})'}; "
                  f"with the feature on {'the same' if a == c else f'another ({len(c)})'}")
        whole = [sorted("\n".join(plain(lines)) for lines in functions.values()) for functions in (with_steps, without_steps, switched_on)]
        print(f"whole library: {taken} steps taken out, {len(with_steps)} functions, "
              f"{'all the same' if whole[0] == whole[1] else 'DIFFERENT'}; with the feature on {'the same' if whole[0] == whole[2] else 'different'}")
        write_backs = {regime: 0 for regime in REGIMES}
        protocols = dict(write_backs)
        for symbol, lines in with_steps.items():
            for regime in REGIMES:
                if f"{len(regime)}{regime}" in symbol:
                    protocols[regime] += 1
                    write_backs[regime] += sum(bool(WRITE_BACK.match(line.strip())) for line in lines)
        print("write-backs (clwb, clflushopt, clflush, sfence): "
              + ", ".join(f"{regime}: {write_backs[regime]} in {protocols[regime]} functions" for regime in REGIMES))
        if write_backs["OneHost"] or not protocols["OneHost"] or not write_backs["ManyHosts"]:
            sys.exit("machine_code: a region on one host pays for many, or the instructions are not found at all")
        if different or whole[0] != whole[1]:
            sys.exit("machine_code: steps that are off cost something")
        if whole[0] == whole[2]:
            sys.exit("machine_code: the comparison cannot fail: steps that are on are not seen either")


main()
