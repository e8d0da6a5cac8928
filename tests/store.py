#!/usr/bin/env python3
"""Runs the tests of ppc-store that need servers of S3, of Azure and of WebDAV.

The servers are moto's and wsgidav, from PyPI, and azurite, from npm, in an environment of their own in the cache; it is
made once, which takes a network. Without npm, the tests of Azure are skipped.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import email.utils
import hashlib
import hmac
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

SERVERS = ("moto[s3,server]==5.2.5", "wsgidav==4.4.0", "cheroot==11.1.2")
AZURE_SERVER = "azurite@3.35.0"
# Of azurite, and of all libraries that know it: no secret.
ACCOUNT = "devstoreaccount1"
ACCOUNT_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
BUCKET = "fleet"
START_S = 60
TESTS = ["cargo", "test", "--locked", "--package", "ppc-store", "--test", "servers"]


def environment() -> Path:
    """The folder of the programs of an environment that has the servers."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(os.environ.get("PPC_CACHE") or Path(home) / "ppc") / "store"
    programs, mark = folder / "bin", folder / "has"
    if mark.is_file() and mark.read_text().split() == list(SERVERS):
        return programs
    print(f"making {folder}, once: 330 MB", file=sys.stderr, flush=True)
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
    pip = [str(programs / "pip"), "install", "--quiet", "--no-cache-dir", "--disable-pip-version-check"]
    subprocess.run([*pip, *SERVERS], check=True)
    mark.write_text("\n".join(SERVERS))
    return programs


def azurite() -> Path | None:
    """The server of Azure's blobs, which is installed once beside the others."""
    if not shutil.which("npm"):
        print("npm is not installed: the tests of Azure are skipped", file=sys.stderr, flush=True)
        return None
    folder = environment().parent / "azurite"
    program, mark = folder / "node_modules" / ".bin" / "azurite-blob", folder / "has"
    if not (mark.is_file() and mark.read_text() == AZURE_SERVER):
        print(f"making {folder}, once: 190 MB", file=sys.stderr, flush=True)
        npm = ["npm", "install", "--no-audit", "--no-fund", "--loglevel=error", "--prefix", str(folder)]
        subprocess.run([*npm, AZURE_SERVER], check=True, stdout=subprocess.DEVNULL)
        mark.write_text(AZURE_SERVER)
    return program


def container(server: str) -> urllib.request.Request:
    """A request that makes the container, signed with the shared key."""
    version, date = "2021-08-06", email.utils.formatdate(usegmt=True)
    path = f"/{ACCOUNT}/{BUCKET}"
    signed = "PUT" + "\n" * 12 + f"x-ms-date:{date}\nx-ms-version:{version}\n/{ACCOUNT}{path}\nrestype:container"
    digest = hmac.new(base64.b64decode(ACCOUNT_KEY), signed.encode(), hashlib.sha256).digest()
    headers = {
        "x-ms-date": date,
        "x-ms-version": version,
        "Authorization": f"SharedKey {ACCOUNT}:{base64.b64encode(digest).decode()}",
        "Content-Length": "0",
    }
    return urllib.request.Request(f"{server}{path}?restype=container", method="PUT", headers=headers)


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def wait_for(request: urllib.request.Request) -> None:
    """Until a server has answered a request."""
    last = time.monotonic() + START_S
    while True:
        try:
            urllib.request.urlopen(request, timeout=5).close()
            return
        except OSError:
            if time.monotonic() > last:
                raise
            time.sleep(0.1)


def main() -> int:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    programs, azure = environment(), azurite()
    s3_port, dav_port, azure_port = free_port(), free_port(), free_port()
    s3, dav = f"http://127.0.0.1:{s3_port}", f"http://127.0.0.1:{dav_port}"
    with tempfile.TemporaryDirectory(prefix="ppc-store-") as root, contextlib.ExitStack() as stack:
        files = Path(root, "dav")
        files.mkdir()
        commands = [
            [programs / "moto_server", "-H", "127.0.0.1", "-p", s3_port],
            [programs / "wsgidav", "--host", "127.0.0.1", "--port", dav_port, "--root", files, "--auth", "anonymous"],
        ]
        said = {"PPC_S3_SERVER": s3, "PPC_DAV_SERVER": dav, "PPC_DAV_ROOT": str(files)}
        if azure:
            place = ["--location", Path(root, "azure"), "--blobHost", "127.0.0.1", "--blobPort", azure_port]
            commands.append([azure, "--silent", "--skipApiVersionCheck", "--disableTelemetry", *place])
            # The second one is the library's name for it.
            said["PPC_AZURE_SERVER"] = said["AZURITE_BLOB_STORAGE_URL"] = f"http://127.0.0.1:{azure_port}"
        for command in commands:
            words = [str(word) for word in command]
            running = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            stack.enter_context(running)
            stack.callback(running.terminate)
        # The first requests make the bucket and the container.
        wait_for(urllib.request.Request(f"{s3}/{BUCKET}", method="PUT"))
        wait_for(urllib.request.Request(f"{dav}/"))
        if azure:
            wait_for(container(said["PPC_AZURE_SERVER"]))
        return subprocess.run(TESTS, env=os.environ | said, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
