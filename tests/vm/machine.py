"""A machine to boot a kernel on: QEMU from the archive, and the hardware that it emulates.

It has two NUMA nodes with a stand-in for a GPU behind each. KVM may be missing, so this is emulation, and QEMU must be
recent: 7.2 corrupts newer guests at random when it emulates several processors in threads.
"""

from __future__ import annotations

import os
import queue
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from architecture import AMD64, Architecture
from archive import ArchiveError, Suite, cache_dir

SUITE = "bookworm-backports"
# Besides the one with the machine.
PACKAGES = ["qemu-system-common", "qemu-system-data", "seabios"]
# The suite of the libraries that QEMU is linked with; this machine need not have any of them.
LIBRARY_SUITE = "bookworm"
# The C library and the compiler's libraries must be the running system's own.
LIBRARIES = r"lib(?!c6|c-|gcc|stdc\+\+|crypt1).*"
# With ERMS or FSRM the kernel copies with `rep movsb`, which is emulated byte by byte: 18 MB/s instead of 1,500.
# The algorithm with which arm64 signs pointers is as slow, and the guest does not care which one that is.
CPU = {"amd64": "max,-erms,-fsrm,la57=off", "arm64": "max,pauth-impdef=on"}
MACHINE = {"amd64": "q35", "arm64": "virt,gic-version=3"}
# The console is read after a failure, so it gets warnings and worse; the guest itself reads the log.
KERNEL_ARGUMENTS = (
    "loglevel=5 panic=-1 panic_on_warn=1 oops=panic mitigations=off random.trust_cpu=on "
    "log_buf_len=4M printk.devkmsg=on watchdog_thresh=30 rcupdate.rcu_cpu_stall_timeout=120 null_blk.nr_devices=0"
)
# Otherwise the kernel takes the time from a device instead of the processor's counter, as that seems unstable there:
# each look at the clock then waits for QEMU's one lock, and tests take a tenth longer.
TRUST_THE_COUNTER = "tsc=reliable"


@dataclass(frozen=True)
class Qemu:
    root: Path
    libraries: Path
    architecture: Architecture = AMD64

    def command(self) -> list[str]:
        share = self.root / "usr/share"
        return [
            # A run that is killed must not leave a machine behind.
            *("setpriv", "--pdeathsig", "KILL"),
            str(self.root / "usr/bin" / self.architecture.qemu),
            *("-L", str(share / "qemu")),
            *("-L", str(share / "seabios")),
        ]

    def environment(self) -> dict[str, str]:
        found = [self.libraries / "usr/lib/x86_64-linux-gnu", self.libraries / "lib/x86_64-linux-gnu"]
        return dict(os.environ, LD_LIBRARY_PATH=":".join(str(path) for path in found))


def fetch(architecture: Architecture = AMD64, force: bool = False) -> Qemu:
    """QEMU, unpacked in the cache."""
    folder = cache_dir() / "qemu"
    suffix = "" if architecture is AMD64 else f"-{architecture.name}"
    current = folder / f"current{suffix}"
    suite = Suite(SUITE)
    fresh = suite.refresh(force)
    if current.exists() and (not fresh or current.stat().st_mtime > suite.updated()):
        known = Qemu(*(Path(line) for line in current.read_text().splitlines()), architecture)
        if known.root.is_dir() and known.libraries.is_dir():
            return known
    main = architecture.qemu_package
    packages = suite.closure([main], "|".join(PACKAGES))
    version = next(package.version for package in packages if package.name == main)
    root = folder / (version.replace(":", "-").replace("~", "-") + suffix)
    suite.unpack(packages, root)
    libraries = root.with_name(root.name + "-libraries")
    if not libraries.exists():
        base = Suite(LIBRARY_SUITE)
        base.refresh()
        direct = suite.package(main)
        needed = [name for name in direct.depends_on(LIBRARIES) if base.package(name)] if direct else []
        base.unpack(base.closure(needed, LIBRARIES), libraries)
    scratch = current.with_suffix(f".{os.getpid()}-{threading.get_ident()}")
    scratch.write_text(f"{root}\n{libraries}\n")
    scratch.replace(current)
    return Qemu(root, libraries, architecture)


