#!/usr/bin/env python3
"""Whole starts, from exec to exit: cold, warm, and with `ppcctl run`, which records the first start and replays it on
later ones. Every program and file is on one disk, and the runtime's own time counts.

    starts.py [--client TEXT | --program NAME] [--rounds N] [--turns LIST] [--device ssd|4ms|20ms] [--memory 45%]
              [--disk DIR] [--layers N] [--output FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
from contextlib import closing, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path

import clients
import environment
import ground
import group
import hostmemory
import onestart
import packages
import programs
from loaders import CLIENTS, Client
from onestart import Subject, Tools
from outcomes import (
    COLD,
    MODEL_FIRST,
    TURNS,
    USUAL_TURNS,
    Start,
    counts_report,
    faults,
    outcomes,
    phases_report,
    report,
    turns,
)

USUAL = ["safetensors-torch", "transformers", "vllm-loop"]
# Layers of the model, about 1.1 GB.
LAYERS = 48
# Devices by their names in `ppc-bench --device`.
DEVICES = {"ssd": "ssd", "4ms": "filer", "20ms": "network"}
# The memory of a row without a limit.
ALL = "all memory"


@dataclass
class Book:
    """All measurements, and what follows from them."""

    tally: clients.Tally
    starts: list[Start] = field(default_factory=list)
    # The digest of each subject, and for each row what a cold start had in memory.
    answers: dict[str, str] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    devices: dict[str, str] = field(default_factory=dict)

    def note(self, one: Start, subject: Subject) -> None:
        digest = subject.digest or self.answers.setdefault(subject.name, one.digest)
        self.tally.note(f"{one.row}::{one.turn}", faults(one, digest))
        self.starts.append(one)


def row_name(subject: str, device: str, memory: str, many: bool) -> str:
    """The name of a row, with its device if there are several."""
    parts = [subject, *([device] if many else []), *([memory] if memory != ALL else [])]
    return ", ".join(parts)


def of_client(client: Client, root: Path, digest: str) -> Subject:
    words, told = ground.words(client, root), ground.told(client, root)
    return Subject(client.name, words, told, "" if client.answers else digest, root / client.weights)


def of_program(program: programs.Program, root: Path, answer: str) -> Subject:
    ours = {name: value for name, value in os.environ.items() if name.startswith("PPC_")}
    words = programs.words(root, program.script, program.user)
    return Subject(program.name, words, {**programs.environment(), **ours}, answer)


def one_row(
    subject: Subject, where: tuple[str, str], wanted: argparse.Namespace, tools: Tools, disk, book: Book
) -> None:
    """Runs a row's turns one after the other; with a limit, in one group that keeps its pages."""
    device, memory = where
    row = row_name(subject.name, device, memory, len(wanted.device) > 1)
    plain = row_name(subject.name, device, ALL, len(wanted.device) > 1)
    limit = 0
    if memory != ALL:
        if plain not in book.sizes:
            return book.tally.skip(row, "its cold start has not come to an end, and tells no size")
        limit = int(book.sizes[plain] * group.share(memory))
    with closing(group.Group("row", limit)) if limit else nullcontext() as limited:
        for turn in wanted.turns:
            if turn == MODEL_FIRST and not subject.folder:
                book.tally.skip(f"{row}::{turn}", "it has no directory of a model")
                continue
            sizing = bool(wanted.memory) and turn == COLD and not limit
            with closing(group.Group("size")) if sizing else nullcontext(limited) as inside:
                one = Start(row, turn, bandwidth=disk.bandwidth, limit=limit, plain=plain if limit else "")
                onestart.start(one, subject, tools, disk, inside)
            if limit and turn == COLD and one.broken:
                # With this limit it does not survive without the runtime either.
                return book.tally.skip(row, one.broken)
            book.note(one, subject)
            if sizing and not one.broken:
                book.sizes.setdefault(row, one.taken)
            said = one.broken or f"{one.seconds:7.2f} s, {one.device / 1e6:6.0f} MB from the disk"
            print(f"  {row:<30} {turn:<11} {said}", file=sys.stderr, flush=True)


def measure(subjects: list[Subject], wanted: argparse.Namespace, tools: Tools, disk, book: Book) -> None:
    for number in range(wanted.rounds):
        for device in wanted.device:
            book.devices[device] = disk.be(DEVICES[device])
            print(f"round {number + 1}, {book.devices[device]}", file=sys.stderr, flush=True)
            for subject in subjects:
                for memory in [ALL, *wanted.memory]:
                    one_row(subject, (device, memory), wanted, tools, disk, book)


def open_disk(wanted: argparse.Namespace, folder: Path):
    return clients.open_disk(wanted.disk, folder, built() / "ppc-bench", archive=True)


def measure_clients(chosen: list[Client], wanted: argparse.Namespace, scratch: Path, book: Book) -> None:
    folder, tools = scratch / "all", Tools(built() / "ppcctl", scratch / "store")
    print("laying out interpreter, packages and model", file=sys.stderr, flush=True)
    digest = ground.lay_out(folder, wanted.layers, chosen)
    with hostmemory.kept(), closing(open_disk(wanted, folder)) as disk:
        ground.settle(disk.path)
        measure([of_client(client, disk.path, digest) for client in chosen], wanted, tools, disk, book)


