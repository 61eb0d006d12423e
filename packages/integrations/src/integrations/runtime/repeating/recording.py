"""``Recording``: notes the calls of a forward that a tape follows, for ``CallFollower``. See ``call_trace``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from integrations._utils.torch_internals import OpOverload, get_sequence_nr, len_torch_dispatch_stack
from integrations.capture.dispatch.memory import Geometry, get_key, iter_tensors
from integrations.capture.dispatch.operators import Traits, get_generator
from integrations.runtime.repeating.call_trace import (
    HIDDEN,
    Advance,
    ArgumentForm,
    CallTrace,
    FollowedCall,
    Kind,
    RepeatedFunction,
    Result,
    RunningCall,
    SegmentKey,
    Take,
    UnplacedTensor,
    find_sharing,
    get_autocast,
    get_node_type,
    has_memory,
    is_of_torch,
    is_unseen,
    make_pattern,
)
from integrations.runtime.repeating.calls import (
    UNPLANNED,
    Draw,
    Elsewhere,
    Given,
    KnownSite,
    Outer,
    RepeatedCall,
    Scratch,
    Takes,
)
from integrations.runtime.repeating.following import Following
from integrations.runtime.repeating.segments import Segment
from integrations.tracing.call import Call
from integrations.tracing.owners import CAST as CAST_OF_WEIGHT
from integrations.tracing.tracker import is_waiting

CAST = "aten._to_copy.default"
"""The operator of a cast, by its name."""

_NUMBER = "aten._local_scalar_dense.default"


class Recording:
    """Notes the calls of a forward that a tape follows.

    Args:
        tape: the tape.
        spare: returns for each operator of the plan the bytes that the plan's peak leaves free while it runs.

    Attributes:
        obstacle: why forwards cannot be followed by their calls, in words; empty while they can.
    """

    def __init__(self, tape: Following, spare: Callable[[], Sequence[int]]) -> None:
        self._tape, self._spare = tape, spare
        self.obstacle = ""
        self._calls: list[FollowedCall | None] = []
        self._frames: list[RunningCall] = []
        self._segments: dict[SegmentKey, tuple[Segment, list[RepeatedCall], int]] = {}
        self._makers: dict[bool, dict[int, int]] = {False: {}, True: {}}
        self._ops = 0  # of the plan that had run at the last event
        self._nodes = get_sequence_nr()
        self._modes = len_torch_dispatch_stack() + 1  # with the tape

    def before(self, call: Call) -> None:
        """A function is called."""
        if self.obstacle:
            return
        tape, nodes = self._tape, get_sequence_nr()
        if self._frames:
            self._frames[-1].nested = True
        elif tape.next != self._ops:
            self._stop("an operator ran outside of torch's functions")
            return None
        plain = [has_memory(tensor) for tensor in call.arguments]
        self._frames.append(
            RunningCall(
                place=len(self._calls),
                before=nodes - self._nodes,
                nodes=nodes,
                ops=tape.next,
                grad=torch.is_grad_enabled(),
                autocast=get_autocast(call.arguments),
                unseen=is_unseen(self._modes),
                keys=[get_key(one) if has else None for one, has in zip(call.arguments, plain, strict=True)],
                arguments=[
                    ArgumentForm.of(one, tape.value_of(one)) if has else None
                    for one, has in zip(call.arguments, plain, strict=True)
                ],
            )
        )
        self._calls.append(None)
        self._nodes, self._ops = nodes, tape.next

    def after(self, call: Call, outputs: list[Tensor]) -> None:
        """The function has returned these tensors."""
        if self.obstacle:
            return
        frame, nodes = self._frames.pop(), get_sequence_nr()
        self._nodes, self._ops = nodes, self._tape.next
        if frame.nested and frame.advances:
            self._stop("a function runs operators beside those of the functions that it calls")
            return None
        ops = self._tape.ops[frame.ops : self._tape.next]
        changed = []
        for place, (tensor, form) in enumerate(zip(call.arguments, frame.arguments, strict=True)):
            if form is not None and (value := self._tape.value_of(tensor)) != form.value:
                changed.append((place, value))
        made = frozenset(value for op in ops for value in op.makes)
        results = self._results(outputs, made - {value for _, value in changed})
        if results is None:
            return None
        returned = {result.value: result.shape for result in results if result.new}
        if any(returned.get(value) != shape for value, shape in frame.shapes.items()):
            return self._stop(f"the shape of something that {call.name} does not return as a whole depends on elements")
        # What the functions return that it calls is seen.
        if not frame.nested and (why := self._why_unseen(frame, made - {result.value for result in results})):
            return self._stop(f"{call.name} makes tensors that it does not return, {why}")
        repeated = self._repeated(call, frame, outputs) if frame.advances or frame.asked else None
        self._calls[frame.place] = FollowedCall(
            call.function,
            frame.grad,
            frame.before,
            nodes - frame.nodes,
            self._tape.next,
            made,
            frame.draws > 0,
            tuple(changed),
            results,
            tuple(frame.unplaced),
            repeated,
        )

    def failed(self) -> None:
        """The function has raised an error."""
        self._stop("a function raised an error")

    def note_operator(self, traits: Traits, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """An operator of the forward runs."""
        if not self._frames:
            return
        frame, planned = self._frames[-1], self._tape.planned()
        written = traits.written(args, kwargs)
        draws = traits.draws(args, kwargs) and (bool(written) or (planned is not None and planned.name == traits.name))
        frame.draws += draws  # others, which choose a kernel, are only marked as random
        frame.decides |= traits.name == _NUMBER
        frame.operators.append(traits.name)
        frame.written |= {get_key(one) for one in written if has_memory(one)}
        if traits.name != _NUMBER:
            given = (*iter_tensors(args), *iter_tensors(kwargs.values()))
            frame.read |= {get_key(one) for one in given if has_memory(one)}

    def note_cast(self, function: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], out: Tensor) -> None:
        """A cast has run that is not repeated. One of a parameter, which autocast owns, is made once more where a
        repetition reads it: autograd need not save it, and then nobody sees it."""
        if not self._frames or len(args) != 1:
            return
        frame, expected = self._frames[-1], ArgumentForm.of(args[0], UNPLANNED)
        for place, form in enumerate(frame.arguments):
            if form == expected and frame.keys[place] == get_key(args[0]):
                frame.casts[self._tape.value_of(out)] = place, partial(function, **kwargs)
                return

    def note_asked(self, tensors: Sequence[Tensor]) -> None:
        """The call that is running asks how these tensors are recomputed, which it has made."""
        if self._frames:
            self._frames[-1].asked = tuple(map(self._tape.value_of, tensors))

    def note_unplaced(self, tensor: Tensor, value: int) -> None:
        """Autograd saves a tensor that has no site."""
        if self.obstacle:
            return
        if not self._frames or value == UNPLANNED or self._tape.schedule.is_recomputed(value):
            return self._stop("a tensor without a site is saved")
        self._frames[-1].unplaced.append(UnplacedTensor(value, tensor.shape, tensor.dtype))

    def note_repeated(self, key: SegmentKey, segment: Segment, call: RepeatedCall, takes: Takes) -> None:
        """An operator has run that a segment repeats."""
        if self.obstacle:
            return
        if not self._frames:
            self._stop("an operator ran outside of torch's functions")
            return None
        frame = self._frames[-1]
        if call.shapes is not None:
            frame.shapes.update((value, call.shapes[place]) for value, place in call.makes)
        _, calls, _ = self._segments.setdefault(key, (segment, [], 0))
        stands: dict[int, Outer] = {}
        for place, given, of in zip(call.takes, takes.given, takes.of, strict=True):
            found = self._take(frame, key, place, given, *of)
            if found is None:
                return None
            take, lies = found
            stands[place] = Outer(place, lies)
            frame.takes.append(take)
        args, kwargs = _with(call.args, stands), {name: _with(one, stands) for name, one in call.kwargs.items()}
        calls.append(replace(call, args=args, kwargs=kwargs))
        self._segments[key] = segment, calls, max((*call.takes, self._segments[key][2] - 1)) + 1
        frame.advances.append(Advance(key, len(calls), call.changes))
        for value in call.results():
            self._makers[key[0]][value] = key[1]

    def finish(self) -> CallTrace | None:
        """The trace of the forward, which is over; ``None`` if there is an obstacle."""
        if not self.obstacle and self._ops != self._tape.next:
            self._stop("an operator ran outside of torch's functions")
        if any(segment.calls is None for segment, _, _ in self._segments.values()):
            self._stop("a backward ran inside of the forward")
        calls = tuple(call for call in self._calls if call is not None)
        if self.obstacle or self._frames or len(calls) < len(self._calls):
            return None
        segments: dict[SegmentKey, tuple[tuple[RepeatedCall, ...], int, dict[Any, Any]]] = {
            key: (tuple(calls), given, {}) for key, (_, calls, given) in self._segments.items()
        }
        takes = [take for call in calls if call.repeated is not None for take in call.repeated.takes]
        hidden = frozenset(take.value for take in takes if take.argument is HIDDEN and take.kind is not Kind.DRAW)
        schedule = self._tape.schedule
        recomputed = {
            value: (inner, number)
            for inner, makers in self._makers.items()
            for value, number in makers.items()
            if schedule.is_recomputed(value) and schedule.is_recomputed_inside(value) == inner
        }
        unplaced = sum(len(call.unplaced) for call in calls)
        return CallTrace(schedule, calls, segments, self._makers, hidden, recomputed, unplaced)

    def close(self) -> None:
        """Lets go of the forward."""
        self._segments.clear()
        self._frames.clear()

    def _stop(self, obstacle: str) -> None:
        self.obstacle = self.obstacle or obstacle
        self.close()

    def _why_unseen(self, frame: RunningCall, unseen: frozenset[int]) -> str:
        """Return why a follower cannot deal with what a function has made and not returned; empty if it can.

        It holds what backward recomputes of that until the function returns, for which the plan's peak must have room.
        It cannot tell several such tensors from others that it has to give to a segment.
        """
        becomes, values = self._tape.schedule.becomes, self._tape.schedule.graph.values
        waiting = {value for value in unseen if self._waits(value) and becomes.get(value) not in unseen}
        making = [op for op in self._tape.ops[frame.ops : self._tape.next] if not waiting.isdisjoint(op.makes)]
        several = sum(op.name != CAST for op in making) > 1
        if several and any(take.argument is HIDDEN and take.kind is not Kind.DRAW for take in frame.takes):
            return "and of which a segment needs some"
        held = [0] * (self._tape.next - frame.ops)  # extra bytes that a follower holds at each operator
        for value in waiting:
            for place in range(max(values[value].until + 1 - frame.ops, 0), len(held)):
                held[place] += values[value].nbytes
        fits = not any(held) or all(more <= free for more, free in zip(held, self._spare()[frame.ops :], strict=False))
        return "" if fits else "and for which the plan's peak has no room"

    def _waits(self, value: int) -> bool:
        """Whether backward recomputes a value that autograd saves."""
        schedule = self._tape.schedule
        return schedule.graph.values[value].saved >= 0 and schedule.is_recomputed(value)

    def _results(self, outputs: list[Tensor], made: frozenset[int]) -> tuple[Result, ...] | None:
        """The tensors that a function has returned."""
        results, taken = [], set(self._tape.schedule.becomes.values())
        for output in outputs:
            if is_waiting(output):
                results.append(Result(UNPLANNED, False, output.shape, output.dtype, waits=True))
                continue
            if not has_memory(output):
                self._stop(f"a {type(output).__name__} is returned")
                return None
            value = self._tape.value_of(output)
            new = value in made
            if new and value in taken:
                self._stop("a function writes to what it has made and returns")
                return None
            results.append(Result(None if value == UNPLANNED else value, new, output.shape, output.dtype))
            made -= {value}  # further results may be views of it
        return tuple(results)

    def _repeated(self, call: Call, frame: RunningCall, outputs: list[Tensor]) -> RepeatedFunction | None:
        """What is known of a function of whose operators some are recomputed."""
        forms = tuple(form for form in frame.arguments if form is not None)
        if len(forms) < len(frame.arguments):
            self._stop("a function whose operators are recomputed is given a tensor of another kind")
            return None
        if not is_of_torch(call.function, frame.operators):
            self._stop(f"{call.name} is not torch's own: what it computes may follow from more than its arguments")
            return None
        if frame.decides or not frame.read.issuperset(frame.keys):
            self._stop(f"{call.name} follows from elements of a tensor that none of its operators reads")
            return None
        if not frame.unseen:
            self._stop("a mode is active in the forward, or a mode of torch functions around it")
            return None
        try:
            pattern = make_pattern((call.given.args, dict(call.given.kwargs)))
        except TypeError as error:
            self._stop(str(error))
            return None

        def is_early(take: Take) -> bool:
            """The generator, and tensors that the function overwrites, are taken as they are before; and where a tensor
            is stored first, that takes memory, which the function's results then have to themselves."""
            if take.kind is Kind.DRAW or take.argument is HIDDEN:
                return take.kind is Kind.DRAW
            stores = take.kind is Kind.HELD and take.known is not None and take.known.is_first
            return stores or frame.keys[take.argument] in frame.written

        early = tuple(filter(is_early, frame.takes))
        late = tuple(take for take in frame.takes if not is_early(take))
        sharing, node = find_sharing(frame.keys), get_node_type(outputs)
        return RepeatedFunction(
            pattern, forms, sharing, frame.autocast, node, early, late, tuple(frame.advances), frame.asked
        )

    def _take(
        self,
        frame: RunningCall,
        key: SegmentKey,
        place: int,
        given: Given,
        tensor: Tensor | None,
        value: int,
        known: KnownSite | None,
    ) -> tuple[Take, Callable[[Tensor], Tensor] | None] | None:
        """How the same is taken in another forward, and how what the operator reads is made of that when it is repeated
        (``Outer.lies``); ``None`` if it cannot be taken."""
        if isinstance(given, Draw):
            device = given.source.device
            if frame.draws > 1 or get_generator((), {}, device) is not given.source:
                self._stop("a function draws several times, or from a generator that it is given")
                return None
            return Take(Kind.DRAW, key, place, device=device), None
        assert tensor is not None
        address, geometry = get_key(tensor), Geometry.of(tensor)
        places = [at for at, known in enumerate(frame.keys) if known == address]
        if not places:
            schedule = self._tape.schedule
            made = any(value in op.makes for op in self._tape.ops[frame.ops : self._tape.next])
            if made and value not in schedule.becomes and not isinstance(given, Scratch):
                if known is not None and known.site is not None and known.site.owner == CAST_OF_WEIGHT:
                    frame.owned.add(value)
                if value in frame.owned and value in frame.casts:
                    argument, cast = frame.casts[value]
                    return Take(Kind.CAST, key, place, argument, known=known), partial(_cast, cast, geometry)
                if schedule.graph.values[value].saved >= 0:
                    kind = Kind.ELSEWHERE if isinstance(given, Elsewhere) else Kind.HELD
                    return Take(kind, key, place, HIDDEN, value, geometry, known=known), None
            self._stop("an operator that is recomputed reads a tensor that its function is not given")
            return None

        def fits(at: int) -> bool:
            form = frame.arguments[at]
            return form is not None and form.geometry == geometry

        argument = next(filter(fits, places), places[0])
        lies = None if fits(argument) else geometry
        if isinstance(given, Scratch):
            return Take(Kind.SCRATCH, key, place, argument, geometry=lies), None
        if isinstance(given, Elsewhere):
            number = self._makers[False].get(value)
            outer = None if number is None else (False, number)
            shares = self._tape.bears_store(value)
            return Take(Kind.ELSEWHERE, key, place, argument, value, lies, outer=outer, shares=shares), None
        if value == UNPLANNED and lies is not None:  # the very tensor is kept
            return Take(Kind.HELD, key, place, argument, key=()), lies.view
        schedule, form = self._tape.schedule, frame.arguments[argument]
        if value == UNPLANNED or value in schedule.becomes:
            return Take(Kind.HELD, key, place, argument, value, lies, known=known, key=()), None
        unsaved = schedule.graph.values[schedule.final(value)].saved < 0
        read = None if form is None else (value, form.geometry, form.requires_grad)
        return Take(Kind.HELD, key, place, argument, value, lies, known=known, key=read, unsaved=unsaved), None


def _with(argument: Any, stands: dict[int, Outer]) -> Any:
    """An argument with others in the place of those that stand for what a segment is given."""
    if isinstance(argument, Outer):
        return stands[argument.place]
    if isinstance(argument, (list, tuple)):
        return type(argument)(_with(item, stands) for item in argument)
    return argument


def _cast(function: Callable[[Tensor], Tensor], geometry: Geometry, tensor: Tensor) -> Tensor:
    return geometry.view(function(tensor))
