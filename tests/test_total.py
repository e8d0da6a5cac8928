"""The closing line of `make test` cannot be green by accident."""

import contextlib
import io
import os
import tempfile
import time
import unittest
from pathlib import Path
from unittest import mock

import skips
import total
from skips import Expected, Skip
from total import Count

CARGO = """\
running 2 tests
test result: ok. 33 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.01s
running 1 test
test result: FAILED. 1 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.31s
"""


class Counting(unittest.TestCase):
    def test_output_of_each_runner_is_parsed(self):
        cases = {
            CARGO: Count(34, 2, 1),
            # A test counts once, however many reasons it gives, and only if all of it was skipped.
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
        skipped = "".join(f"skip  t{number}: no root\n" for number in range(80)) + "0 passed, 0 failed, 80 skipped\n"
        cases = [
            ((0, "7 passed, 0 failed\n"), Count(7), []),
            ((1, "6 passed, 1 failed\n"), Count(6, 1), []),
            ((0, ""), Count(failed=1), ["vm: no test ran (exit status 0)"]),
            ((0, "0 passed, 0 failed\n"), Count(failed=1), ["vm: no test ran (exit status 0)"]),
            # Running nothing is a valid result, as long as that is expected.
            ((0, skipped), Count(0, 0, 80), []),
            ((2, "7 passed, 0 failed\n"), Count(7, 1), ["vm: no test failed, but exit status is 2"]),
        ]
        for (status, output), expected, wrong in cases:
            with self.subTest(output=output, status=status):
                part = total.verdict("vm", status, output, [Expected("vm", "*", "any", "no root")])
                self.assertEqual((part.count, part.wrong), (expected, wrong))

    def test_failed_tests_are_listed_again(self):
        output = (
            "fail  7.2 xfs evict 12 ms  t.rs:3: kept\ntest session::lost ... FAILED\n"
            "FAIL: test_one (test_x.One)\ntest session::kept ... ok\n3 passed, 3 failed\n"
        )
        lines = total.verdict("all", 1, output, []).lines()
        told = ["7.2 xfs evict 12 ms  t.rs:3: kept", "session::lost", "test_one (test_x.One)"]
        self.assertEqual(lines[1:], [f"  failed: {line}" for line in told])

    def test_the_time_of_a_part_stands_beside_its_sum(self):
        lines = total.Part("vm", Count(3), seconds=125.4).lines()
        self.assertEqual(lines, ["vm: 3 passed, 0 failed, 0 skipped, in 2:05 min"])

    def test_a_flaky_test_has_passed_unless_that_is_not_to_count(self):
        output = "flaky  6.1/ext4/b: late\n7 passed, 0 failed\n"
        self.assertEqual(total.verdict("vm", 0, output, []).count, Count(7))
        # The rig's exit status reports the same failure, which counts once.
        strict = total.verdict("vm", 1, output, [], strict=True)
        self.assertEqual((strict.count, strict.wrong, strict.flaky), (Count(6, 1), [], ["6.1/ext4/b: late"]))

    def test_a_flaky_rust_test_may_be_reported_beside_another(self):
        output = "test a::b ... flaky  c::d: late\nok\ntest result: ok. 2 passed; 0 failed; 0 ignored; 0 measured\n"
        self.assertEqual(total.verdict("rust", 0, output, []).flaky, ["c::d: late"])


class Skips(unittest.TestCase):
    EXPECTED = [Expected("vm", "5.10/*/cache_*", "any", "no cachestat")]

    def verdict(self, output):
        part = total.verdict("vm", 0, output, self.EXPECTED)
        return str(part.count), part.wrong

    def test_skips_are_parsed_from_each_runners_output(self):
        cases = {
            "test a::b ... skipped: a::b: no disk\nok\n": [Skip("a::b", "no disk")],
            "skipped in part: a::c: one node\n": [Skip("a::c", "one node", in_part=True)],
            # A test that is skipped as a whole does not count as skipped in part as well.
            "skipped in part: a: no\nskipped: a: none\n": [Skip("a", "none")],
            "test a::d ... ignored, a measurement\ntest src/lib.rs - f (line 3) ... ignored\n": [
                Skip("a::d", "a measurement"),
                Skip("src/lib.rs - f (line 3)", "no reason"),
            ],
            "test_a (m.C.test_a) ... skipped 'no torch'\ntest_b (m.C.test_b)\nWords. ... skipped \"it's\"\n": [
                Skip("m.C.test_a", "no torch"),
                Skip("m.C.test_b", "it's"),
            ],
            "skip  5.10/ext4/a: no cachestat\n": [Skip("5.10/ext4/a", "no cachestat")],
        }
        for output, expected in cases.items():
            with self.subTest(output=output):
                self.assertEqual(skips.told(output), expected)

    def test_an_expected_skip_is_counted(self):
        output = "skip  5.10/ext4/cache_cachestat: no cachestat\n5 passed, 0 failed, 1 skipped\n"
        self.assertEqual(self.verdict(output), ("5 passed, 0 failed, 1 skipped", []))

    def test_an_unexpected_skip_fails_with_name_and_reason(self):
        for line in ("6.1/ext4/cache_cachestat: no cachestat", "5.10/ext4/cache_cachestat: no root", "a: b"):
            with self.subTest(line=line):
                wrong = [f"unexpected skip: {line}"]
                output = f"skip  {line}\n5 passed, 0 failed, 1 skipped\n"
                self.assertEqual(self.verdict(output), ("5 passed, 1 failed, 0 skipped", wrong))
        part = "skipped in part: a: one node\ntest result: ok. 3 passed; 0 failed; 0 ignored; 0 measured\n"
        self.assertEqual(self.verdict(part), ("3 passed, 1 failed, 0 skipped", ["unexpected skip: a in part: one node"]))

    def test_one_without_a_name_fails(self):
        wrong = ["2 skips of which the output has no name"]
        self.assertEqual(self.verdict("5 passed, 0 failed, 2 skipped\n"), ("5 passed, 1 failed, 2 skipped", wrong))

    def test_a_machine_is_as_its_conditions_say(self):
        with mock.patch("os.geteuid", lambda: 1000), mock.patch("os.uname", lambda: mock.Mock(release="6.1.0-50")):
            cases = {"any": True, "user": True, "root": False, "no:/": False, "no:/none/such": True, "no:sh": False}
            cases |= {"no:no-such-program": True, "before:6.12": True, "before:6.1": False}
            for condition, expected in cases.items():
                with self.subTest(condition=condition):
                    self.assertEqual(skips.holds(condition), expected)
        self.assertRaises(ValueError, skips.holds, "sometimes")

    def test_the_list_can_be_read(self):
        parts = {"rust", "tools", "fuzz", "host*", "vm*", "gpu", "torch"}
        self.assertLessEqual({one.part for one in skips.listed()}, parts)


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
        status, lines, logs = self.run_parts("a=echo 3 passed, 0 failed", "b=echo 4 passed, 0 failed")
        self.assertEqual((status, lines[-1]), (0, "7 passed, 0 failed, 0 skipped"))
        self.assertEqual(logs["a"], "3 passed, 0 failed\n")

    def test_flaky_ones_stand_before_it(self):
        parts = ("a=echo 3 passed, 0 failed", "b=echo 'flaky  t: late'; echo 4 passed, 0 failed")
        with mock.patch.dict(os.environ, {"STRICT": "0"}):
            status, lines, _ = self.run_parts(*parts)
        said = ["flaky: b: t: late", "1 flaky, which counts as passed; not with STRICT=1"]
        self.assertEqual((status, lines[-3:]), (0, [*said, "7 passed, 0 failed, 0 skipped"]))
        with mock.patch.dict(os.environ, {"STRICT": "1"}):
            status, lines, _ = self.run_parts(*parts)
        said[1] = "1 flaky, which counts as failed"
        self.assertEqual((status, lines[-3:]), (1, [*said, "6 passed, 1 failed, 0 skipped"]))

    def test_a_broken_part_stops_nothing_and_is_not_forgotten(self):
        status, lines, _ = self.run_parts("a=echo error: could not compile; exit 101", "b=echo 4 passed, 0 failed")
        self.assertEqual((status, lines[-1]), (1, "4 passed, 1 failed, 0 skipped"))

    def test_a_part_that_hangs_is_ended_with_all_it_started(self):
        began = time.monotonic()
        with mock.patch.object(total, "SILENCE_S", 1):
            status, lines, logs = self.run_parts("a=echo test it has begun; (sleep 60; true); true", "b=echo 4 passed, 0 failed")
        self.assertLess(time.monotonic() - began, 30)
        self.assertEqual((status, lines[-1]), (1, "4 passed, 1 failed, 0 skipped"))
        self.assertIn("test it has begun\n\na: silent for 1 s: it hangs, and is ended\n", logs["a"])

    def test_missing_part_or_command_is_a_usage_error(self):
        with contextlib.redirect_stderr(io.StringIO()):
            self.assertEqual(total.main([]), 2)
            self.assertEqual(total.main(["vm"]), 2)


if __name__ == "__main__":
    unittest.main()
