"""``ForwardState``: what a forward may change, kept so that the forward can run a second time."""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from actcore import in_cuda_graph
from integrations._calls.tensors import gradient_of
from integrations._common.random_states import random_states
from integrations._runtime.repeating.repeating import drawing
from integrations._step.capturing.put_back import Drawn, Mapping, PutBack, Sequence, Set
from integrations._step.graphs.sharding import collectives_started

_MOST_BYTES = 1 << 18
"""Larger tensors are not copied: they would count in the step's memory. Running statistics are much smaller."""

_MOST_OBJECTS = 1000  # of the inputs, and of what they hold

_MAPPINGS = frozenset({dict, OrderedDict, defaultdict, Counter})
_SEQUENCES = frozenset({list, deque})
_CONTAINERS = _MAPPINGS | _SEQUENCES | {set}
_ATOMS = frozenset({type(None), bool, int, float, complex, str, bytes, range, slice, torch.dtype, torch.device})
_TORCHS_OWN = frozenset(vars(nn.Module()))  # attributes that every module has
_PASSED = (type, Callable, nn.Module, torch.Generator)


class _Seen(NamedTuple):
    """A tensor before the forward.

    Attributes:
        tensor: the tensor.
        what: what it is, in words.
        version: its version.
        copy: its elements; ``None`` if they cannot be restored.
    """

    tensor: Tensor
    what: str
    version: int
    copy: Tensor | None


class ForwardState:
    """What a forward may change, as it is before the forward: random generators; buffers and inputs that are changed in
    place; the attributes of modules, and the containers and generators among them; the containers and objects among the
    inputs.

    Other objects of Python stay as the forward leaves them. So do tensors of more than 256 KiB, and all parameters and
    gradients: if a forward changes one of these in place, it cannot run a second time.

    Args:
        model: the model.
        args, kwargs: the forward's.
    """

    def __init__(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._in_cuda_graph = in_cuda_graph()
        self._containers: list[tuple[Any, Any]] = []  # each with a copy
        self._generators: list[Drawn] = []
        self._tensors: list[_Seen] = []
        self._gradients: list[tuple[nn.Parameter, Tensor | None, int]] = []
        self._collectives = collectives_started()
        self._restore_random: Callable[[], None] | None = None
        if self._in_cuda_graph:
            return
        with torch.no_grad():
            self._add_model(model)
            self._add_inputs((args, kwargs))
        with drawing:
            self._restore_random = random_states()

    def obstacle(self) -> str:
        """Return why the forward cannot run a second time, in words; empty if it can."""
        if self._in_cuda_graph:
            return "a CUDA graph is captured"
        if self._collectives != collectives_started():
            return "it communicates with other ranks, which would wait for a second run in vain"
        for parameter, gradient, version in self._gradients:
            now = gradient_of(parameter)
            if now is not gradient or (now is not None and _version_of(now) != version):
                return f"it runs a backward, which changed the gradient of a parameter {list(parameter.shape)}"
        for tensor, what, version, copy in self._tensors:
            if _version_of(tensor) != version and (copy is None or tensor.requires_grad):
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
        with ExitStack() as stack:
            stack.enter_context(drawing)
            if self._restore_random is not None:
                stack.callback(self._restore_random)
            for generator in self._generators:
                stack.callback(generator.restore)
            for tensor, _, version, copy in self._tensors:
                if copy is not None and _version_of(tensor) != version:
                    stack.callback(_write, tensor, copy)
            for found, before in self._containers:
                stack.callback(_put_back(found, before).restore)

    # ---- what there is ----

    def _add_model(self, model: nn.Module) -> None:
        """Add the modules. ``model.modules()`` is not used, since it builds names and this runs in many forwards."""
        modules, seen = [model], {model}
        while modules:
            module = modules.pop()
            attributes = module.__dict__
            self._containers.append((attributes, attributes.copy()))
            for name, value in attributes.items():
                kind = type(value)
                if kind in _CONTAINERS:
                    if value or name not in _TORCHS_OWN:
                        self._containers.append((value, value.copy()))
                elif kind is torch.Generator:
                    self._generators.append(Drawn(value))
            for parameter in module._parameters.values():
                if parameter is not None:
                    self._add_parameter(parameter)
            for buffer in module._buffers.values():
                if buffer is not None:
                    self._add_tensor(buffer, "a buffer")
            for child in module._modules.values():
                if child is not None and child not in seen:
                    seen.add(child)
                    modules.append(child)

    def _add_parameter(self, parameter: nn.Parameter) -> None:
        if is_lazy(parameter):
            return
        gradient = gradient_of(parameter)
        self._gradients.append((parameter, gradient, -1 if gradient is None else _version_of(gradient)))
        self._tensors.append(_Seen(parameter, "a parameter", _version_of(parameter), None))

    def _add_tensor(self, tensor: Tensor, what: str) -> None:
        if is_lazy(tensor):
            return
        small = type(tensor) is Tensor and tensor.layout is torch.strided and not tensor.requires_grad
        small = small and tensor.numel() * tensor.itemsize <= _MOST_BYTES
        self._tensors.append(_Seen(tensor, what, _version_of(tensor), tensor.clone() if small else None))

    def _add_inputs(self, given: Any) -> None:
        """Add the inputs: tensors, containers, and the attributes of objects such as a batch or a cache."""
        waiting, seen = [given], set[int]()
        while waiting and len(seen) < _MOST_OBJECTS:
            one = waiting.pop()
            kind = type(one)
            if kind in _ATOMS or id(one) in seen:
                continue
            seen.add(id(one))
            if isinstance(one, Tensor):
                self._add_tensor(one, "an input")
            elif kind in _CONTAINERS:
                self._containers.append((one, one.copy()))
                waiting += _items_of(one)
            elif isinstance(one, (tuple, frozenset)):
                waiting += one
            elif kind is torch.Generator:
                self._generators.append(Drawn(one))
            elif not isinstance(one, _PASSED) and isinstance(attributes := getattr(one, "__dict__", None), dict):
                waiting.append(attributes)


def _items_of(container: Any) -> Iterable[Any]:
    return list(container.values()) if type(container) in _MAPPINGS else list(container)


def _put_back(found: Any, before: Any) -> PutBack:
    kind = type(found)
    if kind in _MAPPINGS:
        return Mapping(found, whole=True, before=before)
    return Set(found, whole=True, before=before) if kind is set else Sequence(found, whole=True, before=before)


def _version_of(tensor: Tensor) -> int:
    return -1 if tensor.is_inference() else tensor._version


def _write(tensor: Tensor, elements: Tensor) -> None:
    with torch.no_grad():
        tensor.copy_(elements)
