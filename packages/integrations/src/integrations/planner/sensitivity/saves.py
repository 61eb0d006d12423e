"""``Saves``: what a captured forward saves, under names that stay from step to step, and by its place in the graph."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from torch import Tensor

from integrations.capture.graphs.graph import Graph
from integrations.capture.recorder import Recorder
from integrations.planner.sensitivity.identity import Identity
from integrations.policies.rules import RULES, Need
from integrations.tracing.tensors import get_storage
from integrations.tracing.tracker import CallTracker


class Save(NamedTuple):
    """A tensor that autograd saves, in memory that the forward makes.

    Attributes:
        value: the value that the memory held when it was saved.
        after: the operator of the graph after which it was saved.
        identity: its name from step to step.
    """

    value: int
    after: int
    identity: Identity

    @property
    def need(self) -> Need:
        """What backward needs of the tensor."""
        rule = RULES.get(self.identity.operator)
        return Need.EXACT if rule is None or not self.identity.role else rule.need(self.identity.role)

    @property
    def of_layer(self) -> bool:
        """Whether it is a layer's input, from which backward only makes the gradient of the layer's weight."""
        operator, role = self.identity.operator, self.identity.role
        return self.need is Need.LINEAR and role == "input" and (operator == "linear" or operator.startswith("conv"))


class Saves:
    """Notes what a captured forward saves, from its pack hook.

    Attributes:
        found: in the order of the forward.
    """

    def __init__(self) -> None:
        self.found: list[Save] = []
        self._occurrences: Counter[tuple[str, str, str]] = Counter()

    def clear(self) -> None:
        """Forgets everything: another forward begins."""
        self.found.clear()
        self._occurrences.clear()

    def note(self, recorder: Recorder, tracker: CallTracker, tensor: Tensor, part: Tensor | None = None) -> Identity:
        """The name of a tensor that autograd saves. It must be called for each of them, as a session's pack hook is,
        since it numbers them.

        Args:
            recorder, tracker: of the forward.
            tensor: the tensor.
            part: of a DTensor, this rank's part.
        """
        own = tensor if part is None else part
        storage, call, module = get_storage(own), tracker.call, recorder.module
        operator, role = "", ""
        if call is not None:
            call.module = module = module if call.module is None else call.module
            operator, role = call.operator, call.role(tensor, storage)
        place = (module, operator, role)
        occurrence, self._occurrences[place] = self._occurrences[place], self._occurrences[place] + 1
        identity, value = Identity(*place, occurrence), recorder.value_of(own)
        if value is not None and value >= 0:
            self.found.append(Save(value, recorder.operators - 1, identity))
        return identity


def find_readers(graph: Graph) -> list[list[int]]:
    """By value: the operators that read it."""
    readers: list[list[int]] = [[] for _ in graph.values]
    for number, op in enumerate(graph.ops):
        for value in op.reads:
            readers[value].append(number)
    return readers


def final_values(graph: Graph) -> list[int]:
    """By value: the last value in its memory. What is saved of a value is what the memory holds in the end."""
    last = list(range(len(graph.values)))
    for number in range(len(graph.values) - 1, -1, -1):
        if graph.values[number].reuses >= 0:
            last[graph.values[number].reuses] = last[number]
    return last
