"""Writes THIRD-PARTY.txt: the packages that are linked into the shipped binaries, their licences, and the notices that these
licences require.

    python3 tools/third_party.py            # writes it
    python3 tools/third_party.py --check    # fails if its packages, versions or licences differ from those that are linked

`cargo metadata` lists the packages of the server, the C library and the Python package; tests, build scripts and
macros are in none of them. A package that offers a choice is used under Apache-2.0, chiplog's own licence.
"""

import json
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
FILE = ROOT / "THIRD-PARTY.txt"
HANDED_OUT = {"chiplog-server", "chiplog-ffi", "chiplog-python"}
PLATFORMS = ["x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"]
OWN = "Apache-2.0"
INSIDE = {"zstd-sys": ["zstd/LICENSE"]}
"""Licences of a package's embedded code."""

HEAD = """\
chiplog is under the Apache License 2.0: see LICENSE. Its server, its C library and its Python package also contain the
packages below, each under the licence that follows it. If a package offers a choice, it is used under Apache-2.0. The
Rust standard library is linked in as well, under Apache-2.0 or MIT.

Made by tools/third_party.py: do not edit by hand.

"""

MIT = """\
Permission is hereby granted, free of charge, to any person obtaining a copy of this software and associated documentation
files (the "Software"), to deal in the Software without restriction, including without limitation the rights to use, copy,
modify, merge, publish, distribute, sublicense, and/or sell copies of the Software, and to permit persons to whom the
Software is furnished to do so, subject to the following conditions:

The above copyright notice and this permission notice shall be included in all copies or substantial portions of the Software.

THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT NOT LIMITED TO THE
WARRANTIES OF MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS OR
COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE,
ARISING FROM, OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE.
"""


def linked() -> list[dict[str, Any]]:
    """The third-party packages that are linked in, on any of the platforms, by their names."""
    found: dict[str, dict[str, Any]] = {}
    for platform in PLATFORMS:
        command = [os.environ.get("CARGO", "cargo"), "metadata", "--locked", "--format-version", "1"]
        command += ["--filter-platform", platform]
        told = json.loads(subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout)
        packages = {package["id"]: package for package in told["packages"]}
        needs = {node["id"]: node["deps"] for node in told["resolve"]["nodes"]}
        todo = [id for id, package in packages.items() if package["name"] in HANDED_OUT]
        assert len(todo) == len(HANDED_OUT), "a shipped package is missing"
        seen: set[str] = set()
        while todo:
            id = todo.pop()
            is_macro = any("proc-macro" in target["kind"] for target in packages[id]["targets"])
            if id in seen or is_macro:
                continue
            seen.add(id)
            todo += [need["pkg"] for need in needs[id] if any(kind["kind"] is None for kind in need["dep_kinds"])]
        found |= {id: packages[id] for id in seen if packages[id]["source"]}
    return sorted(found.values(), key=lambda package: (package["name"], package["version"]))


def row(package: dict[str, Any]) -> str:
    return f"{package['name']} {package['version']}: {package['license']}"


def choices(package: dict[str, Any]) -> set[str]:
    """The licences that a package offers as alternatives; empty: its licence is more complex."""
    text = package["license"].replace("/", " OR ")
    return set() if " AND " in text else {choice.strip() for choice in text.split(" OR ")}


def notices(package: dict[str, Any]) -> list[str]:
    """The texts that must accompany a package: its licences, except our own."""
    folder = Path(package["manifest_path"]).parent
    own = OWN in choices(package)
    wanted = ("NOTICE",) if own else ("LICENSE", "LICENCE", "COPYRIGHT", "NOTICE")
    files = [file for file in sorted(folder.iterdir()) if file.name.upper().startswith(wanted) and file.is_file()]
    files = [file for file in files if "APACHE" not in file.name.upper()]
    texts = [file.read_text() for file in files + [folder / name for name in INSIDE.get(package["name"], [])]]
    if texts or own:
        return texts
    assert choices(package) == {"MIT"}, f"{row(package)}: no file with its licence"
    holders = ", ".join(package["authors"]) or f"the authors of {package['name']}"
    return [f"Copyright (c) {holders}\n\n{MIT}"]


def written(packages: list[dict[str, Any]]) -> str:
    of: dict[str, list[str]] = defaultdict(list)
    for package in packages:
        for text in notices(package):
            lines = [line.rstrip() for line in text.replace("\r\n", "\n").strip().split("\n")]
            of["\n".join(lines)].append(f"{package['name']} {package['version']}")
    parts = [HEAD + "\n".join(map(row, packages)) + "\n"]
    for text, names in sorted(of.items(), key=lambda item: item[1]):
        parts.append(f"{'=' * 80}\n{', '.join(names)}\n{'=' * 80}\n\n{text}\n")
    return "\n".join(parts)


def main() -> None:
    packages = linked()
    if sys.argv[1:] != ["--check"]:
        FILE.write_text(written(packages))
        return
    told = FILE.read_text().removeprefix(HEAD).split("\n\n")[0].splitlines()
    wanted = [row(package) for package in packages]
    for line in sorted(set(told) ^ set(wanted)):
        print(f"THIRD-PARTY.txt: {'not linked in' if line in told else 'missing'}: {line}", file=sys.stderr)
    if told != wanted:
        raise SystemExit("THIRD-PARTY.txt is not current: python3 tools/third_party.py writes it")


if __name__ == "__main__":
    main()
