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
    """A choice of values to keep.

    Attributes:
        kept: of each value, whether it is kept. Values that nothing needs again count as kept.
        peak: the most bytes at once, as ``simulate`` has it.
        seconds: of the operators that are repeated.
        seconds_bound: no choice that fits what was asked for (the budget of ``CheckpointPlans.within``, else ``peak``)
            repeats operators of fewer seconds. Equal to ``seconds`` where the plan is proven optimal.
        held: of each value that is not kept, whether a segment that recomputes it holds it, as in ``simulate``.
            ``None`` where checkpoints are not nested.
        forms: of each value, the form in which it waits, or -1, as in ``simulate``. ``None`` where all are as they are.
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
    """The plans of a step that none other beats in both peak and seconds, as far as they are known.

    Attributes:
        step: the numbers that they are for.
        front: by rising peak and falling seconds. The first has the least peak, the last repeats nothing.
        exact: whether all choices without nested checkpoints were tried: then none of these is missing, and there are
            no others. The bounds are of plans without nesting then, and else of all.
        peak_bound: no choice has a lower peak. Equals the first plan's peak where ``exact``.
        steps: events that were simulated and partial solutions that were looked at.
        variance: what was asked for: no plan's is larger.
    """

    step: TrainingStep = field(repr=False)
    front: tuple[CheckpointPlan, ...]
    exact: bool
    peak_bound: int
    steps: int
    variance: float = 0.0

    def within(self, budget: int) -> CheckpointPlan:
        """The plan that repeats the least within a peak of ``budget`` bytes. More budget never takes more seconds.

        Raises:
            TypeError: ``budget`` is not an int.
            ValueError: no known plan fits. The message names the least budget that one does.
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
    """Finds out what not keeping values as they are can save in bytes, and what it costs in seconds.

    Every plan is measured by the simulation that ``simulate`` is. With few values all choices are tried. Otherwise
    plans come from dynamic programming over the row of operators, with the segments that are open in its state (after
    the cuts of Kusumoto et al., "A graph theoretic framework of recomputation algorithms for memory-efficient
    backpropagation", NeurIPS 2019), for many prices of a second and bounds on a segment, and from a local search at 20
    budgets between the least peak and that of keeping everything. A quarter of the steps goes into nested checkpoints:
    the row is cut into groups, by dynamic programming once more; what only its own group needs of what a plan keeps is
    held, as it is in ``simulate``. They take less memory where what is kept is most of the peak.

    Where values have forms, a search of twice as many steps follows on that, whose plans are at least as good. For a
    price of a second, and one of a unit of variance that is found by bisection, each value that waits takes the form
    that costs least, with the noise of all that is recomputed of it; what is recomputed is chosen anew at what keeping
    costs then; at each of 20 budgets the price is the one that just fits; and local search changes forms and what is
    kept, together and one by one.

    The bounds say how far from the best plans can be, nested or not: ``peak_bound`` follows from what every choice has
    alive at an event, ``seconds_bound`` from what the bytes above the budget cost at least.

    The same step gives the same plans. Keeping everything, as it is unless it is ``formed``, is always among them or
    beaten by one of them. Other Python threads run meanwhile.

    Args:
        step: the numbers.
        max_steps: bounds the time (15 to 50 ns a step). ``None``: as many as 10,000 simulations take, and three times
            as many where values have forms.

        variance: no plan's may be larger. 0: only forms without noise.

    Raises:
        TypeError: ``step`` is no ``TrainingStep``, ``max_steps`` no int, or ``variance`` no number.
        ValueError: ``max_steps`` is out of range, or ``variance`` negative, not finite, or less
            than keeping everything has, where values are ``formed``.
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
    """Finds the plan of the least variance within a peak of ``budget`` bytes and so many seconds, to about 2 %.

    Args:
        step: the numbers.
        budget: in bytes.
        seconds: that the plan may take besides the step.
        max_steps: as in ``checkpoint_plans``, of each of the searches that bisect the variance, about 20.

    Raises:
        TypeError: an argument is of another type.
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
