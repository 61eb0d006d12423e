"""Max pooling that keeps the index in the window."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from actcore.fused.announced import announce_max_pool
from actcore.fused.batches import first, map_backward, map_forward
from actcore.fused.functions import FusedFunction
from actcore.ops import below_autograd
from actcore.origins import note_origin, with_origin
from actcore.pooling import pooled_shape

_ops = torch.ops.actcore


class MaxPoolBackward(FusedFunction):
    """Each gradient at its maximum's place; its derivative reads there."""

    @staticmethod
    def forward(gradient: Tensor, packed: Tensor, input_shape: Sequence[int], *options: Any) -> Any:
        return below_autograd(_ops.max_pool_backward.default, gradient, packed, input_shape, *options)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.input_shape, ctx.options = inputs[2], inputs[3:]
        ctx.save_for_backward(inputs[1])

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (packed,) = ctx.saved_tensors
        dims = len(ctx.options[0])
        indices = _ops.window_index_unpack(packed, ctx.input_shape, *ctx.options)
        flat = indices.flatten(-dims)
        read = gradients[0].flatten(-dims).gather(-1, flat.clamp(min=0))
        return read.where(flat >= 0, 0.0).view(indices.shape), None, None, None, None, None, None, None

    @staticmethod
    def vmap(info: Any, in_dims: Any, *arguments: Any) -> Any:
        return MaxPoolBackward.rule(MaxPoolBackward.apply, info, in_dims, *arguments)

    @staticmethod
    def rule(
        call: Any, info: Any, in_dims: Any, gradient: Tensor, packed: Tensor, input_shape: Sequence[int], *options: Any
    ) -> Any:
        size = info.batch_size

        def one(gradient: Tensor, packed: Tensor) -> Any:
            return call(gradient, packed, input_shape, *options)

        def every(gradient: Tensor, packed: Tensor) -> Any:
            return call(gradient, packed, [size, *input_shape], *options)

        return map_backward(one, every, first(gradient, in_dims[0], size), first(packed, in_dims[1], size))


class MaxPool(FusedFunction):
    """``max_pool`` with its gradient."""

    @staticmethod
    def forward(input: Tensor, *options: Any) -> Any:
        return below_autograd(_ops.max_pool.default, input, *options)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.input_shape, ctx.options = list(inputs[0].shape), inputs[1:]
        ctx.mark_non_differentiable(output[1])
        ctx.set_materialize_grads(False)
        announce_max_pool(ctx, inputs[0], inputs[1], *output)
        note_origin(ctx, inputs[0])
        ctx.save_for_backward(output[1])

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        if gradients[0] is None:
            return None, None, None, None, None, None
        (packed,) = ctx.saved_tensors
        # Compiled code has no double backward anyway, and torch 2.13 cannot compile a Function inside of another.
        history = torch.is_grad_enabled() and not torch.compiler.is_compiling()
        given = gradients[0].contiguous(), packed, ctx.input_shape, *ctx.options
        gradient = MaxPoolBackward.apply(*given) if history else below_autograd(_ops.max_pool_backward.default, *given)
        return with_origin(ctx, gradient), None, None, None, None, None

    @staticmethod
    def vmap(info: Any, in_dims: Any, *arguments: Any) -> Any:
        return MaxPool.rule(MaxPool.apply, info, in_dims, *arguments)

    @staticmethod
    def rule(call: Any, info: Any, in_dims: Any, input: Tensor, *options: Any) -> Any:
        x = first(input, in_dims[0], info.batch_size)
        codes = prod(pooled_shape(x.shape[1:], *options))

        def apply(x: Tensor) -> Any:
            return call(x, *options)

        return map_forward(apply, info.batch_size, codes, x)
