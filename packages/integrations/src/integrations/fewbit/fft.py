"""Discrete cosine transforms, differentiable and on any device, with the conventions of ``scipy.fft``."""

from __future__ import annotations

import math

import torch
from torch import Tensor

_NORMS = ("backward", "forward", "ortho")


def dct(x: Tensor, type: int = 2, n: int | None = None, dim: int = -1, norm: str = "backward") -> Tensor:
    """The discrete cosine transform: ``y[k] = 2 sum_t x[t] cos(pi k (2t + 1) / (2n))`` for type 2.

    Type 3 is ``y[k] = x[0] + 2 sum_t x[t] cos(pi t (2k + 1) / (2n))`` over ``t`` from 1. Both take one FFT of length
    ``n`` (Makhoul, "A fast cosine transform in one and two dimensions", IEEE TASSP 28, 1980).

    Args:
        x: real numbers of any shape; integers become torch's default dtype, 16 bits are computed in float32.
        type: 2 or 3.
        n: length of the transform; ``x`` is cut or gets zeros at its end. ``None`` takes its size.
        dim: the dimension to transform.
        norm: ``"backward"`` (factor 1), ``"forward"`` (``1 / (2n)``) or ``"ortho"``, the orthonormal transform.

    Raises:
        TypeError: ``x`` is no tensor of real numbers.
        ValueError: type or norm is unknown, or ``n`` below 1.
    """
    return _transform(x, type, n, dim, norm, inverse=False)


def idct(x: Tensor, type: int = 2, n: int | None = None, dim: int = -1, norm: str = "backward") -> Tensor:
    """The inverse of ``dct`` with the same arguments.

    Raises:
        TypeError: ``x`` is no tensor of real numbers.
        ValueError: type or norm is unknown, or ``n`` below 1.
    """
    return _transform(x, type, n, dim, norm, inverse=True)


def _transform(x: Tensor, type: int, n: int | None, dim: int, norm: str, inverse: bool) -> Tensor:
    if not isinstance(x, Tensor) or x.is_complex():
        raise TypeError(f"x must be a tensor of real numbers, got {getattr(x, 'dtype', x.__class__.__name__)}")
    if type not in (2, 3):
        raise ValueError(f"type must be 2 or 3, got {type!r}")
    if norm not in _NORMS:
        raise ValueError(f"norm must be one of {', '.join(_NORMS)}, got {norm!r}")
    size = x.shape[dim] if n is None else n
    if size < 1:
        raise ValueError(f"n must be at least 1, the length of the transform, got {size}")
    if not x.is_floating_point():
        x = x.to(torch.get_default_dtype())
    dtype = x.dtype
    values = x.movedim(dim, -1).to(torch.promote_types(dtype, torch.float32))
    values = values[..., :size]
    values = torch.nn.functional.pad(values, (0, size - values.shape[-1]))
    # Type 3 is the inverse of type 2, times 2n; orthonormal, it is the inverse itself.
    second = (type == 2) != inverse
    if norm == "ortho":
        made = _second(values) * _ortho(values, 1) if second else _third(values * _ortho(values, -1)) / (2 * size)
    else:
        made = _second(values) if second else _third(values)
        if (norm == "forward") != inverse:
            made = made / (2 * size)
    return made.movedim(-1, dim).to(dtype)


def _ortho(values: Tensor, power: int) -> Tensor:
    """What makes the second transform orthonormal, for each frequency, or its inverse."""
    n = values.shape[-1]
    factor = values.new_full((n,), (2 * n) ** (-0.5 * power))
    factor[0] = (4 * n) ** (-0.5 * power)
    return factor


def _second(x: Tensor) -> Tensor:
    n = x.shape[-1]
    folded = torch.cat([x[..., ::2], x[..., 1::2].flip(-1)], dim=-1)
    angle = torch.arange(n, device=x.device, dtype=x.dtype) * (math.pi / (2 * n))
    spectrum = torch.fft.fft(folded)
    made: Tensor = 2 * (spectrum.real * angle.cos() + spectrum.imag * angle.sin())
    return made


def _third(x: Tensor) -> Tensor:
    n = x.shape[-1]
    angle = torch.arange(n // 2 + 1, device=x.device, dtype=x.dtype) * (math.pi / (2 * n))
    mirrored = torch.cat([torch.zeros_like(x[..., :1]), x[..., 1:].flip(-1)], dim=-1)
    head, tail = x[..., : n // 2 + 1], mirrored[..., : n // 2 + 1]
    cos, sin = angle.cos(), angle.sin()
    spectrum = torch.complex(head * cos + tail * sin, head * sin - tail * cos)
    folded = torch.fft.irfft(spectrum, n=n) * n
    made = torch.empty_like(folded)
    made[..., ::2] = folded[..., : (n + 1) // 2]
    made[..., 1::2] = folded[..., (n + 1) // 2 :].flip(-1)
    return made
