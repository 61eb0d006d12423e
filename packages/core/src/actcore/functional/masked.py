"""ReLU and dropout that keep one bit an element."""

from __future__ import annotations

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
from actcore.fused import Dropout, Relu
from actcore.stored import stands_for


def relu(x: Tensor) -> Tensor:
    """Compute ``max(x, 0)``, like ``torch.relu``, keeping 1 bit per element.

    ``Float[Tensor, "..."] -> Float[Tensor, "..."]``. Values and gradients are torch's bit for bit, also for NaN and
    negative zero.

    Raises:
        TypeError: ``x`` is not a float32, float64, float16 or bfloat16 tensor.
    """
    check_float(x)
    ordered, order = in_memory_order(x)
    stands_for(ordered, x, "relu")
    output: Tensor = Relu.call(ordered)[0]
    return restored(output, order)


def dropout(x: Tensor, p: float = 0.5, training: bool = True, seed: int | None = None, stream: int = 0) -> Tensor:
    """Zero each element with probability ``p`` and scale the others, keeping 1 bit per element.

    The noise is Philox of (seed, stream, element position) with 16 bits per element, so ``p`` is rounded to the nearest
    multiple of 2**-16. Kept elements are divided by the rate at which elements are kept, so the mean of the output is
    ``x``. Dropped elements are 0, also where ``x`` is NaN or infinite.

    Args:
        x: any shape.
        p: probability of a zero, 0 to 1.
        training: ``False`` returns ``x`` itself.
        seed: any int. ``None`` draws one from torch's generator of ``x``'s device, so ``torch.manual_seed`` decides.
        stream: separates calls with the same seed: equal seeds and streams give equal noise.

    Raises:
        TypeError: ``x`` is not a float32, float64, float16 or bfloat16 tensor; ``p``, ``seed`` or ``stream`` is not a
            number.
        ValueError: ``p`` is not a probability.
    """
    check_float(x)
    if not isinstance(p, (int, float)):
        raise TypeError(f"p must be a number, got {p!r}")
    check_seed(seed)
    check_stream(stream)
    if not 0 <= p <= 1:
        raise ValueError(f"p must be a probability from 0 to 1, got {p}")
    if not training or p == 0:
        return x
    draw = draw_for(x, seed)
    ordered, order = in_memory_order(x)
    stands_for(ordered, x, "dropout")
    output: Tensor = Dropout.call(ordered, float(p), int64(seed or 0), int64(stream), draw)[0]
    return restored(output, order)
