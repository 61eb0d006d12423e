"""``Segment``: operators of a forward that are repeated together when backward needs what they made."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from torch import Tensor, nn

from integrations._utils.out_of_memory import explain
from integrations._utils.torch_internals import current_graph_task_id, get_current_graph_task_keep_graph
from integrations.capture.dispatch.memory import Geometry
from integrations.capture.dispatch.versions import Version
from integrations.runtime.repeating.calls import Elsewhere, Given, Later, Packed, RepeatedCall
from integrations.runtime.repeating.thread_state import repeated
from integrations.tracing.double_backward import DoubleBackward
from integrations.tracing.storage.regions import View

_USED_UP = (
    "backward went through this part of the graph a second time, but its tensors were freed after the first time: "
    "pass retain_graph=True to the first backward"
)

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def _alone(
    method: Callable[Concatenate[Segment, Arguments], Result],
) -> Callable[Concatenate[Segment, Arguments], Result]:
    """A method of a segment that only this thread changes meanwhile.

    An interrupt may come after any call and at the start of any function. There is neither between the lock and its
    block, whose end is C's, nor between a count and the ``try`` or the instruction next to it.
    """

    @wraps(method)
    def alone(self: Segment, /, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        with self._lock:
            self._uses += 1
            try:
                return method(self, *args, **kwargs)
            finally:
                try:
                    if self._uses == 1:
                        self._count_released()
                finally:
                    self._uses -= 1

    return alone


class Segment:
    """Calls in order, and what they made when they were repeated.

    A segment belongs to the saved tensors that it makes, and is freed with them. The calls of an inner segment hold
    handles of what an outer segment makes, which keep it alive until the inner segment has been repeated.

    Args:
        model: whose forward it is a part of; an error that memory has run out is told of as one in that forward is.
        double: is notified of a backward with ``create_graph=True``; ``None`` for none.
        rounded: whether its inputs may be rounded.
        calls: the calls that the forward is expected to make, if they are known before; ``advance`` tells which it has
            made.
        given: how many places there are for what these take from outside.

    Attributes:
        calls: the calls; ``None`` once they have been repeated for the last time.
        given: what they take from outside of the segment.
    """

    def __init__(
        self,
        model: weakref.ref[nn.Module] | None = None,
        double: DoubleBackward | None = None,
        rounded: bool = False,
        calls: Sequence[RepeatedCall] = (),
        given: int = 0,
    ) -> None:
        self._model, self.double, self.rounded = model, double, rounded
        self.calls: Sequence[RepeatedCall] | None = calls or []
        self.given: list[Given | None] = [None] * given
        self._done = 0  # calls that the forward has made
        self._becomes: dict[int, int] = {}  # values whose memory was taken over, with what they became
        self._handles: dict[int, int] = {}  # how many saved tensors are in a value's memory
        # The handles among them whose tensors may be stored once recomputed.
        self._waiting: dict[int, list[weakref.ref[Handle]]] = {}
        self._stored: dict[str, Any] = {}
        self._made: dict[int, Tensor] = {}
        self._seen: dict[int, set[int]] = {}  # the handles that have been read since the value was made
        self._lock = threading.RLock()  # backward has a thread for each device
        self._uses = 0  # uses that are going on
        self._released: deque[int] = deque()  # the values of saved tensors that are gone, not yet counted

    def append(self, call: RepeatedCall, given: Sequence[Given]) -> None:
        """Adds an operator that has run, and what it takes from outside of the segment."""
        assert isinstance(self.calls, list)
        self.given += given
        self.calls.append(call)
        self.advance(len(self.calls), call.changes)

    @_alone
    def advance(self, done: int, changes: Iterable[tuple[int, int]] = ()) -> None:
        """Notes how many of the calls have run, and the values that the last of them have overwritten, with what these
        became."""
        self._done = done
        for old, new in changes:
            self._becomes[old] = new
            if old in self._handles:
                self._handles[new] = self._handles[old]
                del self._handles[old]
            if old in self._waiting:
                self._waiting[new] = self._waiting[old]
                del self._waiting[old]

    @_alone
    def cut(self) -> None:
        """Forgets the calls that the forward has not made, for others to be added."""
        if self.calls is not None:
            self.calls = list(self.calls[: self._done])

    @_alone
    def hold(self, handle: Handle) -> None:
        """Counts a saved tensor in a value's memory."""
        held = self._handles.get(handle.value, 0) + 1
        self._handles[handle.value], handle.held = held, True  # both, or neither
        if handle.later is not None or handle.shares:
            self._waiting.setdefault(handle.value, []).append(weakref.ref(handle))

    def release(self, value: int) -> None:
        """Uncounts a saved tensor. The garbage collector may call this at any moment in any thread; while the segment
        is in use, the value is only queued and counted later, so that nobody waits here."""
        self._released.append(value)
        if self._uses:
            return
        try:
            if self._lock.acquire(blocking=False):
                self._settle()
        finally:
            try:  # noqa: SIM105  # an interrupt may come inside of suppress
                self._lock.release()  # whether an interrupt came before or after it was taken
            except RuntimeError:
                pass  # another thread has it, and counts

    @_alone
    def _settle(self) -> None:
        """Counts what was released, as each use does when it is over."""

    def _count_released(self) -> None:
        """After an interrupt anywhere in it, what is left is counted the next time, and nothing twice."""
        while self._released:
            value = self._latest(self._released[0])
            if self._handles[value] == 1:
                self._made.pop(value, None)
                self._waiting.pop(value, None)
                del self._handles[value], self._released[0]
            else:
                self._handles[value] -= 1
                del self._released[0]

    @_alone
    def get(self, handle: Handle) -> Tensor:
        """The saved tensor of a handle, recomputed if need be."""
        retained = _graph_is_retained()
        stored = handle.stored
        value = self._latest(handle.value)
        if stored is None and value not in self._made:
            self._remake(value, retained)
        if retained and self.calls is not None:
            handle.stored = None
        if stored is not None:
            return repeated(stored.unpack)
        base = self._made[value]
        if _has_form(handle) and self._only_stored(value):
            del self._made[value]
        elif retained and self.calls is not None:
            # The graph is retained: the saved tensors stay alive, and what is made for them should not.
            seen = self._seen.setdefault(value, set())
            seen.add(id(handle))
            if len(seen) >= self._handles.get(value, 0):
                del self._made[value], self._seen[value]
        return repeated(handle.geometry.view, base)

    def _store(self, value: int, made: dict[int, Tensor]) -> None:
        """Stores the saved tensors in a value's memory, each in its own form, and those that share one in that."""
        handles = [handle for reference in self._waiting[value] if (handle := reference()) is not None]
        stored = [handle for handle in handles if handle.later is not None]
        for handle in handles:
            same = handle if handle.later is not None else _alike(handle, stored)
            if same is None or same.later is None:
                continue
            packed = same.later.store(handle.geometry.view(made[value]), self._stored)
            # What a repetition restores is not lent to autograd: it would stay alive until backward reads it.
            handle.stored = packed.beside() if same is not handle and isinstance(packed, View) else packed

    def _is_stored(self, value: int) -> bool:
        handles = [handle for reference in self._waiting.get(value, ()) if (handle := reference()) is not None]
        stored = bool(self._waiting.get(value)) and all(handle.stored is not None for handle in handles)
        return stored and self._only_stored(value)

    def _only_stored(self, value: int) -> bool:
        """Whether no inner segment reads the value as it is."""
        handles = [handle for reference in self._waiting.get(value, ()) if (handle := reference()) is not None]
        return sum(map(_has_form, handles)) >= self._handles.get(value, 0)

    @_alone
    def prepare(self, handle: Handle) -> None:
        """Recomputes the tensor of a handle unless it, or a stored form of it, is there."""
        value = self._latest(handle.value)
        if value not in self._made and handle.stored is None:
            self._remake(value, _graph_is_retained())
            if handle.stored is not None and self._only_stored(value):
                del self._made[value]  # only its stored form waits to be read

    def _latest(self, value: int) -> int:
        """The value that it has become: another part of the same memory may have been written since it was saved."""
        while value in self._becomes:
            value = self._becomes[value]
        return value

    def _remake(self, asked: int, retained: bool) -> None:
        try:
            self._repeat(asked, retained)
        except (RuntimeError, MemoryError) as error:
            model = None if self._model is None else self._model()
            if model is not None:
                explain(error, model)
            raise

    def _repeat(self, asked: int, retained: bool) -> None:
        """Recomputes ``asked``, and with it all saved values that are not there."""
        if self.calls is None:
            raise RuntimeError(_USED_UP)
        needed = {value for value in self._handles if value == asked or not self._is_stored(value)}
        waiting = needed.intersection(self._waiting)
        ends: dict[int, list[int]] = {}  # by call: the values that nothing needs after it
        rests: dict[int, list[int]] = {}  # by call: the saved values that can be stored after it
        chosen: list[int] = []
        for place in range(self._done - 1, -1, -1):
            call = self.calls[place]
            if call.needed_for(needed):
                chosen.append(place)
                resting = waiting.intersection((*call.reads(), *call.results()))
                rests[place] = list(resting)
                waiting -= resting
                for value in call.reads():
                    if value not in needed:
                        needed.add(value)
                        ends.setdefault(place, []).append(value)
        calls, given = self.calls, self.given
        for place in chosen:
            # First, before anything is made here that would be alive meanwhile.
            for taken in calls[place].takes:
                other = given[taken]
                if isinstance(other, Elsewhere):
                    other.made.prepare()
        if not retained:
            self.calls, self.given = None, []
        made: dict[int, Tensor] = {}

        def run() -> None:
            for place in reversed(chosen):
                call = calls[place]
                call.repeat(made, given)
                if not retained:
                    for taken in call.takes:
                        given[taken] = None  # frees the tensors that were kept for it
                for value in ends.get(place, ()):
                    made.pop(value, None)
                for value in call.results():
                    if value not in needed:
                        del made[value]
                for value in rests[place]:
                    self._store(value, made)
                    if value != asked and self._only_stored(value):
                        del made[value]

        repeated(run)
        self._made = made
        self._seen.clear()


