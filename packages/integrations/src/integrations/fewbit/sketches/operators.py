"""``project`` and ``lift``: a sketch applied to a matrix, and its transpose. The sketch is never there as a whole:
``Tiles`` makes any tile of its rows and tokens, from the key alone, and ``runs`` says where its blocks begin and end.

They are operators, so that ``torch.compile`` sees one node in the place of many blocks, and each is the other's
gradient.

In a block of ``n`` tokens with ``k`` rows, ``E[S^T S] = 1`` in all kinds of sketches:

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
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from integrations.fewbit.sketches.keys import counters, philox, subsets


@dataclass(frozen=True)
class Run:
    """Blocks of equal shape, one after the other.

    Attributes:
        blocks: how many.
        tokens: of each block.
        rows: of each block's sketch.
        first_block, first_token, first_row: where the run begins.
    """

    blocks: int
    tokens: int
    rows: int
    first_block: int
    first_token: int
    first_row: int


def runs(tokens: int, rows: int, block_size: int | None) -> list[Run]:
    """The blocks of a sketch of ``rows`` rows over ``tokens`` tokens, at most three runs of them.

    The blocks are as even as can be: their tokens, at most ``block_size``, differ by at most one, and so do their rows.
    Each has a row at least, so where rows are fewer than blocks there are fewer and larger blocks; none has more rows
    than tokens. ``None`` makes one block.

    Args:
        tokens: at least 1.
        rows: 1 to ``tokens``.
    """
    blocks = 1 if block_size is None else min((tokens + block_size - 1) // block_size, rows)
    # The first blocks are one larger: `tokens % blocks` of them in tokens, `rows % blocks` in rows.
    ends = sorted({tokens % blocks, rows % blocks, blocks} - {0})
    found: list[Run] = []
    block = token = row = 0
    for end in ends:
        height = tokens // blocks + (block < tokens % blocks)
        width = rows // blocks + (block < rows % blocks)
        found.append(Run(end - block, height, width, block, token, row))
        token, row, block = token + (end - block) * height, row + (end - block) * width, end
    return found


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


_TILE = 1024  # rows and tokens of a tile, at most
# Entries of the sketch that are there at a time: on the CPU as many as stay in its cache, on a GPU as many as are worth
# a launch.
_ENTRIES = {"cpu": 1 << 18}
_ENTRIES_ELSEWHERE = 1 << 22


def computed_in(dtype: torch.dtype) -> torch.dtype:
    """The dtype of sketches of a matrix: no sum of many tokens overflows or loses in float32 what 16 bits had."""
    return torch.float64 if dtype is torch.float64 else torch.float32


@torch.library.custom_op("integrations::sketch_project", mutates_args=())
def project(matrix: Tensor, key: Tensor, kind: str, rows: int, block_size: int | None) -> Tensor:
    """``S @ matrix``: ``Float["tokens d"] -> Float["rows d"]``, in float32, or float64 for a float64 matrix.

    Args:
        matrix: float32, float64, float16 or bfloat16.
        key: ``Int64["2"]``: seed and stream. Equal keys, kinds, rows and block sizes make the same ``S``.
        kind: gaussian, rademacher, dct or dft.
        rows: of ``S``, 1 to ``tokens``.
        block_size: most tokens of a block of the block-diagonal ``S``; ``None`` for one block.
    """
    dtype = computed_in(matrix.dtype)
    sketch = matrix.new_zeros((rows, matrix.shape[1]), dtype=dtype)
    with torch.autocast(matrix.device.type, enabled=False):
        for run, first, last in _batches(matrix.shape[0], rows, block_size, matrix.device):
            tiles = Tiles(kind, key, run, first, last, dtype)
            blocks = _blocks(matrix, run.first_token, run.tokens, first, last)
            out = _blocks(sketch, run.first_row, run.rows, first, last)
            for row, last_row in _steps(run.rows):
                for token, last_token in _steps(run.tokens):
                    tile = tiles.tile(row, last_row, token, last_token)
                    out[:, row:last_row].baddbmm_(tile, blocks[:, token:last_token].to(dtype))
    return sketch


@torch.library.custom_op("integrations::sketch_lift", mutates_args=())
def lift(sketch: Tensor, key: Tensor, kind: str, tokens: int, block_size: int | None) -> Tensor:
    """``S.T @ sketch``: ``Float["rows d"] -> Float["tokens d"]``, the transpose of ``project``."""
    dtype = computed_in(sketch.dtype)
    matrix = sketch.new_zeros((tokens, sketch.shape[1]), dtype=dtype)
    with torch.autocast(sketch.device.type, enabled=False):
        for run, first, last in _batches(tokens, sketch.shape[0], block_size, sketch.device):
            tiles = Tiles(kind, key, run, first, last, dtype)
            blocks = _blocks(sketch, run.first_row, run.rows, first, last)
            out = _blocks(matrix, run.first_token, run.tokens, first, last)
            for token, last_token in _steps(run.tokens):
                for row, last_row in _steps(run.rows):
                    tile = tiles.tile(row, last_row, token, last_token).mT
                    out[:, token:last_token].baddbmm_(tile, blocks[:, row:last_row].to(dtype))
    return matrix


def _batches(tokens: int, rows: int, block_size: int | None, device: torch.device) -> Iterator[tuple[Run, int, int]]:
    """Runs, and the blocks of them that are sketched together."""
    entries = _ENTRIES.get(device.type, _ENTRIES_ELSEWHERE)
    for run in runs(tokens, rows, block_size):
        size = max(1, entries // (min(run.rows, _TILE) * min(run.tokens, _TILE)))
        for first in range(0, run.blocks, size):
            yield run, first, min(first + size, run.blocks)


def _blocks(matrix: Tensor, start: int, size: int, first: int, last: int) -> Tensor:
    """The rows of some blocks: ``["blocks size d"]``, a view."""
    view: Tensor = matrix[start + first * size : start + last * size].unflatten(0, (last - first, size))
    return view


def _steps(size: int) -> list[tuple[int, int]]:
    return [(start, min(start + _TILE, size)) for start in range(0, size, _TILE)]


@project.register_fake
def _(matrix: Tensor, key: Tensor, kind: str, rows: int, block_size: int | None) -> Tensor:
    return matrix.new_empty((rows, matrix.shape[1]), dtype=computed_in(matrix.dtype))


@lift.register_fake
def _(sketch: Tensor, key: Tensor, kind: str, tokens: int, block_size: int | None) -> Tensor:
    return sketch.new_empty((tokens, sketch.shape[1]), dtype=computed_in(sketch.dtype))


def _remember(ctx: Any, inputs: Any, output: Any) -> None:
    given, key, ctx.kind, _, ctx.block_size = inputs
    ctx.size, ctx.dtype = given.shape[0], given.dtype
    ctx.set_materialize_grads(False)  # a first backward needs no gradient of what the layer saved
    ctx.save_for_backward(key)


def _get_backward(transpose: Any) -> Any:
    def backward(ctx: Any, gradient: Tensor | None) -> Any:
        if gradient is None:
            return None, None, None, None, None
        (key,) = ctx.saved_tensors
        return transpose(gradient, key, ctx.kind, ctx.size, ctx.block_size).to(ctx.dtype), None, None, None, None

    return backward


project.register_autograd(_get_backward(lift), setup_context=_remember)
lift.register_autograd(_get_backward(project), setup_context=_remember)
