"""The entries of a sketch: any tile of rows and tokens of any blocks, from the key alone.

In a block of ``n`` tokens with ``k`` rows, ``E[S^T S] = 1`` in all of them:

* gaussian: independent normal numbers of variance ``1/k``;
* rademacher: independent signs over ``sqrt(k)``;
* dct: ``sqrt(n/k) R H D``: random signs ``D``, which spread every token over all frequencies, the orthonormal DCT-II
  ``H``, and ``k`` of its rows ``R``, drawn without replacement (the subsampled randomized transform of Tropp, "Improved
  analysis of the subsampled randomized Hadamard transform", 2011);
* dft: the same with the discrete Hartley transform, the DFT's real form (its real part less its imaginary one), so that
  a row is as large as in the others.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from integrations.fewbit.sketches.philox import counters, philox, subsets
from integrations.fewbit.sketches.runs import Run

SIGNS = 128
"""Tokens whose signs are one counter's: tiles begin at multiples of it."""


class Tiles:
    """The sketches of some blocks of one run.

    Args:
        kind: gaussian, rademacher, dct or dft.
        key: ``Int64["2"]``: seed and stream.
        run: the run, of which these are the blocks ``first`` to ``last - 1``.
        dtype: of the entries: float32 or float64.
    """

    def __init__(self, kind: str, key: Tensor, run: Run, first: int, last: int, dtype: torch.dtype) -> None:
        self.kind, self.key, self.run, self.dtype = kind, key, run, dtype
        self.first_row = run.first_row + first * run.rows
        self.blocks = last - first
        if kind in ("dct", "dft"):
            # Two counters a block: one for the choice of rows, one for the signs.
            self.choice = 2 * counters(run.first_block + first, run.first_block + last, key.device)
            self.frequencies = subsets(key, run.rows, run.tokens, self.choice)

    def tile(self, row: int, last_row: int, token: int, last_token: int) -> Tensor:
        """``Float["blocks last_row-row last_token-token"]``; ``token`` is a multiple of ``SIGNS``."""
        run = self.run
        if self.kind in ("dct", "dft"):
            signs = self._signs((self.choice + 1)[:, None, None], token, last_token)
            return signs * self._waves(self.frequencies[:, row:last_row, None], token, last_token)
        offsets = self.first_row + run.rows * counters(0, self.blocks, self.key.device)[:, None]
        rows = (offsets + counters(row, last_row, self.key.device))[..., None]
        if self.kind == "rademacher":
            return self._signs(rows, token, last_token).mul_(run.rows**-0.5)
        return self._normals(rows, token, last_token).mul_(run.rows**-0.5)

    def _signs(self, high: Tensor, token: int, last_token: int) -> Tensor:
        """1 or -1 for each token, of the bits of a counter's four words."""
        low = counters(token // SIGNS, (last_token + SIGNS - 1) // SIGNS, self.key.device)
        words = torch.stack(philox(self.key, low, high), dim=-1)
        bits = words[..., None] >> counters(0, 32, self.key.device) & 1
        return bits.flatten(-3)[..., : last_token - token].to(self.dtype).mul_(2).sub_(1)

    def _normals(self, high: Tensor, token: int, last_token: int) -> Tensor:
        """Box and Muller's transform of a counter's four words into as many normal numbers."""
        low = counters(token // 4, (last_token + 3) // 4, self.key.device)
        x0, x1, x2, x3 = philox(self.key, low, high)
        # In float32 the uniform number may round to 1, whose logarithm is 0, but never to 0.
        radius = torch.stack([x0, x1], dim=-1).float().add_(0.5).mul_(2.0**-32).log_().mul_(-2).sqrt_()
        angle = torch.stack([x2, x3], dim=-1).float().mul_(2 * math.pi * 2.0**-32)
        pairs = torch.stack([radius * angle.cos(), radius * angle.sin()], dim=-1)
        return pairs.flatten(-3)[..., : last_token - token].to(self.dtype)

    def _waves(self, frequency: Tensor, token: int, last_token: int) -> Tensor:
        """Rows of the orthonormal transform over the tokens, times ``sqrt(n/k)``; angles are reduced as integers."""
        n, k = self.run.tokens, self.run.rows
        place = counters(token, last_token, self.key.device)
        if self.kind == "dct":
            angle = (frequency * (2 * place + 1) % (4 * n)).to(self.dtype).mul_(math.pi / (2 * n))
            return angle.cos_().mul_((2 - (frequency == 0).to(self.dtype)).div_(k).sqrt_())
        angle = (frequency * place % n).to(self.dtype).mul_(2 * math.pi / n)
        return (angle.cos() + angle.sin()).mul_(k**-0.5)
