#!/usr/bin/env python3
"""Runs the container image's programs under runc: image.py IMAGE. Needs root; no network and no registry."""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import json
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Any


class Image:
    """An image in the layout of OCI, in an archive; every blob is checked against its digest."""

    def __init__(self, path: Path) -> None:
        self._archive = tarfile.open(path)
        index = json.loads(self._read("index.json"))
        self.manifest = json.loads(self.blob(index["manifests"][0]))
        self.config = json.loads(self.blob(self.manifest["config"]))

    def _read(self, name: str) -> bytes:
        file = self._archive.extractfile(name)
        assert file is not None, name
        return file.read()

    def blob(self, described: dict[str, Any]) -> bytes:
        kind, _, digest = described["digest"].partition(":")
        data = self._read(f"blobs/{kind}/{digest}")
        assert hashlib.new(kind, data).hexdigest() == digest, f"{digest} is damaged"
        assert len(data) == described["size"], f"{digest} has {len(data)} bytes"
        return data

    def unpack(self, folder: Path) -> None:
        for described, expected in zip(self.manifest["layers"], self.config["rootfs"]["diff_ids"], strict=True):
            plain = gzip.decompress(self.blob(described))
            assert f"sha256:{hashlib.sha256(plain).hexdigest()}" == expected, "a layer is not that of the configuration"
            with tarfile.open(fileobj=io.BytesIO(plain)) as layer:
                layer.extractall(folder)


class Bundle:
    """The image as runc takes it: unpacked, beside a configuration."""

    def __init__(self, image: Image, folder: Path) -> None:
        self._folder = folder
        self._environment = image.config["config"]["Env"]
        image.unpack(folder / "rootfs")
        subprocess.run(["runc", "spec"], cwd=folder, check=True)
        self._spec = json.loads((folder / "config.json").read_text())

    def start(self, name: str, *command: str, **options: Any) -> subprocess.Popen[str]:
        self._spec["process"] |= {"args": [*command], "terminal": False, "env": self._environment}
        self._spec["process"]["capabilities"] = {
            kind: ["CAP_BPF", "CAP_CHOWN", "CAP_DAC_READ_SEARCH", "CAP_PERFMON", "CAP_SYS_ADMIN"]
            for kind in ("bounding", "effective", "permitted")
        }
        # What a daemon writes to.
        self._spec["root"]["readonly"] = False
        (self._folder / "config.json").write_text(json.dumps(self._spec))
        words = ["runc", "run", "--bundle", str(self._folder), f"ppc-image-{name}"]
        return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options)

    def run(self, name: str, *command: str) -> tuple[int, str]:
        process = self.start(name, *command)
        said, _ = process.communicate(timeout=60)
        return process.returncode, said


def programs_say_their_version(image: Image, bundle: Bundle) -> None:
    for program in ("cprtd", "ppcctl", "mount.rfs"):
        status, said = bundle.run("version", program, "--version")
        assert status == 0 and said.startswith(program), said


def policies_are_found(image: Image, bundle: Bundle) -> None:
    for policy in ("eager", "maio", "null", "precache", "readahead", "shift"):
        status, said = bundle.run("policy", "ppcctl", "policy", "inspect", policy)
        assert status == 0, f"{policy}: {said}"


def doctor_examines_the_machine(image: Image, bundle: Bundle) -> None:
    # 10 and 11 are about the machine, which the image does not choose.
    status, said = bundle.run("doctor", "ppcctl", "doctor", "/usr/lib/ppc")
    assert status in (0, 10, 11) and "Backend" in said, f"{status}: {said}"


def the_daemon_answers_and_ends(image: Image, bundle: Bundle) -> None:
    daemon = bundle.start("daemon", *image.config["config"]["Cmd"])
    try:
        ask = ["runc", "exec", "ppc-image-daemon", "/usr/bin/ppcctl", "status"]
        until = time.monotonic() + 30
        # First there is no container, then no socket.
        while (asked := subprocess.run(ask, capture_output=True, text=True, check=False)).returncode:
            assert daemon.poll() is None, daemon.communicate()[0]
            assert time.monotonic() < until, asked.stdout + asked.stderr
            time.sleep(0.2)
        subprocess.run(["runc", "kill", "ppc-image-daemon", image.config["config"]["StopSignal"]], check=True)
        said, _ = daemon.communicate(timeout=30)
        assert daemon.returncode == 0, said
    finally:
        subprocess.run(["runc", "delete", "--force", "ppc-image-daemon"], capture_output=True, check=False)
        daemon.wait()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("image", type=Path)
    args = parser.parse_args()
    image = Image(args.image)
    failed = 0
    tests = (
        programs_say_their_version,
        policies_are_found,
        doctor_examines_the_machine,
        the_daemon_answers_and_ends,
    )
    for test in tests:
        with tempfile.TemporaryDirectory() as name:
            try:
                test(image, Bundle(image, Path(name)))
                print(f"pass image_{test.__name__}")
            except (AssertionError, OSError, subprocess.SubprocessError) as error:
                failed += 1
                print(f"fail image_{test.__name__}\n{error}")
    print(f"{len(tests) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
