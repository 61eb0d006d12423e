"""FewBit's ``fewbit.approx``: its names and arguments, over the exact fit of ``integrations.fewbit.approximate``.

Where FewBit's takes and returns NumPy arrays, so do these; tensors and sequences work as well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from integrations.policies.codebooks.fitting import fit_tables
from integrations.policies.codebooks.slopes import Slope

__all__ = ["StepWiseFunction", "approximate", "estimate_error", "is_sorted", "stepwise"]

_MOST_POINTS = 1 << 20


class StepWiseFunction:
    """A piecewise constant function: ``levels[i]`` from ``borders[i]`` up to, not including, ``borders[i + 1]``.

    Attributes:
        borders: ``Float64["card+1"]``, ascending, the two ends of the domain among them; beyond these the last levels
            hold.
        levels: ``Float64["card"]``.
        steps: the first level, and what each further one adds.
        card: how many levels.
    """

    def __init__(self, borders: Any, levels: Any) -> None:
        self.borders, self.levels = _tensor(borders), _tensor(levels)
        if self.borders.dim() != 1 or self.levels.dim() != 1 or len(self.borders) != len(self.levels) + 1:
            raise ValueError(
                "borders must be one more than levels, both of one dimension, got shapes "
                f"{tuple(self.borders.shape)} and {tuple(self.levels.shape)}; the domain's ends are borders, too"
            )
        if not len(self.levels) or not bool((self.borders.diff() >= 0).all()):
            raise ValueError("borders must be two at least and ascend; sort them, and their levels with them")
        self.card = len(self.levels)
        self.steps = self.levels.diff(prepend=self.levels.new_zeros(1))

    def __call__(self, xs: Any) -> Any:
        """The level at each of ``xs``: a tensor of a tensor, else an array."""
        values = self.levels[torch.bucketize(_tensor(xs), self.borders[1:-1], right=True)]
        return values if isinstance(xs, Tensor) else values.numpy()

    def __repr__(self) -> str:
        def some(numbers: Tensor) -> str:
            return ", ".join(f"{number:.6g}" for number in numbers[:2].tolist()) + ", ..." * (len(numbers) > 2)

        return f"<StepWiseFunction nosteps={self.card} borders=[{some(self.borders)}] levels=[{some(self.levels)}]>"

    def __str__(self) -> str:
        ends = self.borders.tolist()
        return "".join(
            f"[{i}] [{ends[i]:+8.3f}, {ends[i + 1]:+8.3f}) => {level:e}\n"
            for i, level in enumerate(self.levels.tolist())
        )


def stepwise(xs: Any, ys: Any) -> StepWiseFunction:
    """``StepWiseFunction(borders=xs, levels=ys)``."""
    return StepWiseFunction(xs, ys)


def approximate(
    fn: Callable[[Any], Any],
    fn_prim: Callable[[Any], Any] | None,
    cardinality: int,
    domain: tuple[float, float] = (-100.0, 100.0),
    parity: bool = False,
    max_iters: int = 10_000,
    beps: float = 1e-4,
    leps: float = 1e-4,
    random_state: object = None,
) -> tuple[StepWiseFunction, dict[str, Any]]:
    """The step function of ``cardinality`` levels with the least squared error for ``fn`` over a domain.

    FewBit descends from a random start, and fails where borders meet. Here the optimum is computed, so ``max_iters``,
    ``beps``, ``leps`` and ``random_state`` have no effect and the status is always ``"converged"``.

    Args:
        fn: the function that steps stand for, of an array or a tensor: an activation's derivative.
        fn_prim: its primitive, the activation, from which the levels follow; ``None`` integrates ``fn``.
        cardinality: 1 to 256, and no power of two in particular.
        domain: lowest and highest ``x``.
        parity: fit one half of an even or odd function: the domain then begins at 0.
        max_iters, beps, leps, random_state: of no effect.

    Returns:
        The step function, and ``{"status": "converged", "noiters": 0, "bs_diff": 0.0, "ls_diff": 0.0}``.

    Raises:
        TypeError: ``cardinality`` is not an int.
        ValueError: cardinality out of range, a domain that does not begin at 0 with ``parity``, ``fn`` not elementwise
            or not finite somewhere in the domain.
    """
    if type(cardinality) is not int:
        raise TypeError(f"cardinality must be an int, got {cardinality!r}")
    if not 1 <= cardinality <= 256:
        raise ValueError(f"cardinality must be from 1 to 256, got {cardinality}")
    if parity and domain[0] != 0:
        raise ValueError(f"domain must begin at 0 with parity, which is of one half of the line, got {domain}")

    def derivative(x: Tensor) -> Tensor:
        return _called(fn, x)

    [table] = fit_tables(Slope(derivative, derivative=derivative), (cardinality,), domain, parity="none")
    borders = torch.tensor([domain[0], *table.boundaries, domain[1]], dtype=torch.float64)
    levels = torch.tensor(table.levels, dtype=torch.float64)
    if fn_prim is not None:
        levels = _called(fn_prim, borders).diff() / borders.diff()
    return StepWiseFunction(borders, levels), {"status": "converged", "noiters": 0, "bs_diff": 0.0, "ls_diff": 0.0}


def estimate_error(fn: Callable[[Any], Any], fn_approx: StepWiseFunction, dx: float) -> tuple[float, Sequence[float]]:
    """The integral of ``(fn - fn_approx)**2``, by Simpson's rule: in all, and for each interval.

    Args:
        fn: what ``fn_approx`` stands for.
        fn_approx: the step function; its outer borders are the domain.
        dx: the distance of points, of which an interval has at most 2**20.

    Raises:
        ValueError: ``dx`` is not above 0.
    """
    if not dx > 0:
        raise ValueError(f"dx must be above 0, got {dx}")
    errors = []
    for low, high, level in zip(
        fn_approx.borders[:-1].tolist(), fn_approx.borders[1:].tolist(), fn_approx.levels.tolist(), strict=True
    ):
        halves = max(1, min(_MOST_POINTS // 2, int((high - low) / dx / 2)))
        x = torch.linspace(low, high, 2 * halves + 1, dtype=torch.float64)
        square = (_called(fn, x) - level).square()
        inner = 4 * square[1::2].sum() + 2 * square[2:-1:2].sum()
        errors.append(float((square[0] + inner + square[-1]) * (high - low) / (6 * halves)))
    return sum(errors), errors


def is_sorted(xs: Any, scale: float = 0.0) -> bool:
    """Whether each number exceeds the one before by more than ``scale``."""
    return bool((_tensor(xs).diff() > scale).all())


def _called(fn: Callable[[Any], Any], x: Tensor) -> Tensor:
    """With an array, as FewBit calls functions, or with the tensor where the function takes no arrays."""
    try:
        return _tensor(fn(x.numpy()))
    except (TypeError, AttributeError, RuntimeError):  # the last where there is no NumPy
        return _tensor(fn(x))


def _tensor(values: Any) -> Tensor:
    return torch.as_tensor(values).detach().to("cpu", torch.float64)
