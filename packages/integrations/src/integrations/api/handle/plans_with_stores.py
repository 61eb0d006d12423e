"""``Fronts``: the plans of a model in use whose values may wait in stores, or are stored as a level says."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import nn

from integrations.api.error_control.error_model import ErrorModel
from integrations.api.error_control.plan_within_bounds import chosen, weighed_again
from integrations.capture.graphs.signature import Signature
from integrations.planner.alternatives import marked
from integrations.planner.bounds import Bounds
from integrations.planner.candidates import usual
from integrations.planner.errors import BudgetError
from integrations.planner.plan import Plan
from integrations.planner.plan_with_stores import planned, rating_for
from integrations.planner.plans import Plans, Shapes
from integrations.planner.sensitivity.bit_plan import BitPlan
from integrations.policies.levels import Level


class Fronts(Plans):
    """Makes plans whose values may wait in stores, or are stored as a level says.

    Args:
        plan: the first plan.
        level: the model's level.
        errors: predicts the errors of plans; ``None`` if they round nothing, or as a level says.
        bits: the bits that an adaptive level gives its tensors.
        shapes: whether inputs of other shapes are planned for, or refused.
        asked: as for ``Plans``; its fallback also tells what happens if a measured error leaves no plan within the
            bounds.
        version: of the predictions by which the first plan was made; ``None``: the present one.
    """

    def __init__(
        self,
        plan: Plan,
        level: Level,
        errors: ErrorModel | None = None,
        bits: BitPlan | None = None,
        shapes: Shapes = "replan",
        asked: Bounds | None = None,
        version: int | None = None,
    ) -> None:
        super().__init__(plan, shapes, asked)
        self._level, self._errors, self._bits = level, errors, bits
        # By inputs, by which predictions the plan was made.
        if version is None:
            version = 0 if errors is None else errors.version
        self._versions = dict.fromkeys(self._plans, version)

    @property
    def version(self) -> int:
        """The version of the predictions by which the last plan was made."""
        return self._versions.get(self.last.graph.inputs, 0)

    def _made(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], real: bool) -> Plan:
        made = super()._made(model, args, kwargs, real)
        if self._errors is None or not made.choice.rounds:
            return made
        self._versions[Signature.of(args, kwargs)] = self._errors.version
        try:
            return chosen(made, made.bounds, self._errors)
        except BudgetError as error:
            least = made.within(error=0.0)
            self._exceed_bounds(least, Signature.of(args, kwargs), why=str(error))
            return least

    def _planned(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], real: bool) -> Plan:
        first = self._first
        bounds = replace(self._bounds, memory=None, time=None)
        made = planned(
            model,
            self._level,
            args,
            kwargs,
            bounds,
            real=real,
            loss=first.loss,
            holds_outputs=first.graph.holds_outputs,
            rating=rating_for(bounds),
            weigh=usual if self._errors is None else self._errors.weigh,
            bits=self._bits,
        )
        return marked(made) if first.graph.double_backward else made

    def _corrected(self, plan: Plan) -> Plan:
        """Return the plan for the same inputs by the newest predictions of errors.

        Raises:
            BudgetError: no plan keeps to the bounds by these.
        """
        inputs, errors = plan.graph.inputs, self._errors
        if errors is None or not plan.error or self._versions.get(inputs) == errors.version:
            return plan
        try:
            found = chosen(weighed_again(plan, errors), replace(plan.bounds, fallback=self._asked.fallback), errors)
        except BudgetError as error:
            raise BudgetError(
                f"the gradient's error of {plan.model} was {errors.last}. A plan that rounds less needs more memory "
                f"than the budget: {error}. Pass fallback='least' to continue with more memory"
            ) from None
        self._versions[inputs] = errors.version
        self._refused.clear()
        found = plan if found.choice == plan.choice else found
        self._plans[inputs] = found
        return found
