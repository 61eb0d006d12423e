"""``Tape``: follows a forward, operator by operator, and notes how to repeat what a plan recomputes."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from actcore.replay import bind_tape, followed
from integrations._utils.compiling import compiles_callees, left_to_python, skips_frames, without_dynamo
from integrations._utils.torch_internals import DispatchKey, OpOverload, SetExcludeDispatchKeyGuard, TorchDispatchMode
from integrations.capture.dispatch.dtensors import Unseen, is_opened
from integrations.capture.dispatch.memory import Geometry, Memory, get_key, get_shapes, is_plain
from integrations.capture.dispatch.operators import Traits, find_device, get_generator, get_traits, lazy_views
from integrations.capture.graphs.schedule import Planned, Schedule
from integrations.runtime.repeating.calls import (
    Elsewhere,
    Exactly,
    HeldTensor,
    Keeping,
    Later,
    Reference,
    RepeatedCall,
    Scratch,
)
from integrations.runtime.repeating.segments import Handle, Results, Segment
from integrations.runtime.repeating.thread_state import drawing, here
from integrations.tracing.double_backward import DoubleBackward

UNPLANNED = -1
"""In the place of a value: memory that the plan does not know."""
_EXACTLY = Exactly()


class Tape(TorchDispatchMode):
    """Follows a forward, operator by operator, and notes how to repeat the operators that a schedule repeats.

    Args:
        schedule: the model's.
        keeping: how it is kept what repetitions read; ``None``: as it is.
        model: whose forward it is, which an error of a repetition names.

    Attributes:
        mismatch: where and how the forward differs from the one that the schedule is for; empty as long as it does not.
            From there on, nothing is repeated, and no memory has a value: a store was chosen for the planned readers
            of a value, but now other operators may read it.
        double: is notified of a backward with ``create_graph=True``; ``None`` for none.
        rounded: whether the inputs of repetitions may be rounded.
        paused: whether the operators that run now are not the forward's.
        ops: the expected operators; ``next`` is the place of the next one.
        storages: the values that are there, by storage.
    """

    def __init__(self, schedule: Schedule, keeping: Keeping | None = None, model: nn.Module | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._model = None if model is None else weakref.ref(model)
        self.double: DoubleBackward | None = None
        self.rounded = False
        self.paused = False
        self.mismatch = ""
        self.ops, self.next = schedule.ops, 0
        self._keeping: Keeping = _EXACTLY if keeping is None else keeping
        self._schedule = schedule
        self._memory = Memory()
        self.storages = self._memory.storages
        self._outer, self._inner = _Level(), _Level()
        self._unseen = Unseen(schedule.communicates)

    @property
    def values(self) -> dict[int, int]:
        """The values that are there, by the addresses of their storages."""
        return self.storages.by_address

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """``True`` where frames can be skipped without torch's help. Otherwise torch would pass each operator through a
        wrapper that keeps dynamo off, which takes longer than all that is done here."""
        return not skips_frames()

    def finish(self) -> None:
        """Ends the forward."""
        if not self.mismatch and self.next < len(self.ops):
            self._leave("nothing")

    @left_to_python
    def __torch_dispatch__(
        self, func: OpOverload, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if types and is_opened(get_traits(func), types):
            self._unseen.opened = True
            return NotImplemented
        if self._unseen.skips(func):
            return func(*args, **(kwargs or {}))
        if compiles_callees():
            return without_dynamo(_step)(self, func, args, kwargs or {})
        with lazy_views(func, args):
            return followed(self, func, args, kwargs or {})

    def follow(self, func: OpOverload, traits: Traits, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs an operator that takes more than a step to the next one."""
        with drawing if traits.random else nullcontext():
            return self._follow(func, traits, args, kwargs)

    def _follow(self, func: OpOverload, traits: Traits, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs an operator of the forward, and notes it if it is to be repeated."""
        planned = self._planned()
        # Another operator than the expected one is no part of a segment: one that makes no memory, such as
        # _unsafe_view, which is no operator of the plan, or one that the plan has not foreseen.
        if planned is None or planned.name != traits.name or (planned.segment < 0 and planned.inner < 0):
            out = func(*args, **kwargs)
            self.made(traits, args, kwargs, out)
            return out
        segments = self._segments_of(planned)
        generator = None
        if traits.random and (device := find_device(args, kwargs)).type != "meta":
            source = get_generator(args, kwargs, device)
            if source is None:
                self._leave(f"{traits.name} on {device}, whose generator is not known")
            else:
                generator = source, source.get_state()
        # Noted before the operator runs, since it may overwrite its arguments.
        arguments = [self._arguments(traits, level, segment, args, kwargs) for level, segment in segments]
        out = func(*args, **kwargs)
        made = self.made(traits, args, kwargs, out)
        if made is None:
            return out
        makes, changes = made
        shapes = get_shapes(out if isinstance(out, (list, tuple)) else (out,)) if traits.dynamic else None
        for (level, segment), noted in zip(segments, arguments, strict=True):
            if segment.calls is None:
                continue
            segment.append(RepeatedCall(func, *noted, makes, changes, generator, torch.is_grad_enabled(), shapes))
            own = self._schedule.inner if level is self._inner else self._schedule.recomputed
            for value in (*(value for value, _ in makes), *(value for _, value in changes)):
                if value in own:
                    level.segment_of[value] = segment
        return out

    def handle(self, tensor: Tensor, later: Later | None = None) -> Handle | None:
        """What replaces a tensor that will be recomputed; ``None`` for one that is kept.

        Args:
            tensor: the tensor that autograd saves.
            later: how it is stored once recomputed; ``None``: it waits as it is until it is read.
        """
        value = self.value_of(tensor)
        if value == UNPLANNED or not self._schedule.is_recomputed(value):
            return None
        level = self._inner if self._schedule.is_recomputed_inside(value) else self._outer
        segment = level.segment_of.get(value)
        # A backward in the middle of this forward may have used the segment up.
        if segment is None or segment.calls is None:
            return None
        return Handle(segment, value, tensor, later)

    def recomputation(self, tensors: Sequence[Tensor]) -> Results | None:
        """How to recompute what one operator has just made; ``None`` if the first of it is not recomputed."""
        values = [self.value_of(tensor) for tensor in tensors]
        if any(value in self._schedule.becomes for value in values):
            return None  # a later operator writes to its memory, and the segment would go on from that
        first = self.handle(tensors[0])
        if first is None:
            return None
        others = zip(values[1:], tensors[1:], strict=True)
        return Results(first, *(Handle(first.segment, value, tensor) for value, tensor in others))

    def value_of(self, tensor: Tensor) -> int:
        """The value in whose memory a tensor lies; ``UNPLANNED`` for none."""
        value = self._memory.value_in(tensor) if is_plain(tensor) else None
        return UNPLANNED if value is None else value

    def _keeping_of(self, value: int) -> Keeping:
        """How a value is kept. Memory that is written to part by part is kept as it is: a stored form for each part
        would take more."""
        return _EXACTLY if value == UNPLANNED or value in self._schedule.becomes else self._keeping

    def _bears_store(self, value: int) -> bool:
        """Return whether a repetition may read a recomputed value from the form that its store makes, as ``Read`` does
        with kept values: not where it decides something exactly, nor where its memory is written to part by part."""
        store = self._schedule.store_of(value)
        if store is None or value in self._schedule.becomes:
            return False
        return store.exact or not self._schedule.graph.values[value].exact

    def _planned(self) -> Planned | None:
        """The operator that is expected next; ``None`` where nothing is."""
        ops = self.ops
        return None if self.mismatch or self.next >= len(ops) else ops[self.next]

    def _segments_of(self, planned: Planned) -> list[tuple[_Level, Segment]]:
        """The segments in which an operator is to be repeated: at most one outer and one inner."""
        return [
            (level, level.segments.setdefault(number, Segment(self._model, self.double, self.rounded)))
            for level, number in ((self._outer, planned.segment), (self._inner, planned.inner))
            if number >= 0
        ]

    def _arguments(
        self, traits: Traits, level: _Level, segment: Segment, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """A call's arguments, with what replaces the tensors in them."""
        noted = [self._noted(given, level, segment) for given in args]
        if traits.updates_statistics(args):
            for place in traits.statistics[:2]:
                if isinstance(args[place], Tensor):
                    noted[place] = Scratch(args[place].detach())
        return tuple(noted), {name: self._noted(given, level, segment) for name, given in kwargs.items()}

    def _noted(self, given: Any, level: _Level, segment: Segment) -> Any:
        if isinstance(given, Tensor):
            value = self.value_of(given)
            if value != UNPLANNED and level.segment_of.get(value) is segment:
                return Reference(value, Geometry.of(given))
            # Only in this way does an alias that is made inside a mode share the version counter.
            with SetExcludeDispatchKeyGuard(DispatchKey.ADInplaceOrView, False):
                if level is self._inner:
                    outer = self._outer.segment_of.get(value)
                    if outer is not None and outer.calls is not None:
                        return Elsewhere(Handle(outer, value, given, shares=self._bears_store(value)))
                return HeldTensor(self._keeping_of(value).read(given, value))
        if isinstance(given, (list, tuple)):
            return [self._noted(item, level, segment) for item in given]
        return given

    def made(
        self, traits: Traits, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any
    ) -> tuple[tuple[tuple[int, int], ...], tuple[tuple[int, int], ...]] | None:
        """Gives numbers to the results of an operator, if it is the expected one.

        Returns:
            its new values with their places among the results, and the values that it overwrote with what they became;
                ``None`` for an operator that made nothing or was not expected.
        """
        memory = self._memory
        results = out if isinstance(out, (list, tuple)) else (out,)
        new = memory.new(results, args, kwargs)
        written: dict[int, tuple[int, Tensor]] = {}  # by storage
        if traits.writes:
            for tensor in traits.written(args, kwargs):
                value = memory.value_in(tensor) if is_plain(tensor) else None
                if value is not None:
                    written.setdefault(get_key(tensor), (value, tensor))
        if not new and not written:
            return None
        numbers = self._numbers(traits, len(written) + len(new), results)
        changes = []
        for (old, tensor), number in zip(written.values(), numbers, strict=False):
            memory.add(tensor, number)
            changes.append((old, number))
        makes = []
        for (place, tensor), number in zip(new, numbers[len(written) :], strict=True):
            memory.add(tensor, number)
            makes.append((number, place))
        return None if self.mismatch else (tuple(makes), tuple(changes))

    def _numbers(self, traits: Traits, count: int, results: Sequence[Any]) -> Sequence[int]:
        """The numbers of the values that the next operator makes."""
        if not self.mismatch:
            if self.next == len(self.ops):
                self._leave(traits.name)
            else:
                planned = self.ops[self.next]
                shapes = get_shapes(results)
                if planned.name == traits.name and len(planned.makes) == count and planned.shapes in (None, shapes):
                    self.next += 1
                    return planned.makes
                self._leave(traits.name if planned.name != traits.name else f"{traits.name} with results {shapes}")
        return (UNPLANNED,) * count

    def _leave(self, found: str) -> None:
        """Record that the forward is not the planned one, and stop following the plan. Recorded segments stay: each
        recomputes the results of its operators."""
        ops = self.ops
        if self.next < len(ops):
            planned = ops[self.next]
            of = "" if planned.shapes is None else f", with results {planned.shapes}"
            expected = f"{planned.name} in {planned.module or 'the model itself'}{of}"
        else:
            expected = "its end"
        self.mismatch = f"at operator {self.next} the plan has {expected}, but the forward ran {found}"
        self.storages.clear()


def _step(tape: Tape, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``followed`` as a function of Python, which a wrapper needs."""
    with lazy_views(func, args):
        return followed(tape, func, args, kwargs)


class _Level:
    """The segments of one kind, outer or inner.

    Attributes:
        segments: by the plan's numbers.
        segment_of: the recomputed values, with the numbers of the segments that make them.
    """

    def __init__(self) -> None:
        self.segments: dict[int, Segment] = {}
        self.segment_of: dict[int, Segment] = {}


bind_tape(
    {
        "Tensor": Tensor,
        "Parameter": nn.Parameter,
        "Planned": Planned,
        "Traits": Traits,
        "traits_of": get_traits,
        "here": here,
        "strided": torch.strided,
        "bytes": torch.uint8,
    }
)
