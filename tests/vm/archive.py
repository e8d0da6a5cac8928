"""The Debian archive: signed package indexes and packages, in a private apt root.

The machine's own apt set-up says which mirror to use and which keys to trust; only the suite is replaced.  apt
itself checks the signature of the index and the hash of every package, so nothing here has to.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

# An index younger than this is not fetched again: `make vm` may run many times an hour.
INDEX_AGE_S = 3600
# How soon a machine without a network must notice, and continue with what the cache has.
NETWORK_TIMEOUT_S = 15
# Every suite of Debian, released or not, is signed with one of these (package debian-archive-keyring).
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
# The name of a package in a Depends line, without its version and architecture.
PACKAGE_NAME = re.compile(r"[a-z0-9][a-z0-9+.-]+")


class ArchiveError(Exception):
    """The archive or the machine's apt set-up does not provide what was asked for."""


def cache_dir() -> Path:
    """The folder of downloads and builds, which is never inside the tree."""
    chosen = os.environ.get("PPC_CACHE")
    if chosen:
        return Path(chosen).resolve()
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "ppc"


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Holds a lock file: two runs must not unpack the same thing at once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


@dataclass(frozen=True)
class Package:
    name: str
    version: str
    depends: str

    def depends_on(self, pattern: str) -> list[str]:
        """The packages it depends on whose names match."""
        names = []
        for group in self.depends.split(","):
            # Debian lists the package that it prefers first; the others are alternatives.
            first = PACKAGE_NAME.match(group.split("|")[0].strip())
            if first and re.fullmatch(pattern, first[0]) and not first[0].endswith("-unsigned"):
                names.append(first[0])
        return names


def machine_mirror(security: bool) -> str:
    """The mirror this machine's apt uses for its own release, or for that release's security fixes."""
    listed = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(REPO_URI) $(RELEASE)"], capture_output=True, text=True, check=False
    ).stdout
    for line in listed.splitlines():
        uri, _, release = line.partition(" ")
        base = release.removesuffix("-security").removesuffix("/updates")
        if re.fullmatch(r"[a-z]+", base) and release.endswith(("-security", "/updates")) == security:
            return uri
    kind = "security updates" if security else "its release"
    raise ArchiveError(f"apt on this machine has no source for {kind}; add one to /etc/apt/sources.list.d")


