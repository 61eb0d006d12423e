"""The random numbers of every codec, slow and readable."""

from __future__ import annotations

import torch
from torch import Tensor

_MASK32 = 0xFFFFFFFF


def philox(seed: int, stream: int, blocks: Tensor) -> Tensor:
    """Philox4x32-10 (Salmon et al., SC 2011): ``Int64[Tensor, "n"] -> Int64[Tensor, "n 4"]``, 32-bit words."""
    k0, k1 = seed & _MASK32, seed >> 32 & _MASK32
    x0, x1 = blocks & _MASK32, blocks >> 32 & _MASK32
    x2, x3 = torch.full_like(blocks, stream & _MASK32), torch.full_like(blocks, stream >> 32 & _MASK32)
    for _ in range(10):
        p0, p1 = x0 * 0xD2511F53, x2 * 0xCD9E8D57  # int64 wraps modulo 2**64, which keeps both halves right
        x0, x1 = (p1 >> 32 & _MASK32) ^ x1 ^ k0, p1 & _MASK32
        x2, x3 = (p0 >> 32 & _MASK32) ^ x3 ^ k1, p0 & _MASK32
        k0, k1 = (k0 + 0x9E3779B9) & _MASK32, (k1 + 0xBB67AE85) & _MASK32
    return torch.stack([x0, x1, x2, x3], dim=1)


def noise(seed: int, stream: int, numel: int) -> Tensor:
    """The random byte of each element: byte ``e % 16`` of block ``e // 16``, little-endian."""
    words = philox(seed, stream, torch.arange((numel + 15) // 16))
    shifts = torch.tensor([0, 8, 16, 24])
    return (words[:, :, None] >> shifts & 0xFF).reshape(-1)[:numel]


def noise_halves(seed: int, stream: int, numel: int) -> Tensor:
    """The 16 random bits of each element: half ``e % 8`` of block ``e // 8``, little-endian."""
    words = philox(seed, stream, torch.arange((numel + 7) // 8))
    return (words[:, :, None] >> torch.tensor([0, 16]) & 0xFFFF).reshape(-1)[:numel]
