"""In what form a sketch is stored: as it is, in the 16 bits of its input, or in 1 to 8 bits an element."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

import actcore

_ROUNDING = actcore.stream_of("rounding of a sketch", 0, 0) >> 1
"""What a stream of sketches is exchanged with for that of their rounding."""


def storage(dtype: torch.dtype, bits: int | None, key: Tensor) -> actcore.Codec | None:
    """The codec of a sketch; ``None`` stores it as it is.

    Args:
        dtype: of the matrix that was sketched: the sketch takes no more bytes an element.
        bits: 1 to 8 bits an element; ``None`` for the dtype's.
        key: ``Int64["2"]``: the sketch's own seed and stream, from which the rounding draws, too.
    """
    if bits is not None:
        return RoundedSketch(bits, key)
    return HalfSketch(dtype) if dtype.itemsize == 2 else None


@dataclass(frozen=True, eq=False)
class RoundedSketch:
    """``actcore.GroupAffine`` with noise of the sketch's key, so that what decides the sketch decides all of it."""

    bits: int
    key: Tensor

    def compress(self, tensor: Tensor, *, seed: int | Tensor = 0, stream: int | Tensor = 0) -> actcore.Compressed:
        """The form of ``GroupAffine``, whatever seed and stream are given."""
        # Neither the sketch's own stream nor, as one more would be, that of the next forward's sketch.
        return actcore.GroupAffine(self.bits).compress(tensor, seed=self.key[:1], stream=self.key[1:] ^ _ROUNDING)

    def decompress(self, compressed: actcore.Compressed) -> Tensor:
        """By the codec that it is stored with."""
        return compressed.decompress()


@dataclass(frozen=True)
class HalfSketch:
    """16 bits an element. float16 gets a factor for each row, 4 bytes: sums of many tokens may be above its largest
    number, or below its smallest."""

    dtype: torch.dtype

    def compress(self, tensor: Tensor, *, seed: int | Tensor = 0, stream: int | Tensor = 0) -> actcore.Compressed:
        """``Float["rows d"] -> (BFloat16["rows d"],)`` or ``(Float16["rows d"], Float32["rows 1"])``."""
        if self.dtype is torch.bfloat16:
            return actcore.Compressed.of(self, tensor, (tensor.to(self.dtype),))
        largest = tensor.detach().abs().amax(dim=1, keepdim=True)
        # Powers of two, so that the factors round nothing: the largest element gets below 2**15, half of what fits.
        exponent = (torch.frexp(largest).exponent - 15).clamp(min=-126)  # of normal numbers
        usable = largest.isfinite() & (largest > 0)
        scale = torch.where(usable, torch.exp2(exponent.to(tensor.dtype)), 1.0)
        return actcore.Compressed.of(self, tensor, ((tensor / scale).to(self.dtype), scale))

    def decompress(self, compressed: actcore.Compressed) -> Tensor:
        """The sketch, in its own dtype."""
        values, *scale = compressed.payload
        restored = values.to(compressed.dtype)
        return restored * scale[0] if scale else restored
