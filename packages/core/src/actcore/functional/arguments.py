"""What the functions share: checks of their arguments, and the order in which elements are taken."""

from __future__ import annotations

import torch
from torch import Tensor

from actcore.dtypes import FLOATS


def check_float(x: Tensor) -> None:
    """Raises ``TypeError`` unless ``x`` is a tensor of a dtype that the kernels compute in."""
    if not isinstance(x, Tensor) or x.dtype not in FLOATS:
        found = getattr(x, "dtype", type(x).__name__)
        raise TypeError(f"x must be a float32, float64, float16 or bfloat16 tensor, got {found}; cast it with .to()")


def check_seed(seed: object) -> None:
    """Raises ``TypeError`` unless it is an int or ``None``."""
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int)):
        raise TypeError(f"seed must be an int or None, got {seed!r}")


def check_stream(stream: object) -> None:
    """Raises ``TypeError`` unless it is an int."""
    if isinstance(stream, bool) or not isinstance(stream, int):
        raise TypeError(f"stream must be an int, got {stream!r}")


def draw_for(x: Tensor, seed: int | None) -> Tensor | None:
    """What is added to the seed of the noise: a number from torch's generator of the device where there is no seed."""
    if seed is not None:
        return None
    return torch.randint(-(2**63), 2**63 - 1, (1,), dtype=torch.int64, device=x.device)


def int64(number: int) -> int:
    """The low 64 bits, as torch's signed integers hold them."""
    return (number + 2**63) % 2**64 - 2**63


def in_memory_order(x: Tensor) -> tuple[Tensor, list[int] | None]:
    """Return ``x`` with its dimensions sorted by memory order, and that order.

    A dense tensor becomes contiguous.
    """
    if x.is_contiguous():
        return x, None
    if any(step == 0 for step in x.stride()):  # expanded: no order of its own
        return x.contiguous(), None
    left, order = list(range(x.dim())), []
    while left:
        at = 0  # of the largest step: torch.compile does not trace a sort of symbolic strides
        for i in range(1, len(left)):
            if x.stride()[left[i]] > x.stride()[left[at]]:
                at = i
        order.append(left.pop(at))
    return x.permute(order).contiguous(), order


def restored(ordered: Tensor, order: list[int] | None) -> Tensor:
    """Return ``ordered`` with its dimensions in the order before ``in_memory_order``."""
    if order is None:
        return ordered
    inverse = [0] * len(order)
    for place, d in enumerate(order):
        inverse[d] = place
    return ordered.permute(inverse)
