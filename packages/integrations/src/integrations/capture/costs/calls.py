"""``CostedCall``: an operator with all that its time and workspace depend on. A training step has few distinct ones."""

from __future__ import annotations

import io
import pickle
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from integrations._utils.torch_internals import OpOverload
from integrations.capture.costs.operator_costs import Work, estimate_work
from integrations.capture.dispatch.memory import is_plain

_PASSED_ON = (bool, int, float, complex, str, torch.dtype, torch.device, torch.layout, torch.memory_format)


class Like(NamedTuple):
    """Replaces a tensor: its geometry, and the size of its memory.

    Attributes:
        size, stride, offset, dtype, device: of the tensor.
        nbytes: of the whole storage.
    """

    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    device: str
    nbytes: int


@dataclass(frozen=True)
class CostedCall:
    """An operator's call without the tensors' contents.

    Attributes:
        name: the operator, with its library and overload, as in ``torch.ops``.
        args, kwargs: its arguments, with ``Like`` for tensors.
        grad: whether gradients are enabled: kernels may ask for that.
        device: type of the device on which it runs; empty where the call cannot be repeated.
        work: what it has to do.
    """

    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    grad: bool
    device: str
    work: Work

    def packed(self) -> bytes:
        """Pickled for ``Repeated``, which unpickles it with tensors."""
        written = io.BytesIO()
        _Packer(written).dump((self.name, self.args, self.kwargs, self.grad))
        return written.getvalue()


class _Packer(pickle.Pickler):
    def persistent_id(self, given: Any) -> Any:
        """An id for what stands outside of the pickle: tensors."""
        return tuple(given) if isinstance(given, Like) else None


class DistinctCalls:
    """The distinct calls of a training step.

    Attributes:
        distinct: in the order in which they first came.
    """

    def __init__(self) -> None:
        self.distinct: list[CostedCall] = []
        self._places: dict[tuple[OpOverload, str], int] = {}

    def note(
        self, function: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], results: tuple[Any, ...]
    ) -> int:
        """The place of a call among the distinct ones."""
        devices: dict[str, None] = {}  # a dict keeps the order
        grad = torch.is_grad_enabled()
        try:
            alike_args = tuple(_alike(given, devices) for given in args)
            alike_kwargs = {name: _alike(given, devices) for name, given in kwargs.items()}
            device = next(iter(devices)) if devices else torch.device(kwargs.get("device") or "cpu").type
            text = f"{alike_args} {alike_kwargs} {grad}"  # tells 1, 1.0 and True apart
        except _OutOfReachError:
            alike_args, alike_kwargs, device, text = (), {}, "", str(len(self.distinct))
        place = self._places.setdefault((function, text), len(self.distinct))
        if place == len(self.distinct):
            work = estimate_work(function, args, kwargs, results)
            self.distinct.append(CostedCall(str(function), alike_args, alike_kwargs, grad, device, work))
        return place


class _OutOfReachError(Exception):
    """The call has an argument that cannot be made anew."""


def _alike(given: Any, devices: dict[str, None]) -> Any:
    if isinstance(given, Tensor):
        if not is_plain(given):
            raise _OutOfReachError
        devices[given.device.type] = None
        return Like(
            tuple(given.shape),
            given.stride(),
            given.storage_offset(),  # type: ignore[arg-type]
            given.dtype,
            str(given.device),
            given.untyped_storage().nbytes(),
        )
    if isinstance(given, (list, tuple)):
        return [_alike(item, devices) for item in given]
    if given is None or isinstance(given, torch.Generator):
        return None
    if isinstance(given, _PASSED_ON):
        return given
    raise _OutOfReachError
