"""``linear_randomized``: a linear layer that keeps a random sketch of its input for the weight's gradient.

The method is that of Bershatsky et al., "Memory-efficient backpropagation through large linear layers"
(arXiv 2201.13195, 2022).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function
from torch.overrides import handle_torch_function, has_torch_function

import actcore
from actcore.autograd import restore_saved
from actcore.double_backward import builds_graph
from actcore.stored import Stored, announce, is_heard
from integrations._utils.autocast import as_matmul
from integrations._utils.plain_tensor_types import PLAIN
from integrations._utils.warn import warn
from integrations.fewbit.functional.conditions import in_transform
from integrations.fewbit.sketches import Sketching, drawn_key, project, sample_tokens, seeded_key, storage
from integrations.tracing.double_backward import DoubleBackward, is_wanted
from integrations.tracing.tensors import is_dtensor, make_dtensor_error


def linear_randomized(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    proj_dim_ratio: float | None = None,
    proj_dim: int | None = None,
    proj_dim_max: int | None = None,
    proj_dim_min: int | None = None,
    matmul: str = "gaussian",
    generator: torch.Generator | None = None,
    *,
    seed: int | None = None,
    stream: int = 0,
    block_size: int | None = 1024,
    bits: int | None = None,
) -> Tensor:
    """Compute ``F.linear(x, weight, bias)``, keeping ``S x`` in place of ``x``, with a random ``S`` of few rows.

    Output, input gradient and bias gradient are torch's. The weight's gradient is ``(S dY)^T (S x)``, whose mean over
    the noise is the exact gradient; ``integrations.fewbit.variance`` computes its variance. ``S`` multiplies the
    tokens: all dimensions but the last, flattened. Backward regenerates ``S`` from 16 bytes. If ``S`` would have as
    many rows as there are tokens, the input itself is kept, and the gradient is exact. The same holds inside
    ``torch.func``, in forward-mode differentiation and for tensor subclasses. If the weight's gradient is
    differentiated (``create_graph=True``), a warning says that the second derivatives have more error.

    Args:
        x: ``Float["... in"]``, of float32, float64, float16 or bfloat16.
        weight: ``Float["out in"]``. If it does not require a gradient, only the weight is kept.
        bias: ``Float["out"]``.
        proj_dim_ratio: rows of the sketch as a share of the tokens. Give either this or ``proj_dim``.
        proj_dim: rows of the sketch.
        proj_dim_max, proj_dim_min: bounds of the rows, which are always at least 1 and at most the number of tokens.
        matmul: the kind of sketch. ``"gaussian"``, ``"rademacher"`` (signs), ``"dct"`` and ``"dft"`` (random signs, a
            cosine or Hartley transform, a random choice of its rows), or ``"rows"``: a sample of the tokens by the norm
            of their rows.
        generator: draws the seed of the sketch; ``None`` takes torch's generator of the device of ``x``, so
            ``torch.manual_seed`` decides.
        seed: any int, in place of a generator: determines the noise together with ``stream``.
        stream: separates calls with the same seed, whose noise is equal otherwise.
        block_size: makes the sketch block-diagonal, with blocks of at most this many tokens; ``None`` makes one block,
            whose cost grows with the square of the tokens.
        bits: 1 to 8 stores the sketch in that many bits per element (``actcore.GroupAffine``, unbiased).

    Raises:
        TypeError: an option has the wrong type.
        ValueError: an option is out of range; the size of the sketch is given twice or not at all; seed and generator
            are both given.
    """
    sketching = Sketching(proj_dim_ratio, proj_dim, proj_dim_min, proj_dim_max, matmul, block_size, bits)
    require_one_source(seed, generator)

    def key() -> Tensor:
        return drawn_key(x, generator) if seed is None else seeded_key(x.device, seed, stream)

    return sketched_linear(x, weight, bias, sketching, key)


linear_grp = linear_randomized
"""FewBit's other name of ``linear_randomized``."""


