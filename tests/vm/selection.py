"""All tests, and which of them a machine gets."""

from __future__ import annotations

import fnmatch
import re
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from archive import ArchiveError
from kernel import Entry, Restrictions

# Tests that run long on purpose: only when asked for by name, and on the debug kernels.
STORM = "storm"
# The programs with tests, in the guest's /bin; all follow the same protocol. The second may be absent.
MODULE_TESTS = "rfs-test"
RUNTIME_TESTS = "cprt-test"
# A memory controller stays in one hierarchy as long as the kernel runs, which warns if it is moved back and forth.
# Tests that need it in the old hierarchy have this at the end of their names, and get their own machine.
OLD_MEMORY = "_cgroup1"


@dataclass(frozen=True)
class Test:
    name: str
    limit_s: int
    program: str = MODULE_TESTS

    def needs_old_memory(self) -> bool:
        return self.name.endswith(OLD_MEMORY)


@dataclass(frozen=True)
class Machine:
    """The tests of one machine."""

    fs: str
    tests: list[Test]
    cgroup1: bool = False


def listed(programs: Path) -> list[Test]:
    """The tests in a folder of programs, which list their own tests, here as well as in the guest."""
    found = []
    for name in (MODULE_TESTS, RUNTIME_TESTS):
        program = programs / name
        if name == MODULE_TESTS or program.exists():
            done = subprocess.run([str(program), "--list"], capture_output=True, text=True, check=True)
            pairs = [line.split() for line in done.stdout.splitlines()]
            found += [Test(test, int(limit), name) for test, limit in pairs]
    return found


def named(tests: list[Test], pattern: str, storms: bool) -> list[Test]:
    """The tests that a pattern names: shell wildcards or a part of the name, several separated by commas."""
    words = [word for word in re.split(r"[,\s]+", pattern) if word]
    chosen = []
    for test in tests:
        wanted = not words
        for word in words:
            exact = any(other.name == word for other in tests)
            wildcards = word if exact or re.search(r"[*?\[]", word) else f"*{word}*"
            wanted |= fnmatch.fnmatchcase(test.name, wildcards)
        if test.name.startswith(STORM) and not storms and not any(word.startswith(STORM) for word in words):
            wanted = False
        if wanted:
            chosen.append(test)
    return chosen


def of_file(tests: list[Test], path: Path) -> list[Test]:
    """The tests that a file names, one a line; each has to exist."""
    words = [word for line in path.read_text().splitlines() if (word := line.split("#")[0].strip())]
    known = {test.name: test for test in tests}
    unknown = [word for word in words if word not in known]
    if unknown:
        raise ArchiveError(f"{path.name} names tests that are not there: {', '.join(unknown)}")
    return [known[word] for word in words]


def machines(
    kernel: Entry, tests: list[Test], rules: Restrictions, by_name: bool, systems: Iterable[str] = ()
) -> list[Machine]:
    """The tests to run on a kernel: those that the list gives it or, if tests are named, all of these."""
    chosen = list(systems) or list(kernel.file_systems)
    found = []
    old_ones: set[str] = set()
    for fs in chosen:
        own = [
            test
            for test in tests
            if by_name or (is_given(kernel, test, fs) and rules.allow(test.name, kernel.name, fs, fs == chosen[0]))
        ]
        plain = [test for test in own if not test.needs_old_memory()]
        # These tests need pages of any file system: one is enough.
        old = [test for test in own if test.needs_old_memory() and test.name not in old_ones]
        old_ones.update(test.name for test in old)
        found += [Machine(fs, plain)] if plain else []
        found += [Machine(fs, old, cgroup1=True)] if old and kernel.has_old_memory() else []
    return found


def is_given(kernel: Entry, test: Test, fs: str) -> bool:
    """Whether the list gives a kernel a test: `PROGRAM`, or `PROGRAM:BEGINNING` for tests whose names begin with that;
    `@FS` at the end restricts a word to that file system.
    """
    for word in kernel.tests:
        names, _, only = word.partition("@")
        program, _, start = names.partition(":")
        if test.program == program and test.name.startswith(start) and only in ("", fs):
            return True
    return False
