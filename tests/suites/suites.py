#!/usr/bin/env python3
"""Test suites of others, which have to be green on a mirror: run in a guest, where the mirror is of its test disk.

    suites.py [--kernel 6.12] [--fs ext4] [fio] [python] [wheels] [fsx] [pjdfstest]

Without names, all of them. fio comes from this machine, Python and its tests from Debian, wheels from PyPI, fsx and
pjdfstest from cargo's registry; all are kept in the cache. Ends with a count of what passed and failed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
RIG = HERE.parent / "vm"
sys.path.insert(0, str(RIG))

from archive import ArchiveError, Suite, cache_dir  # noqa: E402

# This machine's C library runs Debian 12's Python.
DEBIAN = "bookworm"
PYTHON = ["python3.11-minimal", "libpython3.11-minimal", "libpython3.11-stdlib", "libpython3.11-testsuite"]
# Wheels with extension modules and with many small files.
WHEELS = ["safetensors==0.4.5", "pyyaml==6.0.2", "tokenizers==0.20.3", "jinja2==3.1.4"]
CRATES = {"fsx": "0.3.2", "pjdfstest": "0.2.2"}
SUITES = ["fio", "python", "wheels", "fsx", "pjdfstest"]
DISK_MB = 1024
MEMORY_MB = 4096


def crate(name: str) -> Path:
    """A program of cargo's registry, in the version that is known to fit."""
    root = cache_dir() / "suites" / f"{name}-{CRATES[name]}"
    if not (root / "bin" / name).exists():
        command = ["cargo", "install", "--quiet", "--root", str(root), "--version", CRATES[name], name]
        subprocess.run(command, check=True, cwd=cache_dir())
    return root / "bin" / name


def add_python(root: Path) -> None:
    suite = Suite(DEBIAN)
    suite.refresh()
    packages = [suite.need(name) for name in PYTHON]
    folder = cache_dir() / "suites" / f"python-{packages[-1].version}"
    suite.unpack(packages, folder)
    shutil.copytree(folder / "usr", root / "opt/python/usr", ignore=shutil.ignore_patterns("share", "doc"))


def add_wheels(root: Path) -> None:
    folder = cache_dir() / "suites" / "wheels"
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    subprocess.run([*command, "--python-version", "3.11", "--dest", str(folder), *WHEELS], check=True)
    # Packed, because the rig strips large programs on their way into the guest.
    shutil.copytree(folder, root / "opt/wheels")


def fill(root: Path, suites: list[str]) -> None:
    """Puts what the suites need at its paths in the guest."""
    programs = root / "bin"
    programs.mkdir(parents=True)
    shutil.copy(HERE / "guest.sh", programs / "suites")
    (programs / "suites").chmod(0o755)
    if "fio" in suites:
        found = shutil.which("fio")
        if found is None:
            raise ArchiveError("fio is not installed: apt-get install fio")
        shutil.copy(found, programs / "fio")
    for name in CRATES:
        if name in suites:
            shutil.copy(crate(name), programs / name)
    (root / "opt").mkdir()
    for name in ("records.py", "pjdfstest.toml"):
        shutil.copy(HERE / name, root / "opt" / name)
    # Python reads the hashes of wheels.
    if {"python", "wheels"} & set(suites):
        add_python(root)
    if "wheels" in suites:
        add_wheels(root)


def run(kernel: str, fs: str, suites: list[str], root: Path) -> tuple[int, int]:
    command = [sys.executable, str(RIG / "vm.py"), "exec", "--fs", fs, "--disk", str(DISK_MB), "--memory"]
    command += [str(MEMORY_MB), kernel, "--", "suites", *suites]
    environment = dict(os.environ, GUEST_ROOT=str(root))
    passed = failed = 0
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as guest:
        assert guest.stdout is not None
        for line in guest.stdout:
            print(line, end="", flush=True)
            passed += line.startswith("pass  ")
            failed += line.startswith("fail  ")
    # A guest that dies has not said what fails.
    return passed, failed or int(guest.returncode != 0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernel", default="6.12")
    parser.add_argument("--fs", default="ext4")
    parser.add_argument("suites", nargs="*", metavar="suite", help=" ".join(SUITES))
    args = parser.parse_args()
    unknown = set(args.suites) - set(SUITES)
    if unknown:
        parser.error(f"no suite {' '.join(sorted(unknown))}: there are {' '.join(SUITES)}")
    chosen = args.suites or SUITES
    with tempfile.TemporaryDirectory(prefix="ppc-suites.", dir=cache_dir()) as folder:
        root = Path(folder) / "root"
        try:
            fill(root, chosen)
            passed, failed = run(args.kernel, args.fs, chosen, root)
        except (ArchiveError, OSError, subprocess.CalledProcessError) as error:
            print(f"suites: {error}", file=sys.stderr)
            passed, failed = 0, 1
    print(f"{passed} passed, {failed} failed")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
