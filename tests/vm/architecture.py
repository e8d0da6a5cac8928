"""What kernels of another processor need to be built and booted: compilers, paths, and the machine that QEMU shows."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Architecture:
    # Debian's name for it.
    name: str
    # Before the names of compilers and tools; empty for those of this machine.
    prefix: str
    # The kernel's name for it, and its image in a tree.
    folder: str
    image: str
    # The triplet in the paths of libraries, and Debian's package with QEMU.
    libraries: str
    qemu_package: str
    qemu: str
    console: str

    @property
    def compiler(self) -> str:
        return f"{self.prefix}gcc"

    @property
    def packages(self) -> str:
        """Debian's packages that compile for it."""
        return f"gcc-{self.prefix.rstrip('-')} libc6-dev-{self.name}-cross" if self.prefix else "gcc"

    @property
    def variables(self) -> list[str]:
        """Variables for the kernel's own make."""
        cross = [f"ARCH={self.folder}", f"CROSS_COMPILE={self.prefix}"] if self.prefix else []
        return [*cross, f"CC={self.compiler}"]


AMD64 = Architecture(
    name="amd64",
    prefix="",
    folder="x86",
    image="arch/x86/boot/bzImage",
    libraries="x86_64-linux-gnu",
    qemu_package="qemu-system-x86",
    qemu="qemu-system-x86_64",
    console="ttyS0",
)
ARM64 = Architecture(
    name="arm64",
    prefix="aarch64-linux-gnu-",
    folder="arm64",
    image="arch/arm64/boot/Image",
    libraries="aarch64-linux-gnu",
    qemu_package="qemu-system-arm",
    qemu="qemu-system-aarch64",
    console="ttyAMA0",
)
BY_NAME = {one.name: one for one in (AMD64, ARM64)}


def of_kernel(name: str) -> Architecture:
    """That of a kernel of the list, whose name ends with it unless it is amd64."""
    return BY_NAME.get(name.rsplit("-", 1)[-1], AMD64)
