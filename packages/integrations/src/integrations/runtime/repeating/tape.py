"""``Tape``: follows a forward, operator by operator, and notes how to repeat what a plan recomputes."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from actcore.replay import Handle, bind_tape, followed
from integrations._utils.compiling import compiles_callees, left_to_python, skips_frames, without_dynamo
from integrations._utils.torch_internals import DispatchKey, OpOverload, SetExcludeDispatchKeyGuard, TorchDispatchMode
from integrations.capture.dispatch.dtensors import Unseen, is_opened
from integrations.capture.dispatch.memory import Geometry, get_key, get_shapes, is_plain
from integrations.capture.dispatch.operators import Traits, find_device, get_generator, get_traits, lazy_views
from integrations.capture.graphs.schedule import Planned, Schedule
from integrations.runtime.repeating.call_follower import CallFollower
from integrations.runtime.repeating.calls import (
    UNPLANNED,
    Draw,
    Elsewhere,
    HeldTensor,
    Keeping,
    KnownSite,
    Reference,
    RepeatedCall,
    Scratch,
    Takes,
)
from integrations.runtime.repeating.following import Following
from integrations.runtime.repeating.recording import CAST, Recording
from integrations.runtime.repeating.segments import Segment
from integrations.runtime.repeating.thread_state import drawing, here


class Tape(Following, TorchDispatchMode):
    """Follows a forward, operator by operator, and notes how to repeat the operators that a schedule repeats.

    Args:
        schedule: the model's.
        keeping: how it is kept what repetitions read; ``None``: as it is.
        model: whose forward it is, which an error of a repetition names.

    Attributes:
        paused: whether the operators that run now are not the forward's.
        recording: notes what the forward's functions do with the plan's values; ``None`` where nobody does.
    """

    def __init__(self, schedule: Schedule, keeping: Keeping | None = None, model: nn.Module | None = None) -> None:
        TorchDispatchMode.__init__(self)
        super().__init__(schedule, keeping, model)
        self.paused = False
        self.recording: Recording | None = None
        self._outer, self._inner = Level(), Level()
        self._unseen = Unseen(schedule.communicates)

    def go_on_from(self, follower: CallFollower) -> None:
        """Follows the rest of a forward of which another object has followed the beginning."""
        self.memory, self.storages, self.next = follower.memory, follower.storages, follower.next
        self.double, self.rounded = follower.double, follower.rounded
        for (inner, number), segment in follower.segments():
            (self._inner if inner else self._outer).segments[number] = segment
        for inner, value, segment in follower.made():
            (self._inner if inner else self._outer).segment_of[value] = segment

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """``True`` where frames can be skipped without torch's help. Otherwise torch would pass each operator through a
        wrapper that keeps dynamo off, which takes longer than all that is done here."""
        return not skips_frames()

    def finish(self) -> None:
        """Ends the forward."""
        if not self.mismatch and self.next < len(self.ops):
            self.leave("nothing")

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
        if self.recording is not None and not (self.paused or here.repeating):
            return self._record(func, args, kwargs or {})
        with lazy_views(func, args):
            return followed(self, func, args, kwargs or {})

    def _record(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs an operator of a forward that is recorded."""
        traits = get_traits(func)
        assert self.recording is not None
        self.recording.note_operator(traits, args, kwargs)
        with lazy_views(func, args):
            return func(*args, **kwargs) if traits.view else self.follow(func, traits, args, kwargs)

    def follow(self, func: OpOverload, traits: Traits, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs an operator that takes more than a step to the next one."""
        with drawing if traits.draws(args, kwargs) else nullcontext():
            return self._follow(func, traits, args, kwargs)

    def _follow(self, func: OpOverload, traits: Traits, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs an operator of the forward, and notes it if it is to be repeated."""
        planned = self.planned()
        # Another operator than the expected one is no part of a segment: one that makes no memory, such as
        # _unsafe_view, which is no operator of the plan, or one that the plan has not foreseen.
        if planned is None or planned.name != traits.name or (planned.segment < 0 and planned.inner < 0):
            out = func(*args, **kwargs)
            self.made(traits, args, kwargs, out)
            if self.recording is not None and traits.name == CAST and is_plain(args[0]) and is_plain(out):
                self.recording.note_cast(func, args, kwargs, out)
            return out
        segments = self._segments_of(planned)
        draw = None
        if traits.draws(args, kwargs) and (device := find_device(args, kwargs)).type != "meta":
            source = get_generator(args, kwargs, device)
            if source is None:
                self.leave(f"{traits.name} on {device}, whose generator is not known")
            else:
                draw = Draw(source, source.get_state())
        # Noted before the operator runs, since it may overwrite its arguments.
        arguments = [self._arguments(traits, level, segment, args, kwargs, draw) for level, segment, _ in segments]
        out = func(*args, **kwargs)
        made = self.made(traits, args, kwargs, out)
        if made is None:
            return out
        makes, changes = made
        shapes = get_shapes(out if isinstance(out, (list, tuple)) else (out,)) if traits.dynamic else None
        for (level, segment, number), (given, named, takes) in zip(segments, arguments, strict=True):
            if segment.calls is None:
                continue
            grad = torch.is_grad_enabled()
            call = RepeatedCall(func, given, named, makes, changes, takes.places, takes.draws, grad, shapes)
            segment.append(call, takes.given)
            if self.recording is not None:
                self.recording.note_repeated((level is self._inner, number), segment, call, takes)
            own = self.schedule.inner if level is self._inner else self.schedule.recomputed
            for value in (*(value for value, _ in makes), *(value for _, value in changes)):
                if value in own:
                    level.segment_of[value] = segment
        return out

    def meet_made(self, tensors: Sequence[Tensor]) -> None:
        """Notes what the call that is running asks the segments for."""
        if self.recording is not None:
            self.recording.note_asked(tensors)

    def meet_unplaced(self, tensor: Tensor, value: int) -> int:
        """Notes the value of a saved tensor that has no site."""
        if self.recording is not None:
            self.recording.note_unplaced(tensor, value)
        return value

    def _segment_of(self, value: int, inner: bool) -> Segment | None:
        return (self._inner if inner else self._outer).segment_of.get(value)

    def _segments_of(self, planned: Planned) -> list[tuple[Level, Segment, int]]:
        """The segments in which an operator is to be repeated, with their numbers: at most one outer and one inner."""
        return [
            (level, level.segments.setdefault(number, Segment(self._model, self.double, self.rounded)), number)
            for level, number in ((self._outer, planned.segment), (self._inner, planned.inner))
            if number >= 0
        ]

    def _arguments(
        self,
        traits: Traits,
        level: Level,
        segment: Segment,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        draw: Draw | None,
    ) -> tuple[tuple[Any, ...], dict[str, Any], Takes]:
        """A call's arguments, with what replaces the tensors in them, and what it takes from outside of its segment."""
        takes = Takes(len(segment.given))
        noted = [self._noted(given, level, segment, takes) for given in args]
        if traits.updates_statistics(args):
            for place in traits.statistics[:2]:
                if isinstance(args[place], Tensor):
                    noted[place] = takes.add(Scratch(args[place].detach()), args[place])
        if draw is not None:
            takes.draws = takes.add(draw).place
        named = {name: self._noted(given, level, segment, takes) for name, given in kwargs.items()}
        return tuple(noted), named, takes

    def _noted(self, given: Any, level: Level, segment: Segment, takes: Takes) -> Any:
        if isinstance(given, Tensor):
            value = self.value_of(given)
            if value != UNPLANNED and level.segment_of.get(value) is segment:
                return Reference(value, Geometry.of(given))
            # Only in this way does an alias that is made inside a mode share the version counter.
            with SetExcludeDispatchKeyGuard(DispatchKey.ADInplaceOrView, False):
                if level is self._inner:
                    outer = self._outer.segment_of.get(value)
                    if outer is not None and outer.calls is not None:
                        handle = Handle(outer, value, given, shares=self.bears_store(value))
                        return takes.add(Elsewhere(handle), given, value)
                known = None if self.recording is None else KnownSite()
                held = HeldTensor(self._keeping_of(value).read(given, value, known))
                return takes.add(held, given, value, known)
        if isinstance(given, (list, tuple)):
            return [self._noted(item, level, segment, takes) for item in given]
        return given

    def made(
        self, traits: Traits, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any
    ) -> tuple[tuple[tuple[int, int], ...], tuple[tuple[int, int], ...]] | None:
        """Gives numbers to the results of an operator, if it is the expected one.

        Returns:
            its new values with their places among the results, and the values that it overwrote with what they became;
                ``None`` for an operator that made nothing or was not expected.
        """
        memory = self.memory
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
                self.leave(traits.name)
            else:
                planned = self.ops[self.next]
                shapes = get_shapes(results)
                if planned.name == traits.name and len(planned.makes) == count and planned.shapes in (None, shapes):
                    self.next += 1
                    return planned.makes
                self.leave(traits.name if planned.name != traits.name else f"{traits.name} with results {shapes}")
        return (UNPLANNED,) * count


def _step(tape: Tape, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``followed`` as a function of Python, which a wrapper needs."""
    with lazy_views(func, args):
        return followed(tape, func, args, kwargs)


class Level:
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
