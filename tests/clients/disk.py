"""The disk that the model is read from: the simulated SSD of tools/bench, or the disk of any folder."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

SECTOR = 512


class NotHere(Exception):
    """This machine cannot simulate an SSD, or not now."""


class Lent:
    """A simulated SSD from `ppc-bench lend`, which ends when this is closed."""

    def __init__(self, program: Path, folder: Path, archive: bool = False) -> None:
        words = [program, "lend", folder, *(["--archive"] if archive else [])]
        self.process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        line = self.process.stdout.readline()
        if not line:
            _, said = self.process.communicate()
            raise NotHere((said.strip().splitlines() or ["it said nothing"])[-1])
        about = json.loads(line)
        self.path = Path(about["path"])
        self.exact = True
        timing = about["timing"]
        self.bandwidth = timing["bandwidth"]
        self.what = f"the simulated SSD of tools/bench: {told(timing)}"

    def order(self, word: str) -> dict:
        self.process.stdin.write(f"{word}\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def be(self, device: str) -> str:
        """Turns it into one of the devices of `ppc-bench --device`; returns a description of that."""
        timing = self.order(f"be {device}")
        self.bandwidth = timing["bandwidth"]
        return told(timing)

    def reset(self) -> None:
        self.order("reset")

    def read(self) -> int:
        return self.order("read")["bytes"]

    def close(self) -> None:
        self.process.communicate()


def told(timing: dict) -> str:
    rate, latency = timing["bandwidth"] / 1e6, timing["latency_us"] / 1e3
    return f"{rate:.0f} MB/s, {latency:g} ms a request, {timing['slots']} at a time"


class Plain:
    """A folder on a disk of the machine. It counts the bytes that all processes read from that disk."""

    def __init__(self, folder: Path, why: str) -> None:
        self.path = folder
        self.exact = False
        # Unknown.
        self.bandwidth = 0
        device = os.stat(folder).st_dev
        self.counters = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}/stat")
        self.what = f"the disk of {folder} ({why}); bytes are those of all who read from it, times say little"
        self.before = 0

    def be(self, _device: str) -> str:
        """Changes nothing: a real disk is what it is."""
        return self.what

    def sectors(self) -> int:
        try:
            return int(self.counters.read_text().split()[2])
        except OSError:
            # No block device, as below a tmpfs.
            return 0

    def reset(self) -> None:
        self.before = self.sectors()

    def read(self) -> int:
        return (self.sectors() - self.before) * SECTOR

    def close(self) -> None:
        pass
