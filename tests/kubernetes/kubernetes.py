#!/usr/bin/env python3
"""Renders the chart of tools/kubernetes and checks the result: kubernetes.py [--write].

Each way to set it up is valid by the schemas of the API, strictly: a field that Kubernetes does not know is an error. The
plain manifests are what the chart renders by default; --write renders them. Packages come from PyPI, once.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
TREE = HERE.parent.parent
sys.path.insert(0, str(TREE / "tests/vm"))

from archive import cache_dir, locked  # noqa: E402

CHART = TREE / "tools/kubernetes/ppc"
MANIFESTS = TREE / "tools/kubernetes/ppc.yaml"
REQUIREMENTS = HERE / "requirements.txt"
# The oldest that the chart allows, and the newest.
VERSIONS = ("1.30", "1.37")
WAYS: dict[str, dict] = {
    "default": {},
    "module": {"module": {"enabled": True, "mounts": ["/srv/models", "/srv/more"]}},
    "quiet": {"metrics": {"enabled": False}, "learn": False, "tolerations": [], "nodeSelector": {}},
    "all": {
        "config": '[service.llama]\nimage = "vllm/vllm-openai:*"\nsettings = { store = "/store" }\n',
        "image": {"repository": "host:5000/ppc", "tag": "1"},
        "imagePullSecrets": [{"name": "key"}],
        "priorityClassName": "system-node-critical",
        "affinity": {"nodeAffinity": {}},
        "podAnnotations": {"a": "b"},
        "podLabels": {"c": "d"},
        "extraEnv": [{"name": "E", "value": "f"}],
        "extraVolumes": [{"name": "store", "persistentVolumeClaim": {"claimName": "store"}}],
        "extraVolumeMounts": [{"name": "store", "mountPath": "/store"}],
        "extraContainers": [
            {"name": "mirror", "image": "mirror", "volumeMounts": [{"name": "state", "mountPath": "/var/lib/ppc"}]}
        ],
    },
}


def with_packages() -> None:
    """Goes on in a Python that has the packages."""
    folder = cache_dir() / "kubernetes"
    python = folder / "bin/python"
    stamp = folder / "requirements.txt"
    with locked(folder.with_name("kubernetes.lock")):
        if not stamp.exists() or stamp.read_text() != REQUIREMENTS.read_text():
            subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
            subprocess.run([python, "-m", "pip", "install", "--quiet", "--requirement", REQUIREMENTS], check=True)
            stamp.write_text(REQUIREMENTS.read_text())
    os.execv(python, [str(python), *sys.argv, "--in-it"])


def rendered(values: dict) -> str:
    """As 'helm template ppc CHART' prints it."""
    import helm_python

    with helm_python.Chart.load(str(CHART)) as chart:
        files = chart.render(values, name="ppc")
    return "".join(f"---\n# Source: {name}\n{text.strip()}\n" for name, text in sorted(files.items()))


def check(way: str, values: dict, version: str) -> list[str]:
    """What is wrong with what the chart renders in a way."""
    import kubernetes_validate
    import yaml

    wrong = []
    for document in yaml.safe_load_all(rendered(values)):
        try:
            kubernetes_validate.validate(document, version, strict=True)
        except kubernetes_validate.ValidationError as error:
            wrong.append(f"{way} on {version}, {document['kind']}: {error.message}")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--in-it", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if not args.in_it:
        with_packages()
    import helm_python

    if args.write:
        MANIFESTS.write_text(rendered({}))
    tests = {"the_chart_has_no_errors": helm_python.lint(str(CHART))["errors"]}
    tests["the_plain_manifests_are_what_the_chart_renders"] = (
        [] if MANIFESTS.read_text() == rendered({}) else ["they differ: tests/kubernetes/kubernetes.py --write"]
    )
    for way, values in WAYS.items():
        for version in VERSIONS:
            tests[f"{way}_is_valid_on_{version}"] = check(way, values, version)
    for name, wrong in tests.items():
        print(f"{'fail' if wrong else 'pass'} kubernetes_{name}", *wrong, sep="\n  ")
    failed = sum(map(bool, tests.values()))
    print(f"{len(tests) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
