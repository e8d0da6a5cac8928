#!/usr/bin/env python3
"""Runs the parts of `make test` one after another and adds their results up.

    total.py NAME=COMMAND...

Every part runs, whatever the ones before it did; its output is shown as it comes and kept in
target/test-results/NAME.log. The last line is the sum, `N passed, M failed, K skipped`, and the exit status
is 0 only if nothing failed. A part that ran no test at all has failed, and so has one whose exit status says
so though no test of its own does: a program that didn't compile, a rig that broke down.
"""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

RESULTS = Path(__file__).parent.parent / "target" / "test-results"
# A rig may close each of its machines with a line of this form; the last one is of them all.
CLOSING = re.compile(r"^(\d+) passed, (\d+) failed(?:, (\d+) skipped)?$", re.MULTILINE)
CARGO = re.compile(r"^test result: \w+\. (\d+) passed; (\d+) failed; (\d+) ignored;", re.MULTILINE)
# A test of ours that cannot run where it is says so, and passes for cargo.
SKIPPED = re.compile(r"\bskipped: ([\w:]+): ")
UNITTEST = re.compile(r"^Ran (\d+) tests? in .*\n\n(?:OK|FAILED|NO TESTS RAN)(?: \((.*)\))?$", re.MULTILINE)


@dataclass
class Count:
    """What came of some tests."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0

    def __add__(self, other: Count) -> Count:
        return Count(self.passed + other.passed, self.failed + other.failed, self.skipped + other.skipped)

    def __str__(self) -> str:
        return f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped"


def of_unittest(ran: str, words: str | None) -> Count:
    said = {key: int(value) for key, value in re.findall(r"\b([a-z][a-z ]*)=(\d+)", words or "")}
    failed = said.get("failures", 0) + said.get("errors", 0)
    skipped = said.get("skipped", 0)
    return Count(int(ran) - failed - skipped, failed, skipped)


def count(output: str) -> Count:
    """The results that the output of a test runner tells: cargo's, unittest's, or a closing line like ours."""
    closing = CLOSING.findall(output)
    if closing:
        return Count(*(int(number or 0) for number in closing[-1]))
    total = Count()
    for found in CARGO.findall(output):
        total += Count(*map(int, found))
    skipped = min(len(set(SKIPPED.findall(output))), total.passed)
    total += Count(-skipped, 0, skipped)
    for ran, words in UNITTEST.findall(output):
        total += of_unittest(ran, words)
    return total


def verdict(name: str, status: int, output: str) -> tuple[Count, str]:
    """The count of a part, and what is wrong with it beyond its tests."""
    total = count(output)
    if total.passed + total.failed == 0:
        return total + Count(failed=1), f"{name}: no test ran (exit status {status})"
    if status != 0 and total.failed == 0:
        return total + Count(failed=1), f"{name}: no test failed, but exit status is {status}"
    return total, ""


def run(name: str, command: str) -> tuple[int, str]:
    """Runs a part, showing and keeping what it prints."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    lines = []
    with (
        open(RESULTS / f"{name}.log", "w") as log,
        subprocess.Popen(
            command,
            shell=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
            # make's job slots are for make, which finds them without us.
            close_fds=False,
        ) as process,
    ):
        for line in process.stdout:
            sys.stdout.write(line)
            sys.stdout.flush()
            log.write(line)
            lines.append(line)
    return process.returncode, "".join(lines)


def main(arguments: list[str]) -> int:
    parts = [argument.partition("=") for argument in arguments]
    if not parts or not all(name and command for name, _, command in parts):
        print("usage: total.py NAME=COMMAND...", file=sys.stderr)
        return 2
    total = Count()
    summary = []
    for name, _, command in parts:
        print(f"== {name}: {command}", flush=True)
        part, wrong = verdict(name, *run(name, command))
        total += part
        summary += [f"{name}: {part}"] + ([f"  {wrong}"] if wrong else [])
    print("==", *summary, total, sep="\n", flush=True)
    return 1 if total.failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
