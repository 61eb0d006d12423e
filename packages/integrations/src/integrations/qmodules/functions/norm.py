"""Normalisations whose input is stored by a codec.

Batch normalisation keeps the statistics of the batch exactly: at few bits those of the stored input have the variance
of its rounding in them. Normalisations of each sample take those of the stored input, whose mean is then 0 and whose
variance is 1, as their gradient takes for granted: the part of a gradient that every element shares, often the largest,
goes away as it should. (With the exact statistics a LayerNorm of 12 elements at 8 bits was wrong by more than its
gradient where that was nearly constant.)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

from actcore.origins import note_origin, with_origin
from integrations._common.norm_statistics import mean_of, rms_of, rms_product, statistic_shape
from integrations._torch import batch_norm_impl_index, batch_norm_impl_index_backward, native_batch_norm_legit
from integrations.qmodules.functions.saving import Saving


class BatchNorm(Function):
    """Batch normalisation by the statistics of the batch, in the kernel that torch chooses for ``F.batch_norm``."""

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
        saving: Saving,
    ) -> Tensor:
        if torch.compiler.is_compiling():
            # The operator below has a backward that asks for the number of elements, which may be a symbol here.
            statistics = () if running_mean is None or running_var is None else (running_mean, running_var)
            native = native_batch_norm_legit
            operator = native.default if statistics else native.no_stats
            output, mean, deviation = operator(x, weight, bias, *statistics, True, momentum, eps)
            reserve = kernel = None
        else:
            output, mean, deviation, reserve, kernel = batch_norm_impl_index(
                x, weight, bias, running_mean, running_var, True, momentum, eps, torch.backends.cudnn.enabled
            )
        ctx.kernel, ctx.eps = kernel, eps
        saving.save(ctx, x, weight, mean, deviation, reserve)
        return output  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (gradient,) = gradients
        x, weight, mean, deviation, reserve = ctx.saving.restore(ctx, 0, 1)
        ctx.saving.observe(gradient)
        # The running statistics are for evaluation, whose backward is torch's own.
        forward = weight, None, None, mean, deviation, True, ctx.eps, ctx.needs_input_grad[:3]
        if ctx.kernel is None:
            found = torch.ops.aten.native_batch_norm_backward(gradient, x, *forward)
        else:
            found = batch_norm_impl_index_backward(ctx.kernel, x, gradient, *forward, reserve)
        return *found, None, None, None, None, None


class LayerNorm(Function):
    """``F.layer_norm``; backward is torch's at the stored input."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        normalized_shape: Sequence[int],
        eps: float,
        saving: Saving,
    ) -> Tensor:
        ctx.normalized_shape, ctx.eps = normalized_shape, eps
        saving.save(ctx, x, weight, bias)
        statistic = mean_of(x, weight, statistic_shape(x, len(normalized_shape)))
        saving.announce(ctx, statistic, statistic)
        return F.layer_norm(x, normalized_shape, weight, bias, eps)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (gradient,) = gradients
        x, weight, bias = ctx.saving.restore(ctx, 0, 1)
        ctx.saving.observe(gradient)
        assert x is not None
        with torch.no_grad():
            # With the weight, whose dtype decides about that of the statistics.
            _, mean, deviation = torch.ops.aten.native_layer_norm(x, ctx.normalized_shape, weight, bias, ctx.eps)
        found = torch.ops.aten.native_layer_norm_backward(
            gradient, x, ctx.normalized_shape, mean, deviation, weight, bias, ctx.needs_input_grad[:3]
        )
        return *found, None, None, None


