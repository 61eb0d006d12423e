"""When a function keeps few bits, and of what: input and parameters as torch's own would see them."""

from __future__ import annotations

import torch
from torch import Tensor

import actcore
from integrations._utils.plain_tensor_types import PLAIN
from integrations._utils.torch_internals import (
    constant_when_traced,
    get_tracing_state,
    in_forward_mode,
    peek_interpreter_stack,
)
from integrations.tracing.tensors import is_dtensor, make_dtensor_error


def keeps_few_bits(x: Tensor) -> bool:
    """Whether autograd will ask for the gradient of ``x``, a plain tensor of a dtype that the operators take.

    If not, torch's own function is the right one: it costs nothing more, and its errors are the ones to raise.

    Raises:
        TypeError: ``x`` is a ``DTensor``.
    """
    if is_dtensor(x) and torch.is_grad_enabled() and x.requires_grad:
        raise make_dtensor_error(x, "few-bit activations (activations=)")
    return (
        type(x) in PLAIN
        and torch.is_grad_enabled()
        and (x.requires_grad or _mapped())
        and x.dtype in actcore.FLOATS
        and x.layout is torch.strided
        and not x.is_nested
        and not _forward_mode()
        # What dynamo makes of the operators' Functions has no rule for vmap; torch.jit.trace makes tensors of sizes.
        and not (in_transform() if torch.compiler.is_compiling() else get_tracing_state() is not None)
    )


@constant_when_traced
def in_transform() -> bool:
    """Whether a transform of ``torch.func`` or forward-mode differentiation is on, for which a Function has no rules.

    Dynamo calls this while it traces, with the transforms on that it is inside of.
    """
    return peek_interpreter_stack() is not None or in_forward_mode()


def _mapped() -> bool:
    """Whether a transform of ``torch.func`` is on: inside ``vmap`` no tensor tells that gradients will be asked for."""
    return not torch.compiler.is_compiling() and peek_interpreter_stack() is not None


def _forward_mode() -> bool:
    return not torch.compiler.is_compiling() and in_forward_mode()


def numbers(*parameters: float) -> tuple[float, ...]:
    """Parameters as numbers, for which steps can be looked up: ``torch.compile`` may have made symbols of them."""
    return tuple([float.fromhex(float(parameter).hex()) for parameter in parameters])
