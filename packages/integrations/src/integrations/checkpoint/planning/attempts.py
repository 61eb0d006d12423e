"""``Attempts``: plans that are made in front of a forward, which no failure of a capture may stop."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from integrations.checkpoint.capturing.capture import NoGradient
from integrations.checkpoint.graphs.sharding import class_of
from integrations.checkpoint.graphs.signature import Signature
from integrations.checkpoint.planning.plan import Plan
from integrations.warn import warn

_MOST_FAILURES = 8
"""A model that cannot be captured is not tried for every new shape of its inputs."""


class Attempts:
    """Makes plans, and remembers for which inputs that failed, as long as as many parameters are trained."""

    def __init__(self) -> None:
        self._failed: dict[int, set[Signature]] = {}  # by the number of parameters that require a gradient
        self._told = False

    def plan(self, model: nn.Module, inputs: Signature, make: Callable[[], Plan]) -> Plan | None:
        """The plan for a forward with these inputs; ``None`` where there is none, and it runs plainly: nothing requires
        a gradient, or a capture raises, which is warned of once. What the forward itself raises, it raises then."""
        trained = sum(parameter.requires_grad for parameter in model.parameters())
        failed = self._failed.setdefault(trained, set())
        if inputs in failed or len(failed) >= _MOST_FAILURES:
            return None
        try:
            return make()
        except NoGradient:
            failed.add(inputs)
        except Exception as error:  # of the capture, or of the model, which is about to raise it again
            failed.add(inputs)
            if not self._told:
                self._told = True
                warn(
                    f"no plan can be made of {class_of(model).__name__} for inputs {inputs}, and what a plan would "
                    f"make again is kept: {type(error).__name__}: {error}"
                )
        return None