class GroupNorm(Function):
    """``F.group_norm``; backward is torch's at the stored input."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, groups: int, eps: float, saving: Saving
    ) -> Tensor:
        ctx.groups, ctx.eps = groups, eps
        if bias is not None:
            note_origin(ctx, bias)
        saving.save(ctx, x, weight)
        statistic = mean_of(x, weight, (x.shape[0], groups))
        saving.announce(ctx, statistic, statistic)
        return F.group_norm(x, groups, weight, bias, eps)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (gradient,) = gradients
        x, weight = ctx.saving.restore(ctx, 0, 1)
        ctx.saving.observe(gradient)
        assert x is not None
        if torch.is_grad_enabled():
            return *_twice(x, weight, gradient, ctx), None, None, None
        form = _format(x)  # contiguous or channels-last: the forms that the kernels take
        x = x.contiguous(memory_format=form)
        sizes = x.shape[0], x.shape[1], x[0, 0].numel(), ctx.groups
        with torch.no_grad():
            _, mean, deviation = torch.ops.aten.native_group_norm(x, weight, None, *sizes, ctx.eps)
        found = torch.ops.aten.native_group_norm_backward(
            gradient.contiguous(memory_format=form), x, mean, deviation, weight, *sizes, ctx.needs_input_grad[:3]
        )
        return *found, None, None, None


def _twice(x: Tensor, weight: Tensor | None, gradient: Tensor, ctx: Any) -> list[Tensor | None]:
    """Return ``GroupNorm``'s gradients with a history, since the backward of its kernel has no derivative. As in torch,
    the bias gets zeros."""
    needed = ctx.needs_input_grad
    # Views: one tensor of this node's own for each, without or with the history of what was saved.
    given = [tensor if tensor is None else tensor.view_as(tensor) for tensor in (x, weight)]
    for tensor in given:
        if tensor is not None and not tensor.requires_grad:
            tensor.requires_grad_()
    output = F.group_norm(given[0], ctx.groups, given[1], None, ctx.eps)  # type: ignore[arg-type]
    wanted = [tensor for tensor, needs in zip(given, needed, strict=False) if tensor is not None and needs]
    found = iter(torch.autograd.grad(output, wanted, gradient, create_graph=True)) if wanted else iter(())
    found = iter([with_origin(ctx, one) for one in found] if needed[2] else list(found))
    to_bias = gradient.sum([d for d in range(gradient.dim()) if d != 1]) if needed[2] else None
    return [next(found) if needed[0] else None, next(found) if needed[1] else None, to_bias]


class RMSNorm(Function):
    """``F.rms_norm``; backward is its formula at the stored input."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, normalized_shape: Sequence[int], eps: float | None, saving: Saving
    ) -> Tensor:
        # torch's default is that of the dtype it computes in, which for 16 bits is float32.
        default = torch.finfo(torch.promote_types(x.dtype, torch.float32)).eps
        ctx.dims, ctx.eps = len(normalized_shape), default if eps is None else eps
        saving.save(ctx, x, weight)
        saving.announce(ctx, rms_of(x, ctx.dims), *rms_product(x, weight))
        return F.rms_norm(x, normalized_shape, weight, eps)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (gradient,) = gradients
        x, weight = ctx.saving.restore(ctx, 0, 1)
        ctx.saving.observe(gradient)
        assert x is not None
        dtype = torch.promote_types(x.dtype, torch.float32)
        dims = list(range(-ctx.dims, 0))
        wide, scaled = x.to(dtype), gradient.to(dtype)
        scale = wide.square().mean(dims, keepdim=True).add(ctx.eps).rsqrt()
        normal = wide * scale
        to_weight = None
        if ctx.needs_input_grad[1] and weight is not None:
            to_weight = (scaled * normal).sum(list(range(x.dim() - ctx.dims))).view(weight.shape).to(weight.dtype)
        if not ctx.needs_input_grad[0]:
            return None, to_weight, None, None, None
        if weight is not None:
            scaled = scaled * weight
        to_x = scale * (scaled - normal * (scaled * normal).mean(dims, keepdim=True))
        return to_x.to(x.dtype), to_weight, None, None, None


def _format(x: Tensor) -> torch.memory_format:
    if x.dim() == 4 and not x.is_contiguous() and x.is_contiguous(memory_format=torch.channels_last):
        return torch.channels_last
    if x.dim() == 5 and not x.is_contiguous() and x.is_contiguous(memory_format=torch.channels_last_3d):
        return torch.channels_last_3d
    return torch.contiguous_format
