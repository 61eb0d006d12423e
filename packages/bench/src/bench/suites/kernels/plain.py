"""The codecs once more in plain PyTorch, as one writes them without kernels of one's own: the same bytes stored.

A few vectorised operations each, eager, with torch's own random numbers. ``reference`` in actcore is not this: it is
exact to the last bit, and slow.
"""

from __future__ import annotations

import torch
from torch import Tensor

GROUP = 256


def pack(codes: Tensor, bits: int) -> Tensor:
    """``UInt8[n] -> UInt8[bits*n/8]``; n is a multiple of 8."""
    if bits == 8:
        return codes
    whole = 8 % bits == 0  # codes fit in bytes; otherwise eight of them in the low bytes of a 64-bit word
    fields = 8 // bits if whole else 8
    words = codes.view(-1, fields) if whole else codes.view(-1, fields).long()
    packed = words[:, 0].clone()
    for i in range(1, fields):
        packed |= words[:, i] << (bits * i)
    return packed if whole else packed.view(torch.uint8).view(-1, 8)[:, :bits].contiguous().view(-1)


def unpack(packed: Tensor, bits: int, numel: int) -> Tensor:
    """Undoes ``pack``."""
    if bits == 8:
        return packed
    whole = 8 % bits == 0
    fields = 8 // bits if whole else 8
    if whole:
        words = packed
    else:
        padded = packed.new_zeros(numel // 8, 8)
        padded[:, :bits] = packed.view(-1, bits)
        words = padded.view(torch.int64).view(-1)
    codes = packed.new_empty(numel // fields, fields)
    for i in range(fields):
        codes[:, i] = (words >> (bits * i)) & (2**bits - 1)
    return codes.view(-1)


def compress_groups(x: Tensor, bits: int) -> tuple[Tensor, Tensor, Tensor]:
    """``Float[n] -> (codes: UInt8[bits*n/8], low: Float[groups, 1], high: Float[groups, 1])``, rounded at random."""
    low, high = torch.aminmax(x.view(-1, GROUP), dim=1, keepdim=True)
    value = _groups(x)
    step = _step(low, high, bits)
    value = (value - low).div_(step)
    codes = value.add_(torch.rand_like(value)).floor_().clamp_(0, 2**bits - 1).to(torch.uint8)
    return pack(codes.view(-1), bits), low, high


def decompress_groups(stored: tuple[Tensor, Tensor, Tensor], bits: int, numel: int) -> Tensor:
    """Undoes ``compress_groups``, up to the rounding."""
    packed, low, high = stored
    codes = unpack(packed, bits, numel).view(-1, GROUP)
    step = _step(low, high, bits)
    return codes.to(step.dtype).mul_(step).add_(low).to(low.dtype).view(-1)


def compress_float8(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """``Float[n] -> (Float8[groups, GROUP], scale: Float[groups, 1])``, rounded to nearest as torch's cast does."""
    scale = x.view(-1, GROUP).abs().amax(dim=1, keepdim=True).div_(torch.finfo(dtype).max)
    scale = torch.where(scale == 0, 1, scale)
    return _groups(x).div(scale).to(dtype), scale


def decompress_float8(stored: tuple[Tensor, Tensor]) -> Tensor:
    """Undoes ``compress_float8``, up to the rounding."""
    codes, scale = stored
    return codes.to(_working(scale.dtype)).mul_(scale).to(scale.dtype).view(-1)


def _working(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def _groups(x: Tensor) -> Tensor:
    return x.view(-1, GROUP).to(_working(x.dtype))


def _step(low: Tensor, high: Tensor, bits: int) -> Tensor:
    dtype = _working(low.dtype)
    step = (high.to(dtype) - low.to(dtype)).div_(2**bits - 1)
    return torch.where(step == 0, 1, step)
