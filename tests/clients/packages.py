"""The files of Debian packages and of all their dependencies, in a folder that serves as their root directory."""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
from collections.abc import Iterable
from pathlib import Path

# Packages that every other may rely on, if the programs here do.
ALWAYS = ("bash", "coreutils", "dash", "grep", "libc-bin", "sed", "util-linux")
# Files made when packages were installed, which no package contains.
MADE = ("/etc/passwd", "/etc/group", "/etc/ld.so.cache", "/etc/nsswitch.conf", "/etc/alternatives", "/etc/fonts")
# No program here reads these.
LEFT_OUT = re.compile(r"/usr/share/(doc|info|lintian|locale|man)(/|$)")
DEVICES = {"null": (1, 3), "zero": (1, 5), "full": (1, 7), "random": (1, 8), "urandom": (1, 9)}
FORMAT = "${Package}\t${db:Status-Status}\t${Pre-Depends}, ${Depends}\t${Provides}\n"


def installed() -> str:
    """dpkg's list of all packages."""
    try:
        return subprocess.run(["dpkg-query", "-W", "-f", FORMAT], capture_output=True, text=True).stdout
    except OSError:
        # Not a Debian system.
        return ""


def names(text: str) -> list[list[str]]:
    """Parses dependencies: a package requires one of each of these lists."""
    groups = ([one.split() for one in group.split("|")] for group in text.split(","))
    named = ([one[0].partition(":")[0] for one in group if one] for group in groups)
    return [group for group in named if group]


def closure(said: str, wanted: Iterable[str]) -> list[str]:
    """The wanted packages and all their dependencies, without those that are not installed."""
    needs, provided = {}, {}
    for line in said.splitlines():
        package, status, depends, provides = line.split("\t")
        if status == "installed":
            needs[package] = names(depends)
            for virtual in names(provides):
                provided.setdefault(virtual[0], package)
    found, ahead = set(), list(wanted)
    while ahead:
        package = ahead.pop()
        package = package if package in needs else provided.get(package, "")
        if package and package not in found:
            found.add(package)
            ahead += [one for group in needs[package] for one in group if one in needs or one in provided]
    return sorted(found)


def files(packages: list[str]) -> list[str]:
    done = subprocess.run(["dpkg-query", "-L", *packages], capture_output=True, text=True, check=True)
    return [line for line in done.stdout.splitlines() if line.startswith("/") and not LEFT_OUT.search(line)]


def put(path: str, root: Path) -> None:
    """Copies a file of this machine to the same path in that root directory; never shares an inode."""
    source, target = Path(path), root / path.lstrip("/")
    if not os.path.lexists(source) or os.path.lexists(target):
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_symlink():
        target.symlink_to(os.readlink(source))
    elif source.is_dir():
        target.mkdir()
        shutil.copystat(source, target)
    elif source.is_file():
        shutil.copy2(source, target)


def make_root(root: Path, wanted: Iterable[str]) -> None:
    root.mkdir(mode=0o755)
    # As usual, /bin is a link to /usr/bin.
    for path in Path("/").iterdir():
        if path.is_symlink() and not path.readlink().is_absolute():
            put(str(path), root)
            (root / path.readlink()).mkdir(parents=True, exist_ok=True)
    for path in files(closure(installed(), [*ALWAYS, *wanted])):
        put(path, root)
    for path in MADE:
        inner = sorted(Path(path).rglob("*")) if Path(path).is_dir() else []
        for one in [Path(path), *inner]:
            put(str(one), root)
    for folder in ("dev/shm", "proc", "tmp"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    for device, (major, minor) in DEVICES.items():
        os.mknod(root / "dev" / device, 0o666 | stat.S_IFCHR, os.makedev(major, minor))
        (root / "dev" / device).chmod(0o666)
