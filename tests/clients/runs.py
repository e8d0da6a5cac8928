"""One run of one client: how it is started, and its result."""

from __future__ import annotations

import json
import os
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

import cold
from loaders import Client

LOADERS = Path(__file__).parent / "loaders.py"
# Time limit in seconds; no run takes a tenth of it.
PATIENCE = 300
NATIVE, OWN = "native", "own"
BACKENDS = ["observe", "fuse", "module"]
FIRST, AGAIN = "first", "again"
# As on a production machine: frameworks do not use the network.
QUIET = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "TQDM_DISABLE": "1", "CUDA_VISIBLE_DEVICES": ""}


@dataclass(frozen=True)
class Way:
    """How a model is read: without the runtime, or through a backend for the first time or again."""

    name: str
    backend: str = ""
    turn: str = ""

    @property
    def title(self) -> str:
        return f"{self.name} {self.turn}".strip()


WAYS = [Way(NATIVE), Way(OWN), *(Way(name, name, turn) for name in BACKENDS for turn in (FIRST, AGAIN))]


@dataclass
class Run:
    client: str
    way: str
    # The output of the client, and that of `ppcctl run`.
    told: dict = field(default_factory=dict)
    summary: dict = field(default_factory=dict)
    device: int = 0
    # Seconds from exec to exit, `ppcctl run` included.
    whole: float = 0.0
    # How it failed, with its last message; empty if it did not.
    broken: str = ""
    template: bool = False


@dataclass(frozen=True)
class Place:
    """Where the programs and the stores are."""

    python: Path
    ppcctl: Path
    stores: Path


def command(client: Client, way: Way, folder: Path, place: Place) -> list[str]:
    words = [str(place.python), str(LOADERS), client.name, str(folder)]
    if way.name == OWN:
        words.append("--own")
    if not way.backend:
        return words
    settings = [f"store={store(client, way, place)}", "leases=none"]
    options = [word for setting in settings for word in ("--set", setting)]
    return [str(place.ppcctl), "--json", "run", "--backend", way.backend, *options, str(folder), "--", *words]


def store(client: Client, way: Way, place: Place) -> Path:
    """The store of templates; the first run finds it empty."""
    return place.stores / f"{client.name}-{way.backend}"


def environment(client: Client, way: Way) -> dict[str, str]:
    own = client.own_environment if way.name == OWN else {}
    return {**os.environ, **QUIET, **client.environment, **own}


def finished(words: list[str], told: dict[str, str], patience: int) -> subprocess.CompletedProcess:
    """Runs a program to its end and returns its output; ends it when its time is over."""
    return subprocess.run(
        words,
        env=told,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=patience,
    )


def run(client: Client, way: Way, folder: Path, place: Place) -> Run:
    """Runs a client without dropping caches, and collects its output."""
    result = Run(client.name, way.title)
    words = command(client, way, folder, place)
    began = time.monotonic()
    try:
        done = finished(words, environment(client, way), PATIENCE)
    except subprocess.TimeoutExpired:
        result.broken = f"it takes more than {PATIENCE} s"
        return result
    result.whole = time.monotonic() - began
    result.told, result.summary = last_json(done.stdout), last_json(done.stderr)
    if done.returncode or not result.told:
        said = done.stderr.strip().splitlines()[-1:] or ["nothing was said"]
        result.broken = f"exit status {done.returncode}: {said[0][:400]}"
    elif way.backend:
        result.template = any(path.is_file() for path in store(client, way, place).rglob("*"))
    return result


def cold_run(client: Client, way: Way, disk, place: Place) -> Run:
    """The same with a cold page cache; also returns the bytes that the disk delivered."""
    folder = disk.path / client.weights
    cold.drop(folder)
    disk.reset()
    result = run(client, way, folder, place)
    result.device = disk.read()
    return result


def last_json(text: str) -> dict:
    """Parses the last line that is JSON, as frameworks print lines, too."""
    for line in reversed(text.splitlines()):
        if line.startswith("{"):
            try:
                return json.loads(line)
            except ValueError:
                continue
    return {}


def not_here(result: Run) -> str:
    """Why this machine does not have the backend, if that ended the run."""
    mark = "No backend works here"
    return result.broken[result.broken.index(mark) :] if mark in result.broken else ""
