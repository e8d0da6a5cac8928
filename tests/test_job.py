"""Which deaths of a machine are the emulator's."""

import sys
import tempfile
import unittest
from pathlib import Path
from types import SimpleNamespace

sys.path.insert(0, str(Path(__file__).parent / "vm"))

import job  # noqa: E402

OOPS = """
--- ext4 a_test
[  1.0] Oops: int3: 0000 [#1] SMP NOPTI
[  1.0] RIP: 0010:{place}
"""


class StaleCode(unittest.TestCase):
    def told(self, text: str) -> bool:
        with tempfile.NamedTemporaryFile("w") as console:
            console.write(text)
            console.flush()
            return job.Job.stale_code(SimpleNamespace(console=Path(console.name)))

    def test_a_breakpoint_in_the_kernel_is_and_one_in_rfs_is_not(self) -> None:
        self.assertTrue(self.told(OOPS.format(place="filemap_map_pages+0x6c1/0x810")))
        self.assertFalse(self.told(OOPS.format(place="rfs_fault+0x6c1/0x810 [rfs]")))

    def test_other_deaths_are_not_nor_are_those_of_earlier_tests(self) -> None:
        text = OOPS.format(place="filemap_map_pages+0x6c1/0x810")
        self.assertFalse(self.told(text.replace("int3", "general")))
        self.assertFalse(self.told(text + "\n--- ext4 another_test\n"))
        self.assertFalse(self.told(""))


if __name__ == "__main__":
    unittest.main()
