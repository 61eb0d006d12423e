"""``CallTrace``: a list of the torch functions that a forward calls, with the plan's values that they read and make.

A tape looks at each operator, in a dispatch mode, which takes longer than many operators do. Most forwards of a model
call the same functions with the same arguments. So while a tape follows a forward, ``Recording`` notes, for each
function that is called, the values that it reads and makes and what the segments take of them. ``CallFollower``
compares the calls of the next forwards with that, and needs no tape.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import BuiltinFunctionType, FunctionType, MethodDescriptorType, MethodWrapperType, WrapperDescriptorType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from integrations._utils.torch_internals import (
    OpOverload,
    is_any_autocast_enabled,
    len_torch_dispatch_stack,
    len_torch_function_stack,
)
from integrations.capture.dispatch.memory import Geometry, is_plain
from integrations.capture.graphs.schedule import Schedule
from integrations.runtime.repeating.calls import UNPLANNED, KnownSite, RepeatedCall

SegmentKey = tuple[bool, int]
"""Whether a segment is an inner one, and the schedule's number of it."""


class ArgumentForm(NamedTuple):
    """What is compared of a tensor that a function is given."""

    value: int
    geometry: Geometry
    requires_grad: bool
    device: torch.device

    @classmethod
    def of(cls, tensor: Tensor, value: int) -> ArgumentForm:
        """The form of a plain tensor."""
        return cls(value, Geometry.of(tensor), tensor.requires_grad, tensor.device)


class Result(NamedTuple):
    """A tensor that a function returns.

    Attributes:
        value: the value in its memory; ``None`` for none.
        new: whether the function has made that memory.
        waits: whether it has no memory before somebody asks for it, as the logits of a loss in chunks. Its value is
            ``UNPLANNED``, which no tensor has in C: so Python compares it.
    """

    value: int | None
    new: bool
    shape: torch.Size
    dtype: torch.dtype
    waits: bool = False


class UnplacedTensor(NamedTuple):
    """A tensor without a site that autograd saves."""

    value: int
    shape: torch.Size
    dtype: torch.dtype


class Kind(enum.Enum):
    """What a segment is given. See ``calls.Given``. In the place of a parameter's cast it is given the parameter."""

    HELD = enum.auto()
    CAST = enum.auto()
    ELSEWHERE = enum.auto()
    SCRATCH = enum.auto()
    DRAW = enum.auto()


HIDDEN = None
"""In the place of an argument: a tensor that the function has made, and that is seen when autograd saves it."""


class Take(NamedTuple):
    """Something that a segment takes of a function's call.

    Attributes:
        kind: of what is given.
        segment: the segment.
        place: the index in ``Segment.given``.
        argument: the place of the tensor among those that the function is given; or ``HIDDEN``.
        value: the tensor's value.
        geometry: how the tensor lies that is taken, where it is a part or a view of the function's.
        device: whose generator it is.
        known: how the tensor is stored.
        key: the key in ``Keeping.known`` of what a forward keeps of the tensor. It is empty if the tensor is kept as it
            is, and ``None`` if only ``CallFollower`` can tell.
        outer: the segment that makes the tensor; ``None`` for none.
        shares: as for ``Handle``.
        unsaved: whether autograd alone would not keep the tensor.
    """

    kind: Kind
    segment: SegmentKey
    place: int
    argument: int | None = HIDDEN
    value: int = UNPLANNED
    geometry: Geometry | None = None
    device: torch.device | None = None
    known: KnownSite | None = None
    key: tuple[Any, ...] | None = None
    outer: SegmentKey | None = None
    shares: bool = False
    unsaved: bool = False


class Advance(NamedTuple):
    """How far a segment is after a call. See ``Segment.advance``."""

    segment: SegmentKey
    done: int
    changes: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class RepeatedFunction:
    """A function that runs operators which are recomputed. A later call has to agree in all of this.

    Attributes:
        pattern: the function's arguments. See ``make_pattern``.
        arguments: the tensors among them.
        sharing: by tensor, the first of them in the same memory.
        autocast: the autocast around it. See ``get_autocast``.
        node: the class of the node of its first result.
        early: what segments take before it runs.
        takes: what segments take after it has run.
        advances: how many of their calls the segments have after it.
        asked: for attention, the values of its results that it asks the segments to recompute; else empty.
    """

    pattern: Any
    arguments: tuple[ArgumentForm, ...]
    sharing: tuple[int, ...]
    autocast: tuple[Any, ...]
    node: type | None
    early: tuple[Take, ...]
    takes: tuple[Take, ...]
    advances: tuple[Advance, ...]
    asked: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class FollowedCall:
    """A call of a torch function, as it is expected.

    Attributes:
        function: the function.
        grad: whether gradients are enabled.
        before, nodes: how many autograd nodes were made since the call before it, and how many it makes.
        ops: how many operators of the plan have run after it.
        made: the values that it makes.
        random: whether it draws.
        changed: the places of tensors that it is given and writes to, with the values that these become.
        results: the tensors that it returns.
        unplaced: the tensors without a site that autograd saves for it, in order.
        repeated: more, if some of its operators are recomputed.
    """

    function: Callable[..., Any]
    grad: bool
    before: int
    nodes: int
    ops: int
    made: frozenset[int]
    random: bool
    changed: tuple[tuple[int, int], ...]
    results: tuple[Result, ...]
    unplaced: tuple[UnplacedTensor, ...]
    repeated: RepeatedFunction | None


