#!/usr/bin/env python3
"""Measures rfs against the lower file system below it and against FUSE, in counted instructions.

Each kernel and file system gets a machine with one processor, whose clock is the number of instructions executed.
It boots more than once, each time with other random numbers; how much the figures moved is part of the result. A
missed bar is printed, but is no failure.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import build
import job as jobs
import kernel as kernels
import machine
from archive import ArchiveError, cache_dir, locked

HERE = Path(__file__).resolve().parent
SOURCES = HERE / "bench"
sys.path.append(str(SOURCES))
import fuse  # noqa: E402

PROGRAM = "rfs-bench"
RESULT = build.TREE / "target" / "bench" / "rfs-overhead.json"
COMPILE = ["gcc", "-O2", "-Wall", "-Wextra", "-Wno-missing-field-initializers", "-Werror", "-static"]
KERNELS = ["6.1", "6.12"]
# Turns off random placement by the kernel; its own random numbers come from the machine's, which have a seed.
ARGUMENTS = "nokaslr norandmaps"
# Microcode that fills memory at once would count as an instruction for each byte: no processor is that slow.
CPU = ["-cpu", f"{machine.CPU['amd64']},-fsrs,-fzrm,-fsrc"]
CLOCK = ["-rtc", "base=2026-01-01T00:00:00,clock=vm"]
# Upper bounds on the ratio of rfs to lower; for the cost of events, in nanoseconds.
BARS = {
    "warm 1 MiB reads": 1.01,
    "warm 1 MiB reads, MISS wanted": 1.01,
    "warm 4 KiB reads, sequential": 1.10,
    "warm 4 KiB reads, random": 1.10,
    "stat of one path": 1.15,
    "stat of 1,000 files": 1.15,
    "cold 1 MiB reads, sequential": 1.02,
    "cold 4 KiB reads, random": 1.02,
    # The floor: a fault costs 1,700 of 23,000,000 instructions, 992 of 1,024 are saved, and the others are 0.2 %.
    "warm mmap copy": 0.95,
    "warm mmap faults": 1 / 16,
    "event cost per miss": 2000.0,
}
# If the lower file system has huge folios already, there are no faults to save.
BARS_LARGE: dict[str, float | None] = {"warm mmap copy": 1.00, "warm mmap faults": None}
LARGE_KERNELS = "7."
# Upper bound on how much the figures may move.
STILL = 0.005

# (name of the case, side) -> the value of each run
Samples = dict[tuple[str, str], list[float]]


@dataclass
class Boot:
    """One boot's measurements."""

    kernel: str
    fs: str
    seed: int
    version: str = "-"
    samples: Samples = field(default_factory=dict)
    units: dict[str, tuple[str, str]] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)

    def hear(self, line: str) -> None:
        """Parses a line of the program in the guest; the first lines of bench/main.c describe them."""
        word, *fields = line.split("\t")
        if word == "SAMPLE":
            name, unit, kind, side, value = fields
            self.units[name] = (unit, kind)
            self.samples.setdefault((name, side), []).append(float(value))
        elif word == "SKIP":
            self.skipped[fields[0]] = fields[1]
        elif word == "ERROR":
            self.errors.append(": ".join(fields))

    def run(self, base: Path, runs: int, part: str) -> None:
        """Boots and measures. The base folder has the same inputs for every boot."""
        folder = base / f"seed-{self.seed}"
        try:
            one = jobs.Job(self.kernel, self.fs, [], 1, folder)
            command = f"{PROGRAM} {runs} '{part}'"
            extra = [*CPU, *CLOCK, "-seed", str(self.seed)]
            status, lines = jobs.execute(one, command, self.hear, icount=True, arguments=ARGUMENTS, extra=extra)
            self.version = one.version
            if "END" not in lines:
                self.errors.append(f"ended early with status {status}; console: {one.console}")
        except (ArchiveError, build.BuildError, OSError, subprocess.CalledProcessError) as error:
            self.errors.append(str(error))


