"""The memory of a virtual machine whose host takes back what is free (free page reporting).

The host has to give such a page back at its first touch, which took 7 microseconds for 4 KiB: starts took longer if they
happened to get such pages. So nothing goes to the host during a measurement, and memory is touched before.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# The order of the smallest blocks of free pages that the guest reports to the host.
ORDER = Path("/sys/module/page_reporting/parameters/page_reporting_order")
# More than any block has; where that is refused, the most that one has.
LARGEST = ("11", "10")
# Enough for a framework, its model and the cache of both.
TOUCHED = 6 << 30


@contextmanager
def kept(order: Path = ORDER, touched: int = TOUCHED) -> Iterator[None]:
    """The host takes nothing meanwhile. Without such a host, or for users who may not change that, nothing happens."""
    try:
        before = order.read_text().strip()
    except OSError:
        before = ""
    changed = bool(before) and any(written(order, number) for number in LARGEST)
    try:
        if changed:
            touch(min(touched, os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2))
        yield
    finally:
        if changed and not written(order, before):
            print(f"{order} was {before}", file=sys.stderr)


def touch(count: int) -> None:
    """Writes to as much memory, and frees it."""
    part = b"\1" * (1 << 20)
    held = [bytearray(part) for _ in range(count >> 20)]
    held.clear()


def written(path: Path, text: str) -> bool:
    try:
        path.write_text(text)
    except OSError:
        return False
    return True
