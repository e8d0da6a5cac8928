"""A kernel to test on: its image, its modules, and headers that a module can be built against.

The packages are unpacked into the cache, not installed, so files that expect to be in /usr are adapted: the headers'
Makefile is pointed at the copy, and tools linked with a newer C library than this machine's get their own.
"""

from __future__ import annotations

import json
import lzma
import os
import re
import subprocess
import threading
from dataclasses import asdict, dataclass
from pathlib import Path

import architecture
from archive import ArchiveError, Suite, cache_dir
from architecture import Architecture

LIST = Path(__file__).with_name("kernels")
# The ends of the names of kernels that are built from source, and the beginnings of lines about tests.
DEBUG = "-debug"
RACES = "-kcsan"
BUILT = (DEBUG, RACES, f"-{architecture.ARM64.name}")
ONCE = "once"
ONLY = "only"
METAPACKAGES = ["linux-image-cloud-amd64", "linux-headers-cloud-amd64"]
# The libraries that the headers' tools are linked with.
TOOL_LIBRARIES = ["libc6", "libelf1t64", "zlib1g", "libzstd1"]
# Options for what a kernel's compiler can do, and the first gcc that can: the kernels are built with newer compilers
# than this machine need have. None of these options changes the layout of a structure.
COMPILER_CAN = {
    "CONFIG_CC_HAS_ASSUME": 13,
    "CONFIG_CC_HAS_MIN_FUNCTION_ALIGNMENT": 14,
    "CONFIG_CC_OPT_INLINE_MEMSET": 14,
    "CONFIG_CC_HAS_COUNTED_BY": 15,
    "CONFIG_CC_HAS_MULTIDIMENSIONAL_NONSTRING": 15,
    "CONFIG_CC_HAS_COUNTED_BY_PTR": 16,
}


@dataclass(frozen=True)
class Entry:
    """A line of the list."""

    name: str
    suites: tuple[str, ...]
    tools: tuple[str, ...]
    file_systems: tuple[str, ...]
    cgroups: tuple[str, ...]
    tests: tuple[str, ...]

    @property
    def is_debug(self) -> bool:
        return is_debug(self.name)

    @property
    def is_built(self) -> bool:
        return is_built(self.name)

    def has_old_memory(self) -> bool:
        return "1" in self.cgroups

    def has_series(self, version: str) -> bool:
        """Whether a version, as Debian writes it, belongs to the series that the entry is named after."""
        return re.match(re.escape(series(self.name)) + r"[.~-]", version) is not None


@dataclass(frozen=True)
class Restrictions:
    """Which tests need not run everywhere, by how their names begin."""

    # One file system of a kernel is enough for these.
    once: tuple[str, ...]
    # These run on a few kernels, each `KERNEL` or `KERNEL@FS`.
    only: dict[str, tuple[str, ...]]

    def allow(self, test: str, kernel: str, fs: str, first: bool) -> bool:
        """Whether a test is for a file system of a kernel, which is the first one listed there or not."""
        places = {kernel, f"{kernel}@{fs}"}
        kept = all(places & set(few) for start, few in self.only.items() if test.startswith(start))
        return kept and (first or not test.startswith(self.once))


@dataclass(frozen=True)
class Kernel:
    """An unpacked kernel. `root` holds everything; the other fields are paths below it, or describe it."""

    name: str
    suite: str
    version: str
    release: str
    image: str
    modules: str
    headers: str

    @property
    def architecture(self) -> Architecture:
        return architecture.of_kernel(self.name)

    def find_module(self, name: str) -> Path | None:
        """The file of a module; None if the kernel has it built in, or not at all."""
        pattern = re.sub(r"[-_]", "[-_]", name)
        for found in Path(self.modules).rglob(f"{pattern}.ko*"):
            return found
        return None

    def has_builtin(self, name: str) -> bool:
        listed = (Path(self.modules) / "modules.builtin").read_text()
        return re.search(r"/" + re.sub(r"[-_]", "[-_]", name) + r"\.ko", listed) is not None

    def load_order(self, names: list[str]) -> list[Path]:
        """The files of the named modules and all their dependencies, in the order in which they have to be loaded."""
        ordered: dict[str, Path] = {}

        def visit(name: str) -> None:
            path = self.find_module(name)
            if path is None or str(path) in ordered:
                return
            for needed in module_depends(path):
                visit(needed)
            ordered[str(path)] = path

        for name in names:
            visit(name)
        return list(ordered.values())