class Suite:
    """One suite of the archive, in its own apt root, so that 'newest' means newest in that suite."""

    def __init__(self, name: str, architecture: str = "amd64") -> None:
        self.name = name
        self.architecture = architecture
        self.root = cache_dir() / "apt" / (name if architecture == "amd64" else f"{name}-{architecture}")
        self.config = self.root / "apt.conf"

    def refresh(self, force: bool = False) -> bool:
        """Brings the index up to date. Returns False without a network (an older index still serves then)."""
        stamp = self.root / "updated"
        with locked(self.root / "lock"):
            young = stamp.exists() and time.time() - stamp.stat().st_mtime < INDEX_AGE_S
            if young and not force:
                return True
            self._write_config()
            done = self._apt("apt-get", "-q", "update", "--error-on=any")
            if done.returncode != 0:
                self._last_error = done.stderr.strip()
                return False
            stamp.touch()
            return True

    def _write_config(self) -> None:
        for part in ("state/lists/partial", "cache/archives/partial", "etc/apt.conf.d", "etc/preferences.d"):
            (self.root / part).mkdir(parents=True, exist_ok=True)
        mirror = machine_mirror(self.name.endswith("-security"))
        source = f"deb [signed-by={KEYRING}] {mirror} {self.name} main\n"
        (self.root / "etc" / "sources.list").write_text(source)
        (self.root / "status").touch()
        dumped = subprocess.run(["apt-config", "dump"], capture_output=True, text=True, check=True).stdout
        # Proxies, certificates and time-outs are the machine's own; hooks that change the system are left out.
        kept = [line for line in dumped.splitlines() if line.startswith("Acquire::")]
        self.config.write_text(
            "\n".join(
                [
                    *kept,
                    f'Acquire::http::Timeout "{NETWORK_TIMEOUT_S}";',
                    f'Acquire::https::Timeout "{NETWORK_TIMEOUT_S}";',
                    'Acquire::Retries "1";',
                    'Acquire::Languages "none";',
                    f'APT::Architecture "{self.architecture}";',
                    f'APT::Architectures {{ "{self.architecture}"; }};',
                    # The cache belongs to the user who runs this, and apt's own user may be unable to write to it.
                    'APT::Sandbox::User "";',
                    f'Dir::State "{self.root}/state";',
                    f'Dir::State::status "{self.root}/status";',
                    f'Dir::Cache "{self.root}/cache";',
                    f'Dir::Etc "{self.root}/etc";',
                    'Dir::Etc::netrc "/etc/apt/auth.conf";',
                    'Dir::Etc::netrcparts "/etc/apt/auth.conf.d";',
                    f'Dir::Log "{self.root}";',
                    "",
                ]
            )
        )

    def _apt(self, *command: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        environment = dict(os.environ, APT_CONFIG=str(self.config), LC_ALL="C")
        return subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=cwd)

    def package(self, name: str) -> Package | None:
        """The newest version of a package in this suite."""
        shown = self._apt("apt-cache", "show", "--no-all-versions", name)
        fields = dict(re.findall(r"^([A-Za-z-]+): (.*)$", shown.stdout, re.MULTILINE))
        if shown.returncode != 0 or "Version" not in fields:
            return None
        depends = ", ".join(value for key in ("Pre-Depends", "Depends") if (value := fields.get(key)))
        return Package(name, fields["Version"], depends)

    def need(self, name: str) -> Package:
        found = self.package(name)
        if found is None:
            why = getattr(self, "_last_error", "")
            raise ArchiveError(f"{self.name} has no package {name}\n{why}".rstrip())
        return found

    def closure(self, names: list[str], pattern: str) -> list[Package]:
        """The named packages and their dependencies, if their names match and the suite has them."""
        found: dict[str, Package] = {}
        waiting = list(names)
        while waiting:
            name = waiting.pop()
            if name in found:
                continue
            package = self.need(name) if name in names else self.package(name)
            if package is None:
                continue
            found[name] = package
            waiting += package.depends_on(pattern)
        return sorted(found.values(), key=lambda package: package.name)

    def updated(self) -> float:
        """When the index was last brought up to date."""
        stamp = self.root / "updated"
        return stamp.stat().st_mtime if stamp.exists() else 0.0

    def unpack(
        self, packages: list[Package], target: Path, finish: Callable[[Path], None] = lambda folder: None
    ) -> None:
        """Downloads packages and unpacks them into one folder, which appears only once it is complete.

        `finish` completes the folder before it gets its name.
        """
        if target.exists():
            return
        with locked(target.with_name(target.name + ".lock")):
            if target.exists():
                return
            partial = target.with_name(target.name + ".partial")
            shutil.rmtree(partial, ignore_errors=True)
            files = partial.with_name(partial.name + ".debs")
            files.mkdir(parents=True, exist_ok=True)
            self._download(packages, files)
            partial.mkdir(parents=True)
            for deb in sorted(files.glob("*.deb")):
                subprocess.run(["dpkg-deb", "-x", str(deb), str(partial)], check=True)
            finish(partial)
            os.rename(partial, target)
            shutil.rmtree(files)

    def _download(self, packages: list[Package], folder: Path) -> None:
        wanted = [f"{package.name}={package.version}" for package in packages]
        done = self._apt("apt-get", "-q", "download", *wanted, cwd=folder)
        if done.returncode != 0:
            raise ArchiveError(f"downloading {' '.join(wanted)} from {self.name}:\n{done.stderr.strip()}")
