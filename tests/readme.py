#!/usr/bin/env python3
"""Checks that each command in a README would run as it stands there.

A command of ours is run with one option too many, --no-such-option: if that is all it complains of, the rest was
understood, and nothing was done. What make would run is asked of make -n and then looked at in the same way. Targets,
variables, kernels, packages and files that are named have to be there; commands that only print are run.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

TREE = Path(__file__).resolve().parent.parent
MARKER = "--no-such-option"
TIMEOUT_S = 120
BLOCK = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`([^`\n]+)`")
LINK = re.compile(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)")
ASSIGNMENT = re.compile(r"\w+=")
# By the name in a README: what is built of it.
OURS = {"ppcctl": "ppcctl", "ppc-bench": "ppc-bench", "mount.rfs": "mount-rfs"}
# They print, and do nothing else.
PRINTING = re.compile(r"--help|--list|^service-id .")
# The system's; what they are told is its business. The commands of policies/README.md that begin with these are run as
# they stand by policies/ppc/tests/readme.rs.
SYSTEM = {"cc", "cd", "cp", "modprobe", "mount", "sed", "sh", "systemctl", "tsort"}
# Starts of inline code that is a command.
COMMANDS = {"make", "cargo", "python3", *OURS}


@dataclass(frozen=True)
class Command:
    words: tuple[str, ...]
    where: str

    def __str__(self) -> str:
        return f"{self.where}: {shlex.join(self.words)}"


class WrongError(Exception):
    """Why a command would not run."""


def commands(text: str, where: str) -> Iterator[Command]:
    """The commands of a README: lines of its shell blocks, and code in its prose that begins like one."""
    for block in BLOCK.findall(text):
        for line in block.replace("\\\n", " ").splitlines():
            yield from split(line, where)
    for code in INLINE.findall(BLOCK.sub("", text)):
        first, _, rest = code.partition(" ")
        # Words such as `make vm...` speak of several.
        is_command = first in COMMANDS and rest and not rest.endswith("...")
        if is_command or re.match(r"[\w.]+(/[\w.]+)+\.sh( |$)", code):
            yield from split(code, where)


def split(line: str, where: str) -> Iterator[Command]:
    """The commands of a line, without comments, assignments before them and brackets around what may be left out."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=";&|")
    lexer.whitespace_split = True
    words: list[str] = []
    for word in [*lexer, ";"]:
        if not re.fullmatch(r"[;&|]+", word):
            words.append(word)
            continue
        while words and ASSIGNMENT.match(words[0]):
            words.pop(0)
        if words:
            yield Command(tuple(words), where)
        words = []


