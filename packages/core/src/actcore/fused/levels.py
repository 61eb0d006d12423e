"""Functions whose derivative is rounded to levels at random."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from actcore.fused.batches import first, require_shared
from actcore.fused.callables import value_and_derivative
from actcore.fused.functions import FusedFunction
from actcore.fused.stepwise import refuse_curvature, stepped
from actcore.ops import below_autograd
from actcore.pointwise import PointwiseFunction
from actcore.stored import announce_pointwise, name_of

_ops = torch.ops.actcore


class RoundToLevels(FusedFunction):
    """``function(x)``, and the level that each element's derivative was rounded to."""

    @staticmethod
    def forward(
        input: Tensor,
        function: PointwiseFunction,
        parameters: Sequence[float],
        derivative: PointwiseFunction | None,
        levels: Tensor,
        bits: int,
        seed: int,
        stream: int,
        draw: Tensor | None,
        guard: str,
    ) -> Any:
        value, slope = value_and_derivative(function, input, parameters, derivative)
        given = slope, input, levels, bits, seed, stream, draw, guard
        return value, below_autograd(_ops.level_codes.default, *given)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.bits, ctx.guarded = inputs[5], inputs[9] != "none"
        ctx.mark_non_differentiable(output[1])
        ctx.set_materialize_grads(False)
        codec = f"{inputs[5]}-bit levels at random"
        announce_pointwise(ctx, inputs[0], output[0], name_of(inputs[1]), codec, (output[1], inputs[4]))
        ctx.save_for_backward(output[1], inputs[4])

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        if gradients[0] is None:
            return (None,) * 10
        refuse_curvature()
        codes, levels = ctx.saved_tensors
        gradient = stepped(gradients[0], codes, levels, ctx.bits, ctx.guarded, curved=True)
        return gradient, *(None,) * 9

    @staticmethod
    def vmap(
        info: Any,
        in_dims: Any,
        input: Tensor,
        function: PointwiseFunction,
        parameters: Sequence[float],
        derivative: PointwiseFunction | None,
        levels: Tensor,
        bits: int,
        seed: int,
        stream: int,
        draw: Tensor | None,
        guard: str,
    ) -> Any:
        """A call a sample: the noise of each is what it is without vmap, given the same seed, stream and draw."""
        require_shared("levels", in_dims[4])
        samples = first(input, in_dims[0], info.batch_size).unbind(0)
        draws = [draw] * len(samples) if in_dims[8] is None else list(draw.movedim(in_dims[8], 0))  # type: ignore[union-attr]
        results = [
            RoundToLevels.apply(x, function, parameters, derivative, levels, bits, seed, stream, one, guard)
            for x, one in zip(samples, draws, strict=True)
        ]
        outputs, codes = zip(*results, strict=True)
        return (torch.stack(outputs), torch.stack(codes)), (0, 0)
