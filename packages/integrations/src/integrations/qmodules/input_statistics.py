"""``Forward``: what a layer's input tells about the error of its rounding, before the bits are chosen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary


@dataclass(frozen=True)
class Forward:
    """One forward of a layer, as its backward needs to know it.

    Attributes:
        energies: ``Float64[Tensor, "rows"]``: what ``range_energies`` found; one row where samples share bits. Those of
            a batch norm's input are in units of its channels' variance.
        profile: ``Float64[Tensor, "8"]``: see ``rounding_profile``.
        size: elements of a row.
        samples: the size of the batch dimension.
        positions: places of the input, pixels or tokens: its elements over samples and channels.
        indices: the samples' places in the data set, where they count.
        source: the same object for all forwards that were given the same tensor: it is stored once. ``None`` for one
            that takes no part in the allocation among layers.
    """

    energies: Tensor
    profile: Tensor
    size: int
    samples: int
    positions: float
    indices: Tensor | None = None
    source: object = None


# By the tensor itself; its version, and the source that stands for both.
_sources: Any = WeakIdKeyDictionary()


def find_source(x: Tensor) -> object:
    """An object that stands for this tensor with the values that it has now."""
    found = _sources.get(x)
    if found is None or found[0] != x._version:
        found = _sources[x] = (x._version, object())
    return found[1]


def squared_norms(gradient: Tensor) -> Tensor:
    """``Float64[Tensor, "batch"]``: each sample's squared norm, summed in float32."""
    dims = tuple(range(1, gradient.dim()))
    if not dims:
        return gradient.double().square()
    kept = gradient.dtype if gradient.dtype is torch.float64 else torch.float32
    norms: Tensor = torch.linalg.vector_norm(gradient, dim=dims, dtype=kept)
    return norms.double().square()
