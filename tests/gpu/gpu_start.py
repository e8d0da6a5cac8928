#!/usr/bin/env python3
"""Whole starts of transformers on a GPU, from exec until a token is computed: cold, warm, and with `ppcctl run`, which
records the first start and replays it on later ones. The files are those of this machine's disk and of this Python.

    gpu_start.py [--gigabytes N] [--rounds N] [--turns LIST] [--disk DIR] [--output FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from dataclasses import asdict
from pathlib import Path

HERE = Path(__file__).parent
TREE = HERE.parent.parent
sys.path.insert(0, str(HERE.parent / "clients"))

import clients  # noqa: E402
import disk  # noqa: E402
import gpu_torch  # noqa: E402
import hostmemory  # noqa: E402
import onestart  # noqa: E402
import outcomes  # noqa: E402
import weights  # noqa: E402

# The bytes of a layer of LAYER, about, and what the embeddings add.
LAYER, REST = 436_000_000, 524_000_000
QUIET = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "TQDM_DISABLE": "1"}


def shape(gigabytes: float) -> weights.Shape:
    """A model of about this size, with layers as those of Llama 3 with 8 billion parameters."""
    layers = max(1, round((gigabytes * 1e9 - REST) / LAYER))
    return weights.Shape(layers=layers, hidden=4096, inner=14336, heads=32, shared=8, words=32000, shard=2_000_000_000)


def make_model(folder: Path, wanted: weights.Shape) -> int:
    """Writes the model, several files at once; returns the bytes of its tensors."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(weights.config(wanted), indent=2))
    files = weights.shards(wanted)
    names = [f"model-{number:05}-of-{len(files):05}.safetensors" for number in range(1, len(files) + 1)]
    with ProcessPoolExecutor() as pool:
        sizes = list(pool.map(make_shard, [folder / name for name in names], files))
    places = {tensor: name for name, members in zip(names, files, strict=True) for tensor, _ in members}
    index = {"metadata": {"total_size": sum(sizes)}, "weight_map": dict(sorted(places.items()))}
    (folder / weights.INDEX).write_text(json.dumps(index, indent=2))
    return sum(sizes)


def make_shard(path: Path, members: list) -> int:
    return weights.write_shard(path, members, random.Random(path.name))


def measure(wanted: argparse.Namespace, scratch: Path, tally: clients.Tally) -> list[outcomes.Start]:
    model = scratch / "model"
    size = make_model(model, shape(wanted.gigabytes))
    print(f"a model of {size / 1e9:.1f} GB in {model}", file=sys.stderr, flush=True)
    words = [sys.executable, str(HERE / "gpu_model.py"), str(model)]
    subject = onestart.Subject("transformers on a GPU", words, {**os.environ, **QUIET}, folder=model)
    tools = onestart.Tools(wanted.ppcctl, scratch / "store")
    starts, digest = [], ""
    # Python writes its compiled modules once, which no later start does.
    subprocess.run(words, env=subject.environment, check=True, stdout=subprocess.DEVNULL)
    with hostmemory.kept(), closing(disk.Plain(model, "the model's")) as counted:
        for number in range(wanted.rounds):
            for turn in wanted.turns:
                one = onestart.start(outcomes.Start(subject.name, turn), subject, tools, counted)
                digest = digest or one.digest
                tally.note(f"round {number + 1}, {turn}", outcomes.faults(one, digest))
                starts.append(one)
                said = one.broken or f"{one.seconds:6.2f} s, {one.device / 1e6:6.0f} MB, {[round(p, 2) for p in one.phases]}"
                print(f"  {turn:<11} {said}", file=sys.stderr, flush=True)
    return starts


def arguments(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    add = parser.add_argument
    release = Path(os.environ.get("CARGO_TARGET_DIR") or TREE / "target") / "release"
    add("--gigabytes", type=float, default=8, help="of the model")
    add("--rounds", type=int, default=3, help="how often each is started; medians are shown")
    add("--turns", type=outcomes.turns, default=outcomes.USUAL_TURNS, metavar="LIST", help=f"of {outcomes.TURNS}")
    add("--disk", type=Path, default=TREE / "target", help="a folder on the disk for the model")
    add("--ppcctl", type=Path, default=release / "ppcctl", help="the program to measure")
    add("--output", type=Path, default=TREE / "target/bench/gpu-starts.json", help="where results are written")
    return parser.parse_args(words)


def main(words: list[str]) -> int:
    wanted, tally = arguments(words), clients.Tally()
    if why := gpu_torch.why_not():
        tally.skip("transformers on a GPU", why)
        print(tally)
        return 0
    if not os.access(onestart.DROP, os.W_OK):
        print("gpu_start.py: only root can have a machine forget its files; run it as root", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="gpu-start-", dir=wanted.disk) as scratch:
        starts = measure(wanted, Path(scratch), tally)
    found = outcomes.outcomes(starts, wanted.turns)
    for text in (outcomes.report, outcomes.counts_report, outcomes.phases_report):
        print(f"\n{text(found, wanted.turns)}")
    print(f"\nmedians of {wanted.rounds}; {os.cpu_count()} processors, Linux {os.uname().release}")
    wanted.output.parent.mkdir(parents=True, exist_ok=True)
    wanted.output.write_text(json.dumps({"starts": [asdict(one) for one in starts]}, indent=1))
    print(tally)
    return 1 if tally.failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
