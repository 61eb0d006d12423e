"""Fake kernels of the fused operators, and how autograd, ``torch.func`` and ``vmap`` see them.

Each operator that has a gradient gets an ``autograd.Function``, which is what ``actcore.relu`` and the others call:
unlike a formula registered on the operator it works under ``torch.func``. The same formula is registered on the raw
operator too, for graphs that ``torch.compile`` makes of it. Every backward is linear in the gradient and is such a
Function itself, so second derivatives are right.

Forward-mode derivatives (``torch.func.jvp``) raise: ``torch.compile`` refuses a Function that has them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from actcore.ops import packed_bytes
from actcore.pooling import pooled_shape, window_bits

_ops = torch.ops.actcore

FUSED_OPERATORS = (
    "relu_mask",
    "dropout_mask",
    "mask_backward",
    "stepwise",
    "stepwise_codes",
    "stepwise_backward",
    "max_pool",
    "max_pool_backward",
    "window_index_pack",
    "window_index_unpack",
)

DROPOUT_STEPS = 2**16


def dropout_scale(p: float) -> float:
    """What ``dropout_mask`` multiplies kept elements by: the inverse of the rate, a multiple of 2**-16."""
    kept = DROPOUT_STEPS - round(p * DROPOUT_STEPS)
    return DROPOUT_STEPS / kept if kept else 0.0


# ---- fake kernels ----


def _bytes(like: Tensor, numel: int, bits: int) -> Tensor:
    return like.new_empty(packed_bytes(numel, bits), dtype=torch.uint8)


@torch.library.register_fake("actcore::relu_mask")
def _(input: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(input), _bytes(input, input.numel(), 1)


@torch.library.register_fake("actcore::dropout_mask")
def _(input: Tensor, p: float, seed: int, stream: int, draw: Tensor | None = None) -> tuple[Tensor, Tensor]:
    return torch.empty_like(input), _bytes(input, input.numel(), 1)


@torch.library.register_fake("actcore::mask_backward")
def _(gradient: Tensor, mask: Tensor, scale: float) -> Tensor:
    return torch.empty_like(gradient)


@torch.library.register_fake("actcore::stepwise")
def _(
    input: Tensor, function: str, parameters: Sequence[float], boundaries: Tensor, bits: int
) -> tuple[Tensor, Tensor]:
    return torch.empty_like(input), _bytes(input, input.numel(), bits)


@torch.library.register_fake("actcore::stepwise_codes")
def _(input: Tensor, boundaries: Tensor, bits: int) -> Tensor:
    return _bytes(input, input.numel(), bits)


@torch.library.register_fake("actcore::stepwise_backward")
def _(gradient: Tensor, codes: Tensor, levels: Tensor, bits: int) -> Tensor:
    return torch.empty_like(gradient)


@torch.library.register_fake("actcore::max_pool")
def _(
    input: Tensor,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
) -> tuple[Tensor, Tensor]:
    output = input.new_empty(pooled_shape(input.shape, kernel, stride, padding, dilation, ceil_mode))
    return output, _bytes(input, output.numel(), window_bits(kernel))


@torch.library.register_fake("actcore::max_pool_backward")
def _(gradient: Tensor, packed: Tensor, input_shape: Sequence[int], *options: Any) -> Tensor:
    return gradient.new_empty(input_shape)


@torch.library.register_fake("actcore::window_index_pack")
def _(indices: Tensor, input_shape: Sequence[int], kernel: Sequence[int], *options: Any) -> tuple[Tensor, Tensor]:
    return _bytes(indices, indices.numel(), window_bits(kernel)), indices.new_empty(1, dtype=torch.int32)


@torch.library.register_fake("actcore::window_index_unpack")
def _(packed: Tensor, input_shape: Sequence[int], *options: Any) -> Tensor:
    return packed.new_empty(pooled_shape(input_shape, *options), dtype=torch.int64)


# ---- vmap: one call where every sample's bits fill whole bytes, one call a sample otherwise ----


def _first(tensor: Tensor, dim: int | None, size: int) -> Tensor:
    """The batch dimension in front, in contiguous memory; a tensor that has none is repeated."""
    tensor = tensor.expand(size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
    return tensor.contiguous()


def _map_forward(call: Callable[[Tensor], Any], size: int, codes: int, x: Tensor) -> tuple[Any, tuple[int, int]]:
    """``codes`` is their number in a sample."""
    if codes % 8 == 0 and codes > 0:
        output, packed = call(x)
        return (output, packed.view(size, -1)), (0, 0)
    outputs, packs = zip(*(call(sample) for sample in x.unbind(0)), strict=True)
    return (torch.stack(outputs), torch.stack(packs)), (0, 0)


def _map_backward(
    one: Callable[[Tensor, Tensor], Any], every: Callable[[Tensor, Tensor], Any], gradient: Tensor, packed: Tensor
) -> tuple[Any, int]:
    codes = prod(gradient.shape[1:])
    if codes % 8 == 0 and codes > 0:
        return every(gradient, packed.view(-1)), 0
    return torch.stack([one(*pair) for pair in zip(gradient.unbind(0), packed.unbind(0), strict=True)]), 0


# ---- ReLU and dropout ----


class MaskBackward(Function):
    """``gradient * scale`` where the mask is 1; its derivative is the same operator."""

    @staticmethod
    def forward(gradient: Tensor, mask: Tensor, scale: float) -> Any:
        return _ops.mask_backward(gradient, mask, scale)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.scale = inputs[2]
        ctx.save_for_backward(inputs[1])

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (mask,) = ctx.saved_tensors
        return MaskBackward.apply(gradients[0].contiguous(), mask, ctx.scale), None, None

    @staticmethod
    def vmap(info: Any, in_dims: Any, *arguments: Any) -> Any:
        return MaskBackward.rule(MaskBackward.apply, info, in_dims, *arguments)

    @staticmethod
    def rule(call: Any, info: Any, in_dims: Any, gradient: Tensor, mask: Tensor, scale: float) -> Any:
        def apply(gradient: Tensor, mask: Tensor) -> Any:
            return call(gradient, mask, scale)

        size = info.batch_size
        return _map_backward(apply, apply, _first(gradient, in_dims[0], size), _first(mask, in_dims[1], size))


class Relu(Function):
    """``relu_mask`` with its gradient."""

    @staticmethod
    def forward(input: Tensor) -> Any:
        return _ops.relu_mask(input)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(output[1])

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        if gradients[0] is None:
            return None
        (mask,) = ctx.saved_tensors
        return MaskBackward.apply(gradients[0].contiguous(), mask, 1.0)

    @staticmethod
    def vmap(info: Any, in_dims: Any, *arguments: Any) -> Any:
        return Relu.rule(Relu.apply, info, in_dims, *arguments)

    @staticmethod
    def rule(call: Any, info: Any, in_dims: Any, input: Tensor) -> Any:
        x = _first(input, in_dims[0], info.batch_size)
        return _map_forward(call, info.batch_size, prod(x.shape[1:]), x)


class Dropout(Function):
    """``dropout_mask`` with its gradient."""

    @staticmethod
    def forward(input: Tensor, p: float, seed: int, stream: int, draw: Tensor | None = None) -> Any:
        return _ops.dropout_mask(input, p, seed, stream, draw)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.scale = dropout_scale(inputs[1])
        ctx.mark_non_differentiable(output[1])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(output[1])

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        if gradients[0] is None:
            return None, None, None, None, None
        (mask,) = ctx.saved_tensors
        return MaskBackward.apply(gradients[0].contiguous(), mask, ctx.scale), None, None, None, None

    @staticmethod
    def vmap(info: Any, in_dims: Any, *arguments: Any) -> Any:
        return Dropout.rule(Dropout.apply, info, in_dims, *arguments)

    @staticmethod
    def rule(
        call: Any, info: Any, in_dims: Any, input: Tensor, p: float, seed: int, stream: int, draw: Tensor | None = None
    ) -> Any:
        """A call a sample: the noise of each is what it is without vmap, given the same seed, stream and draw."""
        samples = _first(input, in_dims[0], info.batch_size).unbind(0)
        batched = draw is not None and len(in_dims) > 4 and in_dims[4] is not None
        draws = _first(draw, in_dims[4], info.batch_size).unbind(0) if batched else [draw] * info.batch_size  # type: ignore[arg-type]
        results = [call(x, p, seed, stream, one) for x, one in zip(samples, draws, strict=True)]
        outputs, masks = zip(*results, strict=True)
        return (torch.stack(outputs), torch.stack(masks)), (0, 0)


# ---- the stepwise family ----


class StepwiseBackward(Function):
    """``gradient * levels[code]``; its derivative by the gradient is the same operator."""

    @staticmethod
    def forward(gradient: Tensor, codes: Tensor, levels: Tensor, bits: int) -> Any:
        return _ops.stepwise_backward(gradient, codes, levels, bits)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.bits = inputs[3]
        ctx.save_for_backward(inputs[1], inputs[2])

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        codes, levels = ctx.saved_tensors
        return StepwiseBackward.apply(gradients[0].contiguous(), codes, levels, ctx.bits), None, None, None

    @staticmethod
    def vmap(info: Any, in_dims: Any, *arguments: Any) -> Any:
        return StepwiseBackward.rule(StepwiseBackward.apply, info, in_dims, *arguments)

    @staticmethod
    def rule(call: Any, info: Any, in_dims: Any, gradient: Tensor, codes: Tensor, levels: Tensor, bits: int) -> Any:
        _require_shared("levels", in_dims[2])

        def apply(gradient: Tensor, codes: Tensor) -> Any:
            return call(gradient, codes, levels, bits)

        size = info.batch_size
        return _map_backward(apply, apply, _first(gradient, in_dims[0], size), _first(codes, in_dims[1], size))


class Stepwise(Function):
    """``stepwise`` with the levels that stand for the derivative."""

    @staticmethod
    def forward(
        input: Tensor, function: str, parameters: Sequence[float], boundaries: Tensor, levels: Tensor, bits: int
    ) -> Any:
        if function == "softplus" and input.device.type == "cpu":
            # The operator's exponential and logarithm are not those inside torch's softplus: an ulp apart.
            return torch.nn.functional.softplus(input, *parameters), _ops.stepwise_codes(input, boundaries, bits)
        return _ops.stepwise(input, function, parameters, boundaries, bits)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.bits = inputs[5]
        ctx.mark_non_differentiable(output[1])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(output[1], inputs[4])

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        if gradients[0] is None:
            return None, None, None, None, None, None
        codes, levels = ctx.saved_tensors
        gradient = StepwiseBackward.apply(gradients[0].contiguous(), codes, levels, ctx.bits)
        return gradient, None, None, None, None, None

    @staticmethod
    def vmap(info: Any, in_dims: Any, *arguments: Any) -> Any:
        return Stepwise.rule(Stepwise.apply, info, in_dims, *arguments)

    @staticmethod
    def rule(
        call: Any,
        info: Any,
        in_dims: Any,
        input: Tensor,
        function: str,
        parameters: Sequence[float],
        boundaries: Tensor,
        levels: Tensor,
        bits: int,
    ) -> Any:
        _require_shared("boundaries", in_dims[3])
        _require_shared("levels", in_dims[4])

        def apply(x: Tensor) -> Any:
            return call(x, function, parameters, boundaries, levels, bits)

        x = _first(input, in_dims[0], info.batch_size)
        return _map_forward(apply, info.batch_size, prod(x.shape[1:]), x)


def _require_shared(name: str, dim: int | None) -> None:
    if dim is not None:
        raise ValueError(
            f"{name} must be the same for the whole batch of vmap, got one for each sample; use in_dims=None"
        )


# ---- max pooling ----


class MaxPoolBackward(Function):
    """Each gradient at its maximum's place; its derivative reads there."""

    @staticmethod
    def forward(gradient: Tensor, packed: Tensor, input_shape: Sequence[int], *options: Any) -> Any:
        return _ops.max_pool_backward(gradient, packed, input_shape, *options)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.input_shape, ctx.options = inputs[2], inputs[3:]
        ctx.save_for_backward(inputs[1])

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (packed,) = ctx.saved_tensors
        dims = len(ctx.options[0])
        indices = _ops.window_index_unpack(packed, ctx.input_shape, *ctx.options)
        flat = indices.flatten(-dims)
        read = gradients[0].flatten(-dims).gather(-1, flat.clamp(min=0))
        return read.where(flat >= 0, 0.0).view(indices.shape), None, None, None, None, None, None, None

    @staticmethod
    def vmap(info: Any, in_dims: Any, *arguments: Any) -> Any:
        return MaxPoolBackward.rule(MaxPoolBackward.apply, info, in_dims, *arguments)

    @staticmethod
    def rule(
        call: Any, info: Any, in_dims: Any, gradient: Tensor, packed: Tensor, input_shape: Sequence[int], *options: Any
    ) -> Any:
        size = info.batch_size

        def one(gradient: Tensor, packed: Tensor) -> Any:
            return call(gradient, packed, input_shape, *options)

        def every(gradient: Tensor, packed: Tensor) -> Any:
            return call(gradient, packed, [size, *input_shape], *options)

        return _map_backward(one, every, _first(gradient, in_dims[0], size), _first(packed, in_dims[1], size))


