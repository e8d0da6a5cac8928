"""Everything that a client's start reads, in one folder: an interpreter and its library, packages, loaders, models."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import clients
import environment
import loaders
import runs
import weights
from loaders import Client

# Modules of this folder that a client imports.
LOADERS = ("loaders.py", "cold.py", "digest.py", "moments.py")
ABOUT = """
import json, os, sys, sysconfig
shared = sysconfig.get_config_var("Py_ENABLE_SHARED")
print(json.dumps({
    "program": os.path.realpath(sys.executable),
    "library": sysconfig.get_path("stdlib"),
    "shared": shared and os.path.join(sysconfig.get_config_var("LIBDIR"), sysconfig.get_config_var("INSTSONAME")),
}))
"""


def link(source: str, target: str) -> None:
    """Hard-links a file if possible, else copies it. Times stay, or compiled modules would be stale."""
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:
        shutil.copy2(source, target, follow_symlinks=False)


def lay_out(folder: Path, layers: int, chosen: list[Client]) -> str:
    """Fills the folder; returns the digest of the models' tensors."""
    lay_out_python(environment.cache() / "venv", folder)
    (folder / "loaders").mkdir()
    for name in LOADERS:
        shutil.copy2(runs.LOADERS.parent / name, folder / "loaders")
    python = environment.cache() / "venv/bin/python"
    truth = clients.make_model(folder, weights.Shape(layers=layers), chosen, python)
    for form in {"safetensors", "bin", "gguf"} - {client.weights for client in chosen}:
        shutil.rmtree(folder / form, ignore_errors=True)
    return truth.digest


def lay_out_python(venv: Path, folder: Path) -> None:
    """Copies an environment with the library of the interpreter that it was made from, which it reads."""
    done = subprocess.run([str(venv / "bin/python"), "-c", ABOUT], capture_output=True, text=True, check=True)
    about = json.loads(done.stdout)
    ignored = shutil.ignore_patterns("lib64", "pyvenv.cfg", "python*")
    at_the_top = {str(venv), str(venv / "bin")}
    shutil.copytree(
        venv,
        folder / "venv",
        symlinks=True,
        ignore=lambda place, names: ignored(place, names) if place in at_the_top else set(),
        copy_function=link,
    )
    library = Path(about["library"])
    unread = shutil.ignore_patterns("site-packages", "dist-packages", "test", "config-*")
    shutil.copytree(library, folder / "base/lib" / library.name, symlinks=True, ignore=unread, copy_function=link)
    for place in ("base/bin", "venv/bin"):
        (folder / place).mkdir(exist_ok=True)
        link(about["program"], str(folder / place / "python"))
    if about["shared"]:
        link(about["shared"], str(folder / "base/lib" / Path(about["shared"]).name))


def settle(root: Path) -> None:
    """Writes the interpreter's full path into the environment; it is known only once the disk exists."""
    (root / "venv/pyvenv.cfg").write_text(f"home = {root / 'base/bin'}\ninclude-system-site-packages = false\n")


def words(client: Client, root: Path) -> list[str]:
    model = root / client.weights
    # In the terms of llama.cpp's options.
    model = model / "model.gguf" if client.weights == "gguf" else model
    return [str(root / "venv/bin/python"), str(root / "loaders/loaders.py"), client.name, str(model)]


def told(client: Client, root: Path) -> dict[str, str]:
    """The environment variables of a client, which must not write compiled modules."""
    ours = {"PYTHONDONTWRITEBYTECODE": "1", "LD_LIBRARY_PATH": str(root / "base/lib"), loaders.LOOK: "1"}
    return {**os.environ, **runs.QUIET, **client.environment, **ours}
