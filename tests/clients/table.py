"""Tables of results for people. Pure functions."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median

from runs import Run

NONE = "-"
Cell = Callable[[list[Run]], str]


def seconds(runs: list[Run]) -> str:
    return f"{median(run.told['seconds'] for run in runs):.2f}"


def whole(runs: list[Run]) -> str:
    return f"{median(run.whole for run in runs):.2f}"


def device(model: int) -> Cell:
    """Bytes from the disk for each byte of the model."""
    return lambda runs: f"{median(run.device for run in runs) / model:.2f}"


def loaded(model: int) -> Cell:
    """The share of the model that MAIO loaded."""

    def share(runs: list[Run]) -> str:
        known = [stats["loaded_bytes"] for run in runs if (stats := run.summary.get("stats"))]
        return f"{median(known) / model:.2f}" if known else NONE

    return share


def grid(title: str, runs: list[Run], ways: list[str], cell: Cell) -> str:
    """A table with a row for each client and a column for each way."""
    sound = [run for run in runs if not run.broken]
    ways = [way for way in ways if any(run.way == way for run in sound)]
    rows = [[title, *ways]]
    for client in dict.fromkeys(run.client for run in sound):
        mine = [[run for run in sound if (run.client, run.way) == (client, way)] for way in ways]
        rows.append([client, *(cell(some) if some else NONE for some in mine)])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(line(row, widths) for row in rows)


def line(row: list[str], widths: list[int]) -> str:
    first, *others = zip(row, widths, strict=True)
    return "  ".join([first[0].ljust(first[1]), *(text.rjust(width) for text, width in others)]).rstrip()
