"""The tensors that a checkpoint holds beside those that autograd saves for it.

These are its keyword arguments, tensors in containers, and those in its function's closure. Torch keeps them as they
are until backward has recomputed the segment, and so does compression: other code may have the same containers and
functions, so that nothing can be put in their place.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from types import BuiltinFunctionType, CellType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from integrations._utils.storages import StorageSet
from integrations.tracing.tensors import find_node, find_storages, tensors_in

# Most of what a call holds is of these types, which hold no tensors; a module's tensors are its owner's.
_EMPTY = frozenset(
    {*(bool, int, float, str, type, type(None), torch.device, torch.dtype), ModuleType, BuiltinFunctionType}
)
_EMPTY_CELL = CellType()

# The names by which a checkpoint's own function knows what it was given. Its other cells are states of generators and
# the like.
_GIVEN = frozenset({"fn", "args", "kwargs"})


def held_tensors(values: list[Any], born: StorageSet) -> list[Tensor]:
    """Return the tensors in what a checkpoint was given that a forward has made, each once.

    Args:
        values: what the checkpoint holds: arguments and functions.
        born: storages that the forward has made.
    """
    found: dict[int, Tensor] = {}
    seen: set[int] = set()
    left = list(values)
    while left:
        value = left.pop()
        if type(value) in _EMPTY or isinstance(value, nn.Module) or id(value) in seen:
            continue
        seen.add(id(value))
        if not isinstance(value, Tensor):
            left += held_by(value) or _attributes(value)
        elif _is_made(value, born):
            found[id(value)] = value
    return list(found.values())


def given_to(checkpoint: Any) -> list[Any]:
    """Return what a checkpoint's frame holds of its arguments, the positional tensors left out."""
    values = [value for value in getattr(checkpoint, "saved_args", ()) if not isinstance(value, Tensor)]
    owners = [checkpoint.recompute_fn]
    saver = getattr(checkpoint, "input_saver", None)  # before torch 2.13
    if saver is not None:
        owners.append(saver.grad_fn.get_args)
    for function in owners:
        if not isinstance(function, FunctionType):
            continue
        cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
        chosen = _GIVEN.intersection(cells) or cells.keys()
        values += [cells[name].cell_contents for name in chosen if cells[name] != _EMPTY_CELL]
    return values


def held_by(value: Any) -> list[Any]:
    """Return what a function or a container holds; of other objects, nothing."""
    if isinstance(value, FunctionType):
        cells = [cell.cell_contents for cell in value.__closure__ or () if cell != _EMPTY_CELL]
        return [*cells, *(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values(), value.__dict__]
    if isinstance(value, MethodType):
        return [value.__func__, value.__self__]
    if isinstance(value, partial):
        return [value.func, *value.args, *value.keywords.values()]
    if isinstance(value, dict):
        return list(value.values())
    return list(value) if isinstance(value, (list, tuple)) else []


def _attributes(value: Any) -> Iterator[Tensor]:
    attributes = getattr(value, "__dict__", None)
    for held in (attributes if isinstance(attributes, dict) else (), value):
        yield from tensors_in(held)


def _is_made(tensor: Tensor, born: StorageSet) -> bool:
    """Whether a forward has made the tensor. As for positional inputs, a tensor with a history is an activation, and a
    leaf is one if the forward has made it. A leaf that requires a gradient belongs to whoever asks for that gradient,
    and a view that autograd cannot follow is left alone, too."""
    if find_node(tensor) is not None:
        return True
    return not tensor.requires_grad and any(storage in born for storage in find_storages(tensor))
