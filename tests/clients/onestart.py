"""One start: what is started, how, and its result."""

from __future__ import annotations

import os
import resource
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
# Time limit in seconds; a start takes some minutes on the slowest disk.
PATIENCE = 1800
# Statuses of a start that the kernel killed, itself or as `ppcctl run` returns it.
KILLED = (-9, 137)
# A shell that joins a group and then executes the command.
JOINING = 'echo $$ > "$0" && exec "$@"'


@dataclass(frozen=True)
class Subject:
    """A command to start, on the disk that is measured."""

    name: str
    words: list[str]
    environment: dict[str, str] = field(default_factory=dict)
    # The expected digest; empty if unknown, and then the first start's counts.
    digest: str = ""
    # The model that it loads, for `ppcctl run` with a directory.
    folder: Path | None = None


@dataclass(frozen=True)
class Tools:
    ppcctl: Path
    store: Path


def forget() -> None:
    """Drops all files from memory, and their names."""
    os.sync()
    DROP.write_text("3\n")


def command(subject: Subject, turn: str, tools: Tools) -> list[str]:
    if turn not in (MODEL_FIRST, FIRST, LATER):
        return subject.words
    ours = [str(tools.ppcctl), "--json", "run", "--set", f"store={tools.store}"]
    if turn == MODEL_FIRST:
        ours.append(str(subject.folder))
    return [*ours, "--", *subject.words]


def major_faults() -> int:
    """Those of all processes that have been waited for, and of theirs."""
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_majflt


def grouped(words: list[str], group: Group | None) -> list[str]:
    return ["/bin/sh", "-c", JOINING, str(group.path / "cgroup.procs"), *words] if group else words


def start(result: Start, subject: Subject, tools: Tools, disk, group: Group | None = None) -> Start:
    """Starts the subject and fills in the result."""
    if result.turn in (MODEL_FIRST, FIRST):
        shutil.rmtree(tools.store, ignore_errors=True)
    if result.turn != WARM:
        forget()
    words = grouped(command(subject, result.turn, tools), group)
    disk.reset()
    before, waited = reclaim.now(), major_faults()
    with Watch(group) if group else nullcontext() as watch:
        began = time.monotonic()
        try:
            done = runs.finished(words, subject.environment, PATIENCE)
        except subprocess.TimeoutExpired:
            result.broken = f"it takes more than {PATIENCE} s"
            return result
        ended = time.monotonic()
    result.seconds, result.device = ended - began, disk.read()
    result.major = major_faults() - waited
    gone = reclaim.now().since(before)
    result.stolen, result.refaulted = gone.stolen, gone.refaulted
    result.taken = watch.taken.all if watch else 0
    judge(result, done, (began, ended))
    return result


def judge(result: Start, done: subprocess.CompletedProcess, times: tuple[float, float]) -> None:
    """Judges a start by the output of the program, and by that of `ppcctl run`."""
    said, summary = runs.last_json(done.stdout), runs.last_json(done.stderr)
    if result.limit and done.returncode in KILLED:
        result.broken = f"{result.limit / 1e6:.0f} MB are too few for it; give --memory a larger share"
        return
    if done.returncode or "digest" not in said:
        last = done.stderr.strip().splitlines()[-1:] or ["nothing was said"]
        result.broken = f"exit status {done.returncode}: {last[0][:400]}"
        return
    result.digest, result.ahead = said["digest"], said.get("ahead")
    result.phases = phases(times[0], said.get("moments", {}), times[1])
    if result.turn in (MODEL_FIRST, FIRST, LATER):
        stats = summary.get("stats") or {}
        if summary.get("policy") != "maio" or summary.get("fault") or not stats:
            result.broken = f"it ran with {summary.get('policy')}: {summary.get('fault')}"
        result.loaded = stats.get("loaded_bytes", 0)
        # The program's; those of all processes include the runtime's workers, which load by page faults.
        result.major = summary.get("major_faults", result.major)
