"""Fails when a shared store, compare-and-swap or fence of a protocol has no numbered step directly before it."""

import pathlib
import re
import sys

STORE = re.compile(r"\.(swap|store|compare_exchange|fetch_\w+|fill_body|fill_identity|fill)\(|\bfence(\(| \w+, )Ordering::SeqCst\)")
# The primitives themselves; what belongs to the process alone; and the flight recorder, which decides nothing.
PRIMITIVES = {"sync.rs", "step.rs", "heap.rs", "slot.rs", "view.rs", "copy.rs", "words.rs", "model.rs", "recorder.rs"}
PRIVATE = re.compile(r"process::|cursor\.|full_look_ms|open_reservations|\.loads\.|replaced\.store")

bad = 0
for path in sorted(pathlib.Path("src").rglob("*.rs")):
    if path.name in PRIMITIVES or "os" in path.parts or "tests" in path.parts:
        continue
    lines = path.read_text().splitlines()
    for at, line in enumerate(lines):
        code = line.split("//")[0]
        if not STORE.search(code) or PRIVATE.search(code):
            continue
        if not any("step!(" in before for before in lines[max(0, at - 9) : at + 1]):
            print(f"{path}:{at + 1}: no step! before: {line.strip()}")
            bad = 1
sys.exit(bad)
