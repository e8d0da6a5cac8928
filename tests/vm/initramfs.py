"""The guest's root: an archive in memory, written here because its format is simpler than the tools that write it."""

from __future__ import annotations

import functools
import shutil
import stat
import subprocess
from pathlib import Path

from archive import ArchiveError
from kernel import Kernel, module_bytes

# The modules that a guest needs; a kernel with one built in has no file of it.
MODULES = [
    "virtio_pci",
    "virtio_blk",
    "ext4",
    "xfs",
    "null_blk",
    "dm_mod",
    "dm_delay",
    "loop",
    "overlay",
    "fuse",
    "squashfs",
]
# File systems whose modules only a test loads, because they take long to start: /modules/NAME.list has them in order.
LATE = {"btrfs": "btrfs", "erofs": "erofs", "nfs4": "nfsv4", "nfsd": "nfsd"}
# Parameters of modules. The null_blk disks are made later, through configfs.
PARAMETERS = {"null_blk": "nr_devices=0"}
PROGRAMS = ["mkfs.btrfs", "mkfs.erofs", "mkfs.ext4", "mkfs.xfs"]
FOLDERS = ["bin", "sbin", "etc", "dev", "proc", "sys", "tmp", "modules", "mnt", "lower", "lib", "lib64"]
MAGIC = "070701"


class Initramfs:
    """An archive in the making (cpio, newc format)."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._inode = 0
        self._folders: set[str] = set()

    def _entry(self, name: str, mode: int, data: bytes = b"", device: tuple[int, int] = (0, 0)) -> None:
        self._inode += 1
        raw = name.encode() + b"\0"
        fields = [self._inode, mode, 0, 0, 1, 0, len(data), 0, 0, *device, len(raw), 0]
        header = (MAGIC + "".join(f"{value:08x}" for value in fields)).encode() + raw
        self._parts += [header, bytes(-len(header) % 4), data, bytes(-len(data) % 4)]

    def folder(self, name: str) -> None:
        name = name.strip("/")
        if not name or name == "." or name in self._folders:
            return
        self.folder(str(Path(name).parent))
        self._folders.add(name)
        self._entry(name, stat.S_IFDIR | 0o755)

    def file(self, name: str, data: bytes, mode: int = 0o644) -> None:
        self.folder(str(Path(name).parent))
        self._entry(name.strip("/"), stat.S_IFREG | mode, data)

    def link(self, name: str, target: str) -> None:
        self.folder(str(Path(name).parent))
        self._entry(name.strip("/"), stat.S_IFLNK | 0o777, target.encode())

    def console(self) -> None:
        """The kernel opens it for init before anything is mounted."""
        self.folder("dev")
        self._entry("dev/console", stat.S_IFCHR | 0o600, device=(5, 1))

    def write(self, path: Path) -> None:
        self._entry("TRAILER!!!", 0)
        path.write_bytes(b"".join(self._parts))


def host_program(name: str) -> Path:
    """Path of a program of this machine; /sbin is not on every user's path."""
    found = shutil.which(name, path="/usr/sbin:/usr/bin:/sbin:/bin")
    if found is None:
        raise ArchiveError(f"{name} is not installed; `make deps` installs what the rig needs")
    return Path(found)


def is_elf(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4) == b"\x7fELF"


@functools.cache
def libraries_of(path: Path) -> list[Path]:
    """The libraries that a program or a library is linked with, and the loader; none for a static one."""
    if not is_elf(path):
        return []
    shown = subprocess.run(["ldd", str(path)], capture_output=True, text=True, check=False)
    if shown.returncode != 0:
        return []
    lines = shown.stdout.splitlines()
    missing = [line.split()[0] for line in lines if line.endswith("not found")]
    if missing:
        raise ArchiveError(f"{path.name} needs what this machine does not have: {', '.join(missing)}")
    return [Path(word) for line in lines for word in line.split() if word.startswith("/")]


def add_programs(root: Initramfs, tree: Path) -> None:
    """Adds this machine's programs, the files in the overlay, and the libraries that they all need."""
    busybox = host_program("busybox")
    shown = subprocess.run([str(busybox), "--list"], capture_output=True, text=True, check=True)
    programs = {f"sbin/{name}": host_program(name) for name in PROGRAMS} | {"bin/busybox": busybox}
    programs |= {str(path.relative_to(tree)): path for path in sorted(tree.rglob("*")) if path.is_file()}
    for applet in shown.stdout.split():
        if f"bin/{applet}" not in programs:
            root.link(f"bin/{applet}", "/bin/busybox")
    libraries: set[Path] = set()
    for name, path in programs.items():
        # Whatever the umask here: only root may write to programs that root runs in the guest.
        root.file(name, path.read_bytes(), path.stat().st_mode & 0o755)
        libraries.update(libraries_of(path))
    for library in sorted(libraries):
        # At the path where the loader looks; a link on the way is as good as the file.
        root.file(str(library), library.read_bytes(), 0o755)


def module_name(path: Path) -> str:
    return path.name.split(".")[0]


def add_modules(root: Initramfs, kernel: Kernel) -> list[str]:
    """Adds the modules and returns the lines that make init load them."""
    lines = []
    for late, module in LATE.items():
        needed = [path for path in kernel.load_order([module]) if path not in kernel.load_order(MODULES)]
        for path in needed:
            root.file(f"modules/{module_name(path)}.ko", module_bytes(path))
        listed = "".join(f"/modules/{module_name(path)}.ko\n" for path in needed)
        root.file(f"modules/{late}.list", listed.encode())
    for path in kernel.load_order(MODULES):
        name = module_name(path)
        root.file(f"modules/{name}.ko", module_bytes(path))
        parameters = PARAMETERS.get(name.replace("-", "_"), "")
        lines.append(f"load /modules/{name}.ko {parameters}".rstrip())
    return lines


def make(path: Path, kernel: Kernel, init: Path, rfs: bytes | None, tree: Path, conf: list[str]) -> None:
    """Writes the archive of one boot."""
    root = Initramfs()
    for folder in FOLDERS:
        root.folder(folder)
    root.console()
    root.file("init", init.read_bytes(), 0o755)
    add_programs(root, tree)
    loads = add_modules(root, kernel)
    if rfs is not None:
        root.file("rfs.ko", rfs)
    root.file("etc/vm.conf", "".join(f"{line}\n" for line in [f"kernel {kernel.name}", *loads, *conf]).encode())
    root.file("etc/passwd", b"root:x:0:0:root:/tmp:/bin/sh\nnobody:x:65534:65534:nobody:/tmp:/bin/sh\n")
    root.file("etc/group", b"root:x:0:\nnogroup:x:65534:\n")
    root.write(path)
