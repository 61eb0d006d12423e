"""Rounding a derivative to levels at random, slow and readable."""

from __future__ import annotations

import torch
from torch import Tensor

from actcore.reference.bits import pack_bits
from actcore.reference.philox import noise_halves
from actcore.reference.stepwise import guard_bytes


def level_codes(
    derivative: Tensor,
    x: Tensor,
    levels: Tensor,
    bits: int,
    seed: int,
    stream: int,
    draw: Tensor | None = None,
    guard: str = "none",
) -> Tensor:
    """The level below, or with the probability of the way from it to the next, the next one."""
    value = derivative.reshape(-1).to(levels.dtype)
    below = (~(value[:, None] < levels[1:-1])).sum(1)
    steps = (value - levels[below]) * (65536 / levels.diff())[below]
    threshold = steps.nan_to_num(0.0, torch.inf, -torch.inf).clamp(0, 65536).round()
    halves = noise_halves(seed + (0 if draw is None else int(draw)), stream, x.numel())
    return torch.cat(
        [pack_bits((below + (halves < threshold)).to(torch.uint8), bits), guard_bytes(guard, x, derivative)]
    )
