"""A Python environment for the frameworks, outside the tree: made once, with the packages of requirements.txt."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
REQUIREMENTS = HERE / "requirements.txt"
# Free space required: the packages, downloaded and unpacked, and some room.
ROOM = 8 << 30
HOURS = 3600


class Missing(Exception):
    """Why there is no such environment."""


def cache() -> Path:
    """The folder for everything kept outside the tree."""
    told = os.environ.get("PPC_CACHE")
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(told or Path(home) / "ppc") / "clients"


def wanted(text: str) -> list[str]:
    """The packages that a requirements file names."""
    lines = (line.partition("#")[0].strip() for line in text.splitlines())
    return [line for line in lines if line]


def ensure() -> Path:
    """The interpreter, with every package that could be installed."""
    folder = cache() / "venv"
    python, stamp = folder / "bin/python", folder / "requirements"
    mark = hashlib.sha256(REQUIREMENTS.read_bytes() + sys.version.encode()).hexdigest()
    if stamp.is_file() and stamp.read_text() == mark:
        return python
    folder.parent.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(folder.parent).free
    if free < ROOM:
        raise Missing(f"{folder.parent} has {free >> 30} GiB left, and {ROOM >> 30} are needed")
    # Installed packages stay: other versions of the list have most of them, too.
    if not runs_as(python, sys.version):
        print(f"making {folder}, once: 2.5 GB to download", file=sys.stderr, flush=True)
        if not run([sys.executable, "-m", "venv", "--clear", str(folder)]):
            raise Missing("no environment can be made; on Debian that takes the package python3-venv")
    if install(python):
        stamp.write_text(mark)
    return python


def runs_as(python: Path, version: str) -> bool:
    """Whether an interpreter exists and has this version."""
    try:
        done = subprocess.run([str(python), "-c", "import sys; print(sys.version)"], capture_output=True, text=True)
    except OSError:
        return False
    return done.returncode == 0 and done.stdout.strip() == version.strip()


def install(python: Path) -> bool:
    """Installs all packages, or those that can be. Returns whether it installed all."""
    pip = [str(python), "-m", "pip", "install", "--quiet", "--no-deps", "--no-cache-dir", "--disable-pip-version-check"]
    if run([*pip, "--requirement", str(REQUIREMENTS)]):
        return True
    missing = [package for package in wanted(REQUIREMENTS.read_text()) if not run([*pip, "--retries", "0", package])]
    print(f"not installed: {', '.join(missing)}", file=sys.stderr)
    return not missing


def run(command: list[str]) -> bool:
    try:
        return subprocess.run(command, stdin=subprocess.DEVNULL, timeout=HOURS).returncode == 0
    except (OSError, subprocess.TimeoutExpired) as error:
        print(error, file=sys.stderr)
        return False


def lacking(python: Path) -> dict[str, str]:
    """The clients' modules that cannot be imported, and why."""
    command = [str(python), str(HERE / "loaders.py"), "--probe"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=600)
        return json.loads(done.stdout.splitlines()[-1])
    except (OSError, IndexError, ValueError, subprocess.TimeoutExpired) as error:
        raise Missing(f"its Python does not run: {error}") from error
