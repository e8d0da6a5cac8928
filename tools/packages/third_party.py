#!/usr/bin/env python3
"""Prints the licences of the crates that the programs and the policies contain, as their authors require of binaries."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

# What is installed; their normal dependencies are linked into it.
SHIPPED = ("cprt", "ppcctl", "mount-rfs", "ppc-store", "maio", "ppc-eager", "ppc-null", "ppc-precache", "ppc-readahead")
# Where a crate may be used under one of several licences, MIT's is the one that is granted on.
CHOICES = (("*MIT*",), ("LICEN[CS]E*", "license*", "COPYING*"))
NO_TEXT = "(These come without a text; the file copyright has that of MIT and says where Apache's is.)"
RULE = "-" * 80


def metadata() -> dict[str, Any]:
    host = next(
        line.removeprefix("host: ")
        for line in subprocess.run(["rustc", "-vV"], check=True, capture_output=True, text=True).stdout.splitlines()
        if line.startswith("host: ")
    )
    command = ["cargo", "metadata", "--format-version", "1", "--offline", "--locked", "--filter-platform", host]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def linked(said: dict[str, Any]) -> list[dict[str, Any]]:
    """The packages from elsewhere that the shipped ones are linked with."""
    packages = {package["id"]: package for package in said["packages"]}
    nodes = {node["id"]: node for node in said["resolve"]["nodes"]}
    found: set[str] = set()
    waiting = [one for one, package in packages.items() if package["name"] in SHIPPED and not package["source"]]
    while waiting:
        one = waiting.pop()
        if one in found:
            continue
        found.add(one)
        for dependency in nodes[one]["deps"]:
            is_macro = any("proc-macro" in target["kind"] for target in packages[dependency["pkg"]]["targets"])
            if not is_macro and any(kind["kind"] is None for kind in dependency["dep_kinds"]):
                waiting.append(dependency["pkg"])
    return sorted((packages[one] for one in found if packages[one]["source"]), key=lambda one: one["name"])


def licences(package: dict[str, Any]) -> list[str]:
    """The texts that come with a package, of the licence that is made use of."""
    folder = Path(package["manifest_path"]).parent
    for patterns in CHOICES:
        files = sorted({path for pattern in patterns for path in folder.glob(pattern) if path.is_file()})
        if files:
            return [path.read_text(errors="replace").strip() for path in files]
    return []


def main() -> int:
    by_text: dict[str, list[str]] = {}
    for package in linked(metadata()):
        name = f"{package['name']} {package['version']}: {package['license']}"
        if authors := ", ".join(package["authors"]):
            name += f", by {authors}"
        for text in licences(package) or [NO_TEXT]:
            by_text.setdefault(text, []).append(name)
    for text, names in by_text.items():
        print(*names, "", text, RULE, sep="\n")
    return 0 if by_text else 1


if __name__ == "__main__":
    sys.exit(main())
