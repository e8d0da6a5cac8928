"""Starts of unmodified programs that load no models: their packages make a root directory on the disk that is measured,
and they run in it by chroot, so that binaries, libraries and data are all cold."""

from __future__ import annotations

import ctypes
import random
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import packages
import runs

CLONE_NEWNS = 0x20000
# Number of the compiler's C sources, and of the database's rows.
SOURCES, ROWS = 40, 200_000
SERVER = "/usr/lib/postgresql"
QUERY = "select count(*) || ' ' || sum(length(words)) || ' ' || max(left(words, 8)) from things"
DIGEST = """printf '{"digest": "%s"}\\n' "$answer" """


@dataclass(frozen=True)
class Program:
    name: str
    packages: tuple[str, ...]
    # A shell script to run in its root directory. It ends with a line of JSON that has the answer.
    script: str
    # Puts the program's data into a root directory; returns the expected answer.
    prepare: Callable[[Path], str]
    # The user that starts it.
    user: str = "root"


def missing(program: Program, said: str) -> str:
    """Why the program cannot be started here."""
    there = {line.split("\t")[0] for line in said.splitlines() if line.split("\t")[1] == "installed"}
    lacking = [package for package in program.packages if package not in there]
    return f"not installed: the Debian package {', '.join(lacking)}" if lacking else ""


def sources(count: int) -> dict[str, str]:
    """The sources of a program with this many files, which all include half of libc; it prints one number."""
    headers = ["ctype", "errno", "fcntl", "inttypes", "locale", "math", "netdb", "poll", "pthread", "regex", "signal"]
    headers += ["stdio", "stdlib", "string", "sys/mman", "sys/socket", "sys/stat", "time", "unistd", "wchar"]
    made = {"all.h": "".join(f"#include <{one}.h>\n" for one in headers)}
    made["all.h"] += "".join(f"long part{at}(long);\n" for at in range(count))
    source = random.Random("sources")
    for at in range(count):
        steps = "".join(
            f"static long step{step}(long x) {{ for (int i = 0; i < {source.randrange(2, 9)}; i++) "
            f"x = (x * {source.randrange(3, 99)} + {source.randrange(1, 999)}) % 1000003; return x; }}\n"
            for step in range(40)
        )
        calls = "".join(f"x = step{step}(x); " for step in range(40))
        made[f"part{at}.c"] = f'#include "all.h"\n{steps}long part{at}(long x) {{ {calls}return x; }}\n'
    calls = "".join(f"x = part{at}(x); " for at in range(count))
    made["main.c"] = f'#include "all.h"\nint main(void) {{ long x = 1; {calls}printf("%ld\\n", x); return 0; }}\n'
    return made


COMPILER = f"""set -e
rm -rf /tmp/made; mkdir /tmp/made; cd /src
for file in *.c; do gcc -O1 -c "$file" -o "/tmp/made/${{file%.c}}.o"; done
gcc /tmp/made/*.o -o /tmp/made/program
answer=$(/tmp/made/program)
{DIGEST}"""


def prepare_compiler(root: Path) -> str:
    (root / "src").mkdir()
    for name, text in sources(SOURCES).items():
        (root / "src" / name).write_text(text)
    return in_root(root, COMPILER, "root")


# The trap ends the server if a command in between fails.
RUN_SERVER = """pg_ctl -s -w -l /tmp/log -o "-k /tmp -c listen_addresses=" start
trap 'pg_ctl -s -m immediate stop' EXIT"""
END_SERVER = """trap - EXIT
pg_ctl -s -w -m fast stop"""
POSTGRESQL = f"""set -e
PATH=$(echo {SERVER}/*/bin):$PATH
export PGDATA=/data LC_ALL=C.UTF-8
{RUN_SERVER}
answer=$(psql -h /tmp -d postgres -AtXc "{QUERY}")
{END_SERVER}
{DIGEST}"""

