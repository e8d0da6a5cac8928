"""One boot of one machine, and the result of each test that it was to run."""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import build
import debug
import initramfs
import kernel as kernels
import machine
from architecture import AMD64, Architecture
from archive import ArchiveError, cache_dir
from selection import MODULE_TESTS, Test

# In a run's folder: the module's source, and the programs at their paths in the guest, as they were when it began.
INPUTS = "inputs"
ROOT = "root"
# How much slower than the time limits assume a kernel is, emulated and with every checker on.
DEBUG_FACTOR = 6
BOOT_S = 120
# How long the guest may be silent past a test's own limit, or between two tests, before it counts as hung.
SILENCE_S = 60
# How long a command in a guest may be silent.
EXEC_SILENCE_S = 1800
MEMORY_MB = 3072
DEBUG_MEMORY_MB = 4096
# How long logs of old runs are kept: a day.
KEEP_S = 24 * 3600
# The kernel's messages about why it died; the first in the log is the cause.
DEATH = re.compile(
    r"WARNING:|BUG:|KASAN|UBSAN|Oops|general protection|possible circular|possible recursive|panic|suspicious RCU|"
    r"INFO: task|inconsistent lock|invalid opcode|stack segment"
)
# Messages of a test that ran out of time, by the rig's clock or its own; and the number of them in one machine above
# which they are no accident.
LATE = re.compile(r"^timed out after|^killed by signal 14")
SECOND_TRIES = 5
# The name in reports of flaky boots outside any test.
THE_MACHINE = "the-machine"


@dataclass(frozen=True)
class Result:
    kernel: str
    fs: str
    test: str
    status: str
    ms: int
    message: str


