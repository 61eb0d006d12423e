"""``project`` and ``lift``: a sketch applied to a matrix, and its transpose. The sketch is never there as a whole.

They are operators, so that ``torch.compile`` sees one node in the place of many blocks, and each is the other's
gradient.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from integrations.fewbit.sketches.runs import Run, runs
from integrations.fewbit.sketches.tiles import Tiles

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