# After the vacuum, the first process to read the pages changes none.
MAKE_DATABASE = f"""set -e
PATH=$(echo {SERVER}/*/bin):$PATH
export PGDATA=/data LC_ALL=C.UTF-8
initdb --auth=trust --no-sync > /tmp/log
{RUN_SERVER}
psql -h /tmp -d postgres -qX <<'SQL'
create table things as select g as id, repeat(md5(g::text), 8) as words from generate_series(1, {ROWS}) g;
create index on things (id);
vacuum freeze analyze;
checkpoint;
SQL
{END_SERVER}
"""


def prepare_postgresql(root: Path) -> str:
    (root / "data").mkdir(mode=0o700)
    subprocess.run(["chown", "postgres:postgres", str(root / "data")], check=True)
    in_root(root, MAKE_DATABASE, "postgres")
    return in_root(root, POSTGRESQL, "postgres")


BROWSER = f"""set -e
rm -rf /tmp/profile
export HOME=/tmp
chromium --headless --no-sandbox --disable-gpu --user-data-dir=/tmp/profile --dump-dom file:///page/index.html \\
    > /tmp/dom 2> /tmp/log
answer=$(sed -n 's/.*answer=\\([0-9]*\\).*/\\1/p' /tmp/dom | head -n 1)
{DIGEST}"""


def prepare_browser(root: Path) -> str:
    (root / "page").mkdir()
    rows = "".join(f"<tr><td>{at}</td><td>{at * at}</td></tr>\n" for at in range(2000))
    script = "let n = 0; for (const c of document.querySelectorAll('td')) n += Number(c.textContent);"
    page = f"<table>\n{rows}</table><p id=p></p><script>{script} p.textContent = 'answer' + '=' + n;</script>\n"
    (root / "page/index.html").write_text(f"<!doctype html><meta charset=utf-8><title>Squares</title>{page}")
    return str(sum(at + at * at for at in range(2000)))


PROGRAMS = [
    Program("compiler", ("gcc", "libc6-dev"), COMPILER, prepare_compiler),
    Program("postgresql", ("postgresql",), POSTGRESQL, prepare_postgresql, user="postgres"),
    Program("browser", ("chromium",), BROWSER, prepare_browser),
]


def words(root: Path, script: str, user: str) -> list[str]:
    return ["chroot", f"--userspec={user}:{user}", str(root), "/bin/sh", "-c", script]


def environment() -> dict[str, str]:
    """The environment variables of a program, without any of the machine's."""
    return {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/tmp", "LC_ALL": "C.UTF-8"}


def in_root(root: Path, script: str, user: str) -> str:
    """Runs a script in a root directory that is being made; returns its answer, if it has one."""
    with mounted(root):
        done = subprocess.run(words(root, script, user), env=environment(), capture_output=True, text=True)
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()[-1:] or ["nothing was said"]
        raise BrokenError(f"exit status {done.returncode}: {said[0]}")
    return runs.last_json(done.stdout).get("digest", "")


class BrokenError(Exception):
    """The data that a program reads cannot be made."""


def isolate() -> None:
    """Makes mounts of this process from now on end with it."""
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNS):
        raise OSError(ctypes.get_errno(), "taking a mount namespace")
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)


@contextmanager
def mounted(root: Path) -> Iterator[None]:
    """Mounts what a root directory has besides files: /proc, and two folders in memory."""
    with ExitStack() as stack:
        for kind, folder in (("proc", "proc"), ("tmpfs", "tmp"), ("tmpfs", "dev/shm")):
            mode = [] if kind == "proc" else ["-o", "mode=1777"]
            subprocess.run(["mount", "-t", kind, *mode, kind, str(root / folder)], check=True)
            stack.callback(subprocess.run, ["umount", "--lazy", str(root / folder)], check=False)
        yield


def make(program: Program, root: Path) -> str:
    packages.make_root(root, program.packages)
    return program.prepare(root)