@dataclass
class Job:
    """The tests of one kernel on one file system."""

    kernel: str
    fs: str
    tests: list[Test]
    factor: int = 1
    folder: Path = Path()
    cgroup1: bool = False
    # Size of the disk with the file system under test; 0: init's default.
    disk_mb: int = 0
    results: list[Result] = field(default_factory=list)
    running: str = ""
    # Tests that did not pass at their first try, and how that ended.
    flaky: dict[str, str] = field(default_factory=dict)
    # The rig's own tests run in every boot; those that failed in the first one have failed.
    settled: set[str] = field(default_factory=set)
    error: str = ""
    version: str = "-"

    @property
    def name(self) -> str:
        return f"{self.kernel}-{self.fs}" + ("-cgroup1" if self.cgroup1 else "")

    @property
    def console(self) -> Path:
        return self.folder / f"{self.name}.log"

    def limit_s(self) -> int:
        """The time limits of its tests together: the only measure there is of how long it takes."""
        return sum(test.limit_s for test in self.tests)

    def own_tests(self) -> list[str]:
        """The rig's own tests at the end of every boot."""
        return ["module_unload", "kmemleak"] if kernels.is_built(self.kernel) else ["module_unload"]

    def planned(self) -> list[str]:
        """Every test that has to end in a result, the rig's own last."""
        return [test.name for test in self.tests] + self.own_tests()

    def add(self, test: str, status: str, ms: int, message: str, heard: Callable[[Result], None]) -> None:
        if test in self.settled:
            return
        result = Result(self.kernel, self.fs, test, status, ms, message)
        self.results.append(result)
        heard(result)

    def run(self, heard: Callable[[Result], None]) -> None:
        """Boots, runs, and accounts for every test: one that the guest does not report has failed."""
        try:
            ending = self.boot(heard)
            if again := self.owed_to_the_host(ending):
                ending = self.boot_again(again, ending, heard)
        except (ArchiveError, build.BuildError, OSError, subprocess.CalledProcessError) as error:
            self.error = str(error)
            ending = self.error.splitlines()[0]
        done = {result.test for result in self.results}
        for test in self.planned():
            if test in done:
                continue
            if test == self.running:
                self.add(test, "fail", 0, ending or "the machine was switched off", heard)
            else:
                self.add(test, "fail", 0, f"not run: {ending}" if ending else "not run", heard)

    def boot_again(self, again: set[str], ending: str, heard: Callable[[Result], None]) -> str:
        """Runs what is owed a second try. Returns why that boot ended early, if it did."""
        reason = ending or "over their time limits"
        print(f"again {self.name}: {len(again)} tests once more: {reason}", flush=True)
        first = {result.test: result.message for result in self.results if result.test in again}
        if self.running:
            first[self.running] = ending
        # Tests that had not begun are not to blame if their machine did not boot, or died between two tests.
        first = first or {THE_MACHINE: ending}
        own = set(self.own_tests())
        self.settled = {result.test for result in self.results if result.test in own and result.status == "fail"}
        anew = (again | own) - self.settled
        self.results = [result for result in self.results if result.test not in anew]
        self.tests, planned = [test for test in self.tests if test.name in again], self.tests
        self.running = ""
        if self.console.exists():
            self.console.replace(self.console.with_suffix(".first.log"))
        ending = self.boot(heard)
        self.tests = planned
        ended_well = {result.test for result in self.results if result.status != "fail"}
        ended_well |= {THE_MACHINE} if ended_well & again else set()
        self.flaky = {test: why for test, why in first.items() if test in ended_well}
        return ending

    def boot(self, heard: Callable[[Result], None]) -> str:
        """Boots once and runs the tests. Returns why the boot ended early, if it did."""
        plan = prepare(self)
        with machine.boot(plan) as guest:
            ending = self.follow(guest, heard)
        plan.initramfs.unlink(missing_ok=True)
        return ending

    def owed_to_the_host(self, ending: str) -> set[str]:
        """The tests that get one second try: those over their time limit, as other work uses the machine, too, and
        those that did not end because QEMU died without a message from the kernel, or because the machine did not boot
        (before any code under test ran). What a check or the kernel's log reports stands.
        """
        late = {result.test for result in self.results if result.status == "fail" and LATE.search(result.message)}
        if not ending:
            return late if len(late) <= SECOND_TRIES else set()
        started = self.running or self.results
        if self.cause("") or (started and ending.startswith("the machine hung")):
            return set()
        done = {result.test for result in self.results}
        return late | {name for name in self.planned() if name not in done}

    def follow(self, guest: machine.Machine, heard: Callable[[Result], None]) -> str:
        """Collects the guest's reports until it is done. Returns why the boot ended early, if it did."""
        deadline = time.monotonic() + BOOT_S * self.factor
        fatal = ""
        while True:
            try:
                line = guest.line(deadline)
            except TimeoutError:
                guest.stop()
                return f"the machine hung{self.cause(': ')}"
            if line is None:
                return fatal or f"the machine died{self.cause(': ')}"
            word, _, rest = line.partition(" ")
            if word == "DONE":
                self.running = ""
                return fatal
            if word == "FATAL":
                fatal = fatal or rest
            limit = SILENCE_S * self.factor
            if word == "START":
                _, self.running, limit_s = rest.split(" ")
                limit += int(limit_s)
            elif word == "RESULT":
                _, test, status, ms, message = (rest + " ").split(" ", 4)
                self.running = ""
                self.add(test, status, int(ms), message.strip().removeprefix(f"{test}: "), heard)
            elif word != "FATAL":
                fatal = fatal or line  # QEMU's own words
            deadline = time.monotonic() + limit

    def cause(self, before: str) -> str:
        """The kernel's first complaint since the running test began."""
        text = self.console.read_text(errors="replace") if self.console.exists() else ""
        recent = text[max(0, text.rfind("\n--- ")):]
        for line in recent.splitlines():
            if DEATH.search(line):
                return before + re.sub(r"^\[[\s\d.]+\]\s*", "", line).strip()
        return ""


def run_folder() -> Path:
    """Makes a folder for a run's inputs and logs, and removes old ones."""
    base = cache_dir() / "runs"
    base.mkdir(parents=True, exist_ok=True)
    for old in base.iterdir():
        if time.time() - old.stat().st_mtime > KEEP_S:
            shutil.rmtree(old, ignore_errors=True)
    folder = base / f"{time.strftime('%H%M%S')}-{os.getpid()}"
    folder.mkdir()
    take_inputs(folder)
    return folder


def fetch_kernel(name: str) -> kernels.Kernel:
    return debug.fetch(kernels.entry(name)) if kernels.is_built(name) else kernels.fetch(name)


def prepare(job: Job, conf: list[str] | None = None) -> machine.Plan:
    """Builds what a boot needs. `conf` replaces the lines that name the tests to run."""
    kernel = fetch_kernel(job.kernel)
    job.version = kernel.version
    if conf is None:
        conf = ["mode test", *(f"run {test.name} {test.limit_s} {test.program}" for test in job.tests)]
    image = job.folder / f"{job.name}.cpio"
    init, root = guest_files(job.folder, kernel.architecture)
    initramfs.make(image, kernel, init, own_modules(job.folder, kernel), root, [*settings(job), *conf])
    return machine.Plan(
        image=kernel.image,
        initramfs=image,
        console=job.console,
        architecture=kernel.architecture,
        memory_mb=DEBUG_MEMORY_MB if kernels.is_built(job.kernel) else MEMORY_MB,
        # Not tried on the debug kernels.
        trusts_counter=kernel.architecture is AMD64 and not kernels.is_built(job.kernel),
    )


