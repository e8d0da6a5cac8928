"""containerd with NRI, from a release of Debian that has it, with a disk and an image of the tests' own."""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
TREE = HERE.parent.parent
sys.path.insert(0, str(TREE / "tests/vm"))

from archive import Suite, cache_dir  # noqa: E402
from cri import Runtime  # noqa: E402

# Debian's releases, by the version of containerd that they have. Debian 12 has 1.6, which knows no NRI.
SUITES = {"1.7": "trixie", "2.x": "forky"}
IMAGE = "docker.io/library/ppc-start:1"
OURS = "docker.io/library/ppc:test"
DISK_MIB = 1024
READ_AHEAD_KIB = 128
LIBRARY = re.compile(r"(?:=> )?(/\S+) \(0x")
CONFIG = """\
version = 2
root = "{disk}/containerd"
state = "{place}/state"
[grpc]
address = "{place}/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{image}"
disable_apparmor = true
restrict_oom_score_adj = true
[plugins."io.containerd.grpc.v1.cri".cni]
conf_dir = "{place}/cni"
[plugins."io.containerd.nri.v1.nri"]
disable = false
socket_path = "{place}/nri.sock"
plugin_path = "{place}/plugins"
plugin_config_path = "{place}/conf.d"
"""


class NotHere(Exception):
    """This machine lacks something."""


def run(*words: str | Path) -> str:
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{words[0]} failed: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def containerd(version: str) -> Path:
    """The folder in the cache with containerd's programs."""
    suite = Suite(SUITES[version])
    suite.refresh()
    package = suite.need("containerd")
    folder = cache_dir() / "nri" / f"containerd-{package.version.replace('~', '-')}"
    suite.unpack([package], folder)
    return folder


class Disk:
    """An ext4 in a file, read without the page cache of the file system below, as far ahead as a disk usually is."""

    def __init__(self, place: Path, backing: Path) -> None:
        self.path = place / "disk"
        self.layers = self.path / "containerd/io.containerd.snapshotter.v1.overlayfs/snapshots"
        self._file = backing
        run("truncate", "-s", f"{DISK_MIB}M", backing)
        run("mke2fs", "-q", "-t", "ext4", backing)
        self.device = run("losetup", "--find", "--show", "--direct-io=on", backing).strip()
        name = Path(self.device).name
        (Path("/sys/block") / name / "queue/read_ahead_kb").write_text(str(READ_AHEAD_KIB))
        self.path.mkdir()
        run("mount", self.device, self.path)

    def make_cold(self) -> None:
        """Takes all files out of the page cache."""
        os.sync()
        for folder, _, names in os.walk(self.layers):
            for name in names:
                path = os.path.join(folder, name)
                if not os.path.isfile(path) or os.path.islink(path):
                    continue
                try:
                    file = os.open(path, os.O_RDONLY)
                except FileNotFoundError:
                    # Of a container that is being removed.
                    continue
                os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
                os.close(file)

    def close(self) -> None:
        run("umount", "--lazy", self.path)
        run("losetup", "--detach", self.device)
        self._file.unlink()


def libraries(programs: list[Path]) -> set[Path]:
    said = run("ldd", *programs)
    return {Path(found) for found in LIBRARY.findall(said)}


# Content, and when it was changed: Python recompiles modules that are younger than their compiled files.
Files = dict[str, tuple[bytes, int]]


def of_disk(paths: dict[str, Path]) -> Files:
    return {name: (path.read_bytes(), int(path.stat().st_mtime)) for name, path in paths.items()}


def contents(extra: dict[str, bytes]) -> Files:
    """The files of the image: Debian's Python, `sleep`, and what the test adds."""
    python = Path("/usr/bin/python3").resolve()
    library = Path(f"/usr/lib/{python.name}")
    if not library.is_dir():
        raise NotHere(f"no {library}: install Debian's python3")
    left_out = {"__pycache__", "test", "dist-packages"}
    files = [path for path in library.rglob("*") if path.is_file() and not left_out & set(path.parts)]
    compiled = [path for path in library.rglob("__pycache__/*.pyc") if ".opt-" not in path.name]
    modules = [path for path in files if path.suffix == ".so"]
    needed = libraries([python, Path("/bin/sleep"), *modules])
    found = {str(path)[1:]: path for path in [*files, *compiled, *needed]}
    found["usr/bin/python3"] = python
    found["bin/sleep"] = Path("/bin/sleep")
    return of_disk(found) | {name: (data, 0) for name, data in extra.items()}


