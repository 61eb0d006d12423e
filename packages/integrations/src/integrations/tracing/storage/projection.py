"""Query, key and value of attention that one product has made, row after row: they are stored and restored as one."""

from __future__ import annotations

import math
from dataclasses import replace

from torch import Tensor

from actcore import GroupAffine
from integrations.tracing.call import Call


def beginnings(tensor: Tensor, call: Call) -> tuple[int, int, int] | None:
    """Where query, key and value begin in the memory that they fill; ``None`` if they do not fill the tensor's memory.

    Args:
        tensor: one of the three, which attention saves.
        call: the attention's call.
    """
    parts = call.arguments[:3]
    storage = tensor.untyped_storage()
    shared = all(part.untyped_storage()._cdata == storage._cdata and part.dtype == tensor.dtype for part in parts)
    alike = all(part.shape == parts[0].shape and part.stride() == parts[0].stride() for part in parts)
    numel = sum(part.numel() for part in parts)
    if len(parts) < 3 or not shared or not alike or numel * tensor.itemsize != storage.nbytes():
        return None
    given = [int(part.storage_offset()) for part in parts]
    first, second, third = sorted(given)
    row = second - first
    inside = [(size, step) for size, step in zip(tensor.shape, tensor.stride(), strict=True) if step < row]
    filled = first == 0 and third - second == row > 0 and math.prod(size for size, _ in inside) == row
    if not filled or sum((size - 1) * step for size, step in inside) != row - 1:
        return None
    return given[0], given[1], given[2]


def projection(tensor: Tensor, call: Call, codec: GroupAffine) -> tuple[Tensor | None, GroupAffine]:
    """All of the memory in which query, key and value lie, and the codec, with groups that end with the rows of each.
    ``None`` and the unchanged codec if they do not lie so."""
    begins = beginnings(tensor, call)
    if begins is None:
        return None, codec
    first, second, _ = sorted(begins)
    row = second - first
    size = next((size for size in range(codec.group_size, 31, -32) if row % size == 0), None)
    if size is None:
        return None, codec
    numel = tensor.untyped_storage().nbytes() // tensor.itemsize
    return tensor.detach().as_strided((numel,), (1,), 0), replace(codec, group_size=size)
