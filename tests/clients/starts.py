#!/usr/bin/env python3
"""Whole starts of frameworks, from exec to the last tensor: cold, warm, and with `ppcctl run`, which records the first
and replays it on the later ones. Interpreter, packages and model are on one disk, and everything that is ours counts.

    starts.py [--client TEXT] [--rounds N] [--disk DIR] [--layers N] [--output FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median

import clients
import environment
import runs
import table
import weights
from loaders import CLIENTS, Client

COLD, WARM, FIRST, LATER = "cold", "warm", "first", "later"
# In this order, each time: the later start has what the first one recorded, and each begins like the cold one.
TURNS = [COLD, WARM, FIRST, LATER]
USUAL = ["safetensors-torch", "transformers", "vllm-loop"]
# Some 1.1 GB.
LAYERS = 48
DROP = Path("/proc/sys/vm/drop_caches")


@dataclass
class Start:
    client: str
    turn: str
    seconds: float = 0.0
    # Of these, what the loading of the tensors took.
    load: float = 0.0
    device: int = 0
    digest: str = ""
    loaded: int = 0
    # How it ended if not well, and what it said then.
    broken: str = ""


@dataclass(frozen=True)
class Ground:
    """Where all that is started is, on the disk that is measured."""

    root: Path
    ppcctl: Path
    store: Path

    @property
    def python(self) -> Path:
        return self.root / "venv/bin/python"

    @property
    def model(self) -> Path:
        return self.root / "model"


@dataclass
class Outcome:
    """Medians of a client, in seconds."""

    client: str
    times: dict[str, float] = field(default_factory=dict)
    loads: dict[str, float] = field(default_factory=dict)
    devices: dict[str, float] = field(default_factory=dict)

    @property
    def removed(self) -> float:
        """The part of the cold penalty that later starts do not pay."""
        return removed(self.times[COLD], self.times[WARM], self.times[LATER])


def removed(cold: float, warm: float, ours: float) -> float:
    """1: as fast as with everything cached; 0: as slow as without us."""
    return (cold - ours) / (cold - warm) if cold > warm else 0.0


def outcomes(starts: list[Start]) -> list[Outcome]:
    """Of those that have come to an end in every turn."""
    found = []
    for client in dict.fromkeys(start.client for start in starts):
        sound = [start for start in starts if start.client == client and not start.broken]
        mine = {turn: [start for start in sound if start.turn == turn] for turn in TURNS}
        if not all(mine.values()):
            continue
        outcome = Outcome(client)
        for turn, some in mine.items():
            outcome.times[turn] = median(start.seconds for start in some)
            outcome.loads[turn] = median(start.load for start in some)
            outcome.devices[turn] = median(start.device for start in some)
        found.append(outcome)
    return found


def report(found: list[Outcome]) -> str:
    rows = [["seconds", *TURNS, "penalty removed", "GB from disk: cold", LATER, "of it loading: cold", LATER]]
    for one in found:
        times = [f"{one.times[turn]:.2f}" for turn in TURNS]
        devices = [f"{one.devices[turn] / 1e9:.2f}" for turn in (COLD, LATER)]
        loads = [f"{one.loads[turn]:.2f}" for turn in (COLD, LATER)]
        rows.append([one.client, *times, f"{one.removed:.2f}", *devices, *loads])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(table.line(row, widths) for row in rows)


def lay_out(folder: Path, layers: int) -> tuple[str, int]:
    """The environment and a model in one folder; what its tensors are."""
    # Links of folders would be copied twice.
    ignore = shutil.ignore_patterns("lib64", "__pycache__/*.pyc.*")
    shutil.copytree(environment.cache() / "venv", folder / "venv", symlinks=True, ignore=ignore, copy_function=link)
    size = weights.write(folder / "model", weights.Shape(layers=layers), clients.SEED)
    return weights.truth(folder / "model"), size


def link(source: str, target: str) -> None:
    """Where it can be, a file is there without taking room."""
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:
        shutil.copy2(source, target, follow_symlinks=False)


def forget() -> None:
    """Nothing of any file is in memory, nor what it is called."""
    os.sync()
    DROP.write_text("3\n")


def command(client: Client, turn: str, ground: Ground) -> list[str]:
    words = [str(ground.python), str(runs.LOADERS), client.name, str(ground.model)]
    if turn not in (FIRST, LATER):
        return words
    return [str(ground.ppcctl), "--json", "run", "--set", f"store={ground.store}", "--", *words]


def start(client: Client, turn: str, ground: Ground, disk) -> Start:
    result = Start(client.name, turn)
    if turn == FIRST:
        shutil.rmtree(ground.store, ignore_errors=True)
    if turn != WARM:
        forget()
    # What is imported is not to be compiled anew, nor written.
    told = {**os.environ, **runs.QUIET, **client.environment, "PYTHONDONTWRITEBYTECODE": "1"}
    disk.reset()
    began = time.monotonic()
    try:
        done = subprocess.run(
            command(client, turn, ground),
            env=told,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=runs.PATIENCE,
        )
    except subprocess.TimeoutExpired:
        result.broken = f"it takes more than {runs.PATIENCE} s"
        return result
    result.seconds = time.monotonic() - began
    result.device = disk.read()
    said, summary = runs.last_json(done.stdout), runs.last_json(done.stderr)
    if done.returncode or not said:
        last = done.stderr.strip().splitlines()[-1:] or ["nothing was said"]
        result.broken = f"exit status {done.returncode}: {last[0][:400]}"
        return result
    result.load, result.digest = said["seconds"], said["digest"]
    if turn in (FIRST, LATER):
        stats = summary.get("stats") or {}
        if summary.get("policy") != "maio" or summary.get("fault") or not stats:
            result.broken = f"it ran with {summary.get('policy')}: {summary.get('fault')}"
        result.loaded = stats.get("loaded_bytes", 0)
    return result


def faults(one: Start, digest: str) -> list[str]:
    if one.broken:
        return [one.broken]
    wrong = [] if one.digest == digest else [f"its tensors are not those of the files: {one.digest}, and not {digest}"]
    if one.turn == LATER and not one.loaded:
        wrong.append("nothing was loaded ahead of it")
    return wrong


def measure(wanted: argparse.Namespace, chosen: list[Client], tally: clients.Tally) -> None:
    base = wanted.disk or environment.cache()
    with tempfile.TemporaryDirectory(prefix="start-", dir=base) as scratch:
        folder = Path(scratch) / "all"
        built = Path(os.environ.get("CARGO_TARGET_DIR") or clients.TREE / "target") / "release"
        print("laying out interpreter, packages and model", file=sys.stderr, flush=True)
        digest, size = lay_out(folder, wanted.layers)
        with closing(clients.open_disk(wanted.disk, folder, built / "ppc-bench")) as disk:
            ground = Ground(disk.path, built / "ppcctl", Path(scratch) / "store")
            done = []
            for number in range(wanted.rounds):
                for client, turn in ((client, turn) for client in chosen for turn in TURNS):
                    one = start(client, turn, ground, disk)
                    tally.note(f"{client.name}::{turn}", faults(one, digest))
                    done.append(one)
                    said = one.broken or f"{one.seconds:6.2f} s"
                    print(f"  {number + 1} {client.name:<20} {turn:<6} {said}", file=sys.stderr, flush=True)
            print(f"\n{report(outcomes(done))}\n")
            print(f"model: {size / 1e6:.0f} MB; medians of {wanted.rounds}; on {disk.what}")
            print(f"machine: {os.cpu_count()} processors, Linux {os.uname().release}")
            print("penalty removed: the part that later starts do not pay of what cold ones take longer than warm ones")
            write(wanted.output, done, disk.what)


def write(path: Path, done: list[Start], what: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    results = {"format": 1, "disk": what, "kernel": os.uname().release, "starts": [asdict(one) for one in done]}
    path.write_text(json.dumps(results, indent=1))
    print(f"\n{path}")


def arguments(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--client", action="append", default=[], help="with this in their names; three unless given")
    parser.add_argument("--rounds", type=int, default=3, help="how often each is started; medians are shown")
    parser.add_argument("--disk", type=Path, help="a folder on the disk to read from, instead of the simulated SSD")
    parser.add_argument("--layers", type=int, default=LAYERS, help="of the model")
    target = Path(os.environ.get("CARGO_TARGET_DIR") or clients.TREE / "target")
    parser.add_argument("--output", type=Path, default=target / "bench/starts.json", help="where results are written")
    return parser.parse_args(words)


def main(words: list[str]) -> int:
    wanted, tally = arguments(words), clients.Tally()
    named = wanted.client or USUAL
    able = [client for client in CLIENTS if client.weights == "safetensors"]
    chosen = [client for client in able if any(text in client.name for text in named)]
    try:
        if not os.access(DROP, os.W_OK):
            raise environment.Missing("only root can have a machine forget its files; run it as root")
        chosen = clients.able(chosen, environment.lacking(environment.ensure()), tally)
        if chosen:
            measure(wanted, chosen, tally)
    except environment.Missing as error:
        clients.skip_all(chosen, tally, str(error))
    print(tally)
    return 1 if tally.failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
