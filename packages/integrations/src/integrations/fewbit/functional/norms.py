"""Norms that save their output, which the linear layer behind them saves anyway, in place of their input.

"MS-BP" of Yang et al., "Reducing Fine-Tuning Memory Overhead by Approximate and Memory-Sharing Backpropagation"
(ICML 2024). There the affine part moves into the layers that follow; here it stays, and backward divides by the weight.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

from actcore.stored import Stored, announce, is_heard
from integrations._utils.autocast import is_available, is_known
from integrations._utils.norm_statistics import compute_mean, rms_product
from integrations._utils.plain_tensor_types import PLAIN
from integrations._utils.torch_internals import fused_rms_norm
from integrations.fewbit.functional.channels import channels_to_keep, divisor, most_lost
from integrations.fewbit.functional.conditions import in_transform


def layer_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Compute ``F.layer_norm``, saving the output in place of the input.

    The values are torch's, bit for bit. Backward computes the normalized input from the output, whose rounding is the
    error of the gradients: see ``fewbit.LayerNorm``. The saved tensor is the returned tensor: changing it in place
    makes backward raise.

    Args:
        input: ``Float[Tensor, "... *normalized_shape"]``.
        normalized_shape, weight, bias, eps: as in torch.
    """
    keep = _channels(input, normalized_shape, weight, bias, "layer_norm")
    if keep is None:
        return F.layer_norm(input, normalized_shape, weight, bias, eps)
    return shared("layer_norm", input, normalized_shape, weight, bias, eps, keep)


def rms_norm(
    input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None
) -> Tensor:
    """Compute ``F.rms_norm``, saving the output in place of the input; see ``layer_norm``.

    Args:
        input: ``Float[Tensor, "... *normalized_shape"]``.
        normalized_shape, weight, eps: as in torch.
    """
    keep = _channels(input, normalized_shape, weight, None, "rms_norm")
    if keep is None:
        return F.rms_norm(input, normalized_shape, weight, eps)
    return shared("rms_norm", input, normalized_shape, weight, None, eps, keep)


def shared(
    kind: str,
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float | None,
    keep: int,
) -> Tensor:
    """The norm, for arguments of which ``shares`` is true.

    Args:
        kind: ``"layer_norm"``, ``"rms_norm"``, or ``"rounded_rms_norm"``: that of transformers, which rounds the
            normalised input to the input's dtype before it multiplies by the weight.
        keep: for how many channels the normalised input is kept beside the output.
    """
    output: Tensor = _SharedNorm.apply(x, weight, bias, kind, tuple(normalized_shape), eps, keep)[0]
    return output


def shares(x: Tensor, normalized_shape: Sequence[int], weight: Tensor | None, bias: Tensor | None, kind: str) -> bool:
    """Whether autograd will ask for what a norm saves, in the dtype in which a linear layer would save its output, too.

    If not, torch's own norm is the right one: it costs nothing more, and its errors are the ones to raise.
    """
    shape = tuple(normalized_shape)
    given = [tensor for tensor in (x, weight, bias) if tensor is not None]
    return (
        torch.is_grad_enabled()
        and all(type(tensor) in PLAIN and tensor.layout is torch.strided for tensor in given)
        and not x.is_nested
        and x.is_floating_point()
        and x.numel() > 0
        and bool(shape)
        and tuple(x.shape[-len(shape) :]) == shape
        and all(tuple(tensor.shape) == shape for tensor in given[1:])
        and (x.requires_grad or (weight is not None and weight.requires_grad))
        and not in_transform()
        and not _is_cast_next(x, weight, kind)
    )


def output_dtype(x: Tensor, weight: Tensor | None, kind: str) -> torch.dtype:
    """Of the norm's output, which torch gives the input's dtype, and transformers' norm the greater one."""
    return x.dtype if weight is None or kind != "rounded_rms_norm" else torch.promote_types(x.dtype, weight.dtype)


def _channels(
    x: Tensor, normalized_shape: Sequence[int], weight: Tensor | None, bias: Tensor | None, kind: str
) -> int | None:
    """How many channels are kept; ``None`` for torch's own norm."""
    if not shares(x, normalized_shape, weight, bias, kind):
        return None
    return channels_to_keep(weight, bias, output_dtype(x, weight, kind))


def _is_cast_next(x: Tensor, weight: Tensor | None, kind: str) -> bool:
    """Whether autocast makes the next layer save a copy in another dtype, so that there is nothing to share."""
    device = x.device.type
    if not is_available(device) or not torch.is_autocast_enabled(device):
        return False
    if output_dtype(x, weight, kind) != torch.get_autocast_dtype(device):
        return True
    if kind == "rounded_rms_norm":
        return False
    # On CUDA it computes torch's norms in float32, and on the CPU as they are.
    return is_known(f"aten::{kind}", device)


