"""``ForwardStates`` and ``ForwardState``: the state before a forward, so that the forward can run a second time."""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from operator import attrgetter, is_
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from actcore import in_cuda_graph
from integrations._utils.in_model import ModelRef
from integrations._utils.random_states import random_states
from integrations._utils.running_module import all_modules
from integrations.capture.graphs.sharding import collectives_started
from integrations.capture.state_snapshot import Drawn, Mapping, Sequence, Set, Snapshot
from integrations.runtime.repeating.thread_state import drawing
from integrations.tracing.tensors import get_gradient

_MOST_BYTES = 1 << 18
"""Larger tensors are not copied: they would count in the step's memory. Running statistics are much smaller."""

_MOST_BYTES_IN_ALL = 1 << 22
"""Tensors beyond so many bytes in all are not copied either."""

_MOST_OBJECTS = 1000  # of the model, and of the inputs
_MOST_ITEMS = 100  # of a container that is searched for others

_version = attrgetter("_version")

_OWN = tuple(vars(nn.Module()))  # the attributes that every module has, in order
_OF_TORCH = frozenset({"torch", "actcore", "integrations"})
_ATOMS = (type(None), bool, int, float, complex, str, bytes, range, slice, enum.Enum, type, nn.Module)


class ForwardStates:
    """Keep the state before the forwards of one model. The list of its modules is made once, and again if the modules
    change: this runs in each forward that may have to run a second time."""

    def __init__(self, model: nn.Module) -> None:
        self._model = ModelRef(model)
        self._modules: _Modules | None = None
        self._buffers = _Buffers([], [], [])

    def before(self, args: tuple[Any, ...], kwargs: dict[str, Any], most: int | None = None) -> ForwardState:
        """Return the state before a forward with these inputs. See ``ForwardState`` for ``most``."""
        model, modules = self._model(), self._modules
        if modules is None or not modules.belong_to(model):
            modules = self._modules = _Modules.collect(model)
        buffers, found = self._buffers, _present(modules.buffers)
        if not buffers.are(found):
            buffers = self._buffers = _Buffers.collect(found)
        return ForwardState(model, modules, buffers, args, kwargs, most)


class _Modules(NamedTuple):
    """The modules of a model as dictionaries. The attributes of the model itself are not among them: they lead to the
    object that this belongs to.

    Attributes:
        attributes: of all modules but the model itself.
        searched: those of them that may hold tensors and containers, and how many of the first ones to skip.
        parameters, buffers: of all modules, by name.
        children: the modules of all modules, by name.
        entries: how many attributes, parameters and buffers there are, without the model's attributes.
        all: all modules but the model itself.
    """

    attributes: list[dict[str, Any]]
    searched: list[tuple[dict[str, Any], int]]
    parameters: list[dict[str, Any]]
    buffers: list[dict[str, Any]]
    children: list[dict[str, Any]]
    entries: int
    all: list[nn.Module | None]

    @classmethod
    def collect(cls, model: nn.Module) -> _Modules:
        """Return the modules of a model."""
        known = all_modules(model)
        attributes = [vars(module) for module in known[1:]]
        searched = []
        for module in known[1:]:
            found, skipped = vars(module), _skipped(module)
            of_torch = type(module).__module__.startswith("torch.nn.")
            # The layers of torch change no attributes. Hooks may add some.
            if not of_torch or any(map(_is_kept, islice(found.values(), skipped, None))):
                searched.append((found, skipped))
        parameters = [module._parameters for module in known]
        buffers = [module._buffers for module in known]
        children = [module._modules for module in known]
        made = cls(attributes, searched, parameters, buffers, children, 0, list(_all_values(children)))
        return made._replace(entries=made._counted())

    def belong_to(self, model: nn.Module) -> bool:
        """Return whether these are still the modules of the model."""
        return (
            self.children[0] is model._modules
            and list(_all_values(self.children)) == self.all
            and self._counted() == self.entries
        )

    def _counted(self) -> int:
        return sum(map(len, self.attributes)) + sum(map(len, self.parameters)) + sum(map(len, self.buffers))