def own_modules(folder: Path, kernel: kernels.Kernel) -> dict[str, bytes]:
    """A run's modules for a kernel, by name. The emulator of arm64 is not known to need one."""
    rfs, emulator = (folder / INPUTS / source.name for source in (build.MODULE, build.EMULATOR))
    own = {"rfs": build.module(kernel, source=rfs).data} if rfs.is_dir() else {}
    if kernel.architecture is AMD64:
        own[build.STALE_INT3] = build.module(kernel, source=emulator, name=build.STALE_INT3).data
    return own


def guest_files(folder: Path, architecture: Architecture) -> tuple[Path, Path]:
    """A run's PID 1, and its programs at their paths in the guest. Of those for another processor, only the module's
    tests are built."""
    inputs = folder / INPUTS
    if architecture is AMD64:
        return inputs / "init", inputs / ROOT
    own = inputs / architecture.name
    (own / ROOT / "bin").mkdir(parents=True, exist_ok=True)
    shutil.copy(build.init(architecture), own / "init")
    shutil.copy(build.test_program(architecture), own / ROOT / "bin" / MODULE_TESTS)
    return own / "init", own / ROOT


def settings(job: Job) -> list[str]:
    """The lines of a job's configuration besides those of its tests."""
    lines = [f"fs {job.fs}", f"factor {job.factor}"]
    if job.cgroup1:
        lines.append("cgroup1")
    if job.disk_mb:
        lines.append(f"disk {job.disk_mb}")
    return lines


def programs(folder: Path) -> Path:
    """The folder of a run's programs with tests."""
    return folder / INPUTS / ROOT / "bin"


def take_inputs(folder: Path) -> None:
    """Copies the inputs of a run's machines, so that edits meanwhile do not mix two states of the tree."""
    inputs = folder / INPUTS
    bin_folder = programs(folder)
    bin_folder.mkdir(parents=True)
    if build.MODULE.is_dir():
        shutil.copytree(build.MODULE, inputs / build.MODULE.name)
    shutil.copytree(build.EMULATOR, inputs / build.EMULATOR.name)
    shutil.copy(build.init(), inputs / "init")
    for program in build.extra_programs():
        build.copy_stripped(program, bin_folder / program.name)
    overlay = build.overlay()
    for path in overlay.rglob("*") if overlay else []:
        if path.is_file():
            build.copy_stripped(path, inputs / ROOT / path.relative_to(overlay))
    shutil.copy(build.test_program(), bin_folder / MODULE_TESTS)


def execute(
    job: Job, command: str, sink: Callable[[str], None] | None = None, **changes: Any
) -> tuple[int, list[str]]:
    """Runs one command line in a guest. Returns its exit status, -1 if the machine died, and its output.

    `changes` are fields of machine.Plan: icount=True, cpus=4, extra=[...].
    """
    plan = dataclasses.replace(prepare(job, ["mode exec", f"exec {command}"]), **changes)
    lines: list[str] = []
    status = -1
    started = False
    with machine.boot(plan) as guest:
        while (line := patient_line(guest)) is not None:
            word, _, rest = line.partition(" ")
            if word == "FATAL" and not started:
                raise ArchiveError(f"{job.kernel}: {rest}; console: {job.console}")
            if not started:
                started = word == "START"
            elif word == "EXIT":
                status = int(rest)
            elif line != "DONE":
                lines.append(line)
                if sink:
                    sink(line)
    plan.initramfs.unlink(missing_ok=True)
    return status, lines


def patient_line(guest: machine.Machine) -> str | None:
    """The next line of a command's output; a machine silent for too long counts as switched off."""
    try:
        return guest.line(time.monotonic() + EXEC_SILENCE_S)
    except TimeoutError:
        guest.stop()
        return None


def shell(job: Job) -> int:
    """Boots to a shell on this terminal."""
    plan = prepare(job, ["mode shell"])
    plan.interactive = True
    with machine.boot(plan) as guest:
        return guest.process.wait()