def program() -> Path:
    """The guest's program, compiled again when any of its sources or headers has changed."""
    sources = sorted(SOURCES.glob("*.c"))
    include = build.MODULE / "include/uapi"
    newest = max(path.stat().st_mtime for path in [*SOURCES.glob("*.[ch]"), *include.rglob("*.h")])
    target = cache_dir() / "build" / f"{build.TREE_ID}-bench" / PROGRAM
    with locked(target.with_suffix(".lock")):
        if not target.exists() or target.stat().st_mtime < newest:
            scratch = target.with_suffix(".new")
            command = [*COMPILE, "-I", str(include), "-o", str(scratch), *(str(path) for path in sources)]
            build.run_compiler(PROGRAM, command)
            scratch.replace(target)
    return target


def spread(values: list[float]) -> float:
    middle = median(values)
    return (max(values) - min(values)) / middle if middle else 0.0


def bar_of(name: str, kernel: str) -> float | None:
    if kernel.startswith(LARGE_KERNELS) and name in BARS_LARGE:
        return BARS_LARGE[name]
    return BARS.get(name)


def row(name: str, boots: list[Boot], about: dict[str, str]) -> dict[str, Any]:
    """One row of the result, from all boots of a kernel and file system."""
    kernel = boots[0].kernel
    unit, kind = boots[0].units[name]
    middle: dict[str, float | None] = {}
    within = moved = 0.0
    for side in ("lower", "rfs", "fuse", "fuse_passthrough"):
        runs = [boot.samples[name, side] for boot in boots if (name, side) in boot.samples]
        middle[side] = median([value for values in runs for value in values]) if runs else None
        if side in ("lower", "rfs") and runs:
            within = max(within, *(spread(values) for values in runs))
            moved = max(moved, spread([median(values) for values in runs]))
    # The values of the two sides that are compared, so that an outlier can be examined.
    samples = {side: [boot.samples.get((name, side), []) for boot in boots] for side in ("lower", "rfs")}
    made: dict[str, Any] = {"name": name, "kernel": kernel, "fs": boots[0].fs, "unit": unit}
    lower, rfs = middle["lower"], middle["rfs"]
    bar = bar_of(name, kernel)
    if kind == "difference":
        cost = rfs - lower if rfs is not None and lower is not None else None
        made |= {"rfs": cost, "lower": 0, "ratio": None, "without": lower, "with": rfs}
        counts = cost
    else:
        counts = rfs / lower if rfs is not None and lower else None
        made |= {"rfs": rfs, "lower": lower, "ratio": counts and round(counts, 5)}
    ok = None if bar is None or counts is None else counts <= bar
    made |= {"fuse": middle["fuse"], "fuse_passthrough": middle["fuse_passthrough"]}
    made |= {"spread": round(within, 5), "moved": round(moved, 5), "boots": len(boots), "bar": bar, "ok": ok}
    return made | about | {"samples": samples}


def rows(boots: list[Boot]) -> list[dict[str, Any]]:
    about = {"qemu": machine.fetch().root.name, "commit": commit()}
    found = []
    for key in dict.fromkeys((boot.kernel, boot.fs) for boot in boots):
        own = [boot for boot in boots if (boot.kernel, boot.fs) == key and boot.units]
        for name in own[0].units if own else []:
            measured = [boot for boot in own if name in boot.units]
            found.append(row(name, measured, {"version": measured[0].version, **about}))
    return found


def commit() -> str:
    done = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"],
        capture_output=True, text=True, check=False, cwd=HERE,
    )
    return done.stdout.strip() or "unknown"


def shown(value: float | None, digits: int = 0) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"


def print_table(found: list[dict[str, Any]]) -> None:
    heading = f"{'':<62}{'lower':>13}{'rfs':>13}{'fuse':>13}{'passthrough':>13}{'ratio':>8}{'bar':>8}"
    previous = None
    for made in found:
        where = (made["kernel"], made["fs"])
        if where != previous:
            print(f"\n{made['kernel']} {made['fs']} ({made['version']})\n{heading}")
            previous = where
        difference = made["ratio"] is None
        verdict = {True: "", False: "  missed", None: ""}[made["ok"]]
        if made["moved"] > STILL:
            verdict += f"  moved {100 * made['moved']:.1f} %"
        label = f"{made['name']} [{made['unit']}]"
        print(
            f"{label:<62}{shown(made['lower']):>13}{shown(made['rfs']):>13}{shown(made['fuse']):>13}"
            f"{shown(made['fuse_passthrough']):>13}{shown(made['ratio'], 3):>8}"
            f"{shown(made['bar'], 0 if difference else 3):>8}{verdict}"
        )


