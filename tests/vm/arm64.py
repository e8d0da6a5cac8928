#!/usr/bin/env python3
"""Compiles rfs.ko for arm64, for each kernel of the list, or for those named. It is not run.

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
from archive import ArchiveError, Suite
from kernel import Kernel

ARCHITECTURE = "arm64"
PREFIX = "aarch64-linux-gnu-"
COMPILER = f"{PREFIX}gcc"
VARIABLES = [f"ARCH={ARCHITECTURE}", f"CROSS_COMPILE={PREFIX}", f"CC={COMPILER}", "W=1"]


def share(known: Kernel, partial: Path, final: Path) -> None:
    """Links what both architectures share into unpacked arm64 headers, and makes these work where they are."""
    root = Path(known.headers).parents[2]
    for shared in [*root.glob("usr/src/*"), *root.glob("usr/lib/linux-kbuild-*")]:
        if shared != Path(known.headers):
            link = partial / shared.relative_to(root)
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(shared)
    for makefile in partial.glob(f"usr/src/linux-headers-*-{ARCHITECTURE}/Makefile"):
        text = makefile.read_text()
        makefile.write_text(text.replace("/usr/src/linux-headers", f"{final}/usr/src/linux-headers"))
    kernels.fit_config(partial)


def headers(known: Kernel) -> Kernel:
    """The same kernel with headers for arm64."""
    suite = Suite(known.suite, ARCHITECTURE)
    suite.refresh()
    release = known.release.replace("amd64", ARCHITECTURE)
    package = suite.need(f"linux-headers-{release}")
    folder = f"{known.name}-{package.version.replace('~', '-')}-{ARCHITECTURE}"
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
    if shutil.which(COMPILER) is None:
        print(f"arm64: {COMPILER} is not installed: apt-get install gcc-{PREFIX.rstrip('-')}", file=sys.stderr)
        return 1
    return 0 if all([compiled(name) for name in names]) else 1


if __name__ == "__main__":
    sys.exit(main())