def run(words: list[str]) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    return subprocess.run(
        words,
        cwd=TREE,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


def program(name: str) -> list[str]:
    """How one of ours is run: as it was built, or from the tree."""
    base = OURS.get(Path(name).name, Path(name).name)
    if base in OURS.values():
        path = Path(os.environ.get("CARGO_TARGET_DIR") or TREE / "target") / "debug" / base
        if not path.exists():
            raise WrongError(f"{path} is not built")
        return [str(path)]
    return ["python3", name] if name.endswith(".py") else [name]


def check_ours(command: list[str], words: list[str]) -> None:
    """Options that are not understood are complained of together, or before the one that is too many."""
    if PRINTING.search(" ".join(words)):
        done = run([*command, *words])
        if done.returncode:
            raise WrongError(f"exit status {done.returncode}: {done.stdout.strip()}")
        return
    end = words.index("--") if "--" in words else len(words)
    said = run([*command, *words[:end], MARKER, *words[end:]])
    complaint = next((line for line in said.stdout.splitlines() if "error:" in line), "")
    expected = rf"(unrecognized arguments:|unexpected argument) '?{MARKER}'?( found)?$"
    if said.returncode != 2 or not re.search(expected, complaint):
        raise WrongError(complaint or said.stdout.strip() or f"exit status {said.returncode}")


def check_make(words: list[str]) -> None:
    text = "".join(path.read_text() for path in [TREE / "Makefile", *TREE.glob("*/Makefile"), *TREE.glob("*/**/*.mk")])
    for word in words:
        name, is_assignment, value = word.partition("=")
        if is_assignment and not re.search(rf"\$\(?\$?[({{]?{name}\b|^export .*\b{name}\b", text, re.MULTILINE):
            raise WrongError(f"no makefile reads {name}")
        if name == "K" and (unknown := set(value.split()) - known_kernels()):
            raise WrongError(f"no such kernel: {' '.join(unknown)}")
    # Lines in which make calls itself are run by -n, too.
    shown = run(["make", "-n", "MAKE=true", *words])
    if shown.returncode:
        raise WrongError(shown.stdout.strip())
    for line in shown.stdout.replace("\\\n", " ").splitlines():
        check_recipe(line)


def check_recipe(line: str) -> None:
    """Of what make prints, only the programs of the tree. What a shell would put in is taken as given."""
    line = re.sub(r"\$\{\w+:\+([^}]*)\}", r"\1", re.sub(r"\$\(\(.*?\)\)", "1", line))
    try:
        found = list(split(line, ""))
    except ValueError:
        return
    for command in found:
        words = list(command.words)
        if words[0] == "python3" and len(words) > 1 and words[1].endswith(".py"):
            words.pop(0)
        if words[0].endswith("total.py"):
            for part in words[1:]:
                check_recipe(part.partition("=")[2])
        elif words[0].endswith(".py") or Path(words[0]).name in OURS.values():
            check_ours(program(words[0]), words[1:])


def known_kernels() -> set[str]:
    listed = (TREE / "tests/vm/kernels").read_text().splitlines()
    return {line.split()[0] for line in listed if line.strip() and not line.startswith("#")}


def check_cargo(words: list[str]) -> None:
    manifest = "".join(path.read_text() for path in TREE.rglob("Cargo.toml") if "target" not in path.parts)
    for option, name in zip(words, words[1:], strict=False):
        if option == "--":
            return
        if option in ("-p", "--package") and f'name = "{name}"' not in manifest:
            raise WrongError(f"no package {name}")
        if option == "--example" and not any(TREE.glob(f"*/**/examples/{name}.rs")):
            raise WrongError(f"no example {name}")


def unbracketed(words: Iterable[str]) -> list[str]:
    """With what may be left out."""
    return [word for word in (word.strip("[]") for word in words) if word]


def check(command: Command) -> None:
    first, *rest = unbracketed(command.words)
    if first == "make":
        check_make(rest)
    elif first == "cargo":
        check_cargo(rest)
    elif first == "python3" and rest[0] == "-m":
        return
    elif first == "python3":
        check_ours(program(rest[0]), rest[1:])
    elif first in OURS:
        check_ours(program(first), rest)
    elif "/" in first:
        if not os.access(TREE / first, os.X_OK):
            raise WrongError(f"no such program: {first}")
    elif first not in SYSTEM:
        raise WrongError(f"nothing is known of {first}")


def check_links(path: Path) -> Iterator[str]:
    for link in LINK.findall(path.read_text()):
        if not (path.parent / link).exists():
            yield f"{path.relative_to(TREE)}: no such file: {link}"


def main() -> int:
    # It is one of the programs that are run with an option too many.
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    listed = run(["git", "ls-files", "--cached", "--others", "--exclude-standard", "*README.md"]).stdout.split()
    found = [one for name in listed for one in commands((TREE / name).read_text(), name)]
    distinct = list({command.words: command for command in found}.values())
    wrong = [line for name in listed for line in check_links(TREE / name)]
    passed = 0
    for command in distinct:
        try:
            check(command)
            passed += 1
        except (WrongError, OSError, subprocess.TimeoutExpired) as error:
            wrong.append(f"{command}\n  {error}")
    print(*wrong, f"{passed} passed, {len(wrong)} failed", sep="\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
