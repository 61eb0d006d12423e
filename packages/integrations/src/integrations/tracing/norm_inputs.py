"""Stores the input of a batch, group or instance norm by the statistics that torch's norm computes.

Autograd saves the input before the norm runs, and its mean and inverse deviation afterwards. So the pack hook allocates
the stored form, and ``run_norm`` writes it when the norm has returned. Elsewhere, and where autograd has not kept these
statistics as they are, the operator that stores the input computes its own.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from actcore import Kept
from actcore.ops import below_autograd, group_count, packed_bytes
from actcore.replay import KERNELS
from integrations._utils.torch_internals import DisableTorchFunction, len_torch_dispatch_stack, profiler_enabled
from integrations.policies.standardizing import COMPRESS, undo_epsilon

_WRITE = torch.ops.actcore.group_affine_standardized_compress.given
_KERNEL = KERNELS.get("group_affine_standardized_compress")
_WRITING_KERNEL = KERNELS.get("group_affine_standardized_compress_given")
_EPSILON: dict[Callable[..., Any], int] = {
    **dict.fromkeys((F.batch_norm, torch.batch_norm, F.instance_norm, torch.instance_norm), 7),
    **dict.fromkeys((F.group_norm, torch.group_norm), 4),
}
"""The functions, with the positions of their argument ``eps``."""
NORMS = tuple(_EPSILON)
"""The functions that ``run_norm`` takes."""
_LEAST = 1e-8
"""The least epsilon. A smaller one may make the elements of a constant channel too large for float16."""
_VIEWS = ("ViewBackward0", "UnsafeViewBackward0")


class _Thread(threading.local):
    """The norm that runs in a thread.

    Attributes:
        pending: stored forms to be written when it returns; ``None`` while none runs.
        written: the statistics of the stored form that was written by those of the last norm; ``None`` for none.
    """

    pending: list[PendingStore] | None = None
    written: weakref.ref[Tensor] | None = None


_thread = _Thread()


@dataclass(slots=True)
class PendingStore:
    """A norm's input, and its stored form, which is not written yet.

    Attributes:
        elements: the input, in memory order.
        options: bits, elements of a group, whether to round at random, seed and stream.
        order: see ``standardizing.get_order``.
        parts: codes, bounds and statistics, ``Float[2, count]``.
    """

    elements: Tensor
    options: tuple[int, int, bool, int, int]
    order: tuple[int, int]
    parts: tuple[Tensor, Tensor, Tensor]

    def write(self, node: Any, epsilon: float) -> bool:
        """Write the stored form. Return whether that was by the statistics which autograd has kept in ``node``.

        Args:
            node: the norm's.
            epsilon: is taken out of the deviations; 0 for none.
        """
        mean, factor = (_kept_in(node, name) for name in ("_raw_saved_result1", "_raw_saved_result2"))
        statistics = self.parts[2]
        count = statistics.shape[1]
        if mean is None or factor is None or mean.numel() != count or factor.numel() != count:
            stored = below_autograd(COMPRESS, self.elements, *self.options, count, *self.order)
            for part, one in zip(self.parts, stored, strict=True):
                part.copy_(one)
            return False
        if mean.dim() != 1 or mean.dtype != statistics.dtype:
            mean, factor = (one.reshape(-1).to(statistics.dtype) for one in (mean, factor))
        if epsilon:
            factor = undo_epsilon(factor, epsilon).reciprocal_()
        arguments = (self.elements, *self.options, mean, factor, *self.order, *self.parts)
        if _WRITING_KERNEL is None or _is_seen(self.elements):
            below_autograd(_WRITE, *arguments)
        else:
            _WRITING_KERNEL(*arguments)
        return True


def run_norm(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    hidden: Callable[[Tensor], AbstractContextManager[Any]],
) -> Any:
    """Return the result of a norm. Its input is stored by the statistics that it computes.

    Args:
        function, args, kwargs: the norm, one of ``NORMS``, and its arguments.
        hidden: a block in which whoever follows the forward does not see the operators that write a stored form.
    """
    epsilon = _get_epsilon(function, args, kwargs)
    if _thread.pending is not None or not (isinstance(epsilon, float) and epsilon >= _LEAST):
        _thread.written = None
        return function(*args, **kwargs)
    pending: list[PendingStore] = []
    result = None
    try:
        _thread.pending, _thread.written = pending, None
        result = function(*args, **kwargs)
    finally:  # also after an error: another saved tensor may share the stored form
        _thread.pending = None
        for store in pending:
            with DisableTorchFunction(), hidden(store.elements):
                if store.write(_find_node(result), find_removed_epsilon(function, args, kwargs)):
                    _thread.written = weakref.ref(store.parts[2])
    return result


def _get_epsilon(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    place = _EPSILON[function]
    return args[place] if place < len(args) else kwargs.get("eps", 1e-5)


def find_removed_epsilon(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> float:
    """Return the epsilon of a norm, which the stored deviations are without; 0 for a group norm, where they are not.

    A group norm has other deviations for each sample, and the operator that restores its result scales channels.
    """
    if function in (F.group_norm, torch.group_norm):
        return 0.0
    epsilon: float = _get_epsilon(function, args, kwargs)
    return epsilon


def forget_norm() -> None:
    """Forget the norm that runs in this thread: an interrupt may have come before ``run_norm`` has."""
    _thread.pending = _thread.written = None


def last_written() -> Tensor | None:
    """Return the statistics in the stored form of the last norm's input, if it was stored by the norm's own."""
    return None if _thread.written is None else _thread.written()


def compress_for_norm(
    elements: Tensor, bits: int, group_size: int, stochastic: bool, seed: int, stream: int, count: int, inner: int,
    channels: int,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Return codes, bounds and ``Float[2, count]`` of elements in memory order, as ``standardizing.COMPRESS`` does.
    While a norm runs, they are written when it returns."""
    options, order = (bits, group_size, stochastic, seed, stream), (inner, channels)
    if _thread.pending is None:
        operator = COMPRESS if _KERNEL is None or _is_seen(elements) else _KERNEL
        found: tuple[Tensor, Tensor, Tensor] = operator(elements, *options, count, *order)
        return found
    numel, dtype, device = elements.numel(), elements.dtype, elements.device
    parts = (
        torch.empty(packed_bytes(numel, bits), dtype=torch.uint8, device=device),
        torch.empty((group_count(numel, group_size), 2), dtype=dtype, device=device),
        torch.empty((2, count), dtype=torch.float64 if dtype == torch.float64 else torch.float32, device=device),
    )
    _thread.pending.append(PendingStore(elements, options, order, parts))
    return parts


def _is_seen(elements: Tensor) -> bool:
    """Whether an operator on these has to go through torch's dispatcher."""
    return not elements.is_cpu or len_torch_dispatch_stack() > 0 or profiler_enabled()


def _find_node(result: Any) -> Any:
    """The node of a norm's result. That of an instance norm is a view of a batch norm's."""
    node: Any = result.grad_fn if isinstance(result, Tensor) else None
    while type(node).__name__ in _VIEWS:
        node = node.next_functions[0][0]
    return node


def _kept_in(node: Any, name: str) -> Tensor | None:
    """A tensor that a node has saved, if the pack hook has kept it as it is: it may also leave it to be recomputed."""
    packed = getattr(getattr(node, name, None), "data", None)
    kept = packed if isinstance(packed, Kept) else getattr(packed, "kept", None)
    tensor = kept.unpack() if isinstance(kept, Kept) else None
    return tensor if type(tensor) is Tensor else None
