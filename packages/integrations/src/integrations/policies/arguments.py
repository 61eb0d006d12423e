"""What the arguments of a call say of the tensors that it saves: whether a rule holds, where a gradient passes, the
range of indices."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from threading import Thread
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from actcore import BitMask, Narrow


@dataclass(frozen=True)
class Arguments:
    """The arguments of a call; the receiver of a method is at position 0."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    def get(self, position: int, name: str, default: Any = None) -> Any:
        """The argument given at a position or by name."""
        return self.args[position] if position < len(self.args) else self.kwargs.get(name, default)


# ---- operators whose rule holds for some values of their arguments ----


@dataclass(frozen=True)
class _Assumption:
    """The values of an argument for which a rule holds: from ``least`` to ``most``."""

    position: int
    name: str
    default: float | None
    least: float
    most: float

    def departure(self, given: Arguments) -> str:
        """The argument as it was given, in words, if the rule does not hold for it; else empty."""
        value = given.get(self.position, self.name, self.default)
        if isinstance(value, int | float) and self.least <= value <= self.most:
            return ""
        return f"{self.name}={'a tensor' if isinstance(value, Tensor) else value}"


# elu's slope jumps at 0 unless alpha is 1. The slopes of softplus and celu change faster with a larger beta and a
# smaller alpha, and softplus's jumps at its threshold by sigmoid(-threshold). The slope of a power is a lower power:
# below the square it is steep at 0, and of the fourth power it is off, relatively, by three times as much as the input.
ASSUMED = MappingProxyType(
    {
        "elu": (_Assumption(1, "alpha", 1, 1, 1),),
        "celu": (_Assumption(1, "alpha", 1, 1, 1),),
        "softplus": (_Assumption(1, "beta", 1, 1, 1), _Assumption(2, "threshold", 20, 10, math.inf)),
        "pow": (_Assumption(1, "exponent", None, 2, 4),),
    }
)


def variant(operator: str, given: Arguments) -> str:
    """The operator's name. If an argument makes the operator's rule not hold, the argument's name follows.

    The argument's value is left out, since it may change from step to step: the name is part of a tensor's identity.
    """
    for assumption in ASSUMED.get(operator, ()):
        if assumption.departure(given):
            return f"{operator} with another {assumption.name}"
    return operator


def departures(operator: str, given: Arguments) -> str:
    """The arguments that make an operator's rule not hold, with their values; empty if it holds."""
    found = (assumption.departure(given) for assumption in ASSUMED.get(operator, ()))
    return ", ".join(filter(None, found))


# ---- piecewise constant slopes ----


@dataclass(frozen=True)
class Interval:
    """Where a gradient passes: between ``low`` and ``high``, or outside of them. A NaN passes: its gradient is not
    finite in any case.

    Attributes:
        closed: whether the bounds belong to the interval. It is so exactly where torch's backward has it so, since the
            mask has to be that of torch's own comparison.
    """

    low: float
    high: float
    closed: bool = False
    outside: bool = False

    def passes(self, tensor: Tensor) -> Tensor:
        """``Float[Tensor, "..."] -> Bool[Tensor, "..."]``."""
        below, above = (torch.lt, torch.gt) if self.closed else (torch.le, torch.ge)
        sides = [below(tensor, self.low)] if math.isfinite(self.low) else []
        sides += [above(tensor, self.high)] if math.isfinite(self.high) else []
        beyond = sides[0] if len(sides) == 1 else sides[0].logical_or_(sides[1])
        return beyond if self.outside else beyond.logical_not_()

    def values(self, dtype: torch.dtype) -> tuple[float, float] | None:
        """Two finite values that are exact in ``dtype``, the first where the gradient is blocked, the second where it
        passes. ``None`` if there are none, or if backward might round the bounds differently in its comparison."""
        if dtype.itemsize < 4 and any(math.isfinite(bound) and _cast(bound, dtype) != bound for bound in self._bounds):
            return None
        finite = [bound for bound in self._bounds if math.isfinite(bound)]
        if not finite or any(math.isnan(bound) for bound in self._bounds):
            return None
        below, above = finite[0] - max(1.0, abs(finite[0])), finite[-1] + max(1.0, abs(finite[-1]))
        between = (self.low + self.high) / 2 if len(finite) == 2 else above if self.high == math.inf else below
        beyond = above if math.isfinite(self.high) else below
        inside, outside = _cast(between, dtype), _cast(beyond, dtype)
        if not (self.low < inside < self.high and math.isfinite(outside) and not self.low <= outside <= self.high):
            return None
        return (inside, outside) if self.outside else (outside, inside)

    @property
    def _bounds(self) -> tuple[float, float]:
        return self.low, self.high


@cache
def _cast(value: float, dtype: torch.dtype) -> float:
    return float(torch.tensor(value, dtype=torch.float64).to(dtype).item())


