#!/usr/bin/env python3
"""Compiles rfs.ko for arm64, for each kernel of the list, or for those named. `make vm K=7.3-arm64` runs it on one.

The headers are those of Debian's arm64 kernels, in the versions that the tests run on amd64. What they share with
amd64, and the tools, come from the amd64 packages: Debian makes these tools for cross compilers, too.
"""

from __future__ import annotations

import argparse
import dataclasses
import shutil
import subprocess
import sys
from pathlib import Path

import build
import job as jobs
import kernel as kernels
from architecture import ARM64
from archive import ArchiveError, Suite
from kernel import Kernel

VARIABLES = [*ARM64.variables, "W=1"]


def share(known: Kernel, partial: Path, final: Path) -> None:
    """Links what both architectures share into unpacked arm64 headers, and makes these work where they are."""
    root = Path(known.headers).parents[2]
    for shared in [*root.glob("usr/src/*"), *root.glob("usr/lib/linux-kbuild-*")]:
        if shared != Path(known.headers):
            link = partial / shared.relative_to(root)
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(shared)
    for makefile in partial.glob(f"usr/src/linux-headers-*-{ARM64.name}/Makefile"):
        text = makefile.read_text()
        makefile.write_text(text.replace("/usr/src/linux-headers", f"{final}/usr/src/linux-headers"))
    kernels.fit_config(partial)


def headers(known: Kernel) -> Kernel:
    """The same kernel with headers for arm64."""
    suite = Suite(known.suite, ARM64.name)
    suite.refresh()
    release = known.release.replace("amd64", ARM64.name)
    package = suite.need(f"linux-headers-{release}")
    folder = f"{known.name}-{package.version.replace('~', '-')}-{ARM64.name}"
    root = Path(known.headers).parents[3] / folder
    suite.unpack([package], root, lambda partial: share(known, partial, root))
    return dataclasses.replace(known, release=release, headers=str(root / f"usr/src/linux-headers-{release}"))


def compiled(name: str) -> bool:
    """Compiles for one kernel; returns whether that gave no warning."""
    try:
        kernel = headers(jobs.fetch_kernel(kernels.entry(name).name))
        made = build.module(kernel, VARIABLES)
    except (ArchiveError, build.BuildError, OSError, subprocess.CalledProcessError) as error:
        print(f"arm64: {name}: {error}", file=sys.stderr)
        return False
    if made.warnings:
        print(made.log)
    print(f"{made.path}: built for {kernel.release}, {made.warnings} warnings", flush=True)
    return not made.warnings


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kernels", nargs="*", help="of tests/vm/kernels; default: all that are packaged")
    names = parser.parse_args().kernels or [entry.name for entry in kernels.listed()]
    if shutil.which(ARM64.compiler) is None:
        print(f"arm64: {ARM64.compiler} is not installed: apt-get install {ARM64.packages}", file=sys.stderr)
        return 1
    return 0 if all([compiled(name) for name in names]) else 1


if __name__ == "__main__":
    sys.exit(main())
