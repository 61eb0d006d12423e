"""``chosen``: from the plan of the least memory to the one that keeps to bounds, by predicted and measured errors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from integrations._utils.warn import warn
from integrations.api.error_control.error_model import ErrorModel
from integrations.api.error_control.gradient_errors import GradientErrors, describe_errors
from integrations.planner.accumulation import WITH_ROUNDING
from integrations.planner.bounds import USUAL_ERROR, Bounds
from integrations.planner.budget import LEAST
from integrations.planner.errors import BudgetError
from integrations.planner.infeasible import round_up_share
from integrations.planner.plan import Plan
from integrations.planner.search import solved_again
from integrations.planner.sensitivity.one_step import Unmeasured
from integrations.report.words import format_bytes

_MOST_SEARCHES = 3
"""How often a search is repeated whose plan breaks the bound of a large tensor. The last one rules that out."""


def chosen(front: Plan, bounds: Bounds, errors: ErrorModel | None) -> Plan:
    """Return the best plan of a front within bounds, by predicted errors. If it would break the bound of a large
    parameter tensor, search again with more weight on that.

    Args:
        front: from ``planned``.
        bounds: to keep to. If they cannot be met and fall back, the plan of the least memory is taken, with a warning.
        errors: predicts errors; ``None`` for plans that round nothing.

    Raises:
        BudgetError: no plan keeps to the bounds. The message names the least that there is.
    """
    least: dict[str, float] = {}
    for left in range(_MOST_SEARCHES, 0, -1):
        plan = _within_or_least(front, bounds, errors)
        if errors is None or not plan.choice.rounds:
            return plan
        more = errors.least_shares(plan, least, last=left == 1)
        if more is None:
            return plan
        least, front = more, weighed_again(front, errors, more)
    return _within_or_least(front, bounds, errors)


def weighed_again(front: Plan, errors: ErrorModel, least: Mapping[str, float] | None = None) -> Plan:
    """Return the front with the weights that predict errors now, from the same captures. See ``ErrorModel.weigh``."""
    if front.rounded is None or front.rounded_candidates is None:
        return front
    return solved_again(front, front.candidates, errors.weigh(front.rounded, front.rounded_candidates, least))


def _within_or_least(front: Plan, bounds: Bounds, errors: ErrorModel | None = None) -> Plan:
    """Return the best plan of a front within bounds; if there is none and they fall back, that of the least memory,
    with a warning.

    Raises:
        BudgetError: there is none, and they do not fall back. The message names memory that is enough for the bounds of
            large tensors, too.
    """
    try:
        return within(front, bounds)
    except BudgetError as error:
        if not bounds.falls_back or front.memory == LEAST:
            if errors is not None and (most := errors.strictest_shares(front)):
                return within(weighed_again(front, errors, most), bounds)
            raise
        warn(f"{error}. The plan with the least memory is used, because fallback='{LEAST}' was passed")
    return front.within(LEAST)


def measured(
    plan: Plan, bounds: Bounds, errors: ErrorModel, measure: Callable[[Plan], GradientErrors], most: int = 3
) -> Plan:
    """Return the plan with its measured error. If that is above the bound, return another plan for the same bounds
    whose error is not.

    Args:
        plan: from ``chosen``.
        bounds, errors: as for ``chosen``.
        measure: measures the errors of all gradients under a plan.
        most: how many plans are measured. The last one rounds nothing if the one before is above the bound.

    Raises:
        BudgetError: as ``chosen``.
    """
    for left in range(most - 1, -1, -1):
        if not plan.choice.rounds:
            return plan
        try:
            found = measure(plan)
        except Unmeasured as error:
            return replace(plan, unmeasured=str(error))
        except (RuntimeError, MemoryError) as error:  # such as a lack of memory, of which the step itself has enough
            return replace(plan, unmeasured=f"{type(error).__name__}: {error}")
        if found.over <= plan.error:
            return replace(plan, measured=found.relative)
        if left:
            errors.correct(plan, found)
            try:
                plan = chosen(weighed_again(plan, errors), bounds, errors)
            except BudgetError as error:
                name, worst = found.worst
                told = describe_errors(found.relative, worst, name, plan.error)
                raise BudgetError(
                    f"the measured error of the gradient is {told}, and no plan that rounds less keeps to the bounds: "
                    f"{error}"
                ) from None
    return _within_or_least(plan.within(error=0.0), bounds)


def within(front: Plan, bounds: Bounds) -> Plan:
    """Return the best plan of a front within bounds, by predicted errors.

    Raises:
        BudgetError: as ``chosen``.
    """
    try:
        return front if bounds.memory is None and bounds.time is None else front.within(bounds.memory, bounds.time)
    except BudgetError as error:
        if WITH_ROUNDING in front.others:
            error.args = (f"{error}{_estimated(front.others[WITH_ROUNDING], front)}",)
        raise
    finally:
        front.others.pop(WITH_ROUNDING, None)  # it holds what the capture saw


def _estimated(with_rounding: Callable[[], Plan], exact: Plan) -> str:
    """Return a sentence on the least memory of plans that round. Return an empty string if they cannot be made."""
    try:
        least = with_rounding().front[0].peak
    except Exception:  # whatever it is, the error about the bounds is to be seen
        return ""
    if least >= exact.front[0].peak:
        return f". By estimate, rounding (error={USUAL_ERROR}) would not lower it"
    plain = exact.whole
    share = f", {round_up_share(least, plain)} of the plain step's" if 0 < least <= plain else ""
    return (
        f". With error={USUAL_ERROR}, which allows rounding, the least memory is {format_bytes(least)}{share}, as "
        "estimated without a measurement"
    )
