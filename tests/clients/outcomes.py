"""The results of starts, and how they are shown. Pure functions."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median

import table

COLD, WARM, MODEL_FIRST, FIRST, LATER = "cold", "warm", "model-first", "first", "later"
# Always in this order: the later start has what the first one recorded, and all but the warm one begin cold.
TURNS = [COLD, WARM, MODEL_FIRST, FIRST, LATER]
USUAL_TURNS = [COLD, WARM, FIRST, LATER]
# They add up to the whole. The check of what was loaded is the loader's own, and no part of what users wait for.
PHASES = ["until main", "imports", "weights", "check", "exit"]
# How many bytes may be reclaimed before this is no longer an accident, and how many a warm start may read: 24 MB, page
# by page, made one of 2.3 s take 19 from storage 20 ms away.
LARGE = 32 << 20
WARM_READS = 1 << 20


@dataclass
class Start:
    """One start of a row, in one turn."""

    row: str
    turn: str
    seconds: float = 0.0
    # Parts of these, in the order of PHASES; none if the program reports no moments.
    phases: list[float] = field(default_factory=list)
    device: int = 0
    digest: str = ""
    loaded: int = 0
    # Page faults of all its processes for which the disk was read.
    major: int = 0
    # The part of the weights that was cached when its imports were done; none if it does not report that.
    ahead: float | None = None
    # Bytes of files that meanwhile were reclaimed from the page cache, and read again not long after that.
    stolen: int = 0
    refaulted: int = 0
    # The most that it had in memory, if that was sampled, and its limit, if it had one.
    taken: int = 0
    limit: int = 0
    # For a start with a limit, the row without one.
    plain: str = ""
    # Bytes a second that the disk delivers; 0 if that is not known.
    bandwidth: int = 0
    # How it failed, with its last message; empty if it did not.
    broken: str = ""


@dataclass
class Outcome:
    """Medians of a row, in seconds and bytes."""

    row: str
    times: dict[str, float] = field(default_factory=dict)
    devices: dict[str, float] = field(default_factory=dict)
    # Those of the start with the median time, so that they add up to it.
    phases: dict[str, list[float]] = field(default_factory=dict)
    # Medians of major faults, and of the part of the weights that imports found cached.
    major: dict[str, float] = field(default_factory=dict)
    ahead: dict[str, float] = field(default_factory=dict)
    disturbed: list[str] = field(default_factory=list)
    # Time with everything cached; with limited memory, that of the row without a limit.
    cached: float | None = None
    # With limited memory, the most that was reclaimed during one start.
    squeezed: str = ""
    # Seconds that the disk takes for what a cold start reads, if they are known.
    alone: float | None = None

    @property
    def possible(self) -> float | None:
        """The same, of that part of the cold penalty which the disk allows to remove."""
        if self.removed is None or self.alone is None:
            return None
        return removed(self.times[COLD], max(self.cached, self.alone), self.times[LATER])

    @property
    def removed(self) -> float | None:
        """The part of the cold penalty that later starts do not pay."""
        if self.cached is None or not {COLD, LATER} <= set(self.times):
            return None
        return removed(self.times[COLD], self.cached, self.times[LATER])


def removed(cold: float, warm: float, ours: float) -> float:
    """1: as fast as with everything cached; 0: as slow as a cold start."""
    return (cold - ours) / (cold - warm) if cold > warm else 0.0


def turns(text: str) -> list[str]:
    """Parses the turns that are asked for, in the order in which they have to run."""
    wanted = [word.strip() for word in text.split(",")]
    if wrong := [word for word in wanted if word not in TURNS]:
        raise ValueError(f"{wrong[0]!r} is not a turn; the turns are {', '.join(TURNS)}")
    for later, before in ((WARM, COLD), (LATER, FIRST)):
        if later in wanted and before not in wanted:
            raise ValueError(f"{later!r} needs {before!r} before it")
    return [turn for turn in TURNS if turn in wanted]


def phases(began: float, moments: dict[str, float], ended: float) -> list[float]:
    """The phases from exec to exit, by the moments that a loader reports."""
    known = [moments.get(name) for name in ("main", "imported", "loaded", "end")]
    if None in known:
        return []
    edges = [began, *known, ended]
    return [end - begin for begin, end in zip(edges, edges[1:], strict=False)]


def disturbance(start: Start) -> str:
    """Signs that pages did not stay in memory, if there are any. With a limit they cannot stay."""
    told = []
    if start.limit:
        return ""
    if max(start.stolen, start.refaulted) > LARGE:
        told.append(f"{start.stolen >> 20} MiB of files taken back, {start.refaulted >> 20} MiB read again")
    if start.turn == WARM and start.device > WARM_READS:
        told.append(f"{start.device >> 20} MiB from the disk")
    return f"{start.row}, {start.turn}: {'; '.join(told)}" if told else ""


def outcomes(starts: list[Start], wanted: list[str]) -> list[Outcome]:
    """The outcomes of rows with a sound start in every turn."""
    found = []
    for row in dict.fromkeys(start.row for start in starts):
        sound = [start for start in starts if start.row == row and not start.broken]
        mine = {turn: [start for start in sound if start.turn == turn] for turn in wanted}
        if not all(mine.values()):
            continue
        outcome = Outcome(row)
        for turn, some in mine.items():
            outcome.times[turn] = median(start.seconds for start in some)
            outcome.devices[turn] = median(start.device for start in some)
            outcome.phases[turn] = middle(some).phases
            outcome.major[turn] = median(start.major for start in some)
            if ahead := [start.ahead for start in some if start.ahead is not None]:
                outcome.ahead[turn] = median(ahead)
        outcome.disturbed = [text for start in sound if (text := disturbance(start))]
        outcome.cached = cached(sound[0].plain or row, starts)
        if COLD in wanted and sound[0].bandwidth:
            outcome.alone = outcome.devices[COLD] / sound[0].bandwidth
        if limit := sound[0].limit:
            worst = max(sound, key=lambda start: start.stolen)
            gone, again = worst.stolen >> 20, worst.refaulted >> 20
            most = f"up to {gone} MiB taken back ({worst.turn}), {again} read again"
            outcome.squeezed = f"{row}: {limit >> 20} MiB; {most}"
        found.append(outcome)
    return found


def cached(row: str, starts: list[Start]) -> float | None:
    warm = [start.seconds for start in starts if (start.row, start.turn) == (row, WARM) and not start.broken]
    return median(warm) if warm else None


def middle(some: list[Start]) -> Start:
    """The start with the median time; of two, the faster."""
    return sorted(some, key=lambda start: start.seconds)[(len(some) - 1) // 2]


def grid(rows: list[list[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(table.line(row, widths) for row in rows)


def report(found: list[Outcome], wanted: list[str]) -> str:
    read = [turn for turn in wanted if turn != WARM]
    gigabytes = [f"GB from disk: {turn}" if turn == read[0] else turn for turn in read]
    rows = [["seconds", *wanted, "penalty removed", "the disk alone", "of what it allows", *gigabytes]]
    for one in found:
        times = [f"{one.times[turn]:.2f}" for turn in wanted]
        parts = [table.NONE if it is None else f"{it:.2f}" for it in (one.removed, one.alone, one.possible)]
        name = f"{one.row} *" if one.disturbed else one.row
        rows.append([name, *times, *parts, *(f"{one.devices[turn] / 1e9:.2f}" for turn in read)])
    text = grid(rows)
    if told := [line for one in found for line in one.disturbed]:
        text += "\n* the times may be too long, as pages did not stay in memory:\n  " + "\n  ".join(told)
    if told := [one.squeezed for one in found if one.squeezed]:
        text += "\nlimited memory; the penalty is that against a warm start without a limit:\n  " + "\n  ".join(told)
    return text


def phases_report(found: list[Outcome], wanted: list[str]) -> str:
    """Where the time goes; empty if no start has reported phases."""
    rows = [["seconds of the median start", *PHASES, "whole"]]
    for one in found:
        for turn in wanted:
            if parts := one.phases.get(turn):
                rows.append([f"{one.row}, {turn}", *(f"{part:.2f}" for part in parts), f"{sum(parts):.2f}"])
    return grid(rows) if len(rows) > 1 else ""


def counts_report(found: list[Outcome], wanted: list[str]) -> str:
    """Counters instead of clocks: what starts still waited for, and what was there before they asked."""
    first = [f"major faults: {wanted[0]}", *wanted[1:]]
    second = [f"weights cached after imports: {wanted[0]}", *wanted[1:]]
    rows = [["", *first, *second]]
    for one in found:
        major = [f"{one.major[turn]:.0f}" for turn in wanted]
        ahead = [f"{one.ahead[turn]:.0%}" if turn in one.ahead else table.NONE for turn in wanted]
        rows.append([one.row, *major, *ahead])
    return grid(rows)


def faults(one: Start, digest: str) -> list[str]:
    if one.broken:
        return [one.broken]
    wrong = [] if one.digest == digest else [f"what it came to is {one.digest}, and not {digest}"]
    # With little memory, a start may be too large for loading ahead of it.
    if one.turn == LATER and not one.loaded and not one.limit:
        wrong.append("nothing was loaded ahead of it")
    return wrong
