#!/usr/bin/env python3
"""Unmodified frameworks on a generated model: natively, with their own prefetching, and with MAIO through every
backend that this machine has. A framework that gets other bytes than the files have has failed.

    clients.py [--client TEXT] [--rounds N] [--disk DIR] [--layers N] [--output FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path

import environment
import gguf
import runs
import table
import weights
from disk import Lent, NotHere, Plain
from loaders import CLIENTS, Client
from runs import OWN, WAYS, Place, Run, Way
from verdict import Truth, faults

TREE = Path(__file__).parent.parent.parent
SEED = 20
BIN = "pytorch_model.bin"
# There is one simulated SSD at a time: seconds between attempts to get it, and attempts.
WAIT, TRIES = 10, 60


@dataclass
class Tally:
    """Counts runs, each of which is a test."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0
    # The reason for each skip.
    reasons: dict[str, str] = field(default_factory=dict)

    def skip(self, name: str, why: str) -> None:
        # A skip counts once, in however many rounds.
        if name in self.reasons:
            return
        self.skipped += 1
        self.reasons[name] = why
        print(f"skipped: clients::{name}: {why}", flush=True)

    def note(self, name: str, wrong: list[str]) -> None:
        self.passed, self.failed = self.passed + (not wrong), self.failed + bool(wrong)
        for one in wrong:
            print(f"fail  {name}: {one}", flush=True)

    def __str__(self) -> str:
        return f"{self.passed} passed, {self.failed} failed" + (f", {self.skipped} skipped" if self.skipped else "")


def skip_all(clients: list[Client], tally: Tally, why: str) -> None:
    for client in clients:
        tally.skip(client.name, why)


def able(clients: list[Client], lacking: dict[str, str], tally: Tally) -> list[Client]:
    """The clients that can run; counts the others as skipped."""
    found = []
    for client in clients:
        wrong = [lacking[module] for module in (*client.needs, "numpy") if module in lacking]
        if wrong:
            tally.skip(client.name, wrong[0])
        else:
            found.append(client)
    return found


def make_model(folder: Path, shape: weights.Shape, clients: list[Client], python: Path) -> Truth:
    """Makes the model in every form that the clients read."""
    size = weights.write(folder / "safetensors", shape, SEED)
    if any(client.weights == "bin" for client in clients):
        (folder / "bin").mkdir()
        shutil.copy(folder / "safetensors/config.json", folder / "bin")
        saving = [str(python), str(runs.LOADERS), "--save-bin", str(folder / "safetensors"), str(folder / "bin" / BIN)]
        if not environment.run(saving):
            raise SystemExit("the weights could not be saved as torch does")
    if any(client.weights == "gguf" for client in clients):
        gguf.write(folder / "gguf", shape, SEED)
    return Truth(weights.truth(folder / "safetensors"), size, exact=False)


def check_ourselves(clients: list[Client], folder: Path, truth: Truth, place: Place, tally: Tally) -> None:
    """Checks that the test finds a flipped bit, with every client."""
    for client in clients:
        files = sorted((folder / client.weights).iterdir())
        path = max(files, key=lambda file: file.stat().st_size)
        weights.flip(path)
        try:
            run = runs.run(client, Way("a flipped bit"), folder / client.weights, place)
        finally:
            weights.flip(path)
        # A framework may also refuse such a file.
        found = bool(run.broken) or run.told["digest"] != truth.digest
        tally.note(f"{client.name}::flipped-bit", [] if found else ["it was not found"])


def load_all(clients: list[Client], disk, truth: Truth, place: Place, tally: Tally) -> list[Run]:
    done, missing = [], {}
    if not any("rfs" in line.split() for line in Path("/proc/filesystems").read_text().splitlines()):
        missing["module"] = "rfs is not loaded"
    for client in clients:
        shutil.rmtree(place.stores, ignore_errors=True)
        for way in WAYS:
            name = f"{client.name}::{way.title.replace(' ', '-')}"
            if way.name == OWN and not client.own:
                continue
            if way.backend not in missing:
                run = runs.cold_run(client, way, disk, place)
                if why := runs.not_here(run):
                    missing[way.backend] = why
            if way.backend in missing:
                tally.skip(name, missing[way.backend])
                continue
            tally.note(name, faults(run, truth, client.direct))
            done.append(run)
            print(f"  {name:<44} {told(run)}", file=sys.stderr, flush=True)
    return done


def told(run: Run) -> str:
    return "failed" if run.broken else f"{run.told['seconds']:6.2f} s, {run.device / 1e6:6.0f} MB from the disk"


