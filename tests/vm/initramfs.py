"""The guest's root: an archive in memory, written here because its format is simpler than the tools that write it."""

from __future__ import annotations

import stat
from pathlib import Path

import userland
from architecture import Architecture
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


def add_programs(root: Initramfs, tree: Path, architecture: Architecture) -> None:
    """Adds programs of Debian, the files in the overlay, and the libraries that they all need."""
    programs = userland.programs(architecture)
    programs |= {str(path.relative_to(tree)): path for path in sorted(tree.rglob("*")) if path.is_file()}
    for applet in userland.applets():
        if f"bin/{applet}" not in programs:
            root.link(f"bin/{applet}", "/bin/busybox")
    for name, path in programs.items():
        # Whatever the umask here: only root may write to programs that root runs in the guest.
        root.file(name, path.read_bytes(), path.stat().st_mode & 0o755)
    libraries = userland.libraries(list(programs.values()), architecture)
    for name, library in sorted(libraries.items()):
        root.file(name, library.read_bytes(), 0o755)


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


def make(path: Path, kernel: Kernel, init: Path, own: dict[str, bytes], tree: Path, conf: list[str]) -> None:
    """Writes the archive of one boot. `own` are modules by name: rfs, and those that are loaded before all others."""
    root = Initramfs()
    for folder in FOLDERS:
        root.folder(folder)
    root.console()
    root.file("init", init.read_bytes(), 0o755)
    add_programs(root, tree, kernel.architecture)
    loads = []
    for name, data in own.items():
        if name == "rfs":
            root.file("rfs.ko", data)
            continue
        root.file(f"modules/{name}.ko", data)
        loads.append(f"load /modules/{name}.ko")
    loads += add_modules(root, kernel)
    root.file("etc/vm.conf", "".join(f"{line}\n" for line in [f"kernel {kernel.name}", *loads, *conf]).encode())
    root.file("etc/passwd", b"root:x:0:0:root:/tmp:/bin/sh\nnobody:x:65534:65534:nobody:/tmp:/bin/sh\n")
    root.file("etc/group", b"root:x:0:\nnogroup:x:65534:\n")
    root.write(path)
