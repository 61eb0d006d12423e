"""Integers of a known range, slow and readable."""

from __future__ import annotations

import torch
from torch import Tensor

from actcore.reference.bits import pack_bits, unpack_bits


def narrow_compress(x: Tensor, low: int, high: int) -> tuple[Tensor, Tensor]:
    """Planes of the offsets' low bytes, then what remains of them, packed; ``csrc/codec/narrow.h`` has the format."""
    bits = (high - low).bit_length()
    values = x.reshape(-1).tolist()
    offsets = [int(value) - low for value in values]  # Python's integers do not overflow
    misfit = torch.tensor([int(not all(low <= value <= high for value in values))], dtype=torch.int32)
    parts = []
    for shift, width in _planes(bits):
        codes = torch.tensor([offset >> shift & (1 << width) - 1 for offset in offsets], dtype=torch.uint8)
        parts.append(pack_bits(codes, width))
    return torch.cat([torch.empty(0, dtype=torch.uint8), *parts]), misfit


def narrow_decompress(packed: Tensor, numel: int, dtype: torch.dtype, low: int, high: int) -> Tensor:
    """``low`` plus the offset, and ``high`` for an offset that no compression made."""
    offsets = [0] * numel
    for shift, width in _planes((high - low).bit_length()):
        size = (numel * width + 7) // 8
        codes, packed = unpack_bits(packed[:size], width, numel), packed[size:]
        offsets = [offset | code << shift for offset, code in zip(offsets, codes.tolist(), strict=True)]
    return torch.tensor([min(low + offset, high) for offset in offsets], dtype=dtype)


def _planes(bits: int) -> list[tuple[int, int]]:
    """First bit and width of each plane: whole bytes, and a last one of 1 to 8 bits."""
    return [(shift, min(8, bits - shift)) for shift in range(0, bits, 8)]