@cache
def _clamp_passes_at_bounds() -> bool:
    """Whether clamp's gradient passes at its bounds. Versions of torch differ."""
    found: list[bool] = []

    def look() -> None:
        x = torch.zeros(1, requires_grad=True)
        [gradient] = torch.autograd.grad(x.clamp(max=0.0).sum(), x)
        found.append(bool(gradient))

    # Hooks of a session, and modes such as that of tensors without elements, are those of a thread.
    thread = Thread(target=look)
    thread.start()
    thread.join()
    return found[0]


def _clamp(low: Any, high: Any) -> Interval | None:
    low, high = -math.inf if low is None else low, math.inf if high is None else high
    return _interval(low, high, closed=_clamp_passes_at_bounds())


def _shrink(given: Arguments) -> Interval | None:
    width = given.get(1, "lambd", 0.5)
    return _interval(-width, width, closed=True, outside=True)


def _interval(low: Any, high: Any, **fields: bool) -> Interval | None:
    """The interval; ``None`` if a bound is a tensor."""
    if not isinstance(low, int | float) or not isinstance(high, int | float):
        return None
    return Interval(float(low), float(high), **fields)


_INTERVALS: Mapping[str, Callable[[Arguments], Interval | None]] = MappingProxyType(
    {
        "relu6": lambda given: Interval(0.0, 6.0),
        "hardtanh": lambda given: _interval(given.get(1, "min_val", -1.0), given.get(2, "max_val", 1.0)),
        "hardsigmoid": lambda given: Interval(-3.0, 3.0),
        "clamp": lambda given: _clamp(given.get(1, "min"), given.get(2, "max")),
        "clip": lambda given: _clamp(given.get(1, "min"), given.get(2, "max")),
        "clamp_min": lambda given: _clamp(given.get(1, "min"), None),
        "clamp_max": lambda given: _clamp(None, given.get(1, "max")),
        "threshold": lambda given: _interval(given.get(1, "threshold"), math.inf),
        "hardshrink": _shrink,
        "softshrink": _shrink,
    }
)


def two_valued(operator: str, given: Arguments, tensor: Tensor) -> tuple[Tensor, BitMask] | None:
    """A tensor of two values that replaces one which backward only compares with bounds, and the codec for it. ``None``
    if the arguments are no plain bounds, or no two values of the dtype tell the sides apart."""
    interval = _INTERVALS[operator](given)
    values = None if interval is None else interval.values(tensor.dtype)
    if interval is None or values is None:
        return None
    blocked, passing = values
    return tensor.new_full((), blocked).where(~interval.passes(tensor), passing), BitMask(values)


# ---- indices ----


def _size(given: Arguments) -> int | None:
    """The size of dimension ``dim`` of the first argument."""
    source, dim = given.get(0, "input", given.kwargs.get("self")), given.get(1, "dim")
    return source.shape[dim] if isinstance(source, Tensor) and isinstance(dim, int) and source.dim() else None


def _largest(given: Arguments) -> int | None:
    """The size of the largest dimension of the first argument, which exceeds every index into one of its dimensions."""
    source = given.get(0, "input", given.kwargs.get("self"))
    return max(source.shape, default=1) if isinstance(source, Tensor) else None


def _rows(given: Arguments) -> int | None:
    """The number of rows of a table, which F.embedding takes after the indices and torch.embedding before them."""
    tables = [value for value in (given.get(0, "input"), given.get(1, "weight")) if isinstance(value, Tensor)]
    return next((table.shape[0] for table in tables if table.is_floating_point() and table.dim() == 2), None)


def _plane(dims: int) -> Callable[[Arguments], int | None]:
    def of(given: Arguments) -> int | None:
        source = given.get(0, "input")
        return source.shape[-dims:].numel() if isinstance(source, Tensor) else None

    return of


_ALONG_DIM = ("index_select", "index_add", "index_copy", "gather", "scatter", "scatter_add")
_SELECTING = ("topk", "sort", "max", "min", "median", "mode", "kthvalue", "cummax", "cummin")

# operator -> (a bound above all of its indices, whether negative indices count from the end)
_RANGES: Mapping[str, tuple[Callable[[Arguments], int | None], bool]] = MappingProxyType(
    {
        **dict.fromkeys(_ALONG_DIM, (_size, False)),
        **dict.fromkeys(_SELECTING, (_largest, False)),
        "getitem": (_largest, True),
        "setitem": (_largest, True),
        "embedding": (_rows, False),
        **{
            f"{kind}max_pool{dims}d{suffix}": (_plane(dims), False)
            for kind in ("", "adaptive_")
            for dims in (1, 2, 3)
            for suffix in ("", "_with_indices")
        },
    }
)


def index_codec(operator: str, given: Arguments) -> Narrow | None:
    """The codec for the indices that a call saves, if their range follows from its arguments."""
    if operator not in _RANGES:
        return None
    count_of, negative = _RANGES[operator]
    count = count_of(given)
    return None if not count else Narrow(-count if negative else 0, count - 1)