class _SharedNorm(Function):
    """A norm that saves its output. The other results, which nobody else sees, carry the history of what backward
    reads, for a second derivative: the reciprocal deviation, and the normalised input of the channels that are kept."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        kind: str,
        shape: tuple[int, ...],
        eps: float | None,
        keep: int,
    ) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
        mean, rstd, output = normalize(x, weight, bias, kind, shape, eps)
        kept = channels = None
        if keep and weight is not None:
            channels = most_lost(weight, bias, output.dtype, keep)
            wide = torch.promote_types(x.dtype, torch.float32)
            kept = x.flatten(-len(shape)).index_select(-1, channels).to(wide)
            if mean is not None:
                kept = kept - mean.flatten(-len(shape))
            kept = (kept * rstd.flatten(-len(shape))).to(output.dtype)
            ctx.mark_non_differentiable(channels)
        ctx.kind, ctx.dims, ctx.dtype = kind, len(shape), x.dtype
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(output, weight, bias, rstd, kept, channels)
        if is_heard(ctx):
            announce(*_announced(x, weight, bias, kind, rstd, mean, (output, kept, channels)))
        return output, rstd, kept, channels

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        to_output, to_rstd, to_kept, _ = gradients
        output, weight, bias, rstd, kept, channels = ctx.saved_tensors
        wide = torch.promote_types(output.dtype, torch.float32)
        normal = _recovered(output, weight, bias, kept, channels, ctx.dims).to(wide)
        needed = ctx.needs_input_grad[:3]
        # The kernel has no derivative with these saved tensors, and no place for the gradients of the other results.
        first = not torch.is_grad_enabled() and to_rstd is None and to_kept is None
        if ctx.kind == "layer_norm" and to_output is not None and first:
            found = _by_kernel(to_output.to(wide), normal, rstd, weight, bias, needed, ctx.dims)
        else:
            found = _by_formula(
                to_output, to_rstd, to_kept, normal, rstd, weight, bias, channels, ctx.dims, ctx.kind == "layer_norm"
            )
        to_x, to_weight, to_bias = found
        return (
            to_x.to(ctx.dtype) if needed[0] and to_x is not None else None,
            to_weight.to(weight.dtype).view_as(weight) if needed[1] and to_weight is not None else None,
            to_bias.to(bias.dtype).view_as(bias) if needed[2] and to_bias is not None else None,
            *(None,) * 4,
        )


def _announced(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    kind: str,
    rstd: Tensor,
    mean: Tensor | None,
    parts: tuple[Tensor | None, ...],
) -> Iterator[Stored]:
    codec = "its output"
    yield Stored(x, kind, "input", codec, tuple(part for part in parts if part is not None))
    for affine in (weight, bias):
        if affine is not None:
            yield Stored(affine, kind, "other", parts=(affine,))
    yield Stored(rstd, kind, "internal", parts=(rstd,))
    if mean is not None:
        yield Stored(compute_mean(x, weight, mean.shape), kind, "internal", codec)
    else:
        yield from (Stored(product, kind, "internal", codec) for product in rms_product(x, weight))


def normalize(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, kind: str, shape: tuple[int, ...], eps: float | None
) -> tuple[Tensor | None, Tensor, Tensor]:
    """The mean, where there is one, the reciprocal deviation, and the output, bit for bit that of the plain norm."""
    if kind == "layer_norm":
        output, mean, rstd = torch.ops.aten.native_layer_norm(x, shape, weight, bias, eps)
        return mean, rstd, output
    if kind == "rms_norm":
        output, rstd = fused_rms_norm(x, shape, weight, eps)
        return None, rstd, output
    assert weight is not None
    assert eps is not None
    wide = x.to(torch.float32)
    rstd = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    return None, rstd, weight * (wide * rstd).to(x.dtype)


def _recovered(
    output: Tensor, weight: Tensor | None, bias: Tensor | None, kept: Tensor | None, channels: Tensor | None, dims: int
) -> Tensor:
    """The normalised input, at least in float32."""
    if weight is None:
        return output
    flat = output.flatten(-dims)
    scale = divisor(weight, bias, output.dtype, channels)
    if torch.is_grad_enabled():
        shifted = flat if bias is None else flat - bias.flatten().to(scale.dtype)
        normal = shifted / scale
        if kept is not None and channels is not None:
            normal = normal.index_copy(-1, channels, kept.to(normal.dtype))
    else:
        normal = flat / scale if bias is None else torch.sub(flat, bias.flatten().to(scale.dtype)).div_(scale)
        if kept is not None and channels is not None:
            normal.index_copy_(-1, channels, kept.to(normal.dtype))
    return normal.view(output.shape)


def _by_kernel(
    gradient: Tensor,
    normal: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    needed: tuple[bool, bool, bool],
    dims: int,
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """The gradients by torch's kernel, for an input of mean 0 and deviation 1."""
    zero = torch.zeros_like(rstd, dtype=normal.dtype)
    affine = [tensor if tensor is None else tensor.to(normal.dtype) for tensor in (weight, bias)]
    to_x, to_weight, to_bias = torch.ops.aten.native_layer_norm_backward(
        gradient, normal, normal.shape[-dims:], zero, zero + 1, *affine, needed
    )
    return to_x.mul_(rstd) if needed[0] else None, to_weight, to_bias


def _by_formula(
    to_output: Tensor | None,
    to_rstd: Tensor | None,
    to_kept: Tensor | None,
    normal: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    channels: Tensor | None,
    dims: int,
    centred: bool,
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """The gradients in operators that have derivatives themselves."""
    over, shape = list(range(-dims, 0)), normal.shape[-dims:]
    to_weight = to_bias = None
    to_normal = torch.zeros_like(normal)
    if to_output is not None:
        scaled = to_output.to(normal.dtype)
        to_weight = None if weight is None else (scaled * normal).sum_to_size(shape)
        to_bias = None if bias is None else scaled.sum_to_size(shape)
        to_normal = scaled if weight is None else scaled * weight.to(normal.dtype)
    if to_kept is not None and channels is not None:
        flat = to_normal.flatten(-dims).index_add(-1, channels, to_kept.to(normal.dtype))
        to_normal = flat.view(normal.shape)
    to_x = to_normal - normal * (to_normal * normal).mean(over, keepdim=True)
    if centred:
        to_x = to_x - to_normal.mean(over, keepdim=True)
    if to_rstd is not None:
        # d rstd / dx = -rstd**2 * normal / n, and rstd itself is multiplied below.
        to_x = to_x - to_rstd * rstd * normal / shape.numel()
    return to_x * rstd.to(normal.dtype), to_weight, to_bias
