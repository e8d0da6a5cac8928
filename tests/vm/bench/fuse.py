"""libfuse's own example of a mirror, with and without passthrough: rfs is compared with it.

The library comes from a suite that has a version with passthrough. Its package leaves the example out, so that comes
from the same version's source package; apt checks both.
"""

from __future__ import annotations

import shutil
import subprocess
import tarfile
from pathlib import Path

from archive import ArchiveError, Suite, cache_dir, locked

SUITE = "trixie"
LIBRARY = "libfuse3-dev"
SOURCE = "fuse3"
EXAMPLE = "passthrough_hp.cc"
PROGRAM = "fuse-passthrough-hp"
# The library was built with a newer C library than this machine need have, in which this is the same function.
LINK = ["-lpthread", "-Wl,--defsym=__isoc23_strtoul=strtoul", "-Wl,--defsym=__isoc23_strtol=strtol"]


class SourceSuite(Suite):
    """The sources of a suite, in a separate apt root."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.root = cache_dir() / "apt" / f"{name}-source"
        self.config = self.root / "apt.conf"

    def _write_config(self) -> None:
        super()._write_config()
        listed = self.root / "etc" / "sources.list"
        listed.write_text(listed.read_text().replace("deb ", "deb-src ", 1))

    def fetch_examples(self, name: str, version: str, folder: Path) -> Path:
        """Unpacks the examples of a source package into the folder."""
        done = self._apt("apt-get", "-q", "source", "--download-only", f"{name}={version}", cwd=folder)
        archives = sorted(folder.glob(f"{name}_*.orig.tar.*z"))
        if done.returncode != 0 or len(archives) != 1:
            raise ArchiveError(f"no source of {name} {version}: {done.stderr.strip()}")
        with tarfile.open(archives[0]) as archive:
            for member in archive.getmembers():
                if member.isfile() and Path(member.name).parent.name == "example":
                    data = archive.extractfile(member)
                    assert data is not None
                    (folder / Path(member.name).name).write_bytes(data.read())
        return folder


def fetch() -> Path:
    """Path of the example daemon in the cache, linked statically."""
    suite = Suite(SUITE)
    suite.refresh()
    version = suite.need(LIBRARY).version
    folder = cache_dir() / "fuse" / version.replace(":", "-")
    target = folder / PROGRAM
    with locked(folder.with_name(folder.name + ".lock")):
        if not target.exists():
            make(suite, version, folder)
    return target


def make(suite: Suite, version: str, folder: Path) -> None:
    compiler = shutil.which("g++")
    if compiler is None:
        raise ArchiveError("g++ is not installed")
    scratch = folder.with_name(folder.name + ".partial")
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    library = scratch / "library"
    suite.unpack([suite.need(LIBRARY)], library)
    sources = SourceSuite(SUITE)
    sources.refresh()
    examples = scratch / "examples"
    examples.mkdir()
    source = sources.fetch_examples(SOURCE, version, examples) / EXAMPLE
    archive = next(iter(library.rglob("libfuse3.a")), None)
    if not source.exists() or archive is None:
        raise ArchiveError(f"{SOURCE} {version} has no {EXAMPLE} or no static library")
    include = library / "usr/include"
    command = [compiler, "-w", "-O2", "-std=c++17", "-static", "-I", str(include), "-I", str(include / "fuse3")]
    command += ["-o", str(scratch / PROGRAM), str(source), str(archive), *LINK]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode != 0:
        raise ArchiveError(f"{EXAMPLE} does not compile\n{done.stdout}")
    folder.mkdir(parents=True, exist_ok=True)
    (scratch / PROGRAM).replace(folder / PROGRAM)
    shutil.rmtree(scratch)
