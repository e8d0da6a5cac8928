"""Pages of files that the kernel reclaimed while a command ran, if the kernel counts them."""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from pathlib import Path

VMSTAT = Path("/proc/vmstat")


@dataclass(frozen=True)
class Reclaimed:
    """Counts in bytes, for the whole machine."""

    # Reclaimed from the page cache, and read again not long after being reclaimed.
    stolen: int = 0
    refaulted: int = 0

    def since(self, before: Reclaimed) -> Reclaimed:
        return Reclaimed(self.stolen - before.stolen, self.refaulted - before.refaulted)


def parse(text: str) -> Reclaimed:
    told = dict(line.split(" ", 1) for line in text.splitlines() if " " in line)
    stolen, refaulted = (int(told.get(word, 0)) for word in ("pgsteal_file", "workingset_refault_file"))
    return Reclaimed(stolen * mmap.PAGESIZE, refaulted * mmap.PAGESIZE)


def now() -> Reclaimed:
    return parse(VMSTAT.read_text())
