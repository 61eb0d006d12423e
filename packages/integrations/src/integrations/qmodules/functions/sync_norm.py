"""Batch normalisation by the statistics of all ranks' batches."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

import actcore
from integrations.qmodules.functions.saving import Saving


class SyncBatchNorm(Function):
    """What ``torch.nn.SyncBatchNorm`` computes, on any device that the process group serves; torch's refuses the CPU.

    One gather forward and one sum backward. The input's gradient cannot be differentiated again, as torch's cannot:
    that raises.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        momentum: float,
        eps: float,
        group: Any,
        saving: Saving,
    ) -> Tensor:
        mean, squares, count = _statistics(x, group)
        variance = squares / count
        if running_mean is not None and running_var is not None:
            running_mean.lerp_(mean.to(running_mean.dtype), momentum)
            running_var.lerp_((squares / (count - 1).clamp(min=1)).to(running_var.dtype), momentum)
        ctx.group = group
        saving.save(ctx, x, weight, mean, (variance + eps).rsqrt(), count)
        # By given statistics: torch's kernel for evaluation.
        return F.batch_norm(x, mean, variance, weight, bias, False, 0.0, eps)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Any) -> Any:
        (gradient,) = gradients
        stored: Any = actcore.saved_tensors_of(ctx)
        x, weight, mean, scale, count = stored
        ctx.saving.observe(gradient)
        over = [d for d in range(x.dim()) if d != 1]
        shape = [-1 if d == 1 else 1 for d in range(x.dim())]
        wide = gradient.to(mean.dtype)
        normal = (x.to(mean.dtype) - mean.view(shape)) * scale.view(shape)
        sums = torch.stack([wide.sum(over), (wide * normal).sum(over)])
        to_bias, to_weight = sums
        to_x = None
        if ctx.needs_input_grad[0]:
            sums = sums.clone()
            dist.all_reduce(sums, group=ctx.group)
            shared, along = (sums / count).view(2, *shape)
            factor = scale if weight is None else scale * weight
            to_x = ((wide - shared - normal * along) * factor.view(shape)).to(x.dtype)
        to_weight = to_weight.to(weight.dtype) if ctx.needs_input_grad[1] and weight is not None else None
        to_bias = to_bias if ctx.needs_input_grad[2] else None
        return to_x, to_weight, to_bias, None, None, None, None, None, None


def _statistics(x: Tensor, group: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Mean, sum of squared deviations (a number a channel) and count (one) of all ranks' elements."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    channels = x.shape[1]
    number = x.numel() // channels
    if number:
        own = torch.var_mean(wide, [d for d in range(x.dim()) if d != 1], correction=0)
        mine = torch.cat([own[1], own[0] * number, wide.new_full((1,), number)])
    else:  # a rank without a batch takes part
        mine = wide.new_zeros(2 * channels + 1)
    everyone = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
    dist.all_gather(everyone, mine, group=group)
    means, squares, counts = torch.stack(everyone).split([channels, channels, 1], dim=1)
    count = counts.sum()
    mean = (means * counts).sum(0) / count
    # Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances" (1979).
    return mean, (squares + counts * (means - mean).square()).sum(0), count
