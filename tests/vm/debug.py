"""The debug kernel: Debian's 6.1 source with every checker on, built once and kept in the cache.

No distribution packages such a kernel. The cache key is the configuration and the package's version, so a change of
either builds anew (about eight minutes on two cores).
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from archive import ArchiveError, Suite, cache_dir, locked
from build import make_environment
from kernel import Kernel

SUITE = "bookworm"
SOURCE = "linux-source-6.1"
CONFIG = Path(__file__).with_name("debug.config")
NAME = "debug"
# Folders a module build against the finished tree never reads; with the objects they are most of its size.
UNNEEDED = ["Documentation", "drivers", "sound", "samples", "net", "fs", "mm", "crypto", "block", "lib", "debian"]


def fetch(force: bool = False) -> Kernel:
    """The debug kernel, built if it is not in the cache."""
    folder = cache_dir() / "debug"
    suite = Suite(SUITE)
    if suite.refresh(force):
        version = suite.need(SOURCE).version
    else:
        version = newest_cached(folder)
    digest = hashlib.sha256(CONFIG.read_bytes() + version.encode()).hexdigest()[:16]
    final = folder / f"{version}-{digest}"
    with locked(folder / f"{digest}.lock"):
        if not final.exists():
            source = folder / f"source-{version}"
            suite.unpack([suite.need(SOURCE)], source)
            build(source, final)
    return describe(final, version)


def newest_cached(folder: Path) -> str:
    """Without a network: the version of the source package fetched last."""
    sources = sorted(folder.glob("source-*[0-9]"), key=lambda path: path.stat().st_mtime)
    if not sources:
        raise ArchiveError(f"{SOURCE} is not in the cache and {SUITE} cannot be reached")
    return sources[-1].name.removeprefix("source-")


def build(source: Path, final: Path) -> None:
    """Unpacks, configures and builds; the tree gets its name when all of it is there."""
    partial = final.with_name(final.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    print(f"building the debug kernel in {partial} (about 8 minutes on 2 cores, once)", file=sys.stderr)
    tarball = source / "usr/src" / f"{SOURCE}.tar.xz"
    subprocess.run(["tar", "-xf", str(tarball), "-C", str(partial), "--strip-components=1"], check=True)
    log = final.with_name(final.name + ".log")
    with log.open("w") as handle:
        for step in (["-s", "tinyconfig"], ["olddefconfig"], [f"-j{os.cpu_count() or 1}", "all"]):
            if step == ["olddefconfig"]:
                with (partial / ".config").open("a") as config:
                    config.write(CONFIG.read_text())
            # The version has to come from the release alone: the tree may lie inside somebody's git checkout.
            command = ["nice", "-n", "19", "make", *step, "LOCALVERSION="]
            done = subprocess.run(
                command, cwd=partial, env=make_environment(), stdout=handle, stderr=subprocess.STDOUT, check=False
            )
            if done.returncode != 0:
                raise ArchiveError(f"building the debug kernel failed; see {log}")
            if step == ["olddefconfig"]:
                check_config(partial / ".config")
    prune(partial)
    partial.rename(final)


def check_config(final: Path) -> None:
    """Every line asked for must have survived the dependencies."""
    have = set(final.read_text().splitlines())
    asked = [line for line in CONFIG.read_text().splitlines() if re.match(r"(# )?CONFIG_\w+(=| is not set)", line)]
    # An option turned off whose dependencies are off too is not mentioned at all, which is as good.
    lost = [line for line in asked if line not in have and not line.startswith("# ")]
    lost += [line for line in asked if line.startswith("# ") and f"{line.split()[1]}=y" in have]
    if lost:
        raise ArchiveError(f"options of {CONFIG.name} that the kernel's own rules dropped: {', '.join(lost)}")


def prune(tree: Path) -> None:
    for name in UNNEEDED:
        shutil.rmtree(tree / name, ignore_errors=True)
    for arch in (tree / "arch").iterdir():
        if arch.is_dir() and arch.name != "x86":
            shutil.rmtree(arch)
    keep = {"scripts", "tools"}
    for path in tree.rglob("*.[oa]"):
        if path.relative_to(tree).parts[0] not in keep and "lds" not in path.name:
            path.unlink()
    (tree / "vmlinux").unlink(missing_ok=True)


def describe(tree: Path, version: str) -> Kernel:
    release = (tree / "include/config/kernel.release").read_text().strip()
    return Kernel(
        name=NAME,
        suite=SUITE,
        version=version,
        release=release,
        image=str(tree / "arch/x86/boot/bzImage"),
        modules=str(tree),
        headers=str(tree),
    )
