"""That the closing line of `make test` can't be green by accident."""

import contextlib
import io
import tempfile
import unittest
from pathlib import Path
from unittest import mock

import total
from total import Count

CARGO = """\
running 2 tests
test result: ok. 33 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.01s
running 1 test
test result: FAILED. 1 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.31s
"""


class Counting(unittest.TestCase):
    def test_each_runner_is_understood(self):
        cases = {
            CARGO: Count(34, 2, 1),
            # Once for a test, however many reasons it has, and only if all of it was skipped.
            "test a::b ... skipped: a::b: no\nok\nskipped: a::b: none\nskipped in part: a::c: no\n"
            + CARGO: Count(33, 2, 2),
            "Ran 9 tests in 0.1s\n\nOK\n": Count(9, 0, 0),
            "Ran 1 test in 0.1s\n\nOK (skipped=1)\n": Count(0, 0, 1),
            "Ran 9 tests in 0.1s\n\nFAILED (failures=1, errors=2, skipped=3)\n": Count(3, 3, 3),
            "Ran 0 tests in 0.0s\n\nNO TESTS RAN\n": Count(0, 0, 0),
            "7 passed, 0 failed\n": Count(7, 0, 0),
            "5 passed, 1 failed, 2 skipped\n840 passed, 3 failed, 7 skipped\n": Count(840, 3, 7),
            "a test says: 5 passed, 0 failed\n": Count(),
            "": Count(),
        }
        for output, expected in cases.items():
            with self.subTest(output=output):
                self.assertEqual(total.count(output), expected)

    def test_a_part_fails_for_more_than_its_tests(self):
        cases = [
            ((0, "7 passed, 0 failed\n"), Count(7), ""),
            ((1, "6 passed, 1 failed\n"), Count(6, 1), ""),
            ((0, ""), Count(failed=1), "vm: no test ran (exit status 0)"),
            ((0, "0 passed, 0 failed, 80 skipped\n"), Count(0, 1, 80), "vm: no test ran (exit status 0)"),
            ((2, "7 passed, 0 failed\n"), Count(7, 1), "vm: no test failed, but exit status is 2"),
        ]
        for (status, output), expected, wrong in cases:
            with self.subTest(output=output, status=status):
                self.assertEqual(total.verdict("vm", status, output), (expected, wrong))


class Running(unittest.TestCase):
    def run_parts(self, *parts):
        with (
            tempfile.TemporaryDirectory() as folder,
            mock.patch.object(total, "RESULTS", Path(folder)),
            contextlib.redirect_stdout(io.StringIO()) as out,
        ):
            status = total.main(list(parts))
            logs = {path.stem: path.read_text() for path in Path(folder).iterdir()}
        return status, out.getvalue().splitlines(), logs

    def test_the_last_line_is_the_sum_of_all_parts(self):
        status, lines, logs = self.run_parts("a=echo 3 passed, 0 failed", "b=echo 4 passed, 0 failed, 1 skipped")
        self.assertEqual((status, lines[-1]), (0, "7 passed, 0 failed, 1 skipped"))
        self.assertEqual(logs["a"], "3 passed, 0 failed\n")

    def test_a_broken_part_stops_nothing_and_is_not_forgotten(self):
        status, lines, _ = self.run_parts("a=echo error: could not compile; exit 101", "b=echo 4 passed, 0 failed")
        self.assertEqual((status, lines[-1]), (1, "4 passed, 1 failed, 0 skipped"))

    def test_nothing_to_run_is_a_mistake(self):
        with contextlib.redirect_stderr(io.StringIO()):
            self.assertEqual(total.main([]), 2)
            self.assertEqual(total.main(["vm"]), 2)


if __name__ == "__main__":
    unittest.main()
