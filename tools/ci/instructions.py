#!/usr/bin/env python3
"""What one operation costs, counted and not timed: instructions, and lines of the region.

A simulator counts the same on every machine and in every run, so a count can be a test. `maru-count` performs one kind
of operation; callgrind counts its instructions, and lackey lists its accesses to memory, which are sorted here by the
table of the region that they fall into.

  ./tools/ci/instructions.py            compare with benches/count/table.json
  ./tools/ci/instructions.py --write    write that file

Refused is: more than 5 % more instructions than in the table; another number of lines touched, in any table of the
region (but for one record, where something is stored); and, on the read path, a single store outside of the session's
own area. Fewer instructions are no failure, but are told, since the table then lets the next change waste what was won."""

import concurrent.futures
import json
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
TABLE = ROOT / "benches" / "count" / "table.json"
TOLERANCE = 0.05
FEW, MANY = 32, 64
RUNS = 3
READS = ["probe-hit", "probe-miss", "acquire", "release", "load"]
STORES = ["reserve", "commit", "replace"]
BATCHES = ["probe-prefix", "acquire-batch", "release-batch"]
# Lines that belong to a key; the others are common to a call, or to all.
KEYED = ["Buckets", "Records", "AccessBytes", "own cells", "Payload"]
LIMITS = {"probe-hit": 2, "probe-miss": 1}


def build():
    command = ["cargo", "build", "--release", "-p", "maru-bench", "--bin", "maru-count", "--message-format=json", "--quiet"]
    out = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout
    found = [message.get("executable") for message in map(json.loads, out.splitlines()) if message.get("executable")]
    return found[-1]


def instructions(program, operation, times):
    command = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", "--toggle-collect=*maru_count::perform*",
               program, operation, str(times)]
    run = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    counted = re.search(r"refs:\s+([\d,]+)", run.stderr)
    if run.returncode or not counted:
        sys.exit(f"instructions: {' '.join(command)} failed:\n{run.stderr}")
    return int(counted[1].replace(",", ""))


def cost(program, operation):
    """Instructions of one operation. The seed of a region is random, so a key may share a bucket: the median of runs."""
    runs = [(instructions(program, operation, MANY) - instructions(program, operation, FEW)) / (MANY - FEW) for _ in range(RUNS)]
    return round(statistics.median(runs), 1)


def trace(program, operation):
    """What each operation touched: by table, the lines loaded or stored, and the lines stored."""
    with tempfile.TemporaryDirectory(prefix="maru-lines-") as scratch:
        places, accesses = (pathlib.Path(scratch) / name for name in ("places", "accesses"))
        # Loads, stores and modifications; the fetches of instructions are most of a trace, and left to grep.
        script = 'valgrind --tool=lackey --trace-mem=yes "$0" "$1" "$2" 2>&1 >"$3" | grep -a "^ [LSM] " >"$4"; exit "${PIPESTATUS[0]}"'
        run = subprocess.run(["bash", "-c", script, program, operation, str(MANY), places, accesses])
        if run.returncode:
            sys.exit(f"instructions: lackey failed at {operation}")
        where = json.loads(places.read_text().splitlines()[-1])
        start, end = where["region"]
        marker = where["marker"]
        area = where["sections"]["SessionAreas"][0] + where["session"] * where["session_area_bytes"]
        tables = [(*span, name) for name, span in where["sections"].items() if name != "SessionAreas"]
        tables += [(area, area + 2048, "own head"), (area + 2048, area + where["session_area_bytes"], "own cells"),
                   (*where["sections"]["SessionAreas"], "others' areas")]
        operations = []
        for line in accesses.open():
            address, size = line[3:].split(",")
            address = int(address, 16)
            if address == marker and line[1] in "SM":
                operations.append(({}, {}))
            elif operations and start <= address < end:
                name = next((name for low, high, name in tables if low <= address < high), "elsewhere")
                for number in range(address >> 6, (address + int(size) - 1 >> 6) + 1):
                    operations[-1][0].setdefault(name, set()).add(number)
                    if line[1] in "SM":
                        operations[-1][1].setdefault(name, set()).add(number)
    # The last mark ends.
    return operations[:-1]


