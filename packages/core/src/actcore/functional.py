"""Layers whose backward needs few bits an element: ReLU, dropout, max pooling, and functions with stepwise derivatives.

Each computes what its namesake in ``torch.nn.functional`` does and keeps for backward, in place of a tensor, the bits
that backward needs. They work under ``torch.func.grad``, ``vjp`` and ``vmap`` (not ``jvp``), have second derivatives,
and ``torch.compile`` makes one graph of them. Channels-last and transposed inputs give outputs of the same memory
order.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import torch
from torch import Tensor

from actcore.dtypes import FLOATS
from actcore.fused import Dropout, MaxPool, Relu, Stepwise
from actcore.pooling import pooled_size


def relu(x: Tensor) -> Tensor:
    """``max(x, 0)``, like ``torch.relu``, keeping 1 bit an element: ``Float[Tensor, "..."] -> Float[Tensor, "..."]``.

    Values and gradients are torch's bit for bit, those of NaN and of negative zero too.

    Raises:
        TypeError: ``x`` is not a float32, float64, float16 or bfloat16 tensor.
    """
    _check_float(x)
    ordered, order = _in_memory_order(x)
    output: Tensor = Relu.apply(ordered)[0]
    return _restored(output, order)


def dropout(x: Tensor, p: float = 0.5, training: bool = True, seed: int | None = None, stream: int = 0) -> Tensor:
    """Zeroes each element with probability ``p`` and scales the others, keeping 1 bit an element.

    The noise is Philox of (seed, stream, element position) with 16 bits an element, so ``p`` is taken as the nearest
    multiple of 2**-16; kept elements are multiplied by the inverse of the rate at which elements are kept, so the
    output's mean is ``x``. What is dropped is 0, NaN and infinity included.

    Args:
        x: any shape.
        p: probability of a zero, 0 to 1.
        training: ``False`` returns ``x`` itself.
        seed: any int. ``None`` draws one from torch's generator of ``x``'s device, so ``torch.manual_seed`` decides.
        stream: separates calls with the same seed: equal seeds and streams give equal noise.

    Raises:
        TypeError: ``x`` is not a float32, float64, float16 or bfloat16 tensor; ``p`` or ``seed`` is not a number.
        ValueError: ``p`` is not a probability.
    """
    _check_float(x)
    if not isinstance(p, (int, float)):
        raise TypeError(f"p must be a number, got {p!r}")
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int)):
        raise TypeError(f"seed must be an int or None, got {seed!r}")
    if not 0 <= p <= 1:
        raise ValueError(f"p must be a probability from 0 to 1, got {p}")
    if not training or p == 0:
        return x
    draw = None
    if seed is None:
        draw = torch.randint(-(2**63), 2**63 - 1, (1,), dtype=torch.int64, device=x.device)
    ordered, order = _in_memory_order(x)
    output: Tensor = Dropout.apply(ordered, float(p), _int64(seed or 0), _int64(stream), draw)[0]
    return _restored(output, order)


def stepwise(
    x: Tensor,
    function: str,
    boundaries: Tensor | Sequence[float],
    levels: Tensor | Sequence[float],
    bits: int | None = None,
    parameters: Sequence[float] = (),
) -> Tensor:
    """``function(x)`` with a step function for a derivative, keeping ``bits`` bits an element.

    Forward is exact. Backward multiplies the gradient by ``levels[i]``, where ``i`` is the number of boundaries that
    are not above ``x``; for NaN that is all of them. On the CPU the values are those that torch computes on one thread,
    bit for bit, but for the last few elements of elu, celu, selu and softplus, where torch computes by other
    instructions. The method is that of Novikov et al., "Few-bit backward" (ICML 2023).

    ::

        # GELU with 3 bits, the table of the paper
        boundaries = (-2.417, -0.710, -0.326, 0.0, 0.326, 0.710, 2.414)
        levels = (0.0, -0.088, 0.126, 0.372, 0.628, 0.874, 1.088, 1.0)
        y = actcore.stepwise(x, "gelu", boundaries, levels)

    Args:
        x: any shape.
        function: relu, leaky_relu, threshold, hardsigmoid, hardtanh, relu6, hardshrink, softshrink, celu, elu, gelu,
            gelu_tanh, hardswish, logsigmoid, mish, selu, sigmoid, silu, softplus, softsign, tanh, tanhshrink,
            quick_gelu (``x * sigmoid(1.702 x)``) or squared_relu.
        boundaries: ``Float["k"]``, ascending.
        levels: ``Float["k+1"]``, the derivative in each interval.
        bits: 1 to 8, with ``k < 2**bits``; ``None`` takes the fewest.
        parameters: what torch's function of that name takes, in its order (leaky_relu: slope; threshold: threshold,
            value; hardtanh: lowest, highest; hardshrink, softshrink: lambda; celu, elu: alpha; softplus: beta,
            threshold); empty for torch's defaults.

    Raises:
        TypeError: ``x`` is not a float32, float64, float16 or bfloat16 tensor; ``function`` is not a name.
        ValueError: the table has the wrong size, does not ascend, asks for gradients, or does not fit into ``bits``;
            the function is unknown or takes other parameters.
    """
    _check_float(x)
    low, step = _table(boundaries, x), _table(levels, x)
    if low.dim() != 1 or step.dim() != 1 or step.numel() != low.numel() + 1:
        raise ValueError(
            f"levels must be one more than boundaries, both of one dimension, got shapes {tuple(step.shape)} and "
            f"{tuple(low.shape)}"
        )
    if low.requires_grad or step.requires_grad:
        raise ValueError("boundaries and levels must not ask for gradients, which they have none of; detach them")
    if bits is None:
        bits = max(1, low.numel().bit_length())
    if type(bits) is not int:
        raise TypeError(f"bits must be an int or None, got {bits!r}")
    if not 1 <= bits <= 8 or low.numel() >= 2**bits:
        raise ValueError(
            f"boundaries must be fewer than 2**bits with bits from 1 to 8, got {low.numel()} and bits={bits}"
        )
    if not isinstance(function, str):
        raise TypeError(f"function must be a name such as 'gelu', got {function!r}")
    if function == "softplus" and len(parameters) not in (0, 2):
        raise ValueError(f"parameters of softplus must be 2 numbers, or none for its defaults, got {len(parameters)}")
    ordered, order = _in_memory_order(x)
    try:
        output: Tensor = Stepwise.apply(ordered, function, list(parameters), low, step, bits)[0]
    except RuntimeError as refusal:
        if found := re.search(r"actcore::stepwise(?:_codes)?: (.*)", str(refusal)):
            raise ValueError(found[1]) from None
        raise
    return _restored(output, order)


_Sizes = int | Sequence[int]


def max_pool1d(
    x: Tensor,
    kernel_size: _Sizes,
    stride: _Sizes | None = None,
    padding: _Sizes = 0,
    dilation: _Sizes = 1,
    ceil_mode: bool = False,
) -> Tensor:
    """``torch.nn.functional.max_pool1d``: ``Float["n c l"]`` or ``Float["c l"]``; see ``max_pool2d``."""
    return _max_pool(1, x, kernel_size, stride, padding, dilation, ceil_mode)


def max_pool2d(
    x: Tensor,
    kernel_size: _Sizes,
    stride: _Sizes | None = None,
    padding: _Sizes = 0,
    dilation: _Sizes = 1,
    ceil_mode: bool = False,
) -> Tensor:
    """``torch.nn.functional.max_pool2d``, keeping ``ceil(log2(window))`` bits an output: ``Float["n c h w"]`` or
    ``Float["c h w"]``.

    torch keeps an int64 an output, and the input. Values, the choice among equal maxima and NaN, and the shape are
    torch's. Backward sums in a fixed order on every device: the same bits each time.

    Args:
        x: the image; its memory order is the output's.
        kernel_size: an int or one a dimension; a window has at most 256 places.
        stride: likewise; ``None`` takes ``kernel_size``.
        padding: likewise, at most half of what the kernel covers; padded places are never the maximum.
        dilation: likewise.
        ceil_mode: let a last window reach beyond the input.

    Raises:
        TypeError: ``x`` is not a float32, float64, float16 or bfloat16 tensor.
        ValueError: an option is out of range, the output would be empty, or ``x`` has another number of dimensions.
    """
    return _max_pool(2, x, kernel_size, stride, padding, dilation, ceil_mode)


def max_pool3d(
    x: Tensor,
    kernel_size: _Sizes,
    stride: _Sizes | None = None,
    padding: _Sizes = 0,
    dilation: _Sizes = 1,
    ceil_mode: bool = False,
) -> Tensor:
    """``torch.nn.functional.max_pool3d``: ``Float["n c d h w"]`` or ``Float["c d h w"]``; see ``max_pool2d``."""
    return _max_pool(3, x, kernel_size, stride, padding, dilation, ceil_mode)


def _max_pool(
    dims: int,
    x: Tensor,
    kernel_size: _Sizes,
    stride: _Sizes | None,
    padding: _Sizes,
    dilation: _Sizes,
    ceil_mode: bool,
) -> Tensor:
    _check_float(x)
    if x.dim() not in (dims + 1, dims + 2):
        raise ValueError(f"x must have {dims + 1} or {dims + 2} dimensions for max_pool{dims}d, got {x.dim()}")
    kernel = _numbers("kernel_size", kernel_size, dims, 1)
    strides = kernel if stride is None or stride == [] else _numbers("stride", stride, dims, 1)
    pads = _numbers("padding", padding, dims, 0)
    steps = _numbers("dilation", dilation, dims, 1)
    window = 1
    for size in kernel:
        window *= size
    if window > 256:
        raise ValueError(
            f"a window must have at most 256 places, whose index takes 8 bits, got {window} of kernel_size {kernel}; "
            f"use torch.nn.functional.max_pool{dims}d for larger ones"
        )
    for d, size in enumerate(x.shape[-dims:]):
        # As torch: only its pooling of one dimension counts what dilation adds.
        half = (steps[d] * (kernel[d] - 1) + 1) // 2 if dims == 1 else kernel[d] // 2
        if pads[d] > half:
            raise ValueError(f"padding must be at most half of the kernel, {half}, got {pads[d]}")
        if pooled_size(size, kernel[d], strides[d], pads[d], steps[d], ceil_mode) < 1 or size < 1:
            raise ValueError(
                f"kernel_size {kernel} with dilation {steps} does not fit into the shape {tuple(x.shape)} with padding "
                f"{pads}; pad the input or take a smaller kernel"
            )
    output: Tensor = MaxPool.apply(x.contiguous(), kernel, strides, pads, steps, bool(ceil_mode))[0]
    if x.is_contiguous():
        return output
    if x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last):
        return output.contiguous(memory_format=torch.channels_last)
    if x.dim() == 5 and x.is_contiguous(memory_format=torch.channels_last_3d):
        return output.contiguous(memory_format=torch.channels_last_3d)
    return output


def _numbers(name: str, value: _Sizes, dims: int, least: int) -> list[int]:
    """``value`` as one int a dimension."""
    numbers = [value] * dims if isinstance(value, int) else list(value)
    if len(numbers) == 1:
        numbers = numbers * dims
    if len(numbers) != dims:
        raise ValueError(f"{name} must be an int or {dims} of them, got {value}")
    for number in numbers:
        if number < least:
            raise ValueError(f"{name} must be at least {least}, got {value}")
    return numbers


def _check_float(x: Tensor) -> None:
    if not isinstance(x, Tensor) or x.dtype not in FLOATS:
        found = getattr(x, "dtype", type(x).__name__)
        raise TypeError(f"x must be a float32, float64, float16 or bfloat16 tensor, got {found}; cast it with .to()")


def _int64(number: int) -> int:
    """The low 64 bits, as torch's signed integers hold them."""
    return (number + 2**63) % 2**64 - 2**63


def _table(values: Tensor | Sequence[float], x: Tensor) -> Tensor:
    """Boundaries or levels in the dtype that ``x`` is computed in."""
    dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
    if isinstance(values, Tensor):
        return values.to(x.device, dtype).contiguous()
    return torch.tensor(list(values), dtype=dtype, device=x.device)


def _in_memory_order(x: Tensor) -> tuple[Tensor, list[int] | None]:
    """``x`` with its dimensions sorted as they lie in memory, which makes a dense tensor contiguous, and the order."""
    if x.is_contiguous():
        return x, None
    if any(step == 0 for step in x.stride()):  # expanded: no order of its own
        return x.contiguous(), None
    left, order = list(range(x.dim())), []
    while left:
        at = 0  # of the largest step: torch.compile does not trace a sort of symbolic strides
        for i in range(1, len(left)):
            if x.stride()[left[i]] > x.stride()[left[at]]:
                at = i
        order.append(left.pop(at))
    return x.permute(order).contiguous(), order


def _restored(ordered: Tensor, order: list[int] | None) -> Tensor:
    if order is None:
        return ordered
    inverse = [0] * len(order)
    for place, d in enumerate(order):
        inverse[d] = place
    return ordered.permute(inverse)
