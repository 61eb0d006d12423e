"""Representatives: for each level of a table, an element at which torch's own derivative is that level.

If an operator finds these in the place of what it saved, its gradient is the few-bit one, and the operator need not be
exchanged. That takes a backward that reads one tensor, the function's input or its result, and levels that the
derivative attains. Each level of the best steps is a mean of the derivative over its interval, so a continuous
derivative attains it. If the derivative jumps over a level, there is no such element, and no codebook.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from integrations.policies.codebooks.catalogue import FUNCTIONS
from integrations.policies.codebooks.fitting import DOMAIN
from integrations.policies.codebooks.isolated_fit import fitted_apart
from integrations.policies.codebooks.shipped import SMOOTH
from integrations.policies.codebooks.steps import StepTable
from integrations.policies.codebooks.tables import table

# Points of the line that are evaluated first, points of the stretch around the best one, and how often that stretch is
# narrowed.
_SURVEY, _CLOSER, _TIMES = 1 << 14, 33, 6


@dataclass(frozen=True)
class Representatives:
    """Steps of what an operator saves, and an element for each step.

    Attributes:
        boundaries: ascending; boundaries of what is saved, or of its magnitude if ``even``; one fewer than
            ``elements``.
        elements: numbers of the dtype.
        even: whether the boundaries are of the magnitude.
        slopes: torch's derivative where ``elements`` are saved, in float64.
        levels: the table's.
    """

    boundaries: tuple[float, ...]
    elements: tuple[float, ...]
    even: bool
    slopes: tuple[float, ...]
    levels: tuple[float, ...]

    @property
    def error(self) -> float:
        """The largest difference between a slope and its level."""
        return max(abs(slope - level) for slope, level in zip(self.slopes, self.levels, strict=True))

    def attained(self, dtype: torch.dtype) -> bool:
        """Whether each level is an attained slope, within the precision that gradients of the dtype have anyway.

        The slopes at two neighbouring numbers around 1 differ by ``eps`` times the curvature, which is at most about 1
        for all functions of the catalogue. Torch computes a slope at least in float32, to some units in the last place,
        and the shipped levels have seven digits.
        """
        spacing = torch.finfo(dtype).eps if dtype.itemsize < 4 else 0.0
        return self.error <= (spacing + 4 * torch.finfo(torch.float32).eps) * max(1.0, *map(abs, self.levels))


def saves_one(function: str, in_place: bool = False) -> str:
    """``"input"`` or ``"result"``, whichever is the only tensor that torch's backward reads; empty if it reads another,
    or several, or torch has no such call.

    Args:
        function: a name of ``FUNCTIONS``.
        in_place: whether the call overwrites its input.
    """
    return _saved_by(function, in_place) if function in SMOOTH else ""


def saved_steps(function: str, bits: int, parameters: tuple[float, ...], weight: str, result: bool) -> StepTable:
    """The table with steps of what torch saves. They are of ``|x|`` only if the saved tensor is odd in ``x``, too."""
    known = FUNCTIONS[function]
    even = known.even and (not result or _is_odd(function, parameters))
    return table(function, bits, parameters, weight, None if even else "none")


def representatives(
    function: str, bits: int, parameters: tuple[float, ...], weight: str, result: bool, dtype: torch.dtype
) -> Representatives | None:
    """The representatives of ``saved_steps`` in a dtype; ``None`` if torch reads something else, or a level is not an
    attained slope.

    They are searched once in a process, which takes some hundredths of a second.

    Args:
        function, bits, parameters, weight: as for ``table``; parameters are given in full.
        result: whether the result is saved, and not the input.
        dtype: of the saved tensor.
    """
    if function not in SMOOTH or not (_slope_by(function, result) and _is_regular(function, parameters)):
        return None
    return _found(function, bits, parameters, weight, result, dtype)


def _is_regular(function: str, parameters: tuple[float, ...]) -> bool:
    """Whether the result determines the input and grows with it. Torch refuses other cases, or lets them pass."""
    return function not in ("elu", "celu", "softplus") or parameters[0] > 0


@fitted_apart(64)
def _saved_by(function: str, in_place: bool) -> str:
    call = _call(function, in_place)
    if call is None:
        return ""
    x = torch.linspace(-3.0, 3.0, 64, dtype=torch.float32)
    saved: list[Tensor] = []

    def note(tensor: Tensor) -> Tensor:
        saved.append(tensor.detach().clone())
        return tensor

    with torch.enable_grad(), saved_tensors_hooks(note, lambda tensor: tensor):
        result = call(x.clone().requires_grad_(), tuple(FUNCTIONS[function].defaults.values()))
    if len(saved) != 1:
        return ""
    return "input" if torch.equal(saved[0], x) else "result" if torch.equal(saved[0], result.detach()) else ""


def _call(function: str, in_place: bool) -> Callable[[Tensor, tuple[float, ...]], Tensor] | None:
    """The function on a leaf. In place, it is applied to a copy with a history."""
    known = FUNCTIONS[function]
    if not in_place:
        return lambda x, parameters: known.call(x, *parameters)
    own: Callable[..., Tensor] | None = getattr(
        torch.nn.functional, f"{function}_", getattr(torch, f"{function}_", None)
    )
    if own is None:
        if function not in ("hardswish", "mish", "silu"):
            return None
        return lambda x, parameters: known.call(x.view_as(x).clone(), *parameters, inplace=True)
    overwriting = own
    return lambda x, parameters: overwriting(x.clone(), *parameters)


def _slope_by(function: str, result: bool) -> Callable[[Tensor, tuple[float, ...]], Tensor] | None:
    """Torch's derivative as a function of what it has saved; ``None`` if it never saves just that."""
    for in_place in (False, True):
        if _saved_by(function, in_place) != ("result" if result else "input"):
            continue
        call = _call(function, in_place)
        assert call is not None
        return lambda saved, parameters: _slope(call, saved, parameters)
    return None


