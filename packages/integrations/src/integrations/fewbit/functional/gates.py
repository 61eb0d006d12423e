"""Gated activations: ``act(gate) * value``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import actcore
from actcore.autograd import reads_rounded, restore_saved
from actcore.double_backward import BY_ROUNDED
from actcore.fused.functions import FusedFunction
from actcore.stored import Absent, Stored, announce, is_heard
from integrations._utils.warn import warn
from integrations.fewbit.functional import piecewise, smooth
from integrations.fewbit.functional.conditions import keeps_few_bits
from integrations.policies.codebooks.catalogue import FUNCTIONS
from integrations.policies.codebooks.options import check_approximate, check_options

_FEW_BITS: Mapping[str, Callable[..., Tensor]] = {
    "sigmoid": smooth.sigmoid,
    "silu": smooth.silu,
    "gelu": smooth.gelu,
    "gelu_tanh": lambda x, **options: smooth.gelu(x, "tanh", **options),
    "relu": lambda x, **options: piecewise.relu(x),
}


_OPERATORS: Mapping[str, str] = {
    "sigmoid": "glu",
    "silu": "swiglu",
    "gelu": "geglu",
    "gelu_tanh": "geglu",
    "relu": "reglu",
}


def glu(input: Tensor, other: Tensor | int | None = None, dim: int = -1, *, bits: int | None = None) -> Tensor:
    """Compute ``torch.nn.functional.glu``, ``value * sigmoid(gate)``.

    Value and gate are the halves of ``input`` along ``dim``, in this order, or ``input`` and ``other``. See ``swiglu``
    for ``bits``; without them this is torch's own function, which keeps only the input. A number as the second argument
    is ``dim``, as in torch.
    """
    if isinstance(other, int):
        dim = other
        other = None
    if other is None and bits is None:
        return F.glu(input, dim)
    return _gated("sigmoid", input, other, dim, bits, gate_first=False)


def swiglu(
    input: Tensor, other: Tensor | None = None, dim: int = -1, *, bits: int | None = None, gate_first: bool = True
) -> Tensor:
    """Compute ``silu(gate) * value``, keeping two tensors or three in ``bits`` bits per element.

    From "GLU variants improve Transformer" (Shazeer, 2020). The gradient of the value is ``g * silu(gate)`` and that of
    the gate ``g * value * silu'(gate)``. Plain PyTorch keeps the gate, ``silu(gate)`` and the value. A few-bit
    derivative alone saves no memory here, because ``silu(gate)`` is needed as well. So there are two modes:

    * ``bits=None``: exact. The gate and the value are kept exactly, and backward recomputes the activation. This keeps
      two tensors of three, or none if other operators keep both anyway.
    * ``bits`` from 1 to 8: the derivative's steps, ``silu(gate)`` and the value are kept in that many bits each. The
      last two are rounded at random (``actcore.GroupAffine``), so the gradient of the value is unbiased; that of the
      gate has the error of the steps. 4 bits keep an eighth of PyTorch's memory, and some bounds of groups. Second
      derivatives (``create_graph=True``) have more error, and a warning says so.

    Args:
        input: the two halves along ``dim``, or one of the two.
        other: the other half, of the same shape; ``None`` splits ``input``.
        dim: the dimension along which ``input`` is split.
        bits: see above.
        gate_first: whether ``input``, or its first half, is the gate, as in LLaMA; in ``nn.GLU`` the gate is last.

    Raises:
        ValueError: the dimension's size is odd, the two have different shapes, or ``bits`` is out of range.
    """
    return _gated("silu", input, other, dim, bits, gate_first)


def geglu(
    input: Tensor,
    other: Tensor | None = None,
    dim: int = -1,
    approximate: str = "none",
    *,
    bits: int | None = None,
    gate_first: bool = True,
) -> Tensor:
    """Compute ``gelu(gate) * value``; see ``swiglu``."""
    check_approximate(approximate)
    return _gated("gelu" if approximate == "none" else "gelu_tanh", input, other, dim, bits, gate_first)


def reglu(
    input: Tensor, other: Tensor | None = None, dim: int = -1, *, bits: int | None = None, gate_first: bool = True
) -> Tensor:
    """Compute ``relu(gate) * value``; see ``swiglu``. The derivative takes one bit, exactly."""
    return _gated("relu", input, other, dim, bits, gate_first)


def _gated(name: str, input: Tensor, other: Tensor | None, dim: int, bits: int | None, gate_first: bool) -> Tensor:
    check_options(bits=bits)
    if other is None:
        if input.dim() == 0 or input.size(dim) % 2:
            raise ValueError(
                f"input must have an even size along dim {dim}, to be split in half, got shape {tuple(input.shape)}"
            )
        input, other = input.chunk(2, dim)
    elif input.shape != other.shape:
        raise ValueError(
            f"input and other must have the same shape, got {tuple(input.shape)} and {tuple(other.shape)}; expand one"
        )
    gate, value = (input, other) if gate_first else (other, input)
    if not keeps_few_bits(gate) and not keeps_few_bits(value):
        return FUNCTIONS[name].call(gate) * value
    if bits is None:
        exact: Tensor = _Gate.call(gate, value, name)
        return exact
    product: Tensor = _Product.call(_FEW_BITS[name](gate, bits=bits), value, bits)
    return product


class _Gate(FusedFunction):
    """Exact, with the activation computed again in backward."""

    generate_vmap_rule = True

    @staticmethod
    def forward(gate: Tensor, value: Tensor, name: str) -> Tensor:
        return FUNCTIONS[name].call(gate) * value

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        gate, value, ctx.name = inputs
        if is_heard(ctx):
            announce(*_announced(gate, value, ctx.name))
        ctx.save_for_backward(gate, value)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        gate, value = ctx.saved_tensors
        (gradient,) = gradients
        opened = to_gate = None
        if ctx.needs_input_grad[0]:
            to_gate = _backward(ctx.name, gradient * value, gate)
        if ctx.needs_input_grad[1]:
            opened = gradient * FUNCTIONS[ctx.name].call(gate)
        return to_gate, opened, None


def _announced(gate: Tensor, value: Tensor, name: str) -> Iterator[Stored]:
    """torch keeps what it multiplies, and the gate where the activation's derivative asks for it."""
    opened = Absent.like(gate)
    operator = _OPERATORS[name]
    if name in ("relu", "sigmoid"):  # theirs asks for the result
        yield Stored(opened, operator, "internal", "made again of the gate", (gate,))
    else:
        yield Stored(gate, operator, "input", parts=(gate,))
        yield Stored(opened, operator, "internal", "made again of the gate")
    yield Stored(value, operator, "other", parts=(value,))


