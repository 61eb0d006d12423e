"""ReLU and dropout with a mask of one bit an element."""

from __future__ import annotations

from math import prod
from typing import Any

import torch
from torch import Tensor

from actcore.fused.announced import announce_dropout
from actcore.fused.batches import first, map_backward, map_forward
from actcore.fused.functions import FusedFunction
from actcore.ops import below_autograd
from actcore.origins import note_origin, with_origin
from actcore.stored import announce_pointwise

_ops = torch.ops.actcore

DROPOUT_STEPS = 2**16


def dropout_scale(p: float) -> float:
    """What ``dropout_mask`` multiplies kept elements by: the inverse of the rate, a multiple of 2**-16."""
    kept = DROPOUT_STEPS - round(p * DROPOUT_STEPS)
    return DROPOUT_STEPS / kept if kept else 0.0


def masked(gradient: Tensor, mask: Tensor, scale: float) -> Any:
    """``gradient * scale`` where the mask is 1, with a history where one is asked for."""
    if torch.is_grad_enabled():
        return MaskBackward.apply(gradient.contiguous(), mask, scale)
    return below_autograd(_ops.mask_backward.default, gradient.contiguous(), mask, scale)


class MaskBackward(FusedFunction):
    """``gradient * scale`` where the mask is 1; its derivative is the same operator."""

    @staticmethod
    def forward(gradient: Tensor, mask: Tensor, scale: float) -> Any:
        return below_autograd(_ops.mask_backward.default, gradient, mask, scale)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.scale = inputs[2]
        ctx.save_for_backward(inputs[1])

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (mask,) = ctx.saved_tensors
        return masked(gradients[0], mask, ctx.scale), None, None

    @staticmethod
    def vmap(info: Any, in_dims: Any, *arguments: Any) -> Any:
        return MaskBackward.rule(MaskBackward.apply, info, in_dims, *arguments)

    @staticmethod
    def rule(call: Any, info: Any, in_dims: Any, gradient: Tensor, mask: Tensor, scale: float) -> Any:
        def apply(gradient: Tensor, mask: Tensor) -> Any:
            return call(gradient, mask, scale)

        size = info.batch_size
        return map_backward(apply, apply, first(gradient, in_dims[0], size), first(mask, in_dims[1], size))


class Relu(FusedFunction):
    """``relu_mask`` with its gradient."""

    @staticmethod
    def forward(input: Tensor) -> Any:
        return below_autograd(_ops.relu_mask.default, input)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.set_materialize_grads(False)
        announce_pointwise(ctx, inputs[0], output[0], "relu", "signs of 1 bit", output[1:])
        note_origin(ctx, inputs[0])
        ctx.save_for_backward(output[1])

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        if gradients[0] is None:
            return None
        (mask,) = ctx.saved_tensors
        return with_origin(ctx, masked(gradients[0], mask, 1.0))

    @staticmethod
    def vmap(info: Any, in_dims: Any, *arguments: Any) -> Any:
        return Relu.rule(Relu.apply, info, in_dims, *arguments)

    @staticmethod
    def rule(call: Any, info: Any, in_dims: Any, input: Tensor) -> Any:
        x = first(input, in_dims[0], info.batch_size)
        return map_forward(call, info.batch_size, prod(x.shape[1:]), x)


class Dropout(FusedFunction):
    """``dropout_mask`` with its gradient."""

    @staticmethod
    def forward(input: Tensor, p: float, seed: int, stream: int, draw: Tensor | None) -> Any:
        return below_autograd(_ops.dropout_mask.default, input, p, seed, stream, draw)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.scale = dropout_scale(inputs[1])
        ctx.mark_non_differentiable(output[1])
        ctx.set_materialize_grads(False)
        announce_dropout(ctx, inputs[0], inputs[1], output[1])
        ctx.save_for_backward(output[1])

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        if gradients[0] is None:
            return None, None, None, None, None
        (mask,) = ctx.saved_tensors
        return masked(gradients[0], mask, ctx.scale), None, None, None, None

    @staticmethod
    def vmap(info: Any, in_dims: Any, *arguments: Any) -> Any:
        return Dropout.rule(Dropout.apply, info, in_dims, *arguments)

    @staticmethod
    def rule(
        call: Any, info: Any, in_dims: Any, input: Tensor, p: float, seed: int, stream: int, draw: Tensor | None = None
    ) -> Any:
        """A call a sample: the noise of each is what it is without vmap, given the same seed, stream and draw."""
        samples = first(input, in_dims[0], info.batch_size).unbind(0)
        batched = draw is not None and len(in_dims) > 4 and in_dims[4] is not None
        draws = first(draw, in_dims[4], info.batch_size).unbind(0) if batched else [draw] * info.batch_size  # type: ignore[arg-type]
        results = [call(x, p, seed, stream, one) for x, one in zip(samples, draws, strict=True)]
        outputs, masks = zip(*results, strict=True)
        return (torch.stack(outputs), torch.stack(masks)), (0, 0)