def report(done: list[Run], truth: Truth, disk) -> str:
    ways = [way.title for way in WAYS]
    parts = [
        table.grid("seconds", done, ways, table.seconds),
        table.grid("whole command", done, ways, table.whole),
        table.grid("bytes from the disk / model", done, ways, table.device(truth.bytes)),
        table.grid("loaded by MAIO / model", done, [way.title for way in WAYS if way.backend], table.loaded(truth.bytes)),
        f"model: {truth.bytes / 1e6:.0f} MB, cold before each run; on {disk.what}"
        + (f"; it takes {truth.bytes / disk.bandwidth:.2f} s for the model" if disk.bandwidth else ""),
        f"machine: {os.cpu_count()} processors, Linux {os.uname().release}, load average {os.getloadavg()[0]:.1f}",
        "seconds: the framework's call; whole command: from exec to exit, `ppcctl run` and our check of the bytes included",
        "native, own: without us, by itself and with its own prefetching",
        "first, again: with MAIO, which knows only the headers, and then what was read the first time",
        "own prefetching: " + "; ".join(f"{client.name}: {client.own}" for client in CLIENTS if client.own),
        "direct: reads past the page cache, and MAIO is to stand aside",
    ]
    return "\n\n".join(parts[:4]) + "\n\n" + "\n".join(parts[4:])


def open_disk(wanted: Path | None, model: Path, program: Path, archive: bool = False):
    if wanted:
        return Plain(model, "as asked for")
    tries = TRIES
    while True:
        try:
            return Lent(program, model, archive)
        except (NotHere, OSError) as error:
            tries -= 1
            if tries and "Another ppc-bench" in str(error):
                time.sleep(WAIT)
                continue
            print(f"no simulated SSD: {error}", file=sys.stderr)
            return Plain(model, f"no simulated SSD: {error}")


def measure(wanted: argparse.Namespace, clients: list[Client], python: Path, tally: Tally) -> None:
    base = wanted.disk or environment.cache()
    with tempfile.TemporaryDirectory(prefix="run-", dir=base) as scratch:
        folder = Path(scratch) / "model"
        built = Path(os.environ.get("CARGO_TARGET_DIR") or TREE / "target") / "release"
        place = Place(python, built / "ppcctl", Path(scratch) / "stores")
        print("making a model", file=sys.stderr, flush=True)
        truth = make_model(folder, weights.Shape(layers=wanted.layers), clients, python)
        with closing(open_disk(wanted.disk, folder, built / "ppc-bench")) as disk:
            check_ourselves(clients, folder, truth, place, tally)
            truth = Truth(truth.digest, truth.bytes, disk.exact)
            done = []
            for _ in range(wanted.rounds):
                done += load_all(clients, disk, truth, place, tally)
            print(f"\n{report(done, truth, disk)}")
            write(wanted.output, done, truth, disk.what, tally)


def write(path: Path, done: list[Run], truth: Truth, what: str, tally: Tally) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    results = {
        "format": 2,
        "model": asdict(truth),
        "disk": what,
        "kernel": os.uname().release,
        "processors": os.cpu_count(),
        "runs": [asdict(run) for run in done],
        "tally": asdict(tally),
    }
    path.write_text(json.dumps(results, indent=1))
    print(f"\n{path}")


def arguments(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--client", action="append", default=[], help="only those with this in their names")
    parser.add_argument("--rounds", type=int, default=1, help="how often each is run; medians are shown")
    parser.add_argument("--disk", type=Path, help="a folder on the disk to read from, instead of the simulated SSD")
    parser.add_argument("--layers", type=int, default=weights.Shape.layers, help="of the model")
    target = Path(os.environ.get("CARGO_TARGET_DIR") or TREE / "target")
    parser.add_argument("--output", type=Path, default=target / "bench/clients.json", help="where results are written")
    return parser.parse_args(words)


def main(words: list[str]) -> int:
    wanted, tally = arguments(words), Tally()
    # Exit normally, so that everything made is removed.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    # The bytes of clients that only answer cannot be compared with the files'.
    clients = [client for client in CLIENTS if not client.answers]
    clients = [client for client in clients if not wanted.client or any(text in client.name for text in wanted.client)]
    try:
        python = environment.ensure()
        clients = able(clients, environment.lacking(python), tally)
        if clients:
            measure(wanted, clients, python, tally)
    except environment.Missing as error:
        skip_all(clients, tally, str(error))
    print(tally)
    return 1 if tally.failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