def measure_program(program: programs.Program, wanted: argparse.Namespace, scratch: Path, book: Book) -> None:
    folder, tools = scratch / program.name, Tools(built() / "ppcctl", scratch / "store")
    print(f"laying out {program.name} with the packages it takes", file=sys.stderr, flush=True)
    try:
        answer = programs.make(program, folder)
    except programs.BrokenError as error:
        return book.tally.note(program.name, [str(error)])
    with hostmemory.kept(), closing(open_disk(wanted, folder)) as disk:
        with programs.mounted(disk.path):
            measure([of_program(program, disk.path, answer)], wanted, tools, disk, book)
    shutil.rmtree(folder, ignore_errors=True)


def built() -> Path:
    return Path(os.environ.get("CARGO_TARGET_DIR") or clients.TREE / "target") / "release"


def show(book: Book, wanted: argparse.Namespace) -> None:
    # A program without a model has no MODEL_FIRST turn.
    full = outcomes(book.starts, wanted.turns)
    rest = [turn for turn in wanted.turns if turn != MODEL_FIRST]
    some = [one for one in outcomes(book.starts, rest) if one.row not in {other.row for other in full}]
    for found, shown in ((full, wanted.turns), (some, rest)):
        if found:
            print(f"\n{report(found, shown)}\n")
            print(f"{counts_report(found, shown)}\n")
            if text := phases_report(found, shown):
                print(f"{text}\n")
    for device, what in book.devices.items():
        print(f"{device}: {what}" if not wanted.disk else what)
    for row, size in book.sizes.items():
        print(f"{row}: {size / 1e6:.0f} MB of files and anonymous memory, cold")
    print(f"medians of {wanted.rounds}; {os.cpu_count()} processors, Linux {os.uname().release}")
    print("penalty removed: the part that later starts do not pay of what cold ones take longer than warm ones")
    if not wanted.disk:
        print("of what it allows: the same, of what cold ones take longer than the disk alone takes for their bytes")


def write(path: Path, book: Book, wanted: argparse.Namespace) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    results = {
        "format": 2,
        "devices": book.devices,
        "layers": wanted.layers,
        "kernel": os.uname().release,
        "processors": os.cpu_count(),
        "starts": [asdict(one) for one in book.starts],
        "tally": asdict(book.tally),
    }
    path.write_text(json.dumps(results, indent=1))
    print(f"\n{path}")


def checked(check):
    """Wraps a check for argparse, which does not show the text of a ValueError."""

    def parse(text: str):
        try:
            return check(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return parse


def a_share(text: str) -> str:
    group.share(text)
    return text


def arguments(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    add = parser.add_argument
    add("--client", action="append", default=[], help="with this in their names; three unless given")
    known = [program.name for program in programs.PROGRAMS]
    add("--program", action="append", default=[], choices=known, help="programs that load no model; no clients then")
    add("--rounds", type=int, default=3, help="how often each is started; medians are shown")
    all_turns, usual = ",".join(TURNS), ",".join(USUAL_TURNS)
    told = f"of {all_turns}; {usual} unless given"
    add("--turns", type=checked(turns), default=USUAL_TURNS, metavar="LIST", help=told)
    add("--device", action="append", choices=list(DEVICES), help="what is simulated, ssd unless given; each makes rows")
    told = "another row, in a memory cgroup of this share (45%%) of what a cold start takes"
    add("--memory", action="append", default=[], type=checked(a_share), metavar="PERCENT", help=told)
    add("--disk", type=Path, help="a folder on the disk to read from, instead of a simulated one")
    add("--layers", type=int, default=LAYERS, help="of the model")
    add("--output", type=Path, default=built().parent / "bench/starts.json", help="where results are written")
    wanted = parser.parse_args(words)
    if wanted.disk and wanted.device:
        parser.error("--device is simulated, and --disk is not: choose one")
    if wanted.memory and COLD not in wanted.turns:
        parser.error("--memory is a share of what a cold start takes: add cold to --turns")
    wanted.device = list(dict.fromkeys(wanted.device or ["ssd"]))
    return wanted


def chosen_programs(wanted: argparse.Namespace, tally: clients.Tally) -> list[programs.Program]:
    """The wanted programs that are installed; counts the others as skipped."""
    said, found = packages.installed(), []
    for program in (one for one in programs.PROGRAMS if one.name in wanted.program):
        if why := programs.missing(program, said):
            tally.skip(program.name, why)
        else:
            found.append(program)
    return found


def chosen_clients(wanted: argparse.Namespace, tally: clients.Tally) -> list[Client]:
    named = wanted.client or ([] if wanted.program else USUAL)
    chosen = [client for client in CLIENTS if any(text in client.name for text in named)]
    if not chosen:
        return []
    try:
        return clients.able(chosen, environment.lacking(environment.ensure()), tally)
    except environment.Missing as error:
        clients.skip_all(chosen, tally, str(error))
        return []


def main(words: list[str]) -> int:
    wanted, book = arguments(words), Book(clients.Tally())
    # A normal exit removes what this program has made; the default for this signal does not.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if not os.access(onestart.DROP, os.W_OK):
        print("starts.py: only root can have a machine forget its files; run it as root", file=sys.stderr)
        return 2
    tried, able = chosen_programs(wanted, book.tally), chosen_clients(wanted, book.tally)
    if tried:
        programs.isolate()
    base = wanted.disk or environment.cache()
    base.mkdir(parents=True, exist_ok=True)
    try:
        with tempfile.TemporaryDirectory(prefix="start-", dir=base) as scratch:
            if able:
                measure_clients(able, wanted, Path(scratch), book)
            for program in tried:
                measure_program(program, wanted, Path(scratch), book)
    except group.NoGroupError as error:
        print(f"starts.py: {error}", file=sys.stderr)
        return 1
    if book.starts:
        show(book, wanted)
        write(wanted.output, book, wanted)
    print(book.tally)
    return 1 if book.tally.failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