def _has_form(handle: Handle) -> bool:
    """Return whether what a handle stands for is, or will be, stored."""
    return handle.later is not None or handle.stored is not None


def _alike(handle: Handle, others: list[Handle]) -> Handle | None:
    """Return the first of several handles that stands for the same elements in the same order."""
    return next((other for other in others if other.geometry == handle.geometry), None)


class Handle:
    """What autograd, or the call of an inner segment, holds in the place of a tensor that a segment recomputes.

    Args:
        segment, value, tensor: the segment, the value that it makes, and the tensor in the value's memory.
        later: how the tensor is stored once recomputed; ``None``: it waits as it is until it is read.
        shares: whether it is read from the form that another handle stores, as an inner segment reads what a plan has
            a store for. If no handle of the same geometry stores one, the value waits as it is.
    """

    __slots__ = ("__weakref__", "_version", "geometry", "held", "later", "segment", "shares", "stored", "value")

    def __init__(
        self, segment: Segment, value: int, tensor: Tensor, later: Later | None = None, shares: bool = False
    ) -> None:
        self.held = False  # until the segment counts it
        self.segment = segment
        self.value = value
        self.geometry = Geometry.of(tensor)
        self.later, self.shares = later, shares
        self.stored: Packed | None = None  # the form that ``later`` made of it, once it was recomputed
        self._version = Version(tensor)
        segment.hold(self)

    def prepare(self) -> None:
        """Has the segment recompute it."""
        self.segment.prepare(self)

    def unpack(self) -> Tensor:
        """The tensor.

        Raises:
            RuntimeError: it was changed in place since; the message is torch's.
        """
        self._version.check(self.geometry)
        return self.segment.get(self)

    def __del__(self) -> None:
        if getattr(self, "held", False):  # an interrupt may have come before it was counted, or before it was anything
            self.segment.release(self.value)


class Results:
    """The recomputed results of one operator of a segment, for a reader other than the one that saved them: as the
    operator made them, whatever was written into them since."""

    __slots__ = ("_handles",)

    def __init__(self, *handles: Handle) -> None:
        self._handles: tuple[Handle, ...] | None = handles

    def tensors(self) -> tuple[Tensor, ...]:
        """The results. They are freed unless the graph is retained."""
        if self._handles is None:
            raise RuntimeError(_USED_UP)
        found = tuple(handle.segment.get(handle) for handle in self._handles)
        if not _graph_is_retained():
            self._handles = None
        return found


def _graph_is_retained() -> bool:
    """Whether what is read now may be read once more: the graph is retained, or this is not in a backward."""
    return current_graph_task_id() == -1 or get_current_graph_task_keep_graph()
