"""A memory cgroup for a whole command, of either version, and what is charged to it."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path

V1, V2 = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")
# How often one looks at what a start has taken, in seconds.
LOOK = 0.05
# Their names in memory.stat: what files take, and what has no file.
WORDS = {V1: ("total_cache", "total_rss"), V2: ("file", "anon")}
LIMITS = {V1: "memory.limit_in_bytes", V2: "memory.max"}


class NoGroupError(Exception):
    """This machine lets no memory cgroup be made."""


@dataclass
class Taken:
    """What a start had at most, in bytes."""

    files: int = 0
    anonymous: int = 0

    @property
    def all(self) -> int:
        return self.files + self.anonymous

    def note(self, files: int, anonymous: int) -> None:
        self.files, self.anonymous = max(self.files, files), max(self.anonymous, anonymous)


def charged(stat: str, root: Path) -> tuple[int, int]:
    """Files and anonymous memory, by the text of memory.stat."""
    told = dict(line.split(" ", 1) for line in stat.splitlines() if " " in line)
    files, anonymous = (int(told.get(word, 0)) for word in WORDS[root])
    return files, anonymous


def share(text: str) -> float:
    """Of 45%, 0.45."""
    part = float(text.removesuffix("%")) / 100
    if not text.endswith("%") or not 0.01 <= part <= 2:
        raise ValueError(f"{text} is no share: 45% is one")
    return part


class Group:
    """It is gone when this is closed. What files have left in memory is its parent's then."""

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
        """The calling process is in it, with all that it starts."""
        (self.path / "cgroup.procs").write_text(str(os.getpid()))

    def charged(self) -> tuple[int, int]:
        return charged((self.path / "memory.stat").read_text(), self.root)

    def close(self) -> None:
        # Its last process may not be quite gone.
        for _ in range(50):
            try:
                self.path.rmdir()
                return
            except OSError:
                time.sleep(0.02)


class Watch:
    """Looks at a group while something is in it."""

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
