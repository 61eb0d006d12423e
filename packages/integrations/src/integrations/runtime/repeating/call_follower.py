"""``CallFollower``: follows a forward by the torch functions that it calls, where a tape would follow its operators."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from types import MethodWrapperType

import torch
from torch import Tensor, nn

from actcore import Kept
from actcore.replay import FollowedCalls, Handle, bind_follow
from integrations._utils.torch_internals import (
    get_sequence_nr,
    is_any_autocast_enabled,
    len_torch_dispatch_stack,
    len_torch_function_stack,
)
from integrations.capture.dispatch.memory import Geometry, get_key
from integrations.capture.dispatch.operators import get_generator
from integrations.runtime.repeating.call_trace import (
    HIDDEN,
    ArgumentForm,
    CallTrace,
    FollowedCall,
    Kind,
    RepeatedFunction,
    SegmentKey,
    Take,
    UnplacedTensor,
    find_sharing,
    get_autocast,
    has_memory,
    is_unseen,
    make_pattern,
)
from integrations.runtime.repeating.calls import (
    UNPLANNED,
    Draw,
    Elsewhere,
    Exactly,
    Given,
    HeldTensor,
    Keeping,
    KnownSite,
    Later,
    Scratch,
)
from integrations.runtime.repeating.following import Following
from integrations.runtime.repeating.segments import Segment
from integrations.runtime.repeating.thread_state import drawing
from integrations.tracing.call import Call
from integrations.tracing.tracker import is_waiting


class CallFollower(Following, FollowedCalls):
    """Compares the calls of a forward with those of one that a tape has followed, and gives the segments what they
    repeat. ``CallTracker`` tells of the calls.

    Each call is compared by its function, its results and the number of its autograd nodes, in C
    (``csrc/bindings/follow.cpp``). If operators of the function are recomputed, its arguments are compared, too:
    numbers and the like by value; tensors by their values in the plan, by how they lie in memory, and by which of them
    share memory. So are autocast and whether modes are active.

    Args:
        trace: the calls of the other forward.
        take_over: has a tape follow the rest of the forward, where another function is called than expected, or with
            other arguments; returns ``None`` if no tape can.
        keeping, model: as for ``Following``.

    Attributes:
        modes: how many modes of operators were active when the forward began.
    """

    def __init__(
        self,
        trace: CallTrace,
        take_over: Callable[[], Following | None],
        keeping: Keeping | None = None,
        model: nn.Module | None = None,
    ) -> None:
        Following.__init__(self, trace.schedule, keeping, model)
        self._trace = trace
        self.modes = len_torch_dispatch_stack()
        self._take_over: Callable[[], Following | None] | None = take_over
        self._tape: Following | None = None  # that follows the rest
        self._segments: dict[SegmentKey, Segment] = {}
        self._drawing = 0  # how often this holds the lock of those that draw
        # The handles that autograd holds for tensors of the running call, with these tensors.
        self._pending: list[tuple[weakref.ref[Handle], Tensor]] = []
        # Tensors that segments need and that the running call has made without returning them, by value.
        self._hidden: dict[int, Tensor] = {}
        self._unplaced_left: dict[int, Iterator[UnplacedTensor]] = {}  # by the id of their call
        self._met_unplaced = 0
        kept = self.keeping.known if isinstance(keeping, Exactly) else {}
        FollowedCalls.__init__(
            *(self, trace.calls, self.values, trace.recomputed, self._segments, self._pending, self._hidden),
            *(kept, self.modes),
        )

    def begin(self, expected: FollowedCall, call: Call) -> None:
        """A function is called that has recomputed operators, and of whose arguments C could not tell that they are the
        same."""
        repeated = expected.repeated
        if repeated is not None and not self._is_same(repeated, call):
            self._stop(call.name)
            return
        if expected.random:
            self._acquire()
        for take in () if repeated is None else repeated.early:
            self._give(take, call)

    def failed(self) -> None:
        """The function has raised an error, which the model may catch."""
        if not self.stopped:
            self._stop("an operator that failed")

    def differs(self, call: Call, how: str) -> None:
        """The call is not the expected one.

        Args:
            call: the call.
            how: how it differs, in words, if it has run and its results cannot be those of the plan; empty for a call
                that has not run yet, or has only other autograd nodes.
        """
        if how:
            self.leave(f"{call.name}{how}")
        else:
            self._stop(call.name)

    def finish(self) -> None:
        """Ends the forward."""
        self._count()
        if not self.mismatch and self.next < len(self.ops):
            self.leave("nothing")
        elif not (self.mismatch or self.stopped) and self._met_unplaced < self._trace.unplaced:
            self.leave("functions that have saved fewer tensors")

    def close(self) -> None:
        """Ends the forward. Releases the lock for drawing, which an interrupt may have left taken."""
        self._take_over = self.replay = None
        while self._drawing:
            with suppress(RuntimeError):  # it came before the lock was taken, or after it was given back
                self._release()

    def _acquire(self) -> None:
        """A function is called that draws."""
        self._drawing += 1
        drawing.acquire()

    def _write(self, tensor: Tensor, value: int) -> None:
        """A function has written to a tensor that it was given."""
        self.memory.add(tensor, value)

    def _release(self) -> None:
        self._drawing -= 1
        drawing.release()

    def leave(self, found: str) -> None:
        """Records that the forward is not the planned one."""
        running = self.running()
        self._count()
        super().leave(found)
        if running is not None:
            self.next = running.ops  # its tensors may have been stored as planned
        self._settle()

    def _stop(self, found: str) -> None:
        """Has a tape follow the rest of the forward, which may be the planned one."""
        self._count()
        self._tape = None if self._take_over is None else self._take_over()
        if self._tape is None:
            self.leave(found)
        else:
            self._settle()

    def _count(self) -> None:
        """Notes how many operators have run."""
        self.next = 0 if self.last is None else self.last.ops

    def _settle(self) -> None:
        """Follows no further calls."""
        self.stopped = True
        self.close()
        # No segment knows how to recompute these tensors, since the running call is not the expected one.
        for reference, tensor in self._pending:
            if (handle := reference()) is not None:
                handle.stored = Kept.of(tensor)
        self._pending.clear()
        self._hidden.clear()

    handle = FollowedCalls.handle

    def _handle_of_tape(self, tensor: Tensor, later: Later | None) -> Handle | None:
        """What replaces a tensor that will be recomputed, where the calls are not followed any more."""
        return Following.handle(self, tensor, later) if self._tape is None else self._tape.handle(tensor, later)

    def segments(self) -> Iterator[tuple[SegmentKey, Segment]]:
        """The segments so far, for others to add calls to them."""
        for key, segment in self._segments.items():
            segment.cut()
            yield key, segment

    def made(self) -> Iterator[tuple[bool, int, Segment]]:
        """The values that have been made and can be recomputed, by inner segments or others, with their segments."""
        made = {value for call in self._trace.calls if call.ops <= self.next for value in call.made}
        for inner, makers in self._trace.makers.items():
            for value, number in makers.items():
                if value in made and (inner, number) in self._segments:
                    yield inner, value, self._segments[inner, number]

    def meet(self, storage: torch.UntypedStorage, value: int, tensor: Tensor) -> bool:
        """Whether the memory of a tensor that is saved now, and has no value yet, is that of a value that the running
        call makes. It is, as far as the order and form of what the call saves tell."""
        running = self.running()
        if running is None or value not in running.made:
            return False
        self.storages.put(storage, value)
        if value in self._trace.hidden:
            self._hidden[value] = tensor
        return True

    def meet_made(self, tensors: Sequence[Tensor]) -> None:
        """Gives values to what the call that is running has made."""
        running = self.running()
        if running is None or running.repeated is None:
            return
        for tensor, value in zip(tensors, running.repeated.asked, strict=False):
            if value in running.made and get_key(tensor) not in self.values:
                self.memory.add(tensor, value)

    def meet_unplaced(self, tensor: Tensor, value: int) -> int:
        """Return the value of a saved tensor without a site: the one that the running call has saved in its place in
        the other forward."""
        running = self.running()
        if running is None:
            return value
        expected = next(self._unplaced_left.setdefault(id(running), iter(running.unplaced)), None)
        # Memory without a value so far was made by this call, as in the other forward.
        if (
            expected is None
            or (tensor.shape, tensor.dtype) != expected[1:]
            or (value != expected.value and not (value == UNPLANNED and expected.value in running.made))
        ):
            self.leave("a function that has saved other tensors")
            return UNPLANNED
        self._met_unplaced += 1
        if value == UNPLANNED:
            self.memory.add(tensor, expected.value)
        return expected.value

    def returns(self, expected: FollowedCall, outputs: list[Tensor]) -> bool:
        """Whether these are the expected results, where C cannot tell. Gives those their values that have new
        memory."""
        if len(outputs) != len(expected.results):
            return False
        for output, (value, new, shape, dtype, waiting) in zip(outputs, expected.results, strict=True):
            if is_waiting(output) != waiting or not (waiting or has_memory(output)):
                return False
            if output.shape != shape or output.dtype is not dtype:
                return False
            if waiting:
                continue
            there = self.memory.value_in(output)
            if there is None and new:
                assert value is not None
                self.memory.add(output, value)
            elif there != value:
                return False
        return True

    def _is_same(self, repeated: RepeatedFunction, call: Call) -> bool:
        """Whether a function is given the same as in the other forward: the same values, and the same of all else."""
        arguments = call.arguments
        if len(arguments) != len(repeated.arguments) or not is_unseen(self.modes):
            return False
        if get_autocast(arguments) != repeated.autocast or not all(map(has_memory, arguments)):
            return False
        if find_sharing([get_key(tensor) for tensor in arguments]) != repeated.sharing:
            return False
        for tensor, form in zip(arguments, repeated.arguments, strict=True):
            if ArgumentForm.of(tensor, self.value_of(tensor)) != form:
                return False
        try:
            given = call.given
            return bool(make_pattern((given.args, dict(given.kwargs))) == repeated.pattern)
        except TypeError:
            return False

    def _give(self, take: Take, call: Call) -> None:
        """Gives a segment something that it takes of a call."""
        segment = self._segment(take.segment)
        if segment.calls is not None:  # else a backward inside of the forward has used it up
            segment.given[take.place] = self._given(take, call)

    def _given(self, take: Take, call: Call) -> Given:
        if take.kind is Kind.DRAW:
            assert take.device is not None
            source = get_generator((), {}, take.device)
            assert source is not None
            return Draw(source, source.get_state())
        tensor = self._hidden[take.value] if take.argument is HIDDEN else call.arguments[take.argument]
        if take.geometry is not None and take.geometry != Geometry.of(tensor):
            tensor = take.geometry.view(tensor)
        if take.kind is Kind.SCRATCH:
            return Scratch(tensor.detach())
        if take.kind is Kind.ELSEWHERE:
            outer = self._segment_of(take.value, inner=False)
            assert outer is not None
            return Elsewhere(Handle(outer, take.value, tensor, shares=self.bears_store(take.value)))
        if take.kind is Kind.CAST:
            if take.known is not None:
                self.keeping.note(take.known)
            return HeldTensor(Kept.of(tensor))
        return HeldTensor(self._keeping_of(take.value).read(tensor, take.value, take.known))

    def _segment_of(self, value: int, inner: bool) -> Segment | None:
        number = self._trace.makers[inner].get(value)
        return None if number is None else self._segment((inner, number))

    def _segment(self, key: SegmentKey) -> Segment:
        segment = self._segments.get(key)
        if segment is None:
            calls, given, programs = self._trace.segments[key]
            segment = self._segments[key] = Segment(self._model, self.double, self.rounded, calls, given, programs)
        return segment

    def _handle(self, segment: Segment, value: int, tensor: Tensor, later: Later | None = None) -> Handle:
        handle, running = super()._handle(segment, value, tensor, later), self.running()
        if running is not None and value in running.made:
            self._pending.append((weakref.ref(handle), tensor))
        return handle


bind_follow(
    {
        "Tensor": Tensor,
        "Parameter": nn.Parameter,
        "FollowedCall": FollowedCall,
        "RepeatedFunction": RepeatedFunction,
        "KnownSite": KnownSite,
        "MethodWrapperType": MethodWrapperType,
        "Call": Call,
        "count_nodes": get_sequence_nr,
        "is_grad_enabled": torch.is_grad_enabled,
        "function_modes": len_torch_function_stack,
        "dispatch_modes": len_torch_dispatch_stack,
        "autocast_enabled": is_any_autocast_enabled,
        "get_autocast": get_autocast,
        "HELD": Kind.HELD,
        "ELSEWHERE": Kind.ELSEWHERE,
        "SCRATCH": Kind.SCRATCH,
    }
)
