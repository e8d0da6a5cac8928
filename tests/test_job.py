"""That second tries are reported."""

import contextlib
import io
import os
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).parent / "vm"))

import job  # noqa: E402
from report import Report  # noqa: E402
from selection import Test  # noqa: E402

class SecondTries(unittest.TestCase):
    """Replaces boots by the reports that the tests give, one after the other."""

    def run_boots(self, *boots: tuple[str, list[str]], strict: str = "") -> tuple[int, list[str], job.Job]:
        one = job.Job("6.1", "ext4", [Test(name, 5) for name in ("a", "b", "c")])
        left = list(boots)

        def boot(heard: object) -> str:
            ending, lines = left.pop(0)
            for line in lines:
                test, status, *message = line.split(" ", 2)
                if status == "running":
                    one.running = test
                else:
                    one.add(test, status, 1, "".join(message), heard)
            return ending

        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()) as out:
            one.folder = Path(folder)
            report = Report([one], verbose=False)
            with mock.patch.object(one, "boot", boot), mock.patch.dict(os.environ, {"STRICT": strict}):
                one.run(report.heard)
                status = report.close()
        self.assertFalse(left, "boots that were not made")
        return status, out.getvalue().splitlines(), one

    LATE = ("", ["a pass", "b fail timed out after 5 s", "c pass", "module_unload pass"])
    AGAIN = ("", ["b pass", "module_unload pass"])

    def test_a_late_test_that_passes_later_is_flaky(self) -> None:
        status, lines, _ = self.run_boots(self.LATE, self.AGAIN)
        self.assertEqual((status, lines[-1]), (0, "4 passed, 0 failed"))
        self.assertIn("flaky  6.1/ext4/b: passed at its second try, after: timed out after 5 s", lines)
        self.assertIn("1 flaky, which counts as passed; not with STRICT=1", lines)
        self.assertEqual(self.run_boots(self.LATE, self.AGAIN, strict="1")[0], 1)

    def test_second_timeout_is_a_failure_and_not_flaky(self) -> None:
        status, lines, one = self.run_boots(self.LATE, ("", ["b fail timed out after 5 s", "module_unload pass"]))
        self.assertEqual((status, lines[-1], one.flaky), (1, "3 passed, 1 failed", {}))

    def test_first_try_in_time_reports_no_flaky_test(self) -> None:
        done = ("", ["a pass", "b pass", "c skip skipped: no: such thing", "module_unload pass"])
        status, lines, _ = self.run_boots(done, strict="1")
        self.assertEqual((status, lines), (0, ["skip  6.1/ext4/c: no: such thing", "3 passed, 0 failed, 1 skipped"]))

    def test_module_unload_failure_of_first_boot_is_kept(self) -> None:
        leaky = ("", [*self.LATE[1][:3], "module_unload fail still in use"])
        status, lines, _ = self.run_boots(leaky, self.AGAIN)
        self.assertEqual((status, lines[-1]), (1, "3 passed, 1 failed"))

    def test_the_test_at_which_qemu_died_is_flaky_and_those_after_it_are_not(self) -> None:
        died = ("the machine died", ["a pass", "b running"])
        *_, one = self.run_boots(died, ("", ["b pass", "c pass", "module_unload pass"]))
        self.assertEqual(one.flaky, {"b": "the machine died"})

    def test_a_machine_that_did_not_come_up_is(self) -> None:
        all_of_it = ("", ["a pass", "b pass", "c pass", "module_unload pass"])
        status, lines, one = self.run_boots(("the machine hung", []), all_of_it)
        self.assertEqual(one.flaky, {job.THE_MACHINE: "the machine hung"})
        self.assertEqual(lines[-1], "4 passed, 0 failed")
        *_, one = self.run_boots(("the machine hung", []), ("the machine hung", []))
        self.assertEqual(one.flaky, {})


if __name__ == "__main__":
    unittest.main()
