"""Normalization layers of one process.

Batch normalization keeps the statistics of the batch exactly: at few bits those of the stored input have the variance
of its rounding in them. Normalizations of each sample take the statistics of the stored input. Its mean is then 0 and
its variance 1, as their gradient assumes, and the part of the gradient that all elements share cancels. (With the exact
statistics a LayerNorm of 12 elements at 8 bits was wrong by more than its gradient where that was nearly constant.)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function

from actcore.origins import note_origin, with_origin
from integrations._utils.autocast import in_float32
from integrations._utils.norm_statistics import compute_mean, compute_rms, rms_product, statistic_shape
from integrations._utils.torch_internals import (
    batch_norm_impl_index,
    batch_norm_impl_index_backward,
    native_batch_norm_legit,
)
from integrations.policies.norms import FEW, Normalized, normalize_channels
from integrations.qmodules.layers.base import QLayer
from integrations.qmodules.layers.saving import Saving
from integrations.qmodules.levels import QLevel
from integrations.qmodules.precision import LayerPrecision


class BatchNormFunction(Function):
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
        normalized = None
        if saving.codec is None:
            normalized = normalize_channels(x, mean, deviation, eps)
            saving = saving.choose(x, normalized[0])
        saving.save(ctx, x, weight, mean, deviation, reserve, normalized=normalized)
        return output  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (gradient,) = gradients
        x, weight, mean, deviation, reserve = ctx.saving.restore_normalized(ctx, 0, 1)
        ctx.saving.observe(gradient)
        if isinstance(x, tuple):
            return *_backward_of_normalized(gradient, x, weight, mean, deviation, ctx), None, None, None, None, None
        # The running statistics are for evaluation, whose backward is torch's own.
        forward = weight, None, None, mean, deviation, True, ctx.eps, ctx.needs_input_grad[:3]
        if ctx.kernel is None:
            found = torch.ops.aten.native_batch_norm_backward(gradient, x, *forward)
        else:
            found = batch_norm_impl_index_backward(ctx.kernel, x, gradient, *forward, reserve)
        return *found, None, None, None, None, None


def _backward_of_normalized(
    gradient: Tensor,
    normalized: Normalized,
    weight: Tensor | None,
    mean: Tensor,
    factor: Tensor,
    ctx: Any,
) -> tuple[Tensor | None, ...]:
    """The gradients of a batch norm whose input is stored normalized. The input itself, ``normal * deviation + center``
    with the stored statistics, is not restored: torch's backward takes ``normal`` for the input, with the mean and
    factor that it has then, and the weight divided by the deviation. That gives the gradients of the input itself."""
    normal, (center, deviation) = normalized
    mean, factor = (mean.to(center.dtype) - center) / deviation, factor.to(center.dtype) * deviation
    scale = deviation.reciprocal() if weight is None else weight.to(center.dtype) / deviation
    found: tuple[Tensor | None, ...] = torch.ops.aten.native_batch_norm_backward(
        gradient, normal, scale, None, None, mean, factor, True, ctx.eps, ctx.needs_input_grad[:3]
    )
    return found


class LayerNormFunction(Function):
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
        statistic = compute_mean(x, weight, statistic_shape(x, len(normalized_shape)))
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


class GroupNormFunction(Function):
    """``F.group_norm``; backward is torch's at the stored input."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, groups: int, eps: float, saving: Saving
    ) -> Tensor:
        ctx.groups, ctx.eps = groups, eps
        if bias is not None:
            note_origin(ctx, bias)
        saving.save(ctx, x, weight)
        statistic = compute_mean(x, weight, (x.shape[0], groups))
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


class RMSNormFunction(Function):
    """``F.rms_norm``; backward is its formula at the stored input."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, normalized_shape: Sequence[int], eps: float | None, saving: Saving
    ) -> Tensor:
        # torch's default is that of the dtype it computes in, which for 16 bits is float32.
        default = torch.finfo(torch.promote_types(x.dtype, torch.float32)).eps
        ctx.dims, ctx.eps = len(normalized_shape), default if eps is None else eps
        saving.save(ctx, x, weight)
        saving.announce(ctx, compute_rms(x, ctx.dims), *rms_product(x, weight))
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


class AnyBatchNorm(QLayer):
    """What batch normalisations of every number of dimensions share.

    Args:
        group: which of the level's ``bits`` is the layer's average.
    """

    norm = True
    running_mean: Tensor | None
    running_var: Tensor | None
    num_batches_tracked: Tensor | None
    num_features: int
    momentum: float | None
    eps: float
    track_running_stats: bool

    def __init__(self, *args: Any, group: int = 0, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._begin(None, group)

    def _new_precision(self, level: QLevel, group: int) -> LayerPrecision:
        return LayerPrecision(level, "norm", group)

    def forward(self, input: Tensor) -> Tensor:
        self._check_input_dim(input)  # type: ignore[operator]
        stores = self._stores(input, *_affine(self)) and self._may_normalize(input)
        saving = self._saving(input) if stores else None
        if saving is None:
            return self._torchs(input)
        return self._normalize(input, self._statistics(), self._count(), saving)

    def _saving(self, x: Tensor, weight: Tensor | None = None) -> Saving | None:
        if torch.compiler.is_compiling() or not self.precision.quantizes(x):
            return super()._saving(x, weight)
        return Saving(None, self.precision, stream=self.precision.stream(), layer=type(self).__name__)

    def _torchs(self, input: Tensor) -> Tensor:
        """The counterpart's forward."""
        return super().forward(input)  # type: ignore[no-any-return]

    def _normalize(
        self, x: Tensor, statistics: tuple[Tensor | None, Tensor | None], momentum: float, saving: Saving
    ) -> Tensor:
        if torch.compiler.is_compiling():
            # Torch 2.10 and 2.11 do not compile a Function in which a symbol turns out to be a number.
            x = x.view(x.shape[0], self.num_features, *x.shape[2:])
        output: Tensor = BatchNormFunction.apply(x, self.weight, self.bias, *statistics, momentum, self.eps, saving)
        return output

    def _may_normalize(self, input: Tensor) -> bool:
        """Whether a statistic is over so many elements that their rounding leaves a gradient; torch refuses one."""
        return input.numel() > FEW * input.shape[1]

    def _statistics(self) -> tuple[Tensor | None, Tensor | None]:
        """The running ones that a batch changes."""
        return (self.running_mean, self.running_var) if self.track_running_stats else (None, None)

    def _count(self) -> float:
        """Counts this batch; the weight that its statistics have in the running ones."""
        if not self.track_running_stats or self.num_batches_tracked is None:
            return self.momentum or 0.0
        self.num_batches_tracked.add_(1)
        if self.momentum is None:  # the mean of all batches
            return 1.0 / float(self.num_batches_tracked)
        return self.momentum


