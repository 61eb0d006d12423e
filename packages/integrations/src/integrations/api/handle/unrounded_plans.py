"""``UnroundedPlans``: the plans without rounding that a model follows if its gradients are differentiated."""

from __future__ import annotations

from torch import nn

from integrations._utils.locking import OwnLock
from integrations.api.handle.plans_with_stores import Fronts
from integrations.planner.alternatives import unrounded
from integrations.planner.plans import Plans, Shapes
from integrations.policies.levels import Level
from integrations.tracing.double_backward import DoubleBackward, Kinds


class UnroundedPlans:
    """Make plans that round nothing from plans that may.

    Args:
        shapes: whether inputs of other shapes are planned for, or refused.
    """

    def __init__(self, shapes: Shapes) -> None:
        self._shapes = shapes
        self._lock = OwnLock()
        self._found: tuple[Plans, Plans | None] | None = None  # plans, and those that trials follow

    def replacement(self, plans: Plans, level: Level, falls_back: bool) -> Plans:
        """Return the plans to follow from now on instead of some plans.

        Raises:
            ValueError: no plan without rounding keeps to the bounds, and ``falls_back`` is false.
        """
        return Fronts(unrounded(plans.first, falls_back), level, shapes=self._shapes, asked=plans.asked)

    def trial(
        self, model: nn.Module, plans: Plans, level: Level, double: DoubleBackward, kinds: Kinds
    ) -> tuple[Plans, Kinds | None]:
        """Return the plans for a forward; and ``kinds`` if this forward is a trial, which rounds nothing.

        The backward of a trial shows whether gradients are differentiated. Only inputs that require a gradient start a
        trial, since they are usual if gradients are differentiated. A trial keeps to the bounds.

        Args:
            model: the model.
            plans: its plans, which may round.
            level: its level.
            double: records the kinds that have had their trial.
            kinds: of the forward's inputs.
        """
        if double.is_tried(kinds) or not any(kind.endswith(" True") for kind in kinds):
            return plans, None
        with self._lock.held:
            if self._found is None or self._found[0] is not plans:
                try:
                    self._found = plans, Fronts(unrounded(plans.first), level, shapes=self._shapes)
                except ValueError:
                    self._found = plans, None
            exact = self._found[1]
        return (plans, None) if exact is None or not exact.keeps_bounds(model) else (exact, kinds)
