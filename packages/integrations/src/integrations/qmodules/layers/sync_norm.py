"""Batch normalisation across ranks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable

import actcore
from integrations._utils.torch_internals import BatchNorm, sync_norm_check_channels, sync_norm_check_input_dim
from integrations.policies.norms import FEW, normalize_channels
from integrations.qmodules.layers.norms import AnyBatchNorm
from integrations.qmodules.layers.saving import Saving


class SyncBatchNormFunction(Function):
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
        factor, normalized = (variance + eps).rsqrt(), None
        if saving.codec is None:
            normalized = normalize_channels(x, mean, factor, eps) if x.numel() else None
            saving = saving.choose(x, x if normalized is None else normalized[0])
        saving.save(ctx, x, weight, mean, factor, count, normalized=normalized)
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


class QSyncBatchNorm(AnyBatchNorm, BatchNorm):
    """``torch.nn.SyncBatchNorm`` whose input is stored in a few bits.

    It also trains on the CPU, which ``torch.nn.SyncBatchNorm`` and DistributedDataParallel reject. Therefore it is a
    subclass of the base class of torch's layer and not of ``torch.nn.SyncBatchNorm`` itself. With one rank, or without
    a process group, it is a ``QBatchNorm`` of any number of dimensions. Call
    ``torch.nn.SyncBatchNorm.convert_sync_batchnorm`` before ``QModule``.

    Args:
        process_group: the ranks that share statistics; by default all of them.
        group: index into the level's ``bits`` of the layer's average.
        options: arguments of later versions of torch (``bias``).
    """

    counterpart = nn.SyncBatchNorm

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        process_group: Any = None,
        device: Any = None,
        dtype: torch.dtype | None = None,
        *,
        group: int = 0,
        **options: Any,
    ) -> None:
        options = {"device": device, "dtype": dtype, "group": group, **options}
        super().__init__(num_features, eps, momentum, affine, track_running_stats, **options)
        self.process_group = process_group

    def _check_input_dim(self, input: Tensor) -> None:
        sync_norm_check_input_dim(self, input)  # asks nothing of it
        sync_norm_check_channels(self, input)

    def _check_non_zero_input_channels(self, input: Tensor) -> None:
        """Done by ``_check_input_dim``; torch's forward asks for it."""

    def _may_normalize(self, input: Tensor) -> bool:
        return self._ranks() is not None or super()._may_normalize(input)

    def _normalize(
        self, x: Tensor, statistics: tuple[Tensor | None, Tensor | None], momentum: float, saving: Saving
    ) -> Tensor:
        ranks = self._ranks()
        if ranks is None:
            return super()._normalize(x, statistics, momentum, saving)
        # The same exchange between ranks, whatever each stores: one may have more elements than another.
        if x.numel() * dist.get_world_size(ranks) <= FEW * x.shape[1]:
            saving = replace(saving, codec=actcore.Raw())
        output: Tensor = SyncBatchNormFunction.apply(
            x, self.weight, self.bias, *statistics, momentum, self.eps, ranks, saving
        )
        return output

    def _torchs(self, input: Tensor) -> Tensor:
        if self.training and input.device.type == "cpu" and self._ranks() is not None:
            return self._normalize(input, self._statistics(), self._count(), Saving(actcore.Raw(), self.precision))
        return nn.SyncBatchNorm.forward(self, input)  # type: ignore[arg-type]

    def _ranks(self) -> Any:
        """The process group that shares statistics; ``None`` for one rank alone."""
        if not (dist.is_available() and dist.is_initialized()):
            return None
        group = self.process_group or dist.group.WORLD
        return group if dist.get_world_size(group) > 1 else None
