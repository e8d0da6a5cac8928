#!/usr/bin/python3
"""Has a real containerd with NRI run containers while cprtd listens: nri.py PROGRAMS [VERSION...], as root.

PROGRAMS is the folder with cprtd and ppcctl, in which MAIO's library is, or beside it `policies`. VERSION is 1.7 or 2.x,
without one both. containerd comes from Debian's mirror, once; runc, Python and its grpc are Debian's on this machine.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent



def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", type=Path)
    parser.add_argument("version", nargs="*", default=["1.7", "2.x"])
    return parser.parse_args()


try:
    import grpc
    from cri import Pod
    import daemonset
    from machine import IMAGE, OURS, Disk, Node, NotHere, cache_dir, contents, image, programs_of, wait_for
except ImportError as missing:
    arguments()
    print(f"skip nri: {missing}: install python3-grpcio and python3-yaml")
    sys.exit(0)

SERVICE = "start"
SERVICES = """\
[service.start]
image = "ppc-start:*"
settings = {{ store = "{store}", idle = "2" }}
"""
SETTINGS = """\
socket = "{place}/control.sock"
state = "{place}/state.json"
learnt = "{place}/learnt.json"
kept = "{place}/kept.json"
[metrics]
socket = ""
[nri]
socket = "{place}/nri.sock"
containers = "{place}/containers.json"
"""
COMMAND = ["python3", "/srv/start.py"]
# How long the runtime waits for a plugin that does not answer: its plugin_request_timeout.
REQUEST_S = 2.0
LATEST_S = 60
OVER = re.compile(r"A start is over: (\d+) MiB read, (\d+) of it unexpected")


class Daemon:
    """cprtd, which knows one service: its log and its status."""

    def __init__(self, programs: Path, log: Path, socket: Path) -> None:
        self._programs, self._log, self.socket = programs, log, socket
        self._lines = len(self._text().splitlines())

    def _text(self) -> str:
        return self._log.read_text() if self._log.exists() else ""

    def since(self) -> list[str]:
        """The lines of its log since the last call of `wait` or `forget`."""
        return self._text().splitlines()[self._lines :]

    def forget(self) -> None:
        self._lines = len(self._text().splitlines())

    def wait(self, what: str) -> None:
        wait_for(f"{what!r} in the log of cprtd", lambda: any(what in line for line in self.since()), LATEST_S)
        self.forget()

    def last(self) -> dict | None:
        """The last start of the service."""
        words = [self._programs / "ppcctl", "--socket", self.socket, "status", "--json"]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode:
            return None
        services = json.loads(done.stdout)["services"]
        if services is None or services.get("off"):
            raise NotHere(f"starts cannot be followed: {services and services.get('off')}")
        return next((it.get("last") for it in services["known"] if it["name"] == SERVICE), None)

    def over(self, process: int) -> dict:
        """Waits until a start by another process than this is over."""

        def is_over() -> bool:
            last = self.last()
            return last is not None and last["process"] != process and last["phase"] in ("over", "failed")

        wait_for("the end of a start", is_over, LATEST_S)
        last = self.last()
        assert last is not None and last["phase"] == "over", last
        return last

    def has_read(self) -> tuple[int, int]:
        """How many MiB the last start has read, and how many of these were not expected."""
        found = [over for line in self.since() if (over := OVER.search(line))]
        return int(found[-1][1]), int(found[-1][2])


class HostDaemon(Daemon):
    """cprtd as a program of the host."""

    def __init__(self, programs: Path, place: Path) -> None:
        super().__init__(programs, place / "cprtd.log", place / "control.sock")
        # A library is refused where users other than root may write.
        policies = place / "policies"
        if not policies.exists():
            policies.mkdir()
            built = [programs / "libmaio.so", programs.parent / "policies/maio.so"]
            shutil.copy(next(path for path in built if path.exists()), policies / "maio.so")
            (policies / "maio.so").chmod(0o755)
        services = SERVICES.format(store=place / "templates")
        (place / "cprt.toml").write_text(SETTINGS.format(place=place) + services)
        with open(place / "cprtd.log", "a") as log:
            self.process = subprocess.Popen(
                [programs / "cprtd", "--config", place / "cprt.toml"],
                stderr=log,
                env=dict(os.environ, PPC_POLICY_PATH=str(policies)),
            )
        self.wait("reports containers by NRI")

    def kill(self, how: int = signal.SIGKILL) -> None:
        self.process.send_signal(how)
        if how != signal.SIGSTOP:
            self.process.wait()


class Ground:
    """A node with a pod."""

    def __init__(self, programs: Path, version: str, place: Path, disk: Disk, archives: list[Path]) -> None:
        self.programs, self.place, self.disk = programs, place, disk
        self.node = Node(version, place, disk, archives)
        self._number = 0
        try:
            self.pod: Pod = self.node.runtime.pod("pod", place / "logs")
        except BaseException:
            self.node.close()
            raise

    def create(self, *more: str) -> str:
        self._number += 1
        return self.pod.create(f"c{self._number}", IMAGE, [*COMMAND, *more])

    def said(self) -> dict | None:
        """What the last container has printed."""
        log = self.place / f"logs/c{self._number}.log"
        lines = log.read_text().splitlines() if log.exists() else []
        whole = [line.split(" ", 3)[3] for line in lines if " stdout F {" in line]
        return json.loads(whole[0]) if whole else None

    def finish(self, container: str) -> dict:
        """Waits for a container's end; what it has printed."""
        wait_for("the end of a container", lambda: self.pod.exited(container) is not None, LATEST_S)
        assert self.pod.exited(container) == 0
        wait_for("what a container prints", lambda: self.said() is not None)
        said = self.said()
        assert said is not None
        self.pod.remove(container)
        return said

    def run(self) -> dict:
        """Makes, starts and finishes a container with nothing cached; with what it cost to make and start it."""
        self.disk.make_cold()
        began = time.monotonic()
        container = self.create()
        self.pod.start(container)
        took = time.monotonic() - began
        return self.finish(container) | {"took": took}

    def cached(self) -> int:
        """How many bytes of the image are in the page cache."""
        layer = next(self.disk.layers.glob("*/fs/srv/start.py")).parent.parent
        files = [str(path) for path in layer.rglob("*") if path.is_file()]
        words = ["fincore", "--bytes", "--noheadings", "--output", "RES", *files]
        done = subprocess.run(words, capture_output=True, text=True, check=True)
        return sum(map(int, done.stdout.split()))

    def close(self) -> None:
        try:
            self.pod.end()
        finally:
            self.node.close()


