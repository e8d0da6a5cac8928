"""Which tests a kernel and a file system get."""

import sys
import tempfile
import unittest
from pathlib import Path

VM = Path(__file__).parent / "vm"
sys.path.insert(0, str(VM))

import build  # noqa: E402
import kernel as kernels  # noqa: E402
import selection  # noqa: E402
from archive import ArchiveError  # noqa: E402
from selection import RUNTIME_TESTS, Test  # noqa: E402

HANG = "cprt_misbehave_hang"
TESTS = [
    Test("read_whole", 10),
    Test("device_open", 10),
    Test("ioctl_load_pid", 10),
    Test("storm", 400),
    Test("load_charges_cgroup1", 10),
    *(
        Test(name, 10, RUNTIME_TESTS)
        for name in (
            "cprt_crash_of_a_worker",
            "cprt_memory_limit_cgroup1",
            HANG,
            "cprt_on_observe_record_threads",
            "cprt_on_plain_register_loads",
            "cprt_register_loads",
            "storm_cprt_swap",
        )
    ),
]


def chosen(kernel, pattern="", storms=False, systems=()):
    """The tests that a run would take: names by machine, as `make vm-matrix` and others choose them."""
    tests = selection.named(TESTS, pattern, storms)
    found = selection.machines(kernels.entry(kernel), tests, kernels.restrictions(), bool(pattern), systems)
    return {one.fs + ("+cgroup1" if one.cgroup1 else ""): {test.name for test in one.tests} for one in found}


class Selecting(unittest.TestCase):
    def test_fs_independent_test_runs_on_one_file_system(self):
        for kernel in (one.name for one in kernels.listed()):
            with self.subTest(kernel=kernel):
                machines = chosen(kernel)
                self.assertEqual({name.split("+")[0] for name in machines}, {"ext4", "xfs"})
                for test, times in {"read_whole": 2, "device_open": 1, "ioctl_load_pid": 1}.items():
                    self.assertEqual(sum(test in names for names in machines.values()), times, test)

    def test_plain_fuse_is_one_kernels(self):
        runs = {one.name: set().union(*chosen(one.name).values()) for one in kernels.listed()}
        self.assertEqual([name for name, tests in runs.items() if "cprt_on_plain_register_loads" in tests], ["6.12"])

    def test_a_test_for_few_kernels_runs_on_these_and_on_their_file_systems(self):
        named = {one.name for one in kernels.everything()}
        for places in kernels.restrictions().only.values():
            self.assertLessEqual({place.split("@")[0] for place in places}, named)
        runs = {one.name: chosen(one.name) for one in kernels.listed()}
        places = [(name, fs) for name, machines in runs.items() for fs, tests in machines.items() if HANG in tests]
        self.assertEqual(places, [("7.2", "ext4")])
        rules = kernels.Restrictions(once=("a_", "b_"), only={"a_": ("6.12", "7.2@xfs"), "a_long_": ("7.2",)})
        for test, kernel, fs, first, expected in (
            ("c", "5.10", "xfs", False, True),
            ("b_short", "5.10", "xfs", True, True),
            ("b_short", "5.10", "ext4", False, False),
            ("a_short", "5.10", "xfs", True, False),
            ("a_short", "6.12", "ext4", True, True),
            ("a_short", "6.12", "xfs", False, False),
            ("a_short", "7.2", "ext4", True, False),
            ("a_long_one", "6.12", "ext4", True, False),
        ):
            with self.subTest(test=test, kernel=kernel, fs=fs):
                self.assertEqual(rules.allow(test, kernel, fs, first), expected)

    def test_what_depends_on_large_folios_runs_on_both_file_systems_of_the_new_kernel(self):
        machines = chosen("7.2")
        with_it = [fs for fs, tests in machines.items() if "cprt_on_observe_record_threads" in tests]
        self.assertEqual(with_it, ["ext4", "xfs"])
        self.assertNotIn("cprt_register_loads", machines["xfs"])

    def test_a_debug_kernel_has_one_file_system_and_the_storms_of_both_programs(self):
        self.assertEqual(len(kernels.debug_kernels()), 2)
        systems = set()
        for kernel in (one.name for one in kernels.debug_kernels()):
            with self.subTest(kernel=kernel):
                machines = chosen(kernel, storms=True)
                (fs,) = (name for name in machines if "+" not in name)
                systems.add(fs)
                self.assertLessEqual({"read_whole", "device_open", "storm", "storm_cprt_swap"}, machines[fs])
                self.assertLessEqual({"cprt_crash_of_a_worker", "cprt_register_loads"}, machines[fs])
                self.assertNotIn(HANG, machines[fs])
        self.assertEqual(systems, {"ext4", "xfs"})

    def test_storms_are_for_debug_kernels_and_for_those_that_name_them(self):
        self.assertFalse({"storm", "storm_cprt_swap"} & set().union(*chosen("7.2").values()))
        self.assertEqual(chosen("7.2", "storm_cprt*"), {fs: {"storm_cprt_swap"} for fs in ("ext4", "xfs")})

    def test_the_old_memory_controller_has_a_machine_of_its_own_and_one_only(self):
        # On 6.1 the runtime is tested on another file system than tests that need only one.
        machines = chosen("6.1")
        old = [name for name, tests in machines.items() for test in tests if test.endswith("_cgroup1")]
        self.assertEqual(sorted(old), ["ext4+cgroup1", "xfs+cgroup1"])
        self.assertNotIn("+cgroup1", "".join(chosen("6.12")))

    def test_asked_for_by_name_all_run_everywhere(self):
        self.assertEqual(chosen("5.10", "device_*"), {fs: {"device_open"} for fs in ("ext4", "xfs")})
        self.assertEqual(chosen("7.3-rc", "cprt_on_plain*", systems=["xfs"]), {"xfs": {"cprt_on_plain_register_loads"}})

    def test_listed_prefixes_and_quick_tests_exist(self):
        tests = selection.listed(build.test_program().parent)
        rules = kernels.restrictions()
        # The program with the runtime's tests need not be built.
        starts = [start for start in (*rules.once, *rules.only) if not start.startswith("cprt_")]
        for start in starts:
            with self.subTest(start=start):
                self.assertTrue(any(test.name.startswith(start) for test in tests))
        quick = selection.of_file(tests, VM / "quick")
        self.assertLess(len(quick), 50)


class Files(unittest.TestCase):
    def test_a_file_names_tests_and_none_that_are_gone(self):
        with tempfile.NamedTemporaryFile("w") as file:
            file.write("# why\nread_whole  # what\n\nstorm\n")
            file.flush()
            self.assertEqual([test.name for test in selection.of_file(TESTS, Path(file.name))], ["read_whole", "storm"])
            file.write("read_hole\n")
            file.flush()
            with self.assertRaisesRegex(ArchiveError, "read_hole"):
                selection.of_file(TESTS, Path(file.name))


if __name__ == "__main__":
    unittest.main()
