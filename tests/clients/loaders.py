#!/usr/bin/env python3
"""The clients: each loads a directory as its users do, and prints a line of JSON with what it has loaded and the cost.

    loaders.py NAME DIR [--own]      with the framework's own prefetching
    loaders.py --probe               which modules cannot be imported, and why
    loaders.py --save-bin FROM TO    the weights of a directory as torch saves them

The measured time ends when a byte of each page of every tensor has been read, because some frameworks only map files.
Frameworks are imported before it begins.
"""

from __future__ import annotations

import moments  # noqa: I001 - before all others, because their imports take time, too

import importlib
import json
import os
import re
import resource
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import digest

PAGE = 4096
# With this in its environment, a run looks at what is cached of the model before it loads it.
LOOK = "LOOK_AHEAD"
Tensors = dict[str, Any]


def shards(folder: Path) -> list[Path]:
    """The files in the order of the numbers in their names, as a person would sort them."""
    parts = re.compile(r"(\d+)")
    return sorted(
        folder.glob("*.safetensors"),
        key=lambda path: [int(part) if part.isdigit() else part for part in parts.split(path.name)],
    )


def numpy_tensors(folder: Path, _own: bool) -> Tensors:
    from safetensors import safe_open

    loaded = {}
    for path in shards(folder):
        with safe_open(path, framework="numpy") as file:
            loaded |= {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    return loaded


def torch_tensors(folder: Path, _own: bool) -> Tensors:
    from safetensors.torch import load_file

    loaded = {}
    for path in shards(folder):
        loaded |= load_file(path)
    return loaded


def slices(folder: Path, _own: bool) -> Tensors:
    """Loads two workers' halves, one after the other, and joins them."""
    import torch
    from safetensors import safe_open

    halves: dict[str, list] = {}
    for worker in range(2):
        for path in shards(folder):
            with safe_open(path, framework="pt") as file:
                for name in file.keys():  # noqa: SIM118
                    halves.setdefault(name, []).append(half(file.get_slice(name), name, worker))
    return {name: torch.cat(parts, axis(name)) for name, parts in halves.items()}


def axis(name: str) -> int:
    """The axis that workers share: rows of the first tensors in a block, columns of the last."""
    return 1 if re.search(r"(o_proj|down_proj)\.weight$", name) else 0


def half(tensor: Any, name: str, worker: int) -> Any:
    size = tensor.get_shape()[axis(name)]
    part = slice(worker * size // 2, (worker + 1) * size // 2)
    return (tensor[:, part] if axis(name) else tensor[part]).clone()


def pickled(folder: Path, _own: bool) -> Tensors:
    import torch

    return torch.load(folder / "pytorch_model.bin", map_location="cpu", weights_only=True)


def pickled_mapped(folder: Path, _own: bool) -> Tensors:
    import torch

    return torch.load(folder / "pytorch_model.bin", map_location="cpu", weights_only=True, mmap=True)


def transformers_model(folder: Path, _own: bool) -> Tensors:
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, low_cpu_mem_usage=True)
    return model.state_dict()


def vllm_loop(folder: Path, own: bool) -> Tensors:
    """Loads like vLLM 0.33, which itself is too large for this: `safetensors_weights_iterator` of its
    model_executor/model_loader/weight_utils.py, and parameters allocated beforehand. With `own`, adds what
    --safetensors-load-strategy=prefetch does: eight threads that read the files in pieces of 16 MiB."""
    import torch
    from safetensors import safe_open

    if own:
        threading.Thread(target=read_ahead, args=(shards(folder),), daemon=True).start()
    parameters: Tensors = {}
    for path in shards(folder):
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118
                weight = file.get_tensor(name)
                parameters[name] = torch.empty_like(weight)
                parameters[name].copy_(weight)
    return parameters


def read_ahead(paths: list[Path]) -> None:
    def whole(path: Path) -> None:
        with path.open("rb") as file:
            while file.read(16 << 20):
                pass

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(whole, paths))


