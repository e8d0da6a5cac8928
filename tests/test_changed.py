"""Which crates `make quick` tests."""

import unittest

import changed
from changed import Crate

CRATES = [
    Crate("cprt", "cprt", True, {"rfs-uapi"}),
    Crate("ppc", "policies/ppc", True),
    Crate("ppc-null", "policies/null", True, {"ppc"}),
    Crate("rfs-uapi", "cprt/uapi", True),
    Crate("maio", "maio", True, {"ppc"}),
    Crate("ppcctl", "tools/ppcctl", False, {"cprt", "maio"}),
]


class Changed(unittest.TestCase):
    def test_a_file_concerns_its_crate_and_those_that_use_it(self):
        cases = {
            ("maio/src/window.rs",): ["maio", "ppcctl"],
            ("cprt/uapi/src/lib.rs",): ["cprt", "rfs-uapi", "ppcctl"],
            ("cprt/src/lib.rs",): ["cprt", "ppcctl"],
            # Beside crates: those below it.
            ("policies/ppc.h",): ["ppc", "ppc-null", "maio", "ppcctl"],
            ("policies/policies.mk", "tests/total.py", "README.md", "kmod/main.c"): [],
            ("Cargo.lock",): [crate.name for crate in CRATES],
        }
        for files, expected in cases.items():
            with self.subTest(files=files):
                direct = changed.directly_changed(list(files), CRATES)
                self.assertEqual([crate.name for crate in changed.with_users(direct, CRATES)], expected)

    def test_the_crates_of_the_tree_are_known(self):
        known = {crate.name: crate for crate in changed.crates()}
        self.assertIn("cprt", known["ppcctl"].uses)
        self.assertEqual(known["cprt"].folder, "cprt")
        self.assertFalse(known["ppcctl"].has_library)


if __name__ == "__main__":
    unittest.main()
