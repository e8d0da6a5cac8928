"""A memory cgroup for a whole command, of either version, and what is charged to it."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path

V1, V2 = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")
# Interval between two samples of what a start has taken, in seconds.
LOOK = 0.05
# Names in memory.stat: memory of files, and memory without a file.
WORDS = {V1: ("total_cache", "total_rss"), V2: ("file", "anon")}
LIMITS = {V1: "memory.limit_in_bytes", V2: "memory.max"}


class NoGroupError(Exception):
    """This machine does not allow making a memory cgroup."""


@dataclass
class Taken:
    """The most that a start had in memory, in bytes."""

    files: int = 0
    anonymous: int = 0

    @property
    def all(self) -> int:
        return self.files + self.anonymous

    def note(self, files: int, anonymous: int) -> None:
        self.files, self.anonymous = max(self.files, files), max(self.anonymous, anonymous)


def charged(stat: str, root: Path) -> tuple[int, int]:
    """Bytes of files and of anonymous memory, from the text of memory.stat."""
    told = dict(line.split(" ", 1) for line in stat.splitlines() if " " in line)
    files, anonymous = (int(told.get(word, 0)) for word in WORDS[root])
    return files, anonymous


def share(text: str) -> float:
    """Parses a share: 0.45 for 45%."""
    part = float(text.removesuffix("%")) / 100
    if not text.endswith("%") or not 0.01 <= part <= 2:
        raise ValueError(f"{text} is not a share such as 45%")
    return part


class Group:
    """A group that is removed when this is closed. Pages of files that it leaves in memory are its parent's then."""

    def __init__(self, name: str, limit: int = 0) -> None:
        self.root = V1 if (V1 / LIMITS[V1]).exists() else V2
        self.path = self.root / f"ppc-start-{os.getpid()}-{name}"
        try:
            if self.root == V2:
                (V2 / "cgroup.subtree_control").write_text("+memory")
            self.path.mkdir(exist_ok=True)
            if limit:
                (self.path / LIMITS[self.root]).write_text(str(limit))
        except OSError as error:
            raise NoGroupError(f"no memory cgroup: {error}; it takes root, and a cgroup that may be changed") from error

    def join(self) -> None:
        """Moves the calling process into the group, with all that it starts."""
        (self.path / "cgroup.procs").write_text(str(os.getpid()))

    def charged(self) -> tuple[int, int]:
        return charged((self.path / "memory.stat").read_text(), self.root)

    def close(self) -> None:
        # The last process of the group may not be quite gone.
        for _ in range(50):
            try:
                self.path.rmdir()
                return
            except OSError:
                time.sleep(0.02)


class Watch:
    """Samples a group's memory while a command runs in it."""

    def __init__(self, group: Group) -> None:
        self.group, self.taken, self.over = group, Taken(), threading.Event()
        self.thread = threading.Thread(target=self.look, daemon=True)

    def look(self) -> None:
        while not self.over.wait(LOOK):
            self.taken.note(*self.group.charged())

    def __enter__(self) -> Watch:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self.thread.join()
        self.taken.note(*self.group.charged())