def programs_of(folder: Path) -> Files:
    """The files of the image of cprtd, as tools/packages/oci.py has them, without what only a debugger needs."""
    library = next(path for path in (folder / "libmaio.so", folder.parent / "policies/maio.so") if path.exists())
    ours = {"usr/sbin/cprtd": folder / "cprtd", "usr/bin/ppcctl": folder / "ppcctl", "usr/lib/ppc/maio.so": library}
    needed = of_disk({str(path)[1:]: path for path in libraries(list(ours.values()))})
    with tempfile.TemporaryDirectory() as stripped:
        for name, path in ours.items():
            run("strip", "--strip-debug", "-o", Path(stripped) / path.name, path)
        return needed | of_disk({name: Path(stripped) / path.name for name, path in ours.items()})


def image(files: Files, path: Path, name: str = IMAGE) -> None:
    """Writes an image of one layer, in the layout of OCI."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for place, (data, changed) in files.items():
            entry = tarfile.TarInfo(place)
            entry.mode, entry.size, entry.mtime = 0o755, len(data), changed
            tar.addfile(entry, io.BytesIO(data))
    blobs: dict[str, bytes] = {}

    def blob(data: bytes, kind: str) -> dict[str, object]:
        digest = hashlib.sha256(data).hexdigest()
        blobs[f"blobs/sha256/{digest}"] = data
        return {"mediaType": f"application/vnd.oci.image.{kind}", "digest": f"sha256:{digest}", "size": len(data)}

    config = {
        "architecture": "amd64",
        "os": "linux",
        # Runs as the container of the pod itself, which waits.
        "config": {"Entrypoint": ["/bin/sleep"], "Cmd": ["infinity"], "Env": ["PATH=/usr/sbin:/usr/bin:/bin"]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(out.getvalue()).hexdigest()}"]},
    }
    manifest = {
        "schemaVersion": 2,
        "config": blob(json.dumps(config).encode(), "config.v1+json"),
        "layers": [blob(out.getvalue(), "layer.v1.tar")],
    }
    described = blob(json.dumps(manifest).encode(), "manifest.v1+json")
    described["annotations"] = {"io.containerd.image.name": name, "org.opencontainers.image.ref.name": "1"}
    blobs["oci-layout"] = b'{"imageLayoutVersion":"1.0.0"}'
    blobs["index.json"] = json.dumps({"schemaVersion": 2, "manifests": [described]}).encode()
    with tarfile.open(path, "w") as tar:
        for place, data in blobs.items():
            entry = tarfile.TarInfo(place)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))


class Node:
    """A containerd that runs, with the image."""

    def __init__(self, version: str, place: Path, disk: Disk, archives: list[Path]) -> None:
        self.place, self.programs = place, containerd(version) / "usr/bin"
        config = place / "containerd.toml"
        config.write_text(CONFIG.format(disk=disk.path, place=place, image=IMAGE))
        for name in ("plugins", "conf.d", "cni", "logs"):
            (place / name).mkdir(exist_ok=True)
        self.runtime = Runtime(place / "containerd.sock")
        self._log = open(place / "containerd.log", "a")
        path = f"{self.programs}:{os.environ['PATH']}"
        self._process = subprocess.Popen(
            [self.programs / "containerd", "--config", config],
            stdout=self._log,
            stderr=self._log,
            env=dict(os.environ, PATH=path),
        )
        self.socket = place / "containerd.sock"
        try:
            wait_for("containerd", self._answers)
            for archive in archives:
                self.ctr("images", "import", archive)
            wait_for("CRI", self._is_ready)
        except BaseException:
            self.close()
            raise

    def _answers(self) -> bool:
        if self._process.poll() is not None:
            raise RuntimeError(f"containerd has ended:\n{(self.place / 'containerd.log').read_text()[-2000:]}")
        words = [str(self.programs / "ctr"), "--address", str(self.socket), "version"]
        return subprocess.run(words, capture_output=True, check=False).returncode == 0

    def _is_ready(self) -> bool:
        try:
            self.runtime.call("Version", {})
        except Exception:  # noqa: BLE001: whatever it is, it may pass.
            return False
        return True

    def ctr(self, *words: str | Path) -> str:
        return run(self.programs / "ctr", "--address", self.socket, "--namespace", "k8s.io", *words)

    def close(self) -> None:
        self.runtime.close()
        self._process.terminate()
        self._process.wait()
        self._log.close()


def wait_for(what: str, is_there, latest_s: float = 60) -> None:
    until = time.monotonic() + latest_s
    while not is_there():
        if time.monotonic() > until:
            raise RuntimeError(f"{what} does not come within {latest_s:g} s")
        time.sleep(0.02)
