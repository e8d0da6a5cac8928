#!/usr/bin/env python3
"""The style of what a person reads: pages, and comments in code.

proselint checks it with the settings of tests/prose/proselint/config; the words and phrases of tests/prose/words are
ours. Prints a line for each finding, and exits with 1 if there are any.

    tests/prose.py [FILE...]        all tracked files unless given
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

TOP = Path(__file__).resolve().parent.parent
HERE = TOP / "tests/prose"
PAGES = {".md"}
# The beginning of a line that is a comment, by the ending of the file's name.
COMMENTS = {
    ".rs": re.compile(r"\s*(//[/!]?)"),
    ".c": re.compile(r"\s*(//|/\*+|\*(?!\w))"),
    ".h": re.compile(r"\s*(//|/\*+|\*(?!\w))"),
    ".py": re.compile(r"\s*(#)"),
    ".sh": re.compile(r"\s*(#)"),
    ".toml": re.compile(r"\s*(#)"),
    ".mk": re.compile(r"\s*(#)"),
}
# Copies of what others wrote, or what must not change.
LEFT_OUT = ("kmod/include/uapi/", "tests/prose", "tests/runtime/policies/ppc-v1.h")


def prose(name, text):
    """The lines that a person reads; the others are empty, so that numbers of lines stay."""
    ending = Path(name).suffix
    if ending in PAGES:
        return without_code(text)
    begins = COMMENTS.get(ending)
    if begins is None:
        return ""
    lines = []
    for line in text.splitlines():
        found = begins.match(line)
        lines.append(line[found.end():] if found else "")
    return without_code("\n".join(lines))


def without_code(text):
    """The text without blocks of code and what is between backquotes."""
    lines, in_code = [], False
    for line in text.splitlines():
        fence = line.strip().startswith("```")
        lines.append("" if fence or in_code else re.sub(r"`[^`]*`", "it", line))
        in_code ^= fence
    return "\n".join(lines) + "\n"


def words(text):
    """The words to avoid with their remedies."""
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return dict(line.split("\t") for line in lines)


def avoided(text, table):
    """Line numbers, words and remedies of what is to be avoided."""
    either = re.compile(r"\b(" + "|".join(map(re.escape, table)) + r")\b", re.IGNORECASE)
    for number, line in enumerate(text.splitlines(), 1):
        for found in either.finditer(line):
            yield number, found[0], table[found[0].lower()]


def tracked():
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=TOP, check=True, capture_output=True, text=True).stdout
    return names.splitlines()


def lint(folder):
    """What proselint finds in a folder."""
    names = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    if not names:
        return []
    setting = {**os.environ, "XDG_CONFIG_HOME": str(HERE), "XDG_CACHE_HOME": str(folder.parent / "cache")}
    try:
        done = subprocess.run(["proselint", *names], cwd=folder, env=setting, capture_output=True, text=True)
    except FileNotFoundError:
        raise SystemExit("proselint is not installed: make check-deps") from None
    if done.returncode not in (0, 1) or done.stderr:
        raise SystemExit(f"proselint: {done.stderr.strip() or done.returncode}")
    return done.stdout.splitlines()


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", metavar="FILE", nargs="*", help="a file, below the tree's top (default: all tracked)")
    return parser.parse_args()


def main(names):
    table = words((HERE / "words").read_text())
    found = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "prose"
        folder.mkdir()
        for name in names or tracked():
            path = TOP / name
            known = path.suffix in PAGES or path.suffix in COMMENTS
            if not known or name.startswith(LEFT_OUT) or not path.is_file():
                continue
            text = prose(name, path.read_text())
            found += [f"{name}:{number}: '{word}': {remedy}" for number, word, remedy in avoided(text, table)]
            copy = folder / name
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_text(text)
        found += lint(folder)
    print("\n".join(found), end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(arguments().names))
