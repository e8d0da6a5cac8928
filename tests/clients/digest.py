"""One digest of all tensors of a model, whichever framework has loaded them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable


def of(tensors: Iterable[tuple[str, str, tuple[int, ...], bytes]]) -> str:
    """The digest of names, types as safetensors calls them, shapes and bytes, whatever the order of the tensors."""
    total = hashlib.blake2b(digest_size=16)
    for name, kind, shape, data in sorted(tensors, key=lambda tensor: tensor[0]):
        total.update(f"{name} {kind} {list(shape)}\n".encode())
        total.update(data)
    return total.hexdigest()
