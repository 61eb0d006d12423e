"""``within_less``: the plan for a tenth less memory than another plan takes, for a step that ran out of memory."""

from __future__ import annotations

from dataclasses import replace

from integrations.planner.budget import LEAST, Budget, read_fraction
from integrations.planner.errors import BudgetError
from integrations.planner.plan import Plan
from integrations.report.words import format_bytes

_SHARE = 0.9


def less_memory(followed: Plan) -> Budget | None:
    """Return the budget that is a tenth less than a plan takes: a fraction if its budget is one, otherwise bytes;
    ``None`` if it has no budget that can be lowered."""
    if followed.memory in (None, LEAST):
        return None
    share = _SHARE * followed.peak
    return int(share) if read_fraction(followed.memory) is None else share / followed.uncompressed_peak


def less_in_words(followed: Plan) -> str:
    """Return what to pass as ``memory`` for a tenth less than a plan takes; empty if that cannot be lowered."""
    less = less_memory(followed)
    if less is None:
        return ""
    return f"memory={less:.3g}" if isinstance(less, float) else f"memory={format_bytes(int(less))!r}"


def within_less(plan: Plan, followed: Plan) -> Plan:
    """Return the plan of the same captures for a tenth less memory.

    Args:
        plan: the plan for the forward's inputs.
        followed: what the forward followed: ``plan``, or the plan beside it for the state of its gradients.

    Raises:
        BudgetError: there is no such plan.
    """
    memory = less_memory(followed)
    if memory is None:
        raise BudgetError("the plan has no budget that can be lowered")
    found = plan.within(memory, plan.time)
    graph = followed.graph
    other = found.accumulating if graph.accumulates else found.clearing if graph.clears else found
    if other.peak >= followed.peak:
        raise BudgetError(f"no plan takes less than {format_bytes(followed.peak)}")
    if found.choice.rounds and found.measured is None:
        found = replace(found, unmeasured="the plan was made when memory had run out")
    return found