def fastsafetensors_loader(folder: Path, own: bool) -> Tensors:
    from fastsafetensors import SafeTensorsFileLoader, SingleGroup

    threads = {"max_threads": MANY} if own else {}
    loader = SafeTensorsFileLoader(SingleGroup(), "cpu", nogds=True, **threads)
    loader.add_filenames({0: [str(path) for path in shards(folder)]})
    try:
        files = loader.copy_files_to_device()
        try:
            # The tensors are in the loader's buffer, which is freed with it.
            return {name: files.get_tensor(name).clone() for name in loader.get_keys()}
        finally:
            files.close()
    finally:
        loader.close()


def streamer(folder: Path, _own: bool) -> Tensors:
    from runai_model_streamer import SafetensorsStreamer

    with SafetensorsStreamer() as stream:
        stream.stream_files([str(path) for path in shards(folder)])
        # The stream uses its buffer again and again.
        return {name: tensor.clone() for name, tensor in stream.get_tensors()}


def llama_server(folder: Path, _own: bool) -> Tensors:
    """Runs llama.cpp's server in this process; the words that it continues with show what it has loaded."""
    import numpy
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = str(folder / "model.gguf")
    params.n_ctx, params.n_gpu_layers, params.warmup, params.use_jinja = 256, 0, False, False
    params.fit_params = False
    server = xllamacpp.Server(params)
    said = server.handle_completions({"prompt": "w1 w2 w3", "n_predict": 8, "temperature": 0.0, "seed": 1})
    words = json.dumps(said["content"] if "content" in said else said["choices"][0]["text"])
    return {"words": numpy.frombuffer(words.encode(), numpy.uint8)}


# Number of threads, for clients that take one.
MANY = 64


@dataclass(frozen=True)
class Client:
    name: str
    load: Callable[[Path, bool], Tensors]
    needs: tuple[str, ...]
    # The folder that it reads.
    weights: str = "safetensors"
    environment: dict[str, str] = field(default_factory=dict)
    # Its own prefetching, if it has any: a description, and the variables that switch it on besides `own`.
    own: str = ""
    own_environment: dict[str, str] = field(default_factory=dict)
    # It reads past the page cache, which then can do nothing for it.
    direct: bool = False
    # Its tensors are not accessible: it computes with them, and the result is the same each time.
    answers: bool = False


STREAMER = ("runai_model_streamer", "torch")
FAST = ("fastsafetensors", "torch")
CONCURRENCY = {"RUNAI_STREAMER_CONCURRENCY": str(MANY)}
CLIENTS = [
    Client("safetensors-numpy", numpy_tensors, ("safetensors", "numpy", "ml_dtypes")),
    Client("safetensors-torch", torch_tensors, ("safetensors", "torch")),
    Client("safetensors-slices", slices, ("safetensors", "torch")),
    Client("torch-load", pickled, ("torch",), weights="bin"),
    Client("torch-load-mmap", pickled_mapped, ("torch",), weights="bin"),
    Client("transformers", transformers_model, ("transformers.models.llama.modeling_llama", "accelerate")),
    Client("vllm-loop", vllm_loop, ("safetensors", "torch"), own="prefetch, 8 threads"),
    Client(
        "fastsafetensors",
        fastsafetensors_loader,
        FAST,
        environment={"FASTSAFETENSORS_ODIRECT": "0"},
        own=f"{MANY} threads",
    ),
    Client("fastsafetensors-direct", fastsafetensors_loader, FAST, own=f"{MANY} threads", direct=True),
    Client(
        "runai-streamer",
        streamer,
        STREAMER,
        environment={"RUNAI_STREAMER_FS_STRATEGY": "sync_buffered"},
        own=f"{MANY} at a time",
        own_environment=CONCURRENCY,
    ),
    Client(
        "runai-streamer-direct",
        streamer,
        STREAMER,
        environment={"RUNAI_STREAMER_FS_STRATEGY": "io_uring_direct,libaio_direct"},
        own=f"{MANY} at a time",
        own_environment=CONCURRENCY,
        direct=True,
    ),
    Client("llama-server", llama_server, ("xllamacpp",), weights="gguf", answers=True),
]


