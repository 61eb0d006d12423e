"""The tensors among a call's values, the memory that holds their elements, and the nodes of autograd's graph that made
them.

``grad_fn`` must not be read of every tensor that a forward touches. It makes a Python object for the node, which lives
as long as the node, and a chain of nodes with such objects is freed by recursion: with torch 2.15 and a stack of 8 MiB,
45,000 of them end the process, and without such objects 150,000 do not. Of a view, ``grad_fn`` and ``is_leaf`` wait for
a lock, and raise if the view's base was changed in place and autograd cannot follow.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node

from actcore import Layout
from integrations._utils.torch_internals import DisableTorchFunction, is_traceable_wrapper_subclass

_STRIDED = torch.strided
_PLAIN = (Tensor, nn.Parameter)
_DTENSOR = "torch.distributed.tensor"  # takes 0.1 s to import, and whoever has a DTensor has imported it
LEAVES = frozenset({int, float, bool, str, type(None), torch.Size, torch.dtype, torch.device, slice})
"""The types of most values that hold no tensor, except the bounds of a slice, of which nothing is saved."""


def tensors_in(values: Any) -> list[Tensor]:
    """The tensors in nested tuples, lists and mappings, in order."""
    if type(values) is Tensor or isinstance(values, Tensor):
        return [values]
    if not isinstance(values, (tuple, list)):  # first: asking for a mapping takes longer
        if not isinstance(values, Mapping):
            return []
        values = values.values()
    found: list[Tensor] = []
    for value in values:
        kind = type(value)
        if kind is Tensor or kind is nn.Parameter:
            found.append(value)
        elif kind in LEAVES:
            continue
        elif isinstance(value, Tensor):
            found.append(value)
        else:
            found += tensors_in(value)
    return found


def get_gradient(tensor: Tensor) -> Tensor | None:
    """Return ``tensor.grad`` without torch's warning for non-leaf tensors. Second-order training replaces parameters
    with results of an update, which are not leaves."""
    return tensor.grad if tensor.is_leaf or tensor.retains_grad else None


def get_storage(tensor: Tensor) -> torch.UntypedStorage | None:
    """The tensor's storage; ``None`` for one that has none to ask for: sparse, nested, a wrapper subclass."""
    if tensor.layout is not _STRIDED or tensor.is_nested:
        return None
    if type(tensor) not in _PLAIN and is_traceable_wrapper_subclass(tensor):
        return None
    try:
        return tensor.untyped_storage()
    except (NotImplementedError, RuntimeError, ValueError):  # ValueError: a lazy module's parameter, not made yet
        return None


def is_dtensor(tensor: Tensor) -> bool:
    """Whether a tensor is a ``DTensor``, of which each rank has a part."""
    if type(tensor) in _PLAIN:
        return False
    return is_dtensor_class(type(tensor))


def is_dtensor_class(kind: type) -> bool:
    """Whether the objects of a class are DTensors."""
    module = sys.modules.get(_DTENSOR)
    return module is not None and issubclass(kind, module.DTensor)


def is_collective_result(kind: type) -> bool:
    """Whether the objects of a class are results of collectives, which torch waits for when an operator reads them."""
    return hasattr(kind, "trigger_wait")


def wraps_part(tensor: Tensor) -> bool:
    """Whether a tensor has its elements in another one, which does not count its versions: a DTensor in this rank's
    part, a collective's result in a plain tensor."""
    return type(tensor) not in _PLAIN and (is_dtensor_class(type(tensor)) or is_collective_result(type(tensor)))


def make_dtensor_error(tensor: Tensor, layers: str) -> TypeError:
    """The error of layers that were asked for and would keep a ``DTensor`` as it is.

    Args:
        tensor: the input of such a layer.
        layers: what they are, and the argument of ``compress_model`` that makes them.
    """
    return TypeError(
        f"{layers} store plain tensors, got a DTensor of shape {tuple(tensor.shape)}: in tensor and sequence parallel "
        "leave them out and use a level, such as compress_model(model, 'L1'), which stores the part that each rank has"
    )