class MaxPool(Function):
    """``max_pool`` with its gradient."""

    @staticmethod
    def forward(input: Tensor, *options: Any) -> Any:
        return _ops.max_pool(input, *options)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.input_shape, ctx.options = list(inputs[0].shape), inputs[1:]
        ctx.mark_non_differentiable(output[1])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(output[1])

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        if gradients[0] is None:
            return None, None, None, None, None, None
        (packed,) = ctx.saved_tensors
        gradient = MaxPoolBackward.apply(gradients[0].contiguous(), packed, ctx.input_shape, *ctx.options)
        return gradient, None, None, None, None, None

    @staticmethod
    def vmap(info: Any, in_dims: Any, *arguments: Any) -> Any:
        return MaxPool.rule(MaxPool.apply, info, in_dims, *arguments)

    @staticmethod
    def rule(call: Any, info: Any, in_dims: Any, input: Tensor, *options: Any) -> Any:
        x = _first(input, in_dims[0], info.batch_size)
        codes = prod(pooled_shape(x.shape[1:], *options))

        def apply(x: Tensor) -> Any:
            return call(x, *options)

        return _map_forward(apply, info.batch_size, codes, x)


# ---- the same rules on the raw operators ----


def _stepwise_without_levels(ctx: Any, *gradients: Any) -> Any:
    raise RuntimeError(
        "actcore::stepwise has no levels and so no gradient, but backward reached it; call actcore.stepwise, or "
        "torch.ops.actcore.stepwise_backward in a backward of your own"
    )


