"""Scaled dot-product attention that keeps query, key and value, and recomputes the rest in backward.

Torch's own attention keeps, besides these three, its result and the logarithm of the softmax's sum, or the softmax and
its dropout mask. That sum would not normalise the softmax of a query and key that are stored in fewer bits. So backward
recomputes attention from the very values that are stored: by torch's own operator, which it differentiates, or on a CPU
by what that operator calls (``attention_kernels``).

If a plan recomputes what reads the result, the result is recomputed for that first, and attention's backward takes it.

Dropout is drawn a second time from the generator's state. If torch draws it element by element, which takes longer than
all of the attention of a short sequence, and its mask is small beside the query, the mask is kept, one bit an element.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.attention import SDPBackend, sdpa_kernel

from integrations._utils.autocast import is_available
from integrations._utils.plain_tensor_types import PLAIN, has_elements
from integrations._utils.torch_internals import (
    DisableTorchFunction,
    cur_sdpa_kernel_backends,
    in_forward_mode,
    peek_interpreter_stack,
    top_saved_tensors_default_hooks,
)
from integrations.policies.arguments import Arguments
from integrations.tracing import attention_kernels as kernels

OPERATOR = "scaled_dot_product_attention"


class RecomputedResults(Protocol):
    """What a kernel made in the forward, and backward recomputes for another reader, too."""

    def tensors(self) -> tuple[Tensor, ...]:
        """The kernel's results, recomputed from the same query, key and value that backward has. They are freed unless
        the graph is retained."""


Recomputation = Callable[[Sequence[Tensor], Sequence[Tensor]], RecomputedResults | None]
"""A function from what a kernel has read that may be rounded, and from what it made, to how that is recomputed in
backward; it returns ``None`` if it is not."""


@dataclass(frozen=True)
class Attention:
    """A call of ``F.scaled_dot_product_attention``: the function, its arguments except the tensors, and the
    surroundings that decide its result and its kernel."""

    function: Callable[..., Tensor]
    options: dict[str, Any]
    autocast: tuple[bool, torch.dtype]
    backends: list[SDPBackend]
    generator: Tensor | None  # the generator's state, if there is dropout

    @classmethod
    def of(cls, function: Callable[..., Tensor], options: dict[str, Any], query: Tensor) -> Attention:
        drawn = options["dropout_p"] > 0 and has_elements(query)
        generator = _generator_state(query.device) if drawn else None
        return cls(function, options, _autocast(query.device.type), _backends(), generator)

    def __call__(self, *tensors: Tensor | None) -> Tensor:
        """Attention of query, key, value and mask in the present surroundings."""
        query, key, value, mask = tensors
        return self.function(query, key, value, mask, **self.options)

    @contextmanager
    def surroundings(self, device: torch.device) -> Iterator[None]:
        """A block in the surroundings of the call. Torch's generator is put back afterwards."""
        enabled, dtype = self.autocast
        # Without autocast's cache: backward restores new tensors each time.
        same = self.autocast == _autocast(device.type)
        autocast = nullcontext() if same else torch.autocast(device.type, dtype, enabled, cache_enabled=False)
        choice = nullcontext() if self.backends == _backends() else sdpa_kernel(self.backends, set_priority=True)
        state = None if self.generator is None else _generator_state(device)
        with autocast, choice:
            try:
                if self.generator is not None:
                    _set_generator_state(device, self.generator)
                yield
            finally:
                if state is not None:
                    _set_generator_state(device, state)


class _Recomputed(Function):
    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        function: Callable[..., Tensor],
        options: dict[str, Any],
        recomputation: Recomputation | None,
    ) -> Tensor:
        ctx.set_materialize_grads(False)
        ctx.fused, ctx.masked, ctx.recomputation = False, False, None
        output: Tensor
        if kernels.is_fused(query, key, value, mask, options):
            ctx.fused, ctx.attention = True, Attention.of(function, options, query)
            output, sums = kernels.fused(query, key, value, mask, options)
            if recomputation is not None:
                ctx.recomputation = recomputation((query, key, value), (output, sums))
            ctx.save_for_backward(query, key, value, mask, None)
            return output
        if kernels.masks_dropout(query, key, value, mask, options):
            ctx.masked, ctx.attention = True, Attention(function, options, _autocast("cpu"), _backends(), None)
            with _exact():
                output, left = kernels.drawn(query, key, value, mask, options)
            ctx.save_for_backward(query, key, value, mask, left)
            return output
        ctx.attention = Attention.of(function, options, query)
        # With gradients enabled, as in backward, since torch's choice of a kernel depends on it. The graph is freed at
        # once.
        with torch.enable_grad(), _exact():
            output = ctx.attention(*(_alias(tensor, False) for tensor in (query, key, value, mask)))
        ctx.save_for_backward(query, key, value, mask, None)
        return output.detach()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        (gradient,) = gradients
        if gradient is None:
            return (None,) * 7
        twice = torch.is_grad_enabled()  # create_graph=True: with the history of what was saved
        query, key, value, mask, left = ctx.saved_tensors
        stored = query, key, value, mask
        options = ctx.attention.options
        if not twice and (ctx.fused or (ctx.masked and kernels.is_plain(*stored, options))):
            # A block of integrations.compress may still be open. These calls belong to no forward.
            with DisableTorchFunction():
                if ctx.fused:
                    output, sums = (
                        kernels.fused(*stored, options) if ctx.recomputation is None else ctx.recomputation.tensors()
                    )
                    three = kernels.of_fused(gradient, *stored, output, sums, options)
                else:
                    with ctx.attention.surroundings(query.device):
                        three = kernels.of_dropped(gradient, left, *stored, options)
            needed = zip(three, ctx.needs_input_grad, strict=False)
            return *(one if needs else None for one, needs in needed), None, None, None, None
        with DisableTorchFunction(), torch.enable_grad(), _exact():
            tensors: tuple[Any, ...] = tuple(_alias(tensor, twice) for tensor in stored)
            query, key, value, mask = tensors
            wanted = [tensor for tensor in tensors if tensor is not None and tensor.requires_grad]
            with ctx.attention.surroundings(stored[0].device):
                output = (
                    kernels.dropped(left, query, key, value, mask, options) if ctx.masked else ctx.attention(*tensors)
                )
            found = iter(torch.autograd.grad(output, wanted, gradient, create_graph=twice))
        return *(next(found) if needs else None for needs in ctx.needs_input_grad[:4]), None, None, None