class QBatchNorm1d(AnyBatchNorm, nn.BatchNorm1d):
    """``torch.nn.BatchNorm1d`` whose input is stored in a few bits."""

    counterpart = nn.BatchNorm1d


class QBatchNorm2d(AnyBatchNorm, nn.BatchNorm2d):
    """``torch.nn.BatchNorm2d`` whose input is stored in a few bits."""

    counterpart = nn.BatchNorm2d


class QBatchNorm3d(AnyBatchNorm, nn.BatchNorm3d):
    """``torch.nn.BatchNorm3d`` whose input is stored in a few bits."""

    counterpart = nn.BatchNorm3d


class _SampleNorm(QLayer):
    """A normalisation of each sample by itself. ActNN has none, and no model of their variance: they take 8 bits,
    because with fewer the stored input no longer has the mean that its gradient takes for granted."""

    norm = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._begin(None, 0)

    def _new_precision(self, level: QLevel, group: int) -> LayerPrecision:
        return LayerPrecision(replace(level, bits=(8,), initial_bits=8, per_sample=False, per_layer=False), "other")

    def _takes(self, input: Tensor) -> bool:
        return self.precision.level.norms and self._stores(input, *_affine(self))

    def _takes_rows(self, input: Tensor, shape: tuple[int, ...]) -> bool:
        """The same of a norm over the last dimensions, of which torch has this shape: of more than a few elements."""
        return self._takes(input) and tuple(input.shape[-len(shape) :]) == shape and math.prod(shape) > FEW


class QLayerNorm(_SampleNorm, nn.LayerNorm):
    """``torch.nn.LayerNorm`` whose input is stored in 8 bits."""

    counterpart = nn.LayerNorm

    def forward(self, input: Tensor) -> Tensor:
        if self._takes_rows(input, tuple(self.normalized_shape)):
            x, weight, bias = in_float32("aten::layer_norm", input, self.weight, self.bias)
            assert x is not None
            saving = self._saving(x)
            if saving is not None:
                output: Tensor = LayerNormFunction.apply(x, weight, bias, self.normalized_shape, self.eps, saving)
                return output
        return super().forward(input)


class QGroupNorm(_SampleNorm, nn.GroupNorm):
    """``torch.nn.GroupNorm`` whose input is stored in 8 bits."""

    counterpart = nn.GroupNorm

    def forward(self, input: Tensor) -> Tensor:
        if self._takes(input) and self._fits(input):
            x, weight, bias = in_float32("aten::group_norm", input, self.weight, self.bias)
            assert x is not None
            saving = self._saving(x)
            if saving is not None:
                output: Tensor = GroupNormFunction.apply(x, weight, bias, self.num_groups, self.eps, saving)
                return output
        return super().forward(input)

    def _fits(self, input: Tensor) -> bool:
        """Whether torch takes it, and has a statistic of more than a few elements."""
        if input.dim() < 2 or input.shape[1] != self.num_channels:
            return False
        return input.numel() > FEW * input.shape[0] * self.num_groups


class QRMSNorm(_SampleNorm, nn.RMSNorm):
    """``torch.nn.RMSNorm`` whose input is stored in 8 bits."""

    counterpart = nn.RMSNorm

    def forward(self, x: Tensor) -> Tensor:
        if self._takes_rows(x, tuple(self.normalized_shape)):
            cast, weight = in_float32("aten::rms_norm", x, self.weight)
            assert cast is not None
            saving = self._saving(cast)
            if saving is not None:
                output: Tensor = RMSNormFunction.apply(cast, weight, self.normalized_shape, self.eps, saving)
                return output
        return super().forward(x)


def _affine(norm: nn.Module) -> list[Tensor | None]:
    """Its weight and bias, as far as it has them."""
    return [getattr(norm, name, None) for name in ("weight", "bias")]
