"""Representatives: for each level of a table an element at which torch's own backward has that level for a derivative.

Where an operator finds them in the place of what it saved, its gradient is the few-bit one, with nothing of the
operator exchanged. That takes a backward that reads one tensor, the function's input or its result; and levels that are
slopes of the function. Each level of the best steps is a mean of the derivative over its interval, so a continuous
derivative attains it; where the derivative jumps over it, there is no such element, and no codebook.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from integrations.fit.apart import fitted_apart
from integrations.fit.catalogue import FUNCTIONS
from integrations.fit.fitting import DOMAIN
from integrations.fit.shipped import SMOOTH
from integrations.fit.steps import StepTable
from integrations.fit.tables import table

# Points of the line that are looked at first, and of the stretch around the best one, which is looked at this often.
_SURVEY, _CLOSER, _TIMES = 1 << 14, 33, 6


@dataclass(frozen=True)
class Representatives:
    """Steps of what an operator saves, and an element for each.

    Attributes:
        boundaries: ascending, of what is saved, or of its magnitude where ``even``; one fewer than ``elements``.
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
        """How far a slope is from its level, at most."""
        return max(abs(slope - level) for slope, level in zip(self.slopes, self.levels, strict=True))

    def attained(self, dtype: torch.dtype) -> bool:
        """Whether each level is a slope, to the precision in which gradients of the dtype have it anyway.

        The slopes at two neighbouring numbers around 1 are apart by ``eps`` times the curvature, which is about 1 at
        the most in all functions of the catalogue. Torch computes a slope in float32 at the least, to some units in the
        last place, and the shipped levels have seven digits.
        """
        spacing = torch.finfo(dtype).eps if dtype.itemsize < 4 else 0.0
        return self.error <= (spacing + 4 * torch.finfo(torch.float32).eps) * max(1.0, *map(abs, self.levels))


def saves_one(function: str, in_place: bool = False) -> str:
    """``"input"`` or ``"result"``, whichever is the only tensor that torch's backward reads; empty where it reads
    another, or several, or torch has no such call.

    Args:
        function: a name of ``FUNCTIONS``.
        in_place: of the call that overwrites its input.
    """
    return _saved_by(function, in_place) if function in SMOOTH else ""


def saved_steps(function: str, bits: int, parameters: tuple[float, ...], weight: str, result: bool) -> StepTable:
    """The table whose steps are those of what torch saves: of ``|x|`` only where that is odd in ``x``, too."""
    known = FUNCTIONS[function]
    even = known.even and (not result or _is_odd(function, parameters))
    return table(function, bits, parameters, weight, None if even else "none")


def representatives(
    function: str, bits: int, parameters: tuple[float, ...], weight: str, result: bool, dtype: torch.dtype
) -> Representatives | None:
    """Those of ``saved_steps`` for a dtype; ``None`` where torch reads something else, or a level is no slope.

    They are looked for once in a process, which takes some hundredths of a second.

    Args:
        function, bits, parameters, weight: as for ``table``; parameters are given in full.
        result: whether it is the result that is saved, and not the input.
        dtype: of the saved tensor.
    """
    if function not in SMOOTH or not (_slope_by(function, result) and _is_regular(function, parameters)):
        return None
    return _found(function, bits, parameters, weight, result, dtype)


def _is_regular(function: str, parameters: tuple[float, ...]) -> bool:
    """Whether a result tells the input, and a smaller one a smaller input: torch refuses, or lets pass, what is not."""
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
    """The function, of a leaf; in place on a copy that has its history."""
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
    """torch's own derivative, as a function of what it has saved; ``None`` where it never saves just that."""
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
    """Whether the function is, at some points."""
    call = FUNCTIONS[function].call
    x = torch.linspace(0.1, 3.0, 16, dtype=torch.float64)
    return torch.equal(call(-x, *parameters), -call(x, *parameters))


def _ends(steps: StepTable) -> tuple[float, float]:
    """Of the inputs that may be needed: the tables' domain, and room beyond the outermost boundaries."""
    reach = 2 * max(map(abs, steps.boundaries), default=0.0)
    return min(1.5 * DOMAIN[0], -reach), max(1.5 * DOMAIN[1], reach)


def _nearest(
    slope: Callable[[Tensor], Tensor], levels: Tensor, ends: Tensor, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Numbers of the dtype between the ends whose slopes come nearest to the levels, and these slopes: in float64, so
    that they are the same whatever a device's last digits are.

    All numbers of 16 bits are looked at. Of a wider dtype a survey is, half of it crowded around zero, and then ever
    closer what is around two points: where the slope is nearest to the level, and the nearest to zero at which it
    passes the level, which may be a jump.
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
    """For each level the place of the slope nearest to it, and that slope."""
    ascending, order = slopes.sort(stable=True)
    above = torch.searchsorted(ascending, levels).clamp(1, len(slopes) - 1)
    at = torch.where(ascending[above] - levels < levels - ascending[above - 1], above, above - 1)
    return order[at], ascending[at]


def _passing(points: Tensor, slopes: Tensor, levels: Tensor) -> Tensor:
    """For each level the place of the point nearest to zero after which the slope passes it; any where none is."""
    found = []
    for level in levels:
        apart = slopes - level
        found.append(torch.where(apart[1:] * apart[:-1] <= 0, points[:-1].abs(), torch.inf).argmin())
    return torch.stack(found)
