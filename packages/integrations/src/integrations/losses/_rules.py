"""What may be done to logits that are not computed: cut and reshape their rows, scale, squash, and compute their loss,
or the log-probabilities of chosen classes.

Each rule returns the logits as they are afterwards, several of them, or the numbers that were asked for. If it needs
the logits themselves, it returns ``NotImplemented``, and they are computed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from inspect import signature
from types import MappingProxyType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from integrations.losses._derived import Derived
from integrations.losses._losses_of_logits import (
    argmax,
    cross_entropy,
    gathered,
    is_index,
    log_softmax,
    logsumexp,
    nll_loss,
    picked,
)
from integrations.tracing.tensors import is_dtensor

Rule = Callable[..., Any]

_GETTERS = (
    "shape dtype device layout ndim requires_grad is_leaf grad_fn itemsize nbytes names is_cpu is_cuda is_meta is_xpu "
    "is_mps is_sparse is_quantized is_nested is_mkldnn output_nr _version _base retains_grad grad _backward_hooks"
)
_METHODS = (
    "size dim ndimension numel nelement element_size is_floating_point is_complex is_contiguous get_device __len__ "
    "__hash__ __repr__ __format__ stride is_inference _is_view"
)
METADATA = frozenset(
    {getattr(Tensor, name).__get__ for name in _GETTERS.split() if hasattr(Tensor, name)}
    | {getattr(Tensor, name) for name in _METHODS.split()}
    | {torch.numel, torch.is_floating_point, torch.is_complex}
)
"""Functions that read no element."""

OF_GRADIENT = frozenset(getattr(Tensor, name).__get__ for name in ("grad", "retains_grad"))
"""Those of ``METADATA`` that read a gradient of the tensor."""

LISTENING = frozenset({Tensor.register_hook, Tensor.retain_grad, Tensor.register_post_accumulate_grad_hook})
"""Functions that register for a gradient of the tensor."""


def apply_rule(function: Any, logits: Derived, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """What a function returns for logits, its first argument, without computing them; ``NotImplemented`` if it needs
    them.

    Args:
        function: torch's.
        logits: its first argument.
        args, kwargs: all of its arguments.
    """
    rule = (_OF_NORMALIZED if logits.normalized else _OF_LOGITS).get(function)
    if rule is None:
        return NotImplemented
    rest = args[1:] if args else ()
    if not args:
        kwargs = {name: value for name, value in kwargs.items() if name != "input"}
    try:
        signature(rule).bind(logits, *rest, **kwargs)
    except TypeError:  # arguments that the rule does not know
        return NotImplemented
    return rule(logits, *rest, **kwargs)


# ---- rows that are cut and shaped ----


def _reshaped(method: str, logits: Derived, *shape: Any, **named: Any) -> Any:
    if any(isinstance(one, torch.dtype) for one in (*shape, *named.values())):  # a view as another dtype
        return NotImplemented
    try:
        found = getattr(torch.empty(logits.shape, device="meta"), method)(*shape, **named).shape
    except RuntimeError:
        return NotImplemented  # torch says what is wrong
    if not found or found[-1] != logits.shape[-1] or logits.shape.numel() == 0:
        return NotImplemented
    hidden = logits.hidden.reshape(*found[:-1], logits.hidden.shape[-1])
    return logits.then(lambda tensor: getattr(tensor, method)(*shape, **named), hidden=hidden)


def _indexed(logits: Derived, index: Any) -> Any:
    parts = index if isinstance(index, tuple) else (index,)
    if not all(part is None or part is Ellipsis or isinstance(part, int | slice | Tensor) for part in parts):
        return NotImplemented
    if any(isinstance(part, bool) or (isinstance(part, Tensor) and is_dtensor(part)) for part in parts):
        return NotImplemented
    if len(parts) == len(logits.shape) and all(is_index(part, logits) for part in parts):
        return picked(logits, *parts)
    taken = sum(map(_dimensions, parts))
    ends_in_ellipsis = bool(parts) and parts[-1] is Ellipsis
    named = parts[:-1] if ends_in_ellipsis else parts
    last = named[-1] if named else None
    # The last part indexes the classes, if the parts leave no other dimension for it.
    for_classes = taken >= len(logits.shape) or (not ends_in_ellipsis and any(part is Ellipsis for part in parts))
    if for_classes and not (isinstance(last, slice) and last == slice(None)):
        return NotImplemented
    return logits.then(lambda tensor: tensor[index], hidden=logits.hidden[index])


def _dimensions(part: Any) -> int:
    """How many dimensions a part of an index is for."""
    if part is None or part is Ellipsis:
        return 0
    if isinstance(part, Tensor):
        return part.dim() if part.dtype in (torch.bool, torch.uint8) else 1
    return 1


def _unbound(logits: Derived, dim: int = 0) -> Any:
    if dim != 0 or len(logits.shape) < 3:  # each row by itself is not worth a product
        return NotImplemented
    return tuple(_indexed(logits, place) for place in range(logits.shape[0]))


def _split(logits: Derived, split_size: Any, dim: int = 0) -> Any:
    if not isinstance(split_size, int) or split_size < 1 or not 0 <= dim < len(logits.shape) - 1:
        return NotImplemented
    before = (slice(None),) * dim
    starts = range(0, logits.shape[dim], split_size)
    return tuple(_indexed(logits, (*before, slice(start, start + split_size))) for start in starts)


def _chunked(logits: Derived, chunks: int, dim: int = 0) -> Any:
    if not 0 <= dim < len(logits.shape) - 1 or chunks < 1:
        return NotImplemented
    return _split(logits, max(1, -(-logits.shape[dim] // chunks)), dim)


def _same(logits: Derived) -> Any:
    return logits


# ---- DTensors ----


def placements(logits: Derived) -> tuple[Any, ...]:
    """The placements of logits that stand for a ``DTensor``."""
    from torch.distributed.tensor import Replicate, Shard

    return (Replicate(),) if logits.placed == "replicated" else (Shard(len(logits.shape) - 1),)


def redistributed(logits: Derived, wanted: Any) -> Any:
    """Logits that stand for a ``DTensor``, with other placements."""
    if wanted is None or len(wanted) != 1:
        return NotImplemented
    last = wanted[0].is_shard(-1) or wanted[0].is_shard(len(logits.shape) - 1)
    if not last and not wanted[0].is_replicate():
        return NotImplemented
    placed = "sharded" if last else "replicated"
    if placed == logits.placed:
        return logits
    return logits.then(lambda tensor: tensor.redistribute(placements=list(wanted)), placed=placed)  # type: ignore[attr-defined]


def local(logits: Derived, grads: Any) -> Any:
    """Logits that stand for a ``DTensor``, as the plain tensor of each rank, which has all classes."""
    if logits.placed != "replicated" or (grads is not None and not all(one.is_replicate() for one in grads)):
        return NotImplemented
    return logits.then(lambda tensor: tensor.to_local(), placed="")  # type: ignore[attr-defined]


# ---- casts ----


def _cast(dtype: torch.dtype, logits: Derived) -> Any:
    if dtype == logits.dtype:
        return logits
    if torch.promote_types(logits.dtype, dtype) != dtype:  # it would round
        return NotImplemented
    return logits.then(lambda tensor: tensor.to(dtype), dtype=dtype)


def _to(logits: Derived, *args: Any, **kwargs: Any) -> Any:
    if kwargs.keys() - {"dtype", "device", "non_blocking"}:
        return NotImplemented
    dtype, device = kwargs.get("dtype"), kwargs.get("device")
    for given in args:
        if isinstance(given, torch.dtype):
            dtype = given
        elif isinstance(given, str | torch.device | int) and not isinstance(given, bool):
            device = given
        elif isinstance(given, Tensor):
            dtype, device = given.dtype, given.device
        elif given is not None:
            return NotImplemented
    here = logits.hidden.device
    # "cuda" is the device that a new tensor would be on.
    if device is not None and torch.empty(0, device=device).device != here:
        return NotImplemented
    dtype = logits.dtype if dtype is None else dtype
    return _cast(dtype, logits) if dtype.is_floating_point else NotImplemented


# ---- scales and caps ----


def _multiplied(logits: Derived, factor: Any) -> Any:
    if isinstance(factor, bool) or not isinstance(factor, int | float):
        return NotImplemented
    if logits.cap and factor <= 0:
        return NotImplemented
    return logits.then(lambda tensor: tensor * factor, scale=logits.scale * factor, cap=logits.cap * factor)


def _divided(logits: Derived, divisor: Any) -> Any:
    if isinstance(divisor, bool) or not isinstance(divisor, int | float) or not divisor:
        return NotImplemented
    if logits.cap and divisor < 0:
        return NotImplemented
    return logits.then(lambda tensor: tensor / divisor, scale=logits.scale / divisor, cap=logits.cap / divisor)


def _squashed(logits: Derived) -> Any:
    return NotImplemented if logits.cap else logits.then(torch.tanh, cap=1.0)


_OF_BOTH: dict[Any, Rule] = {
    Tensor.view: partial(_reshaped, "view"),
    Tensor.reshape: partial(_reshaped, "reshape"),
    torch.reshape: partial(_reshaped, "reshape"),
    Tensor.flatten: partial(_reshaped, "flatten"),
    torch.flatten: partial(_reshaped, "flatten"),
    Tensor.squeeze: partial(_reshaped, "squeeze"),
    Tensor.unsqueeze: partial(_reshaped, "unsqueeze"),
    Tensor.__getitem__: _indexed,
    Tensor.unbind: _unbound,
    torch.unbind: _unbound,
    Tensor.split: _split,
    torch.split: _split,
    Tensor.chunk: _chunked,
    torch.chunk: _chunked,
    Tensor.contiguous: _same,
    Tensor.float: partial(_cast, torch.float32),
    Tensor.double: partial(_cast, torch.float64),
    Tensor.to: _to,
    Tensor.gather: gathered,
    torch.gather: gathered,
    Tensor.argmax: argmax,
    torch.argmax: argmax,
}
_OF_LOGITS: Mapping[Any, Rule] = MappingProxyType(
    _OF_BOTH
    | {
        Tensor.mul: _multiplied,
        Tensor.__mul__: _multiplied,
        Tensor.__rmul__: _multiplied,
        torch.mul: _multiplied,
        Tensor.div: _divided,
        Tensor.__truediv__: _divided,
        torch.div: _divided,
        Tensor.tanh: _squashed,
        torch.tanh: _squashed,
        F.tanh: _squashed,
        F.log_softmax: log_softmax,
        Tensor.log_softmax: log_softmax,
        torch.log_softmax: log_softmax,
        Tensor.logsumexp: logsumexp,
        torch.logsumexp: logsumexp,
        F.cross_entropy: cross_entropy,
    }
)
_OF_NORMALIZED: Mapping[Any, Rule] = MappingProxyType(_OF_BOTH | {F.nll_loss: nll_loss})
