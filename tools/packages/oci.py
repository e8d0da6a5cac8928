#!/usr/bin/env python3
"""Makes a container image of a Debian package: oci.py DEB IMAGE, such as target/packages/ppc.oci.tar.

The image has the package's programs and policies, and of this machine the shared libraries that these are linked with:
no shell, no package manager. It is an archive in the layout of OCI's image specification, and the same for the same
input.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import json
import os
import platform
import re
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

# Of the package: what a container runs or an operator reads out of it.
KEPT = ("etc", "usr/bin", "usr/lib/ppc", "usr/sbin", "usr/share/ppc", "usr/share/doc/ppc/copyright")
KEPT += ("usr/share/doc/ppc/THIRD-PARTY.gz",)
# Users by name, for `group` of cprt.toml and for `podman run --user`.
ACCOUNTS = {"etc/passwd": "root:x:0:0:root:/root:/usr/sbin/nologin\n", "etc/group": "root:x:0:\nppc:x:999:\n"}
# What cprtd makes its files in.
FOLDERS = ("dev", "proc", "run/cprt", "sys", "tmp", "var/lib/cprt", "var/lib/ppc")
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
CONFIG = "application/vnd.oci.image.config.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
LIBRARY = re.compile(r"(?:=> )?(/\S+) \(0x")


def libraries(root: Path) -> set[Path]:
    """What the loader of this machine finds for the programs and the policies."""
    programs = [*root.glob("usr/*bin/*"), *root.glob("usr/lib/ppc/*.so")]
    said = subprocess.run(["ldd", *map(str, programs)], check=True, capture_output=True, text=True).stdout
    if "not found" in said:
        raise SystemExit(f"oci.py: a library is missing:\n{said}")
    return {Path(found) for found in LIBRARY.findall(said)}


def terms(library: Path) -> Path | None:
    """The file with a library's licence, which comes with its package."""
    for path in (library, Path(f"/usr{library}")):
        owner = subprocess.run(["dpkg", "-S", path], check=False, capture_output=True, text=True).stdout
        said = Path("/usr/share/doc", owner.partition(":")[0], "copyright")
        if owner and said.is_file():
            return said
    return None


def contents(root: Path) -> dict[str, tuple[int, bytes]]:
    """The image's files, with their modes, by their paths."""
    files: dict[str, tuple[int, bytes]] = {}
    for kept in KEPT:
        top = root / kept
        for path in [top] if top.is_file() else sorted(top.rglob("*")):
            if path.is_file():
                files[str(path.relative_to(root))] = (path.stat().st_mode & 0o777, path.read_bytes())
    for path in libraries(root):
        files[str(path)[1:]] = (0o755, path.read_bytes())
        if found := terms(path):
            files[str(found)[1:]] = (0o644, found.read_bytes())
    for name, text in ACCOUNTS.items():
        files[name] = (0o644, text.encode())
    return files


def layer(files: dict[str, tuple[int, bytes]], made: int) -> bytes:
    """The files as a layer, with the folders that they are in."""
    folders = {*FOLDERS, *(str(parent) for name in (*files, *FOLDERS) for parent in Path(name).parents)}
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for name in sorted((folders | set(files)) - {"."}):
            entry = tarfile.TarInfo(name)
            entry.mtime = made
            if name in files:
                entry.mode, data = files[name]
                entry.size = len(data)
                tar.addfile(entry, io.BytesIO(data))
            else:
                entry.type = tarfile.DIRTYPE
                entry.mode = 0o1777 if name == "tmp" else 0o755
                tar.addfile(entry)
    return out.getvalue()


class Layout:
    """An image layout in the making: blobs by their digests."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {"oci-layout": b'{"imageLayoutVersion":"1.0.0"}'}

    def blob(self, data: bytes, kind: str) -> dict[str, Any]:
        """Adds a blob; its descriptor."""
        digest = hashlib.sha256(data).hexdigest()
        self.files[f"blobs/sha256/{digest}"] = data
        return {"mediaType": kind, "digest": f"sha256:{digest}", "size": len(data)}

    def json(self, value: dict[str, Any], kind: str) -> dict[str, Any]:
        return self.blob(json.dumps(value, separators=(",", ":")).encode(), kind)

    def write(self, path: Path) -> None:
        with tarfile.open(path, "w", format=tarfile.GNU_FORMAT) as tar:
            for name, data in sorted(self.files.items()):
                entry = tarfile.TarInfo(name)
                entry.size = len(data)
                tar.addfile(entry, io.BytesIO(data))


def image(files: dict[str, tuple[int, bytes]], version: str, created: str, made: int) -> Layout:
    layout = Layout()
    plain = layer(files, made)
    packed = layout.blob(gzip.compress(plain, 9, mtime=0), LAYER)
    labels = {"org.opencontainers.image.title": "ppc", "org.opencontainers.image.version": version}
    config = {
        "created": created,
        "architecture": ARCHITECTURES[platform.machine()],
        "os": "linux",
        "config": {
            "Env": ["PATH=/usr/sbin:/usr/bin"],
            "Cmd": ["cprtd"],
            "WorkingDir": "/",
            "StopSignal": "SIGTERM",
            "Labels": labels,
        },
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(plain).hexdigest()}"]},
        "history": [{"created": created, "created_by": "oci.py"}],
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": layout.json(config, CONFIG),
        "layers": [packed],
        "annotations": labels,
    }
    described = layout.json(manifest, MANIFEST)
    described["annotations"] = {"org.opencontainers.image.ref.name": version}
    index = {"schemaVersion": 2, "mediaType": INDEX, "manifests": [described]}
    layout.files["index.json"] = json.dumps(index).encode()
    return layout


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("deb", type=Path)
    parser.add_argument("image", type=Path)
    args = parser.parse_args()
    version = subprocess.run(
        ["dpkg-deb", "-f", args.deb, "Version"], check=True, capture_output=True, text=True
    ).stdout.strip()
    made = int(os.environ.get("SOURCE_DATE_EPOCH") or args.deb.stat().st_mtime)
    created = subprocess.run(
        ["date", "-u", "-d", f"@{made}", "+%Y-%m-%dT%H:%M:%SZ"], check=True, capture_output=True, text=True
    ).stdout.strip()
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        subprocess.run(["dpkg-deb", "-x", args.deb, root], check=True)
        image(contents(root), version, created, made).write(args.image)
    return 0


if __name__ == "__main__":
    sys.exit(main())
