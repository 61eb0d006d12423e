"""``linear_crs``: a linear layer that keeps a sample of its input's features for the weight's gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

from integrations._utils.autocast import as_matmul
from integrations.fewbit.functional.linear import (
    announce_input,
    announce_more,
    keeps_input,
    notify,
    require_one_source,
)
from integrations.fewbit.sketches import drawn_key, sample_features, seeded_key
from integrations.tracing.double_backward import DoubleBackward


def linear_crs(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    nopairs: int = 1,
    generator: torch.Generator | None = None,
    *,
    seed: int | None = None,
    stream: int = 0,
) -> Tensor:
    """Compute ``F.linear(x, weight, bias)``, keeping ``nopairs`` of the input's features for backward.

    This is column-row sampling. Output, input gradient and bias gradient are torch's. The weight's gradient has the
    sampled columns times ``in / nopairs``, and zeros elsewhere: its mean over the noise is the exact gradient, and its
    variance is ``(in / nopairs - 1)`` times the exact gradient's squared norm. A sketch of the tokens
    (``linear_randomized``) has less variance if there are many tokens. If ``nopairs`` is at least ``in``, the input
    itself is kept.

    Args:
        x: ``Float["... in"]``.
        weight: ``Float["out in"]``.
        bias: ``Float["out"]``.
        nopairs: number of features to keep, at least 1; drawn uniformly, without replacement.
        generator, seed, stream: as in ``linear_randomized``.

    Raises:
        TypeError: ``nopairs`` is not an int.
        ValueError: ``nopairs`` is below 1; seed and generator are both given.
    """
    require_features("nopairs", nopairs)
    require_one_source(seed, generator)

    def key() -> Tensor:
        return drawn_key(x, generator) if seed is None else seeded_key(x.device, seed, stream)

    return sampled_linear(x, weight, bias, nopairs, key)


def require_features(name: str, number: int) -> None:
    """Raises unless ``number`` is a number of features to keep."""
    if type(number) is not int:
        raise TypeError(f"{name} must be an int, got {number!r}")
    if number < 1:
        raise ValueError(f"{name} must be at least 1, the number of features to keep, got {number}")


def sampled_linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    nopairs: int,
    key: Callable[[], Tensor],
    double: DoubleBackward | None = None,
) -> Tensor:
    """``linear_crs`` with options that are checked; ``double`` is notified of second derivatives through the sample."""
    if not keeps_input(x, weight, bias) or nopairs >= x.shape[-1]:
        return F.linear(x, weight, bias)
    given, cast_weight, cast_bias = as_matmul(x, weight, bias)
    features = sample_features(key(), nopairs, given.shape[-1])
    announce_input(given, "linear_crs", f"{nopairs} of {given.shape[-1]} features", features)
    # What is left out may be a NaN or an infinity, which the exact gradient would show. 0 for all finite numbers whose
    # sum is finite, in float32 at least.
    left_out = given.detach().sum(dtype=torch.promote_types(given.dtype, torch.float32)) * 0
    # With the history of the input, which a second derivative goes through.
    sample = given.index_select(-1, features) + left_out.to(given.dtype)
    output: Tensor = _SampledLinear.apply(
        given, cast_weight, cast_bias, sample, features, None if torch.compiler.is_compiling() else double
    )
    return output


class _SampledLinear(Function):
    """``F.linear``; backward multiplies with a sample of the input's columns, which is an argument for its history."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        sample: Tensor,
        features: Tensor,
        double: DoubleBackward | None,
    ) -> Tensor:
        ctx.shape, ctx.double = weight.shape, double
        kept = weight if ctx.needs_input_grad[0] else None
        ctx.save_for_backward(sample, kept, features)
        announce_more(ctx, x, "linear_crs", kept)
        return F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (gradient,) = gradients
        notify(ctx)
        sample, weight, features = ctx.saved_tensors
        to_x, to_weight, to_bias = ctx.needs_input_grad[:3]
        matrix = gradient.reshape(-1, gradient.shape[-1])
        with torch.autocast(gradient.device.type, enabled=False):  # in forward's dtypes, wherever backward is called
            to_weight_gradient = None
            if to_weight:
                columns = matrix.t().mm(sample.reshape(-1, sample.shape[-1]))
                scaled = columns * (ctx.shape[1] / sample.shape[-1])
                to_weight_gradient = scaled.new_zeros(ctx.shape).index_copy(1, features, scaled)
            return (
                gradient.matmul(weight) if to_x else None,
                to_weight_gradient,
                matrix.sum(0) if to_bias else None,
                *(None,) * 3,
            )
