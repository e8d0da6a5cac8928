#!/usr/bin/env python3
"""Runs the parts of `make test` one after another and adds their results up.

    total.py NAME=COMMAND...

Every part runs, whatever the ones before it did; its output is shown as it comes and kept in
target/test-results/NAME.log. The last line is the sum, `N passed, M failed, K skipped`, and the exit status
is 0 only if nothing failed. A part that ran no test at all has failed, and so has one whose exit status
shows a failure that none of its tests reports: a program that didn't compile, a rig that broke down. A skip
that tests/expected-skips does not expect here is a failure. Tests that passed only at their second try are
listed before the sum, and are failures with STRICT=1.
"""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import skips
from skips import Skip

RESULTS = Path(__file__).parent.parent / "target" / "test-results"
# How long a part may be silent: the build of a debug kernel takes eight minutes on two processors.
SILENCE_S = 20 * 60
# A rig may close each of its machines with a line of this form; the last line covers them all.
CLOSING = re.compile(r"^(\d+) passed, (\d+) failed(?:, (\d+) skipped)?$", re.MULTILINE)
CARGO = re.compile(r"^test result: \w+\. (\d+) passed; (\d+) failed; (\d+) ignored;", re.MULTILINE)
UNITTEST = re.compile(r"^Ran (\d+) tests? in .*\n\n(?:OK|FAILED|NO TESTS RAN)(?: \((.*)\))?$", re.MULTILINE)
# Of a Rust test it may stand behind the name of another that runs meanwhile.
FLAKY = re.compile(r"(?:^|\.\.\. )flaky  (.+)$", re.MULTILINE)
# How the rig, cargo and unittest report a failed test.
FAILED = re.compile(r"^(?:fail  (.+)|test (\S+) \.\.\. FAILED|(?:FAIL|ERROR): (.+))$", re.MULTILINE)


@dataclass
class Count:
    """The results of some tests."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0

    def __add__(self, other: Count) -> Count:
        return Count(self.passed + other.passed, self.failed + other.failed, self.skipped + other.skipped)

    def __str__(self) -> str:
        return f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped"


@dataclass
class Part:
    """The results of a part, and what is wrong with it beyond its tests."""

    name: str
    count: Count = field(default_factory=Count)
    wrong: list[str] = field(default_factory=list)
    flaky: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    seconds: float = 0

    def fail(self, why: str) -> None:
        self.count += Count(failed=1)
        self.wrong.append(why)

    def lines(self) -> list[str]:
        """Lists failures again: in a long output their first report is far above."""
        lines = [*(f"failed: {line}" for line in self.failed), *self.wrong]
        minutes, seconds = divmod(round(self.seconds), 60)
        return [f"{self.name}: {self.count}, in {minutes}:{seconds:02} min", *(f"  {line[:300]}" for line in lines)]


def of_unittest(ran: str, words: str | None) -> Count:
    said = {key: int(value) for key, value in re.findall(r"\b([a-z][a-z ]*)=(\d+)", words or "")}
    failed = said.get("failures", 0) + said.get("errors", 0)
    skipped = said.get("skipped", 0)
    return Count(int(ran) - failed - skipped, failed, skipped)


def count(output: str) -> Count:
    """The results in a test runner's output: cargo's, unittest's, or a closing line like this program's."""
    closing = CLOSING.findall(output)
    if closing:
        return Count(*(int(number or 0) for number in closing[-1]))
    total = Count()
    for found in CARGO.findall(output):
        total += Count(*map(int, found))
    # A Rust test of this tree that cannot run here reports that, and passes for cargo.
    skipped = min(len(skips.of_rust(output)), total.passed)
    total += Count(-skipped, 0, skipped)
    for ran, words in UNITTEST.findall(output):
        total += of_unittest(ran, words)
    return total


def verdict(name: str, status: int, output: str, expected: list[skips.Expected], strict: bool = False) -> Part:
    failed = ["".join(found) for found in FAILED.findall(output)]
    part = Part(name, count(output), flaky=FLAKY.findall(output), failed=failed)
    ran = part.count.passed + part.count.failed
    if strict and part.flaky:
        part.count += Count(-min(len(part.flaky), part.count.passed), len(part.flaky))
    all_skipped = skips.told(output)
    nameless = part.count.skipped - sum(not skip.in_part for skip in all_skipped)
    unexpected = [skip for skip in all_skipped if not skips.is_expected(skip, name, expected)]
    for skip in unexpected:
        part.count += Count(skipped=0 if skip.in_part else -1)
        part.fail(f"unexpected skip: {skip}")
    if nameless > 0:
        part.fail(f"{nameless} skips of which the output has no name")
    if ran == 0 and not (all_skipped and not unexpected):
        part.fail(f"{name}: no test ran (exit status {status})")
    elif status != 0 and part.count.failed == 0:
        part.fail(f"{name}: no test failed, but exit status is {status}")
    return part


def run(name: str, command: str) -> tuple[int, str]:
    """Runs a part, and shows and keeps its output."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    pieces = []
    with (
        open(RESULTS / f"{name}.log", "wb") as log,
        subprocess.Popen(
            command,
            shell=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            # make's job slots are for make, which finds them by itself.
            close_fds=False,
        ) as process,
    ):
        pipe = process.stdout.fileno()

        def take(piece: bytes) -> None:
            sys.stdout.write(piece.decode("utf-8", "replace"))
            sys.stdout.flush()
            log.write(piece)
            log.flush()
            pieces.append(piece)

        while True:
            if not select.select([pipe], [], [], SILENCE_S)[0]:
                take(f"\n{name}: silent for {SILENCE_S} s: it hangs, and is ended\n".encode())
                end(process.pid)
                break
            if not (piece := os.read(pipe, 1 << 16)):
                break
            take(piece)
    return process.returncode, b"".join(pieces).decode("utf-8", "replace")


def end(pid: int) -> None:
    """Ends a process and all that it has started, these first: orphans could no longer be found."""
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found = [int(child) for child in children.read_text().split()]
        except OSError:
            continue
        for child in found:
            end(child)
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def main(arguments: list[str]) -> int:
    parts = [argument.partition("=") for argument in arguments]
    if not parts or not all(name and command for name, _, command in parts):
        print("usage: total.py NAME=COMMAND...", file=sys.stderr)
        return 2
    expected = skips.listed()
    strict = os.environ.get("STRICT", "0") not in ("", "0")
    done = []
    for name, _, command in parts:
        print(f"== {name}: {command}", flush=True)
        begun = time.monotonic()
        part = verdict(name, *run(name, command), expected, strict)
        part.seconds = time.monotonic() - begun
        done.append(part)
    total = sum((part.count for part in done), Count())
    flaky = [f"{part.name}: {line}" for part in done for line in part.flaky]
    print("==", *(line for part in done for line in part.lines()), sep="\n")
    for line in flaky:
        print(f"flaky: {line}")
    if flaky:
        print(f"{len(flaky)} flaky, which counts as {'failed' if strict else 'passed; not with STRICT=1'}")
    print(total, flush=True)
    return 1 if total.failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
