"""Pages of files that were taken back while something ran, as far as the kernel counts them."""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from pathlib import Path

VMSTAT = Path("/proc/vmstat")


@dataclass(frozen=True)
class Reclaimed:
    """In bytes, of the whole machine."""

    # Taken from the page cache, and read once more though it had been in there not long ago.
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
