#!/usr/bin/env python3
"""Installs, upgrades and purges the packages in a guest with systemd, as root.

    packages.py PACKAGES NEXT

PACKAGES is the folder of the packages, NEXT that of a later version. The guest is Debian 12 with its kernel's headers,
a compiler and DKMS, and none of ours; it is made once, in the cache. DKMS builds the module in the guest.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
TREE = HERE.parent.parent
sys.path.insert(0, str(TREE / "tests/vm"))

import machine  # noqa: E402
from archive import KEYRING, ArchiveError, cache_dir, locked, machine_mirror  # noqa: E402

SUITE = "bookworm"
# What a node has before our packages come: their dependencies, and what builds modules and policies.
NODE = [
    "dbus",
    "dkms",
    "gcc",
    "initramfs-tools",
    "kmod",
    "libc6-dev",
    "libhwloc15",
    "linux-headers-cloud-amd64",
    "linux-image-cloud-amd64",
    "make",
    "pkg-config",
    "rpm",
    "systemd-sysv",
    "udev",
]
# Runs the steps of a boot; the host makes the next boot.
UNIT = """\
[Unit]
After=multi-user.target
SuccessAction=poweroff
FailureAction=poweroff

[Service]
Type=oneshot
ExecStart=/bin/sh -c 'mkdir -p /run/given; mount -o ro /dev/vdb /run/given && exec /run/given/guest.sh'
StandardOutput=file:/dev/ttyS1
StandardError=inherit
Environment=DEBIAN_FRONTEND=noninteractive PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
IgnoreSIGPIPE=no
"""
BOOTS = 2
# A boot's steps, two builds of the module among them, on an emulated processor.
BOOT_S = 900
DISK = "1600M"
SHARDS, TENSORS, TENSOR = 2, 6, 4 << 20


def call(*command: str | Path) -> None:
    done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    if done.returncode:
        said = done.stdout.decode(errors="replace")[-3000:]
        raise ArchiveError(f"{command[0]} failed:\n{said}")


def make_disk(folder: Path, image: Path, size: str) -> None:
    call("truncate", "-s", size, image)
    call("mke2fs", "-q", "-t", "ext4", "-d", folder, image)


def node() -> Path:
    """The folder in the cache with a node's disk, its kernel and its initrd."""
    key = hashlib.sha256(json.dumps([SUITE, NODE, UNIT, DISK]).encode()).hexdigest()[:12]
    folder = cache_dir() / "packages" / key
    with locked(folder.with_name(f"{key}.lock")):
        if folder.exists():
            return folder
        partial = folder.with_name(f"{key}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        build_node(partial)
        partial.rename(folder)
    return folder


def build_node(folder: Path) -> None:
    print("making a node of Debian 12, once", flush=True)
    dumped = subprocess.run(["apt-config", "dump"], capture_output=True, text=True, check=True).stdout
    config = folder / "apt.conf"
    # Proxies and certificates are the machine's own.
    config.write_text("".join(f"{line}\n" for line in dumped.splitlines() if line.startswith("Acquire::")))
    root = folder / "root"
    source = f"deb [signed-by={KEYRING}] {machine_mirror(security=False)} {SUITE} main"
    call("mmdebstrap", "--variant=minbase", f"--aptopt={config}", f"--include={','.join(NODE)}", SUITE, root, source)
    units = root / "etc/systemd/system"
    (units / "packages-test.service").write_text(UNIT)
    wants = units / "graphical.target.wants"
    wants.mkdir()
    (wants / "packages-test.service").symlink_to("../packages-test.service")
    for name in ("vmlinuz", "initrd.img"):
        (found,) = root.glob(f"boot/{name}-*")
        shutil.copy(found, folder / name)
    make_disk(root, folder / "disk.img", DISK)
    shutil.rmtree(root)


def write_model(folder: Path) -> None:
    """Shards of safetensors, as frameworks save them; their content is the same in every run."""
    folder.mkdir()
    noise = random.Random(0)
    places: dict[str, str] = {}
    for shard in range(SHARDS):
        names = [f"layers.{shard * TENSORS + number}.weight" for number in range(TENSORS)]
        header = {
            name: {"dtype": "U8", "shape": [TENSOR], "data_offsets": [number * TENSOR, (number + 1) * TENSOR]}
            for number, name in enumerate(names)
        }
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        path = folder / f"model-{shard + 1:05}-of-{SHARDS:05}.safetensors"
        path.write_bytes(len(text).to_bytes(8, "little") + text + noise.randbytes(TENSORS * TENSOR))
        places |= dict.fromkeys(names, path.name)
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))


def give(packages: Path, later: Path, image: Path) -> None:
    """The disk with all that a guest is given."""
    with tempfile.TemporaryDirectory() as name:
        given = Path(name)
        for target, source in (("packages", packages), ("next", later)):
            (given / target).mkdir()
            for deb in source.glob("*.deb"):
                if "-dbgsym_" not in deb.name:
                    shutil.copy(deb, given / target)
        (given / "rpms").mkdir()
        for rpm in packages.glob("*.rpm"):
            shutil.copy(rpm, given / "rpms")
        for file in ("guest.sh", "reader.c", "model@.service"):
            shutil.copy(HERE / file, given)
        shutil.copy(TREE / "policies/shift/shift.c", given)
        shutil.copy(TREE / "README.md", given)
        write_model(given / "model")
        make_disk(given, image, "128M")


def drive(name: str, image: Path, *options: str) -> list[str]:
    source = ",".join([f"file={image}", "format=raw", "if=none", f"id={name}", *options])
    return ["-drive", source, "-device", f"virtio-blk-pci,drive={name},bus=pcie.0"]


def boot(here: Path, scratch: Path) -> tuple[int, int]:
    """How many steps passed and failed."""
    plan = machine.Plan(
        image=str(here / "vmlinuz"),
        initramfs=here / "initrd.img",
        console=scratch / "console.log",
        memory_mb=2048,
        arguments="root=/dev/vda rw",
        extra=[*drive("node", scratch / "disk.img"), *drive("given", scratch / "given.img", "readonly=on")],
    )
    passed = failed = 0
    with machine.boot(plan) as running:
        deadline = time.monotonic() + BOOT_S
        try:
            while (line := running.line(deadline)) is not None:
                print(line, flush=True)
                passed += line.startswith("pass ")
                failed += line.startswith("fail ")
        except TimeoutError:
            print(f"fail packages: the guest did not end within {BOOT_S} s")
            failed += 1
    if not passed and not failed:
        print("fail packages: no step ran; the console's last lines:")
        print((scratch / "console.log").read_text(errors="replace")[-2000:])
        failed += 1
    return passed, failed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("packages", type=Path)
    parser.add_argument("next", type=Path)
    args = parser.parse_args()
    if os.geteuid():
        print("packages.py: run as root: a node's files are root's", file=sys.stderr)
        return 2
    passed = failed = 0
    try:
        here = node()
        with tempfile.TemporaryDirectory(dir=here.parent) as name:
            scratch = Path(name)
            give(args.packages, args.next, scratch / "given.img")
            call("cp", "--sparse=always", "--reflink=auto", here / "disk.img", scratch)
            for _ in range(BOOTS):
                good, bad = boot(here, scratch)
                passed, failed = passed + good, failed + bad
                if bad:
                    break
    except ArchiveError as error:
        print(f"packages.py: {error}", file=sys.stderr)
        failed += 1
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
