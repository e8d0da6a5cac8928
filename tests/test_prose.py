"""Tests of prose.py."""

import importlib.util
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent


def load():
    spec = importlib.util.spec_from_file_location("prose", HERE / "prose.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


prose = load()


class Prose(unittest.TestCase):
    def test_only_what_a_person_reads_is_looked_at(self):
        text = "/// Whoever reads.\nlet nobody = 1; // left alone\n    // `nobody` is code.\n"
        self.assertEqual(prose.prose("a.rs", text), " Whoever reads.\n\n it is code.\n")
        text = "Text.\n```sh\nnobody\n```\nMore.\n"
        self.assertEqual(prose.prose("a.md", text), "Text.\n\n\n\nMore.\n")
        self.assertEqual(prose.prose("a.c", "/* Why\n * not. */\n*p = 1;\n"), " Why\n not. */\n")
        self.assertEqual(prose.prose("a.bin", text), "")

    def test_words_to_avoid_are_found_with_their_remedies(self):
        table = prose.words("# why\nnobody\tno reader\nfor ever\tforever\n")
        found = list(prose.avoided("Nobody waits\nfor ever, a nobodys\n", table))
        self.assertEqual(found, [(1, "Nobody", "no reader"), (2, "for ever", "forever")])

    def test_the_tree_s_own_list_is_well_formed(self):
        table = prose.words((HERE / "prose/words").read_text())
        self.assertTrue(table and all(word == word.lower() and remedy for word, remedy in table.items()))


if __name__ == "__main__":
    unittest.main()