for _name, _function in (
    ("relu_mask", Relu),
    ("dropout_mask", Dropout),
    ("mask_backward", MaskBackward),
    ("stepwise_backward", StepwiseBackward),
    ("max_pool", MaxPool),
    ("max_pool_backward", MaxPoolBackward),
):
    torch.library.register_autograd(f"actcore::{_name}", _function.backward, setup_context=_function.setup_context)
    torch.library.register_vmap(f"actcore::{_name}", partial(_function.rule, getattr(_ops, _name)))
torch.library.register_autograd("actcore::stepwise", _stepwise_without_levels)


@torch.library.register_vmap("actcore::stepwise")
def _(info: Any, in_dims: Any, input: Tensor, function: str, parameters: Any, boundaries: Tensor, bits: int) -> Any:
    _require_shared("boundaries", in_dims[3])
    x = _first(input, in_dims[0], info.batch_size)
    return _map_forward(
        lambda x: _ops.stepwise(x, function, parameters, boundaries, bits), len(x), prod(x.shape[1:]), x
    )


@torch.library.register_vmap("actcore::stepwise_codes")
def _(info: Any, in_dims: Any, input: Tensor, boundaries: Tensor, bits: int) -> Any:
    _require_shared("boundaries", in_dims[1])
    samples = _first(input, in_dims[0], info.batch_size).unbind(0)
    return torch.stack([_ops.stepwise_codes(sample, boundaries, bits) for sample in samples]), 0


@torch.library.register_vmap("actcore::window_index_pack")
def _(info: Any, in_dims: Any, indices: Tensor, *options: Any) -> Any:
    samples = _first(indices, in_dims[0], info.batch_size).unbind(0)
    packs, misfits = zip(*(_ops.window_index_pack(sample, *options) for sample in samples), strict=True)
    return (torch.stack(packs), torch.stack(misfits)), (0, 0)


@torch.library.register_vmap("actcore::window_index_unpack")
def _(info: Any, in_dims: Any, packed: Tensor, *options: Any) -> Any:
    samples = _first(packed, in_dims[0], info.batch_size).unbind(0)
    return torch.stack([_ops.window_index_unpack(sample, *options) for sample in samples]), 0
