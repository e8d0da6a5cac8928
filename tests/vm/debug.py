"""The debug kernels, and that of arm64: Debian's sources with every checker on, each built once and kept in the cache.

No distribution packages such kernels. The cache key consists of the options asked for and the package's version, so
a change of either builds anew (about eight minutes on two cores); the order of the options and comments do not count.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from archive import ArchiveError, Package, Suite, cache_dir, locked
from architecture import Architecture, of_kernel
from build import make_environment
from kernel import Entry, Kernel, looks_for_races, series

HERE = Path(__file__).parent
# This metapackage depends on the newest source that a suite has.
METAPACKAGE = "linux-source"
# Folders that a module build never reads; together with the objects they are most of the tree's size.
UNNEEDED = ["Documentation", "drivers", "sound", "samples", "net", "fs", "mm", "crypto", "block", "lib", "debian"]
OPTION = re.compile(r"^(?:CONFIG_\w+=.*|# CONFIG_\w+ is not set)$", re.MULTILINE)


@dataclass(frozen=True)
class Source:
    """An unpacked source package."""

    suite: str
    version: str
    tarball: Path


def fetch(wanted: Entry, force: bool = False) -> Kernel:
    """A debug kernel of the list, built if it is not in the cache."""
    source = fetch_source(wanted, force)
    options = asked_options(wanted.name)
    digest = hashlib.sha256("\n".join([*sorted(options), source.version]).encode()).hexdigest()[:16]
    final = folder() / f"{source.version.replace('~', '-')}-{digest}"
    with locked(folder() / f"{digest}.lock"):
        if not final.exists():
            build(wanted.name, source.tarball, options, final)
    return describe(wanted.name, source, final)


def folder() -> Path:
    return cache_dir() / "debug"


def fetch_source(wanted: Entry, force: bool = False) -> Source:
    """The source of a debug kernel, from the first suite that has its series, or from the first suite if none has."""
    asked: list[Package] = []
    for name in wanted.suites:
        suite = Suite(name)
        if not suite.refresh(force) and (cached := newest_cached(name)):
            return cached
        package = source_package(suite)
        asked.append(package)
        if wanted.has_series(package.version):
            return unpack_source(suite, package)
    return unpack_source(Suite(wanted.suites[0]), asked[0])


def source_package(suite: Suite) -> Package:
    """The newest source in a suite: the metapackage says which it is."""
    names = suite.need(METAPACKAGE).depends_on(r"linux-source-[\d.]+")
    if not names:
        raise ArchiveError(f"{METAPACKAGE} of {suite.name} depends on no source")
    return suite.need(names[0])


def unpack_source(suite: Suite, package: Package) -> Source:
    target = folder() / f"source-{suite.name}-{package.version}"
    suite.unpack([package], target)
    return Source(suite.name, package.version, tarball_in(target))


def newest_cached(suite: str) -> Source | None:
    """The source last fetched from a suite, for use without a network."""
    found = folder().glob(f"source-{suite}-[0-9]*")
    sources = [path for path in found if path.is_dir() and path.suffix not in (".partial", ".debs")]
    if not sources:
        return None
    newest = max(sources, key=lambda path: path.stat().st_mtime)
    return Source(suite, newest.name.removeprefix(f"source-{suite}-"), tarball_in(newest))


def tarball_in(source: Path) -> Path:
    found = list(source.glob("usr/src/linux-source-*.tar.xz"))
    if len(found) != 1:
        raise ArchiveError(f"expected one source in {source}, found {[path.name for path in found]}")
    return found[0]


def asked_options(name: str) -> list[str]:
    """The options asked for: those of all debug kernels, those of the series, and those of the processor or of the
    search for races. Later ones take precedence."""
    names = ["debug", f"debug-{series(name)}", "kcsan" if looks_for_races(name) else of_kernel(name).name]
    chosen: dict[str, str] = {}
    for path in (HERE / f"{one}.config" for one in names):
        for line in OPTION.findall(path.read_text()) if path.exists() else []:
            chosen[option_name(line)] = line
    return list(chosen.values())


def option_name(line: str) -> str:
    return re.findall(r"CONFIG_\w+", line)[0]


def build(name: str, tarball: Path, options: list[str], final: Path) -> None:
    """Unpacks, configures and builds. The tree gets its name only once it is complete."""
    partial = final.with_name(final.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    print(f"building {name} in {partial} (about 8 minutes on 2 cores, once)", file=sys.stderr)
    subprocess.run(["tar", "-xf", str(tarball), "-C", str(partial), "--strip-components=1"], check=True)
    log = final.with_name(final.name + ".log")
    architecture = of_kernel(name)
    # Races of the kernel's own are none of our business: only the module's accesses are watched.
    variables = [*architecture.variables, *(["KCSAN_SANITIZE=n"] if looks_for_races(name) else [])]
    with log.open("w") as handle:
        for step in (["-s", "tinyconfig"], ["olddefconfig"], [f"-j{os.cpu_count() or 1}", "all"]):
            if step == ["olddefconfig"]:
                with (partial / ".config").open("a") as config:
                    config.writelines(f"{line}\n" for line in options)
            # The version has to come from the release alone: the tree may lie inside another project's git checkout.
            command = ["nice", "-n", "19", "make", *variables, *step, "LOCALVERSION="]
            done = subprocess.run(
                command, cwd=partial, env=make_environment(), stdout=handle, stderr=subprocess.STDOUT, check=False
            )
            if done.returncode != 0:
                raise ArchiveError(f"building {name} failed; see {log}")
            if step == ["olddefconfig"]:
                check_config(name, options, partial / ".config")
    prune(partial, architecture)
    partial.rename(final)


def check_config(name: str, options: list[str], final: Path) -> None:
    """Checks that every option asked for has survived the dependencies."""
    have = set(final.read_text().splitlines())
    # The final .config does not mention an option whose dependencies are off: that counts as off.
    lost = [line for line in options if line not in have and not line.startswith("# ")]
    lost += [line for line in options if line.startswith("# ") and f"{option_name(line)}=y" in have]
    if lost:
        raise ArchiveError(f"options of {name} that the kernel's own rules dropped: {', '.join(lost)}")


def prune(tree: Path, architecture: Architecture) -> None:
    for name in UNNEEDED:
        shutil.rmtree(tree / name, ignore_errors=True)
    for arch in (tree / "arch").iterdir():
        if arch.is_dir() and arch.name != architecture.folder:
            shutil.rmtree(arch)
    keep = {"scripts", "tools"}
    for path in tree.rglob("*.[oa]"):
        if path.relative_to(tree).parts[0] not in keep and "lds" not in path.name:
            path.unlink()
    (tree / "vmlinux").unlink(missing_ok=True)


def describe(name: str, source: Source, tree: Path) -> Kernel:
    release = (tree / "include/config/kernel.release").read_text().strip()
    return Kernel(
        name=name,
        suite=source.suite,
        version=source.version,
        release=release,
        image=str(tree / of_kernel(name).image),
        modules=str(tree),
        headers=str(tree),
    )
