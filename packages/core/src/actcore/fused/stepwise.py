"""Functions with a step function for a derivative."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from actcore.fused.batches import first, map_backward, map_forward, require_shared
from actcore.fused.callables import value_of
from actcore.fused.functions import FusedFunction
from actcore.ops import below_autograd
from actcore.origins import note_origin, with_origin
from actcore.pointwise import PIECEWISE_LINEAR, PointwiseFunction
from actcore.stored import announce_pointwise, name_of

_ops = torch.ops.actcore


def refuse_curvature() -> None:
    """Raises where the backward of a curved function is asked for a graph, in which the second derivative would miss.

    ``torch.func`` always asks for one; there, and where code is compiled, it is ``StepwiseBackward`` that refuses.
    """
    if (
        torch.is_grad_enabled()
        and not torch.compiler.is_compiling()
        and torch._C._functorch.peek_interpreter_stack() is None
    ):
        raise RuntimeError(_NO_CURVATURE)


_NO_CURVATURE = (
    "an activation with a few-bit (piecewise constant) derivative has no second derivative, and create_graph=True "
    "would lose that term silently; use torch's own function where gradients are differentiated"
)


def stepped(gradient: Tensor, codes: Tensor, levels: Tensor, bits: int, guarded: bool, curved: bool) -> Any:
    """``gradient * levels[code]``, with a history where one is asked for."""
    gradient = gradient.contiguous()
    if not torch.is_grad_enabled():
        return below_autograd(_ops.stepwise_backward.default, gradient, codes, levels, bits, guarded)
    return StepwiseBackward.apply(gradient, codes, levels, bits, guarded, curved)


class StepwiseBackward(FusedFunction):
    """``gradient * levels[code]``; its derivative by the gradient is the same operator.

    Where the function is curved it is not all of the second derivative, and is refused.
    """

    @staticmethod
    def forward(gradient: Tensor, codes: Tensor, levels: Tensor, bits: int, guarded: bool, curved: bool) -> Any:
        return below_autograd(_ops.stepwise_backward.default, gradient, codes, levels, bits, guarded)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.bits, ctx.guarded, *curved = inputs[3:]
        ctx.curved, ctx.inputs = curved == [True], len(inputs)  # the operator itself has no `curved`
        ctx.save_for_backward(inputs[1], inputs[2])

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        if ctx.curved:
            raise RuntimeError(_NO_CURVATURE)
        codes, levels = ctx.saved_tensors
        gradient = stepped(gradients[0], codes, levels, ctx.bits, ctx.guarded, curved=False)
        return gradient, *(None,) * (ctx.inputs - 1)

    @staticmethod
    def vmap(info: Any, in_dims: Any, *arguments: Any) -> Any:
        return StepwiseBackward.rule(StepwiseBackward.apply, info, in_dims, *arguments)

    @staticmethod
    def rule(
        call: Any,
        info: Any,
        in_dims: Any,
        gradient: Tensor,
        codes: Tensor,
        levels: Tensor,
        bits: int,
        guarded: bool = False,
        *curved: bool,
    ) -> Any:
        require_shared("levels", in_dims[2])

        def apply(gradient: Tensor, codes: Tensor) -> Any:
            return call(gradient, codes, levels, bits, guarded, *curved)

        size = info.batch_size
        return map_backward(apply, apply, first(gradient, in_dims[0], size), first(codes, in_dims[1], size), guarded)


class Stepwise(FusedFunction):
    """``stepwise`` with the levels that stand for the derivative."""

    @staticmethod
    def forward(
        input: Tensor,
        function: str | PointwiseFunction,
        parameters: Sequence[float],
        boundaries: Tensor,
        levels: Tensor,
        bits: int,
        even: bool,
        guard: str,
    ) -> Any:
        if function == "softplus" and input.device.type == "cpu":
            # The operator's exponential and logarithm are not those inside torch's softplus: an ulp apart.
            function = torch.nn.functional.softplus
        if isinstance(function, str):
            return below_autograd(_ops.stepwise.default, input, function, parameters, boundaries, bits, even, guard)
        codes = below_autograd(_ops.stepwise_codes.default, input, boundaries, bits, even, guard)
        return value_of(function, input, parameters), codes

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.bits, ctx.guarded, ctx.curved = inputs[5], inputs[7] != "none", inputs[1] not in PIECEWISE_LINEAR
        ctx.mark_non_differentiable(output[1])
        ctx.set_materialize_grads(False)
        announce_pointwise(
            ctx, inputs[0], output[0], name_of(inputs[1]), f"{inputs[5]}-bit steps", (output[1], inputs[4])
        )
        if not ctx.curved:
            note_origin(ctx, inputs[0])
        ctx.save_for_backward(output[1], inputs[4])

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        if gradients[0] is None:
            return None, None, None, None, None, None, None, None
        if ctx.curved:
            refuse_curvature()
        codes, levels = ctx.saved_tensors
        gradient = stepped(gradients[0], codes, levels, ctx.bits, ctx.guarded, ctx.curved)
        gradient = gradient if ctx.curved else with_origin(ctx, gradient)
        return gradient, None, None, None, None, None, None, None

    @staticmethod
    def vmap(info: Any, in_dims: Any, *arguments: Any) -> Any:
        return Stepwise.rule(Stepwise.apply, info, in_dims, *arguments)

    @staticmethod
    def rule(
        call: Any,
        info: Any,
        in_dims: Any,
        input: Tensor,
        function: str | PointwiseFunction,
        parameters: Sequence[float],
        boundaries: Tensor,
        levels: Tensor,
        bits: int,
        even: bool,
        guard: str,
    ) -> Any:
        require_shared("boundaries", in_dims[3])
        require_shared("levels", in_dims[4])

        def apply(x: Tensor) -> Any:
            return call(x, function, parameters, boundaries, levels, bits, even, guard)

        x = first(input, in_dims[0], info.batch_size)
        return map_forward(apply, info.batch_size, prod(x.shape[1:]), x, guard != "none")
