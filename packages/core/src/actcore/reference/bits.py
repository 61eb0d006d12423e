"""Packing codes into bits, slow and readable."""

from __future__ import annotations

import torch
from torch import Tensor


def pack_bits(codes: Tensor, bits: int) -> Tensor:
    """Writes each code's bits, lowest first, one code after the other, and gathers them in bytes."""
    stream = (codes.reshape(-1)[:, None].long() >> torch.arange(bits) & 1).reshape(-1)
    stream = torch.nn.functional.pad(stream, (0, -len(stream) % 8))
    return (stream.view(-1, 8) << torch.arange(8)).sum(1).to(torch.uint8)


def unpack_bits(packed: Tensor, bits: int, numel: int) -> Tensor:
    """The inverse of ``pack_bits``."""
    stream = (packed[:, None].long() >> torch.arange(8) & 1).reshape(-1)[: numel * bits]
    return (stream.view(numel, bits) << torch.arange(bits)).sum(1).to(torch.uint8)
