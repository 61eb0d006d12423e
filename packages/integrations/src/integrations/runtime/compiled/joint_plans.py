"""``JointPlan``: what a compiled graph keeps and recomputes, and whether that is within its model's budget."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, NoReturn
from weakref import WeakKeyDictionary

from torch.fx import Graph

from integrations.planner.budget import allowed_bytes
from integrations.planner.errors import BudgetError
from integrations.planner.plan import Plan
from integrations.report.words import format_bytes

_here = threading.local()  # .failure: the last error for which a graph was refused in this thread

_OTHER_BITS = 1.05
"""The margin of a budget that a message names: a plan for it is measured anew, and may need more bits."""

SHARED = 0.9
"""The part of a budget that the graphs share into which a forward breaks. The rest is for what they hand on."""

_OTHER_PLANS = 1.05
"""The margin of a budget with which some of these graphs would get other plans: what the search counts of a plan may be
less than what is counted once torch has divided the graph."""

RUN_EAGER = "run the model in eager mode: torch.compiler.disable(model), and no torch.compile of its parts"
"""What messages suggest where compiled code cannot follow a plan."""

JOINT = "joint"
"""The key in ``Plan.others`` of the plan that a compiled graph follows."""


class Share(NamedTuple):
    """A plan that one of several graphs would get.

    Attributes:
        least: the smallest share of a budget with which it would get it, in bytes.
        peak, held: bytes, as in ``JointPlan``.
    """

    least: int
    peak: int
    held: int


@dataclass(frozen=True)
class JointPlan:
    """What is kept, rounded and recomputed of a joint graph.

    Attributes:
        recomputed: how many values backward recomputes.
        peak: bytes of the activation peak, as counted; of a whole forward, beside the other forwards in flight.
        held: bytes that are alive between forward and backward.
        gradients: bytes of parameters' gradients that the peak leaves out, as far as they are known.
        rounded: how many values wait in fewer bits.
        variance: the predicted square of the gradient's relative error.
        shares: of one of several graphs, the plans that it would get with other budgets; the least share first.
    """

    recomputed: int
    peak: int
    held: int
    gradients: int = 0
    rounded: int = 0
    variance: float = 0.0
    shares: tuple[Share, ...] = ()

    @property
    def error(self) -> float:
        """The predicted relative error of the gradient."""
        return math.sqrt(self.variance)


joint_plans: WeakKeyDictionary[Graph, JointPlan] = WeakKeyDictionary()
"""By the forward graph that inductor gets: what the joint graph's plan has found."""


def require_together(plan: Plan, graphs: Sequence[JointPlan], beside: Sequence[JointPlan] = ()) -> None:
    """Checks a forward that has run several compiled graphs.

    Args:
        plan: the plan of the eager step.
        graphs: the graphs' plans, in the order of their runs; one that has run twice is there twice.
        beside: what eager code between the graphs takes.

    Raises:
        BudgetError: together they exceed the budget.
    """
    peak, held = _add(plan, graphs, beside)
    together = plan.others[JOINT] = JointPlan(sum(one.recomputed for one in graphs), peak, held)
    what = "its graph" if len(graphs) == 1 else f"the {len(graphs)} graphs into which it breaks"
    eager = " and the eager code between them" if any(one.held for one in beside) else ""
    require_budget(plan, together, what + eager, enough=_find_enough(plan, graphs, beside, peak))


def _add(plan: Plan, graphs: Sequence[JointPlan], beside: Sequence[JointPlan]) -> tuple[int, int]:
    """The peak of graphs that run one after the other, and what they hold between forward and backward, in bytes.

    Args:
        plan, graphs, beside: as for ``require_together``. Of ``beside``, what takes nothing is left out: what the
            graphs hold when no gradients exist yet would be compared with a budget for what a step takes beside its
            gradients.
    """
    found = [*graphs, *(one for one in beside if one.peak)]
    held = sum(one.held for one in found)
    # A gradient to which several graphs add is left out of the peak of each, and exists once in the end.
    again = max(0, sum(one.gradients for one in graphs) - plan.graph.gradients)
    return again + plan.graph.in_flight * held + max(one.peak - one.held for one in found), held


def _find_enough(plan: Plan, graphs: Sequence[JointPlan], beside: Sequence[JointPlan], peak: int) -> int:
    """The bytes of a budget that several graphs keep to. With the bytes that they take now, each of them would have
    another share, and could get a plan that takes more.

    Args:
        plan, graphs, beside: as for ``require_together``.
        peak: the bytes that they take now.
    """
    budget = peak
    while True:
        others = [_with_share(one, int(SHARED * budget)) for one in graphs]
        taken = _add(plan, others, beside)[0]
        if any(other is not one for other, one in zip(others, graphs, strict=True)):
            taken = int(_OTHER_PLANS * taken)
        if taken <= budget:
            return budget
        budget = taken  # there are finitely many plans


def _with_share(graph: JointPlan, share: int) -> JointPlan:
    """The plan that a graph would get with a share of a budget; the one that it has, if that is its least."""
    possible = [one for one in graph.shares if one.least <= share]
    if len(possible) < 2:
        return graph
    return JointPlan(graph.recomputed, possible[-1].peak, possible[-1].held, graph.gradients)


def find_allowed(plan: Plan, plain: int = 0) -> int:
    """The bytes of a plan's budget; of its peak if it has none, or asks for the least.

    Args:
        plan: the plan.
        plain: bytes of the step that keeps everything, if it may take more than planned.
    """
    asked = allowed_bytes(plan.memory, max(plan.whole, plain))
    return plan.peak if asked is None else asked


def has_bytes(plan: Plan) -> bool:
    """Whether the compiled step has a budget in bytes that it may not exceed."""
    return plan.bounds.promises_bytes


def has_promise(plan: Plan) -> bool:
    """Whether a step that does not follow the plan breaks what the user was promised."""
    return plan.bounds.promises_memory


def require_budget(plan: Plan, joint: JointPlan, what: str, most: int | None = None, enough: int | None = None) -> None:
    """Checks a compiled step against its model's budget.

    Args:
        plan: the plan of the eager step.
        joint: the compiled step's.
        what: what was compiled, in words.
        most: the bytes that it may take; ``None``: those of the plan's budget.
        enough: the bytes that the message names, which the step would keep to; ``None``: those that it takes.

    Raises:
        BudgetError: the step exceeds the budget, and may not.
    """
    most = find_allowed(plan) if most is None else most
    if joint.peak <= most or not has_bytes(plan):
        return
    enough = joint.peak if enough is None else enough
    least = int(_OTHER_BITS * enough) if joint.rounded else enough
    refuse(
        f"{plan.model} under torch.compile: {what} would take {joint.peak} bytes ({format_bytes(joint.peak)}) at its "
        f"peak, and memory={plan.memory!r} allows {most}. torch.compile decomposes operators, so other tensors are "
        f"alive at once than in the eager step. Pass memory={least}, or fallback='least', or {RUN_EAGER}"
    )


def refuse(why: str) -> NoReturn:
    """Raises ``BudgetError`` for a plan that compiled code cannot follow, in its forward if torch is compiling it."""
    error = _here.failure = BudgetError(why)
    raise error


def take_failure(error: BaseException | None) -> BudgetError | None:
    """The error for which a graph was not divided in this thread, if torch has wrapped it in this one."""
    failure: BudgetError | None = getattr(_here, "failure", None)
    _here.failure = None
    seen = list[BaseException]()
    while failure is not None and error is not None and error is not failure and error not in seen:
        seen.append(error)
        error = getattr(error, "inner_exception", None) or error.__cause__ or error.__context__
    return None if error is None else failure
