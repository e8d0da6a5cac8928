"""Pages of files that the kernel reclaimed while a command ran, if the kernel counts them."""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from pathlib import Path

VMSTAT = Path("/proc/vmstat")
# The controls of DAMON, a part of the kernel that watches what is accessed.
DAMON = Path("/sys/kernel/mm/damon/admin/kdamonds")


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


def paged_out(damon: Path = DAMON) -> int:
    """The bytes that schemes of DAMON have paged out: these take pages that were not accessed for some time from all
    memory, a few of a new file among them, and /proc/vmstat does not count these."""
    total = 0
    for daemon in damon.glob("[0-9]*"):
        state = daemon / "state"
        try:
            if state.read_text().strip() != "on":
                continue
            # This order makes the kernel write the current numbers down; it returns when it has done so.
            state.write_text("update_schemes_stats")
        except OSError:
            continue
        for scheme in daemon.glob("contexts/*/schemes/*"):
            if scheme.is_dir() and (scheme / "action").read_text().strip() == "pageout":
                total += int((scheme / "stats/sz_applied").read_text())
    return total


def now() -> Reclaimed:
    counted = parse(VMSTAT.read_text())
    return Reclaimed(counted.stolen + paged_out(), counted.refaulted)