def _backward(name: str, gradient: Tensor, gate: Tensor) -> Any:
    """torch's own gradient of the activation."""
    aten = torch.ops.aten
    if name == "silu" and torch.is_grad_enabled():  # as torch does: silu_backward has no derivative
        opened = torch.sigmoid(gate)
        return gradient * opened * (1 + gate * (1 - opened))
    if name == "silu":
        return aten.silu_backward(gradient, gate)
    if name == "relu":
        return aten.threshold_backward(gradient, gate, 0)
    if name == "sigmoid":
        return aten.sigmoid_backward(gradient, torch.sigmoid(gate))
    return aten.gelu_backward(gradient, gate, approximate="tanh" if name == "gelu_tanh" else "none")


class _Product(FusedFunction):
    """``a * b``, with both stored in few bits, rounded at random."""

    generate_vmap_rule = True

    @staticmethod
    def forward(a: Tensor, b: Tensor, bits: int) -> Tensor:
        return a * b

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        a, b, bits = inputs
        codec = actcore.GroupAffine(bits=bits)
        needs_a, needs_b = ctx.needs_input_grad[:2]
        actcore.save_for_backward(
            ctx, (a if needs_b else None, codec), (b if needs_a else None, codec), operator="gated product"
        )

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        a, b = restore_saved(ctx)
        if reads_rounded(ctx):
            warn(f"gates with bits=: {BY_ROUNDED}. Second derivatives have more error than first ones; use bits=None")
        (gradient,) = gradients
        return None if b is None else gradient * b, None if a is None else gradient * a, None