def module_bytes(path: Path) -> bytes:
    """A module as insmod expects it: some kernels' packages ship modules compressed."""
    data = path.read_bytes()
    return lzma.decompress(data) if path.suffix == ".xz" else data


def module_depends(path: Path) -> list[str]:
    found = re.search(rb"\0depends=([^\0]*)\0", module_bytes(path))
    return [name for name in found[1].decode().split(",") if name] if found else []


def is_debug(name: str) -> bool:
    return name.endswith(DEBUG)


def is_built(name: str) -> bool:
    return name.endswith(BUILT)


def series(name: str) -> str:
    return re.sub(r"-(rc|debug|kcsan|arm64)$", "", name)


def looks_for_races(name: str) -> bool:
    return name.endswith(RACES)


def lines() -> list[list[str]]:
    """The words of each line of the list, without empty lines and comments."""
    split = [line.split("#")[0].split() for line in LIST.read_text().splitlines()]
    return [fields for fields in split if fields]


def everything() -> list[Entry]:
    """The kernels of the list, debug kernels included, in its order."""
    rows = [fields for fields in lines() if fields[0] not in (ONCE, ONLY)]
    return [Entry(fields[0], *(tuple(field.split(",")) for field in fields[1:])) for fields in rows]


def listed() -> list[Entry]:
    """The kernels that are used as they are packaged."""
    return [one for one in everything() if not one.is_built]


def debug_kernels() -> list[Entry]:
    return [one for one in everything() if one.is_debug]


def restrictions() -> Restrictions:
    found = lines()
    once = tuple(start for fields in found if fields[0] == ONCE for start in fields[1:])
    return Restrictions(once, {fields[1]: tuple(fields[2:]) for fields in found if fields[0] == ONLY})


def entry(name: str) -> Entry:
    for candidate in everything():
        if candidate.name == name:
            return candidate
    known = " ".join(candidate.name for candidate in everything())
    raise ArchiveError(f"no kernel {name} in {LIST.name}; it has: {known}")


def fetch(name: str, force: bool = False) -> Kernel:
    """The newest such kernel, from the archive, or from the cache if nothing changed or there is no network."""
    wanted = entry(name)
    record = cache_dir() / "kernels" / f"{name}.json"
    suite, tools, fresh = choose_suite(wanted, force)
    if record.exists() and (not fresh or record.stat().st_mtime > suite.updated()):
        known = Kernel(**json.loads(record.read_text()))
        if Path(known.headers).is_dir() and known.suite == suite.name:
            return known
    packages = suite.closure(METAPACKAGES, r"linux-.*")
    # A metapackage has no number in its name and contains nothing.
    solid = [package for package in packages if re.search(r"\d", package.name.replace("amd64", ""))]
    version = next(package.version for package in packages if package.name == METAPACKAGES[0])
    root = record.parent / f"{name}-{version.replace('~', '-')}"
    suite.unpack(solid, root, lambda partial: fit_headers(partial, root, tools))
    kernel = describe(name, suite.name, version, root)
    scratch = record.with_suffix(f".{os.getpid()}-{threading.get_ident()}")
    scratch.write_text(json.dumps(asdict(kernel), indent=1))
    scratch.replace(record)
    return kernel


def choose_suite(wanted: Entry, force: bool) -> tuple[Suite, Suite, bool]:
    """The first suite that has a kernel of the series, the suite for its tools, and whether its index is up to date.

    Suites move on to the next series. If all have, this takes the first suite's newest kernel, as the version printed
    with the results shows: tests of a newer kernel than asked for are better than none.
    """
    chosen: list[tuple[Suite, Suite, bool]] = []
    for name, tools in zip(wanted.suites, wanted.tools, strict=True):
        suite = Suite(name)
        chosen.append((suite, Suite(tools), suite.refresh(force)))
        package = suite.package(METAPACKAGES[0])
        if package and wanted.has_series(package.version):
            return chosen[-1]
    return chosen[0]


