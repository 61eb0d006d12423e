"""``Sketches``: small linear images of gradients, by which the gradients of two steps are compared."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

_LARGEST = 1 << 20
"""Elements that are summed at once, at most: a multiple of any number of buckets."""

_MOST, _LEAST = 4096, 256
"""Buckets of a sketch. The squared norm that a sketch of n buckets gives has a relative deviation of sqrt(2/n): 0.02 of
the most, 0.09 of the least."""

_SEED = 0x51


class Sketches:
    """The sums of a gradient's elements with random signs, in so many buckets for each parameter (a count sketch:
    Charikar et al., ICALP 2002). The gradients' parts may come in any order, and nothing else of them is held. A
    parameter with fewer elements than buckets is held as it is.

    Args:
        parameters: whose gradients come.
        nbytes: at most so many bytes are held, and as many taken meanwhile, if this is enough for the least buckets.

    Attributes:
        found: by parameter, ``Float[buckets]``; ``None`` before its gradient has come.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], nbytes: int) -> None:
        trained = [parameter.numel() for parameter in parameters if parameter.requires_grad]
        self._buckets = _MOST
        while self._buckets > _LEAST and 4 * sum(min(one, self._buckets) for one in trained) > nbytes:
            self._buckets //= 2
        self._block = _LARGEST
        while self._block > self._buckets and 3 * 8 * self._block > nbytes:  # signs, a part, and both multiplied
            self._block //= 2
        self.found: list[Tensor | None] = [None] * len(parameters)
        self._signs: dict[tuple[torch.device, torch.dtype], Tensor] = {}

    def add(self, place: int, gradient: Tensor) -> None:
        """Add a gradient, or a part of one.

        Args:
            place: of its parameter.
            gradient: a dense or sparse tensor.
        """
        flat = (gradient.coalesce().values() if gradient.is_sparse else gradient.detach()).reshape(-1)
        dtype = torch.float64 if flat.dtype in (torch.float64, torch.complex128) else torch.float32
        flat = torch.view_as_real(flat).reshape(-1) if flat.is_complex() else flat
        buckets = min(self._buckets, flat.numel())
        sketch = flat.new_zeros(buckets, dtype=dtype) if self.found[place] is None else self.found[place]
        assert sketch is not None
        self.found[place] = sketch
        if flat.numel() == buckets:
            sketch += flat
            return
        signs = self._signs_for(flat.device, dtype)
        for part in flat.split(self._block):
            signed = part.to(dtype) * signs[: part.numel()]
            whole = part.numel() // buckets * buckets
            sketch += signed[:whole].view(-1, buckets).sum(0)
            sketch[: part.numel() - whole] += signed[whole:]

    def _signs_for(self, device: torch.device, dtype: torch.dtype) -> Tensor:
        """Return random signs, which are the same for each block, and for each object with blocks of this size."""
        if (device, dtype) not in self._signs:
            generator = torch.Generator().manual_seed(_SEED)
            signs = torch.randint(0, 2, (self._block,), generator=generator, dtype=torch.int8).mul_(2).sub_(1)
            self._signs[device, dtype] = signs.to(device, dtype)
        return self._signs[device, dtype]
