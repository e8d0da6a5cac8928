"""One start: what is started, how, and what comes of it."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import reclaim
import runs
from group import Group, Watch
from outcomes import FIRST, LATER, MODEL_FIRST, WARM, Start, phases

DROP = Path("/proc/sys/vm/drop_caches")
# Some minutes on the slowest disk, in seconds.
PATIENCE = 1800
# By the kernel, itself or as `ppcctl run` says it.
KILLED = (-9, 137)
# A shell that joins a group, and is the command then.
JOINING = 'echo $$ > "$0" && exec "$@"'


@dataclass(frozen=True)
class Subject:
    """What is started, from the disk that is measured."""

    name: str
    words: list[str]
    environment: dict[str, str] = field(default_factory=dict)
    # What it has to come to; if that cannot be known, what it came to at first.
    digest: str = ""
    # What it loads, for `ppcctl run` with a directory.
    folder: Path | None = None


@dataclass(frozen=True)
class Tools:
    ppcctl: Path
    store: Path


def forget() -> None:
    """Nothing of any file is in memory, nor what it is called."""
    os.sync()
    DROP.write_text("3\n")


def command(subject: Subject, turn: str, tools: Tools) -> list[str]:
    if turn not in (MODEL_FIRST, FIRST, LATER):
        return subject.words
    ours = [str(tools.ppcctl), "--json", "run", "--set", f"store={tools.store}"]
    if turn == MODEL_FIRST:
        ours.append(str(subject.folder))
    return [*ours, "--", *subject.words]


def grouped(words: list[str], group: Group | None) -> list[str]:
    return ["/bin/sh", "-c", JOINING, str(group.path / "cgroup.procs"), *words] if group else words


def start(result: Start, subject: Subject, tools: Tools, disk, group: Group | None = None) -> Start:
    """Fills in what comes of it."""
    if result.turn in (MODEL_FIRST, FIRST):
        shutil.rmtree(tools.store, ignore_errors=True)
    if result.turn != WARM:
        forget()
    words = grouped(command(subject, result.turn, tools), group)
    disk.reset()
    before = reclaim.now()
    with Watch(group) if group else nullcontext() as watch:
        began = time.monotonic()
        try:
            done = runs.finished(words, subject.environment, PATIENCE)
        except subprocess.TimeoutExpired:
            result.broken = f"it takes more than {PATIENCE} s"
            return result
        ended = time.monotonic()
    result.seconds, result.device = ended - began, disk.read()
    gone = reclaim.now().since(before)
    result.stolen, result.refaulted = gone.stolen, gone.refaulted
    result.taken = watch.taken.all if watch else 0
    judge(result, done, (began, ended))
    return result


def judge(result: Start, done: subprocess.CompletedProcess, times: tuple[float, float]) -> None:
    """By what the program said, and `ppcctl run` about itself."""
    said, summary = runs.last_json(done.stdout), runs.last_json(done.stderr)
    if result.limit and done.returncode in KILLED:
        result.broken = f"{result.limit / 1e6:.0f} MB are too few for it; give --memory a larger share"
        return
    if done.returncode or "digest" not in said:
        last = done.stderr.strip().splitlines()[-1:] or ["nothing was said"]
        result.broken = f"exit status {done.returncode}: {last[0][:400]}"
        return
    result.digest = said["digest"]
    result.phases = phases(times[0], said.get("moments", {}), times[1])
    if result.turn in (MODEL_FIRST, FIRST, LATER):
        stats = summary.get("stats") or {}
        if summary.get("policy") != "maio" or summary.get("fault") or not stats:
            result.broken = f"it ran with {summary.get('policy')}: {summary.get('fault')}"
        result.loaded = stats.get("loaded_bytes", 0)
