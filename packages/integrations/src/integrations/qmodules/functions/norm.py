"""Normalisations whose input is stored by a codec. Their statistics are kept exactly: they are small."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

import actcore
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
        output, mean, deviation, reserve, kernel = torch.ops.aten._batch_norm_impl_index(
            x, weight, bias, running_mean, running_var, True, momentum, eps, torch.backends.cudnn.enabled
        )
        ctx.kernel, ctx.eps = kernel, eps
        saving.save(ctx, x, weight, mean, deviation, reserve)
        return output  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (gradient,) = gradients
        x, weight, mean, deviation, reserve = actcore.saved_tensors_of(ctx)
        ctx.saving.observe(gradient)
        # The running statistics are for evaluation, whose backward is torch's own.
        found = torch.ops.aten._batch_norm_impl_index_backward(
            ctx.kernel,
            x,
            gradient,
            weight,
            None,
            None,
            mean,
            deviation,
            True,
            ctx.eps,
            ctx.needs_input_grad[:3],
            reserve,
        )
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
        output, mean, deviation = torch.ops.aten.native_layer_norm(x, normalized_shape, weight, bias, eps)
        ctx.normalized_shape = normalized_shape
        saving.save(ctx, x, weight, bias, mean, deviation)
        return output  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (gradient,) = gradients
        x, weight, bias, mean, deviation = actcore.saved_tensors_of(ctx)
        ctx.saving.observe(gradient)
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
        samples, channels = x.shape[:2]
        ctx.sizes = samples, channels, x[0, 0].numel() if samples and channels else 0, groups
        x = _as_group_norm_takes_it(x)
        output, mean, deviation = torch.ops.aten.native_group_norm(x, weight, bias, *ctx.sizes, eps)
        saving.save(ctx, x, weight, mean, deviation)
        return output  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (gradient,) = gradients
        x, weight, mean, deviation = actcore.saved_tensors_of(ctx)
        assert x is not None
        ctx.saving.observe(gradient)
        if gradient.stride() != x.stride():
            gradient = gradient.contiguous(memory_format=_format(x))
        found = torch.ops.aten.native_group_norm_backward(
            gradient, x, mean, deviation, weight, *ctx.sizes, ctx.needs_input_grad[:3]
        )
        return *found, None, None, None


class RMSNorm(Function):
    """``F.rms_norm``; backward computes it again from the stored input, whose root mean square it takes."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, normalized_shape: Sequence[int], eps: float | None, saving: Saving
    ) -> Tensor:
        ctx.arguments = normalized_shape, eps
        saving.save(ctx, x, weight)
        return F.rms_norm(x, normalized_shape, weight, eps)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (gradient,) = gradients
        stored = actcore.saved_tensors_of(ctx)
        ctx.saving.observe(gradient)
        normalized_shape, eps = ctx.arguments
        twice = torch.is_grad_enabled()
        with torch.enable_grad(), torch.autocast(gradient.device.type, enabled=False):
            # Views: tensors of this node's own, with the history of what was saved where backward is differentiated.
            x, weight = (
                None if tensor is None else (tensor if twice else tensor.detach().requires_grad_()).view_as(tensor)
                for tensor in stored
            )
            assert x is not None
            if not x.requires_grad:
                x.requires_grad_()
            output = F.rms_norm(x, normalized_shape, weight, eps)
            wanted = [tensor for tensor in (x, weight) if tensor is not None and tensor.requires_grad]
            found = iter(torch.autograd.grad(output, wanted, gradient, create_graph=twice))
        to_x = next(found)
        return to_x, next(found) if ctx.needs_input_grad[1] else None, None, None, None


def _format(x: Tensor) -> torch.memory_format:
    if x.dim() == 4 and not x.is_contiguous() and x.is_contiguous(memory_format=torch.channels_last):
        return torch.channels_last
    if x.dim() == 5 and not x.is_contiguous() and x.is_contiguous(memory_format=torch.channels_last_3d):
        return torch.channels_last_3d
    return torch.contiguous_format


def _as_group_norm_takes_it(x: Tensor) -> Tensor:
    """Contiguous or channels-last, as ``F.group_norm`` passes it to its kernel."""
    return x.contiguous(memory_format=_format(x))