def recomputed(
    function: Callable[..., Tensor], given: Arguments, recomputation: Recomputation | None = None
) -> Tensor | None:
    """Attention whose node saves only query, key and value ("recomputed") and the mask; ``None`` for a call that is
    left to torch.

    The result, the kernel and dropout are torch's own, bit for bit. A call is left to torch if there is nothing to save
    or a part of it cannot be repeated: without gradients, for subclasses and nested tensors, inside ``torch.func`` and
    forward mode, and with dropout while a CUDA graph is captured.

    Args:
        function: torch's.
        given: its arguments.
        recomputation: see ``Recomputation``; ``None`` if nothing else needs the kernel's results.
    """
    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
    options = {**dict(zip(names, given.args, strict=False)), **given.kwargs}
    tensors = [options.pop(name, None) for name in names[:4]]
    options.setdefault("dropout_p", 0.0)
    if not all(_plain(tensor) for tensor in tensors[:3]) or not (tensors[3] is None or _plain(tensors[3])):
        return None
    if len(given.args) > len(names) or not isinstance(options["dropout_p"], int | float):
        return None
    if not torch.is_grad_enabled() or not any(tensor is not None and tensor.requires_grad for tensor in tensors):
        return None
    if peek_interpreter_stack() is not None or in_forward_mode():
        return None
    device = tensors[0].device
    if not is_available(device.type):
        return None
    drawn = options["dropout_p"] > 0 and has_elements(tensors[0])
    if drawn and device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        return None
    output: Tensor = _Recomputed.apply(*tensors, function, options, recomputation)
    return output


def is_fused(output: Tensor) -> bool:
    """Whether a result of ``recomputed`` comes from a fused kernel, which backward calls once more."""
    return getattr(output.grad_fn, "fused", False)


def _plain(tensor: object) -> bool:
    return (
        type(tensor) in PLAIN and isinstance(tensor, Tensor) and tensor.layout is torch.strided and not tensor.is_nested
    )


def _alias(tensor: Tensor | None, history: bool) -> Tensor | None:
    """A tensor of its own in the graph, so that each argument gets its own gradient even if two are the same tensor. It
    has the tensor's history, or is a leaf."""
    if tensor is None or not tensor.requires_grad:
        return tensor
    # A view of a leaf is no leaf: autocast would keep a leaf's cast until its region ends.
    return (tensor if history else tensor.detach().requires_grad_()).view_as(tensor)


@contextmanager
def _exact() -> Iterator[None]:
    """A block in which what is saved does not go through the active hooks."""
    with ExitStack() as contexts:
        if top_saved_tensors_default_hooks(True) is not None:
            # Detached: a node that holds its own result would never be freed.
            contexts.enter_context(saved_tensors_hooks(Tensor.detach, _itself))
        yield


def _itself(tensor: Tensor) -> Tensor:
    return tensor


def _autocast(kind: str) -> tuple[bool, torch.dtype]:
    return torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)


def _backends() -> list[SDPBackend]:
    """The kernels that the user allows, in the order of preference."""
    backends: list[SDPBackend] = cur_sdpa_kernel_backends(with_priority=True)
    return backends


def _generator_state(device: torch.device) -> Tensor:
    if device.type == "cpu":
        return torch.get_rng_state()
    state: Tensor = torch.get_device_module(device).get_rng_state(device)
    return state


def _set_generator_state(device: torch.device, state: Tensor) -> None:
    if device.type == "cpu":
        torch.set_rng_state(state)
    else:
        torch.get_device_module(device).set_rng_state(state, device)
