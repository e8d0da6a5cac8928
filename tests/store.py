#!/usr/bin/env python3
"""Runs the tests of ppc-store that need servers of S3 and of WebDAV.

The servers are moto's and wsgidav, from PyPI, in an environment of their own in the cache; it is made once, which
takes a network.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

SERVERS = ("moto[s3,server]==5.2.5", "wsgidav==4.4.0", "cheroot==11.1.2")
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


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def wait_for(server: str, method: str, path: str) -> None:
    """Until the server has answered a request."""
    last = time.monotonic() + START_S
    while True:
        try:
            urllib.request.urlopen(urllib.request.Request(server + path, method=method), timeout=5).close()
            return
        except OSError:
            if time.monotonic() > last:
                raise
            time.sleep(0.1)


def main() -> int:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    programs = environment()
    s3, dav = free_port(), free_port()
    with tempfile.TemporaryDirectory(prefix="ppc-store-") as root, contextlib.ExitStack() as stack:
        commands = (
            ["moto_server", "-H", "127.0.0.1", "-p", str(s3)],
            ["wsgidav", "--host", "127.0.0.1", "--port", str(dav), "--root", root, "--auth", "anonymous"],
        )
        for program, *options in commands:
            command = [str(programs / program), *options]
            running = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            stack.enter_context(running)
            stack.callback(running.terminate)
        said = {
            "PPC_S3_SERVER": f"http://127.0.0.1:{s3}",
            "PPC_DAV_SERVER": f"http://127.0.0.1:{dav}",
            "PPC_DAV_ROOT": root,
        }
        # The first request makes the bucket.
        wait_for(said["PPC_S3_SERVER"], "PUT", f"/{BUCKET}")
        wait_for(said["PPC_DAV_SERVER"], "GET", "/")
        return subprocess.run(TESTS, env=os.environ | said, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