def lines(program, operation):
    """Lines of a typical operation by table, and the lines that some operation stored to outside of the own area."""
    operations = trace(program, operation)
    if len(operations) != MANY:
        sys.exit(f"instructions: {len(operations)} operations in the trace of {operation}, wanted {MANY}")
    names = sorted({name for touched, _ in operations for name in touched})
    typical = {name: statistics.median_low([len(touched.get(name, ())) for touched, _ in operations]) for name in names}
    foreign = sorted({name for _, stored in operations for name in stored if not name.startswith("own ")})
    return {name: count for name, count in typical.items() if count}, foreign


def measured(program):
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        costs = {operation: pool.submit(cost, program, operation) for operation in READS + BATCHES + STORES}
        touched = {operation: pool.submit(lines, program, operation) for operation in READS + STORES}
        table = {operation: {"instructions": future.result()} for operation, future in costs.items()}
        for operation, future in touched.items():
            table[operation]["lines"], table[operation]["stored_elsewhere"] = future.result()
    return table


def show(table):
    print(f"{'operation':<15} {'instructions':>12}  {'lines of a key':<62} {'common to a call':<44} stored outside the own area")
    for operation, row in table.items():
        unit = "a key" if operation in BATCHES else ""
        touched = row.get("lines", {})
        keyed = {name: touched[name] for name in KEYED if name in touched}
        common = {name: count for name, count in touched.items() if name not in KEYED}
        listed = lambda part: ", ".join(f"{name} {count}" for name, count in part.items())
        mine = f"{sum(keyed.values())}: {listed(keyed)}" if touched else unit
        print(f"{operation:<15} {row['instructions']:>12}  {mine:<62} {listed(common):<44} {', '.join(row.get('stored_elsewhere', [])) or '-'}")


def as_before(operation, now, before):
    """Whether as many lines are touched. A store looks at the records of all that live in its bucket, one or two of them
    by the region's random seed: one more or less is no news there."""
    if not now or not before:
        return now == before
    slack = {"Records": 1} if operation in STORES else {}
    return all(abs(now.get(name, 0) - before.get(name, 0)) <= slack.get(name, 0) for name in now.keys() | before.keys())


def faults(table, wanted):
    for operation, row in table.items():
        before = wanted.get(operation)
        if before is None:
            yield f"{operation}: not in {TABLE.name}"
            continue
        if row["instructions"] > before["instructions"] * (1 + TOLERANCE):
            yield f"{operation}: {row['instructions']} instructions, {before['instructions']} in the table"
        if row["instructions"] < before["instructions"] * (1 - TOLERANCE):
            print(f"{operation}: {row['instructions']} instructions, {before['instructions']} in the table; run with --write")
        if not as_before(operation, row.get("lines"), before.get("lines")):
            yield f"{operation}: touches {row.get('lines')}, in the table {before.get('lines')}"
    for operation in READS:
        if table[operation]["stored_elsewhere"]:
            yield f"{operation}: stores to {', '.join(table[operation]['stored_elsewhere'])}: the read path stores in its own area alone"
        keyed = sum(table[operation]["lines"].get(name, 0) for name in KEYED)
        if keyed > LIMITS.get(operation, keyed):
            yield f"{operation}: {keyed} lines of a key, {LIMITS[operation]} at most"


def main():
    if not shutil.which("valgrind"):
        print("SKIPPED: no instruction was counted and no line: valgrind is not installed (Debian: apt-get install valgrind)")
        return
    table = measured(build())
    show(table)
    if "--write" in sys.argv[1:]:
        TABLE.write_text(json.dumps(table, indent=1) + "\n")
        print(f"written: {TABLE.relative_to(ROOT)}")
    found = list(faults(table, json.loads(TABLE.read_text())))
    for fault in found:
        print(f"REFUSED {fault}")
    if found:
        sys.exit("instructions: an operation costs more than it did; make it cheaper, or write the table anew and say why")
    print(f"instructions: nothing costs more than {TABLE.relative_to(ROOT)} says")


main()
