"""Commands that would not run are found."""

import unittest

import readme


class Reading(unittest.TestCase):
    def found(self, text):
        return [list(one.words) for one in readme.commands(text, "README.md")]

    def test_blocks_and_code_in_prose_are_read(self):
        text = (
            "```sh\nmake run MODEL=x CMD='python3 load.py {}'  # why\nA=1 \\\n    cargo test; ppcctl status && mount x\n```\n"
            "```\nno command\n```\nBy `make vm K=5.10`, `make vm...`, `tests/runtime/host.sh`, `vm.py` and `cprtd`.\n"
        )
        expected = [
            ["make", "run", "MODEL=x", "CMD=python3 load.py {}"],
            ["cargo", "test"],
            ["ppcctl", "status"],
            ["mount", "x"],
            ["make", "vm", "K=5.10"],
            ["tests/runtime/host.sh"],
        ]
        self.assertEqual(self.found(text), expected)

    def test_optional_arguments_are_included(self):
        self.assertEqual(readme.unbracketed(["make", "vm-bench", "[K=6.1 6.12]"]), ["make", "vm-bench", "K=6.1 6.12"])


class Checking(unittest.TestCase):
    def why(self, line):
        (command,) = readme.split(line, "README.md")
        try:
            readme.check(command)
        except readme.WrongError as error:
            return str(error)
        return ""

    def test_valid_commands_pass(self):
        lines = [
            "make vm-bench",
            "make vm K=6.12 T='cprt_*' V=1",
            "python3 tests/vm/vm.py debug cprt_swap",
            "kmod/check.sh [KERNEL...]",
            "cargo run -p rfs-uapi --example rfs-events -- FILE",
        ]
        for line in lines:
            with self.subTest(line=line):
                self.assertEqual(self.why(line), "")

    def test_invalid_commands_are_reported(self):
        cases = {
            "make vm-bunch": "vm-bunch",
            "make vm KERNEL=6.12": "no makefile reads KERNEL",
            "make vm K=4.19": "no such kernel: 4.19",
            "make vm-bench BENCH=--fast": "unrecognized arguments: --fast",
            "python3 tests/vm/vm.py matrix --kernels 3": "unrecognized arguments: --kernels",
            "python3 tests/vm/vm.py runs 6.12": "invalid choice: 'runs'",
            "cargo test -p cprd": "no package cprd",
            "tests/host.sh": "no such program: tests/host.sh",
            "ppctl status": "nothing is known of ppctl",
        }
        for line, expected in cases.items():
            with self.subTest(line=line):
                self.assertIn(expected, self.why(line))

    def test_a_default_of_another_target_is_found(self):
        # As it was: BENCH := --quick, for `make bench`, which vm-bench hands on.
        with self.assertRaisesRegex(readme.WrongError, "unrecognized arguments: --quick"):
            readme.check_recipe("python3 tests/vm/bench.py  --quick")


if __name__ == "__main__":
    unittest.main()
