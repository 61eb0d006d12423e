"""``unrounded``: make a plan without rounding, for steps that differentiate their gradients."""

from __future__ import annotations

from dataclasses import replace

from integrations._utils.warn import warn
from integrations.planner.budget import LEAST
from integrations.planner.errors import BudgetError
from integrations.planner.plan import Plan


def unrounded(plan: Plan, falls_back: bool = False) -> Plan:
    """Return the plan for the same memory and time that rounds nothing, from the same captures.

    Args:
        plan: a plan that may round.
        falls_back: whether to return the plan of the least memory if there is none, with a warning.

    Raises:
        BudgetError: there is none. The message names the lowest possible bound.
    """
    try:
        found = plan.within(plan.memory, plan.time, 0.0)
    except ValueError as error:
        told = (
            f"the step of this {plan.model} differentiates its gradients (create_graph=True), so its plan must not "
            f"round: {error}"
        )
        if not falls_back:
            raise BudgetError(told) from None
        warn(f"{told}. The plan of the least memory is followed, as fallback='{LEAST}' asks for")
        found = plan.within(LEAST, None, 0.0)
    return marked(found).with_also(map(marked, found.also))


def marked(plan: Plan) -> Plan:
    """Return the plan with the mark that it rounds nothing because of double backward."""
    graph = replace(plan.graph, double_backward=True)
    return replace(plan, graph=graph, rounded=None, rounded_candidates=None)
