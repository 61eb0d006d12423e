"""Functions with a step function for a derivative."""

from __future__ import annotations

import re
from collections.abc import Sequence

import torch
from torch import Tensor

from actcore.functional.arguments import check_float, in_memory_order, restored
from actcore.functional.layouts import AsLaidOut, lies_apart
from actcore.fused import Stepwise
from actcore.fused.guards import GUARDS
from actcore.pointwise import PIECEWISE_LINEAR, PointwiseFunction, pointwise_function
from actcore.stored import is_heard, name_of, stands_for


def stepwise(
    x: Tensor,
    function: str | PointwiseFunction,
    boundaries: Tensor | Sequence[float],
    levels: Tensor | Sequence[float],
    bits: int | None = None,
    parameters: Sequence[float] = (),
    even: bool = False,
    guard: str = "none",
) -> Tensor:
    """Compute ``function(x)`` with a step function as its derivative, keeping ``bits`` bits per element.

    Forward is exact. Backward multiplies the gradient by ``levels[i]``, where ``i`` is the number of boundaries that
    are not above ``x``; for NaN that is all of them. On the CPU the values are, bit for bit, those that torch computes
    on one thread for ``x`` in its memory layout. Exceptions: the last few elements of elu, celu and selu, where torch
    uses other instructions, and the sign of softshrink's zeros if ``x`` is not contiguous. In compiled code and inside
    of ``torch.func`` the values are those of a contiguous copy, which differ in the last digits. The method is that of
    Novikov et al., "Few-bit backward" (ICML 2023).

    ::

        # GELU with 3 bits, the table of the paper
        boundaries = (-2.417, -0.710, -0.326, 0.0, 0.326, 0.710, 2.414)
        levels = (0.0, -0.088, 0.126, 0.372, 0.628, 0.874, 1.088, 1.0)
        y = actcore.stepwise(x, "gelu", boundaries, levels)

    Args:
        x: any shape.
        function: relu, leaky_relu, threshold, hardsigmoid, hardtanh, relu6, hardshrink, softshrink, celu, elu, gelu,
            gelu_tanh, hardswish, logsigmoid, mish, selu, sigmoid, silu, softplus, softsign, tanh, tanhshrink,
            quick_gelu (``x * sigmoid(1.702 x)``) or squared_relu. Or your own elementwise function
            ``function(x, *parameters)``, which returns a new tensor of the shape and dtype of ``x``. It runs without
            gradient history, so other tensors that it uses get no gradient.
        boundaries: ``Float["k"]``, ascending.
        levels: ``Float["k+1"]``, the derivative in each interval.
        bits: 1 to 8, with ``k < 2**bits``; ``None`` takes the fewest.
        parameters: the parameters of torch's function of that name, in its order (leaky_relu: slope; threshold:
            threshold, value; hardtanh: lowest, highest; hardshrink, softshrink: lambda; celu, elu: alpha; softplus:
            beta, threshold); empty for torch's defaults.
        even: boundaries and levels are for ``|x|``. Use it for a derivative that is an even function of ``x``, such as
            that of sigmoid, tanh, softsign and tanhshrink: it gives twice as many steps.
        guard: with ``"nan"`` the gradients are NaN where ``x`` is NaN, with ``"nonfinite"`` where it is NaN or
            infinite. This includes all elements in the same stretch of 1024 elements in memory order. So a finite level
            never replaces a derivative that does not exist. A guard keeps one byte per stretch. ``"none"`` keeps
            nothing, and such elements get the level of their interval.

    Raises:
        TypeError: ``x`` is not a float32, float64, float16 or bfloat16 tensor; ``function`` is neither a name nor
            callable, or returns something other than a tensor of the dtype of ``x``.
        ValueError: the table has the wrong size, does not ascend, requires gradients, or does not fit into ``bits``;
            the function is unknown, has other parameters, returns another shape, or changes ``x`` in place; ``guard``
            is unknown.
    """
    check_float(x)
    low, step = table_for(boundaries, x), table_for(levels, x)
    if low.dim() != 1 or step.dim() != 1 or step.numel() != low.numel() + 1:
        raise ValueError(
            f"levels must have one entry more than boundaries, both in one dimension, got shapes {tuple(step.shape)} "
            f"and {tuple(low.shape)}"
        )
    if low.requires_grad or step.requires_grad:
        raise ValueError(
            "boundaries and levels must not require gradients, because none are computed for them; detach them"
        )
    if bits is None:
        bits = max(1, low.numel().bit_length())
    if type(bits) is not int:
        raise TypeError(f"bits must be an int or None, got {bits!r}")
    if not 1 <= bits <= 8 or low.numel() >= 2**bits:
        raise ValueError(
            f"boundaries must have fewer than 2**bits entries, with bits from 1 to 8, got {low.numel()} and bits={bits}"
        )
    check_function(function)
    check_guard(guard)
    if function == "softplus" and len(parameters) not in (0, 2):
        raise ValueError(f"parameters of softplus must be 2 numbers, or none for its defaults, got {len(parameters)}")
    ordered, order = in_memory_order(x)
    if is_heard():
        stands_for(ordered, x, name_of(function))
    # A piecewise linear function's values are the same in any layout, or zeros of the other sign.
    if lies_apart(x) and function not in PIECEWISE_LINEAR:
        at = pointwise_function(function, parameters)[0] if isinstance(function, str) else function
        function = AsLaidOut(at, x.detach(), order)
    try:
        output: Tensor = Stepwise.call(ordered, function, list(parameters), low, step, bits, bool(even), guard)[0]
    except RuntimeError as error:
        if (rule := refusal_in(error)) is not None:
            raise ValueError(rule) from None
        raise
    return restored(output, order)


def check_function(function: object) -> None:
    """Raises ``TypeError`` unless it is a name or callable."""
    if not isinstance(function, str) and not callable(function):
        raise TypeError(f"function must be a name such as 'gelu', or callable, got {function!r}")


def check_guard(guard: object) -> None:
    """Raises ``ValueError`` for an unknown guard."""
    if guard not in GUARDS:
        raise ValueError(f"guard must be one of {', '.join(map(repr, GUARDS))}, got {guard!r}")


def refusal_in(error: RuntimeError) -> str | None:
    """What an operator of this family refused its arguments with; ``None`` for other errors."""
    found = re.search(r"actcore::(?:stepwise|stepwise_codes|level_codes): (.*)", str(error))
    return found[1] if found else None


def table_for(values: Tensor | Sequence[float], x: Tensor) -> Tensor:
    """Boundaries or levels in the dtype that ``x`` is computed in."""
    dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
    if isinstance(values, Tensor):
        return values.to(x.device, dtype).contiguous()
    return torch.tensor(list(values), dtype=dtype, device=x.device)
