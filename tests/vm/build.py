"""Builds what goes into a guest: modules for its kernel, the test program, and PID 1.

Nothing is written into the tree: each kernel has folders of its own in the cache, with copies of the sources.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from architecture import AMD64, Architecture
from archive import ArchiveError, cache_dir, locked
from kernel import Kernel

HERE = Path(__file__).resolve().parent
TREE = HERE.parents[1]
# Another module, or other tests, for trying the rig itself.
MODULE = Path(os.environ.get("RFS_KMOD") or TREE / "kmod")
GUEST = HERE / "guest"
# A module for guests on an emulated processor of this machine's kind, and its name.
EMULATOR = HERE / "emulator"
STALE_INT3 = "stale_int3"
# Two checkouts share a cache, but not their builds.
TREE_ID = f"{TREE.name}-{hashlib.sha256(str(TREE).encode()).hexdigest()[:8]}"
COMPILE = ["-O2", "-Wall", "-Wextra", "-Werror", "-pthread"]
LINK = ["-static", "-pthread"]
# Size above which programs go into the guest stripped.
LARGE = 1 << 20
WARNING = re.compile(r"(:\d+: (warning|error):|: (warning|error): |^WARNING: )", re.MULTILINE)


class BuildError(Exception):
    """A compilation failed; the message has the compiler's output."""


@dataclass(frozen=True)
class Built:
    """A module as it was built. Its bytes are kept, because another run may rebuild it at any time."""

    path: Path
    data: bytes
    log: str
    warnings: int


def copy_tree(source: Path, target: Path) -> bool:
    """Makes target the same as source, touching only what differs. Returns whether anything did."""
    changed = False
    wanted = {path.relative_to(source) for path in source.rglob("*") if path.is_file()}
    for name in sorted(wanted):
        new, old = source / name, target / name
        if not old.exists() or old.read_bytes() != new.read_bytes():
            old.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(new, old)
            changed = True
    listing = target / ".sources"
    names = "".join(f"{name}\n" for name in sorted(wanted))
    before = listing.read_text().splitlines() if listing.exists() else []
    for gone in set(before) - set(names.splitlines()):
        (target / gone).unlink(missing_ok=True)
        changed = True
    listing.write_text(names)
    return changed


def module(kernel: Kernel, variables: list[str] | None = None, source: Path = MODULE, name: str = "rfs") -> Built:
    """A module for a kernel. With extra make variables (W=1, C=2), everything is compiled again."""
    variables = variables or []
    if not (source / "Kbuild").exists():
        raise BuildError(f"{source} has no Kbuild")
    special = "".join("-" + re.sub(r"\W+", "_", variable) for variable in variables)
    special += "" if name == "rfs" else f"-{name}"
    folder = cache_dir() / "build" / f"{TREE_ID}-{kernel.name}-{kernel.release}{special}"
    with locked(folder.with_name(folder.name + ".lock")):
        folder.mkdir(parents=True, exist_ok=True)
        target = folder / f"{name}.ko"
        log = folder / ".log"
        changed = copy_tree(source, folder)
        if target.exists() and log.exists() and not changed and not variables:
            return built(target, log.read_text())
        target.unlink(missing_ok=True)
        base = ["make", "-C", kernel.headers, f"M={folder}", *kernel.architecture.variables]
        base.append("CONFIG_DEBUG_INFO_BTF_MODULES=")
        if variables:
            run_make([*base, "clean"], kernel)
        log.unlink(missing_ok=True)
        text = run_make([*base, f"-j{os.cpu_count() or 1}", *variables, "modules"], kernel)
        log.write_text(text)
        return built(target, text)


def make_environment() -> dict[str, str]:
    """The environment without a calling make's variables: V=1 or T=... would mean something else to the kernel's."""
    foreign = {"V", "K", "T", "C", "W", "M", "O", "MAKEFLAGS", "MAKEOVERRIDES", "MAKELEVEL", "MFLAGS"}
    return {name: value for name, value in os.environ.items() if name not in foreign}


def run_make(command: list[str], kernel: Kernel) -> str:
    done = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        env=make_environment(),
    )
    if done.returncode != 0:
        raise BuildError(f"the module does not build for {kernel.name}\n{' '.join(command)}\n{done.stdout}")
    return done.stdout