def get_memory(tensor: Tensor) -> torch.UntypedStorage | None:
    """The one storage that holds the elements that this rank has of a tensor: its own, or that of a DTensor's part or a
    collective's result; ``None`` for other tensors without a storage."""
    storage = get_storage(tensor)
    if storage is not None or not wraps_part(tensor):
        return storage
    found = find_storages(tensor)
    return found[0] if len(found) == 1 else None


def find_local(tensor: Any) -> Tensor | None:
    """This rank's part of a DTensor, which requires a gradient if the DTensor does, as a plain tensor; ``None`` for
    other tensors, and where the part has no storage. Waits for collectives that make it."""
    return _find_plain(tensor, tensor._local_tensor) if is_dtensor(tensor) else None


def find_part(tensor: Any) -> Tensor | None:
    """The elements that this rank has of a DTensor, as ``find_local`` has them, or of a collective's result; ``None``
    for other tensors."""
    return _find_plain(tensor, tensor) if is_collective_result(type(tensor)) else find_local(tensor)


def _find_plain(tensor: Tensor, part: Any) -> Tensor | None:
    """The plain tensor that ``part``, of a tensor, is or wraps."""
    with DisableTorchFunction(), torch.no_grad():
        if type(part) not in _PLAIN and callable(wait := getattr(part, "wait", None)):
            part = wait()  # an AsyncCollectiveTensor
        if get_storage(part) is None:
            return None
        plain: Tensor = part.detach()
    return plain.requires_grad_() if tensor.requires_grad else plain


def find_storages(tensor: Tensor) -> list[torch.UntypedStorage]:
    """The storages that hold a tensor's elements: its own, or those of its components."""
    storage = get_storage(tensor)
    if storage is not None:
        return [storage]
    with DisableTorchFunction(), torch.no_grad():
        return [storage for part in _components(tensor) for storage in find_storages(part)]


def _components(tensor: Any) -> list[Tensor]:
    """The components of a tensor without a storage; none if they cannot be told."""
    if is_traceable_wrapper_subclass(tensor):
        parts = [getattr(tensor, name) for name in tensor.__tensor_flatten__()[0]]
        return [part for part in parts if isinstance(part, Tensor)]  # DTensor names its mesh there, too
    if tensor.layout is torch.sparse_coo:
        return [tensor._indices(), tensor._values()]
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]
    return [tensor.values()] if tensor.is_nested else []


class Extent(NamedTuple):
    """The part of memory that a tensor covers."""

    layout: Layout
    numel: int
    """Elements that are stored."""
    dense: bool
    """Whether they fill one stretch of memory."""
    stored: Layout
    """The layout in which they are stored: end to end if they are dense."""

    @classmethod
    def of(cls, tensor: Tensor) -> Extent:
        layout = Layout.of(tensor)
        numel, dense = layout.stored_numel, layout.dense
        return cls(layout, numel, dense, Layout((numel,), (1,)) if dense else layout)


MOST_NODES = 1 << 14
"""For so many nodes of one graph Python objects may be made: a third of what a stack of 8 MiB bears."""


def has_history(tensor: Tensor) -> bool:
    """Whether an operator that autograd recorded made the tensor, that is, whether it has a ``grad_fn``. This is true
    of a view that autograd cannot follow, since its base has one."""
    try:
        return not tensor.is_leaf
    except RuntimeError:
        return True


def find_backward_node(tensor: Tensor) -> Node | None:
    """Return a node that every backward of a forward's result runs; ``None`` if there is none. Logits whose loss may be
    computed in chunks have an input of their layer as ``differentiated_input``, since such a loss leaves them out."""
    return find_node(getattr(tensor, "differentiated_input", tensor))


def find_node(tensor: Tensor) -> Node | None:
    """``grad_fn``, to be asked for few tensors of a forward; ``None`` also for a view that autograd cannot follow."""
    try:
        return tensor.grad_fn if tensor.requires_grad else None
    except RuntimeError:
        return None
