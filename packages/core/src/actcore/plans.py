"""``checkpoint_plans``: which values of a training step to keep, for the least peak or the least time in a budget."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import actcore._native as _native
from actcore.forms import require_amount, require_int
from actcore.simulation import simulate
from actcore.training_step import TrainingStep, require_step

_SIMULATIONS = 10_000


@dataclass(frozen=True)
class CheckpointPlan:
    """A choice of the values to keep.

    Attributes:
        kept: for each value, whether it is kept. Values that are never needed again count as kept.
        peak: the peak in bytes, as by ``simulate``.
        seconds: the time of the repeated operators.
        seconds_bound: no choice that satisfies the request (the budget of ``CheckpointPlans.within``, else ``peak``)
            repeats operators for less time. Equal to ``seconds`` if the plan is proven optimal.
        held: for each value that is not kept, whether a segment that recomputes it holds it, as in ``simulate``.
            ``None`` if checkpoints are not nested.
        forms: for each value, the index of its stored form, or -1, as in ``simulate``. ``None`` if no value has a form.
        variance: the square of the gradient's relative error.
    """

    kept: tuple[bool, ...]
    peak: int
    seconds: float
    seconds_bound: float
    held: tuple[bool, ...] | None = None
    forms: tuple[int, ...] | None = None
    variance: float = 0.0


@dataclass(frozen=True)
class CheckpointPlans:
    """The Pareto front of the known plans of a step: none has both a higher peak and more seconds than another.

    Attributes:
        step: the step that was planned.
        front: the plans, by rising peak and falling seconds. The first has the lowest peak, the last repeats nothing.
        exact: whether all choices without nested checkpoints were tried. Then no plan without nesting is missing, and
            ``front`` has no nested plans. The bounds then hold for plans without nesting, and otherwise for all plans.
        peak_bound: no choice has a lower peak. Equals the first plan's peak if ``exact``.
        steps: the number of simulated events and examined partial solutions.
        variance: the requested bound: no plan has a larger variance.
    """

    step: TrainingStep = field(repr=False)
    front: tuple[CheckpointPlan, ...]
    exact: bool
    peak_bound: int
    steps: int
    variance: float = 0.0

    def within(self, budget: int) -> CheckpointPlan:
        """Return the plan with the least repeated time within a peak of ``budget`` bytes.

        A larger budget never takes more time.

        Raises:
            TypeError: ``budget`` is not an int.
            ValueError: no known plan fits. The message names the smallest budget for which one is known.
        """
        require_int("budget", budget)
        fitting = [plan for plan in self.front if plan.peak <= budget]
        if not fitting:
            least = self.front[0].peak
            proof = "" if self.exact else f" (none is possible below {self.peak_bound})"
            raise ValueError(f"budget must be at least {least} bytes, the least peak of all plans{proof}, got {budget}")
        plan = fitting[-1]
        if self.exact:
            return plan
        # A larger budget than the plan's before any is used does not fit in int64.
        asked = min(budget, self.front[-1].peak)
        (bound,) = _native.least_seconds_bounds(self.step._native(), [asked], self.variance)
        return replace(plan, seconds_bound=min(bound, plan.seconds))


def checkpoint_plans(step: TrainingStep, *, max_steps: int | None = None, variance: float = 0.0) -> CheckpointPlans:
    """Find the plans that trade peak bytes for the time of recomputing and of stored forms.

    Every plan is measured by ``simulate``. With few values all choices are tried. Otherwise plans come from two
    searches. The first is dynamic programming over the sequence of operators, with the open segments in its state
    (after the cuts of Kusumoto et al., "A graph theoretic framework of recomputation algorithms for memory-efficient
    backpropagation", NeurIPS 2019), for many prices of a second and bounds on a segment. The second is a local search
    at 20 budgets between the lowest peak and that of keeping everything. A quarter of the steps goes into nested
    checkpoints: dynamic programming cuts the sequence into groups, and a kept value that only its own group needs
    becomes ``held``, as in ``simulate``. They take less memory if kept values are most of the peak.

    If values have forms, a search of twice as many steps follows, whose plans are at least as good. It uses a price of
    a second and a price of a unit of variance, which bisection finds. Each stored value takes the form that costs
    least, including the noise of all values that are recomputed from it, and the recomputed values are chosen again at
    these costs. At each of 20 budgets the price is the one that just fits; local search changes forms and kept values,
    together and one by one.

    The bounds limit how far from the optimum plans can be, nested or not: ``peak_bound`` follows from the bytes that
    every choice has alive at an event, ``seconds_bound`` from the least cost of the bytes above the budget.

    The same step gives the same plans. Keeping everything, unchanged unless it is ``formed``, is always among them or
    beaten by one of them. Other Python threads run during the search.

    Args:
        step: the step to plan.
        max_steps: bounds the time (15 to 50 ns a step). ``None``: as many as 10,000 simulations take, and three times
            as many if values have forms.
        variance: the largest variance that a plan may have. 0: only forms without noise.

    Raises:
        TypeError: ``step`` is not a ``TrainingStep``, ``max_steps`` not an int, or ``variance`` not a number.
        ValueError: ``max_steps`` is out of range, or ``variance`` is negative, not finite, or less than the variance of
            keeping everything, if values are ``formed``.
    """
    require_step(step)
    if max_steps is None:
        max_steps = (
            (3 if any(step.forms) else 1) * _SIMULATIONS * (2 * len(step.reads) + len(step.backward) + len(step.nbytes))
        )
    require_steps(max_steps)
    require_amount("variance", variance)
    if any(step.formed):
        least = simulate(step, [True] * len(step.nbytes)).variance
        if least > variance:
            raise ValueError(f"variance must be at least {least}, its value when everything is kept, got {variance}")
    native = step._native()
    found, exact, steps = _native.find_plans(native, max_steps, float(variance))
    peaks = [peak for *_, peak, _, _ in found]
    bounds = (
        [seconds for *_, seconds, _ in found] if exact else _native.least_seconds_bounds(native, peaks, float(variance))
    )
    front = tuple(
        CheckpointPlan(
            tuple(rank == 0 for rank in ranks),
            peak,
            seconds,
            min(bound, seconds),
            tuple(rank == 1 for rank in ranks) if nested else None,
            tuple(forms) if forms else None,
            noise,
        )
        for (ranks, forms, nested, peak, seconds, noise), bound in zip(found, bounds, strict=True)
    )
    return CheckpointPlans(
        step,
        front,
        exact,
        peaks[0] if exact else _native.least_peak_bound(native, float(variance)),
        steps,
        float(variance),
    )


def most_exact_plan(step: TrainingStep, budget: int, seconds: float, *, max_steps: int | None = None) -> CheckpointPlan:
    """Find the plan of the least variance within ``budget`` bytes and ``seconds``, to about 2 %.

    Args:
        step: the step to plan.
        budget: the largest peak, in bytes.
        seconds: the extra time that the plan may take besides the step.
        max_steps: as in ``checkpoint_plans``, for each of the about 20 searches that bisect the variance.

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: no known plan fits, or ``seconds`` is negative or not finite.
    """
    require_int("budget", budget)
    require_amount("seconds", seconds)

    def fitting(variance: float) -> CheckpointPlan | None:
        front = checkpoint_plans(step, max_steps=max_steps, variance=variance).front
        plans = [plan for plan in front if plan.peak <= budget and plan.seconds <= seconds]
        return min(plans, key=lambda plan: plan.variance, default=None)

    best = None if any(step.formed) else fitting(0.0)
    if best is not None:
        return best
    # Each value's noise counts for all that is made of it, at most.
    noise = sum(max((form.noise for form in row), default=0.0) for row in step.forms)
    best = fitting(max(noise * sum(step.weights), 1e-300))
    if best is None:
        raise ValueError(f"found no plan within budget={budget} bytes and seconds={seconds}; raise one of them")
    low = 0.0
    while best.variance > 1.02 * low:
        variance = math.sqrt(low * best.variance) if low else best.variance / 16
        if any(step.formed) and simulate(step, [True] * len(step.nbytes)).variance > variance:
            found = None
        else:
            found = fitting(variance)
        if found is None:
            low = variance
        else:
            best = found
    return best


def require_steps(max_steps: int) -> None:
    """``max_steps`` is an int in range."""
    require_int("max_steps", max_steps)
    if not 0 <= max_steps < 1 << 40:
        raise ValueError(f"max_steps must be from 0 to 2**40 - 1, got {max_steps}; None is the default")