def cached(name: str) -> Kernel | None:
    """The kernel that a run without a network would take."""
    record = cache_dir() / "kernels" / f"{name}.json"
    return Kernel(**json.loads(record.read_text())) if record.exists() else None


def only(paths: list[Path], what: str) -> Path:
    if len(paths) != 1:
        raise ArchiveError(f"expected one {what} in the packages, found {[str(path) for path in paths]}")
    return paths[0]


def describe(name: str, suite: str, version: str, root: Path) -> Kernel:
    """Finds the parts: 7.x keeps the image beside the modules, older kernels in /boot."""
    headers = only(list(root.glob("usr/src/linux-headers-*-cloud-amd64")), "headers folder")
    release = headers.name.removeprefix("linux-headers-")
    images = [*root.glob(f"boot/vmlinuz-{release}"), *root.glob(f"usr/lib/modules/{release}/vmlinuz")]
    modules = [*root.glob(f"lib/modules/{release}"), *root.glob(f"usr/lib/modules/{release}")]
    return Kernel(
        name=name,
        suite=suite,
        version=version,
        release=release,
        image=str(only(images, "kernel image")),
        modules=str(only(modules, "modules folder")),
        headers=str(headers),
    )


def fit_headers(partial: Path, final: Path, tools: Suite) -> None:
    """Makes unpacked headers work where they are, and their tools run here."""
    for makefile in partial.glob("usr/src/linux-headers-*/Makefile"):
        text = makefile.read_text()
        makefile.write_text(text.replace("/usr/src/linux-headers", f"{final}/usr/src/linux-headers"))
    fit_config(partial)
    ours = tuple(int(part) for part in os.confstr("CS_GNU_LIBC_VERSION").split()[-1].split("."))
    too_new = [path for path in partial.glob("usr/lib/linux-kbuild-*/**/*") if newest_glibc(path) > ours]
    if not too_new:
        return
    tools.refresh()
    libraries = [tools.need(name) for name in TOOL_LIBRARIES]
    version = next(package.version for package in libraries if package.name == "libc6")
    folder = final.parent / f"libc-{version}"
    tools.unpack(libraries, folder)
    for path in too_new:
        wrap_tool(path, final / path.relative_to(partial), folder)


def fit_config(partial: Path) -> None:
    """Unsets configuration options of a newer compiler than this machine's."""
    shown = subprocess.run(["gcc", "-dumpversion"], capture_output=True, text=True, check=True).stdout
    major = int(shown.split(".")[0])
    names = "|".join(name for name, since in COMPILER_CAN.items() if since > major)
    for path in partial.glob("usr/src/linux-headers-*-cloud-*/include/*/auto*conf*"):
        text = path.read_text()
        if names:
            text = re.sub(rf"^(#define )?({names})[= ].*\n", "", text, flags=re.MULTILINE)
        # BTF is never made for rfs.ko, so a different pahole deserves no warning.
        path.write_text(re.sub(r"^CONFIG_PAHOLE_VERSION=.*$", "CONFIG_PAHOLE_VERSION=0", text, flags=re.MULTILINE))


def newest_glibc(path: Path) -> tuple[int, ...]:
    """The newest C library version that a program requires; () for any file that is not a program."""
    if path.is_symlink() or not path.is_file() or not os.access(path, os.X_OK):
        return ()
    data = path.read_bytes()
    if not data.startswith(b"\x7fELF"):
        return ()
    return max(((int(a), int(b)) for a, b in re.findall(rb"GLIBC_(\d+)\.(\d+)", data)), default=())


def wrap_tool(path: Path, final: Path, libraries: Path) -> None:
    """Replaces a tool by a script that runs it with its own loader and libraries."""
    path.rename(path.with_name(path.name + ".elf"))
    library = libraries / "usr/lib/x86_64-linux-gnu"
    path.write_text(
        f'#!/bin/sh\nexec "{library}/ld-linux-x86-64.so.2" --library-path "{library}" "{final}.elf" "$@"\n'
    )
    path.chmod(0o755)
