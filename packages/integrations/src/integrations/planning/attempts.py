"""``Attempts``: plans that are made in front of a forward, which no failure of a capture may stop."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import nn

from integrations.common.warn import warn
from integrations.planning.plan import Plan
from integrations.step.capturing.capture import NoGradient
from integrations.step.graphs.sharding import class_of
from integrations.step.graphs.signature import Signature

_MOST_FAILURES = 8
"""A model that cannot be captured is not tried for every new shape of its inputs."""


@dataclass
class _Failures:
    """Inputs for which there is no plan.

    Attributes:
        raised: a capture raised, and the forward did not.
        without_gradient: nothing required a gradient, which says nothing about inputs of another kind.
    """

    raised: set[Signature] = field(default_factory=set)
    without_gradient: set[Signature] = field(default_factory=set)

    def rule_out(self, inputs: Signature) -> bool:
        """Whether nothing is tried for these inputs any more."""
        if inputs in self.raised or len(self.raised) >= _MOST_FAILURES:
            return True
        alike = [known for known in self.without_gradient if known.kinds == inputs.kinds]
        return inputs in alike or len(alike) >= _MOST_FAILURES


@dataclass(frozen=True)
class _Doubt:
    """A capture that raised, in front of a forward that may be about to raise the same.

    Attributes:
        failures: that it is one of if the forward does not.
        inputs: of the forward.
        shortage: whether it was for want of memory.
        told: what is said of it.
    """

    failures: _Failures
    inputs: Signature
    shortage: bool
    told: str


class Attempts:
    """Makes plans, and remembers for which inputs that failed, as long as as many parameters are trained."""

    def __init__(self) -> None:
        self._failures: dict[int, _Failures] = {}  # by the number of parameters that require a gradient
        self._doubts: dict[int, _Doubt] = {}  # by thread
        self._shortages = 0  # of memory, which the forwards themselves did not have
        self._told = False

    def start(self) -> None:
        """A forward starts in this thread. The one before it has raised if ``returned`` was not called since, and then
        nothing is to be learnt from its capture."""
        self._doubts.pop(threading.get_ident(), None)

    def plan(self, model: nn.Module, inputs: Signature, make: Callable[[], Plan]) -> Plan | None:
        """The plan for a forward with these inputs; ``None`` where there is none, and it runs plainly: nothing requires
        a gradient, or a capture raises. What the forward itself raises, it raises then."""
        trained = sum(parameter.requires_grad for parameter in model.parameters())
        failures = self._failures.setdefault(trained, _Failures())
        if failures.rule_out(inputs):
            return None
        try:
            return make()
        except NoGradient:
            failures.without_gradient.add(inputs)
        except Exception as error:
            told = (
                f"no plan can be made of {class_of(model).__name__} for inputs {inputs}, and what a plan would make "
                f"again is kept: {type(error).__name__}: {error}"
            )
            shortage = isinstance(error, (torch.OutOfMemoryError, MemoryError))
            self._doubts[threading.get_ident()] = _Doubt(failures, inputs, shortage, told)
        return None

    def returned(self) -> None:
        """The forward that started in this thread has returned: what its capture raised was of the capture alone. It is
        remembered, and warned of once. A shortage of memory may pass, and is not, until there have been some."""
        doubt = self._doubts.pop(threading.get_ident(), None)
        if doubt is None:
            return
        if doubt.shortage and self._shortages < _MOST_FAILURES:
            self._shortages += 1
        else:
            doubt.failures.raised.add(doubt.inputs)
        if not self._told:
            self._told = True
            warn(doubt.told)
