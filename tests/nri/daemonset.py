"""The DaemonSet of tools/kubernetes as CRI takes it: what kubelet does with it, as far as the tests need that."""

from __future__ import annotations

from pathlib import Path

import yaml
from cri import Fields, Pod
from machine import OURS, TREE

MANIFEST = TREE / "tools/kubernetes/ppc.yaml"
SIZES = {"Ki": 10, "Mi": 20, "Gi": 30}
# Profiles of system calls.
RUNTIME_DEFAULT = 0


def bytes_of(size: str) -> int:
    return int(size[:-2]) << SIZES[size[-2:]]


def places(template: dict, texts: dict[str, str], instead: dict[str, Path], place: Path) -> dict[str, Path]:
    """The folders of the volumes; `instead` has those of the test in place of the node's."""
    found = {}
    for volume in template["volumes"]:
        name = volume["name"]
        if "hostPath" in volume:
            found[name] = instead[volume["hostPath"]["path"]]
        else:
            found[name] = place / f"volume-{name}"
            found[name].mkdir(exist_ok=True)
        if "configMap" in volume:
            for file, text in texts.items():
                (found[name] / file).write_text(text)
    return found


def create(pod: Pod, instead: dict[str, Path], place: Path, more: str) -> str:
    """Makes the DaemonSet's container, with more in its configuration; its ID."""
    settings, daemons = yaml.safe_load_all(MANIFEST.read_text())
    assert (settings["kind"], daemons["kind"]) == ("ConfigMap", "DaemonSet")
    template = daemons["spec"]["template"]["spec"]
    (container,) = template["containers"]
    texts = {name: text + more for name, text in settings["data"].items()}
    volumes = places(template, texts, instead, place)
    mounts: list[Fields] = []
    for mount in container["volumeMounts"]:
        source = volumes[mount["name"]] / mount.get("subPath", "")
        source.mkdir(exist_ok=True)
        mounts.append({1: mount["mountPath"], 2: str(source), 3: int(mount.get("readOnly", False))})
    asked = container["securityContext"]
    assert template["hostPID"] and asked["seccompProfile"]["type"] == "RuntimeDefault" and not asked.get("privileged")
    security: Fields = {
        1: {1: asked["capabilities"]["add"], 2: asked["capabilities"]["drop"]},
        5: {1: asked["runAsUser"]},
        7: int(asked["readOnlyRootFilesystem"]),
        15: {1: RUNTIME_DEFAULT},
    }
    memory = bytes_of(container["resources"]["limits"]["memory"])
    return pod.create(container["name"], OURS, container["command"], mounts=mounts, memory=memory, security=security)
