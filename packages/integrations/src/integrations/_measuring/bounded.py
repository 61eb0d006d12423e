"""``front_of`` and ``chosen``: from bounds to the plan of a training forward that keeps to them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from torch import nn

from integrations._adaptive.measurement import Measurement
from integrations._adaptive.plan import Plan as Allotted
from integrations._adaptive.saves import Save
from integrations._adaptive.weights import measured_weights, part_of_bound, usual_weights
from integrations._common.warn import warn
from integrations._measuring.plan_error import measured_error
from integrations._measuring.sensitivities import sensitivities
from integrations._measuring.within_error import within_error
from integrations._planning.bounds import ONLY_RECOMPUTE, USUAL_ERROR, Bounds
from integrations._planning.budget import LEAST
from integrations._planning.errors import BudgetError
from integrations._planning.front import planned
from integrations._planning.menus import Menus
from integrations._planning.noted import WITH_ROUNDING
from integrations._planning.plan import Plan
from integrations._planning.search import solved_again
from integrations._planning.unmet import round_up_share
from integrations._step.capturing.loss import Loss
from integrations._step.costs.calibrating import calibrated
from integrations._step.costs.rates import constant
from integrations._step.graphs.graph import Graph
from integrations.report.words import format_bytes
from integrations.rules.levels import Level


class Weights:
    """How much noise in each value of a model changes its gradient. It is estimated by the operators that read the
    value, and once a plan rounds something, measured in one extra step.

    Args:
        model: in training mode.
        args, kwargs: the forward's.
        loss: a function from its output to what backward starts from.

    Attributes:
        found: the measurement, once there is one.
    """

    def __init__(
        self,
        model: nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        loss: Loss | None = None,
    ) -> None:
        self._step: Callable[[], Measurement | None] | None = partial(sensitivities, model, args, kwargs, loss)
        self.found: Measurement | None = None
        self._seen: list[tuple[Graph, Sequence[Save]]] = []  # kept until there is a measurement

    def __call__(self, graph: Graph, saves: Sequence[Save]) -> tuple[float, ...]:
        """The weights of a graph's values, from what its capture saw saved."""
        if self._step is not None:
            self._seen.append((graph, tuple(saves)))
        return usual_weights(graph, saves) if self.found is None else measured_weights(graph, saves, self.found)

    def close(self, found: Measurement | None = None) -> None:
        """Ends measuring, and frees the inputs.

        Args:
            found: what another rank has measured.
        """
        self._step, self._seen = None, []
        self.found = self.found if found is None else found

    def measured(self, front: Plan) -> Plan:
        """The front with measured weights. Measures if nothing was measured yet. Returns the same front if it cannot be
        measured, or has these weights already."""
        if self._step is None:
            return front
        step, self._step = self._step, None  # the step holds inputs
        seen, self._seen = self._seen, []
        self.found = found = step()
        if found is None:
            return front

        def weighted(graph: Graph | None, menus: Menus | None) -> Menus | None:
            saves = next((saves for known, saves in seen if known is graph), None)
            if graph is None or menus is None or saves is None:
                return menus
            return menus.weighted(measured_weights(graph, saves, found))

        menus = weighted(front.graph, front.menus)
        return solved_again(front, menus, weighted(front.rounded, front.rounded_menus))


def front_of(
    model: nn.Module,
    level: Level,
    bounds: Bounds,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    real: bool = False,
    loss: Loss | None = None,
    holds_outputs: bool | None = None,
    weights: Weights | None = None,
    bits: Allotted | None = None,
    estimates: bool = False,
) -> Plan:
    """Return the plan of the least memory for a forward, among those that keep to a bound on the error.

    Args:
        model: in training mode.
        level: if it is off, each value waits in the store that is best for it; otherwise everything is stored as it
            says, or recomputed.
        bounds: the bounds; those on memory and time are left to ``chosen``.
        args, kwargs: the forward's.
        real, loss, holds_outputs: as in ``integrations.checkpoint.plan``.
        weights: the weights of values; ``None`` estimates them by the operators.
        bits: the bits that an adaptive level gives its tensors, once it has measured them.
        estimates: whether an error of ``within`` says what rounding would allow. The captures are kept until then.
    """
    return planned(
        model,
        level,
        args,
        kwargs,
        bounds,
        real=real,
        loss=loss,
        holds_outputs=holds_outputs,
        weights=usual_weights if weights is None else weights,
        rating=constant if bounds.stores == ONLY_RECOMPUTE else calibrated,
        bits=bits,
        estimates=estimates,
    )


def chosen(
    front: Plan,
    bounds: Bounds,
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    weights: Weights | None,
) -> Plan:
    """Return the best plan of a front within bounds. If the plan rounds, or no plan is within bounds that allow
    rounding, measure sensitivities and the error of the plan that follows. Plan again if that error is too far off.

    Args:
        front: from ``front_of``.
        bounds: to keep to. If they cannot be met and fall back, the plan of the least memory is taken, with a warning.
        model, args, kwargs, weights: as for ``front_of``.

    Raises:
        BudgetError: no plan keeps to the bounds. The message names the least that there is.
    """
    found = front
    try:
        plan = within(front, bounds)
        if weights is not None and (plan.choice.rounds or plan.accumulating.choice.rounds):
            found = weights.measured(front)
    except BudgetError as error:
        found = front if weights is None else weights.measured(front)
        if found is front:
            plan = _least(front, bounds, error)
    if found is not front:
        try:
            plan = within(found, bounds)
        except BudgetError as error:
            plan = _least(found, bounds, error)
    try:
        return with_error_measured(plan, model, args, kwargs)
    except BudgetError as error:
        return with_error_measured(_least(plan, bounds, error), model, args, kwargs)


def _least(front: Plan, bounds: Bounds, error: BudgetError) -> Plan:
    """Return the plan of the least memory if the bounds fall back to it.

    Raises:
        BudgetError: they do not. It is the error that is given.
    """
    if not bounds.falls_back or front.memory == LEAST:
        raise error
    warn(f"{error}. The plan of the least memory is followed, as fallback='{LEAST}' asks for")
    return front.within(LEAST)


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
    plain = exact.uncompressed_peak
    share = f", {round_up_share(least, plain)} of the plain step's" if 0 < least <= plain else ""
    return (
        f". With error={USUAL_ERROR}, which allows rounding, the least is {format_bytes(least)}{share}, by an estimate "
        "that measures nothing"
    )


def with_error_measured(plan: Plan, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Plan:
    """The plan with its measured error, or another plan whose error is within the bound. See ``chosen``."""
    if plan.compressed or plan.error == 0:
        return plan
    return within_error(
        plan, lambda one: measured_error(model, args, kwargs, one, one.loss), part=part_of_bound(plan.graph)
    )
