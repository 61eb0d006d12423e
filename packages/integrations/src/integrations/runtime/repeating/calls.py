"""``RepeatedCall``: an operator's call, noted to be repeated, and what replaces the tensors among its arguments, in the
form in which they wait."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from actcore import Kept
from actcore.replay import restore
from integrations._utils.torch_internals import OpOverload, set_grad_enabled
from integrations.capture.dispatch.memory import Geometry, get_shapes, is_plain, iter_tensors
from integrations.runtime.repeating.thread_state import drawing, generator_at

UNPLANNED = -1
"""In the place of a value: memory that the plan does not know."""


class Packed(Protocol):
    """What replaces a tensor while it waits."""

    def unpack(self) -> Tensor:
        """The restored tensor."""


class Later(Protocol):
    """How a recomputed tensor is stored from then on until backward reads it."""

    def store(self, tensor: Tensor, stored: dict[str, Any]) -> Packed:
        """Stores the tensor. ``stored`` belongs to the segment: through it, stored forms of one memory are shared."""


class KnownSite:
    """The site of a tensor that is held for a repetition, once it is known.

    Attributes:
        site: its ``Site``; ``None`` before, and where the tensor has to go the full way each time.
        is_first: whether nothing else had stored it before.
    """

    __slots__ = ("is_first", "site")

    def __init__(self) -> None:
        self.site: Any = None
        self.is_first = False


class Keeping(Protocol):
    """How one forward keeps what its repetitions read.

    Attributes:
        known: the stored forms so far, by value, geometry and ``requires_grad`` of the tensor.
    """

    known: dict[tuple[int, Geometry, bool], Packed]

    def read(self, tensor: Tensor, value: int, known: KnownSite | None = None) -> Packed:
        """What a repetition holds in the place of a tensor that it reads.

        Args:
            tensor, value: the tensor and its value.
            known: how the same was stored in the forward before; ``None`` where that is not noted.
        """

    def note(self, known: KnownSite) -> None:
        """Notes a tensor that would be held, and that the repetition makes once more."""


class Exactly:
    """Keeps tensors as they are."""

    def __init__(self) -> None:
        self.known: dict[tuple[int, Geometry, bool], Packed] = {}

    def note(self, known: KnownSite) -> None:
        """Notes nothing."""

    def read(self, tensor: Tensor, value: int, known: KnownSite | None = None) -> Packed:
        """The tensor itself, with its version."""
        return Kept.of(tensor)


@dataclass(slots=True, eq=False)
class HeldTensor:
    """A tensor that is kept for the repetition, in whatever form."""

    packed: Packed


class MadeElsewhere(Protocol):
    """A tensor that another segment makes."""

    def prepare(self) -> None:
        """Has the other segment make it."""

    def unpack(self) -> Tensor:
        """The tensor."""


@dataclass(slots=True, eq=False)
class Elsewhere:
    """A tensor that another segment makes."""

    made: MadeElsewhere


@dataclass(slots=True, eq=False)
class Scratch:
    """A tensor that the operator writes and that its results do not depend on. It gets a copy that is thrown away."""

    like: Tensor


@dataclass(slots=True, eq=False)
class Draw:
    """The generator that an operator draws from, and the generator's state before."""

    source: torch.Generator
    state: Tensor


Given = HeldTensor | Elsewhere | Scratch | Draw
"""What one forward gives to a segment from outside of it."""


@dataclass(slots=True, eq=False)
class Reference:
    """Replaces a tensor that the same segment makes: how it lies in a value's memory."""

    value: int
    geometry: Geometry


@dataclass(slots=True, eq=False)
class Outer:
    """Replaces a tensor from outside of the segment.

    Attributes:
        place: its place among what the segment is given.
        lies: makes the tensor that the operator reads of the one that was given; ``None`` where they are the same.
    """

    place: int
    lies: Callable[[Tensor], Tensor] | None = None


class Takes:
    """What a call takes from outside of its segment, in order.

    Args:
        start: how much the segment has been given before.

    Attributes:
        given: that.
        of: by the same places: the tensor that it is of, the tensor's value, and how it is stored.
        draws: the place of a generator; ``None`` for none.
    """

    def __init__(self, start: int) -> None:
        self._start = start
        self.given: list[Given] = []
        self.of: list[tuple[Tensor | None, int, KnownSite | None]] = []
        self.draws: int | None = None

    @property
    def places(self) -> tuple[int, ...]:
        """Their places in the segment."""
        return tuple(range(self._start, self._start + len(self.given)))

    def add(
        self, given: Given, tensor: Tensor | None = None, value: int = UNPLANNED, known: KnownSite | None = None
    ) -> Outer:
        """Adds one; returns what stands for it in the call."""
        self.given.append(given)
        self.of.append((tensor, value, known))
        return Outer(self._start + len(self.given) - 1)