def test(ground: Ground, version: str) -> None:
    """All in one, because each step continues from the one before."""

    def passed(name: str, figures: str) -> None:
        print(f"pass nri_{version}_{name}: {figures}", flush=True)

    alone = ground.run()
    assert alone["took"] < REQUEST_S, f"the machine is too slow to tell: {alone}"
    daemon = HostDaemon(ground.programs, ground.place)
    try:
        first = ground.run()
        last = daemon.over(0)
        passed("an_unmodified_container_is_recorded", f"{first['majors']} major faults, {alone['majors']} without cprtd")

        daemon.forget()
        second = ground.run()
        assert second["majors"] * 10 <= alone["majors"], f"{second} after {alone}"
        last = daemon.over(last["process"])
        figures = f"{second['majors']} major faults after {alone['majors']}, {second['seconds']} s after {alone['seconds']}"
        passed("the_next_start_hardly_faults", figures)
        assert any("MiB loaded for container" in line for line in daemon.since()), daemon.since()

        daemon.forget()
        ground.disk.make_cold()
        before = ground.cached()
        container = ground.create()
        daemon.wait("loaded for container default/pod/")
        there = ground.cached()
        ground.pod.start(container)
        third = ground.finish(container)
        last = daemon.over(last["process"])
        read, unexpected = daemon.has_read()
        assert before >> 20 < read <= there >> 20 and unexpected * 20 <= read, (before, there, read, unexpected)
        assert third["majors"] * 10 <= alone["majors"], third
        figures = f"{there >> 20} MiB, {before >> 20} before; it reads {read} and has {third['majors']} major faults"
        passed("files_are_there_before_there_is_a_process", figures)

        container = ground.create("--stay")
        ground.pod.start(container)
        wait_for("what a container prints", lambda: ground.said() is not None, LATEST_S)
        ground.pod.stop(container)
        last = daemon.over(last["process"])
        ground.pod.remove(container)
        passed("a_stopped_container_ends_its_recording", last["start"])

        harms_nothing(ground, daemon, alone, passed)
    finally:
        daemon.kill()
    in_a_pod(ground, alone, passed)


