"""A small Llama-like model, made from a seed, and its bytes, without any framework."""

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
# Bytes of a bfloat16.
WIDTH = 2


@dataclass(frozen=True)
class Shape:
    """The shape of a model, with the values of Llama's configuration."""

    layers: int = 12
    hidden: int = 1024
    inner: int = 2816
    heads: int = 16
    shared: int = 4
    words: int = 16000
    shard: int = 90_000_000


def tensors(shape: Shape) -> list[tuple[str, tuple[int, ...]]]:
    """Names and shapes of the tensors, in the order of the modules."""
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
    """The configuration from which transformers makes a model."""
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
    """The tensors of each file, sorted by name within a file, as safetensors saves them."""
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
    """Writes the model; returns the bytes of its tensors."""
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
    # Tensors begin at multiples of eight.
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, dims in members:
            file.write(source.randbytes(prod(dims) * WIDTH))
    return at


def read(folder: Path) -> Iterator[tuple[str, str, tuple[int, ...], bytes]]:
    """All tensors of a model, by the headers of its files."""
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
    """The digest that every client has to arrive at."""
    return digest.of(read(folder))


def flip(path: Path) -> None:
    """Flips one bit in the middle of a file; a second call restores it."""
    with path.open("r+b") as file:
        middle = path.stat().st_size // 2
        file.seek(middle)
        (byte,) = file.read(1)
        file.seek(middle)
        file.write(bytes([byte ^ 1]))
