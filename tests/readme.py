#!/usr/bin/env python3
"""Checks that each command in a README would run as it stands there.

A command of this tree is run with an extra option, --no-such-option: if it complains only of that, it understood the
rest, and did nothing. make -n prints what make would run, which is then checked in the same way. Targets, variables,
kernels, packages and files that are named have to exist; commands that only print are run.
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
PAGES = ["*README.md", "CONTRIBUTING.md"]
BLOCK = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`([^`\n]+)`")
LINK = re.compile(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)")
ASSIGNMENT = re.compile(r"\w+=")
# What each name in a README is built as.
OURS = {"ppcctl": "ppcctl", "ppc-bench": "ppc-bench", "mount.rfs": "mount-rfs", "ppc-store": "ppc-store"}
# Commands that only print.
PRINTING = re.compile(r"--help|--list|^service-id .")
# Commands of the system, whose arguments are not checked. policies/ppc/tests/readme.rs runs the commands of
# policies/README.md that begin with these as they stand.
SYSTEM = {"apt", "cc", "cd", "cp", "echo", "helm", "modprobe", "mount", "sed", "sh", "sync", "systemctl", "tsort"}
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
    """The commands of a README: the lines of its shell blocks, and inline code that begins like a command."""
    for block in BLOCK.findall(text):
        for line in block.replace("\\\n", " ").splitlines():
            yield from split(line, where)
    for code in INLINE.findall(BLOCK.sub("", text)):
        first, _, rest = code.partition(" ")
        # Words such as `make vm...` mean several targets.
        is_command = first in COMMANDS and rest and not rest.endswith("...")
        if is_command or re.match(r"[\w.]+(/[\w.]+)+\.sh( |$)", code):
            yield from split(code, where)


def split(line: str, where: str) -> Iterator[Command]:
    """The commands of a line, without comments, assignments before them and brackets around optional parts."""
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
    """How to run a program of the tree: as it was built, or from its source."""
    base = OURS.get(Path(name).name, Path(name).name)
    if base in OURS.values():
        path = Path(os.environ.get("CARGO_TARGET_DIR") or TREE / "target") / "debug" / base
        if not path.exists():
            raise WrongError(f"{path} is not built")
        return [str(path)]
    return ["python3", name] if name.endswith(".py") else [name]


def check_ours(command: list[str], words: list[str]) -> None:
    """A command complains of unknown options together with the extra one, or before it."""
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
    # make -n, too, runs the lines in which make calls itself.
    shown = run(["make", "-n", "MAKE=true", *words])
    if shown.returncode:
        raise WrongError(shown.stdout.strip())
    for line in shown.stdout.replace("\\\n", " ").splitlines():
        check_recipe(line)


def check_recipe(line: str) -> None:
    """Checks the tree's programs in what make prints. Takes the shell's substitutions for granted."""
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
    """The command with its optional parts."""
    return [word for word in (word.strip("[]") for word in words) if word]


def check(command: Command) -> None:
    first, *rest = unbracketed(command.words)
    if first == "time":
        first, *rest = rest
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
    # This program, too, is run with an extra option.
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    listed = run(["git", "ls-files", "--cached", "--others", "--exclude-standard", *PAGES]).stdout.split()
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