def require_one_source(seed: int | None, generator: torch.Generator | None) -> None:
    """Raises unless the noise comes from a seed, a generator or neither."""
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int)):
        raise TypeError(f"seed must be an int or None, got {seed!r}")
    if generator is not None and not isinstance(generator, torch.Generator):
        raise TypeError(f"generator must be a torch.Generator or None, got {generator!r}")
    if seed is not None and generator is not None:
        raise ValueError(f"seed and generator must not both be given, got seed={seed}; pass only one of them")


def sketched_linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    sketching: Sketching,
    key: Callable[[], Tensor],
    double: DoubleBackward | None = None,
) -> Tensor:
    """``linear_randomized`` with options that are checked; ``key`` is called where there is a sketch, and ``double`` is
    notified of second derivatives through it."""
    if not keeps_input(x, weight, bias):
        return F.linear(x, weight, bias)
    tokens = x.numel() // x.shape[-1]
    rows = sketching.rows(tokens)
    if torch.compiler.is_compiling():
        # A number, for which the layer is compiled: dynamo takes no Function of tensors whose sizes are computed.
        from torch.fx.experimental.symbolic_shapes import guard_scalar  # imports sympy

        rows = int(guard_scalar(rows))
    if rows >= tokens:
        return F.linear(x, weight, bias)
    # Outside of the Function, whose saved tensors are those that it computes with.
    given, cast_weight, cast_bias = as_matmul(x, weight, bias)
    matrix = given.reshape(-1, given.shape[-1])
    drawn, chosen = key(), None
    # With the history of the input, which a second derivative goes through.
    told = f"sketch of {rows} rows" + (f" in {sketching.bits} bits" if sketching.bits else "")
    if sketching.matmul == "rows":
        chosen, weights = sample_tokens(matrix, drawn, rows)
        weights = weights.to(torch.promote_types(matrix.dtype, torch.float32))
        # Autograd keeps these of the sketch's history already.
        announce_input(given, "linear_randomized", told, chosen, weights)
        sketch = matrix.index_select(0, chosen).to(weights.dtype) * weights[:, None]
    else:
        announce_input(given, "linear_randomized", told, drawn)
        sketch = project(matrix, drawn, sketching.matmul, rows, sketching.block_size)
    double = None if torch.compiler.is_compiling() else double  # compiled code has no second derivative
    return _with_sketch(given, cast_weight, cast_bias, sketch, drawn, chosen, sketching, double)


def _with_sketch(*arguments: Any) -> Tensor:
    # As torch's own functions do, so that a report can name what saves the sketch.
    if not torch.compiler.is_compiling() and has_torch_function(arguments[:1]):
        seen: Tensor = handle_torch_function(_named, arguments[:1], *arguments)
        return seen
    output: Tensor = _SketchedLinear.apply(*arguments)
    return output


def _named(*arguments: Any) -> Tensor:
    return _with_sketch(*arguments)


_named.__name__ = "linear_randomized"


def announce_input(x: Tensor, operator: str, codec: str, *parts: Tensor) -> None:
    """Announces that a linear layer keeps something else in the place of its input."""
    if is_heard():
        announce(Stored(x, operator, "input", codec, parts))


def announce_more(ctx: Any, x: Tensor, operator: str, weight: Tensor | None) -> None:
    """Announces what a linear layer's Function saves in the place of its input: all but the weight."""
    if is_heard(ctx):
        parts = tuple(tensor for tensor in ctx.to_save if tensor is not None and tensor is not weight)
        exact = () if weight is None else (Stored(weight, operator, "other", parts=(weight,)),)
        announce(Stored(x, operator, "input", parts=parts, more=True), *exact)


