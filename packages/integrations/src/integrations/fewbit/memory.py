"""How many bytes an autograd graph keeps: FewBit's functions, where every storage counts once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from integrations._utils.storages import StorageSet
from integrations.tracing.tensors import find_storages

_RAW = "_raw_saved_"
_LEAF = "torch::autograd::AccumulateGrad"


def estimate_memory_usage(variable: Tensor, saved_only: bool = False) -> int:
    """The bytes of the tensors in a variable's graph.

    A storage counts once, however many views of it there are, and as a whole, since a view keeps all of it alive.

    Args:
        variable: a result of the graph, before its backward.
        saved_only: the tensors that backward reads, among them weights and inputs; otherwise the graph's leaves:
            parameters, and inputs that require gradients.
    """
    storages: dict[int, torch.UntypedStorage] = {}
    for tensor in teniter(variable, include_ordinary=not saved_only, include_saved=saved_only):
        storages.update((storage._cdata, storage) for storage in find_storages(tensor))
    return sum(storage.nbytes() for storage in storages.values())


def teniter(variable: Tensor, include_ordinary: bool = True, include_saved: bool = False) -> Iterator[Tensor]:
    """The tensors in a variable's graph, of those that share a storage the first.

    Args:
        variable: a result of the graph, before its backward.
        include_ordinary: the graph's leaves: parameters, and inputs that require gradients.
        include_saved: what backward reads.
    """
    found: dict[tuple[int, ...], tuple[Tensor, bool]] = {}

    def visit(_: Any, tensor: Tensor, saved: bool) -> None:
        # The tensors are held, so that no other storage gets the address of one of theirs.
        key = tuple(storage._cdata for storage in find_storages(tensor)) or (id(tensor),)
        wanted = include_saved if saved else include_ordinary
        first, known = found.get(key, (tensor, False))
        found[key] = first, known or wanted

    traverse(variable, visit)
    for tensor, wanted in found.values():
        if wanted:
            yield tensor


def traverse(variable: Tensor, callback: Callable[[Any, Tensor, bool], Any]) -> None:
    """Calls a function with each tensor that each node of a variable's graph holds.

    What hooks have stored is not unpacked: the function gets the tensors that the stored form is made of, such as an
    ``actcore.Compressed``'s, and nothing for what a checkpoint computes again. A custom ``torch.autograd.Function`` has
    saved what ``save_for_backward`` got, and the tensors among its ``ctx``'s attributes.

    Args:
        variable: a result of the graph, before its backward, which frees what was saved.
        callback: of the node, the tensor, and whether it was saved for backward; ``False`` for a leaf of the graph.
    """
    seen: set[Any] = set()  # the nodes themselves: an address could be given to another
    waiting = [variable.grad_fn]
    if variable.grad_fn is None and variable.requires_grad:
        waiting = [torch.autograd.graph.get_gradient_edge(variable).node]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        leaf = getattr(node, "variable", None) if node.name() == _LEAF else None
        if isinstance(leaf, Tensor):
            callback(node, leaf.detach(), False)
        for tensor in _saved_by(node):
            callback(node, tensor, True)
        waiting += [following for following, _ in reversed(node.next_functions)]


@dataclass
class HookedMemoryUsage:
    """What ``memory_usage_hooks`` has counted.

    Attributes:
        forward: bytes that were saved; ``None`` before anything was.
        backward: bytes that backward has read; ``None`` before anything was.
    """

    forward: int | None = None
    backward: int | None = None

    @property
    def value(self) -> int | None:
        """``backward``, if there was one, and ``forward`` otherwise."""
        return self.backward or self.forward


@contextmanager
def memory_usage_hooks() -> Iterator[HookedMemoryUsage]:
    """Counts what autograd saves inside the ``with`` block, and what backward, even behind the block, reads of it.

    ::

        with memory_usage_hooks() as usage:
            loss = model(x).sum()
        print(usage.forward)

    A storage counts once, and as a whole. What hooks inside the block take, such as a checkpoint's, is not seen.
    """
    usage = HookedMemoryUsage()
    packed, unpacked = StorageSet(), StorageSet()

    def pack(tensor: Tensor) -> Tensor:
        usage.forward = (usage.forward or 0) + _new_bytes(tensor, packed)
        return tensor.detach()  # with its history, a result that its own node saves would never be freed

    def unpack(tensor: Tensor) -> Tensor:
        usage.backward = (usage.backward or 0) + _new_bytes(tensor, unpacked)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        yield usage


def _new_bytes(tensor: Tensor, known: StorageSet) -> int:
    """Bytes of the tensor's storages that are not known yet; they are from then on."""
    count = 0
    for storage in find_storages(tensor):
        if storage not in known:
            known.add(storage)
            count += storage.nbytes()
    return count


def _saved_by(node: Any) -> Iterator[Tensor]:
    """What a node keeps, as it is stored. Its attributes ``_saved_*`` would run the hooks that unpack it."""
    for name in dir(node):
        if name.startswith(_RAW):
            try:
                raw = getattr(node, name)
            except RuntimeError:  # a custom Function's, freed by a backward
                continue
            for saved in raw if isinstance(raw, (tuple, list)) else (raw,):
                if saved is not None:
                    yield from _tensors(saved.data, opens=True)
    yield from _tensors(getattr(node, "__dict__", {}), opens=False)


def _tensors(value: Any, opens: bool) -> Iterator[Tensor]:
    """The tensors in a value: in containers, and in what they contain.

    Args:
        value: where to look.
        opens: whether to look into the attributes of objects, as for what hooks have stored.
    """
    seen: dict[int, Any] = {}  # the objects, too, so that no address is given to another
    waiting = [value]
    while waiting:
        value = waiting.pop()
        if isinstance(value, Tensor):
            yield value.detach()
        elif id(value) not in seen:
            seen[id(value)] = value
            waiting += reversed(_parts(value, opens))


def _parts(value: Any, opens: bool) -> list[Any]:
    if isinstance(value, Mapping):
        return list(value.values())
    if isinstance(value, (tuple, list, set, frozenset)):
        return list(value)
    if opens and not _is_opaque(value):
        return [getattr(value, name, None) for name in _attributes(value)]
    return []


def _is_opaque(value: Any) -> bool:
    """Whether a stored form only knows of an object: models, functions, and torch's, such as a checkpoint's holder."""
    return callable(value) or type(value).__module__.partition(".")[0] in ("builtins", "torch", "weakref")


def _attributes(value: Any) -> list[str]:
    slots = [base.__dict__.get("__slots__", ()) for base in type(value).__mro__]
    names = [name for names in slots for name in ((names,) if isinstance(names, str) else names)]
    return [name for name in (*names, *getattr(value, "__dict__", ())) if name not in ("__dict__", "__weakref__")]
