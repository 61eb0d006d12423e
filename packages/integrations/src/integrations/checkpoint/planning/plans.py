"""``Plans``: the plans of a model that is in use: for other shapes, and for a forward that was not as captured."""

from __future__ import annotations

from typing import Any, Literal

from torch import nn

from integrations.checkpoint.capturing.capture import capture
from integrations.checkpoint.graphs.schedule import Schedule
from integrations.checkpoint.graphs.sharding import whole_parameters
from integrations.checkpoint.graphs.signature import Signature
from integrations.checkpoint.planning.budget import Budget
from integrations.checkpoint.planning.plan import Plan
from integrations.checkpoint.planning.planner import plan_of_graph
from integrations.report import format_bytes
from integrations.warn import warn

Shapes = Literal["replan", "refuse"]

_MOST_CAPTURES = 2
"""After as many that turned out wrong: the model may have changed, and the last one is on real tensors."""

_MOST_PLANS = 8
"""A model whose inputs are never alike is not planned for without end."""


class Plans:
    """A model's plans, by what their inputs look like.

    Args:
        plan: the first.
        shapes: whether inputs of other shapes are planned for, or refused.

    Attributes:
        last: the one that was followed last.
    """

    def __init__(self, plan: Plan, shapes: Shapes) -> None:
        self.last = plan
        self._shapes = shapes
        self._plans = [plan]
        self._wrong: list[Plan] = []  # those whose forward was another one than was captured

    def plan_for(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Plan, Schedule]:
        """The plan for a forward with these inputs, and what it means for each operator.

        Raises:
            ValueError: they are of other shapes, and these are refused.
        """
        inputs = Signature.of(args, kwargs)
        plan = next((plan for plan in self._plans if plan.graph.inputs == inputs), None)
        if plan is not None and self._is_wrong(plan) and self._tries(plan) <= _MOST_CAPTURES:
            real = self._tries(plan) == _MOST_CAPTURES
            if not (real and whole_parameters(model)):  # of which there are no real tensors to capture with
                made = self._made(model, args, kwargs, real)
                self._plans = [one for one in self._plans if one is not plan]
                plan = made
        elif plan is None:
            fitting = [plan for plan in self._plans if inputs.within(plan.graph.inputs)]
            if fitting:
                self.last = min(fitting, key=lambda plan: plan.plain_peak)
                return self.last, self.last.schedule_of_any_sizes
            if self._shapes == "refuse":
                raise ValueError(
                    f"inputs must be of the shapes and under the autocast that the plan was made for, "
                    f"{self._plans[0].graph.inputs}, or smaller, got {inputs}; plan for these, or apply the plan with "
                    "shapes='replan'"
                )
            if len(self._plans) >= _MOST_PLANS:
                return self.last, self.last.schedule_of_any_sizes
            plan = self._made(model, args, kwargs, real=False)
        self.last = plan
        return plan, plan.schedule

    def note_astray(self, plan: Plan, where: str) -> None:
        """A forward was not the one that the plan is for."""
        if self._is_wrong(plan):
            return
        self._wrong.append(plan)
        again = "; the next forward is preceded by another capture" if self._tries(plan) <= _MOST_CAPTURES else ""
        warn(
            f"{plan.model}'s forward is not the one that was captured: {where}. What follows is kept: gradients are "
            f"right and memory is not saved{again}"
        )

    def _made(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], real: bool) -> Plan:
        first = self.last
        made = self._planned(model, args, kwargs, real)
        if first.budget is not None:
            try:
                made = self._within(made, first.budget)
            except ValueError:
                warn(
                    f"no plan of {first.model} for inputs {made.graph.inputs} fits the budget {first.budget!r}: the "
                    f"least activation peak, {format_bytes(made.peak)}, is taken"
                )
        self._plans.append(made)
        return made

    def _planned(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], real: bool) -> Plan:
        graph = capture(model, args, kwargs, real=real, measure=self.last.graph.measured)
        return plan_of_graph(self.last.model, graph, self.last.objective)

    def _within(self, plan: Plan, budget: Budget) -> Plan:
        return plan.within(budget)

    def _is_wrong(self, plan: Plan) -> bool:
        """Whether a forward was another one than this very plan's: a later capture may have come to an equal one."""
        return any(plan is wrong for wrong in self._wrong)

    def _tries(self, plan: Plan) -> int:
        """How many captures with these inputs have turned out wrong."""
        return sum(wrong.graph.inputs == plan.graph.inputs for wrong in self._wrong)
