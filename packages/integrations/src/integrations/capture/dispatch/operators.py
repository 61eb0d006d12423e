"""What an ATen operator does besides computing its result, as far as repeating it is concerned."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from integrations._utils.torch_internals import DispatchKey, OpOverload, SetExcludeDispatchKeyGuard
from integrations.capture.dispatch.memory import iter_tensors

# Operators of these libraries have no effects but those in their schemas. Another library's may count its calls or have
# a generator of its own.
_KNOWN = frozenset({"aten", "prims", "prim", "torchvision", "actcore", "integrations"})

# This one counts its calls.
_STATEFUL = frozenset({"actcore::next_stream"})

# Collectives write to tensors that they are given, and their schemas do not tell.
WRITERS = "c10d"

# These return their argument, which no schema can tell if nothing is written. They count as views.
WAITS = frozenset({"_c10d_functional::wait_tensor"})

# These return their argument or a copy of it, and no schema tells which. Torch runs other operators for them, except
# below autograd, where DTensors compute their losses.
_MAY_COPY = frozenset({"aten::to", "aten::contiguous", "aten::reshape", "aten::flatten"})

# These may give a tensor other memory. Similar operators, such as the ``as_strided_`` that makes a pool's result lie as
# its input does, leave the memory as it is.
_NEW_MEMORY = frozenset({"aten::resize_", "aten::resize_as_", "aten::set_", "aten::set_data"})

# Positions of running_mean and running_var, and of the flag that says whether they are updated or read (-1: always
# updated). Most schemas do not tell that they are written.
_STATISTICS = {
    "aten::native_batch_norm": (3, 4, 5),
    "aten::cudnn_batch_norm": (3, 4, 5),
    "aten::miopen_batch_norm": (3, 4, 5),
    "aten::_native_batch_norm_legit": (3, 4, 5),
    "aten::_batch_norm_with_update": (3, 4, -1),
    "aten::batch_norm_update_stats": (1, 2, -1),
    "aten::batch_norm_gather_stats": (3, 4, -1),
    "aten::batch_norm_gather_stats_with_counts": (3, 4, -1),
}

_DROPOUT = "dropout_p"  # an argument of attention's operators

_AS_IT_IS = nullcontext()


@dataclass(frozen=True, slots=True)
class Traits:
    """What is known of an operator.

    Attributes:
        name: with its library and overload.
        view: whether it makes nothing: its results always share memory with its arguments.
        writes: positions and names of the arguments that it changes.
        statistics: positions of the running statistics that it may update, and of the flag; empty for most.
        random: whether it may draw from a generator.
        dropout: the position of the probability with which it drops; -1 for none.
        known: whether it has no other effects.
        dynamic: whether the shapes of its results depend on the values that it reads.
    """

    name: str
    view: bool
    writes: tuple[tuple[int, str], ...]
    statistics: tuple[int, ...]
    random: bool
    dropout: int
    known: bool
    dynamic: bool

    def written(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
        """The arguments that a call changes, except running statistics."""
        found: list[Tensor] = []
        for position, name in self.writes:
            given = args[position] if position < len(args) else kwargs.get(name)
            if isinstance(given, Tensor):
                found.append(given)
            elif isinstance(given, (list, tuple)):
                found += iter_tensors(given)
        return found

    def draws(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether a call draws from a generator. Attention without dropout does not."""
        if self.dropout < 0 or not self.random:
            return self.random
        probability = args[self.dropout] if self.dropout < len(args) else kwargs.get(_DROPOUT, 0.0)
        return bool(probability != 0)

    def updates_statistics(self, args: tuple[Any, ...]) -> bool:
        """Whether a call updates its running statistics, rather than reading them."""
        if not self.statistics:
            return False
        flag = self.statistics[2]
        return flag < 0 or bool(args[flag])


@cache
def get_traits(function: OpOverload) -> Traits:
    """The traits of an operator, from its schema and its tags."""
    schema = function._schema
    statistics = _STATISTICS.get(schema.name, ())
    writes = tuple(
        (position, argument.name)
        for position, argument in enumerate(schema.arguments)
        if (argument.alias_info is not None and argument.alias_info.is_write and position not in statistics)
        or (function.namespace == WRITERS and "Tensor" in str(argument.type))
    )
    returns = schema.returns
    return Traits(
        name=str(function),
        view=schema.name in WAITS
        or (torch.Tag.inplace_view in function.tags and schema.name not in _NEW_MEMORY)
        or (
            bool(returns)
            and not writes
            and schema.name not in _MAY_COPY
            and all(part.alias_info is not None for part in returns)
        ),
        writes=writes,
        statistics=statistics,
        random=torch.Tag.nondeterministic_seeded in function.tags,
        dropout=next((i for i, argument in enumerate(schema.arguments) if argument.name == _DROPOUT), -1),
        known=function.namespace in _KNOWN and schema.name not in _STATEFUL,
        dynamic=torch.Tag.dynamic_output_shape in function.tags,
    )


def lazy_views(function: OpOverload, args: tuple[Any, ...]) -> AbstractContextManager[object]:
    """What an operator runs in that a dispatch mode has been given.

    Torch calls a mode with the keys off by which kernels read a conjugate or a negative that is only marked as one. A
    kernel that makes such views itself then takes them for what they are views of: ``linalg.pinv`` of complex numbers
    is another matrix. Such kernels are linear algebra's: no views, and neither pointwise nor in torch's core set.
    """
    if not _is_of_one_piece(function) and any(one.is_complex() for one in iter_tensors(args)):
        return _lazy_views()
    return _AS_IT_IS


@contextmanager
def _lazy_views() -> Iterator[None]:
    with (
        SetExcludeDispatchKeyGuard(DispatchKey.Conjugate, False),
        SetExcludeDispatchKeyGuard(DispatchKey.Negative, False),
    ):
        yield


@cache
def _is_of_one_piece(function: OpOverload) -> bool:
    tags = torch.Tag.core, torch.Tag.pointwise
    return get_traits(function).view or any(tag in function.tags for tag in tags)


def get_generator(args: tuple[Any, ...], kwargs: dict[str, Any], device: torch.device) -> torch.Generator | None:
    """The generator that a random operator draws from: the one it is given, or its device's; ``None`` if that is not
    known."""
    for given in (*args, *kwargs.values()):
        if isinstance(given, torch.Generator):
            return given
    if device.type == "cpu":
        return torch.default_generator
    if device.type == "cuda" and torch.cuda.is_available():
        torch.cuda.init()
        index = torch.cuda.current_device() if device.index is None else device.index
        return torch.cuda.default_generators[index]
    return None


def is_drawable(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether the generator is known that a random operator draws from, or the operator of another device that this one
    stands for."""
    device = find_device(args, kwargs)
    return device.type in ("meta", "cuda") or get_generator(args, kwargs, device) is not None


def find_device(args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.device:
    """The device on which an operator runs: of its first tensor, or the one it is asked for."""
    for given in args:
        if isinstance(given, Tensor):
            return given.device
        if isinstance(given, (list, tuple)) and given and isinstance(given[0], Tensor):
            return given[0].device
    return torch.device(kwargs.get("device") or "cpu")
