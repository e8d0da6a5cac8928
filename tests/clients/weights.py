"""A small Llama-like model, made of a seed, and what its bytes are. No framework is asked."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path

import digest

INDEX = "model.safetensors.index.json"
# Of bfloat16.
WIDTH = 2


@dataclass(frozen=True)
class Shape:
    """As Llama's configuration has it."""

    layers: int = 12
    hidden: int = 1024
    inner: int = 2816
    heads: int = 16
    shared: int = 4
    words: int = 16000
    shard: int = 90_000_000


def tensors(shape: Shape) -> list[tuple[str, tuple[int, ...]]]:
    """Names and shapes, in the order of the modules."""
    narrow = shape.hidden // shape.heads * shape.shared
    parts = {
        "input_layernorm": (shape.hidden,),
        "self_attn.q_proj": (shape.hidden, shape.hidden),
        "self_attn.k_proj": (narrow, shape.hidden),
        "self_attn.v_proj": (narrow, shape.hidden),
        "self_attn.o_proj": (shape.hidden, shape.hidden),
        "post_attention_layernorm": (shape.hidden,),
        "mlp.gate_proj": (shape.inner, shape.hidden),
        "mlp.up_proj": (shape.inner, shape.hidden),
        "mlp.down_proj": (shape.hidden, shape.inner),
    }
    found = [("model.embed_tokens.weight", (shape.words, shape.hidden))]
    for layer in range(shape.layers):
        found += [(f"model.layers.{layer}.{part}.weight", dims) for part, dims in parts.items()]
    return [*found, ("model.norm.weight", (shape.hidden,)), ("lm_head.weight", (shape.words, shape.hidden))]


def config(shape: Shape) -> dict:
    """What transformers makes a model of."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "bfloat16",
        "torch_dtype": "bfloat16",
        "hidden_size": shape.hidden,
        "intermediate_size": shape.inner,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.shared,
        "vocab_size": shape.words,
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-05,
        "tie_word_embeddings": False,
    }


def shards(shape: Shape) -> list[list[tuple[str, tuple[int, ...]]]]:
    """Which tensors are in which file; in a file they are by name, as safetensors saves them."""
    files: list[list[tuple[str, tuple[int, ...]]]] = [[]]
    room = shape.shard
    for name, dims in tensors(shape):
        size = prod(dims) * WIDTH
        if size > room and files[-1]:
            files.append([])
            room = shape.shard
        files[-1].append((name, dims))
        room -= size
    return [sorted(file) for file in files]


def write(folder: Path, shape: Shape, seed: int) -> int:
    """Writes it; the bytes of its tensors."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config(shape), indent=2))
    files, places, total = shards(shape), {}, 0
    for number, members in enumerate(files, 1):
        name = f"model-{number:05}-of-{len(files):05}.safetensors"
        places |= {tensor: name for tensor, _ in members}
        total += write_shard(folder / name, members, random.Random(f"{seed} {number}"))
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(places.items()))}
    (folder / INDEX).write_text(json.dumps(index, indent=2))
    return total


def write_shard(path: Path, members: list[tuple[str, tuple[int, ...]]], source: random.Random) -> int:
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name, dims in members:
        end = at + prod(dims) * WIDTH
        header[name] = {"dtype": "BF16", "shape": list(dims), "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    # Tensors begin at a multiple of eight.
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, dims in members:
            file.write(source.randbytes(prod(dims) * WIDTH))
    return at


def read(folder: Path) -> Iterator[tuple[str, str, tuple[int, ...], bytes]]:
    """All its tensors, by the headers of its files."""
    for path in sorted(folder.glob("*.safetensors")):
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            header = json.loads(file.read(length))
            for name, about in header.items():
                if name != "__metadata__":
                    begin, end = about["data_offsets"]
                    file.seek(8 + length + begin)
                    yield name, about["dtype"], tuple(about["shape"]), file.read(end - begin)


def truth(folder: Path) -> str:
    """What every client has to come to."""
    return digest.of(read(folder))


def flip(path: Path) -> None:
    """Changes one bit in the midst of a file; once more, and it is as before."""
    with path.open("r+b") as file:
        middle = path.stat().st_size // 2
        file.seek(middle)
        (byte,) = file.read(1)
        file.seek(middle)
        file.write(bytes([byte ^ 1]))