def print_summary(boots: list[Boot], found: list[dict[str, Any]]) -> int:
    """Prints the summary. Returns the exit status, which says whether everything was measured."""
    errors = [f"{boot.kernel} {boot.fs}: {error}" for boot in boots for error in boot.errors]
    skips = {f"{boot.kernel} {boot.fs}: {side}: {why}" for boot in boots for side, why in boot.skipped.items()}
    barred = [made for made in found if made["ok"] is not None]
    missed = [made for made in barred if not made["ok"]]
    print()
    for text in sorted(skips):
        print(f"skipped  {text}")
    for text in errors:
        print(f"ERROR    {text}")
    for made in missed:
        value = made["rfs"] if made["ratio"] is None else made["ratio"]
        print(f"missed   {made['kernel']} {made['fs']}: {made['name']}: {value:,.3f}, bar {made['bar']:,.3f}")
    if found:
        print(f"moved between boots: at most {100 * max(made['moved'] for made in found):.2f} %, "
              f"within one: {100 * max(made['spread'] for made in found):.2f} %")
    print(f"{len(found)} measured, {len(barred) - len(missed)} bars kept, {len(missed)} missed, "
          f"{len(skips)} skipped, {len(errors)} errors")
    return 1 if errors or not found else 0


def prepare() -> Path:
    """Makes a folder with the inputs of all boots."""
    base = jobs.run_folder()
    programs = base / jobs.INPUTS / jobs.ROOT / "bin"
    shutil.copy(program(), programs / PROGRAM)
    try:
        daemon = fuse.fetch()
        shutil.copy(daemon, programs / daemon.name)
    except ArchiveError as error:
        print(f"FUSE is left out: {error}", file=sys.stderr)
    return base


def measure(args: argparse.Namespace) -> list[Boot]:
    boots = [
        Boot(kernels.entry(name).name, fs, seed)
        for seed in range(1, args.boots + 1)
        for name in args.kernels or KERNELS
        for fs in args.fs
    ]
    base = prepare()
    for seed in {boot.seed for boot in boots}:
        (base / f"seed-{seed}").mkdir()
        (base / f"seed-{seed}" / jobs.INPUTS).symlink_to(base / jobs.INPUTS)
    workers = int(os.environ.get("JOBS") or min(4, os.cpu_count() or 1))

    def one(boot: Boot) -> None:
        begin = time.monotonic()
        boot.run(base, args.runs, args.part)
        print(f"{boot.kernel} {boot.fs}, seed {boot.seed}: {time.monotonic() - begin:.0f} s", flush=True)

    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(one, boots))
    return boots


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kernels", nargs="*", help=f"of tests/vm/kernels; default: {' '.join(KERNELS)}")
    parser.add_argument("--fs", type=lambda word: word.split(","), default=["ext4", "xfs"], help="ext4,xfs")
    parser.add_argument("--boots", type=int, default=2, help="of each machine, default 2")
    parser.add_argument("--runs", type=int, default=3, help="of each case in a boot, default 3")
    parser.add_argument("--part", default="", help="only cases with this in their name")
    parser.add_argument("--output", type=Path, default=RESULT)
    args = parser.parse_args()
    try:
        boots = measure(args)
        found = rows(boots)
    except (ArchiveError, build.BuildError, OSError, subprocess.CalledProcessError) as error:
        print(f"vm-bench: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        os._exit(130)
    args.output.parent.mkdir(parents=True, exist_ok=True)
    args.output.write_text(json.dumps(found, indent=1) + "\n")
    print_table(found)
    return print_summary(boots, found)


if __name__ == "__main__":
    sys.exit(main())
