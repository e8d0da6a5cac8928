"""Programs for the guest that are not ours, with their libraries: this machine's, or those of Debian's packages for
another processor."""

from __future__ import annotations

import functools
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from architecture import AMD64, Architecture
from archive import ArchiveError, Suite, cache_dir

MKFS = ["mkfs.btrfs", "mkfs.erofs", "mkfs.ext4", "mkfs.xfs"]
# This machine's release, and the packages with these programs in it.
SUITE = "bookworm"
PACKAGES = ["busybox", "btrfs-progs", "e2fsprogs", "erofs-utils", "xfsprogs"]
FOLDERS = ["usr/sbin", "usr/bin", "sbin", "bin"]
NEEDED = re.compile(r"\(NEEDED\).*\[(.+)\]")
# What a program asks the kernel to start it with.
LOADER = re.compile(r"Requesting program interpreter: (.+)\]")


def programs(architecture: Architecture) -> dict[str, Path]:
    """The programs, by their paths in the guest."""
    find = host_program if architecture is AMD64 else functools.partial(unpacked_program, packages(architecture))
    return {f"sbin/{name}": find(name) for name in MKFS} | {"bin/busybox": find("busybox")}


def applets() -> list[str]:
    """What busybox can do; that of another processor does not run here, and is the same release's."""
    shown = subprocess.run([str(host_program("busybox")), "--list"], capture_output=True, text=True, check=True)
    return shown.stdout.split()


def libraries(paths: list[Path], architecture: Architecture) -> dict[str, Path]:
    """The libraries that programs are linked with, and their loader, by their paths in the guest."""
    if architecture is AMD64:
        # At the path where the loader looks; a link on the way is as good as the file.
        return {str(library): library for path in paths for library in libraries_of(path)}
    root = packages(architecture)
    return {name: found for path in paths for name, found in unpacked_libraries(path, root, architecture)}


def host_program(name: str) -> Path:
    """Path of a program of this machine; /sbin is not on every user's path."""
    found = shutil.which(name, path="/usr/sbin:/usr/bin:/sbin:/bin")
    if found is None:
        raise ArchiveError(f"{name} is not installed; `make deps` installs what the rig needs")
    return Path(found)


def is_elf(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4) == b"\x7fELF"


@functools.cache
def libraries_of(path: Path) -> list[Path]:
    """The libraries that a program or a library is linked with, and the loader; none for a static one."""
    if not is_elf(path):
        return []
    shown = subprocess.run(["ldd", str(path)], capture_output=True, text=True, check=False)
    if shown.returncode != 0:
        return []
    lines = shown.stdout.splitlines()
    missing = [line.split()[0] for line in lines if line.endswith("not found")]
    if missing:
        raise ArchiveError(f"{path.name} needs what this machine does not have: {', '.join(missing)}")
    return [Path(word) for line in lines for word in line.split() if word.startswith("/")]


@functools.cache
def packages(architecture: Architecture) -> Path:
    """The packages for another processor, unpacked in the cache."""
    suite = Suite(SUITE, architecture.name)
    suite.refresh()
    root = cache_dir() / "userland" / f"{SUITE}-{architecture.name}"
    if not root.exists():
        suite.unpack(suite.closure(PACKAGES, r"lib.*"), root)
    return root


def unpacked_program(root: Path, name: str) -> Path:
    for folder in FOLDERS:
        path = root / folder / name
        if path.is_file():
            return path.resolve()
    raise ArchiveError(f"none of the packages in {root} has {name}")


def unpacked_libraries(path: Path, root: Path, architecture: Architecture) -> Iterator[tuple[str, Path]]:
    """As `libraries_of`, which asks the loader, and that of another processor does not run here."""
    waiting, seen = [path], set()
    while waiting:
        shown = subprocess.run(["readelf", "-dl", str(waiting.pop())], capture_output=True, text=True, check=False)
        loader = LOADER.findall(shown.stdout)
        for name in {*NEEDED.findall(shown.stdout), *loader} - seen:
            seen.add(name)
            base = Path(name).name
            places = [root / folder / architecture.libraries / base for folder in ("lib", "usr/lib")]
            found = next((place.resolve() for place in places if place.exists()), None)
            if found is None:
                raise ArchiveError(f"none of the packages in {root} has {base}, which {path.name} needs")
            waiting.append(found)
            yield (name if name in loader else f"/lib/{architecture.libraries}/{base}", found)
