"""Functions whose derivative is rounded to levels at random."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from actcore.functional.arguments import (
    check_float,
    check_seed,
    check_stream,
    draw_for,
    in_memory_order,
    int64,
    restored,
)
from actcore.functional.layouts import AsLaidOut, lies_apart
from actcore.functional.stepwise import check_function, check_guard, refusal_in, table_for
from actcore.fused import RoundToLevels
from actcore.fused.callables import value_and_derivative, value_of
from actcore.pointwise import PointwiseFunction, pointwise_function
from actcore.stored import is_heard, name_of, stands_for


def round_to_levels(
    x: Tensor,
    function: str | PointwiseFunction,
    levels: Tensor | Sequence[float],
    bits: int | None = None,
    parameters: Sequence[float] = (),
    seed: int | None = None,
    stream: int = 0,
    guard: str = "nonfinite",
    derivative: PointwiseFunction | None = None,
) -> Tensor:
    """Compute ``function(x)`` and round its derivative to ``levels`` at random, keeping ``bits`` bits per element.

    Forward is exact, on the CPU in the same sense as in ``stepwise``. The derivative is computed in forward, and each
    element keeps one of the two levels around it, chosen so that the expected level is the derivative. So the gradient
    is unbiased; that of ``stepwise`` has less error and is biased. The noise is Philox of (seed, stream, element
    position) with 16 bits per element, so the expectation is the derivative to within 2**-17 of the distance between
    the levels. Derivatives beyond the first or last level get that level.

    ::

        y = actcore.round_to_levels(x, "gelu", (-0.13, 0.0, 0.2, 0.4, 0.6, 0.8, 1.0, 1.13))

    Args:
        x: any shape.
        function: one of the names of ``stepwise``, or your own elementwise function.
        levels: ``Float["k"]``, ascending and finite, 2 to ``2**bits`` of them; they should cover the range of the
            derivative.
        bits: 1 to 8; ``None`` takes the fewest.
        parameters: parameters of ``function``, as in ``stepwise``.
        seed: any int. ``None`` draws one from torch's generator of ``x``'s device, so ``torch.manual_seed`` decides.
        stream: separates calls with the same seed: equal seeds and streams give equal noise.
        guard: as in ``stepwise``, for ``x`` and for the derivative.
        derivative: ``derivative(x, *parameters)``, of the shape and dtype of ``x``. ``None`` uses torch's backward.
            Under ``torch.compile`` it uses ``torch.func.vjp``, which does not work under saved-tensor hooks; the named
            functions work there.

    Raises:
        TypeError: ``x`` is not a float32, float64, float16 or bfloat16 tensor; ``function`` or ``derivative`` is not
            callable, or returns something other than a tensor of the dtype of ``x``; ``seed`` or ``stream`` is not an
            int.
        ValueError: there are too few or too many levels, they do not ascend, are not finite or require gradients; the
            function is unknown, has other parameters or returns another shape; ``guard`` is unknown.
        RuntimeError: ``function`` changes ``x`` in place.
    """
    check_float(x)
    check_seed(seed)
    check_stream(stream)
    check_function(function)
    check_guard(guard)
    if derivative is not None and not callable(derivative):
        raise TypeError(f"derivative must be callable or None, got {derivative!r}")
    name = function
    if isinstance(function, str):
        function, known = pointwise_function(function, parameters)
        derivative = derivative or known
    table = table_for(levels, x)
    if table.dim() != 1 or not 2 <= table.numel() <= 256:
        raise ValueError(f"levels must be 2 to 256 numbers in one dimension, got the shape {tuple(table.shape)}")
    if table.requires_grad:
        raise ValueError("levels must not require gradients, because none are computed for them; detach them")
    if bits is None:
        bits = (table.numel() - 1).bit_length()
    if type(bits) is not int:
        raise TypeError(f"bits must be an int or None, got {bits!r}")
    if not 1 <= bits <= 8 or table.numel() > 2**bits:
        raise ValueError(
            f"levels must have at most 2**bits entries, with bits from 1 to 8, got {table.numel()} and bits={bits}"
        )
    ordered, order = in_memory_order(x)
    if lies_apart(x):
        # Autograd's derivative is by the elements in memory order, which the function of x as it lies knows nothing of.
        derivative = derivative or partial(_slope, function)
        function = AsLaidOut(function, x.detach(), order)
    if not torch.is_grad_enabled():
        return restored(value_of(function, ordered, parameters), order)
    draw = draw_for(x, seed)
    if is_heard():
        stands_for(ordered, x, name_of(name))
    try:
        output: Tensor = RoundToLevels.call(
            ordered, function, list(parameters), derivative, table, bits, int64(seed or 0), int64(stream), draw, guard
        )[0]
    except RuntimeError as error:
        if (rule := refusal_in(error)) is not None:
            raise ValueError(rule) from None
        raise
    return restored(output, order)


def _slope(function: PointwiseFunction, x: Tensor, *parameters: float) -> Tensor:
    return value_and_derivative(function, x, parameters, None)[1]
