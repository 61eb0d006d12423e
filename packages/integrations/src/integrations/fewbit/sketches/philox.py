"""Philox4x32-10 (Salmon et al., SC 2011) in torch's integers: noise from a key that lies on the device.

The words are those of actcore's kernels and of ``actcore.reference``, for the same seed, stream and block. Nothing here
waits for the device, and the key may change between replays of a CUDA graph.
"""

from __future__ import annotations

import torch
from torch import Tensor

_WORD = 0xFFFFFFFF


def philox(key: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Four random words of 32 bits, as int64, for each counter.

    Args:
        key: ``Int64["2"]``: seed and stream.
        low: ``Int64["..."]``, the counter's lower word, 0 to 2**32 - 1.
        high: ``Int64["..."]``, its upper word; the two are broadcast together.
    """
    k0, k1 = key[0] & _WORD, key[0] >> 32 & _WORD
    x0, x1, x2, x3 = low, high, key[1] & _WORD, key[1] >> 32 & _WORD
    rounds = counters(0, 10, key.device)
    keys0, keys1 = (k0 + rounds * 0x9E3779B9) & _WORD, (k1 + rounds * 0xBB67AE85) & _WORD
    for k0, k1 in zip(keys0.unbind(), keys1.unbind(), strict=True):
        p0, p1 = x0 * 0xD2511F53, x2 * 0xCD9E8D57  # int64 wraps modulo 2**64, which keeps both halves right
        x0, x1 = (p1 >> 32 & _WORD) ^ x1 ^ k0, p1 & _WORD
        x2, x3 = (p0 >> 32 & _WORD) ^ x3 ^ k1, p0 & _WORD
    return x0, x1, x2, x3


def counters(start: int, end: int, device: torch.device) -> Tensor:
    """``Int64["end - start"]``: the numbers from ``start`` on."""
    return torch.arange(start, end, device=device)


def uniforms(key: Tensor, number: int) -> Tensor:
    """``Float64["number"]``: uniform in [0, 1), multiples of 2**-52."""
    low = counters(0, (number + 1) // 2, key.device)
    x0, x1, x2, x3 = philox(key, low, torch.zeros_like(low))
    words = torch.stack([x0 | (x1 & 0xFFFFF) << 32, x2 | (x3 & 0xFFFFF) << 32], dim=-1)
    return words.reshape(-1)[:number].double() * 2.0**-52


def subsets(key: Tensor, number: int, size: int, high: Tensor) -> Tensor:
    """``number`` distinct numbers below ``size``, uniformly at random, for each ``high``.

    Args:
        high: ``Int64["b"]``, the counter's upper word; equal ones give equal subsets.

    Returns:
        ``Int64["b number"]``.
    """
    x0, x1, _, _ = philox(key, counters(0, size, key.device), high[:, None])
    # The order of random numbers of 63 bits is a random order: two are equal with a probability below size**2 / 2**64.
    return (x0 | (x1 & 0x7FFFFFFF) << 32).argsort(dim=-1)[:, :number]
