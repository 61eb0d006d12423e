"""``within_error``: a plan whose measured error is within the bound that was asked for."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from integrations.adaptive.one_step import Unmeasured
from integrations.adaptive.ranks import largest
from integrations.checkpoint.planning.menus import Menus
from integrations.checkpoint.planning.plan import Plan
from integrations.checkpoint.planning.search import Captures, solved
from integrations.warn import warn

Measure = Callable[[Plan], float]
"""The relative error of the gradient under a plan; raises ``Unmeasured`` where that cannot be found out."""

_MOST = 2  # plans that are solved anew
_ABOVE = 1.1  # times the error that was found, what the next plan is predicted to have
_LOW = 0.6  # of the bound; below that, a plan that was held back by the bound may be made smaller or faster


def within_error(plan: Plan, measure: Measure, *, among_ranks: bool = False) -> Plan:
    """The plan with its measured error; or another for what it was asked for, with weights that fit the measurement.

    Where the measured error is above the bound, all weights are multiplied by what was measured over what was
    predicted, squared, and the plan is solved again, at most twice. So it is where the measured error is much less and
    the bound has held the plan back.

    Args:
        plan: for an error, a memory, a time.
        measure: measures one.
        among_ranks: whether each rank of the process group calls this with the same plan at the same time: the largest
            error of all counts, and all come to the same plan.

    Raises:
        ValueError: with such weights, nothing fits what was asked for.
    """
    good: Plan | None = None
    for left in range(_MOST, -1, -1):
        if plan.choice.variance == 0:
            return plan
        found, why = _measured(plan, measure)
        if among_ranks:
            found = largest(found)
        if math.isnan(found):
            return good or replace(plan, unmeasured=why or "another rank could not measure it")
        if found <= plan.error:
            good = plan = replace(plan, measured=found)
            held_back = plan.choice.error > _LOW * plan.error
            if not left or found > _LOW * plan.error or not held_back:
                return plan
        elif good is not None:
            return good
        elif not left:
            break
        plan = _reweighted(plan, (_ABOVE * max(found, plan.error / 100) / plan.choice.error) ** 2)
    warn(
        f"the gradient's relative error under the plan of {plan.model} measures {found:.3g}, above error={plan.error}, "
        f"after {_MOST} plans that were to lower it; ask for a lower error, or for error=0"
    )
    return replace(plan, measured=found)


def _measured(plan: Plan, measure: Measure) -> tuple[float, str]:
    """The error; or NaN, and why there is none."""
    try:
        return measure(plan), ""
    except Unmeasured as error:
        return math.nan, str(error)


def _reweighted(plan: Plan, factor: float) -> Plan:
    """A plan for what this one was asked for, with the weights of all values multiplied."""
    captures = Captures(
        plan.graph, _times(plan.menus, factor), plan.rounded, _times(plan.rounded_menus, factor), plan.level
    )
    made = solved(plan.model, captures, plan.error, plan.objective, plan.capture_seconds)
    made = replace(made, loss=plan.loss, search_seconds=plan.search_seconds + made.search_seconds)
    return made.within(*plan.asked) if plan.is_bounded else made


def _times(menus: Menus | None, factor: float) -> Menus | None:
    return None if menus is None else menus.weighted(tuple(factor * weight for weight in menus.weights))
