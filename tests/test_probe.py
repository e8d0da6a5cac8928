"""What kmod/compat/probe.sh finds in a kernel's headers, and that it refuses a kernel that should have more."""

import subprocess
import tempfile
import unittest
from pathlib import Path

COMPAT = Path(__file__).resolve().parent.parent / "kmod" / "compat"
REFUSED = "should have what compat/probe.sh did not find"


def code(version: str) -> int:
    """KERNEL_VERSION() of "6.1"."""
    major, minor = version.split(".")
    return (int(major) << 16) + (int(minor) << 8)


class Headers:
    """A kernel's headers with nothing but the version and the given lines of text."""

    def __init__(self, folder: str, version: str, **texts: str) -> None:
        self.tree = Path(folder)
        include = self.tree / "include" / "linux"
        include.mkdir(parents=True)
        (include / "version.h").write_text(
            f"#define LINUX_VERSION_CODE {code(version)}\n"
            "#define KERNEL_VERSION(a, b, c) (((a) << 16) + ((b) << 8) + (c))\n"
        )
        for name, text in texts.items():
            (include / f"{name}.h").write_text(text)

    def flags(self) -> list[str]:
        command = ["sh", str(COMPAT / "probe.sh"), str(self.tree)]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()

    def errors(self) -> str:
        """The preprocessor's errors for compat.h: at least that headers are missing."""
        command = ["gcc", "-E", "-nostdinc", "-I", str(self.tree / "include"), *self.flags(), str(COMPAT / "compat.h")]
        return subprocess.run(command, capture_output=True, text=True, check=False).stderr


class Probe(unittest.TestCase):
    def headers(self, version: str, **texts: str) -> Headers:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        return Headers(folder.name, version, **texts)

    def test_only_found_features_are_defined(self) -> None:
        flags = self.headers("6.1", fs="static inline bool is_idmapped_mnt(const struct vfsmount *mnt)").flags()
        self.assertIn("-DHAVE_IDMAPPED_MNT", flags)
        self.assertNotIn("-DHAVE_FOLIO", flags)

    def test_oldest_that_should_be_there(self) -> None:
        self.assertIn(f"-DRFS_MISSED_SINCE={code('5.11')}", self.headers("6.1").flags())
        flags = self.headers("6.1", mm="void vma_set_file(struct vm_area_struct *vma, struct file *file);").flags()
        self.assertIn(f"-DRFS_MISSED_SINCE={code('5.13')}", flags)

    def test_kernel_from_before_is_taken(self) -> None:
        nosetlease = "extern int simple_nosetlease(struct file *, long, struct file_lock **, void **);"
        self.assertNotIn(REFUSED, self.headers("5.10", fs=nosetlease).errors())

    def test_moved_header_is_refused(self) -> None:
        self.assertIn(REFUSED, self.headers("6.12").errors())

    def test_kernel_5_10_without_simple_nosetlease_is_rejected(self) -> None:
        self.assertIn(REFUSED, self.headers("5.10").errors())


if __name__ == "__main__":
    unittest.main()