def harms_nothing(ground: Ground, daemon: HostDaemon, alone: dict, passed) -> None:
    """The plugin is killed, or stopped, and the container starts as without it."""

    def as_ever(said: dict, waits: int = 0) -> str:
        """As without a plugin; but for this number of waits, each of which takes that long or longer."""
        assert said["majors"] * 2 >= alone["majors"], f"{said}, {alone}"
        assert waits * REQUEST_S <= said["took"] < (waits + 1) * REQUEST_S, f"{said}, {alone}"
        return f"made and started within {said['took']:.2f} s, {alone['took']:.2f} without cprtd"

    daemon.kill()
    passed("killed_it_harms_nothing", as_ever(ground.run()))

    again = HostDaemon(ground.programs, ground.place)
    try:
        again.forget()
        said = ground.run()
        assert said["majors"] * 2 <= alone["majors"], f"what is remembered is lost: {said}, {alone}"
        again.wait("loaded for container")
        again.kill(signal.SIGSTOP)
        passed("stopped_it_delays_one_container", as_ever(ground.run(), waits=1))
        passed("and_no_other", as_ever(ground.run()))
        again.process.send_signal(signal.SIGCONT)
        again.wait("reports containers by NRI")
        said = ground.run()
        assert said["majors"] * 2 <= alone["majors"], f"{said}, {alone}"
        passed("it_comes_back", f"{said['majors']} major faults")
    finally:
        again.kill()


def in_a_pod(ground: Ground, alone: dict, passed) -> None:
    """cprtd runs as the DaemonSet of tools/kubernetes has it, with its capabilities and no more."""
    state = ground.place / "pod"
    state.mkdir()
    instead = {"/var/run/nri": ground.place, "/var/lib/ppc": state}
    pod = ground.node.runtime.pod("ppc", ground.place / "logs", pids=True)
    try:
        services = SERVICES.format(store="/var/lib/ppc/templates")
        container = daemonset.create(pod, instead, ground.place, services)
        daemon = Daemon(ground.programs, ground.place / "logs/cprtd.log", ground.place / "volume-run/cprt/control.sock")
        pod.start(container)
        daemon.wait("reports containers by NRI")
        first = ground.run()
        last = daemon.over(0)
        daemon.forget()
        ground.disk.make_cold()
        created = ground.create()
        daemon.wait("loaded for container default/pod/")
        ground.pod.start(created)
        second = ground.finish(created)
        daemon.over(last["process"])
        assert second["majors"] * 10 <= alone["majors"], f"{second} after {first} and {alone}"
        passed("the_daemonset_may_all_that_it_needs", f"{second['majors']} major faults after {alone['majors']}")
        pod.stop(container, 10)
    finally:
        pod.end()


def place_for(version: str) -> Path:
    """A folder only root may write to: libraries elsewhere are refused. Its path is short, because it has sockets."""
    parent = Path("/run/ppc-nri")
    parent.mkdir(mode=0o755, exist_ok=True)
    return Path(tempfile.mkdtemp(prefix=f"{version}-", dir=parent))


def one_version(programs: Path, version: str, archives: list[Path]) -> bool:
    place = place_for(version)
    place.chmod(0o755)
    try:
        disk = Disk(place, archives[0].with_name(f"disk-{version}.img"))
        try:
            ground = Ground(programs, version, place, disk, archives)
            try:
                test(ground, version)
            finally:
                ground.close()
        finally:
            disk.close()
    except (AssertionError, RuntimeError, grpc.RpcError, subprocess.SubprocessError) as error:
        print(f"fail nri_{version}\n{str(error)[:2000]}", flush=True)
        for name in ("cprtd.log", "logs/cprtd.log", "containerd.log"):
            path = place / name
            if path.exists():
                print(f"--- {name}\n{path.read_text()[-3000:]}")
        return False
    finally:
        shutil.rmtree(place, ignore_errors=True)
    return True


def main() -> int:
    args = arguments()
    try:
        if os.geteuid() != 0:
            raise NotHere("containers are for root")
        if not shutil.which("runc"):
            raise NotHere("no runc: install it")
        folder = cache_dir() / "nri"
        folder.mkdir(parents=True, exist_ok=True)
        programs = args.programs.resolve()
        archives = [folder / "start.tar", folder / "ours.tar"]
        weights = bytes(range(256)) * (16 << 12)
        image(contents({"srv/start.py": (HERE / "start.py").read_bytes(), "srv/weights": weights}), archives[0])
        image(programs_of(programs), archives[1], OURS)
        results = [one_version(programs, version, archives) for version in args.version]
        for archive in archives:
            archive.unlink()
    except NotHere as why:
        print(f"skip nri: {why}")
        return 0
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
