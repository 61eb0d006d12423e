"""``RepeatedCall``: an operator's call, noted to be repeated, and what replaces the tensors among its arguments, in the
form in which they wait."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from actcore import Kept
from integrations._utils.torch_internals import OpOverload, set_grad_enabled
from integrations.capture.dispatch.memory import Geometry, get_shapes, is_plain, iter_tensors
from integrations.runtime.repeating.thread_state import drawing, generator_at


class Packed(Protocol):
    """What replaces a tensor while it waits."""

    def unpack(self) -> Tensor:
        """The restored tensor."""


class Later(Protocol):
    """How a recomputed tensor is stored from then on until backward reads it."""

    def store(self, tensor: Tensor, stored: dict[str, Any]) -> Packed:
        """Stores the tensor. ``stored`` belongs to the segment: through it, stored forms of one memory are shared."""


class Keeping(Protocol):
    """How one forward keeps what its repetitions read."""

    def read(self, tensor: Tensor, value: int) -> Packed:
        """What a repetition holds in the place of a tensor that it reads."""


class Exactly:
    """Keeps tensors as they are."""

    def read(self, tensor: Tensor, value: int) -> Packed:
        """The tensor itself, with its version."""
        return Kept.of(tensor)


@dataclass(slots=True, eq=False)
class HeldTensor:
    """Replaces a tensor that is kept for the repetition, in whatever form."""

    packed: Packed


class MadeElsewhere(Protocol):
    """A tensor that another segment makes."""

    def prepare(self) -> None:
        """Has the other segment make it."""

    def unpack(self) -> Tensor:
        """The tensor."""


@dataclass(slots=True, eq=False)
class Elsewhere:
    """Replaces a tensor that another segment makes."""

    made: MadeElsewhere


@dataclass(slots=True, eq=False)
class Reference:
    """Replaces a tensor that the same segment makes: how it lies in a value's memory."""

    value: int
    geometry: Geometry


@dataclass(slots=True, eq=False)
class Scratch:
    """Replaces a tensor that the operator writes and that its results do not depend on: a copy that is thrown away."""

    like: Tensor


@dataclass(slots=True, eq=False)
class RepeatedCall:
    """An operator's call, to be repeated.

    Attributes:
        function: the operator.
        args: its arguments: references, kept tensors, what other segments make, and what is no tensor.
        kwargs: its arguments by name.
        makes: the values that it makes, each with the place of the result in whose memory it is.
        changes: the values that it overwrites, each with the value that it becomes.
        generator: the generator that it draws from, and the generator's state before.
        grad: whether gradients were enabled: kernels may ask for that, as oneDNN's RNNs do.
        shapes: the shapes of its results, where they follow from what it reads; else ``None``.
    """

    function: OpOverload
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    makes: tuple[tuple[int, int], ...]
    changes: tuple[tuple[int, int], ...]
    generator: tuple[torch.Generator, Tensor] | None
    grad: bool
    shapes: tuple[tuple[int, ...], ...] | None = None

    def reads(self) -> Iterator[int]:
        """The values that it reads."""
        for given in (self.args, self.kwargs.values()):
            yield from _references(given)

    def needs(self) -> Iterator[MadeElsewhere]:
        """What it reads of other segments."""
        for given in (self.args, self.kwargs.values()):
            yield from _elsewhere(given)

    def needed_for(self, values: set[int]) -> bool:
        """Whether it makes one of these values."""
        return any(value in values for value in self.results())

    def results(self) -> Iterator[int]:
        """The values that it makes."""
        yield from (value for value, _ in self.makes)
        yield from (value for _, value in self.changes)

    def repeat(self, made: dict[int, Tensor]) -> None:
        """Runs the operator and adds the values that it makes to ``made``, from which it also takes those that it
        reads."""
        args = tuple(_resolved(given, made) for given in self.args)
        kwargs = {name: _resolved(given, made) for name, given in self.kwargs.items()}
        set_grad_enabled(self.grad)  # the end of the repetition puts it back
        if self.generator is None:
            out = self.function(*args, **kwargs)
        else:
            with drawing, generator_at(*self.generator):
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


def _references(given: Any) -> Iterator[int]:
    for item in given:
        if isinstance(item, Reference):
            yield item.value
        elif isinstance(item, (list, tuple)):
            yield from _references(item)


def _elsewhere(given: Any) -> Iterator[MadeElsewhere]:
    for item in given:
        if isinstance(item, Elsewhere):
            yield item.made
        elif isinstance(item, (list, tuple)):
            yield from _elsewhere(item)


def _resolved(given: Any, made: dict[int, Tensor]) -> Any:
    if isinstance(given, Reference):
        return given.geometry.view(made[given.value])
    if isinstance(given, HeldTensor):
        return _there(given.packed.unpack())
    if isinstance(given, Elsewhere):
        return given.made.unpack()
    if isinstance(given, Scratch):
        return given.like.clone()
    if isinstance(given, (list, tuple)):
        return type(given)(_resolved(item, made) for item in given)
    return given


def _there(tensor: Tensor) -> Tensor:
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
