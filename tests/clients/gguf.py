"""A small Llama made from a seed, as llama.cpp reads it: one file, with a vocabulary of made-up words. Its weights are
numbers of sensible size, as llama.cpp computes with them."""

from __future__ import annotations

import random
import struct
from dataclasses import dataclass
from math import prod
from pathlib import Path

import weights

NAME = "model.gguf"
# Alignment of the tensors: each begins at a multiple of this.
ALIGNED = 32
UINT32, INT32, FLOAT32, STRING, ARRAY = 4, 5, 6, 8, 9
F32, BF16 = 0, 30
# Kinds of tokens.
NORMAL, UNKNOWN, CONTROL, BYTE = 1, 2, 3, 6
# The upper byte of a bfloat16: plus or minus 2^-7, to which the lower byte adds.
SMALL = bytes(0x3C | (byte & 0x80) for byte in range(256))
PARTS = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
OUTER = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


@dataclass(frozen=True)
class Typed:
    kind: int
    value: object


def name(theirs: str) -> str:
    """llama.cpp's name of a tensor."""
    stem = theirs.removesuffix(".weight")
    if stem in OUTER:
        return f"{OUTER[stem]}.weight"
    _, _, layer, part = stem.split(".", 3)
    return f"blk.{layer}.{PARTS[part]}.weight"


def vocabulary(words: int) -> tuple[list[str], list[int]]:
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    kinds = [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256]
    tokens += [f"\u2581w{number}" for number in range(words - len(tokens))]
    return tokens, kinds + [NORMAL] * (len(tokens) - len(kinds))


def about(shape: weights.Shape) -> dict[str, Typed]:
    tokens, kinds = vocabulary(shape.words)
    number = {
        "llama.block_count": shape.layers,
        "llama.context_length": 2048,
        "llama.embedding_length": shape.hidden,
        "llama.feed_forward_length": shape.inner,
        "llama.attention.head_count": shape.heads,
        "llama.attention.head_count_kv": shape.shared,
        "llama.rope.dimension_count": shape.hidden // shape.heads,
        "llama.vocab_size": shape.words,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    }
    return {
        "general.architecture": Typed(STRING, "llama"),
        **{key: Typed(UINT32, value) for key, value in number.items()},
        "llama.attention.layer_norm_rms_epsilon": Typed(FLOAT32, 1e-5),
        "tokenizer.ggml.model": Typed(STRING, "llama"),
        "tokenizer.ggml.tokens": Typed(ARRAY, (STRING, tokens)),
        "tokenizer.ggml.scores": Typed(ARRAY, (FLOAT32, [-float(at) for at in range(len(tokens))])),
        "tokenizer.ggml.token_type": Typed(ARRAY, (INT32, kinds)),
    }


def text(value: str) -> bytes:
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def packed(kind: int, value: object) -> bytes:
    if kind == STRING:
        return text(value)
    if kind == ARRAY:
        inner, values = value
        return struct.pack("<IQ", inner, len(values)) + b"".join(packed(inner, one) for one in values)
    return struct.pack({UINT32: "<I", INT32: "<i", FLOAT32: "<f"}[kind], value)


def padding(length: int) -> int:
    return -length % ALIGNED


def kind_and_size(dims: tuple[int, ...]) -> tuple[int, int]:
    """Type and size of a tensor: llama.cpp requires 32-bit floats for norms."""
    return (F32, 4 * prod(dims)) if len(dims) == 1 else (BF16, 2 * prod(dims))


def header(shape: weights.Shape) -> bytes:
    tensors, values = weights.tensors(shape), about(shape)
    parts = [b"GGUF", struct.pack("<IQQ", 3, len(tensors), len(values))]
    parts += [text(key) + struct.pack("<I", one.kind) + packed(one.kind, one.value) for key, one in values.items()]
    at = 0
    for theirs, dims in tensors:
        kind, size = kind_and_size(dims)
        # The last dimension comes first.
        parts.append(text(name(theirs)) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *reversed(dims), kind, at))
        at += size + padding(size)
    whole = b"".join(parts)
    return whole + bytes(padding(len(whole)))


def write(folder: Path, shape: weights.Shape, seed: int) -> int:
    """Writes the file; returns its size."""
    folder.mkdir(parents=True, exist_ok=True)
    source = random.Random(f"{seed} gguf")
    with (folder / NAME).open("wb") as file:
        file.write(header(shape))
        for _, dims in weights.tensors(shape):
            kind, size = kind_and_size(dims)
            data = bytearray(struct.pack("<f", 1.0) * prod(dims) if kind == F32 else source.randbytes(size))
            if kind == BF16:
                data[1::2] = data[1::2].translate(SMALL)
            file.write(data + bytes(padding(size)))
        return file.tell()
