"""Loads a model on to a GPU as services do, computes one token, and prints a line of JSON with the moments of that.

    gpu_model.py DIR
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "clients"))

import moments  # noqa: E402 - before all that takes time to import

import hashlib  # noqa: E402
import json  # noqa: E402
import os  # noqa: E402
import resource  # noqa: E402
import time  # noqa: E402

import torch  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402

# A prompt, as a tokenizer would give it.
PROMPT = [1, 2, 3, 4]


def digest(model: torch.nn.Module) -> str:
    """A digest of all weights, from the GPU's own sums over their bits: two loads differ if a weight does."""
    total = hashlib.blake2b(digest_size=16)
    for name, tensor in sorted(model.state_dict().items()):
        bits = tensor.detach().contiguous().reshape(-1).view(torch.int16).long()
        weighted = bits * (torch.arange(bits.numel(), device=bits.device) % 65521 + 1)
        total.update(f"{name} {bits.sum().item()} {weighted.sum().item()}\n".encode())
    return total.hexdigest()


def main(folder: str) -> int:
    torch.cuda.init()
    imported = time.monotonic()
    used = resource.getrusage(resource.RUSAGE_SELF)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, device_map="cuda:0")
    torch.cuda.synchronize()
    loaded = time.monotonic()
    with torch.inference_mode():
        model(torch.tensor([PROMPT], device="cuda:0"))
    torch.cuda.synchronize()
    token = time.monotonic()
    told = digest(model)
    times = {"main": moments.MAIN, "imported": imported, "loaded": loaded, "end": time.monotonic()}
    imports = {"user": used.ru_utime, "system": used.ru_stime, "major": used.ru_majflt}
    print(json.dumps({"digest": told, "token": token - loaded, "imports": imports, "moments": times}), flush=True)
    return 0


if __name__ == "__main__":
    code = main(*sys.argv[1:])
    sys.stdout.flush()
    # As services do that are replaced: nothing is torn down.
    os._exit(code)
