"""Shapes, dtypes and devices of what the fused operators return: their fake kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from actcore.fused.guards import guarded_bytes
from actcore.ops import packed_bytes
from actcore.pooling import pooled_shape, window_bits


def _bytes(like: Tensor, numel: int, bits: int) -> Tensor:
    return like.new_empty(packed_bytes(numel, bits), dtype=torch.uint8)


def _guarded(like: Tensor, bits: int, guard: str) -> Tensor:
    return like.new_empty(guarded_bytes(like.numel(), bits, guard != "none"), dtype=torch.uint8)


@torch.library.register_fake("actcore::relu_mask")
def _(input: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(input), _bytes(input, input.numel(), 1)


@torch.library.register_fake("actcore::dropout_mask")
def _(input: Tensor, p: float, seed: int, stream: int, draw: Tensor | None = None) -> tuple[Tensor, Tensor]:
    return torch.empty_like(input), _bytes(input, input.numel(), 1)


@torch.library.register_fake("actcore::mask_backward")
def _(gradient: Tensor, mask: Tensor, scale: float) -> Tensor:
    return torch.empty_like(gradient)


@torch.library.register_fake("actcore::stepwise")
def _(
    input: Tensor,
    function: str,
    parameters: Sequence[float],
    boundaries: Tensor,
    bits: int,
    even: bool = False,
    guard: str = "none",
) -> tuple[Tensor, Tensor]:
    return torch.empty_like(input), _guarded(input, bits, guard)


@torch.library.register_fake("actcore::stepwise_codes")
def _(input: Tensor, boundaries: Tensor, bits: int, even: bool = False, guard: str = "none") -> Tensor:
    return _guarded(input, bits, guard)


@torch.library.register_fake("actcore::stepwise_backward")
def _(gradient: Tensor, codes: Tensor, levels: Tensor, bits: int, guarded: bool = False) -> Tensor:
    return torch.empty_like(gradient)


@torch.library.register_fake("actcore::level_codes")
def _(
    derivative: Tensor,
    input: Tensor,
    levels: Tensor,
    bits: int,
    seed: int,
    stream: int,
    draw: Tensor | None = None,
    guard: str = "none",
) -> Tensor:
    return _guarded(input, bits, guard)


@torch.library.register_fake("actcore::max_pool")
def _(
    input: Tensor,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
) -> tuple[Tensor, Tensor]:
    output = input.new_empty(pooled_shape(input.shape, kernel, stride, padding, dilation, ceil_mode))
    return output, _bytes(input, output.numel(), window_bits(kernel))


@torch.library.register_fake("actcore::max_pool_backward")
def _(gradient: Tensor, packed: Tensor, input_shape: Sequence[int], *options: Any) -> Tensor:
    return gradient.new_empty(input_shape)


@torch.library.register_fake("actcore::window_index_pack")
def _(indices: Tensor, input_shape: Sequence[int], kernel: Sequence[int], *options: Any) -> tuple[Tensor, Tensor]:
    return _bytes(indices, indices.numel(), window_bits(kernel)), indices.new_empty(1, dtype=torch.int32)


@torch.library.register_fake("actcore::window_index_unpack")
def _(packed: Tensor, input_shape: Sequence[int], *options: Any) -> Tensor:
    return packed.new_empty(pooled_shape(input_shape, *options), dtype=torch.int64)
