"""A linear layer and an embedding whose inputs are stored by a codec."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

import actcore
from integrations.qmodules.functions.saving import Saving


class Linear(Function):
    """``F.linear`` of any number of dimensions; backward multiplies with the stored input."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, saving: Saving) -> Tensor:
        saving.save(ctx, x if ctx.needs_input_grad[1] else None, weight)
        return F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (gradient,) = gradients
        x, weight = ctx.saving.restore(ctx, 1)
        ctx.saving.observe(gradient)
        to_x, to_weight, to_bias = ctx.needs_input_grad[:3]
        rows = _matrix(gradient)
        with torch.autocast(gradient.device.type, enabled=False):  # in forward's dtypes, wherever backward is called
            return (
                gradient.matmul(weight) if to_x and weight is not None else None,
                rows.t().mm(_matrix(x)) if to_weight and x is not None else None,
                rows.sum(0) if to_bias else None,
                None,
            )


class Embedding(Function):
    """``F.embedding``; its indices are stored in the bits that their range takes, exactly."""

    @staticmethod
    def forward(
        ctx: Any,
        indices: Tensor,
        weight: Tensor,
        padding_idx: int,
        scale_grad_by_freq: bool,
        sparse: bool,
    ) -> Tensor:
        output: Tensor = torch.embedding(weight, indices, padding_idx, scale_grad_by_freq, sparse)
        ctx.rows, ctx.options = weight.shape[0], (padding_idx, scale_grad_by_freq, sparse)
        narrow = actcore.Narrow(0, max(weight.shape[0] - 1, 0))
        actcore.save_for_backward(ctx, (indices, narrow), operator="QEmbedding")
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (gradient,) = gradients
        (indices,) = actcore.saved_tensors_of(ctx)
        return None, torch.ops.aten.embedding_backward(gradient, indices, ctx.rows, *ctx.options), None, None, None


def _matrix(x: Tensor) -> Tensor:
    """All but the last dimension as one; a reshape to -1 would refuse what has no elements."""
    return x.flatten(0, -2) if x.dim() > 1 else x[None]