def keeps_input(x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    """Whether torch's own layer would keep ``x`` for the weight's gradient, and a sketch of it may take its place.

    For shapes that are no linear layer's, a vector as weight among them, torch's function is the right one: it computes
    what it defines for them, or raises its own error.

    Raises:
        TypeError: ``x`` is a ``DTensor``.
    """
    if is_dtensor(x) and torch.is_grad_enabled() and weight.requires_grad:
        raise make_dtensor_error(x, "randomized linear layers (linear=)")
    return (
        torch.is_grad_enabled()
        and weight.requires_grad
        and type(x) in PLAIN
        and type(weight) in PLAIN
        and x.layout is torch.strided
        and not x.is_nested
        and x.dtype in actcore.FLOATS
        and x.dim() > 0
        and weight.dim() == 2
        and (bias is None or bias.dim() == 1)
        and x.numel() > 0
        and weight.numel() > 0
        and not in_transform()
    )


class _SketchedLinear(Function):
    """``F.linear``; backward multiplies the sketch of the gradient with that of the input.

    The sketch is an argument, so that its history is known. Backward makes ``S`` from its key, or from the tokens that
    were sampled.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        sketch: Tensor,
        key: Tensor,
        chosen: Tensor | None,
        sketching: Sketching,
        double: DoubleBackward | None,
    ) -> Tensor:
        ctx.sketching, ctx.dtype, ctx.double = sketching, weight.dtype, double
        kept = weight if ctx.needs_input_grad[0] else None
        actcore.save_for_backward(
            ctx,
            (sketch, storage(x.dtype, sketching.bits, key)),
            (kept, None),
            (key if chosen is None else chosen, None),
            stream=0,  # the codec rounds by the sketch's key
            operator=None,
        )
        announce_more(ctx, x, "linear_randomized", kept)
        return F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (gradient,) = gradients
        notify(ctx)
        sketch, weight, noise = restore_saved(ctx)
        assert sketch is not None
        assert noise is not None
        to_x, to_weight, to_bias = ctx.needs_input_grad[:3]
        matrix = gradient.reshape(-1, gradient.shape[-1])
        with torch.autocast(gradient.device.type, enabled=False):  # in forward's dtypes, wherever backward is called
            to_weight_gradient = None
            if to_weight:
                other = _sketch_of_gradient(matrix, noise, sketch, ctx.sketching)
                to_weight_gradient = other.t().mm(sketch).to(ctx.dtype)
            return (
                gradient.matmul(weight) if to_x else None,
                to_weight_gradient,
                matrix.sum(0) if to_bias else None,
                *(None,) * 5,
            )


def new_double_backward() -> DoubleBackward:
    """Return a new ``DoubleBackward`` that warns, with the ways out for linear layers in few bits."""
    return DoubleBackward(_tell_of_double_backward)


def notify(ctx: Any) -> None:
    """Record a backward with ``create_graph=True`` that computes the gradient of a Function's weight, its second
    argument."""
    if builds_graph() and is_wanted(ctx, 1):
        (ctx.double or new_double_backward()).meet(True)


def _tell_of_double_backward(rounded: bool) -> None:
    warn(
        "randomized linear layers: backward differentiates gradients of their weights (create_graph=True), which are "
        "right on average only. Second derivatives have more error than first ones, and a bias. Use torch's layers: "
        "keep= of fewbit.convert, fewbit.restore_model(model), or compress_model without linear="
    )


def _sketch_of_gradient(matrix: Tensor, noise: Tensor, sketch: Tensor, sketching: Sketching) -> Tensor:
    """``S dY`` in the sketch's dtype."""
    if sketching.matmul != "rows":
        other: Tensor = project(matrix, noise, sketching.matmul, sketch.shape[0], sketching.block_size)
        return other
    # What a NaN or an infinity of a token that is left out makes of the exact gradient.
    with torch.no_grad():
        left_out = matrix.sum(0, dtype=sketch.dtype) * 0
    return matrix.index_select(0, noise).to(sketch.dtype) + left_out
