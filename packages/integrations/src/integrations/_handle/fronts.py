"""``Fronts``: the plans of a model in use whose values may wait in stores, or are stored as a level says."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import nn

from integrations._adaptive.plan import Plan as Allotted
from integrations._measuring.bounded import Weights, front_of, with_error_measured
from integrations._planning.plan import Plan
from integrations._planning.plans import Plans, Shapes
from integrations._planning.unrounded import marked
from integrations.losses.head import loss_of
from integrations.rules.levels import Level


class Fronts(Plans):
    """Makes plans whose values may wait in stores, or are stored as a level says."""

    def __init__(
        self,
        plan: Plan,
        level: Level,
        weights: Weights | None = None,
        bits: Allotted | None = None,
        shapes: Shapes = "replan",
    ) -> None:
        super().__init__(plan, shapes)
        self._level, self._weights, self._bits = level, weights, bits

    def _made(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], real: bool) -> Plan:
        made = super()._made(model, args, kwargs, real)
        with loss_of(model, made.head):
            try:
                return with_error_measured(made, model, args, kwargs)
            except ValueError:
                if not made.is_bounded:
                    raise
            # The measured error exceeds the predicted one so far that no plan within it keeps to the other bounds.
            least = with_error_measured(made.within(), model, args, kwargs)
        self._tell_of_excess(least)
        return least

    def _planned(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], real: bool) -> Plan:
        first = self._first
        bounds = replace(self._bounds, memory=None, time=None)
        if self._weights is None and bounds.error:
            self._weights = Weights(model, args, kwargs, first.loss)
        made = front_of(
            model,
            self._level,
            bounds,
            args,
            kwargs,
            real=real,
            loss=first.loss,
            holds_outputs=first.graph.holds_outputs,
            weights=self._weights,
            bits=self._bits,
        )
        return marked(made) if first.graph.double_backward else made

    def __getstate__(self) -> dict[str, Any]:
        """What is pickled: all but the measurement, which is of the model itself."""
        return {**self.__dict__, "_weights": None}