def touch(tensor: Any) -> int:
    """Reads a byte of each page."""
    return int(raw(tensor)[::PAGE].sum())


def raw(tensor: Any) -> Any:
    """A tensor's bytes, as a numpy array."""
    import numpy

    if isinstance(tensor, numpy.ndarray):
        return numpy.ascontiguousarray(tensor).reshape(-1).view(numpy.uint8)
    import torch

    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy()


KINDS = {"bfloat16": "BF16", "float16": "F16", "float32": "F32", "uint8": "U8"}


def described(loaded: Tensors) -> list[tuple[str, str, tuple[int, ...], Any]]:
    return [
        (name, KINDS[str(tensor.dtype).removeprefix("torch.")], tuple(tensor.shape), raw(tensor))
        for name, tensor in loaded.items()
    ]


def counters() -> dict[str, int]:
    """Counters of this process; `asked` does not include reads through mappings."""
    lines = Path("/proc/self/io").read_text().splitlines()
    told = {key: int(value) for key, value in (line.split(": ") for line in lines)}
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_majflt
    return {"asked": told["rchar"], "from_device": told["read_bytes"], "faults": faults}


def ahead(folder: Path) -> float:
    """The part of a model that is cached."""
    # Imported where it is needed, as imports are measured.
    import cold

    pages = size = 0
    for path in cold.files(folder):
        with path.open("rb") as file:
            pages += cold.resident(file.fileno())
        size += path.stat().st_size
    return min(1.0, pages * PAGE / max(size, 1))


def run(client: Client, folder: Path, own: bool) -> dict[str, Any]:
    for module in (*client.needs, "numpy"):
        importlib.import_module(module)
    # Only a whole start has anything cached by then, and other runs are not to open files twice.
    cached = {"ahead": ahead(folder)} if LOOK in os.environ else {}
    before, began = counters(), time.monotonic()
    loaded = client.load(folder, own)
    for tensor in loaded.values():
        touch(tensor)
    over, after = time.monotonic(), counters()
    tensors = described(loaded)
    told = digest.of(tensors)
    return {
        "client": client.name,
        **cached,
        "digest": told,
        "tensors": len(tensors),
        "bytes": sum(data.nbytes for _, _, _, data in tensors),
        "seconds": over - began,
        "peak_rss": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10,
        **{key: after[key] - before[key] for key in before},
        # CLOCK_MONOTONIC is the same for the process that started this one.
        "moments": {"main": moments.MAIN, "imported": began, "loaded": over, "end": time.monotonic()},
    }


def probe() -> dict[str, str]:
    """Modules that cannot be imported, and why."""
    wrong = {}
    for module in sorted({module for client in CLIENTS for module in (*client.needs, "numpy")}):
        try:
            importlib.import_module(module)
        except Exception as error:  # noqa: BLE001 - whatever it is, that client cannot be run
            wrong[module] = f"{type(error).__name__}: {error}".splitlines()[0]
    return wrong


def save_bin(source: Path, target: Path) -> None:
    import torch

    torch.save(torch_tensors(source, False), target)


def main(arguments: list[str]) -> int:
    if arguments == ["--probe"]:
        print(json.dumps(probe()))
    elif len(arguments) == 3 and arguments[0] == "--save-bin":
        save_bin(Path(arguments[1]), Path(arguments[2]))
    elif len(arguments) in (2, 3) and arguments[2:] in ([], ["--own"]):
        clients, model = {client.name: client for client in CLIENTS}, Path(arguments[1])
        folder = model.parent if model.is_file() else model
        print(json.dumps(run(clients[arguments[0]], folder, len(arguments) == 3)), flush=True)
    else:
        print(__doc__, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    # Exit without waiting for threads that still read ahead.
    code = main(sys.argv[1:])
    sys.stdout.flush()
    os._exit(code)
