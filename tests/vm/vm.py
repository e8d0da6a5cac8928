#!/usr/bin/env python3
"""Boots kernels in virtual machines and runs the tests of rfs.ko and of the runtime on them.

environment:
  V=1          one line per test, not only the failures
  STRICT=1     a test that passed at its second try only fails the run
  JOBS=N       machines at a time (default: the number of processors, at most 4)
  EXTRA=A:B    more programs for the guest's /bin
  GUEST_ROOT   a folder whose files go to the same places in the guest
  PPC_CACHE    where downloads and builds are kept (default: $XDG_CACHE_HOME/ppc or ~/.cache/ppc)
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import build
import debug
import job as jobs
import kernel as kernels
import machine
import selection
from architecture import AMD64, of_kernel
from archive import ArchiveError, cache_dir
from report import Report
from selection import Test


# Commands whose last line is a count, whatever happens.
TESTING = {"run", "matrix", "debug", "quick"}
# The file system of machines that boot without tests.
FILE_SYSTEM = "ext4"
QUICK = Path(__file__).with_name("quick")


def run_jobs(planned: list[jobs.Job]) -> int:
    """Runs machines side by side. The exit status says whether everything passed."""
    report = Report(planned, verbose=os.environ.get("V", "0") not in ("", "0"))
    workers = int(os.environ.get("JOBS") or min(4, os.cpu_count() or 1))
    pool = ThreadPoolExecutor(workers)
    try:
        # Longest first, so that no processor is idle while the last of them runs.
        for done in [pool.submit(one.run, report.heard) for one in sorted(planned, key=jobs.Job.limit_s, reverse=True)]:
            done.result()
    except KeyboardInterrupt:
        # Exiting at once kills the machines; an orderly end would wait for them.
        os._exit(130)
    return report.close()


def plan(
    names: list[str], tests: list[Test], folder: Path, args: argparse.Namespace, *, by_name: bool
) -> list[jobs.Job]:
    """The machines for tests on kernels: for all tests asked for by name, or for those that the list gives."""
    planned = []
    for name in names:
        factor = args.factor or (jobs.DEBUG_FACTOR if kernels.is_built(name) else 1)
        # The runtime's tests are compiled for this machine only.
        runnable = [test for test in tests if of_kernel(name) is AMD64 or test.program == selection.MODULE_TESTS]
        for found in selection.machines(kernels.entry(name), runnable, kernels.restrictions(), by_name, args.fs):
            planned.append(jobs.Job(name, found.fs, found.tests, factor, folder, found.cgroup1))
    if not planned:
        raise ArchiveError(f"none of these tests is for {', '.join(names)}")
    return planned


def run_named(names: list[str], args: argparse.Namespace, storms: bool) -> int:
    """Runs the tests of a pattern; without one, those that the list of kernels gives each."""
    folder = jobs.run_folder()
    tests = selection.named(selection.listed(jobs.programs(folder)), args.tests, storms)
    if not tests:
        raise ArchiveError(f"no test matches {args.tests!r}")
    return run_jobs(plan(names, tests, folder, args, by_name=bool(args.tests)))


def command_run(args: argparse.Namespace) -> int:
    kernels.entry(args.kernel)
    return run_named([args.kernel], args, storms=False)


def command_matrix(args: argparse.Namespace) -> int:
    return run_named([entry.name for entry in kernels.listed()], args, storms=False)


def command_debug(args: argparse.Namespace) -> int:
    names = args.kernels or [entry.name for entry in kernels.debug_kernels()]
    packaged = [name for name in names if not kernels.entry(name).is_debug]
    if packaged:
        raise ArchiveError(f"no debug kernel: {', '.join(packaged)}")
    for name in names:
        jobs.fetch_kernel(name)
    return run_named(names, args, storms=True)


def command_quick(args: argparse.Namespace) -> int:
    """Runs the tests that tests/vm/quick names, on the first file system of a kernel."""
    folder = jobs.run_folder()
    tests = selection.of_file(selection.listed(jobs.programs(folder)), QUICK)
    args.fs = args.fs or list(kernels.entry(args.kernel).file_systems[:1])
    return run_jobs(plan([args.kernel], tests, folder, args, by_name=True))


def command_kernels(args: argparse.Namespace) -> int:
    """Prints every packaged kernel of the list, as the cache has it."""
    if args.names:
        print(*(entry.name for entry in kernels.listed()), sep="\n")
        return 0
    for entry in kernels.listed():
        known = kernels.cached(entry.name)
        version = f"{known.version:<24} cached" if known else f"{'-':<24} not cached"
        print(f"{entry.name:<8} {known.suite if known else entry.suites[0]:<20} {version}")
    return 0


def command_fetch(args: argparse.Namespace) -> int:
    for name in args.kernels or [entry.name for entry in kernels.listed()]:
        kernel = jobs.fetch_kernel(name)
        print(f"{kernel.name:<8} {kernel.suite:<20} {kernel.version:<24} {kernel.headers}")
    machine.fetch()
    return 0


def command_build(args: argparse.Namespace) -> int:
    kernel = jobs.fetch_kernel(kernels.entry(args.kernel).name)
    source = Path(args.source).resolve() if args.source else build.MODULE
    made = build.module(kernel, args.variables, source)
    if made.warnings:
        print(made.log)
    print(f"{made.path}: built for {kernel.release}, {made.warnings} warnings")
    return 1 if made.warnings and args.werror else 0


def tell(line: str) -> None:
    """Prints a line at once, even if the output is collected."""
    print(line, flush=True)


def command_exec(args: argparse.Namespace) -> int:
    one = jobs.Job(kernels.entry(args.kernel).name, (args.fs or [FILE_SYSTEM])[0], [], args.factor or 1, jobs.run_folder(), disk_mb=args.disk)
    changes = {"memory_mb": args.memory} if args.memory else {}
    status, _ = jobs.execute(one, " ".join(args.command), sink=tell, icount=args.icount, **changes)
    if status:
        print(f"exit status {status}; console: {one.console}", file=sys.stderr)
    return status if 0 <= status < 256 else 1


def command_shell(args: argparse.Namespace) -> int:
    one = jobs.Job(kernels.entry(args.kernel).name, (args.fs or [FILE_SYSTEM])[0], [], 1, jobs.run_folder())
    return jobs.shell(one)


def command_clean(_: argparse.Namespace) -> int:
    """Removes builds, logs, and kernels that a newer one has replaced; keeps what the next run needs."""
    for name in ("build", "runs"):
        shutil.rmtree(cache_dir() / name, ignore_errors=True)
    kept = [known.headers for entry in kernels.listed() if (known := kernels.cached(entry.name))]
    for folder in (cache_dir() / "kernels").glob("*-*"):
        is_kernel = folder.is_dir() and not folder.name.startswith("libc-")
        if is_kernel and not any(headers.startswith(f"{folder}/") for headers in kept):
            shutil.rmtree(folder)
    return 0


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = top.add_subparsers(dest="name", required=True)

    def command(name: str, function: object, text: str) -> argparse.ArgumentParser:
        made = commands.add_parser(name, help=text, description=text)
        made.set_defaults(function=function)
        return made

    def testing(made: argparse.ArgumentParser) -> None:
        made.add_argument(
            "--fs", type=lambda word: word.split(","), default=[], help="ext4,xfs; default: as the list of kernels has it"
        )
        made.add_argument("--factor", type=int, default=0, help="stretch every time limit")

    made = command("run", command_run, "run tests on one kernel")
    made.add_argument("kernel")
    made.add_argument("tests", nargs="?", default="", help="wildcards or part of a name; commas between several")
    testing(made)
    made = command("matrix", command_matrix, "run tests on every kernel of the list and print a table")
    made.add_argument("tests", nargs="?", default="")
    testing(made)
    made = command("debug", command_debug, "run tests and storms on the debug kernels")
    made.add_argument("tests", nargs="?", default="")
    made.add_argument("kernels", nargs="*", help="default: all of them")
    testing(made)
    made = command("quick", command_quick, "run the few tests that tests/vm/quick names, on one file system")
    made.add_argument("kernel")
    testing(made)
    made = command("kernels", command_kernels, "list the packaged kernels and the versions in the cache")
    made.add_argument("--names", action="store_true", help="only their names")
    made = command("fetch", command_fetch, "fetch kernels and QEMU; print where the headers are")
    made.add_argument("kernels", nargs="*")
    made = command("build", command_build, "build rfs.ko for a kernel, with make variables such as W=1 or C=2")
    made.add_argument("kernel")
    made.add_argument("variables", nargs="*")
    made.add_argument("--source", help="another module's folder than kmod/")
    made.add_argument("--werror", action="store_true", help="fail on any warning")
    made = command("exec", command_exec, "boot, run one command line in the guest, print what it prints")
    made.add_argument("kernel")
    made.add_argument("command", nargs="+")
    made.add_argument("--icount", action="store_true", help="one processor that counts instructions")
    made.add_argument("--disk", type=int, default=0, help="MiB of the disk with the file system")
    made.add_argument("--memory", type=int, default=0, help="MiB of memory, in which the disk is, too")
    testing(made)
    made = command("shell", command_shell, "boot to a shell")
    made.add_argument("kernel")
    testing(made)
    command("clean", command_clean, "remove builds and logs from the cache; downloads stay")
    return top


def main() -> int:
    args = parser().parse_args()
    try:
        return int(args.function(args))
    except (ArchiveError, build.BuildError, OSError, subprocess.CalledProcessError) as error:
        print(f"vm: {error}", file=sys.stderr)
        if args.name in TESTING:
            print("0 passed, 1 failed")
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
