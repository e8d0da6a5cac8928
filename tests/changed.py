#!/usr/bin/env python3
"""The unit tests of the crates that changed, and of those that use them.

    changed.py [--base COMMIT] [--list]

Changes are the differences between the tree, with uncommitted and untracked files, and the commit where the branch
left main; on main itself, or without a difference, the last commit before HEAD. A file changes the crate whose folder
it is in; one beside crates, like policies/ppc.h, those below its folder; the workspace's own Cargo files all of them.
Unit tests are those of libraries and programs: the tests in a crate's tests/ take longer.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

TREE = Path(__file__).resolve().parent.parent
# If these change, everything may: versions of dependencies, lints, features.
EVERYTHING = {"Cargo.toml", "Cargo.lock"}
# Files beside crates that can be part of one.
SOURCES = {".rs", ".c", ".h", ".toml"}


@dataclass
class Crate:
    name: str
    # Relative to the root of the tree.
    folder: str
    has_library: bool
    uses: set[str] = field(default_factory=set)


def git(*words: str) -> str | None:
    done = subprocess.run(["git", *words], cwd=TREE, capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else None


def branch_point(given: str) -> str | None:
    """The commit to compare with."""
    for other in [given] if given else ["main", "origin/main"]:
        if found := git("merge-base", "HEAD", other):
            return found.strip()
    if given:
        sys.exit(f"changed.py: {given} is not a commit with a common history")
    return None


def changed_files(base: str) -> list[str]:
    differing = git("diff", "--name-only", base) or ""
    untracked = git("ls-files", "--others", "--exclude-standard") or ""
    return sorted({*differing.splitlines(), *untracked.splitlines()})


def changes(given: str) -> list[str]:
    """Files that changed; those of the last commit if none has since."""
    base = branch_point(given)
    return (changed_files(base) if base else []) or ([] if given else changed_files("HEAD~1"))


def crates() -> list[Crate]:
    shown = subprocess.run(
        ["cargo", "metadata", "--no-deps", "--locked", "--format-version", "1"],
        cwd=TREE,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    packages = json.loads(shown.stdout)["packages"]
    names = {package["name"] for package in packages}
    return [
        Crate(
            package["name"],
            os.path.relpath(Path(package["manifest_path"]).parent, TREE),
            any({"lib", "cdylib", "rlib"} & set(target["kind"]) for target in package["targets"]),
            {one["name"] for one in package["dependencies"]} & names,
        )
        for package in packages
    ]


def is_below(path: str, folder: str) -> bool:
    return path.startswith(f"{folder}/")


def directly_changed(files: list[str], known: list[Crate]) -> set[str]:
    found: set[str] = set()
    for file in files:
        if file in EVERYTHING:
            return {crate.name for crate in known}
        inside = [crate for crate in known if is_below(file, crate.folder)]
        if inside:
            found.add(max(inside, key=lambda crate: len(crate.folder)).name)
        elif Path(file).suffix in SOURCES and (beside := os.path.dirname(file)):
            found.update(crate.name for crate in known if is_below(crate.folder, beside))
    return found


def with_users(changed: set[str], known: list[Crate]) -> list[Crate]:
    """These crates and all that use them, directly or not, in the workspace's order."""
    found = set(changed)
    while more := {crate.name for crate in known if crate.uses & found} - found:
        found |= more
    return [crate for crate in known if crate.name in found]


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", default="", help="compare with where the branch left this")
    parser.add_argument("--list", action="store_true", help="only the crates")
    args = parser.parse_args(arguments)
    known = crates()
    chosen = with_users(directly_changed(changes(args.base), known), known)
    if args.list:
        print(*(crate.name for crate in chosen), sep="\n", end="\n" if chosen else "")
        return 0
    if not chosen:
        # In the words of test runners: nothing was skipped, because there was nothing to run.
        print("no crate has changed\n0 passed, 0 failed")
        return 0
    packages = [word for crate in chosen for word in ("--package", crate.name)]
    kinds = ["--bins", *(["--lib"] if any(crate.has_library for crate in chosen) else [])]
    return subprocess.run(["cargo", "test", "--locked", "--no-fail-fast", *packages, *kinds], cwd=TREE).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