def _slope(call: Callable[[Tensor, tuple[float, ...]], Tensor], saved: Tensor, parameters: tuple[float, ...]) -> Tensor:
    with torch.enable_grad(), saved_tensors_hooks(lambda tensor: None, lambda packed: saved):
        leaf = torch.zeros_like(saved).requires_grad_()
        output = call(leaf, parameters)
        return torch.autograd.grad(output, leaf, torch.ones_like(output))[0]


@fitted_apart(512)
def _found(
    function: str, bits: int, parameters: tuple[float, ...], weight: str, result: bool, dtype: torch.dtype
) -> Representatives | None:
    steps = saved_steps(function, bits, parameters, weight, result)
    slope = _slope_by(function, result)
    assert slope is not None
    ends = _ends(steps)
    boundaries = torch.tensor(steps.boundaries, dtype=torch.float64)
    saved_ends = torch.tensor(ends, dtype=torch.float64)
    if result:
        boundaries, saved_ends = (FUNCTIONS[function].call(x, *parameters) for x in (boundaries, saved_ends))
    elements, slopes = _nearest(
        lambda saved: slope(saved, parameters), torch.tensor(steps.levels, dtype=torch.float64), saved_ends, dtype
    )
    found = Representatives(
        tuple(boundaries.tolist()), tuple(elements.tolist()), steps.even, tuple(slopes.tolist()), steps.levels
    )
    return found if found.attained(dtype) else None


@fitted_apart(64)
def _is_odd(function: str, parameters: tuple[float, ...]) -> bool:
    """Whether the function is odd, checked at some points."""
    call = FUNCTIONS[function].call
    x = torch.linspace(0.1, 3.0, 16, dtype=torch.float64)
    return torch.equal(call(-x, *parameters), -call(x, *parameters))


def _ends(steps: StepTable) -> tuple[float, float]:
    """The range of inputs that may be needed: the tables' domain, with room beyond the outermost boundaries."""
    reach = 2 * max(map(abs, steps.boundaries), default=0.0)
    return min(1.5 * DOMAIN[0], -reach), max(1.5 * DOMAIN[1], reach)


def _nearest(
    slope: Callable[[Tensor], Tensor], levels: Tensor, ends: Tensor, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Numbers of the dtype between the ends whose slopes are nearest to the levels, and these slopes in float64, so
    that they do not depend on the last digits of a device.

    All numbers of a 16-bit dtype are tried. For a wider dtype a survey is tried, half of it near zero, and then ever
    closer points around two of them: where the slope is nearest to the level, and, nearest to zero, where it passes the
    level, which may be a jump.
    """
    low, high = ends.tolist()
    if dtype.itemsize == 2:
        every = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32).to(torch.int16).view(dtype).double()
        points = every[(every >= low) & (every <= high)]
        at, slopes = _with_slope(slope(points), levels)
        return points[at], slopes
    line = torch.linspace(-1.0, 1.0, _SURVEY, dtype=torch.float64)
    survey = torch.cat([line, line**3]) * max(-low, high)
    survey = survey[(survey >= low) & (survey <= high)].sort().values
    slopes = slope(survey)
    rows, closer = torch.arange(len(levels)), torch.linspace(-1.0, 1.0, _CLOSER, dtype=torch.float64)
    best = survey[torch.stack([_with_slope(slopes, levels)[0], _passing(survey, slopes, levels)])]
    spacing = survey.diff().max()
    for _ in range(_TIMES):
        stretch = torch.cat([best[..., None] + spacing * closer, best[..., None]], -1).clamp(low, high)
        stretch = stretch.to(dtype).double()
        found = slope(stretch)
        at = (found - levels[:, None]).abs().argmin(-1, keepdim=True)
        best, slopes = stretch.gather(-1, at)[..., 0], found.gather(-1, at)[..., 0]
        spacing = spacing * 2 / (_CLOSER - 1)
    way = (slopes - levels).abs().argmin(0)
    return best[way, rows], slopes[way, rows]


def _with_slope(slopes: Tensor, levels: Tensor) -> tuple[Tensor, Tensor]:
    """By level: the place of the slope nearest to it, and that slope."""
    ascending, order = slopes.sort(stable=True)
    above = torch.searchsorted(ascending, levels).clamp(1, len(slopes) - 1)
    at = torch.where(ascending[above] - levels < levels - ascending[above - 1], above, above - 1)
    return order[at], ascending[at]


def _passing(points: Tensor, slopes: Tensor, levels: Tensor) -> Tensor:
    """By level: the place of the point nearest to zero after which the slope passes it; any place if there is none."""
    found = []
    for level in levels:
        apart = slopes - level
        found.append(torch.where(apart[1:] * apart[:-1] <= 0, points[:-1].abs(), torch.inf).argmin())
    return torch.stack(found)
