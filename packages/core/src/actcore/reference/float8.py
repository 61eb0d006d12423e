"""The float8 codec, slow and readable."""

from __future__ import annotations

import torch
from torch import Tensor

from actcore.reference.philox import noise

# Bits behind the leading one, the exponent of the smallest normal number, the largest number.
_FORMATS = {torch.float8_e4m3fn: (3, -6, 448.0), torch.float8_e5m2: (2, -14, 57344.0)}


def float8_compress(
    x: Tensor, format: torch.dtype, group_size: int, stochastic: bool, seed: int, stream: int
) -> tuple[Tensor, Tensor]:
    """Codes, and the largest magnitude of each group; ``csrc/codec/float8.h`` explains the formulas."""
    mantissa, smallest, largest = _FORMATS[format]
    flat = x.reshape(-1)
    numel = flat.numel()
    if numel == 0:
        return torch.empty(0, dtype=torch.uint8), flat.new_empty(0)
    padded = torch.cat([flat, flat.new_zeros(-numel % group_size)]).view(-1, group_size)
    compute = padded.to(_compute_dtype(x.dtype))
    bound = compute.abs().amax(1)
    bound = bound.where(bound.isfinite(), torch.nan)

    scale = _scale(bound)
    # A tensor, because number / tensor is number * (1 / tensor) in PyTorch, which rounds twice.
    factor = (bound.new_tensor(largest) / (bound * scale)).where(bound > 0, 0.0)
    y = (compute * scale[:, None] * factor[:, None]).where(bound.isfinite()[:, None], 0.0).float()
    exponent = (torch.frexp(y).exponent - 1).where(y != 0, smallest).clamp(min=smallest)
    steps = y.abs().double() * _power(mantissa - exponent)  # in units of the spacing; exact
    if stochastic:
        random = noise(seed, stream, padded.numel()).view_as(padded)
        code = (torch.round(steps * 256).long() + random) >> 8
    else:
        code = torch.round(steps).long()
    code = ((exponent - smallest) << mantissa) + code | y.signbit().long() << 7
    return code.to(torch.uint8).reshape(-1)[:numel], bound.to(x.dtype)


def float8_decompress(codes: Tensor, bounds: Tensor, format: torch.dtype, group_size: int) -> Tensor:
    """``code * bound / largest``, and the bound itself for the largest code and what stands above it."""
    mantissa, smallest, largest = _FORMATS[format]
    bound = bounds.to(_compute_dtype(bounds.dtype))
    scale = _scale(bound)
    step = bound * scale / bound.new_tensor(largest)
    magnitude = codes.int() & 0x7F
    field = (magnitude >> mantissa).clamp(min=1)
    value = (magnitude - (field - 1 << mantissa)) * _power(field - 1 + smallest - mantissa)
    sign = torch.where(codes >= 128, -1, 1)
    group = torch.arange(codes.numel()) // group_size
    scaled = (value * sign).to(bound.dtype) * step[group] / scale[group]
    scaled = torch.where(value >= largest, bound[group] * sign, scaled)
    return torch.where(bound.isfinite()[group], scaled, bound[group]).to(bounds.dtype)


def _compute_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def _scale(bound: Tensor) -> Tensor:
    """A power of two that keeps ``largest / bound`` finite."""
    tiny, raised = (2.0**-900, 2.0**512) if bound.dtype == torch.float64 else (2.0**-100, 2.0**64)
    scale = torch.ones_like(bound)
    scale[(bound > 0) & (bound < tiny)] = raised
    return scale


def _power(exponent: Tensor) -> Tensor:
    """2**exponent, exactly."""
    return (exponent.long() + 1023 << 52).view(torch.float64)