def built(target: Path, log: str) -> Built:
    if not target.exists():
        raise BuildError(f"the build ended well but made no {target.name}:\n{log}")
    return Built(target, target.read_bytes(), log, len(WARNING.findall(log)))


def program(name: str, sources: list[Path], flags: list[str], architecture: Architecture) -> Path:
    """A static program for the guest. Only objects older than their source, or than a header, are compiled."""
    compiler = architecture.compiler
    if shutil.which(compiler) is None:
        raise BuildError(f"{compiler} is not installed: apt-get install {architecture.packages}")
    folder = cache_dir() / "build" / f"{TREE_ID}-guest{'' if architecture is AMD64 else '-' + architecture.name}"
    target = folder / name
    headers = max(path.stat().st_mtime for path in [*GUEST.rglob("*.h"), *(MODULE / "include").rglob("*.h")])
    objects = {source: folder / f"{name}-{source.stem}.o" for source in sorted(sources)}

    def compile_one(source: Path) -> None:
        made = objects[source]
        # The object gets the time of its source, so that an edit during the compilation is not missed.
        stamp = max(headers, source.stat().st_mtime)
        if made.exists() and made.stat().st_mtime >= stamp:
            return
        scratch = made.with_suffix(".new")
        run_compiler(name, [compiler, *COMPILE, *flags, "-c", "-o", str(scratch), str(source)])
        os.utime(scratch, (stamp, stamp))
        scratch.replace(made)

    with locked(folder / f"{name}.lock"):
        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            list(pool.map(compile_one, objects))
        parts = [str(made) for made in objects.values()]
        listing = target.with_suffix(".objects")
        newest = max(made.stat().st_mtime for made in objects.values())
        same = listing.exists() and listing.read_text() == "\n".join(parts)
        if not (same and target.exists() and target.stat().st_mtime >= newest):
            scratch = target.with_suffix(".new")
            run_compiler(name, [compiler, *LINK, "-o", str(scratch), *parts])
            os.utime(scratch, (newest, newest))
            scratch.replace(target)
            listing.write_text("\n".join(parts))
    return target


def run_compiler(name: str, command: list[str]) -> None:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode != 0:
        raise BuildError(f"{name} does not compile\n{' '.join(command)}\n{done.stdout}")


def init(architecture: Architecture = AMD64) -> Path:
    return program("init", [GUEST / "init.c", *(GUEST / "init").glob("*.c")], [], architecture)


def test_program(architecture: Architecture = AMD64) -> Path:
    """The program with the tests: every C file of the guest folder but PID 1."""
    sources = [path for path in GUEST.glob("*.c") if path.name != "init.c"]
    given = os.environ.get("RFS_TEST")
    if given:
        return Path(given)
    if not sources:
        raise ArchiveError(f"{GUEST} has no tests")
    return program("rfs-test", sources, ["-I", str(MODULE / "include/uapi")], architecture)


def overlay() -> Path | None:
    """A folder whose files go into the guest at the same paths: GUEST_ROOT names it, make fills it."""
    given = os.environ.get("GUEST_ROOT")
    if not given:
        return None
    if not Path(given).is_dir():
        raise ArchiveError(f"GUEST_ROOT: no such folder: {given}")
    return Path(given).resolve()


def copy_stripped(source: Path, target: Path) -> None:
    """A copy without debug information: that is most of a large program, and would take the guest's memory."""
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(source, target)
    with target.open("rb") as file:
        large_elf = file.read(4) == b"\x7fELF" and target.stat().st_size > LARGE
    if large_elf:
        subprocess.run(["strip", "--strip-debug", str(target)], check=True)


def extra_programs() -> list[Path]:
    """Other programs for the guest's /bin: those in the cache's extra folder, and those that EXTRA names."""
    folder = cache_dir() / "extra"
    found = sorted(folder.iterdir()) if folder.is_dir() else []
    found += [Path(path) for path in os.environ.get("EXTRA", "").split(":") if path]
    missing = [str(path) for path in found if not path.is_file()]
    if missing:
        raise ArchiveError(f"EXTRA: no such file: {', '.join(missing)}")
    return found