class _Buffers(NamedTuple):
    """The buffers of a model.

    Attributes:
        all: in order.
        forms: the shape, dtype and device of each.
        alike: those that are copied, in groups of the same form.
    """

    all: list[Tensor]
    forms: list[tuple[Any, ...]]
    alike: list[list[Tensor]]

    @classmethod
    def collect(cls, found: list[Tensor]) -> _Buffers:
        """Return these buffers."""
        alike: dict[tuple[Any, ...], list[Tensor]] = {}
        for buffer in _copied(found):
            alike.setdefault(_form(buffer), []).append(buffer)
        return cls(found, list(map(_form, found)), list(alike.values()))

    def are(self, found: list[Tensor]) -> bool:
        """Return whether these are the buffers."""
        return len(found) == len(self.all) and all(map(is_, found, self.all)) and list(map(_form, found)) == self.forms


class ForwardState:
    """The state before a forward, as far as the forward may change it: random generators; buffers and inputs; the
    attributes of modules; the tensors, generators, lists, dictionaries and sets among these; and the attributes of
    other objects among the inputs, such as a cache.

    Tensors of more than 256 KiB, those beyond 4 MiB in all, all parameters and all gradients are not copied: if a
    forward changes one of these in place, it cannot run a second time. A change through ``tensor.data`` is not seen in
    them. The attributes of other objects that a module holds stay as the forward leaves them, and so does all that lies
    outside of model and inputs.

    Args:
        model: the model.
        modules: its modules.
        buffers: its buffers, in groups.
        args, kwargs: the forward's.
        most: if given, inputs are not copied either, and if all else is more bytes than this, nothing is: then the
            forward cannot run a second time.
    """

    def __init__(
        self,
        model: nn.Module,
        modules: _Modules,
        buffers: _Buffers,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        most: int | None = None,
    ) -> None:
        self._is_too_large = False
        self._in_cuda_graph = in_cuda_graph()
        self._collectives = collectives_started()
        if self._in_cuda_graph:
            return
        parameters = list(filter(None, modules.parameters))
        own = chain(parameters, filter(None, modules.buffers), filter(None, modules.children))
        self._mappings = [vars(model), *modules.attributes, *own]
        self._before = list(map(dict.copy, self._mappings))
        self._parameters = _present(parameters)
        self._gradients = _read_gradients(self._parameters)
        self._found: list[Snapshot] = []
        others, inputs = list[Tensor](), list[Tensor]()
        self._add(others, _attributes_in(((vars(model), _skipped(model)), *modules.searched)), objects=False)
        self._add(inputs, [args, kwargs], objects=True)
        self._watched = [
            (what, tensors, _read_versions(tensors))
            for what, tensors in (
                ("a parameter", self._parameters),
                ("a gradient", [one for one in self._gradients if one is not None]),
                ("a buffer", buffers.all),
                ("a tensor", others),
                ("an input", inputs),
            )
        ]
        alike = [*buffers.alike, *([one] for one in _copied((*others, *(inputs if most is None else ()))))]
        self._is_too_large = most is not None and sum(one.nbytes for group in alike for one in group) > most
        if self._is_too_large:
            alike = []
        with torch.no_grad(), drawing:
            self._copies = [(group, torch.stack(group)) for group in alike]
            self._restore_random = random_states()

    def obstacle(self) -> str:
        """Return why the forward cannot run a second time, in words; empty if it can."""
        if self._in_cuda_graph:
            return "a CUDA graph is being captured"
        if self._is_too_large:
            return "a copy of its buffers would take too much of the memory"
        if self._collectives != collectives_started():
            return "it communicates with other ranks, which would not run it a second time"
        if not all(map(is_, _read_gradients(self._parameters), self._gradients)):
            return "it runs a backward, which changed the gradient of a parameter"
        copied = {id(tensor) for group, _ in self._copies for tensor in group}
        for what, tensors, versions in self._watched:
            for tensor, before, now in zip(tensors, versions, _read_versions(tensors), strict=True):
                if before != now and (id(tensor) not in copied or tensor.requires_grad):
                    return f"it changed {what} {list(tensor.shape)} in place"
        return ""

    def restore(self) -> None:
        """Restore the state. An interrupt may come anywhere, and once: the second call restores the rest."""
        try:
            self._restore()
        except BaseException:
            self._restore()
            raise

    def _restore(self) -> None:
        with drawing, torch.no_grad():
            for mapping, before in zip(self._mappings, self._before, strict=True):
                Mapping(mapping, whole=True, before=before).restore()
            for found in reversed(self._found):
                found.restore()
            for group, copies in self._copies:
                for tensor, copy in zip(group, copies.unbind(), strict=True):
                    if tensor.shape != copy.shape:
                        tensor.data = torch.empty_like(copy)
                    # Operators change running statistics and count no version. An earlier forward, whose backward is
                    # still to come, may have saved the tensor at this version.
                    tensor.data.copy_(copy)
            self._restore_random()

    def _add(self, tensors: list[Tensor], waiting: list[Any], objects: bool) -> None:
        """Search objects for state: note containers and generators, and append tensors to ``tensors``.

        Args:
            tensors: receives the tensors that are found.
            waiting: the objects to search. The list is used up.
            objects: whether to search the attributes of objects that are no containers, too.
        """
        seen = set[int]()
        while waiting and len(seen) < _MOST_OBJECTS:
            one = waiting.pop()
            kind = _kind(type(one))
            if kind is None or id(one) in seen or (kind is object and not objects):
                continue
            seen.add(id(one))
            if kind is Tensor:
                tensors.append(one)
            elif kind is tuple:
                waiting += one
            elif kind is object:
                waiting.append(vars(one))
            elif kind is Drawn:
                self._found.append(Drawn(one))
            else:
                self._found.append(found := kind(one, whole=True))
                if len(found.values) <= _MOST_ITEMS:
                    waiting += found.values


