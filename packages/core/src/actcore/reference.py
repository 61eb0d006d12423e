"""The operators again, slow and readable, in plain PyTorch on the CPU: the oracle that the kernels are held to.

Every function takes and returns what its namesake in ``torch.ops.actcore`` does, and agrees with it bit for bit.
"""

from __future__ import annotations

from fractions import Fraction

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


def pack_bits(codes: Tensor, bits: int) -> Tensor:
    """Writes each code's bits, lowest first, one code after the other, and gathers them in bytes."""
    stream = (codes.reshape(-1)[:, None].long() >> torch.arange(bits) & 1).reshape(-1)
    stream = torch.nn.functional.pad(stream, (0, -len(stream) % 8))
    return (stream.view(-1, 8) << torch.arange(8)).sum(1).to(torch.uint8)


def unpack_bits(packed: Tensor, bits: int, numel: int) -> Tensor:
    """The inverse of ``pack_bits``."""
    stream = (packed[:, None].long() >> torch.arange(8) & 1).reshape(-1)[: numel * bits]
    return (stream.view(numel, bits) << torch.arange(bits)).sum(1).to(torch.uint8)


def group_affine_compress(
    x: Tensor, bits: int, group_size: int, stochastic: bool, seed: int, stream: int
) -> tuple[Tensor, Tensor]:
    """Codes and bounds of each group; ``csrc/codec/group_affine.h`` explains the formulas."""
    flat = x.reshape(-1)
    numel = flat.numel()
    if numel == 0:
        return torch.empty(0, dtype=torch.uint8), flat.new_empty((0, 2))
    # Padding repeats the last element, so that it changes no group's range.
    padded = torch.cat([flat, flat[-1:].expand(-numel % group_size)]).view(-1, group_size)
    compute = padded.to(_compute_dtype(x.dtype))
    low, high = compute.amin(1) + 0.0, compute.amax(1) + 0.0
    finite = compute.isfinite().all(1)
    bounds = torch.stack([low, high], 1).where(finite[:, None], torch.nan)

    levels = 2**bits - 1
    scale, origin, width = _scaled(bounds[:, 0], bounds[:, 1])
    # A tensor, because number / tensor is number * (1 / tensor) in PyTorch, which rounds twice.
    per_unit = width.new_tensor(levels * 256.0 if stochastic else float(levels)) / width
    factor = per_unit.where(width > 0, 0.0)
    offset = (compute * scale[:, None] - origin[:, None]).where(finite[:, None], 0.0)
    steps = torch.round(offset * factor[:, None]).long().reshape(-1)[:numel]
    codes = (steps + noise(seed, stream, numel)) >> 8 if stochastic else steps
    return pack_bits(codes.to(torch.uint8), bits), bounds.to(x.dtype)


def group_affine_decompress(codes: Tensor, bounds: Tensor, numel: int, bits: int, group_size: int) -> Tensor:
    """``low + code * step`` with one rounding, and the upper bound itself for the top code."""
    levels = 2**bits - 1
    unpacked = unpack_bits(codes, bits, numel)
    group = torch.arange(numel) // group_size
    low, high = bounds.to(_compute_dtype(bounds.dtype)).unbind(1)
    scale, origin, width = _scaled(low, high)
    step = width / levels
    value = _fma(unpacked, step[group], origin[group]) / scale[group]
    return torch.where(unpacked == levels, high[group], value).to(bounds.dtype)


def _compute_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def _scaled(low: Tensor, high: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """A power of two that keeps high - low finite and its steps normal; low and the range, multiplied by it."""
    tiny, raised = (2.0**-900, 2.0**512) if low.dtype == torch.float64 else (2.0**-100, 2.0**64)
    width = high - low
    scale = torch.ones_like(width)
    scale[width.isinf()] = 0.5
    scale[(width > 0) & (width < tiny)] = raised
    origin = low * scale
    return scale, origin, high * scale - origin


def _fma(code: Tensor, step: Tensor, origin: Tensor) -> Tensor:
    """``code * step + origin``, rounded once. PyTorch has no fma, so the sum is made exactly and then rounded."""
    if step.dtype == torch.float64:
        exact = [_exact(c, s, o) for c, s, o in zip(code.tolist(), step.tolist(), origin.tolist(), strict=True)]
        return torch.tensor(exact, dtype=torch.float64)
    product, origin = code.double() * step.double(), origin.double()  # exact: 8 + 24 bits
    total = product + origin
    # What the float64 sum lost (Knuth's TwoSum). Where it lost anything, an odd last bit keeps the second rounding,
    # to float32, from seeing a tie that is not there.
    back = total - product
    lost = (product - (total - back)) + (origin - back)
    pattern = total.view(torch.int64)
    even = (pattern & 1) == 0
    toward = torch.where((lost > 0) == (total > 0), 1, -1)
    total = torch.where((lost != 0) & even & total.isfinite(), (pattern + toward).view(torch.float64), total)
    return total.float()


def _exact(code: int, step: float, origin: float) -> float:
    if step != step or origin != origin:
        return float("nan")
    return float(code * Fraction(step) + Fraction(origin))