@dataclass(slots=True)
class RunningCall:
    """What is noted so far of a call that is running. ``Recording`` makes a ``FollowedCall`` of it."""

    place: int
    before: int
    nodes: int
    ops: int
    grad: bool
    autocast: tuple[Any, ...]
    unseen: bool
    keys: list[int | None]
    arguments: list[ArgumentForm | None]
    draws: int = 0
    casts: dict[int, tuple[int, Callable[[Tensor], Tensor]]] = field(default_factory=dict)
    owned: set[int] = field(default_factory=set)  # casts that autocast owns
    nested: bool = False
    decides: bool = False  # by an element of a tensor
    shapes: dict[int, tuple[int, ...]] = field(default_factory=dict)  # that depend on elements, by value
    operators: list[str] = field(default_factory=list)
    read: set[int] = field(default_factory=set)
    written: set[int] = field(default_factory=set)
    takes: list[Take] = field(default_factory=list)
    advances: list[Advance] = field(default_factory=list)
    asked: tuple[int, ...] = ()
    unplaced: list[UnplacedTensor] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class CallTrace:
    """The calls of a forward that followed a schedule, in order.

    Attributes:
        schedule: that schedule.
        calls: the calls.
        segments: the calls that each segment repeats, how much it is given, and the repetitions of these calls that are
            known (see ``Segment``).
        hidden: the values that are seen only when autograd saves them, and that segments are given.
        makers: by whether it is asked for inner segments: the number of the segment that makes each value.
        recomputed: by value: the segment for which a saved tensor waits in its memory.
        unplaced: how many tensors without a site autograd saves.
    """

    schedule: Schedule
    calls: tuple[FollowedCall, ...]
    segments: dict[SegmentKey, tuple[tuple[RepeatedCall, ...], int, dict[Any, Any]]]
    makers: dict[bool, dict[int, int]]
    hidden: frozenset[int]
    recomputed: dict[int, SegmentKey]
    unplaced: int


_PACKET = type(torch.ops.aten.add)
_OF_C = (BuiltinFunctionType, MethodDescriptorType, MethodWrapperType, WrapperDescriptorType)


def is_of_torch(function: Callable[..., Any], operators: Sequence[str]) -> bool:
    """Return whether a function is torch's own, written in C or in Python, or a library's operator that is no more than
    itself. Others may compute something else each time."""
    if isinstance(function, OpOverload | _PACKET):
        return len(operators) == 1 and f"{operators[0]}.".startswith(f"{function}.")
    if isinstance(function, FunctionType):
        return str(function.__module__).partition(".")[0] == "torch"
    return isinstance(function, _OF_C)


def has_memory(tensor: Tensor) -> bool:
    """Whether a tensor is a view of one storage and nothing else, which can be asked for: not one of ``torch.vmap``."""
    try:
        return is_plain(tensor) and tensor.untyped_storage() is not None
    except RuntimeError:
        return False


def find_sharing(keys: Sequence[int | None]) -> tuple[int, ...]:
    """By tensor, the place of the first one with the same storage, whose keys are given."""
    return tuple(map(list(keys).index, keys))


def get_autocast(arguments: Sequence[Tensor]) -> tuple[Any, ...]:
    """The autocast that a function runs under, on the devices of its arguments; empty for none."""
    if not is_any_autocast_enabled():
        return ()
    kinds = dict.fromkeys(("cpu", *(tensor.device.type for tensor in arguments)))
    return (
        torch.is_autocast_cache_enabled(),
        *((torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in kinds if kind != "meta"),
    )


def is_unseen(modes: int) -> bool:
    """Whether nobody looks at a function's operators, or changes its arguments, who does not do so to what follows the
    forward: no mode of torch functions around the model's, and no more modes of operators than these."""
    return len_torch_function_stack() == 0 and len_torch_dispatch_stack() == modes


def get_node_type(outputs: Sequence[Tensor]) -> type | None:
    """The class of the first result's autograd node."""
    return type(outputs[0].grad_fn) if outputs and outputs[0].grad_fn is not None else None


_CONSTANTS = (type(None), bool, int, str, torch.dtype, torch.device, torch.layout, torch.memory_format)


def make_pattern(given: Any) -> Any:
    """Something to compare a function's arguments by, without the tensors in them.

    Raises:
        TypeError: there is something whose value is not known.
    """
    kind = type(given)
    if isinstance(given, Tensor):
        return Tensor
    if kind in _CONSTANTS or given is Ellipsis:
        return kind, given
    if kind is float:
        return kind, given.hex()  # that of -0.0 is its own
    if kind is complex:
        return kind, given.real.hex(), given.imag.hex()
    if kind is slice:
        return kind, make_pattern((given.start, given.stop, given.step))
    if isinstance(given, (list, tuple)):
        return kind, tuple(map(make_pattern, given))
    if kind is dict:
        return kind, tuple((name, make_pattern(one)) for name, one in given.items())
    raise TypeError(f"a function is given a {kind.__name__}, whose value cannot be compared")
