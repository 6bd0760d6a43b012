"""Fails when a member of the workspace names a dependency that none of its sources uses."""

import json
import pathlib
import re
import subprocess
import sys

metadata = json.loads(
    subprocess.run(
        ["cargo", "metadata", "--no-deps", "--format-version", "1"], check=True, capture_output=True, text=True
    ).stdout
)
bad = 0
for package in metadata["packages"]:
    folder = pathlib.Path(package["manifest_path"]).parent
    members = {pathlib.Path(p["manifest_path"]).parent for p in metadata["packages"]} - {folder}
    sources = [
        path
        for path in folder.rglob("*.rs")
        if "target" not in path.relative_to(folder).parts[:1] and not any(m in path.parents for m in members if m != folder and folder in m.parents)
    ]
    text = "\n".join(path.read_text() for path in sources)
    for dependency in package["dependencies"]:
        name = (dependency["rename"] or dependency["name"]).replace("-", "_")
        if not re.search(rf"\b{name}\b\s*(::|;|!|as\b|\{{)|extern crate {name}\b|derive\([^)]*{name}", text):
            print(f"{package['name']}: dependency {dependency['name']} ({dependency['kind'] or 'normal'}) is not used")
            bad = 1
sys.exit(bad)
