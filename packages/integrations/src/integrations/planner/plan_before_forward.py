"""``Attempts``: make plans before forwards. A failure stops the first forward, but no later one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from torch import nn

from integrations._utils.out_of_memory import is_out_of_memory
from integrations._utils.progress import progress
from integrations._utils.warn import warn
from integrations.capture.errors import NoGradient
from integrations.capture.graphs.sharding import get_class
from integrations.capture.graphs.signature import Signature
from integrations.planner.errors import BudgetError
from integrations.planner.plan import Plan

_MOST_FAILURES = 8
"""After so many failures, a model is not captured for new shapes of its inputs any more."""


@dataclass
class _Failures:
    """Inputs for which there is no plan.

    Attributes:
        raised: inputs whose capture raised although the forward did not.
        without_gradient: inputs with which nothing required a gradient, which says nothing about inputs of another
            kind.
    """

    raised: set[Signature] = field(default_factory=set)
    without_gradient: set[Signature] = field(default_factory=set)

    def rule_out(self, inputs: Signature, first: bool) -> bool:
        """Return whether to make no more plans for these inputs. As long as the model has no plan, a capture that
        raised is tried again."""
        if not first and (inputs in self.raised or len(self.raised) >= _MOST_FAILURES):
            return True
        alike = [known for known in self.without_gradient if known.kinds == inputs.kinds]
        return inputs in alike or len(alike) >= _MOST_FAILURES


@dataclass(frozen=True)
class _Doubt:
    """A capture that raised in front of a forward that may raise the same.

    Attributes:
        failures: the failures that it is added to if the forward does not raise.
        inputs: the forward's.
        shortage: whether memory was short.
        told: the text of the warning.
    """

    failures: _Failures
    inputs: Signature
    shortage: bool
    told: str


class Attempts:
    """Makes plans, and remembers the inputs for which that failed, as long as the same number of parameters is
    trained."""

    def __init__(self) -> None:
        self._failures: dict[int, _Failures] = {}  # by the number of parameters that require a gradient
        self._doubts: dict[int, _Doubt] = {}  # by thread
        self._shortages = 0  # of memory, in captures whose forward had enough
        self._told = False

    def start(self) -> None:
        """Notes that a forward starts in this thread. If ``returned`` was not called since the last one, that one has
        raised, and its capture's failure tells nothing."""
        self._doubts.pop(threading.get_ident(), None)

    def plan(self, model: nn.Module, inputs: Signature, make: Callable[[], Plan], first: bool = False) -> Plan | None:
        """Return the plan for a forward with these inputs.

        Return ``None`` if the forward has to run without a plan: nothing requires a gradient; or the model has another
        plan already, and the capture raised. If the forward itself raises, it does so afterwards.

        Args:
            model: the model.
            inputs: the forward's inputs.
            make: a function that makes the plan.
            first: whether the model has no plan yet.

        Raises:
            BudgetError: ``make`` raised it.
            Exception: ``make`` raised it for the first plan.
        """
        trained = sum(parameter.requires_grad for parameter in model.parameters())
        failures = self._failures.setdefault(trained, _Failures())
        if failures.rule_out(inputs, first):
            return None
        try:
            with progress(f"Planning {get_class(model).__name__}"):
                return make()
        except NoGradient:
            failures.without_gradient.add(inputs)
        except BudgetError:
            raise
        except Exception as error:
            if first:
                raise
            told = (
                f"no plan can be made of {get_class(model).__name__} for inputs {inputs}, so tensors that a plan "
                f"would recompute are kept: {type(error).__name__}: {error}"
            )
            shortage = is_out_of_memory(error)
            self._doubts[threading.get_ident()] = _Doubt(failures, inputs, shortage, told)
        return None

    def returned(self) -> None:
        """Notes that the forward that started in this thread has returned, so that a failure was the capture's alone.
        It is remembered and warned of once. A shortage of memory may pass, and is remembered only after several."""
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