@dataclass
class Plan:
    """What to boot and how."""

    image: str
    initramfs: Path
    console: Path
    architecture: Architecture = AMD64
    cpus: int = 2
    memory_mb: int = 2048
    # Counts instructions, on one processor: counts and times do not vary from run to run.
    icount: bool = False
    trusts_counter: bool = False
    # Shows the console on this terminal instead of writing it to a file.
    interactive: bool = False
    arguments: str = ""
    extra: list[str] = field(default_factory=list)


class Machine:
    """A running QEMU. What the guest writes to its second serial port comes out of `lines`."""

    def __init__(self, qemu: Qemu, plan: Plan) -> None:
        self.plan = plan
        self._lines: queue.Queue[str | None] = queue.Queue()
        command = [*qemu.command(), *hardware(plan)]
        self.process = subprocess.Popen(
            command,
            env=qemu.environment(),
            stdin=None if plan.interactive else subprocess.DEVNULL,
            stdout=None if plan.interactive else subprocess.PIPE,
            stderr=None if plan.interactive else subprocess.STDOUT,
        )
        if not plan.interactive:
            threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line.decode(errors="replace").rstrip("\r\n"))
        self._lines.put(None)

    def line(self, deadline: float) -> str | None:
        """The guest's next line, or None once it is switched off. Raises TimeoutError at the deadline."""
        try:
            return self._lines.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            raise TimeoutError from None

    def stop(self) -> None:
        """Switches the machine off, if it still runs."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()

    def __enter__(self) -> Machine:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def hardware(plan: Plan) -> Iterator[str]:
    """QEMU's arguments for the machine of a plan."""
    cpus = 1 if plan.icount else plan.cpus
    node_mb = plan.memory_mb // 2
    yield from ("-nodefaults", "-no-user-config", "-no-reboot", "-display", "none")
    name = plan.architecture.name
    yield from ("-machine", MACHINE[name], "-cpu", CPU[name], "-m", f"{2 * node_mb}M")
    if plan.icount:
        yield from ("-accel", "tcg,thread=single", "-icount", "shift=0,sleep=off")
    else:
        yield from ("-accel", "tcg,thread=multi")
    yield from ("-smp", f"{cpus},sockets={cpus},cores=1")
    for node in range(2):
        own = [str(cpu) for cpu in range(cpus) if cpu % 2 == node]
        processors = "".join(f",cpus={cpu}" for cpu in own)
        yield from ("-object", f"memory-backend-ram,id=memory{node},size={node_mb}M")
        yield from ("-numa", f"node,nodeid={node}{processors},memdev=memory{node}")
        if plan.architecture is AMD64:
            yield from gpu(node)
    yield from serial_ports(plan)
    yield from ("-kernel", plan.image, "-initrd", str(plan.initramfs))
    clock = TRUST_THE_COUNTER if plan.trusts_counter and not plan.icount else ""
    arguments = f"console={plan.architecture.console} {KERNEL_ARGUMENTS} {clock} {plan.arguments}"
    yield from ("-append", " ".join(arguments.split()))
    yield from plan.extra


def gpu(node: int) -> Iterator[str]:
    """In sysfs, a GPU looks like a display controller; without a ROM the firmware does not stop at it."""
    yield from ("-device", f"pxb-pcie,id=bridge{node},bus=pcie.0,bus_nr={64 * (node + 1)},numa_node={node}")
    yield from ("-device", f"pcie-root-port,id=port{node},bus=bridge{node},chassis={node + 1},slot={node + 1}")
    yield from ("-device", f"bochs-display,bus=port{node},romfile=")


def serial_ports(plan: Plan) -> Iterator[str]:
    """The console, and ttyS1 for results. The port of arm64's board is its console, so ttyS1 is one of a card."""
    if plan.interactive:
        yield from ("-chardev", "stdio,id=console,signal=off", "-chardev", "null,id=results")
    else:
        yield from ("-chardev", f"file,id=console,path={plan.console}", "-chardev", "stdio,id=results,signal=off")
    yield from ("-serial", "chardev:console")
    if plan.architecture is AMD64:
        yield from ("-serial", "chardev:results")
    else:
        yield from ("-chardev", "null,id=none", "-device", "pci-serial-2x,chardev1=none,chardev2=results")


def boot(plan: Plan) -> Machine:
    qemu = fetch(plan.architecture)
    if not Path(plan.image).exists():
        raise ArchiveError(f"{plan.image} is gone from the cache; `make vm-clean` and run again")
    return Machine(qemu, plan)