_kinds: dict[type, Any] = {}
_PASSED = (None, object)  # kinds of the attributes that are not kept


def _kind(one: type) -> Any:
    """Return how objects of a type are kept: the class of ``Snapshot``, ``Tensor``, ``tuple`` for what holds others and
    cannot change, ``object`` for one with attributes; ``None`` if they are passed over."""
    try:
        return _kinds[one]
    except KeyError:
        kind = _kinds[one] = _choose_kind(one)
        return kind


def _choose_kind(one: type) -> Any:
    if issubclass(one, _ATOMS) or any("__call__" in vars(base) for base in one.__mro__):
        return None
    for base, kind in _KINDS:
        if issubclass(one, base):
            return kind
    return object if one.__dictoffset__ and one.__module__.partition(".")[0] not in _OF_TORCH else None


_KINDS: tuple[tuple[Any, Any], ...] = (
    (nn.Parameter, None),
    (Tensor, Tensor),
    (dict, Mapping),
    ((list, deque), Sequence),
    (set, Set),
    ((tuple, frozenset), tuple),
    (torch.Generator, Drawn),
)


def _is_kept(value: Any) -> bool:
    """Return whether an attribute of a module is kept, or a tuple with something that is."""
    kind = _kind(type(value))
    return kind not in _PASSED and (kind is not tuple or any(map(_is_kept, value)))


def _attributes_in(searched: Iterable[tuple[dict[str, Any], int]]) -> list[Any]:
    """Return the attributes of modules that are kept, or not known yet."""
    known = _kinds
    return [
        value
        for attributes, skipped in searched
        for value in islice(attributes.values(), skipped, None)
        if known.get(type(value)) not in _PASSED or type(value) not in known
    ]


def _all_values(mappings: Iterable[dict[str, Any]]) -> Iterator[Any]:
    return chain.from_iterable(map(dict.values, mappings))


def _present(mappings: Iterable[dict[str, Any]]) -> list[Any]:
    return [value for value in _all_values(mappings) if value is not None]


def _read_gradients(parameters: Iterable[Tensor]) -> list[Tensor | None]:
    return [one.grad if one.is_leaf else get_gradient(one) for one in parameters]


def _skipped(module: nn.Module) -> int:
    """Return how many of a module's first attributes are those that every module has."""
    return len(_OWN) if tuple(islice(vars(module), len(_OWN))) == _OWN else 0


def _form(tensor: Tensor) -> tuple[Any, ...]:
    return tensor.shape, tensor.dtype, tensor.device


def _copied(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Return those of some tensors that are copied."""
    found, left = [], _MOST_BYTES_IN_ALL
    for tensor in tensors:
        if _can_be_copied(tensor) and tensor.nbytes <= min(_MOST_BYTES, left):
            found.append(tensor)
            left -= tensor.nbytes
    return found


def _can_be_copied(tensor: Tensor) -> bool:
    """Return whether a tensor can be copied and restored. No operator changes tensors with overlapping elements."""
    plain = type(tensor) is Tensor and tensor.layout is torch.strided and not tensor.is_quantized
    if not plain or tensor.requires_grad or tensor.is_inference():
        return False
    return all(stride or size < 2 for stride, size in zip(tensor.stride(), tensor.shape, strict=True))


def _read_versions(tensors: list[Tensor]) -> list[int]:
    try:
        return list(map(_version, tensors))
    except RuntimeError:  # an inference tensor has none
        return [-1 if tensor.is_inference() else tensor._version for tensor in tensors]
