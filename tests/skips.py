"""Skipped tests by name, and which of them are expected to skip on this machine."""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

LIST = Path(__file__).with_name("expected-skips")
# How the rigs, a Rust test itself, cargo (for tests that it leaves out) and unittest -v report a skip.
OURS = re.compile(r"^skip  (\S+): (.*)$", re.MULTILINE)
RUST = re.compile(r"\bskipped( in part)?: ([\w:]+): (.*)$", re.MULTILINE)
IGNORED = re.compile(r"^test (.+?) \.\.\. ignored(?:, (.*))?$", re.MULTILINE)
UNITTEST = re.compile(r"^\w+ \(([\w.]+)\)(?:\n.*)? \.\.\. skipped (['\"])(.*)\2$", re.MULTILINE)


@dataclass(frozen=True)
class Skip:
    test: str
    why: str
    # One of several ways to run the test, which does not count as a skip.
    in_part: bool = False

    def __str__(self) -> str:
        return f"{self.test}{' in part' if self.in_part else ''}: {self.why}"


@dataclass(frozen=True)
class Expected:
    """A line of the list. Asterisks stand for anything."""

    part: str
    test: str
    when: str
    why: str

    def covers(self, skip: Skip, part: str) -> bool:
        pairs = ((self.part, part), (self.test, skip.test), (self.why, skip.why))
        return all(matches(pattern, text) for pattern, text in pairs) and all(map(holds, self.when.split(",")))


def matches(pattern: str, text: str) -> bool:
    return re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), text, re.DOTALL) is not None


def holds(condition: str) -> bool:
    """Whether the condition holds on this machine; expected-skips lists the conditions."""
    word, _, rest = condition.partition(":")
    if word in ("any", "root", "user") and not rest:
        return word == "any" or (os.geteuid() == 0) == (word == "root")
    if word == "no" and rest.startswith("/"):
        return not os.path.exists(rest)
    if word == "no" and rest:
        return shutil.which(rest, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin") is None
    if word == "before" and rest:
        running = re.match(r"(\d+)\.(\d+)", os.uname().release)
        return running is not None and tuple(map(int, running.groups())) < tuple(map(int, rest.split(".")))
    raise ValueError(f"{LIST.name}: no such condition: {condition}")


def listed(path: Path = LIST) -> list[Expected]:
    lines = [line for line in path.read_text().splitlines() if line.strip() and not line.startswith("#")]
    found = []
    for line in lines:
        fields = line.split(maxsplit=3)
        if len(fields) != 4:
            raise ValueError(f"{path.name}: not PART TEST WHEN WHY: {line}")
        found.append(Expected(*fields))
        # Report a condition that cannot be read before a skip meets it.
        for condition in found[-1].when.split(","):
            holds(condition)
    return found


def of_rust(output: str) -> dict[str, Skip]:
    """Tests that were skipped entirely, once each, however many reasons they gave."""
    return {test: Skip(test, why) for part, test, why in reversed(RUST.findall(output)) if not part}


def told(output: str) -> list[Skip]:
    """Every skip in the output of a test runner."""
    whole = of_rust(output)
    found = list(whole.values())
    found += [Skip(test, why, in_part=True) for part, test, why in RUST.findall(output) if part and test not in whole]
    found += [Skip(test, why or "no reason") for test, why in IGNORED.findall(output)]
    found += [Skip(test, why) for test, _, why in UNITTEST.findall(output)]
    found += [Skip(test, why) for test, why in OURS.findall(output)]
    return found


def is_expected(skip: Skip, part: str, expected: list[Expected]) -> bool:
    return any(one.covers(skip, part) for one in expected)
