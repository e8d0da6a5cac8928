"""What is wrong with a run. Pure functions."""

from __future__ import annotations

from dataclasses import dataclass

from runs import AGAIN, NATIVE, OWN, Run

# Share of the model that has to come from the disk for a run with a cold cache.
COLD = 0.98
# Share of the model that MAIO itself has to have loaded. Readers load some themselves: in 84 runs, a reader that maps
# its files at most a fifth, eight threads at most three fifths.
LOADED = 0.35
# Share of the model that MAIO may load for readers that bypassed the page cache at their last load, too. On the first
# load it loads from time zero, because it knows only the headers until they open the weights.
ASIDE = 0.01


@dataclass(frozen=True)
class Truth:
    """The contents of the files."""

    digest: str
    bytes: int
    # Whether the disk counts only the bytes that this run read.
    exact: bool


def faults(run: Run, truth: Truth, direct: bool) -> list[str]:
    if run.broken:
        return [run.broken]
    wrong = []
    if run.told["digest"] != truth.digest:
        wrong.append(f"its tensors are not those of the files: {run.told['digest']}, and not {truth.digest}")
    if run.told["bytes"] != truth.bytes:
        wrong.append(f"it has {run.told['bytes']} bytes of {truth.bytes}")
    if truth.exact and run.device < COLD * truth.bytes:
        wrong.append(f"it was not cold: {run.device} bytes came from the disk")
    if run.way not in (NATIVE, OWN):
        wrong += policy_faults(run, truth, direct)
    return wrong


def policy_faults(run: Run, truth: Truth, direct: bool) -> list[str]:
    backend, _, turn = run.way.partition(" ")
    summary, stats = run.summary, run.summary.get("stats") or {}
    if summary.get("backend") != backend or summary.get("policy") != "maio" or not stats:
        return [f"it ran with {summary.get('policy')} on {summary.get('backend')}"]
    if summary.get("fault"):
        return [f"the policy failed: {summary['fault']}"]
    if direct:
        if turn == AGAIN and stats["loaded_bytes"] > ASIDE * truth.bytes:
            return [f"MAIO loaded {stats['loaded_bytes']} bytes for readers that bypass the page cache"]
        return []
    wrong = []
    if stats["loaded_bytes"] < LOADED * truth.bytes:
        wrong.append(f"MAIO prefetched too little: loaded_bytes is {stats['loaded_bytes']} of {truth.bytes}")
    if not run.template:
        when = "before" if turn == AGAIN else "and left"
        wrong.append(f"there is no template, {when}")
    return wrong