@dataclass(slots=True, eq=False)
class RepeatedCall:
    """An operator's call, to be repeated. Forwards share these objects. Tensors and random states of one forward are in
    ``Segment.given``.

    Attributes:
        function: the operator.
        args: its arguments: references, what is given to the segment, and what is no tensor.
        kwargs: its arguments by name.
        makes: the values that it makes, each with the place of the result in whose memory it is.
        changes: the values that it overwrites, each with the value that it becomes.
        takes: the indices of its entries in ``Segment.given``. No other call uses them.
        draws: the place among these of the generator that it draws from; ``None`` if it draws nothing.
        grad: whether gradients were enabled: kernels may ask for that, as oneDNN's RNNs do.
        shapes: the shapes of its results, where they follow from what it reads; else ``None``.
    """

    function: OpOverload
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    makes: tuple[tuple[int, int], ...]
    changes: tuple[tuple[int, int], ...]
    takes: tuple[int, ...]
    draws: int | None
    grad: bool
    shapes: tuple[tuple[int, ...], ...] | None = None

    def reads(self) -> Iterator[int]:
        """The values that it reads."""
        for arguments in (self.args, self.kwargs.values()):
            yield from _references(arguments)

    def needed_for(self, values: set[int]) -> bool:
        """Whether it makes one of these values."""
        return any(value in values for value in self.results())

    def results(self) -> Iterator[int]:
        """The values that it makes."""
        yield from (value for value, _ in self.makes)
        yield from (value for _, value in self.changes)

    def repeat(self, made: dict[int, Tensor], given: list[Given | None]) -> None:
        """Runs the operator.

        Args:
            made: the values that the segment has made. Those that this makes are added.
            given: what the segment was given.
        """
        args = tuple(_resolved(argument, made, given) for argument in self.args)
        kwargs = {name: _resolved(argument, made, given) for name, argument in self.kwargs.items()}
        set_grad_enabled(self.grad)  # the end of the repetition puts it back
        if self.draws is None:
            out = self.function(*args, **kwargs)
        else:
            draw = given[self.draws]
            assert isinstance(draw, Draw)
            with drawing, generator_at(draw.source, draw.state):
                out = self.function(*args, **kwargs)
        results = list(iter_tensors(out if isinstance(out, (list, tuple)) else (out,)))
        if self.shapes is not None and get_shapes(results) != self.shapes:
            raise RuntimeError(
                f"{self.function} returned shapes {self.shapes} in the forward, but {get_shapes(results)} when "
                "backward recomputed it: the shapes depend on values that were stored in fewer bits. Store them "
                "exactly, with checkpoint_bits=None or codec=None"
            )
        for old, new in self.changes:
            made[new] = made.pop(old)
        for value, place in self.makes:
            made[value] = results[place]


def _references(arguments: Any) -> Iterator[int]:
    for item in arguments:
        if isinstance(item, Reference):
            yield item.value
        elif isinstance(item, (list, tuple)):
            yield from _references(item)


def _resolved(argument: Any, made: dict[int, Tensor], given: list[Given | None]) -> Any:
    if isinstance(argument, Reference):
        return argument.geometry.view(made[argument.value])
    if isinstance(argument, Outer):
        tensor = _outer(given[argument.place])
        return tensor if argument.lies is None else argument.lies(tensor)
    if isinstance(argument, (list, tuple)):
        return type(argument)(_resolved(item, made, given) for item in argument)
    return argument


def _outer(given: Given | None) -> Tensor:
    """The tensor that was given."""
    if isinstance(given, HeldTensor):
        return require_memory(restore(given.packed))
    if isinstance(given, Elsewhere):
        return given.made.unpack()
    assert isinstance(given, Scratch)
    return given.like.clone()


def require_memory(tensor: Tensor) -> Tensor:
    """A tensor that was kept for a repetition.

    Raises:
        RuntimeError: its memory was given back, as that of sharded parameters is.
    """
    if is_plain(tensor) and tensor.numel() and not tensor.untyped_storage().nbytes():
        raise RuntimeError(
            f"backward must recompute from a tensor of shape {list(tensor.shape)}, but its storage was resized to 0 "
            "since the forward, as FullyShardedDataParallel does with parameters. Shard the model with "
            "torch.distributed.fsdp.fully_shard, whose units a plan supports, and read a unit's parameters only in "
            "its own forward"
        )
    return tensor
