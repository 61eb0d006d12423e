"""``Segment``: operators of a forward that are repeated together when backward needs what they made."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from actcore.replay import Handle, RepeatedSegment, bind_segments
from integrations._utils.out_of_memory import explain
from integrations._utils.torch_internals import (
    AutoDispatchBelowAutograd,
    DisableAutocast,
    current_graph_task_id,
    get_current_graph_task_keep_graph,
    len_torch_dispatch_stack,
)
from integrations.capture.dispatch.memory import Geometry, iter_tensors
from integrations.capture.dispatch.versions import EMPTY, Version
from integrations.runtime.repeating.calls import (
    Elsewhere,
    Given,
    HeldTensor,
    Outer,
    Reference,
    RepeatedCall,
    Scratch,
    require_memory,
)
from integrations.runtime.repeating.thread_state import here, repeated
from integrations.tracing.storage.regions import View

_USED_UP = (
    "backward went through this part of the graph a second time, but its tensors were freed after the first time: "
    "pass retain_graph=True to the first backward"
)


class Step(NamedTuple):
    """One call of a repetition.

    Attributes:
        call: the call.
        ends: the values that nothing needs after it.
        rests: the saved values that can be stored after it.
    """

    call: RepeatedCall
    ends: tuple[int, ...]
    rests: tuple[int, ...]


class Segment(RepeatedSegment):
    """Operators in order, which backward repeats, and the tensors that they made then.

    Most of it is in C (``csrc/bindings/segments.cpp``). Autograd holds a ``Handle`` in the place of each saved tensor
    that the segment makes. When the first handle is read, the segment repeats its calls. A tensor is freed with the
    last handle of its memory. While one thread reads, others wait.

    A segment belongs to the saved tensors that it makes, and is freed with them. The calls of an inner segment hold
    handles of what an outer segment makes, which keep it alive until the inner segment has been repeated.

    Args, by place:
        model: a weak reference to the model whose forward it is a part of, which an error names if memory runs out.
            ``None`` for none.
        double: is notified of a backward with ``create_graph=True``; ``None`` for none.
        rounded: whether its inputs may be rounded.
        calls: the calls that the forward is expected to make, if they are known before; ``advance`` tells which it has
            made.
        given: how many places there are for what these take from outside.
        programs: what ``_program`` has returned for segments with the same calls; ``None`` where there are no others.

    Attributes:
        calls: the calls; ``None`` once they have been repeated for the last time.
        given: the tensors and generators from outside that the calls read, each a ``Given``; ``None`` once it was used.
        done: the number of calls that the forward has made.
        becomes: values whose memory an operator has overwritten, with the values that it holds then.
        handles: the number of saved tensors in each value's memory.
        waiting: by value, weak references to the handles among them whose tensors may be stored once recomputed.
        stored: what ``Later.store`` keeps in it.
        made: the values that were recomputed and are not read yet.
    """

    __slots__ = ("__weakref__",)

    def append(self, call: RepeatedCall, given: Sequence[Given]) -> None:
        """Adds an operator that has run, and what it takes from outside of the segment."""
        self.given += given
        self.calls.append(call)
        self.advance(len(self.calls), call.changes)

    def cut(self) -> None:
        """Forgets the calls that the forward has not made, for others to be added."""
        if self.calls is not None:
            self.calls, self.programs = list(self.calls[: self.done]), None

    def _program(self, needed: tuple[int, ...], waiting: tuple[int, ...]) -> tuple[Step, ...]:
        """The calls that make some values, in order.

        Args:
            needed: the values.
            waiting: those of them that are stored once they are made.
        """
        left, missing = set(waiting), set(needed)
        chosen: list[tuple[RepeatedCall, list[int], tuple[int, ...]]] = []
        for call in reversed(self.calls[: self.done]):
            if call.needed_for(missing):
                rests = left.intersection((*call.reads(), *call.results()))
                left -= rests
                ends = list(dict.fromkeys(value for value in call.reads() if value not in missing))
                missing.update(ends)
                chosen.append((call, ends, tuple(rests)))
        return tuple(
            Step(call, (*ends, *(value for value in call.results() if value not in missing)), rests)
            for call, ends, rests in reversed(chosen)
        )

    def _store(self, value: int, made: dict[int, Tensor]) -> None:
        """Stores the saved tensors in a value's memory, each in its own form, and those that share one in that."""
        handles = self._waiting_for(value)
        stored = [handle for handle in handles if handle.later is not None]
        for handle in handles:
            same = handle if handle.later is not None else _alike(handle, stored)
            if same is None:
                continue
            packed = same.later.store(handle.geometry.view(made[value]), self.stored)
            # What a repetition restores is not lent to autograd: it would stay alive until backward reads it.
            handle.stored = packed.beside() if same is not handle and isinstance(packed, View) else packed

    def _waiting_for(self, value: int) -> list[Handle]:
        return [handle for reference in self.waiting.get(value, ()) if (handle := reference()) is not None]

    def _is_stored(self, value: int) -> bool:
        """Whether a form of each saved tensor in a value's memory is stored, and nothing else reads the value."""
        handles = self._waiting_for(value)
        stored = bool(self.waiting.get(value)) and all(handle.stored is not None for handle in handles)
        return stored and self._only_stored(value)

    def _only_stored(self, value: int) -> bool:
        """Whether no inner segment reads the value as it is."""
        forms = sum(handle.later is not None or handle.stored is not None for handle in self._waiting_for(value))
        return bool(forms >= self.handles.get(value, 0))

    def _explain(self, error: Exception) -> None:
        """Is told of an error in a repetition, before it is raised."""
        model = None if self.model is None else self.model()
        if model is not None:
            explain(error, model)


def _alike(handle: Handle, others: list[Handle]) -> Handle | None:
    """Return the first of several handles that stands for the same elements in the same order."""
    return next((other for other in others if other.geometry == handle.geometry), None)


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
        found = tuple(handle.get() for handle in self._handles)
        if not _graph_is_retained():
            self._handles = None
        return found


def _graph_is_retained() -> bool:
    """Whether what is read now may be read once more: the graph is retained, or this is not in a backward."""
    return current_graph_task_id() == -1 or get_current_graph_task_keep_graph()


def _tensors_in(out: Any) -> list[Tensor]:
    """The tensors that an operator has returned."""
    return list(iter_tensors(out if isinstance(out, (list, tuple)) else (out,)))


bind_segments(
    {
        "Geometry": Geometry,
        "Version": Version,
        "Reference": Reference,
        "Outer": Outer,
        "RepeatedCall": RepeatedCall,
        "HeldTensor": HeldTensor,
        "Elsewhere": Elsewhere,
        "Scratch": Scratch,
        "RLock": threading.RLock,
        "is_retained": _graph_is_retained,
        "here": here,
        "below_autograd": AutoDispatchBelowAutograd,
        "DisableAutocast": DisableAutocast,
        "dispatch_modes": len_torch_dispatch_stack,
        "as_strided": torch.as_strided,
        "EMPTY": EMPTY,
        "USED_UP": _USED_UP,
        "require_memory": require_memory,
        "tensors_in": _tensors_in,
        "aside": repeated,
    }
)
