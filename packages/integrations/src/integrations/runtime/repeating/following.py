"""``Following``: what is known while a forward runs that follows a plan, whoever looks at its operators."""

from __future__ import annotations

import weakref
from collections.abc import Sequence

from torch import Tensor, nn

from actcore.replay import Handle
from integrations._utils.running_module import ModulePaths
from integrations.capture.dispatch.memory import Memory, is_plain
from integrations.capture.graphs.schedule import Planned, Schedule
from integrations.runtime.repeating.calls import UNPLANNED, Exactly, Keeping, Later
from integrations.runtime.repeating.segments import Results, Segment
from integrations.tracing.double_backward import DoubleBackward

_EXACTLY = Exactly()


class Following:
    """Knows which tensor of a forward is which value of a plan, and which segment recomputes it.

    Args:
        schedule: the model's.
        keeping: stores the tensors that repetitions read; ``None`` keeps them as they are.
        model: whose forward it is, which an error of a repetition names.

    Attributes:
        mismatch: where and how the forward differs from the one that the schedule is for; empty as long as it does not.
            From there on, nothing is repeated, and no memory has a value: a store was chosen for the planned readers
            of a value, but now other operators may read it.
        double: is notified of a backward with ``create_graph=True``; ``None`` for none.
        rounded: whether the inputs of repetitions may be rounded.
        schedule: as given.
        keeping: as given, or an ``Exactly``.
        ops: the expected operators; ``next`` is the place of the next one.
        memory: the values that are there; ``storages`` has them by storage.
    """

    def __init__(self, schedule: Schedule, keeping: Keeping | None, model: nn.Module | None) -> None:
        self._model = None if model is None else weakref.ref(model)
        self.double: DoubleBackward | None = None
        self.rounded = False
        self.mismatch = ""
        self.schedule = schedule
        self.ops, self.next = schedule.ops, 0
        self.keeping: Keeping = _EXACTLY if keeping is None else keeping
        self.memory = Memory()
        self.storages = self.memory.storages

    @property
    def values(self) -> dict[int, int]:
        """The values that are there, by the addresses of their storages."""
        return self.storages.by_address

    def handle(self, tensor: Tensor, later: Later | None = None, /) -> Handle | None:
        """What replaces a tensor that will be recomputed; ``None`` for one that is kept.

        Args:
            tensor: the tensor that autograd saves.
            later: how it is stored once recomputed; ``None``: it waits as it is until it is read.
        """
        value = self.value_of(tensor)
        if value == UNPLANNED or not self.schedule.is_recomputed(value):
            return None
        segment = self._segment_of(value, self.schedule.is_recomputed_inside(value))
        # A backward in the middle of this forward may have used the segment up.
        if segment is None or segment.calls is None:
            return None
        return self._handle(segment, value, tensor, later)

    def recomputation(self, tensors: Sequence[Tensor]) -> Results | None:
        """How to recompute what one operator has just made; ``None`` if the first of it is not recomputed."""
        values = [self.value_of(tensor) for tensor in tensors]
        if any(value in self.schedule.becomes for value in values):
            return None  # a later operator writes to its memory, and the segment would go on from that
        first = self.handle(tensors[0])
        if first is None:
            return None
        others = zip(values[1:], tensors[1:], strict=True)
        return Results(first, *(self._handle(first.segment, value, tensor) for value, tensor in others))

    def meet_made(self, tensors: Sequence[Tensor]) -> None:
        """Is told what the call that is running has made, before it asks how that is recomputed."""

    def meet_unplaced(self, tensor: Tensor, value: int) -> int:
        """Is told of a tensor that autograd saves and that has no site, such as a part of what a function stores by
        itself. Returns its value.

        Args:
            tensor, value: the tensor, and its value as far as that is known.
        """
        return value

    def value_of(self, tensor: Tensor) -> int:
        """The value in whose memory a tensor lies; ``UNPLANNED`` for none."""
        value = self.memory.value_in(tensor) if is_plain(tensor) else None
        return UNPLANNED if value is None else value

    def _segment_of(self, value: int, inner: bool) -> Segment | None:
        """The inner or outer segment that makes a value; ``None`` if none does so far."""
        raise NotImplementedError

    def _handle(self, segment: Segment, value: int, tensor: Tensor, later: Later | None = None) -> Handle:
        return Handle(segment, value, tensor, later)

    def _keeping_of(self, value: int) -> Keeping:
        """How a value is kept. Memory that is written to part by part is kept as it is: a stored form for each part
        would take more."""
        return _EXACTLY if value == UNPLANNED or value in self.schedule.becomes else self.keeping

    def bears_store(self, value: int) -> bool:
        """Return whether a repetition may read a recomputed value from the form that its store makes, as ``Read`` does
        with kept values: not where it decides something exactly, nor where its memory is written to part by part."""
        store = self.schedule.store_of(value)
        if store is None or value in self.schedule.becomes:
            return False
        return store.exact or not self.schedule.graph.values[value].exact

    def planned(self) -> Planned | None:
        """The operator that is expected next; ``None`` where nothing is."""
        ops = self.ops
        return None if self.mismatch or self.next >= len(ops) else ops[self.next]

    def leave(self, found: str) -> None:
        """Record that the forward is not the planned one, and stop following the plan. Recorded segments stay: each
        recomputes the results of its operators."""
        ops = self.ops
        if self.next < len(ops):
            planned = ops[self.next]
            of = "" if planned.shapes is None else f", with results {planned.shapes}"
            expected = f"{planned.name}{_in_module(planned.module)}{of}"
        else:
            expected = "its end"
        model = None if self._model is None else self._model()
        running = None if model is None else ModulePaths(model).running()
        where = "" if running is None else _in_module(running)
        self.mismatch = f"at operator {self.next} the plan has {expected}, but the forward ran {found}{where}"
        self.storages.clear()


def _in_module(path: str) -> str:
    return f" in {path or 'the model itself'}"
